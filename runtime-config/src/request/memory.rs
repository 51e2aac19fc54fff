//! Memory limits as they are asked for; [`MemoryLimit::resolve`] makes bytes of them once the card is known.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// One limit on one card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimit {
    /// So many bytes, less `reserved`.
    Bytes {
        /// What was asked for.
        amount: Bytes,
        /// Taken off (`ALIYUN_COM_GPU_MEM_RESERVED`); 0 in all other dialects.
        reserved: Bytes,
    },
    /// Card bytes x `numerator` / `denominator`, less `reserved`.
    Ratio {
        /// `ALIYUN_COM_GPU_MEM_CONTAINER`, or a percentage.
        numerator: u64,
        /// `ALIYUN_COM_GPU_MEM_DEV`, or 100. Never 0.
        denominator: u64,
        /// Taken off.
        reserved: Bytes,
    },
    /// As `Ratio` with the card's size, rounded up to whole GiB, as the denominator.
    OfCardInGib {
        /// `ALIYUN_COM_GPU_MEM_CONTAINER`.
        numerator: u64,
        /// Taken off.
        reserved: Bytes,
    },
}

impl MemoryLimit {
    /// The usable bytes on a card of `card` bytes (NVML's total), floored to whole KiB.
    /// `None` when nothing is left, or more than the card has is asked for by a ratio above one.
    pub fn resolve(self, card: Bytes) -> Option<Bytes> {
        let ratio = |numerator: u64, denominator: u64, reserved: Bytes| {
            if denominator == 0 || numerator > denominator {
                return None;
            }
            let amount = u128::from(card.0) * u128::from(numerator) / u128::from(denominator);
            u64::try_from(amount).ok()?.checked_sub(reserved.0)
        };
        let usable = match self {
            Self::Bytes { amount, reserved } => amount.0.checked_sub(reserved.0),
            Self::Ratio { numerator, denominator, reserved } => ratio(numerator, denominator, reserved),
            Self::OfCardInGib { numerator, reserved } => ratio(numerator, card.0.div_ceil(Bytes::GIB), reserved),
        }?;
        let usable = Bytes(usable).floor_to_kib();
        (usable.0 > 0).then_some(usable)
    }

    /// The usable bytes on a card of `card` bytes where all of `limits` hold; without any, the whole card.
    /// `None` when one of them leaves nothing or asks for more than the card has.
    pub fn tightest(limits: &[Self], card: Bytes) -> Option<Bytes> {
        limits.iter().try_fold(card, |least, limit| Some(least.min(limit.resolve(card)?)))
    }
}
