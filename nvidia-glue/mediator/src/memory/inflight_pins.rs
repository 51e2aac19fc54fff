//! Calls that pin memory, from when they are let through to when they are over.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use abi::Handle;
use account::{ObjectName, Reservation};
use base::Pid;
use foldhash::HashMap;

use crate::locks::lock;

/// Handles in the staging client.
const FIRST_HANDLE: u32 = 0xe700_0000;
const HANDLES: u32 = 1 << 24;
/// Of so many threads it is remembered what their last call meant.
const MOST_MEANT: usize = 4096;

/// `hRoot`, `hObjectParent` and `hObjectNew`, which begin the struct of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinNames {
    pub(crate) client: Handle,
    pub(crate) parent: Handle,
    pub(crate) object: Handle,
}

impl PinNames {
    pub(crate) const fn object(self) -> ObjectName {
        ObjectName { client: self.client, object: self.object }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        [self.client, self.parent, self.object].iter().flat_map(|handle| handle.0.to_le_bytes()).collect()
    }
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pinning {
    /// Names under which the program wants what it pins.
    pub(crate) names: PinNames,
    pub(crate) thread: i32,
    pub(crate) pid: Pid,
    pub(crate) length: u64,
}

/// One that is not over, and what is reserved for it; `None`: something has come under its handle
/// in the staging client.
type OpenPin = (Pinning, Option<Reservation>);

/// All that are not over.
#[derive(Debug, Default)]
pub(crate) struct InflightPins {
    calls: Mutex<PinCalls>,
    /// Number of calls, and of those that have brought nothing yet: every call of the container's
    /// asks.
    open: AtomicUsize,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct PinCalls {
    /// By their handles in the staging client.
    open: BTreeMap<Handle, OpenPin>,
    next: u32,
    /// By threads: what the last call's struct was made to say, and what it had said.
    meant: HashMap<i32, (PinNames, PinNames)>,
}

impl InflightPins {
    /// A call is let through into a staging client, below a device there; the names that it is to
    /// have.
    pub(crate) fn add(&self, (client, parent): (Handle, Handle), call: Pinning, reservation: Reservation) -> PinNames {
        let mut calls = lock(&self.calls);
        let object = loop {
            let handle = Handle(FIRST_HANDLE + calls.next % HANDLES);
            calls.next = calls.next.wrapping_add(1);
            if !calls.open.contains_key(&handle) {
                break handle;
            }
        };
        let staged = PinNames { client, parent, object };
        if calls.meant.len() >= MOST_MEANT {
            calls.meant.clear();
        }
        calls.meant.insert(call.thread, (staged, call.names));
        calls.open.insert(object, (call, Some(reservation)));
        self.recount(&calls);
        staged
    }

    /// Returns the names that a thread means whose struct has these: its last call's may have been
    /// left as it was made to be.
    pub(crate) fn meant(&self, thread: i32, said: PinNames) -> PinNames {
        let calls = lock(&self.calls);
        calls.meant.get(&thread).filter(|(staged, _)| *staged == said).map_or(said, |(_, meant)| *meant)
    }

    /// Something has come under that handle: what is reserved for the call that was given it,
    /// unless there is none, or something has come before. It is to be
    /// [moved](InflightPins::moved).
    pub(crate) fn take(&self, handle: Handle) -> Option<(Pinning, Reservation)> {
        let mut calls = lock(&self.calls);
        let (call, reservation) = calls.open.get_mut(&handle)?;
        Some((*call, reservation.take()?))
    }

    /// Counts anew: what was taken is where it is to be, or gone.
    pub(crate) fn moved(&self) {
        self.recount(&lock(&self.calls));
    }

    /// A call is over.
    pub(crate) fn close(&self, handle: Handle) -> Option<OpenPin> {
        let mut calls = lock(&self.calls);
        let call = calls.open.remove(&handle);
        self.recount(&calls);
        call
    }

    fn recount(&self, calls: &PinCalls) {
        let waiting = calls.open.values().filter(|(_, reservation)| reservation.is_some()).count();
        self.waiting.store(waiting, Ordering::SeqCst);
        self.open.store(calls.open.len(), Ordering::SeqCst);
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Of which something is to come, or to be moved, yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The handles of such calls; of each it is told whether something is to come yet.
    pub(crate) fn which(&self, is_meant: impl Fn(&Pinning, bool) -> bool) -> Vec<Handle> {
        let calls = lock(&self.calls);
        let meant = calls.open.iter().filter(|(_, (call, reservation))| is_meant(call, reservation.is_some()));
        meant.map(|(handle, _)| *handle).collect()
    }

    /// Returns the process that made one of them, and the bytes that it was to pin.
    pub(crate) fn anybody(&self) -> Option<(Pid, u64)> {
        lock(&self.calls).open.values().next().map(|(call, _)| (call.pid, call.length))
    }
}
