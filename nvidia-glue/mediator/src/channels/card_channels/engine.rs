//! Engine that a channel does its work on.

use abi::classes::EngineKind;
use base::Throttle;

/// Engine that a channel does its work on, the less throttled first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    /// Video, JPEG, optical flow and the like.
    Other,
    /// Copies between memories.
    Copy,
    /// Compute and graphics; and what is not known.
    Compute,
}

impl Engine {
    /// Of an `NV2080_ENGINE_TYPE_*` (src/common/sdk/nvidia/inc/class/cl2080_notification.h).
    /// Numbers have been added from 525 to 595, none was given another meaning. 0 is an engine that
    /// is not chosen yet.
    pub(crate) const fn of_type(engine: u32) -> Self {
        match engine {
            // COPY0 to 9, COPY10 to 19, and those that decompress.
            0x09..=0x12 | 0x34..=0x3d | 0x40..=0x53 => Self::Copy,
            // NVDEC, NVENC, old ones and those of the host (SEC2, say), NVJPEG, OFA0; OFA1, NVENC3.
            0x13..=0x33 | 0x3e | 0x3f => Self::Other,
            _ => Self::Compute,
        }
    }

    /// Of an object in a channel, where its class tells.
    pub(crate) const fn of_kind(kind: EngineKind) -> Option<Self> {
        match kind {
            EngineKind::Graphics | EngineKind::Compute | EngineKind::TwoD | EngineKind::InlineToMemory => {
                Some(Self::Compute)
            }
            EngineKind::Copy => Some(Self::Copy),
            EngineKind::Video => None,
        }
    }

    /// Returns whether its channels are off the card outside the container's time.
    pub(super) const fn is_throttled(self, throttle: Throttle) -> bool {
        match throttle {
            Throttle::Compute => matches!(self, Self::Compute),
            Throttle::ComputeCopy => matches!(self, Self::Compute | Self::Copy),
            Throttle::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_by_number() {
        for (engines, expected) in [
            (0..=8, Engine::Compute),
            (0x09..=0x12, Engine::Copy),
            (0x13..=0x33, Engine::Other),
            (0x34..=0x3d, Engine::Copy),
            (0x3e..=0x3f, Engine::Other),
            (0x40..=0x53, Engine::Copy),
            (0x54..=0x60, Engine::Compute),
            (u32::MAX..=u32::MAX, Engine::Compute),
        ] {
            for engine in engines {
                assert_eq!(Engine::of_type(engine), expected, "{engine:#x}");
            }
        }
    }
}
