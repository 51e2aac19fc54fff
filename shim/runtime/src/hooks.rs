//! OCI hooks, one after the other.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use libcontainer::{
    container::State,
    hooks::{HookError, run_hooks},
};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::Hook;

/// A hook that failed; those after it did not run.
#[derive(Debug, thiserror::Error)]
#[error("the {kind} hook {} failed", path.display())]
pub(crate) struct HookFailed {
    kind: &'static str,
    path: PathBuf,
    #[source]
    source: HookError,
}

/// Runs the hooks of a kind. `pid` is init's, as the hooks know it, where it is not the state's;
/// `environment` that of hooks that have none of their own.
pub(crate) fn run(
    kind: &'static str,
    hooks: Option<&[Hook]>,
    state: &State,
    directory: Option<&Path>,
    pid: Option<Pid>,
    environment: Option<&HashMap<String, String>>,
) -> Result<(), HookFailed> {
    hooks.unwrap_or_default().iter().try_for_each(|hook| {
        let failed = |source| HookFailed { kind, path: hook.path().clone(), source };
        run_hooks(Some(&vec![hook.clone()]), Some(state), directory, pid, environment).map_err(failed)
    })
}
