//! Changing the limits of a running container.
//!
//! An update is first planned, from what is asked and what is in force, as a list of writes in an
//! order that the kernel accepts; then it is carried out, and taken back as a whole when a write
//! fails.
//!
//! Device rules are never touched, as in runc: CRI sends the container's whole `resources` with
//! every change of a CPU share, and the device list in it knows nothing of the GPUs that were
//! granted. A granted GPU thus survives every update. With the systemd driver, systemd is given the
//! same limits, and again nothing about devices; otherwise its next `daemon-reload` would bring
//! back the old ones.

mod systemd;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

use oci_spec::runtime::LinuxResources;

use super::{Cgroup, CgroupError, Layout, SystemdError, files, scope};

/// Limits that were not changed. What was already changed has been taken back.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The resources that containerd sent are no `LinuxResources`.
    #[error("the resources to update are not the OCI LinuxResources object in JSON")]
    Parse(#[source] serde_json::Error),
    /// A value that cannot be meant.
    #[error("{field} {value} is not possible: {accepted}")]
    Invalid {
        /// Its name in the OCI spec.
        field: &'static str,
        /// The value asked for.
        value: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// `memory.checkBeforeUpdate` was asked for, and the container uses more.
    #[error(
        "memory.limit {limit} is below the {usage} bytes in use; free memory in the container first, or update without \
         checkBeforeUpdate"
    )]
    InUse {
        /// Bytes asked.
        limit: i64,
        /// Bytes in use.
        usage: u64,
    },
    /// cgroup v1 cannot hold it.
    #[error("{field} needs cgroup v2, and this host uses v1")]
    NeedsV2 {
        /// Its name in the OCI spec.
        field: &'static str,
    },
    /// cgroup v2 cannot hold it.
    #[error("{field} exists on cgroup v1 only, and this host uses v2")]
    NeedsV1 {
        /// Its name in the OCI spec.
        field: &'static str,
    },
    /// The control files did not take it.
    #[error("cannot update the container's limits")]
    Cgroup(#[from] CgroupError),
    /// systemd did not take it.
    #[error("cannot set the limits on systemd unit {unit}")]
    Systemd {
        /// The container's scope.
        unit: String,
        #[source]
        source: SystemdError,
    },
}

impl Cgroup {
    /// Changes the limits that `resources` names; 0, an empty string and an absent field leave a
    /// limit as it is, and -1 lifts it. `resources` is what the Task service gets in
    /// `UpdateTaskRequest.resources.value`: OCI `LinuxResources`, JSON.
    pub async fn update(&self, resources: &[u8]) -> Result<(), UpdateError> {
        let resources: LinuxResources = serde_json::from_slice(resources).map_err(UpdateError::Parse)?;
        let plan = self.plan(&resources)?;
        let done = carry_out(&plan)?;
        let set = self.set_unit_properties(&plan).await.inspect_err(|_| take_back(done))?;
        if set {
            // systemd has just written what it was given, a quota in its own steps.
            carry_out(&plan)?;
        }
        Ok(())
    }

    /// Sends systemd the limits of a container that it has just made a scope for. Nothing to do
    /// without its driver.
    pub(crate) async fn set_systemd_limits(&self, resources: Option<&LinuxResources>) -> Result<(), UpdateError> {
        let (Some(_), Some(resources)) = (self.systemd_unit(), resources) else { return Ok(()) };
        self.set_unit_properties(&self.plan(resources)?).await.map(drop)
    }

    fn plan(&self, resources: &LinuxResources) -> Result<Vec<Write>, UpdateError> {
        match &self.layout {
            Layout::V1 { .. } => v1::plan(self, resources),
            Layout::V2 { directory, .. } => v2::plan(directory, resources),
        }
    }

    /// Sends systemd the limits, and returns whether it runs the container's scope.
    async fn set_unit_properties(&self, plan: &[Write]) -> Result<bool, UpdateError> {
        let Some(unit) = self.systemd_unit() else { return Ok(false) };
        let set = scope::set_properties(unit, |version| systemd::properties(plan, version)).await;
        set.map_err(|source| UpdateError::Systemd { unit: unit.to_owned(), source })
    }
}

/// One value for one control file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Write {
    path: PathBuf,
    value: String,
    /// The text of `value`'s device when it is lifted, for a file with a line per device.
    lifted: Option<String>,
}

impl Write {
    fn new(directory: &Path, file: &str, value: &(impl ToString + ?Sized)) -> Self {
        Self { path: directory.join(file), value: value.to_string(), lifted: None }
    }

    /// `DEVICE VALUE` into a file that has a line per device.
    fn keyed(directory: &Path, file: &str, device: &str, value: &str, lifted: &str) -> Self {
        Self {
            path: directory.join(file),
            value: format!("{device} {value}"),
            lifted: Some(format!("{device} {lifted}")),
        }
    }

    /// Returns the write that gets back to now; `None` for a file that cannot be read back.
    fn undo(&self) -> Option<Self> {
        let now = files::read(&self.path).ok()?;
        let value = match &self.lifted {
            None => now.trim().to_owned(),
            Some(lifted) => {
                let device = self.value.split(' ').next()?;
                now.lines()
                    .find(|line| line.split(' ').next() == Some(device))
                    .map_or_else(|| lifted.clone(), |line| line.trim().to_owned())
            }
        };
        Some(Self { value, ..self.clone() })
    }
}

/// Writes in order; answers what would take it back, in the order in which to do so.
fn carry_out(plan: &[Write]) -> Result<Vec<Write>, CgroupError> {
    let mut undo = Vec::new();
    for write in plan {
        let before = write.undo();
        if let Err(error) = files::write(&write.path, &write.value) {
            undo.reverse();
            take_back(undo);
            return Err(error);
        }
        undo.extend(before);
    }
    undo.reverse();
    Ok(undo)
}

/// Restores the values before a failure. The caller gets the cause of that; a value that cannot be
/// restored is logged.
fn take_back(undo: Vec<Write>) {
    for write in undo {
        if let Err(error) = files::write(&write.path, &write.value) {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot restore a limit");
        }
    }
}

/// A number that changes something: 0 stands for "leave it", as in runc.
fn set<T: Default + PartialEq + Copy>(value: Option<T>) -> Option<T> {
    value.filter(|&value| value != T::default())
}

/// A text that changes something: an empty one stands for "leave it".
fn set_text(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

/// A limit as the kernel writes it: -1 is `unlimited`.
fn limit(field: &'static str, value: i64, unlimited: &str) -> Result<String, UpdateError> {
    match value {
        -1 => Ok(unlimited.to_owned()),
        0.. => Ok(value.to_string()),
        _ => Err(UpdateError::Invalid {
            field,
            value: value.to_string(),
            accepted: "give a number above 0, or -1 for no limit",
        }),
    }
}

/// Orders two writes whose values the kernel compares: the period goes first when it grows, so that
/// no state in between allows more than both ends do (the kernel refuses a share beyond the
/// parent's).
fn quota_and_period(quota: Option<Write>, period: Option<Write>, period_now: Option<u64>) -> Vec<Write> {
    let grows = match (&period, period_now) {
        (Some(new), Some(now)) => new.value.parse::<u64>().is_ok_and(|new| new >= now),
        _ => true,
    };
    let writes = if grows { [period, quota] } else { [quota, period] };
    writes.into_iter().flatten().collect()
}

/// Inserts the write of a burst: after a quota that makes room for it, and before one that would
/// not hold the old burst.
fn with_burst(mut writes: Vec<Write>, burst: Option<Write>, burst_now: Option<u64>) -> Vec<Write> {
    if let Some(burst) = burst {
        let shrinks = burst.value.parse::<u64>().ok() <= burst_now;
        writes.insert(if shrinks { 0 } else { writes.len() }, burst);
    }
    writes
}

/// The number in a control file, if it reads as one.
fn current(directory: &Path, file: &str) -> Option<u64> {
    files::read(&directory.join(file)).ok()?.trim().parse().ok()
}

fn check_in_use(limit: i64, directory: &Path, usage_file: &str) -> Result<(), UpdateError> {
    match (current(directory, usage_file), u64::try_from(limit)) {
        (Some(usage), Ok(bytes)) if bytes < usage => Err(UpdateError::InUse { limit, usage }),
        _ => Ok(()),
    }
}

/// A size of huge pages as it stands in a file name, `2MB`.
fn huge_page_size(size: &str) -> Result<&str, UpdateError> {
    if !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(size);
    }
    Err(UpdateError::Invalid {
        field: "hugepageLimits.pageSize",
        value: format!("{size:?}"),
        accepted: "give a size of this host as in `2MB`, `1GB`",
    })
}

/// `rdma.max` reads the same on both versions.
fn rdma(directory: &Path, resources: &LinuxResources) -> Vec<Write> {
    let mut writes: Vec<Write> = resources
        .rdma()
        .iter()
        .flatten()
        .map(|(device, limits)| {
            let value = |limit: Option<u32>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
            let value =
                format!("hca_handle={} hca_object={}", value(limits.hca_handles()), value(limits.hca_objects()));
            Write::keyed(directory, "rdma.max", device, &value, "hca_handle=max hca_object=max")
        })
        .collect();
    writes.sort_by(|one, other| one.value.cmp(&other.value));
    writes
}

#[cfg(test)]
mod tests;
