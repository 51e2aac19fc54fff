//! A process named so that nobody else can be taken for it, and whether it is gone for certain.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use base::{Surroundings, process::stat};
use ledger::ProcessId;
use procfs_core::process::StatFlags;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use serde::{Deserialize, Serialize};

/// A process of this boot, of one process id namespace and one time namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInstance {
    boot_id: String,
    /// See [`Surroundings::pid_namespace`].
    pid_namespace: u64,
    process: ProcessId,
}

impl ProcessInstance {
    /// The calling process.
    pub fn current() -> io::Result<Self> {
        let Surroundings { boot_id, pid_namespace } = Surroundings::own()?;
        Ok(Self { boot_id: boot_id.clone(), pid_namespace: *pid_namespace, process: ProcessId::current()? })
    }

    /// Its pid; that of another process, perhaps, once it is gone.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns whether it is certain that the process has ended. An unknown state counts as alive.
    pub fn is_gone(&self) -> bool {
        let Ok(own) = Surroundings::own() else { return false };
        if own.boot_id != self.boot_id {
            return true;
        }
        if own.pid_namespace != self.pid_namespace {
            return false;
        }
        match stat(self.process.pid) {
            // The number is another's.
            Ok(found) if found.starttime != self.process.start_time => return true,
            // Of one that has ended, other threads may go on.
            Ok(found) if !matches!(found.state, 'Z' | 'X') => return false,
            _ => {}
        }
        match sys::pidfd_open(self.process.pid) {
            // The handle is held, so that the pid is not taken by another while its start is read.
            Ok(handle) => {
                let started = ProcessId::of(self.process.pid);
                started.is_ok_and(|found| found != self.process) || has_ended(&handle, Duration::ZERO)
            }
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        }
    }

    /// Returns whether the process has ended or is ending, waiting for the latter. A process that
    /// is killed closes its sockets before it has ended, so whoever learns of its death from them
    /// comes early.
    pub fn wait_for_exit(&self, patience: Duration) -> bool {
        if self.is_gone() {
            return true;
        }
        let Ok(handle) = sys::pidfd_open(self.process.pid) else { return self.is_gone() };
        is_exiting(self.process.pid) && has_ended(&handle, patience)
    }

    #[cfg(test)]
    pub(crate) fn gone_for_tests() -> Self {
        let own = Self::current().unwrap();
        Self { process: ProcessId { start_time: own.process.start_time + 1, ..own.process }, ..own }
    }

    #[cfg(test)]
    pub(crate) fn in_another_namespace_for_tests(self) -> Self {
        Self { pid_namespace: self.pid_namespace + 1, ..self }
    }
}

/// Waits until a process has ended, reaped or not; whether it has.
pub(crate) fn has_ended(handle: &OwnedFd, patience: Duration) -> bool {
    let timeout = Timespec { tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    loop {
        let handle = handle.as_fd();
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Tells by the kernel's flags of the main thread; `PF_EXITING` is set before its files are closed.
fn is_exiting(pid: i32) -> bool {
    stat(pid).is_ok_and(|stat| StatFlags::from_bits_retain(stat.flags).contains(StatFlags::PF_EXITING))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_gone_once_it_has_ended() {
        let own = ProcessInstance::current().unwrap();
        assert!(!own.is_gone());
        assert!(ProcessInstance::gone_for_tests().is_gone(), "another process with its pid");
        assert!(ProcessInstance { boot_id: "other".into(), ..own.clone() }.is_gone());
        assert!(!ProcessInstance::gone_for_tests().in_another_namespace_for_tests().is_gone(), "it cannot be told");
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = ProcessInstance { process: ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap(), ..own };
        assert!(!life.is_gone());
        let handle = sys::pidfd_open(life.pid()).unwrap();
        assert!(!has_ended(&handle, Duration::ZERO));
        assert!(!life.wait_for_exit(Duration::from_secs(60)), "it does not even begin to end");
        child.kill().unwrap();
        assert!(has_ended(&handle, Duration::from_secs(60)));
        assert!(life.is_gone(), "a zombie has ended");
        assert!(!is_exiting(nix::unistd::getpid().as_raw()));
        assert!(is_exiting(life.pid()));
        child.wait().unwrap();
        assert!(life.is_gone());
    }
}
