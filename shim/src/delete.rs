//! The `delete` command: containerd calls it when a shim is gone, to clean up what it left, and at the end of each
//! container of a group. It works from the bundle alone, and finds nothing to do where the shim has done its work.

use std::{
    fs,
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::SystemTime,
};

use containerd_shim::protos::api::DeleteResponse;
use nvidia_glue::ledger::{ContainerKey, ReleaseReason};
use protobuf::{Message, MessageField};
use rustix::{io::Errno, process::WaitOptions};

use crate::{
    args::Identity,
    bundle::{self, BundleError, Note, SpecView},
    cgroup::CgroupError,
    gpu::{self, GpuError},
    helper::{HelperClient, HelperError, Zygote, protocol},
};

/// As the shell tells of SIGKILL, and as containerd's own shim answers.
const KILLED: u32 = 128 + libc::SIGKILL.unsigned_abs();

/// Why something is left.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// No working directory and no `-bundle`.
    #[error("the bundle is not known: no -bundle, and no working directory")]
    NoBundle(#[source] io::Error),
    /// The note in the bundle.
    #[error("the bundle cannot be used")]
    Bundle(#[source] BundleError),
    /// The helper.
    #[error("the helper cannot be started")]
    Helper(#[source] io::Error),
    /// State and mounts.
    #[error("the container's state and mounts cannot be removed")]
    Remove(#[source] HelperError),
    /// The cgroup.
    #[error("the container's cgroup cannot be removed")]
    Cgroup(#[source] CgroupError),
    /// The grant.
    #[error("the container's grant cannot be given back")]
    Gpu(#[source] GpuError),
    /// The answer.
    #[error("cannot answer containerd on stdout")]
    Answer(#[source] io::Error),
}

/// Runs `delete`. `zygote` was forked before the first thread.
pub async fn delete(identity: &Identity, bundle: Option<PathBuf>, zygote: Zygote) -> Result<(), DeleteError> {
    let bundle = match bundle {
        Some(bundle) => bundle,
        None => std::env::current_dir().map_err(DeleteError::NoBundle)?,
    };
    let helper = HelperClient::new(zygote).map_err(DeleteError::Helper)?;
    let note = note(identity, &bundle)?;
    let cleaned = clean(&note, &bundle, &helper).await;
    remove_dead_socket(identity, &bundle);
    // The helper ends with its socket. It and its workers are waited for, or whoever adopts them would have to.
    drop(helper);
    while !matches!(rustix::process::wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    cleaned?;
    answer(&note)
}

/// What the shim noted, or, if it died before it could, what it would have noted.
fn note(identity: &Identity, bundle: &Path) -> Result<Note, DeleteError> {
    if let Some(note) = Note::read(bundle).map_err(DeleteError::Bundle)? {
        return Ok(note);
    }
    // Without a note nothing was begun; a bundle without a spec is as good as none.
    let spec = SpecView::read(bundle).unwrap_or_default();
    Ok(Note {
        id: identity.id.clone(),
        namespace: identity.namespace.clone(),
        containerd: identity.address.clone(),
        runtime_root: bundle::runtime_root(Path::new(bundle::RUNTIME_BASE), &identity.address, &identity.namespace),
        cgroups_path: spec.cgroups_path().map(Path::to_owned),
        systemd_cgroup: false,
        cgroup: None,
        init_pid: None,
    })
}

/// Kills first, so that nothing holds what is removed then; the grant goes back last, when nobody is left to use it.
///
/// Without a cgroup in the note the create did not come to its end. The helper's own state then tells whether there is a
/// cgroup; the path in the spec does not tell whose it is.
async fn clean(note: &Note, bundle: &Path, helper: &HelperClient) -> Result<(), DeleteError> {
    if let Some(cgroup) = &note.cgroup {
        cgroup.kill_all().await.map_err(DeleteError::Cgroup)?;
    }
    let delete =
        protocol::Delete { id: note.id.clone(), runtime_root: note.runtime_root.clone(), bundle: bundle.to_owned() };
    let removed = helper.delete(delete).await.map_err(DeleteError::Remove);
    if let Some(cgroup) = &note.cgroup {
        cgroup.destroy().await.map_err(DeleteError::Cgroup)?;
    }
    removed?;
    let key =
        ContainerKey { containerd: note.containerd.clone(), namespace: note.namespace.clone(), id: note.id.clone() };
    gpu::release(&key, bundle, ReleaseReason::Ended).map_err(DeleteError::Gpu)
}

/// The socket of a group outlives its members as long as the group's shim does. containerd may have removed the bundle
/// already; the socket is then looked for where it usually is.
fn remove_dead_socket(identity: &Identity, bundle: &Path) {
    let address = bundle::read_socket_address(bundle).unwrap_or_else(|| {
        let spec = SpecView::read(bundle).unwrap_or_default();
        containerd_shim::socket_address(&identity.address, &identity.namespace, spec.group(&identity.id))
    });
    let path = Path::new(address.strip_prefix("unix://").unwrap_or(&address));
    let refused = matches!(UnixStream::connect(path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
    if refused && let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, socket = %path.display(), "a dead shim's socket could not be removed");
    }
}

fn answer(note: &Note) -> Result<(), DeleteError> {
    let answer = DeleteResponse {
        pid: note.init_pid.map_or(0, i32::unsigned_abs),
        exit_status: KILLED,
        exited_at: MessageField::some(SystemTime::now().into()),
        ..Default::default()
    };
    let bytes = answer.write_to_bytes().map_err(|error| DeleteError::Answer(error.into()))?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&bytes).and_then(|()| stdout.flush()).map_err(DeleteError::Answer)
}
