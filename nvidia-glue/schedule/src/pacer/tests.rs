//! A pacer on a clock that is played, with a host that wakes late and a driver that takes its time.

mod contention;
mod held_up;

use proptest::prelude::*;

use super::*;
use crate::{CardTurn, Epoch, Pass, Timetable, Turn, Window};

const PERIOD: u64 = 100_000;

fn turn(grant: &str, windows: &[(u64, u64)]) -> Turn {
    let windows = windows.iter().map(|&(start_us, end_us)| Window { start_us, end_us }).collect();
    let card = CardTurn { uuid: "GPU-a".into(), memory: base::Bytes(0), pass: Pass::Windows(windows), share_ppm: 0 };
    let priority = base::Priority::High;
    Turn { grant_id: grant.into(), period_us: PERIOD, priority, cards: vec![card] }
}

/// One epoch with a container `own`, and one that has all time after it if there are `neighbours`.
fn epoch(from_us: u64, (start, end): (u64, u64), neighbours: bool) -> Epoch {
    let mut turns = vec![turn("own", &[(start, end)])];
    if neighbours {
        turns.push(turn("other", &[(end, PERIOD)]));
    }
    Epoch { from_us, turns }
}

fn timeline(epochs: Vec<Epoch>) -> Timeline {
    let table = Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs };
    Timeline::of(&table, "own", "GPU-a", &Timeline::never())
}

/// Behaviour of a host and a driver, move by move: microseconds until the thread runs, and that the
/// call takes.
type Jitter = Vec<(u64, u64)>;

/// The times during which the channels were on the card.
fn run(pacer: &mut Pacer, from_us: u64, until_us: u64, jitter: &Jitter) -> Vec<(u64, u64)> {
    let (mut now, mut on, mut opened) = (from_us, Vec::new(), 0);
    for (wake, call) in jitter.iter().cycle() {
        let Some(next) = pacer.next(now) else { break };
        assert!(next.at_us >= now, "nothing is done in the past");
        // A span that begins by then is opened ahead of it, but is no part of what is counted.
        let is_beyond = next.what == Move::Open && pacer.planned.is_some_and(|(span, _)| span.start_us >= until_us);
        if next.at_us >= until_us || is_beyond {
            break;
        }
        now = next.at_us + wake + call;
        pacer.moved(next.what, next.at_us, now);
        match next.what {
            // Who takes over from another does not have the card before that one has left.
            Move::Open => {
                let span = pacer.timeline().span(now);
                opened = span.filter(Span::takes_over).map_or(now, |span| span.start_us.max(now));
            }
            // It may be taken off before the other one has left.
            Move::Close => on.push((opened.min(now), now)),
        }
    }
    if pacer.is_open() {
        on.push((opened, until_us.max(opened)));
    }
    on
}

fn total(on: &[(u64, u64)]) -> u64 {
    on.iter().map(|(from, until)| until - from).sum()
}

/// Microseconds of it outside of the windows.
fn overlap(on: &[(u64, u64)], timeline: &Timeline) -> u64 {
    let mut outside = 0;
    for &(from, until) in on {
        let mut at = from;
        while at < until {
            let span = timeline.span(at).unwrap();
            outside += span.start_us.min(until).saturating_sub(at);
            at = span.end_us.min(until).max(at + 1);
        }
    }
    outside
}

#[test]
fn without_jitter_windows_are_exact_from_the_second_on() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline.clone());
    let on = run(&mut pacer, 0, 20 * PERIOD, &vec![(0, 400), (0, 600)]);
    assert_eq!(on.len(), 20);
    assert_eq!(on[0], (10_400, 35_100), "nobody knew how long the calls take");
    for (number, (from, until)) in (0..).zip(&on).skip(2) {
        let base = number * PERIOD;
        assert_eq!((*from, *until), (base + 10_000, base + 35_000));
    }
}

#[test]
fn what_a_late_close_took_is_given_back() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline);
    let first = run(&mut pacer, 0, 5 * PERIOD, &vec![(0, 400)]);
    assert_eq!(*first.last().unwrap(), (410_000, 435_000));
    let next = pacer.next(500_000).unwrap();
    pacer.moved(Move::Open, next.at_us, 510_000);
    let next = pacer.next(510_000).unwrap();
    // 40 ms late: more than a window, less than two.
    pacer.moved(Move::Close, next.at_us, 575_000);
    assert_eq!(pacer.balance_us(), 40_000);
    let after = run(&mut pacer, 575_000, 10 * PERIOD, &vec![(0, 400)]);
    assert_eq!(after[0], (710_000, 720_000), "one window is skipped, the next one is 15 ms shorter");
    assert_eq!(after[1], (810_000, 835_000));
    assert_eq!(pacer.balance_us(), 0);
}

#[test]
fn a_thread_that_slept_for_periods_owes_only_what_was_not_its_own() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline);
    let next = pacer.next(0).unwrap();
    pacer.moved(Move::Open, next.at_us, 10_000);
    pacer.next(10_000).unwrap();
    // Three windows more were within.
    pacer.moved(Move::Close, 35_000, 350_000);
    assert_eq!(pacer.balance_us(), 340_000 - 4 * 25_000);
}

/// Windows in which the number of calls that an edge takes changes: what a closing of so many calls
/// leaves the card late by.
#[test]
fn nobody_closes_late_by_having_few_channels_to_take_off_now_and_then() {
    const CALL: u64 = 970;
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline);
    // All that could be on the card counts, whatever the program has taken off itself.
    pacer.expect(Calls { all: 8, compute: 8 });
    let mut now = 0;
    for period in 0..64 {
        let next = pacer.next(now).unwrap();
        now = next.at_us + 8 * 700;
        pacer.moved_in(8, Move::Open, next.at_us, (next.at_us, now));
        let next = pacer.next(now).unwrap();
        // Five of sixteen take one call, or none.
        let calls = if period % 16 < 5 { period % 2 } else { 8 };
        now = next.at_us + CALL * calls;
        pacer.moved_in(usize::try_from(calls).unwrap(), Move::Close, next.at_us, (next.at_us, now));
        let end = period * PERIOD + 35_000;
        assert!(period == 0 || now <= end.max(next.at_us), "{period}: {} us late", now - end);
    }
}

#[test]
fn what_is_on_the_card_before_the_last_call_of_an_opening_counts() {
    const CALL: u64 = 700;
    let windows = [("own", (10_000, 20_000)), ("other", (20_000, PERIOD)), ("before", (0, 10_000))];
    let turns = windows.iter().map(|(grant, window)| turn(grant, &[*window])).collect();
    let mut pacer = Pacer::new(timeline(vec![Epoch { from_us: 0, turns }]));
    pacer.expect(Calls { all: 8, compute: 8 });
    let (mut now, mut on, mut windows) = (0, 0, 0);
    for _ in 0..100 {
        let next = pacer.next(now).unwrap();
        windows = (next.at_us + MOST_TAKEOVER_US - 10_000) / PERIOD;
        assert!(next.at_us <= windows * PERIOD + 10_000, "not more than that ahead");
        now = next.at_us + 8 * CALL;
        pacer.moved_in(8, Move::Open, next.at_us, (next.at_us, now));
        let first = next.at_us + CALL;
        assert_eq!(pacer.on_since_us(), Some(first));
        let next = pacer.next(now).unwrap();
        now = next.at_us + 8 * 970;
        pacer.moved_in(8, Move::Close, next.at_us, (next.at_us, now));
        on += now - first;
    }
    // Both edges take more than the window: what that comes to is paid back by windows that are
    // skipped.
    assert!(windows > 100);
    let owed = u64::try_from(pacer.balance_us()).unwrap();
    assert!(on <= (windows + 1) * 10_000 + owed && owed <= 20_000, "{on} {windows} {owed}");
}

#[test]
fn copies_that_come_before_compute_are_no_matter_of_the_windows() {
    let windows = [("own", (10_000, 20_000)), ("other", (20_000, PERIOD)), ("before", (0, 10_000))];
    let turns: Vec<_> = windows.iter().map(|(grant, window)| turn(grant, &[*window])).collect();
    let timeline = timeline(vec![Epoch { from_us: 0, turns }]);
    let (mut one, mut many) = (Pacer::new(timeline.clone()), Pacer::new(timeline));
    many.expect(Calls { all: 3, compute: 1 });
    let (mut now_one, mut now_many) = (0, 0);
    for _ in 0..20 {
        for (what, took) in [(Move::Open, 400), (Move::Close, 600)] {
            let (next_one, next_many) = (one.next(now_one).unwrap(), many.next(now_many).unwrap());
            (now_one, now_many) = (next_one.at_us + took, next_many.at_us + 3 * took);
            one.moved(what, next_one.at_us, now_one);
            // By the log, compute has gone with the first call.
            let effect = if what == Move::Open { now_many } else { next_many.at_us + took };
            many.moved_in(3, what, next_many.at_us, (next_many.at_us, effect));
            if now_one > 2 * PERIOD {
                assert_eq!((what, now_one), (what, effect), "compute comes and goes as if it were alone");
            }
        }
    }
}

#[test]
fn time_out_of_the_window_is_paid_back() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline);
    run(&mut pacer, 0, 5 * PERIOD, &vec![(0, 400)]);
    pacer.owe(30_000);
    let after = run(&mut pacer, 5 * PERIOD, 10 * PERIOD, &vec![(0, 400)]);
    assert_eq!(after[0], (610_000, 630_000), "one window is skipped, the next one is 5 ms shorter");
    assert_eq!(after[1], (710_000, 735_000));
}

#[test]
fn windows_that_are_missed_are_skipped() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), true)]);
    let mut pacer = Pacer::new(timeline);
    assert_eq!(pacer.next(36_000), Some(Next { what: Move::Open, at_us: 110_000 }));
    assert_eq!(pacer.next(134_500), Some(Next { what: Move::Open, at_us: 210_000 }), "the rest is not worth it");
    assert_eq!(pacer.next(220_000), Some(Next { what: Move::Open, at_us: 220_000 }));
    pacer.moved(Move::Open, 220_000, 220_400);
    assert_eq!(
        pacer.next(220_400),
        Some(Next { what: Move::Close, at_us: 234_500 }),
        "the neighbour's time is its own"
    );
}

#[test]
fn where_nobody_else_is_lateness_is_made_up() {
    let timeline = timeline(vec![epoch(0, (10_000, 35_000), false)]);
    let mut pacer = Pacer::new(timeline);
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 11_000);
    assert_eq!(pacer.next(11_000), Some(Next { what: Move::Close, at_us: 35_500 }), "500 us for the call");
    pacer.moved(Move::Close, 35_500, 36_000);
    assert_eq!(pacer.balance_us(), 0);
    pacer.next(36_000).unwrap();
    pacer.moved(Move::Open, 110_000, 120_000);
    assert_eq!(pacer.next(120_000), Some(Next { what: Move::Close, at_us: 144_500 }));
    // Somebody else took it off early: what is missing comes after the next spans.
    pacer.moved(Move::Close, 129_500, 130_000);
    assert_eq!(pacer.balance_us(), -15_000);
    pacer.next(130_000).unwrap();
    pacer.moved(Move::Open, 210_000, 210_000);
    assert_eq!(pacer.next(210_000), Some(Next { what: Move::Close, at_us: 249_500 }));
}

#[test]
fn new_epochs_hold_from_their_instant() {
    let change = timeline(vec![epoch(0, (10_000, 35_000), true), epoch(220_000, (50_000, 60_000), true)]);
    let on = run(&mut Pacer::new(change), 0, 4 * PERIOD, &vec![(0, 0)]);
    assert_eq!(on[1..], [(110_000, 135_000), (210_000, 220_000), (250_000, 260_000), (350_000, 360_000)]);
    let on_goes = timeline(vec![epoch(0, (10_000, 35_000), true), epoch(220_000, (15_000, 60_000), true)]);
    let on = run(&mut Pacer::new(on_goes), 0, 4 * PERIOD, &vec![(0, 0)]);
    assert_eq!(on[1..], [(110_000, 135_000), (210_000, 260_000), (315_000, 360_000)], "no edge between the two");
}

#[test]
fn another_course_changes_what_is_open() {
    let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), true)]));
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 10_000);
    pacer.follow(timeline(vec![epoch(0, (10_000, 35_000), true), epoch(20_000, (10_000, 50_000), true)]), 15_000);
    assert_eq!(pacer.next(15_000), Some(Next { what: Move::Close, at_us: 49_500 }));
    pacer.follow(Timeline::always(), 20_000);
    assert_eq!(pacer.next(20_000), None);
    pacer.follow(Timeline::never(), 30_000);
    assert_eq!(pacer.next(30_000), Some(Next { what: Move::Close, at_us: 30_000 }));
    pacer.moved(Move::Close, 30_000, 30_400);
    assert_eq!(pacer.next(30_400), None);
    assert!(pacer.balance_us() <= 400);
}

#[test]
fn what_cannot_be_closed_counts_as_running() {
    let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), true)]));
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 10_000);
    pacer.failed(60_000);
    assert_eq!(pacer.next(35_000), Some(Next { what: Move::Close, at_us: 60_000 }));
    pacer.moved(Move::Close, 60_000, 60_000);
    assert_eq!(pacer.balance_us(), 25_000);
}

#[test]
fn nobody_gains_by_having_no_channels_for_a_moment() {
    let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), false)]));
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 10_000);
    pacer.rest(12_000);
    assert_eq!(pacer.balance_us(), 0);
    pacer.resume(30_000);
    assert_eq!(pacer.next(30_000), Some(Next { what: Move::Open, at_us: 30_000 }));
    pacer.moved(Move::Open, 30_000, 30_000);
    assert_eq!(pacer.next(30_000), Some(Next { what: Move::Close, at_us: 34_500 }));
}

#[test]
fn what_a_neighbour_lost_is_paid_back_whatever_the_host_took() {
    let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), true)]));
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 15_000);
    // It had 22 ms of 25, but the last two of them were its neighbour's.
    pacer.moved(Move::Close, 35_000, 37_000);
    assert_eq!(pacer.balance_us(), 2_000);
}

/// Containers whose windows follow each other, on a driver that makes one call at a time. What each
/// had of the card, what of it while another had it too, and what nobody had; microseconds.
fn serialised(shares: &[u64], periods: u64, mut jitter: impl FnMut() -> u64) -> (Vec<u64>, u64, u64) {
    // What calls of a container with 20 channels take, and after what time they take effect
    // (docs/driver-facts.md).
    const CLOSING: (u64, u64) = (750, 620);
    const OPENING: (u64, u64) = (430, 430);
    let mut start = 0;
    let mut turns = Vec::new();
    for (number, share) in shares.iter().enumerate() {
        turns.push(turn(&format!("{number}"), &[(start, start + share)]));
        start += share;
    }
    let table = Timetable {
        version: 1,
        format: 1,
        boot_id: String::new(),
        revision: 1,
        epochs: vec![Epoch { from_us: 0, turns }],
    };
    let timeline = |number: usize| Timeline::of(&table, &format!("{number}"), "GPU-a", &Timeline::never());
    let mut pacers: Vec<Pacer> = (0..shares.len()).map(|number| Pacer::new(timeline(number))).collect();
    // When each is to issue its next call, what it is, and for when it was planned.
    let mut calls: Vec<(u64, Next)> = Vec::new();
    for pacer in &mut pacers {
        let next = pacer.next(0).unwrap();
        calls.push((next.at_us, next));
    }
    let mut free_at = 0;
    let mut edges = Vec::new();
    loop {
        let (number, &(issued, next)) = calls.iter().enumerate().min_by_key(|(_, (issued, _))| *issued).unwrap();
        if next.at_us > periods * PERIOD {
            break;
        }
        let (takes, effect) = if next.what == Move::Open { OPENING } else { CLOSING };
        let began = free_at.max(issued);
        free_at = began + takes;
        edges.push((began + effect, number, next.what));
        pacers[number].moved(next.what, next.at_us, began + effect);
        let next = pacers[number].next(free_at).unwrap();
        calls[number] = (next.at_us + jitter(), next);
    }
    edges.sort_unstable_by_key(|edge| edge.0);
    let (mut on, mut had) = (vec![false; shares.len()], vec![0; shares.len()]);
    let (mut shared, mut idle) = (0, 0);
    // The first periods are for learning.
    let from = 40 * PERIOD;
    for pair in edges.windows(2) {
        let (at, number, what) = pair[0];
        on[number] = what == Move::Open;
        if at < from {
            continue;
        }
        let passed = pair[1].0 - at;
        match on.iter().filter(|on| **on).count() {
            0 => idle += passed,
            1 => {}
            _ => shared += passed,
        }
        had.iter_mut().zip(&on).for_each(|(had, on)| *had += if *on { passed } else { 0 });
    }
    (had, shared, idle)
}

#[test]
fn neighbours_whose_calls_wait_for_each_other_lose_little() {
    for shares in [vec![50_000, 50_000], vec![10_000, 30_000, 60_000], vec![25_000; 4], vec![20_000, 80_000]] {
        for most in [1, 40, 150] {
            let mut seed = 1_u64;
            let jitter = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) % most
            };
            let periods = 240;
            let (had, shared, idle) = serialised(&shares, periods, jitter);
            let of = |us: u64| us / (periods - 40);
            let takeover_us = 620 + BETWEEN_CALLS_US;
            assert!(of(idle) <= 10, "{shares:?}, {most}: nobody has the card for {} us of a period", of(idle));
            assert!(of(shared) <= (takeover_us + 50) * shares.len() as u64, "{shares:?}, {most}: {}", of(shared));
            for (had, share) in had.iter().zip(&shares) {
                // What it had while its neighbour had it, too, it has lost to the next one.
                let error = of(*had).abs_diff(share + takeover_us);
                assert!(error <= 300, "{shares:?}, {most}: {} of {share}", of(*had));
            }
        }
    }
}

/// A neighbour's span ends where its own begins, and another's begins where that ends.
fn between_neighbours() -> Pacer {
    let windows = [("own", (10_000, 35_000)), ("other", (35_000, PERIOD)), ("before", (0, 10_000))];
    let turns = windows.iter().map(|(grant, window)| turn(grant, &[*window])).collect();
    Pacer::new(timeline(vec![Epoch { from_us: 0, turns }]))
}

fn most_in_a_second(on: &[(u64, u64)]) -> u64 {
    let from = |(number, (from, _)): (usize, &(u64, u64))| {
        let end = from + 10 * PERIOD;
        let within = on[number..].iter().take_while(|(begun, _)| *begun < end);
        within.map(|(begun, until)| (*until).min(end) - begun).sum()
    };
    on.iter().enumerate().map(from).max().unwrap_or(0)
}

fn window() -> impl Strategy<Value = (u64, u64)> {
    (5_000..=95_000_u64).prop_flat_map(|length| (0..=PERIOD - length).prop_map(move |start| (start, start + length)))
}

/// Mostly a little, now and then a lot; of less than `least` it could be a lot all the time.
fn jitter(most_wake: u64, least: usize) -> impl Strategy<Value = Jitter> {
    let wake = prop_oneof![8 => 0..most_wake / 5 + 1, 1 => 0..=most_wake];
    let call = prop_oneof![8 => 300..700_u64, 1 => 300..1_500_u64];
    proptest::collection::vec((wake, call), least..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Caps beside neighbours: exact where the host is as it should be.
    #[test]
    fn a_share_is_exact_over_a_hundred_periods(window in window(), jitter in jitter(1_000, 24), neighbours: bool) {
        let timeline = timeline(vec![epoch(0, window, neighbours)]);
        let on = run(&mut Pacer::new(timeline.clone()), 0, 100 * PERIOD, &jitter);
        let asked = 100 * (window.1 - window.0);
        let error = total(&on).abs_diff(asked);
        prop_assert!(error <= 100 * PERIOD / 200, "{} of {}", total(&on), asked);
    }

    /// However late the host is: nobody has more than his share but for one edge, and each overlap
    /// is that of one edge.
    #[test]
    fn nobody_has_more_than_his_share(window in window(), jitter in jitter(60_000, 1), neighbours: bool) {
        let timeline = timeline(vec![epoch(0, window, neighbours)]);
        let mut pacer = Pacer::new(timeline.clone());
        let on = run(&mut pacer, 0, 100 * PERIOD, &jitter);
        let latest = jitter.iter().map(|(wake, call)| wake + call).max().unwrap();
        let asked = 100 * (window.1 - window.0);
        prop_assert!(total(&on) <= asked + latest + 1_000, "{} of {}", total(&on), asked);
        for one in &on {
            let carried = if neighbours { 0 } else { MOST_CARRY_US.unsigned_abs() };
            let overlap = overlap(&[*one], &timeline);
            prop_assert!(overlap <= 2 * latest + carried, "{:?} by {}", one, overlap);
        }
        let most = 11 * (window.1 - window.0) + MOST_CARRY_US.unsigned_abs() + latest + 1_000;
        prop_assert!(most_in_a_second(&on) <= most);
        prop_assert!(pacer.balance_us() <= i64::try_from(latest).unwrap());
    }

    /// Time that is made up is nobody else's: that is taken by late edges only.
    #[test]
    fn nobody_makes_up_in_a_neighbours_time(gap in 0..60_000_u64, jitter in jitter(60_000, 1)) {
        let turns = vec![turn("own", &[(10_000, 35_000)]), turn("other", &[(35_000 + gap, PERIOD)])];
        let mut pacer = Pacer::new(timeline(vec![Epoch { from_us: 0, turns }]));
        let on = run(&mut pacer, 0, 100 * PERIOD, &jitter);
        let latest = jitter.iter().map(|(wake, call)| wake + call).max().unwrap();
        for (from, until) in on {
            let gap_end = (from / PERIOD) * PERIOD + 35_000 + gap;
            prop_assert!(until <= gap_end.max(from) + 2 * latest, "{}..{}", from, until);
        }
    }

    /// Nobody has more than he was granted in any second, but for what was carried on and one
    /// edge, also between neighbours from whom he takes over.
    #[test]
    fn what_is_given_back_is_bounded(jitter in jitter(60_000, 1)) {
        let mut pacer = between_neighbours();
        let on = run(&mut pacer, 0, 100 * PERIOD, &jitter);
        let latest = jitter.iter().map(|(wake, call)| wake + call).max().unwrap();
        prop_assert!(total(&on) <= 100 * 25_000 + latest + 1_000, "{}", total(&on));
        prop_assert!(most_in_a_second(&on) <= 11 * 25_000 + MOST_CARRY_US.unsigned_abs() + latest + 1_000);
    }

    /// It never stops, whatever is done to it.
    #[test]
    fn a_container_that_is_due_runs(window in window(), glitch in 0..3_000_000_u64, jitter in jitter(1_000, 1)) {
        let timeline = timeline(vec![epoch(0, window, true)]);
        let mut pacer = Pacer::new(timeline);
        pacer.next(0).unwrap();
        pacer.moved(Move::Open, window.0, window.0);
        pacer.moved(Move::Close, window.1, window.1 + glitch);
        let from = window.1 + glitch;
        // What it took is paid by not running: at most a second's worth of its windows.
        let periods = 2 + 1_000_000 / (window.1 - window.0);
        let on = run(&mut pacer, from, from + (periods + 20) * PERIOD, &jitter);
        prop_assert!(on.len() >= 15, "{}", on.len());
    }
}

#[test]
fn an_endless_span_owes_nothing_before_it_begins() {
    let mut pacer = Pacer::new(Timeline::always());
    pacer.resume(1_000);
    for start_us in [5_000_000, 9_000_000] {
        let next = pacer.next(start_us).unwrap();
        pacer.moved(next.what, next.at_us, next.at_us + 400);
        pacer.follow(Timeline::never(), start_us + 10_000);
        let next = pacer.next(start_us + 10_000).unwrap();
        assert_eq!(next.what, Move::Close);
        pacer.moved(next.what, next.at_us, next.at_us + 500);
        pacer.follow(Timeline::always(), start_us + 20_000);
    }
    assert_eq!(pacer.lost_us(), 0);
}
