//! Killed at any step, install and uninstall leave a containerd that starts, and a host on which
//! they can be done again.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt, path::Path};

use integration::{ContainerdRelease, node::shim_directory};

use super::{CONFIG, SIMULATED, host::Host};

/// System calls that change what is on the disk, or make it last.
const STEPS: [&str; 5] = ["mkdir", "fsync", "rename", "unlink", "rmdir"];

pub(super) fn at_any_step(release: &ContainerdRelease) {
    let mut states = BTreeSet::new();
    let mut steps = 0;
    for command in [&["install", "--config", SIMULATED][..], &["uninstall"]] {
        for call in STEPS {
            steps += (1..).take_while(|time| is_killed(release, command, call, *time, &mut states)).count();
        }
    }
    assert!(steps > 20, "only {steps} steps");
}

/// Kills the command at one step, and looks at what it leaves. False: it has no such step.
fn is_killed(
    release: &ContainerdRelease,
    command: &[&str],
    call: &str,
    time: u32,
    states: &mut BTreeSet<String>,
) -> bool {
    let host = Host::with(release, &[(CONFIG, "version = 2\n")]);
    let listing = host.listing();
    if command[0] == "uninstall" {
        host.egpu_ok(&["install", "--config", SIMULATED]);
    }
    let mut strace = host.command(Path::new("strace"));
    strace.args(["--quiet=all", "--output=/dev/null", &format!("--inject={call}:signal=KILL:when={time}")]);
    strace.arg(shim_directory().join("egpu")).args(command).arg("--host-root").arg(host.path("/"));
    let output = strace.output().expect("run strace");
    if output.status.success() {
        return false;
    }
    assert_eq!(output.status.signal(), Some(9), "{output:#?}");
    let what = format!("{command:?} killed in {call} {time}");
    // Most steps leave it as it was: each of the others starts.
    if states.insert(host.dump() + &host.read(CONFIG)) {
        let started = host.run(&["systemctl", "restart", "containerd.service"]);
        let log = host.read("/var/log/containerd.log");
        assert!(started.status.success() && !log.contains("no corresponding runtime"), "{what}: {log}");
    }
    // Each second time it is not done again, but undone.
    if time.is_multiple_of(2) {
        host.egpu_ok(&["install", "--config", SIMULATED]);
        assert!(host.dump().contains("runtimes.egpu"), "{what}");
    }
    host.egpu_ok(&["uninstall"]);
    let left: Vec<_> =
        host.listing().into_iter().filter(|entry| !listing.contains(entry)).map(|(path, _)| path).collect();
    assert_eq!((left, host.listing().len()), (Vec::new(), listing.len()), "{what}");
    true
}
