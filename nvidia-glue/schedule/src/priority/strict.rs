//! Strict priority: while those of high priority work, a low container is off the card.
//!
//! Whether they want the card is seen on the card itself ([`Residency`](crate::Residency)): a
//! context that is displaced comes back only when it has work. So a low container that runs looks
//! every few milliseconds whether one of the others has come, and leaves at once when it has. While
//! it waits, nothing displaces the others, so nothing shows whether they still work: it is let in
//! once in a while. Do the others come back, they work, and it waits on, longer each time; do they
//! not, it stays.

use super::Verdict;
use crate::soft::{Groups, on_card, slice_of};

/// The slice of a channel group of a container of low priority beside others of high priority, if
/// one or two of its groups work.
pub const LOW_SLICE_US: u64 = 1_000;
/// Time of all of its groups together, before others come: for about so long these wait when they
/// want the card, and no more is taken from them when the container is let in to see.
const LOW_SHARE_US: u64 = 2 * LOW_SLICE_US;

/// The slice of each group of a container of low priority.
pub fn low_slice_us(groups: Groups) -> u64 {
    slice_of(LOW_SHARE_US, groups).min(LOW_SLICE_US)
}

/// Number of its groups that are on the card at a time, in turn; `None`: all.
pub fn low_on_card(groups: Groups) -> Option<usize> {
    // As long as nobody has seen any of them, all may work.
    let working = groups.working.map(|working| if working == 0 { groups.all } else { working });
    on_card(LOW_SHARE_US, Groups { working, ..groups })
}

/// Time from a container's start to its first look: a slice of the others, and its own.
pub const FIRST_LOOK_US: u64 = 4_000;
/// Interval of its later looks. Less than the period of any timetable.
const LOOK_US: u64 = 10_000;
/// Most periods that it waits before it is let in again.
const MOST_PERIODS: u64 = 4;
/// Shorter ones count as that long: to be let in takes some milliseconds of others' time. Others
/// that came back within that long did work, and only had to wait for their turns.
const LEAST_PERIOD_US: u64 = 100_000;

/// Decides for one container of low priority on one card. Pure: it is given the time.
#[derive(Debug, Clone)]
pub struct Yielding {
    state: PriorityState,
    /// Number of periods that it waits the next time.
    patience: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PriorityState {
    /// It has the card since an instant, and none of the others has come since.
    Runs {
        since_us: u64,
    },
    Waits {
        until_us: u64,
    },
}

impl Default for Yielding {
    fn default() -> Self {
        // It is let in as soon as somebody asks.
        Self { state: PriorityState::Waits { until_us: 0 }, patience: 1 }
    }
}

impl Yielding {
    /// Verdict as of now. `others_came_us`: the instant at which one of those with high priority
    /// came onto the card last ([`Residency::last_came_ns`](crate::Residency::last_came_ns));
    /// `None`: never.
    pub fn verdict(&mut self, now_us: u64, period_us: u64, others_came_us: Option<u64>) -> Verdict {
        let period_us = period_us.max(LEAST_PERIOD_US);
        match self.state {
            PriorityState::Runs { since_us } if others_came_us.is_some_and(|came_us| came_us > since_us) => {
                let had_us = now_us.saturating_sub(since_us);
                self.patience = if had_us > period_us { 1 } else { (self.patience * 2).min(MOST_PERIODS) };
                self.state =
                    PriorityState::Waits { until_us: now_us.saturating_add(self.patience.saturating_mul(period_us)) };
            }
            PriorityState::Waits { until_us } if now_us >= until_us => {
                self.state = PriorityState::Runs { since_us: now_us }
            }
            PriorityState::Runs { .. } | PriorityState::Waits { .. } => (),
        }
        match self.state {
            PriorityState::Runs { since_us } => {
                let first_us = since_us + FIRST_LOOK_US;
                Verdict { may_run: true, look_at_us: if now_us < first_us { first_us } else { now_us + LOOK_US } }
            }
            PriorityState::Waits { until_us } => Verdict { may_run: false, look_at_us: until_us },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD_US: u64 = 100_000;

    /// Others that work in some spans of time, on a card whose slices are 2 ms: what a low
    /// container has, of their time and of the rest, and for how long at most it stayed in their
    /// time; microseconds.
    fn run(others_work: impl Fn(u64) -> bool, until_us: u64) -> (u64, u64, u64) {
        const STEP_US: u64 = 500;
        let mut low = Yielding::default();
        let mut verdict = Verdict { may_run: false, look_at_us: 0 };
        let mut others_came_us = None;
        let (mut theirs_us, mut rest_us, mut stay_us, mut longest_us) = (0, 0, 0, 0);
        for now_us in (0..until_us).step_by(500) {
            if now_us >= verdict.look_at_us {
                verdict = low.verdict(now_us, PERIOD_US, others_came_us);
                assert!(verdict.look_at_us > now_us);
            }
            let works = others_work(now_us);
            if verdict.may_run && works {
                // They take turns: in every second millisecond, they come.
                if now_us % 3_000 == 0 {
                    others_came_us = Some(now_us);
                }
                theirs_us += STEP_US;
                stay_us += STEP_US;
                longest_us = longest_us.max(stay_us);
            } else {
                rest_us += if verdict.may_run { STEP_US } else { 0 };
                stay_us = 0;
            }
        }
        (theirs_us, rest_us, longest_us)
    }

    #[test]
    fn beside_busy_ones_it_is_only_let_in_to_see() {
        let (theirs_us, _, longest_us) = run(|_| true, 10_000_000);
        assert!(theirs_us < 10_000_000 * 25 / 1000, "{theirs_us}");
        assert!(longest_us < PERIOD_US);
    }

    #[test]
    fn alone_it_has_all() {
        let (_, rest_us, _) = run(|_| false, 10_000_000);
        assert_eq!(rest_us, 10_000_000);
    }

    #[test]
    fn time_that_the_others_leave_is_used() {
        // They work one second, and rest the next.
        let (theirs_us, rest_us, longest_us) = run(|now_us| now_us / 1_000_000 % 2 == 0, 20_000_000);
        assert!(theirs_us < 10_000_000 * 30 / 1000, "{theirs_us}");
        assert!(rest_us > 10_000_000 * 55 / 100, "{rest_us}");
        assert!(longest_us <= 15_000, "{longest_us}");
    }

    proptest! {
        #[test]
        fn it_leaves_within_a_period(spans in proptest::collection::vec((1_u64..2_000, 1_u64..2_000), 1..20)) {
            let spans: Vec<(u64, u64)> = spans.into_iter().scan(0, |at, (rest, work)| {
                let from = *at + rest * 1_000;
                *at = from + work * 1_000;
                Some((from, *at))
            }).collect();
            let end_us = spans.last().unwrap().1;
            let (.., longest_us) = run(|now_us| spans.iter().any(|(from, to)| (*from..*to).contains(&now_us)), end_us);
            prop_assert!(longest_us < PERIOD_US / 2, "{}", longest_us);
        }
    }
}
