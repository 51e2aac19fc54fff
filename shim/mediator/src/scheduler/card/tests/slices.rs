//! Time slices, remainders that several share, priority, and many groups.

use super::*;

#[test]
fn weights_are_slices_divided_among_groups() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD);
    assert_eq!(fixture.state().slices.len(), 1);
    let all = fixture.state().slices[0].unwrap();
    assert!(!fixture.state().is_closed);
    assert_eq!(fixture.running(), Running::Slices);
    fixture.state().groups = 4;
    fixture.run_until(10 * PERIOD);
    assert_eq!(fixture.state().slices, [Some(all), Some(all / 4)]);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, Vec::new())]);
    fixture.run_until(11 * PERIOD);
    assert_eq!(fixture.state().slices.last(), Some(&None), "alone: what the program asked for");
}

#[test]
fn a_slice_that_is_refused_is_set_at_the_next_look() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.state().refused_slices = 2;
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(10 * PERIOD);
    assert_eq!((fixture.state().slices.len(), fixture.status().cards[0].failures), (1, 2));
}

#[test]
fn slices_are_divided_among_the_groups_that_work() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(8);
    fixture.state().groups = 8;
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let mut last = |contexts: u32, from: u64| {
        // Each has what is due to it.
        for at in (from..from + 20 * PERIOD).step_by(8_000) {
            for context in 0..contexts {
                fixture.log.add_of(at + 2_000 / u64::from(contexts) * u64::from(context), OWN, context, Presence::On);
            }
            fixture.log.add(at + 2_000, OTHER, Presence::On);
            fixture.run_until(at + 8_000);
        }
        let last = fixture.state().slices.last().copied().flatten();
        last.unwrap()
    };
    let one = last(1, 0);
    let two = last(2, 20 * PERIOD);
    assert!(two.abs_diff(one / 2) < one / 10, "{one} {two}");
}

#[test]
fn low_priority_has_short_slices_beside_high_whatever_its_weight() {
    let mut fixture = Fixture::strict();
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(9), Priority::Low, vec![neighbour(Priority::High)])]);
    fixture.run_until(10 * PERIOD);
    assert_eq!(fixture.state().slices, [Some(LOW_SLICE_US)]);
}

#[test]
fn slices_are_steered_by_what_is_achieved() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(3), Priority::High, vec![neighbour(Priority::High)])]);
    // As much is due to both, and the other has twice as much.
    for at in (0..20 * PERIOD).step_by(6_000) {
        fixture.log.add(at, OWN, Presence::On);
        fixture.log.add(at + 2_000, OTHER, Presence::On);
        fixture.run_until(at + 6_000);
    }
    let slices: Vec<u64> = fixture.state().slices.iter().flatten().copied().collect();
    assert!(slices.len() > 3 && slices.is_sorted(), "{slices:?}");
    assert!(slices[slices.len() - 1] > slices[0] * 3 / 2, "{slices:?}");
    let used = fixture.status().cards[0].clone();
    assert!(used.used_us.unwrap().abs_diff(20 * PERIOD / 3) < 100_000 && used.busy == Some(true), "{used:?}");
    assert!(used.achieved_1s_ppm.unwrap().abs_diff(333_333) < 10_000, "{used:?}");
}

#[test]
fn low_priority_leaves_when_others_come_and_comes_back_when_they_do_not() {
    let mut fixture = Fixture::strict();
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::Low, vec![neighbour(Priority::High)])]);
    fixture.run_until(5 * PERIOD);
    assert!(!fixture.state().is_closed);
    assert_eq!(fixture.state().slices, [Some(LOW_SLICE_US)]);
    fixture.log.add(5 * PERIOD + 1_000, OTHER, Presence::On);
    fixture.run_until(6 * PERIOD - 1_000);
    assert!(fixture.state().is_closed, "it leaves within a period");
    fixture.run_until(6 * PERIOD);
    assert_eq!(fixture.running(), Running::Waiting);
    fixture.run_until(20 * PERIOD);
    assert!(!fixture.state().is_closed, "the other did not come again");
    assert_eq!(fixture.running(), Running::Free);
}

/// Rest of a card beside the first 30 ms of a container, which two others share.
fn remainder(priority: Priority) -> Epoch {
    let mut epoch = epoch(0, windows(30_000, PERIOD), priority, Vec::new());
    let mut other = epoch.turns[0].clone();
    (other.grant_id, other.priority) = ("other".into(), Priority::High);
    epoch.turns.push(other);
    epoch
}

/// Both containers come in turns of some length in each of some windows.
fn both_work(fixture: &mut Fixture, periods: std::ops::Range<u64>, (own_us, other_us): (u64, u64)) {
    for start in periods.map(|period| period * PERIOD) {
        fixture.run_until(start + 31_000);
        for at in (start + 31_000..start + PERIOD - 2_000 - own_us - other_us)
            .step_by(usize::try_from(own_us + other_us).unwrap())
        {
            fixture.log.add(at, OWN, Presence::On);
            fixture.log.add(at + own_us, OTHER, Presence::On);
            fixture.run_until(at + own_us + other_us);
        }
        fixture.log.add(fixture.clock.now_us(), OTHER, Presence::Off);
        fixture.run_until(start + PERIOD + 1_000);
    }
}

#[test]
fn whoever_shares_windows_has_its_own_use_of_them_reported() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![remainder(Priority::High)]);
    both_work(&mut fixture, 0..20, (3_000, 6_000));
    let card = fixture.status().cards[0].clone();
    assert!(card.open_us.abs_diff(20 * 70_000) < 20_000, "{card:?}");
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(700_000 / 3) < 30_000, "{card:?}");
    assert!(card.used_us.unwrap().abs_diff(20 * 70_000 / 3) < 50_000, "{card:?}");
}

#[test]
fn without_a_log_nobody_says_who_used_a_window_of_two() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.set_epochs(vec![remainder(Priority::High)]);
    fixture.run_until(20 * PERIOD);
    let card = fixture.status().cards[0].clone();
    assert_eq!((card.achieved_1s_ppm, card.used_us), (None, None), "{card:?}");
}

#[test]
fn who_shares_windows_has_time_slices_in_them_that_are_steered() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.state().groups = 64;
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![remainder(Priority::High)]);
    both_work(&mut fixture, 0..30, (6_000, 3_000));
    let slices: Vec<u64> = fixture.state().slices.iter().flatten().copied().collect();
    assert!(slices.len() > 3 && slices[slices.len() - 1] < slices[1] * 3 / 4, "{slices:?}");
}

#[test]
fn low_priority_gives_way_in_windows_that_others_share() {
    let mut fixture = Fixture::strict();
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![remainder(Priority::Low)]);
    both_work(&mut fixture, 0..20, (1_000, 3_000));
    let before = fixture.status().cards[0].open_us;
    both_work(&mut fixture, 20..60, (1_000, 3_000));
    let opened_us = fixture.status().cards[0].open_us - before;
    // In each fifth period it is let in to see.
    assert!(opened_us < 40 * 70_000 / 10, "{opened_us}");
    fixture.run_until(75 * PERIOD + 50_000);
    let before = fixture.status().cards[0].open_us;
    fixture.run_until(85 * PERIOD + 50_000);
    let opened_us = fixture.status().cards[0].open_us - before;
    assert!(opened_us > 9 * 70_000, "the other one has no work: {opened_us}");
}

#[test]
fn groups_that_work_and_do_not_fit_take_turns() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(64);
    fixture.state().groups = 64;
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let work = |fixture: &mut Fixture, contexts: u32, from: u64| {
        for at in (from..from + 20 * PERIOD).step_by(40_000) {
            for context in 0..contexts {
                fixture.log.add_of(at + 250 * u64::from(context), OWN, context, Presence::On);
            }
            fixture.log.add(at + 20_000, OTHER, Presence::On);
            fixture.run_until(at + 40_000);
        }
    };
    work(&mut fixture, 3, 0);
    assert!(fixture.state().turns.is_empty(), "those that never work do not count: {:?}", fixture.state().turns);
    work(&mut fixture, 64, 20 * PERIOD);
    let turns = fixture.state().turns.clone();
    assert!(turns.len() > 10 && turns.iter().all(|on| on.is_some_and(|on| on <= 6)), "{turns:?}");
    assert_eq!(fixture.state().slices.last(), Some(&Some(250)));
    work(&mut fixture, 2, 40 * PERIOD);
    let turns = fixture.state().turns.clone();
    assert_eq!(turns.last(), Some(&None));
    work(&mut fixture, 2, 60 * PERIOD);
    assert_eq!(fixture.state().turns.len(), turns.len(), "nothing is to be done any more");
}

#[test]
fn many_groups_of_low_priority_are_let_in_a_few_at_a_time() {
    let mut fixture = Fixture::strict();
    fixture.channels(64);
    fixture.state().groups = 64;
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::Low, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD);
    assert_eq!(fixture.state().turns.first(), Some(&Some(4)));
    assert_eq!(fixture.state().slices, [Some(250)]);
}
