//! Clients and objects.

use super::{
    api::*,
    program::{CARDS, CHARGED, Flying, LIMITS, Program, slot},
    world::{File, Memory, Object, PAGE},
};
use std::collections::BTreeSet;

impl Program<'_> {
    pub(super) fn new_client(&mut self) -> Option<()> {
        let process = self.process()?;
        let reservation: ClientReservation = match self.accounts.reserve_client(Pid(process)) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { .. }));
                assert_eq!(self.accounts.counts().clients, LIMITS.clients);
                return None;
            }
        };
        let client = 0xc0 + u32::from(self.byte()) % 8;
        if self.world.clients.contains_key(&client) {
            self.accounts.cancel_client(reservation);
            return None;
        }
        self.world.control.push(File { holders: BTreeSet::from([process]), alive: true, ..File::default() });
        self.world.clients.insert(client, self.world.control.len() - 1);
        let known = self.accounts.knows_client(Handle(client));
        assert_eq!(self.accounts.commit_client(reservation, Handle(client)).conflict, known);
        assert!(!known || self.behind || self.stale);
        self.stale |= known;
        Some(())
    }

    pub(super) fn reserve(&mut self) -> Option<()> {
        let (client, process) = (self.client()?, self.process()?);
        let card = CHARGED[self.below(CHARGED.len())];
        let bytes = u64::from(self.byte() % 24) * PAGE / 2;
        let fits = self.fits(card, bytes);
        let (kind, memory) = (Kind::Memory, Some((Card(card), Bytes(bytes))));
        let layout = [Layout::OwnFrames, Layout::Contiguous, Layout::Scattered][(bytes / (PAGE / 2) % 3) as usize];
        match self.accounts.reserve(AllocRequest {
            client: Handle(client),
            kind,
            memory,
            layout,
            process: Pid(process),
        }) {
            Ok(reservation) => {
                assert!(fits, "it does not fit, but was reserved");
                self.flying.push(Flying { reservation, client, card, bytes, layout });
                Some(())
            }
            Err(refusal) => {
                let full = self.accounts.counts().objects >= LIMITS.objects;
                let usage = self.accounts.card(Card(card)).unwrap();
                let fits = fits && usage.frames.0 + layout.frames(bytes) <= usage.frames_limit.0;
                assert!(full || !fits, "it fits, but was refused: {refusal}");
                None
            }
        }
    }

    /// The driver executes an allocation, for better or worse.
    pub(super) fn execute(&mut self) -> Option<()> {
        let index = self.below(self.flying.len());
        if index >= self.flying.len() {
            return None;
        }
        let Flying { reservation, client, card, bytes, layout } = self.flying.swap_remove(index);
        let (handle, parent) = (self.handle(), self.parent(client));
        let luck = self.byte();
        let known = self.world.clients.contains_key(&client);
        if !known || luck.is_multiple_of(8) || self.world.find(client, handle).is_some() {
            self.accounts.cancel(reservation);
            return None;
        }
        let larger = u64::from(luck % 8 == 1) * u64::from(luck >> 3) * PAGE / 4;
        let usage = self.accounts.card(Card(card)).unwrap();
        let frames = layout.frames(bytes + larger) - layout.frames(bytes);
        let fits = usage.used.0 + larger <= usage.limit.0 && usage.frames.0 + frames <= usage.frames_limit.0;
        // Told by mistake: memory goes with nothing but its parents.
        let mistaken = [Handle(self.handle())];
        // Behind all that there ever was, at times in the same frame.
        let ends = self.world.memory.iter().filter_map(|memory| Some(memory.address? + memory.bytes));
        let mut address = Some(ends.max().unwrap_or(0).next_multiple_of(GRANULE));
        let placement = Placement::under(Handle(parent), Handle(handle)).going_with(&mistaken).at(address);
        match self.accounts.commit(reservation, placement, Some(Bytes(bytes + larger))) {
            Ok(committed) => {
                assert!(fits || larger == 0, "it has grown and does not fit, but was taken");
                assert!(!committed.conflict || self.stale);
            }
            Err(refused) => {
                assert!(!fits && larger > 0, "it fits, but was not taken: {:?}", refused.why);
                if luck & 0x80 == 0 {
                    self.accounts.cancel(refused.reservation);
                    return None;
                }
                // It could not be freed again.
                self.accounts.commit_anyway(refused.reservation, placement).unwrap();
                self.may_exceed[slot(card)] = true;
                address = None;
            }
        }
        self.world.memory.push(Memory { card, bytes: bytes + larger, layout, address });
        self.add_object(client, handle, vec![parent], Some(self.world.memory.len() - 1), Kind::Memory);
        Some(())
    }

    /// The client itself, or an object of it.
    pub(super) fn parent(&mut self, client: u32) -> u32 {
        let of_client = self.world.objects.iter().filter(|object| object.client == client);
        let parents: Vec<_> = of_client.map(|object| object.handle).chain([client]).collect();
        self.pick(parents).unwrap_or(client)
    }

    pub(super) fn add_object(
        &mut self,
        client: u32,
        handle: u32,
        goes_with: Vec<u32>,
        memory: Option<usize>,
        kind: Kind,
    ) {
        let number = self.world.objects_ever;
        self.world.objects_ever += 1;
        let mut object =
            Object { number, kind, client, handle, goes_with, memory, attached: Vec::new(), takes_context: false };
        // A channel in a group has its group's.
        object.takes_context = kind == GROUP || kind == CHANNEL && self.world.group_of(&object).is_none();
        self.world.objects.push(object);
    }

    pub(super) fn make(&mut self) -> Option<()> {
        let (client, process) = (self.client()?, self.process()?);
        let kind = [Kind::Other, GROUP, CHANNEL, Kind::AddressSpace][self.below(4)];
        let (handle, parent, on) = (self.handle(), self.parent(client), self.parent(client));
        self.make_of(kind, (client, handle), process, [parent, on])
    }

    /// An object that goes with two others, the first of which is its parent.
    pub(super) fn make_of(
        &mut self,
        kind: Kind,
        (client, handle): (u32, u32),
        process: i32,
        [parent, on]: [u32; 2],
    ) -> Option<()> {
        let layout = Layout::OwnFrames;
        let ask = AllocRequest { client: Handle(client), kind, memory: None, layout, process: Pid(process) };
        let reservation = match self.accounts.reserve(ask) {
            Ok(reservation) => reservation,
            Err(refusal) => {
                assert!(matches!(refusal, Refusal::TooMany { .. }));
                return None;
            }
        };
        if self.world.find(client, handle).is_some() {
            self.accounts.cancel(reservation);
            return None;
        }
        let dependencies = [Handle(on)];
        let placement = Placement::under(Handle(parent), Handle(handle)).going_with(&dependencies);
        let committed = self.accounts.commit(reservation, placement, None).unwrap();
        assert!(!committed.conflict || self.stale);
        self.add_object(client, handle, vec![parent, on], None, kind);
        Some(())
    }

    pub(super) fn free(&mut self) -> Option<()> {
        let client = self.client()?;
        let handle = self.handle();
        self.world.free(client, handle);
        self.accounts.free(Handle(client), Handle(handle)).unwrap();
        Some(())
    }

    pub(super) fn free_client(&mut self) -> Option<()> {
        let client = self.client().filter(|_| self.byte().is_multiple_of(4))?;
        self.world.free(client, client);
        self.accounts.free(Handle(client), Handle(client)).unwrap();
        assert!(self.accounts.free(Handle(client), Handle(1)).is_err());
        Some(())
    }

    pub(super) fn duplicate(&mut self) -> Option<()> {
        let ((source_client, source), client) = (self.object()?, self.client()?);
        let (handle, parent) = (self.handle(), self.parent(client));
        let name = ObjectName::new(Handle(source_client), Handle(source));
        let reservation = self.accounts.reserve_duplicate(name, Handle(client)).ok()?;
        self.place_shared(reservation, client, handle, parent, (source_client, source))
    }

    /// Commits a duplicate of `source`, unless the handle is taken.
    pub(super) fn place_shared(
        &mut self,
        reservation: Reservation,
        client: u32,
        handle: u32,
        parent: u32,
        source: (u32, u32),
    ) -> Option<()> {
        if self.world.find(client, handle).is_some() {
            self.accounts.cancel(reservation);
            return None;
        }
        let placement = Placement::under(Handle(parent), Handle(handle));
        let committed = self.accounts.commit(reservation, placement, None).unwrap();
        assert!(!committed.conflict || self.stale);
        let source = self.world.find(source.0, source.1).cloned().unwrap();
        self.add_object(client, handle, vec![parent], source.memory, source.kind);
        let duplicate = self.world.find_mut(client, handle)?;
        // A group without context buffers yet would get its own later; a duplicate of one is not
        // asked for them.
        duplicate.takes_context = source.takes_context && source.memory.is_some();
        duplicate.attached = source.attached;
        Some(())
    }

    /// Context buffers of a group, or of a channel that is in none.
    pub(super) fn context(&mut self, kind: Kind) -> Option<()> {
        let of_kind = self.world.objects.iter().filter(|object| object.kind == kind && object.takes_context);
        let groups: Vec<_> = of_kind.cloned().collect();
        let group = self.pick(groups)?;
        // They are made with a channel, which is registered later.
        if group.memory.is_none() && self.world.is_retained(group.number) {
            return None;
        }
        let bytes = u64::from(self.byte() % 8) * PAGE;
        let card = group.memory.map_or(self.byte() % CARDS, |memory| self.world.memory[memory].card);
        let name = ObjectName::new(Handle(group.client), Handle(group.handle));
        let verdict = self.accounts.charge_context(name, Card(card), Bytes(bytes));
        match group.memory {
            Some(memory) => self.world.memory[memory].bytes = bytes,
            None => {
                self.world.memory.push(Memory { layout: Layout::Contiguous, ..Memory::new(card, bytes) });
                let memory = Some(self.world.memory.len() - 1);
                self.world.find_mut(group.client, group.handle)?.memory = memory;
            }
        }
        self.may_exceed[slot(card)] |= verdict.is_err();
        let usage = self.accounts.card(Card(card)).unwrap();
        assert!(verdict.is_ok() || usage.used > usage.limit || usage.frames > usage.frames_limit);
        Some(())
    }

    pub(super) fn set_limit(&mut self) -> Option<()> {
        let card = self.byte() % CARDS;
        let limit = Bytes(u64::from(self.byte() % 64) * PAGE + 7);
        self.accounts.set_limit(Card(card), limit).unwrap();
        let usage = self.accounts.card(Card(card)).unwrap();
        assert_eq!(usage.limit, limit.floor_to_kib());
        self.may_exceed[slot(card)] |= usage.used > usage.limit;
        Some(())
    }
}
