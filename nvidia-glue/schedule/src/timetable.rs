//! Timetables, written for all mediators of a node.

use std::collections::{BTreeMap, BTreeSet};

use base::{Bytes, Priority};
use serde::{Deserialize, Serialize};

/// The timetable of a card, or of several. That of each card is replaced as a whole, under the
/// ledger's lock, whenever a grant or a setting of it changes, or of a card that is tied to it by
/// containers with several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timetable {
    /// Oldest format whose readers may act on it.
    pub version: u32,
    /// Format in which it was written.
    #[serde(default = "base::format::first")]
    pub format: u32,
    /// The kernel's boot id; a timetable of another boot is void.
    pub boot_id: String,
    /// Greater with each change.
    pub revision: u64,
    /// By the instant from which they hold, the earliest first. At most the one that holds now and
    /// those that are to come.
    pub epochs: Vec<Epoch>,
}

/// Turns that hold from one instant until the next epoch's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    /// `CLOCK_MONOTONIC`, microseconds.
    pub from_us: u64,
    /// Every container that shares the card. One that is not here does not run.
    pub turns: Vec<Turn>,
}

/// One container's part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Name of the grant, as in the ledger's record.
    pub grant_id: String,
    /// Length of a period; the same for all containers that are tied to each other by common cards.
    pub period_us: u64,
    /// Low: runs only in time that those with high priority on its cards do not use.
    pub priority: Priority,
    /// Card by card, in no particular order; in a card's own timetable, that card alone.
    pub cards: Vec<CardTurn>,
}

/// Turn of a container on one of its cards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardTurn {
    /// `GPU-...`.
    pub uuid: String,
    /// Memory that it may have of the card now; [`CardTurn::NO_LIMIT`]: all that it was set up
    /// with.
    pub memory: Bytes,
    /// Limit on its time.
    pub pass: Pass,
    /// The share that was granted, in millionths of the card's time: the length of its windows, or
    /// its weight among all. What a view shows beside what was achieved.
    pub share_ppm: u32,
}

/// Limit on a container's time on a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Not at all: alone, the whole card, or the driver's own scheduling.
    Free,
    /// It runs in these windows of each period, and in no other time. In order, disjoint; none: it
    /// does not run.
    Windows(Vec<Window>),
    /// It always runs; its channel groups have time slices by this weight among its neighbours'
    /// (policy `soft`).
    Weight(u32),
    /// It always may run; where less is wasted so, it takes turns, by this weight, with the others
    /// that may ([`RoundRobin`](crate::round_robin::RoundRobin)).
    Turns(u32),
}

/// A part of each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Microseconds from the beginning of the period.
    pub start_us: u64,
    /// End; at most the period's length. A window that ends there and one that begins at 0 are one.
    pub end_us: u64,
}

impl Timetable {
    /// The epoch that holds at an instant, and the instant at which the next one begins.
    pub fn at(&self, now_us: u64) -> (Option<&Epoch>, Option<u64>) {
        let next = self.epochs.iter().map(|epoch| epoch.from_us).find(|from| *from > now_us);
        let holds = self.epochs.iter().rev().find(|epoch| epoch.from_us <= now_us);
        (holds, next)
    }

    /// Merges several cards' timetables. An epoch begins where one of any card does.
    pub fn of_cards(cards: &[Timetable]) -> Self {
        let instants: BTreeSet<u64> = cards.iter().flat_map(|card| &card.epochs).map(|epoch| epoch.from_us).collect();
        let epoch = |from_us| Epoch::of_cards(from_us, cards.iter().filter_map(|card| card.at(from_us).0));
        Self {
            version: cards.first().map_or(0, |card| card.version),
            format: cards.first().map_or(0, |card| card.format),
            boot_id: cards.first().map(|card| card.boot_id.clone()).unwrap_or_default(),
            revision: cards.iter().map(|card| card.revision).max().unwrap_or_default(),
            epochs: instants.into_iter().map(epoch).collect(),
        }
    }
}

impl Epoch {
    /// Merges several cards' epochs.
    pub fn of_cards<'a>(from_us: u64, cards: impl Iterator<Item = &'a Epoch>) -> Self {
        let mut turns: BTreeMap<&str, Turn> = BTreeMap::new();
        for turn in cards.flat_map(|epoch| &epoch.turns) {
            match turns.get_mut(turn.grant_id.as_str()) {
                Some(others) => others.cards.extend(turn.cards.iter().cloned()),
                None => drop(turns.insert(&turn.grant_id, turn.clone())),
            }
        }
        Self { from_us, turns: turns.into_values().collect() }
    }

    /// The others that share a card with a container: whose status says whether it is wanted.
    pub fn neighbours<'a>(
        &'a self,
        grant_id: &'a str,
        uuid: &'a str,
    ) -> impl Iterator<Item = (&'a Turn, &'a CardTurn)> + Clone {
        let others = self.turns.iter().filter(move |turn| turn.grant_id != grant_id);
        others.filter_map(move |turn| Some((turn, turn.card(uuid)?)))
    }

    /// A container's turn.
    pub fn turn(&self, grant_id: &str) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.grant_id == grant_id)
    }
}

impl CardTurn {
    /// The memory of a container that goes without limits.
    pub const NO_LIMIT: Bytes = Bytes(u64::MAX);
}

impl Turn {
    /// Its turn on one card.
    pub fn card(&self, uuid: &str) -> Option<&CardTurn> {
        self.cards.iter().find(|card| card.uuid == uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_epoch_that_has_begun_holds() {
        let epoch = |from_us| Epoch { from_us, turns: Vec::new() };
        let table = Timetable {
            version: 1,
            format: 1,
            boot_id: String::new(),
            revision: 1,
            epochs: vec![epoch(10), epoch(20), epoch(30)],
        };
        let at = |now| {
            let (holds, next) = table.at(now);
            (holds.map(|epoch| epoch.from_us), next)
        };
        assert_eq!(at(9), (None, Some(10)));
        assert_eq!(at(10), (Some(10), Some(20)));
        assert_eq!(at(29), (Some(20), Some(30)));
        assert_eq!(at(30), (Some(30), None));
    }
}
