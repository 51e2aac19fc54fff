//! Pages of a program's own that the driver keeps pinned (`NV_ESC_RM_ALLOC_MEMORY`, class `0071`).
//!
//! Only the kernel can do that, and only in the caller's place, from a struct that the caller's other threads can rewrite after the mediator has
//! looked at it. They could make memory of the host's of it (class `003e`), of any length, under any handle, or pin more than was said. So the
//! call is led into a client of the mediator's own, in which there is nothing else ([`super::staging`]), under a handle that no other call has.
//! What the kernel has made there is moved to where the program wants it, if it is what was asked for. Anything else is freed, and the container
//! ended: no program does so by mistake, and the processor may have mapped it already, by the same call.
//!
//! Nobody tells when the kernel is done. A program can use what it has pinned in no other way than by another call of somebody's: so before any
//! call of the container's is looked at, what is there by then is moved, while a call is open. The call is over when the thread that made it is
//! back with another one, or has ended; what has brought nothing by then has failed. For programs that make no other call the driver is
//! asked each time that the accounts are looked through.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use runtime_config::Bytes;

use super::{
    Answer, Drift, DriftKind, Pid, Session,
    call::{End, Flight},
    locks::{Name, lock},
    making::Made,
    staging::{INTERNAL_CLASSES, Staging},
};
use crate::{
    account::{Card, Kind, ObjectName, Placement, Reservation},
    rm::{Handle, Status, classes::OS_DESCRIPTOR, decode::AllocMemory},
};

/// Most calls under way at once in a container: a thread has one.
pub(super) const MOST: usize = 256;
/// By how much the driver may have rounded: its largest pages for the host's memory.
const ROUNDING: u64 = 2 * Bytes::MIB;
/// Handles in the staging client.
const FIRST_HANDLE: u32 = 0xe700_0000;
const HANDLES: u32 = 1 << 24;

/// A call that pins memory, for whoever made it: its handle in the staging client, and where what it pins is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staged {
    handle: Handle,
    name: ObjectName,
}

/// The same for the mediator.
#[derive(Debug)]
struct Pinning {
    staged: Staged,
    thread: i32,
    pid: Pid,
    parent: Handle,
    length: u64,
    reservation: Reservation,
}

/// Calls of which it is not known yet what came of them.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    calls: Mutex<Calls>,
    /// How many there are: every call of the container's asks.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Calls {
    open: Vec<Pinning>,
    next: u32,
}

impl UnderWay {
    /// `make` is told the handle that the call is to have.
    fn add(&self, make: impl FnOnce(Handle) -> Pinning) -> Staged {
        let mut calls = lock(&self.calls);
        let handle = loop {
            let handle = Handle(FIRST_HANDLE + calls.next % HANDLES);
            calls.next = calls.next.wrapping_add(1);
            if !calls.open.iter().any(|call| call.staged.handle == handle) {
                break handle;
            }
        };
        let call = make(handle);
        let staged = call.staged;
        calls.open.push(call);
        self.count.store(calls.open.len(), Ordering::SeqCst);
        staged
    }

    fn remove(&self, handle: Handle) -> Option<Pinning> {
        let mut calls = lock(&self.calls);
        let at = calls.open.iter().position(|call| call.staged.handle == handle)?;
        let call = calls.open.swap_remove(at);
        self.count.store(calls.open.len(), Ordering::SeqCst);
        Some(call)
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The handles of those whose thread is such a one.
    fn of_threads(&self, which: impl Fn(i32) -> bool) -> Vec<Handle> {
        let calls = lock(&self.calls);
        calls.open.iter().filter(|call| which(call.thread)).map(|call| call.staged.handle).collect()
    }

    /// Who has made one of them, and how much that was to pin.
    fn anybody(&self) -> Option<(Pid, u64)> {
        lock(&self.calls).open.first().map(|call| (call.pid, call.length))
    }

    #[cfg(test)]
    pub(super) fn add_of(&self, pid: Pid, name: ObjectName, reserve: impl FnOnce() -> Reservation) {
        self.add(|handle| Pinning {
            staged: Staged { handle, name },
            thread: pid.0,
            pid,
            parent: Handle::NONE,
            length: 0,
            reservation: reserve(),
        });
    }
}

impl Session {
    /// `NV_ESC_RM_ALLOC_MEMORY`: what programs use it for is let through, into the staging client.
    pub(super) fn alloc_memory(&self, flight: &mut Flight<'_>, alloc: AllocMemory) -> Result<Answer, End> {
        self.own_client(alloc.client)?;
        if alloc.class != OS_DESCRIPTOR {
            return Err(End::Status(Status::INVALID_CLASS));
        }
        // The driver would choose a name, and not say it.
        if alloc.object == Handle::NONE || alloc.object == alloc.client {
            return Err(End::Status(Status::INVALID_ARGUMENT));
        }
        let card = lock(&self.topology).device_card(alloc.client, alloc.parent);
        let card = card.ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
        flight.confirm()?;
        let name = ObjectName::new(alloc.client, alloc.object);
        if lock(&self.accounts).object(name).is_some() {
            return Err(End::Status(Status::INSERT_DUPLICATE_NAME));
        }
        if self.pinning.len() >= MOST {
            self.look_at_what_is_pinned();
        }
        if self.pinning.len() >= MOST {
            return Err(End::Status(Status::INSUFFICIENT_RESOURCES));
        }
        let staging = self.staging()?;
        let device = self.staging_device(&staging, card)?;
        let (pid, thread, parent) = (flight.pid, flight.caller.thread(), alloc.parent);
        let length = alloc.limit.saturating_add(1);
        let reservation = self.reserve(pid, |accounts| accounts.pin(pid, alloc.client, length))?;
        let staged = self.pinning.add(|handle| {
            let staged = Staged { handle, name };
            Pinning { staged, thread, pid, parent, length, reservation }
        });
        // `hRoot`, `hObjectParent` and `hObjectNew`, which begin the struct.
        let names = [staging.client(), device, staged.handle].map(|handle| handle.0.to_le_bytes());
        let answer = flight.rewrite(0, names.as_flattened()).and_then(|()| self.continue_call(flight));
        match answer {
            Ok(_) => flight.pinning = Some(staged),
            Err(_) => self.undo_pinning(staged),
        }
        answer
    }

    /// The kernel was not told to execute it, or nobody hears of what a driver outside the kernel has done.
    pub(super) fn undo_pinning(&self, Staged { handle, name }: Staged) {
        let Some(staging) = self.known_staging() else { return };
        let turn = lock(&staging.turn);
        if let Some(call) = self.pinning.remove(handle) {
            if self.what_is_staged(&staging, handle).0.is_some() {
                let _ = self.raw_staging(&staging).free(handle);
            }
            lock(&self.accounts).cancel(call.reservation);
            return;
        }
        drop(turn);
        // It was moved already.
        let kept = lock(&self.files).control_of(name.client);
        if let Some(kept) = kept
            && lock(&self.accounts).object(name).is_some_and(|object| object.kind == Kind::Pinned)
        {
            self.unmake(&kept.file, Made { client: name.client, object: name.object });
        }
    }

    /// A thread makes a call: what it pinned before is done, and what others have pinned may be named.
    ///
    /// # Errors
    /// It is to be killed, and the container with it: something else was done.
    pub(super) fn thread_is_back(&self, thread: i32) -> Result<(), End> {
        if self.pinning.len() == 0 || self.settle_pinned(|other| other == thread) { Ok(()) } else { Err(End::Kill) }
    }

    /// Asks the driver what came of the calls that pin memory. To be called from time to time.
    pub fn look_at_what_is_pinned(&self) {
        if self.pinning.len() > 0 {
            self.settle_pinned(|thread| !self.processes.is_thread_running(thread));
        }
    }

    /// Moves what was made to where it is to be. The calls of threads that are done are over. Whether all of it was what was asked for.
    fn settle_pinned(&self, is_done: impl Fn(i32) -> bool) -> bool {
        let Some(staging) = self.known_staging() else { return true };
        // What these have made is there by now.
        let over = self.pinning.of_threads(is_done);
        let is_honest = {
            let _turn = lock(&staging.turn);
            self.empty(&staging)
        };
        for call in over.into_iter().filter_map(|handle| self.pinning.remove(handle)) {
            // It has failed.
            lock(&self.accounts).cancel(call.reservation);
        }
        is_honest
    }

    /// For whoever has the turn.
    fn empty(&self, staging: &Staging) -> bool {
        let mut is_honest = true;
        for device in staging.devices() {
            for class in INTERNAL_CLASSES {
                while let Some(handle) = self.lowest_staged(staging, device, class) {
                    is_honest &= self.take_out(staging, handle);
                    // What the driver does not free would be found again and again.
                    if !self.raw_staging(staging).free(handle).is_ok_and(Status::is_ok) {
                        break;
                    }
                }
            }
        }
        is_honest
    }

    /// Has what was made under that handle where it is to be, from where it is to be freed then; else ends the container.
    fn take_out(&self, staging: &Staging, handle: Handle) -> bool {
        let (class, found) = self.what_is_staged(staging, handle);
        let most = |asked: u64| asked.checked_next_multiple_of(ROUNDING).unwrap_or(u64::MAX);
        let is_as_asked =
            |call: &Pinning| class == Some(OS_DESCRIPTOR) && found.is_none_or(|found| found <= most(call.length));
        let call = match self.pinning.remove(handle) {
            Some(call) if is_as_asked(&call) => {
                self.move_to_client(staging, call, found);
                return true;
            }
            call => call,
        };
        // Another handle than that of a call is one of those that are open.
        let (by, asked) = match call {
            Some(Pinning { pid, length, reservation, .. }) => {
                lock(&self.accounts).cancel(reservation);
                (pid, length)
            }
            None => self.pinning.anybody().unwrap_or((Pid(0), 0)),
        };
        self.caught((by, asked), (class, found));
        false
    }

    /// The program has named the client, the parent and the handle: where the driver does not take them it has none of it.
    fn move_to_client(&self, staging: &Staging, call: Pinning, found: Option<u64>) {
        let Pinning { staged: Staged { handle, name }, parent, length, reservation, .. } = call;
        self.locks.with(&[Name::Client(name.client)], || {
            let kept = lock(&self.files).control_of(name.client);
            let source = (staging.client(), handle);
            let moved = kept.map(|kept| self.raw(&kept.file, name.client).dup((parent, name.object), source));
            let is_moved = matches!(moved, Some(Ok((status, _))) if status.is_ok());
            let mut accounts = lock(&self.accounts);
            if !is_moved {
                accounts.cancel(reservation);
                return;
            }
            let placement = Placement::under(parent, name.object);
            // Without its client it is gone again.
            if let Err(not) = accounts.pinned(reservation, placement, found.unwrap_or(length)) {
                accounts.cancel(not.reservation);
            }
            drop(accounts);
            self.handle_is_anew(name);
        });
    }

    /// Has the container ended for what a call was made to do.
    fn caught(&self, (by, asked): (Pid, u64), (class, found): (Option<u32>, Option<u64>)) {
        let limit = lock(&self.accounts).card(Card::HOST).map_or(Bytes(0), |host| host.limit);
        let (asked, found, class) = (Bytes(asked), Bytes(found.unwrap_or(0)), class.unwrap_or(0));
        let kind = DriftKind::Pinned { by, asked, found, class, limit };
        self.observer.drift(&Drift { kind, excess: true, pids: Vec::new() });
    }

    /// The container has ended, and no call is under way any more.
    pub(super) fn cancel_pinning(&self) {
        for call in self.pinning.of_threads(|_| true).into_iter().filter_map(|handle| self.pinning.remove(handle)) {
            lock(&self.accounts).cancel(call.reservation);
        }
    }
}
