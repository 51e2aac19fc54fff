//! Writing down who runs when: at every change of a grant, under the ledger's lock.
//!
//! The records are the truth, and the timetable is made from them. The index notes which timetable was made from the records
//! that it knows: where that is not the one that is there, as after a kill between two steps, whoever takes the lock next makes
//! it anew. A container is created only after its admission, which has written its turn.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    Ledger, StoreError,
    index::Index,
    members::members,
    store::{Locked, TIMETABLE},
};
use crate::schedule::{Timetable, advance, plan};

pub(super) const TIMETABLE_VERSION: u32 = 1;

/// Why it is not known who runs when.
#[derive(Debug, thiserror::Error)]
pub enum TimetableError {
    /// The file cannot be read; `NotFound` before the first admission.
    #[error("the timetable {} cannot be read", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a timetable.
    #[error("the timetable {} is not understood; the next change of a grant writes it anew", path.display())]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It is of another version of egpu.
    #[error("the timetable {} has format {found}, and this egpu knows {TIMETABLE_VERSION}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

impl Ledger {
    /// Who runs when, as the file in `state_dir` says. Takes no lock: the file is replaced as a whole. Whether it is of this
    /// boot, its reader knows: grants and turns have the same `boot_id`.
    ///
    /// # Errors
    /// When there is none, or it is not understood.
    pub fn timetable(state_dir: &Path) -> Result<Timetable, TimetableError> {
        let path = state_dir.join(TIMETABLE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(TimetableError::Read { path, source }),
        };
        match serde_json::from_slice::<Timetable>(&bytes) {
            Ok(table) if table.version != TIMETABLE_VERSION => {
                Err(TimetableError::Version { path, found: table.version })
            }
            Ok(table) => Ok(table),
            Err(source) => Err(TimetableError::Corrupt { path, source }),
        }
    }

    /// The index, after what an earlier holder of the lock left undone has been made up for.
    pub(super) fn open_index(&self, locked: &Locked<'_>) -> Result<Index, StoreError> {
        let mut index = Index::load(locked)?;
        if self.finish_policy(locked, &mut index)? {
            return Ok(index);
        }
        if !index.is_told(locked) {
            index.begin_change(locked)?;
            self.retell(locked, &mut index);
            index.save(locked);
        }
        Ok(index)
    }

    /// Writes the timetable anew from the index.
    pub(super) fn write_timetable(&self, locked: &Locked<'_>, index: &mut Index) -> Result<(), StoreError> {
        index.forget_told();
        let before = self.told(locked);
        let settings = locked.settings();
        let cards = index.all_holdings(locked)?;
        let last = before.as_ref().and_then(|table| table.epochs.last());
        let turns = plan(&members(cards), &settings, last);
        let (now_us, boot_id) = (self.node.now_us(), locked.store().boot_id().to_owned());
        let revision = before.as_ref().map_or(0, |table| table.revision);
        let epochs = advance(before.map(|table| table.epochs).unwrap_or_default(), turns, now_us);
        let mut table = Timetable { version: TIMETABLE_VERSION, boot_id, revision, epochs };
        if !locked.is_written(&table)? {
            table.revision = revision.saturating_add(1).max(now_us);
            locked.write_timetable(&table)?;
        }
        index.note_told(locked);
        Ok(())
    }

    /// As [`Ledger::write_timetable`], where nobody waits for it to be written: what cannot be written now is written by
    /// whoever takes the lock next.
    pub(super) fn retell(&self, locked: &Locked<'_>, index: &mut Index) {
        if let Err(error) = self.write_timetable(locked, index) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the timetable is not up to date");
        }
    }

    /// The timetable of this boot.
    fn told(&self, locked: &Locked<'_>) -> Option<Timetable> {
        let table = Self::timetable(locked.store().state_dir()).ok()?;
        (table.boot_id == locked.store().boot_id()).then_some(table)
    }
}
