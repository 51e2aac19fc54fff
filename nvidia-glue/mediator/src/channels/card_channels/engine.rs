//! Engine that a channel does its work on.

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

    /// Of an object of a class in a channel, where it tells: 3D (`*97`), compute (`*c0`), 2D
    /// (`*2d`), memory to memory (`*40`) and copies (`*b5`) of every generation.
    pub(crate) const fn of_class(class: u32) -> Option<Self> {
        match class & 0xff {
            0x97 | 0xc0 | 0x2d | 0x40 => Some(Self::Compute),
            0xb5 => Some(Self::Copy),
            _ => None,
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
    use abi::classes::{
        BLACKWELL_INLINE_TO_MEMORY_A, FERMI_TWOD_A, HOPPER_CHANNEL_GPFIFO_A, HOPPER_COMPUTE_A, HOPPER_DMA_COPY_A,
        KEPLER_INLINE_TO_MEMORY_B, NVC9B0_VIDEO_DECODER, TURING_A,
    };

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

    #[test]
    fn engines_by_class() {
        for (classes, expected) in [
            (
                &[TURING_A, HOPPER_COMPUTE_A, FERMI_TWOD_A, KEPLER_INLINE_TO_MEMORY_B, BLACKWELL_INLINE_TO_MEMORY_A][..],
                Some(Engine::Compute),
            ),
            (&[HOPPER_DMA_COPY_A], Some(Engine::Copy)),
            (&[NVC9B0_VIDEO_DECODER, HOPPER_CHANNEL_GPFIFO_A], None),
        ] {
            for class in classes {
                assert_eq!(Engine::of_class(*class), expected, "{class:#x}");
            }
        }
    }
}
