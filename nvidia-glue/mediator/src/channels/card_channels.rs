//! Channels and channel groups of the container on one card. Pure: it knows what calls say.
//!
//! A channel can do work only once it is scheduled, and only then is it named to the driver.
//! Whatever made it runnable once counts as runnable until it is gone: a schedule call with
//! `bEnable` = 0 does not keep it off the card (docs/driver-facts.md).

mod engine;
mod groups;
mod off;

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use abi::Handle;
use account::ObjectName;
use base::Throttle;

pub(crate) use self::engine::Engine;

/// A group, whatever handles it has.
type GroupId = u64;

#[derive(Debug)]
struct Group {
    engine: Engine,
    /// As a whole, or a channel of it was.
    is_scheduled: bool,
    /// More of them work than the container's share has time slices for: it waits for its turn off
    /// the card.
    is_surplus: bool,
    /// Time slice that the program set; microseconds.
    slice_us: Option<u64>,
    /// Number of handles.
    handles: u32,
}

#[derive(Debug)]
struct Channel {
    group: Option<GroupId>,
    engine: Engine,
    is_scheduled: bool,
    /// The program has taken it off the card itself. Only what is scheduled can be.
    is_unwanted: bool,
    /// A schedule call of it, or of its group, was executed since it came to be.
    is_told: bool,
    /// Number of times that it was named to the driver as off, at the most, and not as on since.
    /// The card's firmware counts (580.159.04): a channel that is taken off twice has to be put
    /// back twice; to put back one that is on has no effect.
    offs: u32,
    /// It is off for certain: nothing since it was last named so can have put it back, or have made
    /// it count from 0.
    is_off: bool,
}

/// Number of times that a channel is taken off because of calls of the program's that may have put
/// it back, before such calls are refused until it has been put on: each time costs one call more
/// then.
pub(crate) const MOST_OFFS: u32 = 4;

#[derive(Debug)]
pub(crate) struct CardChannels {
    throttle: Throttle,
    channels: BTreeMap<ObjectName, Channel>,
    handles: BTreeMap<ObjectName, GroupId>,
    groups: BTreeMap<GroupId, Group>,
    next_group: GroupId,
    /// Number of compute groups on the card at a time; `None`: all. And where the next turn begins.
    on_card: Option<usize>,
    next_turn: GroupId,
}

impl CardChannels {
    pub(crate) const fn new(throttle: Throttle) -> Self {
        Self {
            throttle,
            channels: BTreeMap::new(),
            handles: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_group: 0,
            on_card: None,
            next_turn: 0,
        }
    }

    /// A group of an `NV2080_ENGINE_TYPE_*`.
    pub(crate) fn add_group(&mut self, name: ObjectName, engine: u32) {
        self.remove(name);
        let id = self.next_group;
        self.next_group += 1;
        let group = Group {
            engine: Engine::of_type(engine),
            is_scheduled: false,
            is_surplus: false,
            slice_us: None,
            handles: 1,
        };
        self.groups.insert(id, group);
        self.handles.insert(name, id);
    }

    /// Another handle of a group; of anything else: nothing.
    pub(crate) fn add_duplicate(&mut self, name: ObjectName, source: ObjectName) {
        self.remove(name);
        let Some(id) = self.handles.get(&source).copied() else { return };
        if let Some(group) = self.groups.get_mut(&id) {
            group.handles = group.handles.saturating_add(1);
            self.handles.insert(name, id);
        }
    }

    /// A channel under a group or, without one, a device. What its parameters say of an engine
    /// counts where its group does not. Whether it is the first that is throttled.
    pub(crate) fn add_channel(&mut self, name: ObjectName, parent: Handle, engine: u32) -> bool {
        self.remove(name);
        let had_any = self.throttled() > 0;
        let group = self.handles.get(&ObjectName::new(name.client, parent)).copied();
        let above = group.and_then(|id| self.groups.get(&id));
        let engine = above.map_or_else(|| Engine::of_type(engine), |group| group.engine);
        let is_scheduled = above.is_some_and(|group| group.is_scheduled);
        let channel =
            Channel { group, engine, is_scheduled, is_unwanted: false, is_told: false, offs: 0, is_off: false };
        self.channels.insert(name, channel);
        !had_any && self.throttled() > 0
    }

    /// A channel works on an engine, beside what was known. So does its group, whatever was said of
    /// it: a card before Ampere does not look at that, and all channels of a group are on one run
    /// list.
    pub(crate) fn works_on(&mut self, name: ObjectName, engine: Engine) {
        let Some(channel) = self.channels.get_mut(&name) else { return };
        channel.engine = channel.engine.max(engine);
        let Some(id) = channel.group else { return };
        if let Some(group) = self.groups.get_mut(&id) {
            group.engine = group.engine.max(engine);
        }
        for channel in self.channels.values_mut().filter(|channel| channel.group == Some(id)) {
            channel.engine = channel.engine.max(engine);
        }
    }

    /// The channels of a channel's group, itself among them.
    pub(crate) fn beside(&self, name: ObjectName) -> Vec<ObjectName> {
        match self.channels.get(&name).map(|channel| channel.group) {
            Some(Some(id)) => self.members(id).map(|(name, _)| name).collect(),
            Some(None) => vec![name],
            None => Vec::new(),
        }
    }

    /// An object is gone; one that is neither: nothing.
    pub(crate) fn remove(&mut self, name: ObjectName) {
        self.channels.remove(&name);
        let Some(id) = self.handles.remove(&name) else { return };
        if let Entry::Occupied(mut group) = self.groups.entry(id) {
            group.get_mut().handles -= 1;
            if group.get().handles == 0 {
                group.remove();
            }
        }
    }

    /// A client is gone.
    pub(crate) fn remove_client(&mut self, client: Handle) {
        let whole = || ObjectName::new(client, Handle(0))..=ObjectName::new(client, Handle(u32::MAX));
        let of_client = self.channels.range(whole()).map(|(name, _)| *name);
        let of_client: Vec<_> = of_client.chain(self.handles.range(whole()).map(|(name, _)| *name)).collect();
        of_client.into_iter().for_each(|name| self.remove(name));
    }

    /// The channels of these clients that can do work.
    pub(crate) fn of_clients(&self, clients: &BTreeSet<Handle>) -> Vec<ObjectName> {
        let of_them =
            |(name, channel): &(&ObjectName, &Channel)| channel.is_scheduled && clients.contains(&name.client);
        self.channels.iter().filter(of_them).map(|(name, _)| *name).collect()
    }

    /// The channels that can do work, on any engine.
    #[cfg(feature = "parking")]
    pub(crate) fn scheduled(&self) -> Vec<ObjectName> {
        self.channels.iter().filter(|(_, channel)| channel.is_scheduled).map(|(name, _)| *name).collect()
    }

    /// Returns whether it is a channel.
    pub(crate) fn has_channel(&self, name: ObjectName) -> bool {
        self.channels.contains_key(&name)
    }

    /// The channels that a schedule call on a channel or a group makes runnable; `None`: it is
    /// neither.
    pub(crate) fn below(&self, name: ObjectName) -> Option<Vec<ObjectName>> {
        if self.channels.contains_key(&name) {
            return Some(vec![name]);
        }
        let id = self.handles.get(&name)?;
        Some(self.members(*id).map(|(name, _)| name).collect())
    }

    /// A channel, or a group and all that is in it, can do work from now on; and what will be in
    /// the group, by itself or not.
    pub(crate) fn schedule(&mut self, name: ObjectName) {
        let group = self.group_handle(name);
        let id = group.and_then(|group| self.handles.get(&group)).copied();
        let has_room = self.on_card.is_none_or(|on_card| {
            let groups = self.scheduled_compute_groups().filter_map(|id| self.groups.get(&id));
            groups.filter(|group| !group.is_surplus).count() < on_card
        });
        let is_compute = id.and_then(|id| Some(self.is_compute(id, self.groups.get(&id)?))) == Some(true);
        if let Some(group) = id.and_then(|id| self.groups.get_mut(&id)) {
            group.is_surplus |= !group.is_scheduled && is_compute && !has_room;
            group.is_scheduled = true;
        }
        for name in self.below(name).unwrap_or_default() {
            if let Some(channel) = self.channels.get_mut(&name) {
                channel.is_scheduled = true;
                // Taken off before its first one, it is on now. Another one changes nothing on the
                // card (580.159.04), so one that has been doubted so often is believed that.
                if !channel.is_told || channel.offs < MOST_OFFS {
                    channel.is_off = false;
                }
                channel.is_told = true;
            }
        }
    }

    /// Returns whether it is throttled, or any channel in it is, once that can do work.
    pub(crate) fn any_throttled(&self, name: ObjectName) -> bool {
        let names = self.below(name).unwrap_or_default();
        let mut channels = names.iter().filter_map(|name| self.channels.get(name));
        channels.any(|channel| channel.engine.is_throttled(self.throttle))
    }

    /// Returns whether one of them is throttled and can do work.
    pub(crate) fn any_at_work(&self, names: &[ObjectName]) -> bool {
        names.iter().filter_map(|name| self.channels.get(name)).any(|channel| self.is_gated(channel))
    }

    /// Returns whether it is a channel on the compute engine that can do work and that the program
    /// wants on the card.
    pub(crate) fn does_compute(&self, name: ObjectName) -> bool {
        let channel = self.channels.get(&name);
        channel.is_some_and(|channel| channel.is_scheduled && !channel.is_unwanted && channel.engine == Engine::Compute)
    }

    /// Returns whether it is a group that can do work, so that one that joins it may, too.
    pub(crate) fn has_scheduled(&self, name: ObjectName) -> bool {
        self.handles.get(&name).and_then(|id| self.groups.get(id)).is_some_and(|group| group.is_scheduled)
    }

    /// Returns whether it is a throttled group that can do work.
    pub(crate) fn is_at_work(&self, name: ObjectName) -> bool {
        let group = self.handles.get(&name).and_then(|id| self.groups.get(id));
        group.is_some_and(|group| group.is_scheduled && group.engine.is_throttled(self.throttle))
    }

    /// Channels on throttled engines, whether they can do work yet or not.
    pub(crate) fn throttled(&self) -> usize {
        self.channels.values().filter(|channel| channel.engine.is_throttled(self.throttle)).count()
    }

    fn members(&self, id: GroupId) -> impl Iterator<Item = (ObjectName, &Channel)> {
        let members = self.channels.iter().filter(move |(_, channel)| channel.group == Some(id));
        members.map(|(name, channel)| (*name, channel))
    }

    /// Returns whether it is a channel on the compute engine that has no group.
    pub(crate) fn is_bare_compute(&self, name: ObjectName) -> bool {
        let channel = self.channels.get(&name);
        channel.is_some_and(|channel| channel.group.is_none() && channel.engine == Engine::Compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GR: u32 = 1;
    const COPY2: u32 = 0x0b;
    const NVDEC: u32 = 0x13;

    fn name(client: u32, object: u32) -> ObjectName {
        ObjectName::new(Handle(client), Handle(object))
    }

    #[test]
    fn what_is_throttled_is_the_nodes_choice() {
        for (throttle, expected) in [(Throttle::Compute, 2), (Throttle::ComputeCopy, 3), (Throttle::All, 4)] {
            let mut channels = CardChannels::new(throttle);
            for (at, engine) in (1..).zip([GR, COPY2, NVDEC, 0]) {
                channels.add_channel(name(1, at), Handle(100), engine);
                channels.schedule(name(1, at));
            }
            assert_eq!(channels.throttled(), expected);
            let named: Vec<u32> = channels.at_the_gate().iter().map(|name| name.object.0).collect();
            // What is not known is compute.
            assert_eq!(named, [1, 4, 2, 3][..expected]);
        }
    }

    #[test]
    fn a_channel_is_named_once_it_can_do_work() {
        let mut channels = CardChannels::new(Throttle::default());
        let (group, one, two) = (name(1, 10), name(1, 11), name(1, 12));
        channels.add_group(group, GR);
        // The group says which engine it is; the channel's own word does not count.
        assert!(channels.add_channel(one, group.object, NVDEC), "the first that is throttled");
        assert_eq!((channels.throttled(), channels.at_the_gate()), (1, vec![]));
        channels.schedule(group);
        assert_eq!(channels.at_the_gate(), [one]);
        assert!(!channels.add_channel(two, group.object, NVDEC));
        assert_eq!(channels.at_the_gate(), [one, two], "added to a group that is scheduled");
        channels.want(&[one], false);
        channels.moved(&[one, two], true);
        let all = channels.at_the_gate();
        let moves = |channels: &CardChannels, is_closed| {
            [one, two].map(|name| (channels.ons(name, is_closed), channels.lacks_off(name, is_closed)))
        };
        assert_eq!(moves(&channels, true), [(0, false); 2], "both are off");
        assert_eq!(moves(&channels, false), [(0, false), (1, false)], "the program has taken it off itself");
        channels.doubt(&all);
        assert_eq!(moves(&channels, true), [(0, true); 2], "off once more, and not on before");
        assert_eq!(moves(&channels, false), [(1, true), (1, false)], "in the window, it is made sure of");
        channels.moved(&all, true);
        assert_eq!(moves(&channels, true), [(0, false); 2]);
        assert_eq!(moves(&channels, false), [(0, false), (2, false)], "on as often as off");
        channels.moved(&all, false);
        channels.moved(&all, false);
        assert_eq!(moves(&channels, false), [(0, true), (0, false)]);
        channels.want(&[one], true);
        channels.remove(one);
        assert_eq!(channels.at_the_gate(), [two]);
        channels.remove_client(Handle(1));
        assert_eq!((channels.throttled(), channels.compute_groups()), (0, 0));
        assert!(channels.groups.is_empty());
    }

    #[test]
    fn groups_that_do_not_fit_take_turns_on_the_card() {
        let mut channels = CardChannels::new(Throttle::default());
        let groups: Vec<u32> = (0..5).map(|number| 10 * number + 10).collect();
        let add = |channels: &mut CardChannels, group: u32, engine| {
            channels.add_group(name(1, group), engine);
            channels.add_channel(name(1, group + 1), Handle(group), engine);
            channels.schedule(name(1, group));
        };
        add(&mut channels, 200, COPY2);
        groups.iter().for_each(|group| add(&mut channels, *group, GR));
        // As the driver would be told.
        let on_card = |channels: &mut CardChannels| {
            let all: Vec<ObjectName> = channels.at_the_gate();
            for name in &all {
                for _ in 0..channels.ons(*name, false) {
                    channels.moved(&[*name], false);
                }
                if channels.lacks_off(*name, false) {
                    channels.moved(&[*name], true);
                }
            }
            let on = all.iter().filter(|name| channels.channels[name].offs == 0).map(|name| name.object.0);
            on.filter(|channel| *channel != 201).collect::<Vec<_>>()
        };
        assert_eq!(on_card(&mut channels), [11, 21, 31, 41, 51]);
        let turn = |channels: &mut CardChannels, on: Option<usize>| {
            channels.rotate(on);
            on_card(channels)
        };
        assert_eq!(turn(&mut channels, Some(2)), [11, 21]);
        assert_eq!(turn(&mut channels, Some(2)), [31, 41]);
        assert_eq!(turn(&mut channels, Some(2)), [11, 51]);
        // A new one, and a channel more of one that waits, are not on before their turn.
        add(&mut channels, 60, GR);
        channels.add_channel(name(1, 22), Handle(20), GR);
        assert_eq!(on_card(&mut channels), [11, 51]);
        channels.doubt(&[name(1, 21)]);
        assert_eq!(on_card(&mut channels), [11, 51], "nor is one that may have been put back");
        assert_eq!(turn(&mut channels, Some(2)), [21, 22, 31]);
        channels.remove(name(1, 30));
        channels.remove(name(1, 31));
        assert_eq!(turn(&mut channels, None), [11, 21, 22, 41, 51, 61]);
        add(&mut channels, 70, GR);
        assert_eq!(on_card(&mut channels), [11, 21, 22, 41, 51, 61, 71]);
    }

    #[test]
    fn a_group_has_many_handles() {
        let mut channels = CardChannels::new(Throttle::default());
        let (group, duplicate, stray) = (name(1, 10), name(2, 20), name(2, 21));
        channels.add_group(group, GR);
        channels.add_duplicate(duplicate, group);
        channels.add_duplicate(stray, name(1, 99));
        assert!(!channels.has_group(stray));
        let (one, two) = (name(1, 11), name(2, 22));
        channels.add_channel(one, group.object, 0);
        channels.add_channel(two, duplicate.object, NVDEC);
        channels.schedule(duplicate);
        assert_eq!(channels.at_the_gate(), [one, two]);
        assert_eq!(channels.compute_groups(), 1);
        channels.set_program_slice(duplicate, 7);
        assert_eq!(channels.program_slice(group), Some(7));
        channels.remove(group);
        assert_eq!(channels.slices(), [(duplicate, Some(7))]);
        channels.remove(duplicate);
        assert_eq!(channels.slices(), []);
    }

    #[test]
    fn what_a_channel_turns_out_to_be_counts() {
        let mut channels = CardChannels::new(Throttle::ComputeCopy);
        let (group, channel) = (name(1, 10), name(1, 11));
        channels.add_group(group, NVDEC);
        channels.add_channel(channel, group.object, 0);
        channels.schedule(group);
        assert_eq!((channels.at_the_gate(), channels.compute_groups()), (vec![], 0));
        channels.works_on(channel, Engine::Compute);
        channels.works_on(channel, Engine::Copy);
        assert_eq!((channels.at_the_gate(), channels.compute_groups()), (vec![channel], 1));
    }

    #[test]
    fn a_handle_that_is_used_again_is_somebody_else() {
        let mut channels = CardChannels::new(Throttle::default());
        let (group, channel) = (name(1, 10), name(1, 11));
        channels.add_group(group, GR);
        channels.add_channel(channel, group.object, 0);
        channels.schedule(group);
        channels.want(&[channel], false);
        channels.add_group(channel, NVDEC);
        assert!(!channels.has_channel(channel));
        channels.add_channel(group, Handle(1), GR);
        assert!(!channels.has_group(group));
        assert_eq!(channels.at_the_gate(), [], "not scheduled");
    }
}
