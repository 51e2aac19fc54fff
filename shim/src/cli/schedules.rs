//! Who runs when, and what containers achieve: the timetable, and what mediators tell of their containers' time.

use std::{collections::HashMap, io, path::Path};

use nvidia_glue::{
    block_file::ReadBlockError,
    inject,
    ledger::{CardGrant, ComputeEnforcement, Ledger, Record, TimetableError},
    schedule::{CardStatus, Running, Status, StatusFile, Timetable, Turn, now_us},
};
use serde::Serialize;

/// What a mediator says of the last second and of the last minute is believed for so long.
const FRESH_1S_US: u64 = 2_000_000;
const FRESH_60S_US: u64 = 62_000_000;
const PPM: f64 = 10_000.0;

/// One look at the node's schedules.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    pub(super) now_us: u64,
    pub(super) table: Option<Timetable>,
    pub(super) status: HashMap<String, Status>,
}

/// A container's time on one card, in percent of the card's. Null where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct CardTime {
    /// What it was granted, beside the others that are there now.
    pub(super) granted_percent: Option<f64>,
    /// What it achieved in the last second.
    pub(super) achieved_1s_percent: Option<f64>,
    /// What it achieved in the last minute.
    pub(super) achieved_60s_percent: Option<f64>,
    /// What it used in the last second of what it was granted, as the container itself sees it.
    #[serde(skip)]
    pub(super) utilization_percent: Option<f64>,
}

impl Schedules {
    /// Reads them, and says what to warn about.
    pub(super) fn read(state_dir: &Path, records: &[Record]) -> (Self, Vec<String>) {
        let (mut status, mut warnings) = (HashMap::new(), Vec::new());
        let table = match Ledger::timetable(state_dir) {
            Ok(table) => Some(in_order(table, records)),
            Err(TimetableError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                warnings.push(super::chain(&error));
                None
            }
        };
        for record in records {
            match read_status(state_dir, record) {
                Ok(Some(reported)) => drop(status.insert(record.grant_id.clone(), reported)),
                Ok(None) => {}
                Err(error) => warnings.push(super::chain(&error)),
            }
        }
        (Self { now_us: now_us(), table, status }, warnings)
    }

    /// What holds for the container now; `None`: it shares no card.
    pub(super) fn turn(&self, record: &Record) -> Option<&Turn> {
        self.table.as_ref()?.at(self.now_us).0?.turn(&record.grant_id)
    }

    /// What is going to hold for it, and in how many microseconds; `None`: what holds now.
    pub(super) fn next_turn(&self, record: &Record) -> Option<(u64, &Turn)> {
        let table = self.table.as_ref()?;
        let last = table.epochs.last().filter(|epoch| epoch.from_us > self.now_us)?;
        let turn = last.turn(&record.grant_id).filter(|turn| Some(*turn) != self.turn(record))?;
        Some((last.from_us - self.now_us, turn))
    }

    /// What is going to hold once no change is under way.
    pub(super) fn last_turn(&self, record: &Record) -> Option<&Turn> {
        self.table.as_ref()?.epochs.last()?.turn(&record.grant_id)
    }

    /// What the container's mediator tells.
    pub(super) fn status(&self, record: &Record) -> Option<&Status> {
        self.status.get(&record.grant_id)
    }

    pub(super) fn card(&self, record: &Record, uuid: &str) -> Option<&CardStatus> {
        self.status(record)?.cards.iter().find(|card| card.uuid == uuid)
    }

    /// For how long its work has been held back, on the card on which that was the longest: its cards have their time together.
    pub(super) fn throttled_us(&self, record: &Record) -> u64 {
        let cards = self.status(record).into_iter().flat_map(|status| &status.cards);
        cards.map(|card| card.throttled_us).max().unwrap_or(0)
    }

    /// Whether the card cannot take the container off, so that its part of the time is only a weight: known at admission, or found since.
    pub(super) fn is_weight_only(&self, record: &Record, grant: &CardGrant) -> bool {
        grant.compute_by == ComputeEnforcement::WeightsOnly
            || self.card(record, &grant.uuid).is_some_and(|card| card.running == Running::Degraded)
    }

    pub(super) fn time(&self, record: &Record, uuid: &str) -> CardTime {
        let granted = self.turn(record).and_then(|turn| turn.card(uuid)).map(|card| card.share_ppm);
        CardTime {
            granted_percent: granted.map(percent),
            achieved_1s_percent: self.achieved(record, uuid, FRESH_1S_US, |card| card.achieved_1s_ppm),
            achieved_60s_percent: self.achieved(record, uuid, FRESH_60S_US, |card| card.achieved_60s_ppm),
            utilization_percent: self.achieved(record, uuid, FRESH_1S_US, |card| card.utilization_ppm),
        }
    }

    /// While nothing is scheduled nothing is written, and what was written last says nothing of now: but without a channel
    /// nothing runs.
    fn achieved(
        &self,
        record: &Record,
        uuid: &str,
        fresh_us: u64,
        ppm: impl Fn(&CardStatus) -> Option<u32>,
    ) -> Option<f64> {
        let (status, card) = (self.status(record)?, self.card(record, uuid)?);
        let is_fresh = self.now_us.saturating_sub(status.written_us) <= fresh_us;
        match is_fresh {
            true => ppm(card).map(percent),
            false => (card.channels == 0).then_some(0.0),
        }
    }
}

/// Each container's cards in the container's order.
fn in_order(mut table: Timetable, records: &[Record]) -> Timetable {
    for turn in table.epochs.iter_mut().flat_map(|epoch| &mut epoch.turns) {
        if let Some(record) = records.iter().find(|record| record.grant_id == turn.grant_id) {
            turn.cards.sort_by_key(|card| record.cards.iter().position(|grant| grant.uuid == card.uuid));
        }
    }
    table
}

fn read_status(state_dir: &Path, record: &Record) -> Result<Option<Status>, ReadBlockError> {
    // A grant id that is none has no file.
    let Ok(path) = inject::status_file(state_dir, &record.grant_id) else { return Ok(None) };
    match StatusFile::read(&path) {
        Ok(status) => Ok(Some(status)),
        Err(ReadBlockError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// From millionths.
pub(super) fn percent(ppm: u32) -> f64 {
    f64::from(ppm) / PPM
}

/// `9.9%`; `?` where it is not known.
pub(super) fn shown(percent: Option<f64>) -> String {
    percent.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.1}%"))
}

/// The sum of those that are known; `None`: none is.
pub(super) fn sum(percents: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    percents.flatten().fold(None, |sum, percent| Some(sum.unwrap_or(0.0) + percent))
}
