//! Turns of low containers among each other.
//!
//! With the least slices, several that work at the same time would do nothing but displace each
//! other. So they take turns, as long as theirs on a clock that all share: who worked of late is
//! seen on the card, by each of them alike. Where only one works, there are no turns.

use super::Verdict;

/// Longest turn, as a multiple of the shortest.
const MOST_TURNS: u64 = 8;

/// One of the low containers of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowMember {
    /// Its weight among all.
    pub weight: u32,
    /// Instant at which it was on the card last; `None`: never.
    pub seen_us: Option<u64>,
}

/// Decides whether it is the turn of the container at a place of `lows`, which all of them have in
/// the same order.
pub fn turn(now_us: u64, turn_us: u64, lows: &[LowMember], own: usize) -> Verdict {
    let turn_us = turn_us.max(1);
    let free = Verdict { may_run: true, look_at_us: u64::MAX };
    let least = lows.iter().map(|low| low.weight.max(1)).min().unwrap_or(1);
    let turns_of = |low: &LowMember| u64::from((low.weight.max(1) + least / 2) / least).min(MOST_TURNS);
    // Whoever worked within a round of all has had a turn in it.
    let round_us = (lows.iter().map(turns_of).sum::<u64>() + 1) * turn_us;
    let works = |low: &&LowMember| low.seen_us.is_some_and(|seen_us| seen_us.saturating_add(round_us) >= now_us);
    if !lows.get(own).is_some_and(|low| works(&low)) || lows.iter().filter(works).count() < 2 {
        return free;
    }
    let working: u64 = lows.iter().filter(works).map(turns_of).sum();
    let number = now_us / turn_us % working.max(1);
    let mut first = 0;
    for (place, low) in lows.iter().enumerate().filter(|(_, low)| works(low)) {
        first += turns_of(low);
        if number < first {
            return Verdict { may_run: place == own, look_at_us: (now_us / turn_us + 1) * turn_us };
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN_US: u64 = 100_000;

    fn low(weight: u32, seen_us: u64) -> LowMember {
        LowMember { weight, seen_us: Some(seen_us) }
    }

    #[test]
    fn one_that_works_alone_has_all_turns() {
        let lows = [low(1, 5_000_000), LowMember { weight: 1, seen_us: None }, low(1, 1_000_000)];
        assert!(turn(5_000_000, TURN_US, &lows, 0).may_run);
        assert!(turn(5_000_000, TURN_US, &lows, 1).may_run, "it may begin at any time");
        assert!(turn(5_000_000, TURN_US, &lows, 2).may_run);
    }

    #[test]
    fn one_at_a_time_and_each_by_its_weight() {
        let at_us = 1_000_000_000;
        for (weights, due) in [
            (&[1, 1][..], &[1, 1][..]),
            (&[3, 1, 2], &[3, 1, 2]),
            (&[19, 10], &[2, 1]),
            (&[100, 150, 1_000_000], &[1, 2, 8]),
        ] {
            let lows: Vec<LowMember> = weights.iter().map(|weight| low(*weight, at_us)).collect();
            let mut had = vec![0; lows.len()];
            for now_us in (0..due.iter().sum()).map(|turn| at_us + turn * TURN_US) {
                let on: Vec<usize> = (0..lows.len()).filter(|own| turn(now_us, TURN_US, &lows, *own).may_run).collect();
                assert_eq!(on.len(), 1, "{weights:?}");
                had[on[0]] += 1;
            }
            assert_eq!(had, due, "{weights:?}");
        }
    }
}
