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
}

/// Some of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardPolicies([Option<CardPolicy>; 6]);

impl CardPolicies {
    /// Every one.
    pub const ALL: Self = Self([
        Some(CardPolicy::Fair),
        Some(CardPolicy::Preemptive),
        Some(CardPolicy::Weighted),
        Some(CardPolicy::Fixed),
        Some(CardPolicy::Soft),
        Some(CardPolicy::Native),
    ]);

    /// Those of a comma-separated list of names, which may be empty; `None`: one is unknown.
    pub fn parse_list(list: &str) -> Option<Self> {
        let listed: Vec<&str> = list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let are_known = listed.iter().all(|name| CardPolicy::named(name).is_some());
        are_known.then(|| Self(NAMES.map(|(name, policy)| listed.contains(&name).then_some(policy))))
    }

    /// Returns whether a policy is one of them.
    pub fn contains(self, policy: CardPolicy) -> bool {
        self.0.contains(&Some(policy))
    }
}

impl std::fmt::Display for CardPolicy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
