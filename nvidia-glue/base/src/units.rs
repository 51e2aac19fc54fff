//! Quantities with their units in the type.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 2^10 bytes, the driver's unit for memory sizes.
    pub const KIB: u64 = 1 << 10;
    /// 2^20 bytes.
    pub const MIB: u64 = 1 << 20;
    /// 2^30 bytes.
    pub const GIB: u64 = 1 << 30;

    /// `count` MiB; `None` when that exceeds 64 bits.
    pub fn from_mib(count: u64) -> Option<Self> {
        count.checked_mul(Self::MIB).map(Self)
    }

    /// The same amount without what does not fill a whole KiB: shares are floored to the driver's
    /// unit.
    #[must_use]
    pub fn floor_to_kib(self) -> Self {
        Self(self.0 / Self::KIB * Self::KIB)
    }

    /// Whole MiB, rounded down.
    pub fn whole_mib(self) -> u64 {
        self.0 / Self::MIB
    }
}

/// Text that is no amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an amount of memory is a whole number with one of the units GiB, MiB, KiB or B, below 2^64 bytes")]
pub struct ParseBytesError;

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// `6GiB`, `3276MiB`, `64KiB`, `2000000000B`; also Kubernetes' `6Gi`. Without regard to case.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(ParseBytesError)?;
        let (count, unit) = text.split_at(digits);
        let size = match unit.trim_start().to_ascii_lowercase().as_str() {
            "gib" | "gi" => Self::GIB,
            "mib" | "mi" => Self::MIB,
            "kib" | "ki" => Self::KIB,
            "b" => 1,
            _ => return Err(ParseBytesError),
        };
        let count = count.parse::<u64>().map_err(|_| ParseBytesError)?;
        count.checked_mul(size).map(Self).ok_or(ParseBytesError)
    }
}

impl fmt::Display for Bytes {
    /// Writes the largest binary unit that shows the amount exactly: `3276MiB`, `32GiB`,
    /// `2000000000B`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("GiB", Self::GIB), ("MiB", Self::MIB), ("KiB", Self::KIB)] {
            if self.0 != 0 && self.0.is_multiple_of(size) {
                return write!(formatter, "{}{unit}", self.0 / size);
            }
        }
        write!(formatter, "{}B", self.0)
    }
}

/// A share of a card's time as a hard cap, 1 to 100 percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Percent(u8);

impl Percent {
    /// The whole card.
    pub const FULL: Self = Self(100);
    /// Half of it.
    pub const HALF: Self = Self(50);

    /// `None` outside 1 to 100.
    pub fn new(value: u8) -> Option<Self> {
        (1..=100).contains(&value).then_some(Self(value))
    }

    /// The number, 1 to 100.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Percent {
    type Error = String;
    fn try_from(value: u8) -> Result<Self, Self::Error> {
        Self::new(value).ok_or_else(|| format!("{value} is not a percentage from 1 to 100"))
    }
}

impl From<Percent> for u8 {
    fn from(percent: Percent) -> Self {
        percent.0
    }
}

/// Text that is no percentage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a percentage is a whole number from 1 to 100 with a %")]
pub struct ParsePercentError;

impl FromStr for Percent {
    type Err = ParsePercentError;

    /// `30%`.
    fn from_str(text: &str) -> Result<Self, ParsePercentError> {
        let digits = text.strip_suffix('%').ok_or(ParsePercentError)?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParsePercentError);
        }
        digits.parse().ok().and_then(Self::new).ok_or(ParsePercentError)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.0)
    }
}

/// A relative share of a card's time, 1 to 1000: a container of weight 2 gets twice the time of one
/// of weight 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Weight(u16);

impl Weight {
    /// The weight of a container that asks for none on a card that shares by weight.
    pub const ONE: Self = Self(1);

    /// `None` outside 1 to 1000.
    pub fn new(value: u16) -> Option<Self> {
        (1..=1000).contains(&value).then_some(Self(value))
    }

    /// The number, 1 to 1000.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for Weight {
    type Error = String;
    fn try_from(value: u16) -> Result<Self, Self::Error> {
        Self::new(value).ok_or_else(|| format!("{value} is not a weight from 1 to 1000"))
    }
}

impl From<Weight> for u16 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_amounts() {
        for (text, bytes) in [
            ("6GiB", Some(6 << 30)),
            ("6Gi", Some(6 << 30)),
            ("3276mib", Some(3276 << 20)),
            ("3276 MiB", Some(3276 << 20)),
            ("64KiB", Some(64 << 10)),
            ("2000000000B", Some(2_000_000_000)),
            ("0MiB", Some(0)),
            ("17179869183GiB", Some(17_179_869_183 << 30)),
            ("17179869184GiB", None),
            ("99999999999999999999B", None),
            ("6", None),
            ("6GB", None),
            ("6G", None),
            ("1.5GiB", None),
            ("-1GiB", None),
            ("+1GiB", None),
            ("GiB", None),
            ("", None),
            ("６GiB", None),
        ] {
            assert_eq!(text.parse::<Bytes>().ok(), bytes.map(Bytes), "{text:?}");
        }
    }

    #[test]
    fn memory_amounts_are_shown_exactly_and_read_back() {
        for (bytes, text) in [(0, "0B"), (1, "1B"), (1024, "1KiB"), (3276 << 20, "3276MiB"), (32 << 30, "32GiB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn percentages() {
        for (text, percent) in [
            ("1%", Some(1)),
            ("100%", Some(100)),
            ("0%", None),
            ("101%", None),
            ("30", None),
            ("+3%", None),
            ("%", None),
        ] {
            assert_eq!(text.parse::<Percent>().ok().map(Percent::get), percent, "{text:?}");
        }
    }
}
