//! Policy beside an engine that takes a context off within a slice and a switch.

use proptest::prelude::*;

use super::*;

/// Also the distance of steps.
const STEP_US: u64 = 50;
/// A switch of contexts, after which the one that comes works.
const SWITCH_US: u64 = 200;

/// Results of a run, in microseconds.
#[derive(Debug, Default)]
struct Outcome {
    /// Time for which high had work and a low one the card.
    waited: u64,
    /// Work of the low one, and the time that high left.
    harvested: u64,
    left: u64,
    /// Longest time in which high was quiet and the low one off the card.
    longest_absence: u64,
}

/// High has work in some spans of time; the low one has work always. Each time that high begins, it
/// waits for a switch.
fn run(spans: &[(u64, u64)], until_us: u64, is_told: bool) -> Outcome {
    let (mut low, mut stays, mut outcome) = (Harvesting::default(), Stays::default(), Outcome::default());
    let (mut verdict, mut stay_us, mut absence_us, mut quiet_us) = (low.verdict(0, stays, None), 0_u64, 0_u64, 0_u64);
    let (mut next, mut backlog_us, mut open_us) = (0, 0_u64, 0);
    for now_us in (0..until_us).step_by(50) {
        if now_us >= verdict.look_at_us {
            let lasting_us = stays.lasting_us + stay_us.saturating_sub(300);
            verdict = low.verdict(now_us, Stays { lasting_us, open_us, ..stays }, is_told.then_some(quiet_us > 20_000));
            assert!(verdict.look_at_us > now_us);
        }
        while let Some((from_us, to_us)) = spans.get(next).filter(|(from_us, _)| *from_us <= now_us) {
            backlog_us += to_us - from_us;
            next += 1;
        }
        open_us += if verdict.may_run { STEP_US } else { 0 };
        let has_work = backlog_us > 0;
        backlog_us = backlog_us.saturating_sub(STEP_US);
        quiet_us = if has_work { 0 } else { quiet_us + STEP_US };
        if !has_work {
            outcome.left += STEP_US;
            absence_us = if verdict.may_run { 0 } else { absence_us + STEP_US };
            outcome.longest_absence = outcome.longest_absence.max(absence_us);
            if verdict.may_run {
                stays.came += u64::from(stay_us == 0);
                stay_us += STEP_US;
                outcome.harvested += STEP_US;
            }
        } else if stay_us > 0 {
            // It is displaced: high waits for that, and has as much to do as before.
            outcome.waited += SWITCH_US;
            backlog_us += SWITCH_US;
            stays.lasting_us += (stay_us + SWITCH_US).saturating_sub(300);
            stay_us = 0;
        }
        if !verdict.may_run {
            stays.lasting_us += stay_us.saturating_sub(300);
            stay_us = 0;
        }
    }
    outcome
}

/// Work of so long, and a break, again and again.
fn regular(work_us: u64, break_us: u64, until_us: u64) -> Vec<(u64, u64)> {
    (0..until_us / (work_us + break_us)).map(|n| n * (work_us + break_us)).map(|at| (at, at + work_us)).collect()
}

#[test]
fn breaks_of_milliseconds_are_used() {
    let outcome = run(&regular(1_650, 3_850, 20_000_000), 20_000_000, false);
    assert!(outcome.harvested * 100 > outcome.left * 98, "{outcome:?}");
}

/// Requests of a length that arrive at random, at that many percent of the card, one after another.
fn requests(length_us: u64, percent: u64, until_us: u64) -> Vec<(u64, u64)> {
    let (mut random, mut at_us, mut free_us) = (1_u64, 0, 0);
    let next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // A sum of two uniform ones is about as irregular as an exponential one.
        at_us += ((random >> 40) + (random >> 20 & 0xff_ffff)) * (length_us * 100 / percent) / (1 << 24);
        let from_us = at_us.max(free_us + STEP_US);
        free_us = from_us + length_us;
        Some((from_us, free_us))
    };
    std::iter::from_fn(next).take_while(|(from_us, _)| *from_us < until_us).collect()
}

#[test]
fn what_random_requests_leave_is_used() {
    for (length_us, percent) in [(1_650, 30), (1_650, 60), (5_000, 30), (5_000, 60), (20_000, 30)] {
        let outcome = run(&requests(length_us, percent, 60_000_000), 60_000_000, true);
        assert!(outcome.harvested * 100 > outcome.left * 98, "{length_us} at {percent}: {outcome:?}");
    }
}

#[test]
fn beside_many_short_breaks_it_is_only_let_in_to_see() {
    for is_told in [false, true] {
        let outcome = run(&regular(700, 50, 20_000_000), 20_000_000, is_told);
        assert!(outcome.waited < 20_000_000 / 100, "high keeps 99 percent: {outcome:?}");
    }
}

#[test]
fn a_break_ends_the_wait() {
    // A second of work with short breaks, and a second of rest.
    let second = |start: u64| regular(700, 50, 1_000_000).into_iter().map(move |(from, to)| (start + from, start + to));
    let spans: Vec<(u64, u64)> = (0..10).flat_map(|n| second(n * 2_000_000)).collect();
    let told = run(&spans, 20_000_000, true);
    assert!(told.longest_absence <= BUSY_US, "{told:?}");
    let untold = run(&spans, 20_000_000, false);
    assert!(untold.longest_absence <= MOST_PATIENCE * AWAY_US + LOOK_US, "{untold:?}");
    assert!(untold.harvested * 100 > untold.left * 70, "{untold:?}");
}

#[test]
fn alone_it_has_all() {
    let outcome = run(&[], 5_000_000, false);
    assert_eq!((outcome.harvested, outcome.waited), (5_000_000, 0));
}

proptest! {
    /// However short the work and its breaks are, high loses little by them, or low gains by it: a
    /// break that is a little longer than a switch is worth one.
    #[test]
    fn high_waits_little_or_low_gains(lengths in proptest::collection::vec((50_u64..250, 100_u64..20_000), 1..20), is_told: bool) {
        let spans: Vec<(u64, u64)> = lengths.into_iter().cycle().scan(0, |at_us, (rest, work)| {
            let from_us = *at_us + rest;
            *at_us = from_us + work;
            Some((from_us, *at_us))
        }).take_while(|(_, to_us)| *to_us < 20_000_000).collect();
        let outcome = run(&spans, 20_000_000, is_told);
        let gained = outcome.harvested * 5 / 2;
        prop_assert!(outcome.waited < gained.max(20_000_000 * 5 / 100), "{:?}", outcome);
    }
}
