//! Terms of a container's share of a card, as the timetable has them: its weight, its priority, its
//! neighbours.

use runtime_config::request::Priority;
use schedule::{CardTurn, Pass, Timetable, Turn, Window};

/// The period without a timetable.
const PERIOD_US: u64 = 100_000;

/// The terms that hold now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShareTerms {
    pub(super) sharing: Sharing,
    pub(super) period_us: u64,
    /// Its weight, relative to those of [`ShareTerms::others`].
    pub(super) weight: u32,
    /// The share of the card's time that it was granted, in millionths.
    pub(super) share_ppm: u32,
    pub(super) priority: Priority,
    /// The containers that may be on the card at the same time: all, or those with the same
    /// windows.
    pub(super) others: Vec<OtherContainer>,
    /// The grants of those that have other windows.
    pub(super) apart: Vec<String>,
    /// True if it has windows to itself: they are promised to it, whatever its priority.
    is_promised: bool,
    /// True if it runs also in windows that are promised to others.
    is_beside_windows: bool,
    /// Instant at which other terms hold; `None`: with another timetable.
    pub(super) until_us: Option<u64>,
}

/// Way in which the card is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Scheduled by the driver alone.
    Free,
    Windows,
    Weights,
    /// By the driver alone, or in turns, as all that share it so agree.
    Turns,
}

/// Another container on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtherContainer {
    pub(super) grant_id: String,
    pub(super) priority: Priority,
    pub(super) weight: u32,
}

impl ShareTerms {
    /// Returns the terms without a timetable.
    pub(super) fn none(until_us: Option<u64>) -> Self {
        Self {
            sharing: Sharing::Free,
            period_us: PERIOD_US,
            weight: 1,
            share_ppm: 1_000_000,
            priority: Priority::High,
            others: Vec::new(),
            apart: Vec::new(),
            is_promised: false,
            is_beside_windows: false,
            until_us,
        }
    }

    /// Reads the terms from a timetable. `has_windows`: the card takes the container off; else
    /// windows are weights.
    pub(super) fn at(table: &Timetable, grant_id: &str, uuid: &str, now_us: u64, has_windows: bool) -> Self {
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
            Pass::Windows(_) if has_windows => (Sharing::Windows, part(card.share_ppm)),
            Pass::Windows(_) => (Sharing::Weights, part(card.share_ppm)),
            Pass::Turns(weight) if has_windows => (Sharing::Turns, weight),
            Pass::Weight(weight) | Pass::Turns(weight) => (Sharing::Weights, weight),
        };
        let neighbours = || epoch.neighbours(grant_id, uuid);
        let shares_window = |other: &CardTurn| overlap(&card.pass, &other.pass);
        let is_there = |(_, other): &(&Turn, &CardTurn)| sharing != Sharing::Windows || shares_window(other);
        let other = |(turn, other): (&Turn, &CardTurn)| {
            let weight = match (&card.pass, &other.pass) {
                (Pass::Weight(_), Pass::Weight(weight)) | (Pass::Turns(_), Pass::Turns(weight)) => *weight,
                (Pass::Weight(_) | Pass::Turns(_), _) => 0,
                (Pass::Free | Pass::Windows(_), _) => part(other.share_ppm),
            };
            OtherContainer { grant_id: turn.grant_id.clone(), priority: turn.priority, weight }
        };
        Self {
            sharing,
            period_us: turn.period_us,
            weight,
            share_ppm: card.share_ppm,
            priority: turn.priority,
            others: neighbours().filter(is_there).map(other).collect(),
            apart: neighbours().filter(|other| !is_there(other)).map(|(turn, _)| turn.grant_id.clone()).collect(),
            is_promised: matches!(card.pass, Pass::Windows(_)) && !neighbours().any(|(_, other)| shares_window(other)),
            is_beside_windows: card.pass == Pass::Free
                && neighbours().any(|(_, other)| matches!(other.pass, Pass::Windows(_))),
            until_us,
        }
    }

    /// Returns whether it runs only in time that others do not use.
    pub(super) fn gives_way(&self) -> bool {
        self.priority == Priority::Low
            && !self.is_promised
            && self.others.iter().any(|other| other.priority == Priority::High)
    }

    /// Returns whether others run only in time that it does not use.
    pub(super) fn goes_first(&self) -> bool {
        self.priority == Priority::High
            && !self.is_beside_windows
            && self.others.iter().any(|other| other.priority == Priority::Low)
    }

    /// Returns whether another one may take turns with it.
    pub(super) fn is_peer(&self, other: &OtherContainer) -> bool {
        self.sharing == Sharing::Turns && other.weight > 0 && other.priority == self.priority
    }

    /// Returns the number of containers of high priority.
    pub(super) fn highs(&self) -> usize {
        let others = self.others.iter().filter(|other| other.priority == Priority::High).count();
        others + usize::from(self.priority == Priority::High)
    }
}

/// Returns whether both may be on the card at the same time: containers that share the rest of a
/// card have the same windows.
fn overlap(own: &Pass, other: &Pass) -> bool {
    let meet = |one: &Window, other: &Window| one.start_us < other.end_us && other.start_us < one.end_us;
    match (own, other) {
        (Pass::Windows(own), Pass::Windows(other)) => own.iter().any(|one| other.iter().any(|other| meet(one, other))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use runtime_config::Bytes;
    use schedule::Epoch;

    use super::*;

    fn turn(grant_id: &str, priority: Priority, pass: Pass, share_ppm: u32) -> Turn {
        let card = CardTurn { uuid: "GPU-a".into(), memory: Bytes(0), pass, share_ppm };
        Turn { grant_id: grant_id.into(), period_us: 50_000, priority, cards: vec![card] }
    }

    fn table(turns: Vec<Turn>) -> Timetable {
        let epochs = vec![Epoch { from_us: 10, turns }, Epoch { from_us: 20, turns: Vec::new() }];
        Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs }
    }

    fn terms(turns: Vec<Turn>, now_us: u64) -> ShareTerms {
        ShareTerms::at(&table(turns), "a", "GPU-a", now_us, true)
    }

    fn windows(start_us: u64, end_us: u64) -> Pass {
        Pass::Windows(vec![Window { start_us, end_us }])
    }

    #[test]
    fn windows_leave_weights_by_share() {
        let turns = || {
            let (own, other) = (windows(0, 5_000), windows(5_000, 50_000));
            vec![turn("a", Priority::Low, own, 100_000), turn("b", Priority::High, other, 900_000)]
        };
        let held = terms(turns(), 10);
        assert_eq!((held.sharing, held.weight, held.others.len()), (Sharing::Windows, 100, 0));
        assert_eq!((held.period_us, held.until_us, held.apart.as_slice()), (50_000, Some(20), ["b".into()].as_slice()));
        assert!(!held.gives_way(), "its windows are its own");
        let left = ShareTerms::at(&table(turns()), "a", "GPU-a", 10, false);
        assert_eq!((left.sharing, left.weight, left.others[0].weight), (Sharing::Weights, 100, 900));
        assert!(!left.gives_way(), "it was promised a share");
        assert_eq!(terms(turns(), 9), ShareTerms::none(Some(10)));
        assert_eq!(terms(turns(), 20), ShareTerms::none(None));
    }

    #[test]
    fn who_has_the_same_windows_is_there_at_the_same_time() {
        let remainder =
            || Pass::Windows(vec![Window { start_us: 0, end_us: 5_000 }, Window { start_us: 20_000, end_us: 50_000 }]);
        let beside = |priority, other| {
            terms(vec![turn("a", priority, remainder(), 350_000), turn("b", Priority::High, other, 350_000)], 10)
        };
        let low = beside(Priority::Low, remainder());
        assert_eq!((low.sharing, low.others[0].weight), (Sharing::Windows, 350));
        assert!(low.gives_way(), "in what is left, there are priorities");
        assert!(!beside(Priority::High, remainder()).gives_way());
        let alone = beside(Priority::Low, windows(5_000, 20_000));
        assert!(alone.others.is_empty() && !alone.gives_way(), "who has a cap is not there then");
    }

    #[test]
    fn weights_are_as_the_timetable_says() {
        let beside = |priority| {
            let other = turn("b", Priority::High, Pass::Weight(7), 700_000);
            terms(vec![turn("a", priority, Pass::Weight(3), 300_000), other], 10)
        };
        let weights = beside(Priority::Low);
        assert_eq!((weights.sharing, weights.weight, weights.others[0].weight), (Sharing::Weights, 3, 7));
        assert!(weights.gives_way());
        assert!(!beside(Priority::High).gives_way());
    }
}
