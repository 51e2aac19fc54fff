//! A container that is created: its admission, and what it gets by a grant.

use std::path::PathBuf;

use base::error_chain;
use cards::{Inventory, driver_files};
use ledger::{Admission, ContainerKey, Limits, ProcessId, Record, ReleaseReason};
use nvidia_glue::inject::{Injection, PlanInput, Settings};
use runtime_config::{
    config::Config,
    request::{GpuRequest, Privileges, Share},
};

use super::{
    AdmissionWait, GpuError,
    grant_note::GrantNote,
    mediation,
    prepared_grant::{ExecRules, PreparedGrant},
};
use crate::version;

/// A container that is created, and the node's configuration at that time.
#[derive(Debug)]
pub(super) struct NewContainer {
    pub(super) key: ContainerKey,
    /// The directories of its cgroup, which are not there yet.
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) zygote_pid: i32,
    pub(super) config: Config,
    pub(super) privileges: Privileges,
}

impl NewContainer {
    /// The shim and its zygote, which are going to create it.
    pub(super) fn creators(&self) -> Result<(ProcessId, ProcessId), GpuError> {
        let failed = |pid| move |source| GpuError::Process { pid, source };
        let shim = ProcessId::current().map_err(failed(0))?;
        Ok((shim, ProcessId::of(self.zygote_pid).map_err(failed(self.zygote_pid))?))
    }

    /// Returns whether it gets the static filter where it was granted no card.
    pub(super) fn is_fenced(&self) -> bool {
        let exempt = self.privileges.administers_host();
        if self.config.fence_other_containers && exempt {
            tracing::info!(container = %self.key, "has CAP_SYS_ADMIN and is not fenced off from the driver");
        }
        self.config.fence_other_containers && !exempt
    }

    /// Reserves, and plans what goes into the container.
    pub(super) fn admit(
        &self,
        request: &GpuRequest,
        inventory: &Inventory,
        note: GrantNote,
        wait: &AdmissionWait,
    ) -> Result<PreparedGrant, GpuError> {
        let (shim, zygote) = self.creators()?;
        let (ledger, log) = note.open()?;
        let admission = Admission {
            inventory,
            request,
            limits: &Limits::from(&self.config),
            container: &self.key,
            shim,
            creators: &[zygote],
            cgroups: &self.cgroups,
            patience: wait.patience(self.config.admission_wait),
            egpu_version: version::text(),
            claim: None,
        };
        let record = ledger.admit(&admission, &log).map_err(|source| GpuError::Admit(Box::new(source)))?;
        self.prepared(&record, note, inventory).inspect_err(|_| {
            // The first error is returned; a reservation that cannot be taken back is reclaimed
            // later.
            if let Err(error) = ledger.release(&self.key, ReleaseReason::CreateFailed, &log) {
                tracing::error!(container = %self.key, error = error_chain(&error), "reservation kept");
            }
        })
    }

    /// Plans what the container gets by a grant.
    pub(super) fn prepared(
        &self,
        record: &Record,
        note: GrantNote,
        inventory: &Inventory,
    ) -> Result<PreparedGrant, GpuError> {
        let rights = self.privileges.against_a_quota();
        let injection = self.injection(record, inventory)?;
        let mediation = mediation::mediation(&self.config, record, inventory, rights.is_empty())?;
        if record.request.share == Share::Monitor && !record.cards.is_empty() && !rights.is_empty() {
            let rights = rights.join(" and ");
            tracing::info!(container = %self.key, rights, "monitors its cards unmediated: with these privileges mediation cannot confine it");
        }
        let exec_rules = ExecRules {
            shares_card: matches!(record.request.share, Share::Part { .. }),
            refuses_privileges: mediation.is_some() && !self.config.allow_privileged_quota,
            user_namespace: self.privileges.user_namespace,
            maps_host_root: self.privileges.maps_host_root,
        };
        // It has the driver's files and no card: a card's descriptor that another container lends
        // must be of no use.
        let fence = record.cards.is_empty() && self.is_fenced();
        let mediation = mediation.map(Box::new);
        Ok(PreparedGrant {
            injection: Some(Box::new(injection)),
            fence,
            mediation,
            exec_rules,
            without_gpu: None,
            grant: Some(note),
        })
    }

    /// Plans what the grant puts into the container.
    fn injection(&self, record: &Record, inventory: &Inventory) -> Result<Injection, GpuError> {
        let driver_files = match inventory.source {
            cards::Source::Nvidia => {
                driver_files::find_cached(&self.config.driver.root, &inventory.driver_version, &self.config.state_dir)
            }
            cards::Source::Simulated => driver_files::DriverFiles::default(),
        };
        let settings = Settings::from(&self.config);
        let input = PlanInput { record, inventory, driver_files: &driver_files, settings: &settings };
        let injection = Injection::plan(&input).map_err(|source| GpuError::Inject(Box::new(source)))?;
        for warning in &injection.warnings {
            tracing::warn!(container = %self.key, "{warning}");
        }
        Ok(injection)
    }
}
