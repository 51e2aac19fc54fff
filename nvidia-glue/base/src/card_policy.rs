//! The policies by which a card is shared among its containers.

use serde::{Deserialize, Serialize};

/// The policy by which a card is shared among its containers. It belongs to the card, not to a
/// container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardPolicy {
    /// 1/max_inst each, also when alone (cGPU 0).
    Fair,
    /// Equal among those that have the GPU open (cGPU 1).
    Preemptive,
    /// Shares by weight among those that exist (cGPU 2).
    Weighted,
    /// Weight of max_inst, or the percent asked for, as a hard cap (cGPU 3).
    Fixed,
    /// Shares by weight among those that have work (cGPU 4).
    Soft,
    /// The driver's own; memory quota only (cGPU 5).
    Native,
}

/// Every policy by its name, in the order of cGPU's numbers.
const NAMES: [(&str, CardPolicy); 6] = [
    ("fair", CardPolicy::Fair),
    ("preemptive", CardPolicy::Preemptive),
    ("weighted", CardPolicy::Weighted),
    ("fixed", CardPolicy::Fixed),
    ("soft", CardPolicy::Soft),
    ("native", CardPolicy::Native),
];

impl CardPolicy {
    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// Its name, as it is written in requests and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Preemptive => "preemptive",
            Self::Weighted => "weighted",
            Self::Fixed => "fixed",
            Self::Soft => "soft",
            Self::Native => "native",
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::all_names().join(", ")
    }

    /// All names.
    pub fn all_names() -> [&'static str; 6] {
        NAMES.map(|(name, _)| name)
    }

    /// Returns whether it divides a card into slices, `max_inst` of them, of which weights count
    /// some.
    pub fn counts_slices(self) -> bool {
        matches!(self, Self::Fair | Self::Preemptive | Self::Weighted | Self::Fixed)
    }
}

impl std::fmt::Display for CardPolicy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
