//! The node's settings that a schedule is planned by.

use std::collections::BTreeMap;

use base::{MAX_PERIOD_US, MIN_PERIOD_US, Period};

/// Slices and periods of the node's cards.
#[derive(Debug, Clone)]
pub struct PlanSettings {
    /// Slices of a card.
    pub max_inst: u32,
    /// Periods.
    pub period: Period,
    /// Periods of single cards, by UUID.
    pub card_periods: BTreeMap<String, Period>,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self { max_inst: 16, period: Period::Us(100_000), card_periods: BTreeMap::new() }
    }
}

impl PlanSettings {
    /// Returns a card's periods, if no share needs longer ones.
    pub fn period(&self, uuid: &str) -> Period {
        match self.card_periods.get(uuid).copied().unwrap_or(self.period) {
            Period::Auto => Period::Auto,
            Period::Us(us) => Period::Us(us.clamp(MIN_PERIOD_US, MAX_PERIOD_US)),
        }
    }
}
