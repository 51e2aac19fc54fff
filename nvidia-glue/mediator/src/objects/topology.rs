//! On which card a client's devices are.
//!
//! Only what matters to later calls is remembered: devices, subdevices, channels and their groups,
//! the driver's page about a card, and addresses on the fabric. What is remembered of an object
//! that went with another one does no harm: the driver refuses whatever names it, and a handle that
//! is used again is written anew. Devices and subdevices go with nothing but what they are below,
//! so what is remembered of those is there.

use std::collections::BTreeSet;

use abi::Handle;
use account::Card;
use foldhash::HashMap;

/// Role of an object, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectRole {
    Device,
    Subdevice,
    /// A channel group; whether the size of its context buffers is known, so that nobody needs to
    /// ask for it (again), and whether its kernels can be preempted at any instruction.
    Group {
        is_measured: bool,
        is_preemptible: bool,
    },
    /// A channel; whether it has an object of the graphics engine, with which its context buffers
    /// come, and whether its kernels can be preempted at any instruction, should it be in no group.
    Channel {
        has_context: bool,
        is_preemptible: bool,
    },
    /// The page on which the driver tells about the card; whether its program wants to know there
    /// how busy the card is.
    SharedData {
        is_watched: bool,
    },
    /// Addresses on the fabric to which memory may be attached by this handle: the one that they
    /// were made with.
    FlexibleFabric,
}

#[derive(Debug, Clone, Copy)]
struct Placed {
    card: Card,
    parent: Handle,
    place: ObjectRole,
}

/// The devices of all clients.
#[derive(Debug, Default)]
pub(crate) struct Topology {
    clients: HashMap<Handle, HashMap<Handle, Placed>>,
}

impl ObjectRole {
    /// A channel group that is new.
    pub(crate) const NEW_GROUP: Self = Self::Group { is_measured: false, is_preemptible: false };

    /// A channel that is new.
    pub(crate) const NEW_CHANNEL: Self = Self::Channel { has_context: false, is_preemptible: false };
}

impl Topology {
    pub(crate) fn add(&mut self, client: Handle, parent: Handle, object: Handle, card: Card, place: ObjectRole) {
        self.clients.entry(client).or_default().insert(object, Placed { card, parent, place });
    }

    /// The card that an object is on, if it is one that was added.
    pub(crate) fn card_of(&self, client: Handle, object: Handle) -> Option<Card> {
        self.placed(client, object).map(|placed| placed.card)
    }

    /// The device that an object is below.
    pub(crate) fn device_above(&self, client: Handle, object: Handle) -> Option<Handle> {
        let mut above = object;
        loop {
            let placed = self.placed(client, above)?;
            if placed.place == ObjectRole::Device {
                return Some(above);
            }
            above = placed.parent;
        }
    }

    /// The subdevice below a device: the driver makes no second one.
    pub(crate) fn subdevice_below(&self, client: Handle, device: Handle) -> Option<Handle> {
        let mut objects = self.clients.get(&client)?.iter();
        objects
            .find(|(_, placed)| placed.parent == device && placed.place == ObjectRole::Subdevice)
            .map(|(handle, _)| *handle)
    }

    /// Returns whether the object is a device or subdevice.
    pub(crate) fn is_device(&self, client: Handle, object: Handle) -> bool {
        self.placed(client, object)
            .is_some_and(|placed| matches!(placed.place, ObjectRole::Device | ObjectRole::Subdevice))
    }

    /// The card that the object is a device of, if it is one.
    pub(crate) fn device_card(&self, client: Handle, object: Handle) -> Option<Card> {
        let placed = self.placed(client, object)?;
        (placed.place == ObjectRole::Device).then_some(placed.card)
    }

    fn placed(&self, client: Handle, object: Handle) -> Option<&Placed> {
        self.clients.get(&client)?.get(&object)
    }

    fn place_mut(&mut self, client: Handle, object: Handle) -> Option<&mut ObjectRole> {
        Some(&mut self.clients.get_mut(&client)?.get_mut(&object)?.place)
    }

    /// Returns whether the object is a channel group, and whether its buffers are measured.
    pub(crate) fn group(&self, client: Handle, object: Handle) -> Option<bool> {
        match self.placed(client, object)?.place {
            ObjectRole::Group { is_measured, .. } => Some(is_measured),
            _ => None,
        }
    }

    /// The card that the object is a subdevice of, if it is one.
    pub(crate) fn subdevice_card(&self, client: Handle, object: Handle) -> Option<Card> {
        let placed = self.placed(client, object)?;
        (placed.place == ObjectRole::Subdevice).then_some(placed.card)
    }

    /// The card that the object is a channel group on, if it is one.
    pub(crate) fn group_card(&self, client: Handle, object: Handle) -> Option<Card> {
        let placed = self.placed(client, object)?;
        matches!(placed.place, ObjectRole::Group { .. }).then_some(placed.card)
    }

    /// The buffers of a channel group are measured.
    pub(crate) fn group_is_measured(&mut self, client: Handle, object: Handle) {
        if let Some(ObjectRole::Group { is_measured, .. }) = self.place_mut(client, object) {
            *is_measured = true;
        }
    }

    /// Returns the object with the context of a channel or a group: the group, or a channel
    /// that is in none.
    pub(crate) fn context_of(&self, client: Handle, object: Handle) -> Option<Handle> {
        let placed = self.placed(client, object)?;
        match placed.place {
            ObjectRole::Group { .. } => Some(object),
            ObjectRole::Channel { .. } => {
                let is_grouped = self.group(client, placed.parent).is_some();
                Some(if is_grouped { placed.parent } else { object })
            }
            _ => None,
        }
    }

    /// Returns whether the kernels in a context can be preempted at any instruction.
    pub(crate) fn is_preemptible(&self, client: Handle, context: Handle) -> bool {
        self.placed(client, context).is_some_and(|placed| match placed.place {
            ObjectRole::Group { is_preemptible, .. } | ObjectRole::Channel { is_preemptible, .. } => is_preemptible,
            _ => false,
        })
    }

    /// They can be.
    pub(crate) fn set_preemptible(&mut self, client: Handle, context: Handle) {
        if let Some(ObjectRole::Group { is_preemptible, .. } | ObjectRole::Channel { is_preemptible, .. }) =
            self.place_mut(client, context)
        {
            *is_preemptible = true;
        }
    }

    /// A channel has got its context buffers: what it is in, if it is one that was added.
    pub(crate) fn context_came(&mut self, client: Handle, channel: Handle) -> Option<Handle> {
        let placed = self.clients.get_mut(&client)?.get_mut(&channel)?;
        let ObjectRole::Channel { has_context, .. } = &mut placed.place else { return None };
        *has_context = true;
        Some(placed.parent)
    }

    /// Returns whether the object is a channel with context buffers.
    pub(crate) fn has_context(&self, client: Handle, channel: Handle) -> bool {
        self.placed(client, channel)
            .is_some_and(|placed| matches!(placed.place, ObjectRole::Channel { has_context: true, .. }))
    }

    /// The card that the object is the driver's page about, if it is one.
    pub(crate) fn shared_data(&self, client: Handle, object: Handle) -> Option<Card> {
        let placed = self.placed(client, object)?;
        matches!(placed.place, ObjectRole::SharedData { .. }).then_some(placed.card)
    }

    /// The card that the object is addresses of, on the fabric, to which it may attach memory.
    pub(crate) fn flexible_fabric(&self, client: Handle, object: Handle) -> Option<Card> {
        let placed = self.placed(client, object)?;
        (placed.place == ObjectRole::FlexibleFabric).then_some(placed.card)
    }

    /// Notes whether the program wants to know there how busy the card is.
    pub(crate) fn watches(&mut self, client: Handle, object: Handle, wants: bool) {
        if let Some(ObjectRole::SharedData { is_watched }) = self.place_mut(client, object) {
            *is_watched = wants;
        }
    }

    /// The cards on whose pages somebody wants to know how busy they are.
    pub(crate) fn watched(&self) -> BTreeSet<Card> {
        let objects = self.clients.values().flat_map(HashMap::values);
        objects
            .filter(|placed| placed.place == ObjectRole::SharedData { is_watched: true })
            .map(|placed| placed.card)
            .collect()
    }

    /// An object was freed, and what hangs from it; the client itself, to forget all of it.
    pub(crate) fn remove(&mut self, client: Handle, object: Handle) {
        if client == object {
            self.clients.remove(&client);
            return;
        }
        let Some(objects) = self.clients.get_mut(&client) else { return };
        if objects.remove(&object).is_none() {
            return;
        }
        let mut gone = vec![object];
        while let Some(parent) = gone.pop() {
            objects.retain(|handle, placed| {
                let stays = placed.parent != parent;
                if !stays {
                    gone.push(*handle);
                }
                stays
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Handle = Handle(1);

    #[test]
    fn what_hangs_from_a_device_goes_with_it() {
        let mut topology = Topology::default();
        let (device, subdevice, group) = (Handle(2), Handle(3), Handle(4));
        topology.add(CLIENT, CLIENT, device, Card(1), ObjectRole::Device);
        topology.add(CLIENT, device, subdevice, Card(1), ObjectRole::Subdevice);
        topology.add(CLIENT, device, group, Card(1), ObjectRole::NEW_GROUP);
        assert_eq!(topology.card_of(CLIENT, group), Some(Card(1)));
        assert_eq!(topology.subdevice_below(CLIENT, device), Some(subdevice));
        assert_eq!(topology.subdevice_below(CLIENT, group), None);
        assert_eq!(topology.group(CLIENT, group), Some(false));
        topology.group_is_measured(CLIENT, group);
        assert_eq!(topology.group(CLIENT, group), Some(true));
        assert_eq!(topology.group(CLIENT, device), None);
        let channel = Handle(5);
        topology.add(CLIENT, group, channel, Card(1), ObjectRole::NEW_CHANNEL);
        assert!(!topology.has_context(CLIENT, channel));
        assert_eq!(topology.device_above(CLIENT, channel), Some(device));
        assert_eq!(
            [channel, group, device].map(|of| topology.context_of(CLIENT, of)),
            [Some(group), Some(group), None]
        );
        topology.set_preemptible(CLIENT, group);
        assert_eq!([channel, group].map(|of| topology.is_preemptible(CLIENT, of)), [false, true]);
        assert_eq!(topology.context_came(CLIENT, channel), Some(group));
        assert!(topology.has_context(CLIENT, channel));
        assert_eq!(topology.context_came(CLIENT, group), None, "no channel");
        topology.remove(CLIENT, device);
        assert!(!topology.has_context(CLIENT, channel));
        for object in [device, subdevice, group] {
            assert_eq!(topology.card_of(CLIENT, object), None);
        }
        topology.add(CLIENT, CLIENT, device, Card(0), ObjectRole::Device);
        topology.remove(CLIENT, CLIENT);
        assert!(!topology.is_device(CLIENT, device));
    }
}
