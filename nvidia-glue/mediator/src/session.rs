//! One container's mediation.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use abi::{
    Abi, Call, Handle, Node, Status, Undecodable, classes::Class, decode, decode::Decoded, escapes::Action, row,
};
use account::{Accounts, Card, ObjectLimits};
use base::{
    Bytes, OverMemory, Pid,
    usage::{CardUsage, ProcessUsage, Usage},
};
use driver::{DeviceFile, Driver, OwnClient, open_own_client, same_open_file};
use schedule::Gate;

use crate::{
    Answer, Caller, Drift, Observer, Processes, SessionError, SessionSetup, Trapped, UnknownCall, UnknownKind,
    calls::{
        failures::{FailedCall, FailureThrottle},
        in_flight::{CallEnd, InFlightCall, device_file, zeroes},
        object_alloc::AllocatedObject,
        version::DriverVersion,
    },
    channels::{Channels, gate::CardGate},
    grant::{Grant, OwnCard},
    locks::{Locks, lock},
    memory::{
        host_mappings::HostMappings,
        managed::{ManagedMemory, ScanEnv},
        pinned::PinnedMemory,
    },
    objects::Objects,
    reclaim::{process_table::ProcessTable, reclaim_throttle::ReclaimThrottle},
    view::View,
};

/// One container's mediation. Shared by its listener threads.
pub struct Session {
    pub(super) abi: Abi,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) processes: Arc<dyn Processes>,
    pub(super) observer: Arc<dyn Observer>,
    /// Set if there are objects of 3D for the container.
    pub(super) may_draw: bool,
    pub(super) over_memory: OverMemory,
    /// The mediator's own client; its control file is open for as long as the session lives.
    pub(super) own: Arc<OwnClient>,
    pub(super) grant: Grant,
    pub(super) locks: Locks,
    pub(super) objects: Objects,
    pub(super) managed: ManagedMemory,
    pub(super) pinned: PinnedMemory,
    pub(super) host_mappings: HostMappings,
    pub(super) channels: Channels,
    pub(super) view: View,
    pub(super) process_table: Mutex<ProcessTable>,
    pub(super) reclaim_throttle: ReclaimThrottle,
    /// Since when the driver says that the container has too much of a card.
    pub(super) over_since: Mutex<Option<Duration>>,
    /// Objects that the driver was asked for and did not make.
    pub(super) failures: FailureThrottle,
    pub(super) version: DriverVersion,
    /// The driver has refused a client that is known here, which most likely went with its file. It
    /// writes a line into the kernel's log for each control in such a client: from then on it is
    /// asked first whether a client is there, which costs a microsecond.
    checks_clients: AtomicBool,
    /// Set once the observer has heard that an object of 3D was refused.
    graphics_reported: AtomicBool,
    unknown: Mutex<HashSet<UnknownKind>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    kills: AtomicU64,
    unknown_passed: AtomicU64,
    unknown_refused: AtomicU64,
}

/// More kinds of unknown calls than that are counted, but no longer reported one by one.
const MOST_REPORTED_UNKNOWN: usize = 256;

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// Objects that were made in a call, to be unmade if nobody hears of it. Keeps the caller's file
/// open.
#[derive(Debug)]
pub struct Undo {
    file: DeviceFile,
    made: Vec<AllocatedObject>,
    pinning: Option<Handle>,
}

/// Returns whether a command is one of those that a control file or a card's takes
/// (`NV_IOCTL_MAGIC`), by its bare number; else UVM's.
const fn is_escape(command: u32) -> bool {
    command >> 8 & 0xff == b'F' as u32
}

impl Session {
    /// Opens a control file and a client of the mediator's own, and finds the granted cards among
    /// the driver's.
    ///
    /// # Errors
    /// When the driver is not known, refuses its first calls, or lacks a card.
    pub fn new(setup: SessionSetup) -> Result<Self, SessionError> {
        let SessionSetup {
            cards,
            pinned_memory,
            release,
            pass_unknown_driver,
            driver,
            throttle,
            may_draw,
            over_memory,
            processes,
            observer,
        } = setup;
        let abi = match Abi::of(release) {
            Ok(abi) => abi,
            Err(_) if pass_unknown_driver => Abi::nearest(release),
            Err(error) => return Err(SessionError::Driver(error)),
        };
        let own = Arc::new(open_own_client(driver.as_ref(), &abi).map_err(SessionError::Client)?);
        let limits: Vec<Bytes> = cards.iter().map(|card| card.memory_limit).collect();
        let only_looks = cards.iter().all(|card| card.monitored);
        let object_limits = match only_looks {
            true => ObjectLimits::of_a_monitor(),
            false => ObjectLimits { host_memory: pinned_memory, ..ObjectLimits::default() },
        };
        let mut accounts = Accounts::new(&limits, object_limits.with_cards(cards.len()));
        for (card, granted) in (0..).map(Card).zip(&cards) {
            // Every card of the grant has an account.
            let _ = accounts.set_channel_limit(card, if granted.monitored { 0 } else { granted.channels });
            if granted.whole {
                accounts.set_sole_holder(card);
            }
        }
        let host_mappings = HostMappings::new(driver.as_ref()).map_err(SessionError::Watch)?;
        let grant = Grant::find(driver.as_ref(), abi, &own, cards)?;
        let gate = |card: &OwnCard| Arc::new(CardGate::new(card, throttle, &driver, abi, &own));
        let gates = grant.cards.iter().map(gate).collect();
        Ok(Self {
            abi,
            driver,
            processes,
            observer,
            may_draw,
            over_memory,
            own,
            locks: Locks::default(),
            objects: Objects::new(accounts),
            managed: ManagedMemory::default(),
            pinned: PinnedMemory::default(),
            host_mappings,
            channels: Channels::new(gates),
            view: View::new(grant.cards.len()),
            grant,
            process_table: Mutex::default(),
            reclaim_throttle: ReclaimThrottle::default(),
            over_since: Mutex::default(),
            failures: FailureThrottle::default(),
            version: DriverVersion::default(),
            checks_clients: AtomicBool::new(false),
            graphics_reported: AtomicBool::new(false),
            unknown: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The whole way of one call. May block for as long as the caller's memory does; any number of
    /// threads may be in it.
    pub fn handle(&self, caller: &dyn Caller, stopped: &Trapped) -> Answer {
        self.handle_undoably(caller, stopped).0
    }

    /// The same, and what to give to [`Session::undo`] should the answer not reach the caller
    /// (`ENOENT` from `SECCOMP_IOCTL_NOTIF_SEND`): without `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`
    /// a signal interrupts a call that has been executed, and the program makes it again.
    pub fn handle_undoably(&self, caller: &dyn Caller, stopped: &Trapped) -> (Answer, Option<Undo>) {
        let mut undo = None;
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        lock(&self.objects.accounts).thread_called(caller.thread());
        let answer = self.settle_pins_before_call(caller).and_then(|()| match *stopped {
            Trapped::Ioctl { fd, command, argument } => self.ioctl(caller, (fd, command, argument), &mut undo),
            Trapped::Mmap { .. } => self.mmap(caller, stopped),
        });
        let answer = answer.unwrap_or_else(|end| match end {
            CallEnd::Errno(errno) => Answer::Errno(errno),
            CallEnd::Status(_) => Answer::Errno(libc::EINVAL),
            CallEnd::Kill => Answer::KillCaller,
        });
        if answer == Answer::KillCaller {
            self.counters.kills.fetch_add(1, Ordering::Relaxed);
        }
        (answer, undo)
    }

    /// The container's channels, card by card in its order.
    pub fn gates(&self) -> Vec<Arc<dyn Gate>> {
        self.channels.gates().iter().map(|gate| Arc::clone(gate) as Arc<dyn Gate>).collect()
    }

    /// Returns whether channels can be taken off a card at all, which takes a card with firmware
    /// that schedules (GSP); asks the driver. `None`: no such card.
    pub fn can_close(&self, uuid: &str) -> Option<bool> {
        self.grant.by_uuid(uuid).and_then(|card| self.channels.gate(card)).map(CardGate::can_close)
    }

    /// While `true`, no call waits for a gate: the container is about to be paused, or to end.
    pub fn hurry(&self, hurried: bool) {
        self.channels.gates().iter().for_each(|gate| gate.hurry(hurried));
    }

    /// The caller will never hear of what was made for it.
    pub fn undo(&self, undo: Undo) {
        let Undo { file, made, pinning } = undo;
        made.into_iter().for_each(|made| self.unmake(&file, made));
        if let Some(pinning) = pinning {
            self.undo_pinning(pinning);
        }
    }

    /// Returns who calls; tells the observer of a process that is new.
    pub(super) fn known_caller(&self, caller: &dyn Caller) -> Result<Pid, CallEnd> {
        let pid = caller.pid()?;
        if !lock(&self.process_table).knows(pid) {
            let numbers = caller.numbers()?;
            if lock(&self.process_table).add(pid, numbers) {
                self.observer.new_process(pid);
            }
        }
        Ok(pid)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        (fd, command, argument): (i32, u32, u64),
        undo: &mut Option<Undo>,
    ) -> Result<Answer, CallEnd> {
        // Not the driver's file, says a check that another thread of the caller may make wrong by
        // the time that the kernel looks: so it is never continued.
        let file = self.file_called(caller, fd, command)?.ok_or(CallEnd::Errno(libc::ENOTTY))?;
        let pid = self.known_caller(caller)?;
        let row = row(self.abi, file.node, command).map_err(|error| self.undecodable(file.node, error))?;
        let mut args = zeroes(row.size());
        if !args.is_empty() {
            caller.read(argument, &mut args)?;
        }
        let Decoded { row, call } =
            decode(self.abi, file.node, command, &args).map_err(|error| self.undecodable(file.node, error))?;
        let mut flight = InFlightCall::new(caller, pid, file, (command, argument), (row, call), args);
        let result = self.act(&mut flight);
        if flight.row.status(&flight.args) == Some(Status::INVALID_CLIENT) {
            self.checks_clients.store(true, Ordering::Relaxed);
        }
        let made = std::mem::take(&mut flight.made);
        let pinning = flight.pinning;
        *undo = (!made.is_empty() || pinning.is_some()).then(|| Undo { file: flight.file.clone(), made, pinning });
        Ok(result.unwrap_or_else(|end| flight.end(end)))
    }

    /// The file that a call is made on, if it is one of the driver's. Most are made on the file
    /// that the process used before, of which a duplicate is kept: to ask whether it is that costs
    /// less than to ask which node it is, and it is known again by the duplicate.
    fn file_called(&self, caller: &dyn Caller, fd: i32, command: u32) -> Result<Option<DeviceFile>, CallEnd> {
        let file = caller.file(fd)?;
        let pid = caller.pid()?;
        let likely = lock(&self.objects.files).likely(pid, is_escape(command));
        if let Some(likely) = likely
            && same_open_file(&likely.file, &file).unwrap_or(false)
        {
            return Ok(Some(likely));
        }
        device_file(self.driver.as_ref(), file)
    }

    fn act(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        if let Call::Uvm(call) = flight.call {
            return self.uvm(flight, call);
        }
        match flight.row.action() {
            Action::Refuse(status, _) => Err(CallEnd::Status(status)),
            Action::Continue(_) => match flight.call {
                Call::AllocMemory(alloc) => self.alloc_memory(flight, alloc),
                _ => self.continue_call(flight),
            },
            Action::Execute => {
                let answer = self.execute(flight);
                if flight.has_failed {
                    self.failures.wait(FailedCall::at(flight.call), self.reclaim_throttle.clock.as_ref());
                }
                self.wait_for_driver_time(flight);
                answer
            }
        }
    }

    /// The kernel executes it, or the driver does where it is not in the kernel.
    pub(super) fn continue_call(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        let descriptors = flight.row.descriptors();
        // Only a driver outside the kernel looks at these.
        let named = flight.duplicate_files(self.driver.as_ref(), driver::Holder::Args, descriptors);
        match flight.execute_in_callers_place(self.driver.as_ref()) {
            None => Ok(Answer::Continue),
            Some(_) if named.is_err() => Err(CallEnd::Errno(libc::EBADF)),
            Some(result) => result.and_then(|()| flight.finish()),
        }
    }

    fn execute(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        match flight.call {
            Call::Alloc(alloc) => self.alloc(flight, alloc),
            Call::Free(free) => self.free(flight, free.client, free.object),
            Call::Control(control) => self.control(flight, control),
            Call::VidHeap(heap) => self.vid_heap(flight, heap),
            Call::Dup(dup) => self.dup(flight, dup),
            Call::Share(share) => self.share(flight, share),
            Call::AllocContextDma(alloc) => self.alloc_context_dma(flight, alloc),
            Call::AllocObject(alloc) => self.alloc_without_params(flight, alloc),
            Call::IdleChannels(idle) => self.idle_channels(flight, idle),
            Call::CardInfo => self.card_info(flight),
            Call::CardStatus { domain, bus, slot } => self.card_status(flight, domain, bus, slot),
            Call::CheckVersion => self.check_version(flight),
            Call::AttachGpus => self.attach_gpus(flight),
            Call::MapMemory(map) => self.map_memory(flight, map),
            Call::UnmapMemory(unmap) => self.unmap_memory(flight, unmap),
            Call::UpdateMapping(update) => self.on_client(flight, update.client),
            Call::MapDma(map) => self.map_dma(flight, map),
            Call::UnmapDma(map) => self.unmap_dma(flight, map),
            Call::BindContextDma { client, .. } => self.on_client(flight, client),
            Call::AllocOsEvent(event) => self.alloc_os_event(flight, event),
            Call::FreeOsEvent(event) => self.free_os_event(flight, event),
            // It is made of the caller's own pages, which only the kernel finds, and only in the
            // caller's place.
            Call::AllocMemory(_) => Err(CallEnd::Status(Status::NOT_SUPPORTED)),
            Call::Uvm(call) => self.uvm(flight, call),
            Call::RegisterFd { .. } => self.register_file(flight),
            Call::Other => self.pass(flight),
        }
    }

    /// Executes a call that decides nothing, in a client of the container's.
    pub(super) fn on_client(&self, flight: &mut InFlightCall<'_>, client: Handle) -> Result<Answer, CallEnd> {
        self.own_client(client)?;
        self.pass(flight)
    }

    /// Executes a call as it stands.
    pub(super) fn pass(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        self.execute_row(flight)?;
        flight.finish()
    }

    /// Executes a call with what its row says of pointers and descriptors; the driver's verdict.
    pub(super) fn execute_row(&self, flight: &mut InFlightCall<'_>) -> Result<Status, CallEnd> {
        let row = flight.row;
        flight.copy_pointers(driver::Holder::Args, row.pointers())?;
        flight.duplicate_files(self.driver.as_ref(), driver::Holder::Args, row.descriptors())?;
        flight.execute(self.driver.as_ref())
    }

    /// A client that was not made through this session is nobody's business here.
    pub(super) fn own_client(&self, client: Handle) -> Result<(), CallEnd> {
        let is_known = lock(&self.objects.accounts).knows_client(client);
        let is_gone = || {
            self.checks_clients.load(Ordering::Relaxed)
                && matches!(self.driver.client_exists(&self.own, client), Ok(false))
        };
        if is_known && !is_gone() { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_CLIENT)) }
    }

    /// Bytes that are no call of the driver's.
    fn undecodable(&self, node: Node, error: Undecodable) -> CallEnd {
        if let Undecodable::Unknown { command } = error {
            let kind = match node {
                Node::Uvm => UnknownKind::Uvm(command),
                Node::Control | Node::Card(_) => UnknownKind::Escape(command & 0xff),
            };
            self.count_unknown(kind, false);
        }
        CallEnd::Errno(error.errno())
    }

    /// A call that no table has.
    pub(super) fn count_unknown(&self, kind: UnknownKind, passed: bool) {
        let counter = if passed { &self.counters.unknown_passed } else { &self.counters.unknown_refused };
        counter.fetch_add(1, Ordering::Relaxed);
        let is_new = {
            let mut unknown = lock(&self.unknown);
            unknown.len() < MOST_REPORTED_UNKNOWN && unknown.insert(kind)
        };
        if is_new {
            self.observer.unknown_call(&UnknownCall { kind, passed });
        }
    }

    /// An object of 3D was refused, for want of the driver capability.
    pub(super) fn report_missing_graphics(&self, class: &Class) {
        if !self.graphics_reported.swap(true, Ordering::Relaxed) {
            self.observer.lacks_graphics(class.name);
        }
    }

    /// Returns whether something is held that only [`Session::look_for_closed_files`] can find
    /// gone: it is to be called, though no process makes calls.
    pub fn holds_anything(&self) -> bool {
        let keeps_files = {
            let files = lock(&self.objects.files);
            files.has_controls() || !files.all_tokens().is_empty()
        };
        let keeps_client = self.pinned.staging.get().is_some_and(|staging| lock(&staging.client).is_some());
        let accounts = lock(&self.objects.accounts);
        keeps_files
            || keeps_client
            || accounts.cards().any(|(_, usage)| usage.used.0 > 0)
            || accounts.has_freed_while_mapped()
    }

    /// Returns what the container uses now.
    pub fn usage(&self) -> Usage {
        let (cards, users, pinned_memory) = {
            let mut accounts = lock(&self.objects.accounts);
            let cards = accounts.cards().map(|(card, usage)| (card, usage, accounts.channels(card)));
            let (cards, users): (Vec<_>, Vec<_>) = (cards.collect(), accounts.users().collect());
            let kept = accounts.kept_by_pins();
            let host = accounts.card(Card::HOST).map(|host| (Bytes(host.used.0.saturating_add(kept.0)), host.limit));
            (cards, users, host.unwrap_or_default())
        };
        let denials = cards.iter().fold(0_u64, |sum, (_, usage, _)| sum.saturating_add(usage.denials));
        let of_card = |(card, usage, channels): (Card, account::CardUsage, (u32, u32))| CardUsage {
            uuid: self.grant.uuid(card).to_owned(),
            used: usage.used,
            limit: usage.limit,
            peak: usage.high_water,
            channels_used: channels.0,
            channels_limit: channels.1,
        };
        let process_table = lock(&self.process_table);
        let mut processes: Vec<ProcessUsage> = process_table
            .pids()
            .into_iter()
            .map(|pid| ProcessUsage {
                pid: pid.0,
                pid_in_container: process_table.pid_in_container(pid).unwrap_or(0),
                cards: users
                    .iter()
                    .filter(|(user, ..)| *user == pid)
                    .map(|(_, card, used)| (self.grant.uuid(*card).to_owned(), *used))
                    .collect(),
            })
            .collect();
        drop(process_table);
        processes.sort_by_key(|process| process.pid);
        Usage {
            cards: cards.into_iter().map(of_card).collect(),
            processes,
            denials,
            pinned_memory_used_bytes: pinned_memory.0,
            pinned_memory_limit_bytes: pinned_memory.1,
            kills: self.counters.kills.load(Ordering::Relaxed),
            unknown_passed: self.counters.unknown_passed.load(Ordering::Relaxed),
            unknown_refused: self.counters.unknown_refused.load(Ordering::Relaxed),
            calls: self.counters.calls.load(Ordering::Relaxed),
        }
    }

    /// Returns what a scan of managed memory looks at.
    pub(super) fn scan_env(&self) -> ScanEnv<'_> {
        ScanEnv {
            accounts: &self.objects.accounts,
            processes: self.processes.as_ref(),
            clock: self.reclaim_throttle.clock.as_ref(),
        }
    }

    /// Tells the observer of what was found, and returns it.
    pub(super) fn report_drifts(&self, drifts: Vec<Drift>) -> Vec<Drift> {
        drifts.iter().for_each(|drift| self.observer.drift(drift));
        drifts
    }
}
