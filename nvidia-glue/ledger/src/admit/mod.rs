//! Admission: from a request to a record, or a refusal that leaves nothing behind.

mod reserve;
mod waiting;

use std::{
    fs,
    path::{Path, PathBuf},
};

use base::Bytes;
use cards::Inventory;
use jiff::Timestamp;
use runtime_config::request::GpuRequest;

use crate::{
    AdmitError, AdmitErrorKind, CardGrant, ContainerKey, ContainerName, GrantState, Ledger, Limits, ProcessId, Record,
    StoreError,
    bind::{check_cgroups, strings},
    claim::{Claim, ClaimGrant},
    decision_log::{DecisionLog, Event, Line, chain},
    formats::RECORD,
    grant_log::roll_back,
    index::Index,
    liveness::Population,
    select::{self, Plan},
    store::Locked,
};
use reserve::ReserveRequest;
pub use waiting::{Patience, Waiter};
use waiting::{Wait, hypothetical_record};

/// A container that asks to be admitted.
#[derive(Debug, Clone, Copy)]
pub struct Admission<'a> {
    /// The node's cards.
    pub inventory: &'a Inventory,
    pub request: &'a GpuRequest,
    /// The node's rules.
    pub limits: &'a Limits,
    pub container: &'a ContainerKey,
    /// The shim that answers for it.
    pub shim: ProcessId,
    /// Other processes that can bring it to life: the shim's helper.
    pub creators: &'a [ProcessId],
    /// The cgroup directories in which it is going to be created: one on v2, one a hierarchy on v1.
    /// They must be its own: what is found in them after the shim's death is killed.
    pub cgroups: &'a [PathBuf],
    /// Longest wait where there is no room.
    pub patience: Patience<'a>,
    /// Version of egpu that runs it, for people.
    pub egpu_version: &'a str,
    /// The claim and its request that is admitted, and no container.
    pub claim: Option<(&'a Claim, &'a str)>,
}

impl<'a> From<&'a Admission<'a>> for ContainerName<'a> {
    fn from(admission: &'a Admission<'a>) -> Self {
        Self { key: admission.container, pod: admission.request.pod.as_ref() }
    }
}

impl Ledger {
    /// Reserves what the request asks for and writes it down as a pending grant. The container may
    /// be created after that, and not before. Blocks for as long as there is no room and
    /// [`Admission::patience`] lasts.
    ///
    /// # Errors
    /// [`AdmitError`]; the ledger is then as it was.
    pub fn admit(&self, admission: &Admission<'_>, log: &DecisionLog) -> Result<Record, AdmitError> {
        let mut lines = vec![ask_line(admission)];
        let warning = |text| Line::new(Event::Warn, admission).field("warning", text);
        lines.extend(admission.request.warnings.iter().map(warning));
        let plan = match self.validate(admission) {
            Ok(plan) => plan,
            Err(error) => {
                lines.push(Line::new(Event::Invalid, admission).field("why", chain(&error)));
                lines.push(Line::destroyed(admission));
                log.write(&lines);
                return Err(error);
            }
        };
        self.admit_planned(admission, &plan, lines, log)
    }

    /// Checks everything that does not depend on other containers.
    fn validate(&self, admission: &Admission<'_>) -> Result<Plan, AdmitError> {
        let container = || Box::new(admission.container.clone());
        if admission.claim.is_none()
            && let Err((cgroup, problem)) = check_cgroups(admission.cgroups)
        {
            return Err(AdmitError::Cgroup { container: container(), cgroup, problem });
        }
        for cgroup in admission.cgroups {
            if self.node.population(cgroup) == Population::Processes {
                let problem = "there are processes in it already; a container with a GPU needs a cgroup of its own";
                return Err(AdmitError::Cgroup { container: container(), cgroup: cgroup.clone(), problem });
            }
        }
        select::plan(admission.inventory, admission.request)
            .map_err(|source| AdmitError::Invalid { container: container(), source })
    }

    fn admit_planned(
        &self,
        admission: &Admission<'_>,
        plan: &Plan,
        lines: Vec<Line>,
        log: &DecisionLog,
    ) -> Result<Record, AdmitError> {
        let mut attempt = Attempt::new(self, admission, plan, lines);
        loop {
            match attempt.try_once(log) {
                Ok(Some(record)) => return Ok(record),
                Ok(None) => attempt.wait.pause(),
                Err(error) => return Err(attempt.refused(error, log)),
            }
        }
    }

    /// Tries once, under one lock.
    fn attempt(
        &self,
        locked: &Locked<'_>,
        admission: &Admission<'_>,
        plan: &Plan,
        waits_as: Option<u64>,
        steps: &mut Vec<Line>,
    ) -> Result<Record, AdmitError> {
        let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
        let mut index = self.open_index(locked).map_err(failed)?;
        if let Some(earlier) = self.store.find_record(admission.container).map_err(failed)?
            && !self.reclaim_one(locked, &mut index, &earlier).map_err(failed)?.is_freed()
        {
            let container = Box::new(admission.container.clone());
            return Err(AdmitError::AlreadyAdmitted { container, shim_pid: earlier.shim.pid });
        }
        let ahead = self.ahead(locked, admission, waits_as).map_err(failed)?;
        let reserve_request = ReserveRequest { admission, plan, ahead: &ahead };
        let grants = self.reserve(locked, &mut index, &reserve_request, steps)?;
        let record = new_record(admission, grants, &index, locked).map_err(failed)?;
        let written = index
            .begin_change(locked)
            .and_then(|()| locked.make_grant_files(&record.grant_id))
            .and_then(|()| locked.write_record(&record));
        if let Err(error) = written {
            roll_back(&record.cards, admission.into(), steps);
            if !self.remove_files(&record.grant_id) {
                index.leave_absent();
            }
            index.save(locked);
            return Err(failed(error));
        }
        // A container whose turn is not written would not run.
        let scheduled =
            index.add(locked, &record).and_then(|()| self.write_timetables(locked, &mut index, record.uuids()));
        if let Err(error) = scheduled {
            roll_back(&record.cards, admission.into(), steps);
            self.remove_files(&record.grant_id);
            locked.remove_record(&self.store.record_name(admission.container)).map_err(failed)?;
            return Err(failed(error));
        }
        // From here on the grant stands. Whatever the index comes to lack is made up from the
        // record.
        index.save(locked);
        Ok(record)
    }
}

/// An admission under way: the first try, and those after each wait.
pub(super) struct Attempt<'a> {
    ledger: &'a Ledger,
    admission: &'a Admission<'a>,
    plan: &'a Plan,
    /// Lines that are not logged yet.
    lines: Vec<Line>,
    pub(super) wait: Wait<'a>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(ledger: &'a Ledger, admission: &'a Admission<'a>, plan: &'a Plan, lines: Vec<Line>) -> Self {
        Self { ledger, admission, plan, lines, wait: Wait::new(ledger, admission.patience) }
    }

    /// The grant; `None`: there is no room, and the container waits.
    pub(super) fn try_once(&mut self, log: &DecisionLog) -> Result<Option<Record>, AdmitError> {
        let (ledger, admission) = (self.ledger, self.admission);
        let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
        if self.wait.is_ended() {
            let container = Box::new(admission.container.clone());
            return Err(AdmitError::WaitEnded { container, waited: self.wait.waited() });
        }
        let locked = ledger.store.lock_with(log).map_err(failed)?;
        let limits = self.limits(&locked).map_err(failed)?;
        let admission = &Admission { limits: &limits, ..*admission };
        loop {
            // Only the attempt that counts is logged.
            let mut steps = Vec::new();
            let error = match ledger.attempt(&locked, admission, self.plan, self.wait.order(), &mut steps) {
                Ok(record) => {
                    drop(locked);
                    self.lines.append(&mut steps);
                    self.lines.push(self.grant_line(&record));
                    log.write(&self.lines);
                    return Ok(Some(record));
                }
                Err(error) => error,
            };
            if error.kind() == AdmitErrorKind::Exhausted {
                if !ledger.reclaim_all(&locked).map_err(failed)?.is_empty() {
                    continue;
                }
                if self.wait.is_of_use(&locked, admission, self.plan).map_err(failed)? {
                    if let Some(crowd) = self.wait.crowd(&locked, admission.into()).map_err(failed)? {
                        return Err(AdmitError::Crowded { crowd, source: Box::new(error) });
                    }
                    if self.wait.begin(&locked, admission).map_err(failed)? {
                        self.lines.push(Line::new(Event::Wait, admission).field("why", chain(&error)));
                        locked.log(std::mem::take(&mut self.lines));
                    }
                    return Ok(None);
                }
            }
            if self.wait.order().is_none() {
                self.lines.append(&mut steps);
            }
            return Err(error);
        }
    }

    /// The node's rules for this try. Who waits may be of an older configuration than those who
    /// came meanwhile, and the timetable is made by theirs.
    fn limits(&mut self, locked: &Locked<'_>) -> Result<Limits, StoreError> {
        let (own, settings) = (self.admission.limits, locked.settings()?);
        if self.wait.order().is_some() {
            return Ok(Limits { max_inst: settings.max_inst, period: settings.period, ..*own });
        }
        if settings.with(own) != settings {
            let mut index = self.ledger.open_index(locked)?;
            self.ledger.follow_configuration(locked, &mut index, own, &mut self.lines)?;
        }
        Ok(*own)
    }

    /// Logs the refusal; it says how long was waited.
    pub(super) fn refused(self, error: AdmitError, log: &DecisionLog) -> AdmitError {
        let (admission, mut lines) = (self.admission, self.lines);
        let error = match error {
            error if self.wait.order().is_none() || matches!(error, AdmitError::WaitEnded { .. }) => error,
            error => AdmitError::Waited { waited: self.wait.waited(), source: Box::new(error) },
        };
        if !matches!(error, AdmitError::Card { .. }) {
            lines.push(Line::new(Event::Refuse, admission).field("why", chain(&error)));
        }
        lines.push(Line::destroyed(admission));
        log.write(&lines);
        error
    }

    fn grant_line(&self, record: &Record) -> Line {
        let line = grant_line(record);
        match self.wait.order() {
            Some(_) => line.field("waited", format_args!("{}ms", self.wait.waited().as_millis())),
            None => line,
        }
    }
}

fn new_record(
    admission: &Admission<'_>,
    cards: Vec<CardGrant>,
    index: &Index,
    locked: &Locked<'_>,
) -> Result<Record, StoreError> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let grant_id = fs::read_to_string(path);
    let grant_id =
        grant_id.map_err(|source| StoreError::Io { action: "read", path: path.to_owned(), source })?.trim().to_owned();
    let claim = admission.claim.map(|(claim, request)| ClaimGrant {
        claim: claim.clone(),
        request: request.to_owned(),
        gang: None,
        containers: Vec::new(),
    });
    let hypothetical = hypothetical_record(locked, admission, cards);
    Ok(Record {
        version: RECORD.version,
        state: if claim.is_some() { GrantState::Prepared } else { GrantState::Pending },
        claim,
        grant_id,
        creators: admission.creators.to_vec(),
        cgroups: strings(admission.cgroups),
        order: index.next_order(),
        exclusive: !hypothetical.cards.is_empty() && hypothetical.cards.iter().all(|card| card.exclusive),
        admitted_at: Timestamp::now().to_string(),
        ..hypothetical
    })
}

fn ask_line(admission: &Admission<'_>) -> Line {
    Line::new(Event::Ask, admission)
        .field("containerd", &admission.container.containerd)
        .field("shim", admission.shim.pid)
        .field("asked", admission.request.asked.join(" "))
}

fn grant_line(record: &Record) -> Line {
    let cards = record.cards.iter().map(|card| format!("{}: {}", card.index, card.describe()));
    let cards: Vec<_> = cards.collect();
    let line = Line::new(Event::Grant, record)
        .field("grant", &record.grant_id)
        .field("order", record.order)
        .field("cards", if cards.is_empty() { "none".to_owned() } else { cards.join(", ") });
    match record.pinned_memory() {
        Bytes(0) => line,
        pinned => line.amount("pinned_memory", pinned),
    }
}
