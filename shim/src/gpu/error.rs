//! Errors of a request for GPUs.

use std::{io, path::PathBuf};

use base::{RefusalCode, error_chain as chain};
use ledger::{AdmitError, AdmitErrorKind, AttachError, BindError, ContainerKey, ReleaseError, StoreError};
use nvidia_glue::inject::InjectError;
use runtime::{RuntimeError, protocol::Freed};
use runtime_config::{config::ConfigError, request::RequestError};
use ttrpc::Code;

/// Error that keeps a container from the GPUs that it asks for.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// The configuration of the node cannot be used.
    #[error("the configuration of egpu cannot be used; `egpu config check` shows why")]
    Config(#[source] Box<ConfigError>),
    /// The request is not valid, or not allowed on this node.
    #[error(
        "the request of container {container} is not valid, or not allowed on this node, and nothing has been reserved"
    )]
    Request {
        container: Box<ContainerKey>,
        #[source]
        source: Box<RequestError>,
    },
    /// A quota together with a seccomp listener.
    #[error(
        "the container's seccomp profile asks for a listener (SCMP_ACT_NOTIFY or listenerPath), which a container with a \
         GPU quota cannot have: the kernel allows one, and egpu needs it; take it out of the profile, or ask for whole cards"
    )]
    SeccompListener,
    /// An exec with privileges that no quota survives.
    #[error(
        "the process asks for {privilege}, with which the container's GPU quota could not hold; leave it out, or set \
         allow_privileged_quota = true in the configuration"
    )]
    PrivilegedExec { privilege: &'static str },
    /// containerd does not answer what the container's image sets.
    #[error(
        "cannot determine whether NVIDIA_VISIBLE_DEVICES is the pod's or only its image's; set EGPU_DEVICES (or the annotation egpu.io/devices) in \
         the pod, or accept_nvidia_visible_devices_of_images_in_pods = true in the node's configuration"
    )]
    Image(#[source] Box<RuntimeError>),
    /// The driver could not be asked for its cards.
    #[error("cannot list the cards of this node")]
    Inventory(#[source] Box<RuntimeError>),
    /// A process that must be named in the ledger is gone.
    #[error("cannot read when process {pid} started")]
    Process {
        /// Its pid; 0: the shim itself.
        pid: i32,
        #[source]
        source: io::Error,
    },
    /// The note of a former build about the grant cannot be used.
    #[error("cannot read {}", path.display())]
    Note {
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The ledger cannot be opened.
    #[error("cannot open the ledger of grants")]
    Ledger(#[source] Box<StoreError>),
    /// No room, or no such card.
    #[error(transparent)]
    Admit(Box<AdmitError>),
    /// The claim cannot be used.
    #[error("the container cannot use the claim that it names")]
    Attach(#[source] Box<AttachError>),
    /// A quota of a claim that the container could get around.
    #[error(
        "the quota of the claim cannot hold for a container with {}: take that away, or set allow_privileged_quota = true \
         in the node's configuration",
        .privileges.join(" and ")
    )]
    PrivilegedClaim {
        /// The rights with which it could get around it.
        privileges: Vec<&'static str>,
    },
    /// The grant could not be bound to the container.
    #[error("cannot bind the GPU grant to the container")]
    Bind(#[source] Box<BindError>),
    /// The use of the driver cannot be recorded.
    #[error("cannot record in the ledger whether the container uses its cards")]
    Present(#[source] Box<StoreError>),
    /// The losses of windows cannot be recorded.
    #[error("cannot record in the ledger the time that the container's windows lose")]
    WindowLosses(#[source] Box<StoreError>),
    /// The lack of hard caps of a card cannot be recorded.
    #[error("cannot record in the ledger that the container's share of a card is a weight")]
    WeightsOnly(#[source] Box<StoreError>),
    /// The request to end cannot be recorded.
    #[error("cannot record in the ledger that the container was asked to end")]
    Leaving(#[source] Box<StoreError>),
    /// The grant could not be given back.
    #[error("the GPU grant cannot be given back now")]
    Release(#[source] Box<ReleaseError>),
    /// Its mediator was killed, and nobody has looked yet whether its memory is free.
    #[error("the memory of grant {} may still be in use", .0.grant)]
    NotFreed(Freed),
    /// Its memory is in use, or that cannot be told.
    #[error("the GPU grant is kept")]
    StillHeld(#[source] Box<RuntimeError>),
    /// The granted GPUs cannot be put into the container.
    #[error("the granted GPUs cannot be put into the container")]
    Inject(#[source] Box<InjectError>),
    /// Work on files.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

impl GpuError {
    /// Describes the error for a pod, without names of other containers, which paths of the
    /// ledger's files contain.
    pub fn for_pod(&self) -> String {
        match self {
            Self::Admit(refusal) => refusal.for_pod(),
            Self::Attach(refusal) if !matches!(**refusal, AttachError::Store { .. }) => chain(self),
            Self::Ledger(_)
            | Self::Attach(_)
            | Self::Bind(_)
            | Self::Present(_)
            | Self::WindowLosses(_)
            | Self::WeightsOnly(_)
            | Self::Leaving(_)
            | Self::NotFreed(_)
            | Self::Release(_) => format!("{self}; the node's log says why"),
            Self::Config(_)
            | Self::Request { .. }
            | Self::SeccompListener
            | Self::PrivilegedExec { .. }
            | Self::PrivilegedClaim { .. }
            | Self::Image(_)
            | Self::Inventory(_)
            | Self::Process { .. }
            | Self::Note { .. }
            | Self::Inject(_)
            | Self::StillHeld(_)
            | Self::Thread(_) => chain(self),
        }
    }

    /// Returns the code of the reason, as `egpu explain` knows it.
    pub fn refusal_code(&self) -> RefusalCode {
        match self {
            Self::Request { source, .. } => source.code(),
            Self::SeccompListener => RefusalCode::SeccompListener,
            Self::PrivilegedExec { .. } | Self::PrivilegedClaim { .. } => RefusalCode::Privileged,
            Self::Admit(source) => source.code(),
            Self::Attach(source) => source.code(),
            Self::Config(_)
            | Self::Image(_)
            | Self::Inventory(_)
            | Self::Process { .. }
            | Self::Note { .. }
            | Self::Ledger(_)
            | Self::Bind(_)
            | Self::Present(_)
            | Self::WindowLosses(_)
            | Self::WeightsOnly(_)
            | Self::Leaving(_)
            | Self::Release(_)
            | Self::NotFreed(_)
            | Self::StillHeld(_)
            | Self::Inject(_)
            | Self::Thread(_) => RefusalCode::NodeFailure,
        }
    }

    /// Returns the status code for containerd.
    pub fn code(&self) -> Code {
        match self {
            Self::Request { .. } | Self::SeccompListener => Code::INVALID_ARGUMENT,
            Self::PrivilegedExec { .. } | Self::PrivilegedClaim { .. } | Self::Attach(_) => Code::PERMISSION_DENIED,
            Self::Config(_) => Code::FAILED_PRECONDITION,
            Self::Admit(source) => match source.kind() {
                AdmitErrorKind::Invalid => Code::INVALID_ARGUMENT,
                AdmitErrorKind::Exhausted => Code::RESOURCE_EXHAUSTED,
                AdmitErrorKind::Cancelled => Code::CANCELLED,
                AdmitErrorKind::AlreadyExists => Code::ALREADY_EXISTS,
                AdmitErrorKind::Internal => Code::INTERNAL,
            },
            _ => Code::INTERNAL,
        }
    }
}
