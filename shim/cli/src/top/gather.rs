//! Looks at the node: its files are read, and nothing that runs is asked but NVML.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use base::error_chain;
use cards::{Inventory, ProcessMemory, SensorReading};
use jiff::Timestamp;
use ledger::event_log::{self, Entry};
use runtime_config::Config;

use super::{frame::Frame, rows::Waiting};
use crate::{
    error::CliError,
    events::EventFiles,
    node::{self, Node},
    output::printable,
    schedules::Schedules,
    usage,
};

/// Time for which configuration and cards are taken as they were: their health is in the kernel's
/// log, of which a look reads all.
const CARDS_EVERY: Duration = Duration::from_secs(3);
/// Interval at which NVML is asked.
const SENSORS_EVERY: Duration = Duration::from_secs(2);
/// Age up to which what NVML said counts. It may hang on a broken card.
const SENSORS_FRESH: Duration = Duration::from_secs(10);
/// Number of events that are kept.
const EVENTS: usize = 50;

#[derive(Debug)]
pub(super) struct Look {
    /// Time of day, UTC.
    pub(super) clock: String,
    /// As `Err`: the reason why nothing was seen.
    pub(super) seen: Result<(Frame, Vec<Waiting>), String>,
    /// The last events, oldest first.
    pub(super) events: Vec<EventLine>,
    pub(super) warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventLine {
    /// Time of day, UTC.
    pub(super) clock: String,
    pub(super) kind: String,
    pub(super) count: u64,
    /// The container, else the card.
    pub(super) subject: String,
    pub(super) text: String,
}

/// State between looks.
#[derive(Debug)]
pub(super) struct Gatherer {
    cards: Option<(Config, Inventory, Instant)>,
    before: Option<Schedules>,
    events: Option<EventFiles>,
    recent: Vec<EventLine>,
    sensors: SensorThread,
}

impl Gatherer {
    pub(super) fn new() -> Self {
        let sensors = SensorThread { readings: None, last: None };
        Self { cards: None, before: None, events: None, recent: Vec::new(), sensors }
    }

    /// Looks once.
    pub(super) fn look(&mut self) -> Look {
        let mut warnings = Vec::new();
        let seen = self.see(&mut warnings).map_err(|error| error_chain(&error));
        Look { clock: clock(Timestamp::now()), seen, events: self.recent.clone(), warnings }
    }

    fn see(&mut self, warnings: &mut Vec<String>) -> Result<(Frame, Vec<Waiting>), CliError> {
        let cards = match self.cards.take().filter(|(.., since)| since.elapsed() < CARDS_EVERY) {
            Some(cards) => cards,
            None => {
                let (config, inventory) = node::configuration_and_cards()?;
                self.sensors.start(&config);
                (config, inventory, Instant::now())
            }
        };
        let (config, inventory, _) = self.cards.insert(cards);
        let directory = event_log::directory(&config.state_dir);
        match self.events.get_or_insert_with(|| EventFiles::new(directory)).read() {
            Ok(lines) => self.recent.extend(lines.iter().filter_map(|line| event_log::parse(line)).map(EventLine::new)),
            Err(error) => warnings.push(format!("cannot read the events: {error}")),
        }
        let old = self.recent.len().saturating_sub(EVENTS);
        self.recent.drain(..old);
        let (node, found) = Node::of(config.clone(), inventory.clone())?;
        warnings.extend(found);
        let (readings, processes) = self.sensors.latest();
        let (usage, found) = usage::measure_with(&node, || {
            processes.ok_or("the driver does not answer; `egpu doctor` says why".to_owned())
        });
        warnings.extend(found);
        let mut frame = Frame::new(&node, &usage, self.before.as_ref());
        for card in &mut frame.cards {
            card.sensors = readings.iter().find(|reading| reading.card == card.uuid).cloned();
        }
        let waiting = node.waiters.iter().map(Waiting::new).collect();
        self.before = Some(node.schedules);
        Ok((frame, waiting))
    }
}

impl EventLine {
    fn new(entry: Entry) -> Self {
        let Entry { time, kind, namespace, container, pod, card_index, count, text, .. } = entry;
        let subject = match (pod, namespace, container, card_index) {
            (Some(pod), ..) => pod.to_string(),
            (None, Some(namespace), Some(id), _) => format!("{namespace}/{id}"),
            (None, _, _, Some(index)) => format!("card {index}"),
            _ => String::new(),
        };
        let [kind, subject, text] = [kind, subject, text].map(|text| printable(&text));
        Self { clock: time.parse().map(clock).unwrap_or_default(), kind, count, subject, text }
    }
}

fn clock(time: Timestamp) -> String {
    time.strftime("%H:%M:%S").to_string()
}

type Answers = (Vec<SensorReading>, Vec<ProcessMemory>);

/// Thread that asks NVML, so that a card that hangs does not stop the screen.
#[derive(Debug)]
struct SensorThread {
    /// `None`: not started. Its sender is gone where there is no driver to ask.
    readings: Option<Receiver<Answers>>,
    last: Option<(Answers, Instant)>,
}

impl SensorThread {
    fn start(&mut self, config: &Config) {
        if self.readings.is_none() {
            let (sender, receiver) = mpsc::channel();
            self.readings = Some(receiver);
            let config = config.clone();
            // Without a thread there is nothing to be had, as without a driver.
            let _ = thread::Builder::new().spawn(move || ask(&config, &sender));
        }
    }

    /// Returns what NVML said last; processes only if that is fresh.
    fn latest(&mut self) -> (Vec<SensorReading>, Option<Vec<ProcessMemory>>) {
        if let Some(answers) = self.readings.as_ref().and_then(|readings| readings.try_iter().last()) {
            self.last = Some((answers, Instant::now()));
        }
        match &self.last {
            Some(((readings, processes), at)) if at.elapsed() < SENSORS_FRESH => {
                (readings.clone(), Some(processes.clone()))
            }
            _ => (Vec::new(), None),
        }
    }
}

/// Asks NVML until nobody listens. What it does not say is not shown; `egpu doctor` says why.
fn ask(config: &Config, answers: &Sender<Answers>) {
    let Ok(Some(sensors)) = cards::sensors(config) else { return };
    while answers.send((sensors.read(), sensors.processes())).is_ok() {
        thread::sleep(SENSORS_EVERY);
    }
}

/// Looks at an interval, and at once when woken, until nobody listens.
pub(super) fn run(interval: Duration, wake: &Receiver<()>, looks: impl Fn(Look) -> bool) {
    let mut gatherer = Gatherer::new();
    while looks(gatherer.look()) {
        if wake.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

#[cfg(test)]
impl Look {
    /// A look at a node on which nothing happens but this.
    pub(super) fn of_frame(frame: Frame) -> Self {
        Self { clock: "12:00:00".to_owned(), seen: Ok((frame, Vec::new())), events: Vec::new(), warnings: Vec::new() }
    }
}
