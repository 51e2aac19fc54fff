//! Check of the fence: containers with CAP_SYS_ADMIN and without a GPU are not fenced off from the
//! driver.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use egpu_shim::info::BINARY;

use super::{Check, plural};

const FENCE: &str = "fence";
/// Bit of CAP_SYS_ADMIN in `CapBnd` (linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;

/// Checks the fence. `with_gpu`: the inits of containers that hold cards, to which the fence does
/// not apply.
pub(super) fn check(enabled: bool, with_gpu: &BTreeSet<i32>) -> Check {
    assess(enabled, exempt(Path::new("/proc"), with_gpu))
}

fn assess(enabled: bool, exempt: usize) -> Check {
    if !enabled {
        return Check::warning(
            FENCE,
            "containers without a GPU may use driver handles that a neighbour passes to them",
            "set fence_other_containers = true",
        );
    }
    if exempt == 0 {
        return Check::ok(FENCE, "every container without a GPU is fenced off from the driver");
    }
    Check::warning(
        FENCE,
        format!("not around {} without a GPU but with CAP_SYS_ADMIN", plural(exempt, "container")),
        "take CAP_SYS_ADMIN from those that do not need it",
    )
}

/// Facts about a process.
struct ProcessFacts {
    parent: i32,
    is_shim: bool,
    has_sys_admin: bool,
    /// It is in the same user namespace as this process.
    initial_user_namespace: bool,
    /// `/proc/PID/cgroup`: the same for all processes of a container.
    cgroup: String,
}

/// Counts the containers of egpu's shims, distinguished by their cgroups, that have CAP_SYS_ADMIN
/// and no GPU.
fn exempt(proc: &Path, with_gpu: &BTreeSet<i32>) -> usize {
    let own_namespace = fs::read_link(proc.join("self/ns/user")).ok();
    let Ok(entries) = fs::read_dir(proc) else { return 0 };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // A process that ends meanwhile is left out.
    let processes: BTreeMap<i32, ProcessFacts> = pids
        .filter_map(|pid| {
            let directory = proc.join(pid.to_string());
            let status = fs::read_to_string(directory.join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let bounding = u64::from_str_radix(field("CapBnd:")?, 16).ok()?;
            let process = ProcessFacts {
                parent: field("PPid:")?.parse().ok()?,
                is_shim: is_shim(&directory),
                has_sys_admin: bounding >> CAP_SYS_ADMIN & 1 == 1,
                initial_user_namespace: fs::read_link(directory.join("ns/user")).ok() == own_namespace,
                cgroup: fs::read_to_string(directory.join("cgroup")).ok()?,
            };
            Some((pid, process))
        })
        .collect();
    let cgroups_with_gpu: BTreeSet<&str> =
        with_gpu.iter().filter_map(|pid| processes.get(pid)).map(|process| process.cgroup.as_str()).collect();
    let exempt = processes.values().filter(|process| {
        let of_a_shim = processes.get(&process.parent).is_some_and(|parent| parent.is_shim);
        of_a_shim
            && !process.is_shim
            && process.has_sys_admin
            && process.initial_user_namespace
            && !cgroups_with_gpu.contains(process.cgroup.as_str())
    });
    exempt.map(|process| process.cgroup.as_str()).collect::<BTreeSet<_>>().len()
}

/// Returns whether a process is a shim. Replaced binaries stay in use: their link ends in `
/// (deleted)`.
fn is_shim(directory: &Path) -> bool {
    let Ok(exe) = fs::read_link(directory.join("exe")) else { return false };
    let name = exe.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(" (deleted)").unwrap_or(name) == BINARY
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::doctor::Level;

    fn process(proc: &Path, pid: &str, parent: i32, exe: &str, bounding: &str, namespace: &str, cgroup: &str) {
        let directory = proc.join(pid);
        fs::create_dir_all(directory.join("ns")).unwrap();
        fs::write(directory.join("status"), format!("Name:\tx\nPPid:\t{parent}\nCapBnd:\t{bounding}\n")).unwrap();
        symlink(exe, directory.join("exe")).unwrap();
        symlink(namespace, directory.join("ns/user")).unwrap();
        fs::write(directory.join("cgroup"), cgroup).unwrap();
    }

    #[test]
    fn containers_with_cap_sys_admin_and_no_gpu_are_counted() {
        const ALL: &str = "000001ffffffffff";
        const DEFAULT: &str = "00000000a80425fb";
        let proc = tempfile::tempdir().unwrap();
        let add = |pid, parent, exe, bounding, namespace, cgroup| {
            process(proc.path(), pid, parent, exe, bounding, namespace, cgroup);
        };
        add("self", 1, "/bin/egpu", ALL, "user:[1]", "/");
        add("10", 1, "/usr/bin/containerd-shim-egpu-v1 (deleted)", ALL, "user:[1]", "/shim");
        add("11", 10, "/usr/bin/containerd-shim-egpu-v1", ALL, "user:[1]", "/helper");
        // Two processes of one container, one of another, one each that does not count.
        add("20", 10, "/bin/sh", ALL, "user:[1]", "/a");
        add("21", 10, "/bin/sleep", ALL, "user:[1]", "/a");
        add("22", 10, "/bin/sh", ALL, "user:[1]", "/b");
        add("23", 10, "/bin/sh", DEFAULT, "user:[1]", "/unprivileged");
        add("24", 10, "/bin/sh", ALL, "user:[2]", "/user-namespace");
        add("25", 10, "/bin/sh", ALL, "user:[1]", "/gpu");
        add("26", 1, "/usr/bin/sshd", ALL, "user:[1]", "/host");
        assert_eq!(exempt(proc.path(), &BTreeSet::from([25])), 2);
        assert_eq!(exempt(proc.path(), &BTreeSet::new()), 3);
        assert_eq!(exempt(&proc.path().join("missing"), &BTreeSet::new()), 0);
    }

    #[test]
    fn exempt_containers_and_a_fence_that_is_off_are_warned_about() {
        assert_eq!(assess(true, 0).level, Level::Ok);
        assert!(assess(true, 2).detail.starts_with("not around 2 containers "));
        assert_eq!(assess(true, 2).level, Level::Warning);
        assert_eq!(assess(false, 0).level, Level::Warning);
    }
}
