//! Mappings in 512 MiB of addresses: how many tables of the lowest level that takes.

use crate::intervals::Span;

/// Span of one table of the lowest level, in bits of the address.
pub(super) const LOWEST_BITS: u32 = 21;
/// Span of one table of the next level.
pub(super) const STRETCH_BITS: u32 = 29;
/// Tables of the lowest level in a stretch.
const LOWEST: usize = 1 << (STRETCH_BITS - LOWEST_BITS);
const WHOLE: u32 = 1 << LOWEST_BITS;
/// Most stretches that are counted one by one: the driver maps nothing as long as that.
const MOST_STRETCHES: u64 = 1 << 18;

/// A stretch in which something is mapped.
#[derive(Debug)]
pub(super) enum Stretch {
    /// All of it, once.
    Whole,
    /// Parts of it.
    Parts(Box<Parts>),
}

/// Mapped bytes for each table of the lowest level.
#[derive(Debug)]
pub(super) struct Parts {
    bytes: [u32; LOWEST],
    /// Number of them that are not 0.
    tables: usize,
}

/// The stretches that a mapping touches, and what of each.
pub(super) fn stretches(span: Span) -> impl Iterator<Item = (u64, Span)> {
    let (first, last) = (span.first >> STRETCH_BITS, span.last >> STRETCH_BITS);
    (first..=last.min(first.saturating_add(MOST_STRETCHES))).filter_map(move |at| {
        let begin = at << STRETCH_BITS;
        let stretch = Span { first: begin, last: begin | ((1 << STRETCH_BITS) - 1) };
        Some((at, stretch.common(span)?))
    })
}

impl Stretch {
    /// A stretch in which `part` is mapped.
    pub(super) fn with(part: Span) -> Self {
        if part.length() == 1 << STRETCH_BITS {
            return Self::Whole;
        }
        let mut stretch = Self::Parts(Box::new(Parts { bytes: [0; LOWEST], tables: 0 }));
        stretch.add(part);
        stretch
    }

    /// Adds a mapped `part`.
    pub(super) fn add(&mut self, part: Span) {
        self.change(part, u32::saturating_add);
    }

    /// Removes an unmapped `part`.
    pub(super) fn subtract(&mut self, part: Span) {
        self.change(part, u32::saturating_sub);
    }

    /// Changes the tables that `part` touches, without a visit to any others: most mappings are a
    /// few of the many that are in a stretch.
    fn change(&mut self, part: Span, change: impl Fn(u32, u32) -> u32) {
        if let Self::Whole = self {
            *self = Self::Parts(Box::new(Parts { bytes: [WHOLE; LOWEST], tables: LOWEST }));
        }
        let Self::Parts(parts) = self else { return };
        let begin = part.first >> STRETCH_BITS << STRETCH_BITS;
        let index = |address: u64| usize::try_from((address - begin) >> LOWEST_BITS).unwrap_or(LOWEST);
        let (from, to) = (index(part.first), index(part.last));
        let touched = parts.bytes.iter_mut().enumerate().take(to.saturating_add(1)).skip(from);
        for (at, bytes) in touched {
            let first = begin | (at as u64) << LOWEST_BITS;
            let table = Span { first, last: first | u64::from(WHOLE - 1) };
            let Some(length) = table.common(part).and_then(|common| u32::try_from(common.length()).ok()) else {
                continue;
            };
            let before = std::mem::replace(bytes, change(*bytes, length));
            match (before, *bytes) {
                (0, 1..) => parts.tables += 1,
                (1.., 0) => parts.tables -= 1,
                _ => {}
            }
        }
    }

    /// Number of tables of the lowest level that it needs.
    pub(super) fn lowest(&self) -> u128 {
        match self {
            Self::Whole => LOWEST as u128,
            Self::Parts(parts) => parts.tables as u128,
        }
    }
}
