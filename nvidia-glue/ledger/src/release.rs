//! Giving a grant back.

use std::{error::Error, path::PathBuf};

use base::grant_files;

use super::{
    ContainerKey, Ledger, ProcessId, Record, ReleaseError, StoreError,
    index::Index,
    liveness::Population,
    store::{GivenBack, Locked},
};
use crate::decision_log::DecisionLog;

/// Reason for which a grant is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The container has ended and was deleted.
    Ended,
    /// Its create failed after it had been admitted: what was reserved is rolled back.
    CreateFailed,
}

impl Ledger {
    /// Gives a container's grant back. `None` when there is none: a second release does nothing.
    ///
    /// # Errors
    /// [`ReleaseError::StillRunning`] while there are processes in its cgroups,
    /// [`ReleaseError::StillMediated`] while its mediator, which is killed, lives: the grant stays
    /// and is reclaimed after they and the shim have ended; [`ReleaseError::NotFreed`] when that
    /// was killed before it had freed all; [`ReleaseError::CannotTell`] where that is not known.
    /// Or when the record cannot be read or removed; a full disk is no obstacle.
    pub fn release(
        &self,
        container: &ContainerKey,
        reason: ReleaseReason,
        log: &DecisionLog,
    ) -> Result<Option<Record>, ReleaseError> {
        let failed = |source| ReleaseError::Store { container: Box::new(container.clone()), source };
        let locked = self.store.lock_with(log).map_err(failed)?;
        let Some(record) = self.store.find_record(container).map_err(failed)? else {
            // It was reclaimed, and a worker that was about to end may have made files after that.
            if let Ok(records) = self.store.records() {
                locked.remove_stale_files(&records);
            }
            return Ok(None);
        };
        self.check_empty(container, &record.cgroups)?;
        self.check_unmediated(container, record.mediator)?;
        self.check_freed(container, &record)?;
        let how = match reason {
            ReleaseReason::Ended => GivenBack::Released,
            ReleaseReason::CreateFailed => GivenBack::RolledBack,
        };
        self.remove(&locked, &record, how).map_err(failed)?;
        Ok(Some(record))
    }

    /// Checks that no process of a container lives.
    pub(super) fn check_empty(&self, container: &ContainerKey, cgroups: &[String]) -> Result<(), ReleaseError> {
        for cgroup in cgroups {
            let (container, cgroup) = (|| Box::new(container.clone()), PathBuf::from(cgroup));
            match self.node.population(&cgroup) {
                Population::Empty => {}
                Population::Processes => return Err(ReleaseError::StillRunning { container: container(), cgroup }),
                Population::Unknown => return Err(ReleaseError::CannotTell { container: container(), cgroup }),
            }
        }
        Ok(())
    }

    /// Checks that no mediator lives; kills the one that does.
    pub(super) fn check_unmediated(
        &self,
        container: &ContainerKey,
        mediator: Option<ProcessId>,
    ) -> Result<(), ReleaseError> {
        let Some(mediator) = mediator.filter(|mediator| self.node.is_alive(*mediator)) else { return Ok(()) };
        // Its container is gone, and so is what it is there for.
        self.node.kill(mediator);
        Err(ReleaseError::StillMediated { container: Box::new(container.clone()), pid: mediator.pid })
    }

    /// Removes the files that were made on the host for a grant: before its record, so that
    /// somebody knows of them as long as there are any. Files that cannot be removed are no reason
    /// to keep the grant. Returns whether none is left; if some are, the index is to be left
    /// absent: whoever makes it anew tries again.
    pub(super) fn remove_files(&self, grant_id: &str) -> bool {
        let removed = || {
            grant_files::remove_files(self.store.state_dir(), grant_id)
                .inspect_err(|error| tracing::warn!(error = error as &dyn Error, "files of a grant are left"))
        };
        self.store.step(false).is_ok() && removed().is_ok()
    }

    /// Checks that the mediator that has ended has freed what it had, or that somebody has seen
    /// since that it is gone.
    pub(super) fn check_freed(&self, container: &ContainerKey, record: &Record) -> Result<(), ReleaseError> {
        let grant = record.schedule_id();
        if record.mediator.is_none() || !grant_files::may_be_held(self.store.state_dir(), grant) {
            return Ok(());
        }
        Err(ReleaseError::NotFreed { container: Box::new(container.clone()), grant: grant.to_owned() })
    }

    /// Removes a record, and brings the index and the timetables up to date as far as possible.
    pub(super) fn remove(&self, locked: &Locked<'_>, record: &Record, how: GivenBack) -> Result<(), StoreError> {
        let mut index = match self.open_index(locked) {
            Ok(index) => Some(index),
            // Another container's file is no reason to keep this one's grant. The others keep their
            // windows, and whoever understands all files makes index and timetables anew.
            Err(error) if error.is_not_understood() => {
                tracing::warn!(
                    error = &error as &dyn Error,
                    "a grant is given back beside a file that is not understood"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Index::forget(locked)?;
        let is_clean = self.remove_files(&record.grant_id);
        locked.give_back(record, how)?;
        let Some(index) = &mut index else { return Ok(()) };
        match index.remove(locked, record) {
            Ok(()) => {
                self.refresh_timetables(locked, index, record.uuids());
                if !is_clean {
                    index.leave_absent();
                }
                index.save(locked);
            }
            Err(error) => tracing::warn!(error = &error as &dyn Error, "the ledger's index is not written down"),
        }
        Ok(())
    }
}
