//! Ranges whose memory lies on the host, as a quota has no room for them.
//!
//! Their preferred location is the host, which only calls can change: the card's faults do not
//! bring them onto the card then (docs/driver-facts.md). So they are charged for the page tables
//! that they may come to have, at the worst. What a call brings onto the card is charged before,
//! and from then on like any other range: UVM gives nothing back until it is unmapped.
//!
//! A range is there before the driver can be told where to keep it. What the card may have got of
//! it meanwhile is charged, too.

use base::{Pid, units::Bytes};

use super::{
    super::{Accounts, page_tables::cost},
    ManagedReservation, Mapping, blocks,
    ranges::Range,
    sync::{gaps, spans},
};
use crate::{Mm, Refusal, UvmFile, cards::saturated, intervals::Span, types::Counted};

/// Place in which a range may come to lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// On any card of the grant.
    Card,
    /// On the host.
    Host {
        /// The driver knows.
        is_told: bool,
        /// Bytes that may be on a card all the same.
        stray: u64,
    },
}

/// Another thread maps managed memory at the same addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another thread maps managed memory at these addresses")]
pub struct Contended;

impl Place {
    const UNTOLD: Self = Self::Host { is_told: false, stray: 0 };

    /// Bytes of each card that are charged for a range.
    pub(super) fn charge(self, span: Span, is_cut: bool) -> u128 {
        match self {
            Self::Card => span.length() + blocks::padding(span, is_cut),
            Self::Host { stray, .. } => cost(saturated(span.length()).0) + span.length().min(stray.into()),
        }
    }

    /// The same for a `mmap`; of one that the kernel refuses, something.
    pub(super) fn charge_of(self, start: u64, length: Bytes) -> u128 {
        Span::new(start, length.0).map_or(length.0.into(), |span| self.charge(span, false))
    }

    /// The place when its process is gone: nobody can tell the driver any more.
    pub(super) const fn of_zombie(self) -> Self {
        match self {
            Self::Card | Self::Host { is_told: false, .. } => Self::Card,
            Self::Host { is_told: true, .. } => self,
        }
    }

    /// Bytes that may be on a card all the same.
    pub(super) const fn stray(self) -> u64 {
        match self {
            Self::Card => 0,
            Self::Host { stray, .. } => stray,
        }
    }

    /// The same place, with so many of them more.
    pub(super) const fn with_stray(self, more: u64) -> Self {
        match self {
            Self::Card => self,
            Self::Host { is_told, stray } => Self::Host { is_told, stray: stray.saturating_add(more) },
        }
    }

    /// The place of a part that is left, of so many bytes, which takes over what it can of the
    /// whole's.
    pub(super) fn of_part(self, bytes: u128, stray: &mut u64) -> Self {
        match self {
            Self::Card => self,
            Self::Host { is_told, .. } => {
                let own = saturated(bytes).0.min(*stray);
                *stray -= own;
                Self::Host { is_told, stray: own }
            }
        }
    }

    const fn is_untold(self) -> bool {
        matches!(self, Self::Host { is_told: false, .. })
    }
}

impl Range {
    fn may_be_of(&self, file: UvmFile) -> bool {
        self.file.is_none_or(|of| of == file) || self.place.is_untold()
    }
}

impl Accounts {
    /// Reserves a `mmap` of managed memory ([`Accounts::reserve_managed`]) that is to lie on the
    /// host.
    ///
    /// # Errors
    /// When not even its page tables fit, there are too many ranges, or a thread may just be about
    /// to advise the driver otherwise ([`Accounts::may_advise`]).
    pub fn reserve_managed_on_host(
        &mut self,
        process: Pid,
        start: u64,
        length: Bytes,
    ) -> Result<ManagedReservation, Refusal> {
        if !self.managed.advisers.is_empty() {
            return Err(Refusal::TooMany { counted: Counted::Advisers, limit: 0 });
        }
        self.ranges_fit(1)?;
        let charge = Place::UNTOLD.charge_of(start, length);
        self.managed_fits(saturated(charge))?;
        Ok(self.reserve_in(Place::UNTOLD, process, (start, length), charge))
    }

    /// Records that `thread` is about to advise the driver about memory that is not managed.
    /// `false`: it must not, as what it says by the time at which the kernel looks may bring onto a
    /// card what is to stay on the host.
    pub fn may_advise(&mut self, thread: i32) -> bool {
        let is_on_host = |(_, _, range): (Mm, Span, Range)| range.place != Place::Card;
        let may = self.managed.reserved_on_host == 0
            && !self.managed.iter().any(is_on_host)
            && !self.managed.zombies.values().any(|zombies| zombies.on_host);
        if may {
            self.managed.advisers.insert(thread);
        }
        may
    }

    /// Returns whether part of these addresses of `file` is managed memory.
    pub fn knows_managed(&self, file: UvmFile, start: u64, length: u64) -> bool {
        self.managed_of(file, start, length).next().is_some()
    }

    fn managed_of(&self, file: UvmFile, start: u64, length: u64) -> impl Iterator<Item = (Mm, Span, Range)> {
        let span = Span::new(start, length);
        self.managed.iter().filter_map(move |(mm, whole, range)| {
            let common = whole.common(span?).filter(|_| range.may_be_of(file))?;
            Some((mm, common, range))
        })
    }

    /// Parts of these addresses of `file` that are to stay on the host, in order.
    pub fn managed_on_host(&self, file: UvmFile, start: u64, length: u64) -> Vec<Mapping> {
        let has_zombies =
            [Some(file), None].iter().any(|of| self.managed.zombies.get(of).is_some_and(|left| left.on_host));
        if has_zombies {
            return vec![Mapping { start, length }];
        }
        let on_host = self.managed_of(file, start, length).filter(|(_, _, range)| range.place != Place::Card);
        let mut parts: Vec<Mapping> = on_host.map(|(_, span, _)| mapping(span)).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// These addresses of `file` without the parts that are to stay on the host; as they came,
    /// where there are none: the driver judges them.
    pub fn managed_beside_host(&self, file: UvmFile, start: u64, length: u64) -> Vec<Mapping> {
        let on_host = self.managed_on_host(file, start, length);
        match Span::new(start, length).filter(|_| !on_host.is_empty()) {
            Some(whole) => gaps(std::iter::once(whole), &spans(&on_host)).into_iter().map(mapping).collect(),
            None => vec![Mapping { start, length }],
        }
    }

    /// Bytes of managed memory that every card has room for.
    pub fn room_for_managed(&self) -> Bytes {
        let room = |usage: crate::CardUsage| {
            let of_frames = usage.frames_limit.0.saturating_sub(usage.frames.0);
            usage.limit.0.saturating_sub(usage.used.0).min(of_frames)
        };
        Bytes(self.cards().map(|(_, usage)| room(usage)).min().unwrap_or(0))
    }

    /// Charges what of these addresses of `file` is to stay on the host, as it is about to come
    /// onto a card. Returns the parts.
    ///
    /// # Errors
    /// When it does not fit on one of the cards, or there are too many ranges.
    pub fn move_managed_to_cards(&mut self, file: UvmFile, start: u64, length: u64) -> Result<Vec<Mapping>, Refusal> {
        let on_host = self.managed_of(file, start, length).filter(|(_, _, range)| range.place != Place::Card);
        let parts: Vec<(Mm, Span)> = on_host.map(|(mm, span, _)| (mm, span)).collect();
        let charge: u128 = parts.iter().map(|(_, span)| Place::Card.charge(*span, true)).sum();
        self.managed_fits(saturated(charge))?;
        let tables: u128 = parts.iter().map(|(_, span)| cost(saturated(span.length()).0)).sum();
        let tables = self.managed.page_tables().saturating_add(tables);
        self.cards.all().try_for_each(|card| self.page_tables_fit(card, tables))?;
        // Two more, where it is cut out of the middle.
        self.ranges_fit(2 * parts.len())?;
        for (mm, span) in &parts {
            for cut in self.managed.cut(*mm, *span) {
                self.managed.insert(*mm, cut.span, Range { place: Place::Card, is_cut: true, ..cut.value });
            }
        }
        self.update_charges();
        Ok(parts.into_iter().map(|(_, span)| mapping(span)).collect())
    }

    /// Ranges of which the driver does not know yet that they are to stay on the host.
    pub fn untold_managed(&self) -> Vec<(Mm, Mapping)> {
        let untold = self.managed.iter().filter(|(_, _, range)| range.place.is_untold());
        untold.map(|(mm, span, _)| (mm, mapping(span))).collect()
    }

    /// Returns whether the thread's `mmap` is not known to have returned.
    pub fn is_mapping_managed(&self, thread: i32) -> bool {
        self.managed.is_pending(thread)
    }

    /// The driver was told where to keep a part of `mm`, which is of `file`; `stray` bytes may have
    /// come onto a card before.
    pub fn managed_was_told(&mut self, mm: Mm, file: UvmFile, part: Mapping, stray: Bytes) {
        self.place_untold(mm, part, |range| {
            range.file = Some(file);
            range.place = Place::Host { is_told: true, stray: range.place.stray().saturating_add(stray.0) };
        });
    }

    /// It is mapped, and the driver cannot be told: charged from now on, over the limit, too.
    /// Returns the bytes.
    pub fn managed_cannot_be_told(&mut self, mm: Mm, part: Mapping) -> Bytes {
        Bytes(self.place_untold(mm, part, |range| range.place = Place::Card))
    }

    fn place_untold(&mut self, mm: Mm, part: Mapping, place: impl Fn(&mut Range)) -> u64 {
        let Some(span) = Span::new(part.start, part.length) else { return 0 };
        let overlapping = self.managed.overlapping(mm, span).filter(|(_, range)| range.place.is_untold());
        let untold: Vec<Span> = overlapping.map(|(whole, _)| whole).collect();
        for whole in &untold {
            self.managed.change(mm, *whole, &place);
        }
        self.update_charges();
        untold.iter().fold(0, |sum: u64, span| sum.saturating_add(mapping(*span).length))
    }
}

fn mapping(span: Span) -> Mapping {
    Mapping { start: span.first, length: saturated(span.length()).0 }
}
