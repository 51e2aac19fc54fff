//! Containers with claims: their grants were made when kubelet had the claims prepared, and are
//! used by all containers of the pod that name them.

use std::path::PathBuf;

use ledger::{
    AttachError, ContainerKey, ContainerName, Ledger, ProcessId,
    claims::{Attachment, claim_key},
    decision_log::DecisionLog,
};
use runtime::protocol::Freed;
use runtime_config::{
    config::Config,
    request::{ClaimRequest, Isolation, PodContainer, Privileges, Share},
};

use super::{
    GpuError,
    grant_note::GrantNote,
    prepared_grant::{Ground, PreparedGrant},
};

/// Request of a container with claims, and its names.
#[derive(Debug, Clone)]
pub(super) struct ClaimAsk {
    pub(super) config: Config,
    pub(super) request: ClaimRequest,
    pub(super) privileges: Privileges,
    pub(super) pod: PodContainer,
    pub(super) pod_uid: String,
    pub(super) seccomp_listener: bool,
}

/// Place of a container that is going to be created.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) bundle: PathBuf,
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) helper_pid: i32,
}

impl Place {
    /// The shim and its helper, which are going to create it.
    pub(super) fn processes(&self) -> Result<(ProcessId, ProcessId), GpuError> {
        let failed = |pid| move |source| GpuError::Process { pid, source };
        let shim = ProcessId::current().map_err(failed(0))?;
        Ok((shim, ProcessId::of(self.helper_pid).map_err(failed(self.helper_pid))?))
    }
}

impl ClaimAsk {
    /// Notes that the container uses its claims, and plans what that puts into it.
    pub(super) fn attach(
        self,
        key: ContainerKey,
        inventory: cards::Inventory,
        place: &Place,
    ) -> Result<PreparedGrant, GpuError> {
        let (shim, helper) = place.processes()?;
        let requests: Vec<ContainerKey> = self
            .request
            .requests
            .iter()
            .map(|request| claim_key(&request.namespace, &request.uid, &request.request))
            .collect();
        let note = GrantNote::new(&self.config).using(requests.clone());
        note.write(&place.bundle)?;
        let (ledger, log) = note.open()?;
        self.check_privileges(&ledger, &log, &key, &requests)?;
        let attachment = Attachment {
            requests: &requests,
            pod_uid: &self.pod_uid,
            pod_namespace: &self.pod.namespace,
            container: &key,
            name: &self.pod.container,
            shim,
            creators: &[helper],
            cgroups: &place.cgroups,
        };
        let mut record = ledger.attach(&attachment, &log).map_err(|source| {
            if let AttachError::NotFreed { grant, .. } = source {
                return GpuError::NotFreed(Freed { state_dir: note.state_dir.clone(), grant });
            }
            let name = ContainerName { key: &key, pod: Some(&self.pod) };
            log.refused_at_validation(name, &self.asked(), &source);
            GpuError::Attach(Box::new(source))
        })?;
        record.request.driver_capabilities = self.request.driver_capabilities;
        for warning in &self.request.warnings {
            tracing::warn!(container = %key, "{warning}");
        }
        let ground = Ground { key, config: self.config, privileges: self.privileges, inventory };
        ground.prepared(&record).inspect_err(|_| {
            if let Err(error) = ledger.detach(&requests, &ground.key, &log) {
                let error = &error as &dyn std::error::Error;
                tracing::error!(container = %ground.key, error, "its use of a claim is still in the ledger");
            }
        })
    }

    /// Checks that the quotas of the claims can hold the container, as for a request of its own.
    fn check_privileges(
        &self,
        ledger: &Ledger,
        log: &DecisionLog,
        key: &ContainerKey,
        requests: &[ContainerKey],
    ) -> Result<(), GpuError> {
        let name = ContainerName { key, pod: Some(&self.pod) };
        let mut is_held = false;
        for request in requests {
            let record = ledger.record(request).map_err(|source| GpuError::Ledger(Box::new(source)))?;
            let share = record.map(|record| record.request.share);
            is_held |= matches!(share, Some(Share::Part { isolation, .. }) if isolation != Isolation::None);
        }
        if !is_held {
            return Ok(());
        }
        let privileges = self.privileges.against_a_quota();
        let refusal = if self.seccomp_listener {
            GpuError::SeccompListener
        } else if !privileges.is_empty() && !self.config.allow_privileged_quota {
            GpuError::PrivilegedClaim { privileges }
        } else {
            return Ok(());
        };
        log.refused_at_validation(name, &self.asked(), &refusal);
        Err(refusal)
    }

    fn asked(&self) -> String {
        self.request.requests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
}
