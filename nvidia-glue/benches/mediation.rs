//! Cost of mediation itself for a call, without the kernel's part: no caller that waits, and no
//! driver behind it.
//!
//! Seven calls a round, as `cudaMalloc` and `cudaFree` make them. `perf stat -e instructions:u` on
//! two numbers of rounds tells what one takes, whatever else the machine does; the times say less.
//! Arguments: `--rounds N` (default 200000).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement that goes wrong ends with a panic, and its result goes to standard output"
)]

use std::{
    cell::RefCell,
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use abi::{
    DriverRelease, Handle, Node,
    classes::{NV01_DEVICE_0, NV01_MEMORY_LOCAL_USER, NV01_ROOT_CLIENT},
    controls::NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES,
    escapes::{NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL, NV_ESC_RM_FREE, command},
    uvm::UVM_INITIALIZE,
};
use cards::{Inventory, Roots, discover};
use driver::{DeviceFile, Driver, DriverCall, FileWatch, NvidiaDriver, OwnClient};
use mediator::{
    AddressSpace, Answer, Caller, CallerError, Drift, GrantedCard, Numbers, Observer, OverMemoryEvent, Pid, Processes,
    Session, SessionSetup, Trapped, UnknownKind, UvmMapping,
};
use runtime_config::{
    Bytes,
    config::{Config, Throttle},
    request::OverMemory,
};
use simulator::SimulatedDriver;

const LENGTH: u64 = 4 * Bytes::MIB;
const BASE: u64 = 0x7f00_0000_0000;
const MEMORY: u32 = 0x5c00_0003;
const CONTROL_FD: i32 = 3;
const UVM_FD: i32 = 4;

fn main() {
    let rounds = rounds();
    let directory = tempfile::tempdir().unwrap();
    let inventory = inventory(directory.path());
    let driver = Arc::new(Silent::new(directory.path(), &inventory));
    let session = session(&inventory, Arc::clone(&driver));
    let program = Program::new(&driver);
    program.begin(&session);
    driver.is_silent.store(true, Ordering::Relaxed);
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..rounds.div_ceil(1000) {
        let begin = Instant::now();
        for _ in 0..1000 {
            program.round(&session, &inventory);
        }
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    println!("a round of seven calls: fastest {:.3} us, median {:.3} us", times[0], times[times.len() / 2]);
    assert_eq!(session.usage().cards[0].used, Bytes(0), "what was charged was released");
}

fn rounds() -> u32 {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => 200_000,
        ["--rounds", rounds] => rounds.parse().unwrap(),
        other => panic!("unknown arguments {other:?}; there is --rounds N"),
    }
}

fn inventory(directory: &Path) -> Inventory {
    let toml = format!(
        "state_dir = {directory:?}\n[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"NVIDIA H200\"\n\
         memory = \"143771MiB\"\ncount = 1\n"
    );
    discover(&Config::from_toml(&toml, "bench").unwrap()).unwrap()
}

fn session(inventory: &Inventory, driver: Arc<Silent>) -> Session {
    let card = &inventory.cards[0];
    let granted = GrantedCard {
        uuid: card.uuid.clone(),
        index: card.index,
        minor: card.minor,
        pci: card.pci,
        memory_limit: Bytes(8 << 30),
        channels: 512,
        monitored: false,
        whole: false,
        is_capped: false,
        needs_windows: false,
    };
    let setup = SessionSetup {
        cards: vec![granted],
        pinned_memory: Bytes(16 << 30),
        release: DriverRelease::new(580, 159, 4),
        pass_unknown_driver: false,
        driver,
        throttle: Throttle::default(),
        may_draw: false,
        over_memory: OverMemory::Deny,
        processes: Arc::new(Nobody),
        observer: Arc::new(Nobody),
    };
    Session::new(setup).unwrap()
}

/// A simulated driver until it is told to be silent. Then each call goes the real one's way, to a
/// file that is no device of its; what the kernel says of that is taken for the driver's success.
#[derive(Debug)]
struct Silent {
    simulated: SimulatedDriver,
    real: NvidiaDriver,
    is_silent: AtomicBool,
}

impl Silent {
    fn new(directory: &Path, inventory: &Inventory) -> Self {
        let root = directory.join("root");
        std::fs::create_dir_all(root.join("proc")).unwrap();
        std::fs::write(root.join("proc/devices"), "Character devices:\n195 nvidia\n511 nvidia-uvm\n").unwrap();
        Self {
            simulated: SimulatedDriver::new(directory, inventory).unwrap(),
            real: NvidiaDriver::new(&Roots::under(root)).unwrap(),
            is_silent: AtomicBool::new(false),
        }
    }
}

impl Driver for Silent {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        if !self.is_silent.load(Ordering::Relaxed) {
            return self.simulated.ioctl(file, call);
        }
        let DriverCall { command, args, buffers, files } = call;
        let error = self.real.ioctl(file, DriverCall { command, args: &mut *args, buffers: &mut *buffers, files });
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        // RM_ALLOC says which handle it is, and changes its parameters.
        if command & 0xff == u32::from(NV_ESC_RM_ALLOC) {
            put(args, 8, MEMORY);
            buffers[0].bytes[64 + 40] = 1;
        }
        Ok(0)
    }

    fn in_callers_place(&self, file: &DeviceFile, call: DriverCall<'_>) -> Option<io::Result<i32>> {
        self.simulated.in_callers_place(file, call)
    }

    fn open(&self, node: Node) -> io::Result<DeviceFile> {
        self.simulated.open(node)
    }

    fn node_of(&self, file: &File) -> io::Result<Option<Node>> {
        self.simulated.node_of(file)
    }

    fn client_exists(&self, probe: &OwnClient, client: Handle) -> io::Result<bool> {
        self.simulated.client_exists(probe, client)
    }

    fn file_watch(&self) -> io::Result<Box<dyn FileWatch>> {
        self.simulated.file_watch()
    }
}

/// An observer to which nothing happens.
#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn over_memory(&self, event: &OverMemoryEvent) {
        panic!("{event:?}");
    }
    fn new_process(&self, _: Pid) {}
    fn unknown_call(&self, kind: UnknownKind) {
        panic!("{kind}");
    }
    fn end_container(&self, why: &str) {
        panic!("{why}");
    }
    fn drift(&self, drift: &Drift) {
        panic!("{drift:?}");
    }
}

impl Processes for Nobody {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        Ok(Vec::new())
    }
    fn is_running(&self, _: Pid) -> bool {
        true
    }
    fn is_thread_running(&self, _: i32) -> bool {
        true
    }
    fn share_memory(&self, _: Pid, _: Pid) -> io::Result<bool> {
        Ok(false)
    }
    fn address_space(&self, _: Pid, _: i32) -> io::Result<Arc<dyn AddressSpace>> {
        Ok(Arc::new(Nothing))
    }
    fn is_leaving(&self, _: Pid) -> bool {
        false
    }

    fn uvm_mappings(&self, _: Pid) -> io::Result<Vec<UvmMapping>> {
        Ok(Vec::new())
    }
    fn has_open_file(&self, _: Pid, _: &File) -> io::Result<bool> {
        Ok(true)
    }
}

/// An address space without mappings.
#[derive(Debug)]
struct Nothing;

impl AddressSpace for Nothing {
    fn is_there(&self) -> bool {
        true
    }
    fn is_its_process_s(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn uvm_mappings(&self) -> io::Result<Vec<UvmMapping>> {
        Ok(Vec::new())
    }
}

/// The calling program: two open files, and its memory, of which the argument is at 0 and the
/// parameters are at [`PARAMS`].
struct Program {
    control: File,
    uvm: File,
    memory: RefCell<Vec<u8>>,
}

const PARAMS: u64 = 16384;

impl Program {
    fn new(driver: &Silent) -> Self {
        let open = |node| driver.open(node).unwrap().file.try_clone().unwrap();
        Self { control: open(Node::Control), uvm: open(Node::Uvm), memory: RefCell::new(vec![0; 32768]) }
    }

    fn ioctl(&self, session: &Session, (fd, command): (i32, u32), args: &[u8]) {
        self.memory.borrow_mut()[..args.len()].copy_from_slice(args);
        let (answer, _) = session.handle_with_sequel(self, &Trapped::Ioctl { fd, command, argument: 0 });
        assert_eq!(answer, Answer::Return(0));
    }

    fn escape(&self, session: &Session, number: u8, args: &[u32]) -> u32 {
        let bytes: Vec<u8> = args.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.ioctl(session, (CONTROL_FD, command(number, bytes.len())), &bytes);
        u32::from_le_bytes(self.memory.borrow()[8..12].try_into().unwrap())
    }

    fn alloc(&self, session: &Session, (client, parent, object): (u32, u32, u32), class: u32, params: &[u8]) -> u32 {
        let at = usize::try_from(PARAMS).unwrap();
        self.memory.borrow_mut()[at..at + params.len()].copy_from_slice(params);
        let params = if params.is_empty() { 0 } else { u32::try_from(PARAMS).unwrap() };
        self.escape(session, NV_ESC_RM_ALLOC, &[client, parent, object, class, params, 0, 0, 0, 0, 0, 0, 0])
    }

    /// A client, a device, and an address space of UVM's.
    fn begin(&self, session: &Session) {
        let client = self.alloc(session, (0, 0, 0), NV01_ROOT_CLIENT, &[]);
        self.alloc(session, (client, client, DEVICE), NV01_DEVICE_0, &[0; 56]);
        CLIENT.set(client).unwrap();
        self.ioctl(session, (UVM_FD, UVM_INITIALIZE), &[0; 16]);
    }

    fn round(&self, session: &Session, inventory: &Inventory) {
        let client = *CLIENT.get().unwrap();
        let mut params = [0; 128];
        put(&mut params, 0, 0xc1d0_0001);
        put(&mut params, 64, u32::try_from(LENGTH).unwrap());
        assert_eq!(self.alloc(session, (client, DEVICE, 0), NV01_MEMORY_LOCAL_USER, &params), MEMORY);
        let control =
            [client, DEVICE, NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES, 0, u32::try_from(PARAMS).unwrap(), 0, 32, 0];
        self.escape(session, NV_ESC_RM_CONTROL, &control);
        let mut range = [0; 24];
        range[..8].copy_from_slice(&BASE.to_le_bytes());
        range[8..16].copy_from_slice(&LENGTH.to_le_bytes());
        self.ioctl(session, (UVM_FD, 73), &range);
        let mut map = [0; 9264];
        map[..24].copy_from_slice(&range);
        map[16..24].fill(0);
        let uuid = inventory.cards[0].uuid.trim_start_matches("GPU-").replace('-', "");
        map[24..40].copy_from_slice(&u128::from_str_radix(&uuid, 16).unwrap().to_be_bytes());
        map[9240] = 1;
        for (at, value) in [(9248, CONTROL_FD.cast_unsigned()), (9252, client), (9256, MEMORY)] {
            put(&mut map, at, value);
        }
        self.ioctl(session, (UVM_FD, 33), &map);
        self.ioctl(session, (UVM_FD, 34), &range);
        self.escape(session, NV_ESC_RM_CONTROL, &control);
        self.escape(session, NV_ESC_RM_FREE, &[client, DEVICE, MEMORY, 0]);
    }
}

const DEVICE: u32 = 0x5c00_0001;
static CLIENT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

impl Caller for Program {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        let at = usize::try_from(address).unwrap();
        bytes.copy_from_slice(&self.memory.borrow()[at..at + bytes.len()]);
        Ok(())
    }
    fn read_up_to(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError> {
        self.read(address, bytes).map(|()| bytes.len())
    }
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CallerError> {
        let at = usize::try_from(address).unwrap();
        self.memory.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn file(&self, fd: i32) -> Result<File, CallerError> {
        let file = if fd == CONTROL_FD { &self.control } else { &self.uvm };
        file.try_clone().map_err(CallerError::Other)
    }
    fn install(&self, _: &File) -> Result<i32, CallerError> {
        Err(CallerError::Gone)
    }
    fn pid(&self) -> Result<Pid, CallerError> {
        Ok(Pid(1000))
    }
    fn thread(&self) -> i32 {
        1000
    }
    fn numbers(&self) -> Result<Numbers, CallerError> {
        Ok(Numbers::new(Vec::new()))
    }
    fn is_waiting(&self) -> bool {
        true
    }
}
