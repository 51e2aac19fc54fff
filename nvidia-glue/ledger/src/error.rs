//! Errors of the ledger.

use std::{path::PathBuf, time::Duration};

use base::RefusalCode;

use super::{CardRoom, ContainerKey, Crowd, refusal::Refusal, store::StoreError};
use crate::{decision_log::chain, select::SelectError};

/// Reason for which a container is not admitted. Nothing of it is left in the ledger. The text and
/// its causes name the containers that stand in the way; what a pod may read is
/// [`AdmitError::for_pod`].
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The request is at fault, or does not fit this node. Nothing had been reserved.
    #[error("the request of container {container} cannot be met on this node, and nothing has been reserved")]
    Invalid { container: Box<ContainerKey>, source: SelectError },
    /// A named card has no room.
    #[error("{}{holders}", cannot_give(card, container, asked))]
    Card {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// Index, model and UUID.
        card: String,
        /// Its demand.
        asked: String,
        /// Holders of the card; empty, or with its introduction.
        holders: String,
        /// Room that is left; `None` where a MIG device was asked for.
        room: Option<Box<CardRoom>>,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// egpu was to choose, and no card has room.
    #[error("{}{}", no_room(*count, container, asked), by_reason(tried, TriedCard::full))]
    NoRoom {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// Number of cards.
        count: usize,
        /// Its demand.
        asked: String,
        /// Card by card, why not.
        tried: Vec<TriedCard>,
    },
    /// The cards have room, but the host has not.
    #[error("the node cannot give container {container} what it asked for")]
    PinnedMemory {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// There is room, and somebody else waits for it.
    #[error(
        "container {container} would take room that container {waiter} has waited for longer, and which it gets when those have ended \
         that are leaving; wait until then"
    )]
    Kept {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// For whom the room is kept.
        waiter: String,
    },
    /// Room was waited for, in vain.
    #[error("waited {}, still no room", seconds(*waited))]
    Waited {
        /// Time that was waited.
        waited: Duration,
        /// The last refusal.
        source: Box<AdmitError>,
    },
    /// As many wait for room as may.
    #[error("{crowd} wait for room already, as many as may; try again when fewer do")]
    Crowded {
        /// Their owner.
        crowd: Crowd,
        /// The refusal for want of room.
        source: Box<AdmitError>,
    },
    /// Somebody has ended the wait for room.
    #[error(
        "container {container} waited for room, {} long, until it was killed or deleted, or nobody was there any more who had asked for it",
        seconds(*waited)
    )]
    WaitEnded {
        /// The container that waited.
        container: Box<ContainerKey>,
        /// Time that was waited.
        waited: Duration,
    },
    /// Requests of one claim have room, but not with windows at the same instants.
    #[error(
        "the requests of one claim ({container} and others) cannot have their time at the same instants; ask for other shares"
    )]
    Gang {
        /// The first request.
        container: Box<ContainerKey>,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// The same container is in the ledger.
    #[error("container {container} of {} has a grant already (shim {shim_pid}); delete it first", container.containerd)]
    AlreadyAdmitted {
        container: Box<ContainerKey>,
        /// ProcessId id of the shim that answers for it.
        shim_pid: i32,
    },
    /// The cgroup is not one that a container can have for itself.
    #[error("container {container} cannot have a grant with cgroup {}: {problem}", cgroup.display())]
    Cgroup {
        /// The container that asked.
        container: Box<ContainerKey>,
        /// The directory; empty where there is none.
        cgroup: PathBuf,
        problem: &'static str,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be written down")]
    Store {
        /// The container that asked.
        container: Box<ContainerKey>,
        source: StoreError,
    },
}

/// A card that has no room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriedCard {
    /// Its index.
    pub card: u32,
    /// The refusal; `None` where it has room, but not together with the others.
    pub why: Option<Refusal>,
    /// Holders; empty if nobody.
    pub holders: String,
    /// Room that is left; `None` where a MIG device was asked for.
    pub room: Option<CardRoom>,
}

impl TriedCard {
    fn why(&self) -> String {
        self.why.as_ref().map_or_else(|| "has room, but not together with the others".to_owned(), Refusal::to_string)
    }

    fn full(&self) -> String {
        let why = self.why();
        if self.holders.is_empty() { why } else { format!("{why} (held by {})", self.holders) }
    }

    fn for_pod(&self) -> String {
        format!("{}{}", self.why(), free(self.room.as_ref()))
    }
}

fn cannot_give(card: &str, container: &ContainerKey, asked: &str) -> String {
    format!("{card} cannot give container {container} what it asked for: {asked}")
}

/// Beginning of the message that no set of `count` cards has room.
fn no_room(count: usize, container: &ContainerKey, asked: &str) -> String {
    let nowhere = match count {
        1 => "no card of this node has".to_owned(),
        count => format!("this node has no {count} cards that together have"),
    };
    format!("{nowhere} room for container {container}, which asked for {asked} on each card: ")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Cards of a node are often alike, and so is what is wrong with them.
fn by_reason(tried: &[TriedCard], say: impl Fn(&TriedCard) -> String) -> String {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for tried in tried {
        let (why, card) = (say(tried), tried.card.to_string());
        match reasons.iter_mut().find(|(other, _)| *other == why) {
            Some((_, cards)) => cards.push(card),
            None => reasons.push((why, vec![card])),
        }
    }
    let reasons: Vec<_> = reasons.iter().map(|(why, cards)| format!("card {}: {why}", cards.join(", "))).collect();
    if reasons.is_empty() { "none can be chosen".to_owned() } else { reasons.join("; ") }
}

/// The code that all cards have, or else that of no room.
fn common_code(tried: &[TriedCard]) -> RefusalCode {
    let mut codes = tried.iter().map(|tried| tried.why.as_ref().map_or(RefusalCode::NoRoom, Refusal::code));
    let first = codes.next().unwrap_or(RefusalCode::NoRoom);
    if codes.all(|code| code == first) { first } else { RefusalCode::NoRoom }
}

fn free(room: Option<&CardRoom>) -> String {
    room.map(|room| format!(" (free: {room})")).unwrap_or_default()
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
    /// Nobody wants it any more.
    Cancelled,
    /// The node is at fault.
    Internal,
}

impl AdmitError {
    /// Kind of the refusal.
    pub fn kind(&self) -> AdmitErrorKind {
        match self {
            Self::Invalid { .. } | Self::Cgroup { .. } => AdmitErrorKind::Invalid,
            Self::Card { .. }
            | Self::NoRoom { .. }
            | Self::PinnedMemory { .. }
            | Self::Kept { .. }
            | Self::Gang { .. } => AdmitErrorKind::Exhausted,
            Self::Waited { source, .. } | Self::Crowded { source, .. } => source.kind(),
            Self::WaitEnded { .. } => AdmitErrorKind::Cancelled,
            Self::AlreadyAdmitted { .. } => AdmitErrorKind::AlreadyExists,
            Self::Store { .. } => AdmitErrorKind::Internal,
        }
    }

    /// Code of the reason.
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::Invalid { .. } => RefusalCode::NotOnThisNode,
            Self::Card { source, .. } | Self::PinnedMemory { source, .. } | Self::Gang { source, .. } => source.code(),
            Self::NoRoom { tried, .. } => common_code(tried),
            Self::Kept { .. } => RefusalCode::RoomKept,
            Self::Waited { source, .. } => source.code(),
            Self::Crowded { .. } => RefusalCode::TooManyWaiting,
            Self::WaitEnded { .. } => RefusalCode::WaitEnded,
            Self::AlreadyAdmitted { .. } => RefusalCode::AlreadyGranted,
            Self::Cgroup { .. } => RefusalCode::Cgroup,
            Self::Store { .. } => RefusalCode::NodeFailure,
        }
    }

    /// The refusal as a pod may read it: what was asked for and what the cards have free, and
    /// nothing of who has the rest.
    pub fn for_pod(&self) -> String {
        match self {
            Self::Card { container, card, asked, room, source, .. } => {
                format!("{}: {source}{}", cannot_give(card, container, asked), free(room.as_deref()))
            }
            Self::NoRoom { container, count, asked, tried } => {
                format!("{}{}", no_room(*count, container, asked), by_reason(tried, TriedCard::for_pod))
            }
            Self::Kept { container, .. } => {
                format!("container {container} would take room that another container has waited for longer")
            }
            Self::Waited { source, .. } | Self::Crowded { source, .. } => format!("{self}: {}", source.for_pod()),
            Self::AlreadyAdmitted { container, .. } => format!("container {container} has a grant already"),
            // The cause may name another container's record.
            Self::Store { .. } => format!("{self}; the node's log says why"),
            Self::Invalid { .. }
            | Self::Cgroup { .. }
            | Self::PinnedMemory { .. }
            | Self::WaitEnded { .. }
            | Self::Gang { .. } => chain(self),
        }
    }
}

/// Reason for which a container cannot use a claim. It is in no record then.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No such request is prepared.
    #[error(
        "container {container} names {request}, which is not prepared on this node; egpu-kubelet-plugin prepares it when \
         kubelet asks: a container that names it by itself gets nothing"
    )]
    NotPrepared {
        container: Box<ContainerKey>,
        /// The record that would have it.
        request: String,
    },
    /// The claim is reserved for another pod.
    #[error(
        "container {container} names claim {claim}, which is another pod's; a claim is for one pod: use a \
         ResourceClaimTemplate, which makes one for each"
    )]
    OtherPod {
        container: Box<ContainerKey>,
        /// The claim's name.
        claim: String,
    },
    /// Containers of another shim use it.
    #[error("container {container} names a claim that containers of another shim ({shim_pid}) use still; try again")]
    InUse { container: Box<ContainerKey>, shim_pid: i32 },
    /// Its mediator was killed before it had freed all.
    #[error(
        "container {container} names a claim whose memory may still be in use, as its mediator was killed; delete its \
         containers first"
    )]
    NotFreed {
        container: Box<ContainerKey>,
        /// The claim's grant.
        grant: String,
    },
    /// Containers of its pod use a part of the requests, or more than them.
    #[error(
        "container {container} names other requests together than container {other} of its pod, which uses some of \
         them; containers that share a request must name the same requests"
    )]
    OtherRequests {
        container: Box<ContainerKey>,
        /// The other one's name.
        other: String,
    },
    /// The requests cannot be used together.
    #[error(
        "container {container} cannot have the time of all its requests at the same instants; use one claim for them"
    )]
    Gang {
        container: Box<ContainerKey>,
        /// The refusal.
        source: Box<Refusal>,
    },
    /// The record is gone, or names no request.
    #[error("container {container} uses no claim; it was released meanwhile, or its shim was taken for dead")]
    NoRequest { container: Box<ContainerKey> },
    /// The cgroup is not one that a container can have for itself.
    #[error("container {container} cannot use a claim with cgroup {}: {problem}", cgroup.display())]
    Cgroup {
        container: Box<ContainerKey>,
        /// The directory; empty where there is none.
        cgroup: PathBuf,
        problem: &'static str,
    },
    /// The state directory.
    #[error("container {container}'s use of a claim cannot be written down")]
    Store { container: Box<ContainerKey>, source: StoreError },
}

impl AttachError {
    /// Code of the reason.
    pub fn code(&self) -> RefusalCode {
        match self {
            Self::NotPrepared { .. }
            | Self::OtherPod { .. }
            | Self::InUse { .. }
            | Self::NotFreed { .. }
            | Self::OtherRequests { .. }
            | Self::NoRequest { .. } => RefusalCode::Claim,
            Self::Gang { source, .. } => source.code(),
            Self::Cgroup { .. } => RefusalCode::Cgroup,
            Self::Store { .. } => RefusalCode::NodeFailure,
        }
    }
}

/// Reason for which a grant cannot be bound to its container.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// It has none.
    #[error("container {container} has no grant; it was released, or its shim was taken for dead")]
    NoGrant { container: Box<ContainerKey> },
    /// The cgroup is not one that a container can have for itself.
    #[error("container {container} cannot be bound to cgroup {}: {problem}", cgroup.display())]
    Cgroup {
        container: Box<ContainerKey>,
        /// The directory; empty where there is none.
        cgroup: PathBuf,
        problem: &'static str,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be bound")]
    Store { container: Box<ContainerKey>, source: StoreError },
}

/// Reason for which a grant is not given back.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// Processes of the container live.
    #[error("the grant of container {container} is kept: there are processes in its cgroup {}; end them first", cgroup.display())]
    StillRunning {
        container: Box<ContainerKey>,
        /// Their cgroup.
        cgroup: PathBuf,
    },
    /// It is unknown whether they live, and memory that may be in use is nobody else's.
    #[error(
        "the grant of container {container} is kept: it cannot be told whether processes are left in its cgroup {}; \
         mount its hierarchy again", cgroup.display()
    )]
    CannotTell {
        container: Box<ContainerKey>,
        /// Their possible cgroup.
        cgroup: PathBuf,
    },
    /// The driver's memory is not given back.
    #[error(
        "the grant of container {container} is kept: its mediator, process {pid}, which has its memory, was sent SIGKILL and lives still"
    )]
    StillMediated {
        container: Box<ContainerKey>,
        /// The mediator.
        pid: i32,
    },
    /// Its mediator was killed before it had freed what the driver gave, and nobody has looked
    /// since whether that is gone.
    #[error(
        "the grant of container {container} is kept: its mediator was killed before it had freed what the driver gave; \
         delete the container, which looks whether that is gone"
    )]
    NotFreed {
        container: Box<ContainerKey>,
        /// The name of the grant's files.
        grant: String,
    },
    /// The state directory.
    #[error("the grant of container {container} cannot be given back")]
    Store { container: Box<ContainerKey>, source: StoreError },
}
