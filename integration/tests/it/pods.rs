//! Pods through CRI, with the runtime handler `egpu`.

use integration::{
    Node, Setup,
    containerd::DaemonConfig,
    cri::{PodContainerConfig, PodSecurity},
    eventually,
    rootfs::EVIL_IMAGE,
};
use k8s_cri::v1::{ContainerState, LinuxContainerResources};

use crate::{attacks::rm_client, case::Case};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::plain("pods::containers_share_one_shim", containers_share_one_shim),
        Case::plain("pods::exec_and_logs", exec_and_logs),
        Case::plain("pods::stats_and_update", stats_and_update),
        Case::plain("pods::exit_codes_and_oom_reason", exit_codes_and_oom_reason),
        Case::plain("pods::one_container_ends_the_others_go_on", one_container_ends_the_others_go_on),
        Case::egpu("pods::annotations_of_the_pod", annotations_of_the_pod),
        Case::egpu("pods::containers_have_grants_of_their_own", containers_have_grants_of_their_own),
        Case::egpu("pods::a_share_at_each_level_of_pod_security", a_share_at_each_level),
        Case::egpu("pods::a_user_whom_the_image_gives_no_id", a_user_whom_the_image_gives_no_id),
        Case::egpu("pods::environment_is_tightened_by_annotations", environment_is_tightened_by_annotations),
        Case::egpu("pods::a_refusal_says_nothing_of_neighbours", a_refusal_says_nothing_of_neighbours)
            .only_simulated("sizes are those of the simulated cards"),
        Case::egpu("pods::a_quota_kill_of_a_child_is_oom_killed", quota_kill_of_a_child).needing(rm_client),
        Case::egpu("pods::containers_are_known_by_their_pods", known_by_their_pods)
            .only_simulated("sizes are those of the simulated cards"),
        Case::egpu("pods::doctor_reads_what_the_running_containerd_reads", doctor_reads_the_daemons_file),
    ];
    let in_user_namespaces = [
        Case::egpu("pods::a_user_namespace", a_user_namespace),
        Case::egpu("pods::a_user_namespace_of_administrators", a_user_namespace_of_administrators),
    ];
    // Only there CRI asks a runtime of runc's type, whatever its program, what it can do.
    let in_user_namespaces = in_user_namespaces.map(|case| case.on(drop_in).on_containerd(&["2"]));
    cases.into_iter().map(|case| case.on(Setup::cri)).chain(in_user_namespaces).collect()
}

fn drop_in() -> Setup {
    let cri = Setup::cri();
    let containerd = DaemonConfig { example: Some("drop-in-2.x.toml"), ..cri.containerd };
    Setup { containerd, ..cri }
}

const SLEEP: &[&str] = &["sleep", "infinity"];

fn sleeping() -> PodContainerConfig<'static> {
    PodContainerConfig { command: SLEEP, ..PodContainerConfig::default() }
}

fn containers_share_one_shim(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let containers: Vec<_> = ["a", "b", "c"].iter().map(|name| pod.start(name, &sleeping()).unwrap()).collect();
    node.shim();
    for container in &containers {
        assert_eq!(container.status().state(), ContainerState::ContainerRunning);
    }
    let other = node.pod("q", &[]).unwrap();
    drop(containers);
    pod.remove();
    // A shim answers Shutdown before it ends.
    eventually("the first pod's shim ends", || (node.shims().len() == 1).then_some(()));
    other.remove();
}

fn exec_and_logs(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let command = &["sh", "-c", "echo to the log; echo an error >&2; exec sleep infinity"];
    let container = pod.start("a", &PodContainerConfig { command, ..sleeping() }).unwrap();
    let answer = container.exec(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(
        (answer.exit_code, answer.stdout.as_slice(), answer.stderr.as_slice()),
        (3, &b"out\n"[..], &b"err\n"[..])
    );
    eventually("both lines are in the log", || {
        let log = container.log();
        (log.contains("stdout F to the log\n") && log.contains("stderr F an error\n")).then_some(())
    });
    pod.remove();
}

fn stats_and_update(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let container = pod.start("a", &PodContainerConfig { memory: 64 << 20, ..sleeping() }).unwrap();
    eventually("stats with CPU and memory", || {
        let stats = container.stats();
        let cpu = stats.cpu?.usage_core_nano_seconds?.value;
        let memory = stats.memory?.working_set_bytes?.value;
        (cpu > 0 && memory > 0).then_some(())
    });
    let wider = LinuxContainerResources { memory_limit_in_bytes: 128 << 20, ..LinuxContainerResources::default() };
    container.update(wider).unwrap();
    if std::path::Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        let path = format!("/sys/fs/cgroup/memory{}/memory.limit_in_bytes", node.cgroup_path(&container.id));
        assert_eq!(std::fs::read_to_string(path).unwrap().trim(), (128 << 20).to_string());
    }
    pod.remove();
}

fn exit_codes_and_oom_reason(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let ends = pod.start("ends", &PodContainerConfig { command: &["sh", "-c", "exit 6"], ..sleeping() }).unwrap();
    let command = &["sh", "-c", "head -c 200000000 /dev/zero | tail; exit 1"];
    let hog = pod.start("hog", &PodContainerConfig { command, memory: 32 << 20, ..sleeping() }).unwrap();
    let ended = |container: &integration::cri::PodContainer<'_>| {
        eventually("the container has ended", || {
            let status = container.status();
            (status.state() == ContainerState::ContainerExited).then_some(status)
        })
    };
    let status = ended(&ends);
    assert_eq!((status.exit_code, status.reason.as_str()), (6, "Error"));
    ended(&hog);
    eventually("the reason is OOMKilled", || (hog.status().reason == "OOMKilled").then_some(()));
    pod.remove();
}

/// As after the kernel's kill of a child, though the shell goes on and ends well.
fn quota_kill_of_a_child(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let env: &[(&str, &str)] = &[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB"), ("EGPU_OOM", "kill")];
    let command = &["sh", "-c", "rm-client alloc 8GiB; true"];
    let container = pod.start("a", &PodContainerConfig { command, env, ..sleeping() }).unwrap();
    let status = eventually("the container has ended", || {
        let status = container.status();
        (status.state() == ContainerState::ContainerExited).then_some(status)
    });
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "OOMKilled"));
    pod.remove();
}

fn one_container_ends_the_others_go_on(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let first = pod.start("first", &sleeping()).unwrap();
    let second = pod.start("second", &sleeping()).unwrap();
    first.stop(0).unwrap();
    first.remove().unwrap();
    assert_eq!(second.exec(&["true"]).exit_code, 0);
    let third = pod.start("third", &sleeping()).unwrap();
    assert_eq!(third.exec(&["true"]).exit_code, 0);
    pod.remove();
}

fn annotations_of_the_pod(node: &Node) {
    let pod = node.pod("p", &[("egpu.io/memory", "4GiB"), ("egpu.io/compute", "25%")]).unwrap();
    assert!(node.granted().is_empty(), "the sandbox itself holds no card");
    let container = pod.start("a", &sleeping()).unwrap();
    let grant = node.grant(&container.id).expect("a grant");
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![4096], vec![Some(25)]));
    pod.remove();
    eventually("its grant is gone", || node.granted().is_empty().then_some(()));
}

fn containers_have_grants_of_their_own(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let ask = |memory: &'static str| PodContainerConfig { annotations: memory_annotation(memory), ..sleeping() };
    let first = pod.start("first", &ask("1GiB")).unwrap();
    let second = pod.start("second", &ask("2GiB")).unwrap();
    let plain = pod.start("plain", &sleeping()).unwrap();
    assert_eq!(node.grant(&first.id).expect("a grant").memory_mib(), [1024]);
    assert_eq!(node.grant(&second.id).expect("a grant").memory_mib(), [2048]);
    assert!(node.grant(&plain.id).is_none());
    first.stop(0).unwrap();
    first.remove().unwrap();
    eventually("the first grant is gone", || node.grant(&first.id).is_none().then_some(()));
    assert!(node.grant(&second.id).is_some());
    pod.remove();
}

fn a_share_at_each_level(node: &Node) {
    let share = &[("egpu.io/memory", "1GiB")];
    let pod = node.pod("p", share).unwrap();
    for (name, security, user, bounding) in [
        ("restricted", PodSecurity::Restricted, "1000", "0000000000000000"),
        // containerd's own fourteen.
        ("baseline", PodSecurity::Baseline, "0", "00000000a80425fb"),
    ] {
        let container = pod.start(name, &PodContainerConfig { security, ..sleeping() }).unwrap();
        assert_eq!(node.grant(&container.id).expect("a grant").memory_mib(), [1024], "{name}");
        let script = "for status in /proc/1/status /proc/self/status; do \
                      awk '/^(Uid|CapBnd|CapPrm|CapInh|CapAmb):/ {print $2}' $status; done";
        let answer = container.exec(&["sh", "-c", script]);
        let permitted = if user == "0" { bounding } else { "0000000000000000" };
        let none = "0000000000000000";
        // Linux prints them in this order.
        let one = format!("{user}\n{none}\n{permitted}\n{bounding}\n{none}\n");
        assert_eq!(
            String::from_utf8_lossy(&answer.stdout),
            [one.as_str(); 2].concat(),
            "{name}: of init and of an exec"
        );
    }
    let plain = PodContainerConfig { security: PodSecurity::Privileged, ..sleeping() };
    let privileged = node.privileged_pod("privileged", share).unwrap();
    let message = privileged.start("a", &plain).unwrap_err().message().to_owned();
    assert!(message.contains("CAP_SYS_ADMIN") && message.contains("a device rule for every device"), "{message}");
    privileged.remove();
    pod.remove();
}

fn a_user_whom_the_image_gives_no_id(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let config = PodContainerConfig { image: Some(EVIL_IMAGE), ..PodContainerConfig::default() };
    let message = pod.start("a", &config).unwrap_err().message().to_owned();
    assert!(message.contains("process.user.uid"), "{message}");
    pod.remove();
}

fn memory_annotation(memory: &'static str) -> &'static [(&'static str, &'static str)] {
    match memory {
        "1GiB" => &[("egpu.io/memory", "1GiB")],
        _ => &[("egpu.io/memory", "2GiB")],
    }
}

fn environment_is_tightened_by_annotations(node: &Node) {
    let pod = node.pod("p", &[("egpu.io/memory", "2GiB")]).unwrap();
    let env: &[(&str, &str)] = &[("EGPU_MEMORY", "8GiB")];
    let container = pod.start("a", &PodContainerConfig { env, ..sleeping() }).unwrap();
    assert_eq!(node.grant(&container.id).expect("a grant").memory_mib(), [2048]);
    pod.remove();
}

fn a_refusal_says_nothing_of_neighbours(node: &Node) {
    let ask = |memory| [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory), ("EGPU_COMPUTE", "17%")];
    let (first, second, too_much) = (ask("9001MiB"), ask("7003MiB"), ask("20GiB"));
    let neighbours = node.pod("neighbours", &[]).unwrap();
    let first = neighbours.start("first", &PodContainerConfig { env: &first, ..sleeping() }).unwrap();
    let second = neighbours.start("second", &PodContainerConfig { env: &second, ..sleeping() }).unwrap();

    let pod = node.pod("p", &[]).unwrap();
    let message =
        pod.start("a", &PodContainerConfig { env: &too_much, ..sleeping() }).unwrap_err().message().to_owned();
    for part in ["20GiB of memory asked", "16764MiB of 32GiB of memory", "66% of its time", "8 of 10 places"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    for secret in [first.id.as_str(), second.id.as_str(), "9001MiB", "7003MiB", "8.8 GiB", "6.8 GiB", "neighbours"] {
        assert!(!message.contains(secret), "{secret}: {message}");
    }
    // Whoever has the node reads it all.
    let events = node.egpu_json(&["events", "--kind", "refused"]).to_string();
    let log = node.decision_log();
    let as_administrator = node.container("plain").envs(&too_much).create().unwrap_err().to_string();
    for text in [events, log, as_administrator] {
        let both_names = format!("default/neighbours/first [k8s.io/{}]", first.id);
        assert!(text.contains(&both_names) && text.contains("6.8 GiB"), "{text}");
    }
    pod.remove();
    neighbours.remove();
}

fn known_by_their_pods(node: &Node) {
    let env = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")];
    let pod = node.pod("web-0", &[]).unwrap();
    let [main, side] =
        ["main", "side"].map(|name| pod.start(name, &PodContainerConfig { env: &env, ..sleeping() }).unwrap());
    let said = |arguments: &[&str]| {
        let output = node.egpu(arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let (_, table) = said(&["ps"]);
    assert!(table.lines().next().unwrap().ends_with("  POD"), "{table}");
    assert!(table.contains("  default/web-0/main\n") && table.contains("  default/web-0/side\n"), "{table}");

    let (code, text) = said(&["inspect", "web-0"]);
    assert_eq!(code, 4, "{text}");
    for candidate in
        [format!("default/web-0/main [k8s.io/{}]", main.id), format!("default/web-0/side [k8s.io/{}]", side.id)]
    {
        assert!(text.contains(&candidate), "{candidate}: {text}");
    }
    for name in ["default/web-0/side", &side.id, &format!("k8s.io/{}", side.id)] {
        assert_eq!(node.egpu_json(&["inspect", name])["container"]["id"], side.id.as_str(), "{name}");
    }
    let (code, text) = said(&["set", "default/web-0/main", "--memory", "2GiB"]);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("default/web-0/main [k8s.io/") && text.contains("a restart of the container undoes this"),
        "{text}"
    );
    assert_eq!(node.grant(&main.id).expect("a grant").memory_mib(), [2048]);

    let names = serde_json::json!({"namespace": "default", "pod": "web-0", "container": "main"});
    let containers = node.egpu_json(&["cards"])[0]["containers"].clone();
    assert!(containers.as_array().unwrap().iter().any(|container| container["pod"] == names), "{containers}");
    assert_eq!(node.egpu_json(&["top"])["containers"][0]["pod"], names);
    let events = node.egpu_json(&["events", "--container", "default/web-0/main"]);
    let changed = events.as_array().unwrap().last().unwrap();
    assert_eq!(
        (&changed["kind"], &changed["pod"], &changed["container"]),
        (&"changed".into(), &names, &main.id.as_str().into())
    );
    assert_eq!(said(&["events", "--container", "web-0"]).0, 4);
    assert!(node.decision_log().contains(&format!("event=grant container=k8s.io/{} pod=default/web-0/side ", side.id)));
    pod.remove();
}

fn doctor_reads_the_daemons_file(node: &Node) {
    let mut doctor = node.egpu_command(&["doctor", "--output", "json"]);
    let output = doctor.env("CONTAINERD_ADDRESS", node.directory().join("containerd.sock")).output().unwrap();
    let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks: Vec<_> = checks.as_array().unwrap().iter().filter(|check| check["what"] == "containerd").collect();
    let file = node.directory().join("containerd.toml").display().to_string();
    assert!(checks.iter().all(|check| check["level"] == "ok"), "{checks:?}");
    let detail = checks[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with(&file) && detail.contains("the runtime `egpu`"), "{detail}");
    // The other form is recommended where there is one.
    let lacks = checks.iter().any(|check| check["detail"].as_str().unwrap().contains("user namespaces"));
    assert_eq!(lacks, node.release().version != "1.6", "{checks:?}");
}

/// `hostUsers: false`: users of its own, files of a volume with the host's owners, and a quota.
fn a_user_namespace(node: &Node) {
    use std::os::unix::fs::MetadataExt;

    let volume = node.directory().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("of-root"), "x").unwrap();
    // As a kubelet's directories are.
    std::fs::set_permissions(&volume, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    let pod = node.pod_with_users("p", &[("egpu.io/memory", "1GiB")]).unwrap();
    let config = PodContainerConfig { volume: Some(&volume), ..sleeping() };
    let containers = [pod.start("a", &config).unwrap(), pod.start("b", &config).unwrap()];
    let script = "id -u; awk '{print $2}' /proc/self/uid_map; stat -c %u /volume/of-root /bin/busybox; echo y >/volume/made; \
                  readlink /proc/self/ns/user; rm-client memory 2>/dev/null | head -n 1";
    let seen = containers.each_ref().map(|container| {
        let answer = container.exec(&["sh", "-c", script]);
        assert_eq!((answer.exit_code, answer.stderr.as_slice()), (0, &b""[..]));
        String::from_utf8(answer.stdout).unwrap()
    });
    assert!(seen[0].starts_with("0\n100000\n0\n0\nuser:["), "{seen:?}");
    assert_eq!(seen[0], seen[1], "all of a pod are in one");
    assert_eq!(volume.join("made").metadata().unwrap().uid(), 0);
    assert_eq!(node.grant(&containers[0].id).expect("a grant").memory_mib(), [1024]);
    containers[0].stop(0).unwrap();
    pod.remove();
}

/// Rights in there are none on the host: there is a fence, and there can be a quota.
fn a_user_namespace_of_administrators(node: &Node) {
    let pod = node.pod_with_users("p", &[]).unwrap();
    let all = PodContainerConfig { all_capabilities: true, ..sleeping() };
    let plain = pod.start("plain", &all).unwrap();
    let answer =
        plain.exec(&["sh", "-c", "grep Seccomp: /proc/1/status; mount -t tmpfs x /mnt || mount -t tmpfs x /tmp"]);
    assert_eq!((answer.exit_code, answer.stdout.as_slice()), (0, &b"Seccomp:\t2\n"[..]));
    let granted = pod.start("granted", &PodContainerConfig { annotations: memory_annotation("1GiB"), ..all }).unwrap();
    assert_eq!(node.grant(&granted.id).expect("a grant").memory_mib(), [1024]);
    pod.remove();
}
