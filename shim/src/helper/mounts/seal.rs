//! A read-only `/dev`, once init has made its console in it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix_of_libcontainer::unistd::Pid;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{DEV, Mounts};
use crate::helper::hook_namespaces::run_in_namespaces;
use crate::sys::{MountAttributes, set_mount_attributes};

impl Mounts {
    /// Makes it read-only for `init`, which waits for its start in its root. The error is its text.
    pub(crate) fn seal(&self, init: Pid) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/mnt")).map(|file| file.ino());
        // The host's own mounts are nobody's to change.
        if !self.seals_dev() || namespace("self").map_err(text)? == namespace(&init.to_string()).map_err(text)? {
            return Ok(());
        }
        let root = File::open(format!("/proc/{init}/root")).map_err(text)?;
        run_in_namespaces(init, |_| -> io::Result<()> {
            rustix::process::fchdir(&root)?;
            rustix::process::chroot(".")?;
            let dev = openat(CWD, DEV, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let change = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
            set_mount_attributes(dev.as_fd(), false, change)
        })
    }

    fn seals_dev(&self) -> bool {
        self.has_console && self.made.iter().any(|made| made.is_dev() && made.options.is_read_only())
    }
}
