//! Signals to every process of the cgroup.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::Duration,
};

use base::cgroup_tree;
use nix::{libc, sys::signal::Signal, unistd::Pid};

use super::{Cgroup, CgroupError, Layout, files};

/// A cgroup that does not freeze is signalled all the same, after this time.
const FREEZE_LIMIT: Duration = Duration::from_millis(500);
/// Passes over a cgroup that cannot be frozen and keeps forking.
const PASSES: usize = 100;
/// Processes of which a handle is held at once. They are all looked for once more after that.
const HANDLES: usize = 64;

impl Cgroup {
    /// SIGKILL to every process of the cgroup and the cgroups below it, a frozen one included. Does
    /// not wait for their end. Succeeds when there is none.
    pub async fn kill_all(&self) -> Result<(), CgroupError> {
        let result = match (self.kill_at_once()?, &self.layout) {
            (true, Layout::V2 { .. }) => return Ok(()),
            // Who is in the other hierarchies alone is of an older version of this program, or was
            // moved by the host.
            (true, Layout::V1 { .. }) => self.send(Signal::SIGKILL as i32).map(drop),
            (false, _) if self.freeze_within(FREEZE_LIMIT).await.is_ok() => self.send(Signal::SIGKILL as i32).map(drop),
            (false, _) => self.kill_until_empty(),
        };
        self.thaw_killed()?;
        if let Layout::V2 { .. } = &self.layout
            && !self.is_gone()
        {
            self.thaw().await?;
        }
        result
    }

    /// Kills through `cgroup.kill` of version 2, a hybrid host's included: atomic, whoever forks,
    /// and no matter how many cgroups there are. `false` where it cannot be done.
    fn kill_at_once(&self) -> Result<bool, CgroupError> {
        let Some(directory) = self.unified() else { return Ok(false) };
        if self.contains_caller(directory) {
            return Err(CgroupError::HoldsSelf { path: directory.to_owned() });
        }
        match files::write(&directory.join("cgroup.kill"), "1") {
            Ok(()) => Ok(true),
            // Before 5.14 there is no such file; a threaded cgroup does not take it.
            Err(CgroupError::Write { source, .. })
                if files::is_gone(&source) || source.raw_os_error() == Some(libc::EOPNOTSUPP) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the caller is in `directory` of version 2 or below it: by the caller's own
    /// cgroup, not by the list of its processes, which may be long.
    fn contains_caller(&self, directory: &Path) -> bool {
        let own = Pid::this().as_raw();
        let listed = files::read_if_present(&directory.join("cgroup.procs")).ok().flatten().unwrap_or_default();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        listed.lines().any(|pid| pid.parse() == Ok(own)) || self.place_of(&membership).is_some()
    }

    /// Thaws processes that were sent SIGKILL: on v1 they die only once they are thawed, and the
    /// container may have frozen any cgroup below its own.
    pub fn thaw_killed(&self) -> Result<(), CgroupError> {
        // On v2 SIGKILL reaches who is frozen.
        let Some(freezer) = self.v1_controller("freezer") else { return Ok(()) };
        let thawed = cgroup_tree::write_everywhere(freezer, "freezer.state", "THAWED");
        thawed.map_err(|source| CgroupError::Write {
            path: freezer.join("freezer.state"),
            value: "THAWED".to_owned(),
            source,
        })
    }

    /// A signal to every process of the cgroup and the cgroups below it, none missed that is forked
    /// meanwhile. A cgroup that was frozen stays so, and its processes get the signal when it is
    /// thawed. Number 9 is [`Cgroup::kill_all`].
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

    /// Kills until a pass finds nobody: without a freezer, a process may fork between the listing
    /// and its end.
    fn kill_until_empty(&self) -> Result<(), CgroupError> {
        for _ in 0..PASSES {
            if self.send(Signal::SIGKILL as i32)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Sends a signal to everybody who is listed now; answers how many those are. Some may have
    /// ended by then.
    fn send(&self, signal: i32) -> Result<usize, CgroupError> {
        let pids = self.pids()?;
        self.refuse_self(&pids)?;
        let mut result = Ok(pids.len());
        for some in pids.chunks(HANDLES) {
            let handles = some.iter().map(|&pid| (pid, sys::pidfd_open(pid))).collect();
            if let Err(error) = self.signal_listed(signal, handles) {
                result = Err(error);
            }
        }
        result
    }

    /// Sends it to those who are still listed while their handles are held: such a handle is of the
    /// listed process, and not of one that took its number. By pidfd, which takes real-time signals
    /// too (an init's `SIGRTMIN+3`).
    fn signal_listed(&self, signal: i32, handles: Vec<(i32, io::Result<OwnedFd>)>) -> Result<(), CgroupError> {
        let listed = self.pids()?;
        let mut result = Ok(());
        for (pid, handle) in handles.into_iter().filter(|(pid, _)| listed.contains(pid)) {
            match handle.and_then(|handle| sys::pidfd_send_signal(handle.as_fd(), signal)) {
                Err(source) if source.raw_os_error() != Some(libc::ESRCH) => {
                    result = Err(CgroupError::Signal { signal, pid, source });
                }
                _ => {}
            }
        }
        result
    }

    /// Refuses a cgroup that holds the caller: it is not a container's. It never should be one
    /// here; better not to end the shim, and whatever runs beside it, than to trust that.
    fn refuse_self(&self, pids: &[i32]) -> Result<(), CgroupError> {
        let own = Pid::this().as_raw();
        if !pids.contains(&own) {
            return Ok(());
        }
        Err(CgroupError::HoldsSelf { path: self.directories().next().unwrap_or(Path::new("")).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

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
        testing::retry(async || real.cgroup.remove().await).await;
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

    /// The container itself has frozen a cgroup below its own.
    #[tokio::test]
    async fn v1_ends_who_was_frozen_below() {
        let Some(mut real) = RealCgroup::v1("ice", &["freezer", "memory"]) else { return };
        real.spawn("ice/inner", STUBBORN);
        let freezer = real.cgroup.v1_controller("freezer").unwrap().join("ice/inner");
        files::write(&freezer.join("freezer.state"), "FROZEN").unwrap();
        real.cgroup.kill_all().await.unwrap();
        let state = files::read(&freezer.join("freezer.state")).unwrap();
        files::write(&freezer.join("freezer.state"), "THAWED").unwrap();
        assert_eq!((real.wait(), state.trim()), (vec![Some(9)], "THAWED"));
    }

    #[tokio::test]
    async fn on_a_hybrid_host_all_are_killed_at_once_and_thawed() {
        let Some(mut real) = RealCgroup::hybrid("kill", &["freezer", "memory"]) else { return };
        real.spawn("", STUBBORN);
        real.spawn("nested/deeper", STUBBORN);
        real.cgroup.freeze().await.unwrap();
        real.cgroup.kill_all().await.unwrap();
        assert_eq!(real.wait(), [Some(9), Some(9)]);
        assert!(!real.cgroup.is_frozen().unwrap());
        testing::retry(async || real.cgroup.remove().await).await;
        assert!(real.cgroup.is_gone());
    }

    #[tokio::test]
    async fn without_a_freezer_forking_processes_are_chased() {
        if let Some(mut real) = RealCgroup::v1("kill_until_empty", &["pids"]) {
            // Not without an end: nothing says how soon it is killed.
            real.spawn("", "i=0; while [ $i -lt 500 ]; do sleep 1000 & i=$((i+1)); done; exec sleep 1000");
            testing::retry(async || real.cgroup.destroy().await).await;
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

    /// A process that is not listed any more may have ended, and its number be another process's.
    #[test]
    fn who_is_listed_no_more_is_not_signalled() {
        let sleeping = || std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut children = [sleeping(), sleeping()];
        let pids = [0, 1].map(|index: usize| children[index].id().cast_signed());
        let directory = testing::directory(&[("cgroup.procs", &format!("{}\n", pids[0]))]);
        let handles = pids.map(|pid| (pid, sys::pidfd_open(pid))).into_iter().collect();
        let sent = testing::v2(directory.path()).signal_listed(libc::SIGUSR1, handles);
        // The other one is ended by another signal.
        let mut signals = Vec::new();
        for child in &mut children {
            let _ = sys::pidfd_send_signal(sys::pidfd_open(child.id().cast_signed()).unwrap().as_fd(), libc::SIGTERM);
            signals.push(child.wait().unwrap().signal());
        }
        sent.unwrap();
        assert_eq!(signals, [Some(libc::SIGUSR1), Some(libc::SIGTERM)]);
    }

    #[tokio::test]
    async fn everybody_is_signalled_however_many_there_are() {
        let Some(mut real) = RealCgroup::v1("many", CONTROLLERS) else { return };
        let count = HANDLES * 2 + 1;
        for _ in 0..count {
            real.spawn("", "exec sleep 60");
        }
        real.cgroup.signal_all(libc::SIGTERM).await.unwrap();
        assert_eq!(real.wait(), vec![Some(libc::SIGTERM); count]);
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
