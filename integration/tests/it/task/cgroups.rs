//! A container's own cgroups, as it sees them.

use integration::{ContainerBuilder, Node, Setup, cri::PodContainerConfig, eventually, rootfs::IMAGE};
use k8s_cri::v1::ContainerState;
use serde_json::{Value, json};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("cgroups::cannot_be_written", cannot_be_written),
        Case::plain("cgroups::cannot_be_written_in_a_cgroup_namespace", cannot_be_written_in_a_cgroup_namespace),
        Case::plain("cgroups::cannot_be_written_beside_another", cannot_be_written_beside_another),
        Case::plain("cgroups::can_be_written_where_the_spec_says_so", can_be_written_where_the_spec_says_so),
        Case::plain("cgroups::cannot_be_written_under_ctr", cannot_be_written_under_ctr).on(Setup::images),
        Case::plain("cgroups::cannot_be_written_in_a_pod", cannot_be_written_in_a_pod).on(Setup::cri),
    ]
}

/// Shows the mounts of cgroups, then tries to lift the limits, on either version.
const LIFT: &str = r#"
    grep -E ' - cgroup2? ' /proc/self/mountinfo | cut -d ' ' -f 5,6
    cd /sys/fs/cgroup
    [ -e memory ] && own=memory || own=.$(grep ^0:: /proc/self/cgroup | cut -d : -f 3)
    for file in $own/memory.memsw.limit_in_bytes $own/memory.limit_in_bytes cpu/cpu.cfs_quota_us $own/memory.max $own/cpu.max; do
        if [ -e $file ]; then (echo -1 > $file) 2>&1 && echo "wrote $file"; fi
    done
    mkdir $own/below 2>&1; (echo 0 > $own/cgroup.procs) 2>&1
"#;

/// Becomes a program that takes more memory than any container here may; exit code 137 says that it
/// was killed for it.
const HOG: &str = "echo limits; exec dd if=/dev/zero of=/dev/null bs=256M count=1";

/// Of what [`LIFT`] prints.
#[track_caller]
fn assert_confined(output: &str) {
    let output = output.trim_end_matches("limits\n");
    let (mounts, tried): (Vec<&str>, Vec<&str>) = output.lines().partition(|line| line.starts_with("/sys/fs/cgroup"));
    assert!(!mounts.is_empty(), "{output}");
    for mount in mounts {
        assert!(mount.ends_with(" ro,nosuid,nodev,noexec,relatime"), "{mount}");
    }
    let refused = tried.iter().filter(|line| line.ends_with("Read-only file system")).count();
    assert!(refused >= 3 && refused == tried.len(), "{output}");
}

fn with_cgroups(options: &'static [&'static str]) -> impl FnOnce(&mut Value) {
    move |spec| {
        let mount =
            json!({ "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options });
        spec["mounts"].as_array_mut().unwrap().push(mount);
    }
}

const READ_ONLY: &[&str] = &["nosuid", "noexec", "nodev", "relatime", "ro"];

/// Runs [`LIFT`] and then takes more memory than it may.
#[track_caller]
fn assert_limits_hold(builder: ContainerBuilder<'_>) {
    let builder = builder.script(&format!("{LIFT} {HOG}")).edit(|spec| {
        spec["linux"]["resources"]["memory"] = json!({ "limit": 32 << 20, "swap": 32 << 20 });
        spec["linux"]["resources"]["cpu"] = json!({ "quota": 50_000, "period": 100_000 });
    });
    let (status, output) = builder.edit(with_cgroups(READ_ONLY)).run().unwrap();
    assert_confined(&output.stdout());
    assert_eq!(status, 137);
}

fn cannot_be_written(node: &Node) {
    assert_limits_hold(node.container("a"));
}

fn cannot_be_written_in_a_cgroup_namespace(node: &Node) {
    let namespace = |spec: &mut Value| {
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "cgroup" }));
    };
    assert_limits_hold(node.container("a").edit(namespace));
}

/// The pid of a process in another's pid namespace says nothing of a process of the host.
fn cannot_be_written_beside_another(node: &Node) {
    // So many that no process of the host has the next one's number.
    let many = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); /bin/true; done; echo many; sleep infinity";
    let other = node.container("other").script(many).start().unwrap();
    other.stdio.wait_for("many");
    assert_limits_hold(node.container("a").in_pid_namespace_of(&other));
    other.end();
}

/// As of a privileged container.
fn can_be_written_where_the_spec_says_so(node: &Node) {
    let script = "cd /sys/fs/cgroup; [ -e memory ] && cd memory; mkdir below && rmdir below && echo made";
    let options = &["nosuid", "noexec", "nodev", "relatime", "rw"];
    let (_, output) = node.container("a").script(script).edit(with_cgroups(options)).run().unwrap();
    assert_eq!(output.stdout(), "made\n", "{}", output.stderr());
}

fn cannot_be_written_under_ctr(node: &Node) {
    node.track("r");
    let mount = format!("type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options={}", READ_ONLY.join(":"));
    let run = ["run", "--rm", "--memory-limit", "33554432", "--mount", &mount, "--runtime", node.runtime(), IMAGE, "r"];
    let output = node.ctr(&[&run[..], &["sh", "-c", &format!("{LIFT} {HOG}")]].concat());
    assert_confined(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(137));
}

fn cannot_be_written_in_a_pod(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let script = format!("({LIFT}) > /lifted; touch /done; while [ ! -e /go ]; do sleep 0.1; done; {HOG}");
    let command = &["sh", "-c", &script];
    let container =
        pod.start("a", &PodContainerConfig { command, memory: 32 << 20, ..PodContainerConfig::default() }).unwrap();
    eventually("it has tried", || (container.exec(&["test", "-e", "/done"]).exit_code == 0).then_some(()));
    assert_confined(&String::from_utf8_lossy(&container.exec(&["cat", "/lifted"]).stdout));
    container.exec(&["touch", "/go"]);
    eventually("it ends", || (container.status().state() == ContainerState::ContainerExited).then_some(()));
    assert_eq!(container.status().exit_code, 137);
    pod.remove();
}
