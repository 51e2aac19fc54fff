//! SIGKILL to shim, helper and containerd: at points of a create and a start that hooks hold open,
//! and at random ones.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use integration::{
    ContainerBuilder, Node, eventually, is_egpu, leftovers::shim_socket, node::shim_directory, processes::Process,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::case::Case;

/// Cases that runc's shim does not pass either (it leaves sockets, cgroups or itself behind) are
/// for egpu alone.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("kills::shim_in_create", |node| at_hook(node, "createRuntime", Victim::Shim)),
        Case::plain("kills::shim_late_in_create", |node| at_hook(node, "createContainer", Victim::Shim)),
        Case::plain("kills::shim_in_start", |node| at_hook(node, "startContainer", Victim::Shim)),
        Case::plain("kills::shim_after_start", |node| at_hook(node, "poststart", Victim::Shim)),
        Case::egpu("kills::helper_in_create", |node| at_hook(node, "createRuntime", Victim::Helper)),
        Case::egpu("kills::helper_late_in_create", |node| at_hook(node, "createContainer", Victim::Helper)),
        Case::egpu("kills::helper_in_start", |node| at_hook(node, "startContainer", Victim::Helper)),
        Case::egpu("kills::helper_after_start", |node| at_hook(node, "poststart", Victim::Helper)),
        Case::egpu("kills::containerd_in_create", |node| at_hook(node, "createRuntime", Victim::Containerd)),
        Case::egpu("kills::containerd_back_before_a_create_ends", back_before_a_create_ends),
        Case::egpu("kills::containerd_in_start", |node| at_hook(node, "startContainer", Victim::Containerd)),
        Case::plain("kills::shim_of_a_running_container", shim_of_a_running_container),
        Case::plain("kills::shim_during_an_exec", shim_during_an_exec),
        Case::egpu("kills::helper_of_a_running_container", helper_of_a_running_container),
        Case::egpu("kills::worker_of_an_exec", worker_of_an_exec),
        Case::egpu("kills::shim_that_nobody_connected_to", shim_that_nobody_connected_to),
        Case::egpu("kills::shim_at_random", |node| at_random(node, Victim::Shim)),
        Case::egpu("kills::shim_at_its_birth", |node| at_random(node, Victim::NewShim)),
        Case::egpu("kills::shim_and_what_cleans_up_at_random", |node| at_random(node, Victim::EveryShim)),
        Case::egpu("kills::helper_at_random", |node| at_random(node, Victim::Helper)),
        Case::egpu("kills::containerd_at_random", |node| at_random(node, Victim::Containerd)),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Shim,
    /// One that has been seen for the first time, so that containerd may not have connected to it
    /// yet.
    NewShim,
    /// Also those that run `start` or `delete`.
    EveryShim,
    Helper,
    Containerd,
}

impl Victim {
    /// Kills it; there may be none at a random instant.
    fn kill(self, node: &Node) {
        match self {
            Self::Containerd => node.stop_containerd(Signal::SIGKILL),
            Self::Shim | Self::NewShim => node.shims().iter().filter(|shim| serves(shim)).for_each(Process::kill),
            Self::EveryShim => node.shims().iter().for_each(Process::kill),
            Self::Helper => node.helpers().iter().for_each(Process::kill),
        }
    }
}

/// egpu's `start` gives the shim its socket's path; other shims cannot be distinguished.
fn serves(shim: &Process) -> bool {
    !is_egpu() || shim.command.contains(" -socket ")
}

/// Holds an operation open: a hook that reports that it runs, and waits until it may go on.
struct Gate {
    reached: PathBuf,
    open: PathBuf,
}

impl Gate {
    fn new(node: &Node) -> Self {
        Self { reached: node.directory().join("reached"), open: node.directory().join("open") }
    }

    /// As a hook of `kind`. Those that run in the container see its root file system: the files are
    /// bound into it.
    fn hold<'node>(
        &self,
        builder: ContainerBuilder<'node>,
        kind: &'static str,
        node: &Node,
    ) -> ContainerBuilder<'node> {
        let inside = kind == "startContainer";
        let directory = node.directory().display().to_string();
        let prefix = if inside { "/mnt/gate".to_owned() } else { directory.clone() };
        let script = format!(": >{prefix}/reached; while [ ! -e {prefix}/open ]; do sleep 0.02; done");
        let builder = builder.edit(move |spec| {
            let mounts = spec["mounts"].as_array_mut().unwrap();
            mounts.push(serde_json::json!({
                "destination": "/mnt/gate", "type": "bind", "source": directory, "options": ["bind", "rw"],
            }));
        });
        builder.hook(kind, &script)
    }

    fn wait(&self) {
        eventually("the hook runs", || self.reached.exists().then_some(()));
    }

    fn open(&self) {
        std::fs::write(&self.open, "").expect("open the gate");
    }
}

/// On egpu the container asks for a whole card, so that a grant that stays is seen at once.
pub(super) fn ask<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).env("NVIDIA_VISIBLE_DEVICES", "0")
}

/// Whatever became of the container: ends and deletes it as a client would.
pub(super) fn clear(node: &Node, id: &str) {
    eventually("containerd has nothing left of the container", || {
        node.ctr(&["tasks", "kill", "--all", "--signal", "KILL", id]);
        let tasks = node.ctr_ok(&["tasks", "list", "--quiet"]);
        if tasks.lines().any(|task| task == id) {
            node.ctr(&["tasks", "delete", id]);
            return None;
        }
        node.ctr(&["containers", "delete", id]);
        let containers = node.ctr_ok(&["containers", "list", "--quiet"]);
        // containerd stops listing a task whose shim is dead before it has cleaned up after it.
        let gone = !containers.lines().any(|container| container == id) && !node.bundle(id).exists();
        gone.then_some(())
    });
}

/// Its intermediate process is held by the freezer, in the container's cgroup, and has not yet made
/// the exec.
fn worker_of_an_exec(node: &Node) {
    let container = node.container("a").start().unwrap();
    let zygotes: Vec<i32> = node.helpers().iter().map(|helper| helper.pid).collect();
    let path = node.cgroup_path("a");
    let path = path.trim_start_matches('/');
    let v1 = Path::new("/sys/fs/cgroup/freezer").join(path);
    let (cgroup, file, frozen, thawed) = if v1.exists() {
        (v1, "freezer.state", "FROZEN", "THAWED")
    } else {
        (Path::new("/sys/fs/cgroup").join(path), "cgroup.freeze", "1", "0")
    };
    let freezer = cgroup.join(file);
    let others = || -> Vec<i32> {
        let pids = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
        let pids = pids.lines().map(|pid| pid.parse().unwrap());
        pids.filter(|pid| u32::try_from(*pid) != Ok(container.pid())).collect()
    };
    std::fs::write(&freezer, frozen).unwrap();
    std::thread::scope(|scope| {
        let exec = scope.spawn(|| container.exec("e", &["sleep", "1000"]).start().map(drop));
        let intermediate = eventually("the intermediate process is there", || others().first().copied());
        let mut helpers = node.helpers().into_iter();
        let worker = helpers.find(|it| it.pid != intermediate && !zygotes.contains(&it.pid)).expect("the worker");
        worker.kill();
        eventually("the worker is gone", || (!worker.alive()).then_some(()));
        std::fs::write(&freezer, thawed).unwrap();
        exec.join().unwrap().unwrap_err();
    });
    eventually("nothing of the exec is left", || others().is_empty().then_some(()));
    assert_eq!(container.sh("true").0, 0);
    container.end();
}

fn at_hook(node: &Node, kind: &'static str, victim: Victim) {
    let gate = Gate::new(node);
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| {
            let container = gate.hold(ask(node, "a"), kind, node).create();
            let started = container.as_ref().ok().map(integration::Container::start);
            // containerd is gone for a while: the container is cleared below.
            if let Ok(container) = container {
                std::mem::forget(container);
            }
            started
        });
        gate.wait();
        victim.kill(node);
        if victim == Victim::Containerd {
            gate.open();
            node.start_containerd();
        } else {
            // The dead one's work is undone while the hook still runs, or once it may end.
            std::thread::sleep(Duration::from_millis(100));
            gate.open();
        }
        let _ = creation.join().unwrap();
    });
    clear(node, "a");
    again(node);
}

/// containerd asks the shim who is there while that is still creating. It must not hear "nobody",
/// and forget the shim.
fn back_before_a_create_ends(node: &Node) {
    let gate = Gate::new(node);
    std::thread::scope(|scope| {
        let creation = scope.spawn(|| {
            if let Ok(container) = gate.hold(ask(node, "a"), "createRuntime", node).create() {
                std::mem::forget(container);
            }
        });
        gate.wait();
        Victim::Containerd.kill(node);
        // It serves nobody before it has asked: the hook cannot see when it has.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            gate.open();
        });
        node.start_containerd();
        creation.join().unwrap();
    });
    node.task_state("a").expect("the task is known");
    clear(node, "a");
    again(node);
}

/// The node works on: the card is free, and the id too.
pub(super) fn again(node: &Node) {
    let (status, _) = ask(node, "a").args(&["true"]).run().unwrap();
    assert_eq!(status, 0);
}

fn shim_of_a_running_container(node: &Node) {
    let container = ask(node, "a").start().unwrap();
    let init = container.pid().cast_signed();
    node.shim().kill();
    // containerd sees the connection close and calls `delete`, which must end the container.
    eventually("init is dead", || Process::read(init).is_none().then_some(()));
    node.events().wait_for("a", "exit");
    container.forget();
    clear(node, "a");
    again(node);
}

/// containerd was about to connect: it calls `delete` for no such shim.
fn shim_that_nobody_connected_to(node: &Node) {
    let bundle = tempfile::tempdir().unwrap();
    std::fs::write(bundle.path().join("config.json"), "{}").unwrap();
    let start = || {
        let output = std::process::Command::new(shim_directory().join("containerd-shim-egpu-v1"))
            .args(["-namespace", node.namespace(), "-id", "early", "-address"])
            .arg(node.socket())
            .arg("start")
            .env("EGPU_CONFIG", node.directory().join("egpu.toml"))
            .env("TTRPC_ADDRESS", format!("{}.ttrpc", node.socket().display()))
            .current_dir(bundle.path())
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let socket = shim_socket(node, "early");
    // A shim without a container ends by itself after half a minute, which may go by on a busy
    // machine. One that is stopped does not, and is alive.
    let early = eventually("it listens and is stopped", || {
        start();
        let early = node.shims().into_iter().find(|shim| shim.command.contains("early"))?;
        kill(Pid::from_raw(early.pid), Signal::SIGSTOP).ok()?;
        socket.exists().then_some(early)
    });
    // It may have been about to sweep for all that start within a moment: it is waited for a
    // second.
    std::thread::sleep(Duration::from_secs(2));
    again(node);
    eventually("the other has swept and ended", || (node.shims().len() == 1).then_some(()));
    assert!(socket.exists(), "another shim leaves a living one alone");
    early.kill();
    eventually("it is dead", || node.shims().is_empty().then_some(()));
    assert!(socket.exists());
    again(node);
    eventually("the next shim removes what it left", || (!socket.exists()).then_some(()));
}

fn shim_during_an_exec(node: &Node) {
    let container = ask(node, "a").start().unwrap();
    let exec = container.exec("e", &["sleep", "1000"]).start().unwrap();
    let pid = exec.state().unwrap().pid.cast_signed();
    node.shim().kill();
    eventually("the exec is dead", || Process::read(pid).is_none().then_some(()));
    drop(exec);
    container.forget();
    clear(node, "a");
    again(node);
}

fn helper_of_a_running_container(node: &Node) {
    let container = ask(node, "a").start().unwrap();
    let helpers = node.helpers();
    assert!(!helpers.is_empty(), "a shim has a helper");
    helpers.iter().for_each(Process::kill);
    // It goes on, and another helper takes its place, as often as need be.
    let pid = container.pid().cast_signed();
    let mut dead: Vec<i32> = helpers.iter().map(|helper| helper.pid).collect();
    for exec in ["first", "second"] {
        let next = eventually("another helper", || node.helpers().into_iter().find(|next| !dead.contains(&next.pid)));
        assert_eq!(container.read(&format!("echo {exec}")), exec);
        next.kill();
        dead.push(next.pid);
    }
    assert!(Process::read(pid).is_some(), "the container goes on");
    assert_eq!(container.end(), 137);
    clear(node, "a");
    again(node);
}

/// Instants of a run. `EGPU_TEST_ROUNDS` sets another number, for a search.
const ROUNDS: u64 = 10;

/// Creates and starts, each hit at another instant. The choice is the same in every run;
/// `EGPU_TEST_SEED` makes another.
fn at_random(node: &Node, victim: Victim) {
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let mut state = given("EGPU_TEST_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15_u64 ^ victim as u64);
    println!("EGPU_TEST_SEED={state}");
    for round in 0..given("EGPU_TEST_ROUNDS").unwrap_or(ROUNDS) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // A create and a start take some 50 ms; a shim is connected to within 5 ms.
        let delay = Duration::from_micros(state % if victim == Victim::NewShim { 5_000 } else { 90_000 });
        let id = format!("r{round}");
        std::thread::scope(|scope| {
            let creation = scope.spawn(|| {
                if let Ok(container) = ask(node, &id).start() {
                    std::mem::forget(container);
                }
            });
            if victim == Victim::NewShim {
                while !creation.is_finished() && !node.shims().iter().any(serves) {}
            }
            std::thread::sleep(delay);
            victim.kill(node);
            if victim == Victim::Containerd {
                node.start_containerd();
            }
            creation.join().unwrap();
        });
        clear(node, &id);
        // Its shim cleans up what nobody was notified of.
        let (status, _) = ask(node, &format!("after{round}"))
            .args(&["true"])
            .run()
            .unwrap_or_else(|error| panic!("round {round}, {delay:?}: {error:?}"));
        assert_eq!(status, 0);
    }
}
