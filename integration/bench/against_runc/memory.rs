//! Memory of a runtime's processes with idle containers.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use integration::{Node, eventually, processes};

use crate::{
    comparison::{Column, Comparison},
    runtimes::{Role, Runtime},
    workloads::{sleeper, stop},
};

const CONTAINERS: usize = 10;
const AIM: f64 = 0.4;

/// PSS of all processes of egpu and of runc's shim with idle containers, which run under one
/// runtime at a time; then egpu's where the containers share cards, mediators included.
pub(crate) fn measure(node: &Node, runtimes: &[Runtime]) -> Vec<Comparison> {
    let of = |role| runtimes.iter().find(|runtime| runtime.role == role).expect("always compared");
    let (egpu, runc) = (of(Role::Egpu), of(Role::Runc));
    let mediated = Runtime { arguments: [&egpu.arguments[..], &request()].concat(), ..egpu.clone() };
    let [plain, shared, theirs] = [egpu, &mediated, runc].map(|runtime| pss_mib(node, runtime));
    let columns = |value| {
        let column = |runtime: &Runtime, value| {
            let ratio = value / theirs;
            Column { runtime: runtime.name.clone(), value, ratio, spread: (ratio, ratio) }
        };
        vec![column(egpu, value), column(runc, theirs)]
    };
    vec![
        Comparison { name: "PSS, 10 idle containers", unit: "MiB", columns: columns(plain), aim: Some(AIM) },
        Comparison { name: "PSS, 10 with GPU requests", unit: "MiB", columns: columns(shared), aim: None },
    ]
}

fn request() -> Vec<String> {
    ["--env", "EGPU_MEMORY=1GiB"].map(str::to_owned).to_vec()
}

fn pss_mib(node: &Node, runtime: &Runtime) -> f64 {
    let program = if runtime.role == Role::Egpu { "containerd-shim-egpu-v1" } else { "containerd-shim-runc-v2" };
    let ids: Vec<String> = (0..CONTAINERS).map(|number| sleeper(node, runtime, &format!("memory{number}"))).collect();
    let total = settled(node, program);
    stop(node, &ids);
    eventually("the runtime's processes end", || processes_of(node, program).is_empty().then_some(()));
    total as f64 / 1024.0
}

/// The sum once it no longer changes from one second to the next.
fn settled(node: &Node, program: &str) -> u64 {
    let mut before = 0;
    eventually("memory use settles", || {
        thread::sleep(Duration::from_secs(1));
        let now = processes_of(node, program).iter().filter_map(|process| pss_kib(process)).sum();
        std::mem::replace(&mut before, now).eq(&now).then_some(now)
    })
}

/// `/proc/PID` of every process of this node that runs the program; egpu's shim, helper and
/// mediator are the same one.
fn processes_of(node: &Node, program: &str) -> Vec<PathBuf> {
    let own = processes::mentioning(node.directory()).into_iter();
    own.map(|process| PathBuf::from(format!("/proc/{}", process.pid)))
        .filter(|process| fs::read_link(process.join("exe")).is_ok_and(|exe| exe.ends_with(program)))
        .collect()
}

fn pss_kib(process: &Path) -> Option<u64> {
    let rollup = fs::read_to_string(process.join("smaps_rollup")).ok()?;
    rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?.trim().parse().ok())
}
