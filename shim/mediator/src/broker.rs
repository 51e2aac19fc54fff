//! The broker: a process that opens files of the container's processes for their mediator, which
//! can name no process.
//!
//! A mediator needs its callers' memory, their descriptors, their mappings. A process that may open
//! those of any process owns the host; and the mediator reads what hostile programs wrote. So a
//! process of its own has that right instead, and the mediator can only ask it ([`Broker`]). It
//! opens nothing but what the mediator needs, and only of processes in the pid namespaces that the
//! helper has named, and below them ([`server`]).
//!
//! ```text
//!  helper ── listeners, pid namespaces ──> broker ── listeners ──> mediator
//!  shim ── cgroups of further containers ──^
//!                                             ^── requests, over sockets ─┘
//! ```
//!
//! It is forked before the mediator opens any file of the driver's, and ends with it.

mod client;
mod server;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
};

use mediator::Number;
use serde::{Deserialize, Serialize};
use sys::{
    Forked,
    frame::{self, FrameError},
};

pub(super) use self::client::{Broker, OpenedThread};
use self::server::Server;
use super::privileges::{self, Role};

/// Requests that are answered at once although a process of the container may stall them.
const SOCKETS: usize = 4;
const STACK: usize = 128 << 10;

/// Request of a mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum BrokerRequest {
    /// Open a thread: its process's pidfd, its memory, and its own pidfd if `with_pidfd` and the
    /// kernel has such (Linux 6.9).
    Thread { tid: i32, with_pidfd: bool },
    /// Open a process's pidfd.
    Process { pid: i32 },
    /// Open a file of a process's thread.
    File { pid: i32, thread: i32, file: ProcFile },
    /// List a process's threads.
    Threads { pid: i32 },
    /// List a thread's descriptors that may be of the driver: links that name a file, not a socket
    /// or the like.
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

/// Reply; descriptors come with it.
#[derive(Debug, Serialize, Deserialize)]
enum BrokerReply {
    /// The process, and its pids: namespace and pid, from the host's inwards.
    Thread {
        pid: i32,
        numbers: Vec<(u64, i32)>,
    },
    /// The pids of the process.
    Process {
        numbers: Vec<(u64, i32)>,
    },
    File,
    /// Pids, thread ids or descriptors, in no order.
    Numbers(Vec<i32>),
    /// Error: not a process of the container, or the errno of the kernel.
    Failed {
        errno: i32,
    },
}

fn to_wire(numbers: &[Number]) -> Vec<(u64, i32)> {
    numbers.iter().map(|number| (number.namespace, number.pid)).collect()
}

/// Forks the broker of the calling process, which must have one thread.
///
/// `intake` is where the helper sends listeners and pid namespaces. Returns the socket on which the
/// mediator gets the listeners.
///
/// `lingering` is what takes the kernel milliseconds to close. The broker has it open, too, to its
/// end, for which nobody waits, as for the mediator's.
pub(super) fn start(intake: &OwnedFd, cgroups: Vec<PathBuf>, lingering: &impl AsFd) -> io::Result<(Broker, OwnedFd)> {
    let mediator = nix::unistd::getpid().as_raw();
    let (forward, forwarded) = frame::pair()?;
    let pairs = (0..=SOCKETS).map(|_| frame::pair()).collect::<io::Result<Vec<_>>>()?;
    let (ours, theirs): (Vec<OwnedFd>, Vec<OwnedFd>) = pairs.into_iter().unzip();
    let Forked::Parent { pid } = sys::fork()? else {
        let mut kept: Vec<i32> = theirs.iter().chain([intake, &forward]).map(AsRawFd::as_raw_fd).collect();
        kept.push(lingering.as_fd().as_raw_fd());
        // A copy of a file of another process would keep it open.
        let code = sys::close_all_but(&kept).map_or(1, |()| run(mediator, intake, forward, theirs, cgroups));
        sys::exit_now(code);
    };
    // A broker that cannot begin closes its own, and nobody else has them.
    drop((theirs, forward));
    let broker = Broker::new(pid, ours)?;
    broker.wait_until_ready()?;
    Ok((broker, forwarded))
}

/// Serves until the mediator ends. Returns the exit code.
fn run(mediator: i32, intake: &OwnedFd, forward: OwnedFd, sockets: Vec<OwnedFd>, cgroups: Vec<PathBuf>) -> i32 {
    sys::set_name(c"egpu-broker");
    let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
    let begun = begin(mediator, &sockets, cgroups);
    let hello = match &begun {
        Ok(_) => BrokerReply::Numbers(Vec::new()),
        Err(error) => BrokerReply::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
    };
    if sockets.last().is_none_or(|prompt| frame::send_value(prompt, &hello, &[]).is_err()) {
        return 1;
    }
    let Ok(server) = begun else { return 1 };
    // The mediator hears of its broker's end, and nobody waits for a listener that is lost.
    if forward_intake(&server, intake, &forward).is_err() {
        return 1;
    }
    // The mediator sees its own end close.
    drop(forward);
    // Until a thread ends the process.
    loop {
        thread::park();
    }
}

/// Drops privileges, and starts the threads that serve.
fn begin(mediator: i32, sockets: &[Arc<OwnedFd>], cgroups: Vec<PathBuf>) -> io::Result<Arc<Server>> {
    privileges::drop_privileges(Role::Broker { mediator }).map_err(io::Error::other)?;
    // Its threads allocate little; an arena for each is what takes them longest to begin.
    sys::share_one_arena();
    let server = Arc::new(Server::new(cgroups, Some(server::Executable::of_this_process()?)));
    for socket in sockets {
        let (server, socket) = (Arc::clone(&server), Arc::clone(socket));
        let serve = move || {
            server.serve(&socket);
            sys::exit_now(0)
        };
        thread::Builder::new().name("opener".into()).stack_size(STACK).spawn(serve)?;
    }
    Ok(server)
}

/// Returns whether a descriptor is of a packed value, and not of a listener.
fn is_packed(fd: &OwnedFd) -> bool {
    fd.try_clone().and_then(|fd| File::from(fd).metadata()).is_ok_and(|metadata| metadata.is_file())
}

/// Admits pid namespaces and cgroups, and forwards everything else, until the sending end is
/// closed. Fails when something is lost.
fn forward_intake(server: &Server, intake: &OwnedFd, forward: &OwnedFd) -> Result<(), FrameError> {
    loop {
        match frame::receive(intake.as_fd()) {
            Ok((fd, _)) if sys::namespace_kind(fd.as_fd()) == Some(libc::CLONE_NEWPID) => server.admit(fd),
            Ok((fd, _)) if is_packed(&fd) => server.add_cgroups(frame::unpack(fd)?),
            Ok((listener, _)) => frame::send(forward.as_fd(), &listener, &[])?,
            // Sent by another process.
            Err(FrameError::Foreign(_)) => {}
            Err(FrameError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;

    #[test]
    fn whatever_is_lost_on_the_way_to_the_mediator_is_an_error() {
        let (forward, forwarded) = frame::pair().unwrap();
        let after = |sent: OwnedFd| {
            let (send, intake) = frame::pair().unwrap();
            frame::send(send.as_fd(), &sent, &[]).unwrap();
            drop(send);
            forward_intake(&Server::new(Vec::new(), None), &intake, &forward)
        };
        // A socket stands for a listener.
        let listener = || frame::pair().unwrap().0;
        after(listener()).unwrap();
        frame::receive(forwarded.as_fd()).unwrap();
        after(frame::pack(&["/a/cgroup"]).unwrap()).unwrap();
        let other = after(frame::pack(&"no cgroups").unwrap());
        assert!(matches!(other, Err(FrameError::Content(_))), "{other:?}");
        // Closing it would not do: a process that another test forks has it open for a while.
        shutdown(forwarded.as_raw_fd(), Shutdown::Both).unwrap();
        let unheard = after(listener());
        assert!(matches!(unheard, Err(FrameError::Closed)), "{unheard:?}");
    }
}
