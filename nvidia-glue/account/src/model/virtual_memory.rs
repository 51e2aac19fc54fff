//! Page tables: room for them, and mappings in virtual memory of the resource manager's.

use super::{
    api::*,
    program::{CARDS, LIMITS, Program, Tables},
    world::{Dma, PAGE},
};

const MIB: u64 = 1 << 20;

impl Program<'_> {
    /// Room for the page tables of a mapping, or `None` if there may not be that many: as much as a
    /// mapping of that length can need.
    pub(super) fn reserve_tables(&mut self, cards: &[Card], length: u64, is_virtual: bool) -> Option<Tables> {
        let said = |program: &Self, card: &Card| program.accounts.page_tables(*card).0;
        let most = |program: &Self, card: &Card| 32 * MIB + program.accounts.card(*card).unwrap().limit.0 / 128;
        let before: Vec<_> = cards.iter().map(|card| said(self, card)).collect();
        let reserved = match cards {
            [card] if is_virtual => self.accounts.reserve_virtual_page_tables(*card, length),
            _ => self.accounts.reserve_page_tables(cards, length),
        };
        self.has_virtual_tables |= is_virtual;
        match reserved {
            Ok(reservation) => {
                let mut bytes = [0; CARDS as usize];
                for (card, before) in cards.iter().zip(before) {
                    assert!(said(self, card) <= most(self, card), "more page tables than there may be");
                    let reserved = said(self, card) - before;
                    bytes[usize::from(card.0)] = reserved;
                    self.coming[usize::from(card.0)] += reserved;
                }
                Some(Tables { reservation, bytes })
            }
            Err(Refusal::OverQuota(over)) => {
                assert!(is_virtual && over.bound == Bound::Frames);
                None
            }
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { counted: Counted::PageTableKib, .. }));
                let is_full = cards.iter().any(|card| said(self, card) + MIB > most(self, card));
                assert!(length > MIB || is_full, "there is room for those of a small mapping");
                None
            }
        }
    }

    /// Ends a reservation, as the mapping was made and reported, or will not be made: it has not
    /// needed more than was reserved.
    pub(super) fn release_tables(&mut self, tables: Tables) {
        for (coming, bytes) in self.coming.iter_mut().zip(tables.bytes) {
            *coming -= bytes;
        }
        self.accounts.release_page_tables(tables.reservation);
    }

    pub(super) fn reserve_dma(&mut self) -> Option<()> {
        let (client, memory) = self.object()?;
        let device = u32::from(self.byte() % 3);
        let place = u64::from(self.byte());
        let first = (place % 64) * PAGE + ((place / 64) << 29);
        let count = 1 + u64::from(self.byte() % 8);
        let length = count * [PAGE, 2 * MIB, 300 * MIB, 1 << 30][self.below(4)];
        let dma = Dma { client, memory, device, first, last: first + length - 1 };
        if self.accounts.dma_fits().is_err() {
            assert!(self.accounts.counts().references >= LIMITS.references as usize);
            return None;
        }
        let tables = self.reserve_tables(&[Card(dma.card())], length, true)?;
        self.flying_dma.push((tables, dma));
        Some(())
    }

    /// The driver maps it, unless the virtual memory is gone or something is mapped there, for
    /// better or worse.
    pub(super) fn execute_dma(&mut self) -> Option<()> {
        let index = self.below(self.flying_dma.len());
        if index >= self.flying_dma.len() {
            return None;
        }
        let (tables, dma) = self.flying_dma.swap_remove(index);
        let is_taken = self.of_memory(&dma).any(|other| other.first <= dma.last && dma.first <= other.last);
        let is_gone = self.world.find(dma.client, dma.memory).is_none();
        if self.byte().is_multiple_of(8) || is_taken || is_gone {
            self.release_tables(tables);
            return None;
        }
        self.world.dma.push(dma);
        let card = Card(dma.card());
        let before = self.accounts.page_tables(card);
        let object = ObjectName::new(Handle(dma.client), Handle(dma.memory));
        self.accounts.dma_mapped(object, Handle(dma.device), card, dma.first, dma.last - dma.first + 1);
        self.release_tables(tables);
        assert!(self.accounts.page_tables(card) <= before, "it needs more page tables than were reserved");
        Some(())
    }

    fn of_memory(&self, of: &Dma) -> impl Iterator<Item = &Dma> {
        let of = (of.client, of.memory);
        self.world.dma.iter().filter(move |dma| (dma.client, dma.memory) == of)
    }

    /// Unmaps the part of a device's mappings in a range (none, part of one, or several), or one
    /// mapping by its beginning.
    pub(super) fn unmap_dma(&mut self) -> Option<()> {
        let all = self.world.dma.clone();
        let mapped = self.pick(all)?;
        let choice = self.byte();
        let first = mapped.first + u64::from(choice >> 4) * PAGE * 3;
        let length = [0, PAGE, 3 * MIB, 700 * MIB][usize::from(choice % 4)];
        let device = if choice & 0xc == 0xc { (mapped.device + 1) % 3 } else { mapped.device };
        let name = ObjectName::new(Handle(mapped.client), Handle(mapped.memory));
        let is_of = |dma: &Dma| (dma.client, dma.memory, dma.device) == (mapped.client, mapped.memory, device);
        if length == 0 {
            // The driver refuses it where none begins.
            let at = self.world.dma.iter().position(|dma| is_of(dma) && dma.first == first)?;
            self.world.dma.swap_remove(at);
        } else {
            self.accounts.dma_fits().ok()?;
            let last = first + length - 1;
            let (touched, mut left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.world.dma)
                .into_iter()
                .partition(|dma| is_of(dma) && dma.first <= last && first <= dma.last);
            for dma in touched {
                left.extend((dma.first < first).then(|| Dma { last: first - 1, ..dma }));
                left.extend((last < dma.last).then(|| Dma { first: last + 1, ..dma }));
            }
            self.world.dma = left;
        }
        self.accounts.dma_unmapped(name, Handle(device), first, length);
        Some(())
    }
}
