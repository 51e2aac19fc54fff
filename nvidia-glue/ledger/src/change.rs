//! Changes while containers run: a container's limits and priority, a card's policy and period.

use base::{Bytes, CardPolicy, ComputeShare, Priority, RefusalCode};
use runtime_config::request::{CardCountError, MemoryLimit, PerCard};

use super::{ContainerKey, refusal::Refusal, store::StoreError};

/// Change of a container's grant. `None`: stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// Memory, the same on each card or listed in the container's order. A percentage is one of the
    /// card's memory.
    pub memory: Option<PerCard<MemoryLimit>>,
    /// Share of time: a cap, a weight, or no limit.
    pub compute: Option<PerCard<ComputeShare>>,
    /// Order in which it runs.
    pub priority: Option<Priority>,
}

/// Reason for which a container's grant is not changed. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It has none.
    #[error("container {container} has no grant; `egpu ps` lists those that have one")]
    NoGrant { container: Box<ContainerKey> },
    /// Its request forbids it (CTYun: `ONLINE=0`).
    #[error(
        "the request of container {container} does not allow its quota to be changed while it runs (ONLINE=0); start it anew with \
         other limits, or with ONLINE=1"
    )]
    Fixed { container: Box<ContainerKey> },
    /// It has whole cards or MIG devices, or is a monitor: there is no limit to change.
    #[error("container {container} has no quota that could be changed: {has}")]
    NoQuota {
        container: Box<ContainerKey>,
        /// Its grant, for people.
        has: String,
    },
    /// A list does not fit the number of its cards.
    #[error(
        "the list of {quantity} limits does not fit the cards of container {container}; give one value for all, or one for each"
    )]
    ListLength {
        container: Box<ContainerKey>,
        /// `memory` or `compute`.
        quantity: &'static str,
        /// The two numbers.
        source: CardCountError,
    },
    /// A memory limit is nothing, or more than the card has.
    #[error(
        "the memory limit for container {container} leaves nothing of card {index}, which has {memory}, or is more than all of it; \
         give an amount between the two"
    )]
    Memory {
        container: Box<ContainerKey>,
        /// The card's index.
        index: u32,
        /// Its size.
        memory: Bytes,
    },
    /// A card of the grant is not in the inventory.
    #[error("container {container} has card {uuid}, which this node no longer has; nothing of it can be changed")]
    NoSuchCard {
        container: Box<ContainerKey>,
        /// The card.
        uuid: String,
    },
    /// Beside the other containers it does not fit.
    #[error("{card} cannot give container {container} these limits: {asked}{holders}")]
    Card {
        container: Box<ContainerKey>,
        /// Index, model and UUID.
        card: String,
        /// Limits that it would have.
        asked: String,
        /// Other holders of the card; empty, or with its introduction.
        holders: String,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be changed")]
    Store { container: Box<ContainerKey>, source: StoreError },
}

impl ChangeError {
    /// Code of the reason; `None`: there is nothing to change.
    pub fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::NoGrant { .. } => None,
            Self::Fixed { .. } | Self::NoQuota { .. } => Some(RefusalCode::NotChangeable),
            Self::ListLength { .. } | Self::Memory { .. } => Some(RefusalCode::InvalidValue),
            Self::NoSuchCard { .. } | Self::Store { .. } => Some(RefusalCode::NodeFailure),
            Self::Card { source, .. } => Some(source.code()),
        }
    }
}

/// Reason for which a card's setting is not changed. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// There is no such card.
    #[error("this node has no card {uuid}; `egpu cards` lists them")]
    NoSuchCard {
        /// As it was named.
        uuid: String,
    },
    /// A period out of range.
    #[error("a period of {period_us} us is not accepted; it must be from 20000 to 500000 (20ms to 500ms), or auto")]
    Period {
        /// As it was asked for.
        period_us: u64,
    },
    /// Under that policy one of the card's containers could not have what it was granted.
    #[error("{card} cannot have policy {policy}: container {container} ({granted}) would not have what it was granted")]
    Container {
        /// Index, model and UUID.
        card: String,
        policy: CardPolicy,
        /// The container whose grant stands in the way.
        container: String,
        /// Its grant.
        granted: String,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// The shares would fit, but no order of time windows does.
    #[error("{card} cannot have this policy and period")]
    Layout {
        /// Index, model and UUID.
        card: String,
        /// The obstacle.
        source: Box<Refusal>,
    },
    /// The state directory.
    #[error("the setting of card {uuid} cannot be written down")]
    Store {
        /// The card.
        uuid: String,
        source: StoreError,
    },
}

impl PolicyError {
    /// Code of the reason; `None`: there is no such card.
    pub fn code(&self) -> Option<RefusalCode> {
        match self {
            Self::NoSuchCard { .. } => None,
            Self::Period { .. } => Some(RefusalCode::InvalidValue),
            Self::Container { source, .. } | Self::Layout { source, .. } => Some(source.code()),
            Self::Store { .. } => Some(RefusalCode::NodeFailure),
        }
    }
}
