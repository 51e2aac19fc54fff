//! Room on a card: what is left of its memory, its time and its places.

use std::fmt;

use base::Bytes;
use cards::Card;
use schedule::policy::{RoomUnit, rules};

use super::{Limits, card_sums::CardSums};

/// Room on a card, for people: `12GiB of 32GiB of memory, 40% of its time, 7 of 10 places`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardRoom {
    memory: (Bytes, Bytes),
    /// `None`: whoever comes shares the time with those who are there.
    time: Option<Time>,
    places: (u32, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Time {
    Percent(u32),
    Weight(u32, u32),
}

impl CardRoom {
    /// Room of `card`, of which `sums` is granted.
    pub(super) fn of(card: &Card, sums: &CardSums, limits: &Limits) -> Self {
        let grantable = limits.grantable(card.memory);
        let taken = if sums.exclusive { limits.device_split_count } else { sums.containers };
        let time = match sums.policy.map(|policy| rules(policy).room) {
            Some(RoomUnit::Weight) => Some(Time::Weight(sums.free_weight(limits), limits.max_inst)),
            Some(RoomUnit::Endless) => None,
            Some(RoomUnit::Percent) | None => Some(Time::Percent(100_u32.saturating_sub(sums.compute_percent(limits)))),
        };
        Self {
            memory: (Bytes(grantable.0.saturating_sub(sums.memory.0)), grantable),
            time,
            places: (limits.device_split_count.saturating_sub(taken), limits.device_split_count),
        }
    }
}

impl fmt::Display for CardRoom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory: (free, grantable), time, places: (left, all) } = self;
        write!(formatter, "{free} of {grantable} of memory, ")?;
        match time {
            Some(Time::Percent(percent)) => write!(formatter, "{percent}% of its time, ")?,
            Some(Time::Weight(weight, all)) => write!(formatter, "weight {weight} of {all}, ")?,
            None => {}
        }
        write!(formatter, "{left} of {all} places")
    }
}
