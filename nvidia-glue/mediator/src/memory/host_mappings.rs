//! Memory of the host's that programs map for the processor: charged for as long as the file lives
//! that the mapping hangs on.
//!
//! A program may free the memory while it is mapped, and the driver keeps the pages
//! ([`account::MappedFile`] tells why). No call of the program's proves that they are gone, and a
//! duplicate of the file would keep them. So the file is watched from before the driver prepares
//! the mapping ([`FileWatch`]).

use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use account::{Accounts, Card, Hold, MappedFile};
use driver::{DeviceFile, Driver, FileWatch, Watched};

use crate::locks::lock;

/// The watch over the files of one container.
#[derive(Debug)]
pub(crate) struct HostMappings {
    watch: Box<dyn FileWatch>,
    next: AtomicU64,
}

impl HostMappings {
    pub(crate) fn new(driver: &dyn Driver) -> io::Result<Self> {
        Ok(Self { watch: driver.file_watch()?, next: AtomicU64::new(1) })
    }

    /// Watches a file on which a mapping is about to be made.
    pub(crate) fn watch(&self, file: &DeviceFile) -> io::Result<Watched> {
        self.watch.watch(file, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Has the watched file hold what is mapped, or nothing if the driver refused.
    pub(crate) fn settle(&self, accounts: &Mutex<Accounts>, hold: Hold, watched: Watched, is_mapped: bool) {
        if is_mapped {
            lock(accounts).host_memory_mapped(hold, MappedFile(watched.number));
        } else {
            self.watch.cancel(watched);
            lock(accounts).release(hold);
        }
    }

    /// Lets go of what is charged only for files that are gone.
    pub(crate) fn drop_gone(&self, accounts: &Mutex<Accounts>) {
        // Those that are watched already: one that comes meanwhile is not in question.
        let known = lock(accounts).mapped_files();
        if known.is_empty() {
            return;
        }
        match self.watch.living() {
            Ok(living) => {
                let mut accounts = lock(accounts);
                for file in known.into_iter().filter(|file| !living.contains(&file.0)) {
                    accounts.mapped_file_gone(file);
                }
            }
            // What cannot be said to be gone stays charged.
            Err(error) => tracing::warn!(%error, "it cannot be told which mappings of the host's memory are gone"),
        }
    }

    /// The container has ended: says what of the host's memory others keep by files that they have
    /// of it. Nobody is to wait for them.
    pub(crate) fn log_left(&self, accounts: &Mutex<Accounts>) {
        self.drop_gone(accounts);
        let accounts = lock(accounts);
        if accounts.has_freed_while_mapped()
            && let Ok(left) = accounts.card(Card::HOST)
        {
            tracing::warn!(
                bytes = left.used.0,
                "memory of the host's that the driver made for the container stays until somebody else closes a file"
            );
        }
    }
}
