//! Page tables of a card's address spaces.
//!
//! The driver makes them of the card's memory, and no call says how large they are. An honest program has next to none: memory in pages of
//! 2 MiB, at addresses close to each other, needs 4 KiB of tables for each 512 MiB. So they are not charged, but estimated at the worst, and
//! there may be a hundred-and-twenty-eighth of the limit and 32 MiB of them: mapping all of a grant four times in pages of 4 KiB.
//!
//! The worst: for each 2 MiB that are mapped, 4 KiB of entries for pages of 4 KiB; for each stretch of 512 MiB in which something is mapped,
//! a table of its own on each of the four levels above (kernel-open/nvidia-uvm/uvm_pascal_mmu.c, uvm_hopper_mmu.c).

use std::collections::{BTreeMap, HashMap};

use runtime_config::units::Bytes;

use super::{Accounts, Card, Counted, ObjectName, Refusal, UvmFile, cards::saturated, intervals::Span, tree::Index};

const TABLE: u128 = 4 << 10;
/// What one table of the lowest level maps.
const LOWEST: u128 = 2 << 20;
/// What one of the next level does, by the bits of the address.
const STRETCH_BITS: u32 = 29;
const LEVELS_ABOVE: u128 = 4;
/// More are not looked at one by one: the driver maps nothing as long as that.
const MOST_STRETCHES: u64 = 1 << 18;

/// What may be there of a card with this limit.
fn most(limit: Bytes) -> Bytes {
    Bytes(32 * Bytes::MIB + limit.0 / 128)
}

/// For a mapping of that many bytes alone, wherever it begins.
fn cost(length: u64) -> u128 {
    let length = u128::from(length);
    length.div_ceil(LOWEST).saturating_add(1) * TABLE + ((length >> STRETCH_BITS) + 2) * LEVELS_ABOVE * TABLE
}

#[derive(Debug, Default)]
struct OfCard {
    /// Bytes that are mapped.
    mapped: u128,
    /// Stretches in which something is.
    stretches: u128,
    /// Reserved.
    coming: u128,
}

impl OfCard {
    fn estimate(&self) -> u128 {
        self.mapped.div_ceil(LOWEST) * TABLE + self.stretches * LEVELS_ABOVE * TABLE + self.coming
    }
}

/// Whose addresses something is mapped at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Uvm(UvmFile),
    /// Virtual memory of the resource manager's.
    Virtual(Index),
}

/// Those of all address spaces.
#[derive(Debug, Default)]
pub(super) struct PageTables {
    cards: HashMap<Card, OfCard>,
    /// Bytes that are mapped in each stretch.
    stretches: HashMap<(Space, Card, u64), u64>,
    /// What is mapped in virtual memory, and where: its card, and its last address.
    dma: BTreeMap<(Index, u64), (Card, u64)>,
}

/// Room for the tables of a mapping that is about to be made; to be given to [`Accounts::release_page_tables`] once it is, or is not.
#[must_use = "what is reserved counts until it is released"]
#[derive(Debug)]
pub struct PageTableReservation {
    cards: Vec<Card>,
    cost: u128,
}

/// The stretches that a mapping touches, and how much of it lies in each.
fn stretches(span: Span) -> impl Iterator<Item = (u64, u64)> {
    let (first, last) = (span.first >> STRETCH_BITS, span.last >> STRETCH_BITS);
    (first..=last.min(first.saturating_add(MOST_STRETCHES))).filter_map(move |at| {
        let begin = at << STRETCH_BITS;
        let stretch = Span { first: begin, last: begin | ((1 << STRETCH_BITS) - 1) };
        let common = stretch.common(span)?;
        Some((at, common.last - common.first + 1))
    })
}

impl PageTables {
    /// Something has been mapped for `card`.
    pub(super) fn mapped(&mut self, space: Space, card: Card, span: Span) {
        let of_card = self.cards.entry(card).or_default();
        of_card.mapped += span.length();
        for (at, bytes) in stretches(span) {
            let mapped = self.stretches.entry((space, card, at)).or_default();
            of_card.stretches += u128::from(*mapped == 0);
            *mapped = mapped.saturating_add(bytes);
        }
    }

    /// The same was unmapped.
    pub(super) fn unmapped(&mut self, space: Space, card: Card, span: Span) {
        let Some(of_card) = self.cards.get_mut(&card) else { return };
        of_card.mapped = of_card.mapped.saturating_sub(span.length());
        for (at, bytes) in stretches(span) {
            let Some(mapped) = self.stretches.get_mut(&(space, card, at)) else { continue };
            *mapped = mapped.saturating_sub(bytes);
            if *mapped == 0 {
                self.stretches.remove(&(space, card, at));
                of_card.stretches = of_card.stretches.saturating_sub(1);
            }
        }
    }

    /// An object is gone, and what was mapped in it.
    pub(super) fn object_gone(&mut self, object: Index) {
        let keys: Vec<_> = self.dma.range((object, 0)..=(object, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            self.end_dma(key);
        }
    }

    /// A mapping in virtual memory ends: its card and its addresses.
    fn end_dma(&mut self, key: (Index, u64)) -> Option<(Card, Span)> {
        let (card, last) = self.dma.remove(&key)?;
        let span = Span { first: key.1, last };
        self.unmapped(Space::Virtual(key.0), card, span);
        Some((card, span))
    }

    fn begin_dma(&mut self, object: Index, card: Card, span: Span) {
        self.end_dma((object, span.first));
        self.dma.insert((object, span.first), (card, span.last));
        self.mapped(Space::Virtual(object), card, span);
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
            let most = most(self.cards.usage(card)?.limit);
            if self.page_tables(card).0.saturating_add(saturated(cost).0) > most.0 {
                let limit = u32::try_from(most.0 / Bytes::KIB).unwrap_or(u32::MAX);
                return Err(Refusal::TooMany { counted: Counted::PageTableKib, limit });
            }
        }
        for &card in cards {
            self.page_tables.cards.entry(card).or_default().coming += cost;
        }
        Ok(PageTableReservation { cards: cards.to_vec(), cost })
    }

    /// The mapping has been told, or will not be made.
    pub fn release_page_tables(&mut self, reservation: PageTableReservation) {
        for card in reservation.cards {
            let coming = &mut self.page_tables.cards.entry(card).or_default().coming;
            *coming = coming.saturating_sub(reservation.cost);
        }
    }

    /// What the tables of a card may come to, reservations included.
    pub fn page_tables(&self, card: Card) -> Bytes {
        saturated(self.page_tables.cards.get(&card).map_or(0, OfCard::estimate))
    }

    /// `length` bytes were mapped on `card` at `offset` of `object`, virtual memory (`NV_ESC_RM_MAP_MEMORY_DMA`).
    pub fn dma_mapped(&mut self, object: ObjectName, card: Card, offset: u64, length: u64) {
        if let (Some(index), Some(span)) = (self.virtual_memory(object), Span::new(offset, length)) {
            self.page_tables.begin_dma(index, card, span);
        }
    }

    /// `length` bytes (0: all of it) of the mapping at `offset` were unmapped.
    pub fn dma_unmapped(&mut self, object: ObjectName, offset: u64, length: u64) {
        let Some(index) = self.virtual_memory(object) else { return };
        let Some((&key, _)) = self.page_tables.dma.range((index, 0)..=(index, offset)).next_back() else { return };
        let Some((card, whole)) = self.page_tables.end_dma(key) else { return };
        let Some(gone) = Span::new(offset, length).filter(|gone| gone.common(whole).is_some()) else { return };
        if let Some(last) = gone.first.checked_sub(1).filter(|last| *last >= whole.first) {
            self.page_tables.begin_dma(index, card, Span { first: whole.first, last });
        }
        if gone.last < whole.last {
            self.page_tables.begin_dma(index, card, Span { first: gone.last + 1, last: whole.last });
        }
    }

    /// What mappings in `object` are kept by: the client, if it is not known.
    fn virtual_memory(&self, object: ObjectName) -> Option<Index> {
        let root = || self.clients.get(&object.client).map(|client| client.root);
        self.tree.find(object).or_else(root)
    }
}
