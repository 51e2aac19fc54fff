//! The policies by which a card is shared among its containers.

use serde::{Deserialize, Serialize};

/// Defines the policies, cGPU's in the order of its numbers, each by the name that requests, the
/// configuration and the ledger's files have for it.
macro_rules! policies {
    ($($(#[$doc:meta])* $policy:ident = $name:literal,)+) => {
        /// The policy by which a card is shared among its containers. It belongs to the card, not
        /// to a container.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum CardPolicy {
            $($(#[$doc])* #[serde(rename = $name)] $policy,)+
        }

        impl CardPolicy {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$policy),+];
            /// Their names, in the same order.
            pub const NAMES: &[&str] = &[$($name),+];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$policy => $name,)+
                }
            }
        }
    };
}

policies! {
    /// 1/max_inst each, also when alone (cGPU 0).
    Fair = "fair",
    /// Equal among those that have the GPU open (cGPU 1).
    Preemptive = "preemptive",
    /// Shares by weight among those that exist (cGPU 2).
    Weighted = "weighted",
    /// Weight of max_inst, or the percent asked for, as a hard cap (cGPU 3).
    Fixed = "fixed",
    /// Shares by weight among those that have work (cGPU 4).
    Soft = "soft",
    /// The driver's own; memory quota only (cGPU 5).
    Native = "native",
    /// Shares by weight among those that work, in time slices or in turns, whichever wastes less.
    Adaptive = "adaptive",
}

impl CardPolicy {
    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name)
    }

    /// All names, for messages: `fair, preemptive`.
    pub fn names() -> String {
        Self::NAMES.join(", ")
    }

    /// Names of those that `is_meant` selects, in a sentence: with `or`, `fair, soft or native`.
    pub fn listed(conjunction: &str, is_meant: impl Fn(Self) -> bool) -> String {
        let meant: Vec<_> = Self::ALL.iter().filter(|policy| is_meant(**policy)).map(|policy| policy.name()).collect();
        match meant.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} {conjunction} {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

/// Some of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CardPolicies([bool; CardPolicy::ALL.len()]);

impl CardPolicies {
    /// Every one.
    pub const ALL: Self = Self([true; CardPolicy::ALL.len()]);

    /// Those of a comma-separated list of names, which may be empty; `None`: one is unknown.
    pub fn parse_list(list: &str) -> Option<Self> {
        let mut policies = Self([false; CardPolicy::ALL.len()]);
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            *policies.0.get_mut(CardPolicy::named(name)? as usize)? = true;
        }
        Some(policies)
    }

    /// Returns whether a policy is one of them.
    pub fn contains(self, policy: CardPolicy) -> bool {
        self.0.get(policy as usize).is_some_and(|is_one| *is_one)
    }
}

impl std::fmt::Display for CardPolicy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}
