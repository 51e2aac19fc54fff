//! Channels that are off the card, and those that are to be.

use std::cmp::Reverse;

use account::ObjectName;

use crate::channels::card_channels::{CardChannels, Channel, Engine, MOST_OFFS};

impl CardChannels {
    /// A call of the program's may have put these back, or may have made them count from 0.
    pub(crate) fn doubt(&mut self, names: &[ObjectName]) {
        for name in names {
            if let Some(channel) = self.channels.get_mut(name) {
                channel.is_off = false;
            }
        }
    }

    /// Returns whether one of them has been doubted too often since it was last on.
    pub(crate) fn any_doubted(&self, names: &[ObjectName]) -> bool {
        let mut channels = names.iter().filter_map(|name| self.channels.get(name));
        channels.any(|channel| channel.offs >= MOST_OFFS)
    }

    /// The program wants these on the card, or off, which has no effect on what is not scheduled.
    pub(crate) fn want(&mut self, names: &[ObjectName], wanted: bool) {
        for name in names {
            if let Some(channel) = self.channels.get_mut(name) {
                channel.is_unwanted = !wanted && channel.is_scheduled;
            }
        }
    }

    /// Those that can do work and that the program wants on the card.
    pub(crate) fn wanted(&self) -> Vec<ObjectName> {
        let wanted = self.channels.iter().filter(|(_, channel)| channel.is_scheduled && !channel.is_unwanted);
        wanted.map(|(name, _)| *name).collect()
    }

    /// Returns the number of times that a channel is to be named as on. Where it is not known
    /// whether it is off, it is named as off once more, and so often as on when it is to be on:
    /// nothing that is to be off is ever put on. But one that the program has taken off itself is,
    /// in the container's own time, to be sure of it.
    pub(crate) fn ons(&self, name: ObjectName, is_closed: bool) -> u32 {
        let Some(channel) = self.channels.get(&name) else { return 0 };
        let to_be_off = self.is_to_be_off(channel, is_closed);
        let is_kept_off = channel.is_off || self.is_surplus(channel) || is_closed && self.is_gated(channel);
        if to_be_off && is_kept_off { 0 } else { channel.offs }
    }

    /// Returns whether a channel is to be named as off.
    pub(crate) fn lacks_off(&self, name: ObjectName, is_closed: bool) -> bool {
        let channel = self.channels.get(&name);
        channel.is_some_and(|channel| self.is_to_be_off(channel, is_closed) && !channel.is_off)
    }

    pub(super) fn is_to_be_off(&self, channel: &Channel, is_closed: bool) -> bool {
        channel.is_unwanted || self.is_surplus(channel) || is_closed && self.is_gated(channel)
    }

    /// Its group waits for its turn.
    pub(super) fn is_surplus(&self, channel: &Channel) -> bool {
        let group = channel.group.and_then(|id| self.groups.get(&id));
        channel.is_scheduled && group.is_some_and(|group| group.is_surplus)
    }

    /// Notes that the driver has moved them.
    pub(crate) fn moved(&mut self, names: &[ObjectName], off: bool) {
        for name in names {
            if let Some(channel) = self.channels.get_mut(name) {
                channel.is_off = off;
                channel.offs = if off { channel.offs.saturating_add(1) } else { channel.offs.saturating_sub(1) };
            }
        }
    }

    /// The driver was told that they are to be off, and what it made of that is not known.
    pub(crate) fn may_be_off(&mut self, names: &[ObjectName]) {
        for name in names {
            if let Some(channel) = self.channels.get_mut(name) {
                channel.is_off = false;
                channel.offs = channel.offs.saturating_add(1);
            }
        }
    }

    /// Those that it matters to name when the gate opens or closes, and any that an earlier failure
    /// left where they are not to be. Compute comes first: where it takes several calls, the first
    /// ones matter most to others.
    pub(crate) fn at_the_gate(&self) -> Vec<ObjectName> {
        let is_left = |channel: &Channel| channel.offs > 0 && !(channel.is_unwanted && channel.is_off);
        let is_named = |channel: &Channel| self.is_gated(channel) || is_left(channel);
        let mut named: Vec<_> = self.channels.iter().filter(|(_, channel)| is_named(channel)).collect();
        named.sort_by_key(|(_, channel)| Reverse(channel.engine));
        named.into_iter().map(|(name, _)| *name).collect()
    }

    /// Returns the number of gated channels, and of those that compute.
    pub(crate) fn count_at_the_gate(&self) -> (usize, usize) {
        let gated = || self.channels.values().filter(|channel| self.is_gated(channel));
        (gated().count(), gated().filter(|channel| channel.engine == Engine::Compute).count())
    }

    pub(super) const fn is_gated(&self, channel: &Channel) -> bool {
        channel.is_scheduled && channel.engine.is_throttled(self.throttle)
    }
}
