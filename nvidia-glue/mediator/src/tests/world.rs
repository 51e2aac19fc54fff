//! A container with programs in it, on simulated cards: what the kernel's side of a call is to a
//! session.

use abi::{
    Abi, DriverRelease, Handle, Node, Status,
    classes::{
        FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, NV01_DEVICE_0, NV01_MEMORY_LOCAL_USER, NV01_MEMORY_SYSTEM,
        NV01_ROOT_CLIENT, NV20_SUBDEVICE_0,
    },
    escapes::command,
    layout::{read_u32, write_u32, write_u64},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use account::{Accounts, Card};
use base::{Bytes, OverMemory, Pid, Throttle};
use cards::Inventory;
use driver::{DeviceFile, Driver, Raw, same_open_file};
use runtime_config::config::{Config, DriverKind, SimulatedCards};
use simulator::SimulatedDriver;
use tempfile::TempDir;
use testing::NoForks;

use crate::{
    AddressSpace, Answer, Caller, CallerError, Drift, GrantedCard, Number, Numbers, Observer, OverMemoryEvent,
    Processes, Sequel, Session, SessionError, SessionSetup, Shortage, Trapped, UnknownKind, UvmMapping,
    clock::tests::TestClock, locks::lock,
};

pub(super) const MIB: u64 = Bytes::MIB;
pub(super) const GIB: u64 = Bytes::GIB;
/// Pid namespaces: the mediator's, and containers'.
const HOST_NAMESPACE: u64 = 1;
const CONTAINER_NAMESPACE: u64 = 2;
/// Channels of each card that a container is granted.
pub(super) const CHANNELS: u32 = 500;
/// As a container's limit: the cards without a quota.
pub(super) const WHOLE: u64 = u64::MAX;
pub(super) const RELEASE: DriverRelease = DriverRelease::new(580, 159, 4);

/// Cards, and the driver that has them. Several containers may share it, and keep it.
#[derive(Clone)]
pub(super) struct Machine {
    _directory: Arc<TempDir>,
    pub(super) driver: Arc<SimulatedDriver>,
    pub(super) inventory: Inventory,
    next_pid: Arc<AtomicI32>,
    _no_forks: Arc<NoForks>,
}

impl Machine {
    pub(super) fn new(cards: u32) -> Self {
        Self::with_firmware(cards, true)
    }

    /// Makes one whose cards have firmware that schedules, or not.
    pub(super) fn with_firmware(cards: u32, gsp: bool) -> Self {
        let table = SimulatedCards { gsp, ..SimulatedCards::free("NVIDIA H200", Bytes(140 * GIB), cards) };
        let mut config = Config { state_dir: "/nonexistent".into(), ..Config::default() };
        config.driver.kind = DriverKind::Simulated;
        config.driver.simulated = vec![table];
        Self::of(cards::discover(&config).unwrap())
    }

    pub(super) fn of(inventory: Inventory) -> Self {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        let driver = Arc::new(SimulatedDriver::new(directory.path(), &inventory).unwrap());
        let next_pid = Arc::new(AtomicI32::new(1000));
        Self { _directory: directory, driver, inventory, next_pid, _no_forks: Arc::new(NoForks::hold()) }
    }

    /// A container with a share of the cards at these indices.
    pub(super) fn container(&self, cards: &[usize], limit: u64) -> Arc<Container> {
        self.container_on(Arc::clone(&self.driver) as Arc<dyn Driver>, OverMemory::Deny, cards, limit)
    }

    /// One whose calls go to `driver`, which has this machine's behind it.
    pub(super) fn container_on(
        &self,
        driver: Arc<dyn Driver>,
        over_memory: OverMemory,
        cards: &[usize],
        limit: u64,
    ) -> Arc<Container> {
        self.try_container(driver, over_memory, cards, limit, (RELEASE, false)).unwrap()
    }

    /// One beside a driver that says that it is of `release`; whether an unknown one is passed.
    pub(super) fn container_beside(
        &self,
        release: DriverRelease,
        passed: bool,
    ) -> Result<Arc<Container>, SessionError> {
        let driver = Arc::clone(&self.driver) as Arc<dyn Driver>;
        self.try_container(driver, OverMemory::Deny, &[0], GIB, (release, passed))
    }

    fn try_container(
        &self,
        driver: Arc<dyn Driver>,
        over_memory: OverMemory,
        cards: &[usize],
        limit: u64,
        (release, pass_unknown_driver): (DriverRelease, bool),
    ) -> Result<Arc<Container>, SessionError> {
        let observed = Arc::new(Recorder::default());
        let processes = Arc::new(Everybody::default());
        let granted = |at: &usize| {
            let card = &self.inventory.cards[*at];
            GrantedCard {
                uuid: card.uuid.clone(),
                index: card.index,
                minor: card.minor,
                pci: card.pci,
                memory_limit: if limit == WHOLE { card.memory } else { Bytes(limit) },
                channels: CHANNELS,
                whole: limit == WHOLE,
                monitored: limit == 0,
                is_capped: false,
                needs_windows: false,
            }
        };
        let setup = SessionSetup {
            cards: cards.iter().map(granted).collect(),
            pinned_memory: Bytes(16 << 30),
            release,
            pass_unknown_driver,
            driver,
            throttle: Throttle::default(),
            may_draw: false,
            over_memory,
            processes: Arc::clone(&processes) as Arc<dyn Processes>,
            observer: Arc::clone(&observed) as Arc<dyn Observer>,
        };
        Ok(Arc::new(Container { session: Session::new(setup)?, observed, processes, machine: self.clone() }))
    }
}

/// Events that an observer was told.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) over_memory: Mutex<Vec<OverMemoryEvent>>,
    pub(super) shortages: Mutex<Vec<Shortage>>,
    pub(super) new_processes: Mutex<Vec<Pid>>,
    pub(super) unknown: Mutex<Vec<UnknownKind>>,
    pub(super) drifts: Mutex<Vec<Drift>>,
    /// Reasons why the container is to be ended.
    pub(super) ends: Mutex<Vec<String>>,
    /// Classes of 3D that it has no driver capability for.
    pub(super) lacks_graphics: Mutex<Vec<String>>,
    /// Calls of debuggers and profilers.
    pub(super) refused_tools: Mutex<Vec<String>>,
    /// Cards that had their first channel.
    pub(super) first_channels: Mutex<Vec<String>>,
}

impl Observer for Recorder {
    fn over_memory(&self, event: &OverMemoryEvent) {
        lock(&self.over_memory).push(event.clone());
    }
    fn shortage(&self, shortage: &Shortage) {
        lock(&self.shortages).push(shortage.clone());
    }
    fn new_process(&self, pid: Pid) {
        lock(&self.new_processes).push(pid);
    }
    fn unknown_call(&self, kind: UnknownKind) {
        lock(&self.unknown).push(kind);
    }
    fn lacks_graphics(&self, class: &str) {
        lock(&self.lacks_graphics).push(class.to_owned());
    }
    fn refused_tool(&self, call: &str) {
        lock(&self.refused_tools).push(call.to_owned());
    }
    fn drift(&self, drift: &Drift) {
        lock(&self.drifts).push(drift.clone());
    }
    fn end_container(&self, why: &str) {
        lock(&self.ends).push(why.to_owned());
    }
    fn first_channel(&self, uuid: &str) {
        lock(&self.first_channels).push(uuid.to_owned());
    }
}

/// The container's processes as /proc would show them.
#[derive(Debug, Default)]
pub(super) struct Everybody {
    processes: Mutex<BTreeMap<Pid, Arc<Process>>>,
    /// There are no files left to look at anybody with.
    is_full: AtomicBool,
    /// They have left their memory, and have not ended.
    leaving: Mutex<BTreeSet<Pid>>,
    /// Cost of looking for all of them, by that clock.
    cost: Mutex<Option<(TestClock, Duration)>>,
}

#[derive(Debug, Default)]
pub(super) struct Process {
    files: Mutex<HashMap<i32, File>>,
    /// Several may have it.
    memory: Mutex<Arc<Memory>>,
    has_ended: AtomicBool,
}

/// An address space. It is there for as long as somebody has it who is not a view.
#[derive(Debug, Default)]
pub(super) struct Memory {
    mappings: Mutex<Vec<UvmMapping>>,
    /// So many of those who hold it are views.
    views: AtomicUsize,
}

/// View that a session keeps of one.
#[derive(Debug)]
struct View {
    process: Weak<Process>,
    memory: Arc<Memory>,
}

impl AddressSpace for View {
    fn is_there(&self) -> bool {
        Arc::strong_count(&self.memory) > self.memory.views.load(Ordering::SeqCst)
    }
    fn is_its_process_s(&self) -> io::Result<bool> {
        Ok(self.process.upgrade().is_some_and(|process| Arc::ptr_eq(&lock(&process.memory), &self.memory)))
    }
    fn uvm_mappings(&self) -> io::Result<Vec<UvmMapping>> {
        // It can be looked at as long as the process is there, whatever that has executed since.
        match self.process.upgrade() {
            Some(process) if !process.has_ended.load(Ordering::SeqCst) => Ok(lock(&self.memory.mappings).clone()),
            _ => gone(),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.memory.views.fetch_sub(1, Ordering::SeqCst);
    }
}

fn gone<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::ESRCH))
}

impl Everybody {
    fn get(&self, pid: Pid) -> Option<Arc<Process>> {
        lock(&self.processes).get(&pid).cloned()
    }
}

impl Processes for Everybody {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        if let Some((clock, cost)) = &*lock(&self.cost) {
            clock.work(*cost);
        }
        Ok(lock(&self.processes).keys().chain(&*lock(&self.leaving)).copied().collect())
    }
    fn is_leaving(&self, pid: Pid) -> bool {
        lock(&self.leaving).contains(&pid)
    }
    fn is_running(&self, pid: Pid) -> bool {
        lock(&self.processes).contains_key(&pid)
    }
    fn is_thread_running(&self, thread: i32) -> bool {
        self.is_running(Pid(thread))
    }
    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool> {
        match (self.get(one), self.get(other)) {
            (Some(one), Some(other)) => {
                let one = Arc::as_ptr(&lock(&one.memory));
                Ok(std::ptr::eq(one, Arc::as_ptr(&lock(&other.memory))))
            }
            _ => gone(),
        }
    }
    fn address_space(&self, pid: Pid, _thread: i32) -> io::Result<Arc<dyn AddressSpace>> {
        let Some(process) = self.get(pid) else { return gone() };
        let memory = Arc::clone(&lock(&process.memory));
        memory.views.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(View { process: Arc::downgrade(&process), memory }))
    }
    fn uvm_mappings(&self, pid: Pid) -> io::Result<Vec<UvmMapping>> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        self.get(pid).map_or_else(gone, |process| Ok(lock(&lock(&process.memory).mappings).clone()))
    }
    fn has_open_file(&self, pid: Pid, file: &File) -> io::Result<bool> {
        let Some(process) = self.get(pid) else { return gone() };
        let files = lock(&process.files);
        Ok(files.values().any(|own| same_open_file(own, file).unwrap()))
    }
}

/// One container: a session, and who is in it.
pub(super) struct Container {
    pub(super) session: Session,
    pub(super) observed: Arc<Recorder>,
    processes: Arc<Everybody>,
    pub(super) machine: Machine,
}

impl Container {
    pub(super) fn program(self: &Arc<Self>) -> Arc<Program> {
        self.program_in(&[])
    }

    pub(super) fn has_no_files_left(&self, is_full: bool) {
        self.processes.is_full.store(is_full, Ordering::SeqCst);
    }

    /// Ends who was ending.
    pub(super) fn all_has_ended(&self) {
        lock(&self.processes.leaving).clear();
    }

    /// One in pid namespaces, each in the one before: by their numbers, and what it is called
    /// there.
    pub(super) fn program_in(self: &Arc<Self>, nested: &[(u64, i32)]) -> Arc<Program> {
        let pid = Pid(self.machine.next_pid.fetch_add(1, Ordering::Relaxed));
        let first = [(HOST_NAMESPACE, pid.0), (CONTAINER_NAMESPACE, pid.0 - 999)].into_iter();
        let inwards = first.chain(nested.iter().copied());
        let numbers = Numbers::new(inwards.map(|(namespace, pid)| Number { namespace, pid }).collect());
        let process = Arc::new(Process::default());
        lock(&self.processes.processes).insert(pid, Arc::clone(&process));
        Arc::new(Program {
            container: Arc::clone(self),
            pid,
            numbers,
            process,
            memory: Mutex::default(),
            next_address: Mutex::new(0x10_0000),
            is_gone: AtomicBool::new(false),
            reads: AtomicU32::new(0),
            race: Mutex::new(None),
            races_after_writes: AtomicBool::new(false),
            gone_after_reads: AtomicU32::new(u32::MAX),
            waits_for: AtomicU32::new(u32::MAX),
        })
    }

    /// It is beside a driver of that release.
    pub(super) fn beside(&mut self, release: DriverRelease) {
        self.session.abi = Abi::of(release).unwrap();
    }

    /// It has the driver capability `graphics`.
    pub(super) fn may_draw(&mut self) {
        self.session.may_draw = true;
    }

    /// Each look for its processes takes so long, and time is what that clock says.
    pub(super) fn looks_cost(&mut self, clock: &TestClock, cost: Duration) {
        self.looks_cost_now(clock, cost);
        self.session.reclaim_throttle.clock = Box::new(clock.clone());
    }

    /// The same from now on, by the clock that the session has.
    pub(super) fn looks_cost_now(&self, clock: &TestClock, cost: Duration) {
        *lock(&self.processes.cost) = Some((clock.clone(), cost));
    }

    /// Bytes charged of the container's card of that index.
    pub(super) fn used(&self, card: usize) -> u64 {
        self.session.usage().cards[card].used.0
    }

    pub(super) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        lock(&self.session.objects.accounts)
    }

    /// Bytes charged of the host's memory.
    pub(super) fn host_used(&self) -> u64 {
        self.accounts().card(Card::HOST).unwrap().used.0
    }

    /// Every account is as if nothing had ever been; what a defect of the program would leave is
    /// among them.
    pub(super) fn assert_nothing_left(&self) {
        let counts = self.accounts().counts();
        assert_eq!(counts.abandoned, 0, "{counts:?}");
        for card in self.session.usage().cards {
            assert_eq!(card.used, Bytes(0), "{counts:?}");
        }
        assert_eq!((counts.clients, counts.charges, counts.references), (0, 0, 0), "{counts:?}");
    }
}

type Race = Box<dyn Fn(&Program, u32) + Send + Sync>;

/// A process of the container.
pub(super) struct Program {
    pub(super) container: Arc<Container>,
    pub(super) pid: Pid,
    numbers: Numbers,
    process: Arc<Process>,
    memory: Mutex<BTreeMap<u64, Vec<u8>>>,
    next_address: Mutex<u64>,
    is_gone: AtomicBool,
    reads: AtomicU32,
    /// Another thread, that runs after each read of this one's memory.
    race: Mutex<Option<Race>>,
    races_after_writes: AtomicBool,
    gone_after_reads: AtomicU32,
    /// So many times more it is said to wait.
    waits_for: AtomicU32,
}

impl Program {
    pub(super) fn open(&self, node: Node) -> i32 {
        let file = self.container.machine.driver.open(node).unwrap().file;
        self.give(file.try_clone().unwrap())
    }

    /// A descriptor of the program's for `file`, the lowest that is free.
    pub(super) fn give(&self, file: File) -> i32 {
        let mut files = lock(&self.process.files);
        let fd = (3..).find(|fd| !files.contains_key(fd)).unwrap();
        files.insert(fd, file);
        fd
    }

    pub(super) fn file_of(&self, fd: i32) -> File {
        lock(&self.process.files)[&fd].try_clone().unwrap()
    }

    /// Whoever looks into its descriptors meanwhile has to wait.
    pub(super) fn while_nobody_sees_its_files<T>(&self, work: impl FnOnce() -> T) -> T {
        let _files = lock(&self.process.files);
        work()
    }

    pub(super) fn close(&self, fd: i32) {
        lock(&self.process.files).remove(&fd).unwrap();
    }

    /// It closes a file, and the mediator looks for what has gone.
    pub(super) fn close_and_reconcile(&self, fd: i32) {
        self.close(fd);
        self.container.session.reconcile();
    }

    pub(super) fn map_uvm(&self, address: u64, length: u64) {
        let mapping = UvmMapping { address, length, offset: address };
        lock(&self.memory_now().mappings).push(mapping);
    }

    /// Managed memory there: it is asked for, and the kernel maps it.
    pub(super) fn has_managed(&self, uvm: i32, address: u64, length: u64) {
        assert_eq!(self.mmap(uvm, address, length, address), Answer::Continue);
        self.map_uvm(address, length);
    }

    pub(super) fn unmap_uvm(&self, address: u64) {
        lock(&self.memory_now().mappings).retain(|mapping| mapping.address != address);
    }

    /// It ends, without anybody having told the session.
    pub(super) fn exit(&self) -> Pid {
        lock(&self.container.processes.processes).remove(&self.pid);
        self.process.has_ended.store(true, Ordering::SeqCst);
        self.exec();
        self.pid
    }

    /// It ends, and the kernel takes long to take away what it had mapped: until
    /// [`Container::all_has_ended`].
    pub(super) fn exit_slowly(&self) -> Pid {
        lock(&self.container.processes.leaving).insert(self.pid);
        self.exit()
    }

    /// Another process, with the same open files under the same numbers. No mapping of a UVM file
    /// is inherited.
    pub(super) fn fork(&self) -> Arc<Self> {
        let child = self.container.program();
        let files = lock(&self.process.files);
        let same = files.iter().map(|(fd, file)| (*fd, file.try_clone().unwrap()));
        lock(&child.process.files).extend(same);
        drop(files);
        child
    }

    /// It executes another program: descriptors are closed, mappings gone.
    pub(super) fn exec(&self) {
        lock(&self.process.files).clear();
        *lock(&self.process.memory) = Arc::default();
    }

    /// Its memory: whoever holds this has it too, and is found by nobody.
    pub(super) fn memory_now(&self) -> Arc<Memory> {
        Arc::clone(&lock(&self.process.memory))
    }

    /// As a child that was cloned with `CLONE_VM`.
    pub(super) fn share_memory_of(&self, other: &Program) {
        *lock(&self.process.memory) = other.memory_now();
    }

    /// Another thread runs after each read of the program's memory; it is told how many there were.
    pub(super) fn race_with(&self, race: impl Fn(&Program, u32) + Send + Sync + 'static) {
        *lock(&self.race) = Some(Box::new(race));
    }

    /// The same after each write to this one's memory, too.
    pub(super) fn race_after_writes(&self, race: impl Fn(&Program, u32) + Send + Sync + 'static) {
        self.race_with(race);
        self.races_after_writes.store(true, Ordering::SeqCst);
    }

    pub(super) fn no_race(&self) {
        *lock(&self.race) = None;
        self.races_after_writes.store(false, Ordering::SeqCst);
    }

    /// The call is interrupted after so many reads of memory.
    pub(super) fn goes_after_reads(&self, reads: u32) {
        self.reads.store(0, Ordering::SeqCst);
        self.gone_after_reads.store(reads, Ordering::SeqCst);
    }

    /// The call is interrupted after it was found to wait so many times.
    pub(super) fn goes_after_looks(&self, looks: u32) {
        self.waits_for.store(looks, Ordering::SeqCst);
    }

    pub(super) fn comes_back(&self) {
        self.is_gone.store(false, Ordering::SeqCst);
        self.waits_for.store(u32::MAX, Ordering::SeqCst);
        self.gone_after_reads.store(u32::MAX, Ordering::SeqCst);
    }

    /// Puts bytes into the program's memory; where they are.
    pub(super) fn put(&self, bytes: &[u8]) -> u64 {
        let mut next = lock(&self.next_address);
        let address = *next;
        // Regions never touch: whoever reads beyond one is caught.
        *next += u64::try_from(bytes.len()).unwrap().next_multiple_of(4096) + 4096;
        lock(&self.memory).insert(address, bytes.to_vec());
        address
    }

    pub(super) fn take(&self, address: u64) -> Vec<u8> {
        lock(&self.memory).remove(&address).unwrap()
    }

    /// Overwrites memory, as another thread would.
    pub(super) fn poke(&self, address: u64, bytes: &[u8]) {
        self.with_region(address, bytes.len(), |region| region.copy_from_slice(bytes)).unwrap();
    }

    fn with_region<T>(&self, address: u64, length: usize, work: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut memory = lock(&self.memory);
        let (base, region) = memory.range_mut(..=address).next_back()?;
        let at = usize::try_from(address - base).ok()?;
        region.get_mut(at..at.checked_add(length)?).map(work)
    }

    pub(super) fn handle(&self, stopped: Trapped) -> Answer {
        self.container.session.handle(self, &stopped)
    }

    /// `ioctl(fd, command, &args)`.
    pub(super) fn ioctl(&self, fd: i32, command: u32, args: &mut [u8]) -> Answer {
        let argument = self.put(args);
        let answer = self.handle(Trapped::Ioctl { fd, command, argument });
        args.copy_from_slice(&self.take(argument));
        answer
    }

    /// An escape of the driver's.
    pub(super) fn escape(&self, fd: i32, number: u8, args: &mut [u8]) -> Answer {
        let size = u32::try_from(args.len()).unwrap();
        self.ioctl(fd, 3 << 30 | size << 16 | u32::from(b'F') << 8 | u32::from(number), args)
    }

    /// The same, whose status is at `status_at`.
    pub(super) fn rm(&self, fd: i32, number: u8, args: &mut [u8], status_at: usize) -> Result<(), Status> {
        let answer = self.escape(fd, number, args);
        result(answer, args, status_at)
    }

    pub(super) fn mmap(&self, fd: i32, address: u64, length: u64, offset: u64) -> Answer {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        self.handle(Trapped::Mmap { address, length, flags: flags.cast_unsigned(), fd, offset })
    }

    /// The same; and what is left to do then.
    pub(super) fn mmap_with_sequel(&self, fd: i32, address: u64, length: u64) -> (Answer, Option<Sequel>) {
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED).cast_unsigned();
        self.container.session.handle_with_sequel(self, &Trapped::Mmap { address, length, flags, fd, offset: address })
    }

    /// `NV_ESC_RM_ALLOC` of `class`; its parameters are changed in place.
    pub(super) fn alloc(
        &self,
        fd: i32,
        (client, parent, object): (u32, u32, u32),
        class: u32,
        params: &mut [u8],
    ) -> Result<u32, Status> {
        let address = if params.is_empty() { 0 } else { self.put(params) };
        let mut args = alloc_args((client, parent, object), class, address);
        let answer = self.escape(fd, 0x2b, &mut args);
        if address != 0 {
            params.copy_from_slice(&self.take(address));
        }
        result(answer, &args, 28).map(|()| read_u32(&args, 8).unwrap())
    }

    pub(super) fn free(&self, fd: i32, client: u32, object: u32) -> Result<(), Status> {
        let mut args = words(&[client, client, object, 0]);
        let answer = self.escape(fd, 0x29, &mut args);
        result(answer, &args, 12)
    }

    pub(super) fn control(
        &self,
        fd: i32,
        (client, object): (u32, u32),
        id: u32,
        params: &mut [u8],
    ) -> Result<(), Status> {
        let address = self.put(params);
        let mut args = control_args((client, object), id, (address, u32::try_from(params.len()).unwrap()));
        let answer = self.escape(fd, 0x2a, &mut args);
        params.copy_from_slice(&self.take(address));
        result(answer, &args, 28)
    }

    pub(super) fn dup(&self, fd: i32, (client, parent): (u32, u32), source: (u32, u32)) -> Result<u32, Status> {
        let mut args = words(&[client, parent, 0, source.0, source.1, 0, 0]);
        let answer = self.escape(fd, 0x34, &mut args);
        result(answer, &args, 24).map(|()| read_u32(&args, 8).unwrap())
    }

    /// A UVM command; its status is at `status_at`.
    pub(super) fn uvm(&self, fd: i32, command: u32, args: &mut [u8], status_at: usize) -> Result<(), Status> {
        let answer = self.ioctl(fd, command, args);
        result(answer, args, status_at)
    }

    /// A client with a device and a subdevice of the card of that device instance.
    pub(super) fn context(self: &Arc<Self>, instance: u32) -> Context {
        let control = self.open(Node::Control);
        let client = self.alloc(control, (0, 0, 0), NV01_ROOT_CLIENT, &mut []).unwrap();
        let device =
            self.alloc(control, (client, client, 0x5c00_0001), NV01_DEVICE_0, &mut device_params(instance)).unwrap();
        let subdevice = self.alloc(control, (client, device, 0x5c00_0002), NV20_SUBDEVICE_0, &mut [0; 4]).unwrap();
        Context { program: Arc::clone(self), control, client, device, subdevice }
    }

    /// `UVM_CREATE_EXTERNAL_RANGE`.
    pub(super) fn create_range(&self, fd: i32, base: u64, length: u64) -> Result<(), Status> {
        self.uvm(fd, 73, &mut range(base, length), 16)
    }

    /// `UVM_FREE`, as before 590.
    pub(super) fn free_range(&self, fd: i32, base: u64, length: u64) -> Result<(), Status> {
        self.uvm(fd, 34, &mut range(base, length), 16)
    }

    /// `UVM_ALLOC_SEMAPHORE_POOL`.
    pub(super) fn pool(&self, fd: i32, base: u64, length: u64) -> Result<(), Status> {
        let mut pool = vec![0; 9248];
        pool[..24].copy_from_slice(&range(base, length));
        self.uvm(fd, 68, &mut pool, 9240)
    }

    /// A UVM file that knows no card yet.
    pub(super) fn uvm_file(&self) -> i32 {
        let uvm = self.open(Node::Uvm);
        self.uvm(uvm, 0x3000_0001, &mut [0; 16], 8).unwrap();
        uvm
    }
}

/// A client with a device.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) program: Arc<Program>,
    pub(super) control: i32,
    pub(super) client: u32,
    pub(super) device: u32,
    pub(super) subdevice: u32,
}

impl Context {
    /// The driver ends its client for a reason of its own, and tells nobody.
    pub(super) fn ended_by_the_driver(&self) {
        let file = DeviceFile { node: Node::Control, file: Arc::new(self.program.file_of(self.control)) };
        let session = &self.program.container.session;
        let client = Handle(self.client);
        let raw = Raw { driver: session.driver.as_ref(), abi: session.abi, file: &file, client };
        assert_eq!(raw.free(client).unwrap(), Status::OK);
    }

    /// The same, of another process, which has its file.
    pub(super) fn lent_to(&self, other: &Arc<Program>) -> Self {
        let control = other.give(self.program.file_of(self.control));
        Self { program: Arc::clone(other), control, ..*self }
    }

    /// Video memory; its handle.
    pub(super) fn memory(&self, size: u64) -> Result<u32, Status> {
        self.object(NV01_MEMORY_LOCAL_USER, &mut memory_params(size))
    }

    pub(super) fn object(&self, class: u32, params: &mut [u8]) -> Result<u32, Status> {
        self.object_below(self.device, class, params)
    }

    pub(super) fn object_below(&self, parent: u32, class: u32, params: &mut [u8]) -> Result<u32, Status> {
        self.program.alloc(self.control, (self.client, parent, 0), class, params)
    }

    /// One below `parent` whose handle the program chooses.
    pub(super) fn object_named(
        &self,
        (parent, object): (u32, u32),
        class: u32,
        params: &mut [u8],
    ) -> Result<u32, Status> {
        self.program.alloc(self.control, (self.client, parent, object), class, params)
    }

    /// Memory of the host's.
    pub(super) fn host_memory(&self, size: u64) -> Result<u32, Status> {
        self.object(NV01_MEMORY_SYSTEM, &mut host_memory_params(size))
    }

    /// A channel below a group or the device, with words at these offsets of its parameters.
    pub(super) fn channel_with(&self, parent: u32, words: &[(usize, u32)]) -> Result<u32, Status> {
        self.object_below(parent, HOPPER_CHANNEL_GPFIFO_A, &mut struct_with(368, words))
    }

    /// Duplicates an object of `owner`'s below the device.
    pub(super) fn dup(&self, owner: &Context, object: u32) -> Result<u32, Status> {
        self.program.dup(self.control, (self.client, self.device), (owner.client, object))
    }

    pub(super) fn free(&self, object: u32) -> Result<(), Status> {
        self.program.free(self.control, self.client, object)
    }

    pub(super) fn subdevice_control(&self, id: u32, params: &mut [u8]) -> Result<(), Status> {
        self.program.control(self.control, (self.client, self.subdevice), id, params)
    }

    /// `NV_ESC_RM_VID_HEAP_CONTROL` of a function (`NVOS32_FUNCTION_*`), with words and numbers of
    /// 64 bits at these offsets; what comes back.
    pub(super) fn heap(
        &self,
        function: u32,
        words: &[(usize, u32)],
        numbers: &[(usize, u64)],
    ) -> Result<Vec<u8>, Status> {
        let mut args = struct_with(184, &[&[(0, self.client), (4, self.device), (8, function)], words].concat());
        numbers.iter().for_each(|(at, number)| assert!(write_u64(&mut args, *at, *number)));
        self.program.rm(self.control, 0x4a, &mut args, 20).map(|()| args)
    }

    /// `NV_ESC_RM_MAP_MEMORY` of so much of an object, which is below `parent`, on a file.
    pub(super) fn map_on(&self, file: i32, (parent, object): (u32, u32), length: u64) -> Result<(), Status> {
        let names = [(0, self.client), (4, parent), (8, object), (48, file.cast_unsigned())];
        let mut args = struct_with(56, &names);
        assert!(write_u64(&mut args, 24, length));
        let mapped = self.program.rm(self.control, 0x4e, &mut args, 40);
        assert_eq!(read_u32(&args, 48), Some(file.cast_unsigned()), "the caller's own number comes back");
        mapped
    }

    /// Maps memory into a new external range at `base`.
    pub(super) fn map(&self, uvm: i32, base: u64, length: u64, memory: u32) -> Result<(), Status> {
        let card = &self.program.container.machine.inventory.cards[0];
        self.program.create_range(uvm, base, length)?;
        let mut map = vec![0; 9264];
        map[..16].copy_from_slice(&range(base, length)[..16]);
        map[24..40].copy_from_slice(&uuid_bytes(&card.uuid));
        map[9240] = 1;
        for (at, value) in [(9248, self.control.cast_unsigned()), (9252, self.client), (9256, memory)] {
            assert!(write_u32(&mut map, at, value));
        }
        self.program.uvm(uvm, 33, &mut map, 9260)
    }

    /// A UVM file that knows the context's card and client.
    pub(super) fn uvm_file(&self) -> i32 {
        let uvm = self.program.uvm_file();
        self.register(uvm);
        uvm
    }

    pub(super) fn register(&self, uvm: i32) {
        let card = &self.program.container.machine.inventory.cards[0];
        let mut gpu = [uuid_bytes(&card.uuid).to_vec(), vec![0; 24]].concat();
        for (at, value) in [(24, u32::MAX), (28, 0), (32, 0)] {
            assert!(write_u32(&mut gpu, at, value));
        }
        self.program.uvm(uvm, 37, &mut gpu, 36).unwrap();
        let space = self.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
        let mut register = [uuid_bytes(&card.uuid).to_vec(), vec![0; 16]].concat();
        for (at, value) in [(16, self.control.cast_unsigned()), (20, self.client), (24, space)] {
            assert!(write_u32(&mut register, at, value));
        }
        self.program.uvm(uvm, 25, &mut register, 28).unwrap();
    }
}

impl Trapped {
    /// An escape of that number and size, whose struct is at `argument`.
    pub(super) fn escape(fd: i32, (number, size): (u8, usize), argument: u64) -> Self {
        Self::Ioctl { fd, command: command(number, size), argument }
    }
}

pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A struct of so many bytes: zeros, but for words at these offsets.
pub(super) fn struct_with(size: usize, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    words.iter().for_each(|(at, word)| assert!(write_u32(&mut bytes, *at, *word)));
    bytes
}

/// `NVOS21_PARAMETERS`: client, parent and handle of the object, its class, and where the
/// parameters are.
pub(super) fn alloc_args((client, parent, object): (u32, u32, u32), class: u32, params: u64) -> Vec<u8> {
    [words(&[client, parent, object, class]), params.to_le_bytes().to_vec(), vec![0; 8]].concat()
}

/// `NVOS54_PARAMETERS`: client and object, the control, and where the parameters are, with their
/// size.
pub(super) fn control_args((client, object): (u32, u32), id: u32, (params, size): (u64, u32)) -> Vec<u8> {
    [words(&[client, object, id, 0]), params.to_le_bytes().to_vec(), words(&[size, 0])].concat()
}

/// Base, length, status: what most of UVM's structs begin with.
pub(super) fn range(base: u64, length: u64) -> Vec<u8> {
    [base.to_le_bytes(), length.to_le_bytes(), [0; 8]].concat()
}

pub(super) fn device_params(instance: u32) -> Vec<u8> {
    struct_with(56, &[(0, instance)])
}

/// Whoever the program says that the memory is of; the driver wants somebody.
pub(super) const OWNER: u32 = 0xc1d0_0001;

pub(super) fn memory_params(size: u64) -> Vec<u8> {
    let mut params = struct_with(128, &[(0, OWNER)]);
    params[64..72].copy_from_slice(&size.to_le_bytes());
    params
}

/// Pinned memory of the host's: `NVOS32_ATTR_LOCATION_PCI`.
pub(super) fn host_memory_params(size: u64) -> Vec<u8> {
    let mut params = memory_params(size);
    assert!(write_u32(&mut params, 24, 1 << 25));
    params
}

pub(super) fn uuid_bytes(uuid: &str) -> [u8; 16] {
    let digits: String = uuid.trim_start_matches("GPU-").chars().filter(|digit| *digit != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap().to_be_bytes()
}

/// Returns what a call's answer and the status in its struct come to.
pub(super) fn result(answer: Answer, args: &[u8], status_at: usize) -> Result<(), Status> {
    match answer {
        Answer::Return(0) | Answer::Continue => match Status(read_u32(args, status_at).unwrap()) {
            Status::OK => Ok(()),
            status => Err(status),
        },
        Answer::Errno(errno) => panic!("errno {errno}"),
        other => panic!("{other:?}"),
    }
}

impl Caller for Program {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let copied = self.with_region(address, bytes.len(), |region| bytes.copy_from_slice(region));
        let reads = self.reads.fetch_add(1, Ordering::SeqCst) + 1;
        if reads >= self.gone_after_reads.load(Ordering::SeqCst) {
            self.is_gone.store(true, Ordering::SeqCst);
        }
        if let Some(race) = lock(&self.race).as_ref() {
            race(self, reads);
        }
        copied.ok_or(CallerError::Fault { address })
    }

    fn read_up_to(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError> {
        let length = (0..=bytes.len()).rev().find(|length| self.with_region(address, *length, |_| ()).is_some());
        let length = length.unwrap_or(0);
        if length > 0 {
            self.read(address, &mut bytes[..length])?;
        }
        Ok(length)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CallerError> {
        assert!(!self.is_gone.load(Ordering::SeqCst), "memory is written to of one that is gone");
        let written = self.with_region(address, bytes.len(), |region| region.copy_from_slice(bytes));
        if self.races_after_writes.load(Ordering::SeqCst)
            && let Some(race) = lock(&self.race).as_ref()
        {
            race(self, self.reads.load(Ordering::SeqCst));
        }
        written.ok_or(CallerError::Fault { address })
    }

    fn file(&self, fd: i32) -> Result<File, CallerError> {
        let files = lock(&self.process.files);
        let file = files.get(&fd).ok_or(CallerError::BadDescriptor { fd })?;
        file.try_clone().map_err(CallerError::Other)
    }

    fn install(&self, file: &File) -> Result<i32, CallerError> {
        Ok(self.give(file.try_clone().unwrap()))
    }

    fn replace(&self, fd: i32, file: &File) -> Result<(), CallerError> {
        lock(&self.process.files).insert(fd, file.try_clone().unwrap());
        Ok(())
    }

    fn pid(&self) -> Result<Pid, CallerError> {
        Ok(self.pid)
    }

    fn thread(&self) -> i32 {
        self.pid.0
    }

    fn numbers(&self) -> Result<Numbers, CallerError> {
        Ok(self.numbers.clone())
    }

    fn is_waiting(&self) -> bool {
        let looks = self.waits_for.load(Ordering::SeqCst);
        if looks == 0 {
            return false;
        }
        self.waits_for.store(looks - 1, Ordering::SeqCst);
        !self.is_gone.load(Ordering::SeqCst)
    }
}
