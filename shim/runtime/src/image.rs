//! `ImageVariable`: an environment variable as the image of a pod's container sets it, asked of
//! containerd.
//!
//! containerd's CRI plugin writes down by which image configuration it makes a container, by
//! digest: no tag can have been moved since, and no platform is to be chosen.

use std::{collections::HashMap, io, time::Duration};

use prost::Message;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    containerd::{ContainerdClient, ContainerdError},
    protocol::ImageVariable,
};

/// containerd answers from its memory and its disk. A create waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// The label under which the CRI plugin keeps its record of a container.
const CRI_RECORD: &str = "io.cri-containerd.container.metadata";

/// An image whose settings cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// Waiting needs a clock.
    #[error("cannot make a runtime to wait with")]
    Runtime(#[source] io::Error),
    /// containerd did not answer.
    #[error(transparent)]
    Containerd(#[from] ContainerdError),
    /// An answer that did not come in time.
    #[error("containerd did not answer within {} s", PATIENCE.as_secs())]
    Timeout,
    /// The container was not made by CRI.
    #[error("containerd has no CRI record of the container")]
    NoRecord,
    /// The record, or the image's configuration.
    #[error("{what} is malformed")]
    Malformed {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// The values, as often as the image sets the variable.
pub(crate) fn variable(asked: &ImageVariable) -> Result<Vec<String>, ImageError> {
    variable_within(PATIENCE, asked)
}

fn variable_within(patience: Duration, asked: &ImageVariable) -> Result<Vec<String>, ImageError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ImageError::Runtime)?;
    let env = runtime.block_on(async {
        tokio::time::timeout(patience, environment(asked)).await.unwrap_or(Err(ImageError::Timeout))
    })?;
    let values = env.iter().filter_map(|entry| entry.split_once('=')).filter(|(name, _)| *name == asked.name);
    Ok(values.map(|(_, value)| value.to_owned()).collect())
}

async fn environment(asked: &ImageVariable) -> Result<Vec<String>, ImageError> {
    let mut containerd = ContainerdClient::connect(&asked.containerd, &asked.namespace).await?;
    let question = GetContainerRequest { id: asked.container.clone() };
    let answer: Vec<GetContainerResponse> =
        containerd.ask("/containerd.services.containers.v1.Containers/Get", &question).await?;
    let mut containers = answer.into_iter().filter_map(|answer| answer.container);
    let record = containers.next().and_then(|mut container| container.extensions.remove(CRI_RECORD));
    let digest = image(&record.ok_or(ImageError::NoRecord)?.value)?;
    let question = ReadContentRequest { digest };
    let pieces: Vec<ReadContentResponse> =
        containerd.ask("/containerd.services.content.v1.Content/Read", &question).await?;
    let configuration: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.data).collect();
    environment_of(&configuration)
}

/// Digest of the image's configuration, in the CRI plugin's record.
fn image(record: &[u8]) -> Result<String, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Record {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Metadata {
        image_ref: String,
    }
    let record: Record = serde_json::from_slice(record).map_err(malformed("containerd's CRI record"))?;
    Ok(record.metadata.image_ref)
}

/// `config.Env` of an image's configuration. Anything but such a configuration is an error, and not
/// an image that says nothing.
fn environment_of(configuration: &[u8]) -> Result<Vec<String>, ImageError> {
    #[derive(Deserialize)]
    struct Image {
        #[serde(rename = "rootfs")]
        _every_image_has_one: IgnoredAny,
        config: Option<Config>,
    }
    #[derive(Deserialize)]
    struct Config {
        #[serde(rename = "Env")]
        env: Option<Vec<String>>,
    }
    let image: Image = serde_json::from_slice(configuration).map_err(malformed("the image's configuration"))?;
    Ok(image.config.and_then(|config| config.env).unwrap_or_default())
}

fn malformed(what: &'static str) -> impl FnOnce(serde_json::Error) -> ImageError {
    move |source| ImageError::Malformed { what, source }
}

// Of containerd's messages the fields that are used; the others are skipped.

#[derive(Clone, PartialEq, Message)]
struct GetContainerRequest {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct GetContainerResponse {
    #[prost(message, optional, tag = "1")]
    container: Option<ContainerRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerRecord {
    #[prost(map = "string, message", tag = "10")]
    extensions: HashMap<String, Any>,
}

/// `google.protobuf.Any`; the record is JSON in it.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ReadContentRequest {
    #[prost(string, tag = "1")]
    digest: String,
}

#[derive(Clone, PartialEq, Message)]
struct ReadContentResponse {
    #[prost(bytes = "vec", tag = "2")]
    data: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_containerd_that_does_not_answer_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("containerd.sock");
        let (containerd, namespace) = (socket.display().to_string(), "k8s.io".to_owned());
        let asked = ImageVariable { containerd, namespace, container: "c".into(), name: "A".into() };
        let absent = variable_within(PATIENCE, &asked).unwrap_err();
        assert!(matches!(absent, ImageError::Containerd(ContainerdError::Connect { .. })), "{absent}");
        let _silent = UnixListener::bind(&socket).unwrap();
        let late = variable_within(Duration::from_millis(10), &asked).unwrap_err();
        assert!(matches!(late, ImageError::Timeout), "{late}");
    }

    #[test]
    fn the_record_names_the_image() {
        let record =
            br#"{"Version":"v1","Metadata":{"ID":"c","Config":{"image":{"image":"a:1"}},"ImageRef":"sha256:ab"}}"#;
        assert_eq!(image(record).unwrap(), "sha256:ab");
        for wrong in [&b"{}"[..], b"", br#"{"Version":"v1","Metadata":{"ID":"c"}}"#] {
            assert!(image(wrong).is_err());
        }
    }

    #[test]
    fn only_an_image_may_say_nothing() {
        let env = |text: &str| environment_of(text.as_bytes());
        assert_eq!(env(r#"{"rootfs":{},"config":{"Env":["A=1","A=2"],"Cmd":["x"]}}"#).unwrap(), ["A=1", "A=2"]);
        for silent in [r#"{"rootfs":{}}"#, r#"{"rootfs":{},"config":{}}"#, r#"{"rootfs":{},"config":{"Env":null}}"#] {
            assert!(env(silent).unwrap().is_empty(), "{silent}");
        }
        let manifest = r#"{"schemaVersion":2,"config":{"digest":"sha256:ab","size":1},"layers":[]}"#;
        for wrong in [manifest, "", "{}", r#"{"rootfs":{},"config":{"Env":"A=1"}}"#] {
            assert!(env(wrong).is_err(), "{wrong}");
        }
    }
}
