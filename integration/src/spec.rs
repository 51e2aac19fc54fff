//! The OCI specs of test containers: what `ctr run` would write, without its extras.

use serde_json::{Value, json};

/// Capabilities that containerd gives an ordinary container.
const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// A process: `arguments` as root, with containerd's default capabilities.
pub fn process(arguments: &[&str], environment: &[String], terminal: bool) -> Value {
    let mut env = vec!["PATH=/bin:/sbin".to_owned()];
    if terminal {
        env.push("TERM=xterm".to_owned());
    }
    env.extend_from_slice(environment);
    json!({
        "terminal": terminal,
        "user": { "uid": 0, "gid": 0 },
        "args": arguments,
        "env": env,
        "cwd": "/",
        "capabilities": { "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES },
        "noNewPrivileges": true,
    })
}

/// A whole spec for a container in cgroup `cgroup`, its network shared with the host (nothing here
/// needs one).
pub fn container(process: &Value, cgroup: &str) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": { "path": "rootfs" },
        "hostname": "test",
        "mounts": [
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
            mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/run", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ],
        "linux": {
            "resources": { "devices": [{ "allow": false, "access": "rwm" }] },
            "cgroupsPath": cgroup,
            "namespaces": [{ "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": source, "options": options })
}
