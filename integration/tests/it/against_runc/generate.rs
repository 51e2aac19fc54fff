//! OCI specs at random: what a client of containerd may ask of a container, in any combination.

use integration::spec;
use rand::{
    RngExt as _, SeedableRng as _,
    rngs::SmallRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use serde_json::{Map, Value, json};

use super::host::Host;

/// One spec for each seed. `arguments` is what the container runs, `cgroup` where.
pub(super) fn spec(seed: u64, host: &Host<'_>, arguments: &[&str], cgroup: &str) -> Value {
    let mut random = Random(SmallRng::seed_from_u64(seed));
    let mut spec = spec::container(&spec::process(arguments, &[], false), cgroup);
    spec["root"]["readonly"] = json!(random.in_ten(3));
    spec["mounts"] = mounts(&mut random, host);
    spec["linux"] = linux(&mut random, host, spec["linux"].take());
    process(&mut random, spec["process"].as_object_mut().expect("an object"));
    // Elsewhere they would be the host's.
    let names = spec["linux"]["namespaces"].as_array().expect("namespaces");
    if !names.iter().any(|one| one["type"] == "uts") {
        spec.as_object_mut().expect("an object").remove("hostname");
    } else if random.in_ten(3) {
        spec["domainname"] = json!("example.test");
    }
    if random.in_ten(1) {
        extreme_id(&mut random, &mut spec);
    }
    spec
}

/// Puts one into a field: -1, which system calls take for "leave as it is", or the first that an
/// `int` of 32 bits cannot hold.
fn extreme_id(random: &mut Random, spec: &mut Value) {
    let id = random.one(&[u32::MAX, 1 << 31]);
    let tmpfs = mount("/mnt/owned", "tmpfs", "tmpfs", &[&format!("uid={id}")]);
    let mut bound = mount("/mnt/mapped", "bind", "/etc", &["bind"]);
    bound["uidMappings"] = json!([{ "containerID": 0, "hostID": id, "size": 1 }]);
    bound["gidMappings"] = json!([{ "containerID": id - 1, "hostID": 0, "size": 2 }]);
    let device = json!({ "path": "/dev/owned", "type": "c", "major": 1, "minor": 3, "uid": u32::MAX, "gid": 0 });
    match random.below(8) {
        0 => spec["process"]["user"]["uid"] = json!(id),
        1 => spec["process"]["user"]["gid"] = json!(id),
        2 => spec["process"]["user"]["additionalGids"] = json!([id]),
        3 => spec["mounts"].as_array_mut().expect("mounts").push(bound),
        4 => spec["mounts"].as_array_mut().expect("mounts").push(tmpfs),
        _ => spec["linux"]["devices"] = json!([device]),
    }
}

struct Random(SmallRng);

impl Random {
    fn in_ten(&mut self, times: u32) -> bool {
        self.0.random_ratio(times, 10)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of.choose(&mut self.0).expect("a choice").clone()
    }

    /// Some of them, in their order.
    fn some<T: Clone>(&mut self, of: &[T]) -> Vec<T> {
        of.iter().filter(|_| self.0.random_bool(0.4)).cloned().collect()
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit)
    }

    /// Sets a field in so many of ten cases.
    fn maybe(
        &mut self,
        times: u32,
        object: &mut Map<String, Value>,
        name: &str,
        value: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.in_ten(times) {
            let value = value(self);
            object.insert(name.to_owned(), value);
        }
    }
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": source, "options": options })
}

fn mounts(random: &mut Random, host: &Host<'_>) -> Value {
    const USUAL: [&str; 3] = ["nosuid", "noexec", "nodev"];
    let sys = random.one(&["ro", "rw"]);
    let dev = random.one(&["strictatime", "noexec", "ro"]);
    let mut mounts = vec![
        mount("/proc", "proc", "proc", random.one(&[&USUAL[..], &[], &["ro", "sync"]])),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", dev, "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("/dev/mqueue", "mqueue", "mqueue", random.one(&[&USUAL[..], &["ro", "rslave"]])),
        mount("/sys", "sysfs", "sysfs", &[&USUAL[..], &[sys]].concat()),
    ];
    if random.in_ten(2) {
        let word = random.one(&PROPAGATION[..6]);
        let some = random.one(&[0, 1, 5]);
        mounts[some]["options"].as_array_mut().expect("options").push(json!(word));
    }
    if random.in_ten(7) {
        let options = random.one(&[&["nosuid", "noexec", "nodev", "relatime", "ro"][..], &["ro"], &["rw"], &[]]);
        mounts.push(mount("/sys/fs/cgroup", "cgroup", "cgroup", options));
    }
    let mut own: Vec<Value> = (0..random.below(3)).map(|n| tmpfs(random, n)).collect();
    own.extend((0..random.below(4)).map(|n| bind(random, host, n)));
    own.shuffle(&mut random.0);
    mounts.extend(own);
    json!(mounts)
}

/// Of one file system, in either sense; the last word counts.
const FLAGS: [&[&str]; 9] = [
    &["ro", "rw"],
    &["nosuid", "suid"],
    &["nodev", "dev"],
    &["noexec", "exec"],
    &["noatime", "relatime", "strictatime"],
    &["nodiratime"],
    &["sync"],
    &["dirsync"],
    &["lazytime"],
];

const PROPAGATION: [&str; 8] =
    ["private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"];

fn flags(random: &mut Random) -> Vec<&'static str> {
    let kinds = random.some(&FLAGS);
    kinds.into_iter().map(|kind| random.one(kind)).collect()
}

/// No two in one place: runc makes the later one read only for both.
fn tmpfs(random: &mut Random, number: u64) -> Value {
    let places = ["/mnt/tmpfs", "/link/linked", "/out/escaped", "/made/tmpfs"].map(|place| format!("{place}{number}"));
    let mut options = flags(random);
    options.extend(random.some(&["mode=1777", "size=1m", "uid=1000"]));
    mount(&random.one(&places), "tmpfs", "tmpfs", &options)
}

fn bind(random: &mut Random, host: &Host<'_>, number: u64) -> Value {
    let directory = random.in_ten(8);
    let (source, places, of_image) = match directory {
        true => {
            (random.one(&host.directories()), ["/mnt/bind", "/mnt/some/where/deep", "/link/bind", "/out/bind"], "/home")
        }
        false => (host.file(), ["/mnt/file", "/link/file", "/out/file", "/mnt/some/file"], "/etc/passwd"),
    };
    let mut options = vec![random.one(&["bind", "rbind", "rbind"])];
    options.extend(flags(random));
    if random.in_ten(6) {
        options.push(random.one(&PROPAGATION));
    }
    // The second one changes what the first has made.
    if random.in_ten(1) {
        options.push(random.one(&PROPAGATION));
    }
    if random.in_ten(1) {
        options.push("rro");
    }
    // On a shared volume a second mount would be one on the volume itself, too, which runc then
    // takes for a later source.
    let place = match number == 0 && random.in_ten(2) {
        true => of_image.to_owned(),
        false => format!("{}{number}", random.one(&places)),
    };
    let mut mount = mount(&place, "bind", &source, &options);
    if random.in_ten(1) {
        mount["options"].as_array_mut().expect("options").extend(random.one(&[None, Some(json!("ridmap"))]));
        mount["uidMappings"] = json!([{ "containerID": 0, "hostID": 1000, "size": 10 }]);
        mount["gidMappings"] =
            json!([{ "containerID": 0, "hostID": 0, "size": 1 }, { "containerID": 1, "hostID": 5, "size": 5 }]);
    }
    mount
}

const CAPABILITIES: [&str; 12] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETUID",
    "CAP_SETGID",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_SYS_ADMIN",
    "CAP_SYS_PTRACE",
    "CAP_MKNOD",
    "CAP_BPF",
];

/// Each set within those that bound it, as the kernel wants it.
fn capabilities(random: &mut Random) -> Value {
    let bounding = random.some(&CAPABILITIES);
    let permitted = random.some(&bounding);
    let inheritable = random.some(&permitted);
    let sets = json!({
        "effective": random.some(&permitted), "ambient": random.some(&inheritable),
        "bounding": bounding, "permitted": permitted, "inheritable": inheritable,
    });
    random.one(&[sets, json!({ "bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES })])
}

fn process(random: &mut Random, process: &mut Map<String, Value>) {
    let mut user = Map::new();
    user.insert("uid".to_owned(), json!(random.one(&[0, 0, 0, 1000, 12_345])));
    user.insert("gid".to_owned(), json!(random.one(&[0, 0, 1000, 54_321])));
    random.maybe(4, &mut user, "additionalGids", |random| json!(random.some(&[0, 5, 10, 1000, 70_000])));
    random.maybe(3, &mut user, "umask", |random| json!(random.one(&[0, 0o22, 0o27, 0o77])));
    process.insert("user".to_owned(), user.into());
    process.remove("capabilities");
    random.maybe(9, process, "capabilities", capabilities);
    process.remove("noNewPrivileges");
    random.maybe(7, process, "noNewPrivileges", |random| json!(random.in_ten(5)));
    random.maybe(5, process, "oomScoreAdj", |random| json!(random.one(&[0, 1, 500, 1000])));
    random.maybe(4, process, "rlimits", rlimits);
    random.maybe(
        2,
        process,
        "ioPriority",
        |random| json!({ "class": random.one(&["IOPRIO_CLASS_BE", "IOPRIO_CLASS_IDLE"]), "priority": random.below(8) }),
    );
    random.maybe(2, process, "scheduler", |random| {
        json!({ "policy": random.one(&["SCHED_OTHER", "SCHED_BATCH", "SCHED_IDLE"]), "nice": random.below(10) })
    });
    process
        .insert("cwd".to_owned(), json!(random.one(&["/", "/", "/tmp", "/home", "/made/for/it", "/dev/shm", "/link"])));
    let mut env =
        vec!["PATH=/bin:/sbin", "HOME=/somewhere", "EMPTY=", "SPACED=a b", "TWICE=1", "TWICE=2", "LANG=C.UTF-8"];
    env.retain(|variable| variable.starts_with("PATH") || random.in_ten(4));
    env.shuffle(&mut random.0);
    process.insert("env".to_owned(), json!(env));
}

/// Below what the machine's own limits are.
fn rlimits(random: &mut Random) -> Value {
    let names =
        [("NOFILE", 512), ("NPROC", 4096), ("CORE", 0), ("STACK", 8 * MIB), ("MEMLOCK", 65_536), ("MSGQUEUE", 65_536)];
    let limit = |(name, soft)| json!({ "type": format!("RLIMIT_{name}"), "soft": soft, "hard": 2 * soft });
    random.some(&names).into_iter().map(limit).collect()
}

fn linux(random: &mut Random, host: &Host<'_>, base: Value) -> Value {
    let Value::Object(mut linux) = base else { panic!("linux is no object") };
    let namespaces = namespaces(random, host);
    let sysctl = sysctl(random, &namespaces);
    linux.insert("namespaces".to_owned(), json!(namespaces));
    random.maybe(4, &mut linux, "sysctl", |_| sysctl);
    if namespaces.iter().any(|one| one["type"] == "time") {
        random.maybe(5, &mut linux, "timeOffsets", |_| json!({ "monotonic": { "secs": 172_800, "nanosecs": 5 } }));
    }
    random.maybe(6, &mut linux, "rootfsPropagation", |random| {
        // The last one shows only where a bind mount's source is in the host's root.
        let words = ["private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "unbindable"];
        json!(random.one(&words))
    });
    // None in one of the read-only paths below: where mounts are shared, runc's table has it twice.
    let paths = [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/interrupts",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/block",
        "/bin/rm-client",
        "/var",
        "/no/such/path",
    ];
    linux.insert("maskedPaths".to_owned(), json!(random.some(&paths)));
    let paths = [
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger",
        "/etc",
        "/dev/shm",
        "/usr",
        "/no/such/path",
    ];
    linux.insert("readonlyPaths".to_owned(), json!(random.some(&paths)));
    random.maybe(5, &mut linux, "devices", devices);
    linux.insert("resources".to_owned(), resources(random, host));
    random.maybe(4, &mut linux, "seccomp", seccomp);
    random.maybe(1, &mut linux, "personality", personality);
    linux.into()
}

fn personality(random: &mut Random) -> Value {
    let flags = random.one(&[json!(null), json!(["ADDR_NO_RANDOMIZE"])]);
    json!({ "domain": random.one(&["LINUX", "LINUX32"]), "flags": flags })
}

/// New, of another container, or the host's.
fn namespaces(random: &mut Random, host: &Host<'_>) -> Vec<Value> {
    let mut all = vec![json!({ "type": "mount" })];
    for (kind, name) in [("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("network", "net")] {
        match random.below(10) {
            0..=5 => all.push(json!({ "type": kind })),
            6..=7 => all.push(json!({ "type": kind, "path": host.namespace(name) })),
            _ => {}
        }
    }
    all.extend(["cgroup", "time"].iter().filter(|_| random.in_ten(3)).map(|kind| json!({ "type": kind })));
    all.shuffle(&mut random.0);
    all
}

/// Only what belongs to a new namespace.
fn sysctl(random: &mut Random, namespaces: &[Value]) -> Value {
    let settings = [
        ("ipc", "kernel.msgmax", "65536"),
        ("ipc", "kernel.sem", "250 32000 32 128"),
        ("ipc", "kernel.shm_rmid_forced", "1"),
        ("ipc", "fs.mqueue.msg_max", "20"),
        ("network", "net.ipv4.ip_unprivileged_port_start", "0"),
        ("network", "net.ipv4.ping_group_range", "0 2147483647"),
        ("network", "net.ipv4.ip_local_port_range", "32000 33000"),
    ];
    let is_new = |kind| namespaces.iter().any(|one| one["type"] == kind && one.get("path").is_none());
    let settings = random.some(&settings).into_iter().filter(|(kind, _, _)| is_new(*kind));
    settings.map(|(_, name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>().into()
}

fn devices(random: &mut Random) -> Value {
    let devices = [
        json!({ "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 0 }),
        json!({ "path": "/dev/deep/er/null", "type": "c", "major": 1, "minor": 3, "fileMode": 0o640, "uid": 1000, "gid": 5 }),
        json!({ "path": "/dev/pipe", "type": "p", "fileMode": 0o600 }),
        json!({ "path": "/dev/block", "type": "b", "major": 7, "minor": 0, "fileMode": 0o660 }),
        json!({ "path": "/dev/plain", "type": "c", "major": 1, "minor": 5 }),
        json!({ "path": "/opt/of/its/own", "type": "c", "major": 1, "minor": 7, "fileMode": 0o640, "uid": 7, "gid": 8 }),
        json!({ "path": "/out/pipe", "type": "p" }),
        json!({ "path": "/etc/passwd", "type": "c", "major": 1, "minor": 3 }),
    ];
    json!(random.some(&devices))
}

const MIB: u64 = 1 << 20;

fn resources(random: &mut Random, host: &Host<'_>) -> Value {
    let rules = [
        json!({ "allow": true, "type": "c", "major": 10, "minor": 229, "access": "rwm" }),
        json!({ "allow": true, "type": "c", "major": 1, "minor": 11, "access": "r" }),
        json!({ "allow": true, "type": "c", "access": "m" }),
        json!({ "allow": false, "type": "c", "major": 10, "minor": 229, "access": "w" }),
        json!({ "allow": true, "type": "b", "major": 7, "access": "rw" }),
    ];
    let mut devices = vec![json!({ "allow": false, "access": "rwm" })];
    devices.extend(random.some(&rules));
    let mut all = Map::new();
    all.insert("devices".to_owned(), random.one(&[json!(devices), json!([{ "allow": true, "access": "rwm" }])]));
    random.maybe(6, &mut all, "memory", |random| memory(random, host.is_v2()));
    random.maybe(6, &mut all, "cpu", cpu);
    random.maybe(5, &mut all, "pids", |random| json!({ "limit": random.one(&[-1, 64, 100]) }));
    all.retain(|controller, _| controller == "devices" || host.has_controller(controller));
    if host.is_v2() && ["memory", "pids"].iter().all(|name| host.has_controller(name)) {
        random.maybe(3, &mut all, "unified", |_| json!({ "memory.high": "134217728", "pids.max": "77" }));
    }
    all.into()
}

fn memory(random: &mut Random, v2: bool) -> Value {
    let limit = (64 + random.below(64)) * MIB;
    let mut memory = Map::new();
    memory.insert("limit".to_owned(), random.one(&[json!(limit), json!(-1)]));
    random.maybe(4, &mut memory, "reservation", |_| json!(limit / 2));
    if memory["limit"] != json!(-1) {
        random.maybe(4, &mut memory, "swap", |random| random.one(&[json!(limit), json!(2 * limit), json!(-1)]));
    }
    if !v2 {
        random.maybe(3, &mut memory, "swappiness", |random| json!(random.below(101)));
        random.maybe(2, &mut memory, "disableOOMKiller", |random| json!(random.in_ten(5)));
    }
    memory.into()
}

fn cpu(random: &mut Random) -> Value {
    let mut cpu = Map::new();
    random.maybe(6, &mut cpu, "shares", |random| json!(random.one(&[2, 100, 1024, 4096])));
    random.maybe(6, &mut cpu, "quota", |random| json!(random.one(&[-1, 20_000, 150_000])));
    random.maybe(6, &mut cpu, "period", |random| json!(random.one(&[50_000, 100_000])));
    random.maybe(3, &mut cpu, "cpus", |random| json!(random.one(&["0", "0-1", "1"])));
    random.maybe(3, &mut cpu, "mems", |_| json!("0"));
    random.maybe(2, &mut cpu, "idle", |random| json!(random.below(2)));
    cpu.into()
}

fn seccomp(random: &mut Random) -> Value {
    let rule = |names: &[&str], action: &str| json!({ "names": names, "action": action });
    let mut errno = rule(&["mkdir", "mkdirat"], "SCMP_ACT_ERRNO");
    if random.in_ten(5) {
        errno["errnoRet"] = json!(38);
    }
    let mut argument = rule(&["socket"], "SCMP_ACT_ERRNO");
    argument["args"] = json!([{ "index": 0, "value": 40, "op": "SCMP_CMP_EQ" }]);
    let rules = [
        errno,
        argument,
        rule(&["no_such_call", "swapon"], "SCMP_ACT_ERRNO"),
        rule(&["reboot"], "SCMP_ACT_KILL_PROCESS"),
    ];
    let mut profile = Map::new();
    profile.insert("defaultAction".to_owned(), json!("SCMP_ACT_ALLOW"));
    profile.insert("syscalls".to_owned(), json!(random.some(&rules)));
    if cfg!(target_arch = "x86_64") {
        let all = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"];
        random.maybe(6, &mut profile, "architectures", |random| {
            json!(all[..1 + usize::try_from(random.below(3)).unwrap_or(0)])
        });
    }
    random.maybe(4, &mut profile, "flags", |random| {
        json!(random.some(&["SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC"]))
    });
    profile.into()
}
