//! Mounts that nobody but the worker sees.

use std::{fs::File, io};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, setns, unshare},
};

/// Does `work` in a mount namespace of its own, a copy of the host's. Of what it mounts there
/// nothing is left but what it keeps open (`open_tree`), also when the worker is killed.
pub(crate) fn with<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let host = File::open("/proc/self/ns/mnt")?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    let done = mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).map(|()| work());
    setns(host, CloneFlags::CLONE_NEWNS)?;
    // Workers have no other directory.
    nix::unistd::chdir("/")?;
    Ok(done?)
}
