//! `--restart`: containerd comes up with the new configuration, or is as before.

use integration::ContainerdRelease;

use super::{CONFIG, SIMULATED, host::Host};

pub(super) fn restart(release: &ContainerdRelease) {
    let host = Host::with(release, &[(CONFIG, "version = 2\n")]);
    assert!(host.run(&["systemctl", "restart", "containerd.service"]).status.success());
    let first = host.read("/run/containerd.pid");
    let said = host.egpu_ok(&["install", "--config", SIMULATED]);
    assert!(said.contains("not in force before `systemctl restart containerd.service`"), "{said}");
    assert_eq!(host.read("/run/containerd.pid"), first, "nobody has said --restart");
    let said = host.egpu_ok(&["install", "--restart"]);
    assert!(said.contains("restarted containerd.service"), "{said}");
    let second = host.read("/run/containerd.pid");
    assert_ne!(second, first);
    let said = host.egpu_ok(&["install", "--restart"]);
    assert_eq!(host.read("/run/containerd.pid"), second, "{said}");
    host.egpu_ok(&["uninstall", "--restart"]);
    assert_ne!(host.read("/run/containerd.pid"), second);
    // It does not come up.
    let before = host.dump();
    host.write("/etc/broken", "runtimes.egpu");
    let output = host.egpu(&["install", "--restart", "--config", SIMULATED]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(host.dump(), before, "{said}");
    assert!(said.contains("the old one was put back"), "{said}");
    assert!(host.run(&["sh", "-c", "kill -0 $(cat /run/containerd.pid)"]).status.success(), "{said}");
}
