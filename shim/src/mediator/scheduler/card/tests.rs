//! A card's thread step by step on a clock that is played, with a gate that is.

use std::{
    collections::VecDeque,
    sync::{
        Condvar,
        atomic::{AtomicU64, Ordering},
    },
};

use nvidia_glue::{
    driver::{Presence, Switch, SwitchLog, SwitchLogError, Taken},
    inject::status_file,
    mediate::Seen,
    rm::Status as RmStatus,
    schedule::{
        CardTurn, Edge, Epoch, Neighbour, Pass, Running, Status, StatusFile, Turn, Window,
        meter::{Measured, Meter},
        now_us,
        priority::LOW_SLICE_US,
        work::{Sample, Work},
    },
};
use runtime_config::{Bytes, request::Priority};

use super::*;
use crate::mediator::scheduler::{board::Utilization, clock::Monotonic};

const PERIOD: u64 = 100_000;
/// The mediators' processes.
const OWN: u32 = 100;
const OTHER: u32 = 200;

#[derive(Debug, Default)]
struct Played(AtomicU64);

impl Clock for Arc<Played> {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn pause_us(&self, pause_us: u64) {
        self.0.fetch_add(pause_us, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct PlayedGate {
    clock: Arc<Played>,
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    /// Its channels are.
    is_off: bool,
    channels: usize,
    groups: usize,
    /// When which call ended, and whether it opened.
    edges: Vec<(u64, bool)>,
    slices: Vec<Option<u64>>,
    /// How many of its groups were to be on the card.
    turns: Vec<Option<usize>>,
    /// What is logged so long before the end of the next closing.
    off: Option<(PlayedLog, u64)>,
    /// What the next calls are answered with.
    refusals: VecDeque<RmStatus>,
    /// How many of the next time slices are refused.
    refused_slices: u32,
}

impl PlayedGate {
    fn turn(&self, is_closed: bool) -> Result<Edge, EdgeError> {
        let mut state = lock(&self.state);
        state.is_closed = is_closed;
        // Nothing is to be told to the driver.
        if state.channels == 0 || state.is_off == is_closed {
            return Ok(Edge::default());
        }
        self.clock.pause_us(400);
        if let Some(status) = state.refusals.pop_front() {
            return Err(EdgeError::Refused { call: "CALL", uuid: "GPU-a".into(), status });
        }
        if is_closed && let Some((log, before_us)) = state.off.take() {
            log.add(self.clock.now_us() - before_us, OWN, Presence::Off);
        }
        state.is_off = is_closed;
        state.edges.push((self.clock.now_us(), !is_closed));
        self.moved.notify_all();
        Ok(Edge { channels: state.channels, calls: 1 })
    }
}

impl Gate for PlayedGate {
    fn uuid(&self) -> &str {
        "GPU-a"
    }

    fn open(&self) -> Result<Edge, EdgeError> {
        self.turn(false)
    }

    fn close(&self) -> Result<Edge, EdgeError> {
        self.turn(true)
    }

    fn set_slice(&self, slice_us: Option<u64>) -> Result<(), EdgeError> {
        let mut state = lock(&self.state);
        if state.refused_slices > 0 {
            state.refused_slices -= 1;
            return Err(EdgeError::Refused { call: "CALL", uuid: "GPU-a".into(), status: RmStatus::INVALID_STATE });
        }
        state.slices.push(slice_us);
        Ok(())
    }

    fn rotate(&self, on_card: Option<usize>) -> Result<Edge, EdgeError> {
        lock(&self.state).turns.push(on_card);
        Ok(Edge::default())
    }

    fn channels(&self) -> usize {
        lock(&self.state).channels
    }

    fn groups(&self) -> usize {
        lock(&self.state).groups
    }
}

/// What the card's log of switches will say.
#[derive(Debug, Default, Clone)]
struct PlayedLog(Arc<Mutex<Vec<Switch>>>);

impl PlayedLog {
    fn add(&self, at_us: u64, process: u32, presence: Presence) {
        self.add_of(at_us, process, process, presence);
    }

    /// Of one of several groups of a container's.
    fn add_of(&self, at_us: u64, process: u32, context: u32, presence: Presence) {
        lock(&self.0).push(Switch { at_ns: at_us * 1_000, process, context, presence });
    }
}

impl SwitchLog for PlayedLog {
    fn take(&mut self, into: &mut Vec<Switch>) -> Result<Taken, SwitchLogError> {
        into.append(&mut lock(&self.0));
        Ok(Taken::default())
    }
}

/// The driver's samples: each 200 ms, how busy the card was.
#[derive(Debug)]
struct PlayedCard {
    state: Mutex<CardState>,
}

#[derive(Debug, Default)]
struct CardState {
    meter: Meter,
    work: Work,
    samples: Vec<Sample>,
    busy_ppm: u32,
    is_own: bool,
    is_silent: bool,
    asked: u32,
}

impl Utilization for PlayedCard {
    fn measured(&self, _: &str, measured: Measured, in_doubt: bool) -> Seen {
        let CardState { meter, work, samples, busy_ppm, is_own, is_silent, asked } = &mut *lock(&self.state);
        meter.tell(measured);
        let now_us = measured.at_us;
        while !*is_silent && samples.last().map_or(0, |sample| sample.at_us) + 200_000 <= now_us {
            let at_us = samples.last().map_or(0, |sample| sample.at_us) + 200_000;
            samples.push(Sample { at_us, busy_ppm: *busy_ppm, is_own: *is_own });
        }
        if !in_doubt {
            if !measured.rests {
                work.pass_over(now_us);
            }
            return Seen::default();
        }
        *asked += u32::from(work.is_open(meter, now_us));
        Seen { utilization_ppm: None, worked: work.add(meter, samples, now_us) }
    }
}

struct World {
    directory: tempfile::TempDir,
    card: Arc<PlayedCard>,
    clock: Arc<Played>,
    gate: Arc<PlayedGate>,
    log: PlayedLog,
    post: Arc<Post>,
    scheduler: CardScheduler<Arc<Played>>,
}

impl World {
    /// On a card whose driver keeps no log.
    fn new(is_capped: bool) -> Self {
        Self::with(is_capped, false)
    }

    fn with(is_capped: bool, has_log: bool) -> Self {
        Self::of(is_capped, has_log, false)
    }

    fn of(is_capped: bool, has_log: bool, is_without_windows: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(Played::default());
        let gate = Arc::new(PlayedGate {
            clock: Arc::clone(&clock),
            state: Mutex::new(GateState { groups: 1, ..GateState::default() }),
            moved: Condvar::new(),
        });
        let (place, post, board) = parts(&directory, is_capped);
        let state = Mutex::new(CardState { busy_ppm: 1_000_000, ..CardState::default() });
        let card = Arc::new(PlayedCard { state });
        board.tell_container(Arc::clone(&card) as _);
        let place = Place { is_without_windows, ..place };
        let log = PlayedLog::default();
        let opened = log.clone();
        let sight = Sight::new(OWN, Box::new(move || Ok(has_log.then_some(Box::new(opened) as _))));
        let told = (Arc::clone(&post), board);
        let scheduler = CardScheduler::new(place, Arc::clone(&gate) as _, sight, told, Arc::clone(&clock));
        Self { directory, card, clock, gate, log, post, scheduler }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, GateState> {
        lock(&self.gate.state)
    }

    fn channels(&self, channels: usize) {
        let mut state = self.state();
        // New ones come as the gate stands.
        (state.channels, state.is_off) = (channels, channels > 0 && state.is_closed);
    }

    fn tell(&self, epochs: Vec<Epoch>) {
        let table = Timetable { version: 1, boot_id: String::new(), revision: 1, epochs };
        self.post.tell(Some(Arc::new(table)));
    }

    /// Steps as its thread would, each a little late. The instant until which nothing is to be done.
    fn run_until(&mut self, until_us: u64) -> Option<u64> {
        loop {
            let wake = self.scheduler.step();
            let now = self.clock.now_us();
            match wake {
                Some(at) if at < until_us => self.clock.0.store(at.max(now) + 30, Ordering::Relaxed),
                _ => {
                    self.clock.0.store(until_us.max(now), Ordering::Relaxed);
                    return wake;
                }
            }
        }
    }

    /// How long it was open since an instant.
    fn open_us(&self, since_us: u64) -> u64 {
        let state = self.state();
        let mut all = 0;
        for pair in state.edges.windows(2) {
            if pair[0].1 && pair[0].0 >= since_us {
                all += pair[1].0 - pair[0].0;
            }
        }
        all
    }

    fn status(&self) -> Status {
        StatusFile::read(&self.directory.path().join("status")).unwrap()
    }

    /// The neighbour's mediator.
    fn neighbour_is(&self, process: u32) {
        let path = status_file(self.directory.path(), "other").unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        StatusFile::create(&path).unwrap().write(&Status { process, ..Status::default() }).unwrap();
    }

    fn running(&self) -> Running {
        self.status().cards[0].running
    }

    fn is_busy(&self, busy_ppm: u32) {
        lock(&self.card.state).busy_ppm = busy_ppm;
    }

    /// Of the last second, and in all.
    fn achieved(&self) -> (Option<u32>, Option<u64>) {
        let card = &self.status().cards[0];
        (card.achieved_1s_ppm, card.used_us)
    }
}

fn parts(directory: &tempfile::TempDir, is_capped: bool) -> (Place, Arc<Post>, Arc<Board>) {
    let file = StatusFile::create(&directory.path().join("status")).unwrap();
    let board = Arc::new(Board::new(file, ["GPU-a".to_owned()].into_iter()));
    let state_dir = directory.path().to_owned();
    let place = Place { index: 0, grant_id: "own".into(), state_dir, is_capped, is_without_windows: false };
    (place, Arc::new(Post::new("GPU-a".into()).unwrap()), board)
}

fn epoch(from_us: u64, pass: Pass, priority: Priority, neighbours: Vec<Neighbour>) -> Epoch {
    let card = CardTurn { uuid: "GPU-a".into(), memory: Bytes(0), pass, share_ppm: 250_000, neighbours };
    let turn = Turn { grant_id: "own".into(), period_us: PERIOD, priority, cards: vec![card] };
    Epoch { from_us, turns: vec![turn] }
}

fn windows(start_us: u64, end_us: u64) -> Pass {
    Pass::Windows(vec![Window { start_us, end_us }])
}

fn window_epoch(from_us: u64, start_us: u64, end_us: u64) -> Epoch {
    epoch(from_us, windows(start_us, end_us), Priority::High, Vec::new())
}

fn neighbour(priority: Priority) -> Neighbour {
    Neighbour { grant_id: "other".into(), priority, weight: 3 }
}

#[test]
fn windows_are_kept_and_told() {
    let mut world = World::new(true);
    world.channels(20);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(41 * PERIOD);
    let open = world.open_us(PERIOD);
    assert!(open.abs_diff(40 * 25_000) < 2_000, "{open}");
    let status = world.status();
    let card = &status.cards[0];
    assert_eq!((card.running, card.channels), (Running::Closed, 20));
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(250_000) < 2_000, "{card:?}");
    assert!(card.achieved_60s_ppm.unwrap().abs_diff(250_000) < 5_000, "{card:?}");
    assert!(card.open_us.abs_diff(41 * 25_000) < 3_000 && card.edges == 82 && card.late_edges == 0, "{card:?}");
    assert!(card.latest_edge_us == 30 && card.failures == 0);
    assert!(status.next_by_us.is_some());
}

#[test]
fn without_channels_nothing_is_done_and_new_ones_find_it_closed() {
    let mut world = World::new(true);
    assert!(world.state().is_closed);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    assert_eq!(world.run_until(5 * PERIOD), None, "nothing but a change wakes it");
    assert!(world.state().edges.is_empty() && world.state().is_closed);
    assert_eq!((world.status().next_by_us, world.running()), (None, Running::Closed));
    world.channels(3);
    world.run_until(6 * PERIOD);
    assert_eq!(world.state().edges.len(), 2);
    world.run_until(6 * PERIOD + 20_000);
    assert!(!world.state().is_closed);
    world.channels(0);
    assert_eq!(world.run_until(9 * PERIOD), None);
    assert!(world.state().is_closed, "also when they go within a window");
    assert_eq!(world.status().next_by_us, None);
}

#[test]
fn who_is_capped_and_has_no_turn_does_not_run() {
    let mut world = World::new(true);
    world.channels(3);
    world.run_until(PERIOD);
    world.tell(vec![Epoch { from_us: 0, turns: Vec::new() }]);
    world.run_until(2 * PERIOD);
    assert!(world.state().is_closed && world.state().edges.is_empty());
    assert_eq!(world.running(), Running::Closed);
}

#[test]
fn who_is_not_capped_runs_until_it_is_told_otherwise() {
    let mut world = World::new(false);
    world.channels(3);
    world.run_until(PERIOD);
    assert!(!world.state().is_closed);
    assert_eq!(world.running(), Running::Free);
    world.tell(vec![window_epoch(3 * PERIOD, 10_000, 35_000)]);
    world.run_until(3 * PERIOD + 5_000);
    assert!(world.state().is_closed, "from the instant on that is named");
    assert_eq!(world.state().edges.last().unwrap().0.abs_diff(3 * PERIOD) / 1_000, 0);
}

#[test]
fn changes_hold_at_their_instant() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(10 * PERIOD);
    world.tell(vec![window_epoch(0, 10_000, 35_000), window_epoch(12 * PERIOD, 50_000, 100_000)]);
    world.run_until(12 * PERIOD);
    assert!(world.open_us(0).abs_diff(12 * 25_000) < 2_000);
    world.run_until(22 * PERIOD + 2_000);
    assert!(world.open_us(12 * PERIOD).abs_diff(10 * 50_000) < 2_000, "{}", world.open_us(12 * PERIOD));
}

#[test]
fn weights_are_slices_divided_among_groups() {
    let mut world = World::new(false);
    world.channels(3);
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD);
    assert_eq!(world.state().slices.len(), 1);
    let all = world.state().slices[0].unwrap();
    assert!(!world.state().is_closed);
    assert_eq!(world.running(), Running::Slices);
    world.state().groups = 4;
    world.run_until(10 * PERIOD);
    assert_eq!(world.state().slices, [Some(all), Some(all / 4)]);
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, Vec::new())]);
    world.run_until(11 * PERIOD);
    assert_eq!(world.state().slices.last(), Some(&None), "alone: what the program asked for");
}

#[test]
fn a_slice_that_is_refused_is_set_at_the_next_look() {
    let mut world = World::new(false);
    world.channels(3);
    world.state().refused_slices = 2;
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    world.run_until(10 * PERIOD);
    assert_eq!((world.state().slices.len(), world.status().cards[0].failures), (1, 2));
}

#[test]
fn slices_are_divided_among_the_groups_that_work() {
    let mut world = World::with(false, true);
    world.channels(8);
    world.state().groups = 8;
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let mut last = |contexts: u32, from: u64| {
        // Each has what is due to it.
        for at in (from..from + 20 * PERIOD).step_by(8_000) {
            for context in 0..contexts {
                world.log.add_of(at + 2_000 / u64::from(contexts) * u64::from(context), OWN, context, Presence::On);
            }
            world.log.add(at + 2_000, OTHER, Presence::On);
            world.run_until(at + 8_000);
        }
        let last = world.state().slices.last().copied().flatten();
        last.unwrap()
    };
    let one = last(1, 0);
    let two = last(2, 20 * PERIOD);
    assert!(two.abs_diff(one / 2) < one / 10, "{one} {two}");
}

#[test]
fn low_priority_has_short_slices_beside_high_whatever_its_weight() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Weight(9), Priority::Low, vec![neighbour(Priority::High)])]);
    world.run_until(10 * PERIOD);
    assert_eq!(world.state().slices, [Some(LOW_SLICE_US)]);
}

#[test]
fn slices_are_steered_by_what_is_achieved() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Weight(3), Priority::High, vec![neighbour(Priority::High)])]);
    // As much is due to both, and the other has twice as much.
    for at in (0..20 * PERIOD).step_by(6_000) {
        world.log.add(at, OWN, Presence::On);
        world.log.add(at + 2_000, OTHER, Presence::On);
        world.run_until(at + 6_000);
    }
    let slices: Vec<u64> = world.state().slices.iter().flatten().copied().collect();
    assert!(slices.len() > 3 && slices.is_sorted(), "{slices:?}");
    assert!(slices[slices.len() - 1] > slices[0] * 3 / 2, "{slices:?}");
    let used = world.status().cards[0].clone();
    assert!(used.used_us.unwrap().abs_diff(20 * PERIOD / 3) < 100_000 && used.busy == Some(true), "{used:?}");
    assert!(used.achieved_1s_ppm.unwrap().abs_diff(333_333) < 10_000, "{used:?}");
}

#[test]
fn low_priority_leaves_when_others_come_and_comes_back_when_they_do_not() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Free, Priority::Low, vec![neighbour(Priority::High)])]);
    world.run_until(5 * PERIOD);
    assert!(!world.state().is_closed);
    assert_eq!(world.state().slices, [Some(LOW_SLICE_US)]);
    world.log.add(5 * PERIOD + 1_000, OTHER, Presence::On);
    world.run_until(6 * PERIOD - 1_000);
    assert!(world.state().is_closed, "it leaves within a period");
    world.run_until(6 * PERIOD);
    assert_eq!(world.running(), Running::Waiting);
    world.run_until(20 * PERIOD);
    assert!(!world.state().is_closed, "the other did not come again");
    assert_eq!(world.running(), Running::Free);
}

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

#[test]
fn windows_that_come_and_go_lose_and_add_nothing() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.is_busy(250_000);
    world.tell(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    world.run_until(20 * PERIOD + 50_000);
    let asked = lock(&world.card.state).asked;
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    for period in 21..40 {
        world.run_until(period * PERIOD + 20_000);
        world.log.add(world.clock.now_us(), OWN, Presence::On);
        world.run_until(period * PERIOD + 60_000);
    }
    assert!(world.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", world.achieved());
    assert!(lock(&world.card.state).asked <= asked + 1, "edges are not to wait for the driver");
    world.tell(vec![epoch(0, Pass::Free, Priority::High, Vec::new())]);
    world.run_until(60 * PERIOD + 50_000);
    assert!(world.achieved().0.unwrap().abs_diff(250_000) < 5_000, "{:?}", world.achieved());
    let used_us = world.achieved().1.unwrap();
    assert!(used_us.abs_diff(60 * PERIOD / 4) < PERIOD, "{used_us}");
}

/// What is left beside somebody's first 30 ms, which two share.
fn remainder(priority: Priority) -> Epoch {
    let mut epoch = epoch(0, windows(30_000, PERIOD), priority, vec![neighbour(Priority::High)]);
    let mut other = epoch.turns[0].clone();
    (other.grant_id, other.priority) = ("other".into(), Priority::High);
    epoch.turns.push(other);
    epoch
}

/// Both come in turns of some length in each of some windows.
fn both_work(world: &mut World, periods: std::ops::Range<u64>, (own_us, other_us): (u64, u64)) {
    for start in periods.map(|period| period * PERIOD) {
        world.run_until(start + 31_000);
        for at in (start + 31_000..start + PERIOD - 2_000 - own_us - other_us)
            .step_by(usize::try_from(own_us + other_us).unwrap())
        {
            world.log.add(at, OWN, Presence::On);
            world.log.add(at + own_us, OTHER, Presence::On);
            world.run_until(at + own_us + other_us);
        }
        world.log.add(world.clock.now_us(), OTHER, Presence::Off);
        world.run_until(start + PERIOD + 1_000);
    }
}

#[test]
fn who_shares_windows_is_told_what_it_used_of_them() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![remainder(Priority::High)]);
    both_work(&mut world, 0..20, (3_000, 6_000));
    let card = world.status().cards[0].clone();
    assert!(card.open_us.abs_diff(20 * 70_000) < 20_000, "{card:?}");
    assert!(card.achieved_1s_ppm.unwrap().abs_diff(700_000 / 3) < 30_000, "{card:?}");
    assert!(card.used_us.unwrap().abs_diff(20 * 70_000 / 3) < 50_000, "{card:?}");
}

#[test]
fn without_a_log_nobody_says_who_used_a_window_of_two() {
    let mut world = World::new(false);
    world.channels(3);
    world.tell(vec![remainder(Priority::High)]);
    world.run_until(20 * PERIOD);
    let card = world.status().cards[0].clone();
    assert_eq!((card.achieved_1s_ppm, card.used_us), (None, None), "{card:?}");
}

#[test]
fn who_shares_windows_has_time_slices_in_them_that_are_steered() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.state().groups = 64;
    world.neighbour_is(OTHER);
    world.tell(vec![remainder(Priority::High)]);
    both_work(&mut world, 0..30, (6_000, 3_000));
    let slices: Vec<u64> = world.state().slices.iter().flatten().copied().collect();
    assert!(slices.len() > 3 && slices[slices.len() - 1] < slices[1] * 3 / 4, "{slices:?}");
}

#[test]
fn low_priority_gives_way_in_windows_that_others_share() {
    let mut world = World::with(false, true);
    world.channels(3);
    world.neighbour_is(OTHER);
    world.tell(vec![remainder(Priority::Low)]);
    both_work(&mut world, 0..20, (1_000, 3_000));
    let before = world.status().cards[0].open_us;
    both_work(&mut world, 20..60, (1_000, 3_000));
    let opened_us = world.status().cards[0].open_us - before;
    // In each fifth period it is let in to see.
    assert!(opened_us < 40 * 70_000 / 10, "{opened_us}");
    world.run_until(75 * PERIOD + 50_000);
    let before = world.status().cards[0].open_us;
    world.run_until(85 * PERIOD + 50_000);
    let opened_us = world.status().cards[0].open_us - before;
    assert!(opened_us > 9 * 70_000, "the other one has no work: {opened_us}");
}

#[test]
fn groups_that_work_and_do_not_fit_take_turns() {
    let mut world = World::with(false, true);
    world.channels(64);
    world.state().groups = 64;
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Weight(1), Priority::High, vec![neighbour(Priority::High)])]);
    let work = |world: &mut World, contexts: u32, from: u64| {
        for at in (from..from + 20 * PERIOD).step_by(40_000) {
            for context in 0..contexts {
                world.log.add_of(at + 250 * u64::from(context), OWN, context, Presence::On);
            }
            world.log.add(at + 20_000, OTHER, Presence::On);
            world.run_until(at + 40_000);
        }
    };
    work(&mut world, 3, 0);
    assert!(world.state().turns.is_empty(), "those that never work do not count: {:?}", world.state().turns);
    work(&mut world, 64, 20 * PERIOD);
    let turns = world.state().turns.clone();
    assert!(turns.len() > 10 && turns.iter().all(|on| on.is_some_and(|on| on <= 12)), "{turns:?}");
    assert_eq!(world.state().slices.last(), Some(&Some(250)));
    work(&mut world, 2, 40 * PERIOD);
    let turns = world.state().turns.clone();
    assert_eq!(turns.last(), Some(&None));
    work(&mut world, 2, 60 * PERIOD);
    assert_eq!(world.state().turns.len(), turns.len(), "nothing is to be done any more");
}

#[test]
fn many_groups_of_low_priority_are_let_in_a_few_at_a_time() {
    let mut world = World::with(false, true);
    world.channels(64);
    world.state().groups = 64;
    world.neighbour_is(OTHER);
    world.tell(vec![epoch(0, Pass::Free, Priority::Low, vec![neighbour(Priority::High)])]);
    world.run_until(PERIOD);
    assert_eq!(world.state().turns.first(), Some(&Some(8)));
    assert_eq!(world.state().slices, [Some(250)]);
}

#[test]
fn windows_in_which_nothing_ran_are_not_used() {
    let mut world = World::with(true, true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    let periods = |world: &mut World, periods: std::ops::Range<u64>, runs: bool| {
        for period in periods {
            world.run_until(period * PERIOD + 20_000);
            if runs {
                world.log.add(world.clock.now_us(), OWN, Presence::On);
            }
            world.run_until(period * PERIOD + 60_000);
        }
    };
    periods(&mut world, 0..20, true);
    let busy = world.status().cards[0].clone();
    assert!(busy.achieved_1s_ppm.unwrap().abs_diff(250_000) < 5_000, "{busy:?}");
    periods(&mut world, 20..40, false);
    let idle = world.status().cards[0].clone();
    assert_eq!((idle.achieved_1s_ppm, idle.used_us), (Some(0), busy.used_us), "{idle:?}");
    assert!(idle.open_us > busy.open_us, "they were its own all the same");
}

#[test]
fn edges_count_from_when_work_began_and_ended() {
    let mut world = World::with(true, true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(5_000);
    for period in 0..30 {
        let edges = world.state().edges.len();
        world.run_until(period * PERIOD + 30_000);
        let opened = world.state().edges[edges].0;
        world.log.add(opened - 50, OWN, Presence::On);
        // The call begins 250 us before its effect and ends 150 us after it.
        lock(&world.gate.state).off = Some((world.log.clone(), 150));
        world.run_until(period * PERIOD + 60_000);
    }
    let (opened, closed) = {
        let state = world.state();
        (state.edges[state.edges.len() - 2].0 - 50, state.edges[state.edges.len() - 1].0 - 150)
    };
    assert!(
        opened.abs_diff(29 * PERIOD + 10_000) < 100 && closed.abs_diff(29 * PERIOD + 35_000) < 100,
        "{opened} {closed}"
    );
    assert_eq!(world.status().cards[0].busy, Some(true));
    world.run_until(31 * PERIOD);
    assert_eq!(world.status().cards[0].busy, Some(false), "nothing came when it was opened");
}

#[test]
fn what_came_onto_the_card_before_its_call_ended_counts() {
    let mut world = World::with(true, true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(5_000);
    for period in 0..30 {
        let edges = world.state().edges.len();
        world.run_until(period * PERIOD + 30_000);
        let opened = world.state().edges[edges].0;
        world.log.add(opened - 350, OWN, Presence::On);
        lock(&world.gate.state).off = Some((world.log.clone(), 0));
        world.run_until(period * PERIOD + 60_000);
    }
    let state = world.state();
    let [.., (opened, true), (closed, false)] = state.edges[..] else { panic!("{:?}", state.edges) };
    assert!((closed - (opened - 350)).abs_diff(25_000) < 150, "{opened} {closed}");
}

#[test]
fn who_gets_channels_in_the_middle_of_a_window_has_the_rest_of_it() {
    let mut world = World::new(true);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(PERIOD + 30_000);
    world.channels(3);
    world.run_until(PERIOD + 60_000);
    let closed = world.state().edges.last().copied().unwrap();
    assert!(!closed.1 && closed.0.abs_diff(PERIOD + 35_000) < 600, "nothing is owed for the time before: {closed:?}");
}

#[test]
fn an_edge_that_fails_is_tried_again_and_costs_later_time() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(PERIOD + 20_000);
    world.state().refusals.extend([RmStatus::INVALID_STATE; 2]);
    world.run_until(2 * PERIOD);
    assert_eq!(world.status().cards[0].failures, 2);
    assert_eq!(world.state().edges.len(), 4, "the third attempt succeeded");
    let closed = world.state().edges[3].0;
    assert!(closed.abs_diff(PERIOD + 35_000) < 5_000, "at once: {closed}");
    world.run_until(2 * PERIOD + 20_000);
    world.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
    world.run_until(20 * PERIOD);
    assert_eq!(world.running(), Running::Closed);
    assert!(world.open_us(0) <= 20 * 25_000 + 2_000, "{}", world.open_us(0));
}

#[test]
fn what_fails_now_and_then_stays_exact() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    for number in 1..=3 {
        world.run_until(20 * number * PERIOD + 20_000);
        world.state().refusals.extend([RmStatus::INVALID_STATE; 3]);
        world.run_until((20 * number + 2) * PERIOD);
        assert_eq!(world.running(), Running::Closed, "with successes in between, it is not for long");
        assert_eq!(world.status().cards[0].failures, 3 * number);
    }
}

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

#[test]
fn what_was_promised_is_told_in_time() {
    let mut world = World::new(true);
    world.channels(3);
    world.tell(vec![window_epoch(0, 10_000, 35_000)]);
    world.run_until(1);
    for number in 2..2_000 {
        let promised = world.status().next_by_us.unwrap();
        world.run_until(number * 10_000);
        let written = world.status();
        assert!(promised + 2_000 > world.clock.now_us() || written.next_by_us > Some(promised));
        if number == 500 {
            world.tell(vec![epoch(0, windows(0, 100_000), Priority::High, Vec::new())]);
        } else if number == 1_000 {
            world.tell(vec![epoch(0, Pass::Weight(3), Priority::High, vec![neighbour(Priority::High)])]);
        } else if number == 1_500 {
            world.tell(vec![]);
        }
    }
}

#[test]
fn its_thread_opens_and_closes_on_the_real_clock() {
    let directory = tempfile::tempdir().unwrap();
    let gate = Arc::new(PlayedGate {
        clock: Arc::default(),
        state: Mutex::new(GateState { groups: 1, ..GateState::default() }),
        moved: Condvar::new(),
    });
    let (place, post, board) = parts(&directory, true);
    let sight = Sight::new(OWN, Box::new(|| Ok(None)));
    let told = (Arc::clone(&post), board);
    let scheduler = CardScheduler::new(place, Arc::clone(&gate) as _, sight, told, Monotonic);
    // It has no end; the process's is its.
    std::thread::spawn(move || scheduler.run());
    let mut epoch = window_epoch(now_us(), 0, 10_000);
    epoch.turns[0].period_us = 20_000;
    let table = Timetable { version: 1, boot_id: String::new(), revision: 1, epochs: vec![epoch] };
    post.tell(Some(Arc::new(table)));
    {
        let mut state = lock(&gate.state);
        (state.channels, state.is_off) = (1, state.is_closed);
    }
    // As whoever sees the first channel does.
    post.wake();
    let state = gate.moved.wait_while(lock(&gate.state), |state| state.edges.len() < 10).unwrap();
    for (number, edge) in state.edges.iter().enumerate() {
        assert_eq!(edge.1, number % 2 == 0, "one after the other");
    }
}
