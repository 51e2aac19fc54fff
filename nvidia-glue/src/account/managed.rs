//! Managed memory: ranges of a process's address space that may come to live on any card of the grant.
//!
//! A range is made by `mmap` of a UVM file, which the kernel executes in the caller's own context: nobody says whether it has happened.
//! So a range counts from before its `mmap`, and is only believed to be gone when the process's mappings, read after its thread
//! has come back from the `mmap`, do not show it. Each range is charged on every card in full. Within one address space the charge is
//! that of the union of all ranges: a mapping that replaces another one at its address needs no room of its own.

use std::collections::{BTreeSet, HashMap};

use runtime_config::units::Bytes;

use super::{
    Accounts, Counted, Mm, Refusal, UvmFile,
    intervals::{Intervals, Span},
    reserve::Armed,
};
use crate::mediate::Pid;

/// A mapping of a UVM file as `/proc/PID/maps` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// Room on every card for a range; to be given to [`Accounts::commit_managed`] or [`Accounts::cancel_managed`].
#[must_use = "what is reserved stays charged until it is committed or cancelled"]
#[derive(Debug)]
pub struct ManagedReservation {
    process: Pid,
    length: u64,
    armed: Armed,
}

/// One look at what processes have mapped. Begin it before the first `/proc/PID/maps` is opened.
#[derive(Debug)]
pub struct Sync {
    /// Only what was settled in an earlier epoch can be missed.
    epoch: u64,
    looked_at: BTreeSet<Mm>,
}

/// How the account of an address space differed from what it has mapped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedDrift {
    /// Bytes that are charged no more, of each card.
    pub released: Bytes,
    /// What was mapped without being charged; it is from now on, even over the limit. Not a defect of the program only where it
    /// has asked for its managed memory to be passed on by fork (`MADV_DOFORK`): the driver disables such a copy.
    pub found: Vec<Mapping>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    process: Pid,
    file: Option<UvmFile>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The thread that maps it has not been seen since.
    Pending(i32),
    /// Its `mmap` had returned in this epoch.
    Settled(u64),
}

/// All managed memory.
#[derive(Debug, Default)]
pub(super) struct Managed {
    ranges: Intervals<Mm, Range>,
    /// Address spaces in which a thread has ranges that are not settled, by thread.
    pending: HashMap<i32, BTreeSet<Mm>>,
    reserved: usize,
    epoch: u64,
    /// Ranges whose process is gone but whose file keeps them.
    zombies: HashMap<UvmFile, Vec<(Pid, u64)>>,
}

impl Managed {
    pub(super) fn len(&self) -> usize {
        self.ranges.len() + self.reserved
    }

    pub(super) fn mms_of(&self, process: Pid) -> BTreeSet<Mm> {
        self.ranges.iter().filter(|(_, _, range)| range.process == process).map(|(mm, ..)| mm).collect()
    }
}

impl Accounts {
    /// Reserves `length` bytes (whole pages) of managed memory on every card, for a `mmap` that `process` is about to execute.
    ///
    /// # Errors
    /// When it does not fit on one of the cards, or there are too many ranges.
    pub fn reserve_managed(&mut self, process: Pid, length: Bytes) -> Result<ManagedReservation, Refusal> {
        if self.managed.len() >= self.limits.managed_ranges as usize {
            return Err(Refusal::TooMany { counted: Counted::ManagedRanges, limit: self.limits.managed_ranges });
        }
        for card in self.cards.all() {
            self.cards.fits(card, length)?;
        }
        self.charge_everywhere(process, length.0);
        self.managed.reserved += 1;
        Ok(ManagedReservation { process, length: length.0, armed: Armed::new(&self.abandoned) })
    }

    /// The `mmap` will not be executed.
    pub fn cancel_managed(&mut self, reservation: ManagedReservation) {
        self.discharge_everywhere(reservation.process, reservation.length);
        self.managed.reserved = self.managed.reserved.saturating_sub(1);
        reservation.armed.disarm();
    }

    /// The `mmap` is about to be executed by `thread`, at `start` of `mm` (the driver demands that address and offset are equal, so
    /// it is known before). It stays charged until a [`Sync`] begun after [`Accounts::thread_called`] for that thread misses it.
    pub fn commit_managed(&mut self, reservation: ManagedReservation, mm: Mm, file: UvmFile, thread: i32, start: u64) {
        let span = Span::new(start, reservation.length);
        if let Some(span) = span {
            for cut in self.managed.ranges.cut(mm, span) {
                self.discharge_everywhere(cut.value.process, cut.span.length());
            }
            let range = Range { process: reservation.process, file: Some(file), state: State::Pending(thread) };
            self.managed.ranges.insert(mm, span, range);
            self.managed.pending.entry(thread).or_default().insert(mm);
            self.managed.reserved = self.managed.reserved.saturating_sub(1);
            reservation.armed.disarm();
        } else {
            // Empty or wrapping: the kernel refuses it.
            self.cancel_managed(reservation);
        }
    }

    /// `thread` has made another call, or is gone: every `mmap` of its has returned. Cheap when there was none.
    pub fn thread_called(&mut self, thread: i32) {
        let Some(mms) = self.managed.pending.remove(&thread) else { return };
        let epoch = self.managed.epoch;
        for mm in mms {
            let pending = self.managed.ranges.of(mm).filter(|(_, range)| range.state == State::Pending(thread));
            let firsts: Vec<_> = pending.map(|(span, _)| span.first).collect();
            for first in firsts {
                if let Some(range) = self.managed.ranges.value_mut(mm, first) {
                    range.state = State::Settled(epoch);
                }
            }
        }
    }

    /// Threads whose `mmap` is not known to have returned; call [`Accounts::thread_called`] for those that are gone.
    pub fn pending_threads(&self) -> Vec<i32> {
        self.managed.pending.keys().copied().collect()
    }

    /// Begins a look at what processes have mapped.
    pub fn begin_sync(&mut self) -> Sync {
        self.managed.epoch = self.managed.epoch.saturating_add(1);
        Sync { epoch: self.managed.epoch, looked_at: BTreeSet::new() }
    }

    /// What `mm`, the address space of `process`, has mapped of UVM files, read after `sync` began. What is charged but not mapped is
    /// released if its `mmap` had returned before; what is mapped but not charged is charged, and reported.
    pub fn set_managed(&mut self, sync: &mut Sync, mm: Mm, process: Pid, seen: &[Mapping]) -> ManagedDrift {
        sync.looked_at.insert(mm);
        let mut drift = ManagedDrift::default();
        let mut seen: Vec<_> = seen.iter().filter_map(|mapping| Span::new(mapping.start, mapping.length)).collect();
        seen.sort_unstable_by_key(|span| span.first);
        let missed = gaps(self.managed.ranges.of(mm).filter(|(_, range)| settled_before(range, sync.epoch)), &seen);
        let mut released = 0_u64;
        for span in missed {
            for cut in self.managed.ranges.cut(mm, span) {
                self.discharge_everywhere(cut.value.process, cut.span.length());
                released = released.saturating_add(cut.span.length());
            }
        }
        drift.released = Bytes(released);
        let charged: Vec<_> = self.managed.ranges.of(mm).map(|(span, _)| span).collect();
        for span in gaps(seen.iter().map(|&span| (span, ())), &charged) {
            self.charge_everywhere(process, span.length());
            let range = Range { process, file: None, state: State::Settled(sync.epoch) };
            for cut in self.managed.ranges.cut(mm, span) {
                self.discharge_everywhere(cut.value.process, cut.span.length());
            }
            self.managed.ranges.insert(mm, span, range);
            drift.found.push(Mapping { start: span.first, length: span.length() });
        }
        drift
    }

    /// Every address space that exists was looked at since `sync` began: those that were not are gone, and what they had mapped with
    /// them, except where a file that several processes share keeps it. What that released, of each card.
    pub fn finish_sync(&mut self, sync: Sync) -> Bytes {
        let Sync { epoch, looked_at } = sync;
        let gone: Vec<_> = self
            .managed
            .ranges
            .iter()
            .filter(|(mm, _, range)| !looked_at.contains(mm) && settled_before(range, epoch))
            .map(|(mm, span, _)| (mm, span))
            .collect();
        let mut released = 0_u64;
        for (mm, span) in gone {
            for cut in self.managed.ranges.cut(mm, span) {
                released = released.saturating_add(self.bury(cut.value, cut.span.length()));
            }
        }
        Bytes(released)
    }

    /// The process of a range is gone.
    fn bury(&mut self, range: Range, length: u64) -> u64 {
        let keeps = |file: &UvmFile| self.uvm.files.get(file).is_some_and(|file| file.shared);
        match range.file.filter(keeps) {
            Some(file) => {
                self.managed.zombies.entry(file).or_default().push((range.process, length));
                0
            }
            None => {
                self.discharge_everywhere(range.process, length);
                length
            }
        }
    }

    /// Managed memory of `file` that has outlived its process was freed (`UVM_CLEAN_UP_ZOMBIE_RESOURCES`). What that released, of
    /// each card.
    pub fn drop_zombies(&mut self, file: UvmFile) -> Bytes {
        let mut released = 0_u64;
        for (process, length) in self.managed.zombies.remove(&file).unwrap_or_default() {
            self.discharge_everywhere(process, length);
            released = released.saturating_add(length);
        }
        Bytes(released)
    }

    fn charge_everywhere(&mut self, process: Pid, length: u64) {
        for card in self.cards.all() {
            self.cards.add(process, card, length);
        }
    }

    fn discharge_everywhere(&mut self, process: Pid, length: u64) {
        for card in self.cards.all() {
            self.cards.subtract(process, card, length);
        }
    }
}

const fn settled_before(range: &Range, epoch: u64) -> bool {
    matches!(range.state, State::Settled(settled) if settled < epoch)
}

/// What of `wholes` (sorted) is covered by none of `parts` (sorted).
fn gaps<V>(wholes: impl Iterator<Item = (Span, V)>, parts: &[Span]) -> Vec<Span> {
    let mut gaps = Vec::new();
    let mut parts = parts.iter().copied().peekable();
    for (whole, _) in wholes {
        let mut first = whole.first;
        let mut covered = false;
        while let Some(part) = parts.peek().copied() {
            if part.last < first {
                parts.next();
                continue;
            }
            if part.first > whole.last {
                break;
            }
            if part.first > first {
                gaps.push(Span { first, last: part.first - 1 });
            }
            if part.last >= whole.last {
                covered = true;
                break;
            }
            first = part.last + 1;
        }
        if !covered {
            gaps.push(Span { first, last: whole.last });
        }
    }
    gaps
}
