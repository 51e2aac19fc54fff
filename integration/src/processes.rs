//! Which processes belong to a node: those that carry its directory in their environment (containerd, shims, helpers)
//! and those in its cgroups (containers).

use std::{fs, path::Path};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// One process as /proc shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id here.
    pub pid: i32,
    /// Its parent's.
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
