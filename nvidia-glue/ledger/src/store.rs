//! The ledger's files.
//!
//! ```text
//! STATE_DIR/ledger.lock       flock; whoever changes anything below holds it
//! STATE_DIR/ledger/NAME.json  the records: the truth
//! STATE_DIR/released/         records whose end is not in the log yet, see `released.rs`
//! STATE_DIR/index/            sums of the records, card by card: derived, and rebuilt when
//!                             `summary.json` is not there
//! STATE_DIR/waiting/NAME.json who waits for room, see `admit/waiting.rs`
//! STATE_DIR/settings.json     the cards' settings
//! STATE_DIR/timetable/        who runs when, card by card: derived, and made anew when it is not
//!                             the one that the index was written with; a card that nobody
//!                             shares has none
//! STATE_DIR/NAME.tmp          a file that is being written
//! ```
//! Every file comes to be whole, by a rename. Before a record appears, changes or goes, the index's
//! summary is removed, and it is written anew afterwards, after the timetable; so a process that
//! dies between any two steps leaves records that are whole and an index that is either right or
//! absent. Removing needs no space: grants are given back on a full disk, too. A binding changes
//! nothing that the index has, and leaves it as it is.
//!
//! Nothing is synced to the disk. A crash of the machine changes its boot id, which makes every
//! record void, and a record's name says for which boot it holds.

mod error;
mod released;

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base::{
    Surroundings,
    file_lock::{FileLock, lock_exclusive},
    format, grant_files, make_directory,
};
pub use error::StoreError;
use released::Unlogged;
pub(super) use released::{GivenBack, orphan_line};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use schedule::Timetable;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::{
    ContainerKey, Record,
    decision_log::DecisionLog,
    formats::{RECORD, SETTINGS as SETTINGS_FORMAT},
    settings::Settings,
};

/// Directory of the cards' timetables in the state directory.
const TIMETABLES: &str = "timetable";
const TIMETABLE_TMP: &str = "timetable.tmp";
const SETTINGS: &str = "settings.json";
const SETTINGS_TMP: &str = "settings.tmp";
/// Readable part of a record's name; the rest of the name distinguishes records.
pub(super) const READABLE: usize = 80;

/// Identity of a file, which distinguishes it from the one before it: its inode, and when it was
/// written.
pub(super) type FileStamp = (u64, i64, i64);

/// The directory and what names this boot.
#[derive(Debug)]
pub(super) struct Store {
    state_dir: PathBuf,
    surroundings: &'static Surroundings,
    /// End of the names of this boot's records.
    boot_suffix: String,
    lock_patience: Duration,
    #[cfg(test)]
    pub(super) faults: super::test_support::Faults,
}

/// The right to change the ledger; given up when dropped, or when the process ends however it ends.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    store: &'a Store,
    /// The settings, once they have been read.
    settings: RefCell<Option<Settings>>,
    /// The log to which lines are written once the lock is free.
    log: Option<&'a DecisionLog>,
    unlogged: RefCell<Vec<Unlogged>>,
    lock: Option<FileLock>,
}

impl Drop for Locked<'_> {
    /// Gives the lock up, and writes what happened meanwhile: a log's disk may be slow.
    fn drop(&mut self) {
        drop(self.lock.take());
        if let Some(log) = self.log {
            released::write(self.store, self.unlogged.take(), log);
        }
    }
}

impl Store {
    /// Creates the directories if they are not there. The state directory's group may read what
    /// commands show, and not open the lock, which it could hold.
    pub(super) fn open(state_dir: &Path, lock_patience: Duration) -> Result<Self, StoreError> {
        let surroundings = Surroundings::own().map_err(failed("read", Path::new("/proc")))?;
        let store = Self {
            state_dir: state_dir.to_owned(),
            boot_suffix: format!(".{}.json", &hash(&[&surroundings.boot_id])[..8]),
            surroundings,
            lock_patience,
            #[cfg(test)]
            faults: super::test_support::Faults::default(),
        };
        // A container with a user namespace of its own mounts its files from below the state
        // directory as that user.
        for (directory, mode) in [
            (store.records_dir(), 0o750),
            (store.index_dir(), 0o700),
            (timetable_dir(state_dir), 0o750),
            (store.waiting_dir(), 0o750),
            (store.released_dir(), 0o700),
        ] {
            make_directory(&directory, mode, 0o711).map_err(failed("make directory", &directory))?;
        }
        Ok(store)
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.surroundings.boot_id
    }

    /// Pid namespace of this process, see [`Record::pid_namespace`].
    pub(super) fn pid_namespace(&self) -> u64 {
        self.surroundings.pid_namespace
    }

    pub(super) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    pub(super) fn records_dir(&self) -> PathBuf {
        self.state_dir.join("ledger")
    }

    /// Directory of the containers that wait for room.
    pub(super) fn waiting_dir(&self) -> PathBuf {
        self.state_dir.join("waiting")
    }

    /// Directory of the records whose end is not in the log yet.
    pub(super) fn released_dir(&self) -> PathBuf {
        self.state_dir.join("released")
    }

    fn index_dir(&self) -> PathBuf {
        self.state_dir.join("index")
    }

    /// Waits its turn, but not for ever: a create that hangs is worse than one that fails and says
    /// why.
    pub(super) fn lock(&self) -> Result<Locked<'_>, StoreError> {
        let path = self.state_dir.join("ledger.lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(failed("open", &path))?;
        let start = Instant::now();
        match lock_exclusive(file, self.lock_patience) {
            Ok(lock) => Ok(Locked {
                store: self,
                settings: RefCell::default(),
                log: None,
                unlogged: RefCell::default(),
                lock: Some(lock),
            }),
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                Err(StoreError::LockTimeout { path, waited_ms: start.elapsed().as_millis() })
            }
            Err(error) => Err(failed("lock", &path)(error)),
        }
    }

    /// As [`Store::lock`], for what is logged.
    pub(super) fn lock_with<'a>(&'a self, log: &'a DecisionLog) -> Result<Locked<'a>, StoreError> {
        let mut locked = self.lock()?;
        locked.log = Some(log);
        Ok(locked)
    }

    /// Name of a container's record: a readable part, a hash of the whole key, and one of the boot.
    pub(super) fn record_name(&self, container: &ContainerKey) -> String {
        let key = hash(&[&container.containerd, &container.namespace, &container.id]);
        let readable = readable(&format!("{}-{}", container.namespace, container.id), READABLE);
        format!("{readable}.{}{}", &key[..32], self.boot_suffix)
    }

    pub(super) fn is_of_this_boot(&self, name: &str) -> bool {
        name.ends_with(&self.boot_suffix)
    }

    /// The record under `name`; `None` when there is none of this boot. Needs no lock: records are
    /// replaced as wholes.
    pub(super) fn read_record(&self, name: &str) -> Result<Option<Record>, StoreError> {
        let path = self.records_dir().join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        // What does not say its format is no record.
        if let Ok(written) = serde_json::from_slice(&bytes)
            && let Err(source) = RECORD.check_shares(written)
        {
            return Err(StoreError::Version { path, source });
        }
        let record: Record = serde_json::from_slice(&bytes).map_err(|source| StoreError::Corrupt { path, source })?;
        Ok((record.boot_id == self.boot_id()).then_some(record))
    }

    /// The record of `container`.
    pub(super) fn find_record(&self, container: &ContainerKey) -> Result<Option<Record>, StoreError> {
        let name = self.record_name(container);
        match self.read_record(&name)? {
            Some(record) if record.container != *container => {
                Err(StoreError::Collision { path: self.records_dir().join(name), other: record.container })
            }
            found => Ok(found),
        }
    }

    /// Names of this boot's records.
    pub(super) fn record_names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.all_names()?;
        names.retain(|name| self.is_of_this_boot(name));
        Ok(names)
    }

    fn all_names(&self) -> Result<Vec<String>, StoreError> {
        let directory = self.records_dir();
        let entries = fs::read_dir(&directory).map_err(failed("list", &directory))?;
        let mut names = Vec::new();
        for entry in entries {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry.map_err(failed("list", &directory))?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Every record of this boot, in ledger order.
    pub(super) fn records(&self) -> Result<Vec<Record>, StoreError> {
        let (records, errors) = self.readable_records()?;
        errors.into_iter().next().map_or(Ok(records), Err)
    }

    /// Those records that are understood, in ledger order, and why others are not.
    pub(super) fn readable_records(&self) -> Result<(Vec<Record>, Vec<StoreError>), StoreError> {
        let (mut records, mut errors) = (Vec::new(), Vec::new());
        for name in self.record_names()? {
            match self.read_record(&name) {
                Ok(record) => records.extend(record),
                Err(error) => errors.push(error),
            }
        }
        records.sort_by_key(|record| record.order);
        Ok((records, errors))
    }

    /// Reads the settings of the cards. Needs no lock: the file is replaced as a whole.
    pub(super) fn settings(&self) -> Result<Settings, StoreError> {
        let path = self.state_dir.join(SETTINGS);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "settings that cannot be read: ignored");
                }
                return Ok(Settings::default());
            }
        };
        if let Ok(written) = serde_json::from_slice(&bytes)
            && let Err(source) = SETTINGS_FORMAT.check_reads(written)
        {
            return Err(StoreError::Settings { path, source });
        }
        Ok(serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "settings that are not understood: ignored");
            Settings::default()
        }))
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), StoreError> {
        match self.step(false).and_then(|()| fs::remove_file(path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
            _ => Ok(()),
        }
    }

    #[cfg(test)]
    pub(super) fn step(&self, writes: bool) -> io::Result<()> {
        self.faults.step(writes)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the tests' seam: they let any step fail")]
    pub(super) fn step(&self, _writes: bool) -> io::Result<()> {
        Ok(())
    }
}

impl Locked<'_> {
    pub(super) fn store(&self) -> &Store {
        self.store
    }

    /// Writes a container's record, in place of an older one, whose fields that this build does not
    /// know are kept. On failure, what was there before is there still.
    pub(super) fn write_record(&self, record: &Record) -> Result<(), StoreError> {
        let path = self.store.records_dir().join(self.store.record_name(&record.container));
        let is_same = |old: &Record| old.grant_id == record.grant_id;
        let bytes = rewritten(&path, record, is_same).map_err(|error| failed("write", &path)(error.into()))?;
        self.replace(&path, &self.store.state_dir.join("record.tmp"), &bytes)
    }

    /// Writes a record of which the index has nothing that changes: as up to date as it was, it is
    /// again once the directory has its stamp back. Whoever is killed before that leaves an index
    /// that is made anew.
    pub(super) fn write_record_beside_index(&self, record: &Record) -> Result<(), StoreError> {
        let directory = self.store.records_dir();
        let (seconds, nanoseconds) = stamp(&directory)?;
        self.write_record(record)?;
        let stamp = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        };
        if let Err(error) =
            self.store.step(true).and_then(|()| Ok(utimensat(CWD, &directory, &stamp, AtFlags::empty())?))
        {
            tracing::warn!(%error, "the ledger's index has to be made anew");
        }
        Ok(())
    }

    /// Removes a record that may be there.
    pub(super) fn remove_record(&self, name: &str) -> Result<(), StoreError> {
        self.store.remove(&self.store.records_dir().join(name))
    }

    /// Removes what earlier boots and killed processes left beside the records of this boot.
    pub(super) fn remove_leftovers(&self, records: &[Record]) -> Result<(), StoreError> {
        self.remove_stale_files(records);
        for name in self.store.all_names()? {
            if name.ends_with(".json") && !self.store.is_of_this_boot(&name) {
                self.remove_record(&name)?;
            }
        }
        for temporary in ["record.tmp", TIMETABLE_TMP, SETTINGS_TMP] {
            self.store.remove(&self.store.state_dir.join(temporary))?;
        }
        self.store.remove(&self.store.index_dir().join("index.tmp"))
    }

    /// Makes the directory for a grant's files.
    pub(super) fn make_grant_files(&self, grant_id: &str) -> Result<(), StoreError> {
        let made = self
            .store
            .step(true)
            .and_then(|()| grant_files::make_directory(&self.store.state_dir, grant_id).map_err(io::Error::other));
        made.map_err(|error| failed("make files of a grant in", &self.store.state_dir)(error))
    }

    /// Removes files of grants that are gone.
    pub(super) fn remove_stale_files(&self, records: &[Record]) {
        let live: BTreeSet<&str> =
            records.iter().flat_map(|record| [record.grant_id.as_str(), record.schedule_id()]).collect();
        if let Err(error) = grant_files::remove_stale_files(&self.store.state_dir, |grant| live.contains(grant)) {
            tracing::warn!(error = &error as &dyn std::error::Error, "files of a grant that is gone are left");
        }
    }

    /// Reads the settings of the cards.
    pub(super) fn settings(&self) -> Result<Settings, StoreError> {
        let mut settings = self.settings.borrow_mut();
        match &*settings {
            Some(read) => Ok(read.clone()),
            None => Ok(settings.insert(self.store.settings()?).clone()),
        }
    }

    /// Writes the settings of the cards; fields that this build does not know are kept.
    pub(super) fn write_settings(&self, settings: &Settings) -> Result<(), StoreError> {
        let path = self.store.state_dir.join(SETTINGS);
        self.settings.take();
        let bytes =
            rewritten(&path, settings, |_: &Settings| true).map_err(|error| failed("write", &path)(error.into()))?;
        self.replace(&path, &self.store.state_dir.join(SETTINGS_TMP), &bytes)
    }

    /// Stamp of the file of a card's timetable; `None`: there is none.
    pub(super) fn timetable_stamp(&self, uuid: &str) -> Option<FileStamp> {
        let found = fs::metadata(self.timetable_path(uuid)).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec()))
    }

    /// Writes down who runs when on a card.
    pub(super) fn write_timetable(&self, uuid: &str, table: &Timetable) -> Result<(), StoreError> {
        let path = self.timetable_path(uuid);
        let bytes = format::to_vec(table).map_err(|error| failed("write", &path)(error.into()))?;
        self.replace(&path, &self.store.state_dir.join(TIMETABLE_TMP), &bytes)
    }

    /// Removes the timetable of a card that is no longer shared.
    pub(super) fn remove_timetable(&self, uuid: &str) -> Result<(), StoreError> {
        self.store.remove(&self.timetable_path(uuid))
    }

    /// Removes the timetables of all cards but these.
    pub(super) fn remove_other_timetables<'u>(&self, uuids: impl Iterator<Item = &'u str>) -> Result<(), StoreError> {
        let names: BTreeSet<String> = uuids.map(timetable_name).collect();
        let directory = timetable_dir(&self.store.state_dir);
        for entry in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let entry = entry.map_err(failed("list", &directory))?;
            if entry.file_name().to_str().is_none_or(|name| !names.contains(name)) {
                self.store.remove(&entry.path())?;
            }
        }
        Ok(())
    }

    fn timetable_path(&self, uuid: &str) -> PathBuf {
        timetable_dir(&self.store.state_dir).join(timetable_name(uuid))
    }

    /// A file of the index; `None` when it is not there.
    pub(super) fn read_index(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.index_path(name)).ok()
    }

    /// Writes a file of the index; `bytes`: its content, or why there is none.
    pub(super) fn write_index<E>(&self, name: &str, bytes: Result<Vec<u8>, E>) -> Result<(), StoreError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let path = self.index_path(name);
        let bytes = bytes.map_err(|error| failed("write", &path)(io::Error::other(error)))?;
        self.replace(&path, &self.store.index_dir().join("index.tmp"), &bytes)
    }

    /// Removes a file of the index that may be there.
    pub(super) fn remove_index(&self, name: &str) -> Result<(), StoreError> {
        self.store.remove(&self.index_path(name))
    }

    /// Changes whenever a record comes, is replaced or goes, whoever does it.
    pub(super) fn records_stamp(&self) -> Result<(i64, i64), StoreError> {
        stamp(&self.store.records_dir())
    }

    fn index_path(&self, name: &str) -> PathBuf {
        self.store.index_dir().join(name)
    }

    pub(super) fn replace(&self, path: &Path, temporary: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let result = self.write_and_rename(path, temporary, bytes);
        if result.is_err() && self.store.step(false).is_ok() {
            // What is half-written takes room that is needed.
            let _ = fs::remove_file(temporary);
        }
        result
    }

    fn write_and_rename(&self, path: &Path, temporary: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let write = || -> io::Result<()> {
            self.store.step(true)?;
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(temporary)?;
            self.store.step(true)?;
            file.write_all(bytes)
        };
        write().map_err(failed("write", temporary))?;
        self.store.step(true).and_then(|()| fs::rename(temporary, path)).map_err(failed("write", path))
    }
}

/// The text of a file that is to be replaced, with the fields of the old one that this build does
/// not know, if `is_same` agrees that it is of the same thing.
fn rewritten<T: Serialize + DeserializeOwned>(
    path: &Path,
    value: &T,
    is_same: impl Fn(&T) -> bool,
) -> serde_json::Result<Vec<u8>> {
    if let Ok(old) = fs::read(path)
        && let Ok(known) = serde_json::from_slice::<T>(&old)
        && is_same(&known)
        // Mostly there are none.
        && old != format::to_vec_pretty(&known)?
    {
        let mut new = format::to_value(value)?;
        format::keep_unknown(&serde_json::from_slice(&old)?, &serde_json::to_value(&known)?, &mut new);
        return serde_json::to_vec_pretty(&new);
    }
    format::to_vec_pretty(value)
}

/// The directory with the cards' timetables: whoever watches it sees each change as a rename to
/// [`timetable_name`].
pub fn timetable_dir(state_dir: &Path) -> PathBuf {
    state_dir.join(TIMETABLES)
}

/// Name of the file with a card's timetable.
pub fn timetable_name(uuid: &str) -> String {
    format!("{}.json", readable(uuid, READABLE))
}

/// Changes whenever a file of a directory comes, is replaced or goes, to the precision of the
/// kernel's clock.
pub(super) fn stamp(directory: &Path) -> Result<(i64, i64), StoreError> {
    let found = fs::metadata(directory).map_err(failed("look at", directory))?;
    Ok((found.mtime(), found.mtime_nsec()))
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Hash of a sequence of strings; no two sequences are written alike.
pub(super) fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file name's part that people can read: `_` for what is not a letter, a digit, `-`, `_` or `.`,
/// never first a dot.
pub(super) fn readable(text: &str, most: usize) -> String {
    let plain = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => character,
        _ => '_',
    };
    let name: String = text.chars().take(most).map(plain).collect();
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}
