//! Containers with claims: their grants were made when kubelet had the claims prepared, and are
//! used by all containers of the pod that name them.

use base::error_chain;
use cards::Inventory;
use ledger::{
    AttachError, ContainerKey, ContainerName, Ledger,
    claims::{Attachment, claim_key},
    decision_log::DecisionLog,
};
use runtime::protocol::Freed;
use runtime_config::request::{ClaimRequest, Isolation, PodContainer, Share};

use super::{GpuError, grant_note::GrantNote, new_container::NewContainer, prepared_grant::PreparedGrant};

/// The claims that a container uses, and its names.
#[derive(Debug)]
pub(super) struct ClaimUse {
    pub(super) request: ClaimRequest,
    pub(super) pod: PodContainer,
    pub(super) pod_uid: String,
    pub(super) seccomp_listener: bool,
}

impl ClaimUse {
    /// Keys of the claims' requests in the ledger.
    pub(super) fn requests(&self) -> Vec<ContainerKey> {
        let requests = self.request.requests.iter();
        requests.map(|request| claim_key(&request.namespace, &request.uid, &request.request)).collect()
    }

    /// Notes that the container uses its claims, and plans what that puts into it.
    pub(super) fn attach(
        &self,
        container: &NewContainer,
        inventory: &Inventory,
        note: &GrantNote,
    ) -> Result<PreparedGrant, GpuError> {
        let key = &container.key;
        let (shim, zygote) = container.creators()?;
        let requests = &note.claims;
        let (ledger, log) = note.open()?;
        self.check_privileges(&ledger, &log, container, requests)?;
        let attachment = Attachment {
            requests,
            pod_uid: &self.pod_uid,
            pod_namespace: &self.pod.namespace,
            container: key,
            name: &self.pod.container,
            shim,
            creators: &[zygote],
            cgroups: &container.cgroups,
        };
        let mut record = ledger.attach(&attachment, &log).map_err(|source| {
            if let AttachError::NotFreed { grant, .. } = source {
                return GpuError::NotFreed(Freed { state_dir: note.state_dir.clone(), grant });
            }
            let name = ContainerName { key, pod: Some(&self.pod) };
            log.refused_at_validation(name, &self.asked(), &source);
            GpuError::Attach(Box::new(source))
        })?;
        record.request.driver_capabilities = self.request.driver_capabilities;
        for warning in &self.request.warnings {
            tracing::warn!(container = %key, "{warning}");
        }
        container.prepared(&record, note.clone(), inventory).inspect_err(|_| {
            if let Err(error) = ledger.detach(requests, key, &log) {
                tracing::error!(container = %key, error = error_chain(&error), "its use of a claim is still in the ledger");
            }
        })
    }

    /// Checks that the quotas of the claims can hold the container, as for a request of its own.
    fn check_privileges(
        &self,
        ledger: &Ledger,
        log: &DecisionLog,
        container: &NewContainer,
        requests: &[ContainerKey],
    ) -> Result<(), GpuError> {
        let name = ContainerName { key: &container.key, pod: Some(&self.pod) };
        let mut is_held = false;
        for request in requests {
            let record = ledger.record(request).map_err(|source| GpuError::Ledger(Box::new(source)))?;
            let share = record.map(|record| record.request.share);
            is_held |= matches!(share, Some(Share::Part { isolation, .. }) if isolation != Isolation::None);
        }
        if !is_held {
            return Ok(());
        }
        let privileges = container.privileges.against_a_quota();
        let refusal = if self.seccomp_listener {
            GpuError::SeccompListener
        } else if !privileges.is_empty() && !container.config.allow_privileged_quota {
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
