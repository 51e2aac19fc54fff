//! Low priority in the least slices.

use schedule::priority::{HIGH_SLICE_US, LEAST_SLICE_US};

use super::*;

fn low() -> Epoch {
    epoch(0, Pass::Weight(9), Priority::Low, vec![neighbour(Priority::High)])
}

fn beside_high() -> Fixture {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![low()]);
    fixture.run_until(PERIOD);
    fixture
}

/// The other one works for a time with breaks, in which the container comes.
fn high_works(fixture: &mut Fixture, until_us: u64, work_us: u64, break_us: u64) {
    while fixture.clock.now_us() < until_us {
        let at = fixture.clock.now_us();
        fixture.log.add(at, OTHER, Presence::On);
        fixture.run_until(at + work_us);
        if !fixture.state().is_off {
            fixture.log.add(at + work_us, OWN, Presence::On);
        }
        fixture.run_until(at + work_us + break_us);
    }
}

#[test]
fn low_priority_stays_on_the_card_in_the_least_slices() {
    let mut fixture = beside_high();
    high_works(&mut fixture, 20 * PERIOD, 2_000, 4_000);
    assert_eq!(fixture.state().slices, [Some(LEAST_SLICE_US)]);
    assert_eq!(fixture.open_us(0), 0, "no call is made");
    assert!(!fixture.state().is_closed);
    assert_eq!(fixture.status().cards[0].gives_way, Some(PriorityMode::Harvest));
}

#[test]
fn it_leaves_while_breaks_are_too_short_and_comes_back() {
    let mut fixture = beside_high();
    high_works(&mut fixture, 20 * PERIOD, 700, 200);
    let state = fixture.state().edges.clone();
    assert!((6..20).contains(&state.len()), "it is let in to see once in a while: {state:?}");
    assert!(fixture.open_us(10 * PERIOD) < PERIOD, "{state:?}");
    fixture.run_until(30 * PERIOD);
    assert!(!fixture.state().is_closed, "nobody displaces it");
    assert_eq!(fixture.running(), Running::Slices);
}

#[test]
fn it_comes_back_as_soon_as_high_is_said_to_be_quiet() {
    let mut fixture = beside_high();
    let says = |fixture: &Fixture, is_quiet, next_by_us| {
        let card = CardStatus { uuid: "GPU-a".into(), is_quiet: Some(is_quiet), ..CardStatus::default() };
        let path = status_file(fixture.directory.path(), "other").unwrap();
        StatusFile::create(&path).unwrap().write(&Status {
            process: OTHER,
            next_by_us,
            cards: vec![card],
            ..Status::default()
        })
    };
    says(&fixture, false, None).unwrap();
    high_works(&mut fixture, 30 * PERIOD, 700, 200);
    let leaves = |fixture: &mut Fixture| {
        while !fixture.state().is_off {
            let now_us = fixture.clock.now_us();
            high_works(fixture, now_us + 1_000, 700, 200);
        }
        fixture.clock.now_us()
    };
    let left_us = leaves(&mut fixture);
    says(&fixture, true, None).unwrap();
    fixture.run_until(left_us + 15_000);
    assert!(!fixture.state().is_off);
    says(&fixture, false, None).unwrap();
    let now_us = fixture.clock.now_us();
    high_works(&mut fixture, now_us + 20 * PERIOD, 700, 200);
    let left_us = leaves(&mut fixture);
    says(&fixture, true, Some(1)).unwrap();
    fixture.run_until(left_us + 15_000);
    assert!(fixture.state().is_off, "a mediator that has stalled says nothing");
}

#[test]
fn high_priority_beside_low_has_long_slices() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, vec![neighbour(Priority::Low)])]);
    fixture.run_until(PERIOD);
    assert_eq!(fixture.state().slices, [Some(HIGH_SLICE_US)]);
    assert_eq!(fixture.status().cards[0].gives_way, None);
}

#[test]
fn a_card_that_does_not_take_the_slices_has_strict_priority() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.state().refused_slices = 5;
    fixture.set_epochs(vec![low()]);
    fixture.run_until(4 * PERIOD);
    assert_eq!(fixture.state().slices, [Some(LOW_SLICE_US)]);
    assert_eq!(fixture.status().cards[0].gives_way, Some(PriorityMode::Strict));
    fixture.log.add(4 * PERIOD + 1_000, OTHER, Presence::On);
    fixture.run_until(5 * PERIOD);
    assert!(fixture.state().is_closed);
    fixture.run_until(700 * PERIOD);
    assert_eq!(fixture.status().cards[0].gives_way, Some(PriorityMode::Harvest), "it is tried again");
}

#[test]
fn groups_that_displace_each_other_stay_beside_an_idle_one() {
    let mut fixture = beside_high();
    fixture.state().groups = 2;
    for at in (PERIOD..10 * PERIOD).step_by(500) {
        fixture.log.add_of(at, OWN, 1, Presence::On);
        fixture.log.add_of(at + 250, OWN, 2, Presence::On);
        fixture.run_until(at + 500);
    }
    assert_eq!(fixture.state().edges.len(), 0, "nobody else wants the card");
    assert_eq!(fixture.state().slices.last(), Some(&Some(250)));
}

#[test]
fn groups_of_high_priority_do_not_wait_for_each_others_long_slices() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.state().groups = 2;
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, vec![neighbour(Priority::Low)])]);
    for at in (0..5 * PERIOD).step_by(10_000) {
        fixture.log.add_of(at, OWN, 1, Presence::On);
        fixture.log.add_of(at + 5_000, OWN, 2, Presence::On);
        fixture.run_until(at + 10_000);
    }
    assert!(fixture.state().slices.is_empty(), "what their programs ask for");
}

#[test]
fn several_high_ones_do_not_wait_for_each_others_long_slices() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    let low = turn("low", Pass::Weight(1), Priority::Low, 1_000);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, vec![neighbour(Priority::High), low])]);
    fixture.run_until(PERIOD);
    assert!(fixture.state().slices.is_empty(), "what their programs ask for");
}

#[test]
fn whoever_runs_in_windows_of_others_has_no_long_slices() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    let other = turn("other", windows(0, 30_000), Priority::Low, 250_000);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, vec![other])]);
    fixture.run_until(PERIOD);
    assert!(fixture.state().slices.is_empty());
}

#[test]
fn a_card_without_a_log_has_strict_priority() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.set_epochs(vec![low()]);
    fixture.run_until(2 * PERIOD);
    assert_eq!(fixture.state().slices, [Some(LOW_SLICE_US)]);
    assert_eq!(fixture.status().cards[0].gives_way, Some(PriorityMode::Strict));
}

#[test]
fn low_containers_that_work_take_turns() {
    const THIRD: u32 = 300;
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.mediator_is("third", THIRD);
    let third = turn("third", Pass::Weight(9), Priority::Low, 1_000);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(9), Priority::Low, vec![neighbour(Priority::High), third])]);
    fixture.log.add(PERIOD - 10_000, THIRD, Presence::On);
    fixture.run_until(PERIOD);
    // Each works for as long as it is let; the other one as it does in its turns.
    for at in (PERIOD..41 * PERIOD).step_by(10_000) {
        let process = if fixture.state().is_off { THIRD } else { OWN };
        fixture.log.add(at, process, Presence::On);
        fixture.run_until(at + 10_000);
    }
    let had_us = fixture.open_us(PERIOD);
    assert!(had_us.abs_diff(20 * PERIOD) < 3 * PERIOD, "{had_us}");
    // The other one ends.
    for at in (41 * PERIOD..50 * PERIOD).step_by(10_000) {
        if !fixture.state().is_off {
            fixture.log.add(at, OWN, Presence::On);
        }
        fixture.run_until(at + 10_000);
    }
    assert!(!fixture.state().is_closed);
    let edges = fixture.state().edges.len();
    fixture.run_until(60 * PERIOD);
    assert_eq!(fixture.state().edges.len(), edges, "it has the card");
}
