//! Processes of a node: those that carry its directory in their environment (containerd, shims,
//! helpers) and those in its cgroups (containers).

use std::{fs, path::Path};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use procfs_core::{FromRead as _, Locks};

use crate::eventually;

/// One process as /proc shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id here.
    pub pid: i32,
    pub parent: i32,
    /// Single letter: `R`, `S`, `Z`, ...
    pub state: char,
    /// Base name of the executable as the kernel keeps it (15 bytes).
    pub name: String,
    /// Arguments, joined by blanks; empty for a zombie.
    pub command: String,
}

impl Process {
    /// Reads one from /proc; `None` when it is gone.
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let name_end = stat.rfind(')')?;
        let name = stat.get(stat.find('(')? + 1..name_end)?.to_owned();
        let mut fields = stat.get(name_end + 2..)?.split(' ');
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned();
        Some(Self { pid, parent, state, name, command })
    }

    /// Sends SIGKILL. A process that is gone already is no error.
    pub fn kill(&self) {
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }

    /// Stops it with all its threads, where it holds no file's lock: the simulated card's are such,
    /// and every other process waits for them. Nobody is stopped in the real driver.
    pub fn stop(&self) {
        let signal = |signal| kill(Pid::from_raw(self.pid), signal).expect("send a process a signal");
        eventually("a process is stopped that holds no lock", || {
            signal(Signal::SIGSTOP);
            eventually("it has stopped", || self.has_stopped().then_some(()));
            let holds_none = !self.holds_lock();
            if !holds_none {
                signal(Signal::SIGCONT);
            }
            holds_none.then_some(())
        });
    }

    fn has_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).expect("read a process's threads").flatten();
        let threads = threads.filter_map(|thread| Self::read(thread.file_name().to_str()?.parse().ok()?));
        threads.into_iter().all(|thread| thread.state == 'T')
    }

    /// Of a file, as `flock` makes them.
    fn holds_lock(&self) -> bool {
        let locks = Locks::from_file("/proc/locks").expect("read the kernel's table of locks");
        locks.0.iter().any(|lock| lock.pid == Some(self.pid))
    }

    /// Still there, and not only as a zombie.
    pub fn alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.state != 'Z' && now.name == self.name)
    }

    /// Number of open files.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }
}

/// Every process of the machine.
pub fn all() -> Vec<Process> {
    let pids = fs::read_dir("/proc").expect("read /proc").flatten();
    pids.filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Processes with `directory` in their environment or arguments, this one excepted.
pub fn mentioning(directory: &Path) -> Vec<Process> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let own = std::process::id().cast_signed();
    let mentions =
        |path: String| fs::read(path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|part| part == needle));
    all()
        .into_iter()
        .filter(|process| process.pid != own)
        .filter(|process| {
            mentions(format!("/proc/{}/environ", process.pid)) || mentions(format!("/proc/{}/cmdline", process.pid))
        })
        .collect()
}

/// Processes in a cgroup whose path contains `part`.
pub fn in_cgroup(part: &str) -> Vec<Process> {
    all()
        .into_iter()
        .filter(|process| {
            fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).is_ok_and(|text| text.contains(part))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, process::Command};

    use nix::fcntl::{Flock, FlockArg};

    use super::*;

    #[test]
    fn a_lock_holder_is_found() {
        let own = Process::read(std::process::id().cast_signed()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!own.holds_lock());
        let lock = Flock::lock(File::open(file.path()).unwrap(), FlockArg::LockExclusive).unwrap();
        assert!(own.holds_lock());
        drop(lock);
        assert!(!own.holds_lock());
    }

    #[test]
    fn a_process_is_stopped_between_two_locks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script = "open F, $ARGV[0]; while (1) { flock F, 2; select undef, undef, undef, .2; flock F, 8; select undef, undef, undef, .1 }";
        let mut child = Command::new("perl").args(["-e", script]).arg(file.path()).spawn().unwrap();
        let process = Process::read(child.id().cast_signed()).unwrap();
        eventually("it works", || process.holds_lock().then_some(()));
        process.stop();
        assert_eq!(Process::read(process.pid).map(|process| process.state), Some('T'));
        assert!(!process.holds_lock());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
