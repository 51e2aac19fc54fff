//! Groups on the compute engine: how many there are, which take turns, and what time slices they
//! have.

use account::ObjectName;

use crate::channels::card_channels::{CardChannels, Channel, Engine, Group, GroupId};

impl CardChannels {
    /// Keeps so many compute groups on the card, the next ones each time; `None`: all. Those to
    /// come wait for their turn.
    pub(crate) fn rotate(&mut self, on_card: Option<usize>) {
        self.on_card = on_card;
        let all: Vec<GroupId> = self.scheduled_compute_groups().collect();
        let first = all.partition_point(|id| *id < self.next_turn);
        let in_turn = all.iter().cycle().skip(first).take(all.len());
        let on: Vec<GroupId> = in_turn.copied().take(on_card.unwrap_or(usize::MAX)).collect();
        self.next_turn = on.last().map_or(0, |last| last + 1);
        for (id, group) in &mut self.groups {
            group.is_surplus = all.contains(id) && !on.contains(id);
        }
    }

    /// Groups on the compute engine that can do work; a channel without a group is one by itself.
    pub(crate) fn compute_groups(&self) -> usize {
        let is_bare =
            |channel: &&Channel| channel.group.is_none() && channel.is_scheduled && channel.engine == Engine::Compute;
        self.scheduled_compute_groups().count() + self.channels.values().filter(is_bare).count()
    }

    pub(super) fn scheduled_compute_groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        let groups = self.groups.iter().filter(|(id, group)| group.is_scheduled && self.is_compute(**id, group));
        groups.map(|(id, _)| *id)
    }

    /// By what was said of the group, or by what its channels turned out to be.
    pub(super) fn is_compute(&self, id: GroupId, group: &Group) -> bool {
        group.engine == Engine::Compute || self.members(id).any(|(_, channel)| channel.engine == Engine::Compute)
    }

    /// A handle of each compute group that can do work, and what the program set as its time slice.
    pub(crate) fn slices(&self) -> Vec<(ObjectName, Option<u64>)> {
        let handle = |id| self.handles.iter().find(|(_, of)| **of == id).map(|(name, _)| *name);
        let slice = |id| self.groups.get(&id).and_then(|group| group.slice_us);
        self.scheduled_compute_groups().filter_map(|id| Some((handle(id)?, slice(id)))).collect()
    }

    /// The same of one group, if it is one on the compute engine.
    pub(crate) fn slice_of(&self, name: ObjectName) -> Option<Option<u64>> {
        let id = self.handles.get(&name)?;
        let group = self.groups.get(id).filter(|group| self.is_compute(*id, group))?;
        Some(group.slice_us)
    }

    /// A handle of the group that it is, or is in.
    pub(crate) fn group_handle(&self, name: ObjectName) -> Option<ObjectName> {
        let id = match self.handles.get(&name) {
            Some(id) => *id,
            None => self.channels.get(&name)?.group?,
        };
        self.handles.iter().find(|(_, of)| **of == id).map(|(name, _)| *name)
    }

    /// Returns whether it is a group.
    pub(crate) fn has_group(&self, name: ObjectName) -> bool {
        self.handles.contains_key(&name)
    }

    /// Returns the time slice that the program has set for a group.
    pub(crate) fn program_slice(&self, name: ObjectName) -> Option<u64> {
        self.groups.get(self.handles.get(&name)?)?.slice_us
    }

    /// The program sets a group's time slice.
    pub(crate) fn set_program_slice(&mut self, name: ObjectName, slice_us: u64) {
        if let Some(group) = self.handles.get(&name).and_then(|id| self.groups.get_mut(id)) {
            group.slice_us = Some(slice_us);
        }
    }
}
