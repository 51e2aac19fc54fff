//! The ranges themselves, and what is counted of them.

use std::hash::Hash;

use base::Pid;
use foldhash::HashMap;

use super::{
    super::page_tables::{cost, cost_of},
    blocks,
    sync::gaps,
};
use crate::{
    Mm, UvmFile,
    cards::saturated,
    intervals::{Cut, Intervals, Span},
};

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Range {
    pub(super) process: Pid,
    /// The file that was mapped; `None` when that is not known for sure.
    pub(super) file: Option<UvmFile>,
    /// It is what is left of a larger one.
    pub(super) is_cut: bool,
    pub(super) state: RangeState,
}

impl Range {
    fn padding(&self, span: Span) -> i128 {
        i128::try_from(blocks::padding(span, self.is_cut)).unwrap_or(i128::MAX)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeState {
    /// The thread that maps it since this epoch has not been seen again.
    Pending { thread: i32, epoch: u64 },
    /// Its `mmap` had returned in this epoch.
    Settled(u64),
}

/// All managed memory.
#[derive(Debug, Default)]
pub(in super::super) struct Managed {
    ranges: Intervals<Mm, Range>,
    /// By thread: its ranges that are not settled.
    pending: HashMap<i32, Vec<(Mm, Span)>>,
    pending_spans: usize,
    /// Ranges that a thread may yet map, though another one's `mmap` that came later stands in
    /// their place: whichever the kernel executes last is there, and one may fail. Charged on their
    /// own until their thread is back.
    overtaken: Vec<(Mm, Span, Range)>,
    /// Mappings of files that may be UVM's by the time at which the kernel looks. Charged when
    /// nobody can look whether they are.
    pub(super) possible: Vec<(Mm, Span, Range)>,
    /// Changes of what ranges are charged beyond their bytes, which are not yet added to the cards.
    padding: HashMap<Pid, i128>,
    /// Number of ranges of each file and each process.
    by_file: HashMap<Option<UvmFile>, usize>,
    by_process: HashMap<Pid, usize>,
    pub(super) reserved: usize,
    /// Number of the latest comparison with what is mapped.
    pub(super) epoch: u64,
    /// Number of the last comparison that released something.
    pub(super) released_in: u64,
    /// Bytes whose process is gone but whose file keeps them.
    pub(super) zombies: HashMap<Option<UvmFile>, HashMap<Pid, u128>>,
    /// Bytes of page tables of those, at the worst.
    pub(super) zombie_tables: HashMap<Option<UvmFile>, u128>,
}

impl Managed {
    /// Number of ranges that exist or may come to exist.
    pub(in super::super) fn len(&self) -> usize {
        self.ranges.len().max(self.pending_spans) + self.overtaken.len() + self.reserved
    }

    /// Bytes of page tables that all of it may need on each card.
    pub(super) fn page_tables(&self) -> u128 {
        let ranges = cost_of(self.ranges.iter().map(|(mm, span, _)| (mm, span)));
        let overtaken: u128 = self.overtaken.iter().map(|(_, span, _)| cost(saturated(span.length()).0)).sum();
        ranges + overtaken + self.zombie_tables.values().sum::<u128>()
    }

    /// Returns whether a range may keep `file` open.
    pub(in super::super) fn keeps(&self, file: UvmFile) -> bool {
        let may_be = |of: Option<UvmFile>| of.is_none_or(|of| of == file);
        self.by_file.contains_key(&Some(file))
            || self.by_file.contains_key(&None)
            || self.overtaken.iter().any(|(_, _, range)| may_be(range.file))
    }

    /// Returns whether `file` keeps ranges whose process is gone.
    pub(in super::super) fn has_zombies(&self, file: UvmFile) -> bool {
        self.zombies.contains_key(&Some(file))
    }

    /// Files that keep ranges whose process is gone.
    pub(in super::super) fn zombie_files(&self) -> impl Iterator<Item = UvmFile> {
        self.zombies.keys().copied().flatten()
    }

    pub(in super::super) fn has_ranges(&self, process: Pid) -> bool {
        self.by_process.contains_key(&process)
    }

    pub(super) fn of(&self, mm: Mm) -> impl Iterator<Item = (Span, Range)> {
        self.ranges.of(mm)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Mm, Span, Range)> {
        self.ranges.iter()
    }

    /// Adds a range; what it overlaps must have been cut out.
    pub(super) fn insert(&mut self, mm: Mm, span: Span, range: Range) {
        self.ranges.insert(mm, span, range);
        self.count(&range, 1);
        self.pad(range.process, range.padding(span));
        if let RangeState::Pending { thread, .. } = range.state {
            self.pending.entry(thread).or_default().push((mm, span));
            self.pending_spans += 1;
        }
    }

    /// Removes the parts of ranges that `span` covers.
    pub(super) fn cut(&mut self, mm: Mm, span: Span) -> Vec<Cut<Range>> {
        let wholes: Vec<_> = self.ranges.overlapping(mm, span).collect();
        let cuts = self.ranges.cut(mm, span);
        for cut in &cuts {
            self.count(&cut.value, isize::from(cut.remain) - 1);
        }
        for (whole, range) in wholes {
            self.pad(range.process, -range.padding(whole));
            for left in gaps(std::iter::once(whole), &[span]) {
                if let Some(left) = self.ranges.value_mut(mm, left.first) {
                    left.is_cut = true;
                }
                self.pad(range.process, Range { is_cut: true, ..range }.padding(left));
            }
        }
        cuts
    }

    fn pad(&mut self, process: Pid, change: i128) {
        if change != 0 {
            *self.padding.entry(process).or_default() += change;
        }
    }

    /// Returns the changes to be added to the cards.
    pub(super) fn take_padding(&mut self) -> HashMap<Pid, i128> {
        std::mem::take(&mut self.padding)
    }

    fn count(&mut self, range: &Range, more: isize) {
        count(&mut self.by_file, range.file, more);
        count(&mut self.by_process, range.process, more);
    }

    /// Keeps the charge of a part that another thread's `mmap` has replaced, as this range's thread
    /// may yet map it.
    pub(super) fn supersede(&mut self, mm: Mm, span: Span, range: Range) {
        self.overtaken.push((mm, span, Range { is_cut: true, ..range }));
    }

    /// Restores overtaken ranges where they are seen to be mapped and no other range is.
    pub(super) fn restore(&mut self, mm: Mm, seen: &[Span]) {
        let (of_space, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.overtaken).into_iter().partition(|(of, ..)| *of == mm);
        self.overtaken = others;
        for (mm, span, range) in of_space {
            let taken: Vec<Span> = self.ranges.overlapping(mm, span).map(|(other, _)| other).collect();
            let free = gaps(std::iter::once(span), &taken);
            let there: Vec<Span> =
                free.iter().flat_map(|free| seen.iter().filter_map(|seen| free.common(*seen))).collect();
            self.overtaken.extend(gaps(std::iter::once(span), &there).into_iter().map(|left| (mm, left, range)));
            for span in there {
                self.insert(mm, span, range);
            }
        }
    }

    /// Adds a mapping that is to be looked at once its thread is back.
    pub(super) fn add_possible(&mut self, mm: Mm, span: Span, (process, thread): (Pid, i32)) {
        let state = RangeState::Pending { thread, epoch: self.epoch };
        self.possible.push((mm, span, Range { process, file: None, is_cut: false, state }));
        self.pending.entry(thread).or_default();
    }

    /// Settles the ranges of a thread whose calls have returned. Returns the double charges of
    /// those that others have overtaken: process and bytes.
    pub(super) fn settle(&mut self, thread: i32) -> Vec<(Pid, u128)> {
        let Some(spans) = self.pending.remove(&thread) else { return Vec::new() };
        self.pending_spans = self.pending_spans.saturating_sub(spans.len());
        for (mm, span) in spans {
            let of_thread =
                |range: &Range| matches!(range.state, RangeState::Pending { thread: of, .. } if of == thread);
            let pending = self.ranges.overlapping(mm, span).filter(|(_, range)| of_thread(range));
            let firsts: Vec<_> = pending.map(|(span, _)| span.first).collect();
            for first in firsts {
                if let Some(range) = self.ranges.value_mut(mm, first) {
                    range.state = RangeState::Settled(self.epoch);
                }
            }
        }
        let is_back = |(_, _, range): &(Mm, Span, Range)| matches!(range.state, RangeState::Pending { thread: of, .. } if of == thread);
        for (_, _, range) in self.possible.iter_mut().filter(|possible| is_back(possible)) {
            range.state = RangeState::Settled(self.epoch);
        }
        let (back, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.overtaken).into_iter().partition(is_back);
        self.overtaken = waiting;
        let mut twice = Vec::new();
        for (mm, span, range) in back {
            let others: Vec<Span> = self.ranges.overlapping(mm, span).map(|(other, _)| other).collect();
            // What stands there may be this one: a comparison that began before it was back has not
            // seen it.
            for other in &others {
                if let Some(Range { state: state @ RangeState::Settled(_), .. }) =
                    self.ranges.value_mut(mm, other.first)
                {
                    *state = RangeState::Settled(self.epoch);
                }
            }
            let alone = gaps(std::iter::once(span), &others);
            let left = alone.iter().map(|span| span.length()).sum::<u128>();
            // It may be there, and nothing else is: the next comparison shows it.
            for span in alone {
                self.insert(mm, span, Range { state: RangeState::Settled(self.epoch), ..range });
            }
            twice.push((range.process, span.length().saturating_sub(left)));
        }
        twice
    }

    pub(super) fn pending_threads(&self) -> Vec<i32> {
        self.pending.keys().copied().collect()
    }

    /// Keeps the charge of a removed range, whose process is gone, under its file.
    pub(super) fn add_zombie(&mut self, span: Span, range: Range) {
        let Range { file, process, .. } = range;
        self.pad(process, range.padding(span));
        let charge = span.length() + blocks::padding(span, range.is_cut);
        *self.zombies.entry(file).or_default().entry(process).or_default() += charge;
        *self.zombie_tables.entry(file).or_default() += cost(saturated(span.length()).0);
    }
}

fn count<K: Eq + Hash + Copy>(counts: &mut HashMap<K, usize>, key: K, more: isize) {
    let count = counts.entry(key).or_default();
    debug_assert!(count.checked_add_signed(more).is_some(), "more ranges go than there are");
    *count = count.saturating_add_signed(more);
    if *count == 0 {
        counts.remove(&key);
    }
}
