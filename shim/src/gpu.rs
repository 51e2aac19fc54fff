//! From a container's GPU request to its grant, and back: the one place where the Task service meets cards.
//!
//! Called at three points: [`Gpu::prepare`] before anything of a container is made, [`Gpu::bind`] once it exists, and
//! [`Gpu::release`] on every way out: a failed create, Delete, and containerd's `delete` command.

use std::path::Path;

use ttrpc::Code;

use crate::{cgroup::Cgroup, helper::HelperClient};

/// The grants of one containerd's and namespace's containers.
#[derive(Debug)]
pub struct Gpu {}

/// What a grant (or its absence) asks of the helper.
#[derive(Debug, Default)]
pub struct Prepared {
    /// What the grant puts into the container.
    pub injection: Option<serde_json::Value>,
    /// Install the static filter in the container and in every exec.
    pub fence: bool,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {}

impl GpuError {
    /// What containerd is told.
    pub fn code(&self) -> Code {
        match *self {}
    }
}

impl Gpu {
    /// For the containers of `namespace` of the containerd at `containerd` (its gRPC address).
    pub fn new(_containerd: &str, _namespace: &str) -> Self {
        Self {}
    }

    /// Reads the request from the bundle's spec, reserves what it asks for, and edits the spec. When it fails, nothing is
    /// reserved.
    pub async fn prepare(&self, _helper: &HelperClient, _id: &str, _bundle: &Path) -> Result<Prepared, GpuError> {
        Ok(Prepared::default())
    }

    /// The container exists: its reservation becomes a grant that lives as long as its processes.
    pub async fn bind(&self, _id: &str, _init_pid: i32, _cgroup: &Cgroup) -> Result<(), GpuError> {
        Ok(())
    }

    /// Gives back whatever the container holds. Nothing of the container may be left running. Succeeds when it holds
    /// nothing.
    pub async fn release(&self, _id: &str) -> Result<(), GpuError> {
        Ok(())
    }
}
