//! Schedules of a node: the timetable, and the card time that mediators report for their
//! containers.

use std::{collections::HashMap, io, path::Path};

use base::block_file::ReadBlockError;
use ledger::{CardGrant, ComputeEnforcement, Ledger, Record, TimetableError};
use nvidia_glue::inject;
use schedule::{CardStatus, Running, Status, StatusFile, Timetable, Turn, now_us};
use serde::Serialize;

/// The longest time for which a report about the last second, and one about the last minute, count.
const FRESH_1S_US: u64 = 2_000_000;
const FRESH_60S_US: u64 = 62_000_000;
const SECOND_US: u32 = 1_000_000;
const PPM: f64 = 10_000.0;

/// Snapshot of the schedules of a node.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    pub(super) now_us: u64,
    pub(super) table: Option<Timetable>,
    pub(super) status: HashMap<String, Status>,
}

/// A container's time on one card, in percent of the card's. Null where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct CardTime {
    /// The share that it was granted, beside the others that are there now.
    pub(super) granted_percent: Option<f64>,
    /// The share that it achieved in the last second.
    pub(super) achieved_1s_percent: Option<f64>,
    /// The share that it achieved in the last minute.
    pub(super) achieved_60s_percent: Option<f64>,
    /// The part of its grant that it used in the last second, as the container itself sees it.
    #[serde(skip)]
    pub(super) utilization_percent: Option<f64>,
}

impl Schedules {
    /// Reads them, and returns warnings of what failed.
    pub(super) fn read(state_dir: &Path, records: &[Record]) -> (Self, Vec<String>) {
        let (mut status, mut warnings) = (HashMap::new(), Vec::new());
        let table = match Ledger::timetable(state_dir) {
            Ok(table) => Some(in_order(table, records)),
            Err(TimetableError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                warnings.push(base::error_chain(&error));
                None
            }
        };
        for record in records {
            match read_status(state_dir, record) {
                Ok(Some(reported)) => drop(status.insert(record.schedule_id().to_owned(), reported)),
                Ok(None) => {}
                Err(error) => warnings.push(base::error_chain(&error)),
            }
        }
        (Self { now_us: now_us(), table, status }, warnings)
    }

    /// Returns the turn of the container that holds now; `None`: it shares no card.
    pub(super) fn turn(&self, record: &Record) -> Option<&Turn> {
        self.table.as_ref()?.at(self.now_us).0?.turn(record.schedule_id())
    }

    /// Returns the next turn of the container, and the microseconds until then; `None`: the present
    /// one stays.
    pub(super) fn next_turn(&self, record: &Record) -> Option<(u64, &Turn)> {
        let table = self.table.as_ref()?;
        let last = table.epochs.last().filter(|epoch| epoch.from_us > self.now_us)?;
        let turn = last.turn(record.schedule_id()).filter(|turn| Some(*turn) != self.turn(record))?;
        Some((last.from_us - self.now_us, turn))
    }

    /// Returns the turn that holds once no change is pending.
    pub(super) fn last_turn(&self, record: &Record) -> Option<&Turn> {
        self.table.as_ref()?.epochs.last()?.turn(record.schedule_id())
    }

    /// Returns the status that the container's mediator reports.
    pub(super) fn status(&self, record: &Record) -> Option<&Status> {
        self.status.get(record.schedule_id())
    }

    pub(super) fn card(&self, record: &Record, uuid: &str) -> Option<&CardStatus> {
        self.status(record)?.cards.iter().find(|card| card.uuid == uuid)
    }

    /// Returns the time that its work has been held back, on the card on which that was the
    /// longest: its cards have their time together.
    pub(super) fn throttled_us(&self, record: &Record) -> u64 {
        let cards = self.status(record).into_iter().flat_map(|status| &status.cards);
        cards.map(|card| card.throttled_us).max().unwrap_or(0)
    }

    /// Returns whether its share of the card is only a weight, as the card cannot take the
    /// container off: known at admission, or found since.
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

    /// Returns the part of the last second for which it had work and not the card, in percent;
    /// `None`: not known.
    pub(super) fn waited_1s_percent(&self, record: &Record, uuid: &str) -> Option<f64> {
        self.last_second_percent(record, uuid, |card| card.waited_1s_us)
    }

    /// Part of the last second that a card lost in switches to a container; `None`: not known.
    pub(super) fn switching_1s_percent(&self, record: &Record, uuid: &str) -> Option<f64> {
        self.last_second_percent(record, uuid, |card| card.switching_1s_us)
    }

    fn last_second_percent(&self, record: &Record, uuid: &str, us: fn(&CardStatus) -> Option<u64>) -> Option<f64> {
        let written_us = self.status(record)?.written_us;
        let us = us(self.card(record, uuid)?)?;
        let is_fresh = self.now_us.saturating_sub(written_us) <= FRESH_1S_US;
        is_fresh.then(|| percent(within_a_second(us)))
    }

    /// Part of the last second that a card lost in switches between its containers; `None`: of none
    /// of them is it known.
    pub(super) fn switching_percent(&self, records: &[Record], uuid: &str) -> Option<f64> {
        let of = |record: &Record| self.switching_1s_percent(record, uuid);
        records.iter().filter_map(of).fold(None, |sum, percent| Some(sum.unwrap_or(0.0) + percent))
    }

    /// Returns a share that is fresh.
    ///
    /// While nothing is scheduled nothing is written, and an old share says nothing of now: but
    /// without a channel nothing runs.
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

/// Sorts the cards of each turn in the container's order.
fn in_order(mut table: Timetable, records: &[Record]) -> Timetable {
    for turn in table.epochs.iter_mut().flat_map(|epoch| &mut epoch.turns) {
        if let Some(record) = records.iter().find(|record| record.grant_id == turn.grant_id) {
            turn.cards.sort_by_key(|card| record.cards.iter().position(|grant| grant.uuid == card.uuid));
        }
    }
    table
}

fn read_status(state_dir: &Path, record: &Record) -> Result<Option<Status>, ReadBlockError> {
    // An invalid grant id has no file.
    let Ok(path) = inject::status_file(state_dir, record.schedule_id()) else { return Ok(None) };
    match StatusFile::read(&path) {
        Ok(status) => Ok(Some(status)),
        Err(ReadBlockError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the time, of the last second's, in microseconds: a sum may begin somewhat earlier.
pub(super) fn within_a_second(us: u64) -> u32 {
    u32::try_from(us).map_or(SECOND_US, |us| us.min(SECOND_US))
}

/// Converts millionths to percent.
pub(super) fn percent(ppm: u32) -> f64 {
    f64::from(ppm) / PPM
}

/// Formats a percentage: `9.9%`; `?` if it is not known.
pub(super) fn shown(percent: Option<f64>) -> String {
    percent.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.1}%"))
}

/// Adds up those that are known; `None`: none is.
pub(super) fn sum(percents: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    percents.flatten().fold(None, |sum, percent| Some(sum.unwrap_or(0.0) + percent))
}
