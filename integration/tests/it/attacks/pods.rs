//! Containers of one pod, which share namespaces: each has a quota of its own all the same.

use integration::{
    Node, Setup,
    cri::{Pod, PodContainer, PodContainerConfig},
    eventually,
    hostile::{MIB, PROGRAM},
};

use super::{QUOTA, files::assert_only_its_own};
use crate::{
    case::Case,
    memory::{until_free, until_used},
};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("attacks::files_passed_between_containers_of_a_pod", passed),
        #[cfg(target_arch = "x86_64")]
        Case::egpu("attacks::ptrace_of_a_neighbour_in_the_pod", traced),
    ];
    cases.into_iter().map(|case| case.on(Setup::cri)).collect()
}

/// A container with a quota on card 0 that runs one of the test programs.
#[track_caller]
fn granted<'pod>(pod: &'pod Pod<'_>, name: &str, arguments: &[&str], memory: &'static str) -> PodContainer<'pod> {
    let command = [&[PROGRAM], arguments].concat();
    let env = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory)];
    let config = PodContainerConfig { command: &command, env: &env, armed: true, ..PodContainerConfig::default() };
    pod.start(name, &config).unwrap()
}

/// Returns the program's line about `name`.
#[track_caller]
pub(crate) fn value(container: &PodContainer<'_>, name: &str) -> i64 {
    let prefix = format!("{name}=");
    eventually(&format!("{prefix} in the log"), || {
        let log = container.log();
        let line = log.lines().find_map(|line| line.split_once(&prefix).map(|(_, value)| value.to_owned()))?;
        Some(line.trim().parse().unwrap())
    })
}

/// Defence: as between any two containers; a call counts for the container whose filter stopped it.
/// The socket has no path: the pod's containers share a network.
fn passed(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let owner = granted(&pod, "owner", &["lend", "@egpu"], "1024MiB");
    value(&owner, "listening");
    let thief = granted(&pod, "thief", &["borrow", "@egpu"], "512MiB");
    assert_only_its_own(|name| value(&thief, name));
    let usage = node.usage(&owner.id);
    assert!(usage.used < 64 * MIB, "the owner pays for nothing: {usage:?}");
    assert!(node.card_used(0) <= (QUOTA + 64) * MIB);
    pod.remove();
    until_free(node);
}

/// Defence: a call counts for the process that makes it, whoever made it do so; its filter stops
/// it, and its container's quota holds.
#[cfg(target_arch = "x86_64")]
fn traced(node: &Node) {
    let pod = node.pod_sharing_processes("p").unwrap();
    let neighbour = granted(&pod, "neighbour", &["hold", "256"], "1024MiB");
    assert_eq!(value(&neighbour, "status"), 0);
    let attacker = granted(&pod, "attacker", &["ptrace-neighbour"], "512MiB");
    assert_eq!((value(&attacker, "found"), value(&attacker, "attached")), (1, 1), "the pod's processes see each other");
    assert_eq!((value(&attacker, "root"), value(&attacker, "device")), (0, 0), "its calls are its own");
    let got = value(&attacker, "got").cast_unsigned();
    assert!((256 * MIB..=768 * MIB).contains(&got), "what was left of the neighbour's quota: {got}");
    assert_eq!(value(&attacker, "status"), integration::hostile::OUT_OF_MEMORY);
    until_used(node, &neighbour.id, 700, 1024);
    assert_eq!(node.usage(&attacker.id).used, 0, "it went to the neighbour");
    assert!(node.card_used(0) <= 1024 * MIB);
    pod.remove();
    until_free(node);
}
