//! Signals to every process of the cgroup.

use std::{io, os::fd::AsFd, path::Path, time::Duration};

use nix::{libc, sys::signal::Signal, unistd::Pid};

use super::{Cgroup, CgroupError, Layout, files};
use crate::sys;

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
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(source) => failure = Some(CgroupError::Signal { signal, pid, source }),
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

/// By pidfd, which takes real-time signals too (an init's `SIGRTMIN+3`).
fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    sys::pidfd_send_signal(sys::pidfd_open(pid)?.as_fd(), signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing::{self, RealCgroup};

    const STUBBORN: &str = "trap '' TERM; while :; do sleep 1000; done";
    const CONTROLLERS: &[&str] = &["freezer", "pids", "memory"];

    async fn ends_all_nested_and_frozen(mut real: RealCgroup) {
        real.spawn("", STUBBORN);
        real.spawn("nested/deeper", STUBBORN);
        assert!(real.cgroup.pids().unwrap().len() >= 2);
        assert!(!real.cgroup.is_empty().unwrap());
        real.cgroup.freeze().await.unwrap();
        real.cgroup.kill_all().await.unwrap();
        assert_eq!(real.wait(), [Some(9), Some(9)]);
        testing::at_last(async || real.cgroup.remove().await).await;
        assert!(real.cgroup.is_gone());
        // Once gone, there is nothing to do and nothing to complain about.
        real.cgroup.kill_all().await.unwrap();
        real.cgroup.remove().await.unwrap();
        assert!(real.cgroup.is_empty().unwrap());
    }

    #[tokio::test]
    async fn v1_ends_all_nested_and_frozen() {
        if let Some(real) = RealCgroup::v1("kill", CONTROLLERS) {
            ends_all_nested_and_frozen(real).await;
        }
    }

    #[tokio::test]
    async fn v2_ends_all_nested_and_frozen() {
        if let Some(real) = RealCgroup::v2("kill") {
            ends_all_nested_and_frozen(real).await;
        }
    }

    #[tokio::test]
    async fn without_a_freezer_forking_processes_are_chased() {
        if let Some(mut real) = RealCgroup::v1("chase", &["pids"]) {
            // Not without an end: nothing says how soon it is killed.
            real.spawn("", "i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i+1)); done; exec sleep 1000");
            testing::at_last(async || real.cgroup.destroy().await).await;
            assert_eq!(real.wait(), [Some(9)]);
        }
    }

    #[tokio::test]
    async fn a_real_time_signal_reaches_everybody_and_a_pause_lasts() {
        let Some(mut real) = RealCgroup::v1("signal", CONTROLLERS) else { return };
        real.spawn("", "exec sleep 1000");
        real.spawn("nested", "exec sleep 1000");
        real.cgroup.freeze().await.unwrap();
        real.cgroup.signal_all(nix::libc::SIGRTMIN() + 3).await.unwrap();
        assert!(real.cgroup.is_frozen().unwrap());
        real.cgroup.thaw().await.unwrap();
        assert_eq!(real.wait(), [Some(nix::libc::SIGRTMIN() + 3); 2]);
    }

    #[tokio::test]
    async fn a_cgroup_that_holds_the_caller_is_left_alone() {
        let own = std::process::id().to_string();
        let shared = testing::directory(&[("cgroup.procs", &own), ("cgroup.kill", "")]);
        let error = testing::v2(shared.path()).kill_all().await.unwrap_err();
        assert!(matches!(error, CgroupError::HoldsSelf { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(shared.path().join("cgroup.kill")).unwrap(), "");
    }

    #[tokio::test]
    async fn removal_fails_while_a_process_lives() {
        if let Some(mut real) = RealCgroup::v1("busy", &["pids"]) {
            real.spawn("", STUBBORN);
            let error = real.cgroup.remove().await.unwrap_err();
            assert!(matches!(error, CgroupError::Remove { .. }), "{error}");
        }
    }
}
