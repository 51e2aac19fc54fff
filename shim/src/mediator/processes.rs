//! The container's processes: those that have made a driver call, and what reconciliation asks about all of them.

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

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    timerfd::TimerFd,
};
use nvidia_glue::mediate::{AddressSpace, Numbers, Pid, Processes, UvmMapping};
use rustix::{io::Errno, process::Pid as ThreadId, thread::sched_getaffinity};

use super::{
    broker::Broker,
    looks_into::{HeldUp, LooksInto},
    maps::{self, Memory},
};
use crate::{sync::lock, sys};

/// A process that has made a driver call.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) numbers: Numbers,
    pub(super) pidfd: OwnedFd,
    /// Its name in the epoll set; never used twice, as pids are.
    token: u64,
}

impl Process {
    #[cfg(test)]
    pub(super) fn of_nobody(pid: i32) -> Arc<Self> {
        let pidfd = sys::pidfd_open(nix::unistd::getpid().as_raw()).unwrap();
        Arc::new(Self { pid, numbers: Numbers::new(Vec::new()), pidfd, token: 0 })
    }

    pub(super) fn pid_in_container(&self) -> i32 {
        self.numbers.in_container()
    }

    /// Whether both are one process.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.pid, self.token) == (other.pid, other.token)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct ProcessTable {
    broker: Arc<Broker>,
    /// Ready when one of the processes has ended.
    ended: Epoll,
    next_token: AtomicU64,
    known: Mutex<HashMap<i32, Arc<Process>>>,
    /// Processes that are being looked into.
    looks: Arc<LooksInto>,
}

impl ProcessTable {
    pub(super) fn new(broker: Arc<Broker>) -> io::Result<Self> {
        let ended = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let looks = Arc::new(LooksInto::new()?);
        Ok(Self { broker, ended, next_token: AtomicU64::new(0), known: Mutex::default(), looks })
    }

    /// Who opens processes and their threads.
    pub(super) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Ready when [`ProcessTable::hold_up`] is to be called.
    pub(super) fn beat(&self) -> &TimerFd {
        self.looks.beat()
    }

    /// A beat of [`ProcessTable::beat`] has passed: the container's processes that have held up a look for too long by now, and whether one has done so for
    /// as long once more, whoever it is.
    pub(super) fn hold_up(&self, is_paused: bool) -> (Vec<Arc<Process>>, bool) {
        let HeldUp { pids, again } = self.looks.pass(is_paused);
        (pids.into_iter().filter_map(|pid| self.process(Pid(pid))).collect(), again)
    }

    /// A process of the container's, known or not.
    pub(super) fn process(&self, pid: Pid) -> Option<Arc<Process>> {
        self.find(pid).or_else(|| self.stranger(pid.0))
    }

    /// A process of the container's that has made no driver call.
    fn stranger(&self, pid: i32) -> Option<Arc<Process>> {
        let (pidfd, numbers) = self.broker.process(pid).ok()?;
        let pids = self.broker.members().ok()?;
        // The number was the container's after the pidfd was opened, and is still the same process's: so it is of the container.
        let is_own = pids.contains(&pid) && sys::is_there(pidfd.as_fd());
        is_own.then(|| Arc::new(Process { pid, numbers, pidfd, token: u64::MAX }))
    }

    /// The process that has this number now, and this pidfd. The caller makes sure that the number cannot go to another meanwhile.
    ///
    /// `gone` is called first with one that had the number before.
    pub(super) fn enter(
        &self,
        pid: i32,
        pidfd: OwnedFd,
        numbers: Numbers,
        gone: impl FnOnce(&Arc<Process>),
    ) -> io::Result<Arc<Process>> {
        let known = lock(&self.known).get(&pid).cloned();
        if let Some(process) = known {
            if sys::is_there(process.pidfd.as_fd()) {
                return Ok(process);
            }
            self.forget(&process);
            gone(&process);
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let process = Arc::new(Process { pid, numbers, pidfd, token });
        let mut table = lock(&self.known);
        if let Some(other) = table.get(&pid) {
            // Another thread of the process was faster.
            return Ok(Arc::clone(other));
        }
        self.ended.add(&process.pidfd, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        table.insert(pid, Arc::clone(&process));
        Ok(process)
    }

    /// The process, if it is known.
    pub(super) fn find(&self, pid: Pid) -> Option<Arc<Process>> {
        lock(&self.known).get(&pid.0).cloned()
    }

    /// All that are known.
    pub(super) fn known(&self) -> Vec<Pid> {
        lock(&self.known).keys().copied().map(Pid).collect()
    }

    /// Nobody has made a driver call who still runs.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.known).is_empty()
    }

    /// Ready when [`ProcessTable::take_ended`] has something.
    pub(super) fn ended(&self) -> &Epoll {
        &self.ended
    }

    /// Processes that have ended since the last call.
    pub(super) fn take_ended(&self) -> io::Result<Vec<Arc<Process>>> {
        let mut events = [EpollEvent::empty(); 64];
        let ready = match self.ended.wait(&mut events, 0u8) {
            Ok(ready) => ready,
            Err(nix::Error::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let tokens: Vec<u64> = events.iter().take(ready).map(EpollEvent::data).collect();
        let ended: Vec<Arc<Process>> =
            lock(&self.known).values().filter(|process| tokens.contains(&process.token)).cloned().collect();
        for process in &ended {
            self.forget(process);
        }
        Ok(ended)
    }

    fn forget(&self, process: &Arc<Process>) {
        let mut known = lock(&self.known);
        if known.get(&process.pid).is_some_and(|other| Arc::ptr_eq(other, process)) {
            known.remove(&process.pid);
            // Closing it would do, once the last owner has let go of it.
            let _ = self.ended.delete(&process.pidfd);
        }
    }
}

impl Processes for ProcessTable {
    fn pids(&self) -> io::Result<Vec<Pid>> {
        let mut pids = self.broker.members()?;
        pids.extend(self.known().into_iter().map(|pid| pid.0));
        pids.sort_unstable();
        pids.dedup();
        Ok(pids.into_iter().map(Pid).collect())
    }

    fn is_running(&self, pid: Pid) -> bool {
        self.find(pid).is_some_and(|process| sys::is_there(process.pidfd.as_fd()))
    }

    fn is_thread_running(&self, thread: i32) -> bool {
        // Any question will do that the kernel answers of every thread. What cannot be told may run.
        ThreadId::from_raw(thread).is_none_or(|thread| sched_getaffinity(Some(thread)).err() != Some(Errno::SRCH))
    }

    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool> {
        self.looks.looking(&[one.0, other.0], || maps::share_memory(&self.broker, one.0, other.0))
    }

    fn address_space(&self, pid: Pid, thread: i32) -> io::Result<Arc<dyn AddressSpace>> {
        let (broker, looks) = (Arc::clone(&self.broker), Arc::clone(&self.looks));
        Ok(Arc::new(self.looks.looking(&[pid.0], || Memory::open(pid.0, thread, broker, looks))?))
    }

    fn is_leaving(&self, pid: Pid) -> bool {
        self.looks.looking(&[pid.0], || maps::is_leaving(&self.broker, pid.0))
    }

    fn uvm_mappings(&self, pid: Pid) -> io::Result<Vec<UvmMapping>> {
        self.looks.looking(&[pid.0], || maps::of(&self.broker, pid.0))
    }

    fn has_open_file(&self, pid: Pid, file: &File) -> io::Result<bool> {
        self.looks.looking(&[pid.0], || has_open_file(&self.broker, pid, file))
    }
}

/// Each of its threads may have a table of descriptors of its own (`unshare(CLONE_FILES)`), and the first one, which alone `/proc/PID/fd`
/// shows, may have ended before the others.
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
        // One that has ended meanwhile has none.
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
        match nvidia_glue::driver::share_open_file((own, file.as_raw_fd()), (thread, fd)) {
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
    fn who_holds_up_a_look_is_found_if_it_is_the_containers() {
        let cgroup = tempfile::tempdir().unwrap();
        let processes = table(cgroup.path());
        let own = nix::unistd::getpid().as_raw();
        let held_up = || {
            let told = (0..10).map(|_| processes.hold_up(false)).find(|(held_up, again)| !held_up.is_empty() || *again);
            told.map(|(held_up, again)| (held_up.iter().map(|process| process.pid).collect::<Vec<_>>(), again))
        };
        processes.looks.looking(&[own], || assert_eq!(held_up(), None, "it is none of the container's"));
        fs::write(cgroup.path().join("cgroup.procs"), format!("1\n{own}\n")).unwrap();
        assert_eq!(held_up(), None, "nobody is looked into");
        processes.looks.looking(&[own], || {
            processes.looks.looking(&[own], || assert_eq!(held_up(), Some((vec![own], false)), "each once"));
            assert_eq!(held_up(), Some((vec![own], true)));
        });
    }

    #[test]
    fn a_thread_may_have_files_that_the_first_one_has_not() {
        use nix::sched::{CloneFlags, unshare};
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let own = nix::unistd::getpid().as_raw();
        let copied = tempfile::tempfile().unwrap();
        let thread = std::thread::spawn(move || {
            let shared = sys::share_descriptors(own, nix::unistd::gettid().as_raw());
            tell.send((nix::unistd::gettid().as_raw(), shared)).unwrap();
            unshare(CloneFlags::CLONE_FILES).unwrap();
            tell.send((0, Ok(false))).unwrap();
            let _ = ended.recv();
        });
        let (tid, shared) = told.recv().unwrap();
        assert_eq!(told.recv().unwrap().0, 0);
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
