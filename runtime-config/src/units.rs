//! Quantities with their units in the type.

use std::fmt;

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

    /// The same amount without what does not fill a whole KiB: shares are floored to the driver's unit.
    #[must_use]
    pub fn floor_to_kib(self) -> Self {
        Self(self.0 / Self::KIB * Self::KIB)
    }

    /// Whole MiB, rounded down.
    pub fn whole_mib(self) -> u64 {
        self.0 / Self::MIB
    }
}

impl fmt::Display for Bytes {
    /// In the largest binary unit that shows the amount exactly: `3276MiB`, `32GiB`, `2000000000B`.
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

impl fmt::Display for Percent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.0)
    }
}

/// A relative share of a card's time, 1 to 1000: a container of weight 2 gets twice the time of one of weight 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Weight(u16);

impl Weight {
    /// What a container gets that asks for no weight on a card that shares by weight.
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
