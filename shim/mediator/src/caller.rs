//! The calling thread: its memory, its descriptors, its process.
//!
//! The files that the broker opens of a thread are cached, since a program makes its calls from few
//! threads, and opening costs more than the rest. A thread's number may go to another when it ends,
//! so a cached entry is used only once its pidfd has shown that the thread is there: the number
//! then cannot be another's, and the notification, which came before, is this thread's. The first
//! descriptor that is duplicated shows that, or the pidfd is polled.
//!
//! The code that decides on what was read asks whether the thread still waits
//! ([`Caller::is_waiting`]): once, after the last read.
//!
//! A cached `/proc/TID/mem` is of the memory that the thread had when it was opened. After
//! `execve(2)` that memory is gone, reads find nothing, and the file is opened again. (Where
//! another process still has the old memory, a child made with `CLONE_VM` and not as a thread, a
//! program that made driver calls both before and after its exec is served from there; it is its
//! own.)

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use mediator::{Caller, CallerError, Numbers, Pid};
use sys::sync::lock;

use super::{
    broker::OpenedThread,
    processes::{ContainerProcess, ProcessTable},
};

/// The most threads that are cached; beyond, those that have ended are dropped first.
const MAX_CACHED: usize = 4096;

/// Cached files of a calling thread.
#[derive(Debug)]
struct CallingThread {
    tid: i32,
    process: Arc<ContainerProcess>,
    memory: File,
    /// The pidfd of the thread itself; `None` on kernels before 6.9.
    pidfd: Option<OwnedFd>,
    /// The parameters of its last call lay right behind the argument.
    is_read_ahead: AtomicBool,
}

impl CallingThread {
    /// Returns whether the thread is there.
    fn is_there(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => sys::is_there(pidfd.as_fd()),
            // Only the first thread's number is the process's.
            None => self.tid == self.process.pid && sys::is_there(self.process.pidfd.as_fd()),
        }
    }
}

/// The calling threads of the container.
#[derive(Debug)]
pub(super) struct ThreadCache {
    processes: Arc<ProcessTable>,
    cached: Mutex<HashMap<i32, Arc<CallingThread>>>,
    /// The kernel has pidfds of threads.
    has_thread_pidfds: AtomicBool,
    /// Calls of threads with a descriptor table of their own, which cannot be reached on this
    /// kernel.
    pub(super) unreachable: AtomicU64,
}

/// Called with a process whose number another has now, before the first call of that one is
/// handled.
pub(super) type OnProcessGone<'a> = &'a dyn Fn(&Arc<ContainerProcess>);

impl ThreadCache {
    pub(super) fn new(processes: Arc<ProcessTable>) -> Self {
        Self {
            processes,
            cached: Mutex::default(),
            has_thread_pidfds: AtomicBool::new(true),
            unreachable: AtomicU64::new(0),
        }
    }

    /// Returns the caller of a notification that `listener` has just received.
    pub(super) fn caller<'a>(
        &'a self,
        listener: BorrowedFd<'a>,
        notification: &sys::Notification,
        gone: OnProcessGone<'a>,
    ) -> Result<WaitingCaller<'a>, CallerError> {
        let (id, tid) = (notification.id, notification.tid);
        let kept = lock(&self.cached).get(&tid).cloned();
        let (thread, is_there) = match kept {
            Some(thread) => (thread, false),
            None => (self.open(listener, id, tid, gone)?, true),
        };
        let (thread, is_there) = (RefCell::new(thread), Cell::new(is_there));
        let ahead = RefCell::default();
        Ok(WaitingCaller { threads: self, listener, id, tid, thread, is_there, ahead, gone })
    }

    fn open(
        &self,
        listener: BorrowedFd<'_>,
        id: u64,
        tid: i32,
        gone: OnProcessGone<'_>,
    ) -> Result<Arc<CallingThread>, CallerError> {
        if tid == 0 {
            // A process outside this pid namespace has the filter.
            return Err(CallerError::Other(io::ErrorKind::NotFound.into()));
        }
        let opened = self.open_now(tid, gone);
        // While it waits, its number is its own: so all that was opened is of it.
        if !sys::is_waiting(listener, id) {
            return Err(CallerError::Gone);
        }
        let thread = Arc::new(opened.map_err(CallerError::Other)?);
        let mut kept = lock(&self.cached);
        if kept.len() >= MAX_CACHED {
            kept.retain(|_, thread| thread.is_there());
        }
        if kept.len() < MAX_CACHED {
            kept.insert(tid, Arc::clone(&thread));
        }
        Ok(thread)
    }

    fn open_now(&self, tid: i32, gone: OnProcessGone<'_>) -> io::Result<CallingThread> {
        let with_pidfd = self.has_thread_pidfds.load(Ordering::Relaxed);
        let OpenedThread { pid, process, numbers, memory, pidfd } = self.processes.broker().thread(tid, with_pidfd)?;
        if pidfd.is_none() {
            self.has_thread_pidfds.store(false, Ordering::Relaxed);
        }
        let process = self.processes.register(pid, process, numbers, gone)?;
        Ok(CallingThread { tid, process, memory, pidfd, is_read_ahead: AtomicBool::new(false) })
    }

    /// Drops the cached threads of a process that has ended.
    pub(super) fn forget(&self, process: &Arc<ContainerProcess>) {
        lock(&self.cached).retain(|_, thread| !Arc::ptr_eq(&thread.process, process));
    }
}

/// A thread that waits for the answer to its call.
pub(super) struct WaitingCaller<'a> {
    threads: &'a ThreadCache,
    listener: BorrowedFd<'a>,
    id: u64,
    tid: i32,
    thread: RefCell<Arc<CallingThread>>,
    /// The cached entry was seen to be of the thread that waits.
    is_there: Cell<bool>,
    ahead: RefCell<ReadAhead>,
    gone: OnProcessGone<'a>,
}

/// A call's argument and the bytes right behind it, which are read together: that takes no longer
/// than one of them.
///
/// Programs that have both on their stack have the parameters to which the argument points there.
#[derive(Default)]
struct ReadAhead {
    /// Address of the call's argument; `None` until it is read.
    argument: Option<u64>,
    /// The bytes that were read from there on.
    bytes: Vec<u8>,
}

/// The most bytes that are read ahead for one call.
const MAX_READ_AHEAD: u64 = 1024;
/// Size of a page: bytes of one page can be read together, or not at all. Pages are larger on some
/// machines.
const PAGE: u64 = 4096;

impl ReadAhead {
    /// Returns the number of bytes that may be read at once from there on.
    fn room(argument: u64) -> u64 {
        MAX_READ_AHEAD.min(PAGE - argument % PAGE)
    }

    /// Returns the place of these bytes in those that may be read at once.
    fn place(&self, address: u64, length: usize) -> Option<Range<usize>> {
        let argument = self.argument?;
        let begin = address.checked_sub(argument)?;
        let end = begin.checked_add(u64::try_from(length).ok()?).filter(|end| *end <= Self::room(argument))?;
        Some(usize::try_from(begin).ok()?..usize::try_from(end).ok()?)
    }
}

impl WaitingCaller<'_> {
    /// Returns the cached entry, opened again if it is not of the thread that waits.
    fn current_thread(&self) -> Result<Arc<CallingThread>, CallerError> {
        let kept = Arc::clone(&self.thread.borrow());
        if self.is_there.get() {
            return Ok(kept);
        }
        if !kept.is_there() {
            return self.open_again();
        }
        self.is_there.set(true);
        Ok(kept)
    }

    /// Opens the thread again: it has executed another program since it was first seen, or the
    /// cached entry is of another thread that had its number.
    fn open_again(&self) -> Result<Arc<CallingThread>, CallerError> {
        let thread = self.threads.open(self.listener, self.id, self.tid, self.gone)?;
        self.thread.replace(Arc::clone(&thread));
        self.is_there.set(true);
        Ok(thread)
    }

    /// Duplicates a descriptor by the thread's pidfd: only a thread that is gone fails with
    /// `ESRCH`.
    fn file_by_pidfd(&self, fd: i32) -> Result<OwnedFd, CallerError> {
        let mut thread = Arc::clone(&self.thread.borrow());
        loop {
            let Some(pidfd) = &thread.pidfd else { return self.file_by_process(fd) };
            match sys::pidfd_getfd(pidfd.as_fd(), fd) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) && !self.is_there.get() => {
                    thread = self.open_again()?;
                }
                result => {
                    self.is_there.set(true);
                    return result.map_err(|error| no_file(fd, error));
                }
            }
        }
    }

    /// Duplicates a descriptor by the process's pidfd, on kernels without those of threads, if the
    /// thread has the process's descriptor table.
    fn file_by_process(&self, fd: i32) -> Result<OwnedFd, CallerError> {
        let thread = self.current_thread()?;
        let (tid, pid) = (thread.tid, thread.process.pid);
        if tid != pid && !sys::share_descriptors(tid, pid).unwrap_or(false) {
            self.require_waiting(())?;
            self.threads.unreachable.fetch_add(1, Ordering::Relaxed);
            return Err(CallerError::Other(io::Error::new(
                io::ErrorKind::Unsupported,
                "the thread has a descriptor table of its own, which needs Linux 6.9",
            )));
        }
        let found = sys::pidfd_getfd(thread.process.pidfd.as_fd(), fd);
        self.require_waiting(())?;
        found.map_err(|error| no_file(fd, error))
    }

    fn read_now(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError> {
        self.transfer(bytes.len(), |memory, done| {
            let rest = bytes.get_mut(done..).unwrap_or_default();
            memory.read_at(rest, at(address, done))
        })
    }

    fn require_waiting<T>(&self, result: T) -> Result<T, CallerError> {
        if self.is_waiting() { Ok(result) } else { Err(CallerError::Gone) }
    }

    /// Moves bytes by `call` (memory, bytes done) until it returns 0 or fails. Returns their
    /// number.
    fn transfer(
        &self,
        length: usize,
        mut call: impl FnMut(&File, usize) -> io::Result<usize>,
    ) -> Result<usize, CallerError> {
        let mut thread = self.current_thread()?;
        let (mut done, mut is_fresh) = (0, false);
        while done < length {
            match call(&thread.memory, done) {
                Ok(0) if is_fresh => break,
                // The memory that was opened is gone.
                Ok(0) => (thread, is_fresh) = (self.open_again()?, true),
                Ok(moved) => done += moved,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Not mapped, or without this permission.
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

fn at(address: u64, done: usize) -> u64 {
    address.wrapping_add(done as u64)
}

impl Caller for WaitingCaller<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        let length = bytes.len();
        if self.read_up_to(address, bytes)? == length { Ok(()) } else { Err(CallerError::Fault { address }) }
    }

    fn read_again(&self, address: u64, bytes: &mut [u8]) -> Result<(), CallerError> {
        self.ahead.borrow_mut().bytes.clear();
        self.read(address, bytes)
    }

    fn read_up_to(&self, address: u64, bytes: &mut [u8]) -> Result<usize, CallerError> {
        let mut ahead = self.ahead.borrow_mut();
        if ahead.argument.is_none() {
            ahead.argument = Some(address);
            if self.thread.borrow().is_read_ahead.load(Ordering::Relaxed)
                && let Some(whole) = usize::try_from(ReadAhead::room(address)).ok().filter(|whole| bytes.len() < *whole)
            {
                ahead.bytes.resize(whole, 0);
                let present = self.read_now(address, &mut ahead.bytes)?;
                ahead.bytes.truncate(present);
            }
        } else {
            let is_near = ahead.place(address, bytes.len()).is_some();
            self.thread.borrow().is_read_ahead.store(is_near, Ordering::Relaxed);
        }
        if let Some(read) = ahead.place(address, bytes.len()).and_then(|place| ahead.bytes.get(place)) {
            bytes.copy_from_slice(read);
            return Ok(bytes.len());
        }
        drop(ahead);
        self.read_now(address, bytes)
    }

    // The answer shows whether the caller still waits then: a call whose answer is lost is undone.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), CallerError> {
        self.ahead.borrow_mut().bytes.clear();
        let written = self.transfer(bytes.len(), |memory, done| {
            memory.write_at(bytes.get(done..).unwrap_or_default(), at(address, done))
        })?;
        if written == bytes.len() {
            return Ok(());
        }
        self.require_waiting(())?;
        Err(CallerError::Fault { address })
    }

    fn file(&self, fd: i32) -> Result<File, CallerError> {
        self.file_by_pidfd(fd).map(File::from)
    }

    fn install(&self, file: &File) -> Result<i32, CallerError> {
        sys::add_file(self.listener, self.id, file.as_fd(), None).map_err(gone_or_other)
    }

    fn replace(&self, fd: i32, file: &File) -> Result<(), CallerError> {
        sys::add_file(self.listener, self.id, file.as_fd(), Some(fd)).map(drop).map_err(gone_or_other)
    }

    fn pid(&self) -> Result<Pid, CallerError> {
        Ok(Pid(self.current_thread()?.process.pid))
    }

    fn thread(&self) -> i32 {
        self.tid
    }

    fn numbers(&self) -> Result<Numbers, CallerError> {
        Ok(self.current_thread()?.process.numbers.clone())
    }

    fn is_waiting(&self) -> bool {
        sys::is_waiting(self.listener, self.id)
    }
}

fn no_file(fd: i32, error: io::Error) -> CallerError {
    match error.raw_os_error() {
        Some(libc::EBADF) => CallerError::BadDescriptor { fd },
        Some(libc::ESRCH) => CallerError::Gone,
        _ => CallerError::Other(error),
    }
}

fn gone_or_other(error: io::Error) -> CallerError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => CallerError::Gone,
        _ => CallerError::Other(error),
    }
}

#[cfg(test)]
mod tests;
