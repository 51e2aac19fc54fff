//! Workloads that are timed.

use std::{
    thread,
    time::{Duration, Instant},
};

use integration::{Node, rootfs::IMAGE};

use crate::runtimes::{Role, Runtime};

const GPU_REQUEST: &[&str] = &["--env", "EGPU_MEMORY=1GiB", "--env", "EGPU_COMPUTE=5%"];
/// As many of them as there are at a time fit on the simulated cards.
const SMALL_GPU_REQUEST: &[&str] = &["--env", "EGPU_MEMORY=1GiB"];

/// A workload, whose time is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Workload {
    /// `ctr run --rm` of `true`.
    Run,
    /// The same; egpu's has a request.
    RunWithGpu,
    /// `ctr tasks exec` of `true`.
    Exec,
    /// So many `run` at the same time.
    Burst(usize),
    /// The same; egpu's have a request.
    BurstWithGpu(usize),
    /// `run` beside so many running containers of the same runtime.
    RunBeside(usize),
}

impl Workload {
    /// Makes what is there all the time: the containers' ids.
    pub(crate) fn set_up(self, node: &Node, runtime: &Runtime) -> Vec<String> {
        let count = match self {
            Self::Exec => 1,
            // What runs nothing has no container beside another.
            Self::RunBeside(count) if runtime.role != Role::Floor => count,
            _ => 0,
        };
        (0..count).map(|number| sleeper(node, runtime, &format!("{}{number}", idle_prefix(runtime)))).collect()
    }

    /// Does it once.
    pub(crate) fn time(self, node: &Node, runtime: &Runtime, idle: &[String], id: &str) -> Duration {
        let request = |request: &'static [&'static str]| if runtime.role == Role::Egpu { request } else { &[] };
        match self {
            Self::Run | Self::RunBeside(_) => run(node, runtime, id, &[]),
            Self::RunWithGpu => run(node, runtime, id, request(GPU_REQUEST)),
            Self::Exec => {
                let container = idle.first().expect("a container to execute in");
                timed(|| node.ctr_ok(&["tasks", "exec", "--exec-id", id, container, "/bin/true"]))
            }
            Self::Burst(count) => burst(node, runtime, id, &[], count),
            Self::BurstWithGpu(count) => burst(node, runtime, id, request(SMALL_GPU_REQUEST), count),
        }
    }
}

/// Runs `true` in a container.
pub(crate) fn run(node: &Node, runtime: &Runtime, id: &str, extra: &[&str]) -> Duration {
    let mut arguments = vec!["run", "--rm"];
    arguments.extend(runtime.arguments.iter().map(String::as_str));
    arguments.extend(extra);
    arguments.extend([IMAGE, id, "/bin/true"]);
    timed(|| node.ctr_ok(&arguments))
}

fn burst(node: &Node, runtime: &Runtime, id: &str, extra: &[&str], count: usize) -> Duration {
    timed(|| {
        thread::scope(|scope| {
            for number in 0..count {
                scope.spawn(move || run(node, runtime, &format!("{id}x{number}"), extra));
            }
        });
    })
}

fn timed<T>(action: impl FnOnce() -> T) -> Duration {
    let begin = Instant::now();
    action();
    begin.elapsed()
}

/// Beginning of the ids of a runtime's idle containers: its name's letters and digits.
fn idle_prefix(runtime: &Runtime) -> String {
    let plain = runtime.name.chars().filter(char::is_ascii_alphanumeric);
    format!("idle-{}-", plain.collect::<String>())
}

/// Starts a container that does nothing.
pub(crate) fn sleeper(node: &Node, runtime: &Runtime, id: &str) -> String {
    let mut arguments = vec!["run", "--detach"];
    arguments.extend(runtime.arguments.iter().map(String::as_str));
    arguments.extend([IMAGE, id, "/bin/sleep", "infinity"]);
    node.ctr_ok(&arguments);
    node.track(id);
    id.to_owned()
}

/// Ends containers.
pub(crate) fn stop(node: &Node, ids: &[String]) {
    for id in ids {
        node.ctr_ok(&["tasks", "delete", "--force", id]);
        node.ctr_ok(&["containers", "delete", id]);
    }
}
