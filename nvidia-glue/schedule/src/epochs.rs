//! From one timetable to the next: what is planned anew begins at an instant that everybody has
//! heard of by then.

use std::collections::BTreeMap;

use base::MIN_PERIOD_US;

use super::{CardTurn, Epoch, Pass, Turn, connected_cards::connected_cards};

/// A change begins at least so many periods after it was made, so that every mediator has read it.
const PERIODS_AHEAD: u64 = 2;
/// And, if that lets old and new periods begin together, at most so many.
const PERIODS_AT_MOST: u64 = 4;

/// Epochs of cards, by UUID: each turn with that card alone.
pub type CardEpochs = BTreeMap<String, Vec<Epoch>>;

/// The epochs of the next timetables: `turns` is what is to come on the cards of `before`, `before`
/// what was written for them so far. Cards that a container ties to each other come together.
///
/// - A grant that is gone has no turn any more, in any epoch: its processes are gone, too.
/// - Less memory holds from now on: the rest may be somebody else's already. More of it comes with
///   the new turn.
/// - Containers that are tied to each other change together, at the beginning of a period
///   [`PERIODS_AHEAD`] from now. What was written for the time until then stays, card by card: also
///   where, after a kill, not all cards of a container got the same.
/// - Whoever comes to be where all others keep what they have runs at once: there is nobody to
///   disturb.
pub fn advance(before: CardEpochs, turns: &[Turn], now_us: u64) -> CardEpochs {
    let mut cards = still_valid(before, turns, now_us);
    let cards_of = |turn: &Turn| turn.cards.iter().map(|card| card.uuid.clone()).collect();
    for members in connected_cards(&turns.iter().map(cards_of).collect::<Vec<Vec<String>>>()) {
        let group: Vec<(&str, Turn)> = members.into_iter().filter_map(|at| turns.get(at)).flat_map(by_card).collect();
        if disturbs_nobody(&cards, &group) {
            for (uuid, turn) in &group {
                cards.get_mut(*uuid).into_iter().flatten().for_each(|epoch| epoch.put(turn));
            }
        } else if holds_already(&cards, &group) {
            // What is written needs no change but for what is shown.
            for (uuid, turn) in &group {
                cards.get_mut(*uuid).and_then(|epochs| epochs.last_mut()).into_iter().for_each(|last| last.put(turn));
            }
        } else {
            begin(&mut cards, &group, now_us);
        }
    }
    let written = |mut epochs: Vec<ByGrant>| {
        epochs.dedup_by(|later, earlier| later.turns == earlier.turns);
        let epoch = |epoch: ByGrant| Epoch { from_us: epoch.from_us, turns: epoch.turns.into_values().collect() };
        epochs.into_iter().map(epoch).collect()
    };
    cards.into_iter().map(|(uuid, epochs)| (uuid, written(epochs))).collect()
}

/// A container's turn, card by card.
fn by_card(turn: &Turn) -> impl Iterator<Item = (&str, Turn)> {
    turn.cards.iter().map(|card| {
        let (grant_id, cards) = (turn.grant_id.clone(), vec![card.clone()]);
        (card.uuid.as_str(), Turn { grant_id, period_us: turn.period_us, priority: turn.priority, cards })
    })
}

/// An epoch of one card with its turns by grant.
#[derive(Debug, Clone)]
struct ByGrant {
    from_us: u64,
    turns: BTreeMap<String, Turn>,
}

impl ByGrant {
    fn put(&mut self, turn: &Turn) {
        self.turns.insert(turn.grant_id.clone(), turn.clone());
    }
}

/// Turns written for each card, from the epoch in force now on, without those of grants that are
/// gone.
fn still_valid(before: CardEpochs, turns: &[Turn], now_us: u64) -> BTreeMap<String, Vec<ByGrant>> {
    let new: BTreeMap<&str, &Turn> = turns.iter().map(|turn| (turn.grant_id.as_str(), turn)).collect();
    let by_grant = |epoch: Epoch| {
        let there = epoch.turns.into_iter().filter_map(|turn| Some((*new.get(turn.grant_id.as_str())?, turn)));
        let turns = there.map(|(new, mut turn)| {
            for card in &mut turn.cards {
                if let Some(new) = new.card(&card.uuid) {
                    card.memory = card.memory.min(new.memory);
                }
            }
            (turn.grant_id.clone(), turn)
        });
        ByGrant { from_us: epoch.from_us, turns: turns.collect() }
    };
    let of_card = |before: Vec<Epoch>| {
        let holding = before.iter().rposition(|epoch| epoch.from_us <= now_us);
        let mut epochs: Vec<ByGrant> = before.into_iter().skip(holding.unwrap_or_default()).map(by_grant).collect();
        if holding.is_none() {
            epochs.insert(0, ByGrant { from_us: now_us, turns: BTreeMap::new() });
        }
        epochs
    };
    before.into_iter().map(|(uuid, before)| (uuid, of_card(before))).collect()
}

/// Returns whether those of `group` who have turns keep them as they are, from now
/// on.
fn disturbs_nobody(cards: &BTreeMap<String, Vec<ByGrant>>, group: &[(&str, Turn)]) -> bool {
    group.iter().all(|(uuid, turn)| {
        let before = || cards.get(*uuid).into_iter().flatten().map(|epoch| epoch.turns.get(&turn.grant_id));
        before().all(|before| before.is_none())
            || before().all(|before| before.is_some_and(|before| is_same(before, turn)))
    })
}

/// Returns whether the last epoch is what is to come.
fn holds_already(cards: &BTreeMap<String, Vec<ByGrant>>, group: &[(&str, Turn)]) -> bool {
    group.iter().all(|(uuid, turn)| {
        let last = cards.get(*uuid).and_then(|epochs| epochs.last());
        last.and_then(|last| last.turns.get(&turn.grant_id)).is_some_and(|before| is_same(before, turn))
    })
}

/// Returns whether two turns differ at most in what neighbours make of the share.
fn is_same(one: &Turn, other: &Turn) -> bool {
    fn limits(card: &CardTurn) -> (&str, u64, &Pass) {
        (&card.uuid, card.memory.0, &card.pass)
    }
    (one.period_us, one.priority) == (other.period_us, other.priority)
        && one.cards.iter().map(limits).eq(other.cards.iter().map(limits))
}

/// Puts the new turns of `group` into force from one instant on, on all their cards.
fn begin(cards: &mut BTreeMap<String, Vec<ByGrant>>, group: &[(&str, Turn)], now_us: u64) {
    let before = group.iter().flat_map(|(uuid, turn)| {
        cards.get(*uuid).into_iter().flatten().filter_map(|epoch| epoch.turns.get(&turn.grant_id))
    });
    let period_us = |turn: &Turn| turn.period_us.max(MIN_PERIOD_US);
    let periods: Vec<u64> = before.chain(group.iter().map(|(_, turn)| turn)).map(period_us).collect();
    let new_us = group.first().map_or(MIN_PERIOD_US, |(_, turn)| period_us(turn));
    let from_us = instant(&periods, new_us, now_us);
    for (uuid, turn) in group {
        let Some(epochs) = cards.get_mut(*uuid) else { continue };
        // Where the new epoch comes, whether or not another begins there.
        let position = epochs.iter().position(|epoch| epoch.from_us >= from_us).unwrap_or(epochs.len());
        if epochs.get(position).is_none_or(|epoch| epoch.from_us != from_us) {
            let turns = position.checked_sub(1).and_then(|last| epochs.get(last)).map(|epoch| epoch.turns.clone());
            epochs.insert(position, ByGrant { from_us, turns: turns.unwrap_or_default() });
        }
        epochs.iter_mut().skip(position).for_each(|epoch| epoch.put(turn));
    }
}

/// Instant at which a change may begin: [`PERIODS_AHEAD`] from now, where all periods begin
/// together if that is soon, else where a new one does.
fn instant(periods_us: &[u64], new_us: u64, now_us: u64) -> u64 {
    let longest_us = periods_us.iter().copied().max().unwrap_or(new_us);
    let earliest_us = now_us.saturating_add(PERIODS_AHEAD * longest_us);
    let common = periods_us.iter().try_fold(new_us, |all, period| least_common_multiple(all, *period));
    let together = common.map(|common| earliest_us.next_multiple_of(common));
    match together {
        Some(together) if together <= now_us.saturating_add(PERIODS_AT_MOST * longest_us) => together,
        _ => earliest_us.next_multiple_of(new_us),
    }
}

fn least_common_multiple(one: u64, other: u64) -> Option<u64> {
    let (mut divisor, mut rest) = (one, other);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (one / divisor.max(1)).checked_mul(other)
}

#[cfg(test)]
mod tests {
    use base::{Bytes, Priority};

    use super::*;
    use crate::Window;

    const MS: u64 = 1000;

    fn turn(grant: &str, cards: &[&str], (start_ms, end_ms): (u64, u64)) -> Turn {
        let pass = Pass::Windows(vec![Window { start_us: start_ms * MS, end_us: end_ms * MS }]);
        let card =
            |uuid: &&str| CardTurn { uuid: (*uuid).to_owned(), memory: Bytes(0), pass: pass.clone(), share_ppm: 0 };
        let cards = cards.iter().map(card).collect();
        Turn { grant_id: grant.to_owned(), period_us: 100 * MS, priority: Priority::High, cards }
    }

    /// Epochs of one card.
    fn epochs(of: &[(u64, &[Turn])]) -> Vec<Epoch> {
        of.iter().map(|(from_ms, turns)| Epoch { from_us: from_ms * MS, turns: turns.to_vec() }).collect()
    }

    #[test]
    fn cards_with_different_epochs_change_together_after_the_last_of_them() {
        let (old, new) = (turn("both", &["a"], (0, 30)), turn("both", &["a"], (0, 50)));
        let on_a = epochs(&[(0, &[old]), (300, &[new])]);
        // Whoever wrote that was killed before this one was written.
        let on_b = epochs(&[(0, &[turn("both", &["b"], (0, 30)), turn("other", &["b"], (30, 60))])]);
        let before = CardEpochs::from([("a".to_owned(), on_a.clone()), ("b".to_owned(), on_b.clone())]);
        let plan = [turn("both", &["a", "b"], (0, 50)), turn("other", &["b"], (50, 80))];
        let mut next = advance(before, &plan, 150 * MS);
        assert_eq!(next.remove("a").unwrap(), on_a);
        let later = epochs(&[(400, &[turn("both", &["b"], (0, 50)), turn("other", &["b"], (50, 80))])]);
        assert_eq!(next.remove("b").unwrap(), [on_b, later].concat());
    }

    #[test]
    fn less_memory_holds_at_once_and_more_with_the_new_turn() {
        let with = |memory, window| {
            let mut turn = turn("a", &["a"], window);
            turn.cards[0].memory = Bytes(memory);
            turn
        };
        let written = |memory, window| {
            let before = epochs(&[(0, &[with(5000, (0, 50))])]);
            let next = advance(CardEpochs::from([("a".to_owned(), before)]), &[with(memory, window)], 150 * MS);
            let memory = |epoch: &Epoch| (epoch.from_us / MS, epoch.turns[0].cards[0].memory.0);
            next["a"].iter().map(memory).collect::<Vec<_>>()
        };
        assert_eq!(written(3000, (0, 30)), [(0, 3000), (400, 3000)]);
        assert_eq!(written(3000, (0, 50)), [(0, 3000)]);
        assert_eq!(written(7000, (0, 50)), [(0, 5000), (400, 7000)]);
    }

    #[test]
    fn a_newcomer_of_two_cards_runs_at_once_where_neither_is_disturbed() {
        let on_a = epochs(&[(0, &[turn("first", &["a"], (0, 30))])]);
        let before = CardEpochs::from([("a".to_owned(), on_a), ("b".to_owned(), Vec::new())]);
        let plan = [turn("first", &["a"], (0, 30)), turn("both", &["a", "b"], (30, 60))];
        let next = advance(before, &plan, 150 * MS);
        assert_eq!(next["a"], epochs(&[(0, &[turn("both", &["a"], (30, 60)), turn("first", &["a"], (0, 30))])]));
        assert_eq!(next["b"], epochs(&[(150, &[turn("both", &["b"], (30, 60))])]));
    }

    #[test]
    fn a_change_begins_two_periods_later_where_all_begin_or_the_new_one_does() {
        for (periods_us, new_us, now_us, from_us) in [
            (&[100_000, 100_000][..], 100_000, 1, 300_000),
            (&[100_000, 100_000], 100_000, 300_000, 500_000),
            // Both begin at 500 ms.
            (&[100_000, 125_000], 125_000, 10_000, 500_000),
            (&[500_000, 100_000], 100_000, 400_001, 1_500_000),
            // They would meet in 17 s.
            (&[100_000, 170_000], 170_000, 600_000, 1_020_000),
            (&[500_000, 495_000], 495_000, 0, 1_485_000),
        ] {
            assert_eq!(instant(periods_us, new_us, now_us), from_us, "{periods_us:?} at {now_us}");
            let longest_us = periods_us.iter().max().unwrap();
            assert!(from_us >= now_us + 2 * longest_us && from_us <= now_us + 4 * longest_us);
        }
    }
}
