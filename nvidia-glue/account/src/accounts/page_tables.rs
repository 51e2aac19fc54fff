//! Page tables of a card's address spaces.
//!
//! The driver makes them of the card's memory, and no call says how large they are. An honest
//! program has next to none: memory in pages of 2 MiB, at addresses close to each other, needs 4
//! KiB of tables for each 512 MiB. So they are not charged, but estimated at the worst, and there
//! may be a hundred-and-twenty-eighth of the limit and 32 MiB of them: mapping all of a grant four
//! times in pages of 4 KiB.
//!
//! The worst: for each 2 MiB in which something is mapped, however little, a table for pages of 4
//! KiB; for each stretch of 512 MiB in which something is mapped, a table of its own on each of the
//! four levels above (kernel-open/nvidia-uvm/uvm_pascal_mmu.c, uvm_hopper_mmu.c).
//!
//! Managed memory has page tables too, on every card; they are bounded apart from those of other
//! mappings, in the same way.
//!
//! Those of the resource manager's address spaces come in granules of 64 KiB, each from wherever
//! there is one (src/nvidia/src/kernel/mem_mgr/pool_alloc.c), and a granule goes back when all
//! sixteen tables in it are gone. So each keeps a frame of the card open, in the worst case, and as
//! many do as there ever were since there were none. (UVM takes whole frames for its own.)

mod stretches;

use std::collections::{BTreeMap, hash_map::Entry};

use abi::Handle;
use base::Bytes;
use foldhash::HashMap;
use stretches::{LOWEST_BITS, STRETCH_BITS, Stretch, stretches};

use super::Accounts;
use crate::{Card, Counted, ObjectName, Refusal, UvmFile, cards::saturated, intervals::Span, tree::Index};

const TABLE: u128 = 4 << 10;
const LEVELS_ABOVE: u128 = 4;

/// Most bytes of page tables of a card with this limit.
fn most(limit: Bytes) -> Bytes {
    Bytes(32 * Bytes::MIB + limit.0 / 128)
}

/// Bytes of page tables for a mapping of `length` bytes alone, wherever it begins.
pub(super) fn cost(length: u64) -> u128 {
    let touched = |bits: u32| u128::from(length >> bits) + 2;
    (touched(LOWEST_BITS) + touched(STRETCH_BITS) * LEVELS_ABOVE) * TABLE
}

/// Bytes of page tables for mappings that do not overlap, sorted by their spaces and addresses.
pub(super) fn cost_of<S: PartialEq + Copy>(spans: impl Iterator<Item = (S, Span)>) -> u128 {
    let mut tables = 0;
    // Of what comes next, the first table of each level that is not counted yet.
    let mut before: Option<(S, u64, u64)> = None;
    for (space, span) in spans {
        let (mut lowest, mut stretch) = (span.first >> LOWEST_BITS, span.first >> STRETCH_BITS);
        if let Some((_, next_lowest, next_stretch)) = before.filter(|(of, ..)| *of == space) {
            (lowest, stretch) = (lowest.max(next_lowest), stretch.max(next_stretch));
        }
        let (next_lowest, next_stretch) = ((span.last >> LOWEST_BITS) + 1, (span.last >> STRETCH_BITS) + 1);
        tables += u128::from(next_lowest.saturating_sub(lowest));
        tables += u128::from(next_stretch.saturating_sub(stretch)) * LEVELS_ABOVE;
        before = Some((space, next_lowest, next_stretch));
    }
    tables * TABLE
}

#[derive(Debug, Default)]
struct OfCard {
    /// Tables of the lowest level.
    lowest: u128,
    /// Stretches in which something is mapped.
    stretches: u128,
    /// Reserved.
    coming: u128,
    /// The most bytes that there were since there were none.
    most: u128,
}

impl OfCard {
    fn estimate(&self) -> u128 {
        (self.lowest + self.stretches * LEVELS_ABOVE) * TABLE + self.coming
    }
}

/// Owner of the addresses at which something is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Uvm(UvmFile),
    /// Virtual memory of the resource manager's: what it is kept by, and its own handle.
    Virtual(Index, Handle),
}

/// A mapping in virtual memory.
#[derive(Debug, Clone, Copy)]
struct Dma {
    device: Handle,
    card: Card,
    last: u64,
}

/// Key of a mapping in virtual memory: what it is kept by, the memory's handle, and where in it the
/// mapping begins.
type DmaKey = (Index, Handle, u64);

/// Page tables of all address spaces.
#[derive(Debug, Default)]
pub(super) struct PageTables {
    cards: HashMap<Card, OfCard>,
    /// Of these, those of the resource manager's address spaces.
    virtuals: HashMap<Card, OfCard>,
    stretches: HashMap<(Space, Card, u64), Stretch>,
    dma: BTreeMap<DmaKey, Dma>,
}

/// Room for the tables of a mapping that is about to be made; to be given to
/// [`Accounts::release_page_tables`] once it is, or is not.
#[must_use = "what is reserved counts until it is released"]
#[derive(Debug)]
pub struct PageTableReservation {
    cards: Vec<Card>,
    cost: u128,
    /// In an address space of the resource manager's.
    is_virtual: bool,
}

impl PageTables {
    /// Counts the tables of a mapping on `card`.
    pub(super) fn mapped(&mut self, space: Space, card: Card, span: Span) {
        let (mut lowest, mut more_stretches) = (0, 0);
        for (at, part) in stretches(span) {
            match self.stretches.entry((space, card, at)) {
                Entry::Vacant(entry) => {
                    more_stretches += 1;
                    lowest += entry.insert(Stretch::with(part)).lowest();
                }
                Entry::Occupied(mut entry) => {
                    let before = entry.get().lowest();
                    entry.get_mut().add(part);
                    lowest += entry.get().lowest() - before;
                }
            }
        }
        for of_card in self.of_space(space, card) {
            of_card.lowest += lowest;
            of_card.stretches += more_stretches;
        }
    }

    /// Counters in which the tables of an address space are counted: the card's and, in virtual
    /// memory, a second one.
    fn of_space(&mut self, space: Space, card: Card) -> impl Iterator<Item = &mut OfCard> {
        let own = matches!(space, Space::Virtual(..)).then(|| self.virtuals.entry(card).or_default());
        [self.cards.entry(card).or_default()].into_iter().chain(own)
    }

    /// Stops counting the tables of a mapping on `card`, or of a part of it.
    pub(super) fn unmapped(&mut self, space: Space, card: Card, span: Span) {
        let (mut lowest, mut fewer_stretches) = (0, 0);
        for (at, part) in stretches(span) {
            let Entry::Occupied(mut entry) = self.stretches.entry((space, card, at)) else { continue };
            let before = entry.get().lowest();
            entry.get_mut().subtract(part);
            let left = entry.get().lowest();
            lowest += before - left;
            if left == 0 {
                entry.remove();
                fewer_stretches += 1;
            }
        }
        for of_card in self.of_space(space, card) {
            of_card.lowest = of_card.lowest.saturating_sub(lowest);
            of_card.stretches = of_card.stretches.saturating_sub(fewer_stretches);
        }
    }

    /// Returns whether the resource manager has no page tables on `card`, and none are reserved.
    pub(super) fn has_no_virtual(&self, card: Card) -> bool {
        self.virtuals.get(&card).is_none_or(|of_card| of_card.estimate() == 0)
    }

    /// Mappings in virtual memory.
    pub(super) fn references(&self) -> usize {
        self.dma.len()
    }

    /// Drops the mappings in an object that is gone.
    pub(super) fn object_gone(&mut self, object: Index) {
        let (first, last) = ((object, Handle(0), 0), (object, Handle(u32::MAX), u64::MAX));
        while let Some((&key, _)) = self.dma.range(first..=last).next() {
            self.end_dma(key);
        }
    }

    fn end_dma(&mut self, key: DmaKey) {
        if let Some(Dma { card, last, .. }) = self.dma.remove(&key) {
            self.unmapped(Space::Virtual(key.0, key.1), card, Span { first: key.2, last });
        }
    }

    fn begin_dma(&mut self, key: DmaKey, dma: Dma) {
        self.end_dma(key);
        self.dma.insert(key, dma);
        self.mapped(Space::Virtual(key.0, key.1), dma.card, Span { first: key.2, last: dma.last });
    }

    /// The mappings of `device` in virtual memory that have part of `span`: where each begins.
    fn dma_within(&self, (index, memory): (Index, Handle), device: Handle, span: Span) -> Vec<(DmaKey, Dma)> {
        let before = self.dma.range((index, memory, 0)..(index, memory, span.first)).next_back();
        let before = before.filter(|(_, dma)| dma.last >= span.first);
        let within = self.dma.range((index, memory, span.first)..=(index, memory, span.last));
        let all = before.into_iter().chain(within).map(|(key, dma)| (*key, *dma));
        all.filter(|(_, dma)| dma.device == device).collect()
    }
}

impl Accounts {
    /// Reserves room for the tables of a mapping of `length` bytes on each of `cards`.
    ///
    /// # Errors
    /// When there may be too many tables then.
    pub fn reserve_page_tables(&mut self, cards: &[Card], length: u64) -> Result<PageTableReservation, Refusal> {
        let cost = cost(length);
        for &card in cards {
            self.page_tables_fit(card, u128::from(self.page_tables(card).0) + cost)?;
        }
        for &card in cards {
            self.page_tables.cards.entry(card).or_default().coming += cost;
        }
        Ok(PageTableReservation { cards: cards.to_vec(), cost, is_virtual: false })
    }

    /// Reserves page tables for a mapping in an address space of the resource manager's, whose
    /// tables may keep a frame of the card open for each granule.
    ///
    /// # Errors
    /// When there may be too many tables then, or frames be held open.
    pub fn reserve_virtual_page_tables(&mut self, card: Card, length: u64) -> Result<PageTableReservation, Refusal> {
        let virtuals = self.page_tables.virtuals.entry(card).or_default();
        let before = virtuals.estimate();
        let most = if before == 0 { 0 } else { virtuals.most }.max(before + cost(length));
        self.cards.fits_tables(card, saturated(most))?;
        let reservation = self.reserve_page_tables(&[card], length)?;
        let virtuals = self.page_tables.virtuals.entry(card).or_default();
        virtuals.most = most;
        virtuals.coming += reservation.cost;
        self.cards.set_tables(card, saturated(most));
        Ok(PageTableReservation { is_virtual: true, ..reservation })
    }

    /// Returns whether there may be so many bytes of page tables on a card.
    pub(super) fn page_tables_fit(&self, card: Card, tables: u128) -> Result<(), Refusal> {
        let most = most(self.cards.usage(card)?.limit);
        if tables <= u128::from(most.0) {
            return Ok(());
        }
        let limit = u32::try_from(most.0 / Bytes::KIB).unwrap_or(u32::MAX);
        Err(Refusal::TooMany { counted: Counted::PageTableKib, limit })
    }

    /// Ends a reservation, as the mapping has been entered or will not be made.
    pub fn release_page_tables(&mut self, reservation: PageTableReservation) {
        for card in reservation.cards {
            let tables = &mut self.page_tables;
            let virtuals = reservation.is_virtual.then(|| tables.virtuals.entry(card).or_default());
            for of_card in [tables.cards.entry(card).or_default()].into_iter().chain(virtuals) {
                of_card.coming = of_card.coming.saturating_sub(reservation.cost);
            }
        }
    }

    /// Bytes that the page tables of a card may need at most, reservations included.
    pub fn page_tables(&self, card: Card) -> Bytes {
        saturated(self.page_tables.cards.get(&card).map_or(0, OfCard::estimate))
    }

    /// Returns whether one more mapping may be made in virtual memory, or one be cut in two; ask
    /// before the driver is asked.
    ///
    /// # Errors
    /// When there are too many references, or such mappings.
    pub fn dma_fits(&self) -> Result<(), Refusal> {
        let limit = self.limits.virtual_mappings;
        if self.page_tables.references() >= limit as usize {
            return Err(Refusal::TooMany { counted: Counted::VirtualMappings, limit });
        }
        self.references_fit(1)
    }

    /// Records that `length` bytes were mapped for `device`, which is of `card`, at `offset` of
    /// `object`, virtual memory (`NV_ESC_RM_MAP_MEMORY_DMA`).
    pub fn dma_mapped(&mut self, object: ObjectName, device: Handle, card: Card, offset: u64, length: u64) {
        if let (Some(index), Some(span)) = (self.virtual_memory(object), Span::new(offset, length)) {
            self.page_tables.begin_dma((index, object.object, span.first), Dma { device, card, last: span.last });
        }
    }

    /// Removes the mappings of `device` in `length` bytes from `offset` on: none, part of one or
    /// several; with a `length` of 0, the one that begins there (`serverInterUnmapInternal` in
    /// src/nvidia/src/libraries/resserv/src/rs_server.c).
    pub fn dma_unmapped(&mut self, object: ObjectName, device: Handle, offset: u64, length: u64) {
        let Some(index) = self.virtual_memory(object) else { return };
        let tables = &mut self.page_tables;
        if length == 0 {
            let key = (index, object.object, offset);
            if tables.dma.get(&key).is_some_and(|dma| dma.device == device) {
                tables.end_dma(key);
            }
            return;
        }
        // The driver refuses what wraps.
        let Some(gone) = Span::new(offset, length) else { return };
        for (key, dma) in tables.dma_within((index, object.object), device, gone) {
            tables.end_dma(key);
            if let Some(last) = gone.first.checked_sub(1).filter(|last| *last >= key.2) {
                tables.begin_dma(key, Dma { last, ..dma });
            }
            if gone.last < dma.last {
                tables.begin_dma((key.0, key.1, gone.last + 1), dma);
            }
        }
    }

    /// Object that mappings in `object` are recorded under: the client's root, if it is not known.
    fn virtual_memory(&self, object: ObjectName) -> Option<Index> {
        let root = || self.clients.get(&object.client).map(|client| client.root);
        self.tree.find(object).or_else(root)
    }
}
