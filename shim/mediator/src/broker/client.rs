//! The mediator's side of the broker.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use mediator::{Number, Numbers};
use nix::sys::socket::{Shutdown, shutdown};
use sys::{
    frame::{self, FrameError},
    sync::{Monitor, lock},
};

use super::{BrokerReply, BrokerRequest, ProcFile};

/// Client of the broker: opens files of the container's processes, by their pids.
///
/// Requests that a process can stall (`/proc/PID/mem` of one that executes a program) have
/// [`super::SOCKETS`] sockets. Beyond, one waits for another; all of them are for the same
/// container.
#[derive(Debug)]
pub(crate) struct Broker {
    pid: i32,
    idle: Monitor<Vec<OwnedFd>>,
    /// The socket for requests that no process can stall.
    prompt: Mutex<OwnedFd>,
    /// Another descriptor of that socket, to be watched: the broker's end hangs it up.
    end: OwnedFd,
    /// No request is made any more.
    is_gone: AtomicBool,
}

/// Open files of a thread of the container.
#[derive(Debug)]
pub(crate) struct OpenedThread {
    /// The pid of its process.
    pub(crate) pid: i32,
    /// The pidfd of its process.
    pub(crate) process: OwnedFd,
    pub(crate) numbers: Numbers,
    pub(crate) memory: File,
    /// The pidfd of the thread itself.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Broker {
    pub(super) fn new(pid: i32, mut sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let prompt = sockets.pop().ok_or(io::ErrorKind::InvalidInput)?;
        let (end, is_gone) = (prompt.try_clone()?, AtomicBool::new(false));
        Ok(Self { pid, idle: Monitor::new(sockets), prompt: Mutex::new(prompt), end, is_gone })
    }

    /// Returns its process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until it has dropped its privileges and serves, or has said why it cannot.
    pub(super) fn wait_until_ready(&self) -> io::Result<()> {
        let (packed, _) = frame::receive(lock(&self.prompt).as_fd()).map_err(io::Error::other)?;
        match frame::unpack(packed).map_err(io::Error::other)? {
            BrokerReply::Failed { errno } => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }

    /// Returns what is hung up once the broker has ended, or is of no use any more.
    pub(crate) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Runs a broker in threads of this process, for its own pid namespace.
    #[cfg(test)]
    pub(crate) fn of_tests(cgroups: Vec<std::path::PathBuf>) -> std::sync::Arc<Self> {
        Self::of_namespace("/proc/self/ns/pid", cgroups)
    }

    /// Runs a broker for another pid namespace.
    #[cfg(test)]
    pub(crate) fn of_namespace(path: &str, cgroups: Vec<std::path::PathBuf>) -> std::sync::Arc<Self> {
        let server = std::sync::Arc::new(super::Server::new(cgroups, None));
        server.admit(File::open(path).unwrap().into());
        let sockets = (0..=super::SOCKETS).map(|_| {
            let (ours, theirs) = frame::pair().unwrap();
            let server = std::sync::Arc::clone(&server);
            std::thread::spawn(move || server.serve(&theirs));
            ours
        });
        std::sync::Arc::new(Self::new(0, sockets.collect()).unwrap())
    }

    /// Opens a thread by its number, of any process. `with_pidfd`: the kernel has pidfds of
    /// threads.
    pub(crate) fn thread(&self, tid: i32, with_pidfd: bool) -> io::Result<OpenedThread> {
        match self.ask(BrokerRequest::Thread { tid, with_pidfd })? {
            (BrokerReply::Thread { pid, numbers }, opened) => {
                let mut opened = opened.into_iter();
                let (process, memory) = opened.next().zip(opened.next()).ok_or_else(not_understood)?;
                let (numbers, memory) = (read(&numbers), memory.into());
                Ok(OpenedThread { pid, process, numbers, memory, pidfd: opened.next() })
            }
            _ => Err(not_understood()),
        }
    }

    /// Opens a process's pidfd, and reads its pids. No process can stall that.
    pub(crate) fn process(&self, pid: i32) -> io::Result<(OwnedFd, Numbers)> {
        match self.ask_on(&lock(&self.prompt), BrokerRequest::Process { pid })? {
            (BrokerReply::Process { numbers }, mut opened) => {
                Ok((opened.pop().ok_or_else(not_understood)?, read(&numbers)))
            }
            _ => Err(not_understood()),
        }
    }

    /// Opens a file of a process's thread.
    pub(crate) fn file(&self, pid: i32, thread: i32, file: ProcFile) -> io::Result<File> {
        let (_, mut opened) = self.ask(BrokerRequest::File { pid, thread, file })?;
        opened.pop().map(File::from).ok_or_else(not_understood)
    }

    /// Lists the processes in the container's cgroups, in no order. A cgroup that does not exist
    /// has none.
    pub(crate) fn members(&self) -> io::Result<Vec<i32>> {
        self.list(BrokerRequest::Members)
    }

    /// Lists a process's threads, in no order.
    pub(crate) fn threads(&self, pid: i32) -> io::Result<Vec<i32>> {
        self.list(BrokerRequest::Threads { pid })
    }

    /// Lists the descriptors of a thread that may be of the driver, in no order.
    pub(crate) fn descriptors(&self, pid: i32, thread: i32) -> io::Result<Vec<i32>> {
        self.list(BrokerRequest::Descriptors { pid, thread })
    }

    fn list(&self, request: BrokerRequest) -> io::Result<Vec<i32>> {
        match self.ask(request)? {
            (BrokerReply::Numbers(numbers), _) => Ok(numbers),
            _ => Err(not_understood()),
        }
    }

    fn ask(&self, request: BrokerRequest) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        let Some(socket) = self.idle.wait_while(|idle| idle.is_empty()).pop() else { return Err(not_understood()) };
        let answer = self.ask_on(&socket, request);
        self.idle.update(|idle| idle.push(socket));
        answer
    }

    fn ask_on(&self, socket: &OwnedFd, request: BrokerRequest) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = frame::send_question(socket.as_fd(), &request);
        // The request was not sent, and no reply comes.
        if let Err(FrameError::Socket(error)) = sent {
            return Err(error);
        }
        let answer = || {
            sent?;
            let (packed, opened) = frame::receive(socket.as_fd())?;
            Ok((frame::unpack(packed)?, opened))
        };
        match answer() {
            Ok((BrokerReply::Failed { errno }, _)) => Err(io::Error::from_raw_os_error(errno)),
            Ok(answered) => Ok(answered),
            // An error of this request, whose reply has come: no memory, or no room for another
            // descriptor.
            Err(FrameError::Memory(error)) => Err(error),
            Err(FrameError::Foreign(_)) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            // A reply that comes late might be taken for that of the next request.
            Err(error @ (FrameError::Closed | FrameError::Socket(_) | FrameError::Content(_))) => {
                // No process of the container can be reached any more. The main thread sees that,
                // frees what the container has, and ends the mediator.
                self.is_gone.store(true, Ordering::Relaxed);
                let _ = shutdown(self.end.as_raw_fd(), Shutdown::Both);
                Err(io::Error::new(io::ErrorKind::BrokenPipe, error))
            }
        }
    }
}

fn read(numbers: &[(u64, i32)]) -> Numbers {
    Numbers::new(numbers.iter().map(|&(namespace, pid)| Number { namespace, pid }).collect())
}

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the mediator's broker sent an unexpected reply")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_cannot_be_sent_is_an_error_of_its_request_alone() {
        let (ours, theirs) = frame::pair().unwrap();
        let (idle, _) = frame::pair().unwrap();
        let broker = Broker::new(0, vec![ours, idle]).unwrap();
        let server = std::thread::spawn(move || {
            let _: BrokerRequest = frame::receive_question(theirs.as_fd()).unwrap();
            frame::send_nothing(theirs.as_fd()).unwrap();
            let _: BrokerRequest = frame::receive_question(theirs.as_fd()).unwrap();
            frame::send_value(&theirs, &BrokerReply::Numbers(vec![7]), &[]).unwrap();
        });
        assert_eq!(broker.members().unwrap_err().raw_os_error(), Some(libc::EMFILE));
        assert_eq!(broker.members().unwrap(), [7]);
        server.join().unwrap();
        // It is gone now.
        assert_eq!(broker.members().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(broker.members().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
