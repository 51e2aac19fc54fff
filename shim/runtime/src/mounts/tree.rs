//! Trees of mounts that are attached nowhere: opened, attached, made read-only.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};
use sys::{MountAttributes, set_mount_attributes};

/// A copy of what is mounted at `path`, with all mounts below it if `recursive`.
pub(crate) fn open(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let all = if recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    Ok(open_tree(CWD, path, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | all)?)
}

/// Attaches it where `point` is open.
pub(crate) fn attach(tree: impl AsFd, point: impl AsFd) -> io::Result<()> {
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", point, "", both)?)
}

/// Its first mount; those below stay as they are.
pub(super) fn make_read_only(tree: impl AsFd) -> io::Result<()> {
    let change = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
    set_mount_attributes(tree.as_fd(), false, change)
}
