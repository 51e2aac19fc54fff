//! Waiting for room: who may, who does, and who goes first.
//!
//! A container that finds no room waits for it where that is of use: where it would fit once those
//! have ended that are *leaving*, or, if the node's administrator wants that, once anybody has. No
//! lock is held meanwhile. Who waits is written down, in the order of coming, for all shims of the
//! node to see; what a dead shim has written is void.
//!
//! Whoever would be admitted while others have waited longer is admitted only if none of them loses
//! by it: each that would fit, in its turn, once those have ended that are leaving, must still do
//! so. Who waits for somebody that stays keeps nobody from what is free.

use std::{
    fs,
    io::ErrorKind,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use base::format::{self, WrittenFormat};
use jiff::Timestamp;
use runtime_config::request::GpuRequest;
use serde::{Deserialize, Serialize};

use super::{Admission, reserve::forecast};
use crate::{
    AdmitError, AdmitErrorKind, CardGrant, ContainerKey, ContainerName, Crowd, GrantState, Ledger, ProcessId, Record,
    StoreError,
    crowd::{MAX_WAITERS, MAX_WAITERS_OF_OWNER},
    formats::{RECORD, WAITER},
    index::Index,
    select::{self, Plan},
    store::{Locked, Store, failed, stamp},
};

/// Interval at which a waiter checks whether any grant or the queue has changed.
const LOOK: Duration = Duration::from_millis(20);
/// Interval at which it tries to be admitted where nothing has: an orphan ends, and no record says
/// so.
const RETRY: Duration = Duration::from_millis(200);

/// Time for which a container that was asked to end counts as leaving: the 30 s that Kubernetes
/// grants by default, and its end. One that goes on living keeps no room from others.
const LEAVING_LIMIT_US: u64 = 40_000_000;

/// Limit on an admission's wait for room.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// At the most; zero: it does not.
    pub most: Duration,
    /// For whoever is in the way; else only for those that are leaving.
    pub any_tenant: bool,
    /// Set by whoever wants the wait to end.
    pub ended: &'a AtomicBool,
}

impl Patience<'_> {
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// A container that waits for room. A file of its own in `waiting/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    /// Oldest format whose readers may act on it.
    version: u32,
    /// Format in which it was written.
    #[serde(default = "format::first")]
    format: u32,
    /// The container that waits.
    pub container: ContainerKey,
    /// See [`Record::pid_namespace`].
    pid_namespace: u64,
    /// The shim in which it waits.
    pub shim: ProcessId,
    /// The order of coming.
    pub order: u64,
    pub request: GpuRequest,
    /// Since when, RFC 3339.
    pub since: String,
    /// Until when at the most, microseconds of `CLOCK_MONOTONIC`.
    until_us: u64,
}

fn crowd(waiters: &[Waiter], name: ContainerName<'_>) -> Option<Crowd> {
    let of_owner = waiters.iter().filter(|waiter| ContainerName::from(*waiter).owner() == name.owner()).count();
    match () {
        () if waiters.len() >= MAX_WAITERS => Some(Crowd::Node),
        () if of_owner >= MAX_WAITERS_OF_OWNER => Some(Crowd::Owner),
        () => None,
    }
}

/// A place among those who wait; given up when dropped.
#[derive(Debug)]
pub(super) struct QueuePlace<'a> {
    store: &'a Store,
    path: PathBuf,
    order: u64,
    began_us: u64,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        // What cannot be removed is void after the time that it names.
        if let Err(error) = self.store.remove(&self.path) {
            tracing::warn!(error = &error as &dyn std::error::Error, "a container is shown as waiting, and is not");
        }
    }
}

/// One admission's wait.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    ledger: &'a Ledger,
    patience: Patience<'a>,
    place: Option<QueuePlace<'a>>,
    /// As of the last check of the ledger.
    stamps: Option<[(i64, i64); 2]>,
}

impl<'a> Wait<'a> {
    pub(super) fn new(ledger: &'a Ledger, patience: Patience<'a>) -> Self {
        Self { ledger, patience, place: None, stamps: None }
    }

    /// Its order among those who wait; `None` while it does not.
    pub(super) fn order(&self) -> Option<u64> {
        self.place.as_ref().map(|place| place.order)
    }

    /// Time since it began; zero before that.
    pub(super) fn waited(&self) -> Duration {
        let waited_us = |place: &QueuePlace<'_>| self.ledger.node.now_us().saturating_sub(place.began_us);
        Duration::from_micros(self.place.as_ref().map_or(0, waited_us))
    }

    /// Returns whether somebody has ended the wait.
    pub(super) fn is_ended(&self) -> bool {
        self.place.is_some() && self.patience.is_ended()
    }

    /// Returns whether it is worth while to wait (further): the time is not over, and those whom it
    /// waits for are all that is in the way.
    pub(super) fn is_of_use(
        &self,
        locked: &Locked<'_>,
        admission: &Admission<'_>,
        plan: &Plan,
    ) -> Result<bool, StoreError> {
        if self.waited() >= self.patience.most || self.patience.is_ended() {
            return Ok(false);
        }
        let mut rest = Vec::new();
        if !self.patience.any_tenant {
            rest = self.ledger.store.records()?;
            rest.retain(|record| !self.ledger.is_leaving(record));
        }
        Ok(fits(locked, &mut Index::of(locked, &rest), admission, plan)?.is_some())
    }

    /// Reason for which the wait may not begin: so many containers wait already.
    pub(super) fn crowd(&self, locked: &Locked<'_>, name: ContainerName<'_>) -> Result<Option<Crowd>, StoreError> {
        if self.place.is_some() {
            return Ok(None);
        }
        Ok(crowd(&self.ledger.waiters(locked)?, name))
    }

    /// Joins the queue, if it has not yet. Returns whether it just has.
    pub(super) fn begin(&mut self, locked: &Locked<'_>, admission: &Admission<'_>) -> Result<bool, StoreError> {
        let is_new = self.place.is_none();
        if is_new {
            let store = &self.ledger.store;
            let last = self.ledger.waiters(locked)?.last().map_or(0, |waiter| waiter.order + 1);
            // Who is behind another has begun later, too.
            let began_us = self.ledger.node.now_us();
            let most_us = u64::try_from(self.patience.most.as_micros()).unwrap_or(u64::MAX);
            let waiter = Waiter {
                version: WAITER.version,
                format: WAITER.number,
                container: admission.container.clone(),
                pid_namespace: store.pid_namespace(),
                shim: admission.shim,
                order: last,
                request: admission.request.clone(),
                since: Timestamp::now().to_string(),
                until_us: began_us.saturating_add(most_us),
            };
            // The same container's earlier shim may not have taken its own away yet.
            let name = format!("{}-{}", admission.shim.pid, store.record_name(admission.container));
            let place = QueuePlace { store, path: store.waiting_dir().join(name), order: last, began_us };
            let bytes = format::to_vec_pretty(&waiter);
            let bytes = bytes.map_err(|error| failed("write", &place.path)(error.into()))?;
            // Where the next one removes what is not understood.
            locked.replace(&place.path, &store.waiting_dir().join("new.tmp"), &bytes)?;
            self.place = Some(place);
        }
        self.stamps = self.ledger.stamps();
        Ok(is_new)
    }

    /// Sleeps until the wait may be over, or for a while.
    pub(super) fn pause(&self) {
        let begin = Instant::now();
        let while_it_lasts = RETRY.min(self.patience.most.saturating_sub(self.waited()));
        while begin.elapsed() < while_it_lasts && !self.patience.is_ended() && self.ledger.stamps() == self.stamps {
            thread::sleep(LOOK);
        }
    }
}

impl Ledger {
    /// Containers that wait for room, in the order of their arrival. Takes no lock; the list may be
    /// a moment old.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn waiting(&self) -> Result<Vec<Waiter>, StoreError> {
        self.read_waiters(|_| Ok(()))
    }

    /// Containers that wait for room, after a removal of what dead shims and earlier boots have
    /// left.
    fn waiters(&self, _: &Locked<'_>) -> Result<Vec<Waiter>, StoreError> {
        self.read_waiters(|name| self.store.remove(&self.store.waiting_dir().join(name)))
    }

    fn read_waiters(&self, remove: impl Fn(&str) -> Result<(), StoreError>) -> Result<Vec<Waiter>, StoreError> {
        let directory = self.store.waiting_dir();
        let mut waiters = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let entry = entry.map_err(failed("list", &directory))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let bytes = match fs::read(entry.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                read => read.map_err(failed("read", &entry.path()))?,
            };
            // Another version's place counts with that version alone, and is its to remove.
            let is_foreign = |written| WAITER.check_reads(written).is_err() && self.store.is_of_this_boot(&name);
            if serde_json::from_slice(&bytes).is_ok_and(is_foreign) {
                continue;
            }
            // One that is not understood is nobody's place.
            let waiter = serde_json::from_slice::<Waiter>(&bytes).ok();
            match waiter.filter(|_| self.store.is_of_this_boot(&name)) {
                Some(waiter) if self.is_there(waiter.pid_namespace, waiter.shim) => waiters.push(waiter),
                _ => remove(&name)?,
            }
        }
        waiters.retain(|waiter| self.node.now_us() <= waiter.until_us);
        waiters.sort_by_key(|waiter| waiter.order);
        Ok(waiters)
    }

    /// Returns whether a process lives, as far as is known.
    fn is_there(&self, pid_namespace: u64, process: ProcessId) -> bool {
        pid_namespace != self.store.pid_namespace() || self.node.is_alive(process)
    }

    /// Returns whether a container is about to end: its init was asked to not long ago, or has, or
    /// its shim has.
    fn is_leaving(&self, record: &Record) -> bool {
        let has_ended = |process| !self.is_there(record.pid_namespace, process);
        let is_recent = |since_us| self.node.now_us().saturating_sub(since_us) < LEAVING_LIMIT_US;
        let was_asked = record.leaving && record.leaving_since_us.is_none_or(is_recent);
        if record.state == GrantState::Prepared {
            return was_asked;
        }
        was_asked || has_ended(record.shim) || record.init.is_some_and(has_ended)
    }

    /// Notes that a container's `init` was asked to end. Nothing happens without a grant, or where
    /// that is the next container's of the name.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn set_leaving(&self, container: &ContainerKey, init: ProcessId) -> Result<(), StoreError> {
        let stays = |record: &Record| record.init == Some(init) && !record.leaving;
        // Mostly it is said more than once.
        if !self.store.find_record(container)?.as_ref().is_some_and(stays) {
            return Ok(());
        }
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        match self.store.find_record(container)? {
            Some(record) if stays(&record) => {
                let leaving_since_us = Some(self.node.now_us());
                self.replace(&locked, &mut index, &Record { leaving: true, leaving_since_us, ..record })
            }
            _ => Ok(()),
        }
    }

    fn stamps(&self) -> Option<[(i64, i64); 2]> {
        Some([stamp(&self.store.records_dir()).ok()?, stamp(&self.store.waiting_dir()).ok()?])
    }

    /// Waiters that have waited longer than a newcomer, or than the waiter `waits_as`.
    pub(super) fn ahead(
        &self,
        locked: &Locked<'_>,
        admission: &Admission<'_>,
        waits_as: Option<u64>,
    ) -> Result<EarlierWaiters, StoreError> {
        let mut waiters = self.waiters(locked)?;
        let is_other = |waiter: &Waiter| waiter.container != *admission.container;
        let name = ContainerName::from(admission);
        // Who cannot wait, as so many do, leaves the room to others' alone.
        let is_crowded_out = waits_as.is_none() && crowd(&waiters, name).is_some();
        let comes_first = |waiter: &Waiter| match waits_as {
            Some(order) => waiter.order < order,
            None => !is_crowded_out || ContainerName::from(waiter).owner() != name.owner(),
        };
        waiters.retain(|waiter| is_other(waiter) && comes_first(waiter));
        if waiters.is_empty() {
            return Ok(EarlierWaiters::default());
        }
        let mut staying = self.store.records()?;
        waiters.retain(|waiter| staying.iter().all(|record| record.container != waiter.container));
        staying.retain(|record| !self.is_leaving(record));
        let mut index = Index::of(locked, &staying);
        let mut ahead = EarlierWaiters { staying, waiters: Vec::new() };
        for waiter in waiters {
            let Ok(plan) = select::plan(admission.inventory, &waiter.request) else { continue };
            let its = waiter.admission(admission);
            if let Some(grants) = fits(locked, &mut index, &its, &plan)? {
                index.add_hypothetical(hypothetical_record(locked, &its, grants));
                ahead.waiters.push((waiter, plan));
            }
        }
        Ok(ahead)
    }
}

/// Waiters that came before another, as far as they fit, one after the other, beside all that stay.
#[derive(Debug, Default)]
pub(super) struct EarlierWaiters {
    staying: Vec<Record>,
    waiters: Vec<(Waiter, Plan)>,
}

impl EarlierWaiters {
    /// First waiter that no longer fits once `newcomer` has `grants`.
    pub(super) fn first_displaced(
        &self,
        locked: &Locked<'_>,
        newcomer: &Admission<'_>,
        grants: &[CardGrant],
    ) -> Result<Option<ContainerName<'_>>, StoreError> {
        if self.waiters.is_empty() {
            return Ok(None);
        }
        let mut index = Index::of(locked, &self.staying);
        index.add_hypothetical(hypothetical_record(locked, newcomer, grants.to_vec()));
        for (waiter, plan) in &self.waiters {
            let its = waiter.admission(newcomer);
            match fits(locked, &mut index, &its, plan)? {
                Some(grants) => index.add_hypothetical(hypothetical_record(locked, &its, grants)),
                None => return Ok(Some(waiter.into())),
            }
        }
        Ok(None)
    }
}

impl<'a> From<&'a Waiter> for ContainerName<'a> {
    fn from(waiter: &'a Waiter) -> Self {
        Self { key: &waiter.container, pod: waiter.request.pod.as_ref() }
    }
}

impl Waiter {
    /// Admission that the waiter asks for, on the node of `other`.
    fn admission<'a>(&'a self, other: &Admission<'a>) -> Admission<'a> {
        Admission { request: &self.request, container: &self.container, claim: None, ..*other }
    }
}

/// The record that would come of an admission.
pub(super) fn hypothetical_record(locked: &Locked<'_>, admission: &Admission<'_>, cards: Vec<CardGrant>) -> Record {
    let WrittenFormat { version, format } = RECORD.written();
    Record {
        version,
        format,
        egpu_version: Some(admission.egpu_version.to_owned()),
        boot_id: locked.store().boot_id().to_owned(),
        grant_id: locked.store().record_name(admission.container),
        container: admission.container.clone(),
        state: GrantState::Pending,
        pid_namespace: locked.store().pid_namespace(),
        shim: admission.shim,
        creators: Vec::new(),
        init: None,
        mediator: None,
        cgroups: Vec::new(),
        order: 0,
        priority: None,
        present: false,
        leaving: false,
        leaving_since_us: None,
        claim: None,
        request: admission.request.clone(),
        exclusive: false,
        cards,
        admitted_at: String::new(),
    }
}

/// Grants that the request would get beside those in `index`; `None`: it does not fit.
fn fits(
    locked: &Locked<'_>,
    index: &mut Index,
    admission: &Admission<'_>,
    plan: &Plan,
) -> Result<Option<Vec<CardGrant>>, StoreError> {
    match forecast(locked, index, admission, plan) {
        Ok(grants) => Ok(Some(grants)),
        Err(AdmitError::Store { source, .. }) => Err(source),
        Err(error) => {
            debug_assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
            Ok(None)
        }
    }
}
