//! The parameters that containerd gives a shim at `start`, and the forms of the answer.
//!
//! From 2.3 on containerd writes a `BootstrapParams` message to stdin and reads a
//! `BootstrapResult`. Before, stdin held the runtime options (an `Any`, possibly nothing), the rest
//! came as flags and environment, and the answer is a plain address, which every version takes for
//! Task API v2.

use containerd_shim::bootstrap::{BootstrapParams, BootstrapResult, LogLevel};
use protobuf::{Message, well_known_types::any::Any};

use crate::args::Identity;

/// The parameters of `start`, whichever way containerd gave them.
#[derive(Debug, Clone, PartialEq)]
pub struct StartParams {
    /// The caller, and the container that it calls for.
    pub identity: Identity,
    /// The address at which events are published.
    pub ttrpc_address: String,
    /// Directory for the shim's socket, if containerd wants a certain one.
    pub socket_dir: Option<String>,
    /// The runtime options and whatever else containerd attached.
    pub extensions: Vec<Any>,
    /// The form of the answer.
    pub reply: BootstrapReply,
}

/// Form of the answer to `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootstrapReply {
    /// The address as text: Task API v2, understood by every containerd.
    Address,
    /// A `BootstrapResult`: Task API v3.
    Bootstrap,
}

/// Parameters that `start` cannot work from.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// stdin names another container than the flags.
    #[error(
        "the bootstrap parameters on stdin are for container {found_id:?} of namespace {found_namespace:?}, the flags for \
         {id:?} of {namespace:?}; both must name the same"
    )]
    Mismatch {
        /// The id in the message.
        found_id: String,
        /// The namespace in the message.
        found_namespace: String,
        /// The id in the flags.
        id: String,
        /// The namespace in the flags.
        namespace: String,
    },
    /// Nowhere to publish events.
    #[error(
        "containerd's TTRPC address is missing: neither the TTRPC_ADDRESS environment variable nor the bootstrap parameters have it"
    )]
    NoTtrpcAddress,
    /// The answer could not be encoded.
    #[error("cannot encode the answer to start")]
    Encode(#[source] protobuf::Error),
}

impl StartParams {
    /// Works out what containerd said from its stdin, the flags, and `TTRPC_ADDRESS`.
    pub fn read(input: &[u8], identity: Identity, ttrpc_address: Option<String>) -> Result<Self, BootstrapError> {
        let mut params = match bootstrap_params(input, &identity)? {
            Some(params) => Self::from_bootstrap(params, identity),
            None => Self {
                identity,
                ttrpc_address: String::new(),
                socket_dir: None,
                extensions: legacy_options(input).into_iter().collect(),
                reply: BootstrapReply::Address,
            },
        };
        if params.ttrpc_address.is_empty() {
            params.ttrpc_address =
                ttrpc_address.filter(|address| !address.is_empty()).ok_or(BootstrapError::NoTtrpcAddress)?;
        }
        Ok(params)
    }

    fn from_bootstrap(params: BootstrapParams, mut identity: Identity) -> Self {
        identity.debug |= params.log_level.value() <= LogLevel::LOG_LEVEL_DEBUG as i32;
        if !params.containerd_grpc_address.is_empty() {
            identity.address = params.containerd_grpc_address;
        }
        Self {
            identity,
            ttrpc_address: params.containerd_ttrpc_address,
            socket_dir: params.socket_dir.filter(|directory| !directory.is_empty()),
            extensions: params.extensions.into_iter().filter_map(|extension| extension.value.into_option()).collect(),
            reply: BootstrapReply::Bootstrap,
        }
    }
}

/// An `Any` of options decodes as `BootstrapParams` too (type URL as `instance_id`, value as
/// `namespace`), so only a message that names the container of the flags counts; one that holds
/// more than these two fields and names another container is an error, not an `Any`.
fn bootstrap_params(input: &[u8], identity: &Identity) -> Result<Option<BootstrapParams>, BootstrapError> {
    if input.is_empty() {
        return Ok(None);
    }
    let Ok(params) = BootstrapParams::parse_from_bytes(input) else { return Ok(None) };
    if params.instance_id == identity.id && params.namespace == identity.namespace {
        return Ok(Some(params));
    }
    let two_fields = BootstrapParams {
        instance_id: params.instance_id.clone(),
        namespace: params.namespace.clone(),
        ..Default::default()
    };
    if params == two_fields {
        return Ok(None);
    }
    Err(BootstrapError::Mismatch {
        found_id: params.instance_id,
        found_namespace: params.namespace,
        id: identity.id.clone(),
        namespace: identity.namespace.clone(),
    })
}

fn legacy_options(input: &[u8]) -> Option<Any> {
    Any::parse_from_bytes(input).ok().filter(|any| !any.type_url.is_empty())
}

impl BootstrapReply {
    /// The bytes that `start` prints.
    pub fn encode(self, address: &str) -> Result<Vec<u8>, BootstrapError> {
        match self {
            Self::Address => Ok(address.as_bytes().to_vec()),
            Self::Bootstrap => BootstrapResult {
                version: 3,
                address: address.to_owned(),
                protocol: "ttrpc".to_owned(),
                ..Default::default()
            }
            .write_to_bytes()
            .map_err(BootstrapError::Encode),
        }
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim::{bootstrap::Extension, protos::shim::oci::Options};
    use protobuf::EnumOrUnknown;

    use super::*;

    const TTRPC: &str = "/run/c.sock.ttrpc";

    fn identity() -> Identity {
        Identity { id: "c1".into(), namespace: "k8s.io".into(), address: "/run/c.sock".into(), debug: false }
    }

    fn options_any(options: &Options) -> Any {
        Any {
            type_url: "containerd.runc.v1.Options".into(),
            value: options.write_to_bytes().unwrap(),
            ..Default::default()
        }
    }

    fn read(input: &[u8]) -> Result<StartParams, BootstrapError> {
        StartParams::read(input, identity(), Some(TTRPC.into()))
    }

    fn bootstrap() -> BootstrapParams {
        BootstrapParams {
            instance_id: "c1".into(),
            namespace: "k8s.io".into(),
            log_level: EnumOrUnknown::new(LogLevel::LOG_LEVEL_DEBUG),
            containerd_ttrpc_address: "/other.ttrpc".into(),
            containerd_grpc_address: "/other.sock".into(),
            socket_dir: Some("/short".into()),
            extensions: vec![Extension { value: Some(options_any(&Options::default())).into(), ..Default::default() }],
            ..Default::default()
        }
    }

    #[test]
    fn empty_stdin_is_an_old_containerd() {
        let params = read(&[]).unwrap();
        assert_eq!(params.reply, BootstrapReply::Address);
        assert_eq!(params.ttrpc_address, TTRPC);
        assert!(params.extensions.is_empty());
    }

    #[test]
    fn options_are_never_taken_for_bootstrap_parameters() {
        let full = Options { shim_cgroup: "/shims".into(), systemd_cgroup: true, ..Default::default() };
        for options in [Options::default(), full] {
            let any = options_any(&options);
            let params = read(&any.write_to_bytes().unwrap()).unwrap();
            assert_eq!(params.reply, BootstrapReply::Address);
            assert_eq!(params.extensions, [any]);
        }
    }

    #[test]
    fn bootstrap_parameters_are_used() {
        let params = read(&bootstrap().write_to_bytes().unwrap()).unwrap();
        assert_eq!(params.reply, BootstrapReply::Bootstrap);
        assert_eq!(params.identity, Identity { address: "/other.sock".into(), debug: true, ..identity() });
        assert_eq!(params.ttrpc_address, "/other.ttrpc");
        assert_eq!(params.socket_dir.as_deref(), Some("/short"));
        assert_eq!(params.extensions, [options_any(&Options::default())]);
    }

    #[test]
    fn parameters_of_another_container_are_refused() {
        let other = BootstrapParams { instance_id: "c2".into(), ..bootstrap() };
        assert!(matches!(read(&other.write_to_bytes().unwrap()), Err(BootstrapError::Mismatch { .. })));
    }

    #[test]
    fn bytes_that_are_no_message_are_ignored() {
        assert_eq!(read(&[0xff, 0xfe, 0x01]).unwrap().reply, BootstrapReply::Address);
    }

    #[test]
    fn without_an_event_address_there_is_no_start() {
        for address in [None, Some(String::new())] {
            assert!(matches!(StartParams::read(&[], identity(), address), Err(BootstrapError::NoTtrpcAddress)));
        }
    }

    #[test]
    fn answers() {
        assert_eq!(BootstrapReply::Address.encode("unix:///s").unwrap(), b"unix:///s");
        let answer =
            BootstrapResult::parse_from_bytes(&BootstrapReply::Bootstrap.encode("unix:///s").unwrap()).unwrap();
        assert_eq!((answer.version, answer.address.as_str(), answer.protocol.as_str()), (3, "unix:///s", "ttrpc"));
    }

    proptest::proptest! {
        #[test]
        fn no_input_panics(input: Vec<u8>) {
            let _ = read(&input);
        }
    }
}
