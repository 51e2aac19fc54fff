//! Signals to a container that is frozen, or about to be, in a cgroup whose files a test writes in
//! the kernel's place.

use std::{fs, process::Child};

use runtime::{ContainerProcess, reaper::Reaper};
use tempfile::TempDir;

use super::*;
use crate::io::{ProcessIo, StdioPaths, StreamContext};

const SIGTERM: u32 = libc::SIGTERM.unsigned_abs();
const FROZEN: &str = "populated 1\nfrozen 1\n";

/// A container that runs. Its init is no more than somebody who can be sent signals, and is in no
/// cgroup.
struct Running {
    container: Arc<Container>,
    events: TaskEvents,
    cgroup: TempDir,
    init: Child,
}

impl Running {
    async fn new() -> Self {
        let cgroup = tempfile::tempdir().unwrap();
        for (file, text) in [("cgroup.freeze", "0"), ("cgroup.events", "populated 1\nfrozen 0\n"), ("cgroup.kill", "")]
        {
            fs::write(cgroup.path().join(file), text).unwrap();
        }
        let fixed = Fixed {
            id: "c".to_owned(),
            bundle: PathBuf::new(),
            runtime_root: PathBuf::new(),
            cgroup: serde_json::from_value(serde_json::json!({ "version": "2", "directory": cgroup.path() })).unwrap(),
            io_owner: None,
            fence: false,
            exec_rules: ExecRules::default(),
            mediated: None,
            grant: None,
            own_pid_namespace: true,
        };
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let init = Process::new(String::new(), StdioPaths::default(), None, serde_json::Value::Null);
        let owner = StreamContext { id: "c", namespace: "ns", reaper: &Arc::new(Reaper::default()) };
        let (io, _) = ProcessIo::open(&init.stdio, &owner).await.unwrap();
        init.attach(ContainerProcess { pid, pidfd: sys::pidfd_open(pid).unwrap(), warnings: Vec::new() }, io);
        init.change(Change::Start).unwrap();
        Self { container: Container::new(fixed, init), events: TaskEvents::new("ns".to_owned()), cgroup, init: child }
    }

    fn is_to_be_frozen(&self) -> bool {
        fs::read_to_string(self.cgroup.path().join("cgroup.freeze")).unwrap() == "1"
    }

    /// Reports the cgroup as frozen, as the kernel does once all its processes have stopped.
    fn all_stand_still(&self) {
        fs::write(self.cgroup.path().join("cgroup.events"), FROZEN).unwrap();
    }

    fn is_paused(&self) -> (State, bool) {
        (self.container.init.state(), self.is_to_be_frozen())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

/// A killed process would wait in the freezer for somebody to resume the container, who has no
/// reason to.
#[tokio::test]
async fn who_is_killed_while_being_paused_is_thawed() {
    for all in [false, true] {
        let running = Running::new().await;
        let killed = async {
            while !running.is_to_be_frozen() {
                tokio::task::yield_now().await;
            }
            running.container.kill("", SIGKILL, all).await.unwrap();
            running.all_stand_still();
        };
        let (paused, ()) = tokio::join!(running.container.pause(&running.events), killed);
        paused.unwrap();
        assert_eq!(running.is_paused(), (State::Running, false), "all: {all}");
    }
}

#[tokio::test]
async fn who_is_killed_while_paused_is_thawed_and_by_no_other_signal() {
    for all in [false, true] {
        let running = Running::new().await;
        running.all_stand_still();
        running.container.pause(&running.events).await.unwrap();
        running.container.kill("", SIGTERM, all).await.unwrap();
        assert_eq!(running.is_paused(), (State::Paused, true), "all: {all}");
        running.container.kill("", SIGKILL, all).await.unwrap();
        assert_eq!(running.is_paused(), (State::Running, false), "all: {all}");
    }
}

/// Others of the container may freeze it as often as it is thawed.
#[tokio::test(start_paused = true)]
async fn who_is_killed_and_does_not_end_is_killed_with_all_others() {
    for ends in [false, true] {
        let running = Running::new().await;
        let killed = || fs::read_to_string(running.cgroup.path().join("cgroup.kill")).unwrap();
        running.container.kill("", SIGTERM, false).await.unwrap();
        tokio::time::sleep(KILL_PAUSE * 2).await;
        assert_eq!(killed(), "");
        running.container.kill("", SIGKILL, false).await.unwrap();
        assert_eq!(killed(), "", "init alone");
        if ends {
            running.container.init.set_exited(ProcessExit { status: 137, at: std::time::SystemTime::now() });
        }
        tokio::time::sleep(KILL_PAUSE * 2).await;
        assert_eq!(killed(), if ends { "" } else { "1" });
    }
}
