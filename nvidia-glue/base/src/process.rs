//! Names of processes.

use std::{
    fs::File,
    io::{self, ErrorKind, Read as _},
};

use procfs_core::{FromRead as _, process::Stat};
use serde::{Deserialize, Serialize};

/// A process (thread group) of the container, in the mediator's pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub i32);

/// A process named so that a reused pid cannot be taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id in the record's namespace.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`, clock ticks since boot as the reader's time namespace has it.
    pub start_time: u64,
}

impl ProcessId {
    /// The process that runs now under `pid`.
    ///
    /// # Errors
    /// `NotFound` where there is none, or what reading `/proc/PID/stat` failed with.
    pub fn of(pid: i32) -> io::Result<Self> {
        let stat = stat(pid)?;
        Ok(Self { pid, start_time: stat.starttime })
    }

    /// This process.
    ///
    /// # Errors
    /// As [`ProcessId::of`].
    pub fn current() -> io::Result<Self> {
        Self::of(nix::unistd::getpid().as_raw())
    }
}

/// `/proc/PID/stat`.
///
/// # Errors
/// `NotFound` where there is no such process, or what reading failed with.
pub fn stat(pid: i32) -> io::Result<Stat> {
    // Some fifty numbers. The kernel gives all in one piece.
    let mut text = [0; 2 << 10];
    let opened = File::open(format!("/proc/{pid}/stat"));
    match opened.and_then(|mut file| file.read(&mut text)) {
        Ok(length) => {
            let text = text.get(..length).unwrap_or_default();
            Stat::from_read(text).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
        }
        // The process ended between open and read.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Err(ErrorKind::NotFound.into()),
        Err(error) => Err(error),
    }
}
