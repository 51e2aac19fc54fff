//! The broker: opens files of the container's processes for their mediator, which can name no process.
//!
//! A mediator needs its callers' memory, their descriptors, what they have mapped. To whoever may open that of any process, the host belongs; and the
//! mediator reads what hostile programs wrote. So a process of its own has the right instead, which the mediator can only ask ([`Broker`]). It opens nothing but what
//! the mediator needs, and only of processes in pid namespaces of the container's ([`server`]): in those that the helper has named, and below them.
//!
//! ```text
//!  helper ── listeners, pid namespaces ──> broker ── listeners ──> mediator
//!                                             ^── asks, over sockets ─┘
//! ```
//!
//! It is forked before the mediator opens any file of the driver's, and ends with it.

mod client;
mod server;

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
};

use nvidia_glue::mediate::Number;
use serde::{Deserialize, Serialize};

pub(super) use self::client::{Broker, OpenedThread};
use self::server::Server;
use super::privileges::{self, Role};
use crate::{
    helper::frame::{self, FrameError},
    sys::{self, Forked},
};

/// So many questions that a process of the container's may hold up are answered at once.
const SOCKETS: usize = 4;
const STACK: usize = 128 << 10;

/// Question of a mediator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum BrokerRequest {
    /// Open a thread: its process's pidfd, its memory, and its own pidfd if `with_pidfd` and the kernel has such (Linux 6.9).
    Thread { tid: i32, with_pidfd: bool },
    /// Open a process's pidfd.
    Process { pid: i32 },
    /// Open a file of a process's thread.
    File { pid: i32, thread: i32, file: ProcFile },
    /// List a process's threads.
    Threads { pid: i32 },
    /// List a thread's descriptors that may be of the driver: links that name a file, not a socket or the like.
    Descriptors { pid: i32, thread: i32 },
    /// List the processes in the container's cgroups.
    Members,
}

/// A file of a thread below `/proc/PID/task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProcFile {
    /// `stat`.
    Stat,
    /// `maps`.
    Maps,
    /// `mem`, to be read and written.
    Memory,
}

/// Answer; descriptors are beside it.
#[derive(Debug, Serialize, Deserialize)]
enum BrokerReply {
    /// The process, and its numbers: namespace and pid, from the host's inwards.
    Thread {
        pid: i32,
        numbers: Vec<(u64, i32)>,
    },
    /// As above.
    Process {
        numbers: Vec<(u64, i32)>,
    },
    File,
    /// Pids, thread ids or descriptors, in no order.
    Numbers(Vec<i32>),
    /// None of the container's processes, or the kernel's errno.
    Failed {
        errno: i32,
    },
}

fn to_wire(numbers: &[Number]) -> Vec<(u64, i32)> {
    numbers.iter().map(|number| (number.namespace, number.pid)).collect()
}

/// Forks the broker of the calling process, which must have one thread. `intake` is where the helper sends listeners and pid namespaces.
/// Returns where the mediator gets the listeners.
pub(super) fn start(intake: &OwnedFd, cgroups: Vec<PathBuf>) -> io::Result<(Broker, OwnedFd)> {
    let mediator = nix::unistd::getpid().as_raw();
    let (forward, forwarded) = frame::pair()?;
    let pairs = (0..=SOCKETS).map(|_| frame::pair()).collect::<io::Result<Vec<_>>>()?;
    let (ours, theirs): (Vec<OwnedFd>, Vec<OwnedFd>) = pairs.into_iter().unzip();
    if let Forked::Child = sys::fork()? {
        let kept: Vec<i32> = theirs.iter().chain([intake, &forward]).map(AsRawFd::as_raw_fd).collect();
        // A copy of a file of anybody else's would keep it open.
        let code = sys::close_all_but(&kept).map_or(1, |()| run(mediator, intake, forward, theirs, cgroups));
        sys::exit_now(code);
    }
    let broker = Broker::new(ours)?;
    // It is there, and has given up what it does not need.
    broker.members()?;
    Ok((broker, forwarded))
}

/// Serves until the mediator ends. The exit code.
fn run(mediator: i32, intake: &OwnedFd, forward: OwnedFd, sockets: Vec<OwnedFd>, cgroups: Vec<PathBuf>) -> i32 {
    sys::set_name(c"egpu-broker");
    if privileges::drop_privileges(Role::Broker { mediator }).is_err() {
        return 1;
    }
    let Ok(own) = server::Executable::of_this_process() else { return 1 };
    let server = Arc::new(Server::new(cgroups, Some(own)));
    let mut threads = Vec::new();
    for socket in sockets {
        let server = Arc::clone(&server);
        let serve = move || {
            server.serve(&socket);
            sys::exit_now(0)
        };
        match thread::Builder::new().name("opener".into()).stack_size(STACK).spawn(serve) {
            Ok(thread) => threads.push(thread),
            Err(_) => return 1,
        }
    }
    forward_intake(&server, intake, forward);
    for thread in threads {
        // None returns.
        let _: Result<(), _> = thread.join();
    }
    0
}

/// Notes pid namespaces, and hands everything else on, until nobody can send any more.
fn forward_intake(server: &Server, intake: &OwnedFd, forward: OwnedFd) {
    use std::os::fd::AsFd;
    loop {
        match frame::receive(intake.as_fd()) {
            Ok((fd, _)) if sys::is_pid_namespace(fd.as_fd()) => server.admit(fd),
            Ok((listener, _)) if frame::send(forward.as_fd(), &listener, &[]).is_ok() => {}
            // Not ours.
            Err(FrameError::Foreign(_)) => {}
            // The mediator sees its own end close.
            _ => return drop(forward),
        }
    }
}
