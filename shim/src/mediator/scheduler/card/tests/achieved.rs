//! What a container is told to have achieved.

use super::*;

#[test]
fn who_is_alone_without_windows_achieves_what_the_card_works() {
    for pass in [Pass::Free, Pass::Weight(1), windows(0, PERIOD)] {
        let mut world = World::new(false);
        world.channels(3);
        world.tell(vec![epoch(0, pass, Priority::High, Vec::new())]);
        world.is_busy(0);
        world.run_until(20 * PERIOD);
        assert_eq!(world.achieved(), (Some(0), Some(0)), "it has a context, and no work");
        assert!(world.status().cards[0].open_us > 15 * PERIOD);
        world.is_busy(1_000_000);
        world.run_until(40 * PERIOD);
        assert_eq!(world.achieved().0, Some(1_000_000));
        world.is_busy(250_000);
        world.run_until(60 * PERIOD);
        assert_eq!(world.achieved().0, Some(250_000));
        let used_us = world.achieved().1.unwrap();
        assert!(used_us.abs_diff(25 * PERIOD) < 5 * PERIOD, "{used_us}");
        let minute = world.status().cards[0].achieved_60s_ppm.unwrap();
        assert!(minute.abs_diff(416_000) < 60_000, "{minute}");
        world.is_busy(0);
        world.run_until(80 * PERIOD);
        assert_eq!(world.achieved().0, Some(0));
    }
}

#[test]
fn a_card_that_does_not_tell_how_busy_it_is_leaves_it_unknown() {
    let mut world = World::new(false);
    world.channels(3);
    world.tell(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    world.run_until(10 * PERIOD);
    assert_eq!(world.achieved().0, Some(1_000_000));
    lock(&world.card.state).is_silent = true;
    world.run_until(50 * PERIOD);
    assert_eq!(world.achieved(), (None, None));
    lock(&world.card.state).is_silent = false;
    world.run_until(80 * PERIOD);
    assert_eq!(world.achieved().0, Some(1_000_000));
}

/// Who came last stays on the card.
#[test]
fn who_stays_on_the_card_beside_others_without_work_achieves_nothing() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let both_work = |world: &mut World, from: u64| {
        for at in (from..from + 20 * PERIOD).step_by(6_000) {
            world.log.add(at, OWN, Presence::On);
            world.log.add(at + 2_000, OTHER, Presence::On);
            world.run_until(at + 6_000);
        }
    };
    both_work(&mut world, 0);
    let (achieved, used_us) = world.achieved();
    assert!(achieved.unwrap().abs_diff(333_333) < 10_000, "{achieved:?}");
    world.log.add(world.clock.now_us(), OWN, Presence::On);
    world.is_busy(0);
    world.run_until(40 * PERIOD);
    assert_eq!(world.achieved().0, Some(0));
    let more_us = world.achieved().1.unwrap() - used_us.unwrap();
    assert!(more_us < 5 * PERIOD, "{more_us}");
    // The other one has the card: nobody is to be asked.
    world.log.add(world.clock.now_us(), OTHER, Presence::On);
    world.is_busy(1_000_000);
    world.run_until(45 * PERIOD);
    let asked = lock(&world.card.state).asked;
    world.run_until(60 * PERIOD);
    assert_eq!((world.achieved().0, lock(&world.card.state).asked), (Some(0), asked));
    // It is gone, and nothing is logged of who stays.
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, Vec::new())]);
    world.run_until(80 * PERIOD);
    assert_eq!(world.achieved().0, Some(1_000_000));
}

/// Nobody has displaced it since the log was begun, which is when the other one came.
#[test]
fn who_was_on_the_card_before_there_was_a_log_is_whom_the_driver_names() {
    for (is_own, expected) in [(true, 1_000_000), (false, 0)] {
        let mut world = World::with(false, true);
        world.channels(3);
        world.neighbour_is(OTHER);
        world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
        lock(&world.card.state).is_own = is_own;
        world.run_until(20 * PERIOD);
        assert_eq!((world.achieved().0, world.status().cards[0].busy), (Some(expected), None));
    }
}
