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

use super::locks::lock;

/// Handles in the staging client.
const FIRST_HANDLE: u32 = 0xe700_0000;
const HANDLES: u32 = 1 << 24;
/// Of so many threads it is remembered what their last call meant.
const MOST_MEANT: usize = 4096;

/// `hRoot`, `hObjectParent` and `hObjectNew`, which begin the struct of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) client: Handle,
    pub(super) parent: Handle,
    pub(super) object: Handle,
}

impl Names {
    pub(super) const fn object(self) -> ObjectName {
        ObjectName { client: self.client, object: self.object }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        [self.client, self.parent, self.object].iter().flat_map(|handle| handle.0.to_le_bytes()).collect()
    }
}

/// A call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinning {
    /// Where the program wants what it pins.
    pub(super) names: Names,
    pub(super) thread: i32,
    pub(super) pid: Pid,
    pub(super) length: u64,
}

/// One that is not over, and what is reserved for it; `None`: something has come under its handle in the staging client.
type Open = (Pinning, Option<Reservation>);

/// All that are not over.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    calls: Mutex<Calls>,
    /// How many there are, and how many of them have brought nothing yet: every call of the container's asks.
    open: AtomicUsize,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct Calls {
    /// By their handles in the staging client.
    open: BTreeMap<Handle, Open>,
    next: u32,
    /// By threads: what the last call's struct was made to say, and what it had said.
    meant: HashMap<i32, (Names, Names)>,
}

impl UnderWay {
    /// A call is let through into a staging client, below a device there; the names that it is to have.
    pub(super) fn add(&self, (client, parent): (Handle, Handle), call: Pinning, reservation: Reservation) -> Names {
        let mut calls = lock(&self.calls);
        let object = loop {
            let handle = Handle(FIRST_HANDLE + calls.next % HANDLES);
            calls.next = calls.next.wrapping_add(1);
            if !calls.open.contains_key(&handle) {
                break handle;
            }
        };
        let staged = Names { client, parent, object };
        if calls.meant.len() >= MOST_MEANT {
            calls.meant.clear();
        }
        calls.meant.insert(call.thread, (staged, call.names));
        calls.open.insert(object, (call, Some(reservation)));
        self.recount(&calls);
        staged
    }

    /// What a thread means whose struct says these: its last call's may have been left as it was made to be.
    pub(super) fn meant(&self, thread: i32, said: Names) -> Names {
        let calls = lock(&self.calls);
        calls.meant.get(&thread).filter(|(staged, _)| *staged == said).map_or(said, |(_, meant)| *meant)
    }

    /// Something has come under that handle: what is reserved for the call that was given it, unless there is none, or something has come before.
    /// It is to be [moved](UnderWay::moved).
    pub(super) fn take(&self, handle: Handle) -> Option<(Pinning, Reservation)> {
        let mut calls = lock(&self.calls);
        let (call, reservation) = calls.open.get_mut(&handle)?;
        Some((*call, reservation.take()?))
    }

    /// What was taken is where it is to be, or gone.
    pub(super) fn moved(&self) {
        self.recount(&lock(&self.calls));
    }

    /// A call is over.
    pub(super) fn close(&self, handle: Handle) -> Option<Open> {
        let mut calls = lock(&self.calls);
        let call = calls.open.remove(&handle);
        self.recount(&calls);
        call
    }

    fn recount(&self, calls: &Calls) {
        let waiting = calls.open.values().filter(|(_, reservation)| reservation.is_some()).count();
        self.waiting.store(waiting, Ordering::SeqCst);
        self.open.store(calls.open.len(), Ordering::SeqCst);
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Of which something is to come, or to be moved, yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The handles of such calls; of each it is told whether something is to come yet.
    pub(super) fn which(&self, is_meant: impl Fn(&Pinning, bool) -> bool) -> Vec<Handle> {
        let calls = lock(&self.calls);
        let meant = calls.open.iter().filter(|(_, (call, reservation))| is_meant(call, reservation.is_some()));
        meant.map(|(handle, _)| *handle).collect()
    }

    /// Who has made one of them, and how much that was to pin.
    pub(super) fn anybody(&self) -> Option<(Pid, u64)> {
        lock(&self.calls).open.values().next().map(|(call, _)| (call.pid, call.length))
    }
}
