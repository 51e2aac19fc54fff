//! The systemd cgroup driver (`SystemdCgroup = true`), where systemd is process 1: scopes as runc
//! has them there.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use containerd_shim_protos::cgroups_v2::metrics::Metrics;
use integration::{
    Container, ContainerBuilder, Node, Setup, containerd::DaemonConfig, cri::PodContainerConfig, eventually,
    processes::Process,
};
use nix::sys::signal::Signal;
use protobuf::Message as _;
use serde_json::{Value, json};

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    let on_both = [
        Case::egpu("systemd::scopes_are_as_runcs", scopes_are_as_runcs),
        Case::egpu("systemd::limits_are_as_runcs", limits_are_as_runcs).needing(controllers),
        Case::egpu("systemd::annotations_are_properties_of_the_scope", annotations_are_properties_of_the_scope),
        Case::egpu("systemd::devices_outlive_update_and_reload", devices_outlive_update_and_reload),
        Case::plain("systemd::an_exec_is_in_the_scope", an_exec_is_in_the_scope),
        Case::plain("systemd::oom_is_reported_and_nothing_stays", oom_is_reported_and_nothing_stays)
            .needing(controllers),
        Case::plain("systemd::the_same_id_again_at_once", the_same_id_again_at_once),
        Case::egpu("systemd::a_failed_create_leaves_nothing", a_failed_create_leaves_nothing),
        Case::egpu("systemd::a_unit_of_another_slice_is_left_alone", a_unit_of_another_slice_is_left_alone),
        Case::egpu("systemd::a_killed_shim_leaves_no_scope", a_killed_shim_leaves_no_scope),
        Case::egpu("systemd::a_grant_lasts_as_long_as_the_scope", a_grant_lasts_as_long_as_the_scope),
        Case::egpu("systemd::pods_are_in_their_slices", pods_are_in_their_slices)
            .on(cri)
            .on_containerd(&["2"])
            .needing(controllers),
    ];
    let on_v2 = [
        Case::egpu("systemd::an_update_outlives_a_reload", an_update_outlives_a_reload).needing(controllers),
        Case::egpu("systemd::an_idle_container_outlives_a_reload", an_idle_container_outlives_a_reload)
            .needing(controllers),
        Case::egpu("systemd::an_oom_group_outlives_a_reload", an_oom_group_outlives_a_reload)
            .needing(controllers)
            .also_needing(systemd_253),
        Case::plain("systemd::pause_and_signals", pause_and_signals),
        Case::plain("systemd::stats", stats).needing(controllers),
    ];
    let on_v1 = [
        Case::egpu("systemd::device_rules_are_as_runcs_on_v1", device_rules_are_as_runcs_on_v1),
        Case::egpu("systemd::an_update_outlives_a_reload_on_v1", an_update_outlives_a_reload_on_v1),
    ];
    let on_both = on_both.into_iter().map(|case| case.also_needing(systemd));
    let on_v2 = on_v2.into_iter().map(|case| case.also_needing(systemd_on_v2));
    let on_v1 = on_v1.into_iter().map(|case| case.also_needing(systemd_on_v1));
    on_both.chain(on_v2).chain(on_v1).collect()
}

fn cri() -> Setup {
    let setup = Setup::cri();
    Setup { containerd: DaemonConfig { systemd: true, ..setup.containerd }, ..setup }
}

const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

fn systemd_253() -> Skip {
    let version = systemctl(&["show", "--property", "Version", "--value"]);
    let number = version.split(|one: char| !one.is_ascii_digit()).next().and_then(|digits| digits.parse::<u32>().ok());
    number.is_some_and(|number| number >= 253).then_some(()).ok_or_else(|| format!("systemd {version}"))
}

fn is_v2() -> bool {
    std::path::Path::new(CONTROLLERS).exists()
}

fn systemd() -> Skip {
    let is_first = std::path::Path::new("/run/systemd/system").is_dir();
    is_first.then_some(()).ok_or_else(|| "systemd is not process 1".to_owned())
}

fn systemd_on_v2() -> Skip {
    systemd().and_then(|()| is_v2().then_some(()).ok_or_else(|| "no cgroup v2".to_owned()))
}

fn systemd_on_v1() -> Skip {
    systemd().and_then(|()| (!is_v2()).then_some(()).ok_or_else(|| "no cgroup v1".to_owned()))
}

/// systemd in a container of a machine that has v1 finds v2 without controllers.
fn controllers() -> Skip {
    let there = !is_v2() || std::fs::read_to_string(CONTROLLERS).is_ok_and(|text| text.contains("memory"));
    there.then_some(()).ok_or_else(|| "no cgroup v2 memory controller".to_owned())
}

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().expect("run systemctl");
    assert!(output.status.success(), "systemctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Returns these properties of a unit, by systemd.
fn properties(unit: &str, names: &[&str]) -> BTreeMap<String, String> {
    let text = systemctl(&["show", "--property", &names.join(","), unit]);
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn property(unit: &str, name: &str) -> String {
    properties(unit, &[name]).remove(name).unwrap_or_default()
}

/// The unit is forgotten, also as a failed one.
#[track_caller]
fn wait_until_gone(unit: &str) {
    eventually("systemd has forgotten the scope", || (property(unit, "LoadState") == "not-found").then_some(()));
}

fn in_scope<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).systemd()
}

/// A control file of the container's cgroup.
fn file(container: &Container<'_>, name: &str) -> String {
    let hierarchy = if is_v2() { String::new() } else { format!("/{}", name.split('.').next().unwrap_or_default()) };
    let path = format!("/sys/fs/cgroup{hierarchy}{}/{name}", membership(container.pid()));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// The same in every hierarchy of v1.
fn membership(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let hierarchies = text.lines().filter(|line| !is_v2() || line.starts_with("0::"));
    let mut paths: Vec<&str> = hierarchies.filter_map(|line| line.splitn(3, ':').nth(2)).collect();
    paths.dedup();
    assert_eq!(paths.len(), 1, "{text}");
    paths[0].to_owned()
}

fn limits(spec: &mut Value) {
    let resources = &mut spec["linux"]["resources"];
    resources["memory"] = json!({ "limit": 64 << 20, "reservation": 32 << 20, "swap": 64 << 20 });
    // Not a whole number of systemd's steps.
    resources["cpu"] = json!({ "quota": 33_333, "period": 100_000, "cpus": "0" });
    resources["pids"] = json!({ "limit": 50 });
}

fn scopes_are_as_runcs(node: &Node) {
    let files: &[&str] = if is_v2() { &["cgroup.type", "cgroup.freeze"] } else { &["freezer.state", "cpuset.cpus"] };
    let [ours, runcs] = compared_with_runc(node, "free", |_| {}, files);
    assert_eq!(ours, runcs);
    assert!(ours["ControlGroup"].ends_with("-ID.scope"), "{ours:?}");
    assert_eq!(ours["membership"], ours["ControlGroup"]);
}

fn limits_are_as_runcs(node: &Node) {
    const V1: [&str; 6] = [
        "memory.limit_in_bytes",
        "memory.soft_limit_in_bytes",
        "cpu.cfs_quota_us",
        "cpu.shares",
        "cpuset.cpus",
        "pids.max",
    ];
    const V2: [&str; 8] = [
        "memory.max",
        "memory.low",
        "memory.swap.max",
        "cpu.max",
        "cpu.weight",
        "cpuset.cpus",
        "pids.max",
        "cgroup.controllers",
    ];
    let [ours, runcs] = compared_with_runc(node, "limited", limits, if is_v2() { &V2 } else { &V1 });
    assert_eq!(ours, runcs);
    assert_eq!(ours[if is_v2() { "MemoryMax" } else { "MemoryLimit" }], (64 << 20).to_string());
}

/// Properties and control files of the same container's scope on egpu and on runc, with the
/// container's id left out.
fn compared_with_runc(node: &Node, kind: &str, edit: fn(&mut Value), files: &[&str]) -> [BTreeMap<String, String>; 2] {
    const PROPERTIES: [&str; 18] = [
        "Slice",
        "Delegate",
        "ActiveState",
        "DefaultDependencies",
        "CPUAccounting",
        "MemoryAccounting",
        "IOAccounting",
        "TasksAccounting",
        "MemoryMax",
        "MemoryLimit",
        "CPUShares",
        "MemoryLow",
        "CPUQuotaPerSecUSec",
        "CPUQuotaPeriodUSec",
        "CPUWeight",
        "TasksMax",
        "AllowedCPUs",
        "ControlGroup",
    ];
    [integration::EGPU_RUNTIME, "io.containerd.runc.v2"].map(|runtime| {
        let id = format!("{kind}-{}", runtime.contains("egpu"));
        let container = in_scope(node, &id).edit(edit).runtime(runtime).start().unwrap();
        let unit = node.scope(&id);
        let mut seen = properties(&unit, &PROPERTIES);
        seen.extend(files.iter().map(|&name| (name.to_owned(), file(&container, name))));
        seen.insert("membership".to_owned(), membership(container.pid()));
        seen.values_mut().for_each(|value| *value = value.replace(&id, "ID"));
        container.end();
        wait_until_gone(&unit);
        seen
    })
}

fn an_update_outlives_a_reload(node: &Node) {
    let container = in_scope(node, "a").edit(limits).start().unwrap();
    // runc 1.1 does not set a limit of no swap at all in systemd.
    assert_eq!(property(&node.scope("a"), "MemorySwapMax"), "0");
    let wider = json!({
        "memory": { "limit": 128 << 20, "swap": 192 << 20 },
        "cpu": { "quota": 66_667, "period": 100_000, "cpus": "0-1" },
        "pids": { "limit": 60 },
    });
    container.update(&wider).unwrap();
    let unit = node.scope("a");
    let check = |when: &str, quota: &[&str]| {
        let bytes = |mib: u64| (mib << 20).to_string();
        assert_eq!(property(&unit, "MemoryMax"), bytes(128), "{when}");
        assert_eq!(property(&unit, "MemorySwapMax"), bytes(64), "{when}");
        assert_eq!(property(&unit, "TasksMax"), "60", "{when}");
        assert_eq!(property(&unit, "AllowedCPUs"), "0-1", "{when}");
        assert_eq!(property(&unit, "CPUQuotaPerSecUSec"), "670ms", "{when}");
        assert_eq!(file(&container, "memory.max"), bytes(128), "{when}");
        assert_eq!(file(&container, "memory.swap.max"), bytes(64), "{when}");
        assert_eq!(file(&container, "memory.low"), bytes(32), "{when}: what an update leaves out stays");
        assert_eq!(file(&container, "pids.max"), "60", "{when}");
        assert_eq!(file(&container, "cpuset.cpus"), "0-1", "{when}");
        assert!(quota.contains(&file(&container, "cpu.max").as_str()), "{when}: {}", file(&container, "cpu.max"));
    };
    check("at once", &["66667 100000"]);
    systemctl(&["daemon-reload"]);
    // systemd may write what it holds again.
    check("after a reload", &["66667 100000", "67000 100000"]);
    container.end();
    wait_until_gone(&unit);
}

fn devices_outlive_update_and_reload(node: &Node) {
    // The kernel's log, which no container gets by itself; the terminal 0 stays refused.
    let allowed = |spec: &mut Value| {
        let rules = spec["linux"]["resources"]["devices"].as_array_mut().unwrap();
        rules.push(json!({ "allow": true, "type": "c", "major": 1, "minor": 11, "access": "rwm" }));
    };
    let container = in_scope(node, "a").env("EGPU_MEMORY", "1GiB").edit(allowed).start().unwrap();
    container.read("mknod /run/kmsg c 1 11 && mknod /run/tty0 c 4 0");
    // The granted card's among them; those of v2 are in a program.
    let rules = || if is_v2() { BTreeSet::new() } else { lines(&file(&container, "devices.list")) };
    let before = rules();
    let check = |when: &str| {
        assert_eq!(rules(), before, "{when}");
        let (status, output) = container.sh("echo egpu >/run/kmsg");
        assert_eq!(status, 0, "{when}: {}", output.stderr());
        let (status, output) = container.sh(": </run/tty0");
        assert!(status != 0 && output.stderr().contains("not permitted"), "{when}: {status} {}", output.stderr());
    };
    check("at first");
    container.update(&json!({ "devices": [{ "allow": false, "access": "rwm" }] })).unwrap();
    check("after an update");
    systemctl(&["daemon-reload"]);
    check("after a reload");
    systemctl(&["set-property", "--runtime", &node.scope("a"), "CPUWeight=50", "MemoryMax=1G"]);
    check("after a change from elsewhere");
    container.end();
    wait_until_gone(&node.scope("a"));
}

fn an_exec_is_in_the_scope(node: &Node) {
    let container = in_scope(node, "a").start().unwrap();
    let exec = container.exec("e", &["sleep", "infinity"]).start().unwrap();
    let own = membership(exec.state().unwrap().pid);
    assert_eq!(own, membership(container.pid()));
    assert_eq!(own, format!("/system.slice/{}", node.scope("a")));
    exec.end();
    container.end();
    wait_until_gone(&node.scope("a"));
}

fn pause_and_signals(node: &Node) {
    let container = in_scope(node, "a").start().unwrap();
    container.pause().unwrap();
    assert_eq!(file(&container, "cgroup.freeze"), "1");
    container.resume().unwrap();
    assert_eq!(file(&container, "cgroup.freeze"), "0");
    container.kill(Signal::SIGKILL).unwrap();
    assert_eq!(container.end(), 137);
    wait_until_gone(&node.scope("a"));
}

fn stats(node: &Node) {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; sleep infinity";
    let container = in_scope(node, "a").script(script).edit(limits).start().unwrap();
    container.stdio.wait_for("done");
    let any = container.metrics().unwrap();
    assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
    let metrics = Metrics::parse_from_bytes(&any.value).unwrap();
    assert!(metrics.cpu().usage_usec() > 0, "{:?}", metrics.cpu());
    assert!(metrics.memory().usage() > 0, "{:?}", metrics.memory());
    assert_eq!(metrics.memory().usage_limit(), 64 << 20);
    assert!(metrics.pids().current() >= 1 && metrics.pids().limit() == 50, "{:?}", metrics.pids());
    container.end();
    wait_until_gone(&node.scope("a"));
}

fn oom_is_reported_and_nothing_stays(node: &Node) {
    let hog = "exec 2>/dev/null; head -c 200000000 /dev/zero | tail; echo survived";
    let limit = |spec: &mut Value| {
        spec["linux"]["resources"]["memory"] = json!({ "limit": 32 << 20, "swap": 32 << 20 });
    };
    let mut container = in_scope(node, "a").script(hog).edit(limit).start().unwrap();
    container.wait().unwrap();
    node.events().wait_for("a", "oom");
    container.delete().unwrap();
    // systemd calls such a scope failed, and would keep it.
    wait_until_gone(&node.scope("a"));
}

fn the_same_id_again_at_once(node: &Node) {
    for _ in 0..4 {
        let container = in_scope(node, "a").start().unwrap();
        assert_eq!(property(&node.scope("a"), "ActiveState"), "active");
        container.end();
    }
    wait_until_gone(&node.scope("a"));
}

fn a_failed_create_leaves_nothing(node: &Node) {
    // After the scope is there, in the last step before init waits.
    let failing = in_scope(node, "a").hook("createRuntime", "exit 1");
    assert!(failing.start().is_err());
    wait_until_gone(&node.scope("a"));
    // A limit that systemd refuses.
    let refused = in_scope(node, "b").edit(|spec| {
        spec["linux"]["resources"]["unified"] = json!({ "cpuset.cpus": "60000" });
    });
    assert!(refused.start().is_err());
    wait_until_gone(&node.scope("b"));
}

fn a_unit_of_another_slice_is_left_alone(node: &Node) {
    let first = in_scope(node, "a").start().unwrap();
    let unit = node.scope("a");
    // The unit's name again, elsewhere in the hierarchy: nobody is in that cgroup.
    let path = format!("user.slice:{}:a", node.cgroup_parent());
    let second = in_scope(node, "b").edit(move |spec| spec["linux"]["cgroupsPath"] = json!(path)).start();
    let message = second.expect_err("two containers in one unit").message().to_owned();
    assert!(message.contains("has a unit of that name already"), "{message}");
    assert_eq!(property(&unit, "ActiveState"), "active");
    assert!(Process::read(first.pid().cast_signed()).is_some_and(|init| init.state != 'Z'), "the first goes on");
    first.end();
    wait_until_gone(&unit);
}

fn a_killed_shim_leaves_no_scope(node: &Node) {
    let container = in_scope(node, "a").env("EGPU_MEMORY", "1GiB").start().unwrap();
    node.shim().kill();
    wait_until_gone(&node.scope("a"));
    eventually("its grant is free", || node.granted().is_empty().then_some(()));
    container.forget();
}

fn a_grant_lasts_as_long_as_the_scope(node: &Node) {
    let grant = |id: &str| in_scope(node, id).env("EGPU_MEMORY", "32GiB").env("EGPU_DEVICES", "0");
    let container = grant("first").start().unwrap();
    assert!(container.read("ls /dev").lines().any(|name| name.starts_with("nvidia")), "the card's node");
    let hierarchy = if is_v2() { "" } else { "/memory" };
    let scope = format!("/sys/fs/cgroup{hierarchy}/system.slice/{}", node.scope("first"));
    let shim = node.shim();
    node.stop_containerd(Signal::SIGKILL);
    shim.kill();
    // The shim is gone, its cgroup is not empty: the memory stays granted.
    assert!(std::path::Path::new(&scope).exists());
    assert_eq!(node.granted(), ["first"]);
    node.start_containerd();
    container.forget();
    wait_until_gone(&node.scope("first"));
    grant("second").start().unwrap().end();
    wait_until_gone(&node.scope("second"));
}

fn pods_are_in_their_slices(node: &Node) {
    let slice = format!("{}.slice", node.cgroup_parent());
    let pod = node.pod_in_slice("p", &slice).unwrap();
    let sleep = &["sleep", "infinity"];
    let container = pod
        .start("a", &PodContainerConfig { command: sleep, memory: 64 << 20, ..PodContainerConfig::default() })
        .unwrap();
    let units = [&pod.id, &container.id].map(|id| format!("cri-containerd-{id}.scope"));
    for unit in &units {
        assert_eq!(property(unit, "Slice"), slice);
        assert!(property(unit, "ControlGroup").ends_with(&format!("/{slice}/{unit}")), "{unit}");
    }
    assert_eq!(container.exec(&["true"]).exit_code, 0);
    pod.remove();
    units.iter().for_each(|unit| wait_until_gone(unit));
    systemctl(&["stop", &slice]);
}

fn annotations_are_properties_of_the_scope(node: &Node) {
    let annotated = |id: &str, value: &'static str| {
        in_scope(node, id).edit(move |spec| spec["annotations"]["org.systemd.property.TimeoutStopSec"] = json!(value))
    };
    let container = annotated("a", "uint32 77").start().unwrap();
    assert_eq!(property(&node.scope("a"), "TimeoutStopUSec"), "1min 17s");
    container.end();
    wait_until_gone(&node.scope("a"));
    let message = annotated("b", "soon").start().expect_err("no value").message().to_owned();
    assert!(message.contains("org.systemd.property.TimeoutStopSec"), "{message}");
    wait_until_gone(&node.scope("b"));
}

fn an_idle_container_outlives_a_reload(node: &Node) {
    let idle = |spec: &mut Value| spec["linux"]["resources"]["cpu"] = json!({ "idle": 1 });
    let container = in_scope(node, "a").edit(idle).start().unwrap();
    assert_eq!(property(&node.scope("a"), "CPUWeight"), "idle");
    systemctl(&["daemon-reload"]);
    systemctl(&["set-property", "--runtime", &node.scope("a"), "CPUQuota=50%"]);
    assert_eq!(file(&container, "cpu.idle"), "1");
    container.end();
    wait_until_gone(&node.scope("a"));
}

/// As kubelet asks for on v2.
fn an_oom_group_outlives_a_reload(node: &Node) {
    let group = |spec: &mut Value| spec["linux"]["resources"]["unified"] = json!({ "memory.oom.group": "1" });
    let container = in_scope(node, "a").edit(group).start().unwrap();
    assert_eq!(property(&node.scope("a"), "OOMPolicy"), "kill");
    container.update(&json!({ "memory": { "limit": 128 << 20 } })).unwrap();
    systemctl(&["daemon-reload"]);
    assert_eq!(file(&container, "memory.oom.group"), "1");
    container.end();
    wait_until_gone(&node.scope("a"));
}

/// Rules that systemd would write with a reload, of a container with and without all devices.
fn device_rules_are_as_runcs_on_v1(node: &Node) {
    let some = json!([
        { "allow": false, "access": "rwm" },
        { "allow": true, "type": "c", "major": 1, "minor": 11, "access": "r" },
        { "allow": true, "type": "b", "major": 7, "access": "rw" },
    ]);
    for (name, rules) in [("some", some), ("all", json!([{ "allow": true, "access": "rwm" }]))] {
        let [ours, runcs] = [integration::EGPU_RUNTIME, "io.containerd.runc.v2"].map(|runtime| {
            let id = format!("{name}-{}", runtime.contains("egpu"));
            let rules = rules.clone();
            let builder = in_scope(node, &id).edit(move |spec| spec["linux"]["resources"]["devices"] = rules);
            let container = builder.runtime(runtime).start().unwrap();
            let shown = systemctl(&["show", "--property", "DevicePolicy,DeviceAllow", &node.scope(&id)]);
            // runc before 1.2 calls them by their names in /proc/devices, egpu by both.
            let shown = shown.replace("block-loop", "block-7").replace("char-pts", "char-136");
            let list = file(&container, "devices.list");
            container.end();
            wait_until_gone(&node.scope(&id));
            [shown, list].map(|text| lines(&text))
        });
        assert_eq!(ours, runcs, "{name}");
    }
}

fn an_update_outlives_a_reload_on_v1(node: &Node) {
    let container = in_scope(node, "a").edit(limits).start().unwrap();
    let wider = json!({
        "memory": { "limit": 128 << 20, "swap": 192 << 20 },
        "cpu": { "quota": 66_667, "period": 100_000, "shares": 512 },
        "pids": { "limit": 60 },
    });
    container.update(&wider).unwrap();
    let unit = node.scope("a");
    let check = |when: &str, quota: &[&str]| {
        let memory = (128_u64 << 20).to_string();
        assert_eq!(property(&unit, "MemoryLimit"), memory, "{when}");
        assert_eq!(property(&unit, "TasksMax"), "60", "{when}");
        assert_eq!(property(&unit, "CPUShares"), "512", "{when}");
        assert_eq!(property(&unit, "CPUQuotaPerSecUSec"), "670ms", "{when}");
        assert_eq!(file(&container, "memory.limit_in_bytes"), memory, "{when}");
        assert_eq!(file(&container, "pids.max"), "60", "{when}");
        assert_eq!(file(&container, "cpu.shares"), "512", "{when}");
        let now = file(&container, "cpu.cfs_quota_us");
        assert!(quota.contains(&now.as_str()), "{when}: {now}");
    };
    check("at once", &["66667"]);
    systemctl(&["daemon-reload"]);
    // systemd may write what it holds again.
    check("after a reload", &["66667", "67000"]);
    container.end();
    wait_until_gone(&unit);
}
