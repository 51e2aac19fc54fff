//! The one place that waits for child processes.
//!
//! The shim's children are the containers' processes, the helper and its workers, log drivers, and
//! strays that it adopts as subreaper. Exits go by pid, and a pid means something only while the
//! process is unreaped. So, while an operation that makes a process is under way, nobody but known
//! children is reaped: a process that ends before its pid was known stays a zombie until it is
//! claimed, and its pid cannot be taken for another's.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use rustix::{
    io::Errno,
    process::{Pid, WaitOptions, WaitStatus, wait, waitpid},
};
use sys::sync::lock;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::timeout,
};

/// A signal comes through a socket of tokio's, and is lost where the kernel lacks memory for that.
const RECHECK: Duration = Duration::from_secs(10);

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessExit {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub status: u32,
    /// The instant at which the shim learned of it.
    pub at: SystemTime,
}

/// Reaps every child and notifies those who wait.
#[derive(Debug, Default)]
pub struct Reaper {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    claimed: HashMap<i32, oneshot::Sender<ProcessExit>>,
    /// Operations under way that will make a child.
    expecting: usize,
}

impl Reaper {
    /// Reaps on every SIGCHLD, and now and then, for as long as it is polled. Register it before
    /// the first child can end.
    pub fn run(self: Arc<Self>) -> std::io::Result<impl Future<Output = ()>> {
        let mut child_ended = signal(SignalKind::child())?;
        Ok(async move {
            while !matches!(timeout(RECHECK, child_ended.recv()).await, Ok(None)) {
                self.reap();
            }
        })
    }

    /// Returns a guard to be held while a child is made, until it is claimed or known not to exist.
    pub fn expect(self: &Arc<Self>) -> Expectation {
        lock(&self.table).expecting += 1;
        Expectation { reaper: Arc::clone(self) }
    }

    fn reap(&self) {
        let mut table = lock(&self.table);
        if table.expecting == 0 {
            while let Some((pid, status)) = reaped(|| wait(WaitOptions::NOHANG)) {
                table.deliver(pid, status);
            }
        } else {
            let claimed: Vec<i32> = table.claimed.keys().copied().collect();
            for pid in claimed {
                table.reap_one(pid);
            }
        }
    }
}

impl Table {
    fn reap_one(&mut self, pid: i32) {
        if let Some((pid, status)) = reaped(|| waitpid(Pid::from_raw(pid), WaitOptions::NOHANG)) {
            self.deliver(pid, status);
        }
    }

    fn deliver(&mut self, pid: i32, status: WaitStatus) {
        // A child that nobody claims is a worker or a stray: reaping it was all.
        if let Some(waiter) = self.claimed.remove(&pid) {
            // Whoever claimed it may have lost interest.
            let _ = waiter.send(ProcessExit { status: exit_status(status), at: SystemTime::now() });
        }
    }
}

/// Reaps one status, if there is one. The kernel hands each out once, so a caller's loop ends.
fn reaped(mut call: impl FnMut() -> rustix::io::Result<Option<(Pid, WaitStatus)>>) -> Option<(i32, WaitStatus)> {
    loop {
        match call() {
            Ok(answer) => return answer.map(|(pid, status)| (pid.as_raw_nonzero().get(), status)),
            Err(Errno::INTR) => {}
            // ECHILD: there are no children.
            Err(_) => return None,
        }
    }
}

/// The shell's convention, which containerd uses too.
fn exit_status(status: WaitStatus) -> u32 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    // Only ended processes are waited for, so there is one of the two.
    code.and_then(|code| u32::try_from(code).ok()).unwrap_or(255)
}

/// A guard that keeps the exits of unknown children; see [`Reaper::expect`].
#[derive(Debug)]
pub struct Expectation {
    reaper: Arc<Reaper>,
}

impl Expectation {
    /// Asks for the exit of a child that was made under this expectation. It may have ended
    /// already.
    pub fn claim(&self, pid: i32) -> oneshot::Receiver<ProcessExit> {
        let (waiter, exit) = oneshot::channel();
        let mut table = lock(&self.reaper.table);
        table.claimed.insert(pid, waiter);
        table.reap_one(pid);
        exit
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        let last = {
            let mut table = lock(&self.reaper.table);
            table.expecting -= 1;
            table.expecting == 0
        };
        if last {
            // Whoever ended meanwhile has raised SIGCHLD before.
            self.reaper.reap();
        }
    }
}
