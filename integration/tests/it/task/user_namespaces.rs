//! Containers with a user namespace of their own, or another container's.

use integration::{
    Container, ContainerBuilder, Node,
    user_namespace::{HOST_ROOT, namespaces},
};
use serde_json::json;

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("user_namespaces::users_and_groups", users_and_groups),
        Case::plain("user_namespaces::terminals", terminals),
        Case::plain("user_namespaces::the_root_file_system", the_root_file_system),
        Case::plain("user_namespaces::limits", limits),
        Case::plain("user_namespaces::raised_limits", raised_limits).needing(may_raise_limits),
        Case::plain("user_namespaces::hooks_and_sysctls", hooks_and_sysctls),
        Case::plain("user_namespaces::joined", joined),
        Case::plain("user_namespaces::beside_another_containers_network", beside_another_containers_network),
        Case::egpu("user_namespaces::refused", refused),
    ]
}

/// CAP_SYS_RESOURCE.
fn may_raise_limits() -> Skip {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    (bits >> 24 & 1 == 1).then_some(()).ok_or_else(|| "no CAP_SYS_RESOURCE".to_owned())
}

/// A container that waits for execs.
fn idle<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).user_namespace()
}

/// Streams belong to who runs the process, also where the runtime options name somebody.
fn users_and_groups(node: &Node) {
    let script = "id -u; id -G; echo again >/proc/self/fd/1; echo $HOME; : >/dev/null";
    let as_user = |spec: &mut serde_json::Value| {
        spec["process"]["user"] = json!({ "uid": 1000, "gid": 1000, "additionalGids": [7] });
    };
    let (status, output) = idle(node, "a").io_owner(HOST_ROOT).edit(as_user).script(script).run().unwrap();
    let text = "1000\n1000 7\nagain\n/home\n";
    assert_eq!((status, output.stdout().as_str(), output.stderr().as_str()), (0, text, ""));
    let container = idle(node, "b").io_owner(HOST_ROOT).start().unwrap();
    let exec = container.exec("e", &["sh", "-c", script]).edit(|process| {
        process["user"] = json!({ "uid": 1000, "gid": 1000, "additionalGids": [7] });
    });
    let (status, output) = exec.run().unwrap();
    assert_eq!((status, output.stdout().as_str(), output.stderr().as_str()), (0, text, ""));
    container.end();
}

fn terminals(node: &Node) {
    let script = "tty >/dev/null && stat -c %u:%t $(tty); echo typed >$(tty); read x";
    let mut container = idle(node, "a").script(script).terminal().start().unwrap();
    container.stdio.wait_for("0:88\r\ntyped\r\n");
    let mut exec = container.exec("e", &["sh", "-c", script]).terminal().start().unwrap();
    exec.stdio.wait_for("0:88\r\ntyped\r\n");
    exec.stdio.write(b"\n");
    assert_eq!(exec.wait().unwrap(), 0);
    exec.delete().unwrap();
    container.stdio.write(b"\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
}

/// A device that is asked for is the host's, as nobody can make one there. What the runtime makes
/// belongs to the container's root.
fn the_root_file_system(node: &Node) {
    let builder = idle(node, "a").edit(|spec| {
        spec["process"]["cwd"] = json!("/made/for/this");
        spec["linux"]["devices"] = json!([
            { "path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11, "fileMode": 0o666, "uid": 0, "gid": 0 }
        ]);
        spec["linux"]["resources"]["devices"] = json!([
            { "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "major": 1, "minor": 11, "access": "rw" }
        ]);
    });
    let container = builder.start().unwrap();
    let facts =
        "pwd; stat -c %u /made /made/for/this /proc/1 /dev /sys/class/net/lo; stat -c %t:%T /dev/kmsg /dev/null";
    let expected = "/made/for/this\n0\n0\n0\n0\n0\n1:b\n1:3";
    assert_eq!(container.read(&format!("cd /made/for/this; {facts}")), expected);
    assert_eq!(
        container.read("echo x >/made/file && cat /made/file && mknod /dev/x c 1 3 2>/dev/null || echo no"),
        "x\nno"
    );
    container.end();
}

fn limits(node: &Node) {
    let limited = |spec: &mut serde_json::Value| {
        spec["process"]["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 512, "hard": 640 }]);
        spec["process"]["oomScoreAdj"] = json!(321);
        spec["linux"]["resources"]["memory"] = json!({ "limit": 64 << 20 });
    };
    let facts = "ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj";
    let container = idle(node, "a").edit(limited).script(&format!("{facts}; exec sleep infinity")).start().unwrap();
    container.stdio.wait_for("512\n640\n321\n");
    let exec = container.exec("e", &["sh", "-c", "ulimit -n"]).edit(|process| {
        process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 256, "hard": 256 }]);
    });
    assert_eq!(exec.run().unwrap().1.stdout(), "256\n");
    assert!(container.metrics().is_ok());
    let (status, _) = container.sh("head -c 200000000 /dev/zero | tail; exit 3");
    assert_eq!(status, 3);
    integration::eventually("the kill is counted", || (container.oom_kills() > 0).then_some(()));
    container.end();
}

/// To more than the root of a user namespace may raise them by itself.
fn raised_limits(node: &Node) {
    let raised = json!([{ "type": "RLIMIT_RTPRIO", "soft": 5, "hard": 7 }]);
    let container = idle(node, "a").edit(|spec| spec["process"]["rlimits"] = raised.clone());
    let container = container.script("ulimit -r; exec sleep infinity").start().unwrap();
    container.stdio.wait_for("5\n");
    let exec = container.exec("e", &["sh", "-c", "ulimit -r"]).edit(|process| process["rlimits"] = raised.clone());
    assert_eq!(exec.run().unwrap().1.stdout(), "5\n");
    container.end();
}

fn hooks_and_sysctls(node: &Node) {
    let seen = node.directory().join("seen");
    let inside = format!("awk '{{ exit $2 != {HOST_ROOT} }}' /proc/self/uid_map");
    let builder = idle(node, "a")
        .hook("createRuntime", &format!("cat /proc/self/uid_map >{}", seen.display()))
        .hook("createContainer", &inside)
        .edit(|spec| spec["linux"]["sysctl"] = json!({ "net.ipv4.ip_forward": "1", "kernel.msgmax": "9000" }));
    let container = builder.start().unwrap();
    assert_eq!(std::fs::read_to_string(seen).unwrap().split_whitespace().nth(1), Some("0"), "the host's");
    assert_eq!(container.read("cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/msgmax"), "1\n9000");
    container.end();
}

/// The namespaces of `other` by path, as the containers of a pod have their sandbox's.
fn join(spec: &mut serde_json::Value, other: &Container<'_>, kinds: &[&str]) {
    let list = namespaces(spec);
    list.retain(|namespace| !kinds.iter().any(|kind| namespace["type"] == *kind));
    list.extend(kinds.iter().map(|kind| {
        let name = if *kind == "network" { "net" } else { *kind };
        json!({ "type": kind, "path": format!("/proc/{}/ns/{name}", other.pid()) })
    }));
}

/// containerd writes mappings beside the path.
fn joined(node: &Node) {
    let sandbox = idle(node, "sandbox").start().unwrap();
    let user = |spec: &mut serde_json::Value| spec["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
    let script = "awk '{print $2}' /proc/self/uid_map; echo again >/proc/self/fd/1; hostname; exec sleep infinity";
    let builder = idle(node, "a").script(script).edit(user);
    let container = builder.edit(|spec| join(spec, &sandbox, &["user", "network", "ipc", "uts"])).start().unwrap();
    container.stdio.wait_for("100000\nagain\ntest\n");
    let link = |pid: u32, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    for kind in ["user", "net", "ipc", "uts"] {
        assert_eq!(link(container.pid(), kind), link(sandbox.pid(), kind), "{kind}");
    }
    let exec = container.exec("e", &["sh", "-c", "id -u; echo again >/proc/self/fd/1"]).edit(|process| {
        process["user"] = json!({ "uid": 1000, "gid": 1000 });
    });
    assert_eq!(exec.run().unwrap().1.stdout(), "1000\nagain\n");
    container.end();
    sandbox.end();
}

/// A network namespace of another container's: neither container's root owns it, so it is joined
/// with the host's rights, by execs, too.
fn beside_another_containers_network(node: &Node) {
    let other =
        node.container("other").edit(|spec| namespaces(spec).push(json!({ "type": "network" }))).start().unwrap();
    let builder = idle(node, "a").edit(|spec| {
        join(spec, &other, &["network", "ipc"]);
        // Both belong to those namespaces.
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.retain(|mount| mount["destination"] != "/sys" && mount["destination"] != "/dev/mqueue");
    });
    let container = builder.start().unwrap();
    let exec = container.exec("e", &["sleep", "1000"]).start().unwrap();
    let link = |pid: u32, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    for (kind, owner) in [("net", other.pid()), ("ipc", other.pid()), ("user", container.pid())] {
        for pid in [container.pid(), exec.state().unwrap().pid] {
            assert_eq!(link(pid, kind), link(owner, kind), "{kind}");
        }
    }
    exec.end();
    container.end();
    other.end();
}

/// In words that say what to do.
fn refused(node: &Node) {
    let sandbox = idle(node, "sandbox").start().unwrap();
    let other = idle(node, "a").edit(|spec| {
        join(spec, &sandbox, &["user"]);
        spec["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": 5, "size": 65536 }]);
    });
    let text = other.create().unwrap_err().to_string();
    assert!(text.contains("are not those of the user namespace /proc/"), "{text}");
    let twice =
        idle(node, "b").edit(|spec| namespaces(spec).push(json!({ "type": "user", "path": "/proc/1/ns/user" })));
    let text = twice.create().unwrap_err().to_string();
    assert!(text.contains("linux.namespaces has two of type"), "{text}");
    // The host's own is none.
    let initial = node.container("c").edit(|spec| {
        namespaces(spec).push(json!({ "type": "user", "path": "/proc/self/ns/user" }));
    });
    assert_eq!(initial.script("cat /proc/self/uid_map").run().unwrap().1.stdout().split_whitespace().nth(1), Some("0"));
    sandbox.end();
}
