//! The single-threaded process that forks one worker per operation.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use sys::{
    Forked,
    frame::{self, FrameError},
};

use super::worker;
use crate::cgroup::Host;

/// The shim's end of a running zygote.
#[derive(Debug)]
pub struct Zygote {
    /// Operations go in here.
    pub socket: OwnedFd,
    /// The zygote, a child of the shim: its exit is the helper's end.
    pub pid: i32,
}

/// Forks the zygote. Call it before the process starts its first thread, and from the thread that
/// lives as long as the process does: the zygote dies with that thread.
pub fn spawn() -> io::Result<Zygote> {
    let shim = nix::unistd::getpid().as_raw();
    Host::remember_mounts();
    let (ours, theirs) = frame::pair()?;
    match sys::fork()? {
        Forked::Parent { pid } => Ok(Zygote { socket: ours, pid }),
        Forked::Child => {
            drop(ours);
            sys::exit_now(match run(&theirs, shim) {
                Ok(()) => 0,
                Err(_) => 1,
            })
        }
    }
}

/// A zygote that was executed: the shim, its parent, is at the other end of stdin. Does not return
/// before the shim is gone.
pub fn serve() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    run(&socket, nix::unistd::getppid().as_raw())
}

/// Serves operations until the shim closes its end.
fn run(socket: &OwnedFd, shim: i32) -> io::Result<()> {
    sys::die_with_parent(shim)?;
    sys::reset_signals()?;
    // Workers are the shim's children, not the zygote's; this is for strays that a library might
    // fork.
    sys::ignore_child_exits();
    sys::clear_listen_environment();
    sys::set_name(c"egpu-helper");
    nix::unistd::chdir("/")?;
    // The shim's stdin is its listening socket. Whoever holds a copy makes a dead shim look alive.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    loop {
        let (operation, mut fds) = match frame::receive(socket.as_fd()) {
            Ok(received) => received,
            Err(FrameError::Closed) => return Ok(()),
            Err(FrameError::Socket(e)) => return Err(e),
            // Not ours; the sender sees its reply socket close.
            Err(_) => continue,
        };
        if fds.is_empty() {
            continue;
        }
        let reply = fds.remove(0);
        // A failed fork closes the reply socket, which the shim reads as a worker that died.
        if let Ok(None) = sys::clone_sibling(false) {
            sys::close_fd_of(socket);
            worker::run(shim, operation, fds, &reply);
        }
    }
}
