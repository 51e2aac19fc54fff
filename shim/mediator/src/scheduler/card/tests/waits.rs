//! Waits for the card, and those that are quiet.

use super::*;

fn pending(puts: u64) -> Option<Submitted> {
    Some(Submitted { is_pending: true, puts })
}

fn nothing(puts: u64) -> Option<Submitted> {
    Some(Submitted { is_pending: false, puts })
}

#[test]
fn work_waits_outside_windows() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.state().submitted = pending(1);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 40_000)]);
    fixture.run_until(20 * PERIOD);
    let card = fixture.status().cards[0].clone();
    assert!(card.waited_us.unwrap().abs_diff(20 * 70_000) <= 60_000, "{card:?}");
    assert!(card.waited_1s_us.unwrap().abs_diff(700_000) < 80_000, "{card:?}");
    assert!(card.waits.iter().sum::<u64>().abs_diff(20) < 2 && card.waits[7] > 17, "{card:?}");
    fixture.state().submitted = nothing(2);
    fixture.run_until(40 * PERIOD);
    let after = fixture.status().cards[0].clone();
    assert!(after.waited_us.unwrap() - card.waited_us.unwrap() <= 70_000 && after.waited_1s_us == Some(0), "{after:?}");
}

#[test]
fn who_has_the_card_does_not_wait() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.state().submitted = pending(1);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    for at in (0..30 * PERIOD).step_by(100_000) {
        fixture.log.add(at, OWN, Presence::On);
        fixture.run_until(at + 60_000);
        fixture.log.add(at + 60_000, OTHER, Presence::On);
        fixture.run_until(at + 100_000);
    }
    let card = fixture.status().cards[0].clone();
    assert!(card.waited_us.unwrap().abs_diff(30 * 40_000) < 200_000, "{card:?}");
    assert_eq!(card.is_quiet, None, "nobody of low priority is there");
}

#[test]
fn alone_nobody_looks() {
    let mut fixture = Fixture::new(false);
    fixture.channels(3);
    fixture.state().submitted = pending(1);
    fixture.set_epochs(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    fixture.run_until(5 * PERIOD);
    let card = fixture.status().cards[0].clone();
    assert_eq!((card.waited_us, card.waits), (None, Vec::new()));
}

#[test]
fn it_is_told_at_once_that_high_priority_is_quiet() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::Low)])]);
    for (number, at) in (1..).zip((10_000..10 * PERIOD).step_by(10_000)) {
        fixture.state().submitted = nothing(number);
        fixture.run_until(at);
    }
    assert_eq!(fixture.status().cards[0].is_quiet, Some(false));
    fixture.run_until(10 * PERIOD + 40_000);
    assert_eq!(fixture.status().cards[0].is_quiet, Some(true));
    fixture.state().submitted = pending(1_000);
    fixture.run_until(10 * PERIOD + 70_000);
    assert_eq!(fixture.status().cards[0].is_quiet, Some(false));
    fixture.channels(0);
    fixture.run_until(11 * PERIOD);
    assert_eq!(fixture.status().cards[0].is_quiet, Some(true), "it has no channels");
}

#[test]
fn whoever_is_put_back_as_the_card_takes_nobody_off_waits_no_more() {
    let mut fixture = Fixture::with(true, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.state().submitted = pending(1);
    fixture.state().refusals.push_back(RmStatus::NOT_SUPPORTED);
    fixture.set_epochs(vec![epoch(0, windows(50_000, 80_000), Priority::High, vec![neighbour(Priority::High)])]);
    for at in (0..10 * PERIOD).step_by(10_000) {
        fixture.log.add(at, OWN, Presence::On);
        fixture.run_until(at + 10_000);
    }
    assert_eq!(fixture.running(), Running::Degraded);
    let card = fixture.status().cards[0].clone();
    assert!(card.waited_us.unwrap() < PERIOD, "{card:?}");
}

#[test]
fn without_channels_high_priority_is_quiet_whatever_was_known_of_them() {
    let mut fixture = Fixture::with(false, true);
    fixture.channels(3);
    fixture.neighbour_is(OTHER);
    fixture.set_epochs(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::Low)])]);
    fixture.run_until(4 * PERIOD);
    assert_eq!(fixture.status().cards[0].is_quiet, None);
    fixture.channels(0);
    fixture.run_until(8 * PERIOD);
    assert_eq!(fixture.status().cards[0].is_quiet, Some(true));
}
