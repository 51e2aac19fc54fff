//! Removing what libcontainer and the mounts of a container left, with the helper or without it.
//!
//! A helper that has died is replaced, but where that fails for long, what needs it (Create, Start
//! of anything) says so. Delete must work all the same: it runs containerd's own `delete` command
//! of this program, which brings a helper of its own.

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use runtime::{RuntimeError, blocking::blocking, protocol};
use tokio::time::timeout;

use super::{Context, error::TaskError};
use crate::registry::{Registry, RegistryError};

/// Shims that start within this are looked after together.
const BURST: Duration = Duration::from_millis(200);

impl Context {
    /// Succeeds when nothing is left.
    pub(super) async fn remove(&self, delete: protocol::Delete) -> Result<(), TaskError> {
        let mut command = self.delete_command(&delete);
        match self.runtime.delete(delete).await {
            Ok(()) => Ok(()),
            Err(gone @ RuntimeError::ZygoteGone { .. }) => {
                tracing::warn!(error = super::chain(&gone), "cleaning up with the delete command");
                self.run(&mut command).await
            }
            Err(source) => Err(TaskError::Runtime { operation: "delete", source }),
        }
    }

    /// Cleans up after shims of the same containerd that were killed. Whatever is left is tried
    /// again by the next shim.
    ///
    /// To look at every shim of the node takes a while, so of those that start in a burst one looks
    /// for all: [`BURST`] after its start, or once it ends (`ending`).
    pub async fn sweep(&self, socket: &Path, ending: impl Future) {
        let (containerd, socket) = (self.containerd.clone(), socket.to_owned());
        let adopt = move |registry: &Registry| {
            registry.lock()?.adopt(&socket, &containerd)?;
            registry.next_sweep(&containerd)
        };
        let Some(Some(next)) = self.look(adopt).await else { return };
        let _ = timeout(BURST, ending).await;
        // Whoever starts from now on has a look of its own.
        drop(next);
        let containerd = self.containerd.clone();
        let sweep = move |registry: &Registry| {
            registry.sweep(&containerd)?;
            Ok(!registry.abandoned(&containerd).is_empty())
        };
        if self.look(sweep).await == Some(true)
            && let Err(error) = self.run(&mut self.own_command("sweep", "-", None)).await
        {
            tracing::warn!(error = super::chain(&error), "cannot clean up after dead shims");
        }
    }

    /// Answers with what is found; `None`: nothing could be, and the log says why.
    async fn look<T, F>(&self, look: F) -> Option<T>
    where
        T: Send + 'static,
        F: FnOnce(&Registry) -> Result<T, RegistryError> + Send + 'static,
    {
        let registry = self.registry.clone();
        let found = blocking(move || look(&registry)).await.map_err(TaskError::Thread);
        let found = found.and_then(|found| found.map_err(TaskError::Registry));
        found.inspect_err(|error| tracing::warn!(error = super::chain(error), "cannot find what dead shims left")).ok()
    }

    fn delete_command(&self, delete: &protocol::Delete) -> Command {
        self.own_command("delete", &delete.id, Some(&delete.bundle))
    }

    fn own_command(&self, action: &str, id: &str, bundle: Option<&Path>) -> Command {
        // The running program, not what an upgrade may have put in its place.
        let mut command = Command::new("/proc/self/exe");
        command.args(["-namespace", &self.namespace, "-address", &self.containerd, "-id", id]);
        if let Some(bundle) = bundle {
            command.arg("-bundle").arg(bundle);
        }
        command.arg(action).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    async fn run(&self, command: &mut Command) -> Result<(), TaskError> {
        let expectation = self.reaper.expect();
        // The reaper waits for it, not the standard library.
        let child = command.spawn().map_err(TaskError::DeleteCommand)?;
        let exit = expectation.claim(i32::try_from(child.id()).unwrap_or_default());
        drop(expectation);
        match exit.await {
            Ok(exit) if exit.status == 0 => Ok(()),
            Ok(exit) => Err(TaskError::DeleteCommandFailed { status: exit.status }),
            Err(_) => Err(TaskError::Ending),
        }
    }
}
