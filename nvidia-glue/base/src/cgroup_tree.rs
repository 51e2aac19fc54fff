//! A cgroup and those below it, as deep as they are.
//!
//! A container that can mount a hierarchy makes cgroups below its own, so deep that their paths are
//! longer than a path may be, and there are more of them than a process may have files open. So
//! nothing here goes by path, or calls itself: one directory is open at a time, the next is opened
//! by its name in it, and the way back is `..`, which leads to where one came from, as a cgroup is
//! never moved to another parent.

use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read as _, Write as _},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, fstat, openat, unlinkat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// Flags to open a directory for its entries alone.
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Bytes that are read of a directory at once.
const ENTRIES: usize = 16 << 10;
/// Processes of which a handle is held at once.
const HANDLES: usize = 64;

/// The processes of a cgroup and of those below it, in no order, some perhaps twice; 0 stands for
/// one that has no number in this pid namespace. `None` when the cgroup does not exist.
///
/// # Errors
/// When one of them cannot be read.
pub fn pids(top: &Path) -> io::Result<Option<Vec<i32>>> {
    let mut pids = Vec::new();
    let collect = |cgroup: BorrowedFd<'_>| {
        pids.extend(members(cgroup)?);
        Ok(())
    };
    let found = walk(top, collect, |_, _| Ok(()))?;
    Ok(found.then_some(pids))
}

/// Sends SIGKILL to whoever is in a cgroup and those below it now. Does not wait for their end.
///
/// # Errors
/// When one of the cgroups cannot be read.
pub fn kill(top: &Path) -> io::Result<()> {
    walk(top, kill_members, |_, _| Ok(())).map(drop)
}

fn kill_members(cgroup: BorrowedFd<'_>) -> io::Result<()> {
    for some in members(cgroup)?.chunks(HANDLES) {
        let open = |pid: &i32| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?));
        let handles: Vec<(i32, OwnedFd)> = some.iter().filter_map(open).collect();
        // Still listed while the handle is held: the handle is of the listed process, and not of
        // one that took its number.
        let listed = members(cgroup)?;
        for (_, handle) in handles.iter().filter(|(pid, _)| listed.contains(pid)) {
            // Most likely it has ended.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    Ok(())
}

/// Writes `value` to the control file of this name of a cgroup and of those below it, parents
/// first. Those that have no such file, or are gone, are left out.
///
/// # Errors
/// The first; the others are written all the same.
pub fn write_everywhere(top: &Path, name: &str, value: &str) -> io::Result<()> {
    let mut result = Ok(());
    let write = |cgroup: BorrowedFd<'_>| {
        let written = openat(cgroup, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|file| File::from(file).write_all(value.as_bytes()));
        match written {
            Err(error) if !is_gone(&error) && result.is_ok() => result = Err(error),
            _ => {}
        }
        Ok(())
    };
    walk(top, write, |_, _| Ok(()))?;
    result
}

/// Removes a cgroup and those below it. Succeeds when there is none.
///
/// # Errors
/// When one of them does not go, as one with a process in it.
pub fn remove(top: &Path) -> io::Result<()> {
    let found = walk(top, |_| Ok(()), |parent, name| unless_gone(unlinkat(parent, name, AtFlags::REMOVEDIR)))?;
    if !found {
        return Ok(());
    }
    match std::fs::remove_dir(top) {
        Err(error) if !is_gone(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Pids of the processes in this very cgroup, without those below it.
fn members(cgroup: BorrowedFd<'_>) -> io::Result<Vec<i32>> {
    let mut text = String::new();
    let read = openat(cgroup, c"cgroup.procs", OFlags::CLOEXEC, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text.lines().filter_map(|line| line.trim().parse().ok()).collect()),
        // The latter of a threaded cgroup of version 2: the domain above it lists its processes.
        Err(error) if is_gone(&error) || error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// One that has been entered and not left yet.
struct Level {
    /// Its name in the one above it; the topmost's is empty.
    name: CString,
    /// Device and inode.
    identity: (u64, u64),
    /// Those below it that are still to be entered.
    waiting: Vec<CString>,
}

impl Level {
    fn of(name: CString, directory: &OwnedFd) -> io::Result<Self> {
        let identity = identity(directory)?;
        Ok(Self { name, identity, waiting: below(directory)? })
    }
}

/// Calls `entered` with each cgroup, parents first, and `left` with the parent and the name of each
/// but the topmost, children first. `false` when there is none. What is made meanwhile may be
/// missed; what is removed meanwhile is as if it had been before.
fn walk(
    top: &Path,
    mut entered: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    mut left: impl FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<bool> {
    // Not NOFOLLOW: where the hierarchy is mounted is the host's business.
    let mut here = match openat(CWD, top, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NODEV) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    entered(here.as_fd())?;
    let mut levels = vec![Level::of(CString::default(), &here)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.waiting.pop() {
            let device = level.identity.0;
            let Some(next) = enter(&here, &name)? else { continue };
            let level = Level::of(name, &next)?;
            // Something that somebody has mounted there.
            if level.identity.0 != device {
                continue;
            }
            entered(next.as_fd())?;
            here = next;
            levels.push(level);
            continue;
        }
        let done = levels.pop();
        if let (Some(done), Some(above)) = (done, levels.last()) {
            here = openat(&here, c"..", DIRECTORY, Mode::empty())?;
            if identity(&here)? != above.identity {
                return Err(io::Error::other(format!("a cgroup below {} was moved meanwhile", top.display())));
            }
            left(here.as_fd(), &done.name)?;
        }
    }
    Ok(true)
}

/// `None`: it is gone, or no directory.
fn enter(here: &OwnedFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    match openat(here, name, DIRECTORY, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Names of directories in one that was just opened. Removed meanwhile, it has none.
fn below(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut buffer = vec![MaybeUninit::uninit(); ENTRIES];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::NOENT | Errno::NODEV) => break,
            Err(error) => return Err(error.into()),
        };
        let is_other = !matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if !is_other && ![c".", c".."].contains(&entry.file_name()) {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn unless_gone(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The cgroup, or what was to be opened in it: open says ENOENT, a read through an open file
/// ENODEV.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    /// Longer than a path may be by far, and deeper than a process may have files open.
    const DEPTH: usize = 1100;

    /// A chain of directories, each with a `cgroup.procs` that names its depth; the topmost is 0.
    fn chain(top: &Path, name: &str) {
        let mut here = openat(CWD, top, DIRECTORY, Mode::empty()).unwrap();
        for depth in 0..DEPTH {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let file = openat(&here, "cgroup.procs", flags, Mode::RUSR | Mode::WUSR).unwrap();
            File::from(file).write_all(format!("{depth}\n").as_bytes()).unwrap();
            rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
            here = openat(&here, name, DIRECTORY, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn what_is_deeper_than_any_path_is_found_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        fs::create_dir(&top).unwrap();
        chain(&top, &"d".repeat(200));
        // As the mediator's threads.
        let read = std::thread::Builder::new().stack_size(256 << 10).spawn({
            let top = top.clone();
            move || pids(&top)
        });
        let mut found = read.unwrap().join().unwrap().unwrap().unwrap();
        found.sort_unstable();
        assert!(found.iter().copied().eq(0..i32::try_from(DEPTH).unwrap()), "{} found", found.len());
        let mut chained = 0;
        let delete = |cgroup: BorrowedFd<'_>| {
            chained += 1;
            unless_gone(unlinkat(cgroup, c"cgroup.procs", AtFlags::empty()))
        };
        assert!(walk(&top, delete, |_, _| Ok(())).unwrap());
        assert_eq!(chained, DEPTH + 1);
        remove(&top).unwrap();
        assert!(!top.exists());
        remove(&top).unwrap();
        assert_eq!(pids(&top).unwrap(), None);
    }

    #[test]
    fn every_branch_is_visited_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let made = |path: &str, pids: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("cgroup.procs"), pids).unwrap();
            fs::write(path.join("freezer.state"), "FROZEN").unwrap();
        };
        for (path, pids) in [("top", "1\n0\n"), ("top/a/x", "2\n3\n"), ("top/b", "4"), ("other", "5")] {
            made(path, pids);
        }
        let top = directory.path().join("top");
        std::os::unix::fs::symlink("../other", top.join("link")).unwrap();
        let mut found = pids(&top).unwrap().unwrap();
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4]);
        write_everywhere(&top, "freezer.state", "THAWED").unwrap();
        let state = |path: &str| fs::read_to_string(directory.path().join(path).join("freezer.state")).unwrap();
        assert_eq!(["top", "top/a/x", "top/b", "other"].map(state), ["THAWED", "THAWED", "THAWED", "FROZEN"]);
    }

    #[test]
    fn what_cannot_be_written_keeps_nobody_from_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("freezer.state")).unwrap();
        fs::create_dir_all(directory.path().join("below")).unwrap();
        fs::write(directory.path().join("below/freezer.state"), "").unwrap();
        let error = write_everywhere(directory.path(), "freezer.state", "THAWED").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        assert_eq!(fs::read_to_string(directory.path().join("below/freezer.state")).unwrap(), "THAWED");
    }

    /// Of those that are removed while somebody is in them, there is a way back all the same.
    #[test]
    fn who_is_removed_meanwhile_is_left() {
        let Some(top) = own_cgroup("removed") else { return };
        let inner: PathBuf = top.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(top.join("c")).unwrap();
        let mut visited = 0;
        let vanish = |_: BorrowedFd<'_>| {
            visited += 1;
            for path in [&inner, &top.join("a")] {
                let _ = fs::remove_dir(path);
            }
            Ok(())
        };
        let walked = walk(&top, vanish, |_, _| Ok(()));
        let removed = remove(&top);
        assert!(walked.unwrap());
        removed.unwrap();
        assert!((2..=4).contains(&visited), "{visited}");
        assert!(!top.exists());
    }

    fn own_cgroup(test: &str) -> Option<PathBuf> {
        let tops = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let top = tops.into_iter().find(|top| top.join("cgroup.procs").exists());
        let made = top.map(|top| top.join(format!("egpu-tree-test-{}-{test}", std::process::id())));
        let made = made.filter(|path| fs::create_dir(path).is_ok());
        if made.is_none() {
            testing::skipped("no cgroup can be made here");
        }
        made
    }

    #[test]
    fn a_cgroup_too_deep_for_its_path_is_thawed_and_removed() {
        let Some(top) = own_cgroup("deep") else { return };
        let name = "d".repeat(200);
        let mut here = openat(CWD, &top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..25 {
            rustix::fs::mkdirat(&here, &*name, Mode::RWXU).unwrap();
            here = openat(&here, &*name, DIRECTORY, Mode::empty()).unwrap();
        }
        drop(here);
        let found = pids(&top);
        let removed = remove(&top);
        assert_eq!(found.unwrap(), Some(vec![]));
        removed.unwrap();
        assert!(!top.exists());
    }
}
