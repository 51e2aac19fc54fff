//! Cost of mediation for a call of the driver: memory allocated, mapped as CUDA maps it, unmapped
//! and freed, on a simulated card.
//!
//! `make bench-calls`. Five calls a round: `RM_ALLOC`, `UVM_CREATE_EXTERNAL_RANGE`,
//! `UVM_MAP_EXTERNAL_ALLOCATION`, `UVM_FREE`, `RM_FREE`. There is no unmediated run to compare
//! with, since a simulated card is behind the mediator only: the figure is for comparing one state
//! of this program with another on one machine. What a real card's user waits for,
//! integration/gpu/measure/cost.py measures.
//!
//! Arguments: `--rounds N` (default 20000 a run), `--runs N` (default 7).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement that goes wrong ends with a panic, and its result goes to standard output"
)]

use integration::{Container, ContainerdRelease, Node, Setup};

const CALLS_A_ROUND: f64 = 5.0;

fn main() {
    let (rounds, runs) = arguments();
    let release = ContainerdRelease::all().into_iter().next().expect("a containerd on this machine");
    let node = Node::start(&release, &Setup::images());
    let container = node.container("bench").armed().env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB").start();
    let container = container.expect("a container with a grant");
    println!("{:<44} {:>10} {:>10} {:>10}", "4 MiB, microseconds", "fastest", "median", "a call");
    for (name, option, calls) in
        [("allocated, mapped, unmapped, freed", " --map", CALLS_A_ROUND), ("allocated, freed", "", 2.0)]
    {
        let mut times: Vec<f64> = (0..runs).map(|_| round(&container, rounds, option)).collect();
        times.sort_by(f64::total_cmp);
        let (fastest, median) = (times[0], times[times.len() / 2]);
        println!("{name:<44} {fastest:>10.2} {median:>10.2} {:>10.2}", median / calls);
    }
    container.end();
    node.finish();
}

fn arguments() -> (u32, usize) {
    let (mut rounds, mut runs) = (20_000, 7);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|count| count.parse::<u32>().ok()).filter(|count| *count > 0);
        match argument.as_str() {
            "--rounds" => rounds = number().expect("--rounds wants a number"),
            "--runs" => runs = number().expect("--runs wants a number") as usize,
            // Cargo adds it.
            "--bench" => {}
            other => panic!("unknown argument {other}; there are --rounds N and --runs N"),
        }
    }
    (rounds, runs)
}

/// Microseconds of one round, as the program in the container measures many.
fn round(container: &Container<'_>, rounds: u32, option: &str) -> f64 {
    let output = container.read(&format!("rm-client free-loop 4M {rounds}{option}"));
    let microseconds = output.trim().rsplit_once(" in ").and_then(|(_, time)| time.strip_suffix(" us"));
    let microseconds: f64 = microseconds.and_then(|time| time.parse().ok()).unwrap_or_else(|| panic!("{output}"));
    microseconds / f64::from(rounds)
}
