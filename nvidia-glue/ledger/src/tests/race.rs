//! Real processes: many at once, and killed at any moment.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base::{ContainerKey, ProcessId};

use crate::{
    Admission, AdmitErrorKind, Ledger, Limits, ReleaseReason,
    decision_log::DecisionLog,
    liveness::is_in_cgroup_filesystem,
    test_support::{NO_PATIENCE, devices, key, limits, part, request, v100s},
};

const DIRECTORY: &str = "EGPU_RACE_DIRECTORY";
const ROLE: &str = "EGPU_RACE_ROLE";

fn many() -> Limits {
    Limits { device_split_count: 1000, ..limits() }
}

fn admit(ledger: &Ledger, container: &ContainerKey, memory_mib: u64) -> Result<(), AdmitErrorKind> {
    let share = part(memory_mib, base::ComputeShare::Unlimited);
    let admission = Admission {
        inventory: &v100s(1),
        request: &request(devices(&[0]), share),
        limits: &many(),
        container,
        shim: ProcessId::current().unwrap(),
        creators: &[],
        cgroups: &[PathBuf::from("/sys/fs/cgroup/pids/egpu-race").join(&container.id)],
        patience: NO_PATIENCE,
        egpu_version: "1.2.3",
        claim: None,
    };
    ledger.admit(&admission, &DecisionLog::disabled()).map(|_| ()).map_err(|error| error.kind())
}

/// The other processes of this file's tests run this and nothing else.
#[test]
fn worker() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let ledger = Ledger::open(Path::new(&directory)).unwrap();
    let container = key(&std::process::id().to_string());
    let mut line = String::new();
    match std::env::var(ROLE).unwrap().as_str() {
        "race" => {
            println!("ready");
            std::io::stdin().read_line(&mut line).unwrap();
            println!("{}", if admit(&ledger, &container, 64).is_ok() { "won" } else { "lost" });
            // Whoever ends gives its grant up.
            std::io::stdin().read_line(&mut line).unwrap();
        }
        "loop" => {
            println!("ready");
            loop {
                admit(&ledger, &container, 64).unwrap();
                ledger
                    .bind(
                        &container,
                        ProcessId::current().unwrap(),
                        None,
                        &[PathBuf::from("/sys/fs/cgroup/pids/egpu-race/x")],
                        &DecisionLog::disabled(),
                    )
                    .unwrap();
                ledger.release(&container, ReleaseReason::Ended, &DecisionLog::disabled()).unwrap();
            }
        }
        other => panic!("{other}"),
    }
}

struct Worker {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(directory: &Path, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "tests::race::worker", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = testing::fork(|| command.spawn().unwrap());
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// The next line that is one of `words`; the test harness prints others, and prefixes.
    fn wait_for(&mut self, words: &[&str]) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the worker ended");
            if let Some(word) = words.iter().find(|word| line.trim_end().ends_with(**word)) {
                return (*word).to_owned();
            }
        }
    }

    fn say(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn of_64_processes_that_race_for_the_last_gigabyte_exactly_the_right_number_wins() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(directory.path()).unwrap();
    admit(&ledger, &key("first"), 31 * 1024).unwrap();
    let mut workers: Vec<_> = (0..64).map(|_| Worker::start(directory.path(), "race")).collect();
    for worker in &mut workers {
        worker.wait_for(&["ready"]);
    }
    for worker in &mut workers {
        worker.say();
    }
    let results: Vec<_> = workers.iter_mut().map(|worker| worker.wait_for(&["won", "lost"])).collect();
    assert_eq!(results.iter().filter(|result| *result == "won").count(), 16);
    let records = ledger.records().unwrap();
    assert_eq!(records.len(), 17);
    let granted: u64 = records.iter().flat_map(|record| &record.cards).map(|card| card.memory.whole_mib()).sum();
    assert_eq!(granted, 32 * 1024);
    let mut orders: Vec<_> = records.iter().map(|record| record.order).collect();
    orders.dedup();
    assert_eq!(orders, (0..17).collect::<Vec<_>>());
}

#[test]
fn a_process_killed_at_any_moment_leaves_a_ledger_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(directory.path()).unwrap();
    for round in 0_u64..20 {
        let mut worker = Worker::start(directory.path(), "loop");
        worker.wait_for(&["ready"]);
        std::thread::sleep(Duration::from_micros(997 * round % 7919));
        worker.child.kill().unwrap();
        worker.child.wait().unwrap();
        let left = ledger.records().unwrap();
        assert!(left.len() <= 1, "{left:?}");
        let used: u64 = left.iter().flat_map(|record| &record.cards).map(|card| card.memory.whole_mib()).sum();
        // What it held is free again as soon as its end is certain: where there is a cgroup
        // hierarchy to tell. On cgroup v2 that is what there is above the directory, which nobody
        // has made.
        let certain = is_in_cgroup_filesystem(Path::new("/sys/fs/cgroup/pids/egpu-race"));
        let free = if certain { 32 * 1024 } else { 32 * 1024 - used };
        assert_eq!(admit(&ledger, &key("too-much"), free + 1), Err(AdmitErrorKind::Exhausted));
        admit(&ledger, &key("rest"), free).unwrap();
        ledger.release(&key("rest"), ReleaseReason::Ended, &DecisionLog::disabled()).unwrap().unwrap();
        for record in ledger.records().unwrap() {
            ledger.release(&record.container, ReleaseReason::Ended, &DecisionLog::disabled()).unwrap();
        }
    }
}
