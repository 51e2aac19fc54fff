//! Writing down who runs when: at every change of a grant, under the ledger's lock.
//!
//! Each card has a timetable of its own, so that a change costs, and wakes, only those who share a
//! card with it or are tied to it by containers with several cards. The records are the truth, and
//! the timetables are made from them. The index notes which timetables were made from the records
//! that it knows: where those are not the ones that are there, as after a kill between two steps,
//! whoever takes the lock next makes all anew. A container is created only after its admission,
//! which has written its turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use base::format::{FormatError, WrittenFormat};
use schedule::{CardEpochs, Epoch, Timetable, advance, plan};

use super::{
    Ledger, StoreError,
    formats::TIMETABLE,
    index::Index,
    members::{connected_cards, members},
    store::{FileStamp, Locked, timetable_dir, timetable_name},
};

/// Reason for which a timetable is not known.
#[derive(Debug, thiserror::Error)]
pub enum TimetableError {
    /// The file cannot be read; `NotFound` where nobody shares the card.
    #[error("the timetable {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        source: io::Error,
    },
    /// It is not a timetable.
    #[error("the timetable {} is not understood; the next change of a grant writes it anew", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        source: serde_json::Error,
    },
    /// It is of another version of egpu.
    #[error("the timetable {} is not for this egpu", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        source: FormatError,
    },
}

impl Ledger {
    /// Reads the timetable of a card from its file in `state_dir`. Takes no lock: the file is
    /// replaced as a whole. A reader can tell whether it is of this boot: grants and turns have the
    /// same `boot_id`.
    ///
    /// # Errors
    /// When there is none, or it is not understood.
    pub fn card_timetable(state_dir: &Path, uuid: &str) -> Result<Timetable, TimetableError> {
        read(timetable_dir(state_dir).join(timetable_name(uuid)))
    }

    /// Reads the timetable of all cards of the node: for display, as one card's may be a moment
    /// newer than another's.
    ///
    /// # Errors
    /// As [`Ledger::card_timetable`]; `NotFound` before the first start of egpu.
    pub fn timetable(state_dir: &Path) -> Result<Timetable, TimetableError> {
        let directory = timetable_dir(state_dir);
        let failed = |source| TimetableError::Read { path: directory.clone(), source };
        // By name, so that whoever looks twice sees the same.
        let mut cards = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            match read(path.clone()) {
                Ok(card) => drop(cards.insert(path, card)),
                // Its last container has gone meanwhile.
                Err(TimetableError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Timetable::of_cards(&cards.into_values().collect::<Vec<_>>()))
    }

    /// Writes the timetables of `changed` cards, and of those that are tied to them, anew from the
    /// index.
    pub(super) fn write_timetables<'a>(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        changed: impl Iterator<Item = &'a str>,
    ) -> Result<(), StoreError> {
        let uuids = connected_cards(locked, index, changed)?;
        match index.take_timetables() {
            Some(written) => self.write_cards(locked, index, &uuids, written),
            None => self.write_all_timetables(locked, index),
        }
    }

    /// Writes the timetables like [`Ledger::write_timetables`], where nobody waits for them: those
    /// that cannot be written now are written by whoever takes the lock next.
    pub(super) fn refresh_timetables<'a>(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        changed: impl Iterator<Item = &'a str>,
    ) {
        warn(self.write_timetables(locked, index, changed));
    }

    /// Refreshes the timetables of all cards.
    pub(super) fn refresh_all_timetables(&self, locked: &Locked<'_>, index: &mut Index) {
        warn(self.write_all_timetables(locked, index));
    }

    fn write_all_timetables(&self, locked: &Locked<'_>, index: &mut Index) -> Result<(), StoreError> {
        index.take_timetables();
        let uuids = index.uuids();
        locked.remove_other_timetables(uuids.iter().map(String::as_str))?;
        let uuids = connected_cards(locked, index, uuids.iter().map(String::as_str))?;
        self.write_cards(locked, index, &uuids, BTreeMap::new())
    }

    /// `uuids`: all cards that are tied to each other. `timetables`: those that are there of the
    /// other cards.
    fn write_cards(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        uuids: &BTreeSet<String>,
        mut timetables: BTreeMap<String, FileStamp>,
    ) -> Result<(), StoreError> {
        let (now_us, boot_id) = (self.node.now_us(), locked.store().boot_id());
        let mut before: BTreeMap<&str, Timetable> = BTreeMap::new();
        let mut written = CardEpochs::new();
        for uuid in uuids {
            let table = Self::card_timetable(locked.store().state_dir(), uuid).ok();
            let table = table.filter(|table| table.boot_id == boot_id);
            written.insert(uuid.clone(), table.as_ref().map(|table| table.epochs.clone()).unwrap_or_default());
            before.extend(table.map(|table| (uuid.as_str(), table)));
        }
        let last = Epoch::of_cards(now_us, written.values().filter_map(|epochs| epochs.last()));
        let turns = plan(&members(&index.cards(uuids)), &locked.settings()?.plan(), Some(&last));
        for (uuid, epochs) in advance(written, &turns, now_us) {
            let before = before.get(uuid.as_str());
            let revision = before.map_or(0, |table| table.revision);
            let WrittenFormat { version, format } = TIMETABLE.written();
            let table = Timetable { version, format, boot_id: boot_id.to_owned(), revision, epochs };
            write_card(locked, &uuid, table, before, now_us)?;
            match locked.timetable_stamp(&uuid) {
                Some(stamp) => drop(timetables.insert(uuid, stamp)),
                None => drop(timetables.remove(&uuid)),
            }
        }
        index.set_timetables(timetables);
        Ok(())
    }
}

/// Writes a card's timetable if it says anything else than the one that is there.
fn write_card(
    locked: &Locked<'_>,
    uuid: &str,
    mut table: Timetable,
    before: Option<&Timetable>,
    now_us: u64,
) -> Result<(), StoreError> {
    if table.epochs.iter().all(|epoch| epoch.turns.is_empty()) {
        return locked.remove_timetable(uuid);
    }
    if before != Some(&table) {
        table.revision = table.revision.saturating_add(1).max(now_us);
        locked.write_timetable(uuid, &table)?;
    }
    Ok(())
}

fn warn(written: Result<(), StoreError>) {
    if let Err(error) = written {
        tracing::warn!(error = &error as &dyn std::error::Error, "the timetable is not up to date");
    }
}

fn read(path: PathBuf) -> Result<Timetable, TimetableError> {
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(TimetableError::Read { path, source }),
    };
    // What does not say its format is none.
    if let Ok(written) = serde_json::from_slice(&bytes)
        && let Err(source) = TIMETABLE.check_reads(written)
    {
        return Err(TimetableError::Version { path, source });
    }
    serde_json::from_slice(&bytes).map_err(|source| TimetableError::Corrupt { path, source })
}
