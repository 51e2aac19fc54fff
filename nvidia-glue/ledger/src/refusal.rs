//! Reasons for which a card gives a container nothing.

use base::{Bytes, CardPolicy, RefusalCode};
use schedule::layout::MIN_REMAINDER_PERCENT;

/// Advice for a request for more memory than is free.
fn remedy(asked: Bytes, grantable: Bytes) -> &'static str {
    if asked > grantable {
        "the card never has as much: ask for less"
    } else {
        "ask for less, or wait until another container ends"
    }
}

/// Reason for which a card cannot meet a demand. Pods read it: it says what the card has left, and
/// nothing of any single other container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not enough memory.
    #[error("{asked} of memory asked, {free} of {grantable} free; {}", remedy(*asked, *grantable))]
    Memory {
        /// Bytes asked for.
        asked: Bytes,
        /// Bytes left.
        free: Bytes,
        /// Bytes that may be granted in all: the card's memory x `memory_scaling`.
        grantable: Bytes,
    },
    /// Not enough compute, though there may be memory.
    #[error(
        "{asked_percent}% of compute asked, {free_percent}% free; ask for less, or wait until another container ends"
    )]
    Compute {
        /// Percent asked for, rounded up.
        asked_percent: u32,
        /// Percent left, rounded down.
        free_percent: u32,
    },
    /// A cap and containers without one do not fit together.
    #[error(
        "containers without a compute cap must keep {MIN_REMAINDER_PERCENT}% of a card, and caps would take {caps_percent}%; \
         give every container of the card a cap, or ask for a smaller one"
    )]
    Remainder {
        /// Percent that caps would take in all, rounded up.
        caps_percent: u32,
    },
    /// Not enough slices.
    #[error(
        "weight {asked} asked, {free} of max_inst = {max_inst} free; ask for a smaller weight, or wait until another container ends"
    )]
    Weight {
        /// Weight asked for.
        asked: u32,
        /// Weight left.
        free: u32,
        /// Slices in all.
        max_inst: u32,
    },
    /// Too many containers.
    #[error(
        "it has {limit} containers already, as many as device_split_count allows; use another card, or wait until one of them ends"
    )]
    Containers {
        /// The configured limit.
        limit: u32,
    },
    /// Too many containers of one owner.
    #[error(
        "it has {limit} containers of this namespace already, as many as owner_split_count allows; use another card, or wait until one of them ends"
    )]
    OwnersContainers {
        /// The configured limit.
        limit: u32,
    },
    /// Too few channels.
    #[error(
        "{free} of its channels are free, and a CUDA context needs {least}: a card has enough for {most} containers, and \
         device_split_count is {split}; use another card, or wait until one of its containers ends"
    )]
    Channels {
        /// Channels that are left for one container.
        free: u32,
        /// Channels without which a container is of no use.
        least: u32,
        /// Containers for which there are enough.
        most: u32,
        /// The configured limit.
        split: u32,
    },
    /// Not enough of the host's memory that may be pinned.
    #[error(
        "{needed} of pinned host memory needed, {free} of the node's {node} free for one container: the rest is granted, or kept for \
         the containers that device_split_count still allows; ask for less with EGPU_PINNED_MEMORY, wait until another container ends, \
         or raise pinned_memory in the configuration"
    )]
    PinnedMemory {
        /// The amount asked for, or the container's floors.
        needed: Bytes,
        /// The most that one container may have.
        free: Bytes,
        /// The node's, in all.
        node: Bytes,
    },
    /// The whole card is asked for, and it is in use.
    #[error("asked for whole, but parts of it are in use; ask for a share, or wait until its containers have ended")]
    InUse,
    /// Somebody has the whole card.
    #[error("all of it is taken; use another card, or wait until it is free")]
    HeldWhole,
    /// Somebody has the MIG device.
    #[error("MIG device {uuid} is taken; name another one, or wait until it is free")]
    MigHeld {
        /// The device.
        uuid: String,
    },
    /// The card's policy is another one.
    #[error(
        "policy {asked} is needed, and the card has {has}; use another card, or change this one's with `egpu policy`"
    )]
    Policy {
        /// Policy that the request needs.
        asked: CardPolicy,
        /// Policy of the card.
        has: CardPolicy,
    },
    /// Nobody may bring this policy.
    #[error(
        "policy {asked} is needed, and the empty card has {has}: requested_policies in the configuration does not name {asked}; ask for {has}, \
         use another card, or change this one's with `egpu policy`"
    )]
    PolicyNotRequested {
        /// Policy that the request needs.
        asked: CardPolicy,
        /// Policy of the card.
        has: CardPolicy,
    },
    /// Too small a share for a policy of its own.
    #[error(
        "policy {asked} is needed, and the empty card has {has}: less than {percent}% of it (requested_policy_share in the configuration) \
         brings no policy; ask for more, or for {has}, or change the card's with `egpu policy`"
    )]
    SmallForPolicy {
        /// Policy that the request needs.
        asked: CardPolicy,
        /// Policy of the card.
        has: CardPolicy,
        /// The configured share.
        percent: u8,
    },
    /// A cap under a policy that has none.
    #[error("a cap needs policy fixed; end the container first, or give it a weight: `egpu set --weight`")]
    CapNeedsFixed,
    /// The card cannot take containers off.
    #[error(
        "{asked} would be a hard cap, and this card cannot take a running container off: it runs without GSP firmware; \
         ask for a weight with policy soft, use another card, or set hard_caps_unavailable = \"degrade\" in the configuration"
    )]
    HardCap {
        /// The demand: `compute=30%`.
        asked: String,
    },
    /// The sums would fit, but no order of time windows does.
    #[error("{reason}; ask for smaller shares, or for fewer cards")]
    Layout {
        /// The obstacle.
        reason: String,
    },
}

impl Refusal {
    pub fn code(&self) -> RefusalCode {
        match self {
            // One that retries is to stop.
            Self::Memory { asked, grantable, .. } if asked > grantable => RefusalCode::NotOnThisNode,
            Self::Memory { .. } => RefusalCode::NoMemory,
            Self::Compute { .. } => RefusalCode::NoTime,
            Self::Remainder { .. } => RefusalCode::NoRemainder,
            Self::Weight { .. } => RefusalCode::NoWeight,
            Self::Containers { .. } | Self::OwnersContainers { .. } => RefusalCode::TooManyContainers,
            Self::Channels { .. } => RefusalCode::NoChannels,
            Self::PinnedMemory { .. } => RefusalCode::NoPinnedMemory,
            Self::InUse => RefusalCode::CardInUse,
            Self::HeldWhole => RefusalCode::CardTaken,
            Self::MigHeld { .. } => RefusalCode::MigTaken,
            Self::Policy { .. } | Self::PolicyNotRequested { .. } | Self::SmallForPolicy { .. } => {
                RefusalCode::OtherPolicy
            }
            Self::CapNeedsFixed => RefusalCode::CapNeedsFixed,
            Self::HardCap { .. } => RefusalCode::NoHardCaps,
            Self::Layout { .. } => RefusalCode::NoWindows,
        }
    }
}
