//! Cards that refuse, cannot do it, or are lost.

use super::*;

#[test]
fn whoever_becomes_a_weight_is_on_its_card_and_that_is_told() {
    let (mut world, lines) = (World::new(true), Lines::default());
    world.channels(3);
    world.tell(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD + 50_000);
    assert!(world.state().is_closed);
    // The next opening is refused for good, and what follows it is not.
    world.state().refusals.extend([RmStatus::NOT_SUPPORTED]);
    let edges = world.state().edges.len();
    lines.of(|| world.run_until(2 * PERIOD + 50_000));
    assert_eq!(world.running(), Running::Degraded);
    assert!(lines.told().contains("its share of time is a weight"), "{}", lines.told());
    let after: Vec<bool> = world.state().edges[edges..].iter().map(|edge| edge.1).collect();
    assert_eq!(after, [true], "it is put back, and never taken off again");
    lines.of(|| world.run_until(700 * PERIOD));
    assert_ne!(world.running(), Running::Degraded);
    assert!(lines.told().contains("its share of time is exact"), "{}", lines.told());
}

/// What is logged.
#[derive(Debug, Default, Clone)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn of<T>(&self, work: impl FnOnce() -> T) -> T {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, work)
    }

    fn told(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }
}

impl io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_fails_for_long_becomes_a_weight_until_it_works_again() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD + 20_000);
    world.state().refusals.extend([RmStatus::INVALID_STATE; 1_000]);
    world.run_until(5 * PERIOD);
    assert_ne!(world.running(), Running::Degraded, "it has some patience");
    world.run_until(15 * PERIOD);
    assert_eq!(world.running(), Running::Degraded);
    assert!(world.state().slices.last().is_some_and(Option::is_some));
    let before = world.state().refusals.len();
    world.run_until(300 * PERIOD);
    assert_eq!(world.state().refusals.len(), before, "it is left alone for a minute");
    world.run_until(700 * PERIOD);
    assert!(world.state().refusals.len() < before);
    world.state().refusals.clear();
    world.run_until(1_300 * PERIOD);
    assert_eq!(world.running(), Running::Closed);
    assert_eq!(world.state().slices.last(), Some(&None));
    let edges = world.state().edges.len();
    world.run_until(1_310 * PERIOD);
    assert_eq!(world.state().edges.len(), edges + 20);
}

#[test]
fn what_is_not_supported_is_a_weight_at_once() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(20_000);
    world.state().refusals.extend([RmStatus::NOT_SUPPORTED; 2]);
    world.run_until(PERIOD);
    assert_eq!(world.running(), Running::Degraded);
    let edges = world.state().edges.len();
    world.run_until(5 * PERIOD);
    assert_eq!(world.state().edges.len(), edges, "nothing is opened or closed any more");
}

#[test]
fn a_card_that_was_found_to_take_nobody_off_is_a_weight_from_the_start() {
    let mut world = World::of(true, false, true);
    world.tell(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD);
    assert!(!world.state().is_closed, "its first channel does not wait for a window");
    assert_eq!(world.running(), Running::Degraded);
    world.channels(3);
    world.run_until(300 * PERIOD);
    assert_eq!(world.running(), Running::Degraded);
    assert!(world.state().edges.iter().all(|(_, opened)| *opened), "nothing is closed");
    assert!(world.state().slices.last().is_some_and(Option::is_some));
}

/// As when the driver resets the card while the container is off it: calls fail, then its channels are gone, then there are new ones.
#[test]
fn a_card_that_is_lost_in_the_off_time_holds_nobody_up() {
    /// `NV_ERR_GPU_IS_LOST`.
    const GPU_IS_LOST: RmStatus = RmStatus(0xf);
    for lost_for in [3, 30] {
        let mut world = World::new(true);
        world.channels(3);
        world.tell(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
        world.run_until(PERIOD + 50_000);
        assert!(world.state().is_closed);
        world.state().refusals.extend([GPU_IS_LOST; 10_000]);
        for step in 0..10 * lost_for {
            let promised = world.status().next_by_us.unwrap();
            world.run_until(PERIOD + 50_000 + step * PERIOD / 10);
            let now = world.clock.now_us();
            assert!(promised + 2_000 > now || world.status().next_by_us > Some(promised), "it has stalled at {now}");
        }
        assert_eq!(world.running() == Running::Degraded, lost_for == 30, "it has some patience");
        assert!(world.status().cards[0].failures > 0);
        // The reset took them.
        world.channels(0);
        world.state().refusals.clear();
        assert_eq!(world.run_until(100 * PERIOD), None);
        world.channels(3);
        let again = world.state().edges.len();
        world.run_until(800 * PERIOD);
        assert_eq!(world.running(), Running::Closed, "what could not be done is tried again");
        assert!(world.state().edges.len() > again + 300, "its windows go on");
    }
}

/// One that is off its card, which answers so many calls with `status` from then on.
fn off_a_card_that_refuses(status: RmStatus) -> World {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD + 50_000);
    assert!(world.state().is_off);
    world.state().refusals.extend(std::iter::repeat_n(status, 100_000));
    world.run_until(30 * PERIOD);
    assert_eq!(world.running(), Running::Degraded);
    world
}

#[test]
fn who_is_off_is_put_back_as_soon_as_the_card_does() {
    let mut world = off_a_card_that_refuses(RmStatus::INVALID_STATE);
    let before = world.status().cards[0].throttled_us;
    world.run_until(60 * PERIOD);
    let throttled_us = world.status().cards[0].throttled_us - before;
    assert!(throttled_us > 27 * PERIOD, "it is told what it is: {throttled_us}");
    world.state().refusals.clear();
    world.run_until(75 * PERIOD + 20_000);
    assert!(!world.state().is_off);
    assert_ne!(world.running(), Running::Degraded);
    assert!(world.scheduler.fatal.is_none());
}

#[test]
fn who_is_never_put_back_is_ended_unless_the_driver_tells_its_programs() {
    /// `NV_ERR_TIMEOUT`, `NV_ERR_GPU_IS_LOST`.
    const CASES: [(RmStatus, bool); 3] =
        [(RmStatus(0x65), true), (RmStatus(0xf), false), (RmStatus::INVALID_STATE, true)];
    for (status, ends) in CASES {
        let mut world = off_a_card_that_refuses(status);
        world.run_until(500 * PERIOD);
        assert!(world.scheduler.fatal.is_none(), "{status:?}");
        world.run_until(900 * PERIOD);
        assert_eq!(world.scheduler.fatal.is_some(), ends, "{status:?}");
    }
}

#[test]
fn who_has_nothing_left_on_its_card_is_ended() {
    let world = off_a_card_that_refuses(RmStatus::OBJECT_NOT_FOUND);
    assert!(world.scheduler.fatal.is_some());
}
