//! The engines of a card that a share of its time is about.

use serde::{Deserialize, Serialize};

/// The engines whose channels are off the card outside a container's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Throttle {
    /// Compute and graphics.
    Compute,
    /// Those engines, and copies between memories.
    #[default]
    #[serde(rename = "compute+copy")]
    ComputeCopy,
    /// Every engine: video encoders and decoders, too.
    All,
}

impl Throttle {
    /// Returns the name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::ComputeCopy => "compute+copy",
            Self::All => "all",
        }
    }
}
