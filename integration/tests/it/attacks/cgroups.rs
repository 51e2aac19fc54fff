//! Cgroups below a container's own, and beside it.

use std::{fs, path::Path, time::Duration};

use integration::{Container, ContainerBuilder, Node, eventually, hostile::MIB, processes};
use nix::sys::signal::Signal;

use super::{Neighbour, attacker};
use crate::{
    case::{Case, Skip},
    events::until,
    memory::until_free,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::cgroups_too_deep_for_a_path", deep).only_simulated("only there do mappings grow"),
        Case::egpu("attacks::cgroups_too_deep_and_a_killed_shim", deep_without_shim),
        Case::egpu("attacks::a_cgroup_of_version_2_that_freezes_itself", unified).needing(hybrid),
        Case::egpu("attacks::a_first_process_that_others_keep_frozen", ice).needing(freezer),
        Case::egpu("attacks::a_killed_process_that_cannot_end", stuck).needing(freezer),
    ]
}

/// Version 2 beside version 1.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

fn hybrid() -> Skip {
    let there = Path::new(UNIFIED).join("cgroup.controllers").exists();
    there.then_some(()).ok_or_else(|| "no host with both versions of cgroups".to_owned())
}

fn freezer() -> Skip {
    let there = Path::new("/sys/fs/cgroup/freezer/cgroup.procs").exists();
    there.then_some(()).ok_or_else(|| "no freezer of cgroup v1".to_owned())
}

/// One with cgroups of longer paths than a path may be.
#[track_caller]
fn deep_one(builder: ContainerBuilder<'_>) -> Container<'_> {
    let container = builder.start().unwrap();
    assert_eq!(container.stdio.value("unshare"), 0);
    assert_eq!(container.stdio.value("depth"), 25);
    container
}

/// Zombies are for others to reap.
#[track_caller]
fn assert_none_lives(node: &Node) {
    let found = processes::in_cgroup(&node.cgroup_path("attacker"));
    assert!(found.iter().all(|process| process.state == 'Z'), "{found:?}");
}

/// Defence: nobody looks for a container's processes by path
/// (`nvidia-glue/base/src/cgroup_tree.rs`). The mediator finds who has more than is accounted; what
/// is left of the container is killed and removed, whether the kernel ends it with its first
/// process or not.
fn deep(node: &Node) {
    let neighbour = Neighbour::new(node);
    let mut container = deep_one(attacker(node, &["deep", "1024"]));
    until(node, "attacker", "drift");
    until(node, "attacker", "killed");
    container.wait().unwrap();
    container.delete().unwrap();
    for all in [true, false] {
        let mut container = deep_one(attacker(node, &["deep"]).in_pid_namespace_of(&neighbour.container));
        match all {
            true => container.kill_all(Signal::SIGKILL).unwrap(),
            false => container.kill(Signal::SIGKILL).unwrap(),
        }
        assert_eq!(container.wait().unwrap(), 137);
        container.delete().unwrap();
        assert_none_lives(node);
    }
    neighbour.is_well();
    neighbour.container.end();
    until_free(node);
}

/// Defence: likewise for what cleans up after a shim.
fn deep_without_shim(node: &Node) {
    let builder = node.container("attacker").env("EGPU_DEVICES", "0").hostile(&["deep"]);
    let container = deep_one(builder.edit(|spec| {
        let namespaces = spec["linux"]["namespaces"].as_array_mut().expect("namespaces");
        namespaces.retain(|namespace| namespace["type"] != "pid");
    }));
    node.shim().kill();
    eventually("the grant is given back", || node.grant("attacker").is_none().then_some(()));
    assert_none_lives(node);
    container.forget();
    until_free(node);
}

/// Defence: a container has a directory of its own in every hierarchy, those without controllers
/// included (`shim/runtime/src/cgroup/join.rs`). Where it had none, it would freeze its maker.
fn unified(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["unified"]).start().unwrap();
    let memberships = fs::read_to_string(format!("/proc/{}/cgroup", container.pid())).unwrap();
    let own = node.cgroup_path("attacker");
    assert!(memberships.lines().all(|line| line.ends_with(&own)), "{memberships}");
    assert_eq!(container.stdio.value("cgroup2"), 0);
    container.stdio.value("freezing");
    let events = Path::new(UNIFIED).join(own.trim_start_matches('/')).join("cgroup.events");
    eventually("it stands still", || fs::read_to_string(&events).unwrap().contains("frozen 1").then_some(()));
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: who is sent SIGKILL is thawed, wherever the container has frozen it, and whoever would
/// freeze it again is killed, too.
fn ice(node: &Node) {
    let neighbour = Neighbour::new(node);
    for all in [true, false] {
        let mut container = attacker(node, &["ice"]).start().unwrap();
        assert_eq!(container.stdio.value("frozen"), 1);
        match all {
            true => container.kill_all(Signal::SIGKILL).unwrap(),
            false => container.kill(Signal::SIGKILL).unwrap(),
        }
        let begun = std::time::Instant::now();
        assert_eq!(container.wait().unwrap(), 137);
        assert!(begun.elapsed() < Duration::from_secs(30), "after {:?}", begun.elapsed());
        container.delete().unwrap();
    }
    neighbour.is_well();
    neighbour.container.end();
    until_free(node);
}

/// Defence: a container that was killed and does not end, for whatever reason, has nothing of the
/// card any more.
fn stuck(node: &Node) {
    let neighbour = Neighbour::new(node);
    let mut container = attacker(node, &["hold", "256"]).start().unwrap();
    assert_eq!(container.stdio.value("status"), 0);
    // Somewhere where nobody but the test thaws it.
    let elsewhere = Path::new("/sys/fs/cgroup/freezer").join(node.cgroup_parent()).join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("cgroup.procs"), container.pid().to_string()).unwrap();
    fs::write(elsewhere.join("freezer.state"), "FROZEN").unwrap();
    container.kill(Signal::SIGKILL).unwrap();
    eventually("its memory is free", || (node.card_used(0) < 320 * MIB).then_some(()));
    assert!(node.grant("attacker").is_some(), "what is promised stays promised until it has ended");
    fs::write(elsewhere.join("freezer.state"), "THAWED").unwrap();
    assert_eq!(container.wait().unwrap(), 137);
    container.delete().unwrap();
    eventually("its place is empty", || fs::remove_dir(&elsewhere).ok());
    neighbour.is_well();
    neighbour.container.end();
    until_free(node);
}
