//! egpu beside runc, on one containerd, in pairs: what a user waits for, and what an idle container
//! costs.
//!
//! `make bench`. Every pair takes both runtimes one after the other, in turns of who is first, so
//! that whatever else the machine does falls on both; the result is the median of the pairs'
//! ratios. Exit status 1 when a target is missed.
//!
//! Arguments: `--pairs N` (default 30), `--save` (writes `docs/results/bench-VERSION.json`
//! besides).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement that goes wrong ends with a panic, and its result goes to standard output"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use integration::{ContainerdRelease, EGPU_RUNTIME, Node, Setup, eventually, processes, rootfs::IMAGE};
use serde::Serialize;

const RUNC_RUNTIME: &str = "io.containerd.runc.v2";
const WARM_UP: usize = 3;
const IDLE_CONTAINERS: usize = 10;
const GPU_REQUEST: &[&str] = &["--env", "EGPU_MEMORY=1GiB", "--env", "EGPU_COMPUTE=5%"];

/// One comparison.
#[derive(Debug, Serialize)]
struct Comparison {
    name: &'static str,
    unit: &'static str,
    egpu: f64,
    runc: f64,
    /// Median of the pairs' ratios.
    ratio: f64,
    /// The figure that it must not exceed.
    target: f64,
}

fn main() -> ExitCode {
    let (pairs, save) = arguments();
    let release = ContainerdRelease::all().into_iter().next().expect("a containerd on this machine");
    let node = Node::start(&release, &Setup::images());
    // Unpacked once, before the first pair.
    run(&node, RUNC_RUNTIME, "warm", &[]);

    let mut results = vec![
        time("run --rm true", 0.65, pairs, |runtime, id| run(&node, runtime, id, &[])),
        time("run --rm true, GPU request", 0.75, pairs, |runtime, id| {
            run(&node, runtime, id, if runtime == EGPU_RUNTIME { GPU_REQUEST } else { &[] })
        }),
    ];
    let (egpu_container, runc_container) = (sleeper(&node, EGPU_RUNTIME, "e"), sleeper(&node, RUNC_RUNTIME, "r"));
    results.push(time("exec true", 0.65, pairs, |runtime, id| {
        let container = if runtime == EGPU_RUNTIME { &egpu_container } else { &runc_container };
        timed(|| node.ctr_ok(&["tasks", "exec", "--exec-id", id, container, "/bin/true"]))
    }));
    stop(&node, &[egpu_container, runc_container]);
    results.push(memory(&node));

    report(&node, pairs, &results);
    if save {
        store(&node, pairs, &results);
    }
    node.finish();
    if results.iter().all(|result| result.ratio <= result.target) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> (usize, bool) {
    let (mut pairs, mut save) = (30, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--pairs" => pairs = arguments.next().and_then(|count| count.parse().ok()).expect("--pairs wants a number"),
            "--save" => save = true,
            // Cargo adds it.
            "--bench" => {}
            other => panic!("unknown argument {other}; there are --pairs N and --save"),
        }
    }
    (pairs, save)
}

fn run(node: &Node, runtime: &str, id: &str, extra: &[&str]) -> Duration {
    let mut arguments = vec!["run", "--rm", "--runtime", runtime];
    arguments.extend(extra);
    arguments.extend([IMAGE, id, "/bin/true"]);
    timed(|| node.ctr_ok(&arguments))
}

fn timed<T>(action: impl FnOnce() -> T) -> Duration {
    let begin = Instant::now();
    action();
    begin.elapsed()
}

/// Measures `action(runtime, a new id)` for both runtimes in pairs.
fn time(name: &'static str, target: f64, pairs: usize, mut action: impl FnMut(&str, &str) -> Duration) -> Comparison {
    let mut serial = 0;
    let mut once = |runtime: &str| {
        serial += 1;
        action(runtime, &format!("bench{serial}")).as_secs_f64() * 1e3
    };
    for _ in 0..WARM_UP {
        once(EGPU_RUNTIME);
        once(RUNC_RUNTIME);
    }
    let (mut egpu, mut runc, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (ours, theirs);
        if pair % 2 == 0 {
            ours = once(EGPU_RUNTIME);
            theirs = once(RUNC_RUNTIME);
        } else {
            theirs = once(RUNC_RUNTIME);
            ours = once(EGPU_RUNTIME);
        }
        egpu.push(ours);
        runc.push(theirs);
        ratios.push(ours / theirs);
    }
    Comparison { name, unit: "ms", egpu: median(egpu), runc: median(runc), ratio: median(ratios), target }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle).expect("at least one value");
    if values.len() % 2 == 1 { upper } else { f64::midpoint(upper, *values.get(middle - 1).expect("two values")) }
}

fn sleeper(node: &Node, runtime: &str, id: &str) -> String {
    node.ctr_ok(&["run", "--detach", "--runtime", runtime, IMAGE, id, "/bin/sleep", "infinity"]);
    node.track(id);
    id.to_owned()
}

fn stop(node: &Node, ids: &[String]) {
    for id in ids {
        node.ctr_ok(&["tasks", "delete", "--force", id]);
        node.ctr_ok(&["containers", "delete", id]);
    }
}

/// PSS of all processes of the runtime with idle containers, which run under one runtime at a time.
fn memory(node: &Node) -> Comparison {
    let mebibytes = |runtime: &str, program: &str| {
        let ids: Vec<String> =
            (0..IDLE_CONTAINERS).map(|number| sleeper(node, runtime, &format!("idle{number}"))).collect();
        let total = settled(node, program);
        stop(node, &ids);
        eventually("the runtime's processes end", || processes_of(node, program).is_empty().then_some(()));
        total as f64 / 1024.0
    };
    let egpu = mebibytes(EGPU_RUNTIME, "containerd-shim-egpu-v1");
    let runc = mebibytes(RUNC_RUNTIME, "containerd-shim-runc-v2");
    Comparison { name: "PSS, 10 idle containers", unit: "MiB", egpu, runc, ratio: egpu / runc, target: 0.5 }
}

/// The sum once it no longer changes from one second to the next.
fn settled(node: &Node, program: &str) -> u64 {
    let mut before = 0;
    eventually("memory use settles", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = processes_of(node, program).iter().filter_map(|process| pss_kib(process)).sum();
        std::mem::replace(&mut before, now).eq(&now).then_some(now)
    })
}

/// `/proc/PID` of every process of this node that runs the program; egpu's shim and helper are the
/// same one.
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

fn report(node: &Node, pairs: usize, results: &[Comparison]) {
    println!("containerd {}, {pairs} pairs, {}", node.release().version, runc_version());
    println!("{:<28} {:>12} {:>12} {:>8} {:>8}", "", "egpu", "runc", "ratio", "target");
    for Comparison { name, unit, egpu, runc, ratio, target } in results {
        let verdict = if ratio <= target { "" } else { "  MISSED" };
        println!("{name:<28} {egpu:>8.1} {unit:<3} {runc:>8.1} {unit:<3} {ratio:>7.2}x {target:>7.2}x{verdict}");
    }
}

fn runc_version() -> String {
    let output = std::process::Command::new("runc").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("runc").to_owned()
}

fn store(node: &Node, pairs: usize, results: &[Comparison]) {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let document = serde_json::json!({
        "egpu": env!("CARGO_PKG_VERSION"), "containerd": node.release().version, "runc": runc_version(),
        "kernel": kernel.trim().split('-').next(), "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "pairs": pairs, "results": results,
    });
    let file = concat!("../docs/results/bench-", env!("CARGO_PKG_VERSION"), ".json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::write(&path, format!("{document:#}\n")).expect("write the results");
    println!("written to {}", path.display());
}
