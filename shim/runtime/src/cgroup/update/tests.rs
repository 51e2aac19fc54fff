//! Plans on made-up cgroups, and updates of real ones.

use std::fs;

use super::*;
use crate::cgroup::testing::{self, RealCgroup};

fn resources(json: &str) -> LinuxResources {
    serde_json::from_str(json).unwrap()
}

/// Files there are, what is asked, what is then written.
type Row = (&'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

/// Returns the planned writes as `FILE=VALUE`.
fn names(plan: &[Write]) -> Vec<String> {
    plan.iter().map(|write| format!("{}={}", write.path.file_name().unwrap().to_str().unwrap(), write.value)).collect()
}

fn plan_v1(files: &[(&str, &str)], json: &str) -> Result<Vec<String>, UpdateError> {
    let directory = testing::directory(files);
    let all = ["cpu", "cpuset", "memory", "pids", "blkio", "hugetlb", "rdma"];
    v1::plan(&testing::v1(&[(&all, directory.path())]), &resources(json)).map(|plan| names(&plan))
}

fn plan_v2(files: &[(&str, &str)], json: &str) -> Result<Vec<String>, UpdateError> {
    let directory = testing::directory(files);
    v2::plan(directory.path(), &resources(json)).map(|plan| names(&plan))
}

#[test]
fn v1_values_go_in_as_they_are() {
    let rows: &[Row] = &[
        (&[], "{}", &[]),
        // CRI sends all fields, 0 and "" where nothing is to change.
        (
            &[],
            r#"{"memory":{"limit":0},"cpu":{"shares":0,"quota":0,"period":0,"cpus":"","mems":""},"pids":{"limit":0}}"#,
            &[],
        ),
        (&[], r#"{"cpu":{"shares":512}}"#, &["cpu.shares=512"]),
        // A growing period goes first, a shrinking one last.
        (
            &[("cpu.cfs_period_us", "50000")],
            r#"{"cpu":{"quota":20000,"period":100000}}"#,
            &["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=20000"],
        ),
        (
            &[("cpu.cfs_period_us", "100000")],
            r#"{"cpu":{"quota":-1,"period":50000}}"#,
            &["cpu.cfs_quota_us=-1", "cpu.cfs_period_us=50000"],
        ),
        // The old burst would not fit the new quota.
        (
            &[("cpu.cfs_burst_us", "20000")],
            r#"{"cpu":{"quota":10000,"burst":5000}}"#,
            &["cpu.cfs_burst_us=5000", "cpu.cfs_quota_us=10000"],
        ),
        (
            &[("cpu.cfs_burst_us", "0")],
            r#"{"cpu":{"quota":10000,"burst":5000}}"#,
            &["cpu.cfs_quota_us=10000", "cpu.cfs_burst_us=5000"],
        ),
        (&[], r#"{"cpu":{"cpus":"0-1","mems":"0"}}"#, &["cpuset.cpus=0-1", "cpuset.mems=0"]),
        // Memory and swap together must stay above memory at every step.
        (
            &[("memory.limit_in_bytes", "1000"), ("memory.memsw.limit_in_bytes", "1000")],
            r#"{"memory":{"limit":2000,"swap":3000}}"#,
            &["memory.memsw.limit_in_bytes=3000", "memory.limit_in_bytes=2000"],
        ),
        (
            &[("memory.limit_in_bytes", "5000"), ("memory.memsw.limit_in_bytes", "6000")],
            r#"{"memory":{"limit":2000,"swap":3000}}"#,
            &["memory.limit_in_bytes=2000", "memory.memsw.limit_in_bytes=3000"],
        ),
        (
            &[("memory.limit_in_bytes", "1000"), ("memory.memsw.limit_in_bytes", "1000")],
            r#"{"memory":{"limit":-1}}"#,
            &["memory.memsw.limit_in_bytes=-1", "memory.limit_in_bytes=-1"],
        ),
        (&[("memory.limit_in_bytes", "1000")], r#"{"memory":{"limit":-1}}"#, &["memory.limit_in_bytes=-1"]),
        (
            &[],
            r#"{"blockIO":{"weight":200,"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":4096}]},"pids":{"limit":-1}}"#,
            &["pids.max=max", "blkio.weight=200", "blkio.throttle.read_bps_device=8:0 4096"],
        ),
        (
            &[("hugetlb.2MB.rsvd.limit_in_bytes", "")],
            r#"{"hugepageLimits":[{"pageSize":"2MB","limit":0}],"rdma":{"mlx5_0":{"hcaHandles":3}}}"#,
            &[
                "hugetlb.2MB.limit_in_bytes=0",
                "hugetlb.2MB.rsvd.limit_in_bytes=0",
                "rdma.max=mlx5_0 hca_handle=3 hca_object=max",
            ],
        ),
    ];
    for (files, json, expected) in rows {
        assert_eq!(plan_v1(files, json).unwrap(), *expected, "{json}");
    }
}

#[test]
fn v2_values_are_converted() {
    let rows: &[Row] = &[
        (&[], r#"{"memory":{"limit":0},"cpu":{"shares":0,"cpus":""},"pids":{"limit":0}}"#, &[]),
        (&[], r#"{"cpu":{"shares":1024}}"#, &["cpu.weight=100"]),
        // What is not asked for stays as it is.
        (&[("cpu.max", "max 50000")], r#"{"cpu":{"quota":20000}}"#, &["cpu.max=20000 50000"]),
        (&[("cpu.max", "20000 50000")], r#"{"cpu":{"period":100000}}"#, &["cpu.max=20000 100000"]),
        (&[("cpu.max", "20000 50000")], r#"{"cpu":{"quota":-1}}"#, &["cpu.max=max 50000"]),
        (&[("cpu.idle", "1")], r#"{"cpu":{"shares":512}}"#, &[]),
        (&[("cpu.idle", "1")], r#"{"cpu":{"shares":512,"idle":0}}"#, &["cpu.idle=0", "cpu.weight=59"]),
        (
            &[],
            r#"{"memory":{"limit":2000,"swap":3000,"reservation":500}}"#,
            &["memory.swap.max=1000", "memory.max=2000", "memory.low=500"],
        ),
        // Without swap accounting, no swap is what there is.
        (&[], r#"{"memory":{"limit":2000,"swap":2000}}"#, &["memory.max=2000"]),
        (
            &[("memory.swap.max", "max")],
            r#"{"memory":{"limit":2000,"swap":2000}}"#,
            &["memory.swap.max=0", "memory.max=2000"],
        ),
        (&[("memory.swap.max", "0")], r#"{"memory":{"limit":-1}}"#, &["memory.swap.max=max", "memory.max=max"]),
        (
            &[],
            r#"{"blockIO":{"weight":1000,"weightDevice":[{"major":8,"minor":0,"weight":10}],"throttleWriteIOPSDevice":[{"major":8,"minor":16,"rate":5}]}}"#,
            &["io.weight=10000", "io.weight=8:0 1", "io.max=8:16 wiops=5"],
        ),
        (
            &[],
            r#"{"hugepageLimits":[{"pageSize":"1GB","limit":1073741824}],"unified":{"memory.high":"99","cpu.max":"max"}}"#,
            &["hugetlb.1GB.max=1073741824", "cpu.max=max", "memory.high=99"],
        ),
    ];
    for (files, json, expected) in rows {
        assert_eq!(plan_v2(files, json).unwrap(), *expected, "{json}");
    }
}

#[test]
fn shares_become_weights_on_runcs_curve() {
    // runc 1.3.2: 2 -> 1, 1024 -> 100, 262144 -> 10000.
    let rows = [(1, 1), (2, 1), (512, 59), (1024, 100), (2048, 174), (262_144, 10_000), (u64::MAX, 10_000)];
    for (shares, weight) in rows {
        assert_eq!(v2::weight_of_shares(shares), weight, "{shares}");
    }
}

#[test]
fn what_cannot_be_held_is_refused_with_the_reason() {
    let messages = |result: Result<Vec<String>, UpdateError>| result.unwrap_err().to_string();
    assert_eq!(
        messages(plan_v1(&[], r#"{"unified":{"memory.high":"1"}}"#)),
        "unified needs cgroup v2, and this host uses v1"
    );
    assert_eq!(
        messages(plan_v2(&[], r#"{"cpu":{"realtimeRuntime":5}}"#)),
        "cpu.realtimeRuntime exists on cgroup v1 only, and this host uses v2"
    );
    assert_eq!(
        messages(plan_v2(&[], r#"{"memory":{"limit":-7}}"#)),
        "memory.limit -7 is not possible: give a number above 0, or -1 for no limit"
    );
    for json in [r#"{"memory":{"swap":5}}"#, r#"{"memory":{"limit":9,"swap":5}}"#] {
        assert!(messages(plan_v2(&[], json)).starts_with("memory.swap 5 is not possible"), "{json}");
    }
    for name in ["../../x.y", "", "cgroup", ".x"] {
        let json = serde_json::json!({"unified": {name: "1"}}).to_string();
        assert!(matches!(plan_v2(&[], &json), Err(UpdateError::Invalid { field: "unified", .. })), "{name}");
    }
    let json = r#"{"hugepageLimits":[{"pageSize":"2MB/../x","limit":1}]}"#;
    assert!(matches!(plan_v1(&[], json), Err(UpdateError::Invalid { .. })));
    let json = r#"{"memory":{"limit":4096,"checkBeforeUpdate":true}}"#;
    assert!(matches!(
        plan_v1(&[("memory.usage_in_bytes", "5000")], json),
        Err(UpdateError::InUse { limit: 4096, usage: 5000 })
    ));
    assert_eq!(plan_v2(&[("memory.current", "4000")], json).unwrap(), ["memory.max=4096"]);
}

#[tokio::test]
async fn devices_are_never_touched() {
    let v1 = testing::directory(&[("devices.allow", ""), ("devices.deny", ""), ("cpu.shares", "1024")]);
    let cgroup = testing::v1(&[(&["devices"], v1.path()), (&["cpu"], v1.path())]);
    let json = br#"{"devices":[{"allow":false,"access":"rwm"}],"cpu":{"shares":2}}"#;
    cgroup.update(json).await.unwrap();
    let text = |name: &str| fs::read_to_string(v1.path().join(name)).unwrap();
    assert_eq!(
        (text("devices.allow"), text("devices.deny"), &text("cpu.shares")[..1]),
        (String::new(), String::new(), "2")
    );
}

#[tokio::test]
async fn a_failure_takes_back_what_was_written() {
    let cgroup = testing::directory(&[("memory.max", "1000"), ("io.max", "8:0 rbps=1 wbps=max\n"), ("pids.max", "7")]);
    // The last write fails: its file does not exist.
    let json = br#"{"memory":{"limit":2000},"pids":{"limit":9},"unified":{"zzz.absent":"1"}}"#;
    let error = testing::v2(cgroup.path()).update(json).await.unwrap_err();
    assert!(matches!(error, UpdateError::Cgroup(CgroupError::Write { .. })), "{error}");
    let text = |name: &str| fs::read_to_string(cgroup.path().join(name)).unwrap();
    assert_eq!((text("memory.max"), text("pids.max")), ("1000".to_owned(), "7".to_owned()));
}

#[test]
fn a_lines_device_is_taken_back_alone() {
    let cgroup = testing::directory(&[("io.max", "8:0 rbps=1 wbps=max riops=max wiops=max\n")]);
    let undo = |device: &str| Write::keyed(cgroup.path(), "io.max", device, "rbps=5", "rbps=max").undo().unwrap().value;
    assert_eq!(undo("8:0"), "8:0 rbps=1 wbps=max riops=max wiops=max");
    assert_eq!(undo("8:16"), "8:16 rbps=max");
}

#[tokio::test]
async fn what_is_no_resources_object_is_refused() {
    let cgroup = testing::directory(&[]);
    for json in [&b"[1]"[..], b"", b"{\"memory\":{\"limit\":\"1\"}}"] {
        assert!(matches!(testing::v2(cgroup.path()).update(json).await, Err(UpdateError::Parse(_))));
    }
}

#[tokio::test]
async fn a_real_v1_cgroup_takes_every_value() {
    let Some(real) = RealCgroup::v1("update", &["memory", "cpu", "pids", "cpuset", "freezer"]) else { return };
    let text = |controller: &str, name: &str| {
        files::read(&real.cgroup.v1_controller(controller).unwrap().join(name)).unwrap().trim().to_owned()
    };
    let mems = fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.mems").unwrap();
    let cpus = fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.cpus").unwrap();
    let cpu = cpus.trim().split(['-', ',']).next().unwrap();
    for json in [
        serde_json::json!({"memory": {"limit": 64 << 20, "reservation": 32 << 20}, "cpu": {"shares": 300, "quota": 50_000, "period": 100_000}}),
        serde_json::json!({"memory": {"limit": 32 << 20}, "cpu": {"quota": 20_000, "period": 50_000}, "pids": {"limit": 12}}),
        serde_json::json!({"cpu": {"cpus": cpu, "mems": mems.trim()}}),
    ] {
        real.cgroup.update(json.to_string().as_bytes()).await.unwrap();
    }
    assert_eq!(text("memory", "memory.limit_in_bytes"), (32 << 20).to_string());
    assert_eq!(text("memory", "memory.soft_limit_in_bytes"), (32 << 20).to_string());
    assert_eq!((text("cpu", "cpu.shares"), text("cpu", "cpu.cfs_quota_us")), ("300".to_owned(), "20000".to_owned()));
    assert_eq!((text("cpu", "cpu.cfs_period_us"), text("pids", "pids.max")), ("50000".to_owned(), "12".to_owned()));
    assert_eq!(text("cpuset", "cpuset.cpus"), cpu);
    // The kernel refuses the last value, so the first goes back.
    let json = br#"{"memory":{"limit":16777216},"cpu":{"cpus":"4000"}}"#;
    let error = real.cgroup.update(json).await.unwrap_err();
    assert!(matches!(&error, UpdateError::Cgroup(CgroupError::Write { value, .. }) if value == "4000"), "{error}");
    assert_eq!(text("memory", "memory.limit_in_bytes"), (32 << 20).to_string());
}
