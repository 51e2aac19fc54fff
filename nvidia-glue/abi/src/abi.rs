//! Differences between driver releases.

use std::{fmt, str::FromStr};

/// A driver's version, `580.159.04`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverRelease {
    /// `580`.
    pub major: u16,
    /// `159`.
    pub minor: u16,
    /// `4`; 0 where there is none.
    pub patch: u16,
}

impl DriverRelease {
    /// Release with these three numbers.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for DriverRelease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:02}.{:02}", self.major, self.minor, self.patch)
    }
}

/// Not a driver's version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no driver version; one looks like 580.159.04")]
pub struct ParseReleaseError(String);

impl FromStr for DriverRelease {
    type Err = ParseReleaseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseReleaseError(text.to_owned());
        let mut numbers = text.split('.').map(|number| number.parse::<u16>().map_err(|_| wrong()));
        let (major, minor) = (numbers.next().ok_or_else(wrong)??, numbers.next().ok_or_else(wrong)??);
        let patch = numbers.next().transpose()?.unwrap_or(0);
        if numbers.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { major, minor, patch })
    }
}

/// The layouts of one driver release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abi {
    release: DriverRelease,
}

/// A driver whose layouts are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "driver {release} is outside the known range {oldest} to {newest}; use a driver in that range, a newer egpu, or set \
     `unknown_driver = \"pass\"` to have it treated like the nearest known one"
)]
pub struct UnknownDriver {
    /// Release that runs.
    pub release: DriverRelease,
    /// First of the range.
    pub oldest: u16,
    /// Last of the range.
    pub newest: u16,
}

impl Abi {
    /// The majors whose headers the tables were compared with.
    pub const KNOWN: std::ops::RangeInclusive<u16> = 525..=595;

    /// The layouts of `release`.
    ///
    /// # Errors
    /// When its major is outside [`Abi::KNOWN`].
    pub fn of(release: DriverRelease) -> Result<Self, UnknownDriver> {
        if Self::KNOWN.contains(&release.major) {
            return Ok(Self { release });
        }
        Err(UnknownDriver { release, oldest: *Self::KNOWN.start(), newest: *Self::KNOWN.end() })
    }

    /// The layouts of the nearest known release, for those who accept the risk.
    pub fn nearest(release: DriverRelease) -> Self {
        let major = release.major.clamp(*Self::KNOWN.start(), *Self::KNOWN.end());
        Self { release: if major == release.major { release } else { DriverRelease::new(major, 0, 0) } }
    }

    /// Returns the release.
    pub const fn release(&self) -> DriverRelease {
        self.release
    }
}
