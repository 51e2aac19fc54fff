//! The model of what the driver and the kernel hold: lists that are searched from end to end, so
//! that there is little to get wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    api::{FRAME, GROUP, Kind, Layout},
    program::CARDS,
};

/// Bytes of a page of the model.
pub(super) const PAGE: u64 = 1 << 20;
/// Of these UVM takes a card's memory.
pub(super) const PAGES_OF_A_BLOCK: u64 = 2;

/// A physical allocation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) card: u8,
    pub(super) bytes: u64,
    pub(super) layout: Layout,
    /// Its address, if the account was given it.
    pub(super) address: Option<u64>,
}

impl Memory {
    /// In frames of its own.
    pub(super) const fn new(card: u8, bytes: u64) -> Self {
        Self { card, bytes, layout: Layout::OwnFrames, address: None }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Object {
    /// No other object ever has it.
    pub(super) number: usize,
    pub(super) kind: Kind,
    pub(super) client: u32,
    pub(super) handle: u32,
    pub(super) goes_with: Vec<u32>,
    pub(super) memory: Option<usize>,
    pub(super) attached: Vec<usize>,
    /// Context buffers may be made for it.
    pub(super) takes_context: bool,
}

/// A channel that UVM has retained.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    pub(super) card: u8,
    /// Context buffers that it keeps.
    pub(super) memory: Option<usize>,
    /// The channel, and its group if it has one: their numbers, and what they are.
    pub(super) retained: Vec<(usize, Kind)>,
}

/// A mapping in virtual memory of the resource manager's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dma {
    pub(super) client: u32,
    pub(super) memory: u32,
    pub(super) device: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Dma {
    /// Two devices are of the first card, one of the second.
    pub(super) fn card(&self) -> u8 {
        u8::from(self.device == 2)
    }
}

/// An open file description.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    /// Processes with a descriptor of it.
    pub(super) holders: BTreeSet<i32>,
    pub(super) shared: bool,
    /// The UVM file that it keeps.
    pub(super) keeps: Option<usize>,
    pub(super) alive: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Vma {
    pub(super) file: usize,
    /// Not a copy that fork made.
    pub(super) enabled: bool,
    /// Calls alone can bring it onto a card.
    pub(super) is_on_host: bool,
}

/// A `mmap` that was let through and that the kernel has not executed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mmap {
    pub(super) process: i32,
    pub(super) thread: i32,
    pub(super) mm: u64,
    pub(super) file: usize,
    pub(super) page: u64,
    pub(super) pages: u64,
    pub(super) is_on_host: bool,
}

#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) memory: Vec<Memory>,
    pub(super) objects: Vec<Object>,
    /// Number of objects that there ever were.
    pub(super) objects_ever: usize,
    /// Client handle -> control file.
    pub(super) clients: BTreeMap<u32, usize>,
    pub(super) control: Vec<File>,
    pub(super) uvm: Vec<File>,
    pub(super) export: Vec<File>,
    /// (file, card, page) -> memory.
    pub(super) maps: BTreeMap<(usize, u8, u64), Option<usize>>,
    /// Pools of semaphores: (file, first page) -> pages.
    pub(super) pools: BTreeMap<(usize, u64), u64>,
    /// (file, client, channel).
    pub(super) registrations: BTreeMap<(usize, u32, u32), Registration>,
    pub(super) dma: Vec<Dma>,
    /// Client -> descriptors of events that wake files.
    pub(super) events: BTreeMap<u32, BTreeSet<i32>>,
    /// (file, first page) -> pages.
    pub(super) ranges: BTreeMap<(usize, u64), u64>,
    pub(super) exports: BTreeMap<(usize, u32), Option<usize>>,
    /// Bytes of addresses on the fabric that memory was ever given.
    pub(super) fabric: BTreeMap<usize, u64>,
    /// Process -> address space.
    pub(super) processes: BTreeMap<i32, u64>,
    /// (address space, page).
    pub(super) vmas: BTreeMap<(u64, u64), Vma>,
    pub(super) mmaps: Vec<Mmap>,
    /// Managed pages by the file that keeps them.
    pub(super) zombies: BTreeMap<usize, u64>,
    /// Memory of calls that pin something and that are under way.
    pub(super) staged: Vec<usize>,
    /// Files through which memory of the host's was mapped for the processor.
    pub(super) mapped_files: BTreeMap<u64, usize>,
    pub(super) mapped_files_ever: u64,
    /// Pages of memory that something else pins: (what pins, of what, how many bytes).
    pub(super) pinned_pages: Vec<(usize, usize, u64)>,
    /// Groups of ranges of managed memory, by file.
    pub(super) range_groups: BTreeMap<usize, u32>,
}

impl World {
    pub(super) fn find(&self, client: u32, handle: u32) -> Option<&Object> {
        self.objects.iter().find(|object| object.client == client && object.handle == handle)
    }

    pub(super) fn find_mut(&mut self, client: u32, handle: u32) -> Option<&mut Object> {
        self.objects.iter_mut().find(|object| object.client == client && object.handle == handle)
    }

    /// Returns whether a registration keeps that object.
    pub(super) fn is_retained(&self, number: usize) -> bool {
        let mut retained = self.registrations.values().flat_map(|registration| &registration.retained);
        retained.any(|(other, _)| *other == number)
    }

    /// The group that a channel is in.
    pub(super) fn group_of(&self, channel: &Object) -> Option<&Object> {
        let parent = channel.goes_with.first().and_then(|parent| self.find(channel.client, *parent));
        parent.filter(|parent| parent.kind == GROUP)
    }

    /// Frees an object (a client by its own handle) and what goes with it.
    pub(super) fn free(&mut self, client: u32, handle: u32) {
        let mut doomed = BTreeSet::from([handle]);
        loop {
            let goes = |object: &&Object| object.goes_with.iter().any(|handle| doomed.contains(handle));
            let of_client = self.objects.iter().filter(|object| object.client == client);
            let more: Vec<_> = of_client.filter(goes).map(|object| object.handle).collect();
            let before = doomed.len();
            doomed.extend(more);
            if doomed.len() == before {
                break;
            }
        }
        self.objects.retain(|object| object.client != client || !doomed.contains(&object.handle));
        self.dma.retain(|dma| dma.client != client || !doomed.contains(&dma.memory));
        if handle == client {
            self.clients.remove(&client);
            self.events.remove(&client);
        }
    }

    /// Objects, of a kind or of all, that are there or that a registration keeps.
    pub(super) fn count(&self, kind: Option<Kind>) -> usize {
        let retained = self.registrations.values().flat_map(|registration| &registration.retained).copied();
        let all = self.objects.iter().map(|object| (object.number, object.kind)).chain(retained);
        let counted: BTreeSet<_> = all.filter(|(_, of)| kind.is_none_or(|kind| kind == *of)).collect();
        let staged = if kind.is_none_or(|kind| kind == Kind::Pinned) { self.staged.len() } else { 0 };
        counted.len() + staged
    }

    /// Bytes of `card` that objects, mappings, registrations and exports hold.
    pub(super) fn allocated(&self, card: u8) -> u64 {
        let of_card = self.held().into_iter().map(|index| self.memory[index]).filter(|memory| memory.card == card);
        of_card.map(|memory| memory.bytes).sum()
    }

    /// Bytes of addresses of `card` on the fabric that they hold.
    pub(super) fn addresses(&self, card: u8) -> u64 {
        let of_card = self.held().into_iter().filter(|index| self.memory[*index].card == card);
        of_card.filter_map(|index| self.fabric.get(&index)).sum()
    }

    /// Bytes of the frames of `card` that they hold open: each once where it is known which they
    /// are.
    pub(super) fn frames(&self, card: u8) -> u64 {
        let held = self.held();
        let of_card =
            held.iter().map(|index| self.memory[*index]).filter(|memory| memory.card == card && memory.bytes > 0);
        let (placed, others): (Vec<_>, Vec<_>) =
            of_card.partition(|memory| memory.layout == Layout::Contiguous && memory.address.is_some());
        let numbers = |memory: &Memory| {
            let first = memory.address.unwrap();
            first / FRAME..=(first + memory.bytes - 1) / FRAME
        };
        let placed: BTreeSet<u64> = placed.iter().flat_map(numbers).collect();
        placed.len() as u64 * FRAME + others.iter().map(|memory| memory.layout.frames(memory.bytes)).sum::<u64>()
    }

    /// Bytes of the host's memory that nothing holds any more but what has pinned their pages.
    pub(super) fn kept(&self) -> u64 {
        let held = self.held();
        let mut kept: BTreeMap<usize, u64> = BTreeMap::new();
        for (_, of, bytes) in self.pinned_pages.iter().filter(|(by, of, _)| held.contains(by) && !held.contains(of)) {
            let kept = kept.entry(*of).or_default();
            *kept = (*kept + bytes).min(self.memory[*of].bytes);
        }
        kept.into_values().sum()
    }

    /// Memory that objects, mappings, registrations and exports hold.
    pub(super) fn held(&self) -> BTreeSet<usize> {
        let mut held: BTreeSet<usize> = self.maps.values().copied().flatten().collect();
        held.extend(&self.staged);
        held.extend(self.mapped_files.values());
        held.extend(self.exports.values().flatten());
        held.extend(self.registrations.values().filter_map(|registration| registration.memory));
        for object in &self.objects {
            held.extend(object.memory);
            held.extend(&object.attached);
        }
        held
    }

    /// Bytes of page tables that mappings on `card` may need: one of the lowest level for each 2
    /// MiB in which something is mapped, and four above for each 512 MiB.
    pub(super) fn page_tables(&self, card: u8) -> u64 {
        let of_uvm = self.maps.keys().filter(|key| key.1 == card).map(|key| (key.0, key.2, key.2));
        let of_pools = self.pools.iter().filter(|_| card < CARDS);
        let of_pools = of_pools.map(|(&(file, first), &pages)| (file, first, first + pages - 1));
        let of_uvm = of_uvm.chain(of_pools);
        let mut spans: Vec<_> = of_uvm
            .map(|(file, first, last)| ((0, u32::try_from(file).unwrap(), 0), first * PAGE, last * PAGE + (PAGE - 1)))
            .collect();
        let of_card = self.dma.iter().filter(|dma| dma.card() == card);
        spans.extend(of_card.map(|dma| ((1, dma.client, dma.memory), dma.first, dma.last)));
        spans.sort_unstable();
        let touched = |bits: u32| {
            let mut count = 0;
            let mut before = None;
            for &(space, first, last) in &spans {
                let (first, last) = (first >> bits, last >> bits);
                let counted =
                    before.filter(|&(of, _)| of == space).map_or(first, |(_, next): (_, u64)| first.max(next));
                count += (last + 1).saturating_sub(counted);
                before = Some((space, counted.max(last + 1)));
            }
            count
        };
        (touched(21) + 4 * touched(29)) * 4096
    }

    /// Bytes of managed memory, which may be on any card.
    pub(super) fn managed(&self) -> u64 {
        let mapped = self.vmas.values().filter(|vma| vma.enabled && !vma.is_on_host).count() as u64;
        (mapped + self.zombies.values().sum::<u64>()) * PAGE
    }

    /// Forgets what nobody has open any more.
    pub(super) fn close_unheld(&mut self) {
        for index in 0..self.control.len() {
            if self.control[index].alive && self.control[index].holders.is_empty() {
                self.control[index].alive = false;
                let clients = self.clients.iter().filter(|(_, file)| **file == index);
                for client in clients.map(|(&client, _)| client).collect::<Vec<_>>() {
                    self.free(client, client);
                }
            }
        }
        for index in 0..self.export.len() {
            if self.export[index].alive && self.export[index].holders.is_empty() {
                self.export[index].alive = false;
                self.exports.retain(|&(file, _), _| file != index);
            }
        }
        // A file that another one keeps was opened before it: the later ones first.
        for index in (0..self.uvm.len()).rev() {
            let mapped = self.vmas.values().any(|vma| vma.file == index);
            let mapped = mapped || self.mmaps.iter().any(|mmap| mmap.file == index);
            let kept = self.uvm.iter().any(|file| file.alive && file.keeps == Some(index));
            if self.uvm[index].alive && self.uvm[index].holders.is_empty() && !mapped && !kept {
                self.uvm[index].alive = false;
                self.empty_uvm(index);
            }
        }
    }

    /// All that a UVM file has is freed.
    pub(super) fn empty_uvm(&mut self, index: usize) {
        self.maps.retain(|&(file, ..), _| file != index);
        self.pools.retain(|&(file, _), _| file != index);
        self.registrations.retain(|&(file, ..), _| file != index);
        self.ranges.retain(|&(file, _), _| file != index);
        self.zombies.remove(&index);
        self.range_groups.remove(&index);
    }

    /// A process ends: its descriptors are closed, and its address space with the last process that
    /// has it.
    pub(super) fn exit(&mut self, process: i32) {
        for file in self.control.iter_mut().chain(&mut self.uvm).chain(&mut self.export) {
            file.holders.remove(&process);
        }
        let Some(mm) = self.processes.remove(&process) else { return };
        if !self.processes.values().any(|&of| of == mm) {
            let (gone, left) = std::mem::take(&mut self.vmas).into_iter().partition(|&((of, _), _)| of == mm);
            self.vmas = left;
            let gone: BTreeMap<(u64, u64), Vma> = gone;
            for vma in gone.values().filter(|vma| vma.enabled && !vma.is_on_host && self.uvm[vma.file].shared) {
                *self.zombies.entry(vma.file).or_default() += 1;
            }
        }
        self.mmaps.retain(|mmap| mmap.process != process);
        self.close_unheld();
    }

    /// Mappings of UVM files as `/proc/PID/maps` shows them: (first page, pages).
    pub(super) fn mapped(&self, mm: u64) -> Vec<(u64, u64)> {
        let mut shown: Vec<(u64, u64)> = Vec::new();
        let mut last_file = None;
        for (&(_, page), vma) in self.vmas.range((mm, 0)..=(mm, u64::MAX)) {
            match shown.last_mut() {
                Some((first, pages)) if *first + *pages == page && last_file == Some(vma.file) => *pages += 1,
                _ => shown.push((page, 1)),
            }
            last_file = Some(vma.file);
        }
        shown
    }
}
