//! A read-only `/dev`, once init has made its console in it.

use std::{fs::File, io};

use nix_of_libcontainer::unistd::Pid;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{DEV, MountPlan, tree};
use crate::{hook_namespaces::run_in_namespaces, namespaces};

impl MountPlan {
    /// Makes `/dev` read-only for `init`, which waits for its start in its root. The error is its
    /// text.
    pub(crate) fn seal(&self, init: Pid) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        // The host's own mounts are nobody's to change.
        if !self.seals_dev() || namespaces::is_shared_with(init, "mnt").map_err(text)? {
            return Ok(());
        }
        let root = File::open(format!("/proc/{init}/root")).map_err(text)?;
        run_in_namespaces(init, |_| -> io::Result<()> {
            rustix::process::fchdir(&root)?;
            rustix::process::chroot(".")?;
            let dev = openat(CWD, DEV, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            tree::make_read_only(&dev)
        })
    }

    fn seals_dev(&self) -> bool {
        self.has_console && self.made.iter().any(|made| made.is_dev() && made.options.is_read_only())
    }
}
