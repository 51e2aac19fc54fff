//! Mount points of the cgroup hierarchies.

use std::path::{Component, Path, PathBuf};

use super::locate::join_below;

/// The cgroup file systems that this mount namespace has.
#[derive(Debug, Clone, Default)]
pub(super) struct HierarchyMounts {
    pub(super) v1: Vec<Mount>,
    pub(super) v2: Option<Mount>,
}

#[derive(Debug, Clone)]
pub(super) struct Mount {
    /// The directory of the hierarchy that is mounted, `/` outside containers.
    root: PathBuf,
    pub(super) point: PathBuf,
    /// Empty on v2.
    pub(super) controllers: Vec<String>,
}

impl HierarchyMounts {
    /// The mounts of a machine whose cgroup v2 is whole at `point`, which is how libcontainer tells
    /// v2; `None` elsewhere. The root cgroup alone has no type.
    pub(super) fn unified(point: &Path) -> Option<Self> {
        let is_v2 = rustix::fs::statfs(point).is_ok_and(|found| found.f_type == libc::CGROUP2_SUPER_MAGIC);
        let root = PathBuf::from("/");
        (is_v2 && !point.join("cgroup.type").exists()).then(|| Self {
            v1: Vec::new(),
            v2: Some(Mount { root, point: point.to_owned(), controllers: Vec::new() }),
        })
    }

    /// v2 alone, or with named v1 hierarchies that carry no controller.
    pub(super) fn is_v2(&self) -> bool {
        self.v1.iter().all(Mount::is_named) && self.v2.is_some()
    }

    pub(super) fn v1_of(&self, controllers: &[&str]) -> Option<&Mount> {
        self.v1.iter().find(|mount| {
            !controllers.is_empty() && controllers.iter().all(|name| mount.controllers.iter().any(|own| own == name))
        })
    }
}

impl Mount {
    fn is_named(&self) -> bool {
        self.controllers.iter().all(|name| name.starts_with("name="))
    }

    /// Returns the directory at which a path within the hierarchy is seen; `None` when it lies
    /// outside what is mounted.
    pub(super) fn directory(&self, path: &Path) -> Option<PathBuf> {
        if path.components().any(|component| component == Component::ParentDir) {
            return None;
        }
        let below = path.strip_prefix(&self.root).ok()?;
        Some(join_below(&self.point, below))
    }
}

/// Finds the cgroup mounts in `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). The first mount of a
/// hierarchy wins.
pub(super) fn parse_mountinfo(text: &str) -> HierarchyMounts {
    let mut mounts = HierarchyMounts::default();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(3);
        let (Some(root), Some(point)) = (left.next(), left.next()) else { continue };
        let mut right = right.split(' ');
        let (Some(kind), Some(options)) = (right.next(), right.nth(1)) else { continue };
        let mount = |controllers| Mount { root: unescape(root), point: unescape(point), controllers };
        match kind {
            "cgroup2" if mounts.v2.is_none() => mounts.v2 = Some(mount(Vec::new())),
            "cgroup" => {
                let controllers: Vec<String> =
                    options.split(',').filter(|name| is_controller(name)).map(str::to_owned).collect();
                if !controllers.is_empty() && !mounts.v1.iter().any(|known| known.controllers == controllers) {
                    mounts.v1.push(mount(controllers));
                }
            }
            _ => {}
        }
    }
    mounts
}

/// Every controller that v1 ever had (kernel `include/linux/cgroup_subsys.h`; v1 gets no new ones),
/// and named hierarchies.
fn is_controller(option: &str) -> bool {
    const V1_CONTROLLERS: [&str; 15] = [
        "blkio",
        "cpu",
        "cpuacct",
        "cpuset",
        "debug",
        "devices",
        "freezer",
        "hugetlb",
        "memory",
        "misc",
        "net_cls",
        "net_prio",
        "perf_event",
        "pids",
        "rdma",
    ];
    option.starts_with("name=") || V1_CONTROLLERS.contains(&option)
}

/// mountinfo writes space, tab, newline and backslash as octal.
fn unescape(field: &str) -> PathBuf {
    let mut rest = field;
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, after.get(3..)) {
            (Some(code), Some(after)) => {
                text.push(char::from(code));
                rest = after;
            }
            _ => {
                text.push('\\');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against this machine's own table.
    #[test]
    fn a_whole_v2_is_known_without_the_table() {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let Some(mount) = parse_mountinfo(&table).v2.filter(|mount| !mount.point.join("cgroup.type").exists()) else {
            testing::skipped("no cgroup v2 is mounted here as a whole");
            return;
        };
        let unified = |point: &Path| HierarchyMounts::unified(point).and_then(|mounts| mounts.v2);
        let found = unified(&mount.point).unwrap();
        assert_eq!((&found.root, &found.point), (&mount.root, &mount.point));
        assert!(unified(Path::new("/proc")).is_none());
        let below = std::fs::read_dir(&mount.point).unwrap().filter_map(|entry| entry.ok().map(|entry| entry.path()));
        assert!(below.filter(|path| path.join("cgroup.type").exists()).all(|path| unified(&path).is_none()));
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape("/a\\0"), Path::new("/a\\0"));
    }
}
