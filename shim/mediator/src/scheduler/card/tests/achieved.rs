//! Shares that a container has achieved, as published.

use super::*;

#[test]
fn who_is_alone_without_windows_achieves_what_the_card_works() {
    for pass in [Pass::Free, Pass::Weight(1), windows(0, PERIOD)] {
        let mut fixture = Fixture::new(false);
        fixture.channels(3);
        fixture.set_epochs(vec![epoch(0, pass, Priority::High, Vec::new())]);
        fixture.is_busy(0);
        fixture.run_until(20 * PERIOD);
        assert_eq!(fixture.achieved(), (Some(0), Some(0)), "it has a context, and no work");
        assert!(fixture.status().cards[0].open_us > 15 * PERIOD);
        fixture.is_busy(1_000_000);
        fixture.run_until(40 * PERIOD);
        assert_eq!(fixture.achieved().0, Some(1_000_000));
        fixture.is_busy(250_000);
        fixture.run_until(60 * PERIOD);
        assert_eq!(fixture.achieved().0, Some(250_000));
        let used_us = fixture.achieved().1.unwrap();
        assert!(used_us.abs_diff(25 * PERIOD) < 5 * PERIOD, "{used_us}");
        let minute = fixture.status().cards[0].achieved_60s_ppm.unwrap();
        assert!(minute.abs_diff(416_000) < 60_000, "{minute}");
        fixture.is_busy(0);
        fixture.run_until(80 * PERIOD);
        assert_eq!(fixture.achieved().0, Some(0));
    }
}

#[test]
fn a_card_that_does_not_tell_how_busy_it_is_leaves_it_unknown() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    fixture.run_until(10 * PERIOD);
    assert_eq!(fixture.achieved().0, Some(1_000_000));
    lock(&fixture.card.state).is_silent = true;
    fixture.run_until(50 * PERIOD);
    assert_eq!(fixture.achieved(), (None, None));
    lock(&fixture.card.state).is_silent = false;
    fixture.run_until(80 * PERIOD);
    assert_eq!(fixture.achieved().0, Some(1_000_000));
}

/// Container that came last, and stays on the card.
#[test]
fn who_stays_on_the_card_beside_others_without_work_achieves_nothing() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let both_work = |fixture: &mut Fixture, from: u64| {
        for at in (from..from + 20 * PERIOD).step_by(6_000) {
            fixture.log.add(at, OWN, Presence::On);
            fixture.log.add(at + 2_000, OTHER, Presence::On);
            fixture.run_until(at + 6_000);
        }
    };
    both_work(&mut fixture, 0);
    let (achieved, used_us) = fixture.achieved();
    assert!(achieved.unwrap().abs_diff(333_333) < 10_000, "{achieved:?}");
    fixture.log.add(fixture.clock.now_us(), OWN, Presence::On);
    fixture.is_busy(0);
    fixture.run_until(40 * PERIOD);
    assert_eq!(fixture.achieved().0, Some(0));
    let more_us = fixture.achieved().1.unwrap() - used_us.unwrap();
    assert!(more_us < 5 * PERIOD, "{more_us}");
    // The other one has the card: nobody is asked.
    fixture.log.add(fixture.clock.now_us(), OTHER, Presence::On);
    fixture.is_busy(1_000_000);
    fixture.run_until(45 * PERIOD);
    let asked = lock(&fixture.card.state).asked;
    fixture.run_until(60 * PERIOD);
    assert_eq!((fixture.achieved().0, lock(&fixture.card.state).asked), (Some(0), asked));
    // It is gone, and nothing is logged of the one that stays.
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, Vec::new())]);
    fixture.run_until(80 * PERIOD);
    assert_eq!(fixture.achieved().0, Some(1_000_000));
}

/// Container that has not been displaced since the log was begun, when the other one came.
#[test]
fn who_was_on_the_card_before_there_was_a_log_is_whom_the_driver_names() {
    for (is_own, expected) in [(true, 1_000_000), (false, 0)] {
        let mut fixture = Fixture::with(false, true);
        fixture.channels(3);
        fixture.neighbour_is(OTHER);
        fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
        lock(&fixture.card.state).is_own = is_own;
        fixture.run_until(20 * PERIOD);
        assert_eq!((fixture.achieved().0, fixture.status().cards[0].busy), (Some(expected), None));
    }
}
