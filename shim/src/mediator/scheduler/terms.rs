//! What the timetable says of a container on a card beside when it runs.

use nvidia_glue::schedule::{Pass, Timetable};
use runtime_config::request::Priority;

/// Where nobody has said how long a period is.
const PERIOD_US: u64 = 100_000;

/// What holds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) sharing: Sharing,
    pub(super) period_us: u64,
    /// Its weight, beside those of [`Terms::others`]. Where time is shared by windows, what is left if these cannot be had.
    pub(super) weight: u32,
    /// What it was granted of the card's time, in millionths.
    pub(super) share_ppm: u32,
    pub(super) priority: Priority,
    pub(super) others: Vec<Other>,
    /// When other terms hold; `None`: when there is another timetable.
    pub(super) until_us: Option<u64>,
}

/// How the card is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// By the driver alone.
    Free,
    Windows,
    Weights,
}

/// Another container on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) grant_id: String,
    pub(super) priority: Priority,
    pub(super) weight: u32,
}

impl Terms {
    /// Nobody has said anything.
    pub(super) fn none(until_us: Option<u64>) -> Self {
        Self {
            sharing: Sharing::Free,
            period_us: PERIOD_US,
            weight: 1,
            share_ppm: 1_000_000,
            priority: Priority::High,
            others: Vec::new(),
            until_us,
        }
    }

    pub(super) fn at(table: &Timetable, grant_id: &str, uuid: &str, now_us: u64) -> Self {
        let (epoch, until_us) = table.at(now_us);
        let found = epoch.and_then(|epoch| {
            let turn = epoch.turn(grant_id)?;
            Some((epoch, turn, turn.card(uuid)?))
        });
        let Some((epoch, turn, card)) = found else { return Self::none(until_us) };
        // Thousandths: windows as weights.
        let part = |ppm: u32| (ppm / 1_000).max(1);
        let (sharing, weight) = match card.pass {
            Pass::Free => (Sharing::Free, part(card.share_ppm)),
            Pass::Windows(_) => (Sharing::Windows, part(card.share_ppm)),
            Pass::Weight(weight) => (Sharing::Weights, weight),
        };
        let other = |other: &nvidia_glue::schedule::Neighbour| {
            let share = || Some(part(epoch.turn(&other.grant_id)?.card(uuid)?.share_ppm));
            let weight = if sharing == Sharing::Weights { other.weight } else { share().unwrap_or(1) };
            Other { grant_id: other.grant_id.clone(), priority: other.priority, weight }
        };
        Self {
            sharing,
            period_us: turn.period_us,
            weight,
            share_ppm: card.share_ppm,
            priority: turn.priority,
            others: card.neighbours.iter().map(other).collect(),
            until_us,
        }
    }

    /// It runs only in time that others do not use. Where there are windows, nobody else uses its own.
    pub(super) fn gives_way(&self) -> bool {
        self.priority == Priority::Low
            && self.sharing != Sharing::Windows
            && self.others.iter().any(|other| other.priority == Priority::High)
    }
}

#[cfg(test)]
mod tests {
    use nvidia_glue::schedule::{CardTurn, Epoch, Neighbour, Turn, Window};
    use runtime_config::Bytes;

    use super::*;

    fn turn(grant_id: &str, priority: Priority, pass: Pass, share_ppm: u32) -> Turn {
        let other = if grant_id == "a" { "b" } else { "a" };
        let card = CardTurn {
            uuid: "GPU-a".into(),
            memory: Bytes(0),
            pass,
            share_ppm,
            neighbours: vec![Neighbour { grant_id: other.into(), priority: Priority::High, weight: 7 }],
        };
        Turn { grant_id: grant_id.into(), period_us: 50_000, priority, cards: vec![card] }
    }

    fn terms(turns: Vec<Turn>, now_us: u64) -> Terms {
        let epochs = vec![Epoch { from_us: 10, turns }, Epoch { from_us: 20, turns: Vec::new() }];
        Terms::at(&Timetable { version: 1, boot_id: String::new(), revision: 1, epochs }, "a", "GPU-a", now_us)
    }

    #[test]
    fn windows_leave_weights_by_share() {
        let windows = || Pass::Windows(vec![Window { start_us: 0, end_us: 5_000 }]);
        let turns =
            || vec![turn("a", Priority::Low, windows(), 100_000), turn("b", Priority::High, windows(), 900_000)];
        let held = terms(turns(), 10);
        assert_eq!((held.sharing, held.weight, held.others[0].weight), (Sharing::Windows, 100, 900));
        assert_eq!((held.period_us, held.until_us), (50_000, Some(20)));
        assert!(!held.gives_way(), "its windows are its own");
        assert_eq!(terms(turns(), 9), Terms::none(Some(10)));
        assert_eq!(terms(turns(), 20), Terms::none(None));
    }

    #[test]
    fn weights_are_as_the_timetable_says() {
        let weights = terms(vec![turn("a", Priority::Low, Pass::Weight(3), 300_000)], 10);
        assert_eq!((weights.sharing, weights.weight, weights.others[0].weight), (Sharing::Weights, 3, 7));
        assert!(weights.gives_way());
        assert!(!terms(vec![turn("a", Priority::High, Pass::Weight(3), 300_000)], 10).gives_way());
    }
}
