//! Is a process, or a cgroup, still alive? Everything that the ledger asks of `/proc` and
//! `/sys/fs/cgroup`.
//!
//! Whatever is not certain counts as alive: a grant that is kept too long costs a
//! retry, one that is given back too early costs somebody else's memory.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    path::{Component, Path},
};

use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, statfs};
use procfs_core::process::Stat;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process},
};

use base::{ProcessId, cgroup_tree, process};

/// Content of a cgroup and of those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Population {
    /// Nothing, or the cgroup does not exist.
    Empty,
    /// At least one process.
    Processes,
    /// It is not known.
    Unknown,
}

/// The node as the ledger sees it; tests have a simulated one.
pub(crate) trait Node: fmt::Debug + Send + Sync {
    /// Returns whether exactly this process is alive (a zombie is not).
    fn is_alive(&self, process: ProcessId) -> bool;
    /// Returns whether its pid is taken: by itself, alive or a zombie, or by another process or
    /// thread. One system call, for where many are looked at.
    fn has_pid(&self, process: ProcessId) -> bool;
    /// Population of the cgroup at `directory`.
    fn population(&self, directory: &Path) -> Population;
    /// Sends SIGKILL to everything in the cgroup at `directory` and below. Does not wait.
    fn kill_cgroup(&self, directory: &Path);
    /// Sends SIGKILL to exactly this process. Does not wait.
    fn kill(&self, process: ProcessId);
    /// Now, on the clock of all schedules.
    fn now_us(&self) -> u64;
}

/// The real node.
#[derive(Debug)]
pub(crate) struct Linux;

impl Node for Linux {
    fn is_alive(&self, process: ProcessId) -> bool {
        match process::stat(process.pid) {
            Ok(stat) => stat.starttime == process.start_time && !is_zombie(&stat),
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }

    fn has_pid(&self, process: ProcessId) -> bool {
        Pid::from_raw(process.pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    }

    fn population(&self, directory: &Path) -> Population {
        population(directory)
    }

    fn kill_cgroup(&self, directory: &Path) {
        if !may_be_killed(directory) {
            tracing::warn!(cgroup = %directory.display(), "not killed: it is no cgroup of one container");
            return;
        }
        // Linux 5.14 on cgroup v2: atomic, whatever is forked meanwhile, also when frozen.
        if fs::write(directory.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        let log_error = |error: io::Error| tracing::warn!(%error, cgroup = %directory.display(), "not all is killed");
        let _ = cgroup_tree::kill(directory).map_err(log_error);
        // A frozen process of cgroup v1 takes its SIGKILL when it is thawed, and the container may
        // have frozen some below its own cgroup.
        let _ = cgroup_tree::write_everywhere(directory, "freezer.state", "THAWED");
    }

    fn now_us(&self) -> u64 {
        base::now_us()
    }

    fn kill(&self, process: ProcessId) {
        let Some(pid) = Pid::from_raw(process.pid) else { return };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The handle is of the right process if the pid still is when the handle is already held.
        if self.is_alive(process) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

/// A main thread that ended before the others shows as a zombie, too; the process is alive all the
/// same.
fn is_zombie(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X' | 'x') && stat.num_threads <= 1
}

fn population(directory: &Path) -> Population {
    match fs::read_to_string(directory.join("cgroup.events")) {
        Ok(events) => match events.lines().find_map(|line| line.strip_prefix("populated ")) {
            Some("0") => return Population::Empty,
            Some("1") => return Population::Processes,
            _ => return Population::Unknown,
        },
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Population::Empty,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(_) => return Population::Unknown,
    }
    match cgroup_tree::pids(directory) {
        Ok(Some(found)) if !found.is_empty() => Population::Processes,
        Ok(_) if is_in_cgroup_filesystem(directory) => Population::Empty,
        _ => Population::Unknown,
    }
}

/// Returns whether a directory is on a cgroup file system. One that is gone was a cgroup only if
/// what is left of its path is one: a hierarchy that is not mounted here says nothing about who
/// lives in it.
pub(super) fn is_in_cgroup_filesystem(directory: &Path) -> bool {
    let Some(existing) = directory.ancestors().find(|ancestor| ancestor.exists()) else { return false };
    statfs(existing).is_ok_and(|found| [CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC].contains(&found.filesystem_type()))
}

/// Returns whether `directory` can be the cgroup of one container: a plain path below the top of
/// its hierarchy, without this process in it.
fn may_be_killed(directory: &Path) -> bool {
    let own = nix::unistd::getpid().as_raw();
    is_plain_path(directory)
        && is_below_hierarchy_top(directory)
        && cgroup_tree::pids(directory).is_ok_and(|found| found.iter().flatten().all(|pid| ![own, 1].contains(pid)))
}

/// Absolute, without `..`.
pub(crate) fn is_plain_path(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|component| matches!(component, Component::RootDir | Component::Normal(_)))
}

fn is_below_hierarchy_top(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    directory.parent().is_some_and(|parent| device(parent).is_some() && device(parent) == device(directory))
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::{fd::OwnedFd, unix::ffi::OsStrExt},
        process::Command,
        time::{Duration, Instant},
    };

    use rustix::fs::{Mode, OFlags, openat};

    use super::*;

    #[test]
    fn a_process_lives_as_long_as_any_of_its_threads_whatever_its_name() {
        let stat = |state, threads| {
            let mut stat = process::stat(nix::unistd::getpid().as_raw()).unwrap();
            (stat.state, stat.num_threads) = (state, threads);
            stat
        };
        assert!(!is_zombie(&stat('S', 1)));
        assert!(is_zombie(&stat('Z', 1)) && is_zombie(&stat('X', 1)));
        assert!(!is_zombie(&stat('Z', 3)), "its other threads run on");
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join(OsStr::from_bytes(b"\xff) Z 1 ("));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = testing::fork(|| Command::new(program).arg("1000").spawn().unwrap());
        let process = ProcessId::of(i32::try_from(child.id()).unwrap());
        let is_alive = process.as_ref().is_ok_and(|process| Linux.is_alive(*process));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_alive, "{process:?}");
    }

    #[test]
    fn a_process_is_alive_until_it_is_dead_even_unreaped() {
        let own = ProcessId::current().unwrap();
        assert!(Linux.is_alive(own));
        assert!(!Linux.is_alive(ProcessId { start_time: own.start_time + 1, ..own }), "another process, same pid");
        let mut child = testing::fork(|| Command::new("sleep").arg("1000").spawn().unwrap());
        let process = ProcessId::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(Linux.is_alive(process));
        Linux.kill(ProcessId { start_time: process.start_time + 1, ..process });
        assert!(child.try_wait().unwrap().is_none(), "a process that only has the pid is not killed");
        Linux.kill(process);
        while Linux.is_alive(process) {
            std::thread::yield_now();
        }
        assert!(Linux.has_pid(process), "until it is reaped");
        child.wait().unwrap();
        assert!(!Linux.is_alive(process) && !Linux.has_pid(process));
    }

    #[test]
    fn what_is_no_cgroup_is_not_known_to_be_empty() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(population(directory.path()), Population::Unknown);
        assert_eq!(population(&directory.path().join("gone")), Population::Unknown);
        assert!(!may_be_killed(Path::new("/sys/fs/cgroup")));
        assert!(!may_be_killed(Path::new("/sys/fs/cgroup/../cgroup/x")));
        assert!(!may_be_killed(Path::new("/")));
    }

    /// Processes in a cgroup too deep for a path are not gone, and what a container has frozen
    /// below its own cgroup is thawed. Needs root and the freezer of version 1.
    #[test]
    fn who_hides_deep_below_and_frozen_is_alive_until_it_is_killed() {
        let top = Path::new("/sys/fs/cgroup/freezer").join(format!("egpu-liveness-deep-{}", std::process::id()));
        if !Path::new("/sys/fs/cgroup/freezer/cgroup.procs").exists() || fs::create_dir(&top).is_err() {
            testing::skipped("no freezer hierarchy in which to make a cgroup");
            return;
        }
        let name = "d".repeat(200);
        let mut here = OwnedFd::from(fs::File::open(&top).unwrap());
        for _ in 0..25 {
            rustix::fs::mkdirat(&here, &*name, Mode::RWXU).unwrap();
            here = openat(&here, &*name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        let write = |file: &str, text: &str| {
            let file = openat(&here, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            rustix::io::write(&file, text.as_bytes()).unwrap();
        };
        let mut child = testing::fork(|| Command::new("sleep").arg("1000").spawn().unwrap());
        write("cgroup.procs", &child.id().to_string());
        write("freezer.state", "FROZEN");
        let before = population(&top);
        Linux.kill_cgroup(&top);
        let deadline = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let has_ended = child.try_wait().unwrap().is_some();
        write("freezer.state", "THAWED");
        child.kill().unwrap();
        child.wait().unwrap();
        let after = population(&top);
        cgroup_tree::remove(&top).unwrap();
        assert!(has_ended, "it was not killed, or not thawed");
        assert_eq!([before, after], [Population::Processes, Population::Empty]);
    }

    /// Needs root and a writable hierarchy.
    #[test]
    fn a_cgroup_is_populated_until_its_last_process_is_killed() {
        let Some(top) = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .map(Path::new)
            .into_iter()
            .find(|top| top.join("cgroup.procs").exists())
        else {
            testing::skipped("no cgroup hierarchy here");
            return;
        };
        let directory = top.join(format!("egpu-liveness-test-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&directory) {
            testing::skipped(format_args!("no cgroup can be made here: {error}"));
            return;
        }
        let inner = directory.join("inner");
        fs::create_dir(&inner).unwrap();
        let empty_before = population(&directory);
        let mut child = testing::fork(|| Command::new("sleep").arg("1000").spawn().unwrap());
        fs::write(inner.join("cgroup.procs"), child.id().to_string()).unwrap();
        let with_process = population(&directory);
        Linux.kill_cgroup(&directory);
        child.wait().unwrap();
        let empty_after = population(&directory);
        fs::remove_dir(&inner).unwrap();
        fs::remove_dir(&directory).unwrap();
        assert_eq!(
            [empty_before, with_process, empty_after, population(&directory)],
            [Population::Empty, Population::Processes, Population::Empty, Population::Empty]
        );
    }
}
