//! Ranges of addresses that do not overlap, by owner.

use std::{
    collections::BTreeMap,
    ops::{Bound, RangeBounds},
};

/// A range, its last address included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Span {
    /// `None` when it is empty or wraps.
    pub(super) fn new(start: u64, length: u64) -> Option<Self> {
        Some(Self { first: start, last: start.checked_add(length.checked_sub(1)?)? })
    }

    /// Bytes.
    pub(super) fn length(self) -> u128 {
        u128::from(self.last - self.first) + 1
    }

    /// Intersection of both.
    pub(super) fn common(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(Self { first, last })
    }
}

/// Part of a range that was cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut<V> {
    pub(super) span: Span,
    pub(super) value: V,
    /// Number of pieces of it that remain: 0, 1 or 2.
    pub(super) remain: u8,
}

/// Ranges by owner.
#[derive(Debug)]
pub(super) struct Intervals<K, V>(BTreeMap<(K, u64), (u64, V)>);

impl<K, V> Default for Intervals<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy, V: Copy> Intervals<K, V> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The ranges of `owner` that overlap `span`.
    pub(super) fn overlapping(&self, owner: K, span: Span) -> impl Iterator<Item = (Span, V)> {
        let before = self.0.range((owner, 0)..(owner, span.first)).next_back();
        let before = before.filter(move |(_, (last, _))| *last >= span.first);
        let within = self.0.range((owner, span.first)..=(owner, span.last));
        before.into_iter().chain(within).map(|(&(_, first), &(last, value))| (Span { first, last }, value))
    }

    /// All ranges of `owner`.
    pub(super) fn of(&self, owner: K) -> impl Iterator<Item = (Span, V)> {
        self.overlapping(owner, Span { first: 0, last: u64::MAX })
    }

    /// Owners within `bounds` that have a range, found without a visit to every range.
    pub(super) fn owners(&self, bounds: impl RangeBounds<K>) -> Vec<K> {
        let mut owners = Vec::new();
        let mut from = bounds.start_bound().map(|&owner| (owner, 0));
        while let Some((&(owner, _), _)) = self.0.range((from, Bound::Unbounded)).next() {
            if !bounds.contains(&owner) {
                break;
            }
            owners.push(owner);
            from = Bound::Excluded((owner, u64::MAX));
        }
        owners
    }

    /// Returns whether cutting `span` out of what `owner` has leaves one range more than there was.
    pub(super) fn would_split(&self, owner: K, span: Span) -> bool {
        self.overlapping(owner, span).any(|(whole, _)| whole.first < span.first && span.last < whole.last)
    }

    /// Every range.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, Span, V)> {
        self.0.iter().map(|(&(owner, first), &(last, value))| (owner, Span { first, last }, value))
    }

    /// The value of the range that begins at `first`.
    pub(super) fn value_mut(&mut self, owner: K, first: u64) -> Option<&mut V> {
        self.0.get_mut(&(owner, first)).map(|(_, value)| value)
    }

    /// Adds a range; what it overlaps must have been cut out.
    pub(super) fn insert(&mut self, owner: K, span: Span, value: V) {
        debug_assert!(self.overlapping(owner, span).next().is_none(), "ranges must not overlap");
        self.0.insert((owner, span.first), (span.last, value));
    }

    /// Removes the parts of intervals that `span` covers; those outside of it stay.
    pub(super) fn cut(&mut self, owner: K, span: Span) -> Vec<Cut<V>> {
        let touched: Vec<_> = self.overlapping(owner, span).collect();
        let mut cuts = Vec::with_capacity(touched.len());
        for (whole, value) in touched {
            let Some(common) = whole.common(span) else { continue };
            self.0.remove(&(owner, whole.first));
            let mut remain = 0;
            if whole.first < common.first {
                self.0.insert((owner, whole.first), (common.first - 1, value));
                remain += 1;
            }
            if common.last < whole.last {
                self.0.insert((owner, common.last + 1), (whole.last, value));
                remain += 1;
            }
            cuts.push(Cut { span: common, value, remain });
        }
        cuts
    }
}
