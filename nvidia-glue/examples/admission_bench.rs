//! How long an admission takes beside 0, 40 and 160 live records on 8 cards.
//!
//! `cargo run --release -p nvidia-glue --example admission_bench [STATE_DIR]`; without a directory, one in `/dev/shm`, as
//! `/run` is in memory on an ordinary machine. Each admission is followed by a bind and a release, which are timed, too.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench on a terminal")]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use nvidia_glue::{
    cards::{Inventory, discover},
    decision_log::DecisionLog,
    ledger::{Admission, ContainerKey, Ledger, Limits, Process, ReleaseReason},
};
use runtime_config::{
    Bytes, Config, Percent,
    request::{
        CardRequest, ComputeShare, Dialect, DriverCapabilities, GpuRequest, Isolation, MemoryLimit, NvidiaExtras,
        OverMemory, PerCard, Placement, Priority, Share,
    },
};

const CARDS: u32 = 8;
const ROUNDS: usize = 500;

fn main() {
    let base = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm".into());
    let base = PathBuf::from(base).join(format!("egpu-admission-bench-{}", std::process::id()));
    println!("records  step      median_us    p99_us   ({ROUNDS} rounds, {CARDS} cards)");
    for records in [0, 40, 160] {
        let directory = base.join(records.to_string());
        for (step, mut times) in run(&directory, records) {
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
            println!("{records:>7}  {step:<8} {:>10} {:>9}", at(50), at(99));
        }
    }
    std::fs::remove_dir_all(&base).unwrap();
}

fn run(directory: &Path, records: u32) -> [(&'static str, Vec<Duration>); 3] {
    let ledger = Ledger::open(directory).unwrap();
    let log = DecisionLog::new(directory.join("egpu.log"));
    let config = config();
    let inventory = discover(&config).unwrap();
    let limits = Limits::from(&config);
    let shims = Shims::start(records);
    for number in 0..records {
        let on_card = CardRequest::Devices(vec![runtime_config::request::DeviceSelector::Index(number % CARDS)]);
        let shim = shims.process(number);
        admit(&ledger, &inventory, &limits, &format!("live-{number}"), on_card, shim, &log);
    }
    let mut times = [("admit", Vec::new()), ("bind", Vec::new()), ("release", Vec::new())];
    let mut timed = |which: usize, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        times[which].1.push(start.elapsed());
    };
    let own = Process::current().unwrap();
    for round in 0..ROUNDS {
        let id = format!("new-{round}");
        timed(0, &mut || admit(&ledger, &inventory, &limits, &id, CardRequest::Count(1), own, &log));
        timed(1, &mut || {
            ledger.bind(&key(&id), own, &[cgroup(&id)], &log).unwrap();
        });
        timed(2, &mut || {
            ledger.release(&key(&id), ReleaseReason::Ended, &log).unwrap();
        });
    }
    times
}

fn admit(
    ledger: &Ledger,
    inventory: &Inventory,
    limits: &Limits,
    id: &str,
    cards: CardRequest,
    shim: Process,
    log: &DecisionLog,
) {
    let admission = Admission {
        inventory,
        request: &request(cards),
        limits,
        container: &key(id),
        shim,
        creators: &[],
        cgroups: &[cgroup(id)],
    };
    ledger.admit(&admission, log).unwrap();
}

/// As on a node where every container has a shim of its own.
struct Shims(Vec<Child>);

impl Shims {
    fn start(count: u32) -> Self {
        Self((0..count).map(|_| Command::new("sleep").arg("3600").spawn().unwrap()).collect())
    }

    fn process(&self, number: u32) -> Process {
        Process::of(self.0[number as usize].id().cast_signed()).unwrap()
    }
}

impl Drop for Shims {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

fn key(id: &str) -> ContainerKey {
    ContainerKey { containerd: "/run/containerd/containerd.sock".into(), namespace: "k8s.io".into(), id: id.into() }
}

fn cgroup(id: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup/egpu-admission-bench").join(id)
}

fn config() -> Config {
    let text = format!(
        "device_split_count = 100\n[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Tesla V100-PCIE-32GB\"\n\
         memory = \"32768MiB\"\ncount = {CARDS}\n"
    );
    Config::from_toml(&text, "bench").unwrap()
}

fn request(cards: CardRequest) -> GpuRequest {
    let share = Share::Part {
        memory: PerCard::same(vec![MemoryLimit::Bytes { amount: Bytes(Bytes::GIB), reserved: Bytes(0) }]),
        compute: PerCard::same(ComputeShare::Cap { percent: Percent::new(4).unwrap(), lifted_when_alone: false }),
        isolation: Isolation::Full,
    };
    GpuRequest {
        dialect: Dialect::Native,
        cards,
        whole_cards: CardRequest::None,
        within: None,
        share,
        policy: None,
        placement: Placement::Binpack,
        group: None,
        priority: Priority::High,
        over_memory: OverMemory::Deny,
        oom_script: None,
        live_update: true,
        driver_capabilities: DriverCapabilities::COMPUTE | DriverCapabilities::UTILITY,
        requirements: Vec::new(),
        extras: NvidiaExtras::default(),
        asked: vec!["EGPU_MEMORY=1GiB".into(), "EGPU_COMPUTE=4%".into()],
        warnings: Vec::new(),
    }
}
