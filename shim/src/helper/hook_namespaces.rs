//! createContainer hooks: the container's namespaces, but not its filter.

use std::io;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix::sched::{CloneFlags, setns};
use nix_of_libcontainer::unistd::Pid;

use crate::sys::{self, Forked};

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

/// Runs `body` in a child that has joined the namespaces of `pid` which differ from the caller's. `body` is told the pid by
/// which the namespace of its children knows that process. The error is its text.
pub(crate) fn run_in_namespaces<E: std::error::Error>(
    pid: Pid,
    body: impl FnOnce(Pid) -> Result<(), E>,
) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let (mut reader, mut writer) = io::pipe().map_err(text)?;
    let child = match sys::fork().map_err(text)? {
        Forked::Parent { pid } => pid,
        Forked::Child => {
            let result = join(pid).map_err(text).and_then(|seen| body(seen).map_err(|e| super::worker::chain(&e)));
            // An empty answer is success; one that cannot be written is told by the exit code.
            let told = match &result {
                Ok(()) => Ok(()),
                Err(message) => writer.write_all(message.as_bytes()),
            };
            sys::exit_now(i32::from(result.is_err() || told.is_err()))
        }
    };
    drop(writer);
    let mut message = String::new();
    let read = reader.read_to_string(&mut message);
    let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).map_err(|e| text(e.into()))?;
    read.map_err(text)?;
    match status {
        nix::sys::wait::WaitStatus::Exited(_, 0) => Ok(()),
        _ if message.is_empty() => Err(format!("the process that runs them ended: {status:?}")),
        _ => Err(message),
    }
}

fn join(pid: Pid) -> io::Result<Pid> {
    let seen = inner_pid(pid)?;
    let mut flags = CloneFlags::empty();
    for (name, flag) in NAMESPACES {
        let inode = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/{name}")).map(|file| file.ino());
        if inode("self")? != inode(&pid.to_string())? {
            flags |= flag;
        }
    }
    if !flags.is_empty() {
        let process = sys::pidfd_open(pid.as_raw())?;
        setns(process.as_fd(), flags)?;
    }
    if flags.contains(CloneFlags::CLONE_NEWUSER) {
        nix::unistd::setgid(0.into())?;
        nix::unistd::setuid(0.into())?;
    }
    let same_pids = !flags.contains(CloneFlags::CLONE_NEWPID);
    Ok(if same_pids { pid } else { seen })
}

/// The process's pid in its own pid namespace.
fn inner_pid(pid: Pid) -> io::Result<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = line.and_then(|pids| pids.split_whitespace().next_back()?.parse().ok());
    last.map(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
