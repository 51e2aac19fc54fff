//! Programs: bytes that say what happens next.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    api::{
        Accounts, Bytes, CHANNEL, Card, GROUP, Hold, Kind, Layout, ManagedSync, Mapping, ObjectLimits,
        PageTableReservation, Reservation, UvmFile,
    },
    world::{Dma, File, PAGE, PAGES_OF_A_BLOCK, World},
};

pub(super) const CARDS: u8 = 2;
/// A card that the grant does not have; a mapping may be on it all the same.
pub(super) const FOREIGN: u8 = 9;
pub(super) const LIMITS: ObjectLimits = ObjectLimits {
    clients: 5,
    channel_groups: 4,
    channels: 4,
    address_spaces: 4,
    devices: 4,
    events: 30,
    others: 30,
    objects: 40,
    references: 40,
    virtual_mappings: 40,
    processor_mappings: 4,
    pinned: 4,
    range_groups: 4,
    managed_ranges: 12,
    os_events: 4,
    host_memory: Bytes(35 * PAGE),
    host_mappings: 6,
};
/// The host's memory is charged like a card's.
pub(super) const CHARGED: [u8; 3] = [0, 1, Card::HOST.0];

/// An allocation that was reserved and not executed yet.
pub(super) struct Flying {
    pub(super) reservation: Reservation,
    pub(super) client: u32,
    pub(super) card: u8,
    pub(super) bytes: u64,
    pub(super) layout: Layout,
}

/// A pool of semaphores that was reserved and not made yet.
pub(super) struct FlyingPool {
    pub(super) hold: Hold,
    pub(super) tables: Tables,
    pub(super) file: usize,
    pub(super) first: u64,
    pub(super) pages: u64,
}

/// A call that pins memory.
pub(super) struct FlyingPin {
    pub(super) reservation: Reservation,
    pub(super) client: u32,
    pub(super) parent: u32,
    pub(super) handle: u32,
    pub(super) memory: usize,
    pub(super) length: u64,
}

/// Room for page tables: the bytes that were reserved of each card.
pub(super) struct Tables {
    pub(super) reservation: PageTableReservation,
    pub(super) bytes: [u64; CARDS as usize],
}

pub(super) struct Look {
    pub(super) sync: ManagedSync,
    /// Address spaces that existed when it began and were not read.
    pub(super) left: BTreeSet<u64>,
    /// Mappings that were read and not reported yet.
    pub(super) read: Vec<(u64, i32, Vec<Mapping>)>,
}

pub(super) struct Program<'a> {
    pub(super) bytes: std::slice::Iter<'a, u8>,
    pub(super) accounts: Accounts,
    pub(super) world: World,
    pub(super) flying: Vec<Flying>,
    /// Pools of semaphores that were reserved and not made yet.
    pub(super) flying_pools: Vec<FlyingPool>,
    /// Mappings in virtual memory that are about to be made.
    pub(super) flying_dma: Vec<(Tables, Dma)>,
    /// Calls that pin memory, of which it is not known yet what came of them.
    pub(super) flying_pins: Vec<FlyingPin>,
    /// There were tables of the resource manager's, whose frames are counted for longer.
    pub(super) has_virtual_tables: bool,
    /// Bytes of page tables that are reserved, of each card.
    pub(super) coming: [u64; CARDS as usize],
    /// A file was closed that an event woke: that event counts until its client goes.
    pub(super) events_lost: bool,
    pub(super) looks: Vec<Look>,
    pub(super) next_process: i32,
    pub(super) next_mm: u64,
    /// Something has ended, or was mapped, that was not reported to the account.
    pub(super) behind: bool,
    /// A handle came again before its end was reported: what it named stays charged for longer.
    pub(super) stale: bool,
    /// By page: the file that it was ever mapped of, and whether it was to stay on the host.
    pub(super) mapped_of: BTreeMap<(u64, u64), (usize, bool)>,
    /// fork has copied managed memory.
    pub(super) copied: bool,
    /// The account has to assume more than there is for longer: two files, or places, were
    /// mapped at one address, or a file that is shared by a process that has ended.
    pub(super) mixed: bool,
    /// A card may be over its limit: that was lowered, or an object could not be freed again.
    pub(super) may_exceed: [bool; CHARGED.len()],
    pub(super) reported: BTreeSet<usize>,
}

/// Runs the program that `bytes` spell, and compares the account with the world after each step.
pub fn run(bytes: &[u8]) {
    let limits = [Bytes(40 * PAGE), Bytes(30 * PAGE + 5)];
    let mut program = Program {
        bytes: bytes.iter(),
        accounts: Accounts::new(&limits, LIMITS),
        world: World::default(),
        flying: Vec::new(),
        flying_pools: Vec::new(),
        flying_dma: Vec::new(),
        flying_pins: Vec::new(),
        has_virtual_tables: false,
        coming: [0; CARDS as usize],
        events_lost: false,
        looks: Vec::new(),
        next_process: 101,
        next_mm: 2,
        behind: false,
        stale: false,
        mapped_of: BTreeMap::new(),
        copied: false,
        mixed: false,
        may_exceed: [false; CHARGED.len()],
        reported: BTreeSet::new(),
    };
    program.world.processes.insert(100, 1);
    while let Some(&operation) = program.bytes.next() {
        program.step(operation);
        program.check();
    }
    program.end();
}

/// Index of a card in [`CHARGED`].
pub(super) fn slot(card: u8) -> usize {
    CHARGED.iter().position(|charged| *charged == card).unwrap()
}

impl Program<'_> {
    pub(super) fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or(0)
    }

    pub(super) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    pub(super) fn pick<T: Clone>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let of: Vec<T> = of.into_iter().collect();
        let index = self.below(of.len());
        of.get(index).cloned()
    }

    pub(super) fn handle(&mut self) -> u32 {
        1 + u32::from(self.byte()) % 16
    }

    pub(super) fn client(&mut self) -> Option<u32> {
        let clients: Vec<_> = self.world.clients.keys().copied().collect();
        self.pick(clients)
    }

    pub(super) fn object(&mut self) -> Option<(u32, u32)> {
        let objects: Vec<_> = self.world.objects.iter().map(|object| (object.client, object.handle)).collect();
        self.pick(objects)
    }

    pub(super) fn process(&mut self) -> Option<i32> {
        let processes: Vec<_> = self.world.processes.keys().copied().collect();
        self.pick(processes)
    }

    /// A UVM file that some process has open.
    pub(super) fn uvm(&mut self) -> Option<usize> {
        let open = |(index, file): (usize, &File)| (!file.holders.is_empty() && file.keeps.is_none()).then_some(index);
        let files: Vec<_> = self.world.uvm.iter().enumerate().filter_map(open).collect();
        self.pick(files)
    }

    pub(super) fn step(&mut self, operation: u8) -> Option<()> {
        // Programs that were written before are to stay what they were.
        match if operation < 232 { operation % 48 } else { operation } {
            0 | 1 => self.new_client(),
            2 | 3 => self.reserve(),
            4 | 5 => self.execute(),
            6..=8 => self.reserve().and_then(|()| self.execute()),
            9 | 10 => self.make(),
            11 | 12 => self.free(),
            13 => self.free_client(),
            14 | 15 => self.duplicate(),
            16 => self.export(),
            17 => self.import(),
            18 => self.attach(),
            19 => self.open_uvm(),
            20 => self.external_range(),
            21 | 22 => self.map(),
            23 => self.unmap(),
            24 => self.free_range(),
            25 => self.card_gone(),
            26 => self.fork(),
            27 => self.exit(),
            28 => self.pass_files(),
            29 => self.mmap(),
            30 | 31 => self.execute_mmap(),
            32 => self.munmap(),
            33 => self.context(GROUP),
            34 => self.set_limit(),
            35 => self.look(),
            36 => self.tell_look(),
            37 => self.catch_up(),
            38 => self.reserve_pool(),
            39 => self.execute_pool(),
            40 => self.reserve_pool().and_then(|()| self.execute_pool()),
            41 => self.reserve_dma(),
            42 => self.execute_dma(),
            43 => self.reserve_dma().and_then(|()| self.execute_dma()),
            44 => self.unmap_dma(),
            45 => self.os_event(),
            46 => self.os_event_gone(),
            244..=246 => self.make_channel(),
            247 => self.fabric(),
            248..=250 => self.register_channel(),
            251 | 252 => self.make_channel().and_then(|()| self.register_channel()),
            253 => self.unregister_channel(),
            254 | 255 => self.context(CHANNEL),
            232 => self.mmap_on_host(),
            233 => self.tell(),
            234 => self.move_to_cards(),
            235 => self.addresses(),
            236 => self.pin(),
            237 => self.pin().and_then(|()| self.settle_pin()),
            238 => self.settle_pin(),
            239 | 240 => self.map_for_processor(),
            241 => self.close_mapped_file(),
            242 => self.range_group(),
            243 => self.range_group_gone(),
            _ => self.map_nothing(),
        }
    }

    /// Compares the account with the world.
    pub(super) fn check(&mut self) {
        for (at, card) in CHARGED.into_iter().enumerate() {
            let usage = self.accounts.card(Card(card)).unwrap();
            let (held, frames, padding) = (self.held(card), self.frames(card), self.padding(card));
            assert!(usage.frames.0 >= frames, "card {card}: frames of {} said, {frames} held", usage.frames.0);
            assert!(usage.used.0 >= held, "card {card}: {} said, {held} held", usage.used.0);
            if !self.behind && !self.stale && !self.mixed {
                assert!(usage.used.0 <= held + padding, "card {card}: {} said, {held} held", usage.used.0);
                let most = frames + padding;
                assert!(self.has_virtual_tables || usage.frames.0 <= most, "card {card}: frames of {frames}");
            }
            let addresses = self.world.addresses(card);
            assert!(usage.fabric.0 >= addresses, "card {card}: addresses of {} said, {addresses} held", usage.fabric.0);
            if !self.behind && !self.stale && !self.mixed {
                assert_eq!(usage.fabric.0, addresses, "card {card}: addresses");
            }
            let by_process: u64 = self.accounts.users().filter(|user| user.1 == Card(card)).map(|user| user.2.0).sum();
            assert_eq!(by_process, if card < CARDS { usage.used.0 } else { 0 }, "the processes' sum");
            // What is left of a range that was cut is charged more than before.
            let exceeds = usage.used.0 > usage.limit.0 + padding;
            assert!(!exceeds || self.may_exceed[at] || self.mixed, "card {card} is over its limit");
            self.may_exceed[at] &= usage.used > usage.limit;
            assert!(usage.high_water >= usage.used);
        }
        for card in [0, 1, FOREIGN] {
            let coming = self.coming.get(usize::from(card)).copied().unwrap_or(0);
            let (said, needed) = (self.accounts.page_tables(Card(card)).0, self.world.page_tables(card) + coming);
            assert!(said >= needed, "card {card}: {said} bytes of page tables said, {needed} needed");
            if !self.behind && !self.stale && !self.mixed {
                assert_eq!(said, needed, "page tables of card {card}");
            }
        }
        self.check_pinned();
        assert_eq!(self.accounts.abandoned(), 0);
        let counts = self.accounts.counts();
        assert!(counts.objects <= LIMITS.objects && counts.clients <= LIMITS.clients);
        assert!(counts.channel_groups <= LIMITS.channel_groups && counts.channels <= LIMITS.channels);
        let events = u32::try_from(self.world.events.values().map(BTreeSet::len).sum::<usize>()).unwrap();
        assert!(counts.os_events >= events && (self.events_lost || counts.os_events <= LIMITS.os_events));
        let is_exact = !self.behind && !self.stale;
        if is_exact {
            assert!(counts.os_events == events || self.events_lost);
            assert_eq!(counts.clients as usize, self.world.clients.len());
        }
        let files = 0..self.world.uvm.len() as u64;
        let registered: usize = files.map(|file| self.accounts.registered_channels(UvmFile(file)).len()).sum();
        assert!(registered >= self.world.registrations.len());
        // A file that is kept for longer keeps its channels for longer.
        let is_exact = is_exact && (!self.mixed || registered == self.world.registrations.len());
        assert!(!is_exact || registered == self.world.registrations.len());
        for (said, kind) in [
            (counts.objects, None),
            (counts.channel_groups, Some(GROUP)),
            (counts.channels, Some(CHANNEL)),
            (counts.address_spaces, Some(Kind::AddressSpace)),
            (counts.pinned, Some(Kind::Pinned)),
        ] {
            let flying = if kind.is_none() { self.flying.len() } else { 0 };
            let (said, there) = (said as usize, self.world.count(kind) + flying);
            assert!(said >= there, "{kind:?}: {said} said, {there} there");
            assert!(!is_exact || said == there, "{kind:?}: {said} said, {there} there");
        }
    }

    /// Bytes that managed memory may be charged beyond its own: each range less than a block on
    /// either side.
    fn padding(&self, card: u8) -> u64 {
        let ranges = if card < CARDS { self.accounts.counts().managed_ranges as u64 } else { 0 };
        ranges * 2 * (PAGES_OF_A_BLOCK - 1) * PAGE
    }

    /// Bytes of a card that the driver holds, or is about to.
    pub(super) fn held(&self, card: u8) -> u64 {
        let flying: u64 = self.flying.iter().filter(|flying| flying.card == card).map(|flying| flying.bytes).sum();
        self.world.allocated(card) + flying + self.held_in_own_frames(card)
    }

    /// The same in frames, what is about to be made at its worst.
    fn frames(&self, card: u8) -> u64 {
        let flying = self.flying.iter().filter(|flying| flying.card == card && flying.bytes > 0);
        let flying: u64 = flying.map(|flying| flying.layout.frames(flying.bytes)).sum();
        self.world.frames(card) + flying + self.held_in_own_frames(card)
    }

    fn held_in_own_frames(&self, card: u8) -> u64 {
        let managed = if card < CARDS { self.world.managed() } else { 0 };
        let pools = self.world.pools.values().copied().chain(self.flying_pools.iter().map(|pool| pool.pages));
        let pools: u64 = pools.filter(|_| card == Card::HOST.0).sum();
        managed + pools * PAGE
    }

    /// Ends everything and reports all ends: nothing is left.
    fn end(mut self) {
        for flying in std::mem::take(&mut self.flying) {
            self.accounts.cancel(flying.reservation);
        }
        for flying in std::mem::take(&mut self.flying_pins) {
            self.accounts.cancel(flying.reservation);
        }
        self.world.staged.clear();
        while !self.flying_pools.is_empty() {
            self.execute_pool();
        }
        while !self.flying_dma.is_empty() {
            self.execute_dma();
        }
        for process in self.world.processes.keys().copied().collect::<Vec<_>>() {
            self.world.exit(process);
        }
        self.world.mapped_files.clear();
        self.behind = true;
        self.catch_up();
        for file in self.accounts.mapped_files() {
            self.accounts.mapped_file_gone(file);
        }
        self.check();
        assert_eq!((self.accounts.kept_by_pins().0, self.accounts.counts().range_groups), (0, 0));
        let counts = self.accounts.counts();
        assert_eq!((counts.os_events, self.coming), (0, [0; CARDS as usize]));
        let none = (0, 0, 0, 0, 0, 0, 0, 0);
        let objects = (counts.clients, counts.objects, counts.channel_groups, counts.channels, counts.address_spaces);
        assert_eq!(
            (
                objects.0,
                objects.1,
                objects.2,
                objects.3,
                objects.4,
                counts.charges,
                counts.references,
                counts.managed_ranges
            ),
            none
        );
        assert_eq!(self.accounts.users().count(), 0);
        for (card, usage) in self.accounts.cards() {
            assert_eq!((usage.used, usage.fabric), (Bytes(0), Bytes(0)), "{card:?}");
            assert!(self.has_virtual_tables || usage.frames == Bytes(0), "{card:?}");
        }
    }
}
