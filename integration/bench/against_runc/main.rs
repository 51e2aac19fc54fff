//! egpu beside runc, on one containerd: what a user waits for, and what an idle container costs.
//!
//! `make bench`. Each round takes every runtime once, in turns of who is first, so that whatever
//! else the machine does falls on all; a run's result is the median of the rounds' ratios to runc,
//! beside it how they spread. The runtime that runs nothing shows what containerd and `ctr` take by
//! themselves: an aim below that is that floor and 15 %. Exit status 1 when a run missed an aim.
//!
//! Arguments: `--runs N` (default 1), `--pairs N` (rounds of each comparison, default 30), `--only
//! PART` and `--without PART` (comparisons by a part of their name), `--save` (writes
//! `docs/results/bench-VERSION.json` besides).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement that goes wrong ends with a panic, and its result goes to standard output"
)]

mod comparison;
mod memory;
mod report;
mod runtimes;
mod workloads;

use std::process::ExitCode;

use integration::{ContainerdRelease, Node, Setup, containerd::DaemonConfig};
use nix::{mount::MsFlags, sched::CloneFlags};

use comparison::{Comparison, Plan};
use runtimes::Runtime;
use workloads::Workload;

/// Containers that are started at the same time.
const AT_A_TIME: usize = 32;
/// Containers that run beside those that are timed.
const NEIGHBOURS: usize = 100;

struct Arguments {
    runs: usize,
    pairs: usize,
    only: Option<String>,
    without: Option<String>,
    save: bool,
}

fn main() -> ExitCode {
    let arguments = arguments();
    let release = ContainerdRelease::all().into_iter().next().expect("a containerd on this machine");
    give_run_a_tmpfs();
    let containerd = DaemonConfig { is_terse: true, ..DaemonConfig::default() };
    let setup = Setup { containerd, state_tmpfs: Some("64m".to_owned()), containerd_tmpfs: true, ..Setup::images() };
    let node = Node::start(&release, &setup);
    let runtimes = Runtime::all();
    // Unpacked once, before the first round.
    workloads::run(&node, Runtime::runc(&runtimes), "warm", &[]);
    let mut runs: Vec<Vec<Comparison>> = Vec::new();
    for run in 0..arguments.runs {
        let before = ProcessorTime::now();
        let results = one_run(&node, &runtimes, &arguments);
        report::print(&node, run, ProcessorTime::now().stolen_since(&before), &results);
        runs.push(results);
        if arguments.save {
            // Each time: minutes of runs that are ended early are not lost.
            report::store(&node, arguments.pairs, &runs);
        }
    }
    report::summary(&runs);
    node.finish();
    let is_met = runs.iter().flatten().all(Comparison::is_met);
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Processor time since the machine began, in ticks: what ran or could have run, and what of it the
/// hypervisor gave to other machines. Aims are for idle processors.
struct ProcessorTime {
    wanted: u64,
    stolen: u64,
}

impl ProcessorTime {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").expect("/proc/stat");
        let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let fields: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let wanted = [0, 1, 2, 5, 6, 7].iter().filter_map(|place| fields.get(*place)).sum();
        Self { wanted, stolen: fields.get(7).copied().unwrap_or(0) }
    }

    /// Share of the time since `before`.
    fn stolen_since(&self, before: &Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.wanted - before.wanted).max(1) as f64
    }
}

/// Puts a tmpfs on `/run`, in a mount namespace of this process: nodes have one there, with the
/// state of containerd, runc and egpu, sockets and fifos. What a disk does with files that live for
/// milliseconds is nobody's wait on a node.
fn give_run_a_tmpfs() {
    let mount = |what, target, flags| nix::mount::mount(Some(what), target, Some(what), flags, None::<&str>);
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    mount("none", "/", MsFlags::MS_REC | MsFlags::MS_PRIVATE).expect("a mount namespace of its own");
    mount("tmpfs", "/run", MsFlags::empty()).expect("a tmpfs on /run");
}

fn one_run(node: &Node, runtimes: &[Runtime], arguments: &Arguments) -> Vec<Comparison> {
    let has = |name: &str, part: &Option<String>| part.as_ref().map(|part| name.contains(part.as_str()));
    let is_chosen =
        |name: &str| has(name, &arguments.only).unwrap_or(true) && !has(name, &arguments.without).unwrap_or(false);
    let mut results = Vec::new();
    let plans = [
        Plan { name: "run --rm true", aim: Some(0.55), rounds: arguments.pairs, workload: Workload::Run },
        Plan {
            name: "run --rm true, GPU request",
            aim: Some(0.62),
            rounds: arguments.pairs,
            workload: Workload::RunWithGpu,
        },
        Plan { name: "exec true", aim: Some(0.45), rounds: arguments.pairs, workload: Workload::Exec },
        Plan { name: "32 at a time", aim: Some(0.6), rounds: arguments.pairs, workload: Workload::Burst(AT_A_TIME) },
        Plan {
            name: "32 at a time, GPU request",
            aim: Some(0.7),
            rounds: arguments.pairs,
            workload: Workload::BurstWithGpu(AT_A_TIME),
        },
        Plan {
            name: "run --rm true beside 100",
            aim: None,
            rounds: arguments.pairs,
            workload: Workload::RunBeside(NEIGHBOURS),
        },
    ];
    for plan in plans.iter().filter(|plan| is_chosen(plan.name)) {
        results.push(plan.measure(node, runtimes));
    }
    results.extend(if is_chosen("PSS") { memory::measure(node, runtimes) } else { Vec::new() });
    results
}

fn arguments() -> Arguments {
    let mut parsed = Arguments { runs: 1, pairs: 30, only: None, without: None, save: false };
    let mut arguments = std::env::args().skip(1);
    let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).filter(|&number| number > 0);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--runs" => parsed.runs = number(arguments.next()).expect("--runs wants a number"),
            "--pairs" => parsed.pairs = number(arguments.next()).expect("--pairs wants a number"),
            "--only" => parsed.only = Some(arguments.next().expect("--only wants a part of a name")),
            "--without" => parsed.without = Some(arguments.next().expect("--without wants a part of a name")),
            "--save" => parsed.save = true,
            // Cargo adds it.
            "--bench" => {}
            other => panic!("unknown argument {other}; there are --runs, --pairs N, --only, --without PART and --save"),
        }
    }
    parsed
}
