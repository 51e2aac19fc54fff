//! Common parts of the ledger's tests: cards, requests, a node whose processes live and die on
//! command, and faults.

use std::{
    collections::HashSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use base::{Bytes, CardPolicies, CardPolicy, ComputeShare, OverMemory, PciBusId, Percent, Period, Priority, Weight};
use cards::{Card, Health, Inventory, Source};
use runtime_config::{
    config::{HardCapsUnavailable, MemoryScaling, WholeCards},
    request::{
        CardRequest, DeviceSelector, Dialect, DriverCapabilities, GpuRequest, Isolation, MemoryLimit, NvidiaExtras,
        PerCard, Placement, Share,
    },
};

use super::{
    Admission, AdmitError, ContainerKey, Ledger, Limits, Patience, ProcessId, Record,
    admit::Attempt,
    liveness::{Node, Population},
    store::Store,
};
use crate::{decision_log::DecisionLog, select};

/// The defaults of the configuration.
pub(crate) fn limits() -> Limits {
    Limits {
        max_inst: 16,
        device_split_count: 10,
        owner_split_count: 1000,
        memory_scaling: MemoryScaling::NONE,
        default_policy: CardPolicy::Fixed,
        requested_policies: CardPolicies::ALL,
        requested_policy_share: 3,
        period: Period::Us(100_000),
        hard_caps_unavailable: HardCapsUnavailable::Refuse,
        whole_cards: WholeCards::Direct,
        pinned_memory: mib(64 << 10),
        pinned_memory_unasked: mib(16 << 10),
    }
}

/// So many V100 with 32 GiB.
pub(crate) fn v100s(count: u32) -> Inventory {
    let card = |index: u32| Card {
        index,
        uuid: format!("GPU-00000000-0000-0000-0000-{index:012}"),
        model: "Tesla V100-PCIE-32GB".into(),
        brand: "Tesla".into(),
        compute_capability: (7, 0),
        memory: mib(32768),
        minor: index,
        pci: PciBusId { domain: 0, bus: u8::try_from(index).unwrap() + 1, device: 0, function: 0 },
        numa_node: None,
        links: Vec::new(),
        mig_enabled: false,
        mig_devices: Vec::new(),
        hard_caps: true,
        simulated: None,
        health: Health::Ok,
    };
    Inventory {
        source: Source::Simulated,
        driver_version: "515.48.07".into(),
        cuda_version: "11.7".into(),
        cards: (0..count).map(card).collect(),
    }
}

pub(crate) fn mib(count: u64) -> Bytes {
    Bytes::from_mib(count).unwrap()
}

pub(crate) fn cap(percent: u8) -> ComputeShare {
    ComputeShare::Cap { percent: Percent::new(percent).unwrap(), lifted_when_alone: false }
}

pub(crate) fn weight(value: u16) -> ComputeShare {
    ComputeShare::Weight(Weight::new(value).unwrap())
}

/// A request for `cards` with `share` and nothing special.
pub(crate) fn request(cards: CardRequest, share: Share) -> GpuRequest {
    GpuRequest {
        dialect: Dialect::Native.into(),
        cards,
        whole_cards: CardRequest::None,
        within: None,
        share,
        policy: None,
        placement: Placement::Binpack,
        group: None,
        pod: None,
        priority: Priority::High,
        pinned_memory: None,
        over_memory: OverMemory::Deny,
        oom_script: None,
        live_update: true,
        driver_capabilities: DriverCapabilities::COMPUTE | DriverCapabilities::UTILITY,
        requirements: Vec::new(),
        extras: NvidiaExtras::default(),
        asked: vec!["EGPU_MEMORY=some".into()],
        visible_devices_alone: Vec::new(),
        warnings: Vec::new(),
    }
}

pub(crate) fn bytes(amount: Bytes) -> Vec<MemoryLimit> {
    vec![MemoryLimit::Bytes { amount, reserved: Bytes(0) }]
}

/// `memory_mib` and `compute` on each card.
pub(crate) fn part(memory_mib: u64, compute: ComputeShare) -> Share {
    Share::Part {
        memory: PerCard::same(bytes(mib(memory_mib))),
        compute: PerCard::same(compute),
        isolation: Isolation::Full,
    }
}

/// As `part`, with its own memory for each card.
pub(crate) fn parts(memory_mib: &[u64], compute: ComputeShare) -> Share {
    Share::Part {
        memory: PerCard::exactly(memory_mib.iter().map(|count| bytes(mib(*count))).collect()),
        compute: PerCard::same(compute),
        isolation: Isolation::Full,
    }
}

pub(crate) fn devices(indices: &[u32]) -> CardRequest {
    CardRequest::Devices(indices.iter().map(|index| DeviceSelector::Index(*index)).collect())
}

pub(crate) fn with_policy(policy: CardPolicy, request: GpuRequest) -> GpuRequest {
    GpuRequest { policy: Some(policy), ..request }
}

pub(crate) fn key(id: &str) -> ContainerKey {
    ContainerKey { containerd: "/run/containerd/containerd.sock".into(), namespace: "k8s.io".into(), id: id.into() }
}

/// Path of the cgroup for a container of that id.
pub(crate) fn cgroup(id: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup/test").join(format!("c-{id}"))
}

/// The process with that pid.
pub(crate) fn process(pid: i32) -> ProcessId {
    ProcessId { pid, start_time: 1000 + u64::try_from(pid).unwrap() }
}

/// A node with processes and cgroups that live and die on command. All are dead and empty at first.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeNode(Arc<Mutex<Life>>);

#[derive(Debug, Default)]
struct Life {
    alive: HashSet<i32>,
    populated: HashSet<PathBuf>,
    unknown: HashSet<PathBuf>,
    killed: Vec<String>,
    survives_kills: bool,
    now_us: u64,
}

impl FakeNode {
    pub(crate) fn start(&self, pid: i32) {
        self.0.lock().unwrap().alive.insert(pid);
    }

    pub(crate) fn stop(&self, pid: i32) {
        self.0.lock().unwrap().alive.remove(&pid);
    }

    pub(crate) fn populate(&self, id: &str) {
        self.0.lock().unwrap().populated.insert(cgroup(id));
    }

    pub(crate) fn empty(&self, id: &str) {
        self.0.lock().unwrap().populated.remove(&cgroup(id));
    }

    pub(crate) fn hide(&self, id: &str) {
        self.0.lock().unwrap().unknown.insert(cgroup(id));
    }

    pub(crate) fn survive_kills(&self, survive: bool) {
        self.0.lock().unwrap().survives_kills = survive;
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.lock().unwrap().now_us
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, duration_us: u64) {
        self.0.lock().unwrap().now_us += duration_us;
    }

    pub(crate) fn killed(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().killed)
    }
}

impl Node for FakeNode {
    fn is_alive(&self, wanted: ProcessId) -> bool {
        self.0.lock().unwrap().alive.contains(&wanted.pid) && wanted == process(wanted.pid)
    }

    fn has_pid(&self, wanted: ProcessId) -> bool {
        self.0.lock().unwrap().alive.contains(&wanted.pid)
    }

    fn population(&self, directory: &Path) -> Population {
        let life = self.0.lock().unwrap();
        match () {
            () if life.unknown.contains(directory) => Population::Unknown,
            () if life.populated.contains(directory) => Population::Processes,
            () => Population::Empty,
        }
    }

    fn kill_cgroup(&self, directory: &Path) {
        let mut life = self.0.lock().unwrap();
        life.killed.push(directory.display().to_string());
        if !life.survives_kills {
            life.populated.remove(directory);
        }
    }

    fn now_us(&self) -> u64 {
        self.0.lock().unwrap().now_us
    }

    fn kill(&self, process: ProcessId) {
        let mut life = self.0.lock().unwrap();
        life.killed.push(process.pid.to_string());
        if !life.survives_kills {
            life.alive.remove(&process.pid);
        }
    }
}

/// Lets file operations fail.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Operations that still succeed; negative: faults are off.
    left: AtomicI64,
    /// 0: off. 1: one operation fails. 2: it and all that follow, as if the process had been killed
    /// there. 3: the disk is full.
    mode: AtomicI64,
    seen: AtomicI64,
}

impl Faults {
    pub(crate) fn step(&self, writes: bool) -> io::Result<()> {
        self.seen.fetch_add(1, Ordering::Relaxed);
        let mode = self.mode.load(Ordering::Relaxed);
        match mode {
            0 => return Ok(()),
            3 if writes => return Err(io::ErrorKind::StorageFull.into()),
            3 => return Ok(()),
            _ => {}
        }
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left == 0 || (left < 0 && mode == 2) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// After `steps` more operations, one fails.
    pub(crate) fn fail_after(&self, steps: i64) {
        self.left.store(steps, Ordering::Relaxed);
        self.mode.store(1, Ordering::Relaxed);
    }

    /// Whatever needs room fails.
    pub(crate) fn fail_writes(&self) {
        self.mode.store(3, Ordering::Relaxed);
    }

    /// After `steps` more operations, nothing happens any more.
    pub(crate) fn die_after(&self, steps: i64) {
        self.left.store(steps, Ordering::Relaxed);
        self.mode.store(2, Ordering::Relaxed);
    }

    pub(crate) fn off(&self) {
        self.mode.store(0, Ordering::Relaxed);
    }

    /// Operations since the last call.
    pub(crate) fn seen(&self) -> i64 {
        self.seen.swap(0, Ordering::Relaxed)
    }
}

/// A ledger in a directory of its own on a fake node, with its log.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) ledger: Ledger,
    pub(crate) node: FakeNode,
    pub(crate) inventory: Inventory,
    pub(crate) limits: Limits,
    pub(crate) log: DecisionLog,
}

static NEVER: AtomicBool = AtomicBool::new(false);

/// Of an admission that does not wait.
pub(crate) const NO_PATIENCE: Patience<'static> = Patience { most: Duration::ZERO, any_tenant: false, ended: &NEVER };

/// Of one that waits for those that leave.
pub(crate) const FOR_LEAVING: Patience<'static> = Patience { most: Duration::from_secs(10), ..NO_PATIENCE };

/// The shim of every container, unless a test says otherwise.
pub(crate) const SHIM: i32 = 100;

/// The init of every container that was asked to end.
pub(crate) const INIT: i32 = 300;

impl Bench {
    pub(crate) fn new(cards: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let node = FakeNode::default();
        node.start(SHIM);
        Self {
            ledger: open(directory.path(), &node),
            log: DecisionLog::new(directory.path().join("egpu.log"), directory.path()),
            directory,
            node,
            inventory: v100s(cards),
            limits: limits(),
        }
    }

    /// Another process's view of the same ledger.
    pub(crate) fn reopen(&mut self) {
        self.ledger = open(self.directory.path(), &self.node);
    }

    pub(crate) fn admit(&self, id: &str, request: &GpuRequest) -> Result<Record, AdmitError> {
        self.admit_for(id, request, SHIM)
    }

    pub(crate) fn admit_for(&self, id: &str, request: &GpuRequest, shim: i32) -> Result<Record, AdmitError> {
        self.ledger.admit(
            &Admission {
                inventory: &self.inventory,
                request,
                limits: &self.limits,
                container: &key(id),
                shim: process(shim),
                creators: &[],
                cgroups: &[cgroup(id)],
                patience: NO_PATIENCE,
                egpu_version: "1.2.3",
                claim: None,
            },
            &self.log,
        )
    }

    /// An admission that goes on step by step.
    pub(super) fn attempt(&self, id: &str, request: &GpuRequest, patience: Patience<'static>) -> Attempt<'_> {
        self.attempt_for(id, request, patience, (SHIM, self.limits))
    }

    /// The same in another shim, which may have read another configuration.
    pub(super) fn attempt_for(
        &self,
        id: &str,
        request: &GpuRequest,
        patience: Patience<'static>,
        (shim, limits): (i32, Limits),
    ) -> Attempt<'_> {
        // Tests are few, and end with their process.
        let container: &'static ContainerKey = Box::leak(Box::new(key(id)));
        let cgroups: &'static [PathBuf] = Box::leak(Box::new([cgroup(id)]));
        let request: &'static GpuRequest = Box::leak(Box::new(request.clone()));
        let admission = Admission {
            inventory: &self.inventory,
            request,
            limits: Box::leak(Box::new(limits)),
            container,
            shim: process(shim),
            creators: &[],
            cgroups,
            patience,
            egpu_version: "1.2.3",
            claim: None,
        };
        let plan = Box::leak(Box::new(select::plan(&self.inventory, request).unwrap()));
        Attempt::new(&self.ledger, Box::leak(Box::new(admission)), plan, Vec::new())
    }

    /// Its init, which lives, is asked to end.
    pub(crate) fn leave(&self, id: &str) -> bool {
        self.node.start(INIT);
        self.ledger.bind(&key(id), process(INIT), None, &[cgroup(id)], &self.log).is_ok()
            && self.ledger.set_leaving(&key(id), process(INIT)).is_ok()
    }

    /// Ids of the containers that wait, in the order of their arrival.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.ledger.waiting().unwrap().into_iter().map(|waiter| waiter.container.id).collect()
    }

    /// Admits a container and returns the indices of its cards.
    pub(crate) fn placed(&self, id: &str, request: &GpuRequest) -> Vec<u32> {
        self.admit(id, request).unwrap().cards.iter().map(|card| card.index).collect()
    }

    /// The records as they are on the disk.
    pub(crate) fn files(&self) -> Vec<(String, Vec<u8>)> {
        let directory = self.directory.path().join("ledger");
        let mut files: Vec<_> = std::fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    /// The log so far without its times; empties it.
    pub(crate) fn take_log(&self) -> Vec<String> {
        let path = self.directory.path().join("egpu.log");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }
}

fn open(directory: &Path, node: &FakeNode) -> Ledger {
    let patience = Duration::from_secs(30);
    Ledger {
        store: Store::open(directory, patience).unwrap(),
        node: Box::new(node.clone()),
        logged: std::sync::Mutex::default(),
    }
}
