//! Sources of bind mounts.
//!
//! They are opened as the host's root, who reaches what the root of a user namespace need not
//! (kubelet's directories are 0750 root:root), but in the container's mount namespace, so that
//! flags which its user namespace may not take away are locked.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use nix::sched::{CloneFlags, unshare};
use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::LinuxIdMapping;
use sys::Forked;

use super::{Ids, MountKind, MountPlan, tree};

/// A source that cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// Missing, for one.
    #[error("cannot open {}, which is to be mounted at {}", path.display(), destination.display())]
    Open {
        path: PathBuf,
        destination: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The user namespace with a mount's mapping.
    #[error("cannot make the id mapping of the mount at {}", destination.display())]
    Mapping {
        destination: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel, or the file system.
    #[error(
        "cannot map the ids of {}, which is to be mounted at {}; EINVAL: its file system cannot do that on this kernel",
        path.display(), destination.display()
    )]
    Map {
        path: PathBuf,
        destination: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Trees of mounts that are attached nowhere, one for each bind mount in its order.
pub(crate) struct Sources(pub(super) Vec<OwnedFd>);

impl Sources {
    /// Opens them in the calling process's mount namespace. `init` is in the container's user
    /// namespace.
    pub(crate) fn open(mounts: &MountPlan, init: Pid) -> Result<Self, SourceError> {
        let mut trees = Vec::new();
        for planned in &mounts.planned {
            let MountKind::Bind { source: path, ids } = &planned.kind else { continue };
            let destination = || planned.destination.clone();
            let tree = tree::open(path, planned.options.is_recursive()).map_err(|source| SourceError::Open {
                path: path.clone(),
                destination: destination(),
                source,
            })?;
            if let Some(ids) = ids {
                let users = user_namespace(ids, init)
                    .map_err(|source| SourceError::Mapping { destination: destination(), source })?;
                sys::map_mount_ids(tree.as_fd(), planned.options.id_mapped == Some(true), users)
                    .map_err(|source| SourceError::Map { path: path.clone(), destination: destination(), source })?;
            }
            trees.push(tree);
        }
        Ok(Self(trees))
    }
}

fn user_namespace(ids: &Ids, init: Pid) -> io::Result<File> {
    match ids {
        Ids::OfContainer => File::open(format!("/proc/{init}/ns/user")),
        Ids::Own(uids, gids) => user_namespace_of(uids, gids),
    }
}

/// A user namespace without a process: nothing but its maps.
pub(crate) fn user_namespace_of(uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let (mut made, mut made_writer) = io::pipe()?;
    let (mut ended, ended_writer) = io::pipe()?;
    let child = match sys::fork()? {
        Forked::Parent { pid } => pid,
        Forked::Child => {
            drop(ended_writer);
            let signalled = unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from).and_then(|()| {
                made_writer.write_all(b"+")?;
                ended.read_to_end(&mut Vec::new())
            });
            sys::exit_now(i32::from(signalled.is_err()))
        }
    };
    drop((made_writer, ended));
    let file = made.read_exact(&mut [0]).and_then(|()| {
        fs::write(format!("/proc/{child}/uid_map"), map(uids))?;
        fs::write(format!("/proc/{child}/gid_map"), map(gids))?;
        File::open(format!("/proc/{child}/ns/user"))
    });
    drop(ended_writer);
    nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None)?;
    file
}

/// Returns the text of a map, as the kernel reads it.
fn map(mappings: &[LinuxIdMapping]) -> String {
    let line = |one: &LinuxIdMapping| format!("{} {} {}\n", one.container_id(), one.host_id(), one.size());
    mappings.iter().map(line).collect()
}
