//! The way of an exec into its container: all namespaces at once, the mounts included, and no right
//! that the process is not given, before the container can see it.
//!
//! Whoever has a container's pid namespace sees the processes in it, and looks into them with
//! CAP_SYS_PTRACE. What it finds there must be the container's own.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd, RawFd},
        unix::fs::FileExt,
    },
    path::PathBuf,
    rc::Rc,
};

use libcontainer::process::args::ContainerArgs;
use nix::unistd::{chdir, setresgid, setresuid};
use nix_of_libcontainer::unistd::{close, dup2};
use oci_spec::runtime::LinuxNamespaceType;
use procfs_core::{FromRead as _, process::Stat};

use super::IntermediateError;
use crate::{namespaces, privileges};

/// Enters the container of `init` with the calling process, of which the next child is the exec.
/// Returns what is left for that to do.
pub(super) fn enter(args: &ContainerArgs, init: &OwnedFd) -> Result<ContainerArgs, IntermediateError> {
    let mut spec = (*args.spec).clone();
    let process = args.spec.process().as_ref().ok_or(IntermediateError::Missing("process"))?;
    take_streams(args).map_err(IntermediateError::Streams)?;
    namespaces::join_all(&spec, init.as_fd()).map_err(IntermediateError::Join)?;
    if namespaces::of(&spec, LinuxNamespaceType::User).is_some() {
        let root = || setresgid(0.into(), 0.into(), 0.into()).and_then(|()| setresuid(0.into(), 0.into(), 0.into()));
        root().map_err(IntermediateError::Root)?;
    }
    privileges::bound(process)?;
    let mut left = process.clone();
    // What root may enter and its user may not. Where that fails, libcontainer says so: /proc/self
    // is no directory yet.
    if chdir(process.cwd()).is_ok() {
        left.set_cwd(PathBuf::new());
    }
    privileges::drop_own(&args.spec, process, args.console_socket.is_some())?;
    spec.set_process(Some(left));
    if let Some(linux) = spec.linux_mut() {
        linux.set_namespaces(None);
    }
    Ok(ContainerArgs { spec: Rc::new(spec), stdin: None, stdout: None, stderr: None, ..args.clone() })
}

/// Overwrites arguments and environment: they are the shim's, and everybody in the pid namespace
/// may read the first.
pub(super) fn clear_command_line() -> io::Result<()> {
    let stat = Stat::from_file("/proc/self/stat").map_err(io::Error::other)?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    for (start, end) in [(stat.arg_start, stat.arg_end), (stat.env_start, stat.env_end)] {
        let (Some(start), Some(end)) = (start, end) else { return Err(io::ErrorKind::Unsupported.into()) };
        let length = usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?;
        memory.write_all_at(&vec![0; length], start)?;
    }
    Ok(())
}

/// Puts the process's streams into their places.
fn take_streams(args: &ContainerArgs) -> nix_of_libcontainer::Result<()> {
    let streams: [(Option<RawFd>, RawFd); 3] = [(args.stdin, 0), (args.stdout, 1), (args.stderr, 2)];
    for (stream, place) in streams {
        if let Some(stream) = stream {
            dup2(stream, place)?;
            close(stream)?;
        }
    }
    Ok(())
}
