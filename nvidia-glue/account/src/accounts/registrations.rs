//! Channels that are registered with UVM files.
//!
//! UVM retains a registered channel (`nvGpuOpsRetainChannel`,
//! src/nvidia/src/kernel/rmapi/nv_gpu_ops.c): its number, its buffers, and its group, of which it
//! has a duplicate in a client of the kernel's. They stay when the container frees its handles,
//! until the channel is unregistered, its card or the card's address space is, or the file is gone.
//! So what the group (a channel without one: the channel) is charged for is held by the
//! registration too, and group and channel go on being counted.

use std::collections::BTreeMap;

use base::Bytes;
use foldhash::HashMap;

use super::Accounts;
use crate::{Card, Kind, ObjectName, Refusal, UvmFile, charges::ChargeId, tree::Index};

/// Number of an object that something is registered for, whether or not it still exists.
type Number = u64;

#[derive(Debug)]
struct Registration {
    card: Card,
    charge: Option<ChargeId>,
    /// The channel, and its group if it has one.
    counted: Vec<Number>,
}

#[derive(Debug)]
struct Retained {
    kind: Kind,
    /// `None`: it is gone, and still counted.
    object: Option<Index>,
    registrations: u32,
}

/// All registrations.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// UVM takes a pair of handles once.
    channels: BTreeMap<(UvmFile, ObjectName), Registration>,
    retained: HashMap<Number, Retained>,
    by_object: HashMap<Index, Number>,
    next: Number,
}

impl Registrations {
    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Files with a registration.
    pub(super) fn holders(&self) -> impl Iterator<Item = UvmFile> + '_ {
        self.channels.keys().map(|(file, _)| *file)
    }

    fn of(&self, file: UvmFile) -> impl Iterator<Item = (ObjectName, Card)> + '_ {
        let registered = self.channels.range((file, FIRST)..=(file, LAST));
        registered.map(|((_, channel), registration)| (*channel, registration.card))
    }

    fn retain(&mut self, object: Index, kind: Kind) -> Number {
        let number = *self.by_object.entry(object).or_insert(self.next);
        self.next += u64::from(number == self.next);
        let new = Retained { kind, object: Some(object), registrations: 0 };
        let retained = self.retained.entry(number).or_insert(new);
        retained.registrations = retained.registrations.saturating_add(1);
        number
    }

    /// Drops a registration. Returns the kind of its object if that was the last one and the object
    /// is gone: it is counted no more.
    fn release(&mut self, number: Number) -> Option<Kind> {
        let retained = self.retained.get_mut(&number)?;
        retained.registrations = retained.registrations.saturating_sub(1);
        if retained.registrations > 0 {
            return None;
        }
        let Retained { kind, object, .. } = self.retained.remove(&number)?;
        let Some(object) = object else { return Some(kind) };
        self.by_object.remove(&object);
        None
    }

    /// Records that an object is gone. Returns whether it is still counted.
    pub(super) fn object_gone(&mut self, object: Index) -> bool {
        let retained = self.by_object.remove(&object).and_then(|number| self.retained.get_mut(&number));
        retained.is_some_and(|retained| {
            retained.object = None;
            true
        })
    }
}

const FIRST: ObjectName = ObjectName::new(abi::Handle(0), abi::Handle(0));
const LAST: ObjectName = ObjectName::new(abi::Handle(u32::MAX), abi::Handle(u32::MAX));

impl Accounts {
    /// Returns whether one more channel may be registered; ask before the driver is asked.
    ///
    /// # Errors
    /// When there are too many references.
    pub fn registration_fits(&self) -> Result<(), Refusal> {
        self.references_fit(1)
    }

    /// Records that `channel` was registered with `file` for `card` (`UVM_REGISTER_CHANNEL`).
    pub fn register_channel(&mut self, file: UvmFile, card: Card, channel: ObjectName) {
        // The driver refuses a pair of handles that it has: should it be known here, it has ended.
        self.unregister_channel(file, channel);
        let mut registration = Registration { card, charge: None, counted: Vec::new() };
        if let Some(index) = self.tree.find(channel) {
            let group =
                self.tree.parent(index).filter(|above| matches!(self.kind_of(*above), Some(Kind::ChannelGroup(_))));
            let charged = self.tree.get(group.unwrap_or(index)).and_then(|object| object.charge);
            registration.charge = charged.inspect(|charge| self.charges.hold(*charge));
            for index in [Some(index), group].into_iter().flatten() {
                if let Some(kind) = self.kind_of(index) {
                    registration.counted.push(self.registrations.retain(index, kind));
                }
            }
        }
        self.registrations.channels.insert((file, channel), registration);
    }

    fn kind_of(&self, index: Index) -> Option<Kind> {
        self.tree.get(index).map(|object| object.kind)
    }

    /// Drops a registration (`UVM_UNREGISTER_CHANNEL`). Returns the bytes that this released.
    pub fn unregister_channel(&mut self, file: UvmFile, channel: ObjectName) -> Bytes {
        let Some(registration) = self.registrations.channels.remove(&(file, channel)) else { return Bytes(0) };
        for number in registration.counted {
            if let Some(kind) = self.registrations.release(number) {
                self.counts.subtract(kind);
            }
        }
        registration.charge.map_or(Bytes(0), |charge| self.charges.release(&mut self.cards, charge))
    }

    /// The channels that are registered with `file`.
    pub fn registered_channels(&self, file: UvmFile) -> Vec<ObjectName> {
        self.registrations.of(file).map(|(channel, _)| channel).collect()
    }

    /// Drops all registrations with `file` of a card's channels (`None`: of any card's). Returns
    /// the bytes that this released.
    pub(super) fn unregister_channels(&mut self, file: UvmFile, card: Option<Card>) -> Bytes {
        let of_card = self.registrations.of(file).filter(|(_, on)| card.is_none_or(|card| card == *on));
        let gone: Vec<_> = of_card.map(|(channel, _)| channel).collect();
        let released = gone.into_iter().map(|channel| self.unregister_channel(file, channel).0);
        Bytes(released.fold(0, u64::saturating_add))
    }
}
