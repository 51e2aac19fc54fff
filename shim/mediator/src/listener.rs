//! One listener: the seccomp notifications of the container's init, or of one exec, and of all that
//! they fork.
//!
//! One thread receives and handles calls, one after the other. When it stays in one call (the
//! driver is slow, or the caller's memory blocks) and another call waits, the main thread starts
//! another, up to [`MAX_THREADS`]; a thread that comes back and finds another one receiving ends.
//! While no other call waits, none is started: a program that makes one call after the other, as at
//! CUDA's start, where many take milliseconds, is served by one thread whose caches are warm.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use fence::{Arch, NotifiedCall};
use mediator::{Answer, CallerError, Trapped};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::{Notification, Response, sync::lock};

use super::{mediation::Mediation, processes::ContainerProcess};

/// Signal that takes a thread out of a call in which it waits.
pub(super) const INTERRUPT: i32 = libc::SIGUSR1;
/// The most threads of one listener: as many callers may block for ever before the others wait,
/// too.
const MAX_THREADS: usize = 8;
const STACK: usize = 256 << 10;

/// A seccomp listener and the threads that serve it.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
    mediation: Arc<Mediation>,
    /// No process has the filter any more.
    is_closed: AtomicBool,
    /// Calls received.
    calls: AtomicU64,
    threads: Mutex<ThreadCount>,
}

#[derive(Debug, Default)]
struct ThreadCount {
    /// Thread ids of all that run.
    all: Vec<i32>,
    /// Threads that were started and are not yet in `all`.
    starting: usize,
    /// Threads that wait for a call.
    receiving: usize,
    /// Threads that wait for the end of a pause; they count as receiving.
    parked: usize,
}

impl Listener {
    /// Takes the listener and starts its first thread.
    pub(super) fn start(fd: OwnedFd, mediation: Arc<Mediation>) -> io::Result<Arc<Self>> {
        // Kernels before 6.6 lack it.
        let _ = sys::wake_synchronously(fd.as_fd());
        let listener = Arc::new(Self {
            fd,
            mediation,
            is_closed: AtomicBool::new(false),
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

    /// Adds a thread if a call waits and no thread receives. To be called when no call has been
    /// received for a moment.
    pub(super) fn add_thread_if_stalled(self: &Arc<Self>) -> io::Result<()> {
        let may_be_added = {
            let threads = lock(&self.threads);
            threads.receiving == 0 && threads.all.len() + threads.starting < MAX_THREADS
        };
        if may_be_added && self.polls(PollFlags::POLLIN) { self.add_thread() } else { Ok(()) }
    }

    /// Returns whether no call is being handled, and no thread could receive one.
    pub(super) fn is_quiescent(&self) -> bool {
        let threads = lock(&self.threads);
        threads.starting == 0 && threads.parked == threads.all.len()
    }

    /// Returns whether some call is being handled.
    pub(super) fn is_busy(&self) -> bool {
        let threads = lock(&self.threads);
        threads.all.len() + threads.starting > threads.receiving
    }

    /// Interrupts the threads that wait, so that they see what has changed.
    pub(super) fn interrupt(&self) {
        let threads = lock(&self.threads).all.clone();
        for tid in threads {
            // It may have ended.
            let _ = sys::signal_own_thread(tid, INTERRUPT);
        }
    }

    /// Ends the threads, as no process has the filter any more. `false` as long as one is left;
    /// call it again.
    pub(super) fn end(&self) -> bool {
        self.is_closed.store(true, Ordering::Release);
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

    /// Receives and handles one call. `false`: the thread ends, and does not count as receiving any
    /// more.
    fn serve_one(&self) -> bool {
        let is_over = || self.mediation.is_paused() || self.is_closed.load(Ordering::Acquire);
        self.mediation.cost.wait_for_processor(&self.mediation.session, is_over);
        if self.mediation.is_paused() {
            lock(&self.threads).parked += 1;
            self.mediation.outbox.wake();
            self.mediation.wait_while_paused();
            lock(&self.threads).parked -= 1;
        }
        let received = if self.is_closed.load(Ordering::Acquire) { None } else { Some(sys::receive(self.fd.as_fd())) };
        match received {
            Some(Ok(notification)) => {
                lock(&self.threads).receiving -= 1;
                self.calls.fetch_add(1, Ordering::Relaxed);
                if !self.mediation.is_active.swap(true, Ordering::Relaxed) {
                    self.mediation.outbox.wake();
                }
                self.handle(&notification);
                self.mediation.request_accounting();
                let mut threads = lock(&self.threads);
                if threads.receiving > 0 {
                    return false;
                }
                threads.receiving += 1;
                true
            }
            Some(Err(error)) if error.raw_os_error() == Some(libc::EINTR) => true,
            Some(Err(error)) if error.raw_os_error() == Some(libc::ENOENT) && !self.polls(PollFlags::POLLHUP) => true,
            _ => {
                lock(&self.threads).receiving -= 1;
                false
            }
        }
    }

    /// Returns whether the kernel reports `event`: a call that no thread has received yet
    /// (`POLLIN`), no process that has the filter (`POLLHUP`).
    fn polls(&self, event: PollFlags) -> bool {
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
        let gone = |process: &Arc<ContainerProcess>| self.mediation.process_ended(process);
        let caller = match self.mediation.threads.caller(self.fd.as_fd(), notification, &gone) {
            Ok(caller) => caller,
            Err(CallerError::Gone) => return,
            Err(_) => {
                self.respond(notification, Response::Errno(libc::EIO));
                return;
            }
        };
        let (answer, sequel) = session.handle_with_sequel(&caller, &stopped);
        let response = match answer {
            Answer::Return(value) => Response::Return(value),
            Answer::Errno(errno) => Response::Errno(errno),
            Answer::Continue => Response::Continue,
            // The caller waits until it is killed.
            Answer::KillCaller => return,
        };
        let is_heard = self.respond(notification, response);
        if let Some(sequel) = sequel {
            session.answered(sequel, is_heard);
        }
    }

    /// Answers a call. `false`: the caller was killed, or interrupted where the kernel cannot hold
    /// that off, and does not get the answer.
    fn respond(&self, notification: &Notification, response: Response) -> bool {
        sys::respond(self.fd.as_fd(), notification.id, response).is_ok()
    }
}

/// Decodes the call from the registers; the filter notifies no others.
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

    /// The entries of this machine: `AUDIT_ARCH_*` and the number of ioctl, of the 64-bit one and
    /// of the 32-bit one with its mmap2.
    #[cfg(target_arch = "x86_64")]
    const ENTRIES: ((u32, i32), (u32, i32)) = ((0xc000_003e, 16), (0x4000_0003, 192));
    #[cfg(target_arch = "aarch64")]
    const ENTRIES: ((u32, i32), (u32, i32)) = ((0xc000_00b7, 29), (0x4000_0028, 192));

    #[test]
    fn registers_become_calls() {
        let notification = |(arch, nr), arguments| Notification { id: 1, tid: 1, nr, arch, arguments };
        let (native, of_32_bits) = ENTRIES;
        let ioctl = notification(native, [0xffff_ffff_0000_0003, 0xdead_beef_c030_4501, 0x7f00, 0, 0, 0]);
        assert_eq!(stopped(&ioctl), Some(Trapped::Ioctl { fd: 3, command: 0xc030_4501, argument: 0x7f00 }));
        let mmap2 = notification(of_32_bits, [0x1000_0000, 0x20_0000, 3, 0x11, 5, 0x1_0000]);
        let expected =
            Trapped::Mmap { address: 0x1000_0000, length: 0x20_0000, flags: 0x11, fd: 5, offset: 0x1000_0000 };
        assert_eq!(stopped(&mmap2), Some(expected));
        assert_eq!(stopped(&notification((native.0, 0), [0; 6])), None);
    }
}
