//! Specs that runc refuses: so does egpu, and says in words what it was.

use integration::{ContainerBuilder, Node};
use serde_json::{Value, json};

/// A change of the spec, and words that the refusal has: the field or path, and the value. `|` is
/// between those of cgroup v1 and v2.
type Refusal = (fn(&mut Value), &'static [&'static str]);

fn push(list: &mut Value, value: Value) {
    match list {
        Value::Array(list) => list.push(value),
        list => *list = json!([value]),
    }
}

fn mount(spec: &mut Value, value: Value) {
    push(&mut spec["mounts"], value);
}

fn namespace(spec: &mut Value, value: Value) {
    let all = spec["linux"]["namespaces"].as_array_mut().expect("namespaces");
    all.retain(|one| one["type"] != value["type"]);
    all.push(value);
}

fn limit(spec: &mut Value, kind: &str, soft: u64, hard: u64) {
    spec["process"]["rlimits"] = json!([{ "type": kind, "soft": soft, "hard": hard }]);
}

const LONG: &str = "a-name-of-more-than-sixty-four-bytes-which-is-all-that-the-kernel-takes";

const REFUSALS: &[Refusal] = &[
    (|spec| namespace(spec, json!({ "type": "network", "path": "/no/such/net" })), &["/no/such/net", "net namespace"]),
    (|spec| namespace(spec, json!({ "type": "pid", "path": "/no/such/pid" })), &["/no/such/pid", "pid"]),
    (|spec| namespace(spec, json!({ "type": "user", "path": "/no/such/user" })), &["/no/such/user", "user"]),
    (|spec| namespace(spec, json!({ "type": "ipc", "path": "/proc/self/ns/uts" })), &["/proc/self/ns/uts", "ipc"]),
    (|spec| namespace(spec, json!({ "type": "network", "path": "/etc/passwd" })), &["/etc/passwd", "no net namespace"]),
    (|spec| spec["hostname"] = json!(LONG), &["hostname", LONG]),
    (|spec| spec["domainname"] = json!(LONG), &["domainname", LONG]),
    (|spec| limit(spec, "RLIMIT_NOFILE", 2, 1), &["RLIMIT_NOFILE", "2", "1"]),
    (|spec| limit(spec, "RLIMIT_NOFILE", u64::MAX, u64::MAX), &["RLIMIT_NOFILE", "unlimited"]),
    (|spec| limit(spec, "RLIMIT_STRANGE", 1, 1), &["RLIMIT_STRANGE"]),
    (|spec| spec["linux"]["sysctl"] = json!({ "kernel.no_such": "1" }), &["kernel.no_such"]),
    (|spec| spec["linux"]["sysctl"] = json!({ "kernel.msgmax": "words" }), &["kernel.msgmax"]),
    (|spec| spec["process"]["cwd"] = json!("/etc/passwd"), &["/etc/passwd", "ot a directory"]),
    (|spec| spec["process"]["cwd"] = json!("/etc/passwd/x"), &["/etc/passwd/x", "ot a directory"]),
    (
        |spec| {
            mount(
                spec,
                json!({ "destination": "/etc/passwd", "type": "bind", "source": "/tmp", "options": ["rbind"] }),
            );
        },
        &["/etc/passwd", "/tmp", "not a directory"],
    ),
    (
        |spec| {
            mount(spec, json!({ "destination": "/etc", "type": "bind", "source": "/etc/passwd", "options": ["bind"] }));
        },
        &["/etc", "/etc/passwd", "not a directory"],
    ),
    (
        |spec| mount(spec, json!({ "destination": "/etc/passwd", "type": "tmpfs", "source": "tmpfs" })),
        &["/etc/passwd", "tmpfs", "not a directory"],
    ),
    (
        |spec| mount(spec, json!({ "destination": "/etc/passwd/x", "type": "tmpfs", "source": "tmpfs" })),
        &["/etc/passwd/x", "ot a directory"],
    ),
    (
        |spec| mount(spec, json!({ "destination": "/mnt", "type": "tmpfs", "source": "mine", "options": ["sise=1m"] })),
        &["/mnt", "mine", "sise=1m"],
    ),
    (
        |spec| {
            mount(spec, json!({ "destination": "/mnt", "type": "tmpfs", "source": "mine", "options": ["size=lots"] }));
        },
        &["/mnt", "mine", "size=lots"],
    ),
    (
        |spec| mount(spec, json!({ "destination": "/mnt", "type": "nosuchfs", "source": "mine" })),
        &["/mnt", "mine", "nosuchfs"],
    ),
    (
        |spec| mount(spec, json!({ "destination": "/mnt", "type": "ext4", "source": "/no/such/disk" })),
        &["/mnt", "/no/such/disk", "ext4"],
    ),
    (
        |spec| {
            mount(spec, json!({ "destination": "/mnt", "type": "bind", "source": "/no/such", "options": ["rbind"] }));
        },
        &["/mnt", "/no/such"],
    ),
    (|spec| mount(spec, json!({ "destination": "/proc/sys", "type": "tmpfs", "source": "tmpfs" })), &["/proc/sys"]),
    (|spec| mount(spec, json!({ "destination": "/", "type": "tmpfs", "source": "tmpfs" })), &["root"]),
    (
        |spec| spec["linux"]["devices"] = json!([{ "path": "/etc/passwd/null", "type": "c", "major": 1, "minor": 3 }]),
        &["/etc/passwd/null"],
    ),
    (|spec| spec["linux"]["devices"] = json!([{ "path": "/dev/x", "type": "q", "major": 1, "minor": 3 }]), &["q"]),
    (|spec| spec["process"]["apparmorProfile"] = json!("tight"), &["apparmorProfile", "tight"]),
    (|spec| spec["process"]["oomScoreAdj"] = json!(5000), &["OOM score", "5000"]),
    (
        |spec| {
            let all = json!(["CAP_KILL"]);
            spec["process"]["capabilities"] =
                json!({ "bounding": all, "permitted": all, "effective": ["CAP_KILL", "CAP_CHOWN"] });
        },
        &["capabilities"],
    ),
    (|spec| spec["process"]["ioPriority"] = json!({ "class": "IOPRIO_CLASS_NO", "priority": 1 }), &["IOPRIO_CLASS_NO"]),
    (|spec| spec["process"]["ioPriority"] = json!({ "class": "IOPRIO_CLASS_BE", "priority": 9 }), &["ioPriority", "9"]),
    (
        |spec| spec["process"]["scheduler"] = json!({ "policy": "SCHED_FIFO", "priority": 1000 }),
        &["SCHED_FIFO", "1000"],
    ),
    (|spec| spec["process"]["scheduler"] = json!({ "policy": "SCHED_OTHER", "nice": -100 }), &["-100"]),
    (|spec| spec["linux"]["resources"]["memory"] = json!({ "limit": 1024 }), &["memory"]),
    (|spec| spec["linux"]["resources"]["cpu"] = json!({ "cpus": "4000" }), &["cpuset.cpus", "4000"]),
    (|spec| spec["linux"]["resources"]["cpu"] = json!({ "mems": "4000" }), &["cpuset.mems", "4000"]),
    (|spec| spec["linux"]["resources"]["cpu"] = json!({ "cpus": "words" }), &["cpuset.cpus", "words"]),
    (|spec| spec["linux"]["resources"]["cpu"] = json!({ "quota": 10, "period": 100_000 }), &["10"]),
    (|spec| spec["linux"]["resources"]["cpu"] = json!({ "period": 1 }), &["period|cpu.max", "1"]),
    (
        |spec| spec["linux"]["resources"]["hugepageLimits"] = json!([{ "pageSize": "3MB", "limit": 1 }]),
        &["hugetlb|page size"],
    ),
    (|spec| spec["linux"]["resources"]["unified"] = json!({ "no.such": "1" }), &["unified|no.such"]),
    (|spec| spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_STRANGE" }), &["SCMP_ACT_STRANGE"]),
    (|spec| spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_NOTIFY" }), &["SCMP_ACT_NOTIFY"]),
    (
        |spec| {
            spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                { "names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "args": [{ "index": 9, "value": 1, "op": "SCMP_CMP_EQ" }] },
            ] });
        },
        &["seccomp", "mkdir", "9"],
    ),
    (
        |spec| {
            spec["linux"]["seccomp"] = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                { "names": ["mkdir"], "action": "SCMP_ACT_NOTIFY" },
            ] });
        },
        &["listenerPath"],
    ),
    (|spec| spec["linux"]["rootfsPropagation"] = json!("everywhere"), &["rootfsPropagation", "everywhere"]),
    (
        |spec| {
            namespace(spec, json!({ "type": "user" }));
            spec["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": 4_294_967_290u32, "size": 10 }]);
            spec["linux"]["gidMappings"] = json!([{ "containerID": 0, "hostID": 1000, "size": 10 }]);
        },
        &["linux.uidMappings[0].size"],
    ),
    (|spec| spec["root"]["path"] = json!("/no/such/root"), &["/no/such/root"]),
    (|spec| spec["linux"]["personality"] = json!({ "domain": "WINDOWS" }), &["WINDOWS"]),
    (|spec| spec["linux"]["timeOffsets"] = json!({ "monotonic": { "secs": 5 } }), &["time namespace offsets"]),
    (
        |spec| {
            namespace(spec, json!({ "type": "time" }));
            spec["linux"]["timeOffsets"] = json!({ "lunar": { "secs": 5 } });
        },
        &["lunar"],
    ),
    (|spec| spec["linux"]["intelRdt"] = json!({ "closID": "no/such", "l3CacheSchema": "L3:0=f" }), &["closID"]),
    (
        |spec| {
            namespace(spec, json!({ "type": "network" }));
            spec["linux"]["netDevices"] = json!({ "nosuch0": {} });
        },
        &["nosuch0"],
    ),
    (
        |spec| spec["hooks"] = json!({ "createRuntime": [{ "path": "/no/such/hook" }] }),
        &["createRuntime", "/no/such/hook"],
    ),
    (|spec| spec["hooks"] = json!({ "createContainer": [{ "path": "/no/such/hook" }] }), &["/no/such/hook"]),
    (|spec| spec["hooks"] = json!({ "poststart": [{ "path": "/no/such/hook" }] }), &["poststart", "/no/such/hook"]),
    (|spec| spec["hooks"] = json!({ "createRuntime": [{ "path": "true" }] }), &["createRuntime", "\"true\""]),
    (|spec| spec["process"]["args"] = json!(["/no/such"]), &["/no/such", "no such file or directory"]),
    (|spec| spec["process"]["args"] = json!(["no-such"]), &["no-such", "$PATH"]),
    (|spec| spec["process"]["args"] = json!(["/etc"]), &["/etc", "is a directory"]),
    (
        |spec| {
            spec["process"]["args"] = json!(["true"]);
            spec["process"]["env"] = json!(["PATH=bin:/bin"]);
        },
        &["true", "cannot run executable found relative to current directory"],
    ),
    (
        |spec| {
            spec["process"]["args"] = json!(["true"]);
            spec["process"]["env"] = json!([]);
        },
        &["true", "executable file not found in $PATH"],
    ),
];

pub(super) fn are_in_words(node: &Node) {
    let runc = super::runc().unwrap();
    let image = node.directory().join("refusals");
    std::fs::create_dir_all(&image).unwrap();
    integration::rootfs::populate(&image);
    let mut wrong = Vec::new();
    for (number, (edit, words)) in REFUSALS.iter().enumerate() {
        let id = format!("refused{number}");
        let run = |builder: ContainerBuilder<'_>| run(builder.rootfs(&image).edit(edit));
        let (theirs, ours) = (run(node.container(&id).runc(&runc)), run(node.container(&id)));
        println!("{number} {words:?}\n  runc {theirs:?}\n  egpu {ours:?}");
        if theirs.is_none() != ours.is_none() {
            wrong.push(format!("{words:?}: runc {theirs:?}, egpu {ours:?}"));
        }
        let Some(ours) = ours else { continue };
        let absent: Vec<_> = words.iter().filter(|word| !word.split('|').any(|word| ours.contains(word))).collect();
        if !absent.is_empty() || is_debug_text(&ours) {
            wrong.push(format!("without {absent:?}: {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the container to its end; the refusal, if it did not start.
fn run(builder: ContainerBuilder<'_>) -> Option<String> {
    let mut container = match builder.args(&["true"]).create() {
        Ok(container) => container,
        Err(status) => return Some(status.message().to_owned()),
    };
    let started = container.start().err().map(|status| status.message().to_owned());
    container.wait().unwrap();
    container.delete().unwrap();
    started
}

/// True of what libcontainer says of values and errors to itself.
pub(super) fn is_debug_text(message: &str) -> bool {
    const OF_DEBUG: [&str; 9] = ["Nix(", "Os {", "err=", "Some(", "None", "LinuxNamespace", "Errno(", " e=E", "Error("];
    OF_DEBUG.iter().any(|text| message.contains(text))
}
