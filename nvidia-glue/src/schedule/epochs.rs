//! From one timetable to the next: what is planned anew begins at an instant that everybody has heard of by then.

use std::collections::{BTreeMap, BTreeSet};

use runtime_config::config::MIN_PERIOD_US;

use super::{CardTurn, Epoch, Pass, Turn, tied::tied};

/// A change begins at least so many periods after it was made, so that every mediator has read it.
const PERIODS_AHEAD: u64 = 2;
/// And, if that lets old and new periods begin together, at most so many.
const PERIODS_AT_MOST: u64 = 4;

/// The epochs of the next timetable: `turns` is what is to come, `told` what was told so far.
///
/// - A grant that is gone has no turn any more, in any epoch: its processes are gone, too.
/// - Containers that are tied to each other change together, at the beginning of a period [`PERIODS_AHEAD`] from now. What was
///   told of the time until then stays.
/// - Whoever comes to be where all others keep what they have runs at once: there is nobody to disturb.
pub(crate) fn advance(told: Vec<Epoch>, turns: Vec<Turn>, now_us: u64) -> Vec<Epoch> {
    let mut epochs = still_told(told, &turns, now_us);
    let cards = |turn: &Turn| turn.cards.iter().map(|card| card.uuid.clone()).collect();
    let groups = tied(&turns.iter().map(cards).collect::<Vec<Vec<String>>>());
    let mut turns: Vec<Option<Turn>> = turns.into_iter().map(Some).collect();
    for group in groups {
        let tied: Vec<Turn> = group.into_iter().filter_map(|position| turns.get_mut(position)?.take()).collect();
        if disturbs_nobody(&epochs, &tied) {
            for epoch in &mut epochs {
                replace(epoch, &tied);
            }
        } else if holds_already(epochs.last(), &tied) {
            // What is told needs no change but for what is shown.
            if let Some(last) = epochs.last_mut() {
                replace(last, &tied);
            }
        } else {
            begin(&mut epochs, &tied, now_us);
        }
    }
    epochs.dedup_by(|later, earlier| later.turns == earlier.turns);
    epochs
        .into_iter()
        .map(|epoch| Epoch { from_us: epoch.from_us, turns: epoch.turns.into_values().collect() })
        .collect()
}

/// An epoch with its turns by grant.
#[derive(Debug, Clone)]
struct ByGrant {
    from_us: u64,
    turns: BTreeMap<String, Turn>,
}

/// What was told, from the epoch that holds now on, without those that are gone.
fn still_told(told: Vec<Epoch>, turns: &[Turn], now_us: u64) -> Vec<ByGrant> {
    let holding = told.iter().rposition(|epoch| epoch.from_us <= now_us);
    let is_there: BTreeSet<&str> = turns.iter().map(|turn| turn.grant_id.as_str()).collect();
    let by_grant = |epoch: Epoch| {
        let there = epoch.turns.into_iter().filter(|turn| is_there.contains(turn.grant_id.as_str()));
        let turns = there.map(|mut turn| {
            // Whoever reads the epoch finds them in it.
            turn.cards.iter_mut().for_each(|card| card.neighbours.clear());
            (turn.grant_id.clone(), turn)
        });
        ByGrant { from_us: epoch.from_us, turns: turns.collect() }
    };
    let mut epochs: Vec<ByGrant> = told.into_iter().skip(holding.unwrap_or_default()).map(by_grant).collect();
    if holding.is_none() {
        epochs.insert(0, ByGrant { from_us: now_us, turns: BTreeMap::new() });
    }
    epochs
}

/// Whether those of `tied` who were told of their turns keep them as they are, from now on.
fn disturbs_nobody(epochs: &[ByGrant], tied: &[Turn]) -> bool {
    let is_known = |turn: &&Turn| epochs.iter().any(|epoch| epoch.turns.contains_key(&turn.grant_id));
    tied.iter()
        .filter(is_known)
        .all(|turn| epochs.iter().all(|epoch| epoch.turns.get(&turn.grant_id).is_some_and(|told| is_same(told, turn))))
}

fn holds_already(epoch: Option<&ByGrant>, tied: &[Turn]) -> bool {
    let told = |turn: &Turn| epoch?.turns.get(&turn.grant_id);
    tied.iter().all(|turn| told(turn).is_some_and(|told| is_same(told, turn)))
}

/// The same but for what neighbours make of its share.
fn is_same(one: &Turn, other: &Turn) -> bool {
    fn limits(card: &CardTurn) -> (&str, u64, &Pass) {
        (&card.uuid, card.memory.0, &card.pass)
    }
    (one.period_us, one.priority) == (other.period_us, other.priority)
        && one.cards.iter().map(limits).eq(other.cards.iter().map(limits))
}

fn replace(epoch: &mut ByGrant, tied: &[Turn]) {
    epoch.turns.extend(tied.iter().map(|turn| (turn.grant_id.clone(), turn.clone())));
}

/// Lets `tied` hold from an instant on.
fn begin(epochs: &mut Vec<ByGrant>, tied: &[Turn], now_us: u64) {
    let told = epochs.iter().flat_map(|epoch| tied.iter().filter_map(|turn| epoch.turns.get(&turn.grant_id)));
    let periods: Vec<u64> = told.chain(tied).map(|turn| turn.period_us.max(MIN_PERIOD_US)).collect();
    let new_us = tied.first().map_or(MIN_PERIOD_US, |turn| turn.period_us.max(MIN_PERIOD_US));
    let from_us = instant(&periods, new_us, now_us);
    // Where the new epoch comes, whether or not another begins there.
    let position = epochs.iter().position(|epoch| epoch.from_us >= from_us).unwrap_or(epochs.len());
    if epochs.get(position).is_none_or(|epoch| epoch.from_us != from_us) {
        let turns = position.checked_sub(1).and_then(|last| epochs.get(last)).map(|epoch| epoch.turns.clone());
        epochs.insert(position, ByGrant { from_us, turns: turns.unwrap_or_default() });
    }
    for epoch in epochs.iter_mut().skip(position) {
        replace(epoch, tied);
    }
}

/// When a change may begin: [`PERIODS_AHEAD`] from now, where all periods begin together if that is soon, else where a new one
/// does.
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
    use super::*;

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
