//! Pinned memory of programs' own, which the kernel pins from what the program says by then; memory
//! of the host's that is mapped for the processor, so that it can be pinned there; groups of ranges
//! of managed memory.

use super::{
    api::*,
    program::{FlyingPin, LIMITS, Program},
    world::{Memory, Object, PAGE},
};

/// Bytes charged for `length` pinned bytes.
fn charged(length: u64) -> u64 {
    length / 128 + 4096
}

impl Program<'_> {
    /// Returns whether there is room for so much, with what pinned pages keep of the host.
    pub(super) fn fits(&mut self, card: u8, bytes: u64) -> bool {
        let usage = self.accounts.card(Card(card)).unwrap();
        let kept = if card == Card::HOST.0 { self.accounts.kept_by_pins().0 } else { 0 };
        usage.used.0 + kept + bytes <= usage.limit.0
    }

    /// A call that is to pin memory of the program's: the kernel executes it at any time from then
    /// on, for more or less than was said.
    pub(super) fn pin(&mut self) -> Option<()> {
        let (client, process) = (self.client()?, self.process()?);
        let (handle, parent) = (self.handle(), self.parent(client));
        let said = u64::from(self.byte() % 16) * PAGE;
        let bytes = charged(said);
        let fits = self.fits(Card::HOST.0, bytes);
        let counts = self.accounts.counts();
        let reservation = match self.accounts.pin(Pid(process), Handle(client), said) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                let full = counts.objects >= LIMITS.objects || counts.pinned >= LIMITS.pinned;
                assert!(full || !fits, "it fits, but was refused: {refusal}");
                return None;
            }
        };
        assert!(fits, "it does not fit, but was pinned");
        self.world.memory.push(Memory::new(Card::HOST.0, bytes));
        let memory = self.world.memory.len() - 1;
        self.world.staged.push(memory);
        let choice = self.byte();
        let length = if choice % 4 == 1 { u64::from(choice / 4) * PAGE / 2 } else { said };
        self.pin_pages(memory, length);
        self.flying_pins.push(FlyingPin { reservation, client, parent, handle, memory, length });
        Some(())
    }

    /// Pins pages, at times those of memory that is mapped for the processor.
    fn pin_pages(&mut self, by: usize, length: u64) {
        let mapped: Vec<usize> = self.world.mapped_files.values().copied().collect();
        if let Some(of) = self.pick(mapped).filter(|_| !self.byte().is_multiple_of(4)) {
            self.world.pinned_pages.push((by, of, length));
        } else {
            // Its own.
            self.world.pinned_pages.push((by, by, length));
        }
    }

    /// Settles a call that pins: it made an object under the given handle, or nothing.
    pub(super) fn settle_pin(&mut self) -> Option<()> {
        let index = self.below(self.flying_pins.len());
        if index >= self.flying_pins.len() {
            return None;
        }
        let FlyingPin { reservation, client, parent, handle, memory, length } = self.flying_pins.swap_remove(index);
        self.world.staged.retain(|staged| *staged != memory);
        let luck = self.byte();
        // Nothing is moved below what is not there any more.
        let has_parent = parent == client || self.world.find(client, parent).is_some();
        let has_place = self.world.clients.contains_key(&client) && self.world.find(client, handle).is_none();
        if !has_parent || !has_place || luck.is_multiple_of(4) {
            self.accounts.cancel(reservation);
            return None;
        }
        if luck % 4 == 1 {
            // The kernel has looked at the pages only now.
            self.world.pinned_pages.retain(|(by, ..)| *by != memory);
            self.pin_pages(memory, length);
        }
        let placement = Placement::under(Handle(parent), Handle(handle));
        let committed = self.accounts.pinned(reservation, placement, length).unwrap();
        assert!(!committed.conflict || self.stale);
        self.world.memory[memory].bytes = charged(length);
        self.may_exceed[2] = true;
        self.add_object(client, handle, vec![parent], Some(memory), Kind::Pinned);
        Some(())
    }

    /// `NV_ESC_RM_MAP_MEMORY` of memory of the host's on a file of its own.
    pub(super) fn map_for_processor(&mut self) -> Option<()> {
        let of_host = |object: &&Object| {
            object.kind == Kind::Memory
                && object.memory.is_some_and(|memory| self.world.memory[memory].card == Card::HOST.0)
        };
        let objects: Vec<_> = self.world.objects.iter().filter(of_host).cloned().collect();
        let object = self.pick(objects)?;
        let name = ObjectName::new(Handle(object.client), Handle(object.handle));
        let hold = match self.accounts.hold_host_memory(name) {
            Ok(hold) => hold?,
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { .. }));
                assert!(self.world.mapped_files.len() >= LIMITS.host_mappings as usize);
                return None;
            }
        };
        if self.byte().is_multiple_of(8) {
            self.accounts.release(hold);
            return None;
        }
        let file = self.world.mapped_files_ever;
        self.world.mapped_files_ever += 1;
        self.world.mapped_files.insert(file, object.memory?);
        self.accounts.host_memory_mapped(hold, MappedFile(file));
        Some(())
    }

    pub(super) fn close_mapped_file(&mut self) -> Option<()> {
        let files: Vec<_> = self.world.mapped_files.keys().copied().collect();
        let file = self.pick(files)?;
        self.world.mapped_files.remove(&file);
        self.accounts.mapped_file_gone(MappedFile(file));
        Some(())
    }

    pub(super) fn range_group(&mut self) -> Option<()> {
        let file = self.uvm()?;
        match self.accounts.range_group_fits() {
            Ok(()) => {
                *self.world.range_groups.entry(file).or_default() += 1;
                self.accounts.range_group(UvmFile(file as u64));
                Some(())
            }
            Err(_) => {
                assert!(self.accounts.counts().range_groups >= LIMITS.range_groups);
                None
            }
        }
    }

    pub(super) fn range_group_gone(&mut self) -> Option<()> {
        let files: Vec<_> = self.world.range_groups.keys().copied().collect();
        let file = self.pick(files).filter(|file| !self.world.uvm[*file].holders.is_empty())?;
        let count = self.world.range_groups.get_mut(&file)?;
        *count -= 1;
        if *count == 0 {
            self.world.range_groups.remove(&file);
        }
        self.accounts.range_group_gone(UvmFile(file as u64));
        Some(())
    }

    /// Compares the account of these with the world.
    pub(super) fn check_pinned(&mut self) {
        // What has ended without a report is in use as far as the account knows.
        let said = self.accounts.kept_by_pins().0 + self.accounts.card(Card::HOST).unwrap().used.0;
        let (kept, held) = (self.world.kept(), self.held(Card::HOST.0));
        assert!(said >= kept + held, "{said} bytes said to be kept or held, {kept} and {held} are");
        let counts = self.accounts.counts();
        assert_eq!(counts.host_mappings, self.world.mapped_files.len());
        assert!(counts.host_mappings <= LIMITS.host_mappings as usize);
        let groups: u32 = self.world.range_groups.values().sum();
        assert!(counts.range_groups >= groups);
        assert!(self.behind || self.stale || self.mixed || counts.range_groups == groups);
        assert!(counts.range_groups <= LIMITS.range_groups && counts.pinned <= LIMITS.pinned);
    }
}
