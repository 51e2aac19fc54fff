//! Making the cgroup, and getting a process into it without a wait for the whole machine.
//!
//! Moving a process by its pid takes the lock that every fork and exit of the machine holds for reading, and to have it the
//! kernel waits for an RCU grace period: about ten milliseconds. Two ways need no lock: a thread that moves itself alone
//! (`0` into a v1 hierarchy's `tasks`; kernel 5.5), and a process that is born where it belongs (`CLONE_INTO_CGROUP` on v2;
//! kernel 5.7).

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use super::{Cgroup, CgroupError, Layout, files};

impl Cgroup {
    /// Makes the directories that are missing, and hands the controllers down to them.
    pub(crate) fn make(&self) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies } => hierarchies.iter().try_for_each(|hierarchy| {
                make_directories(&hierarchy.directory)?;
                if hierarchy.controllers.iter().any(|name| name == "cpuset") {
                    inherit(&hierarchy.directory, "cpuset.cpus")?;
                    inherit(&hierarchy.directory, "cpuset.mems")?;
                }
                Ok(())
            }),
            Layout::V2 { directory, .. } => make_below_root(directory),
        }
    }

    /// Moves the calling thread, the only one of its process, into the directories of v1, which must exist. There is
    /// nothing to do on v2: see [`Cgroup::birthplace`].
    pub(crate) fn enter(&self) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies } => hierarchies.iter().try_for_each(|hierarchy| {
                // Not cgroup.procs: that is for whole processes, whose threads it has to keep from coming and going.
                files::write(&hierarchy.directory.join("tasks"), "0")
            }),
            Layout::V2 { .. } => Ok(()),
        }
    }

    /// The directory in which a process can be born on v2; nothing on v1.
    pub(crate) fn birthplace(&self) -> Result<Option<OwnedFd>, CgroupError> {
        match &self.layout {
            Layout::V1 { .. } => Ok(None),
            Layout::V2 { directory, .. } => open(directory).map(Some),
        }
    }

    /// Where on v2 a process of the container is that sits in a cgroup below the container's: one that hands its controllers
    /// down itself takes no process any more. `membership` is the text of `/proc/PID/cgroup`.
    pub(crate) fn birthplace_beside(&self, membership: &str) -> Result<Option<OwnedFd>, CgroupError> {
        let Layout::V2 { directory, .. } = &self.layout else { return Ok(None) };
        let path = membership.lines().find_map(|line| line.strip_prefix("0::"));
        match path.and_then(|path| below(directory, Path::new(path))) {
            Some(place) => open(&place).map(Some),
            None => Ok(None),
        }
    }
}

fn open(directory: &Path) -> Result<OwnedFd, CgroupError> {
    let opened = fs::File::open(directory);
    opened.map(OwnedFd::from).map_err(|source| CgroupError::Read { path: directory.to_owned(), source })
}

fn make_directories(directory: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(directory).map_err(|source| CgroupError::Make { path: directory.to_owned(), source })
}

/// A new cpuset is empty, and takes nobody until it has been given something of its parent's.
fn inherit(directory: &Path, file: &str) -> Result<String, CgroupError> {
    let path = directory.join(file);
    let own = files::read(&path)?;
    if !own.trim().is_empty() {
        return Ok(own);
    }
    let Some(parent) = directory.parent() else { return Ok(own) };
    let inherited = inherit(parent, file)?;
    files::write(&path, inherited.trim())?;
    Ok(inherited)
}

/// From the root of the hierarchy down: each level hands all its controllers to the next. One that cannot be handed down
/// is missed by whoever sets a limit that needs it.
fn make_below_root(directory: &Path) -> Result<(), CgroupError> {
    let is_cgroup = |path: &Path| !path.exists() || path.join("cgroup.subtree_control").exists();
    let above: Vec<&Path> = directory.ancestors().skip(1).take_while(|path| is_cgroup(path)).collect();
    for level in above.into_iter().rev() {
        make_directories(level)?;
        let (has, gives) = (level.join("cgroup.controllers"), level.join("cgroup.subtree_control"));
        let given = files::read(&gives)?;
        for controller in files::read(&has)?.split_whitespace() {
            if given.split_whitespace().any(|name| name == controller) {
                continue;
            }
            if let Err(error) = files::write(&gives, &format!("+{controller}")) {
                tracing::debug!(controller, error = &error as &dyn std::error::Error, "not handed down");
            }
        }
    }
    make_directories(directory)
}

/// `path`, as `/proc/PID/cgroup` has it, as a directory at or below the container's; `None` when it is elsewhere.
fn below(directory: &Path, path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|ancestor| {
        let relative = ancestor.strip_prefix("/").ok().filter(|relative| !relative.as_os_str().is_empty())?;
        if !directory.ends_with(relative) {
            return None;
        }
        Some(directory.join(path.strip_prefix(ancestor).ok()?))
    })
}

/// Whether a process could not be born in a cgroup because that one is for cgroups only, or of threads.
pub(crate) fn takes_no_process(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::testing::{self, RealCgroup};

    #[test]
    fn a_single_thread_enters_every_v1_hierarchy() {
        let Some(real) = RealCgroup::v1("enter", &["freezer", "pids", "cpuset", "memory"]) else { return };
        real.cgroup.make().unwrap();
        let directories: Vec<PathBuf> = real.cgroup.directories().map(Path::to_owned).collect();
        let before: Vec<String> = directories.iter().map(|at| fs::read_to_string(at.join("tasks")).unwrap()).collect();
        assert!(before.iter().all(String::is_empty));
        // The calling thread alone moves, and leaves nothing behind when it ends.
        let cgroup = real.cgroup.clone();
        let found = std::thread::spawn({
            let directories = directories.clone();
            move || {
                cgroup.enter().unwrap();
                directories.iter().map(|at| fs::read_to_string(at.join("tasks")).unwrap()).collect::<Vec<_>>()
            }
        });
        assert!(found.join().unwrap().iter().all(|tasks| tasks.lines().count() == 1));
        // A thread can be joined a moment before the kernel has taken it out of its cgroups.
        for directory in &directories {
            testing::until("the thread is gone", || fs::read_to_string(directory.join("tasks")).unwrap().is_empty());
        }
    }

    #[test]
    fn a_new_cpuset_gets_what_its_parent_has() {
        let root = testing::directory(&[("cpuset.cpus", "0-3\n"), ("cpuset.mems", "0\n")]);
        testing::add(root.path(), &[("a/cpuset.cpus", "\n"), ("a/cpuset.mems", "0")]);
        testing::add(root.path(), &[("a/b/cpuset.cpus", ""), ("a/b/cpuset.mems", "")]);
        testing::v1(&[(&["cpuset"], &root.path().join("a/b"))]).make().unwrap();
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(read("a/cpuset.cpus").trim(), "0-3");
        assert_eq!((read("a/b/cpuset.cpus").trim().to_owned(), read("a/b/cpuset.mems").trim().to_owned()), {
            ("0-3".to_owned(), "0".to_owned())
        });
    }

    #[test]
    fn v2_hands_controllers_down_from_the_root() {
        let host =
            testing::directory(&[("m/cgroup.controllers", "cpu memory\n"), ("m/cgroup.subtree_control", "cpu\n")]);
        testing::add(host.path(), &[("m/a/cgroup.controllers", "cpu"), ("m/a/cgroup.subtree_control", "")]);
        testing::v2(&host.path().join("m/a/b")).make().unwrap();
        let read = |name: &str| fs::read_to_string(host.path().join(name)).unwrap();
        assert_eq!(read("m/cgroup.subtree_control"), "+memory", "cpu was there already");
        assert_eq!(read("m/a/cgroup.subtree_control"), "+cpu");
        assert!(host.path().join("m/a/b").is_dir());
    }

    #[test]
    fn a_process_below_the_container_is_found_and_one_elsewhere_is_not() {
        let container = Path::new("/sys/fs/cgroup/kubepods/pod1/c1");
        let at = |path: &str| below(container, Path::new(path));
        assert_eq!(at("/kubepods/pod1/c1/init"), Some(container.join("init")));
        assert_eq!(at("/kubepods/pod1/c1"), Some(container.join("")));
        for elsewhere in ["/", "/kubepods/pod1/c2/init", "/kubepods", "/other/init"] {
            assert_eq!(at(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn v2_directories_are_made_and_can_be_opened() {
        let Some(real) = RealCgroup::v2("birth") else { return };
        let inner = testing::v2(&real.cgroup.directories().next().unwrap().join("a/b"));
        inner.make().unwrap();
        assert!(inner.birthplace().unwrap().is_some());
        assert!(inner.is_empty().unwrap());
    }
}
