//! Clients and objects: made, freed, gone.

use std::collections::BTreeMap;

use abi::{Handle, memory::Layout};
use base::{Pid, units::Bytes};

use super::{
    Accounts, CommitError, Hold, NotCommitted, Reservation,
    reserve::{Armed, ClientReservation},
};
use crate::{
    Card, Counted, Kind, ObjectLimits, ObjectName, Refusal,
    charges::ChargeId,
    tree::{Index, Tree},
};

/// Place of an object that was made.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// Its parent in the same client; one that is not known counts as the client itself.
    pub parent: Handle,
    /// Its own handle, as the driver returned it.
    pub object: Handle,
    /// Objects of the same client that it goes with, besides its parent: those that the driver
    /// calls `refAddDependant` for in every release (a channel: its address space and context
    /// share). Those that are not known are left out. Not among them is the memory of a channel's
    /// USERD: the channel outlives its handle ([`Accounts::attach`]).
    pub dependencies: &'a [Handle],
    /// Objects of the same client that the driver goes on using for it by an address of its own,
    /// without holding them: those that are notified of a channel's errors. Those that are not
    /// known are left out.
    pub notifiers: &'a [Handle],
    /// Length of the memory that it is; 0: none of its own, or nobody has said.
    pub length: Bytes,
    /// Address on its card where the memory begins that it is; `None`: nobody has said.
    pub address: Option<u64>,
}

impl<'a> Placement<'a> {
    /// `object` under `parent`, going with nothing else.
    pub const fn under(parent: Handle, object: Handle) -> Self {
        Self { parent, object, dependencies: &[], notifiers: &[], length: Bytes(0), address: None }
    }

    /// Sets the objects with which it is freed, besides its parent.
    #[must_use]
    pub const fn going_with(self, dependencies: &'a [Handle]) -> Self {
        Self { dependencies, ..self }
    }

    /// Sets the objects that are notified of its errors.
    #[must_use]
    pub const fn with_notifiers(self, notifiers: &'a [Handle]) -> Self {
        Self { notifiers, ..self }
    }

    /// Sets the length of its memory.
    #[must_use]
    pub const fn long(self, length: Bytes) -> Self {
        Self { length, ..self }
    }

    /// Sets the address of its card at which the memory begins.
    #[must_use]
    pub const fn at(self, address: Option<u64>) -> Self {
        Self { address, ..self }
    }
}

/// An object or client was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The handle was known already. What it named before stays charged until its parent (a client:
    /// the client) goes.
    pub conflict: bool,
}

/// Consequences of one free.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Freed {
    /// Number of objects, roots included.
    pub objects: u32,
    /// Bytes that are charged no more, of all cards.
    pub released: Bytes,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) root: Index,
    pub(super) process: Pid,
    /// Number of its objects that hold a charge.
    pub(super) charged: u32,
}

/// Number of objects, reserved ones included.
#[derive(Debug, Default)]
pub(super) struct ObjectCounts {
    pub(super) clients: u32,
    pub(super) channel_groups: u32,
    pub(super) channels: BTreeMap<Card, u32>,
    /// Groups, and channels that are in none.
    pub(super) group_numbers: BTreeMap<Card, u32>,
    pub(super) address_spaces: u32,
    pub(super) devices: BTreeMap<Card, u32>,
    pub(super) events: u32,
    pub(super) others: u32,
    pub(super) pinned: u32,
    pub(super) objects: u32,
}

impl ObjectCounts {
    /// Changes what an object of this kind counts as.
    fn change(&mut self, kind: Kind, change: impl Fn(&mut u32)) {
        change(&mut self.objects);
        match kind {
            Kind::ChannelGroup(card) => {
                change(&mut self.channel_groups);
                change(self.group_numbers.entry(card).or_default());
            }
            Kind::Channel { card, is_bare } => {
                change(self.channels.entry(card).or_default());
                if is_bare {
                    change(self.group_numbers.entry(card).or_default());
                }
            }
            Kind::AddressSpace => change(&mut self.address_spaces),
            Kind::Device(card) => change(self.devices.entry(card).or_default()),
            Kind::Event => change(&mut self.events),
            Kind::Engine(_) | Kind::Other => change(&mut self.others),
            Kind::Pinned => change(&mut self.pinned),
            Kind::Memory => {}
        }
    }

    /// `channels_of`: how many channels, and groups of channels, there may be of a card.
    pub(super) fn fits(
        &self,
        kind: Kind,
        limits: &ObjectLimits,
        channels_of: impl Fn(Card) -> u32,
    ) -> Result<(), Refusal> {
        let of = |counts: &BTreeMap<Card, u32>, card: Card| counts.get(&card).copied().unwrap_or(0);
        let group_number = |card| Some((of(&self.group_numbers, card), channels_of(card), Counted::ChannelGroups));
        let of_kind = match kind {
            Kind::ChannelGroup(card) => {
                [Some((self.channel_groups, limits.channel_groups, Counted::ChannelGroups)), group_number(card)]
            }
            Kind::Channel { card, is_bare } => {
                let channel = (of(&self.channels, card), channels_of(card), Counted::Channels);
                [Some(channel), group_number(card).filter(|_| is_bare)]
            }
            Kind::AddressSpace => [Some((self.address_spaces, limits.address_spaces, Counted::AddressSpaces)), None],
            Kind::Device(card) => [Some((of(&self.devices, card), limits.devices, Counted::Devices)), None],
            Kind::Event => [Some((self.events, limits.events, Counted::Events)), None],
            Kind::Engine(_) | Kind::Other => [Some((self.others, limits.others, Counted::Others)), None],
            Kind::Pinned => [Some((self.pinned, limits.pinned, Counted::Pinned)), None],
            Kind::Memory => [None, None],
        };
        let objects = (self.objects, limits.objects, Counted::Objects);
        for (count, limit, counted) in of_kind.into_iter().flatten().chain([objects]) {
            if count >= limit {
                return Err(Refusal::TooMany { counted, limit });
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, kind: Kind) {
        self.change(kind, |count| *count = count.saturating_add(1));
    }

    pub(super) fn subtract(&mut self, kind: Kind) {
        self.change(kind, |count| {
            debug_assert!(*count > 0, "more objects of a kind go than there are");
            *count = count.saturating_sub(1);
        });
    }
}

/// Charges that objects hold besides their own.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    held: BTreeMap<(Index, u64), ChargeId>,
    next: u64,
}

impl Attachments {
    fn add(&mut self, object: Index, charge: ChargeId) {
        self.held.insert((object, self.next), charge);
        self.next = self.next.wrapping_add(1);
    }

    /// Charges that an object holds.
    pub(super) fn of(&self, object: Index) -> impl Iterator<Item = ChargeId> + '_ {
        self.held.range((object, 0)..=(object, u64::MAX)).map(|(_, charge)| *charge)
    }

    fn pop(&mut self, object: Index) -> Option<ChargeId> {
        let key = *self.held.range((object, 0)..=(object, u64::MAX)).next()?.0;
        self.held.remove(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

impl Accounts {
    pub(super) fn too_many_objects(&self) -> Refusal {
        Refusal::TooMany { counted: Counted::Objects, limit: self.limits.objects }
    }

    /// Reserves room for a client of `process`.
    ///
    /// # Errors
    /// When there are too many.
    pub fn reserve_client(&mut self, process: Pid) -> Result<ClientReservation, Refusal> {
        if self.counts.clients >= self.limits.clients {
            return Err(Refusal::TooMany { counted: Counted::Clients, limit: self.limits.clients });
        }
        self.counts.clients += 1;
        Ok(ClientReservation { process, armed: Armed::new(&self.abandoned) })
    }

    /// The client exists: from here on it may be named. If one of that name was known already, what
    /// it holds stays charged to the new one until that goes; report it gone first
    /// ([`Accounts::client_gone`]) if it is known to be.
    pub fn commit_client(&mut self, reservation: ClientReservation, client: Handle) -> Committed {
        let process = reservation.process;
        reservation.armed.disarm();
        if let Some(known) = self.clients.get_mut(&client) {
            known.process = process;
            self.counts.clients = self.counts.clients.saturating_sub(1);
            self.conflicts = self.conflicts.saturating_add(1);
            return Committed { conflict: true };
        }
        // There is room: objects and clients are limited far below what an index can name.
        if let Some(root) = self.tree.add(Tree::root_name(client), Kind::Other, None, None) {
            self.clients.insert(client, Client { root, process, charged: 0 });
        }
        Committed { conflict: false }
    }

    /// The driver refused the client.
    pub fn cancel_client(&mut self, reservation: ClientReservation) {
        self.counts.clients = self.counts.clients.saturating_sub(1);
        reservation.armed.disarm();
    }

    /// Puts a reserved object into its client's tree.
    pub(super) fn place(
        &mut self,
        reservation: Reservation,
        placement: Placement<'_>,
    ) -> Result<Committed, NotCommitted> {
        let Some(client) = self.clients.get_mut(&reservation.client) else {
            return Err(NotCommitted { reservation, why: CommitError::ClientGone });
        };
        let name = |object| ObjectName::new(reservation.client, object);
        let parent = self.tree.find(name(placement.parent)).unwrap_or(client.root);
        let dependencies = placement.dependencies.iter().filter_map(|on| self.tree.find(name(*on)));
        let dependencies: Vec<Index> = dependencies.collect();
        let conflict = self.tree.find(name(placement.object)).is_some();
        let added = self.tree.add(name(placement.object), reservation.kind, Some(parent), reservation.charge);
        let Some(index) = added else { return Err(NotCommitted { reservation, why: CommitError::ClientGone }) };
        client.charged = client.charged.saturating_add(u32::from(reservation.charge.is_some()));
        // The driver lets memory go with its parents only: a dependency that is recorded by mistake
        // releases no charge.
        let is_memory = reservation.kind == Kind::Memory && reservation.charge.is_some();
        for on in dependencies.into_iter().filter(|_| !is_memory) {
            self.tree.depend(index, on);
        }
        for &notifier in placement.notifiers {
            if let Some(notifier) = self.tree.find(name(notifier)) {
                self.tree.notify(notifier, index);
            }
        }
        self.tree.set_length(index, placement.length);
        for charge in reservation.attached {
            self.attachments.add(index, charge);
        }
        self.conflicts = self.conflicts.saturating_add(u64::from(conflict));
        reservation.armed.disarm();
        Ok(Committed { conflict })
    }

    /// Removes a freed `object` with its children and dependants; a client's own handle frees the
    /// client. A handle that is not known in a known client changes nothing.
    ///
    /// # Errors
    /// When the client is not registered.
    pub fn free(&mut self, client: Handle, object: Handle) -> Result<Freed, Refusal> {
        if !self.clients.contains_key(&client) {
            return Err(Refusal::UnknownClient(client));
        }
        if object == client {
            return Ok(self.client_gone(client));
        }
        let index = self.tree.find(ObjectName::new(client, object));
        Ok(index.map(|index| self.remove(index)).unwrap_or_default())
    }

    /// Removes a client that was freed or found to be gone, with all its objects. One that is not
    /// registered changes nothing.
    pub fn client_gone(&mut self, client: Handle) -> Freed {
        let Some(root) = self.clients.get(&client).map(|client| client.root) else { return Freed::default() };
        let freed = self.remove(root);
        self.clients.remove(&client);
        self.os_events.remove(&client);
        self.counts.clients = self.counts.clients.saturating_sub(1);
        freed
    }

    pub(super) fn remove(&mut self, index: Index) -> Freed {
        let Self {
            tree,
            charges,
            cards,
            counts,
            clients,
            attachments,
            page_tables,
            registrations,
            processor_mappings,
            ..
        } = self;
        let mut freed = Freed::default();
        let mut released = 0_u64;
        tree.remove(index, |index, object| {
            freed.objects = freed.objects.saturating_add(1);
            let is_root = clients.get(&object.name.client).is_some_and(|client| client.root == index);
            if !is_root && !registrations.object_gone(index) {
                counts.subtract(object.kind);
            }
            if let Some(charge) = object.charge {
                released = released.saturating_add(charges.release(cards, charge).0);
                if let Some(client) = clients.get_mut(&object.name.client) {
                    client.charged = client.charged.saturating_sub(1);
                }
            }
            page_tables.object_gone(index);
            processor_mappings.object_gone(index);
            while let Some(charge) = attachments.pop(index) {
                released = released.saturating_add(charges.release(cards, charge).0);
            }
        });
        freed.released = Bytes(released);
        freed
    }

    /// Charges the memory that the driver allocates for an object's sake (the context buffers of a
    /// channel or its group): `bytes` in all, in place of what was charged for that before. Memory
    /// has no such thing.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`] when it has grown and is too much: it is charged all the same until
    /// the object is freed, which the caller must see to. Otherwise when the object or the card is
    /// not known, or not the one that it is charged on already.
    pub fn charge_context(&mut self, object: ObjectName, card: Card, bytes: Bytes) -> Result<(), Refusal> {
        let client = self.clients.get_mut(&object.client).ok_or(Refusal::UnknownClient(object.client))?;
        let unknown = Refusal::UnknownObject(object);
        let index = self.tree.find(object).ok_or(unknown)?;
        let charge = self.tree.get(index).filter(|object| object.kind != Kind::Memory).ok_or(unknown)?.charge;
        self.cards.usage(card)?;
        if let Some(charge) = charge {
            let (charged_on, before) = self.charges.amount(charge).ok_or(unknown)?;
            if charged_on != card {
                return Err(Refusal::UnknownCard(card));
            }
            self.charges.resize(&mut self.cards, charge, bytes);
            if bytes <= before {
                return Ok(());
            }
        } else {
            let charge = self.charges.add(&mut self.cards, client.process, (card, bytes), Layout::Contiguous);
            self.tree.set_charge(index, charge.ok_or(unknown)?);
            client.charged = client.charged.saturating_add(1);
        }
        self.cards.excess(card, bytes, Layout::Contiguous).map_or(Ok(()), |over| Err(over.into()))
    }

    /// Returns whether one more event may be made.
    ///
    /// # Errors
    /// When there are too many.
    pub fn os_event_fits(&self) -> Result<(), Refusal> {
        let limit = self.limits.os_events;
        if self.counts().os_events < limit {
            Ok(())
        } else {
            Err(Refusal::TooMany { counted: Counted::OsEvents, limit })
        }
    }

    /// Counts an event of `client` for a descriptor number (`NV_ESC_ALLOC_OS_EVENT`): the two are
    /// its name.
    pub fn os_event(&mut self, client: Handle, fd: i32) {
        // With a client that has gone meanwhile, it went.
        if self.clients.contains_key(&client) {
            self.os_events.entry(client).or_default().insert(fd);
        }
    }

    /// Returns whether there may be such an event: a file that is closed takes those with it that
    /// were made on it, without a call.
    pub fn has_os_event(&self, client: Handle, fd: i32) -> bool {
        self.os_events.get(&client).is_some_and(|events| events.contains(&fd))
    }

    /// Removes an event that was freed or does not exist.
    pub fn os_event_gone(&mut self, client: Handle, fd: i32) {
        if let Some(events) = self.os_events.get_mut(&client) {
            events.remove(&fd);
            if events.is_empty() {
                self.os_events.remove(&client);
            }
        }
    }

    /// Lets `object` hold the charge of `hold` until it is freed (memory attached to a fabric or
    /// multicast object, for one).
    ///
    /// # Errors
    /// Gives the hold back when the object is not known.
    pub fn attach(&mut self, hold: Hold, object: ObjectName) -> Result<(), Hold> {
        let Some(index) = self.tree.find(object) else { return Err(hold) };
        if let Some(charge) = hold.charge {
            self.attachments.add(index, charge);
        }
        hold.armed.disarm();
        Ok(())
    }
}
