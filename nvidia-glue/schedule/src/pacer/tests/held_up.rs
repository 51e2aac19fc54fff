//! Calls that are held up in the driver: what is made up, what is given back, and what is lost.

use super::*;

#[test]
fn an_opening_that_hangs_past_its_window_owes_only_what_was_on_the_card() {
    for (neighbours, owed) in [(true, 1_000), (false, -24_000)] {
        let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), neighbours)]));
        pacer.next(0).unwrap();
        // It came onto the card 55 ms after the end of its window.
        pacer.moved(Move::Open, 10_000, 90_000);
        pacer.next(90_000).unwrap();
        pacer.moved(Move::Close, 90_000, 91_000);
        assert_eq!(pacer.balance_us(), owed, "beside neighbours: {neighbours}");
    }
}

#[test]
fn what_is_made_up_ends_before_a_neighbour_begins() {
    let turns = vec![turn("own", &[(10_000, 35_000)]), turn("other", &[(50_000, PERIOD)])];
    let mut pacer = Pacer::new(timeline(vec![Epoch { from_us: 0, turns }]));
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 33_000);
    assert_eq!(pacer.next(33_000), Some(Next { what: Move::Close, at_us: 47_500 }), "2 ms and 500 us for the call");
    pacer.moved(Move::Close, 47_500, 48_000);
    assert_eq!(pacer.balance_us(), -10_000);
    pacer.next(48_000).unwrap();
    pacer.moved(Move::Open, 110_000, 110_000);
    assert_eq!(pacer.next(110_000), Some(Next { what: Move::Close, at_us: 144_500 }));
}

#[test]
fn a_change_of_the_course_ends_what_is_to_be_made_up() {
    let alone = || timeline(vec![epoch(0, (10_000, 35_000), false)]);
    let late = || {
        let mut pacer = Pacer::new(alone());
        pacer.next(0).unwrap();
        pacer.moved(Move::Open, 10_000, 95_000);
        pacer.next(95_000).unwrap();
        pacer.moved(Move::Close, 98_000, 98_000);
        assert_eq!(pacer.balance_us(), -22_000);
        pacer
    };
    let changes: [fn(&mut Pacer, Timeline); 4] = [
        |pacer, alone| pacer.follow(alone, 98_000),
        |pacer, _| pacer.rest(98_000),
        |pacer, _| pacer.resume(98_000),
        |pacer, _| pacer.owe(1),
    ];
    for change in changes {
        let mut pacer = late();
        change(&mut pacer, alone());
        assert!((0..=1).contains(&pacer.balance_us()), "{}", pacer.balance_us());
    }
    let mut pacer = late();
    pacer.owe(0);
    assert_eq!(pacer.balance_us(), -22_000, "nothing was taken");
}

/// Instants from which all calls wait until another, so many times a second in two minutes.
fn holds(a_minute: u64, hold_us: u64) -> Vec<(u64, u64)> {
    let mut seed = 1_u64;
    let mut at = 0;
    let next = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Twice the mean at most.
        at += hold_us + (seed >> 33) % (120_000_000 / a_minute - 2 * hold_us);
        (at, at + hold_us)
    };
    (0..2 * a_minute).map(next).collect()
}

#[test]
fn calls_that_are_held_up_cost_nothing_where_the_card_is_free() {
    for (a_minute, hold_us) in [(282, 30_000), (282, 60_000), (168, 90_000)] {
        let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), false)]));
        let holds = holds(a_minute, hold_us);
        let (mut now, mut opened, mut on) = (0, 0, 0);
        while now < 600 * PERIOD {
            let next = pacer.next(now).unwrap();
            let held = holds.iter().find(|(from, until)| (*from..*until).contains(&next.at_us));
            now = held.map_or(next.at_us, |held| held.1) + 400;
            pacer.moved(next.what, next.at_us, now);
            match next.what {
                Move::Open => opened = now,
                Move::Close => on += now - opened,
            }
        }
        let error = u64::abs_diff(on, 600 * 25_000);
        assert!(error <= 600 * PERIOD / 200, "{a_minute} a minute of {hold_us} us: {on}");
    }
}

#[test]
fn what_a_neighbour_had_while_a_call_waited_it_gives_back() {
    let mut pacer = between_neighbours();
    run(&mut pacer, 0, 4 * PERIOD, &vec![(0, 400)]);
    let lost_us = pacer.lost_us();
    let next = pacer.next(4 * PERIOD).unwrap();
    // The neighbour before has had 6 ms of it.
    pacer.moved(Move::Open, next.at_us, 416_000);
    pacer.next(416_000).unwrap();
    pacer.moved(Move::Close, 435_000, 438_000);
    assert_eq!((pacer.balance_us(), pacer.lost_us()), (3_000, lost_us), "3 ms are the next neighbour's");
    let next = pacer.next(438_000).unwrap();
    assert!(next.what == Move::Open && (502_000..=504_000).contains(&next.at_us), "{next:?}");
    pacer.moved(Move::Open, next.at_us, 504_000);
    assert_eq!(pacer.on_since_us(), Some(504_000), "6 ms early");
    assert!((531_000..=532_000).contains(&pacer.next(504_000).unwrap().at_us), "and 3 ms shorter");
    pacer.moved(Move::Close, 532_000, 532_000);
    assert_eq!((pacer.balance_us(), pacer.lost_us()), (0, lost_us));
    let next = pacer.next(532_000).unwrap();
    assert!((608_000..=610_000).contains(&next.at_us), "{next:?}");
}

#[test]
fn a_neighbour_that_has_nothing_to_give_back_keeps_its_time() {
    let mut pacer = between_neighbours();
    let mut now = 0;
    for period in 0..8 {
        let next = pacer.next(now).unwrap();
        // It is held up once; then the neighbour has half of what is asked back, each time.
        let opened = if period == 0 { 18_000 } else { next.at_us };
        let at = period * PERIOD + 10_000;
        pacer.moved(Move::Open, next.at_us, opened);
        if opened < at {
            pacer.shared((opened, opened + (at - opened) / 2), true);
        }
        pacer.next(opened).unwrap();
        now = period * PERIOD + 35_000;
        pacer.moved(Move::Close, now, now);
    }
    let next = pacer.next(now).unwrap();
    assert!(next.at_us > 8 * PERIOD + 9_000, "{next:?}");
}

#[test]
fn what_others_had_of_a_window_is_lost_and_not_paid_back() {
    let mut pacer = between_neighbours();
    pacer.next(0).unwrap();
    pacer.moved(Move::Open, 10_000, 10_000);
    pacer.next(10_000).unwrap();
    for (from, until) in [(20_000, 24_000), (33_000, 37_000), (41_000, 43_000)] {
        pacer.shared((from, until), false);
    }
    pacer.moved(Move::Close, 35_000, 45_000);
    assert_eq!(
        (pacer.balance_us(), pacer.lost_us()),
        (6_000, 6_000),
        "it had 19 ms of 25, and 6 ms of its neighbour's"
    );
}

#[test]
fn lateness_of_the_thread_is_not_given_back() {
    let mut pacer = between_neighbours();
    pacer.next(0).unwrap();
    pacer.moved_in(1, Move::Open, 10_000, (20_000, 20_400));
    pacer.next(20_400).unwrap();
    pacer.moved(Move::Close, 35_000, 38_000);
    assert_eq!((pacer.balance_us(), pacer.lost_us()), (3_000, 10_400));
}

#[test]
fn what_is_not_carried_on_is_lost() {
    let mut pacer = Pacer::new(timeline(vec![epoch(0, (10_000, 35_000), false)]));
    for period in 0..5 {
        // Each opening hangs until the next period.
        let next = pacer.next(period * PERIOD).unwrap();
        pacer.moved(Move::Open, next.at_us, (period + 1) * PERIOD - 1_000);
        pacer.moved(Move::Close, (period + 1) * PERIOD - 1_000, (period + 1) * PERIOD - 1_000);
    }
    assert_eq!((pacer.balance_us(), pacer.lost_us()), (-100_000, 25_000));
    pacer.follow(timeline(vec![epoch(0, (20_000, 45_000), true)]), 5 * PERIOD);
    assert_eq!((pacer.balance_us(), pacer.lost_us()), (0, 125_000));
}
