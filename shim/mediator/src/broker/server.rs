//! The broker's side: opens files of processes, and checks whose they are.
//!
//! A pid may go to another process at any time. So a pidfd is opened first, and if it shows at the
//! end that its process is there, the number was that process's all the time, and all that was
//! opened by it in between is of that process.

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

use base::cgroup_tree;
use mediator::Number;
use sys::{
    frame::{self, FrameError},
    sync::lock,
};

use super::{
    super::{
        cost::thread_cpu_time,
        pid_namespaces::{numbers, pids},
    },
    BrokerReply, BrokerRequest, ProcFile, to_wire,
};

/// Processor time of a walk through cgroups after which no rest is needed.
///
/// A longer one is followed by a rest of [`REST`] times as long, or a container with thousands of
/// cgroups could keep a processor busy. (All else is less work than the mediator does with it,
/// which it bounds.)
const SHORT_WALK: Duration = Duration::from_millis(1);
/// Processor time of a listing of threads or descriptors without a rest: honest programs have
/// thousands.
const SHORT_LIST: Duration = Duration::from_millis(20);
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Server {
    cgroups: Mutex<Vec<PathBuf>>,
    /// The program of egpu: processes that execute it are not opened, even in the container's pid
    /// namespace.
    ///
    /// A process that is about to become one of the container's has all rights of the host until it
    /// executes the container's program.
    own: Option<Executable>,
    namespaces: Mutex<Vec<Namespace>>,
}

/// A program, by its file's device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Executable(u64, u64);

impl Executable {
    pub(super) fn of_this_process() -> io::Result<Self> {
        Self::of(Path::new("/proc/self"))
    }

    /// Reads it of a process or thread, by its directory in `/proc`.
    fn of(directory: &Path) -> io::Result<Self> {
        fs::metadata(directory.join("exe")).map(|file| Self(file.dev(), file.ino()))
    }
}

/// A pid namespace whose processes may be opened, and those of the namespaces in it.
#[derive(Debug)]
struct Namespace {
    inode: u64,
    /// Open, so that no other has its inode.
    _namespace: OwnedFd,
}

impl Server {
    pub(super) fn new(cgroups: Vec<PathBuf>, own: Option<Executable>) -> Self {
        Self { cgroups: Mutex::new(cgroups), own, namespaces: Mutex::default() }
    }

    /// Adds the cgroups of another container, whose processes are members, too. Those of containers
    /// that have ended go.
    pub(super) fn add_cgroups(&self, added: Vec<PathBuf>) {
        let mut cgroups = lock(&self.cgroups);
        cgroups.retain(|cgroup| cgroup.exists());
        cgroups.extend(added);
    }

    /// Admits a pid namespace: its processes may be opened from now on.
    pub(super) fn admit(&self, namespace: OwnedFd) {
        let file = File::from(namespace);
        // A descriptor without an inode admits nothing.
        let Ok(inode) = file.metadata().map(|metadata| metadata.ino()) else { return };
        let mut namespaces = lock(&self.namespaces);
        if namespaces.iter().all(|known| known.inode != inode) {
            namespaces.push(Namespace { inode, _namespace: file.into() });
        }
    }

    /// Serves requests until the other end is closed.
    pub(super) fn serve(&self, socket: &OwnedFd) {
        loop {
            let answer = match frame::receive_question(socket.as_fd()) {
                Ok(request) => self.answer(request),
                Err(FrameError::Content(_)) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
                Err(_) => return,
            };
            let (reply, opened) = answer.unwrap_or_else(|error| {
                (BrokerReply::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }, Vec::new())
            });
            let descriptors: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
            let sent = match frame::send_value(socket, &reply, &descriptors) {
                // For want of memory or descriptors: an error of this request alone.
                Err(FrameError::Socket(_) | FrameError::Memory(_)) => frame::send_nothing(socket.as_fd()),
                sent => sent,
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: BrokerRequest) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        match request {
            BrokerRequest::Thread { tid, with_pidfd } => self.thread(tid, with_pidfd),
            BrokerRequest::Process { pid } => self.process(pid),
            BrokerRequest::File { pid, thread, file } => self.file(pid, thread, file),
            BrokerRequest::Threads { pid } => {
                let directory = PathBuf::from(format!("/proc/{pid}"));
                self.list(pid, &directory, "task", |_| true)
            }
            BrokerRequest::Descriptors { pid, thread } => {
                let directory = PathBuf::from(format!("/proc/{pid}/task/{thread}"));
                let is_of_file = |path: &Path| fs::read_link(path).is_ok_and(|target| target.is_absolute());
                self.list(pid, &directory, "fd", is_of_file)
            }
            BrokerRequest::Members => Ok((BrokerReply::Numbers(self.members()?), Vec::new())),
        }
    }

    fn thread(&self, tid: i32, with_pidfd: bool) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        let status = fs::read_to_string(format!("/proc/{tid}/status"))?;
        let (pid, _) = pids(&status).ok_or(io::ErrorKind::InvalidData)?;
        let process = sys::pidfd_open(pid)?;
        let pidfd = if with_pidfd { thread_pidfd(tid)? } else { None };
        // As a thread of the process it is in the process's namespaces, even if it has taken the
        // number of another thread.
        let directory = PathBuf::from(format!("/proc/{pid}/task/{tid}"));
        let numbers = self.numbers(&directory)?;
        let memory = OpenOptions::new().read(true).write(true).open(directory.join("mem"))?;
        self.refuse_own(&directory)?;
        require_there(&process)?;
        pidfd.as_ref().map_or(Ok(()), require_there)?;
        let opened = [process, memory.into()].into_iter().chain(pidfd);
        Ok((BrokerReply::Thread { pid, numbers: to_wire(&numbers) }, opened.collect()))
    }

    fn process(&self, pid: i32) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        let process = sys::pidfd_open(pid)?;
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let numbers = self.numbers(&directory).and_then(|numbers| self.refuse_own(&directory).map(|()| numbers));
        // A process that is gone meanwhile is reported as gone, whatever else failed.
        require_there(&process)?;
        Ok((BrokerReply::Process { numbers: to_wire(&numbers?) }, vec![process]))
    }

    fn file(&self, pid: i32, thread: i32, file: ProcFile) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        let process = sys::pidfd_open(pid)?;
        self.numbers(Path::new(&format!("/proc/{pid}")))?;
        let directory = PathBuf::from(format!("/proc/{pid}/task/{thread}"));
        let of_thread = |name: &str| directory.join(name);
        let opened = match file {
            ProcFile::Stat => File::open(of_thread("stat"))?,
            ProcFile::Maps => File::open(of_thread("maps"))?,
            ProcFile::Memory => OpenOptions::new().read(true).write(true).open(of_thread("mem"))?,
        };
        self.refuse_own(&directory)?;
        require_there(&process)?;
        Ok((BrokerReply::File, vec![opened.into()]))
    }

    /// Reads the pids of a process or thread that may be opened: to the mediator, there are no
    /// others.
    fn numbers(&self, directory: &Path) -> io::Result<Vec<Number>> {
        let status = fs::read_to_string(directory.join("status"))?;
        let (_, inwards) = pids(&status).ok_or(io::ErrorKind::InvalidData)?;
        let numbers = numbers(directory, &inwards)?;
        let namespaces = lock(&self.namespaces);
        let is_admitted = |number: &Number| namespaces.iter().any(|known| known.inode == number.namespace);
        if numbers.iter().any(is_admitted) { Ok(numbers) } else { Err(gone()) }
    }

    /// Lists the numbers in a directory of a process or thread.
    ///
    /// No directory is opened for the mediator: from one of the host's `/proc`, any file of the
    /// host can be named, also by the container, to which it could be passed.
    fn list(
        &self,
        pid: i32,
        directory: &Path,
        name: &str,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> io::Result<(BrokerReply, Vec<OwnedFd>)> {
        let process = sys::pidfd_open(pid)?;
        self.numbers(directory)?;
        let began = thread_cpu_time();
        // A directory of a thread that ends meanwhile has no more entries.
        let entries = fs::read_dir(directory.join(name))?.filter_map(Result::ok);
        let wanted = entries.filter(|entry| is_wanted(&entry.path()));
        let numbers = wanted.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        self.refuse_own(directory)?;
        require_there(&process)?;
        rest(began, SHORT_LIST);
        Ok((BrokerReply::Numbers(numbers), Vec::new()))
    }

    /// Refuses a process that executes egpu's program. Called after its files were opened: memory
    /// from before it executed the container's program is no process's any more.
    fn refuse_own(&self, directory: &Path) -> io::Result<()> {
        let Some(own) = self.own else { return Ok(()) };
        match Executable::of(directory) {
            Ok(program) if program == own => Err(gone()),
            Ok(_) => Ok(()),
            // It has left its memory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn members(&self) -> io::Result<Vec<i32>> {
        let began = thread_cpu_time();
        let mut pids = Vec::new();
        let cgroups = lock(&self.cgroups).clone();
        for cgroup in &cgroups {
            pids.extend(cgroup_tree::pids(cgroup)?.into_iter().flatten().filter(|pid| *pid > 0));
        }
        rest(began, SHORT_WALK);
        Ok(pids)
    }
}

/// Rests after work since `began`, if that took more than `little`.
fn rest(began: Duration, little: Duration) {
    let took = thread_cpu_time().saturating_sub(began);
    if took > little {
        thread::sleep((took * REST).min(LONGEST_REST));
    }
}

/// Opens the pidfd of a thread; `None`: the kernel has none of threads.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn requests(pid: i32) -> [BrokerRequest; 7] {
        let file = |file| BrokerRequest::File { pid, thread: pid, file };
        [
            BrokerRequest::Thread { tid: pid, with_pidfd: true },
            BrokerRequest::Process { pid },
            file(ProcFile::Stat),
            file(ProcFile::Maps),
            file(ProcFile::Memory),
            BrokerRequest::Threads { pid },
            BrokerRequest::Descriptors { pid, thread: pid },
        ]
    }

    #[test]
    fn what_executes_our_own_program_is_not_opened_and_no_directory_of_anybody_else() {
        let server = Server::new(Vec::new(), Some(Executable::of_this_process().unwrap()));
        server.admit(File::open("/proc/self/ns/pid").unwrap().into());
        let own = std::process::id().cast_signed();
        for request in requests(own) {
            let refused = server.answer(request).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ESRCH), "{request:?}");
        }
        let mut other = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        for request in requests(other.id().cast_signed()) {
            let (_, opened) = server.answer(request).unwrap();
            for file in opened {
                assert!(!File::from(file).metadata().unwrap().is_dir(), "{request:?}");
            }
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
