//! The kubelet's side: its calls, and the bytes of its first dial.

use std::{path::Path, time::Duration};

use hyper::{Request, body::Bytes};
use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use crate::kubelet_api::{
    ClaimName, Claims, Empty, Health, PluginInfo, Prepared, PreparedClaim, Unprepared,
    dra::{PREPARE, UNPREPARE},
    health::WATCH,
    registration::GET_INFO,
};

/// All that kubelet 1.37.2 (grpc-go 1.82.1) wrote to a registration socket
/// `/var/lib/kubelet/plugins_registry/egpu@gpu.egpu.io-reg.sock`, from its dial to its goodbye:
/// `GetInfo`, then `NotifyRegistrationStatus`.
const DIAL: &[u8] = include_bytes!("kubelet-dial.bin");
/// Its part before the server's first word: the preface and its settings.
const PREFACE: usize = 24 + 9;

/// Writes what the kubelet does, and returns what the server answers.
pub(super) async fn dial(socket: &Path) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(&DIAL[..PREFACE]).await.unwrap();
    let mut answered = vec![0; 9];
    stream.read_exact(&mut answered).await.unwrap();
    stream.write_all(&DIAL[PREFACE..]).await.unwrap();
    let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut answered)).await.unwrap();
    answered
}

/// Types of the frames in `bytes`, and whether there is data among them.
pub(super) fn frames(bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let [a, b, c, kind, _, _, _, _, _, tail @ ..] = rest {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let (payload, next) = tail.split_at(length);
        frames.push((*kind, payload));
        rest = next;
    }
    frames
}

/// A call of one message, answered with one or more. Returns the first.
async fn call<Req: Message, Res: Message + Default>(socket: &Path, method: &str, request: &Req) -> Res {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request_head = Request::post(format!("http://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut body) = client.send_request(request_head, false).unwrap();
    body.send_data(framed(request), true).unwrap();
    let mut response = timeout(Duration::from_secs(40), response).await.unwrap().unwrap().into_body();
    let mut message = Vec::new();
    loop {
        let data = timeout(Duration::from_secs(40), response.data()).await.unwrap();
        message.extend_from_slice(&data.expect("an answer").unwrap());
        if let [_, length @ ..] = message.as_slice()
            && let Some((length, rest)) = length.split_first_chunk::<4>()
            && rest.len() >= u32::from_be_bytes(*length) as usize
        {
            connection.abort();
            return Res::decode(rest).unwrap();
        }
    }
}

fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    framed.into()
}

pub(super) async fn info(socket: &Path) -> PluginInfo {
    call(socket, GET_INFO, &Empty {}).await
}

pub(super) async fn health(socket: &Path) -> Health {
    call(socket, WATCH, &Empty {}).await
}

pub(super) async fn prepare_all(socket: &Path, claims: &[ClaimName]) -> Prepared {
    call(socket, PREPARE, &Claims { claims: claims.to_vec() }).await
}

pub(super) async fn prepare(socket: &Path, claim: &ClaimName) -> PreparedClaim {
    let mut answers = prepare_all(socket, std::slice::from_ref(claim)).await;
    answers.claims.remove(&claim.uid).expect("an answer about the claim")
}

/// Returns the error; empty: it is done.
pub(super) async fn unprepare(socket: &Path, claim: &ClaimName) -> String {
    let mut answers: Unprepared = call(socket, UNPREPARE, &Claims { claims: vec![claim.clone()] }).await;
    answers.claims.remove(&claim.uid).expect("an answer about the claim").error
}
