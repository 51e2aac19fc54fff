//! View of a container on the processes that the runtime makes in its pid namespace, from their
//! birth until they execute its program.

use integration::{Container, ContainerBuilder, Node};
use serde_json::{Value, json};

use crate::{case::Case, memory::granted};

pub(super) fn cases() -> Vec<Case> {
    const WHY: &str = "nothing in it depends on a card's driver";
    vec![
        Case::egpu("attacks::nothing_of_the_host_is_seen_at_an_exec", by_tracer).only_simulated(WHY),
        Case::egpu("attacks::nothing_of_the_host_is_seen_at_an_exec_without_a_right", by_anybody).only_simulated(WHY),
        Case::egpu("attacks::nothing_of_the_host_is_seen_of_an_oom_script", of_oom_script).only_simulated(WHY),
        Case::egpu("attacks::the_hosts_namespaces_are_left_before_another_pid_namespace_is_joined", of_joining_init)
            .only_simulated(WHY),
    ]
}

const EXECS: usize = 200;

/// With namespaces of all kinds but users, and a right to look into every process that it sees.
fn tracer(spec: &mut Value) {
    own_namespaces(spec);
    for set in ["bounding", "effective", "permitted"] {
        spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_PTRACE"));
    }
}

fn own_namespaces(spec: &mut Value) {
    let own = [json!({ "type": "network" }), json!({ "type": "cgroup" })];
    spec["linux"]["namespaces"].as_array_mut().unwrap().extend(own);
}

/// Defence: all namespaces are joined at once, and all rights dropped, before the process is made
/// that the container sees (`shim/runtime/src/intermediate/exec_entrance.rs`).
fn by_tracer(node: &Node) {
    during_execs(node, node.container("a").hostile(&["visible"]).edit(tracer));
}

fn by_anybody(node: &Node) {
    during_execs(node, node.container("a").hostile(&["visible"]).edit(own_namespaces));
}

#[track_caller]
fn during_execs<'node>(node: &'node Node, builder: ContainerBuilder<'node>) {
    node.open_to_all();
    let container = builder.start().unwrap();
    assert_eq!(container.stdio.value("ready"), 1);
    for number in 0..EXECS {
        let user = 1000 * (number % 2);
        let edit = |process: &mut Value| process["user"] = json!({ "uid": user, "gid": user });
        let exec = container.exec(&format!("e{number}"), &["true"]).edit(edit);
        let (status, _) = if number % 5 == 0 { exec.terminal().run() } else { exec.run() }.unwrap();
        assert_eq!(status, 0);
    }
    saw_nothing(container);
}

#[track_caller]
fn saw_nothing(mut container: Container<'_>) {
    // Its init ends at this, at times before the exec, which is killed then.
    container.sh("touch /tmp/end");
    container.wait().unwrap();
    container.delete().unwrap();
    let output = container.stdio.finish();
    assert!(output.value("seen") > 0, "{}", output.stdout());
    assert!(!output.stdout().contains("foreign"), "{}", output.stdout());
}

/// Defence: as of an exec. The container itself makes it happen.
fn of_oom_script(node: &Node) {
    let container = granted(node, "attacker", 256)
        .env("EGPU_OOM", "kill")
        .env("EGPU_OOM_SCRIPT", "/bin/true")
        .hostile(&["visible"])
        .edit(tracer)
        .start()
        .unwrap();
    assert_eq!(container.stdio.value("ready"), 1);
    for _ in 0..10 {
        assert_eq!(container.sh("exec hostile fill 16").0, 137);
    }
    saw_nothing(container);
}

/// Defence: init leaves the host's namespaces for its own before it is made in a pid namespace that
/// others see (`namespaces::leave_host`). It still has the host's mounts then, as under runc, but a
/// copy.
fn of_joining_init(node: &Node) {
    let host = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
    let hosts = ["mnt", "net", "ipc", "uts"].map(host);
    let arguments: Vec<&str> = std::iter::once("visible").chain(hosts.iter().map(String::as_str)).collect();
    let container = node.container("a").hostile(&arguments).edit(tracer).start().unwrap();
    assert_eq!(container.stdio.value("ready"), 1);
    for number in 0..20 {
        let joined = node.container(&format!("b{number}")).args(&["true"]).edit(own_namespaces);
        let (status, _) = joined.in_pid_namespace_of(&container).run().unwrap();
        assert_eq!(status, 0);
    }
    saw_nothing(container);
}
