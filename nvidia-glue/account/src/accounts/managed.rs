//! Managed memory: ranges of a process's address space that may come to live on any card of the
//! grant.
//!
//! A range is made by `mmap` of a UVM file, which the kernel executes in the caller's own context:
//! nobody says whether it has happened. So a range counts from before its `mmap`, and is only
//! believed to be gone when the process's mappings, read after its thread has come back from the
//! `mmap`, do not show it. Each range is charged on every card, in full where it may come to lie
//! there, else for its page tables ([`host`]). Within one address space the charge is that of the
//! union of all ranges: a mapping that replaces another one at its address needs no room of its
//! own. Crumbs are charged more than their bytes ([`blocks`]).

mod blocks;
mod host;
mod ranges;
mod sync;

use base::{Pid, units::Bytes};
pub use host::Contended;
use host::Place;
pub(super) use ranges::Managed;
use ranges::{Range, RangeState};
pub use sync::{ManagedDrift, ManagedSync, Mapping};

use super::{Accounts, page_tables::cost, reserve::Armed};
use crate::{Counted, Mm, Refusal, UvmFile, cards::saturated, intervals::Span};

/// Mappings at once that may be managed memory: each call of their threads goes through them.
const MOST_POSSIBLE: u32 = 4096;

/// Room on every card for a range; to be given to [`Accounts::commit_managed`] or
/// [`Accounts::cancel_managed`].
#[must_use = "what is reserved stays charged until it is committed or cancelled"]
#[derive(Debug)]
pub struct ManagedReservation {
    process: Pid,
    start: u64,
    length: u64,
    place: Place,
    charge: u128,
    armed: Armed,
}

impl ManagedReservation {
    /// The range, if it is to lie on the host.
    pub fn on_host(&self) -> Option<Mapping> {
        (self.place != Place::Card).then_some(Mapping { start: self.start, length: self.length })
    }
}

impl Accounts {
    /// Reserves `length` bytes (whole pages) of managed memory on every card, for a `mmap` that
    /// `process` is about to execute at `start` (the driver demands that address and offset are
    /// equal, so it is known before).
    ///
    /// # Errors
    /// When it does not fit on one of the cards, or there are too many ranges, or they lie too far
    /// apart (page tables).
    pub fn reserve_managed(&mut self, process: Pid, start: u64, length: Bytes) -> Result<ManagedReservation, Refusal> {
        self.ranges_fit(1)?;
        let charge = Place::Card.charge_of(start, length);
        self.managed_fits(saturated(charge))?;
        let tables = self.managed.page_tables().saturating_add(cost(length.0));
        self.cards.all().try_for_each(|card| self.page_tables_fit(card, tables))?;
        Ok(self.reserve_in(Place::Card, process, (start, length), charge))
    }

    fn ranges_fit(&self, more: usize) -> Result<(), Refusal> {
        let limit = self.limits.managed_ranges;
        if self.managed.len() + more <= limit as usize {
            return Ok(());
        }
        Err(Refusal::TooMany { counted: Counted::ManagedRanges, limit })
    }

    fn reserve_in(
        &mut self,
        place: Place,
        process: Pid,
        (start, length): (u64, Bytes),
        charge: u128,
    ) -> ManagedReservation {
        self.charge_everywhere(process, charge);
        self.managed.reserved += 1;
        self.managed.reserved_on_host += usize::from(place != Place::Card);
        ManagedReservation { process, start, length: length.0, place, charge, armed: Armed::new(&self.abandoned) }
    }

    /// Returns whether `length` bytes of managed memory would fit now.
    ///
    /// # Errors
    /// When they do not on one of the cards.
    pub fn managed_fits(&self, length: Bytes) -> Result<(), Refusal> {
        self.cards.all().try_for_each(|card| self.cards.fits(card, length))
    }

    /// Cancels the reservation of a `mmap` that will not be executed.
    pub fn cancel_managed(&mut self, reservation: ManagedReservation) {
        self.discharge_everywhere(reservation.process, reservation.charge);
        self.managed.reserved = self.managed.reserved.saturating_sub(1);
        let on_host = usize::from(reservation.place != Place::Card);
        self.managed.reserved_on_host = self.managed.reserved_on_host.saturating_sub(on_host);
        reservation.armed.disarm();
    }

    /// Charges a `mmap` that `thread` is about to execute in `mm`. It stays charged until a
    /// [`ManagedSync`] begun after [`Accounts::thread_called`] for that thread misses it.
    ///
    /// # Errors
    /// When another thread maps managed memory there, and either is to lie on the host: which of
    /// them comes to stand there, nobody can tell. The reservation is cancelled.
    pub fn commit_managed(
        &mut self,
        reservation: ManagedReservation,
        mm: Mm,
        file: UvmFile,
        thread: i32,
    ) -> Result<(), Contended> {
        let ManagedReservation { process, start, length, place, .. } = reservation;
        self.cancel_managed(reservation);
        // What is empty or wraps the kernel refuses.
        let Some(span) = Span::new(start, length) else { return Ok(()) };
        if self.managed.is_contended(mm, span, thread, place) {
            return Err(Contended);
        }
        let state = RangeState::Pending { thread, epoch: self.managed.epoch };
        let mut range = Range { process, file: Some(file), is_cut: false, place, state };
        let mut on_cards = Vec::new();
        for cut in self.managed.cut(mm, span) {
            match cut.value.state {
                RangeState::Pending { thread: other, .. } if other != thread => {
                    self.managed.supersede(mm, cut.span, cut.value);
                }
                RangeState::Pending { .. } | RangeState::Settled(_) => {}
            }
            if cut.value.file != Some(file) {
                // Should the `mmap` fail, what was there stays, and keeps its own file.
                range.file = None;
            }
            // And its place, and what of it may be on a card.
            range.place = range.place.with_stray(cut.value.place.stray());
            if cut.value.place == Place::Card && place != Place::Card {
                on_cards.push(cut.span);
            }
        }
        for span in sync::gaps(std::iter::once(span), &on_cards) {
            self.managed.insert(mm, span, range);
        }
        for span in on_cards {
            self.managed.insert(mm, span, Range { place: Place::Card, is_cut: true, ..range });
        }
        self.update_charges();
        Ok(())
    }

    /// Records a `mmap` that `thread` is about to execute in `mm`, of a file that is not UVM's
    /// unless another thread exchanges it. Until a [`ManagedSync`] has seen what came of it, it can
    /// be charged with [`Accounts::charge_possible`].
    ///
    /// # Errors
    /// When there are too many: a comparison takes those away that have come to nothing.
    pub fn may_map_managed(
        &mut self,
        mm: Mm,
        (process, thread): (Pid, i32),
        start: u64,
        length: u64,
    ) -> Result<(), Refusal> {
        if self.managed.possible.len() >= MOST_POSSIBLE as usize {
            return Err(Refusal::TooMany { counted: Counted::ManagedRanges, limit: MOST_POSSIBLE });
        }
        if let Some(span) = Span::new(start, length) {
            self.managed.add_possible(mm, span, (process, thread));
        }
        Ok(())
    }

    /// Returns whether something may be mapped that [`Accounts::charge_possible`] would charge.
    #[must_use]
    pub fn may_be_mapped(&self) -> bool {
        !self.managed.possible.is_empty()
    }

    /// Charges what may be mapped in `mm`, which cannot be looked at, over the limit, too. Returns
    /// the bytes that were not charged before.
    pub fn charge_possible(&mut self, mm: Mm) -> Bytes {
        let possible = std::mem::take(&mut self.managed.possible);
        let (of_space, others): (Vec<_>, Vec<_>) = possible.into_iter().partition(|(of, ..)| *of == mm);
        self.managed.possible = others;
        let mut added = 0_u128;
        for (_, span, range) in of_space {
            let charged: Vec<_> = self.managed.of(mm).map(|(span, _)| span).collect();
            for span in sync::gaps(std::iter::once(span), &charged) {
                self.managed.insert(mm, span, range);
                added += span.length();
            }
        }
        self.update_charges();
        saturated(added)
    }

    /// Records that `thread` has made another call, or is gone: each of its `mmap` calls has
    /// returned. Cheap when there was none.
    pub fn thread_called(&mut self, thread: i32) {
        self.managed.settle(thread);
        self.update_charges();
    }

    /// Threads whose `mmap` is not known to have returned. Before a comparison with what processes
    /// have mapped, call [`Accounts::thread_called`] for those that are gone.
    pub fn pending_threads(&self) -> Vec<i32> {
        self.managed.pending_threads()
    }

    /// Releases the managed memory of `file` that has outlived its process
    /// (`UVM_CLEAN_UP_ZOMBIE_RESOURCES`). Returns the bytes that this released, of each card.
    pub fn drop_zombies(&mut self, file: UvmFile) -> Bytes {
        let mut released = self.discharge_all(Some(file));
        // Those of unknown files may be of any file that is shared.
        if !self.uvm.any_shared() {
            released += self.discharge_all(None);
        }
        saturated(released)
    }

    fn discharge_all(&mut self, file: Option<UvmFile>) -> u128 {
        let mut released = 0_u128;
        for (process, length) in self.managed.zombies.remove(&file).unwrap_or_default().charges {
            self.discharge_everywhere(process, length);
            released += length;
        }
        released
    }

    /// Releases a range whose process is gone, except where a file that several processes share
    /// keeps it. Returns the bytes that this released.
    fn end_range(&mut self, range: Range, span: Span) -> u128 {
        if range.file.map_or_else(|| self.uvm.any_shared(), |file| self.uvm.is_shared(file)) {
            self.managed.add_zombie(span, range);
            return 0;
        }
        span.length()
    }

    /// Charges what has changed of the ranges, over the limit, too: a part of a range that was
    /// unmapped may have freed nothing.
    fn update_charges(&mut self) {
        for (process, change) in self.managed.take_changes() {
            match u128::try_from(change) {
                Ok(more) => self.charge_everywhere(process, more),
                Err(_) => self.discharge_everywhere(process, change.unsigned_abs()),
            }
        }
    }

    fn charge_everywhere(&mut self, process: Pid, length: u128) {
        for card in self.cards.all() {
            self.cards.add(process, card, length);
        }
    }

    fn discharge_everywhere(&mut self, process: Pid, length: u128) {
        for card in self.cards.all() {
            self.cards.subtract(process, card, length);
        }
    }
}
