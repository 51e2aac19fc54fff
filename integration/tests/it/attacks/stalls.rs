//! Callers that never go on.

use integration::{Container, Node, hostile::MIB};
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

/// Receivers of one listener (`MOST_THREADS` in shim/mediator/src/listener.rs).
const RECEIVERS: u64 = 8;

/// Defence: no lock is held while the caller's memory is read, and what is not there is not waited
/// for.
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
    assert_eq!(container.stdio.value("status"), 0, "the program is served all the same");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

fn fuse() -> Skip {
    std::fs::metadata("/dev/fuse").map(drop).map_err(|error| format!("/dev/fuse: {error}"))
}

/// Defence: no lock is held either while that is waited for. Arguments lie in files whose file
/// system is a program of the attacker's. Others of the listener are served as long as it has a
/// receiver that does not wait; a thread that hangs is lost to its own container alone, which can
/// be ended.
fn never_read(node: &Node) {
    let neighbour = Neighbour::new(node);
    let some = unreadable(node, RECEIVERS - 1, RECEIVERS - 1);
    assert_eq!(some.stdio.value("status"), 0, "one receiver is left");
    neighbour.and_quota_holds();
    some.end();
    let all = unreadable(node, 8 * RECEIVERS, RECEIVERS);
    // An exec has a listener of its own.
    let (code, output) = all.sh("hostile step 1");
    assert_eq!((code, output.value("status")), (0, 0));
    neighbour.and_quota_holds();
    neighbour.end(all);
}

/// One whose program makes so many calls with such arguments, of which so many are being waited
/// for.
fn unreadable(node: &Node, calls: u64, waited_for: u64) -> Container<'_> {
    let container = attacker(node, &["fuse", &calls.to_string(), &waited_for.to_string()]).edit(|spec| {
        let device = json!({ "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666 });
        let devices = &mut spec["linux"]["devices"];
        match devices.as_array_mut() {
            Some(devices) => devices.push(device),
            None => *devices = json!([device]),
        }
        let rule = json!({ "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" });
        spec["linux"]["resources"]["devices"].as_array_mut().unwrap().push(rule);
    });
    let container = container.start().unwrap();
    container.stdio.value("blocking");
    container
}

/// Defence: nobody waits for a caller once its call is answered; what a stopped process holds is
/// still its.
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
