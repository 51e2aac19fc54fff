//! Queue of messages to the shim: any thread puts, the main thread sends, so that a shim that does
//! not read stalls nobody.

use std::{
    collections::VecDeque,
    io,
    mem::discriminant,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, OnceLock},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use sys::sync::lock;

use super::{
    message::{self, FromMediator, ToMediator},
    processes::ContainerProcess,
};

/// The longest queue: it grows longer only while the shim does not read; then messages that can be
/// left out are.
const MAX_QUEUED: usize = 256;

#[derive(Debug)]
pub(super) struct Outbox {
    control: OwnedFd,
    /// Wakes the main thread.
    wake: EventFd,
    queue: Mutex<VecDeque<(FromMediator, Option<Arc<ContainerProcess>>)>>,
    /// Reason for which the mediator has to end.
    failure: OnceLock<String>,
}

impl Outbox {
    pub(super) fn new(control: OwnedFd) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(&control, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { control, wake, queue: Mutex::default(), failure: OnceLock::new() })
    }

    #[cfg(test)]
    pub(super) fn of_tests() -> Arc<Self> {
        let (_, own) = sys::frame::pair().unwrap();
        Arc::new(Self::new(own).unwrap())
    }

    /// Queues a message, with a pidfd of `process`.
    pub(super) fn put(&self, mut message: FromMediator, process: Option<Arc<ContainerProcess>>) {
        message.truncate();
        {
            let mut queue = lock(&self.queue);
            // No process, nor the container, is to be ended twice, or the queue of a shim that does
            // not read would grow for ever.
            let is_same = |(queued, of): &(FromMediator, Option<Arc<ContainerProcess>>)| match (queued, &message) {
                (FromMediator::Kill { .. }, FromMediator::Kill { .. }) => {
                    of.as_ref().zip(process.as_ref()).is_some_and(|(one, other)| one.is(other))
                }
                (FromMediator::EndContainer { .. }, FromMediator::EndContainer { .. }) => true,
                _ => false,
            };
            if queue.iter().any(is_same) {
                return;
            }
            if matches!(message, FromMediator::Presence { .. } | FromMediator::Listeners { .. }) {
                // Only the last counts. The main thread alone puts these, and takes from the queue.
                queue.retain(|(queued, _)| discriminant(queued) != discriminant(&message));
            }
            let needed = matches!(
                message,
                FromMediator::Kill { .. }
                    | FromMediator::EndContainer { .. }
                    | FromMediator::Paused { .. }
                    | FromMediator::StillHeld { .. }
                    | FromMediator::Presence { .. }
                    | FromMediator::Listeners { .. }
                    | FromMediator::WeightsOnly { .. }
            );
            if queue.len() >= MAX_QUEUED && !needed {
                return;
            }
            queue.push_back((message, process));
        }
        self.wake();
    }

    /// Wakes the main thread.
    pub(super) fn wake(&self) {
        // A full counter means that it is awake.
        let _ = self.wake.write(1);
    }

    /// Has the main thread free what the container has, and end the mediator, for a thread that
    /// cannot go on. Does not return.
    pub(super) fn fail(&self, why: String) -> ! {
        // The first reason is the one that counts.
        let _ = self.failure.set(why);
        self.wake();
        loop {
            std::thread::park();
        }
    }

    /// Returns the reason for which the mediator has to end, if there is one.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Clears the wake-up of the main thread.
    pub(super) fn drain_wake(&self) {
        let _ = self.wake.read();
    }

    /// Sends the queue. Returns whether all of it is gone.
    pub(super) fn flush(&self) -> io::Result<bool> {
        loop {
            // Only the main thread takes from the queue.
            let Some((message, process)) = lock(&self.queue).front().cloned() else { return Ok(true) };
            let pidfd = process.as_ref().map(|process| process.pidfd.as_fd());
            match message::send(self.control.as_fd(), &message, pidfd) {
                Ok(()) => drop(lock(&self.queue).pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives the shim's next message; `None` when it has closed the socket.
    pub(super) fn receive(&self) -> io::Result<Option<ToMediator>> {
        Ok(message::receive(self.control.as_fd())?.map(|(message, _)| message))
    }

    pub(super) fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use runtime_config::Bytes;

    use super::*;
    use crate::message::{Excess, KillReason};

    #[test]
    fn a_text_of_any_length_arrives() {
        let (shim, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Outbox::new(own).unwrap();
        // Of one byte that takes six in JSON, and of three, which do not fill it to the last.
        for (letter, kept) in [("\u{1}", 4096), ("\u{20ac}", 4095)] {
            let texts = |text: String| {
                let excess = Excess {
                    pid: 1,
                    card: text.clone(),
                    asked: Bytes(1),
                    used: Bytes(1),
                    limit: Bytes(1),
                    in_frames: true,
                };
                let kill = |reason| FromMediator::Kill { pid: 1, pid_in_container: 1, reason, suppressed: None };
                [
                    kill(KillReason::Drift(text.clone())),
                    kill(KillReason::OverMemory(excess.clone())),
                    FromMediator::Denied { excess, suppressed: 0 },
                    FromMediator::EndContainer { text: text.clone() },
                    FromMediator::StillHeld { text: text.clone() },
                    FromMediator::Drift { text: text.clone() },
                    FromMediator::WeightsOnly { card: text.clone() },
                    FromMediator::Log { warning: true, text },
                ]
            };
            for (long, cut) in texts(letter.repeat(100_000)).into_iter().zip(texts(letter.repeat(kept / letter.len())))
            {
                outbox.put(long, None);
                assert!(outbox.flush().unwrap());
                let (reported, _) = message::receive::<FromMediator>(shim.as_fd()).unwrap().unwrap();
                assert!(reported == cut, "{kept}");
            }
        }
    }

    #[test]
    fn a_shim_that_does_not_read_makes_nothing_grow() {
        let (_other, own) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let outbox = Outbox::new(own).unwrap();
        let processes: Vec<Arc<ContainerProcess>> = (0..7).map(ContainerProcess::of_tests).collect();
        for process in processes.iter().cycle().take(10_000) {
            outbox.put(FromMediator::Log { warning: true, text: String::new() }, None);
            outbox.put(FromMediator::Presence { has_processes: process.pid % 2 == 0 }, None);
            let reason = KillReason::Drift(String::new());
            outbox.put(
                FromMediator::Kill { pid: process.pid, pid_in_container: 1, reason, suppressed: Some(0) },
                Some(Arc::clone(process)),
            );
            if lock(&outbox.queue).len() >= MAX_QUEUED {
                outbox.put(FromMediator::EndContainer { text: String::new() }, None);
            }
        }
        assert!(lock(&outbox.queue).len() <= MAX_QUEUED + 2);
        let kills =
            lock(&outbox.queue).iter().filter(|(message, _)| matches!(message, FromMediator::Kill { .. })).count();
        assert_eq!(kills, processes.len(), "each once, and none is left out");
        let is_end = |(message, _): &&(FromMediator, _)| matches!(message, FromMediator::EndContainer { .. });
        assert_eq!(lock(&outbox.queue).iter().filter(is_end).count(), 1, "once, and it is not left out");
        let reported = |(message, _): &(FromMediator, _)| match message {
            FromMediator::Presence { has_processes } => Some(*has_processes),
            _ => None,
        };
        let presence: Vec<bool> = lock(&outbox.queue).iter().filter_map(reported).collect();
        assert_eq!(presence, [(10_000 - 1) % 7 % 2 == 0], "the last only");
    }
}
