//! The broker's side: what is opened, of whom.
//!
//! A number may go to another process at any time. So a pidfd is opened first, and if that says at the end that its process is there, the number was that process's
//! all the time, and whatever was opened by it in between is of that process.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use nvidia_glue::{cgroup_tree, mediate::Number};

use super::{
    super::pid_namespaces::{numbers, pids},
    ProcFile, Reply, Request, plain,
};
use crate::{helper::frame, sync::lock, sys};

/// A walk through cgroups that took more than this is followed by a rest of so many times as long, or a container with thousands of them could keep a
/// processor busy with it. (All else is less work than what the mediator does with it, which it bounds.)
const SHORT_WALK: Duration = Duration::from_millis(1);
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Server {
    cgroups: Vec<PathBuf>,
    namespaces: Mutex<Vec<Namespace>>,
}

/// A pid namespace whose processes may be opened, and those of the ones in it.
#[derive(Debug)]
struct Namespace {
    inode: u64,
    /// As long as it is open, no other has its inode.
    _namespace: OwnedFd,
}

impl Server {
    pub(super) fn new(cgroups: Vec<PathBuf>) -> Self {
        Self { cgroups, namespaces: Mutex::default() }
    }

    /// From now on, processes in this pid namespace may be opened.
    pub(super) fn admit(&self, namespace: OwnedFd) {
        let file = File::from(namespace);
        // One that does not say which it is admits nobody.
        let Ok(inode) = file.metadata().map(|metadata| metadata.ino()) else { return };
        let mut namespaces = lock(&self.namespaces);
        if namespaces.iter().all(|known| known.inode != inode) {
            namespaces.push(Namespace { inode, _namespace: file.into() });
        }
    }

    /// Answers until the other end is closed.
    pub(super) fn serve(&self, socket: &OwnedFd) {
        while let Ok((packed, _)) = frame::receive(socket.as_fd()) {
            let answer = match frame::unpack(packed) {
                Ok(request) => self.answer(request),
                Err(_) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            };
            let (reply, opened) = answer.unwrap_or_else(|error| {
                (Reply::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }, Vec::new())
            });
            let beside: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
            if frame::send_value(socket, &reply, &beside).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        match request {
            Request::Thread { tid, with_pidfd } => self.thread(tid, with_pidfd),
            Request::Process { pid } => self.process(pid),
            Request::File { pid, thread, file } => self.file(pid, thread, file),
            Request::Members => Ok((Reply::Members(self.members()?), Vec::new())),
        }
    }

    fn thread(&self, tid: i32, with_pidfd: bool) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
        let (pid, _) = pids(&status).ok_or(io::ErrorKind::InvalidData)?;
        let process = sys::pidfd_open(pid)?;
        let pidfd = if with_pidfd { thread_pidfd(tid)? } else { None };
        // As it is one of the process's threads, it is in the process's namespaces, also where it has taken the number of another one.
        let directory = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let numbers = self.numbers(&directory)?;
        let memory = OpenOptions::new().read(true).write(true).open(directory.join("mem"))?;
        require_there(&process)?;
        pidfd.as_ref().map_or(Ok(()), require_there)?;
        let opened = [process, memory.into()].into_iter().chain(pidfd);
        Ok((Reply::Thread { pid, numbers: plain(&numbers) }, opened.collect()))
    }

    fn process(&self, pid: i32) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let process = sys::pidfd_open(pid)?;
        let numbers = self.numbers(Path::new(&format!("/proc/{pid}")));
        // Who is gone meanwhile is just that, whatever else was said.
        require_there(&process)?;
        Ok((Reply::Process { numbers: plain(&numbers?) }, vec![process]))
    }

    fn file(&self, pid: i32, thread: i32, file: ProcFile) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let process = sys::pidfd_open(pid)?;
        self.numbers(Path::new(&format!("/proc/{pid}")))?;
        let of_thread = |name: &str| format!("/proc/{pid}/task/{thread}/{name}");
        let opened = match file {
            ProcFile::Stat => File::open(of_thread("stat"))?,
            ProcFile::Maps => File::open(of_thread("maps"))?,
            ProcFile::Memory => OpenOptions::new().read(true).write(true).open(of_thread("mem"))?,
            ProcFile::Descriptors => File::open(of_thread("fd"))?,
            ProcFile::Threads => File::open(format!("/proc/{pid}/task"))?,
        };
        require_there(&process)?;
        Ok((Reply::File, vec![opened.into()]))
    }

    /// Of a process or thread that may be opened: to the mediator, there are no others.
    fn numbers(&self, directory: &Path) -> io::Result<Vec<Number>> {
        let status = fs::read_to_string(directory.join("status"))?;
        let (_, inwards) = pids(&status).ok_or(io::ErrorKind::InvalidData)?;
        let numbers = numbers(directory, &inwards)?;
        let namespaces = lock(&self.namespaces);
        let is_admitted = |number: &Number| namespaces.iter().any(|known| known.inode == number.namespace);
        if numbers.iter().any(is_admitted) { Ok(numbers) } else { Err(gone()) }
    }

    fn members(&self) -> io::Result<Vec<i32>> {
        let began = worked();
        let mut pids = Vec::new();
        for cgroup in &self.cgroups {
            pids.extend(cgroup_tree::pids(cgroup)?.into_iter().flatten().filter(|pid| *pid > 0));
        }
        let took = worked().saturating_sub(began);
        if took > SHORT_WALK {
            thread::sleep((took * REST).min(LONGEST_REST));
        }
        Ok(pids)
    }
}

/// `None`: the kernel has no pidfds of threads.
fn thread_pidfd(tid: i32) -> io::Result<Option<OwnedFd>> {
    match sys::pidfd_open_thread(tid) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

fn require_there(pidfd: &OwnedFd) -> io::Result<()> {
    if sys::is_there(pidfd.as_fd()) { Ok(()) } else { Err(gone()) }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// Time that this thread has had of a processor.
fn worked() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
