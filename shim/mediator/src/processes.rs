//! Processes of the container: those that have made a driver call, and the questions that
//! reconciliation asks about all of them.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use mediator::{AddressSpace, Numbers, Pid, Processes, UvmMapping};
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    timerfd::TimerFd,
};
use rustix::{io::Errno, process::Pid as ThreadId, thread::sched_getaffinity};
use sys::sync::lock;

use super::{
    address_space::{self, ProcessMemory},
    broker::Broker,
    proc_read_watchdog::{ProcReadWatchdog, StalledReads},
};

/// A process of the container.
#[derive(Debug)]
pub(super) struct ContainerProcess {
    pub(super) pid: i32,
    pub(super) numbers: Numbers,
    pub(super) pidfd: OwnedFd,
    /// Its key in the epoll set; unlike a pid, never used twice.
    token: u64,
}

impl ContainerProcess {
    #[cfg(test)]
    pub(super) fn of_tests(pid: i32) -> Arc<Self> {
        let pidfd = sys::pidfd_open(nix::unistd::getpid().as_raw()).unwrap();
        Arc::new(Self { pid, numbers: Numbers::new(Vec::new()), pidfd, token: 0 })
    }

    pub(super) fn pid_in_container(&self) -> i32 {
        self.numbers.in_container()
    }

    /// Returns whether both are one process.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.pid, self.token) == (other.pid, other.token)
    }
}

/// The processes of the container that have made a driver call.
#[derive(Debug)]
pub(super) struct ProcessTable {
    broker: Arc<Broker>,
    /// Readable when one of the processes has ended.
    ended: Epoll,
    next_token: AtomicU64,
    known: Mutex<HashMap<i32, Arc<ContainerProcess>>>,
    /// Reads of files of `/proc` that a process may hold up.
    watchdog: Arc<ProcReadWatchdog>,
}

impl ProcessTable {
    pub(super) fn new(broker: Arc<Broker>) -> io::Result<Self> {
        let ended = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let watchdog = Arc::new(ProcReadWatchdog::new()?);
        Ok(Self { broker, ended, next_token: AtomicU64::new(0), known: Mutex::default(), watchdog })
    }

    /// Returns the broker, which opens processes and their threads.
    pub(super) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Timer that is readable when [`ProcessTable::stalled_reads`] is to be called.
    pub(super) fn watchdog_timer(&self) -> &TimerFd {
        self.watchdog.timer()
    }

    /// Counts a tick of [`ProcessTable::watchdog_timer`].
    ///
    /// Returns the processes of the container that have stalled a read for too long by now, and
    /// whether one, whoever it is, has done so for as long once more.
    pub(super) fn stalled_reads(&self, is_paused: bool) -> (Vec<Arc<ContainerProcess>>, bool) {
        let StalledReads { pids, is_repeated } = self.watchdog.tick(is_paused);
        (pids.into_iter().filter_map(|pid| self.process(Pid(pid))).collect(), is_repeated)
    }

    /// Returns a process of the container, registered or not.
    pub(super) fn process(&self, pid: Pid) -> Option<Arc<ContainerProcess>> {
        self.find(pid).or_else(|| self.unknown_process(pid.0))
    }

    /// Returns a process of the container that has made no driver call.
    fn unknown_process(&self, pid: i32) -> Option<Arc<ContainerProcess>> {
        let (pidfd, numbers) = self.broker.process(pid).ok()?;
        let pids = self.broker.members().ok()?;
        // The number was the container's after the pidfd was opened, and is still the same
        // process's: so the process is of the container.
        let is_own = pids.contains(&pid) && sys::is_there(pidfd.as_fd());
        is_own.then(|| Arc::new(ContainerProcess { pid, numbers, pidfd, token: u64::MAX }))
    }

    /// Registers the process that has this pid and pidfd now. The caller makes sure that the number
    /// cannot go to another process meanwhile.
    ///
    /// `gone` is called first with a process that had the number before.
    pub(super) fn register(
        &self,
        pid: i32,
        pidfd: OwnedFd,
        numbers: Numbers,
        gone: impl FnOnce(&Arc<ContainerProcess>),
    ) -> io::Result<Arc<ContainerProcess>> {
        let known = lock(&self.known).get(&pid).cloned();
        if let Some(process) = known {
            if sys::is_there(process.pidfd.as_fd()) {
                return Ok(process);
            }
            self.forget(&process);
            gone(&process);
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let process = Arc::new(ContainerProcess { pid, numbers, pidfd, token });
        let mut table = lock(&self.known);
        if let Some(other) = table.get(&pid) {
            // Another thread of the process was faster.
            return Ok(Arc::clone(other));
        }
        self.ended.add(&process.pidfd, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        table.insert(pid, Arc::clone(&process));
        Ok(process)
    }

    /// Returns the process, if it is registered.
    pub(super) fn find(&self, pid: Pid) -> Option<Arc<ContainerProcess>> {
        lock(&self.known).get(&pid.0).cloned()
    }

    /// Returns the pids of all that are registered.
    pub(super) fn known_pids(&self) -> Vec<Pid> {
        lock(&self.known).keys().copied().map(Pid).collect()
    }

    /// Returns whether no process that has made a driver call still runs.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.known).is_empty()
    }

    /// Readable when [`ProcessTable::take_ended`] has something.
    pub(super) fn ended(&self) -> &Epoll {
        &self.ended
    }

    /// Returns the processes that have ended since the last call.
    pub(super) fn take_ended(&self) -> io::Result<Vec<Arc<ContainerProcess>>> {
        let mut events = [EpollEvent::empty(); 64];
        let ready = match self.ended.wait(&mut events, 0u8) {
            Ok(ready) => ready,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let tokens: Vec<u64> = events.iter().take(ready).map(EpollEvent::data).collect();
        let ended: Vec<Arc<ContainerProcess>> =
            lock(&self.known).values().filter(|process| tokens.contains(&process.token)).cloned().collect();
        for process in &ended {
            self.forget(process);
        }
        Ok(ended)
    }

    fn forget(&self, process: &Arc<ContainerProcess>) {
        let mut known = lock(&self.known);
        if known.get(&process.pid).is_some_and(|other| Arc::ptr_eq(other, process)) {
            known.remove(&process.pid);
            // Closing it would be enough, once its last owner has dropped it.
            let _ = self.ended.delete(&process.pidfd);
        }
    }
}

impl Processes for ProcessTable {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = self.broker.members()?;
        pids.extend(self.known_pids().into_iter().map(|pid| pid.0));
        pids.sort_unstable();
        pids.dedup();
        Ok(pids.into_iter().map(Pid).collect())
    }

    fn is_running(&self, pid: Pid) -> bool {
        self.find(pid).is_some_and(|process| sys::is_there(process.pidfd.as_fd()))
    }

    fn is_thread_running(&self, thread: i32) -> bool {
        // Any call will do that the kernel answers for every thread. Without an answer it may run.
        ThreadId::from_raw(thread).is_none_or(|thread| sched_getaffinity(Some(thread)).err() != Some(Errno::SRCH))
    }

    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool> {
        self.watchdog.watch(&[one.0, other.0], || address_space::share_memory(&self.broker, one.0, other.0))
    }

    fn address_space(&self, pid: Pid, thread: i32) -> io::Result<Arc<dyn AddressSpace>> {
        let (broker, watchdog) = (Arc::clone(&self.broker), Arc::clone(&self.watchdog));
        Ok(Arc::new(self.watchdog.watch(&[pid.0], || ProcessMemory::open(pid.0, thread, broker, watchdog))?))
    }

    fn is_leaving(&self, pid: Pid) -> bool {
        self.watchdog.watch(&[pid.0], || address_space::is_leaving(&self.broker, pid.0))
    }

    fn uvm_mappings(&self, pid: Pid) -> io::Result<Vec<UvmMapping>> {
        self.watchdog.watch(&[pid.0], || address_space::uvm_mappings(&self.broker, pid.0))
    }

    fn has_open_file(&self, pid: Pid, file: &File) -> io::Result<bool> {
        self.watchdog.watch(&[pid.0], || has_open_file(&self.broker, pid, file))
    }
}

/// Returns whether a process has a file open.
///
/// Each of its threads may have a descriptor table of its own (`unshare(CLONE_FILES)`), and the
/// first one, which alone `/proc/PID/fd` shows, may have ended before the others.
fn has_open_file(broker: &Broker, pid: Pid, file: &File) -> io::Result<bool> {
    if thread_has_open_file(broker, (pid.0, pid.0), file)? {
        return Ok(true);
    }
    let mut tables = vec![pid.0];
    for thread in broker.threads(pid.0)? {
        let is_known = |table: &i32| matches!(sys::share_descriptors(*table, thread), Ok(true));
        if thread == pid.0 || tables.iter().any(is_known) {
            continue;
        }
        // A thread that has ended meanwhile has none.
        if matches!(thread_has_open_file(broker, (pid.0, thread), file), Ok(true)) {
            return Ok(true);
        }
        tables.push(thread);
    }
    Ok(false)
}

fn thread_has_open_file(broker: &Broker, (pid, thread): (i32, i32), file: &File) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let own = nix::unistd::getpid().as_raw();
    for fd in broker.descriptors(pid, thread)? {
        match driver::share_open_file((own, file.as_raw_fd()), (thread, fd)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // Closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn table(cgroup: &Path) -> ProcessTable {
        ProcessTable::new(Broker::of_tests(vec![cgroup.to_owned()])).unwrap()
    }

    #[test]
    fn a_process_that_stalls_a_read_is_found_if_it_is_the_containers() {
        let cgroup = tempfile::tempdir().unwrap();
        let processes = table(cgroup.path());
        let own = nix::unistd::getpid().as_raw();
        let held_up = || {
            let reported = (0..10)
                .map(|_| processes.stalled_reads(false))
                .find(|(held_up, is_repeated)| !held_up.is_empty() || *is_repeated);
            reported.map(|(held_up, is_repeated)| {
                (held_up.iter().map(|process| process.pid).collect::<Vec<_>>(), is_repeated)
            })
        };
        processes.watchdog.watch(&[own], || assert_eq!(held_up(), None, "it is none of the container's"));
        fs::write(cgroup.path().join("cgroup.procs"), format!("1\n{own}\n")).unwrap();
        assert_eq!(held_up(), None, "nobody is looked into");
        processes.watchdog.watch(&[own], || {
            processes.watchdog.watch(&[own], || assert_eq!(held_up(), Some((vec![own], false)), "each once"));
            assert_eq!(held_up(), Some((vec![own], true)));
        });
    }

    #[test]
    fn a_thread_may_have_files_that_the_first_one_has_not() {
        use nix::sched::{CloneFlags, unshare};
        let (report, reported) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let own = nix::unistd::getpid().as_raw();
        let copied = tempfile::tempfile().unwrap();
        let thread = std::thread::spawn(move || {
            let shared = sys::share_descriptors(own, nix::unistd::gettid().as_raw());
            report.send((nix::unistd::gettid().as_raw(), shared)).unwrap();
            unshare(CloneFlags::CLONE_FILES).unwrap();
            report.send((0, Ok(false))).unwrap();
            let _ = ended.recv();
        });
        let (tid, shared) = reported.recv().unwrap();
        assert_eq!(reported.recv().unwrap().0, 0);
        let later = tempfile::tempfile().unwrap();
        let broker = Broker::of_tests(Vec::new());
        let found = [&copied, &later].map(|file| thread_has_open_file(&broker, (own, tid), file));
        let shares = sys::share_descriptors(own, tid);
        end.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!((shared.unwrap(), shares.unwrap()), (true, false));
        assert_eq!(found.map(Result::unwrap), [true, false], "what it had when its table became its own");
    }
}
