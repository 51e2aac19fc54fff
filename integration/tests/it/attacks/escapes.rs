//! Attempts to leave the filter behind.

use integration::{
    Node,
    hostile::{MIB, OUT_OF_MEMORY, value},
};

use super::{QUOTA, attacker, run};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::a_nested_user_namespace", user_namespace),
        Case::egpu("attacks::a_seccomp_listener_of_its_own", listener),
        Case::egpu("attacks::a_tracer_that_makes_the_call", ptrace).needing(|| {
            if cfg!(target_arch = "x86_64") {
                integration::hostile::available()
            } else {
                Err("registers of x86-64".to_owned())
            }
        }),
        Case::egpu("attacks::a_profile_that_asks_for_a_listener", profile),
        Case::egpu("attacks::a_privileged_container", privileged),
    ]
}

/// `got` is the quota and no more, and the last status is the driver's out-of-memory.
#[track_caller]
pub(super) fn assert_held(output: &str) {
    assert_eq!(value(output, "status"), OUT_OF_MEMORY, "{output}");
    let got = value(output, "got").cast_unsigned();
    assert!(got <= QUOTA * MIB && got + 48 * MIB >= QUOTA * MIB, "{got}");
}

/// Defence: filters are inherited; rights in a namespace of one's own are none to the driver.
fn user_namespace(node: &Node) {
    let output = run(node, &["user-namespace", "16"]);
    assert_eq!(value(&output, "unshare"), 0, "it has a namespace of its own");
    assert_held(&output);
}

/// Defence: the kernel allows one listener in a tree of filters, and egpu's is there first. Later
/// filters can only refuse.
fn listener(node: &Node) {
    let output = run(node, &["listener", "16"]);
    assert_eq!(value(&output, "listener"), -i64::from(libc::EBUSY), "{output}");
    assert_eq!(value(&output, "filter"), 0, "a program's own filter works");
    assert_held(&output);
}

/// Defence: the kernel runs the filter after the tracer's changes.
fn ptrace(node: &Node) {
    let output = run(node, &["ptrace"]);
    assert_eq!(value(&output, "injected"), 1, "{output}");
    assert_eq!(value(&output, "status"), OUT_OF_MEMORY, "the mediator's verdict on the injected call");
}

/// Defence: such a container is refused before anything is reserved.
fn profile(node: &Node) {
    let builder = attacker(node, &["fill"]).edit(|spec| {
        spec["linux"]["seccomp"] = serde_json::json!({
            "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/nowhere.sock",
            "syscalls": [{ "names": ["mkdir"], "action": "SCMP_ACT_NOTIFY" }],
        });
    });
    let text = crate::gpu::refused(builder);
    assert!(text.contains("listener"), "{text}");
    assert!(node.granted().is_empty());
}

/// Defence: a quota does not go together with CAP_SYS_ADMIN, whose holder reaches all memory by
/// calls that are continued.
fn privileged(node: &Node) {
    let builder = attacker(node, &["fill"]).edit(|spec| {
        for set in ["bounding", "effective", "permitted"] {
            spec["process"]["capabilities"][set].as_array_mut().unwrap().push("CAP_SYS_ADMIN".into());
        }
    });
    let text = crate::gpu::refused(builder);
    assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
    assert!(node.granted().is_empty());
}
