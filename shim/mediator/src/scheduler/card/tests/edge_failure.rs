//! Cards that refuse, cannot do it, or are lost.

use super::*;

#[test]
fn whoever_becomes_a_weight_is_on_its_card_and_that_is_reported() {
    let (mut fixture, lines) = (Fixture::new(true), LogCapture::default());
    fixture.channels(3);
    fixture.set_epochs(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD + 50_000);
    assert!(fixture.state().is_closed);
    // The next opening is refused for good, and what follows it is not.
    fixture.state().refusals.extend([RmStatus::NOT_SUPPORTED]);
    let edges = fixture.state().edges.len();
    lines.of(|| fixture.run_until(2 * PERIOD + 50_000));
    assert_eq!(fixture.running(), Running::Degraded);
    assert!(lines.text().contains("its share of time is a weight"), "{}", lines.text());
    let after: Vec<bool> = fixture.state().edges[edges..].iter().map(|edge| edge.1).collect();
    assert_eq!(after, [true], "it is put back, and never taken off again");
    lines.of(|| fixture.run_until(700 * PERIOD));
    assert_ne!(fixture.running(), Running::Degraded);
    assert!(lines.text().contains("its share of time is exact"), "{}", lines.text());
}

/// Log of this process.
#[derive(Debug, Default, Clone)]
struct LogCapture(Arc<Mutex<Vec<u8>>>);

impl LogCapture {
    fn of<T>(&self, work: impl FnOnce() -> T) -> T {
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, work)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }
}

impl io::Write for LogCapture {
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
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD + 20_000);
    fixture.state().refusals.extend([RmStatus::INVALID_STATE; 1_000]);
    fixture.run_until(5 * PERIOD);
    assert_ne!(fixture.running(), Running::Degraded, "it has some patience");
    fixture.run_until(15 * PERIOD);
    assert_eq!(fixture.running(), Running::Degraded);
    assert!(fixture.state().slices.last().is_some_and(Option::is_some));
    let before = fixture.state().refusals.len();
    fixture.run_until(300 * PERIOD);
    assert_eq!(fixture.state().refusals.len(), before, "it is left alone for a minute");
    fixture.run_until(700 * PERIOD);
    assert!(fixture.state().refusals.len() < before);
    fixture.state().refusals.clear();
    fixture.run_until(1_300 * PERIOD);
    assert_eq!(fixture.running(), Running::Closed);
    assert_eq!(fixture.state().slices.last(), Some(&None));
    let edges = fixture.state().edges.len();
    fixture.run_until(1_310 * PERIOD);
    assert_eq!(fixture.state().edges.len(), edges + 20);
}

#[test]
fn what_is_not_supported_is_a_weight_at_once() {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![window_epoch(0, 10_000, 35_000)]);
    fixture.run_until(20_000);
    fixture.state().refusals.extend([RmStatus::NOT_SUPPORTED; 2]);
    fixture.run_until(PERIOD);
    assert_eq!(fixture.running(), Running::Degraded);
    let edges = fixture.state().edges.len();
    fixture.run_until(5 * PERIOD);
    assert_eq!(fixture.state().edges.len(), edges, "nothing is opened or closed any more");
}

#[test]
fn a_card_that_was_found_to_take_nobody_off_is_a_weight_from_the_start() {
    let mut fixture = Fixture::of(true, false, true);
    fixture.set_epochs(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD);
    assert!(!fixture.state().is_closed, "its first channel does not wait for a window");
    assert_eq!(fixture.running(), Running::Degraded);
    fixture.channels(3);
    fixture.run_until(300 * PERIOD);
    assert_eq!(fixture.running(), Running::Degraded);
    assert!(fixture.state().edges.iter().all(|(_, opened)| *opened), "nothing is closed");
    assert!(fixture.state().slices.last().is_some_and(Option::is_some));
}

/// Reset of the card by the driver while the container is off it: calls fail, then its channels are
/// gone, then there are new ones.
#[test]
fn a_card_that_is_lost_in_the_off_time_holds_nobody_up() {
    /// `NV_ERR_GPU_IS_LOST`.
    const GPU_IS_LOST: RmStatus = RmStatus(0xf);
    for lost_for in [3, 30] {
        let mut fixture = Fixture::new(true);
        fixture.channels(3);
        fixture.set_epochs(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
        fixture.run_until(PERIOD + 50_000);
        assert!(fixture.state().is_closed);
        fixture.state().refusals.extend([GPU_IS_LOST; 10_000]);
        for step in 0..10 * lost_for {
            let promised = fixture.status().next_by_us.unwrap();
            fixture.run_until(PERIOD + 50_000 + step * PERIOD / 10);
            let now = fixture.clock.now_us();
            assert!(promised + 2_000 > now || fixture.status().next_by_us > Some(promised), "it has stalled at {now}");
        }
        assert_eq!(fixture.running() == Running::Degraded, lost_for == 30, "it has some patience");
        assert!(fixture.status().cards[0].failures > 0);
        // The reset took them.
        fixture.channels(0);
        fixture.state().refusals.clear();
        assert_eq!(fixture.run_until(100 * PERIOD), None);
        fixture.channels(3);
        let again = fixture.state().edges.len();
        fixture.run_until(800 * PERIOD);
        assert_eq!(fixture.running(), Running::Closed, "what could not be done is tried again");
        assert!(fixture.state().edges.len() > again + 300, "its windows go on");
    }
}

/// Card whose container is off it, and which answers that many calls with `status` from then on.
fn off_a_card_that_refuses(status: RmStatus) -> Fixture {
    let mut fixture = Fixture::new(true);
    fixture.channels(3);
    fixture.set_epochs(vec![epoch(0, windows(10_000, 35_000), Priority::High, vec![neighbour(Priority::High)])]);
    fixture.run_until(PERIOD + 50_000);
    assert!(fixture.state().is_off);
    fixture.state().refusals.extend(std::iter::repeat_n(status, 100_000));
    fixture.run_until(30 * PERIOD);
    assert_eq!(fixture.running(), Running::Degraded);
    fixture
}

#[test]
fn who_is_off_is_put_back_as_soon_as_the_card_does() {
    let mut fixture = off_a_card_that_refuses(RmStatus::INVALID_STATE);
    let before = fixture.status().cards[0].throttled_us;
    fixture.run_until(60 * PERIOD);
    let throttled_us = fixture.status().cards[0].throttled_us - before;
    assert!(throttled_us > 27 * PERIOD, "it is told what it is: {throttled_us}");
    fixture.state().refusals.clear();
    fixture.run_until(75 * PERIOD + 20_000);
    assert!(!fixture.state().is_off);
    assert_ne!(fixture.running(), Running::Degraded);
    assert!(fixture.scheduler.fatal.is_none());
}

#[test]
fn who_is_never_put_back_is_ended_unless_the_driver_tells_its_programs() {
    /// `NV_ERR_TIMEOUT`, `NV_ERR_GPU_IS_LOST`.
    const CASES: [(RmStatus, bool); 3] =
        [(RmStatus(0x65), true), (RmStatus(0xf), false), (RmStatus::INVALID_STATE, true)];
    for (status, ends) in CASES {
        let mut fixture = off_a_card_that_refuses(status);
        fixture.run_until(500 * PERIOD);
        assert!(fixture.scheduler.fatal.is_none(), "{status:?}");
        fixture.run_until(900 * PERIOD);
        assert_eq!(fixture.scheduler.fatal.is_some(), ends, "{status:?}");
    }
}

#[test]
fn who_has_nothing_left_on_its_card_is_ended() {
    let fixture = off_a_card_that_refuses(RmStatus::OBJECT_NOT_FOUND);
    assert!(fixture.scheduler.fatal.is_some());
}
