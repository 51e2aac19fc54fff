//! The node's settings that a schedule is planned by.

use std::collections::BTreeMap;

use base::{MAX_PERIOD_US, MIN_PERIOD_US};

/// Slices and periods of the node's cards.
#[derive(Debug, Clone)]
pub struct PlanSettings {
    /// Slices of a card.
    pub max_inst: u32,
    /// Length of a period.
    pub period_us: u64,
    /// Length of a period on single cards, by UUID.
    pub card_periods_us: BTreeMap<String, u64>,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self { max_inst: 16, period_us: 100_000, card_periods_us: BTreeMap::new() }
    }
}

impl PlanSettings {
    /// Returns the length of a card's periods, if no share needs longer ones.
    pub fn period_us(&self, uuid: &str) -> u64 {
        self.card_periods_us.get(uuid).copied().unwrap_or(self.period_us).clamp(MIN_PERIOD_US, MAX_PERIOD_US)
    }
}
