//! Memory limits as they are asked for; [`MemoryLimit::resolve`] makes bytes of them once the card
//! is known.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Percent};

/// One limit on one card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimit {
    /// A number of bytes, less `reserved`.
    Bytes {
        /// The amount asked for.
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
    /// A ratio with the card's size, rounded up to whole GiB, as the denominator.
    OfCardInGib {
        /// `ALIYUN_COM_GPU_MEM_CONTAINER`.
        numerator: u64,
        /// Taken off.
        reserved: Bytes,
    },
}

impl MemoryLimit {
    /// Returns a limit of so many bytes, nothing taken off.
    pub fn bytes(amount: Bytes) -> Self {
        Self::Bytes { amount, reserved: Bytes(0) }
    }

    /// Returns a limit of so many hundredths of the card.
    pub fn percent(percent: Percent) -> Self {
        Self::Ratio { numerator: percent.get().into(), denominator: 100, reserved: Bytes(0) }
    }

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

    /// The usable bytes on a card of `card` bytes where all of `limits` hold; without any, the
    /// whole card. It may be more than the card has, where bytes were asked for: that does not fit,
    /// and is not made to fit. `None` when one of the limits leaves nothing or is a ratio above
    /// one.
    pub fn tightest(limits: &[Self], card: Bytes) -> Option<Bytes> {
        let Some((first, others)) = limits.split_first() else { return Some(card) };
        others.iter().try_fold(first.resolve(card)?, |least, limit| Some(least.min(limit.resolve(card)?)))
    }
}

/// Text that is no limit on a card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a memory limit is an amount above 0 such as 6GiB, or 1% to 100% of the card")]
pub struct ParseMemoryLimitError;

impl FromStr for MemoryLimit {
    type Err = ParseMemoryLimitError;

    /// `6GiB` or `40%`.
    fn from_str(text: &str) -> Result<Self, ParseMemoryLimitError> {
        if let Ok(percent) = text.parse() {
            return Ok(Self::percent(percent));
        }
        let amount: Bytes = text.parse().map_err(|_| ParseMemoryLimitError)?;
        if amount.floor_to_kib().0 == 0 { Err(ParseMemoryLimitError) } else { Ok(Self::bytes(amount)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V100_16GB: Bytes = Bytes(16170 * Bytes::MIB);
    const RESERVE: Bytes = Bytes(10 * Bytes::MIB);

    #[test]
    fn vendors_figures() {
        let card = Bytes(15109 * Bytes::MIB);
        let six_of_fifteen = MemoryLimit::Ratio { numerator: 6, denominator: 15, reserved: Bytes(0) };
        assert_eq!(six_of_fifteen.resolve(card).map(Bytes::whole_mib), Some(6043));
        let sixteen_gb = MemoryLimit::OfCardInGib { numerator: 16, reserved: RESERVE };
        assert_eq!(sixteen_gb.resolve(V100_16GB), Some(Bytes(16160 * Bytes::MIB)));
        let five_of_sixteen = MemoryLimit::Ratio { numerator: 5, denominator: 16, reserved: RESERVE };
        assert_eq!(
            five_of_sixteen.resolve(V100_16GB),
            MemoryLimit::OfCardInGib { numerator: 5, reserved: RESERVE }.resolve(V100_16GB)
        );
        assert_eq!(five_of_sixteen.resolve(V100_16GB), Some(Bytes(16170 * Bytes::MIB / 16 * 5 - RESERVE.0)));
        let bytes = MemoryLimit::Bytes { amount: Bytes(2_000_000_000), reserved: RESERVE };
        assert_eq!(bytes.resolve(V100_16GB), Some(Bytes(2_000_000_000 - RESERVE.0).floor_to_kib()));
    }

    #[test]
    fn a_limit_that_leaves_nothing_or_exceeds_a_ratio_of_one_is_none() {
        let card = Bytes(Bytes::GIB);
        assert_eq!(MemoryLimit::Bytes { amount: RESERVE, reserved: RESERVE }.resolve(card), None);
        assert_eq!(MemoryLimit::Bytes { amount: Bytes(1), reserved: RESERVE }.resolve(card), None);
        assert_eq!(MemoryLimit::Ratio { numerator: 3, denominator: 2, reserved: Bytes(0) }.resolve(card), None);
        assert_eq!(MemoryLimit::Ratio { numerator: 1, denominator: 0, reserved: Bytes(0) }.resolve(card), None);
        assert_eq!(MemoryLimit::OfCardInGib { numerator: 2, reserved: Bytes(0) }.resolve(card), None);
        assert_eq!(MemoryLimit::bytes(Bytes(1023)).resolve(card), None);
    }

    #[test]
    fn shares_are_floored_to_the_drivers_unit() {
        let third = MemoryLimit::percent(Percent::new(33).unwrap());
        let usable = third.resolve(V100_16GB).unwrap();
        assert_eq!(usable.0 % Bytes::KIB, 0);
        assert_eq!(usable.0, V100_16GB.0 * 33 / 100 / 1024 * 1024);
    }

    #[test]
    fn the_tightest_of_several_counts_and_is_not_made_to_fit() {
        let card = Bytes(8 * Bytes::GIB);
        let (small, large) = (MemoryLimit::bytes(Bytes(Bytes::GIB)), MemoryLimit::bytes(Bytes(40 * Bytes::GIB)));
        assert_eq!(MemoryLimit::tightest(&[], card), Some(card));
        assert_eq!(MemoryLimit::tightest(&[large, small], card), Some(Bytes(Bytes::GIB)));
        assert_eq!(MemoryLimit::tightest(&[large], card), Some(Bytes(40 * Bytes::GIB)));
        let nothing = MemoryLimit::bytes(Bytes(0));
        assert_eq!(MemoryLimit::tightest(&[small, nothing], card), None);
    }

    #[test]
    fn amounts_and_percentages_are_read() {
        assert_eq!("6GiB".parse(), Ok(MemoryLimit::bytes(Bytes(6 * Bytes::GIB))));
        assert_eq!("40%".parse(), Ok(MemoryLimit::percent(Percent::new(40).unwrap())));
        for wrong in ["", "0GiB", "1B", "0%", "101%", "6", "40 %x"] {
            assert_eq!(wrong.parse::<MemoryLimit>(), Err(ParseMemoryLimitError), "{wrong:?}");
        }
    }
}
