//! Shares of a card, as they are asked for and granted.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Percent, Weight};

/// The shortest period that a card's time may be divided into.
pub const MIN_PERIOD_US: u64 = 20_000;
/// The longest one, also where periods are stretched for the sake of small shares.
pub const MAX_PERIOD_US: u64 = 500_000;

/// Periods of a card, in each of which its containers have their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Period {
    /// As often as costs little with the shares that the card has.
    #[serde(rename = "auto")]
    Auto,
    /// Microseconds, [`MIN_PERIOD_US`] to [`MAX_PERIOD_US`].
    #[serde(untagged)]
    Us(u64),
}

impl fmt::Display for Period {
    /// `auto`, `100ms`
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Us(us) if us.is_multiple_of(1000) => write!(formatter, "{}ms", us / 1000),
            Self::Us(us) => write!(formatter, "{us}us"),
        }
    }
}

/// A card's time, as asked for by one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeShare {
    /// No compute control asked for: shares what is left on a card with caps, or by weight 1.
    Unlimited,
    /// A hard cap.
    Cap {
        /// The most that the container gets.
        percent: Percent,
        /// HAMi's `default`: the cap is lifted while the container is alone on the card.
        lifted_when_alone: bool,
    },
    /// A share relative to the other containers of the card.
    Weight(Weight),
}

impl ComputeShare {
    /// The hard cap, if it is one.
    pub const fn cap(self) -> Option<Percent> {
        match self {
            Self::Cap { percent, .. } => Some(percent),
            Self::Unlimited | Self::Weight(_) => None,
        }
    }

    /// The weight, if it is one.
    pub const fn weight(self) -> Option<Weight> {
        match self {
            Self::Weight(weight) => Some(weight),
            Self::Unlimited | Self::Cap { .. } => None,
        }
    }

    /// The tighter of two; `None` for a cap beside a weight.
    #[must_use]
    pub fn tighter(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Unlimited, share) | (share, Self::Unlimited) => Some(share),
            (Self::Cap { percent: own, lifted_when_alone: own_lifted }, Self::Cap { percent, lifted_when_alone }) => {
                Some(Self::Cap { percent: own.min(percent), lifted_when_alone: own_lifted && lifted_when_alone })
            }
            (Self::Weight(own), Self::Weight(other)) => Some(Self::Weight(own.min(other))),
            (Self::Cap { .. }, Self::Weight(_)) | (Self::Weight(_), Self::Cap { .. }) => None,
        }
    }
}

/// Order in which containers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// Before low.
    #[default]
    High,
    /// Only in time that high-priority containers do not use.
    Low,
}

/// Way in which containers of low priority leave the card to those of high priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityMode {
    /// They stay on the card in the least time slices, and have each break.
    #[default]
    Harvest,
    /// They are off the card while others work.
    Strict,
}

impl PriorityMode {
    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Harvest => "harvest",
            Self::Strict => "strict",
        }
    }
}

/// Fate of a program over its memory quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverMemory {
    /// CUDA's ordinary out-of-memory error.
    #[default]
    Deny,
    /// The process is ended, after the OOM script if there is one.
    Kill,
}
