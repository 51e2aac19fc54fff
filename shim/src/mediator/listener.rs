//! One listener: the notifications of a container's init, or of one exec, and of all that they fork.
//!
//! One thread receives and handles, one call after the other. When it stays in one call (the driver is slow, or the caller's
//! memory blocks) and another call waits, the main thread starts another, up to [`MOST_THREADS`]; whoever comes back and finds a
//! thread that receives, ends. While no other call waits, none is started: a program that makes one call after the other, as at CUDA's
//! start, where many take milliseconds, is served by one thread all the time, which knows its way.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvidia_glue::{
    driver::DeviceFile,
    fence::{Arch, NotifiedCall},
    mediate::{Answer, CallerError, ExitedProcesses, Pid, Session, Trapped},
};

use super::{
    caller::Threads,
    outbox::Outbox,
    processes::{Process, ProcessTable},
};
use crate::{
    sync::lock,
    sys::{self, Notification, Response},
};

/// Takes a thread out of a call that it waits in.
pub(super) const INTERRUPT: i32 = libc::SIGUSR1;
/// The most threads of one listener: as many of its callers may block for ever before the others stand still, too.
const MOST_THREADS: usize = 8;
const STACK: usize = 256 << 10;

/// What may be gone, and has to be looked for.
#[derive(Debug, Default)]
struct Searched {
    /// What processes that have ended have left.
    left: Option<ExitedProcesses>,
    /// Whatever went with a file that was closed.
    closed_files: bool,
}

/// What all listeners of the container share.
#[derive(Debug)]
pub(super) struct Mediation {
    pub(super) session: Session,
    pub(super) processes: Arc<ProcessTable>,
    pub(super) threads: Threads,
    pub(super) outbox: Arc<Outbox>,
    /// Calls are being handled, or were a moment ago.
    pub(super) is_active: AtomicBool,
    paused: Mutex<bool>,
    resumed: Condvar,
    /// What is to be looked for.
    searched: Mutex<Searched>,
    is_searched: Condvar,
    /// There are accounts to be looked after.
    has_work: AtomicBool,
    /// Held while it changes to `true`.
    work: Mutex<()>,
    worked: Condvar,
    /// Open for as long as the process lives.
    _cards: Vec<DeviceFile>,
}

impl Mediation {
    pub(super) fn new(
        session: Session,
        processes: Arc<ProcessTable>,
        outbox: Arc<Outbox>,
        cards: Vec<DeviceFile>,
    ) -> Self {
        Self {
            session,
            threads: Threads::new(Arc::clone(&processes)),
            processes,
            outbox,
            is_active: AtomicBool::new(false),
            paused: Mutex::new(false),
            resumed: Condvar::new(),
            searched: Mutex::default(),
            is_searched: Condvar::new(),
            has_work: AtomicBool::new(false),
            work: Mutex::default(),
            worked: Condvar::new(),
            _cards: cards,
        }
    }

    /// The process is gone, and its number may be another's: it is known no more. What it left goes to the thread that looks
    /// after that.
    pub(super) fn process_ended(&self, process: &Arc<Process>) {
        self.threads.forget(process);
        let left = self.session.process_exited(Pid(process.pid));
        lock(&self.searched).left.get_or_insert_default().add(left);
        self.is_searched.notify_all();
    }

    /// It is time to look for files that were closed. Who compares does not wait for that.
    pub(super) fn look_for_closed_files(&self) {
        lock(&self.searched).closed_files = true;
        self.is_searched.notify_all();
    }

    /// For the thread that looks after what processes have left: it may have to wait for others of the container's.
    pub(super) fn look_after_what_is_left(&self) -> ! {
        loop {
            let is_nothing = |searched: &mut Searched| searched.left.is_none() && !searched.closed_files;
            let searched = self.is_searched.wait_while(lock(&self.searched), is_nothing);
            let Searched { left, closed_files } =
                std::mem::take(&mut *searched.unwrap_or_else(PoisonError::into_inner));
            if let Some(left) = left {
                self.session.reclaim_after_exit(&left);
            }
            if closed_files {
                self.session.look_for_closed_files();
            }
        }
    }

    /// A call has been handled: the thread that keeps accounts has work.
    fn give_work(&self) {
        if !self.has_work.load(Ordering::SeqCst) {
            let work = lock(&self.work);
            self.has_work.store(true, Ordering::SeqCst);
            drop(work);
            self.worked.notify_all();
        }
    }

    /// For the thread that keeps accounts: there was nothing to do. It looks once more for a process whose call was handled
    /// in this instant; later ones give work.
    pub(super) fn end_work(&self) {
        self.has_work.store(false, Ordering::SeqCst);
        if !self.processes.known().is_empty() {
            self.has_work.store(true, Ordering::SeqCst);
        }
    }

    /// Returns once a call has been handled since [`Mediation::end_work`].
    pub(super) fn wait_for_work(&self) {
        let work = lock(&self.work);
        let is_idle = |_: &mut ()| !self.has_work.load(Ordering::SeqCst);
        drop(self.worked.wait_while(work, is_idle).unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn set_paused(&self, paused: bool) {
        *lock(&self.paused) = paused;
        // No call waits for the container's turn, so that none is open when the container is frozen.
        self.session.hurry(paused);
        self.resumed.notify_all();
    }

    pub(super) fn is_paused(&self) -> bool {
        *lock(&self.paused)
    }

    fn wait_while_paused(&self) {
        let paused = lock(&self.paused);
        drop(self.resumed.wait_while(paused, |paused| *paused).unwrap_or_else(PoisonError::into_inner));
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    mediation: Arc<Mediation>,
    /// Nobody has the filter any more.
    over: AtomicBool,
    /// Calls received.
    calls: AtomicU64,
    threads: Mutex<ThreadCount>,
}

#[derive(Debug, Default)]
struct ThreadCount {
    /// Thread ids of all.
    all: Vec<i32>,
    /// Started, and not yet in `all`.
    starting: usize,
    /// Those that wait for a call.
    receiving: usize,
    /// Those that wait for the end of a pause; they count as receiving.
    parked: usize,
}

impl Listener {
    /// Takes the listener and starts its first thread.
    pub(super) fn start(fd: OwnedFd, mediation: Arc<Mediation>) -> io::Result<Arc<Self>> {
        // Kernels before 6.6 do not know how.
        let _ = sys::wake_synchronously(fd.as_fd());
        let listener = Arc::new(Self {
            fd,
            mediation,
            over: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            threads: Mutex::default(),
        });
        listener.add_thread()?;
        Ok(listener)
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        {
            let mut threads = lock(&self.threads);
            threads.starting += 1;
            threads.receiving += 1;
        }
        let listener = Arc::clone(self);
        let started = thread::Builder::new().name("receiver".into()).stack_size(STACK).spawn(move || listener.serve());
        if let Err(error) = started {
            let mut threads = lock(&self.threads);
            threads.starting -= 1;
            threads.receiving -= 1;
            return Err(error);
        }
        Ok(())
    }

    /// To be called when no call has been received for a moment: adds a thread if a call waits and none receives.
    pub(super) fn relieve(self: &Arc<Self>) -> io::Result<()> {
        let may_be_added = {
            let threads = lock(&self.threads);
            threads.receiving == 0 && threads.all.len() + threads.starting < MOST_THREADS
        };
        if may_be_added && self.has(PollFlags::POLLIN) { self.add_thread() } else { Ok(()) }
    }

    /// Whether a call is being handled, or a thread could still receive one.
    pub(super) fn is_at_rest(&self) -> bool {
        let threads = lock(&self.threads);
        threads.starting == 0 && threads.parked == threads.all.len()
    }

    /// Whether some call is being handled.
    pub(super) fn is_busy(&self) -> bool {
        let threads = lock(&self.threads);
        threads.all.len() + threads.starting > threads.receiving
    }

    /// Takes waiting threads out of their wait, so that they see what has changed.
    pub(super) fn interrupt(&self) {
        let threads = lock(&self.threads).all.clone();
        for tid in threads {
            // It may have ended.
            let _ = sys::signal_own_thread(tid, INTERRUPT);
        }
    }

    /// Nobody has the filter any more: the threads end. `false` as long as one is left; call it again.
    pub(super) fn end(&self) -> bool {
        self.over.store(true, Ordering::Release);
        let threads = lock(&self.threads);
        if threads.all.is_empty() && threads.starting == 0 {
            return true;
        }
        drop(threads);
        self.interrupt();
        false
    }

    fn serve(&self) {
        let tid = nix::unistd::gettid().as_raw();
        {
            let mut threads = lock(&self.threads);
            threads.starting -= 1;
            threads.all.push(tid);
        }
        while self.serve_one() {}
        lock(&self.threads).all.retain(|other| *other != tid);
    }

    /// Receives and handles one call. `false`: the thread ends; it does not count as receiving any more.
    fn serve_one(&self) -> bool {
        if self.mediation.is_paused() {
            lock(&self.threads).parked += 1;
            self.mediation.outbox.wake();
            self.mediation.wait_while_paused();
            lock(&self.threads).parked -= 1;
        }
        let received = if self.over.load(Ordering::Acquire) { None } else { Some(sys::receive(self.fd.as_fd())) };
        match received {
            Some(Ok(notification)) => {
                lock(&self.threads).receiving -= 1;
                self.calls.fetch_add(1, Ordering::Relaxed);
                if !self.mediation.is_active.swap(true, Ordering::Relaxed) {
                    self.mediation.outbox.wake();
                }
                self.handle(&notification);
                self.mediation.give_work();
                let mut threads = lock(&self.threads);
                if threads.receiving > 0 {
                    return false;
                }
                threads.receiving += 1;
                true
            }
            Some(Err(error)) if error.raw_os_error() == Some(libc::EINTR) => true,
            Some(Err(error)) if error.raw_os_error() == Some(libc::ENOENT) && !self.has(PollFlags::POLLHUP) => true,
            _ => {
                lock(&self.threads).receiving -= 1;
                false
            }
        }
    }

    /// What the kernel says of the listener: a call that nobody has received yet (`POLLIN`), nobody has the filter any more (`POLLHUP`).
    fn has(&self, event: PollFlags) -> bool {
        let mut polled = [PollFd::new(self.fd.as_fd(), event)];
        let _ = poll(&mut polled, PollTimeout::ZERO);
        polled[0].revents().is_some_and(|events| events.contains(event))
    }

    fn handle(&self, notification: &Notification) {
        let Some(stopped) = stopped(notification) else {
            self.respond(notification, Response::Errno(libc::ENOSYS));
            return;
        };
        let session = &self.mediation.session;
        let gone = |process: &Arc<Process>| self.mediation.process_ended(process);
        let caller = match self.mediation.threads.caller(self.fd.as_fd(), notification, &gone) {
            Ok(caller) => caller,
            Err(CallerError::Gone) => return,
            Err(_) => {
                self.respond(notification, Response::Errno(libc::EIO));
                return;
            }
        };
        let (answer, undo) = session.handle_undoably(&caller, &stopped);
        let response = match answer {
            Answer::Return(value) => Response::Return(value),
            Answer::Errno(errno) => Response::Errno(errno),
            Answer::Continue => Response::Continue,
            // It waits until it is killed.
            Answer::KillCaller => return,
        };
        if !self.respond(notification, response)
            && let Some(undo) = undo
        {
            session.undo(undo);
        }
    }

    /// `false`: the caller was killed, or interrupted where the kernel cannot hold that off, and does not hear of it.
    fn respond(&self, notification: &Notification, response: Response) -> bool {
        sys::respond(self.fd.as_fd(), notification.id, response).is_ok()
    }
}

/// The call, as far as registers tell; the filter notifies no others.
fn stopped(notification: &Notification) -> Option<Trapped> {
    let [first, second, third, fourth, fifth, sixth] = notification.arguments;
    #[expect(clippy::cast_possible_truncation, reason = "the kernel, too, takes the low half of these")]
    match Arch::native()?.call(notification.arch, notification.nr)? {
        NotifiedCall::Ioctl => {
            Some(Trapped::Ioctl { fd: (first as u32).cast_signed(), command: second as u32, argument: third })
        }
        NotifiedCall::Mmap { offset_unit } => Some(Trapped::Mmap {
            address: first,
            length: second,
            flags: fourth as u32,
            fd: (fifth as u32).cast_signed(),
            offset: sixth.wrapping_mul(offset_unit),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of this machine: `AUDIT_ARCH_*` and the number of ioctl, of the 64-bit one and of the 32-bit one with its mmap2.
    #[cfg(target_arch = "x86_64")]
    const ENTRIES: ((u32, i32), (u32, i32)) = ((0xc000_003e, 16), (0x4000_0003, 192));
    #[cfg(target_arch = "aarch64")]
    const ENTRIES: ((u32, i32), (u32, i32)) = ((0xc000_00b7, 29), (0x4000_0028, 192));

    #[test]
    fn registers_become_calls() {
        let notification = |(arch, nr), arguments| Notification { id: 1, tid: 1, nr, arch, arguments };
        let (native, of_32_bits) = ENTRIES;
        let ioctl = notification(native, [0xffff_ffff_0000_0003, 0xdead_beef_c030_462b, 0x7f00, 0, 0, 0]);
        assert_eq!(stopped(&ioctl), Some(Trapped::Ioctl { fd: 3, command: 0xc030_462b, argument: 0x7f00 }));
        let mmap2 = notification(of_32_bits, [0x1000_0000, 0x20_0000, 3, 0x11, 5, 0x1_0000]);
        let expected =
            Trapped::Mmap { address: 0x1000_0000, length: 0x20_0000, flags: 0x11, fd: 5, offset: 0x1000_0000 };
        assert_eq!(stopped(&mmap2), Some(expected));
        assert_eq!(stopped(&notification((native.0, 0), [0; 6])), None);
    }
}
