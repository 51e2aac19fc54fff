//! Watch over files on simulated nodes, by their locks: nodes are plain files, which cannot be
//! waited for.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Mutex, PoisonError},
};

use driver::{DeviceFile, FileWatch, Watched};

use super::open_files::{FileId, OpenFiles};

/// An observer of its own.
#[derive(Debug)]
pub(super) struct LockWatch(Mutex<Known>);

#[derive(Debug)]
struct Known {
    files: OpenFiles,
    numbers: HashMap<u64, FileId>,
}

impl LockWatch {
    pub(super) fn new(files: OpenFiles) -> Self {
        Self(Mutex::new(Known { files, numbers: HashMap::new() }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FileWatch for LockWatch {
    fn watch(&self, file: &DeviceFile, number: u64) -> io::Result<Watched> {
        self.with(|known| {
            let id = known.files.identify(file)?;
            known.numbers.insert(number, id);
            Ok(Watched::without_entry(number))
        })
    }

    fn cancel(&self, watched: Watched) {
        self.with(|known| known.numbers.remove(&watched.number));
    }

    fn living(&self) -> io::Result<HashSet<u64>> {
        self.with(|known| {
            known.files.closed();
            known.numbers.retain(|_, id| known.files.is_known(*id));
            Ok(known.numbers.keys().copied().collect())
        })
    }
}
