//! Cost of an admission beside many live grants, and its growth.
//!
//! Target: under 2 ms at the median beside 160 records on 8 cards, and no more of it when the same
//! number of records on the chosen card is a smaller part of the node's. Exit status 1 when missed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement that goes wrong ends with a panic, and its result goes to standard output"
)]

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use cards::Inventory;
use ledger::{Admission, ContainerKey, Ledger, Limits, Patience, ProcessId, ReleaseReason, decision_log::DecisionLog};
use runtime_config::{
    config::Config,
    request::{ContainerRequest, GpuRequest, Source, parse},
};
use tempfile::TempDir;

const ROUNDS: usize = 200;
const RECORDS_A_CARD: u32 = 20;
const TARGET: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    println!("{:<44} {:>12} {:>12} {:>12}", "admission of one container", "least", "median", "99 %");
    let mut medians = Vec::new();
    for cards in [1, 8, 32] {
        let records = cards * RECORDS_A_CARD;
        medians.push(Node::with(cards, RECORDS_A_CARD).measure(&format!("{records} records on {cards} cards")));
    }
    Node::with(8, 5).measure("40 records on 8 cards");
    if medians.get(1).is_some_and(|median| *median < TARGET) {
        ExitCode::SUCCESS
    } else {
        println!("MISSED: {TARGET:?} beside 160 records on 8 cards");
        ExitCode::FAILURE
    }
}

/// A node with its ledger, filled.
struct Node {
    // As in production, where the state is on /run: a tmpfs.
    _directory: TempDir,
    inventory: Inventory,
    config: Config,
    limits: Limits,
    ledger: Ledger,
    log: DecisionLog,
    /// Path of the containers' cgroups: a folder of a hierarchy that is not there, and so known
    /// to be empty.
    cgroups: PathBuf,
}

impl Node {
    fn with(cards: u32, records_a_card: u32) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let toml = format!(
            "state_dir = {:?}\ndevice_split_count = 1000\n[driver]\nkind = \"simulated\"\n[[driver.simulated]]\n\
             model = \"NVIDIA H200\"\nmemory = \"143771MiB\"\ncount = {cards}\n",
            directory.path()
        );
        let config = Config::from_toml(&toml, "bench").unwrap();
        let node = Self {
            inventory: cards::discover(&config).unwrap(),
            limits: Limits::from(&config),
            ledger: Ledger::open(directory.path()).unwrap(),
            log: DecisionLog::new(directory.path().join("egpu.log"), directory.path()),
            config,
            cgroups: hierarchy().join("egpu-bench-none"),
            _directory: directory,
        };
        for number in 0..cards * records_a_card {
            node.admit(&format!("live-{number}"), &node.request(number % cards));
        }
        node
    }

    fn request(&self, card: u32) -> GpuRequest {
        let source = Source {
            env: [&format!("EGPU_DEVICES={card}"), "EGPU_MEMORY=1GiB", "EGPU_COMPUTE=2%"].map(str::to_owned).to_vec(),
            ..Source::default()
        };
        let Ok(ContainerRequest::Gpu(request)) = parse(&source, &self.config) else { unreachable!("a plain request") };
        *request
    }

    fn admit(&self, id: &str, request: &GpuRequest) {
        let admission = Admission {
            inventory: &self.inventory,
            request,
            limits: &self.limits,
            container: &key(id),
            shim: ProcessId::current().unwrap(),
            creators: &[],
            cgroups: &[self.cgroups.join(id)],
            patience: Patience { most: Duration::ZERO, any_tenant: false, ended: &AtomicBool::new(false) },
            egpu_version: "bench",
            claim: None,
        };
        self.ledger.admit(&admission, &self.log).unwrap();
    }

    /// Measures the admission of one more container on card 0: prints its times and returns the
    /// median. Where the machine has other work, the minimum says more.
    fn measure(&self, beside: &str) -> Duration {
        let request = self.request(0);
        let mut times: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let begin = Instant::now();
                self.admit("measured", &request);
                let taken = begin.elapsed();
                self.ledger.release(&key("measured"), ReleaseReason::CreateFailed, &self.log).unwrap();
                taken
            })
            .collect();
        times.sort();
        let [least, median, worst] = [0, ROUNDS / 2, ROUNDS * 99 / 100].map(|rank| times[rank]);
        println!("{beside:<44} {least:>12.1?} {median:>12.1?} {worst:>12.1?}");
        median
    }
}

/// A cgroup hierarchy: the one of cgroup v2, or one of those of v1.
fn hierarchy() -> PathBuf {
    let top = PathBuf::from("/sys/fs/cgroup");
    let below = std::fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    [top.clone()].into_iter().chain(below).find(|path| path.join("cgroup.procs").exists()).unwrap_or(top)
}

fn key(id: &str) -> ContainerKey {
    ContainerKey {
        containerd: "/run/containerd/containerd.sock".to_owned(),
        namespace: "k8s.io".to_owned(),
        id: id.to_owned(),
    }
}
