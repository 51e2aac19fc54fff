//! Limits that the node's configuration sets on each card.

use base::{Bytes, CardPolicies, CardPolicy, Period};
use nix::sys::sysinfo::sysinfo;
use runtime_config::config::{Config, HardCapsUnavailable, MemoryScaling, WholeCards};

/// The node's rules for sharing cards: the part of the configuration that admission needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Slices that a card is cut into for weights, 1 to 20.
    pub max_inst: u32,
    /// Most containers on one card.
    pub device_split_count: u32,
    /// Most of them that are one owner's.
    pub owner_split_count: u32,
    /// Memory that may be granted of a card, as a multiple of what it has.
    pub memory_scaling: MemoryScaling,
    /// Policy of a card on which the first container needs no particular one.
    pub default_policy: CardPolicy,
    /// Policies that a container may bring to a card that nobody shares.
    pub requested_policies: CardPolicies,
    /// Percent of its memory or time with which it may.
    pub requested_policy_share: u8,
    /// Periods of cards for which none are set.
    pub period: Period,
    /// Treatment of hard caps on cards that cannot take containers off.
    pub hard_caps_unavailable: HardCapsUnavailable,
    /// Mediation of containers that have whole cards; only who is mediated is held to channels and
    /// pinned memory.
    pub whole_cards: WholeCards,
    /// Host memory that the driver may pin for all containers.
    pub pinned_memory: Bytes,
    /// The most for one that asks for no number.
    pub pinned_memory_unasked: Bytes,
}

/// The most host memory that the driver may pin for a container that asks for no number: this, and
/// no more than a quarter of the machine's.
const MOST_PINNED_MEMORY: Bytes = Bytes(16 * Bytes::GIB);

impl From<&Config> for Limits {
    /// The configuration's, on this machine.
    fn from(config: &Config) -> Self {
        let machine = machine_memory();
        Self {
            max_inst: u32::from(config.max_inst),
            device_split_count: config.device_split_count,
            owner_split_count: config.owner_split_count,
            memory_scaling: config.memory_scaling,
            default_policy: config.default_policy,
            requested_policies: config.requested_policies,
            requested_policy_share: config.requested_policy_share,
            period: config.period,
            hard_caps_unavailable: config.hard_caps_unavailable,
            whole_cards: config.whole_cards,
            pinned_memory: config.pinned_memory.resolve(machine).unwrap_or_default(),
            pinned_memory_unasked: MOST_PINNED_MEMORY.min(Bytes(machine.0 / 4).floor_to_kib()),
        }
    }
}

/// The machine's memory; 0 if the kernel does not say.
fn machine_memory() -> Bytes {
    Bytes(sysinfo().map_or(0, |machine| machine.ram_total()))
}

impl Limits {
    /// Bytes of a card with `memory` bytes that may be granted in all, floored to whole KiB.
    pub fn grantable(&self, memory: Bytes) -> Bytes {
        self.memory_scaling.apply(memory).floor_to_kib()
    }
}
