//! The mediator's mount namespace: all that it can ever open.
//!
//! - For writing: device nodes of its cards, `nvidiactl`, `nvidia-uvm`; for simulated cards the
//!   directory that has them.
//! - Read-only: the timetables; the status files of neighbours' mediators (`STATE_DIR/inject`);
//!   `/proc/self/fdinfo`.
//!
//! It has no link that leads out, as `/proc/PID/root` and `/proc/PID/fd` would. The mediator's own
//! status goes to files that it has opened before.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    unistd::{chdir, chroot, pivot_root},
};

/// File or directory of the host that is visible in the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VisiblePath {
    /// Its path on the host.
    pub(super) source: PathBuf,
    /// Its path in the namespace.
    pub(super) target: PathBuf,
    pub(super) is_read_only: bool,
}

impl VisiblePath {
    /// Makes a path visible under its name on the host, for writing.
    pub(super) fn writable(path: PathBuf) -> Self {
        Self { target: path.clone(), source: path, is_read_only: false }
    }

    /// Makes a path visible under its name on the host, read-only.
    pub(super) fn read_only(path: PathBuf) -> Self {
        Self { target: path.clone(), source: path, is_read_only: true }
    }

    /// Makes the directory of this process's open files visible, read-only.
    pub(super) fn fdinfo() -> Self {
        let source = PathBuf::from(format!("/proc/{}/fdinfo", std::process::id()));
        Self { source, target: PathBuf::from("/proc/self/fdinfo"), is_read_only: true }
    }
}

/// Moves the calling process, which must have one thread, to a mount namespace with nothing but
/// these paths, as far as they exist.
///
/// `new_root` is any directory: the new root is mounted over it.
pub(super) fn enter(new_root: &Path, visible: &[VisiblePath]) -> io::Result<()> {
    // The library caches what it reads of /proc/self/auxv, and works without.
    let _ = rustix::param::page_size();
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts made here are not propagated to the host.
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    // Opened before anything is mounted over them.
    let mut opened = Vec::new();
    for visible in visible {
        opened.extend(open(&visible.source)?.map(|file| (file, visible)));
    }
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("egpu"), new_root, Some("tmpfs"), plain, Some("size=64k,nr_inodes=256,mode=755"))?;
    for (file, visible) in &opened {
        let target = new_root.join(visible.target.strip_prefix("/").unwrap_or(&visible.target));
        make(&target, file.metadata()?.is_dir())?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        mount(Some(source.as_str()), &target, nothing, MsFlags::MS_BIND, nothing)?;
        if visible.is_read_only {
            let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | plain;
            mount(nothing, &target, nothing, read_only, nothing)?;
        }
    }
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | plain;
    mount(nothing, new_root, nothing, read_only, nothing)?;
    make_root(new_root)
}

/// Opens a path; `None`: it does not exist.
fn open(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a file or directory to mount on.
fn make(target: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        return fs::create_dir_all(target);
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    File::create(target).map(drop)
}

fn make_root(new_root: &Path) -> io::Result<()> {
    chdir(new_root)?;
    match pivot_root(".", ".") {
        // The former root is mounted over the new one.
        Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
        // The initial RAM file system cannot be left so. It stays mounted, where no path leads to
        // it.
        Err(nix::Error::EINVAL) => {
            mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
            chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    chdir("/")?;
    Ok(())
}
