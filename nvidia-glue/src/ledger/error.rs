//! Why the ledger refuses.

use std::path::PathBuf;

use super::{ContainerKey, account::Refusal, store::StoreError};
use crate::select::SelectError;

/// Why a container is not admitted. Nothing of it is left in the ledger.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The request is at fault, or does not fit this node. Nothing had been reserved.
    #[error("the request of container {container} cannot be met on this node, and nothing has been reserved")]
    Invalid {
        /// Whose request.
        container: Box<ContainerKey>,
        /// What is wrong.
        source: SelectError,
    },
    /// A named card has no room.
    #[error("{card} cannot give container {container} what it asked for: {asked}{holders}")]
    Card {
        /// Who asked.
        container: Box<ContainerKey>,
        /// Index, model and UUID.
        card: String,
        /// What was asked.
        asked: String,
        /// Who has it; empty, or with its introduction.
        holders: String,
        /// What is missing.
        source: Box<Refusal>,
    },
    /// egpu was to choose, and no card has room.
    #[error("{} room for container {container}, which asked for {asked} on each card: {tried}", nowhere(*count))]
    NoRoom {
        /// Who asked.
        container: Box<ContainerKey>,
        /// How many cards.
        count: usize,
        /// What was asked.
        asked: String,
        /// Card by card, why not and who has it.
        tried: String,
    },
    /// The cards have room, but the host has not.
    #[error("the node cannot give container {container} what it asked for")]
    PinnedMemory {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// The same container is in the ledger.
    #[error("container {container} of {} has a grant already (shim {shim_pid}); delete it first", container.containerd)]
    AlreadyAdmitted {
        /// Which.
        container: Box<ContainerKey>,
        /// Process id of the shim that answers for it.
        shim_pid: i32,
    },
    /// The cgroup is not one that a container can have for itself.
    #[error("container {container} cannot have a grant with cgroup {}: {problem}", cgroup.display())]
    Cgroup {
        /// Who asked.
        container: Box<ContainerKey>,
        /// The directory; empty where there is none.
        cgroup: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be written down")]
    Store {
        /// Who asked.
        container: Box<ContainerKey>,
        /// What failed.
        source: StoreError,
    },
}

/// How a message begins that no set of `count` cards would do.
fn nowhere(count: usize) -> String {
    match count {
        1 => "no card of this node has".to_owned(),
        count => format!("this node has no {count} cards that together have"),
    }
}

/// For whoever must answer in terms of another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmitErrorKind {
    /// The request can never be met here.
    Invalid,
    /// It could be met once others have ended.
    Exhausted,
    /// The container has a grant.
    AlreadyExists,
    /// The node is at fault.
    Internal,
}

impl AdmitError {
    /// What sort of refusal it is.
    pub fn kind(&self) -> AdmitErrorKind {
        match self {
            Self::Invalid { .. } | Self::Cgroup { .. } => AdmitErrorKind::Invalid,
            Self::Card { .. } | Self::NoRoom { .. } | Self::PinnedMemory { .. } => AdmitErrorKind::Exhausted,
            Self::AlreadyAdmitted { .. } => AdmitErrorKind::AlreadyExists,
            Self::Store { .. } => AdmitErrorKind::Internal,
        }
    }
}

/// Why a grant cannot be bound to its container.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// It has none.
    #[error("container {container} has no grant; it was released, or its shim was taken for dead")]
    NoGrant {
        /// Which.
        container: Box<ContainerKey>,
    },
    /// The cgroup is not one that a container can have for itself.
    #[error("container {container} cannot be bound to cgroup {}: {problem}", cgroup.display())]
    Cgroup {
        /// Which.
        container: Box<ContainerKey>,
        /// The directory; empty where there is none.
        cgroup: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be bound")]
    Store {
        /// Which.
        container: Box<ContainerKey>,
        /// What failed.
        source: StoreError,
    },
}

/// Why a grant is not given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Processes of the container live.
    #[error("the grant of container {container} is kept: there are processes in its cgroup {}; end them first", cgroup.display())]
    StillRunning {
        /// Which.
        container: Box<ContainerKey>,
        /// Where they are.
        cgroup: PathBuf,
    },
    /// Whether they do cannot be told, and memory that may be in use is nobody else's.
    #[error(
        "the grant of container {container} is kept: it cannot be told whether processes are left in its cgroup {}; \
         mount its hierarchy again", cgroup.display()
    )]
    CannotTell {
        /// Which.
        container: Box<ContainerKey>,
        /// Where they may be.
        cgroup: PathBuf,
    },
    /// What the driver gave it is not given back.
    #[error(
        "the grant of container {container} is kept: its mediator, process {pid}, which has its memory, was sent SIGKILL and lives still"
    )]
    StillMediated {
        /// Which.
        container: Box<ContainerKey>,
        /// Who.
        pid: i32,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be given back")]
    Store {
        /// Which.
        container: Box<ContainerKey>,
        /// What failed.
        source: StoreError,
    },
}
