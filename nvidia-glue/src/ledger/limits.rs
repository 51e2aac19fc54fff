//! What the node's configuration allows on each card.

use runtime_config::{
    Bytes,
    config::{Config, HardCapsUnavailable, MemoryScaling},
    request::CardPolicy,
};

/// The node's rules for sharing cards: the part of the configuration that admission needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Slices that a card is cut into for weights, 1 to 20.
    pub max_inst: u32,
    /// Most containers on one card.
    pub device_split_count: u32,
    /// Memory that may be granted of a card, as a multiple of what it has.
    pub memory_scaling: MemoryScaling,
    /// Policy of a card on which the first container needs no particular one.
    pub default_policy: CardPolicy,
    /// Length of a period on cards for which none is set, microseconds.
    pub period_us: u64,
    /// What becomes of hard caps on cards that cannot take containers off.
    pub hard_caps_unavailable: HardCapsUnavailable,
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
            max_inst: u32::from(config.max_inst),
            device_split_count: config.device_split_count,
            memory_scaling: config.memory_scaling,
            default_policy: config.default_policy,
            period_us: u64::try_from(config.period.as_micros()).unwrap_or(u64::MAX),
            hard_caps_unavailable: config.hard_caps_unavailable,
        }
    }
}

impl Limits {
    /// How much of a card with `memory` bytes may be granted in all, floored to whole KiB.
    pub fn grantable(&self, memory: Bytes) -> Bytes {
        self.memory_scaling.apply(memory).floor_to_kib()
    }
}
