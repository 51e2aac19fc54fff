//! Claims: grants that Kubernetes has allocated to a pod.
//!
//! A request of an allocated ResourceClaim has a record of its own, from the claim's being prepared
//! on the node until it is unprepared ([`Ledger::prepare_claim`], [`Ledger::unprepare_claim`]).
//! Containers of the pod use it meanwhile ([`Ledger::attach`], [`Ledger::detach`]), several at a
//! time and one after the other. The records are all that there is of a claim on the node: whoever
//! answers for claims keeps nothing else.
//!
//! A container that names several requests has them as one *gang*: one mediator, and windows at the
//! same instants, as with several cards of one grant.

mod attach;
mod gang;
mod offers;

use cards::Inventory;
use runtime_config::request::{GpuRequest, PodContainer};

pub use attach::Attachment;
pub use offers::CardOffer;

pub use crate::claim::{Claim, ClaimContainer, ClaimGrant, ClaimPod, Gang, claim_key};

use crate::{
    Admission, AdmitError, AdmitErrorKind, ContainerKey, Ledger, Limits, Patience, ProcessId, Record, ReleaseError,
    StoreError, decision_log::DecisionLog, store::GivenBack,
};

/// A claim that is to be prepared.
#[derive(Debug, Clone, Copy)]
pub struct ClaimAdmission<'a> {
    /// The node's cards.
    pub inventory: &'a Inventory,
    /// The node's rules.
    pub limits: &'a Limits,
    pub claim: &'a Claim,
    /// Its requests for this node, each with its name and the cards that were allocated.
    pub requests: &'a [(String, GpuRequest)],
    /// Longest wait where there is no room.
    pub patience: Patience<'a>,
    /// Version of egpu that prepares it, for people.
    pub egpu_version: &'a str,
}

impl Ledger {
    /// Grants all requests of a claim, or none. Those that it has already stay as they are.
    ///
    /// # Errors
    /// [`AdmitError`]; what was granted by this call has been given back.
    pub fn prepare_claim(&self, admission: &ClaimAdmission<'_>, log: &DecisionLog) -> Result<Vec<Record>, AdmitError> {
        let claim = admission.claim;
        let mut granted = Vec::new();
        let mut records = Vec::new();
        for (name, request) in admission.requests {
            let key = claim_key(&claim.namespace, &claim.uid, name);
            let has = |ledger: &Self| {
                ledger.record(&key).map_err(|source| AdmitError::Store { container: Box::new(key.clone()), source })
            };
            let admitted = match has(self)? {
                Some(record) => Ok(record),
                None => {
                    self.grant_request(admission, (name, request, &key), log).inspect(|_| granted.push(key.clone()))
                }
            };
            match admitted {
                Ok(record) => records.push(record),
                // Another process of ours was faster.
                Err(error) if error.kind() == AdmitErrorKind::AlreadyExists => records.extend(has(self)?),
                Err(error) => {
                    self.give_back(&granted, log);
                    return Err(error);
                }
            }
        }
        match self.form_gang(&records) {
            Ok(records) => Ok(records),
            Err(error) => {
                self.give_back(&granted, log);
                Err(error)
            }
        }
    }

    fn grant_request(
        &self,
        admission: &ClaimAdmission<'_>,
        (name, request, key): (&str, &GpuRequest, &ContainerKey),
        log: &DecisionLog,
    ) -> Result<Record, AdmitError> {
        let ClaimAdmission { inventory, limits, claim, patience, egpu_version, .. } = *admission;
        let pod = PodContainer {
            namespace: claim.namespace.clone(),
            pod: claim.pod.name.clone(),
            container: name.to_owned(),
        };
        let request = GpuRequest { pod: Some(pod), ..request.clone() };
        let asks = ProcessId::current().map_err(|source| AdmitError::Store {
            container: Box::new(key.clone()),
            source: StoreError::Io { action: "read", path: "/proc/self/stat".into(), source },
        })?;
        let admission = Admission {
            inventory,
            request: &request,
            limits,
            container: key,
            shim: asks,
            creators: &[],
            cgroups: &[],
            patience,
            egpu_version,
            claim: Some((claim, name)),
        };
        self.admit(&admission, log)
    }

    /// Undoes a part of a claim that is not granted as a whole.
    fn give_back(&self, granted: &[ContainerKey], log: &DecisionLog) {
        for key in granted {
            if let Err(error) = self.remove_request(key, GivenBack::RolledBack, log) {
                tracing::error!(request = %key, error = &error as &dyn std::error::Error, "a part of a claim is kept");
            }
        }
    }

    /// Gives back what a claim was granted. Returns whether it was granted anything.
    ///
    /// # Errors
    /// [`ReleaseError::StillRunning`] while a container uses it; those of a dead shim are killed,
    /// and it may be asked for again.
    pub fn unprepare_claim(&self, namespace: &str, uid: &str, log: &DecisionLog) -> Result<bool, ReleaseError> {
        let of_claim = |record: &Record| {
            record.claim.as_ref().is_some_and(|grant| grant.claim.namespace == namespace && grant.claim.uid == uid)
        };
        let failed = |source| ReleaseError::Store { container: Box::new(claim_key(namespace, uid, "")), source };
        let keys: Vec<ContainerKey> =
            self.records().map_err(failed)?.into_iter().filter(of_claim).map(|record| record.container).collect();
        for key in &keys {
            self.remove_request(key, GivenBack::Released, log)?;
        }
        Ok(!keys.is_empty())
    }

    fn remove_request(&self, key: &ContainerKey, how: GivenBack, log: &DecisionLog) -> Result<(), ReleaseError> {
        let failed = |source| ReleaseError::Store { container: Box::new(key.clone()), source };
        let locked = self.store.lock_with(log).map_err(failed)?;
        let Some(record) = self.store.find_record(key).map_err(failed)? else { return Ok(()) };
        let mut index = self.open_index(&locked).map_err(failed)?;
        self.reclaim_one(&locked, &mut index, &record).map_err(failed)?;
        let Some(record) = self.store.find_record(key).map_err(failed)? else { return Ok(()) };
        if let Some(container) = record.claim.as_ref().and_then(|grant| grant.containers.first()) {
            let cgroup = container.cgroups.first().map(Into::into).unwrap_or_default();
            return Err(ReleaseError::StillRunning { container: Box::new(container.key.clone()), cgroup });
        }
        self.remove(&locked, &record, how).map_err(failed)
    }

    /// Records of claims' requests, in ledger order. Takes no lock.
    ///
    /// # Errors
    /// As [`Ledger::records`].
    pub fn claims(&self) -> Result<Vec<Record>, StoreError> {
        let mut records = self.records()?;
        records.retain(|record| record.claim.is_some());
        Ok(records)
    }

    /// Notes that a claim is reserved for another pod now. Nothing happens while containers use it.
    ///
    /// # Errors
    /// When it cannot be read or written down.
    pub fn set_claim_pod(&self, namespace: &str, uid: &str, pod: &ClaimPod) -> Result<(), StoreError> {
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        for mut record in self.claims()? {
            let Some(grant) = &mut record.claim else { continue };
            let is_it = grant.claim.namespace == namespace && grant.claim.uid == uid;
            if is_it && grant.containers.is_empty() && grant.claim.pod != *pod {
                grant.claim.pod = pod.clone();
                if let Some(names) = &mut record.request.pod {
                    names.pod.clone_from(&pod.name);
                }
                self.replace(&locked, &mut index, &record)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
