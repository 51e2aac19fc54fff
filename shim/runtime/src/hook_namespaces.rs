//! Work in a container's namespaces, but without its filter: createContainer hooks, and the rest of
//! the root file system.

use std::{
    io,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
};

use base::error_chain;
use nix::{
    fcntl::OFlag,
    sched::{CloneFlags, setns},
};
use nix_of_libcontainer::unistd::Pid;
use sys::Forked;

use super::namespaces;

/// Every namespace that a container may have of its own, by its name in `/proc/PID/ns`.
const NAMESPACES: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// Runs `body` in a child that has joined the namespaces of `pid` which differ from the caller's.
/// `body` gets the pid by which the namespace of its children knows that process. The error is
/// its text.
pub(crate) fn run_in_namespaces<E: std::error::Error>(
    pid: Pid,
    body: impl FnOnce(Pid) -> Result<(), E>,
) -> Result<(), String> {
    let joining = Joining::new(pid).map_err(text)?;
    in_child(|| {
        joining.join_mounts().and_then(|()| joining.join()).map_err(text)?;
        body(joining.seen).map_err(text)
    })
}

/// Runs `body` in the namespaces of `pid`, after `prepare`, which has joined the mount namespace
/// only: as the host's root, it reaches what the root of a user namespace need not.
///
/// The caller itself does it, which saves a process, unless there is a user namespace: out of one
/// there is no way back.
pub(crate) fn run_prepared<P, E: std::error::Error>(
    pid: Pid,
    prepare: impl FnOnce() -> Result<P, E>,
    body: impl FnOnce(P) -> Result<(), E>,
) -> Result<(), String> {
    let joining = Joining::new(pid).map_err(text)?;
    let run = || {
        joining.join_mounts().map_err(text)?;
        let prepared = prepare().map_err(text)?;
        joining.join().map_err(text)?;
        body(prepared).map_err(text)
    };
    if joining.others.contains(CloneFlags::CLONE_NEWUSER) {
        return in_child(run);
    }
    let home = Home::of_caller().map_err(text)?;
    let result = run();
    // What the caller did next would be done to the container.
    home.return_to(joining.others).unwrap_or_else(|_| sys::exit_now(1));
    result
}

fn text<E: std::error::Error>(error: E) -> String {
    error_chain(&error)
}

fn in_child(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let (mut reader, mut writer) = io::pipe().map_err(text)?;
    let worker = nix::unistd::getpid().as_raw();
    let child = match sys::fork().map_err(text)? {
        Forked::Parent { pid } => pid,
        Forked::Child => {
            let result = sys::die_with_parent(worker).map_err(text).and_then(|()| run());
            // An empty answer is success; one that cannot be written is reported by the exit code.
            let reported = match &result {
                Ok(()) => Ok(()),
                Err(message) => writer.write_all(message.as_bytes()),
            };
            sys::exit_now(i32::from(result.is_err() || reported.is_err()))
        }
    };
    drop(writer);
    let mut message = String::new();
    let read = reader.read_to_string(&mut message);
    let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).map_err(text)?;
    read.map_err(text)?;
    match status {
        nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
        _ if message.is_empty() => Err(format!("the process that runs them ended: {status:?}")),
        _ => Err(message),
    }
}

/// The caller's own namespaces and root, which may be that of a chroot. The namespaces are its
/// parent's, the shim's.
struct Home {
    shim: OwnedFd,
    root: OwnedFd,
}

impl Home {
    fn of_caller() -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open("/", flags, nix::sys::stat::Mode::empty())?;
        Ok(Self { shim: sys::pidfd_open(nix::unistd::getppid().as_raw())?, root })
    }

    fn return_to(&self, left: CloneFlags) -> io::Result<()> {
        if !left.is_empty() {
            setns(self.shim.as_fd(), left)?;
        }
        nix::unistd::fchdir(&self.root)?;
        Ok(nix::unistd::chroot(".")?)
    }
}

/// A process that is about to join the namespaces of another.
struct Joining {
    process: OwnedFd,
    /// The namespaces that are not its own already.
    others: CloneFlags,
    /// The other's pid, as the namespace of the process's children knows it.
    seen: Pid,
}

impl Joining {
    fn new(pid: Pid) -> io::Result<Self> {
        let inner = inner_pid(pid)?;
        let mut others = CloneFlags::empty();
        for (name, flag) in NAMESPACES {
            if !namespaces::is_shared_with(pid, name)? {
                others |= flag;
            }
        }
        let seen = if others.contains(CloneFlags::CLONE_NEWPID) { inner } else { pid };
        Ok(Self { process: sys::pidfd_open(pid.as_raw())?, others, seen })
    }

    fn join_mounts(&self) -> io::Result<()> {
        self.enter(self.others & CloneFlags::CLONE_NEWNS)
    }

    fn join(&self) -> io::Result<()> {
        self.enter(self.others - CloneFlags::CLONE_NEWNS)?;
        if self.others.contains(CloneFlags::CLONE_NEWUSER) {
            nix::unistd::setgid(0.into())?;
            nix::unistd::setuid(0.into())?;
        }
        Ok(())
    }

    fn enter(&self, namespaces: CloneFlags) -> io::Result<()> {
        if namespaces.is_empty() { Ok(()) } else { Ok(setns(self.process.as_fd(), namespaces)?) }
    }
}

/// The process's pid in its own pid namespace.
fn inner_pid(pid: Pid) -> io::Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = line.and_then(|pids| pids.split_whitespace().next_back()?.parse().ok());
    last.map(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
