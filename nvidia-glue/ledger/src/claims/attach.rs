//! Attaching: containers of a pod that use a claim's requests.

use std::path::PathBuf;

use super::ClaimContainer;
use crate::{
    AttachError, ContainerKey, GrantState, Ledger, ProcessId, Record, ReleaseError, StoreError,
    bind::{check_cgroups, strings},
    claim::merged,
    decision_log::{DecisionLog, Event, Line},
    index::Index,
    liveness::Population,
    store::Locked,
};

/// A container that is to use requests of claims.
#[derive(Debug, Clone, Copy)]
pub struct Attachment<'a> {
    /// The records' keys, see [`super::claim_key`]; at least one.
    pub requests: &'a [ContainerKey],
    /// Uid of its pod, as containerd has it.
    pub pod_uid: &'a str,
    /// Namespace of its pod likewise.
    pub pod_namespace: &'a str,
    pub container: &'a ContainerKey,
    /// Its name in the pod.
    pub name: &'a str,
    /// The shim that answers for it.
    pub shim: ProcessId,
    /// As [`crate::Admission::creators`].
    pub creators: &'a [ProcessId],
    /// As [`crate::Admission::cgroups`].
    pub cgroups: &'a [PathBuf],
}

impl Ledger {
    /// Notes that a container is about to use requests of claims. Returns what it has, as one
    /// record: the first request's, with the cards of all.
    ///
    /// # Errors
    /// [`AttachError`]; nothing of the container is in the ledger then.
    pub fn attach(&self, attachment: &Attachment<'_>, log: &DecisionLog) -> Result<Record, AttachError> {
        let container = || Box::new(attachment.container.clone());
        let failed = |source| AttachError::Store { container: container(), source };
        let in_use = |cgroup: &&PathBuf| self.node.population(cgroup) == Population::Processes;
        let bad = match check_cgroups(attachment.cgroups) {
            Err(bad) => Some(bad),
            Ok(()) => attachment.cgroups.iter().find(in_use).map(|cgroup| {
                (cgroup.clone(), "there are processes in it already; a container with a GPU needs a cgroup of its own")
            }),
        };
        if let Some((cgroup, problem)) = bad {
            return Err(AttachError::Cgroup { container: container(), cgroup, problem });
        }
        let locked = self.store.lock_with(log).map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        let mut records = Vec::new();
        for request in attachment.requests {
            records.push(self.usable(&locked, &mut index, attachment, request)?);
        }
        check_same_set(&records, attachment)?;
        self.regroup(&locked, &mut index, &mut records)
            .map_err(failed)?
            .map_err(|refusal| AttachError::Gang { container: container(), source: Box::new(refusal) })?;
        // The last container took them with it.
        if let Some(combined) = combined(&records) {
            locked.make_grant_files(&combined.grant_id).map_err(failed)?;
            locked.make_grant_files(combined.schedule_id()).map_err(failed)?;
        }
        for record in &mut records {
            attachment.add_to(record, self.store.pid_namespace());
            self.replace(&locked, &mut index, record).map_err(failed)?;
        }
        let combined = combined(&records).ok_or_else(|| AttachError::NoRequest { container: container() })?;
        let names: Vec<String> = records.iter().map(|record| record.container.id.clone()).collect();
        locked.log([Line::new(Event::Attach, attachment.container)
            .field("requests", names.join(" "))
            .field("grant", combined.schedule_id())]);
        Ok(combined)
    }

    /// The record of a request that the container may use.
    fn usable(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        attachment: &Attachment<'_>,
        request: &ContainerKey,
    ) -> Result<Record, AttachError> {
        let container = || Box::new(attachment.container.clone());
        let failed = |source| AttachError::Store { container: container(), source };
        let none = || AttachError::NotPrepared { container: container(), request: request.id.clone() };
        let mut record = self.store.find_record(request).map_err(failed)?.ok_or_else(none)?;
        let grant = record.claim.as_ref().ok_or_else(none)?;
        let claim = &grant.claim;
        if claim.pod.uid != attachment.pod_uid || claim.namespace != attachment.pod_namespace {
            return Err(AttachError::OtherPod { container: container(), claim: claim.name.clone() });
        }
        let is_own = grant.containers.iter().any(|user| user.key == *attachment.container);
        if !grant.containers.is_empty() && (record.shim != attachment.shim || is_own) {
            // An earlier shim of the pod's, or an earlier container of that name.
            self.reclaim_one(locked, index, &record).map_err(failed)?;
            record = self.store.find_record(request).map_err(failed)?.ok_or_else(none)?;
            if record.state != GrantState::Prepared {
                return Err(AttachError::InUse { container: container(), shim_pid: record.shim.pid });
            }
        }
        // The next mediator would begin without what the killed one holds.
        let is_killed = record.mediator.is_some_and(|mediator| !self.node.is_alive(mediator));
        if is_killed && self.check_freed(attachment.container, &record).is_err() {
            let grant = record.schedule_id().to_owned();
            return Err(AttachError::NotFreed { container: container(), grant });
        }
        Ok(record)
    }

    /// Notes that a container that was attached exists, as [`Ledger::bind`].
    ///
    /// # Errors
    /// When a record is gone or cannot be written.
    pub fn bind_attached(
        &self,
        requests: &[ContainerKey],
        container: &ContainerKey,
        init: ProcessId,
        mediator: Option<ProcessId>,
        cgroups: &[PathBuf],
    ) -> Result<(), AttachError> {
        let failed = |source| AttachError::Store { container: Box::new(container.clone()), source };
        let changed = self.change_attached(requests, container, |record, own| {
            own.init = Some(init);
            own.cgroups = strings(cgroups);
            record.mediator = mediator;
        });
        match changed.map_err(failed)? {
            true => Ok(()),
            false => Err(AttachError::NoRequest { container: Box::new(container.clone()) }),
        }
    }

    /// Notes that the init of an attached container was asked to end. What others wait for is
    /// leaving when all containers are that use it.
    ///
    /// # Errors
    /// When a record cannot be read or written.
    pub fn set_attached_leaving(
        &self,
        requests: &[ContainerKey],
        container: &ContainerKey,
        init: ProcessId,
    ) -> Result<(), StoreError> {
        let changed = self.change_attached(requests, container, |record, own| {
            if own.init == Some(init) && !own.leaving {
                own.leaving = true;
                // The last one's counts.
                record.leaving_since_us = Some(self.node.now_us());
            }
        });
        changed.map(drop)
    }

    /// Changes what the records say of a container. Returns whether all of them name it.
    fn change_attached(
        &self,
        requests: &[ContainerKey],
        container: &ContainerKey,
        change: impl Fn(&mut Record, &mut ClaimContainer),
    ) -> Result<bool, StoreError> {
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        let mut found = 0;
        for request in requests {
            let Some(mut record) = self.store.find_record(request)? else { continue };
            let Some(position) = record.position(container) else { continue };
            let Some(mut own) = record.claim.as_ref().and_then(|grant| grant.containers.get(position)).cloned() else {
                continue;
            };
            change(&mut record, &mut own);
            if let Some(place) = record.claim.as_mut().and_then(|grant| grant.containers.get_mut(position)) {
                *place = own;
            }
            record.follow_containers();
            self.replace(&locked, &mut index, &record)?;
            found += 1;
        }
        Ok(found == requests.len() && found > 0)
    }

    /// Requests that a container uses, as the records say. One with a grant of its own uses none,
    /// so that no record of others needs to be readable.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn requests_of(&self, container: &ContainerKey) -> Result<Vec<ContainerKey>, StoreError> {
        if self.record(container)?.is_some() {
            return Ok(Vec::new());
        }
        let uses = |record: &Record| record.position(container).is_some();
        Ok(self.claims()?.into_iter().filter(uses).map(|record| record.container).collect())
    }

    /// Returns whether the records of all these requests name the container. Reads no other: one
    /// that is damaged says nothing of this container, and a list of all may lack one that is
    /// replaced meanwhile (`readdir` promises nothing of such).
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn is_attached(&self, requests: &[ContainerKey], container: &ContainerKey) -> Result<bool, StoreError> {
        for request in requests {
            if self.store.find_record(request)?.is_none_or(|record| record.position(container).is_none()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether the container is the last one that uses its requests, and their mediator
    /// lives. `false` where that cannot be read.
    pub fn is_last_and_mediated(&self, requests: &[ContainerKey], container: &ContainerKey) -> bool {
        let record = requests.first().and_then(|request| self.record(request).ok().flatten());
        record.is_some_and(|record| {
            let users = record.claim.as_ref().map_or(0, |grant| grant.containers.len());
            let is_user = record.position(container).is_some();
            users == 1 && is_user && record.mediator.is_some_and(|mediator| self.node.is_alive(mediator))
        })
    }

    /// Notes that a container no longer uses requests of claims. Does nothing the second time.
    ///
    /// # Errors
    /// As [`Ledger::release`]: while processes of it live, or, if it was the last one, the
    /// mediator.
    pub fn detach(
        &self,
        requests: &[ContainerKey],
        container: &ContainerKey,
        log: &DecisionLog,
    ) -> Result<(), ReleaseError> {
        let failed = |source| ReleaseError::Store { container: Box::new(container.clone()), source };
        let locked = self.store.lock_with(log).map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        for request in requests {
            let Some(mut record) = self.store.find_record(request).map_err(failed)? else { continue };
            let Some(position) = record.position(container) else { continue };
            let Some(grant) = &mut record.claim else { continue };
            let own = grant.containers.remove(position);
            self.check_empty(container, &own.cgroups)?;
            let is_last = grant.containers.is_empty();
            if is_last {
                self.check_unmediated(container, record.mediator)?;
                self.check_freed(container, &record)?;
            }
            record.follow_containers();
            if record.state == GrantState::Prepared {
                self.remove_files(record.schedule_id());
            }
            self.replace(&locked, &mut index, &record).map_err(failed)?;
            locked.log([Line::new(Event::Detach, container).field("request", &record.container.id)]);
        }
        Ok(())
    }
}

impl Attachment<'_> {
    fn add_to(&self, record: &mut Record, pid_namespace: u64) {
        record.shim = self.shim;
        record.pid_namespace = pid_namespace;
        record.creators = self.creators.to_vec();
        if let Some(grant) = &mut record.claim {
            grant.containers.push(ClaimContainer {
                key: self.container.clone(),
                name: self.name.to_owned(),
                cgroups: strings(self.cgroups),
                init: None,
                leaving: false,
            });
        }
        record.follow_containers();
    }
}

impl Record {
    fn position(&self, container: &ContainerKey) -> Option<usize> {
        self.claim.as_ref()?.containers.iter().position(|user| user.key == *container)
    }
}

/// Containers that share a request share one mediator, and so all requests.
fn check_same_set(records: &[Record], attachment: &Attachment<'_>) -> Result<(), AttachError> {
    let mut users = records.iter().filter_map(|record| record.claim.as_ref()).map(|grant| {
        let mut names: Vec<&str> = grant.containers.iter().map(|user| user.name.as_str()).collect();
        names.sort_unstable();
        (&grant.gang, names)
    });
    let (Some(first), gang) = (users.next(), records.len() > 1) else { return Ok(()) };
    let is_used = !first.1.is_empty();
    let is_same = users.all(|other| other.1 == first.1 && (!is_used || other.0 == first.0));
    if is_same && (!is_used || gang == first.0.is_some()) {
        return Ok(());
    }
    let other = records
        .iter()
        .filter_map(|record| record.claim.as_ref())
        .find_map(|grant| grant.containers.first())
        .map_or_else(String::new, |user| user.name.clone());
    Err(AttachError::OtherRequests { container: Box::new(attachment.container.clone()), other })
}

/// The records as one, of the first in the ledger.
fn combined(records: &[Record]) -> Option<Record> {
    let leader = records.iter().min_by_key(|record| record.order)?;
    let cards = merged(records.iter().flat_map(|record| &record.cards));
    Some(Record { cards: cards.into_iter().map(std::borrow::Cow::into_owned).collect(), ..leader.clone() })
}
