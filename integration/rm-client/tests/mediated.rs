//! The client's calls on their whole way through a session to the simulated driver, without a
//! container: what a program gets at its quota, and that neither an honest nor a hostile one
//! comes to hold more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use abi::DriverRelease;
use cards::{Card, Health, Inventory, Source};
use mediator::{
    Answer, Caller, CallerError, Drift, GrantedCard, Number, Numbers, Observer, OverMemoryEvent, Pid, Processes,
    Session, SessionSetup, Trapped, UnknownKind, UvmMapping,
};
use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    unistd::{Pid as NixPid, getpid, gettid},
};
use rm_client::{
    Client,
    attacks::ATTACKS,
    compute::{Burst, ENDLESS, Engine, Group, Worker, Workload},
    compute_attacks::{self, Effect},
    exports,
    files::{Kernel, Nodes},
    random, smi,
    sys::Mapping,
    uvm::AddressSpace,
};
use runtime_config::{
    Bytes,
    request::{OverMemory, PciBusId},
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid as own_pid, pidfd_getfd, pidfd_open};
use schedule::Gate;
use simulator::SimulatedDriver;

const MIB: u64 = 1 << 20;
const CARD: u64 = 1 << 30;
const QUOTA: u64 = 256 * MIB;
const UUID: &str = "GPU-01234567-89ab-cdef-0123-456789ab0000";

/// This thread, as a mediator would look at another process's.
struct SelfCaller;

impl SelfCaller {
    fn own() -> NixPid {
        getpid()
    }

    fn remote(address: u64, len: usize) -> RemoteIoVec {
        RemoteIoVec { base: usize::try_from(address).unwrap(), len }
    }
}

impl Caller for SelfCaller {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        let length = bytes.len();
        match self.read_up_to(address, bytes)? {
            read if read == length => Ok(()),
            _ => Err(CallerError::Fault { address }),
        }
    }

    fn read_up_to(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError> {
        let remote = Self::remote(address, bytes.len());
        Ok(process_vm_readv(Self::own(), &mut [IoSliceMut::new(bytes)], &[remote]).unwrap_or(0))
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CallerError> {
        let remote = Self::remote(address, bytes.len());
        match process_vm_writev(Self::own(), &[IoSlice::new(bytes)], &[remote]) {
            Ok(written) if written == bytes.len() => Ok(()),
            _ => Err(CallerError::Fault { address }),
        }
    }

    fn file(&self, fd: i32) -> Result<File, CallerError> {
        if fd < 0 {
            return Err(CallerError::BadDescriptor { fd });
        }
        let pidfd = pidfd_open(own_pid(), PidfdFlags::empty()).map_err(|error| CallerError::Other(error.into()))?;
        let file = pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty());
        file.map(File::from).map_err(|_| CallerError::BadDescriptor { fd })
    }

    fn install(&self, file: &File) -> Result<i32, CallerError> {
        Ok(file.try_clone().map_err(CallerError::Other)?.into_raw_fd())
    }

    fn pid(&self) -> Result<Pid, CallerError> {
        Ok(Pid(getpid().as_raw()))
    }

    fn thread(&self) -> i32 {
        gettid().as_raw()
    }

    fn numbers(&self) -> Result<Numbers, CallerError> {
        Ok(Numbers::new(vec![Number { namespace: 1, pid: 7 }]))
    }

    fn is_waiting(&self) -> bool {
        true
    }
}

/// One process, which is never gone; with the path of its container's node of unified memory.
#[derive(Debug)]
struct OneProcess(String);

impl Processes for OneProcess {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        Ok(vec![Pid(getpid().as_raw())])
    }

    fn is_running(&self, _: Pid) -> bool {
        true
    }

    fn is_thread_running(&self, _: i32) -> bool {
        true
    }

    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool> {
        Ok(one == other)
    }

    fn address_space(&self, _: Pid, _: i32) -> io::Result<Arc<dyn mediator::AddressSpace>> {
        Ok(Arc::new(Self(self.0.clone())))
    }

    fn is_leaving(&self, _: Pid) -> bool {
        false
    }

    fn uvm_mappings(&self, _: Pid) -> io::Result<Vec<UvmMapping>> {
        // address-end permissions offset device inode path
        let parse = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = words.first()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let (address, end) = (number(start)?, number(end)?);
            Some(UvmMapping { address, length: end - address, offset: number(words.get(2)?)? })
        };
        let maps = fs::read_to_string("/proc/self/maps")?;
        let of_this_container = |line: &&str| line.ends_with(&*self.0);
        Ok(maps.lines().filter(of_this_container).filter_map(parse).collect())
    }

    fn has_open_file(&self, _: Pid, _: &File) -> io::Result<bool> {
        Ok(true)
    }
}

impl mediator::AddressSpace for OneProcess {
    fn is_there(&self) -> bool {
        true
    }

    fn is_its_process_s(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn uvm_mappings(&self) -> io::Result<Vec<UvmMapping>> {
        Processes::uvm_mappings(self, Pid(getpid().as_raw()))
    }
}

impl Observer for OneProcess {
    fn over_memory(&self, _: &OverMemoryEvent) {}

    fn new_process(&self, _: Pid) {}

    fn unknown_call(&self, _: UnknownKind) {}

    fn drift(&self, _: &Drift) {}

    fn end_container(&self, _: &str) {}
}

/// Calls go to a session instead of the kernel.
#[derive(Debug)]
struct Mediated(Session);

impl Mediated {
    fn end(&self, stopped: &Trapped) -> io::Result<Option<i32>> {
        match self.0.handle(&SelfCaller, stopped) {
            Answer::Return(value) => Ok(Some(i32::try_from(value).unwrap())),
            Answer::Errno(errno) => Err(io::Error::from_raw_os_error(errno)),
            Answer::Continue => Ok(None),
            Answer::KillCaller => Err(io::Error::other("killed")),
        }
    }
}

impl Kernel for Mediated {
    fn ioctl(&self, file: BorrowedFd<'_>, command: u32, args: &mut [u8]) -> io::Result<i32> {
        let argument = args.as_mut_ptr().expose_provenance() as u64;
        let answer = self.end(&Trapped::Ioctl { fd: file.as_raw_fd(), command, argument })?;
        answer.ok_or_else(|| io::Error::other(format!("{command:#x} was continued: no kernel has simulated cards")))
    }

    fn map_at(&self, file: BorrowedFd<'_>, address: u64, length: usize, offset: u64) -> io::Result<Mapping> {
        let (fd, flags) = (file.as_raw_fd(), 0x10_0001);
        self.end(&Trapped::Mmap { address, length: length as u64, flags, fd, offset })?;
        Mapping::shared_at(file, address, length, offset)
    }
}

/// A container with a quota of a simulated card.
struct Container {
    nodes: Nodes,
    gate: Arc<dyn Gate>,
    account: PathBuf,
    channels: PathBuf,
    _state_dir: tempfile::TempDir,
}

fn container() -> Container {
    let state_dir = tempfile::tempdir().unwrap();
    let pci = PciBusId { domain: 0, bus: 1, device: 0, function: 0 };
    let card = Card {
        index: 0,
        uuid: UUID.into(),
        model: "NVIDIA H200".into(),
        brand: "Nvidia".into(),
        compute_capability: (9, 0),
        memory: Bytes(CARD),
        minor: 0,
        pci,
        numa_node: None,
        links: Vec::new(),
        mig_enabled: false,
        mig_devices: Vec::new(),
        hard_caps: true,
        simulated: None,
        health: Health::Ok,
    };
    let granted = GrantedCard {
        monitored: false,
        uuid: UUID.into(),
        index: 0,
        minor: 0,
        pci,
        memory_limit: Bytes(QUOTA),
        channels: 512,
        whole: false,
        is_capped: false,
        needs_windows: false,
    };
    let inventory = Inventory {
        source: Source::Simulated,
        driver_version: "580.159.04".into(),
        cuda_version: "13.0".into(),
        cards: vec![card],
    };
    let uvm = state_dir.path().join("simulated/dev/nvidia-uvm").to_str().unwrap().to_owned();
    let setup = SessionSetup {
        cards: vec![granted],
        pinned_memory: Bytes(16 << 30),
        release: DriverRelease::new(580, 159, 4),
        pass_unknown_driver: false,
        driver: Arc::new(SimulatedDriver::new(state_dir.path(), &inventory).unwrap()),
        throttle: runtime_config::config::Throttle::default(),
        may_draw: false,
        over_memory: OverMemory::Deny,
        processes: Arc::new(OneProcess(uvm.clone())),
        observer: Arc::new(OneProcess(uvm)),
    };
    let session = Session::new(setup).unwrap();
    let gate = session.gates().remove(0);
    let nodes = Nodes::with(state_dir.path().join("simulated/dev"), Arc::new(Mediated(session)));
    let file = |kind| state_dir.path().join(format!("simulated/{UUID}.{kind}"));
    let (account, channels) = (file("used"), file("channels"));
    Container { nodes, gate, account, channels, _state_dir: state_dir }
}

impl Container {
    /// Memory that is taken, by the card's account.
    fn taken(&self) -> u64 {
        taken(&self.account)
    }

    /// For how long the card's compute engine has worked, until somebody looked last.
    fn worked(&self) -> Duration {
        let text = fs::read_to_string(&self.channels).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("engine 1 "));
        Duration::from_nanos(line.map_or(0, |line| line.split(' ').next().unwrap().parse().unwrap()))
    }
}

fn taken(account: &Path) -> u64 {
    let text = fs::read_to_string(account).unwrap_or_default();
    text.lines()
        .take_while(|line| *line != "end")
        .map(|line| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_program_runs_out_of_memory_at_its_quota_and_sees_a_card_of_that_size() {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let device = client.device(0).unwrap();
    assert_eq!(device.memory().unwrap().total, QUOTA);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(device.alloc(64 * MIB).unwrap());
    }
    assert_eq!((container.taken(), device.memory().unwrap().free), (QUOTA, 0));
    for size in [1, 64 * MIB, CARD, u64::MAX] {
        assert!(device.alloc(size).unwrap_err().is_out_of_memory(), "{size}");
    }
    client.free(held.pop().unwrap().handle).unwrap();
    assert_eq!(device.memory().unwrap().free, 64 * MIB);
    device.alloc(64 * MIB).unwrap();

    let rows = smi::rows(&client).unwrap();
    let table = smi::table(&client.version().unwrap(), &rows);
    assert!(
        table.contains("256MiB / 256MiB") && table.contains("NVIDIA H200") && table.contains("580.159.04"),
        "{table}"
    );
    assert_eq!(rows[0].uuid, UUID);
    assert_eq!(rows[0].processes, [(7, QUOTA)], "by the container's own pid");
}

#[test]
fn what_is_mapped_or_exported_stays_charged_until_it_is_gone() {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let device = client.device(0).unwrap();
    let mut space = AddressSpace::open(&device).unwrap();
    let memory = device.alloc(200 * MIB).unwrap();
    let base = space.map(&device, memory).unwrap();
    client.free(memory.handle).unwrap();
    assert!(device.alloc(100 * MIB).unwrap_err().is_out_of_memory(), "the mapping still has it");
    space.unmap(base, memory.size).unwrap();
    let memory = device.alloc(200 * MIB).unwrap();
    let carrier = exports::export(&device, memory).unwrap();
    client.free(memory.handle).unwrap();
    assert!(device.alloc(100 * MIB).unwrap_err().is_out_of_memory(), "the export still has it");
    let imported = exports::import(&device, &carrier).unwrap();
    client.free(imported).unwrap();
    assert_eq!(container.taken(), 200 * MIB);
}

#[test]
fn managed_memory_counts() {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let device = client.device(0).unwrap();
    let mut space = AddressSpace::open(&device).unwrap();
    let _held = space.managed(200 * MIB).unwrap();
    assert!(device.alloc(100 * MIB).unwrap_err().is_out_of_memory());
    // On the host, for its page tables.
    let _on_host = space.managed(100 * MIB).unwrap();
    assert!(device.alloc(56 * MIB).unwrap_err().is_out_of_memory());
    device.alloc(54 * MIB).unwrap();
}

#[test]
fn honest_random_programs_fail_with_nothing_but_out_of_memory() {
    for seed in 0..8 {
        let container = container();
        let client = Client::open(&container.nodes).unwrap();
        let device = client.device(0).unwrap();
        let outcome =
            random::run(&device, seed, 200, 48 * MIB).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        assert!(outcome.given > 0 && outcome.peak <= QUOTA, "{outcome:?}");
    }
}

/// Calls that nobody needs; `huge-pages` are larger than the quota, and `garbage` asks for nothing
/// in particular.
const REFUSED: [&str; 5] = ["foreign-type", "xfer", "huge-pages", "fixed-alignment", "garbage"];

#[test]
fn no_attack_comes_to_hold_more_than_the_quota() {
    let mut held = Vec::new();
    for (name, attack) in ATTACKS {
        // These go to the kernel itself, which has no such card: they are for containers.
        if matches!(*name, "int80" | "race") {
            continue;
        }
        let container = container();
        let client = Client::open(&container.nodes).unwrap();
        let device = client.device(0).unwrap();
        let outcome = attack(&device, 64 * MIB);
        // What gets nothing at all would get no more without a mediator.
        let least = if REFUSED.contains(name) { 0 } else { QUOTA - 64 * MIB };
        let expected = outcome.as_ref().is_ok_and(|held| (least..=QUOTA).contains(held));
        if !expected || container.taken() > QUOTA {
            held.push(format!("{name}: {outcome:?}, and the card says that {} bytes are taken", container.taken()));
        }
    }
    assert!(held.is_empty(), "{held:#?}");
}

#[test]
fn work_is_done_while_the_gate_is_open() {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let devices = [client.device(0).unwrap()];
    let load = Workload { groups: 2, channels: 3, copy: true, video: true, burst: None };
    let mut worker = Worker::start(&devices, load).unwrap();
    let wait = |worker: &mut Worker<'_>| {
        worker.work_until(Instant::now() + Duration::from_millis(30)).unwrap();
        worker.got().unwrap()
    };
    let open = wait(&mut worker);
    assert!(open.compute[0] >= Duration::from_millis(29) && open.copy >= Duration::from_millis(29), "{open:?}");
    assert!(open.compute[0] <= open.wall && open.copy <= open.wall, "{open:?}");
    let edge = container.gate.close().unwrap();
    assert_eq!((edge.channels, container.gate.groups()), (9, 2));
    let closed = worker.got().unwrap();
    let later = wait(&mut worker);
    assert_eq!((&later.compute, later.copy), (&closed.compute, closed.copy));
    assert!(later.video >= closed.video + Duration::from_millis(29), "video engines are left alone: {later:?}");
    container.gate.open().unwrap();
    assert!(wait(&mut worker).compute[0] >= open.compute[0] + Duration::from_millis(29));
}

#[test]
fn work_that_comes_now_and_then_is_done_and_no_more() {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let devices = [client.device(0).unwrap()];
    let (work, every) = (Duration::from_millis(2), Duration::from_millis(10));
    let load = Workload { groups: 1, channels: 1, copy: false, video: false, burst: Some(Burst { work, every }) };
    let mut worker = Worker::start(&devices, load).unwrap();
    // One piece at once, and one at the end of each interval; later if the machine is slow, never
    // earlier.
    let got = loop {
        worker.work_until(Instant::now() + every).unwrap();
        let got = worker.got().unwrap();
        let pieces = 1 + u32::try_from(got.wall.as_nanos() / every.as_nanos()).unwrap();
        assert!(got.compute[0] <= work * pieces, "{got:?}");
        if got.compute[0] >= work * 5 {
            break got;
        }
        assert!(got.wall < Duration::from_secs(60), "it is not done: {got:?}");
    };
    // Had it had work without end, it would have had all of the engine's time.
    assert!(got.compute[0] < got.wall, "{got:?}");
}

#[test]
fn no_attack_works_while_the_gate_is_closed() {
    for (name, attack) in compute_attacks::ATTACKS {
        // A gate that is closed for longer than the longest period lets a call through; this
        // machine may stand still for as long.
        let judged = (0..20).any(|_| {
            works_while_the_gate_is_closed(*attack).is_some_and(|worked| {
                assert!(!worked, "{name} has worked");
                true
            })
        });
        assert!(judged, "{name}: the machine stood still each time");
    }
}

/// Returns whether the attack gets any time of the card; `None`: the gate was closed for too long
/// to tell.
fn works_while_the_gate_is_closed(attack: compute_attacks::TimeAttack) -> Option<bool> {
    let container = container();
    let client = Client::open(&container.nodes).unwrap();
    let device = client.device(0).unwrap();
    let group = Group::working(&device, Engine::Compute, 1, ENDLESS).unwrap();
    let begin = Instant::now();
    container.gate.close().unwrap();
    let before = (group.executed_ns().unwrap(), container.worked());
    let (closed, mut effect) = (AtomicBool::new(true), Effect::default());
    let (begun, has_begun) = mpsc::channel();
    let worked = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| {
            begun.send(()).unwrap();
            loop {
                attack(&group, &mut effect).unwrap();
                if !closed.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        has_begun.recv().unwrap();
        // Time that it could steal.
        std::thread::sleep(Duration::from_millis(60));
        let after = (group.executed_ns().unwrap(), container.worked());
        let closed_for = begin.elapsed();
        container.gate.open().unwrap();
        closed.store(false, Ordering::Relaxed);
        hostile.join().unwrap();
        (closed_for < Duration::from_millis(900)).then_some(after != before)
    });
    assert!(effect.tried > 0, "it tries something");
    worked
}
