//! Pages of a program's own that the driver keeps pinned (`NV_ESC_RM_ALLOC_MEMORY`, class `0071`).
//!
//! Only the kernel can do that, and only in the caller's place, from a struct that the caller's other threads can rewrite after the mediator has
//! looked at it. They cannot make a card's memory of it, but the host's (class `003e`), of any length, or pin more than was said. So the driver
//! is asked afterwards what came of it: its class and its length, by its name. Nobody tells when the kernel is done. It is when the thread that
//! made the call is back with another one, or has ended; until then the driver is asked again each time that the accounts are looked through.
//!
//! What is not what was said is freed, and the container ended: no program does so by mistake, and the processor may have mapped it already, by the
//! same call; so it is when memory turns up in a call that nobody has made. What is nowhere to be found is looked for below the devices of all clients that the call could have named, where the driver tells of the
//! object of a class that has the lowest handle. What is not found there stays charged as what was asked for ([`crate::account`]).

use std::sync::{
    Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use runtime_config::Bytes;

use super::{
    Answer, Drift, DriftKind, Pid, Session,
    call::{End, Flight},
    locks::{Name, lock},
};
use crate::{
    account::{Card, Kind, ObjectName},
    driver::DeviceFile,
    rm::{
        Handle, Status,
        classes::{OS_DESCRIPTOR, SYSTEM_MEMORY},
        decode::AllocMemory,
        layout::{read_u32, write_u32},
    },
};

/// `NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE` {parent, class, child}. The class is the driver's internal one, the same in every release
/// (src/nvidia/generated/g_system_mem_nvoc.h).
const GET_CHILD_HANDLE: u32 = 0xd05;
const INTERNAL_SYSTEM_MEMORY: u32 = 0x7a98;

/// Most calls under way at once in a container: a thread has one.
pub(super) const MOST: usize = 256;
/// By how much the driver may have rounded: its largest pages for the host's memory.
const ROUNDING: u64 = 2 * Bytes::MIB;

/// A call that pins memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinning {
    /// No other call has it.
    number: u64,
    thread: i32,
    pid: Pid,
    name: ObjectName,
    length: u64,
}

/// Calls of which it is not known yet what came of them.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    calls: Mutex<Vec<Pinning>>,
    /// How many there are: every call of the container's asks.
    count: AtomicUsize,
    next: AtomicU64,
}

impl UnderWay {
    pub(super) fn add(&self, thread: i32, pid: Pid, name: ObjectName, length: u64) -> Pinning {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let call = Pinning { number, thread, pid, name, length };
        let mut calls = lock(&self.calls);
        calls.push(call);
        self.count.store(calls.len(), Ordering::SeqCst);
        call
    }

    fn remove(&self, call: Pinning) {
        let mut calls = lock(&self.calls);
        calls.retain(|other| other.number != call.number);
        self.count.store(calls.len(), Ordering::SeqCst);
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn all(&self) -> Vec<Pinning> {
        lock(&self.calls).clone()
    }
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// What was asked for.
    AsAsked,
    /// The driver has nothing of that name, or something that another call has made.
    Nothing,
    /// Something else.
    Caught,
}

impl Session {
    /// `NV_ESC_RM_ALLOC_MEMORY`: what programs use it for is let through, under a name that nothing has.
    pub(super) fn alloc_memory(&self, flight: &mut Flight<'_>, alloc: AllocMemory) -> Result<Answer, End> {
        self.own_client(alloc.client)?;
        if alloc.class != OS_DESCRIPTOR {
            return Err(End::Status(Status::INVALID_CLASS));
        }
        // The driver would choose a name, and not say it.
        if alloc.object == Handle::NONE || alloc.object == alloc.client {
            return Err(End::Status(Status::INVALID_ARGUMENT));
        }
        flight.confirm()?;
        let (pid, name) = (flight.pid, ObjectName::new(alloc.client, alloc.object));
        let is_taken = || lock(&self.accounts).object(name).is_some();
        if is_taken() && !self.make_free(name) {
            return Err(End::Status(Status::INSERT_DUPLICATE_NAME));
        }
        if self.pinning.len() >= MOST {
            self.look_at_what_is_pinned();
        }
        if self.pinning.len() >= MOST {
            return Err(End::Status(Status::INSUFFICIENT_RESOURCES));
        }
        let length = alloc.limit.saturating_add(1);
        self.reserve(pid, |accounts| accounts.pin(pid, name, alloc.parent, length))?;
        let pinning = self.pinning.add(flight.caller.thread(), pid, name, length);
        let answer = self.continue_call(flight);
        match answer {
            Ok(_) => flight.pinning = Some(pinning),
            Err(_) => self.undo_pinning(pinning),
        }
        answer
    }

    /// The kernel was not told to execute it, or nobody hears of what a driver outside the kernel has done.
    pub(super) fn undo_pinning(&self, call: Pinning) {
        let name = call.name;
        let Some(kept) = lock(&self.files).control_of(name.client) else { return };
        self.locks.with(&[Name::Client(name.client)], || {
            let is_there = match self.class_of(&kept.file, name.client, name.object) {
                None => false,
                Some(OS_DESCRIPTOR) => !self.raw(&kept.file, name.client).free(name.object).is_ok_and(Status::is_ok),
                Some(_) => true,
            };
            // Else it is asked about as any other.
            if !is_there && lock(&self.accounts).is_pin_unknown(name) {
                // Its client is there, or all of it has gone with that.
                let _ = lock(&self.accounts).free(name.client, name.object);
                self.pinning.remove(call);
            }
        });
    }

    /// Whether a name is free after all: pinned memory was said to have it, and the driver has none there.
    fn make_free(&self, name: ObjectName) -> bool {
        let Some(kept) = lock(&self.files).control_of(name.client) else { return false };
        self.locks.with(&[Name::Client(name.client)], || {
            let is_pinned = lock(&self.accounts).object(name).is_some_and(|object| object.kind == Kind::Pinned);
            is_pinned && self.find_pinned(&kept.file, name.client, name.object).is_empty()
        })
    }

    /// A thread makes a call: what it pinned before is done.
    ///
    /// # Errors
    /// It is to be killed, and the container with it: it has done something else.
    pub(super) fn thread_is_back(&self, thread: i32) -> Result<(), End> {
        if self.pinning.len() == 0 {
            return Ok(());
        }
        let done = self.pinning.all().into_iter().filter(|call| call.thread == thread);
        let outcomes: Vec<Outcome> = done.map(|call| self.look_at(call, true)).collect();
        if outcomes.contains(&Outcome::Caught) { Err(End::Kill) } else { Ok(()) }
    }

    /// Asks the driver what came of the calls that pin memory. To be called from time to time.
    pub fn look_at_what_is_pinned(&self) {
        if self.pinning.len() == 0 {
            return;
        }
        for call in self.pinning.all() {
            let is_over = !self.processes.is_thread_running(call.thread);
            self.look_at(call, is_over);
        }
    }

    fn look_at(&self, call: Pinning, is_over: bool) -> Outcome {
        let outcome = self.locks.with(&[Name::Client(call.name.client)], || self.outcome_of(call));
        // A control in a client that is gone would be a line in the kernel's log, each time.
        let is_gone = || matches!(self.driver.client_exists(&self.own, call.name.client), Ok(false));
        if outcome == Outcome::Nothing && !is_over && !is_gone() {
            // The kernel is perhaps still at it.
            return outcome;
        }
        self.pinning.remove(call);
        if outcome == Outcome::Nothing && self.is_elsewhere(call) { Outcome::Caught } else { outcome }
    }

    /// For whoever has the client locked.
    fn outcome_of(&self, call: Pinning) -> Outcome {
        let Pinning { name, length, .. } = call;
        let known = lock(&self.accounts).object(name);
        if known.is_some_and(|known| known.kind != Kind::Pinned) {
            return Outcome::Nothing;
        }
        let Some(kept) = lock(&self.files).control_of(name.client) else { return Outcome::Nothing };
        let Some(class) = self.class_of(&kept.file, name.client, name.object) else { return Outcome::Nothing };
        let found = self.length_of(&kept.file, name);
        let most = length.checked_next_multiple_of(ROUNDING).unwrap_or(u64::MAX);
        if class == OS_DESCRIPTOR && found.is_none_or(|found| found <= most) {
            lock(&self.accounts).found_pinned(name, found.unwrap_or(length));
            return Outcome::AsAsked;
        }
        self.end_for(call, &kept.file, name, (class, found));
        Outcome::Caught
    }

    /// Whether the driver has made memory of the host's under another name that the call could have had.
    fn is_elsewhere(&self, call: Pinning) -> bool {
        let client = call.name.client;
        self.locks.with(&[Name::Client(client)], || {
            let name = call.name;
            if lock(&self.accounts).is_pin_unknown(name) {
                lock(&self.accounts).pinned_elsewhere(name);
            }
        });
        // The file of a card takes the clients of one control file.
        let Some(kept) = lock(&self.files).control_of(client) else { return false };
        let is_in = |client: Handle| self.locks.with(&[Name::Client(client)], || self.is_in(call, &kept.file, client));
        kept.clients.iter().copied().any(is_in)
    }

    /// For whoever has the client locked.
    fn is_in(&self, call: Pinning, file: &DeviceFile, client: Handle) -> bool {
        let devices = lock(&self.topology).devices(client);
        devices.into_iter().any(|device| {
            let Some(child) = self.lowest_system_memory(file, client, device) else { return false };
            let name = ObjectName::new(client, child);
            let is_known = lock(&self.accounts).object(name).is_some_and(|object| object.kind != Kind::Pinned);
            let is_hidden = !is_known && self.class_of(file, client, child) == Some(SYSTEM_MEMORY);
            if is_hidden {
                self.end_for(call, file, name, (SYSTEM_MEMORY, self.length_of(file, name)));
            }
            is_hidden
        })
    }

    fn lowest_system_memory(&self, file: &DeviceFile, client: Handle, device: Handle) -> Option<Handle> {
        let mut params = vec![0; 12];
        let _ = write_u32(&mut params, 0, device.0) && write_u32(&mut params, 4, INTERNAL_SYSTEM_MEMORY);
        let (status, params) = self.raw(file, client).control(client, GET_CHILD_HANDLE, params).ok()?;
        let child = Handle(read_u32(&params, 8).filter(|_| status.is_ok())?);
        (child != Handle::NONE).then_some(child)
    }

    fn length_of(&self, file: &DeviceFile, name: ObjectName) -> Option<u64> {
        let pages = self.raw(file, name.client).memory_pages(name.object).ok()?;
        pages.map(|pages| u64::from(pages) * 4096)
    }

    /// Frees what a call has made of itself, and has the container ended.
    fn end_for(&self, call: Pinning, file: &DeviceFile, name: ObjectName, (class, found): (u32, Option<u64>)) {
        let freed = self.raw(file, name.client).free(name.object);
        let limit = {
            let mut accounts = lock(&self.accounts);
            if freed.is_ok_and(Status::is_ok) && accounts.is_pin_unknown(name) {
                // Its client is there, or all of it has gone with that.
                let _ = accounts.free(name.client, name.object);
            }
            accounts.card(Card::HOST).map_or(Bytes(0), |host| host.limit)
        };
        let kind = DriftKind::Pinned {
            by: call.pid,
            asked: Bytes(call.length),
            found: Bytes(found.unwrap_or(0)),
            class,
            limit,
        };
        self.observer.drift(&Drift { kind, excess: true, pids: Vec::new() });
    }

    /// What was made without the mediator is no memory of the host's that nobody counts: a mapping would keep it when it is freed. For whoever
    /// has the client locked.
    ///
    /// # Errors
    /// It is: it is freed, and the container ended.
    pub(super) fn is_no_hidden_memory(&self, name: ObjectName) -> Result<(), End> {
        let (is_known, owner) = {
            let accounts = lock(&self.accounts);
            let is_sure = accounts.object(name).is_some_and(|object| object.kind != Kind::Pinned);
            (is_sure || accounts.is_pin_known(name), accounts.owner(name.client))
        };
        let Some(kept) = (if is_known { None } else { lock(&self.files).control_of(name.client) }) else {
            return Ok(());
        };
        if self.class_of(&kept.file, name.client, name.object) != Some(SYSTEM_MEMORY) {
            return Ok(());
        }
        let under_way = self.pinning.all().into_iter().find(|call| call.name == name);
        let pid = owner.unwrap_or(Pid(0));
        let call = under_way.unwrap_or(Pinning { number: 0, thread: 0, pid, name, length: 0 });
        self.end_for(call, &kept.file, name, (SYSTEM_MEMORY, self.length_of(&kept.file, name)));
        Err(End::Status(Status::OBJECT_NOT_FOUND))
    }

    /// What is pinned with `object` and where it was said to be; the rest is somewhere else. For whoever has the client locked.
    pub(super) fn find_pinned(&self, file: &DeviceFile, client: Handle, object: Handle) -> Vec<Handle> {
        self.look_before_the_end(file, client, object);
        let mut pinned = lock(&self.accounts).pinned_with(client, object);
        pinned.retain(|pinned| {
            let is_there = self.is_pinned(file, client, *pinned);
            if !is_there {
                lock(&self.accounts).pinned_elsewhere(ObjectName::new(client, *pinned));
            }
            is_there
        });
        pinned
    }

    /// What goes now can be asked about no more, and its pages may be mapped.
    fn look_before_the_end(&self, file: &DeviceFile, client: Handle, object: Handle) {
        if self.pinning.len() == 0 {
            return;
        }
        for call in self.pinning.all().into_iter().filter(|call| call.name.client == client) {
            let outcome = self.outcome_of(call);
            if outcome != Outcome::Nothing {
                self.pinning.remove(call);
            } else if call.name.object != object {
                self.is_in(call, file, client);
            }
        }
    }

    pub(super) fn is_pinned(&self, file: &DeviceFile, client: Handle, object: Handle) -> bool {
        self.class_of(file, client, object) == Some(OS_DESCRIPTOR)
    }
}
