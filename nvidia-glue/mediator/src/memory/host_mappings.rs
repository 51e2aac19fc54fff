//! Memory of the host's that programs map for the processor: charged for as long as the file lives
//! that the mapping hangs on.
//!
//! A program may free the memory while it is mapped, and the driver keeps the pages
//! ([`account::MappedFile`] tells why). No call of the program's proves that they are gone, and a
//! duplicate of the file would keep them. So the file is watched from before the driver prepares
//! the mapping ([`FileWatch`]).

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use account::{Card, Hold, MappedFile, ObjectName};
use driver::{Driver, FileWatch, Watched};

use crate::{
    Session,
    calls::{
        in_flight::{InFlightCall, errno},
        object_alloc::AllocAbort,
    },
    locks::lock,
};

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
}

impl Session {
    /// Has the driver prepare a mapping of `object` on the file that the call names, and the file
    /// hold what the object is charged for, if that is memory of the host's.
    ///
    /// Precondition: the client is locked.
    pub(crate) fn map_for_processor(
        &self,
        flight: &mut InFlightCall<'_>,
        object: ObjectName,
    ) -> Result<(), AllocAbort> {
        let held = lock(&self.objects.accounts).hold_host_memory(object)?;
        let Some(hold) = held else {
            flight.execute(self.driver.as_ref())?;
            return Ok(());
        };
        let watched = match self.watch_named_file(flight) {
            Ok(watched) => watched,
            Err(error) => {
                lock(&self.objects.accounts).release(hold);
                return Err(AllocAbort::End(errno(error)));
            }
        };
        let status = flight.execute(self.driver.as_ref());
        self.settle(hold, watched, status.as_ref().is_ok_and(|status| status.is_ok()));
        status?;
        Ok(())
    }

    fn watch_named_file(&self, flight: &InFlightCall<'_>) -> io::Result<Watched> {
        // Every layout of the call names one.
        let field = flight.files.first().ok_or(io::ErrorKind::InvalidInput)?;
        let number = self.host_mappings.next.fetch_add(1, Ordering::Relaxed);
        self.host_mappings.watch.watch(&field.file, number)
    }

    fn settle(&self, hold: Hold, watched: Watched, is_mapped: bool) {
        if is_mapped {
            lock(&self.objects.accounts).host_memory_mapped(hold, MappedFile(watched.number));
        } else {
            self.host_mappings.watch.cancel(watched);
            lock(&self.objects.accounts).release(hold);
        }
    }

    /// The container has ended: says what of the host's memory others keep by files that they have
    /// of it. Nobody is to wait for them.
    pub(crate) fn log_left_host_mappings(&self) {
        self.drop_gone_host_mappings();
        let accounts = lock(&self.objects.accounts);
        if accounts.has_freed_while_mapped()
            && let Ok(left) = accounts.card(Card::HOST)
        {
            tracing::warn!(
                bytes = left.used.0,
                "memory of the host's that the driver made for the container stays until somebody else closes a file"
            );
        }
    }

    /// Lets go of what is charged only for files that are gone.
    pub(crate) fn drop_gone_host_mappings(&self) {
        // Those that are watched already: one that comes meanwhile is not in question.
        let known = lock(&self.objects.accounts).mapped_files();
        if known.is_empty() {
            return;
        }
        match self.host_mappings.watch.living() {
            Ok(living) => {
                let mut accounts = lock(&self.objects.accounts);
                for file in known.into_iter().filter(|file| !living.contains(&file.0)) {
                    accounts.mapped_file_gone(file);
                }
            }
            // What cannot be said to be gone stays charged.
            Err(error) => tracing::warn!(%error, "it cannot be told which mappings of the host's memory are gone"),
        }
    }
}
