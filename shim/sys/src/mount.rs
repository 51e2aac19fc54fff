//! Attributes of mounts.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

/// A change of a mount's attributes (`MOUNT_ATTR_*`), propagation (one of `MS_PRIVATE`, ...), or id
/// mapping.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct MountAttributes {
    /// Attributes that it gets.
    pub set: u64,
    /// Attributes that it loses. They go first.
    pub cleared: u64,
    /// 0 leaves it.
    pub propagation: u64,
}

/// Changes a mount, attached or not, or it and all below it. Kernel 5.12; CAP_SYS_ADMIN.
pub fn set_mount_attributes(mount: BorrowedFd<'_>, recursive: bool, change: MountAttributes) -> io::Result<()> {
    let MountAttributes { set: attr_set, cleared: attr_clr, propagation } = change;
    mount_setattr(mount, recursive, &libc::mount_attr { attr_set, attr_clr, propagation, userns_fd: 0 })
}

/// Maps the owners of a mount's files as a user namespace maps ids; likewise. The mount must not be
/// attached yet.
pub fn map_mount_ids(mount: BorrowedFd<'_>, recursive: bool, user_namespace: impl AsFd) -> io::Result<()> {
    let userns_fd = u64::from(user_namespace.as_fd().as_raw_fd().unsigned_abs());
    let attr_set = libc::MOUNT_ATTR_IDMAP;
    mount_setattr(mount, recursive, &libc::mount_attr { attr_set, attr_clr: 0, propagation: 0, userns_fd })
}

pub(super) fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, change: &libc::mount_attr) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the kernel reads an empty C string and one structure of the size that is given; both
    // live through the call.
    let answer = unsafe {
        let (fd, size) = (mount.as_raw_fd(), std::mem::size_of_val(change));
        libc::syscall(libc::SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw const *change, size)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
