//! Roots of the kernel's trees, so that tests can show a made-up machine.

use std::path::PathBuf;

/// Roots of the trees that discovery, health and the doctor read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// procfs, `/proc`.
    pub proc: PathBuf,
    /// sysfs, `/sys`.
    pub sys: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
    /// Configuration, `/etc`.
    pub etc: PathBuf,
    /// State of services, `/run`.
    pub run: PathBuf,
    /// The kernel's log, `/dev/kmsg`; a plain file with the same records will do.
    pub kernel_log: PathBuf,
}

impl Roots {
    /// This machine.
    pub fn host() -> Self {
        Self::under("/")
    }

    /// The same layout below `prefix`.
    pub fn under(prefix: impl Into<PathBuf>) -> Self {
        let prefix = prefix.into();
        Self {
            proc: prefix.join("proc"),
            sys: prefix.join("sys"),
            dev: prefix.join("dev"),
            etc: prefix.join("etc"),
            run: prefix.join("run"),
            kernel_log: prefix.join("dev/kmsg"),
        }
    }
}
