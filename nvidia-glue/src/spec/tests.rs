use proptest::prelude::*;
use runtime_config::request::{NvidiaHook, Privileges};
use serde_json::json;

use super::*;

/// Spec that `ctr run` writes for an ordinary container, as far as it matters here.
fn ordinary() -> Value {
    json!({
        "process": {
            "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"],
            "capabilities": {"bounding": ["CAP_CHOWN", "CAP_NET_RAW"]}
        },
        "annotations": {"egpu.io/memory": "4GiB"},
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "resources": {"devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "access": "m"}]}
        }
    })
}

#[test]
fn an_ordinary_container() {
    let found = read(&ordinary());
    assert_eq!(found.source.env, ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"]);
    assert_eq!(found.source.annotations["egpu.io/memory"], "4GiB");
    assert_eq!(found.source.privileges, Privileges::default());
    assert!(!found.source.is_sandbox && !found.seccomp_listener);
    assert_eq!(found.workload, None);
}

/// One change of the ordinary spec, and what must come of it.
#[test]
fn privileges() {
    type Case = (&'static str, &'static str, Value, fn(&Privileges) -> bool);
    let rules = |rules: Value| rules;
    let cases: Vec<Case> = vec![
        ("sys_admin", "/process/capabilities/bounding", json!(["CAP_SYS_ADMIN"]), |found| found.cap_sys_admin),
        ("lower case, bare", "/process/capabilities/bounding", json!(["sys_module"]), |found| found.cap_sys_module),
        ("sys_rawio", "/process/capabilities/bounding", json!(["CAP_SYS_RAWIO"]), |found| found.cap_sys_rawio),
        ("in another set", "/process/capabilities", json!({"inheritable": ["CAP_SYS_ADMIN"]}), |found| {
            found.cap_sys_admin
        }),
        // All of them are dropped: a set that is left out has none.
        ("no sets", "/process/capabilities", json!({}), |found| *found == Privileges::default()),
        ("no bounding set", "/process/capabilities", json!({"effective": ["CAP_CHOWN"]}), |found| {
            *found == Privileges::default()
        }),
        ("empty sets", "/process/capabilities", json!({"bounding": [], "effective": null}), |found| {
            *found == Privileges::default()
        }),
        ("no capabilities", "/process/capabilities", json!(null), |found| *found == Privileges::default()),
        // Of namespaces, the host's are what is left out.
        ("no namespaces", "/linux/namespaces", json!(null), |found| found.host_pid_namespace && !found.user_namespace),
        (
            "an empty path",
            "/linux/namespaces",
            json!([{"type": "pid", "path": ""}, {"type": "user", "path": null}]),
            |found| !found.host_pid_namespace && found.user_namespace,
        ),
        ("no rules", "/linux/resources", json!({"devices": null}), |found| !found.wildcard_device_rule),
        (
            "a rule for all that it does not name",
            "/linux/resources/devices",
            json!([{"allow": true, "type": null, "major": null, "access": "r"}]),
            |found| found.wildcard_device_rule,
        ),
        ("user namespace", "/linux/namespaces", json!([{"type": "user"}]), |found| found.user_namespace),
        (
            "host's user namespace by path",
            "/linux/namespaces",
            json!([{"type": "user", "path": "/proc/1/ns/user"}]),
            |found| !found.user_namespace && !found.maps_host_root,
        ),
        (
            "ids of its own",
            "/linux",
            json!({"namespaces": [{"type": "user"}], "uidMappings": [{"hostID": 5}]}),
            |found| found.user_namespace && !found.maps_host_root,
        ),
        (
            "the host's ids",
            "/linux",
            json!({"namespaces": [{"type": "user"}], "uidMappings": [{"hostID": 5}, {"containerID": 9, "hostID": 0}]}),
            |found| found.user_namespace && found.maps_host_root,
        ),
        ("no pid namespace", "/linux/namespaces", json!([{"type": "mount"}]), |found| found.host_pid_namespace),
        (
            "host's pid namespace by path",
            "/linux/namespaces",
            json!([{"type": "pid", "path": "/proc/self/ns/pid"}]),
            |found| found.host_pid_namespace,
        ),
        ("a namespace that is gone", "/linux/namespaces", json!([{"type": "pid", "path": "/nonexistent"}]), |found| {
            found.host_pid_namespace
        }),
        ("privileged", "/linux/resources/devices", rules(json!([{"allow": true, "access": "rwm"}])), |found| {
            found.wildcard_device_rule
        }),
        (
            "-1",
            "/linux/resources/devices",
            json!([{"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw"}]),
            |found| found.wildcard_device_rule,
        ),
        (
            "every card",
            "/linux/resources/devices",
            json!([{"allow": true, "type": "c", "major": 195, "access": "rw"}]),
            |found| found.wildcard_device_rule,
        ),
        (
            "block devices only",
            "/linux/resources/devices",
            json!([{"allow": true, "type": "b", "access": "rwm"}]),
            |found| !found.wildcard_device_rule,
        ),
        (
            "taken back",
            "/linux/resources/devices",
            json!([{"allow": true, "access": "rwm"}, {"allow": false, "access": "rwm"}]),
            |found| !found.wildcard_device_rule,
        ),
        (
            "one node",
            "/linux/resources/devices",
            json!([{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]),
            |found| !found.wildcard_device_rule,
        ),
    ];
    for (name, pointer, value, holds) in cases {
        let mut spec = ordinary();
        *spec.pointer_mut(pointer).unwrap() = value;
        let found = read(&spec).source.privileges;
        assert!(holds(&found), "{name}: {found:?}");
    }
}

/// Its own mappings count, and not those that the spec lists.
#[test]
fn a_user_namespace_that_is_joined() {
    for (map, has_root) in [("0 100000 9", false), ("7 0 1", true)] {
        let mut child = std::process::Command::new("unshare").args(["--user", "sleep", "60"]).spawn().unwrap();
        let joins = json!([{"type": "user", "path": format!("/proc/{}/ns/user", child.id())}]);
        let mappings = json!([{"containerID": 0, "hostID": if has_root { 7 } else { 0 }, "size": 1}]);
        let mut spec = ordinary();
        spec["linux"] = json!({"namespaces": joins, "uidMappings": mappings});
        let joined = || read(&spec).source.privileges;
        let entered = (0..500).find(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            joined().user_namespace
        });
        let mapped = entered.map(|_| std::fs::write(format!("/proc/{}/uid_map", child.id()), map));
        let found = joined();
        child.kill().unwrap();
        child.wait().unwrap();
        if !matches!(mapped, Some(Ok(()))) {
            eprintln!("skipped: a_user_namespace_that_is_joined: it cannot be made: {mapped:?}");
            continue;
        }
        assert_eq!(found.maps_host_root, has_root, "{map}");
        assert!(!joined().user_namespace, "nobody can be asked any more");
    }
}

#[test]
fn nodes_are_known_by_their_numbers() {
    let spec = json!({"linux": {"devices": [
        {"path": "/dev/nvidia7", "type": "c", "major": 195, "minor": 2},
        {"path": "/dev/other", "type": "c", "major": 195, "minor": 2},
        {"path": "/dev/nvidia3"},
        {"path": "/dev/nvidia1", "type": "c", "major": 10, "minor": 1},
        {"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255},
        {"path": "/dev/nvidia-modeset", "type": "c", "major": 195, "minor": 254},
        {"path": "/dev/nvidia-uvm", "type": "c", "major": 510, "minor": 0},
        {"path": "/dev/nvidia-caps/nvidia-cap21", "type": "c", "major": 511, "minor": 21},
        {"path": 7}, null
    ]}});
    let nodes = read(&spec).source.nodes;
    assert_eq!(nodes.cards, [2, 3]);
    assert_eq!(nodes.capabilities, [21]);
    assert!(nodes.control);
}

#[test]
fn the_hook_that_ctr_writes() {
    let spec = json!({"hooks": {"prestart": [{"path": "/usr/bin/containerd", "args": [
        "containerd", "oci-hook", "--", "/usr/bin/nvidia-container-cli", "--load-kmods", "configure",
        "--device=0,GPU-1", "--device", "2", "--compute", "--utility", "--require=cuda>=12.0",
        "--ldconfig=@/sbin/ldconfig", "--pid={{pid}}", "{{rootfs}}"]}]}});
    assert_eq!(
        read(&spec).source.hook,
        Some(NvidiaHook::CommandLine {
            devices: vec!["0".into(), "GPU-1".into(), "2".into()],
            capabilities: vec!["compute".into(), "utility".into()],
            requirements: vec!["cuda>=12.0".into()],
        })
    );
}

#[test]
fn hooks_and_who_wrote_them() {
    let cases = [
        (
            json!({"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}),
            Some(NvidiaHook::Environment),
        ),
        (json!({"path": "/usr/bin/nvidia-container-toolkit"}), Some(NvidiaHook::Environment)),
        (json!({"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache"]}), None),
        (json!({"path": "/usr/bin/containerd", "args": ["containerd", "oci-hook", "--", "/bin/other"]}), None),
        (json!({"path": "/usr/bin/containerd", "args": ["containerd", "oci-hook", "--"]}), None),
        (json!({"path": "/bin/echo", "args": ["nvidia-container-cli", "configure"]}), None),
    ];
    for (hook, expected) in cases {
        assert_eq!(read(&json!({"hooks": {"prestart": [hook.clone()]}})).source.hook, expected, "{hook}");
    }
}

#[test]
fn volume_mounts() {
    let mount = |destination: &str, source: &str| json!({"destination": destination, "source": source});
    let spec = json!({"mounts": [
        mount("/var/run/nvidia-container-devices/GPU-1", "/dev/null"),
        mount("/var/run/nvidia-container-devices/./0/", "/dev/null"),
        mount("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0", "/dev/null"),
        mount("/var/run/nvidia-container-devices/1", "/dev/zero"),
        mount("/var/run/other/1", "/dev/null"),
    ]});
    assert_eq!(read(&spec).source.volume_mount_devices, ["GPU-1", "0"]);
}

#[test]
fn listeners() {
    for (seccomp, expected) in [
        (json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"action": "SCMP_ACT_ALLOW"}]}), false),
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_NOTIFY"}]}), true),
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/x.sock"}), true),
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": ""}), false),
        (json!(null), false),
    ] {
        assert_eq!(read(&json!({"linux": {"seccomp": seccomp.clone()}})).seccomp_listener, expected, "{seccomp}");
    }
}

#[test]
fn workloads_and_sandboxes() {
    for (pod, owner) in [
        ("web-7d4b9c6f5-x2x9z", "web-7d4b9c6f5"),
        ("db-0", "db"),
        ("db-12", "db"),
        ("single", "single"),
        ("my-app", "my-app"),
        ("-0", "-0"),
        ("train-hello", "train-hello"),
    ] {
        let spec = json!({"annotations": {
            "io.kubernetes.cri.sandbox-name": pod, "io.kubernetes.cri.sandbox-namespace": "ns",
            "io.kubernetes.cri.container-name": "main", "io.kubernetes.cri.container-type": "container"}});
        let found = read(&spec);
        assert_eq!(found.workload, Some(format!("ns/{owner}/main")));
        let names = found.pod.map(|names| (names.namespace, names.pod, names.container));
        assert_eq!(names, Some(("ns".to_owned(), pod.to_owned(), "main".to_owned())));
        assert!(!found.source.is_sandbox);
    }
    assert!(read(&json!({"annotations": {"io.kubernetes.cri.container-type": "sandbox"}})).source.is_sandbox);
}

#[test]
fn paths_are_cleaned() {
    for (path, cleaned) in [("/a//b/./c/", "/a/b/c"), ("/a/../../b", "/b"), ("", "/"), ("a/b", "/a/b"), ("/", "/")] {
        assert_eq!(clean(path), cleaned);
    }
}

/// JSON with the keys that the reader looks at in places where it looks for them, and anything at
/// all as their values.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    const KEYS: [&str; 24] = [
        "process",
        "env",
        "capabilities",
        "bounding",
        "annotations",
        "linux",
        "namespaces",
        "type",
        "path",
        "devices",
        "major",
        "minor",
        "resources",
        "allow",
        "access",
        "hooks",
        "prestart",
        "args",
        "mounts",
        "source",
        "destination",
        "seccomp",
        "syscalls",
        "action",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
        prop::sample::select(vec![
            "--",
            "nvidia-container-cli",
            "configure",
            "--device",
            "/dev/null",
            "/dev/nvidia",
            "user"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 128, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(prop::sample::select(KEYS.to_vec()), inner, 0..8)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read(spec in any_json()) {
        let found = read(&spec);
        let cards = found.source.nodes.cards.len();
        prop_assert!(cards <= items(spec.pointer("/linux/devices")).len());
    }

    #[test]
    fn a_cleaned_path_is_absolute_and_stays(path in ".*") {
        let cleaned = clean(&path);
        prop_assert!(cleaned.starts_with('/'));
        prop_assert!(!cleaned.split('/').any(|part| part == ".." || part == "."));
        prop_assert_eq!(clean(&cleaned), cleaned);
    }
}
