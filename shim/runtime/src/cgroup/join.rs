//! Making the cgroup, and getting a process into it without a wait for the whole machine.
//!
//! Moving a process by its pid takes the lock that every fork and exit of the machine holds for
//! reading, and to have it the kernel waits for an RCU grace period: about ten milliseconds. Two
//! ways need no lock: a thread that moves itself alone (`0` into a v1 hierarchy's `tasks`; kernel
//! 5.5), and a process that begins where it belongs (`CLONE_INTO_CGROUP` on v2; kernel 5.7).

use std::{
    collections::HashMap,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources};

use super::{Cgroup, CgroupError, Layout, files};

/// Room for a service manager, or a whole Kubernetes node, within a container.
const MAX_DEPTH: &str = "64";
const MAX_DESCENDANTS: &str = "8192";

impl Cgroup {
    /// Creates the directories that are missing, and hands the controllers down to them.
    pub(crate) fn make(&self) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies.iter().try_for_each(|hierarchy| {
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

    /// Moves the calling thread, the only one of its process, into the directories of v1, which
    /// must exist. There is nothing to do on v2, a hybrid host's included: see
    /// [`Cgroup::clone_target`].
    pub(crate) fn enter(&self) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                hierarchies.iter().filter(|one| !one.is_unified()).try_for_each(|hierarchy| {
                    // Not cgroup.procs: that is for whole processes, whose threads it has to keep
                    // from coming and going.
                    files::write(&hierarchy.directory.join("tasks"), "0")
                })
            }
            Layout::V2 { .. } => Ok(()),
        }
    }

    /// Enters the hierarchies that remain for a process that systemd has put into the container's
    /// scope: it knows some hierarchies only, and of a hybrid host's v2 not always.
    pub(crate) fn enter_beyond_systemd(&self) -> Result<(), CgroupError> {
        self.enter()?;
        match self.unified().filter(|_| self.is_v1()) {
            Some(unified) => files::write(&unified.join("cgroup.procs"), "0"),
            None => Ok(()),
        }
    }

    /// Opens the directory in which a process can begin on v2, a hybrid host's included; nothing on
    /// v1.
    pub(crate) fn clone_target(&self) -> Result<Option<OwnedFd>, CgroupError> {
        self.unified().map(open).transpose()
    }

    /// Bounds how many cgroups the container may make below its own on v2, where `given` (the
    /// spec's `unified`) does not: each costs whoever looks for its processes. It can lift the
    /// bound where v2 is mounted without `nsdelegate`; v1 has none.
    pub(crate) fn limit_nesting(&self, given: Option<&HashMap<String, String>>) -> Result<(), CgroupError> {
        let Some(directory) = self.unified() else { return Ok(()) };
        for (file, most) in [("cgroup.max.depth", MAX_DEPTH), ("cgroup.max.descendants", MAX_DESCENDANTS)] {
            if given.is_some_and(|given| given.contains_key(file)) {
                continue;
            }
            match files::write(&directory.join(file), most) {
                // Before Linux 4.14.
                Err(CgroupError::Write { source, .. }) if files::is_gone(&source) => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// Gives a user the parts of a cgroup of v2 that delegation requires: the directory, and the
    /// files that the kernel names.
    pub(crate) fn delegate_to(&self, uid: u32) -> Result<(), CgroupError> {
        // Before Linux 4.15 (cgroups(7)).
        const FILES: &str = "cgroup.procs\ncgroup.subtree_control\ncgroup.threads\n";
        let Layout::V2 { directory, .. } = &self.layout else { return Ok(()) };
        let named = fs::read_to_string("/sys/kernel/cgroup/delegate").unwrap_or_else(|_| FILES.to_owned());
        for path in std::iter::once(directory.clone()).chain(named.lines().map(|file| directory.join(file))) {
            match std::os::unix::fs::chown(&path, Some(uid), None) {
                // Of a controller that it does not have.
                Err(source) if files::is_gone(&source) => {}
                given => given.map_err(|source| CgroupError::Write { path, value: format!("owner {uid}"), source })?,
            }
        }
        Ok(())
    }

    /// Takes swap on v2 from a container that may have as much memory and swap as memory:
    /// libcgroups takes the 0 that is left for nothing to set. The spec's `unified` goes before.
    pub(crate) fn forbid_swap(&self, resources: &LinuxResources) -> Result<(), CgroupError> {
        const FILE: &str = "memory.swap.max";
        let (Layout::V2 { directory, .. }, Some(memory)) = (&self.layout, resources.memory()) else { return Ok(()) };
        let is_memory_alone = memory.limit().is_some_and(|limit| limit > 0 && memory.swap() == Some(limit));
        let is_given = resources.unified().as_ref().is_some_and(|given| given.contains_key(FILE));
        if !is_memory_alone || is_given {
            return Ok(());
        }
        match files::write(&directory.join(FILE), "0") {
            // A kernel that does not count swap, most often as it has none.
            Err(CgroupError::Write { source, .. }) if files::is_gone(&source) => Ok(()),
            written => written,
        }
    }

    /// Takes the host's console from a container on v1, but for what `rules` say of it: libcgroups
    /// gives it to all.
    pub(crate) fn deny_console(&self, rules: &[LinuxDeviceCgroup]) -> Result<(), CgroupError> {
        let Some(directory) = self.v1_controller("devices") else { return Ok(()) };
        let mut denied = "rwm".to_owned();
        for rule in rules {
            let letters = match rule.typ().unwrap_or_default() {
                LinuxDeviceType::A => "rwm",
                // What speaks of others, too, the kernel keeps beside this.
                LinuxDeviceType::C | LinuxDeviceType::U if (rule.major(), rule.minor()) == (Some(5), Some(1)) => {
                    rule.access().as_deref().unwrap_or("rwm")
                }
                _ => continue,
            };
            denied.retain(|letter| !letters.contains(letter));
            if !rule.allow() {
                denied.push_str(letters);
            }
        }
        if denied.is_empty() {
            Ok(())
        } else {
            files::write(&directory.join("devices.deny"), &format!("c 5:1 {denied}"))
        }
    }

    /// Opens the cgroup on v2 of a process of the container that sits below the container's: one
    /// that hands its controllers down itself takes no process any more. `membership` is the text
    /// of `/proc/PID/cgroup`.
    pub(crate) fn clone_target_of(&self, membership: &str) -> Result<Option<OwnedFd>, CgroupError> {
        self.place_of(membership).map(|place| open(&place)).transpose()
    }

    /// The directory of v2 of a process of the container; `None` where it is elsewhere.
    pub(super) fn place_of(&self, membership: &str) -> Option<PathBuf> {
        let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
        below(self.unified()?, Path::new(path))
    }
}

fn open(directory: &Path) -> Result<OwnedFd, CgroupError> {
    let opened = fs::File::open(directory);
    opened.map(OwnedFd::from).map_err(|source| CgroupError::Read { path: directory.to_owned(), source })
}

fn make_directories(directory: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(directory).map_err(|source| CgroupError::Make { path: directory.to_owned(), source })
}

/// Fills a new cpuset from its parent's: it is empty, and takes no process before.
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

/// Creates the directories from the root of the hierarchy down: each level hands all its
/// controllers to the next. One that cannot be handed down is missed by whoever sets a limit that
/// needs it.
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

/// `path`, as `/proc/PID/cgroup` has it, as a directory at or below the container's; `None` when it
/// is elsewhere.
fn below(directory: &Path, path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|ancestor| {
        let relative = ancestor.strip_prefix("/").ok().filter(|relative| !relative.as_os_str().is_empty())?;
        if !directory.ends_with(relative) {
            return None;
        }
        Some(directory.join(path.strip_prefix(ancestor).ok()?))
    })
}

/// Returns whether a process could not be born in a cgroup because that one is for cgroups only, or
/// of threads.
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
    fn nesting_is_bounded_where_the_spec_does_not() {
        let cgroup = testing::directory(&[("cgroup.max.depth", ""), ("cgroup.max.descendants", "")]);
        let read = |name: &str| fs::read_to_string(cgroup.path().join(name)).unwrap();
        let given = HashMap::from([("cgroup.max.depth".to_owned(), "max".to_owned())]);
        testing::v2(cgroup.path()).limit_nesting(Some(&given)).unwrap();
        assert_eq!([read("cgroup.max.depth"), read("cgroup.max.descendants")], ["", MAX_DESCENDANTS]);
        // A hybrid host's, too.
        testing::v1(&[(&[], cgroup.path())]).limit_nesting(None).unwrap();
        assert_eq!(read("cgroup.max.depth"), MAX_DEPTH);
        testing::v1(&[(&["pids"], Path::new("/nowhere"))]).limit_nesting(None).unwrap();
        let old = testing::directory(&[]);
        testing::v2(old.path()).limit_nesting(None).unwrap();
    }

    #[test]
    fn who_a_cgroup_is_delegated_to_owns_what_is_needed_for_that() {
        use std::os::unix::fs::MetadataExt;

        let files = ["cgroup.procs", "cgroup.subtree_control", "cgroup.max.depth"];
        let cgroup = testing::directory(&files.map(|file| (file, "")));
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: who_a_cgroup_is_delegated_to_owns_what_is_needed_for_that: needs root");
            return;
        }
        testing::v2(cgroup.path()).delegate_to(100_000).unwrap();
        let owner = |path: &Path| fs::metadata(path).unwrap().uid();
        assert_eq!(owner(cgroup.path()), 100_000);
        assert_eq!(files.map(|file| owner(&cgroup.path().join(file))), [100_000, 100_000, 0]);
    }

    #[test]
    fn as_much_memory_and_swap_as_memory_is_no_swap() {
        for (resources, swap) in [
            (serde_json::json!({ "memory": { "limit": 4096, "swap": 4096 } }), "0"),
            (serde_json::json!({ "memory": { "limit": 4096, "swap": 8192 } }), ""),
            (serde_json::json!({ "memory": { "limit": 4096 } }), ""),
            (serde_json::json!({ "memory": { "limit": 0, "swap": 0 } }), ""),
            (serde_json::json!({ "memory": { "limit": -1, "swap": -1 } }), ""),
            (serde_json::json!({ "memory": { "limit": 1, "swap": 1 }, "unified": { "memory.swap.max": "9" } }), ""),
            (serde_json::json!({}), ""),
        ] {
            let asked = serde_json::from_value(resources.clone()).unwrap();
            let cgroup = testing::directory(&[("memory.swap.max", "")]);
            testing::v2(cgroup.path()).forbid_swap(&asked).unwrap();
            assert_eq!(fs::read_to_string(cgroup.path().join("memory.swap.max")).unwrap(), swap, "{resources}");
            let uncounted = testing::directory(&[]);
            testing::v2(uncounted.path()).forbid_swap(&asked).unwrap();
            testing::v1(&[(&["memory"], uncounted.path())]).forbid_swap(&asked).unwrap();
        }
    }

    #[test]
    fn the_hosts_console_is_denied_as_far_as_no_rule_allows_it() {
        let allow = |kind: &str, major: i64, minor: i64, access: &str, allow: bool| -> LinuxDeviceCgroup {
            let rule =
                serde_json::json!({ "type": kind, "major": major, "minor": minor, "access": access, "allow": allow });
            serde_json::from_value(rule).unwrap()
        };
        let nothing = allow("a", -1, -1, "rwm", false);
        for (rules, denied) in [
            (vec![nothing.clone(), allow("c", 5, 2, "rwm", true)], "c 5:1 rwm"),
            (vec![nothing.clone(), allow("c", -1, -1, "m", true)], "c 5:1 rwm"),
            (vec![nothing.clone(), allow("c", 5, 1, "rw", true), allow("c", 5, 1, "w", false)], "c 5:1 mw"),
            (vec![nothing.clone(), allow("c", 5, 1, "rwm", true)], ""),
            (vec![allow("a", -1, -1, "rwm", true)], ""),
        ] {
            let directory = testing::directory(&[("devices.deny", "")]);
            testing::v1(&[(&["devices"], directory.path())]).deny_console(&rules).unwrap();
            assert_eq!(fs::read_to_string(directory.path().join("devices.deny")).unwrap(), denied, "{rules:?}");
        }
    }

    #[test]
    fn on_a_hybrid_host_the_unified_hierarchy_is_made_and_born_in() {
        let (Some(named), Some(unified)) = (RealCgroup::v1("hybrid", &["systemd"]), RealCgroup::v2("hybrid")) else {
            return;
        };
        let place = |real: &RealCgroup| real.cgroup.directories().next().unwrap().join("inner");
        let (named, unified) = (place(&named), place(&unified));
        let cgroup = testing::v1(&[(&["name=systemd"], &named), (&[], &unified)]);
        cgroup.make().unwrap();
        assert!(named.is_dir() && unified.is_dir());
        assert!(cgroup.clone_target().unwrap().is_some());
        let tasks = std::thread::spawn(move || {
            cgroup.enter().unwrap();
            fs::read_to_string(named.join("tasks")).unwrap()
        });
        assert_eq!(tasks.join().unwrap().lines().count(), 1);
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
        assert!(inner.clone_target().unwrap().is_some());
        assert!(inner.is_empty().unwrap());
    }
}
