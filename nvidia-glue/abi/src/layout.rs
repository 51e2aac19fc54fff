//! Words of the tables: releases, fields, pointers and descriptors within a call's bytes.

use super::{Abi, DriverRelease};

/// Releases from one on, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Releases {
    /// The first; `None`: since before the known range.
    pub since: Option<DriverRelease>,
    /// The first that no longer belongs; `None`: still so in the newest known.
    pub before: Option<DriverRelease>,
}

impl Releases {
    /// The whole known range.
    pub const ALL: Self = Self { since: None, before: None };

    /// `release` and later.
    pub const fn since(release: DriverRelease) -> Self {
        Self { since: Some(release), before: None }
    }

    /// Earlier than `release`.
    pub const fn before(release: DriverRelease) -> Self {
        Self { since: None, before: Some(release) }
    }

    /// `first` and later, but earlier than `end`.
    pub const fn between(first: DriverRelease, end: DriverRelease) -> Self {
        Self { since: Some(first), before: Some(end) }
    }

    /// Returns whether `abi`'s release is one of them.
    pub fn contain(&self, abi: Abi) -> bool {
        let release = abi.release();
        self.since.is_none_or(|since| release >= since) && self.before.is_none_or(|before| release < before)
    }
}

/// Width of a number in a call's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    U8,
    /// Two, little-endian like all.
    U16,
    /// Four.
    U32,
    /// Eight.
    U64,
}

/// Length of a pointer's target, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Always this.
    Fixed(u32),
    /// A number in the same struct as the pointer, times the size of an element.
    Counted {
        /// Offset of the number.
        at: u16,
        /// Its width.
        width: Width,
        /// Bytes of one element.
        element: u32,
        /// More elements than the driver accepts: the call is refused instead of copied.
        most: u32,
    },
    /// The square of a 4-byte number in the same struct, times the size of an element.
    Squared {
        /// Offset of the number.
        at: u16,
        /// Bytes of one element.
        element: u32,
        /// A larger number than the driver accepts: the call is refused instead of copied.
        most: u32,
    },
}

/// Direction in which a pointer's target is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The driver reads it.
    In,
    /// The driver writes it (and what it leaves alone must come back unchanged: copy in all the
    /// same).
    Out,
    /// Both.
    InOut,
}

/// An 8-byte pointer in a struct. Null means "nothing there".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Offset in its struct.
    pub at: u16,
    /// Length of its target.
    pub length: Length,
    /// Direction of the copy.
    pub direction: Direction,
    /// The releases whose struct has it.
    pub releases: Releases,
}

/// A number in a struct that names one of the caller's open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Offset of the 4-byte number in its struct.
    pub at: u16,
    /// Number that stands for no file.
    pub none: NoFile,
}

/// The number that stands for "no file".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFile {
    /// A file is always meant.
    Never,
    /// Any negative number.
    Negative,
}

/// The four bytes at `at`, little-endian.
pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

/// The eight bytes at `at`, little-endian.
pub fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// The number of that width at `at`.
pub fn read_number(bytes: &[u8], at: usize, width: Width) -> Option<u64> {
    match width {
        Width::U8 => bytes.get(at).copied().map(u64::from),
        Width::U16 => {
            let field = bytes.get(at..at.checked_add(2)?)?;
            Some(u64::from(u16::from_le_bytes(field.try_into().ok()?)))
        }
        Width::U32 => read_u32(bytes, at).map(u64::from),
        Width::U64 => read_u64(bytes, at),
    }
}

/// Writes `value` at `at`; `false`, and nothing written, when it does not lie within `bytes`.
#[must_use]
pub fn write_u32(bytes: &mut [u8], at: usize, value: u32) -> bool {
    write(bytes, at, &value.to_le_bytes())
}

/// Writes `value` at `at`; `false`, and nothing written, when it does not lie within `bytes`.
#[must_use]
pub fn write_u64(bytes: &mut [u8], at: usize, value: u64) -> bool {
    write(bytes, at, &value.to_le_bytes())
}

fn write(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    let Some(field) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) else { return false };
    field.copy_from_slice(value);
    true
}

impl Length {
    /// Bytes, given the struct that the pointer is in; `None` when the struct is too short or the
    /// count is beyond what the driver accepts.
    pub fn of(&self, holder: &[u8]) -> Option<usize> {
        match *self {
            Self::Fixed(bytes) => usize::try_from(bytes).ok(),
            Self::Counted { at, width, element, most } => {
                bytes_of(read_number(holder, usize::from(at), width)?, most, 1, element)
            }
            Self::Squared { at, element, most } => {
                let number = u64::from(read_u32(holder, usize::from(at))?);
                bytes_of(number, most, number, element)
            }
        }
    }
}

fn bytes_of(number: u64, most: u32, times: u64, element: u32) -> Option<usize> {
    if number > u64::from(most) {
        return None;
    }
    usize::try_from(number.checked_mul(times)?.checked_mul(u64::from(element))?).ok()
}

impl Pointer {
    /// Pointer that every release has.
    pub const fn new(at: u16, length: Length, direction: Direction) -> Self {
        Self { at, length, direction, releases: Releases::ALL }
    }

    /// Restricts it to `release` and later.
    #[must_use]
    pub const fn since(mut self, release: DriverRelease) -> Self {
        self.releases = Releases::since(release);
        self
    }

    /// The address in `holder`; `None` when the holder is too short for the field, or the pointer
    /// is null.
    pub fn address(&self, holder: &[u8]) -> Option<u64> {
        read_u64(holder, usize::from(self.at)).filter(|address| *address != 0)
    }
}

impl Descriptor {
    /// The number in `holder`; `None` when no file is meant or the holder is too short.
    pub fn number(&self, holder: &[u8]) -> Option<i32> {
        let number = read_u32(holder, usize::from(self.at))?.cast_signed();
        match self.none {
            NoFile::Negative if number < 0 => None,
            _ => Some(number),
        }
    }
}
