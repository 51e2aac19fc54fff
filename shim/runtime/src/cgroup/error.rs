//! Errors of cgroups.

use std::{io, path::PathBuf};

/// A container's cgroup that was not found.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// A file of `/proc` could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The process is in no cgroup that ends in the container's path.
    #[error("process {pid} is in no cgroup that ends in {expected:?}: /proc/{pid}/cgroup has {found}")]
    NotInContainer {
        /// The process.
        pid: i32,
        /// The end of the container's path.
        expected: PathBuf,
        /// The paths it is in.
        found: String,
    },
    /// A host on which neither version is mounted.
    #[error("no cgroup file system is mounted; mount cgroup2 at /sys/fs/cgroup")]
    NotMounted,
    /// `linux.cgroupsPath` of the spec cannot be used.
    #[error("cgroupsPath {path:?} is not usable: {reason}")]
    BadPath {
        /// The path in the spec.
        path: PathBuf,
        /// The fault, and what is accepted.
        reason: &'static str,
    },
}

/// An operation on a cgroup that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A control file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A directory could not be made.
    #[error("cannot make the cgroup {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A control file did not take a value.
    #[error("cannot write {value:?} to {}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    /// A watch for a change of a control file could not be set up.
    #[error("cannot watch {}", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The kernel did not bring every process to a stop.
    #[error(
        "the processes in {} did not freeze within {waited_ms} ms and were thawed again; one of them may be stuck in \
         the kernel (state D in ps)",
        path.display()
    )]
    NotFrozen {
        /// The cgroup.
        path: PathBuf,
        /// The time that was waited.
        waited_ms: u128,
    },
    /// The controller is not there.
    #[error("this host has no {controller} cgroup controller for the container")]
    NoController { controller: &'static str },
    /// The cgroup is not the container's alone.
    #[error("cgroup {} holds this process itself; refusing to signal what is in it", path.display())]
    HoldsSelf { path: PathBuf },
    /// A process could not be sent a signal.
    #[error("cannot send signal {signal} to process {pid}")]
    Signal {
        /// Number.
        signal: i32,
        /// The process.
        pid: i32,
        #[source]
        source: io::Error,
    },
    /// Directories that would not go.
    #[error("cannot remove cgroup {}", path.display())]
    Remove {
        /// The first of them.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}
