//! Questions that the account answers about itself.

use std::collections::BTreeSet;

use abi::{Handle, classes::NV20_SUBDEVICE_0};
use base::{Pid, units::Bytes};
use foldhash::HashSet;

use super::Accounts;
use crate::{Card, CardUsage, ExportFile, Kind, ObjectName, Refusal, UvmFile, tree::Index};

/// Number of things of each sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Clients, reserved ones included.
    pub clients: u32,
    /// Objects, reserved ones included.
    pub objects: u32,
    /// Channel groups, reserved ones included.
    pub channel_groups: u32,
    /// Channels, reserved ones included.
    pub channels: u32,
    /// Address spaces, reserved ones included.
    pub address_spaces: u32,
    /// Physical allocations that are charged; without managed memory.
    pub charges: usize,
    /// External ranges, pools, mappings and channels of UVM files, exports, attachments, and
    /// mappings in virtual memory.
    pub references: usize,
    /// Ranges of managed memory, reserved ones included.
    pub managed_ranges: usize,
    /// Handles that the driver gave while they were still known here: more than a few mean that
    /// ends are missed.
    pub conflicts: u64,
    /// Events that wake files.
    pub os_events: u32,
    /// Mappings for the processor.
    pub processor_mappings: u32,
    /// Pinned memory, and what may be.
    pub pinned: u32,
    /// Groups of ranges of managed memory.
    pub range_groups: u32,
    /// Files through which memory of the host's was mapped, and that were not found gone yet.
    pub host_mappings: usize,
    /// See [`Accounts::abandoned`].
    pub abandoned: u64,
}

/// One object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectView {
    /// Its sort.
    pub kind: Kind,
    /// Charge that it holds, alone or with others.
    pub charge: Option<(Card, Bytes)>,
    /// Length of the memory that it is; 0: none of its own, or nobody has said.
    pub length: Bytes,
    /// It goes with another object, besides its parent.
    pub has_dependencies: bool,
}

/// Remains of a process, to be checked: each may live on in another process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessEnd {
    /// Clients that it made: probe them, and report those that are gone
    /// ([`Accounts::client_gone`]).
    pub clients: Vec<Handle>,
    /// UVM files that it initialised: report those that are closed ([`Accounts::uvm_file_gone`]).
    pub uvm_files: Vec<UvmFile>,
    /// True if it had managed memory: then compare with what all processes have mapped
    /// ([`Accounts::begin_sync`]).
    pub managed: bool,
}

impl Accounts {
    /// A card's numbers.
    ///
    /// # Errors
    /// When the grant has no such card.
    pub fn card(&self, card: Card) -> Result<CardUsage, Refusal> {
        self.cards.usage(card)
    }

    /// The cards of the grant.
    pub fn cards(&self) -> impl Iterator<Item = (Card, CardUsage)> {
        self.cards.all().filter_map(|card| Some((card, self.cards.usage(card).ok()?)))
    }

    /// Returns whether more of a card is used than may be.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.cards().any(|(_, usage)| usage.used > usage.limit)
    }

    /// Channels of a card, reserved ones included, and the most that there may be.
    pub fn channels(&self, card: Card) -> (u32, u32) {
        (self.counts.channels.get(&card).copied().unwrap_or(0), self.cards.channel_limit(card))
    }

    /// Changes how many channels there may be of a card, and groups of channels. Only what is asked
    /// from now on is refused.
    ///
    /// # Errors
    /// When the grant has no such card.
    pub fn set_channel_limit(&mut self, card: Card, channels: u32) -> Result<(), Refusal> {
        self.cards.set_channel_limit(card, channels)
    }

    /// Changes a card's limit, floored to KiB. More than that may be used then; only what is asked
    /// from now on is refused.
    ///
    /// # Errors
    /// When the grant has no such card.
    pub fn set_limit(&mut self, card: Card, limit: Bytes) -> Result<(), Refusal> {
        self.cards.set_limit(card, limit)
    }

    /// Bytes of `card` that `process` uses.
    pub fn used_by(&self, process: Pid, card: Card) -> Bytes {
        self.cards.used_by(process, card)
    }

    /// Every process that uses something of a card, in no order; one may have ended while what it
    /// made lives on.
    pub fn users(&self) -> impl Iterator<Item = (Pid, Card, Bytes)> {
        self.cards.users()
    }

    /// Counts an allocation that was refused for good.
    pub fn count_denial(&mut self, card: Card) {
        self.cards.count_denial(card);
    }

    /// Number of objects of each kind.
    pub fn counts(&self) -> Counts {
        Counts {
            clients: self.counts.clients,
            objects: self.counts.objects,
            channel_groups: self.counts.channel_groups,
            channels: self.counts.channels.values().sum(),
            address_spaces: self.counts.address_spaces,
            charges: self.charges.len(),
            references: self.references(),
            managed_ranges: self.managed.len(),
            conflicts: self.conflicts,
            os_events: u32::try_from(self.os_events.values().map(HashSet::len).sum::<usize>()).unwrap_or(u32::MAX),
            processor_mappings: self.processor_mappings.len(),
            pinned: self.counts.pinned,
            range_groups: self.range_groups(),
            host_mappings: self.host_mappings.len(),
            abandoned: self.abandoned(),
        }
    }

    /// Number of references, which [`ObjectLimits::references`](crate::ObjectLimits::references)
    /// limits.
    pub(super) fn references(&self) -> usize {
        let files = self.uvm.references() + self.registrations.len() + self.exports.len();
        files + self.attachments.len() + self.page_tables.references()
    }

    /// Returns whether the client was allocated through this account.
    pub fn knows_client(&self, client: Handle) -> bool {
        self.clients.contains_key(&client)
    }

    /// Process that made a client.
    pub fn owner(&self, client: Handle) -> Option<Pid> {
        self.clients.get(&client).map(|client| client.process)
    }

    /// An object, if it is known.
    pub fn object(&self, name: ObjectName) -> Option<ObjectView> {
        let index = self.tree.find(name)?;
        let object = self.tree.get(index)?;
        let charge = object.charge.and_then(|charge| self.charges.amount(charge));
        let has_dependencies = self.tree.has_dependencies(index);
        Some(ObjectView { kind: object.kind, charge, length: object.length, has_dependencies })
    }

    /// Bytes of a card's memory that nothing refers to but its handle and this number of mappings
    /// in external ranges: it can leave the card. `None`: something else does.
    #[cfg(feature = "parking")]
    pub fn movable(&self, name: ObjectName, mappings: u32) -> Option<Bytes> {
        let index = self.tree.find(name)?;
        let object = self.tree.get(index).filter(|object| object.kind == Kind::Memory)?;
        let charge = object.charge.filter(|charge| self.charges.is_held_by(*charge, mappings.saturating_add(1)))?;
        let is_alone = self.tree.goes_with(index).len() == 1
            && !self.tree.has_outside_notifiers(index)
            && !self.is_mapped_for_processor(index);
        let (card, bytes) = self.charges.amount(charge)?;
        (is_alone && mappings > 0 && card != Card::HOST).then_some(bytes)
    }

    /// Returns whether freeing an object would leave something that notifies it, or what goes with
    /// it, of its errors. A client's own handle leaves nothing.
    pub fn has_outside_notifiers(&self, name: ObjectName) -> bool {
        name.object != name.client && self.tree.find(name).is_some_and(|index| self.tree.has_outside_notifiers(index))
    }

    /// Channels and channel groups that are freed with an object, itself included.
    pub fn channels_freed_with(&self, name: ObjectName) -> Vec<ObjectName> {
        let all = self.tree.find(name).map(|index| self.tree.goes_with(index)).unwrap_or_default();
        let objects = all.into_iter().filter_map(|(index, _)| self.tree.get(index));
        objects.filter(|object| object.kind.is_channel()).map(|object| object.name).collect()
    }

    /// Processes whose clients have an object of `class` on `card`: an engine's, MPS's, or the
    /// card's subdevice, whose class stands for all users of the card. An object that is below no
    /// device (MPS's) is on all cards.
    pub fn holders(&self, class: u32, card: Card) -> BTreeSet<Pid> {
        let is_meant = |(index, kind): (Index, Kind)| match kind {
            Kind::Device(on) => class == NV20_SUBDEVICE_0 && on == card,
            Kind::Engine(of) => of == class && self.card_above(index).is_none_or(|on| on == card),
            _ => false,
        };
        let meant = self.tree.objects().filter(|(index, object)| is_meant((*index, object.kind)));
        meant.filter_map(|(_, object)| self.owner(object.name.client)).collect()
    }

    fn card_above(&self, index: Index) -> Option<Card> {
        let mut above = std::iter::successors(self.tree.parent(index), |index| self.tree.parent(*index));
        above.find_map(|index| match self.tree.get(index)?.kind {
            Kind::Device(card) => Some(card),
            _ => None,
        })
    }

    /// Every client, in no order.
    pub fn clients(&self) -> impl Iterator<Item = (Handle, Pid)> {
        self.clients.iter().map(|(&handle, client)| (handle, client.process))
    }

    /// Clients that hold a charge: those to probe before an allocation is refused for good.
    pub fn charged_clients(&self) -> Vec<Handle> {
        self.clients.iter().filter(|(_, client)| client.charged > 0).map(|(&handle, _)| handle).collect()
    }

    /// UVM files that map or keep memory or have channels or groups of ranges, and those that may
    /// keep one: to be looked for before an allocation is refused for good.
    pub fn charged_uvm_files(&self) -> BTreeSet<UvmFile> {
        let mut files = self.uvm.holders();
        files.extend(self.managed.zombie_files());
        files.extend(self.uvm.mm_files());
        files.extend(self.registrations.holders());
        files.extend(self.range_groups.keys());
        files
    }

    /// Files that something is exported to.
    pub fn export_files(&self) -> Vec<ExportFile> {
        self.exports.files()
    }

    /// Clients, UVM files and managed memory of a `process` that has ended. Nothing is released
    /// yet: they may live on in others (fork, `SCM_RIGHTS`, `CLONE_VM`).
    pub fn process_ended(&self, process: Pid) -> ProcessEnd {
        let clients = self.clients.iter().filter(|(_, client)| client.process == process);
        let files = self.uvm.files.iter().filter(|(_, file)| file.opener == process);
        ProcessEnd {
            clients: clients.map(|(&handle, _)| handle).collect(),
            uvm_files: files.map(|(&file, _)| file).collect(),
            managed: self.managed.has_ranges(process),
        }
    }
}
