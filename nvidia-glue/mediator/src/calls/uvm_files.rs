//! UVM files: which of them a call is made on, and one call after the other.

use account::UvmFile;
use base::Pid;
use driver::{DeviceFile, Holder};

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall, errno},
    locks::lock,
    objects::named_locks::LockName,
};

impl Session {
    /// The number of the file that a call is made on.
    pub(super) fn uvm_file(&self, flight: &InFlightCall<'_>) -> Result<UvmFile, CallEnd> {
        self.known_uvm_file(&flight.file, flight.pid)
    }

    /// The number of a UVM file. If there are too many, those that nobody has any more are looked
    /// for first.
    pub(super) fn known_uvm_file(&self, file: &DeviceFile, pid: Pid) -> Result<UvmFile, CallEnd> {
        let known = lock(&self.objects.files).uvm(file, pid);
        match known {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                self.drop_unheld_uvm_files(|_| true);
                lock(&self.objects.files).uvm(file, pid).map_err(errno)
            }
            known => known.map_err(errno),
        }
    }

    /// The files that a call names. Not while anything is locked: the caller's descriptors may be a
    /// while in coming.
    pub(super) fn duplicate_named(&self, flight: &mut InFlightCall<'_>) -> Result<(), CallEnd> {
        flight.duplicate_files(self.driver.as_ref(), Holder::Args, flight.row.descriptors())
    }

    /// Does `work` while nobody else works on the file, nor gives it up; then writes back what came
    /// of it.
    pub(super) fn in_order(
        &self,
        flight: &mut InFlightCall<'_>,
        file: UvmFile,
        work: impl FnOnce(&mut InFlightCall<'_>) -> Result<(), CallEnd>,
    ) -> Result<Answer, CallEnd> {
        self.in_order_with(flight, file, &[], work)
    }

    pub(super) fn in_order_with(
        &self,
        flight: &mut InFlightCall<'_>,
        file: UvmFile,
        also: &[LockName],
        work: impl FnOnce(&mut InFlightCall<'_>) -> Result<(), CallEnd>,
    ) -> Result<Answer, CallEnd> {
        self.while_it_lasts(file, also, || work(flight))?;
        flight.finish()
    }

    /// Does `work` while nobody else works on the file, nor gives it up.
    pub(super) fn while_it_lasts<T>(
        &self,
        file: UvmFile,
        also: &[LockName],
        work: impl FnOnce() -> Result<T, CallEnd>,
    ) -> Result<T, CallEnd> {
        let names: Vec<LockName> = also.iter().copied().chain([LockName::Uvm(file)]).collect();
        self.objects.locks.with(&names, || {
            // It was given up meanwhile: the process has closed it.
            let is_known = lock(&self.objects.files).knows_uvm(file);
            if is_known { work() } else { Err(CallEnd::Errno(libc::EBADF)) }
        })
    }
}
