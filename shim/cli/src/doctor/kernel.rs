//! Features of the kernel: seccomp user notification, descriptors of other processes, cgroups.

use std::fs;

use base::Roots;

use super::{Check, Findings, cards};

const NOTIFICATION: &str = "seccomp notification";
const DESCRIPTORS: &str = "pidfd_getfd";
const MOUNTS: &str = "mount_setattr";
const KILLABLE: &str = "killable notifications";
const CGROUPS: &str = "cgroups";
const RANDOMIZATION: &str = "address randomization";

/// The controllers that egpu uses, as version 1 names their hierarchies.
const CONTROLLERS_V1: &[&str] = &["cpu", "devices", "freezer", "memory", "pids"];
/// Controllers of version 2 that are needed; devices and freezer are part of every cgroup.
const CONTROLLERS_V2: &[&str] = &["cpu", "memory", "pids"];

pub(super) fn checks(roots: &Roots, findings: &Findings) -> Vec<Check> {
    let kernel = fs::read_to_string(roots.proc.join("sys/kernel/osrelease")).unwrap_or_default();
    let kernel = kernel.trim();
    let mut checks = vec![
        notification(roots),
        offered(DESCRIPTORS, findings.kernel.pidfd_getfd, kernel, "5.6"),
        offered(MOUNTS, findings.kernel.mount_setattr, kernel, "5.12"),
        killable(findings.kernel.wait_killable, kernel),
        cgroups(roots),
        cards::kernel_log(roots),
    ];
    checks.extend(randomization(roots));
    checks
}

/// `None`: it is on.
fn randomization(roots: &Roots) -> Option<Check> {
    let setting = fs::read_to_string(roots.proc.join("sys/kernel/randomize_va_space")).ok()?;
    let off = Check::warning(
        RANDOMIZATION,
        "off (kernel.randomize_va_space = 0): the memory of every program begins where it always does, by which one can pass for another and hide managed memory",
        "set kernel.randomize_va_space = 2 where containers share cards",
    );
    (setting.trim() == "0").then_some(off)
}

fn notification(roots: &Roots) -> Check {
    let actions = fs::read_to_string(roots.proc.join("sys/kernel/seccomp/actions_avail")).unwrap_or_default();
    if actions.split_ascii_whitespace().any(|action| action == "user_notif") {
        return Check::ok(NOTIFICATION, "offered by the kernel");
    }
    Check::failure(
        NOTIFICATION,
        "the kernel does not offer it (/proc/sys/kernel/seccomp/actions_avail has no user_notif)",
        "use Linux 5.12 or later, built with CONFIG_SECCOMP_FILTER",
    )
}

fn offered(what: &str, offered: bool, kernel: &str, since: &str) -> Check {
    if offered {
        return Check::ok(what, "offered by the kernel");
    }
    Check::failure(
        what,
        format!("Linux {kernel} does not offer it, or a seccomp filter hides it from this process"),
        format!("use Linux {since} or later; inside a container, allow it in the seccomp profile"),
    )
}

fn killable(offered: bool, kernel: &str) -> Check {
    if offered {
        return Check::ok(KILLABLE, "offered by the kernel");
    }
    Check::warning(
        KILLABLE,
        format!("Linux {kernel} does not offer them: a signal may repeat a call that is being answered"),
        "use Linux 5.19 or later where programs that use signals much run on GPUs",
    )
}

fn cgroups(roots: &Roots) -> Check {
    let root = roots.sys.join("fs/cgroup");
    if let Ok(offered) = fs::read_to_string(root.join("cgroup.controllers")) {
        let offered: Vec<&str> = offered.split_ascii_whitespace().collect();
        return complete("version 2", CONTROLLERS_V2, |name| offered.contains(&name));
    }
    if root.join("memory").is_dir() || root.join("devices").is_dir() {
        return complete("version 1", CONTROLLERS_V1, |name| root.join(name).is_dir());
    }
    Check::failure(
        CGROUPS,
        format!("neither version 1 nor 2 is mounted at {}", root.display()),
        "mount cgroup2 there (systemd does), or run where it is mounted",
    )
}

fn complete(version: &str, needed: &[&str], has: impl Fn(&str) -> bool) -> Check {
    let missing: Vec<&str> = needed.iter().copied().filter(|name| !has(name)).collect();
    if missing.is_empty() {
        return Check::ok(CGROUPS, version.to_owned());
    }
    Check::failure(
        CGROUPS,
        format!("{version}, without {}", missing.join(", ")),
        "enable the controllers (kernel command line `cgroup_enable=...`; for version 1, mount their hierarchies)",
    )
}
