//! What is left of the mounts once init waits for its start, and nothing is made in them any more.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix_of_libcontainer::unistd::Pid;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};

use super::DEV;
use crate::helper::hook_namespaces::run_in_namespaces;
use crate::sys::{MountAttributes, set_mount_attributes};

/// Attributes that a mount has or lacks; no data of anybody's is changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// `readonlyPaths`, which libcontainer robs of setuid programs, devices and programs, too.
    pub(super) read_only: Vec<String>,
    /// `/dev` is to be read-only, in which init makes its console first.
    pub(super) dev: bool,
}

/// What a container's mounts lack still.
#[derive(Debug, thiserror::Error)]
#[error("cannot set the options of {path} in the container")]
struct SealError {
    path: String,
    #[source]
    source: io::Error,
}

impl Seal {
    fn is_empty(&self) -> bool {
        self.read_only.is_empty() && !self.dev
    }

    /// Does it for `init`, which is in its root. The error is its text.
    pub(crate) fn apply(&self, init: Pid) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt")).map(|file| file.ino());
        // The host's own mounts are nobody's to change.
        if self.is_empty() || namespace("self").map_err(text)? == namespace(&init.to_string()).map_err(text)? {
            return Ok(());
        }
        let root = File::open(format!("/proc/{init}/root")).map_err(text)?;
        let table = Table::parse(&fs::read_to_string(format!("/proc/{init}/mountinfo")).map_err(text)?);
        run_in_namespaces(init, |_| {
            let failed = |path: &str| {
                let path = path.to_owned();
                move |source| SealError { path, source }
            };
            rustix::process::fchdir(&root)
                .and_then(|()| rustix::process::chroot("."))
                .map_err(|e| failed("/")(e.into()))?;
            self.read_only.iter().try_for_each(|path| table.give_back(path).map_err(failed(path)))?;
            self.make_dev_read_only().map_err(failed(DEV))
        })
    }

    fn make_dev_read_only(&self) -> io::Result<()> {
        let Some(dev) = mount_at(DEV)?.filter(|_| self.dev) else { return Ok(()) };
        let change = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
        set_mount_attributes(dev.as_fd(), false, change)
    }
}

/// The top mount at a path, if there is something.
fn mount_at(path: &str) -> io::Result<Option<OwnedFd>> {
    match rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(mount) => Ok(Some(mount)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Mounts by their ids: the one below, and the flags.
struct Table(HashMap<u64, (u64, String)>);

impl Table {
    /// Of lines as `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw`.
    fn parse(mountinfo: &str) -> Self {
        let line = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            Some((fields.first()?.parse().ok()?, (fields.get(1)?.parse().ok()?, (*fields.get(5)?).to_owned())))
        };
        Self(mountinfo.lines().filter_map(line).collect())
    }

    /// Takes those flags from a read-only path that the mount does not have which is bound there.
    fn give_back(&self, path: &str) -> io::Result<()> {
        const FLAGS: [(&str, u64); 3] = [
            ("nosuid", libc::MOUNT_ATTR_NOSUID),
            ("nodev", libc::MOUNT_ATTR_NODEV),
            ("noexec", libc::MOUNT_ATTR_NOEXEC),
        ];
        let Some(mount) = mount_at(path)? else { return Ok(()) };
        let id = statx(&mount, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
        let below = self.0.get(&id).and_then(|(below, _)| self.0.get(below));
        let Some((_, flags)) = below else { return Ok(()) };
        let lacks = |name: &str| !flags.split(',').any(|flag| flag == name);
        let cleared = FLAGS.iter().filter(|(name, _)| lacks(name)).fold(0, |all, (_, flag)| all | flag);
        set_mount_attributes(mount.as_fd(), false, MountAttributes { cleared, ..Default::default() })
    }
}
