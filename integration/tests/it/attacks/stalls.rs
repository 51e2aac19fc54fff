//! Callers that never go on.

use integration::{Node, hostile::MIB};
use serde_json::json;

use super::{Neighbour, attacker};
use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::pages_that_never_come", blocked),
        Case::egpu("attacks::files_that_are_never_read", never_read).needing(fuse),
        Case::egpu("attacks::stopped_in_the_middle_of_a_call", stopped),
        Case::egpu("attacks::frozen_in_the_middle_of_a_call", frozen),
    ]
}

/// Defence: no lock is held while the caller's memory is read; a thread that hangs there is lost to its own container alone,
/// and that container can be ended.
fn blocked(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["block", "64"])
        .edit(|spec| {
            // userfaultfd wants it.
            for set in ["bounding", "effective", "permitted"] {
                spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_PTRACE"));
            }
        })
        .start()
        .unwrap();
    container.stdio.value("blocking");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

fn fuse() -> Skip {
    std::fs::metadata("/dev/fuse").map(drop).map_err(|error| format!("/dev/fuse: {error}"))
}

/// Defence: the same. Arguments lie in a file whose file system is a program of the attacker's.
fn never_read(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["fuse", "64"])
        .edit(|spec| {
            let device = json!({ "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666 });
            let devices = &mut spec["linux"]["devices"];
            match devices.as_array_mut() {
                Some(devices) => devices.push(device),
                None => *devices = json!([device]),
            }
            let rule = json!({ "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" });
            spec["linux"]["resources"]["devices"].as_array_mut().unwrap().push(rule);
        })
        .start()
        .unwrap();
    container.stdio.value("blocking");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: nobody waits for a caller once its call is answered; what a stopped process holds is still its.
fn stopped(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["stopped", "3"]).start().unwrap();
    assert!(container.stdio.value("stops") > 0);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: likewise; a frozen container can be looked at, thawed and killed.
fn frozen(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["flood", "1000", "32"]).start().unwrap();
    container.stdio.value("flooding");
    for _ in 0..10 {
        container.pause().unwrap();
        neighbour.is_well();
        container.resume().unwrap();
    }
    container.pause().unwrap();
    neighbour.and_quota_holds();
    assert!(node.usage("attacker").used < 512 * MIB);
    neighbour.end(container);
}
