//! The ranges themselves, and what is counted of them.

use std::hash::Hash;

use base::Pid;
use foldhash::{HashMap, HashSet};

use super::{
    super::page_tables::{cost, cost_of},
    host::Place,
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
    pub(super) place: Place,
    pub(super) state: RangeState,
}

impl Range {
    /// Bytes of each card that it is charged.
    pub(super) fn charge(&self, span: Span) -> u128 {
        self.place.charge(span, self.is_cut)
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
    /// Changes of what ranges are charged, which are not yet added to the cards.
    changes: HashMap<Pid, i128>,
    /// Number of ranges of each file and each process.
    by_file: HashMap<Option<UvmFile>, usize>,
    by_process: HashMap<Pid, usize>,
    pub(super) reserved: usize,
    /// Of these, those on the host.
    pub(super) reserved_on_host: usize,
    /// Threads that advise the driver about memory that is not managed, for all that is known.
    pub(super) advisers: HashSet<i32>,
    /// Number of the latest comparison with what is mapped.
    pub(super) epoch: u64,
    /// Number of the last comparison that released something.
    pub(super) released_in: u64,
    /// Ranges whose process is gone but whose file keeps them.
    pub(super) zombies: HashMap<Option<UvmFile>, Zombies>,
}

/// Ranges of a file that have outlived their processes.
#[derive(Debug, Default)]
pub(super) struct Zombies {
    /// Bytes that are charged.
    pub(super) charges: HashMap<Pid, u128>,
    /// Bytes of page tables of those on cards, at the worst.
    tables: u128,
    /// There are some on the host.
    pub(super) on_host: bool,
}

impl Managed {
    /// Number of ranges that exist or may come to exist.
    pub(in super::super) fn len(&self) -> usize {
        self.ranges.len().max(self.pending_spans) + self.overtaken.len() + self.reserved
    }

    /// Bytes of page tables that all of it may need on each card, beyond those that are charged.
    pub(super) fn page_tables(&self) -> u128 {
        let on_cards = self.ranges.iter().filter(|(_, _, range)| range.place == Place::Card);
        let overtaken: u128 = self.overtaken.iter().map(|(_, span, _)| cost(saturated(span.length()).0)).sum();
        cost_of(on_cards.map(|(mm, span, _)| (mm, span)))
            + overtaken
            + self.zombies.values().map(|zombies| zombies.tables).sum::<u128>()
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

    /// The ranges of `mm` that overlap `span`.
    pub(super) fn overlapping(&self, mm: Mm, span: Span) -> impl Iterator<Item = (Span, Range)> {
        self.ranges.overlapping(mm, span)
    }

    /// Returns whether another thread's `mmap` may come to stand at part of `span`, and it matters
    /// which.
    pub(super) fn is_contended(&self, mm: Mm, span: Span, thread: i32, place: Place) -> bool {
        let is_rival = |range: &Range| {
            let is_pending = matches!(range.state, RangeState::Pending { thread: of, .. } if of != thread);
            is_pending && (range.place != Place::Card || place != Place::Card)
        };
        let overtaken = self.overtaken.iter().filter(|(of, at, _)| *of == mm && at.common(span).is_some());
        let mut all =
            self.ranges.overlapping(mm, span).map(|(_, range)| range).chain(overtaken.map(|(.., range)| *range));
        all.any(|range| is_rival(&range))
    }

    /// Changes what is known of a range; the file that it is of, too.
    pub(super) fn change(&mut self, mm: Mm, span: Span, change: impl FnOnce(&mut Range)) {
        let Some(range) = self.ranges.value_mut(mm, span.first) else { return };
        let before = *range;
        change(range);
        let after = *range;
        self.add_charge(before.process, -signed(before.charge(span)));
        self.add_charge(after.process, signed(after.charge(span)));
        self.count(&before, -1);
        self.count(&after, 1);
    }

    /// Adds a range; what it overlaps must have been cut out.
    pub(super) fn insert(&mut self, mm: Mm, span: Span, range: Range) {
        self.ranges.insert(mm, span, range);
        self.count(&range, 1);
        self.add_charge(range.process, signed(range.charge(span)));
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
            self.add_charge(range.process, -signed(range.charge(whole)));
            let mut stray = range.place.stray();
            for left in gaps(std::iter::once(whole), &[span]) {
                let place = range.place.of_part(left.length(), &mut stray);
                let part = Range { is_cut: true, place, ..range };
                if let Some(left) = self.ranges.value_mut(mm, left.first) {
                    *left = part;
                }
                self.add_charge(range.process, signed(part.charge(left)));
            }
        }
        cuts
    }

    fn add_charge(&mut self, process: Pid, change: i128) {
        *self.changes.entry(process).or_default() += change;
    }

    /// Returns the changes to be added to the cards.
    pub(super) fn take_changes(&mut self) -> HashMap<Pid, i128> {
        std::mem::take(&mut self.changes)
    }

    fn count(&mut self, range: &Range, more: isize) {
        count(&mut self.by_file, range.file, more);
        count(&mut self.by_process, range.process, more);
    }

    /// Keeps the charge of a part that another thread's `mmap` has replaced, as this range's thread
    /// may yet map it.
    pub(super) fn supersede(&mut self, mm: Mm, span: Span, range: Range) {
        let range = Range { is_cut: true, ..range };
        self.add_charge(range.process, signed(range.charge(span)));
        self.overtaken.push((mm, span, range));
    }

    /// Restores overtaken ranges where they are seen to be mapped and no other range is.
    pub(super) fn restore(&mut self, mm: Mm, seen: &[Span]) {
        let (of_space, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.overtaken).into_iter().partition(|(of, ..)| *of == mm);
        self.overtaken = others;
        for (mm, span, range) in of_space {
            self.add_charge(range.process, -signed(range.charge(span)));
            let taken: Vec<Span> = self.ranges.overlapping(mm, span).map(|(other, _)| other).collect();
            let free = gaps(std::iter::once(span), &taken);
            let there: Vec<Span> =
                free.iter().flat_map(|free| seen.iter().filter_map(|seen| free.common(*seen))).collect();
            for left in gaps(std::iter::once(span), &there) {
                self.supersede(mm, left, range);
            }
            for span in there {
                self.insert(mm, span, range);
            }
        }
    }

    /// Adds a mapping that is to be looked at once its thread is back.
    pub(super) fn add_possible(&mut self, mm: Mm, span: Span, (process, thread): (Pid, i32)) {
        let state = RangeState::Pending { thread, epoch: self.epoch };
        self.possible.push((mm, span, Range { process, file: None, is_cut: false, place: Place::Card, state }));
        self.pending.entry(thread).or_default();
    }

    /// Settles the ranges of a thread whose calls have returned.
    pub(super) fn settle(&mut self, thread: i32) {
        self.advisers.remove(&thread);
        let Some(spans) = self.pending.remove(&thread) else { return };
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
        for (mm, span, range) in back {
            self.add_charge(range.process, -signed(range.charge(span)));
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
            // It may be there, and nothing else is: the next comparison shows it.
            for span in gaps(std::iter::once(span), &others) {
                self.insert(mm, span, Range { state: RangeState::Settled(self.epoch), ..range });
            }
        }
    }

    pub(super) fn pending_threads(&self) -> Vec<i32> {
        self.pending.keys().chain(&self.advisers).copied().collect()
    }

    /// Returns whether the thread's calls are not known to have returned.
    pub(super) fn is_pending(&self, thread: i32) -> bool {
        self.pending.contains_key(&thread)
    }

    /// Keeps the charge of a removed range, whose process is gone, under its file.
    pub(super) fn add_zombie(&mut self, span: Span, range: Range) {
        let place = range.place.of_zombie();
        let charge = Range { place, ..range }.charge(span);
        self.add_charge(range.process, signed(charge));
        let zombies = self.zombies.entry(range.file).or_default();
        *zombies.charges.entry(range.process).or_default() += charge;
        match place {
            Place::Card => zombies.tables += cost(saturated(span.length()).0),
            Place::Host { .. } => zombies.on_host = true,
        }
    }
}

fn signed(bytes: u128) -> i128 {
    i128::try_from(bytes).unwrap_or(i128::MAX)
}

fn count<K: Eq + Hash + Copy>(counts: &mut HashMap<K, usize>, key: K, more: isize) {
    let count = counts.entry(key).or_default();
    debug_assert!(count.checked_add_signed(more).is_some(), "more ranges go than there are");
    *count = count.saturating_add_signed(more);
    if *count == 0 {
        counts.remove(&key);
    }
}
