//! containerd's own API, gRPC over its socket, as far as a worker asks it something.
//!
//! h2 is all that two questions need of gRPC, and what it is built on is in the program anyway.
//! containerd-client, which is made of tonic, would make the program grow by half as much again.

use std::io;

use h2::client::SendRequest;
use hyper::{
    body::Bytes,
    http::{HeaderMap, Request},
};
use percent_encoding::percent_decode_str;
use prost::Message;
use tokio::net::UnixStream;

/// The longest answer that is taken, bytes. containerd reads image configurations up to this size,
/// too.
const LONGEST_ANSWER: usize = 8 << 20;
/// Length of the prefix of each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A question that containerd did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// A socket on which nobody listens.
    #[error("containerd does not listen at {address}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    /// HTTP/2.
    #[error("containerd's answer to {method} broke off")]
    Http2 {
        method: &'static str,
        #[source]
        source: h2::Error,
    },
    /// The question cannot be put into a request.
    #[error("containerd cannot be asked {method}")]
    Request {
        method: &'static str,
        #[source]
        source: hyper::http::Error,
    },
    /// A refusal.
    #[error("containerd refused {method} with gRPC status {status}: {message}")]
    Refused { method: &'static str, status: String, message: String },
    /// The answer is no message, or too long.
    #[error("containerd's answer to {method} is {what}")]
    Malformed { method: &'static str, what: &'static str },
    /// The answer is another message.
    #[error("containerd's answer to {method} does not decode")]
    Decode {
        method: &'static str,
        #[source]
        source: prost::DecodeError,
    },
}

/// A connection, for one namespace. Its work is a task of the runtime that it was made in.
#[derive(Debug)]
pub struct ContainerdClient {
    requests: SendRequest<Bytes>,
    namespace: String,
}

impl ContainerdClient {
    /// Connects to the socket at `address`.
    pub async fn connect(address: &str, namespace: &str) -> Result<Self, ContainerdError> {
        let path = address.strip_prefix("unix://").unwrap_or(address);
        let failed = |source| ContainerdError::Connect { address: address.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(failed)?;
        let handshake = h2::client::handshake(stream).await;
        let (requests, connection) = handshake.map_err(|error| failed(io::Error::other(error)))?;
        // Its errors reach whoever waits for an answer.
        tokio::spawn(connection);
        Ok(Self { requests, namespace: namespace.to_owned() })
    }

    /// Asks one question: the messages of the answer. `method`: `/PACKAGE.SERVICE/METHOD`.
    pub async fn ask<A: Message + Default>(
        &mut self,
        method: &'static str,
        question: &impl Message,
    ) -> Result<Vec<A>, ContainerdError> {
        let broken = |source| ContainerdError::Http2 { method, source };
        let request = Request::post(format!("http://localhost{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("containerd-namespace", &self.namespace)
            .body(())
            .map_err(|source| ContainerdError::Request { method, source })?;
        let (answer, mut sending) = self.requests.send_request(request, false).map_err(broken)?;
        sending.send_data(framed(method, question)?, true).map_err(broken)?;
        let (head, mut body) = answer.await.map_err(broken)?.into_parts();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(broken)?;
            if bytes.len() + piece.len() > LONGEST_ANSWER {
                return Err(ContainerdError::Malformed { method, what: "too long" });
            }
            body.flow_control().release_capacity(piece.len()).map_err(broken)?;
            bytes.extend_from_slice(&piece);
        }
        // An answer without a message has no trailers: its head is all.
        let trailers = body.trailers().await.map_err(broken)?;
        refusal(method, trailers.as_ref().unwrap_or(&head.headers))?;
        messages(method, &bytes)
    }
}

/// A message as it travels.
fn framed(method: &'static str, message: &impl Message) -> Result<Bytes, ContainerdError> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len());
    let length = length.map_err(|_| ContainerdError::Malformed { method, what: "to a question that is too long" })?;
    Ok([&[0], &length.to_be_bytes()[..], &message].concat().into())
}

fn messages<A: Message + Default>(method: &'static str, mut bytes: &[u8]) -> Result<Vec<A>, ContainerdError> {
    let cut_off = ContainerdError::Malformed { method, what: "cut off, or compressed" };
    let mut messages = Vec::new();
    while let Some((&[0, length @ ..], rest)) = bytes.split_first_chunk::<PREFIX>() {
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let Some((message, rest)) = rest.split_at_checked(length) else { return Err(cut_off) };
        messages.push(A::decode(message).map_err(|source| ContainerdError::Decode { method, source })?);
        bytes = rest;
    }
    if bytes.is_empty() { Ok(messages) } else { Err(cut_off) }
}

fn refusal(method: &'static str, trailers: &HeaderMap) -> Result<(), ContainerdError> {
    let text = |name| trailers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let status = text("grpc-status").unwrap_or_else(|| "none".to_owned());
    if status == "0" {
        return Ok(());
    }
    let message = text("grpc-message").unwrap_or_default();
    let message = percent_decode_str(&message).decode_utf8_lossy().into_owned();
    Err(ContainerdError::Refused { method, status, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_messages_or_an_error() {
        let one = [0, 0, 0, 0, 3, 10, 1, b'a'];
        let two = [one, one].concat();
        assert_eq!(messages::<String>("m", &two).unwrap(), ["a", "a"]);
        assert!(messages::<String>("m", &[]).unwrap().is_empty());
        let compressed = [1, 0, 0, 0, 3, 10, 1, b'a'];
        let endless = [0, 255, 255, 255, 255, 10, 1, b'a'];
        for wrong in [&two[..15], &two[..10], &compressed, &endless, &[0, 0, 0, 0, 1, 10]] {
            assert!(messages::<String>("m", wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(framed("m", &"a".to_owned()).unwrap(), &one[..]);
    }

    #[test]
    fn a_status_other_than_zero_is_a_refusal() {
        let trailers = |pairs: &[(&'static str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        assert!(refusal("m", &trailers(&[("grpc-status", "0")])).is_ok());
        let refused = refusal("m", &trailers(&[("grpc-status", "5"), ("grpc-message", "not%20found")])).unwrap_err();
        assert_eq!(refused.to_string(), "containerd refused m with gRPC status 5: not found");
        assert!(refusal("m", &trailers(&[])).is_err());
    }
}
