//! `Delete`: nothing of a container is left, however it ended and however often this is called.
//!
//! Also what `containerd-shim-egpu-v1 delete` runs in its own process when the shim is gone.

use std::io;

use base::error_chain;
use libcontainer::{
    container::{Container, State},
    process::intel_rdt::cleanup_intel_rdt,
};

use super::{
    hooks,
    protocol::{Delete, FailureKind},
    rootfs::{self, MountError},
    state::{StateDir, StateError},
};
use crate::cgroup::{Cgroup, CgroupError, CgroupsPath, Host, LocateError};

/// A container of which something is left. Calling again goes on where this ended.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The runtime's own directory.
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    CgroupPlace(#[from] LocateError),
    /// The cgroup, or a process in it that does not end.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The root file system.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Waiting needs a clock.
    #[error("cannot make a runtime to wait with")]
    Runtime(#[source] std::io::Error),
}

impl DeleteError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::State(StateError::Id(_)) => FailureKind::Invalid,
            _ => FailureKind::Internal,
        }
    }
}

/// Kills what is left of the container, and removes its cgroups, mounts and state, in this order.
/// Succeeds when there is nothing left. Blocks for up to some seconds.
///
/// When something cannot be removed, the rest is, and the state stays so that a later call finds
/// it.
pub fn remove(delete: &Delete) -> Result<(), DeleteError> {
    let state = StateDir::at(&delete.runtime_root, &delete.id)?;
    let ended = end(&delete.id, &state);
    let unmounted = rootfs::unmount_below(&delete.bundle);
    ended?;
    unmounted?;
    state.remove()?;
    Ok(())
}

/// Returns whether that takes a worker: hooks, whose ends the shim's reaper would take, and
/// systemd, whose client leaves a thread.
pub(crate) fn needs_worker(delete: &Delete) -> bool {
    // Errors are told by the removal.
    let Ok(state) = StateDir::at(&delete.runtime_root, &delete.id) else { return false };
    let Ok(Some(config)) = state.config() else { return false };
    let hooks = config.hooks.as_ref().and_then(|hooks| hooks.poststop().as_ref());
    hooks.is_some_and(|hooks| !hooks.is_empty()) || state.settings().is_ok_and(|settings| settings.systemd_cgroup)
}

/// Ends the container's processes, with what libcontainer made for them.
fn end(id: &str, state: &StateDir) -> Result<(), DeleteError> {
    // Without this file the create did not come to the cgroup, which may then be somebody else's.
    let Some(config) = state.config()? else { return Ok(()) };
    let saved = State::load(state.path()).ok();
    let systemd_cgroup = match state.settings() {
        Ok(settings) => settings.systemd_cgroup,
        // An earlier build's removal, which began with any file, was killed after the cgroup had
        // gone.
        Err(StateError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let place = CgroupsPath::new(Some(&config.cgroup_path), id, systemd_cgroup)?;
    destroy(&Cgroup::intended(&Host::default(), &place)?)?;
    if let Some(Err(error)) = place.scope().map(|scope| scope.stop()) {
        tracing::warn!(error = error_chain(&error), container = id, "systemd keeps an empty scope");
    }
    let Some(saved) = saved else { return Ok(()) };
    let container = Container { state: saved, root: state.path().to_owned() };
    let rdt = cleanup_intel_rdt(
        container.intel_rdt_dir().map(|path| path.as_path()),
        container.intel_rdt_monitoring_dir().map(|path| path.as_path()),
        container.clean_up_intel_rdt_subdirectory(),
        id,
    );
    if let Err(error) = rdt {
        tracing::warn!(%error, container = id, "cannot remove the Intel RDT group");
    }
    let hooks = config.hooks.as_ref().and_then(|hooks| hooks.poststop().as_ref());
    // The OCI spec: log a warning and go on as if it had succeeded.
    if let Err(error) = hooks::run("poststop", hooks.map(Vec::as_slice), &container.state, None, None, None) {
        tracing::warn!(error = error_chain(&error), container = id, "a poststop hook failed");
    }
    Ok(())
}

fn destroy(cgroup: &Cgroup) -> Result<(), DeleteError> {
    if cgroup.is_gone() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(DeleteError::Runtime)?;
    Ok(runtime.block_on(cgroup.destroy())?)
}
