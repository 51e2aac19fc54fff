//! Taking back the grants of shims that are gone. See [`super`] for the rule.

use std::{path::Path, sync::PoisonError};

use super::{
    ContainerKey, GrantState, Ledger, Record, StoreError,
    index::Index,
    liveness::Population,
    store::{GivenBack, Locked, orphan_line},
};
use crate::decision_log::{DecisionLog, Event};

/// Outcome of reclaiming one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReclaimOutcome {
    /// It stands: its shim lives, or that is unknown.
    Kept,
    /// Its shim is gone, its container has been killed and is not gone yet.
    Dying,
    /// It is no more.
    Freed,
}

impl ReclaimOutcome {
    pub(super) fn is_freed(self) -> bool {
        self == Self::Freed
    }
}

impl Ledger {
    /// Checks every grant, and takes back those whose shim and container are gone. Kills containers
    /// whose shim is gone; a second call takes their grants back once they have ended.
    ///
    /// Returns the containers whose grants were taken back.
    ///
    /// # Errors
    /// When the records cannot be read or removed.
    pub fn reclaim(&self, log: &DecisionLog) -> Result<Vec<ContainerKey>, StoreError> {
        let locked = self.store.lock_with(log)?;
        self.reclaim_all(&locked)
    }

    pub(super) fn reclaim_all(&self, locked: &Locked<'_>) -> Result<Vec<ContainerKey>, StoreError> {
        let mut index = self.open_index(locked)?;
        let mut freed = Vec::new();
        for record in self.store.records()? {
            if self.reclaim_one(locked, &mut index, &record)?.is_freed() {
                freed.push(record.container);
            }
        }
        Ok(freed)
    }

    /// Reclaims the grants on certain cards whose shims' pids are free. A shim whose pid is another
    /// process's by now is found by [`Ledger::reclaim_all`], where there is no room. Returns the
    /// number of grants that were taken back.
    pub(super) fn reclaim_cards(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        uuids: &[String],
    ) -> Result<usize, StoreError> {
        let mut orphans: Vec<ContainerKey> = Vec::new();
        // The containers of one pod have one shim.
        let mut alive = Vec::new();
        for uuid in uuids {
            for holding in index.holdings(locked, uuid)? {
                if alive.contains(&holding.shim) || orphans.contains(&holding.container) {
                    continue;
                }
                if holding.pid_namespace != self.store.pid_namespace() || self.node.has_pid(holding.shim) {
                    alive.push(holding.shim);
                } else {
                    orphans.push(holding.container.clone());
                }
            }
        }
        let mut freed = 0;
        for orphan in orphans {
            if let Some(record) = self.store.find_record(&orphan)?
                && self.reclaim_one(locked, index, &record)?.is_freed()
            {
                freed += 1;
            }
        }
        Ok(freed)
    }

    pub(super) fn reclaim_one(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        record: &Record,
    ) -> Result<ReclaimOutcome, StoreError> {
        let stays = record.state == GrantState::Prepared || record.pid_namespace != self.store.pid_namespace();
        if stays || self.node.is_alive(record.shim) {
            return Ok(ReclaimOutcome::Kept);
        }
        match self.end(record) {
            ReclaimOutcome::Freed => {}
            ReclaimOutcome::Dying => {
                self.log_once(locked, record, "its shim is gone; killed what it left running");
                return Ok(ReclaimOutcome::Dying);
            }
            ReclaimOutcome::Kept => {
                self.log_once(locked, record, "its shim is gone; kept: it cannot be told whether its cgroup is empty");
                return Ok(ReclaimOutcome::Kept);
            }
        }
        if self.check_freed(&record.container, record).is_err() {
            let kept = "its mediator was killed; kept until containerd's delete has seen that its memory is free";
            self.log_once(locked, record, kept);
            return Ok(ReclaimOutcome::Kept);
        }
        if record.claim.is_some() {
            let mut prepared = record.clone();
            prepared.detach_all();
            self.remove_files(record.schedule_id());
            self.replace(locked, index, &prepared)?;
            let line = orphan_line(Event::Reclaim, record);
            locked.log([line.field("action", "its containers and their shim are gone; the claim keeps it")]);
            return Ok(ReclaimOutcome::Kept);
        }
        index.begin_change(locked)?;
        let is_clean = self.remove_files(&record.grant_id);
        locked.give_back(record, GivenBack::Reclaimed)?;
        index.remove(locked, record)?;
        if !is_clean {
            index.leave_absent();
        }
        self.refresh_timetables(locked, index, record.uuids());
        index.save(locked);
        Ok(ReclaimOutcome::Freed)
    }

    /// A warning, once in this ledger's life: a process that does not die (in the driver, say) is
    /// looked at every few milliseconds.
    fn log_once(&self, locked: &Locked<'_>, record: &Record, action: &'static str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.insert((record.grant_id.clone(), action)) {
            let line = orphan_line(Event::Warn, record).field("action", action);
            locked.log([line.field("cgroups", record.cgroups.join(" "))]);
        }
    }

    /// Kills what is left of a container without a shim.
    fn end(&self, record: &Record) -> ReclaimOutcome {
        let mut fate = ReclaimOutcome::Freed;
        // First what could still add processes to the cgroup.
        for creator in &record.creators {
            if self.node.is_alive(*creator) {
                self.node.kill(*creator);
                fate = ReclaimOutcome::Dying;
            }
        }
        for cgroup in &record.cgroups {
            match self.node.population(Path::new(cgroup)) {
                Population::Empty => {}
                Population::Processes => {
                    self.node.kill_cgroup(Path::new(cgroup));
                    fate = ReclaimOutcome::Dying;
                }
                Population::Unknown if fate == ReclaimOutcome::Freed => fate = ReclaimOutcome::Kept,
                Population::Unknown => {}
            }
        }
        // One that left its cgroup is a container's process all the same.
        for init in record.inits().filter(|init| self.node.is_alive(*init)) {
            self.node.kill(init);
            fate = ReclaimOutcome::Dying;
        }
        // What the driver gave, the mediator has, which frees it and ends when the shim is gone.
        // Only one that does not is killed, once there is nobody else to wait for.
        if let Some(mediator) = record.mediator.filter(|mediator| self.node.is_alive(*mediator)) {
            if fate != ReclaimOutcome::Dying {
                self.node.kill(mediator);
            }
            fate = ReclaimOutcome::Dying;
        }
        fate
    }
}
