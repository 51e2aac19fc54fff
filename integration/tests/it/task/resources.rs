//! Stats, update, OOM.

use std::path::PathBuf;

use integration::{Node, eventually};
use serde_json::json;

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("resources::stats_v1", stats_v1).needing(cgroup_v1),
        Case::plain("resources::stats_after_the_end", stats_after_the_end).needing(cgroup_v1),
        Case::plain("resources::limits_of_the_spec_v1", limits_of_the_spec_v1).needing(cgroup_v1),
        Case::plain("resources::update_v1", update_v1).needing(cgroup_v1),
        Case::plain("resources::oom_v1", oom_v1).needing(cgroup_v1),
        Case::plain("resources::limits_and_update_v2", limits_and_update_v2).needing(cgroup_v2),
        Case::plain("resources::oom_v2", oom_v2).needing(cgroup_v2),
    ]
}

fn cgroup_v1() -> Skip {
    let there = PathBuf::from("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists();
    there.then_some(()).ok_or_else(|| "no cgroup v1 memory controller".to_owned())
}

fn cgroup_v2() -> Skip {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    controllers.contains("memory").then_some(()).ok_or_else(|| "no cgroup v2 memory controller".to_owned())
}

fn v1_file(node: &Node, controller: &str, id: &str, file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/fs/cgroup/{controller}{}/{file}", node.cgroup_path(id)))
}

fn v2_file(node: &Node, id: &str, file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/fs/cgroup{}/{file}", node.cgroup_path(id)))
}

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

fn stats_v1(node: &Node) {
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; sleep infinity";
    let container = node.container("a").script(script).start().unwrap();
    container.stdio.wait_for("done");
    let metrics = container.metrics_v1();
    assert!(metrics.cpu().usage().total() > 1_000_000, "cpu {:?}", metrics.cpu());
    assert!(metrics.memory().usage().usage() > 0, "memory {:?}", metrics.memory());
    assert!(metrics.pids().current() >= 1, "pids {:?}", metrics.pids());
    let total = read(&v1_file(node, "cpuacct", "a", "cpuacct.usage")).parse::<u64>().unwrap();
    assert!(total >= metrics.cpu().usage().total(), "the kernel's {total}, ours {:?}", metrics.cpu());
    container.end();
}

fn stats_after_the_end(node: &Node) {
    let mut container = node.container("a").args(&["true"]).start().unwrap();
    container.wait().unwrap();
    container.metrics_v1();
    container.delete().unwrap();
    assert!(container.metrics().is_err());
}

fn limits_of_the_spec_v1(node: &Node) {
    let limits = |spec: &mut serde_json::Value| {
        spec["linux"]["resources"]["memory"] = json!({ "limit": 64 << 20 });
        spec["linux"]["resources"]["cpu"] = json!({ "shares": 512, "quota": 50000, "period": 100_000 });
        spec["linux"]["resources"]["pids"] = json!({ "limit": 50 });
    };
    let container = node.container("a").edit(limits).start().unwrap();
    assert_eq!(read(&v1_file(node, "memory", "a", "memory.limit_in_bytes")), (64 << 20).to_string());
    assert_eq!(read(&v1_file(node, "cpu", "a", "cpu.shares")), "512");
    assert_eq!(read(&v1_file(node, "cpu", "a", "cpu.cfs_quota_us")), "50000");
    assert_eq!(read(&v1_file(node, "pids", "a", "pids.max")), "50");
    container.end();
}

fn update_v1(node: &Node) {
    let container = node.container("a").start().unwrap();
    container
        .update(
            &json!({ "memory": { "limit": 128 << 20 }, "cpu": { "shares": 333, "quota": 20000, "period": 100_000 } }),
        )
        .unwrap();
    assert_eq!(read(&v1_file(node, "memory", "a", "memory.limit_in_bytes")), (128 << 20).to_string());
    assert_eq!(read(&v1_file(node, "cpu", "a", "cpu.shares")), "333");
    assert_eq!(read(&v1_file(node, "cpu", "a", "cpu.cfs_quota_us")), "20000");
    container.update(&json!({ "memory": { "limit": 96 << 20 } })).unwrap();
    assert_eq!(read(&v1_file(node, "memory", "a", "memory.limit_in_bytes")), (96 << 20).to_string());
    assert_eq!(read(&v1_file(node, "cpu", "a", "cpu.shares")), "333", "what an update leaves out stays");
    container.end();
}

/// Takes memory until it is killed.
const HOG: &str = "exec 2>/dev/null; head -c 200000000 /dev/zero | tail; echo survived";

fn limited_to_32_mib(spec: &mut serde_json::Value) {
    spec["linux"]["resources"]["memory"] = json!({ "limit": 32 << 20, "swap": 32 << 20 });
}

fn oom_v1(node: &Node) {
    let mut container = node.container("a").script(HOG).edit(limited_to_32_mib).start().unwrap();
    container.wait().unwrap();
    node.events().wait_for("a", "oom");
    // CRI decides "OOMKilled" by what the metrics say after the exit.
    eventually("the metrics tell of the kill", || (container.oom_kills() > 0).then_some(()));
    container.delete().unwrap();
}

fn oom_v2(node: &Node) {
    let mut container = node.container("a").script(HOG).edit(limited_to_32_mib).start().unwrap();
    container.wait().unwrap();
    node.events().wait_for("a", "oom");
    eventually("the metrics tell of the kill", || (container.oom_kills() > 0).then_some(()));
    container.delete().unwrap();
}

fn limits_and_update_v2(node: &Node) {
    let limits = |spec: &mut serde_json::Value| {
        spec["linux"]["resources"]["memory"] = json!({ "limit": 64 << 20 });
        spec["linux"]["resources"]["pids"] = json!({ "limit": 50 });
    };
    let container = node.container("a").edit(limits).start().unwrap();
    assert_eq!(read(&v2_file(node, "a", "memory.max")), (64 << 20).to_string());
    assert_eq!(read(&v2_file(node, "a", "pids.max")), "50");
    container.update(&json!({ "memory": { "limit": 128 << 20 } })).unwrap();
    assert_eq!(read(&v2_file(node, "a", "memory.max")), (128 << 20).to_string());
    let metrics = container.metrics().unwrap();
    assert_eq!(metrics.type_url, "io.containerd.cgroups.v2.Metrics");
    container.end();
}
