//! Pausing every process of the cgroup.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::{Cgroup, CgroupError, Layout, files};

/// Time for the processes to come to a stop. Go's runtime waits as long.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two reads of the state.
const POLL: Duration = Duration::from_millis(2);
/// v1 can get stuck half frozen while processes fork or wait for one another; a thaw in between
/// frees it (kernel `Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst`; runc does the
/// same).
const V1_POLLS_PER_TRY: u32 = 50;

impl Cgroup {
    /// Stops every process, and returns once all of them stand still. On failure all are thawed
    /// again.
    pub async fn freeze(&self) -> Result<(), CgroupError> {
        self.freeze_within(FREEZE_LIMIT).await
    }

    /// Thaws every process.
    pub async fn thaw(&self) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { .. } => files::write(&self.freezer()?.join("freezer.state"), "THAWED"),
            Layout::V2 { directory, .. } => files::write(&directory.join("cgroup.freeze"), "0"),
        }
    }

    /// Returns whether the cgroup itself was frozen and has come to a stop.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        match &self.layout {
            Layout::V1 { .. } => v1_is_frozen(&self.freezer()?.join("freezer.state")),
            Layout::V2 { directory, .. } => v2_is_frozen(&directory.join("cgroup.events")),
        }
    }

    pub(super) async fn freeze_within(&self, limit: Duration) -> Result<(), CgroupError> {
        let result = match &self.layout {
            Layout::V1 { .. } => freeze_v1(self.freezer()?, limit).await,
            Layout::V2 { directory, .. } => freeze_v2(directory, limit).await,
        };
        match result {
            Ok(()) => Ok(()),
            Err(error) => {
                // The cause is what the caller must know; a thaw that fails too means that the
                // cgroup is gone.
                let _ = self.thaw().await;
                Err(error)
            }
        }
    }

    fn freezer(&self) -> Result<&Path, CgroupError> {
        self.v1_controller("freezer").ok_or(CgroupError::NoController { controller: "freezer" })
    }
}

async fn freeze_v1(directory: &Path, limit: Duration) -> Result<(), CgroupError> {
    let state = directory.join("freezer.state");
    let begin = Instant::now();
    loop {
        files::write(&state, "FROZEN")?;
        for _ in 0..V1_POLLS_PER_TRY {
            if v1_is_frozen(&state)? {
                return Ok(());
            }
            if begin.elapsed() >= limit {
                return Err(CgroupError::NotFrozen { path: directory.to_owned(), waited_ms: limit.as_millis() });
            }
            tokio::time::sleep(POLL).await;
            // New processes of a half frozen cgroup are frozen only by another write.
            files::write(&state, "FROZEN")?;
        }
        files::write(&state, "THAWED")?;
        tokio::time::sleep(POLL).await;
    }
}

async fn freeze_v2(directory: &Path, limit: Duration) -> Result<(), CgroupError> {
    let begin = Instant::now();
    files::write(&directory.join("cgroup.freeze"), "1")?;
    while !v2_is_frozen(&directory.join("cgroup.events"))? {
        if begin.elapsed() >= limit {
            return Err(CgroupError::NotFrozen { path: directory.to_owned(), waited_ms: limit.as_millis() });
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

fn v1_is_frozen(state: &Path) -> Result<bool, CgroupError> {
    Ok(files::read(state)?.trim() == "FROZEN")
}

fn v2_is_frozen(events: &Path) -> Result<bool, CgroupError> {
    Ok(files::keyed(&files::read(events)?, "frozen") == Some(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing::{self, RealCgroup};

    async fn stops_and_goes_on(mut real: RealCgroup) {
        let pid = real.spawn("", "while :; do :; done");
        assert!(!real.cgroup.is_frozen().unwrap());
        real.cgroup.freeze().await.unwrap();
        assert!(real.cgroup.is_frozen().unwrap());
        // Stopped in the freezer, not by a signal. It is marked as frozen a few steps before it
        // leaves the processor, which a process that has work never does.
        testing::until("it stands still", || stat(pid)[0] != "R");
        let cpu_time = |pid| stat(pid)[11..13].to_vec();
        let before = cpu_time(pid);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(cpu_time(pid), before);
        real.cgroup.thaw().await.unwrap();
        assert!(!real.cgroup.is_frozen().unwrap());
    }

    /// Returns the fields of `stat` from the state on; see `proc_pid_stat(5)`.
    fn stat(pid: i32) -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        text.split(' ').skip(2).map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn v1_stops_and_goes_on() {
        if let Some(real) = RealCgroup::v1("freeze", &["freezer"]) {
            stops_and_goes_on(real).await;
        }
    }

    #[tokio::test]
    async fn v2_stops_and_goes_on() {
        if let Some(real) = RealCgroup::v2("freeze") {
            stops_and_goes_on(real).await;
        }
    }

    #[tokio::test]
    async fn what_does_not_freeze_is_thawed_again() {
        let stuck = testing::directory(&[("cgroup.freeze", "0"), ("cgroup.events", "populated 1\nfrozen 0\n")]);
        let error = testing::v2(stuck.path()).freeze_within(Duration::from_millis(5)).await.unwrap_err();
        assert!(matches!(error, CgroupError::NotFrozen { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(stuck.path().join("cgroup.freeze")).unwrap(), "0");
    }

    #[tokio::test]
    async fn without_a_freezer_it_says_so() {
        let memory = testing::directory(&[]);
        let error = testing::v1(&[(&["memory"], memory.path())]).freeze().await.unwrap_err();
        assert_eq!(error.to_string(), "this host has no freezer cgroup controller for the container");
    }
}
