//! The account of managed memory compared with what is mapped.

use std::collections::BTreeSet;

use base::{Pid, units::Bytes};

use super::{
    super::Accounts,
    host::Place,
    ranges::{Range, RangeState},
};
use crate::{Mm, cards::saturated, intervals::Span};

/// A mapping of a UVM file as `/proc/PID/maps` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

impl Mapping {
    /// Intersection of both.
    #[must_use]
    pub fn common(self, other: Self) -> Option<Self> {
        let common = Span::new(self.start, self.length)?.common(Span::new(other.start, other.length)?)?;
        Some(Self { start: common.first, length: saturated(common.length()).0 })
    }
}

/// A comparison of the account with what processes have mapped. Begin it before the first
/// `/proc/PID/maps` is opened.
#[derive(Debug)]
pub struct ManagedSync {
    /// Only what was settled in an earlier epoch can be missed.
    epoch: u64,
    looked_at: BTreeSet<Mm>,
}

/// Difference between an address space's account and what it has mapped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedDrift {
    /// Bytes that are mapped no more, of each card. Less may be charged no more, where a part of a
    /// range was unmapped.
    pub released: Bytes,
    /// Mappings that were not charged; they are from now on, even over the limit. An honest program
    /// comes to that only by asking for its managed memory to be copied by fork (`MADV_DOFORK`):
    /// the driver disables such a copy.
    pub found: Vec<Mapping>,
}

impl ManagedSync {
    /// Records that an address space exists, whether or not it can be read.
    pub fn stays(&mut self, mm: Mm) {
        self.looked_at.insert(mm);
    }
}

impl Accounts {
    /// Begins a comparison with what processes have mapped.
    pub fn begin_sync(&mut self) -> ManagedSync {
        self.managed.epoch = self.managed.epoch.saturating_add(1);
        ManagedSync { epoch: self.managed.epoch, looked_at: BTreeSet::new() }
    }

    /// Returns whether anything is charged to `mm`.
    #[must_use]
    pub fn has_any_managed(&self, mm: Mm) -> bool {
        self.managed.of(mm).next().is_some()
    }

    /// Returns whether all of these mappings are charged to `mm`.
    #[must_use]
    pub fn has_managed(&self, mm: Mm, seen: &[Mapping]) -> bool {
        let charged: Vec<_> = self.managed.of(mm).map(|(span, _)| span).collect();
        gaps(joined(&spans(seen)).into_iter(), &charged).is_empty()
    }

    /// Reconciles the charges of `mm`, the address space of `process`, with its mappings of UVM
    /// files, read after `sync` began. What is charged but not mapped is released if its `mmap` had
    /// returned before; what is mapped but not charged is charged, and reported.
    pub fn set_managed(&mut self, sync: &mut ManagedSync, mm: Mm, process: Pid, seen: &[Mapping]) -> ManagedDrift {
        sync.looked_at.insert(mm);
        let seen = spans(seen);
        let mut released = 0_u128;
        let settled = self.managed.of(mm).filter(|(_, range)| settled_before(range, sync.epoch));
        for span in gaps(settled.map(|(span, _)| span), &seen) {
            for cut in self.managed.cut(mm, span) {
                released += cut.span.length();
            }
        }
        if released > 0 {
            self.managed.released_in = self.managed.released_in.max(sync.epoch);
        }
        self.managed.possible.retain(|(of, _, range)| *of != mm || !settled_before(range, sync.epoch));
        self.managed.restore(mm, &joined(&seen));
        let mut found = Vec::new();
        let charged: Vec<_> = self.managed.of(mm).map(|(span, _)| span).collect();
        // Overtaken by another comparison, this one may show what has been unmapped and released
        // since.
        let overtaken = sync.epoch < self.managed.released_in;
        for span in gaps(joined(&seen).into_iter(), &charged).into_iter().filter(|_| !overtaken) {
            let state = RangeState::Settled(sync.epoch);
            self.managed.insert(mm, span, Range { process, file: None, is_cut: false, place: Place::Card, state });
            found.push(Mapping { start: span.first, length: saturated(span.length()).0 });
        }
        self.update_charges();
        ManagedDrift { released: saturated(released), found }
    }

    /// Ends the comparison: every address space that exists was read since `sync` began, or said to
    /// stay. The mappings of the others are gone, except where a file that several processes share
    /// keeps them. Returns the bytes that this released, of each card.
    pub fn finish_sync(&mut self, sync: ManagedSync) -> Bytes {
        let ManagedSync { epoch, looked_at } = sync;
        let ranges = self.managed.iter().filter(|(mm, _, range)| !looked_at.contains(mm) && made_before(range, epoch));
        let gone: Vec<_> = ranges.map(|(mm, span, _)| (mm, span)).collect();
        self.managed.possible.retain(|(mm, _, range)| looked_at.contains(mm) || !made_before(range, epoch));
        let mut released = 0_u128;
        for (mm, span) in gone {
            for cut in self.managed.cut(mm, span) {
                released += self.end_range(cut.value, cut.span);
            }
            self.managed.released_in = self.managed.released_in.max(epoch);
        }
        self.update_charges();
        saturated(released)
    }
}

/// Returns whether its `mmap` had returned before the comparison of `epoch` began.
const fn settled_before(range: &Range, epoch: u64) -> bool {
    matches!(range.state, RangeState::Settled(settled) if settled < epoch)
}

/// Returns whether its address space existed when the comparison of `epoch` began.
const fn made_before(range: &Range, epoch: u64) -> bool {
    let (RangeState::Pending { epoch: made, .. } | RangeState::Settled(made)) = range.state;
    made < epoch
}

pub(super) fn spans(mappings: &[Mapping]) -> Vec<Span> {
    let mut spans: Vec<_> = mappings.iter().filter_map(|mapping| Span::new(mapping.start, mapping.length)).collect();
    spans.sort_unstable_by_key(|span| span.first);
    spans
}

/// The union of ranges that are sorted by their first addresses.
fn joined(spans: &[Span]) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::with_capacity(spans.len());
    for &span in spans {
        match joined.last_mut() {
            Some(last) if span.first <= last.last => last.last = last.last.max(span.last),
            _ => joined.push(span),
        }
    }
    joined
}

/// Parts of `wholes` that none of `parts` covers; both are sorted, and `wholes` do not overlap each
/// other.
pub(super) fn gaps(wholes: impl Iterator<Item = Span>, parts: &[Span]) -> Vec<Span> {
    let mut gaps = Vec::new();
    let mut parts = parts.iter().copied().peekable();
    for whole in wholes {
        let mut next = Some(whole.first);
        while let Some(first) = next {
            let Some(part) = parts.peek().copied().filter(|part| part.first <= whole.last) else {
                gaps.push(Span { first, last: whole.last });
                break;
            };
            if part.last < first {
                parts.next();
                continue;
            }
            if part.first > first {
                gaps.push(Span { first, last: part.first - 1 });
            }
            // What ends later may cover the next range too.
            next = (part.last < whole.last).then(|| part.last + 1);
        }
    }
    gaps
}
