//! Grants that were given back, until that is in the log.
//!
//! ```text
//! STATE_DIR/released/GRANT.HOW   the record of such a grant
//! ```
//! A record moves here in the step in which it ceases to count, and goes when its lines are
//! written. Meanwhile it is locked by the process that gave the grant back. One that nobody has
//! locked is a killed process's: the next process that has something to log writes its lines. Only
//! a process that is killed between the two has them written twice.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base::file_lock::{FileLock, try_lock_exclusive};

use super::{Locked, READABLE, Store, StoreError, readable};
use crate::{
    GrantState, Record,
    decision_log::{DecisionLog, Event, Line},
    grant_log::{grant_fields, roll_back},
};

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
    lock: FileLock,
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
    Ok(Kept { path, lock })
}

/// Writes lines, and those that killed processes owe. The ledger's lock is free by now.
pub(super) fn write(store: &Store, unlogged: Vec<Unlogged>, log: &DecisionLog) {
    for Unlogged { lines, kept } in unlogged.into_iter().chain(owed(store)) {
        if store.step(false).is_err() {
            return;
        }
        log.write(&lines);
        if let Some(Kept { path, lock }) = kept {
            if let Err(error) = store.remove(&path) {
                tracing::warn!(error = &error as &dyn std::error::Error, "the end of a grant may be logged again");
            }
            drop(lock);
        }
    }
}

/// Records that killed processes left, with their lines.
fn owed(store: &Store) -> impl Iterator<Item = Unlogged> + use<> {
    let entries = fs::read_dir(store.released_dir()).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let path = entry.path();
        let how = GivenBack::ALL.into_iter().find(|how| path.extension().is_some_and(|name| name == how.name()))?;
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
        Some(Unlogged { lines, kept: Some(Kept { path, lock }) })
    })
}
