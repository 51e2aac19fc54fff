//! The container's processes: those that have made a driver call, and what reconciliation asks about all of them.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        time::TimeSpec,
        timer::{Expiration, TimerSetTimeFlags},
        timerfd::{ClockId, TimerFd, TimerFlags},
    },
};
use nvidia_glue::{
    cgroup_tree,
    mediate::{Numbers, Pid, Processes, UvmMapping},
};

use super::caller::{numbers, pids};
use crate::{sync::lock, sys};

/// Longer than that no process can be looked into, unless it keeps the kernel from it (with a page that does not come, while
/// another thread waits to change its memory): then what it has mapped cannot be counted, and it is killed. Slow disks answer
/// earlier.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(30);

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
    cgroups: Vec<PathBuf>,
    /// Ready when one of the processes has ended.
    ended: Epoll,
    next_token: AtomicU64,
    known: Mutex<HashMap<i32, Arc<Process>>>,
    /// Processes that are being looked into, and since when.
    looks: Mutex<Vec<(Instant, Vec<i32>)>>,
    /// Ready when a look has taken long.
    overdue: TimerFd,
}

impl ProcessTable {
    pub(super) fn new(cgroups: Vec<PathBuf>) -> io::Result<Self> {
        let ended = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let overdue = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        Ok(Self {
            cgroups,
            ended,
            next_token: AtomicU64::new(0),
            known: Mutex::default(),
            looks: Mutex::default(),
            overdue,
        })
    }

    /// Does `look`, which these processes may hold up.
    fn looking<T>(&self, pids: &[i32], look: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        {
            let mut looks = lock(&self.looks);
            if looks.is_empty() {
                let every = Expiration::Interval(TimeSpec::from_duration(LOOK_LIMIT));
                // A timer that was made can be set.
                let _ = self.overdue.set(every, TimerSetTimeFlags::empty());
            }
            looks.push((since, pids.to_vec()));
        }
        let result = look();
        let mut looks = lock(&self.looks);
        if let Some(at) = looks.iter().position(|(began, of)| *began == since && of == pids) {
            looks.swap_remove(at);
        }
        if looks.is_empty() {
            let _ = self.overdue.unset();
        }
        result
    }

    /// Ready when [`ProcessTable::hold_up`] may have something.
    pub(super) fn overdue(&self) -> &TimerFd {
        &self.overdue
    }

    /// The container's processes that have held up a look since `limit`.
    pub(super) fn hold_up(&self, limit: Duration) -> Vec<Arc<Process>> {
        let _ = nix::unistd::read(&self.overdue, &mut [0u8; 8]);
        let looks = lock(&self.looks);
        let mut pids: Vec<i32> =
            looks.iter().filter(|(since, _)| since.elapsed() >= limit).flat_map(|(_, pids)| pids.clone()).collect();
        drop(looks);
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter().filter_map(|pid| self.find(Pid(pid)).or_else(|| self.stranger(pid))).collect()
    }

    /// What lives in the container's cgroups, in no order. One that is not there has nobody.
    fn members(&self) -> io::Result<Vec<i32>> {
        let mut pids = Vec::new();
        for cgroup in &self.cgroups {
            pids.extend(cgroup_tree::pids(cgroup)?.into_iter().flatten().filter(|pid| *pid > 0));
        }
        Ok(pids)
    }

    /// A process of the container's that has made no driver call.
    fn stranger(&self, pid: i32) -> Option<Arc<Process>> {
        let pidfd = sys::pidfd_open(pid).ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers = numbers(pid, &pids(&status)?.1).ok()?;
        let pids = self.members().ok()?;
        // The number was the container's after the pidfd was opened, and is still the same process's: so it is of the container.
        let is_own = pids.contains(&pid) && sys::is_there(pidfd.as_fd());
        is_own.then(|| Arc::new(Process { pid, numbers, pidfd, token: u64::MAX }))
    }

    /// The process that has this number now. The caller makes sure that the number cannot go to another meanwhile.
    ///
    /// `gone` is called first with one that had the number before.
    pub(super) fn enter(
        &self,
        pid: i32,
        numbers: impl FnOnce() -> io::Result<Numbers>,
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
        let (pidfd, numbers) = (sys::pidfd_open(pid)?, numbers()?);
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
        let mut pids = self.members()?;
        pids.extend(self.known().into_iter().map(|pid| pid.0));
        pids.sort_unstable();
        pids.dedup();
        Ok(pids.into_iter().map(Pid).collect())
    }

    fn is_running(&self, pid: Pid) -> bool {
        self.find(pid).is_some_and(|process| sys::is_there(process.pidfd.as_fd()))
    }

    fn is_thread_running(&self, thread: i32) -> bool {
        Path::new(&format!("/proc/{thread}")).exists()
    }

    fn share_memory(&self, one: Pid, other: Pid) -> io::Result<bool> {
        self.looking(&[one.0, other.0], || share_memory(one.0, other.0))
    }

    fn uvm_mappings(&self, pid: Pid) -> io::Result<Vec<UvmMapping>> {
        let maps = self.looking(&[pid.0], || Maps::of(pid.0))?;
        Ok(uvm_mappings(&maps.text))
    }

    fn has_open_file(&self, pid: Pid, file: &File) -> io::Result<bool> {
        self.looking(&[pid.0], || has_open_file(pid, file))
    }
}

/// What a process has mapped, as one of its threads tells.
#[derive(Debug, PartialEq, Eq)]
struct Maps {
    thread: i32,
    text: String,
}

impl Maps {
    /// The memory of a thread that has ended is none, to the kernel, also where it was the first and the others go on: so it is asked of them then.
    /// Empty where all have ended.
    fn of(pid: i32) -> io::Result<Self> {
        Self::find(Path::new("/proc"), pid, || has_ended(&sys::pidfd_open(pid)?))
    }

    fn find(proc: &Path, pid: i32, has_ended: impl Fn() -> io::Result<bool>) -> io::Result<Self> {
        /// Threads may come and go all the time, and each have ended by the time that it is asked.
        const ROUNDS: usize = 16;
        let process = proc.join(pid.to_string());
        let told = |directory: PathBuf| fs::read_to_string(directory.join("maps")).unwrap_or_default();
        for _ in 0..ROUNDS {
            let text = told(process.clone());
            if !text.is_empty() || has_ended()? {
                return Ok(Self { thread: pid, text });
            }
            for entry in fs::read_dir(process.join("task"))?.filter_map(Result::ok) {
                let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let text = told(entry.path());
                if !text.is_empty() {
                    return Ok(Self { thread, text });
                }
            }
        }
        Err(io::Error::other("no thread of the process is there for long enough to be looked at"))
    }
}

/// Whether no thread of a process is left, be it reaped or not.
fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO)? > 0)
}

/// Whether two processes have the same memory. Those whose first threads have ended have the same by those: none.
fn share_memory(one: i32, other: i32) -> io::Result<bool> {
    if !sys::share_memory(one, other)? {
        return Ok(false);
    }
    let (one, other) = (Maps::of(one)?, Maps::of(other)?);
    Ok(!one.text.is_empty() && !other.text.is_empty() && sys::share_memory(one.thread, other.thread)?)
}

/// Each of its threads may have a table of descriptors of its own (`unshare(CLONE_FILES)`), and the first one, which alone `/proc/PID/fd`
/// shows, may have ended before the others.
fn has_open_file(pid: Pid, file: &File) -> io::Result<bool> {
    if thread_has_open_file(pid.0, file)? {
        return Ok(true);
    }
    let mut tables = vec![pid.0];
    for entry in fs::read_dir(format!("/proc/{}/task", pid.0))?.filter_map(Result::ok) {
        let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let is_known = |table: &i32| matches!(sys::share_descriptors(*table, thread), Ok(true));
        if thread == pid.0 || tables.iter().any(is_known) {
            continue;
        }
        // One that has ended meanwhile has none.
        if matches!(thread_has_open_file(thread, file), Ok(true)) {
            return Ok(true);
        }
        tables.push(thread);
    }
    Ok(false)
}

fn thread_has_open_file(thread: i32, file: &File) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let own = nix::unistd::getpid().as_raw();
    for fd in descriptors(thread)? {
        match sys::share_open_file((own, file.as_raw_fd()), (thread, fd)) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // Closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Descriptors that may be of the driver: links that name a file, not a socket or the like.
fn descriptors(thread: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    // A thread that is not the first has such a directory too, though no list shows it.
    for entry in fs::read_dir(format!("/proc/{thread}/fd"))?.filter_map(Result::ok) {
        let names_file = fs::read_link(entry.path()).is_ok_and(|target| target.is_absolute());
        if let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| names_file) {
            found.push(fd);
        }
    }
    Ok(found)
}

/// The UVM mappings of `/proc/PID/maps`: shared ones that lie at their own offset, as UVM demands and nothing else does, by
/// whatever name the node goes in the container; and whatever else is mapped of a file of that name.
fn uvm_mappings(maps: &str) -> Vec<UvmMapping> {
    maps.lines().filter_map(uvm_mapping).collect()
}

/// `7f0000200000-7f0000400000 rw-s 7f0000200000 00:06 397    /dev/nvidia-uvm`
fn uvm_mapping(line: &str) -> Option<UvmMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (address, end) = (number(start)?, number(end)?);
    let permissions = fields.next()?;
    let offset = number(fields.next()?)?;
    let inode = fields.nth(1)?;
    let is_shared = permissions.ends_with('s') && inode != "0";
    let name = fields.next().and_then(|path| path.rsplit('/').next());
    if !is_shared || (offset != address && name != Some("nvidia-uvm")) {
        return None;
    }
    Some(UvmMapping { address, length: end.checked_sub(address)?, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(cgroup: &Path) -> ProcessTable {
        ProcessTable::new(vec![cgroup.to_owned()]).unwrap()
    }

    #[test]
    fn who_holds_up_a_look_is_found_if_it_is_the_containers() {
        let cgroup = tempfile::tempdir().unwrap();
        let processes = table(cgroup.path());
        let own = nix::unistd::getpid().as_raw();
        let held_up = |limit| -> Vec<i32> { processes.hold_up(limit).iter().map(|process| process.pid).collect() };
        processes.looking(&[own], || assert_eq!(held_up(Duration::ZERO), [0; 0], "it is none of the container's"));
        fs::write(cgroup.path().join("cgroup.procs"), format!("1\n{own}\n")).unwrap();
        assert_eq!(held_up(Duration::ZERO), [0; 0], "nobody is looked into");
        processes.looking(&[own], || {
            assert_eq!(held_up(Duration::from_secs(3600)), [0; 0], "not for long enough");
            processes.looking(&[own], || assert_eq!(held_up(Duration::ZERO), [own], "each once"));
            assert!(processes.overdue.get().unwrap().is_some());
        });
        assert!(processes.overdue.get().unwrap().is_none(), "nothing runs while nobody is looked into");
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
        let found = [&copied, &later].map(|file| thread_has_open_file(tid, file));
        let shares = sys::share_descriptors(own, tid);
        end.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!((shared.unwrap(), shares.unwrap()), (true, false));
        assert_eq!(found.map(Result::unwrap), [true, false], "what it had when its table became its own");
    }

    #[test]
    fn what_is_mapped_is_told_by_whichever_thread_is_left() {
        let proc = tempfile::tempdir().unwrap();
        let write = |thread: &str, text: &str| {
            let directory = proc.path().join("10/task").join(thread);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("maps"), text).unwrap();
        };
        let first = |text| fs::write(proc.path().join("10/maps"), text).unwrap();
        let find = |has_ended| Maps::find(proc.path(), 10, || Ok(has_ended)).map(|maps| (maps.thread, maps.text)).ok();
        let told = |thread, text: &str| Some((thread, text.to_owned()));
        write("10", "of 10");
        first("of 10");
        assert_eq!(find(false), told(10, "of 10"));
        // It has ended.
        write("10", "");
        first("");
        write("11", "");
        write("12", "of 12");
        assert_eq!(find(false), told(12, "of 12"));
        write("12", "");
        assert_eq!(find(false), None, "one that is there has something");
        assert_eq!(find(true), told(10, ""));
        let ended = Maps::find(proc.path(), 11, || Err(io::Error::from_raw_os_error(libc::ESRCH)));
        assert_eq!(ended.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn who_has_the_same_memory_is_said_of_those_that_have_some() {
        let own = nix::unistd::getpid().as_raw();
        assert!(share_memory(own, own).unwrap());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!share_memory(own, pid).unwrap());
        let pidfd = sys::pidfd_open(pid).unwrap();
        child.kill().unwrap();
        while !has_ended(&pidfd).unwrap() {
            std::thread::yield_now();
        }
        // Nobody has waited for it yet.
        assert!(!share_memory(pid, pid).unwrap());
        assert_eq!(Maps::of(pid).unwrap(), Maps { thread: pid, text: String::new() });
        child.wait().unwrap();
        assert!(Maps::of(pid).is_err());
    }

    #[test]
    fn uvm_mappings_are_found_by_their_offset_whatever_the_node_is_called() {
        let maps = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
7f0000200000-7f0000400000 rw-s 7f0000200000 00:06 397                    /dev/nvidia-uvm
7f0000600000-7f0000a00000 rw-s 7f0000600000 00:52 12                     /tmp/my node
7f0001000000-7f0001001000 r--s 00001000 fe:00 77                         /etc/ld.so.cache
7f0002000000-7f0002001000 rw-s 00000000 00:06 397                        /dev/nvidia-uvm
7f0003000000-7f0003001000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
7f0004000000-7f0004001000 rw-p 7f0004000000 fe:00 5                      /private
nonsense
7f00-6f00 rw-s 7f00 00:06 397 /dev/nvidia-uvm
";
        let found: Vec<(u64, u64)> = uvm_mappings(maps).iter().map(|found| (found.address, found.length)).collect();
        assert_eq!(found, [(0x7f00_0020_0000, 0x20_0000), (0x7f00_0060_0000, 0x40_0000), (0x7f00_0200_0000, 0x1000)]);
    }
}
