//! Things that outlive a handle: exports, attachments, and mappings of UVM files.

use super::{
    api::*,
    program::{CARDS, FOREIGN, LIMITS, Program},
    world::{File, Memory, PAGE},
};
use std::collections::BTreeSet;

impl Program<'_> {
    pub(super) fn hold(&mut self, (client, object): (u32, u32)) -> Option<Hold> {
        match self.accounts.hold(ObjectName::new(Handle(client), Handle(object))) {
            Ok(hold) => Some(hold),
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { .. }));
                None
            }
        }
    }

    pub(super) fn export(&mut self) -> Option<()> {
        let (object, process) = (self.object()?, self.process()?);
        let hold = self.hold(object)?;
        let (choice, slot) = (self.byte(), u32::from(self.byte() % 2));
        if choice.is_multiple_of(8) {
            self.accounts.release(hold);
            return None;
        }
        let open = (0..self.world.export.len()).filter(|&index| self.world.export[index].alive).collect::<Vec<_>>();
        let file = match self.pick(open).filter(|_| choice % 2 == 1) {
            Some(file) => file,
            None => {
                let holders = BTreeSet::from([process]);
                self.world.export.push(File { holders, alive: true, ..File::default() });
                self.world.export.len() - 1
            }
        };
        let memory = self.world.find(object.0, object.1)?.memory;
        self.world.exports.insert((file, slot), memory);
        self.accounts.export(hold, ExportFile(file as u64), slot);
        Some(())
    }

    pub(super) fn import(&mut self) -> Option<()> {
        let client = self.client()?;
        let exports: Vec<_> = self.world.exports.iter().map(|(&key, &memory)| (key, memory)).collect();
        let ((file, slot), memory) = self.pick(exports)?;
        let (handle, parent) = (self.handle(), self.parent(client));
        let reservation = self.accounts.reserve_import(ExportFile(file as u64), slot, Handle(client)).ok()?;
        if self.byte().is_multiple_of(8) || self.world.find(client, handle).is_some() {
            self.accounts.cancel(reservation);
            return None;
        }
        let committed = self.accounts.commit(reservation, Placement::under(Handle(parent), Handle(handle)), None);
        assert!(!committed.unwrap().conflict || self.stale);
        self.add_object(client, handle, vec![parent], memory, Kind::Memory);
        Some(())
    }

    /// Addresses on the fabric for memory, which keep it.
    pub(super) fn fabric(&mut self) -> Option<()> {
        let (client, of) = self.object()?;
        let (handle, parent) = (self.handle(), self.parent(client));
        let bytes = u64::from(self.byte() % 48) * PAGE / 2;
        let object = self.world.find(client, of).cloned()?;
        let given = object.memory.and_then(|memory| self.world.fabric.get(&memory)).copied().unwrap_or(0) + bytes;
        let of_card = |memory: usize| Some(self.world.memory[memory]).filter(|memory| memory.card != Card::HOST.0);
        let block = object.memory.filter(|_| object.kind == Kind::Memory).and_then(of_card);
        let fits = block.is_some_and(|block| given <= 2 * block.bytes && self.fabric_fits(block.card, bytes));
        let reservation = match self.accounts.reserve_fabric(ObjectName::new(Handle(client), Handle(of)), bytes) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                let counts = self.accounts.counts();
                // What is attached to the memory is kept, too.
                let references = counts.references + object.attached.len();
                let full = counts.objects >= LIMITS.objects || references > LIMITS.references as usize;
                assert!(full || !fits, "there may be so many, but that was refused: {refusal}");
                return None;
            }
        };
        assert!(fits, "{given} bytes of addresses for {block:?}");
        if self.byte().is_multiple_of(2) {
            self.accounts.cancel(reservation);
            return None;
        }
        self.place_shared(reservation, client, handle, parent, (client, of))?;
        self.world.fabric.insert(object.memory?, given);
        Some(())
    }

    /// Addresses on the fabric behind which there is no memory.
    pub(super) fn addresses(&mut self) -> Option<()> {
        let (client, process) = (self.client()?, self.process()?);
        let (handle, parent) = (self.handle(), self.parent(client));
        let (card, bytes) = (self.byte() % CARDS, u64::from(self.byte() % 48) * PAGE / 2);
        let fits = self.fabric_fits(card, bytes);
        let of_card = (Card(card), Bytes(bytes));
        let reservation = match self.accounts.reserve_addresses(Handle(client), of_card, Pid(process)) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                let full = self.accounts.counts().objects >= LIMITS.objects;
                assert!(full || !fits, "there may be so many, but that was refused: {refusal}");
                return None;
            }
        };
        assert!(fits, "{bytes} bytes of addresses of card {card}");
        if self.byte().is_multiple_of(4) || self.world.find(client, handle).is_some() {
            self.accounts.cancel(reservation);
            return None;
        }
        let placement = Placement::under(Handle(parent), Handle(handle));
        let committed = self.accounts.commit(reservation, placement, None).unwrap();
        assert!(!committed.conflict || self.stale);
        self.world.memory.push(Memory::new(card, 0));
        let memory = self.world.memory.len() - 1;
        self.world.fabric.insert(memory, bytes);
        self.add_object(client, handle, vec![parent], Some(memory), Kind::Memory);
        Some(())
    }

    /// Returns whether there may be so many bytes more of addresses of a card, by what the account
    /// says that there are.
    fn fabric_fits(&self, card: u8, bytes: u64) -> bool {
        let usage = self.accounts.card(Card(card)).unwrap();
        usage.fabric.0 + bytes <= 2 * usage.limit.0
    }

    pub(super) fn attach(&mut self) -> Option<()> {
        let (holder, object) = (self.object()?, self.object()?);
        let hold = self.hold(object)?;
        let memory = self.world.find(object.0, object.1)?.memory;
        self.accounts.attach(hold, ObjectName::new(Handle(holder.0), Handle(holder.1))).unwrap();
        self.world.find_mut(holder.0, holder.1)?.attached.extend(memory);
        Some(())
    }

    pub(super) fn open_uvm(&mut self) -> Option<()> {
        let process = self.process()?;
        let choice = self.byte();
        let kept = self.uvm().filter(|_| choice.is_multiple_of(4));
        let shared = choice % 4 == 1;
        // Of what fork has copied, the file is not known: of a process that has ended without
        // having been told, it may be this one.
        self.mixed |= shared && self.copied && self.behind;
        self.world.uvm.push(File { holders: BTreeSet::from([process]), shared, keeps: kept, alive: true });
        let file = UvmFile(self.world.uvm.len() as u64 - 1);
        match kept {
            Some(kept) => self.accounts.uvm_mm_file(file, UvmFile(kept as u64), Pid(process)),
            None => self.accounts.uvm_file(file, Pid(process), shared),
        }
        Some(())
    }

    pub(super) fn span(&mut self) -> (u64, u64) {
        (u64::from(self.byte() % 32), 1 + u64::from(self.byte() % 8))
    }

    pub(super) fn external_range(&mut self) -> Option<()> {
        let file = self.uvm()?;
        let (first, pages) = self.span();
        if self.is_taken(file, first, pages) {
            return None;
        }
        self.accounts.external_range_fits().ok()?;
        self.world.ranges.insert((file, first), pages);
        self.accounts.external_range(UvmFile(file as u64), first * PAGE, pages * PAGE);
        Some(())
    }

    /// Returns whether part of it belongs to a range or a pool.
    pub(super) fn is_taken(&self, file: usize, first: u64, pages: u64) -> bool {
        let mut of_file = self.world.ranges.iter().chain(&self.world.pools).filter(|&(&(of, _), _)| of == file);
        of_file.any(|(&(_, other), &others)| first < other + others && other < first + pages)
    }

    /// A file and part of one of its ranges, in pages.
    pub(super) fn part_of_range(&mut self) -> Option<(usize, u64, u64)> {
        let open: Vec<_> = self.world.ranges.iter().map(|(&(file, first), &pages)| (file, first, pages)).collect();
        let (file, first, pages) = self.pick(open)?;
        let skip = self.below(usize::try_from(pages).unwrap()) as u64;
        let pages = 1 + self.below(usize::try_from(pages - skip).unwrap()) as u64;
        Some((file, first + skip, pages))
    }

    pub(super) fn map(&mut self) -> Option<()> {
        let (object, (file, first, pages)) = (self.object()?, self.part_of_range()?);
        let hold = self.hold(object)?;
        let choice = self.byte();
        if choice.is_multiple_of(8) {
            self.accounts.release(hold);
            return None;
        }
        let cards: &[u8] = [&[0_u8] as &[u8], &[1], &[0, 1], &[FOREIGN]][usize::from(choice % 4)];
        let memory = self.world.find(object.0, object.1)?.memory;
        let named: Vec<_> = cards.iter().map(|&card| Card(card)).collect();
        if choice == 0xff {
            // For others than cards.
            self.map_pages(file, first, pages, &[Card::HOST.0], memory);
            self.accounts.map(hold, UvmFile(file as u64), first * PAGE, pages * PAGE, &[]);
            return Some(());
        }
        let granted: Vec<_> = named.iter().copied().filter(|card| card.0 < CARDS).collect();
        let Some(tables) = self.reserve_tables(&granted, pages * PAGE, false) else {
            self.accounts.release(hold);
            return None;
        };
        self.map_pages(file, first, pages, cards, memory);
        self.accounts.map(hold, UvmFile(file as u64), first * PAGE, pages * PAGE, &named);
        self.release_tables(tables);
        Some(())
    }

    fn map_pages(&mut self, file: usize, first: u64, pages: u64, cards: &[u8], memory: Option<usize>) {
        for (page, &card) in (first..first + pages).flat_map(|page| cards.iter().map(move |card| (page, card))) {
            self.world.maps.insert((file, card, page), memory);
        }
    }

    /// Addresses behind which there is no memory; at times of a range of their own.
    pub(super) fn map_nothing(&mut self) -> Option<()> {
        let begins = self.byte().is_multiple_of(4);
        let (file, first, pages) = if begins {
            let (file, (first, pages)) = (self.uvm()?, self.span());
            (file, first, pages)
        } else {
            self.part_of_range()?
        };
        let card = self.byte() % CARDS;
        if begins && (self.is_taken(file, first, pages) || self.accounts.external_range_fits().is_err()) {
            return None;
        }
        let tables = self.reserve_tables(&[Card(card)], pages * PAGE, false)?;
        if begins {
            self.world.ranges.insert((file, first), pages);
            self.accounts.external_range(UvmFile(file as u64), first * PAGE, pages * PAGE);
        }
        self.map_pages(file, first, pages, &[card], None);
        self.accounts.map_nothing(UvmFile(file as u64), first * PAGE, pages * PAGE, Card(card));
        self.release_tables(tables);
        Some(())
    }

    pub(super) fn unmap(&mut self) -> Option<()> {
        let (file, first, pages) = self.part_of_range()?;
        let card = [0, 1, FOREIGN][self.below(3)];
        let name = UvmFile(file as u64);
        self.accounts.unmap_fits(name, Card(card), first * PAGE, pages * PAGE).ok()?;
        self.world
            .maps
            .retain(|&(of, on, page), _| !(of == file && on == card && (first..first + pages).contains(&page)));
        self.accounts.unmap(name, Card(card), first * PAGE, pages * PAGE);
        Some(())
    }

    pub(super) fn free_range(&mut self) -> Option<()> {
        let file = self.uvm()?;
        let first = u64::from(self.byte() % 32);
        if let Some(pages) = self.world.ranges.remove(&(file, first)) {
            self.world.maps.retain(|&(of, _, page), _| !(of == file && (first..first + pages).contains(&page)));
        }
        self.world.pools.remove(&(file, first));
        self.accounts.free_range(UvmFile(file as u64), first * PAGE);
        Some(())
    }

    pub(super) fn card_gone(&mut self) -> Option<()> {
        let file = self.uvm()?;
        let card = self.byte() % CARDS;
        self.world.maps.retain(|&(of, on, _), _| !(of == file && on == card));
        self.world.registrations.retain(|&(of, ..), registration| !(of == file && registration.card == card));
        self.accounts.uvm_card_gone(UvmFile(file as u64), Card(card));
        Some(())
    }
}
