//! Finding a container's cgroup: from a live process, or from the spec alone.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use super::{Cgroup, Hierarchy, Layout, LocateError};

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
    /// A tree that looks like a host: `ROOT/proc/PID/cgroup`, `ROOT/proc/self/mountinfo`, and the mounts named there.
    /// For tests.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn read(&self, path: &str) -> Result<String, LocateError> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(|source| LocateError::Read { path, source })
    }

    fn mounts(&self) -> Result<Mounts, LocateError> {
        let mounts = parse_mountinfo(&self.read("proc/self/mountinfo")?);
        if mounts.v1.is_empty() && mounts.v2.is_none() { Err(LocateError::NotMounted) } else { Ok(mounts) }
    }

    fn rooted(&self, path: &Path) -> PathBuf {
        join_below(&self.root, path)
    }
}

/// Where the spec wants the container's cgroup, resolved as libcontainer does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupsPath {
    /// `linux.cgroupsPath`, or libcontainer's default for a spec without one.
    given: PathBuf,
    /// Created through systemd: `given` is `slice:prefix:name`. Ignored on v1, and for an absolute path, as there.
    systemd: bool,
}

impl CgroupsPath {
    /// From `linux.cgroupsPath` of the spec, the container's id, and whether the systemd driver is used.
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
            return Err(bad("with the systemd driver it must read slice:prefix:name"));
        }
        Ok(Self { given, systemd })
    }

    /// What the container's path on a v1 hierarchy ends in.
    fn on_v1(&self) -> PathBuf {
        relative(&self.given)
    }

    /// What its path on v2 ends in. A slice of the systemd driver is left out: the service manager may itself run
    /// below another cgroup, and the unit's name is unique.
    fn on_v2(&self) -> PathBuf {
        match self.systemd_path() {
            Some((_, unit)) => PathBuf::from(unit),
            None => relative(&self.given),
        }
    }

    fn systemd_path(&self) -> Option<(PathBuf, String)> {
        self.systemd.then(|| systemd_path(&self.given)).flatten()
    }

    /// The systemd unit that holds the container, with the systemd driver on v2.
    pub fn systemd_unit(&self) -> Option<String> {
        self.systemd_path().map(|(_, unit)| unit)
    }
}

impl Cgroup {
    /// The cgroup of a container whose process `pid` is alive and has not moved itself: call it between create and
    /// start, and keep the result.
    ///
    /// Hierarchies in which the process sits somewhere else than `path` says (libcontainer joins neither named
    /// hierarchies nor v2 on a hybrid host) are left out.
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

        let expected = path.on_v1();
        let hierarchies: Vec<Hierarchy> = found
            .iter()
            .filter(|membership| !membership.is_v2() && Path::new(membership.path).ends_with(&expected))
            .filter_map(|membership| {
                let mount = mounts.v1_of(&membership.controllers)?;
                let directory = host.rooted(&mount.directory(Path::new(membership.path))?);
                Some(Hierarchy {
                    controllers: membership.controllers.iter().map(|&name| name.to_owned()).collect(),
                    directory,
                })
            })
            .collect();
        if hierarchies.is_empty() {
            return Err(not_in_container(expected));
        }
        Ok(Self { layout: Layout::V1 { hierarchies } })
    }

    /// Where the container's cgroup will be, or was: what `delete` uses after a crash that left nothing else. The
    /// directories need not exist.
    pub fn intended(host: &Host, path: &CgroupsPath) -> Result<Self, LocateError> {
        let mounts = host.mounts()?;
        if mounts.is_v2() {
            let mount = mounts.v2.as_ref().ok_or(LocateError::NotMounted)?;
            let below = match path.systemd_path() {
                Some((slice, unit)) => slice.join(unit),
                None => relative(&path.given),
            };
            let directory = host.rooted(&join_below(&mount.point, &below));
            return Ok(Self { layout: Layout::V2 { directory, systemd_unit: path.systemd_unit() } });
        }
        let hierarchies = mounts
            .v1
            .iter()
            .filter(|mount| !mount.is_named())
            .map(|mount| Hierarchy {
                controllers: mount.controllers.clone(),
                directory: host.rooted(&join_below(&mount.point, &path.on_v1())),
            })
            .collect();
        Ok(Self { layout: Layout::V1 { hierarchies } })
    }
}

/// `slice:prefix:name` as (path of the slice, unit): `kubepods-burstable.slice:cri-containerd:ID` is
/// `kubepods.slice/kubepods-burstable.slice` and `cri-containerd-ID.scope`. See systemd.slice(5).
fn systemd_path(given: &Path) -> Option<(PathBuf, String)> {
    let mut parts = given.to_str()?.splitn(3, ':');
    let (slice, prefix, name) = (parts.next()?, parts.next()?, parts.next()?);
    if name.is_empty() || [slice, prefix, name].iter().any(|part| part.contains('/')) {
        return None;
    }
    let slice = if slice.is_empty() { "system.slice" } else { slice };
    let unit = match name.ends_with(".slice") {
        true => name.to_owned(),
        false if prefix.is_empty() => format!("{name}.scope"),
        false => format!("{prefix}-{name}.scope"),
    };
    Some((expand_slice(slice)?, unit))
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

/// The cgroup file systems that this mount namespace has.
#[derive(Debug, Default)]
struct Mounts {
    v1: Vec<Mount>,
    v2: Option<Mount>,
}

#[derive(Debug)]
struct Mount {
    /// Which directory of the hierarchy is mounted, `/` outside containers.
    root: PathBuf,
    point: PathBuf,
    /// Empty on v2.
    controllers: Vec<String>,
}

impl Mounts {
    /// v2 alone, or with named v1 hierarchies that carry no controller.
    fn is_v2(&self) -> bool {
        self.v1.iter().all(Mount::is_named) && self.v2.is_some()
    }

    fn v1_of(&self, controllers: &[&str]) -> Option<&Mount> {
        self.v1.iter().find(|mount| {
            !controllers.is_empty() && controllers.iter().all(|name| mount.controllers.iter().any(|own| own == name))
        })
    }
}

impl Mount {
    fn is_named(&self) -> bool {
        self.controllers.iter().all(|name| name.starts_with("name="))
    }

    /// Where a path within the hierarchy is seen; `None` when it lies outside what is mounted.
    fn directory(&self, path: &Path) -> Option<PathBuf> {
        if path.components().any(|component| component == Component::ParentDir) {
            return None;
        }
        let below = path.strip_prefix(&self.root).ok()?;
        Some(join_below(&self.point, below))
    }
}

/// Finds the cgroup mounts in `/proc/PID/mountinfo` (proc_pid_mountinfo(5)). The first mount of a hierarchy wins.
fn parse_mountinfo(text: &str) -> Mounts {
    let mut mounts = Mounts::default();
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

/// Every controller that v1 ever had (kernel `include/linux/cgroup_subsys.h`; v1 gets no new ones), and named hierarchies.
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

fn relative(path: &Path) -> PathBuf {
    path.components().filter(|component| matches!(component, Component::Normal(_))).collect()
}

fn join_below(base: &Path, path: &Path) -> PathBuf {
    base.join(relative(path))
}
