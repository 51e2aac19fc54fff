//! Grants that were given back, until that is in the log.
//!
//! ```text
//! STATE_DIR/released/GRANT.HOW        the record of such a grant
//! STATE_DIR/released/GRANT.HOW.told   the same, where the events have it and the log does not
//! ```
//! A record moves here in the step in which it ceases to count, and goes when its lines are
//! written. Meanwhile it is locked by the process that gave the grant back. One that nobody has
//! locked is a killed process's, or the log did not take its lines: the next process that has
//! something to log writes them. Only a process that is killed between the two, a disk that hangs,
//! or one that is full after a part of them, has them written twice.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base::file_lock::{FileLock, try_lock_exclusive};

use super::{Locked, READABLE, Store, StoreError, failed, readable};
use crate::{
    GrantState, Record,
    decision_log::{DecisionLog, Event, Line},
    grant_log::{grant_fields, roll_back},
};

/// Most records that stay because the log does not take their lines, so that they never fill the
/// disk. The ends of further grants are events alone.
const MOST_KEPT: usize = 256;
const TOLD: &str = "told";

/// Way in which a grant was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// Its container has ended, or its claim is no longer needed here.
    Released,
    /// A later step of the create or of the claim failed.
    RolledBack,
    /// Its shim and its container are gone.
    Reclaimed,
}

impl GivenBack {
    const ALL: [Self; 3] = [Self::Released, Self::RolledBack, Self::Reclaimed];

    fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::RolledBack => "rolled-back",
            Self::Reclaimed => "reclaimed",
        }
    }

    fn lines(self, record: &Record) -> Vec<Line> {
        let released = record.cards.iter().map(|card| grant_fields(Line::new(Event::Release, record), card));
        match self {
            Self::Released => released.collect(),
            Self::RolledBack => {
                let mut lines = Vec::new();
                roll_back(&record.cards, record.into(), &mut lines);
                // Of a claim's request there is no container yet.
                lines.extend(record.claim.is_none().then(|| Line::destroyed(record)));
                lines
            }
            Self::Reclaimed => {
                let reclaimed = orphan_line(Event::Reclaim, record);
                let reclaimed = reclaimed.field("action", "taken back: shim and container are gone");
                std::iter::once(reclaimed).chain(released).collect()
            }
        }
    }
}

/// A line about a grant whose shim is gone.
pub(crate) fn orphan_line(event: Event, record: &Record) -> Line {
    let state = match record.state {
        GrantState::Prepared => "prepared",
        GrantState::Pending => "pending",
        GrantState::Bound => "bound",
    };
    Line::new(event, record).field("state", state).field("shim", record.shim.pid)
}

/// Lines that are not in the log yet.
#[derive(Debug)]
pub(super) struct Unlogged {
    lines: Vec<Line>,
    /// The record that stands for them.
    kept: Option<Kept>,
}

/// A record in the directory of this module, locked.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    /// The events have it.
    is_told: bool,
    /// Kept until it is settled.
    _lock: FileLock,
}

impl Locked<'_> {
    /// Logs once the lock is free.
    pub(crate) fn log(&self, lines: impl IntoIterator<Item = Line>) {
        self.unlogged.borrow_mut().push(Unlogged { lines: lines.into_iter().collect(), kept: None });
    }

    /// Removes the record of a grant that is given back, and logs that once the lock is free.
    pub(crate) fn give_back(&self, record: &Record, how: GivenBack) -> Result<(), StoreError> {
        let path = self.store().records_dir().join(self.store().record_name(&record.container));
        let kept = keep(self.store(), &path, record, how).ok();
        if kept.is_none() {
            // Its lines are lost if this process is killed before it has written them.
            self.store().remove(&path)?;
        }
        self.unlogged.borrow_mut().push(Unlogged { lines: how.lines(record), kept });
        Ok(())
    }
}

/// Moves a record out of the ledger, which needs no room.
fn keep(store: &Store, record_path: &Path, record: &Record, how: GivenBack) -> io::Result<Kept> {
    let lock = try_lock_exclusive(File::open(record_path)?)?.map_err(|_| io::ErrorKind::WouldBlock)?;
    let path = store.released_dir().join(format!("{}.{}", readable(&record.grant_id, READABLE), how.name()));
    store.step(false)?;
    fs::rename(record_path, &path)?;
    Ok(Kept { path, is_told: false, _lock: lock })
}

/// Writes lines, and those that others owe if the log takes these. The ledger's lock is free by
/// now.
pub(super) fn write(store: &Store, unlogged: Vec<Unlogged>, log: &DecisionLog) {
    let mut is_taken = true;
    for own in unlogged {
        is_taken &= write_one(store, own, log);
    }
    if is_taken {
        // A log that fails is not asked once more for each.
        let _ = owed(store).all(|owed| write_one(store, owed, log));
    }
}

/// Writes lines and events. Returns whether the log has taken the lines.
fn write_one(store: &Store, Unlogged { lines, kept }: Unlogged, log: &DecisionLog) -> bool {
    if store.step(false).is_err() {
        return false;
    }
    let appended = log.append(&lines);
    if kept.as_ref().is_none_or(|kept| !kept.is_told) {
        log.tell(&lines);
    }
    if let Err(error) = &appended {
        tracing::warn!(%error, "decision log not written");
    }
    if let Some(kept) = kept
        && let Err(error) = kept.settle(store, appended.is_ok())
    {
        tracing::warn!(error = &error as &dyn std::error::Error, "the end of a grant may be logged again");
    }
    appended.is_ok()
}

impl Kept {
    /// Removes the record if its lines are in the log, or too many wait for that.
    fn settle(self, store: &Store, is_logged: bool) -> Result<(), StoreError> {
        let directory = store.released_dir();
        let count = || fs::read_dir(&directory).map_or(0, Iterator::count);
        if is_logged || (!self.is_told && count() > MOST_KEPT) {
            return store.remove(&self.path);
        }
        if self.is_told {
            return Ok(());
        }
        let mut told = self.path.clone().into_os_string();
        told.push(".");
        told.push(TOLD);
        store.step(false).and_then(|()| fs::rename(&self.path, told)).map_err(failed("rename", &self.path))
    }
}

/// Records that killed processes left, or whose lines the log did not take, with their lines.
fn owed(store: &Store) -> impl Iterator<Item = Unlogged> + use<> {
    let entries = fs::read_dir(store.released_dir()).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let is_told = path.extension().is_some_and(|name| name == TOLD);
        let named = if is_told { path.with_extension("") } else { path.clone() };
        let how = GivenBack::ALL.into_iter().find(|how| named.extension().is_some_and(|name| name == how.name()))?;
        let mut lock = try_lock_exclusive(File::open(&path).ok()?).ok()?.ok()?;
        // Another process may have written and removed it meanwhile.
        if lock.metadata().ok()?.nlink() == 0 {
            return None;
        }
        let mut text = Vec::new();
        lock.read_to_end(&mut text).ok()?;
        let lines = match serde_json::from_slice(&text) {
            Ok(record) => how.lines(&record),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the end of a grant is not logged");
                Vec::new()
            }
        };
        Some(Unlogged { lines, kept: Some(Kept { path, is_told, _lock: lock }) })
    })
}
