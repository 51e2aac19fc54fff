//! Preparing: what a grant puts into a container and demands of its processes.

use nvidia_glue::{
    inject::{self, Injection},
    spec,
};
use runtime_config::request::{PodContainer, Privileges};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GpuError, grant_note::GrantNote, mediation::MediationPlan};

/// Result of admission: what the helper is to do about a grant, or its absence.
#[derive(Debug, Default)]
pub struct PreparedGrant {
    /// Files, devices and variables that the grant puts into the container.
    pub injection: Option<Box<Injection>>,
    /// Install the static filter in the container and in every exec.
    pub fence: bool,
    /// Mediate the driver calls of the container and of every exec.
    pub mediation: Option<Box<MediationPlan>>,
    /// Rules for every process that is executed in the container.
    pub exec_rules: ExecRules,
    /// It seemed to ask for a GPU, and gets none.
    pub without_gpu: Option<WithoutGpu>,
    /// The ledger that has the grant; `None`: it was granted nothing.
    pub grant: Option<GrantNote>,
}

/// The reason why a container that seemed to ask for a GPU has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithoutGpu {
    /// Its names in Kubernetes.
    pub pod: Option<PodContainer>,
    /// The request, as `NAME=value`.
    pub asked: Vec<String>,
    /// The reason, and what to do.
    pub why: String,
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
