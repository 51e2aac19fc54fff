//! Steps of a card's thread, on a fake clock, with a fake gate.

mod achieved;
mod edge_failure;
mod harvest;
mod slices;
mod turns;
mod waits;
mod windows;

use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use abi::Status as RmStatus;
use mediator::Seen;
use nvidia_glue::inject::status_file;
use runtime_config::{Bytes, request::Priority};
use schedule::{
    CardStatus, CardTurn, Edge, Epoch, Pass, Presence, Running, Status, StatusFile, Submitted, Switch, SwitchBatch,
    SwitchLog, SwitchLogError, Turn, Window,
    meter::{Measured, Meter},
    now_us,
    priority::LOW_SLICE_US,
    work::{Sample, Work},
};
use sys::sync::lock;

use super::*;
use crate::scheduler::{clock::Monotonic, status_page::Utilization};

const PERIOD: u64 = 100_000;
/// The mediators' processes.
const OWN: u32 = 100;
const OTHER: u32 = 200;

#[derive(Debug, Default)]
struct FakeClock(AtomicU64);

impl Clock for Arc<FakeClock> {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn pause_us(&self, pause_us: u64) {
        self.0.fetch_add(pause_us, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct FakeGate {
    clock: Arc<FakeClock>,
    state: Mutex<FakeGateState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct FakeGateState {
    is_closed: bool,
    /// Its channels are off.
    is_off: bool,
    channels: usize,
    groups: usize,
    /// End of each call, and true if it opened.
    edges: Vec<(u64, bool)>,
    slices: Vec<Option<u64>>,
    /// Numbers of its groups that were to be on the card.
    turns: Vec<Option<usize>>,
    /// Log to which the next closing adds a switch, that long before its end.
    off: Option<(FakeSwitchLog, u64)>,
    /// Time that the next calls wait in the driver.
    waits: VecDeque<u64>,
    /// Statuses of the next calls.
    refusals: VecDeque<RmStatus>,
    submitted: Option<Submitted>,
    /// Number of the next time slices that are refused.
    refused_slices: u32,
}

impl FakeGate {
    fn turn(&self, is_closed: bool) -> Result<Edge, EdgeError> {
        let mut state = lock(&self.state);
        state.is_closed = is_closed;
        // Nothing to ask the driver.
        if state.channels == 0 || state.is_off == is_closed {
            return Ok(Edge::default());
        }
        self.clock.pause_us(400 + state.waits.pop_front().unwrap_or(0));
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

impl Gate for FakeGate {
    fn uuid(&self) -> &str {
        "GPU-a"
    }

    fn open(&self) -> Result<Edge, EdgeError> {
        self.turn(false)
    }

    fn close(&self) -> Result<Edge, EdgeError> {
        self.turn(true)
    }

    fn submitted(&self) -> Option<Submitted> {
        lock(&self.state).submitted
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

/// Log of the card's switches.
#[derive(Debug, Default, Clone)]
struct FakeSwitchLog(Arc<Mutex<Vec<Switch>>>);

impl FakeSwitchLog {
    fn add(&self, at_us: u64, process: u32, presence: Presence) {
        self.add_of(at_us, process, process, presence);
    }

    /// Adds a switch of one of several groups of a container.
    fn add_of(&self, at_us: u64, process: u32, context: u32, presence: Presence) {
        lock(&self.0).push(Switch { at_ns: at_us * 1_000, process, context, presence });
    }
}

impl SwitchLog for FakeSwitchLog {
    fn take(&mut self, into: &mut Vec<Switch>) -> Result<SwitchBatch, SwitchLogError> {
        into.append(&mut lock(&self.0));
        Ok(SwitchBatch::default())
    }
}

/// The driver's samples of use, each 200 ms.
#[derive(Debug)]
struct FakeCard {
    state: Mutex<FakeCardState>,
}

#[derive(Debug, Default)]
struct FakeCardState {
    meter: Meter,
    work: Work,
    samples: Vec<Sample>,
    busy_ppm: u32,
    is_own: bool,
    is_silent: bool,
    asked: u32,
}

impl Utilization for FakeCard {
    fn measured(&self, _: &str, measured: Measured, in_doubt: bool) -> Seen {
        let FakeCardState { meter, work, samples, busy_ppm, is_own, is_silent, asked } = &mut *lock(&self.state);
        meter.add(measured);
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

    fn card_busy_ppm(&self, _: &str, _: u64, _: (u64, u64)) -> Option<u32> {
        Some(lock(&self.state).busy_ppm)
    }
}

struct Fixture {
    directory: tempfile::TempDir,
    card: Arc<FakeCard>,
    clock: Arc<FakeClock>,
    gate: Arc<FakeGate>,
    log: FakeSwitchLog,
    mailbox: Arc<Mailbox>,
    scheduler: CardScheduler<Arc<FakeClock>>,
}

impl Fixture {
    /// Creates a card whose driver has no log.
    fn new(is_capped: bool) -> Self {
        Self::with(is_capped, false)
    }

    fn with(is_capped: bool, has_log: bool) -> Self {
        Self::of(is_capped, has_log, false)
    }

    /// Creates a card that those of low priority leave altogether.
    fn strict() -> Self {
        let mut fixture = Self::with(false, true);
        fixture.scheduler.place.priority = PriorityMode::Strict;
        fixture
    }

    fn of(is_capped: bool, has_log: bool, is_without_windows: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(FakeClock::default());
        let gate = Arc::new(FakeGate {
            clock: Arc::clone(&clock),
            state: Mutex::new(FakeGateState { groups: 1, ..FakeGateState::default() }),
            moved: Condvar::new(),
        });
        let (place, mailbox, status_page) = parts(&directory, is_capped);
        let state = Mutex::new(FakeCardState { busy_ppm: 1_000_000, ..FakeCardState::default() });
        let card = Arc::new(FakeCard { state });
        status_page.set_utilization(Arc::clone(&card) as _);
        let place = CardPlace { is_without_windows, ..place };
        let log = FakeSwitchLog::default();
        let opened = log.clone();
        let residency_view = ResidencyView::new(OWN, Box::new(move || Ok(has_log.then_some(Box::new(opened) as _))));
        let outputs = (Arc::clone(&mailbox), status_page);
        let scheduler = CardScheduler::new(place, Arc::clone(&gate) as _, residency_view, outputs, Arc::clone(&clock));
        Self { directory, card, clock, gate, log, mailbox, scheduler }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, FakeGateState> {
        lock(&self.gate.state)
    }

    fn channels(&self, channels: usize) {
        let mut state = self.state();
        // New channels are on or off as the gate is.
        (state.channels, state.is_off) = (channels, channels > 0 && state.is_closed);
    }

    fn set_epochs(&self, epochs: Vec<Epoch>) {
        let table = Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs };
        self.mailbox.send(Some(Arc::new(table)));
    }

    /// Steps as its thread would, each a little late. Returns the instant of the next step.
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

    /// Time that it was open since an instant.
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

    /// Sets the neighbour's mediator.
    fn neighbour_is(&self, process: u32) {
        self.mediator_is("other", process);
    }

    fn mediator_is(&self, grant_id: &str, process: u32) {
        let path = status_file(self.directory.path(), grant_id).unwrap();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        StatusFile::create(&path).unwrap().write(&Status { process, ..Status::default() }).unwrap();
    }

    fn running(&self) -> Running {
        self.status().cards[0].running
    }

    fn is_busy(&self, busy_ppm: u32) {
        lock(&self.card.state).busy_ppm = busy_ppm;
    }

    /// Share of the last second, and use in all.
    fn achieved(&self) -> (Option<u32>, Option<u64>) {
        let card = &self.status().cards[0];
        (card.achieved_1s_ppm, card.used_us)
    }
}

fn parts(directory: &tempfile::TempDir, is_capped: bool) -> (CardPlace, Arc<Mailbox>, Arc<StatusPage>) {
    let file = StatusFile::create(&directory.path().join("status")).unwrap();
    let status_page = Arc::new(StatusPage::new(file, ["GPU-a".to_owned()].into_iter(), None));
    let state_dir = directory.path().to_owned();
    let priority = PriorityMode::Harvest;
    let place =
        CardPlace { index: 0, grant_id: "own".into(), priority, state_dir, is_capped, is_without_windows: false };
    (place, Arc::new(Mailbox::new("GPU-a".into()).unwrap()), status_page)
}

fn epoch(from_us: u64, pass: Pass, priority: Priority, neighbours: Vec<Turn>) -> Epoch {
    let own = turn("own", pass, priority, 250_000);
    Epoch { from_us, turns: std::iter::once(own).chain(neighbours).collect() }
}

fn turn(grant_id: &str, pass: Pass, priority: Priority, share_ppm: u32) -> Turn {
    let card = CardTurn { uuid: "GPU-a".into(), memory: Bytes(0), pass, share_ppm };
    Turn { grant_id: grant_id.into(), period_us: PERIOD, priority, cards: vec![card] }
}

fn windows(start_us: u64, end_us: u64) -> Pass {
    Pass::Windows(vec![Window { start_us, end_us }])
}

fn window_epoch(from_us: u64, start_us: u64, end_us: u64) -> Epoch {
    epoch(from_us, windows(start_us, end_us), Priority::High, Vec::new())
}

fn neighbour(priority: Priority) -> Turn {
    turn("other", Pass::Weight(3), priority, 1_000)
}
