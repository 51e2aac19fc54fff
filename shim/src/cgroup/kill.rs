//! Signals to every process of the cgroup.

use std::{io, path::Path, time::Duration};

use nix::{
    errno::Errno,
    libc,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Cgroup, CgroupError, Layout, files};

/// A cgroup that does not freeze is signalled all the same, after this time.
const FREEZE_LIMIT: Duration = Duration::from_millis(500);
/// Passes over a cgroup that cannot be frozen and keeps forking.
const PASSES: usize = 100;

impl Cgroup {
    /// SIGKILL to every process of the cgroup and the cgroups below it, a frozen one included. Does not wait for
    /// their end. Succeeds when there is none.
    pub async fn kill_all(&self) -> Result<(), CgroupError> {
        if let Layout::V2 { directory, .. } = &self.layout {
            self.refuse_self(&self.pids()?)?;
            match files::write(&directory.join("cgroup.kill"), "1") {
                Ok(()) => return Ok(()),
                // Before 5.14 there is no such file; a threaded cgroup does not take it.
                Err(CgroupError::Write { source, .. })
                    if files::is_gone(&source) || source.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        let frozen = self.freeze_within(FREEZE_LIMIT).await.is_ok();
        let result = if frozen { self.send(Signal::SIGKILL as i32).map(drop) } else { self.chase() };
        // A v1 process dies only once it is thawed. Without a freezer there is nothing to thaw.
        if frozen && !self.is_gone() {
            self.thaw().await?;
        }
        result
    }

    /// A signal to every process of the cgroup and the cgroups below it, none missed that is forked meanwhile. A
    /// cgroup that was frozen stays so, and its processes get the signal when it is thawed. Number 9 is
    /// [`Cgroup::kill_all`].
    pub async fn signal_all(&self, signal: i32) -> Result<(), CgroupError> {
        if signal == Signal::SIGKILL as i32 {
            return self.kill_all().await;
        }
        let was_frozen = self.is_frozen().unwrap_or(false);
        let frozen = was_frozen || self.freeze_within(FREEZE_LIMIT).await.is_ok();
        let result = self.send(signal);
        if frozen && !was_frozen {
            self.thaw().await?;
        }
        result.map(drop)
    }

    /// Kills until a pass finds nobody: without a freezer, a process may fork between the listing and its end.
    fn chase(&self) -> Result<(), CgroupError> {
        for _ in 0..PASSES {
            if self.send(Signal::SIGKILL as i32)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Sends a signal to everybody who is listed now; answers to how many.
    fn send(&self, signal: i32) -> Result<usize, CgroupError> {
        let pids = self.pids()?;
        self.refuse_self(&pids)?;
        let mut sent = 0;
        let mut failure = None;
        for &pid in &pids {
            match send_signal(pid, signal) {
                Ok(()) => sent += 1,
                Err(Errno::ESRCH) => {}
                Err(errno) => failure = Some(CgroupError::Signal { signal, pid, source: io::Error::from(errno) }),
            }
        }
        failure.map_or(Ok(sent), Err)
    }

    /// A directory that holds the caller is not a container's. It never should be one here; better not to end the
    /// shim, and whatever runs beside it, than to trust that.
    fn refuse_self(&self, pids: &[i32]) -> Result<(), CgroupError> {
        let own = Pid::this().as_raw();
        if !pids.contains(&own) {
            return Ok(());
        }
        Err(CgroupError::HoldsSelf { path: self.directories().next().unwrap_or(Path::new("")).to_owned() })
    }
}

/// `kill(2)` with a bare number: real-time signals have no name in [`Signal`].
fn send_signal(pid: i32, signal: i32) -> Result<(), Errno> {
    match Signal::try_from(signal) {
        Ok(signal) => kill(Pid::from_raw(pid), signal),
        Err(errno) => Err(errno),
    }
}
