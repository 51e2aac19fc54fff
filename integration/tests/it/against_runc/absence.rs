//! Fields that are absent, null or empty: read as a current runc reads them.
//! docs/design/libcontainer.md has what each means.

use integration::{Node, spec};
use serde_json::{Value, json};

use super::{
    differences::{self, Deviation},
    host::Host,
    run, runc,
};

/// A spec in which each field of the table says something.
fn base(cgroup: &str) -> Value {
    const CAPABILITIES: [&str; 3] = ["CAP_CHOWN", "CAP_KILL", "CAP_SYS_ADMIN"];
    let arguments = ["/bin/sh", "-c", include_str!("probe.sh"), "probe", "/dev/deep/fuse", "/etc", "/var", "/mnt/t"];
    let mut process = spec::process(&arguments, &["HOME=/h".to_owned()], false);
    process["user"] = json!({ "uid": 1000, "gid": 1000, "additionalGids": [5], "umask": 0o27 });
    process["capabilities"] = json!({
        "bounding": CAPABILITIES, "permitted": CAPABILITIES, "effective": CAPABILITIES,
        "inheritable": CAPABILITIES, "ambient": CAPABILITIES,
    });
    process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 512, "hard": 640 }]);
    process["oomScoreAdj"] = json!(500);
    process["cwd"] = json!("/tmp");
    process["ioPriority"] = json!({ "class": "IOPRIO_CLASS_BE", "priority": 7 });
    process["scheduler"] = json!({ "policy": "SCHED_BATCH", "nice": 5 });
    let mut spec = spec::container(&process, cgroup);
    spec["root"]["readonly"] = json!(true);
    spec["domainname"] = json!("example.test");
    spec["annotations"] = json!({ "a": "b" });
    spec["hooks"] =
        json!({ "createRuntime": [{ "path": "/bin/true", "args": ["true"], "env": ["A=1"], "timeout": 9 }] });
    let options = ["size=1m", "ro"];
    let mounts = spec["mounts"].as_array_mut().expect("mounts");
    mounts.push(json!({ "destination": "/mnt/t", "type": "tmpfs", "source": "own", "options": options }));
    let linux = spec["linux"].as_object_mut().expect("linux");
    linux["maskedPaths"] = json!(["/proc/kcore", "/var"]);
    linux["readonlyPaths"] = json!(["/etc"]);
    linux["resources"] = json!({
        "devices": [{ "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rw" }],
        "memory": { "limit": 64 << 20, "reservation": 32 << 20 }, "cpu": { "shares": 100 }, "pids": { "limit": 50 },
    });
    let more = json!({
        "sysctl": { "kernel.msgmax": "65536" }, "rootfsPropagation": "rslave", "personality": { "domain": "LINUX32" },
        "devices": [{ "path": "/dev/deep/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o640, "uid": 1000, "gid": 5 }],
        "seccomp": {
            "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"], "flags": ["SECCOMP_FILTER_FLAG_LOG"],
            "syscalls": [{
                "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38,
                "args": [{ "index": 0, "value": 0, "op": "SCMP_CMP_NE" }],
            }],
        },
    });
    linux.extend(more.as_object().expect("an object").clone());
    spec
}

/// Fields, each with what is empty of its kind; null where there is no such thing. Not here are
/// those that decide where on the host a container is: `root.path`, `mounts`, `linux.cgroupsPath`,
/// `linux.namespaces`.
const FIELDS: &[(&str, &str)] = &[
    ("/hostname", r#""""#),
    ("/domainname", r#""""#),
    ("/annotations", "{}"),
    ("/hooks", "{}"),
    ("/hooks/createRuntime", "[]"),
    ("/hooks/createRuntime/0/args", "[]"),
    ("/hooks/createRuntime/0/env", "[]"),
    ("/hooks/createRuntime/0/timeout", "null"),
    ("/root/readonly", "null"),
    ("/mounts/7/type", r#""""#),
    ("/mounts/7/source", r#""""#),
    ("/mounts/7/options", "[]"),
    ("/mounts/7/uidMappings", "null"),
    ("/mounts/7/gidMappings", "null"),
    ("/process/user", "{}"),
    ("/process/user/uid", "null"),
    ("/process/user/gid", "null"),
    ("/process/user/additionalGids", "[]"),
    ("/process/user/umask", "null"),
    ("/process/args", "[]"),
    ("/process/env", "[]"),
    ("/process/cwd", r#""""#),
    ("/process/terminal", "null"),
    ("/process/consoleSize", "{}"),
    ("/process/capabilities", "{}"),
    ("/process/capabilities/bounding", "[]"),
    ("/process/capabilities/effective", "[]"),
    ("/process/capabilities/permitted", "[]"),
    ("/process/capabilities/inheritable", "[]"),
    ("/process/capabilities/ambient", "[]"),
    ("/process/rlimits", "[]"),
    ("/process/noNewPrivileges", "false"),
    ("/process/apparmorProfile", r#""""#),
    ("/process/selinuxLabel", r#""""#),
    ("/process/oomScoreAdj", "null"),
    ("/process/ioPriority", "null"),
    ("/process/scheduler", "null"),
    ("/linux/namespaces/0/path", r#""""#),
    ("/linux/uidMappings", "[]"),
    ("/linux/gidMappings", "[]"),
    ("/linux/devices", "[]"),
    ("/linux/devices/0/fileMode", "null"),
    ("/linux/devices/0/uid", "null"),
    ("/linux/devices/0/gid", "null"),
    ("/linux/resources", "{}"),
    ("/linux/resources/devices", "[]"),
    ("/linux/resources/devices/1/type", r#""""#),
    ("/linux/resources/devices/1/major", "null"),
    ("/linux/resources/devices/1/minor", "null"),
    ("/linux/resources/devices/1/access", r#""""#),
    ("/linux/resources/memory", "{}"),
    ("/linux/resources/memory/limit", "null"),
    ("/linux/resources/cpu", "{}"),
    ("/linux/resources/pids", "null"),
    ("/linux/resources/unified", "{}"),
    ("/linux/resources/hugepageLimits", "[]"),
    ("/linux/resources/blockIO", "{}"),
    ("/linux/sysctl", "{}"),
    ("/linux/seccomp", "{}"),
    ("/linux/seccomp/architectures", "[]"),
    ("/linux/seccomp/flags", "[]"),
    ("/linux/seccomp/listenerPath", r#""""#),
    ("/linux/seccomp/syscalls", "[]"),
    ("/linux/seccomp/syscalls/0/args", "[]"),
    ("/linux/seccomp/syscalls/0/errnoRet", "null"),
    ("/linux/rootfsPropagation", r#""""#),
    ("/linux/maskedPaths", "[]"),
    ("/linux/readonlyPaths", "[]"),
    ("/linux/mountLabel", r#""""#),
    ("/linux/personality", "null"),
    ("/linux/timeOffsets", "{}"),
    ("/linux/netDevices", "{}"),
];

/// The forms that a field can have besides that of the base, each with its name.
fn forms(spec: &Value, pointer: &str, empty: &str) -> Vec<(&'static str, Option<Value>)> {
    let empty: Value = serde_json::from_str(empty).expect(pointer);
    let mut forms = vec![("null", Some(Value::Null))];
    if spec.pointer(pointer).is_some() {
        forms.push(("absent", None));
    }
    if !empty.is_null() {
        forms.push(("empty", Some(empty)));
    }
    forms
}

fn with(mut spec: Value, pointer: &str, form: Option<&Value>) -> Value {
    let (parent, name) = pointer.rsplit_once('/').expect(pointer);
    let parent = spec.pointer_mut(parent).and_then(Value::as_object_mut).expect(pointer);
    match form {
        Some(value) => _ = parent.insert(name.to_owned(), value.clone()),
        None => _ = parent.remove(name),
    }
    spec
}

pub(super) fn same(node: &Node) {
    let runc = runc().unwrap();
    let host = Host::new(node, &runc);
    let mut wrong = Vec::new();
    let (mut number, mut seen) = (0, 0);
    for (pointer, empty) in FIELDS {
        for (form, value) in forms(&base(""), pointer, empty) {
            number += 1;
            let id = format!("form{number}");
            let cgroup = node.cgroup_path(&id);
            let spec = with(base(&cgroup), pointer, value.as_ref());
            let [theirs, ours] = [node.container(&id).runc(&runc), node.container(&id)]
                .map(|builder| run(builder, &spec, &cgroup, &host));
            let deviations = differences::between(&theirs, &ours);
            let (known, unknown): (Vec<Deviation>, Vec<Deviation>) =
                deviations.into_iter().partition(|deviation| differences::known(deviation, &spec, &host).is_some());
            seen += known.len();
            wrong.extend(unknown.iter().map(|deviation| format!("{pointer} {form}: {deviation}")));
        }
    }
    host.end();
    println!("{number} forms of {} fields, {seen} known differences in them", FIELDS.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Beside an init that has capabilities.
pub(super) fn same_of_execs(node: &Node) {
    const FORMS: [(&str, &str); 8] = [
        ("/capabilities", "{}"),
        ("/capabilities", r#"{"effective":["CAP_KILL"],"permitted":["CAP_KILL"]}"#),
        ("/capabilities", r#"{"bounding":["CAP_KILL"],"inheritable":[],"ambient":null}"#),
        ("/user", "{}"),
        ("/env", "[]"),
        ("/rlimits", "[]"),
        ("/noNewPrivileges", "false"),
        ("/apparmorProfile", r#""""#),
    ];
    let runc = runc().unwrap();
    let edit = |own: &mut Value| own["process"]["capabilities"] = base("")["process"]["capabilities"].clone();
    let theirs = node.container("theirs").runc(&runc).edit(edit).start().unwrap();
    let ours = node.container("ours").edit(edit).start().unwrap();
    let script = "grep -E '^(Cap|Uid|Gid|Groups|NoNewPrivs)' /proc/self/status; ulimit -n; env";
    for (pointer, empty) in FORMS {
        let process = spec::process(&["/bin/sh", "-c", script], &["HOME=/h".to_owned()], false);
        for (form, value) in forms(&process, pointer, empty) {
            let [theirs, ours] = [&theirs, &ours].map(|container| {
                let exec = container.exec("e", &[]).edit(|own| *own = with(process.clone(), pointer, value.as_ref()));
                exec.run().map(|(code, output)| (code, output.stdout(), output.stderr())).map_err(drop)
            });
            assert_eq!(theirs, ours, "process{pointer} {form} {empty}");
        }
    }
    theirs.end();
    ours.end();
}
