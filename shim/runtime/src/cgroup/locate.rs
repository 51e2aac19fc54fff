//! Finding a container's cgroup: from a live process, or from the spec alone.

use std::{
    borrow::Cow,
    fs,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

use super::{
    Cgroup, Hierarchy, Layout, LocateError, Scope,
    mounts::{HierarchyMounts, parse_mountinfo},
};

/// The file system under which `/proc` and `/sys` are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl Host {
    /// A tree that looks like a host: `ROOT/proc/PID/cgroup`, `ROOT/proc/self/mountinfo`, and the
    /// mounts named there. For tests.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn read(&self, path: &str) -> Result<String, LocateError> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(|source| LocateError::Read { path, source })
    }

    /// Finds where the hierarchies of this machine are mounted, for good: also for the processes
    /// that this one forks. Each read of `/proc/self/mountinfo` waits for whoever mounts or
    /// unmounts anything on the machine, and that is what containers do that begin together.
    pub fn remember_mounts() {
        // Whoever needs them tries again, and says why they cannot be found.
        let _ = Self::default().mounts();
    }

    fn mounts(&self) -> Result<Cow<'static, HierarchyMounts>, LocateError> {
        static OWN: OnceLock<HierarchyMounts> = OnceLock::new();
        let is_own = *self == Self::default();
        if let Some(mounts) = OWN.get().filter(|_| is_own) {
            return Ok(Cow::Borrowed(mounts));
        }
        let mounts = match HierarchyMounts::unified(Path::new("/sys/fs/cgroup")).filter(|_| is_own) {
            Some(unified) => unified,
            None => parse_mountinfo(&self.read("proc/self/mountinfo")?),
        };
        if mounts.v1.is_empty() && mounts.v2.is_none() {
            return Err(LocateError::NotMounted);
        }
        Ok(if is_own { Cow::Borrowed(OWN.get_or_init(|| mounts)) } else { Cow::Owned(mounts) })
    }

    fn rooted(&self, path: &Path) -> PathBuf {
        join_below(&self.root, path)
    }
}

/// The spec's path of the container's cgroup, resolved as libcontainer does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupsPath {
    /// `linux.cgroupsPath`, or libcontainer's default for a spec without one.
    given: PathBuf,
    /// Created through systemd: `given` is `slice:prefix:name`. Ignored for an absolute path.
    systemd: bool,
}

impl CgroupsPath {
    /// Resolves `linux.cgroupsPath` of the spec with the container's id; `systemd`: that driver is
    /// used.
    pub fn new(cgroups_path: Option<&Path>, id: &str, systemd: bool) -> Result<Self, LocateError> {
        let given = match cgroups_path {
            Some(path) if !path.as_os_str().is_empty() => path.to_owned(),
            _ => PathBuf::from(format!(":youki:{id}")),
        };
        let bad = |reason| LocateError::BadPath { path: given.clone(), reason };
        if given.components().any(|component| component == Component::ParentDir) {
            return Err(bad("it must not contain `..`"));
        }
        if !given.components().any(|component| matches!(component, Component::Normal(_))) {
            return Err(bad("it names the root cgroup; name one below it"));
        }
        let systemd = systemd && given.is_relative();
        if systemd && systemd_path(&given).is_none() {
            return Err(bad("with the systemd driver it must read slice:prefix:name, and name a scope"));
        }
        Ok(Self { given, systemd })
    }

    /// Returns the end of its path on v2. A slice of the systemd driver is left out: the service
    /// manager may itself run below another cgroup, and the unit's name is unique.
    fn on_v2(&self) -> PathBuf {
        match self.systemd_path() {
            Some((_, scope)) => PathBuf::from(scope.unit),
            None => relative(&self.given),
        }
    }

    fn systemd_path(&self) -> Option<(PathBuf, Scope)> {
        self.systemd.then(|| systemd_path(&self.given)).flatten()
    }

    /// The scope that holds the container, with the systemd driver.
    pub(crate) fn scope(&self) -> Option<Scope> {
        self.systemd_path().map(|(_, scope)| scope)
    }

    /// Returns the container's cgroup below the root of a hierarchy that is mounted whole.
    pub(crate) fn below_root(&self) -> PathBuf {
        match self.systemd_path() {
            Some((slice, scope)) => slice.join(scope.unit),
            None => relative(&self.given),
        }
    }

    fn systemd_unit(&self) -> Option<String> {
        self.scope().map(|scope| scope.unit)
    }
}

impl Cgroup {
    /// The cgroup of a container whose process `pid` is alive and has not moved itself: call it
    /// between create and start, and keep the result.
    ///
    /// Hierarchies in which the process sits somewhere else than `path` says are left out.
    pub fn of_process(host: &Host, pid: i32, path: &CgroupsPath) -> Result<Self, LocateError> {
        let mounts = host.mounts()?;
        let text = host.read(&format!("proc/{pid}/cgroup"))?;
        let found: Vec<Membership<'_>> = text.lines().filter_map(Membership::parse).collect();
        let not_in_container = |expected: PathBuf| LocateError::NotInContainer {
            pid,
            expected,
            found: found.iter().map(|membership| membership.path).collect::<Vec<_>>().join(" "),
        };

        if mounts.is_v2() {
            let expected = path.on_v2();
            let directory = found
                .iter()
                .filter(|membership| membership.is_v2() && Path::new(membership.path).ends_with(&expected))
                .find_map(|membership| mounts.v2.as_ref()?.directory(Path::new(membership.path)))
                .ok_or_else(|| not_in_container(expected))?;
            return Ok(Self {
                layout: Layout::V2 { directory: host.rooted(&directory), systemd_unit: path.systemd_unit() },
            });
        }

        let expected = path.below_root();
        let hierarchies: Vec<Hierarchy> = found
            .iter()
            .filter(|membership| Path::new(membership.path).ends_with(&expected))
            .filter_map(|membership| {
                let mount = match membership.is_v2() {
                    true => mounts.v2.as_ref()?,
                    false => mounts.v1_of(&membership.controllers)?,
                };
                let directory = host.rooted(&mount.directory(Path::new(membership.path))?);
                Some(Hierarchy {
                    controllers: membership.controllers.iter().map(|&name| name.to_owned()).collect(),
                    directory,
                })
            })
            .collect();
        // The unified one alone, where it has no controllers, says nothing of a container.
        if hierarchies.iter().all(Hierarchy::is_unified) {
            return Err(not_in_container(expected));
        }
        Ok(Self { layout: Layout::V1 { hierarchies, systemd_unit: path.systemd_unit() } })
    }

    /// Returns the cgroup that the container will have, or had: what `delete` uses after a crash
    /// that left nothing else. The directories need not exist.
    pub fn intended(host: &Host, path: &CgroupsPath) -> Result<Self, LocateError> {
        let mounts = host.mounts()?;
        if mounts.is_v2() {
            let mount = mounts.v2.as_ref().ok_or(LocateError::NotMounted)?;
            let directory = host.rooted(&join_below(&mount.point, &path.below_root()));
            return Ok(Self { layout: Layout::V2 { directory, systemd_unit: path.systemd_unit() } });
        }
        let hierarchies = mounts
            .v1
            .iter()
            .chain(&mounts.v2)
            .map(|mount| Hierarchy {
                controllers: mount.controllers.clone(),
                directory: host.rooted(&join_below(&mount.point, &path.below_root())),
            })
            .collect();
        Ok(Self { layout: Layout::V1 { hierarchies, systemd_unit: path.systemd_unit() } })
    }
}

/// `slice:prefix:name` as (path of the slice, scope): `kubepods-burstable.slice:cri-containerd:ID`
/// is `kubepods.slice/kubepods-burstable.slice` and `cri-containerd-ID.scope`. See
/// systemd.slice(5).
fn systemd_path(given: &Path) -> Option<(PathBuf, Scope)> {
    let mut parts = given.to_str()?.splitn(3, ':');
    let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
    // No process lives in a slice.
    if name.is_empty() || name.ends_with(".slice") || [slice, prefix, name].iter().any(|part| part.contains('/')) {
        return None;
    }
    let slice = if slice.is_empty() { "system.slice" } else { slice };
    let unit = if prefix.is_empty() { format!("{name}.scope") } else { format!("{prefix}-{name}.scope") };
    Some((expand_slice(slice)?, Scope { slice: slice.to_owned(), unit }))
}

/// `a-b.slice` lies in `a.slice/a-b.slice`; `-.slice` is the root.
fn expand_slice(slice: &str) -> Option<PathBuf> {
    let name = slice.strip_suffix(".slice")?;
    if name == "-" {
        return Some(PathBuf::new());
    }
    let mut path = PathBuf::new();
    let mut prefix = String::new();
    for part in name.split('-') {
        if part.is_empty() {
            return None;
        }
        prefix.push_str(part);
        path.push(format!("{prefix}.slice"));
        prefix.push('-');
    }
    Some(path)
}

/// One line of `/proc/PID/cgroup`: `4:memory:/k8s.io/ID`.
struct Membership<'text> {
    controllers: Vec<&'text str>,
    path: &'text str,
}

impl<'text> Membership<'text> {
    fn parse(line: &'text str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (_id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self { controllers: controllers.split(',').filter(|name| !name.is_empty()).collect(), path })
    }

    fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }
}

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|component| matches!(component, Component::Normal(_))).collect()
}

pub(super) fn join_below(base: &Path, path: &Path) -> PathBuf {
    base.join(relative(path))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::cgroup::testing;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,seclabel,memory
38 31 0:35 /docker/outer /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";
    const UNIFIED: &str =
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

    fn host(mountinfo: &str, memberships: &str) -> (TempDir, Host) {
        let root = testing::directory(&[("proc/self/mountinfo", mountinfo), ("proc/77/cgroup", memberships)]);
        let host = Host::under(root.path());
        (root, host)
    }

    fn below(root: &TempDir, cgroup: &Cgroup) -> Vec<String> {
        cgroup.directories().map(|path| path.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned()).collect()
    }

    fn path(given: &str, systemd: bool) -> CgroupsPath {
        CgroupsPath::new(Some(Path::new(given)), "c1", systemd).unwrap()
    }

    #[test]
    fn on_v1_only_the_containers_own_hierarchies_are_taken() {
        let memberships = "9:name=systemd:/system.slice/containerd.service\n8:pids:/docker/outer/k8s.io/c1\n\
                           4:memory:/k8s.io/c1\n1:cpu,cpuacct:/k8s.io/c1\n0::/system.slice/containerd.service\n";
        let (root, host) = host(HYBRID, memberships);
        let cgroup = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap();
        assert_eq!(
            below(&root, &cgroup),
            ["sys/fs/cgroup/pids/k8s.io/c1", "sys/fs/cgroup/memory/k8s.io/c1", "sys/fs/cgroup/cpu,cpuacct/k8s.io/c1"]
        );
        assert!(cgroup.v1_controller("cpuacct").unwrap().ends_with("cpu,cpuacct/k8s.io/c1"));
        assert_eq!(cgroup.v1_controller("name=systemd"), None);
        // What is not mounted in this namespace cannot be reached.
        let elsewhere = "8:pids:/k8s.io/c1\n4:memory:/k8s.io/c1\n";
        testing::add(root.path(), &[("proc/77/cgroup", elsewhere)]);
        let cgroup = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap();
        assert_eq!(below(&root, &cgroup), ["sys/fs/cgroup/memory/k8s.io/c1"]);
    }

    #[test]
    fn on_a_hybrid_host_named_and_unified_hierarchies_are_the_containers_too() {
        let memberships = "9:name=systemd:/k8s.io/c1\n4:memory:/k8s.io/c1\n0::/k8s.io/c1\n";
        let (root, host) = host(HYBRID, memberships);
        let cgroup = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap();
        let own = ["systemd", "memory", "unified"].map(|name| format!("sys/fs/cgroup/{name}/k8s.io/c1"));
        assert_eq!(below(&root, &cgroup), own);
        assert!(cgroup.unified().unwrap().ends_with("unified/k8s.io/c1"));
        let intended = Cgroup::intended(&host, &path("/k8s.io/c1", false)).unwrap();
        let intended = below(&root, &intended);
        assert!(own.iter().all(|own| intended.contains(own)), "{intended:?}");
        assert_eq!(intended.len(), 5, "{intended:?}");
        let kept = serde_json::to_string(&cgroup).unwrap();
        assert_eq!(serde_json::from_str::<Cgroup>(&kept).unwrap(), cgroup);
    }

    #[test]
    fn a_process_outside_the_container_is_not_taken_for_it() {
        let (_root, host) = host(HYBRID, "4:memory:/system.slice/containerd.service\n0::/k8s.io/c1\n");
        let error = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "process 77 is in no cgroup that ends in \"k8s.io/c1\": /proc/77/cgroup has \
             /system.slice/containerd.service /k8s.io/c1"
        );
        assert!(matches!(
            Cgroup::of_process(&host, 78, &path("/k8s.io/c1", false)),
            Err(LocateError::Read { path, .. }) if path.ends_with("proc/78/cgroup")
        ));
    }

    #[test]
    fn on_v2_there_is_one_directory() {
        let (root, host) = host(UNIFIED, "0::/k8s.io/c1\n");
        let cgroup = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap();
        assert_eq!(below(&root, &cgroup), ["sys/fs/cgroup/k8s.io/c1"]);
        assert_eq!(Cgroup::intended(&host, &path("/k8s.io/c1", false)).unwrap(), cgroup);
    }

    #[test]
    fn a_named_hierarchy_beside_v2_is_no_v1() {
        let mountinfo = format!("{UNIFIED}40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup none rw,name=systemd\n");
        let (root, host) = host(&mountinfo, "1:name=systemd:/k8s.io/c1\n0::/k8s.io/c1\n");
        let cgroup = Cgroup::of_process(&host, 77, &path("/k8s.io/c1", false)).unwrap();
        assert_eq!(below(&root, &cgroup), ["sys/fs/cgroup/k8s.io/c1"]);
    }

    #[test]
    fn systemd_scopes_lie_in_their_slices() {
        let unit = "kubepods-burstable-pod1.slice:cri-containerd:c1";
        let scope = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-c1.scope";
        let (root, host) = host(UNIFIED, &format!("0::/{scope}\n"));
        let cgroup = Cgroup::of_process(&host, 77, &path(unit, true)).unwrap();
        assert_eq!(below(&root, &cgroup), [format!("sys/fs/cgroup/{scope}")]);
        assert_eq!(Cgroup::intended(&host, &path(unit, true)).unwrap(), cgroup);
        let kept = serde_json::to_string(&cgroup).unwrap();
        assert!(kept.contains("\"systemd_unit\":\"cri-containerd-c1.scope\""), "{kept}");
        assert_eq!(serde_json::from_str::<Cgroup>(&kept).unwrap(), cgroup);
    }

    #[test]
    fn scopes_of_v1_lie_in_their_slices_of_every_hierarchy() {
        let scope = "kubepods.slice/kubepods-pod1.slice/cri-containerd-c1.scope";
        let lines = ["9:name=systemd", "8:memory", "0:"].map(|line| format!("{line}:/{scope}\n")).concat();
        let (root, host) =
            host(HYBRID, &format!("{lines}7:pids:/docker/outer/{scope}\n1:cpu,cpuacct:/system.slice/x\n"));
        let path = path("kubepods-pod1.slice:cri-containerd:c1", true);
        let cgroup = Cgroup::of_process(&host, 77, &path).unwrap();
        let own = ["systemd", "memory", "unified", "pids"].map(|name| format!("sys/fs/cgroup/{name}/{scope}"));
        assert_eq!(below(&root, &cgroup), own);
        assert_eq!(cgroup.systemd_unit(), Some("cri-containerd-c1.scope"));
        let kept = serde_json::to_string(&cgroup).unwrap();
        assert_eq!(serde_json::from_str::<Cgroup>(&kept).unwrap(), cgroup);
        assert_eq!(Cgroup::intended(&host, &path).unwrap().directories().count(), 5);
    }

    #[test]
    fn intended_paths_are_those_of_libcontainer() {
        let rows = [
            (UNIFIED, Some("/a/b"), false, "sys/fs/cgroup/a/b"),
            // An absolute path is one of the file system, with the systemd driver too.
            (UNIFIED, Some("/a/b"), true, "sys/fs/cgroup/a/b"),
            (UNIFIED, Some("a/b"), false, "sys/fs/cgroup/a/b"),
            (UNIFIED, None, false, "sys/fs/cgroup/:youki:c1"),
            (UNIFIED, Some(""), false, "sys/fs/cgroup/:youki:c1"),
            (UNIFIED, None, true, "sys/fs/cgroup/system.slice/youki-c1.scope"),
            (UNIFIED, Some(":p:n"), true, "sys/fs/cgroup/system.slice/p-n.scope"),
            (UNIFIED, Some("-.slice:p:n"), true, "sys/fs/cgroup/p-n.scope"),
            (HYBRID, Some("/a/b"), false, "sys/fs/cgroup/cpu,cpuacct/a/b"),
            (HYBRID, Some("s.slice:p:n"), true, "sys/fs/cgroup/cpu,cpuacct/s.slice/p-n.scope"),
        ];
        for (mountinfo, given, systemd, expected) in rows {
            let (root, host) = host(mountinfo, "");
            let path = CgroupsPath::new(given.map(Path::new), "c1", systemd).unwrap();
            let cgroup = Cgroup::intended(&host, &path).unwrap();
            assert_eq!(below(&root, &cgroup).first().unwrap(), expected, "{given:?} systemd={systemd}");
        }
    }

    #[test]
    fn paths_that_could_hit_another_cgroup_are_refused() {
        for (given, systemd) in [
            ("/", false),
            ("/a/../../b", false),
            ("a/..", false),
            ("x", true),
            ("a:b", true),
            ("a:b:", true),
            ("a--b.slice:p:n", true),
            ("a.slice:p:b.slice", true),
            ("a.slice:p:x/../y", true),
        ] {
            let result = CgroupsPath::new(Some(Path::new(given)), "c1", systemd);
            assert!(matches!(result, Err(LocateError::BadPath { .. })), "{given} {result:?}");
        }
    }

    #[test]
    fn a_host_without_cgroups_is_recognized() {
        let (_root, host) = host("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "");
        assert!(matches!(Cgroup::intended(&host, &path("/a", false)), Err(LocateError::NotMounted)));
    }
}
