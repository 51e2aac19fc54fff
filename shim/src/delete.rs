//! The `delete` command: containerd calls it when a shim is gone, to clean up what it left, and at
//! the end of each container of a group. It works from the bundle alone, and finds nothing to do
//! where the shim has done its work.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use containerd_shim::protos::api::DeleteResponse;
use ledger::{ContainerKey, ReleaseReason};
use protobuf::{Message, MessageField};
use runtime::{RuntimeClient, RuntimeError, Zygote, cgroup::CgroupError, protocol};
use runtime_config::config::ConfigError;
use rustix::{io::Errno, process::WaitOptions};
use sys::spans;

use crate::{
    args::Identity,
    bundle::{self, BundleError, Note, SpecView},
    gpu::{self, GpuError, NotedGrant},
    logging,
    registry::{Claim, Registry, RegistryError, kill_orphaned_workers},
    task::chain,
};

/// Exit status of SIGKILL in the shell's convention, as containerd's own shim answers.
const KILLED: u32 = 128 + libc::SIGKILL.unsigned_abs();

/// A container of which something is left.
#[derive(Debug, thiserror::Error)]
pub enum DeleteCommandError {
    /// The configuration, which says where the notes are.
    #[error("the configuration cannot be read, and the bundle does not say what to clean up")]
    Config(#[source] Box<ConfigError>),
    /// No working directory and no `-bundle`.
    #[error("the bundle is not known: no -bundle, and no working directory")]
    NoBundle(#[source] io::Error),
    /// The note outside the bundle.
    #[error("cannot read the container's records")]
    Registry(#[source] RegistryError),
    /// The note in the bundle.
    #[error("the bundle cannot be used")]
    Bundle(#[source] BundleError),
    #[error("the helper cannot be started")]
    Runtime(#[source] io::Error),
    /// State and mounts.
    #[error("the container's state and mounts cannot be removed")]
    Remove(#[source] RuntimeError),
    #[error("the container's cgroup cannot be removed")]
    Cgroup(#[source] CgroupError),
    /// The grant.
    #[error("the container's grant cannot be given back")]
    Gpu(#[source] GpuError),
    #[error("cannot answer containerd on stdout")]
    Answer(#[source] io::Error),
}

/// Answers for a container that its shim has deleted, as it does for every container but those of
/// shims that were killed: nothing is left of it. Returns `false` where `delete` has to look.
///
/// # Errors
/// When containerd cannot be answered.
pub fn answer_deleted(identity: &Identity, bundle: Option<&Path>) -> Result<bool, DeleteCommandError> {
    // containerd runs it in the bundle.
    let bundle = bundle.unwrap_or(Path::new("."));
    // What cannot be read is for `delete` to complain about.
    let Ok(Some(note)) = Note::read_deleted(bundle) else { return Ok(false) };
    logging::to_stderr(identity.debug);
    let socket = socket(identity, bundle);
    // The shim removes its socket itself, unless it was killed since.
    if socket.exists()
        && let Ok(registry) = Registry::of_this_node()
    {
        remove_if_dead(&registry, &socket);
    }
    answer(&note)?;
    Ok(true)
}

/// Runs `delete`. `zygote` was forked before the first thread.
pub async fn delete(identity: &Identity, bundle: Option<PathBuf>, zygote: Zygote) -> Result<(), DeleteCommandError> {
    let bundle = match bundle {
        Some(bundle) => bundle,
        None => std::env::current_dir().map_err(DeleteCommandError::NoBundle)?,
    };
    let runtime = RuntimeClient::new(zygote).map_err(DeleteCommandError::Runtime)?;
    let registry = match Registry::of_this_node() {
        Ok(registry) => registry,
        Err(error) => {
            // What is outside the bundle, the next sweep removes.
            let note = Note::read(&bundle).map_err(DeleteCommandError::Bundle)?;
            let note = note.ok_or_else(|| DeleteCommandError::Config(Box::new(error)))?;
            let cleaned = clean(&Note { bundle, ..note.clone() }, &runtime).await;
            end(runtime);
            cleaned?;
            return answer(&note);
        }
    };
    // Held until the end: nobody else cleans up after the container meanwhile.
    let claim =
        registry.claim(&identity.address, &identity.namespace, &identity.id).map_err(DeleteCommandError::Registry)?;
    let (noted, lock) = claim.map(|Claim { note, lock }| (note, lock)).unzip();
    let note = note(identity, &bundle, &registry, noted)?;
    let cleaned = clean(&note, &runtime).await;
    if cleaned.is_ok() {
        registry.remove_note(&note.containerd, &note.namespace, &note.id);
    }
    drop(lock);
    remove_dead_sockets(identity, &bundle, &registry);
    end(runtime);
    cleaned?;
    answer(&note)
}

/// Runs `sweep`: does what `delete` does for every container of this containerd whose shim is gone,
/// and removes the sockets of such shims. Goes on where one cannot be cleaned up; the first failure
/// is returned.
pub async fn sweep(identity: &Identity, zygote: Zygote) -> Result<(), DeleteCommandError> {
    let runtime = RuntimeClient::new(zygote).map_err(DeleteCommandError::Runtime)?;
    let registry = Registry::of_this_node().map_err(|error| DeleteCommandError::Config(Box::new(error)))?;
    let mut result = Ok(());
    for found in registry.abandoned(&identity.address) {
        let cleaned = match registry.claim(&found.containerd, &found.namespace, &found.id) {
            // Looked at once more under the lock: the name may be another container's by now.
            Ok(Some(Claim { note: Ok(note), lock: _lock })) if note.is_abandoned() => {
                clean(&note, &runtime).await.inspect(|()| {
                    tracing::info!(container = found.id, "cleaned up after a shim that was killed");
                    registry.remove_note(&found.containerd, &found.namespace, &found.id);
                })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(DeleteCommandError::Registry(error)),
        };
        result = result.and(cleaned);
    }
    end(runtime);
    result
}

/// Ends the helper by closing its socket. It and its workers are waited for, or whoever adopts them
/// would have to.
fn end(runtime: RuntimeClient) {
    drop(runtime);
    while !matches!(rustix::process::wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
}

/// Returns the shim's note, or, if it died before it wrote one, what it would have noted. Of its
/// two copies, the one in the bundle and the one that the registry has (`noted`), either suffices:
/// containerd may have removed the bundle, and a copy may be damaged.
fn note(
    identity: &Identity,
    bundle: &Path,
    registry: &Registry,
    noted: Option<Result<Note, RegistryError>>,
) -> Result<Note, DeleteCommandError> {
    match (Note::read(bundle), noted) {
        (Ok(Some(note)), _) => return Ok(Note { bundle: bundle.to_owned(), ..note }),
        (unreadable, Some(Ok(note))) => {
            if let Err(error) = unreadable {
                tracing::warn!(error = chain(&error), "the bundle's note is damaged; the registry's is used");
            }
            return Ok(note);
        }
        (Err(error), _) => return Err(DeleteCommandError::Bundle(error)),
        (Ok(None), Some(Err(error))) => return Err(DeleteCommandError::Registry(error)),
        (Ok(None), None) => {}
    }
    // Without a note nothing was begun; a bundle without a spec is as good as none.
    let spec = SpecView::read(bundle).unwrap_or_default();
    Ok(Note {
        id: identity.id.clone(),
        namespace: identity.namespace.clone(),
        containerd: identity.address.clone(),
        bundle: bundle.to_owned(),
        shim: None,
        runtime_root: bundle::runtime_root(&registry.runtime_base(), &identity.address, &identity.namespace),
        cgroups_path: spec.cgroups_path().map(Path::to_owned),
        systemd_cgroup: false,
        cgroup: None,
        init_pid: None,
        without_gpu: None,
        grant: NotedGrant::default(),
        egpu_version: None,
    })
}

/// Kills first, so that nothing holds what is removed then; the grant goes back last, when nobody
/// is left to use it.
///
/// Without a cgroup in the note the create did not come to its end. The helper's own state then
/// shows whether there is a cgroup; the path in the spec does not show whose it is.
async fn clean(note: &Note, runtime: &RuntimeClient) -> Result<(), DeleteCommandError> {
    if let Some(shim) = &note.shim {
        kill_orphaned_workers(shim);
    }
    if let Some(cgroup) = &note.cgroup {
        cgroup.kill_all().await.map_err(DeleteCommandError::Cgroup)?;
    }
    let delete =
        protocol::Delete { id: note.id.clone(), runtime_root: note.runtime_root.clone(), bundle: note.bundle.clone() };
    let removed = runtime.delete(delete).await.map_err(DeleteCommandError::Remove);
    if let Some(cgroup) = &note.cgroup {
        cgroup.destroy().await.map_err(DeleteCommandError::Cgroup)?;
    }
    removed?;
    let key =
        ContainerKey { containerd: note.containerd.clone(), namespace: note.namespace.clone(), id: note.id.clone() };
    let grant = note.grant.of(&key, &note.bundle).map_err(DeleteCommandError::Gpu)?;
    gpu::release(runtime, key, grant.as_ref(), ReleaseReason::Ended).await.map_err(DeleteCommandError::Gpu)
}

/// Removes the socket of a dead shim, and those of other dead shims of this containerd. The socket
/// of a group outlives its members as long as the group's shim does.
fn remove_dead_sockets(identity: &Identity, bundle: &Path, registry: &Registry) {
    remove_if_dead(registry, &socket(identity, bundle));
    if let Err(error) = registry.sweep(&identity.address) {
        tracing::warn!(error = chain(&error), "sockets of dead shims may be left");
    }
}

/// Returns the shim's socket. containerd may have removed the bundle already; the socket is then
/// where it usually is.
fn socket(identity: &Identity, bundle: &Path) -> PathBuf {
    let address = bundle::read_socket_address(bundle).unwrap_or_else(|| {
        let spec = SpecView::read(bundle).unwrap_or_default();
        containerd_shim::socket_address(&identity.address, &identity.namespace, spec.group(&identity.id))
    });
    PathBuf::from(address.strip_prefix("unix://").unwrap_or(&address))
}

fn remove_if_dead(registry: &Registry, socket: &Path) {
    if let Err(error) = registry.remove_dead(socket) {
        tracing::warn!(error = chain(&error), "a dead shim's socket may be left");
    }
}

fn answer(note: &Note) -> Result<(), DeleteCommandError> {
    spans::mark("delete command answers", &note.id);
    let answer = DeleteResponse {
        pid: note.init_pid.map_or(0, i32::unsigned_abs),
        exit_status: KILLED,
        exited_at: MessageField::some(SystemTime::now().into()),
        ..Default::default()
    };
    let bytes = answer.write_to_bytes().map_err(|error| DeleteCommandError::Answer(error.into()))?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes).and_then(|()| stdout.flush()).map_err(DeleteCommandError::Answer)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn either_copy_of_a_note_suffices() {
        let directory = tempfile::tempdir().unwrap();
        let bundle = directory.path();
        let registry = Registry::at(bundle.join("state"));
        let text = include_str!("../fixtures/note-2.json");
        let whole: Note = serde_json::from_str(text).unwrap();
        let identity = Identity::default();
        let damaged =
            || Err(RegistryError { action: "read", path: "note".into(), source: io::ErrorKind::Other.into() });
        let read = |noted| note(&identity, bundle, &registry, noted).map(|note| note.id);

        fs::write(bundle.join("egpu.json"), text).unwrap();
        assert_eq!(read(Some(damaged())).unwrap(), whole.id);
        fs::write(bundle.join("egpu.json"), &text[..50]).unwrap();
        assert_eq!(read(Some(Ok(whole.clone()))).unwrap(), whole.id);
        assert!(matches!(read(Some(damaged())), Err(DeleteCommandError::Bundle(_))));
        assert!(matches!(read(None), Err(DeleteCommandError::Bundle(_))));
        fs::remove_file(bundle.join("egpu.json")).unwrap();
        assert!(matches!(read(Some(damaged())), Err(DeleteCommandError::Registry(_))));
        assert_eq!(read(None).unwrap(), identity.id, "nothing was begun");
    }
}
