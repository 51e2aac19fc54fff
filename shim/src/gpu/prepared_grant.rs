//! Preparing: what a grant puts into a container and demands of its processes.

use cards::{Inventory, driver_files};
use ledger::{ContainerKey, Record};
use nvidia_glue::{
    inject::{self, Injection, PlanInput, Settings},
    spec,
};
use runtime_config::{
    config::Config,
    request::{Privileges, Share},
};
use serde_json::Value;

use super::{GpuError, is_fenced, mediation, mediation::MediationPlan};
use crate::bundle::WithoutGpu;

/// Result of admission: what the helper is to do about a grant, or its absence.
#[derive(Debug, Default)]
pub struct PreparedGrant {
    /// Files, devices and variables that the grant puts into the container.
    pub injection: Option<Value>,
    /// Install the static filter in the container and in every exec.
    pub fence: bool,
    /// Mediate the driver calls of the container and of every exec.
    pub mediation: Option<Box<MediationPlan>>,
    /// Rules for every process that is executed in the container.
    pub exec_rules: ExecRules,
    /// It seemed to ask for a GPU, and gets none.
    pub without_gpu: Option<WithoutGpu>,
}

/// Rules of a grant for processes that are executed in the container later.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExecRules {
    /// It shares a card: capabilities to which the driver gives priority are removed.
    pub(super) shares_card: bool,
    /// It has a hard quota: privileges that defeat it are refused.
    pub(super) refuses_privileges: bool,
    /// Its capabilities count in a user namespace of its own.
    pub(super) user_namespace: bool,
    pub(super) maps_host_root: bool,
}

impl ExecRules {
    /// Returns the OCI `process` that may run.
    ///
    /// # Errors
    /// Names the first privilege that it may not have.
    pub fn apply(self, process: &Value) -> Result<Value, GpuError> {
        let mut process = process.clone();
        // Without capabilities of its own it has the container's, which were checked when it was
        // created.
        if self.refuses_privileges && process.get("capabilities").is_some_and(Value::is_object) {
            let capabilities = spec::read(&serde_json::json!({ "process": process })).source.privileges;
            let privileges = Privileges {
                user_namespace: self.user_namespace,
                maps_host_root: self.maps_host_root,
                // Those of the container, which were checked as well.
                wildcard_device_rule: false,
                host_pid_namespace: false,
                ..capabilities
            };
            if let Some(privilege) = privileges.against_a_quota().first() {
                return Err(GpuError::PrivilegedExec { privilege });
            }
        }
        if self.shares_card {
            inject::withhold_capabilities(&mut process);
        }
        Ok(process)
    }
}

/// A container, and the node on which it gets a grant.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) key: ContainerKey,
    pub(super) config: Config,
    pub(super) privileges: Privileges,
    pub(super) inventory: Inventory,
}

impl Ground {
    /// Plans what the container gets by a grant.
    pub(super) fn prepared(&self, record: &Record) -> Result<PreparedGrant, GpuError> {
        let rights = self.privileges.against_a_quota();
        let injection = self.injection(record)?;
        let mediation = mediation::mediation(&self.config, record, &self.inventory, rights.is_empty())?;
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
        let fence = record.cards.is_empty() && is_fenced(&self.key, &self.config, self.privileges);
        let mediation = mediation.map(Box::new);
        Ok(PreparedGrant { injection: Some(injection), fence, mediation, exec_rules, without_gpu: None })
    }

    /// Plans what the grant puts into the container.
    fn injection(&self, record: &Record) -> Result<Value, GpuError> {
        let driver_files = match self.inventory.source {
            cards::Source::Nvidia => driver_files::find_cached(
                &self.config.driver.root,
                &self.inventory.driver_version,
                &self.config.state_dir,
            ),
            cards::Source::Simulated => driver_files::DriverFiles::default(),
        };
        let settings = Settings::from(&self.config);
        let input = PlanInput { record, inventory: &self.inventory, driver_files: &driver_files, settings: &settings };
        let injection = Injection::plan(&input).map_err(|source| GpuError::Inject(Box::new(source)))?;
        for warning in &injection.warnings {
            tracing::warn!(container = %self.key, "{warning}");
        }
        serde_json::to_value(&injection).map_err(GpuError::Encode)
    }
}
