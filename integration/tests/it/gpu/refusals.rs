//! Creates that must fail, and leave no trace.

use integration::{Node, Setup, egpu::EgpuConfig};
use serde_json::json;

use super::{refused, steps};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("refusals::malformed_requests", malformed_requests),
        Case::egpu("refusals::cards_that_are_not_there", cards_that_are_not_there),
        Case::egpu("refusals::exclusive_against_shared", exclusive_against_shared),
        Case::egpu("refusals::more_than_is_free", more_than_is_free),
        Case::egpu("refusals::containers_per_card", containers_per_card).on(two_per_card),
        Case::egpu("refusals::tiny_containers_keep_no_card_from_caps", tiny_containers_keep_no_card_from_caps)
            .only_simulated("it counts on four V100"),
        Case::egpu("refusals::containers_of_one_owner", containers_of_one_owner).on(one_per_owner),
        Case::egpu("refusals::privileged_quota", privileged_quota),
        Case::egpu("refusals::cgroup_of_another_container", cgroup_of_another_container),
        Case::egpu(
            "refusals::no_trace_of_a_create_that_fails_after_admission",
            no_trace_of_a_create_that_fails_after_admission,
        ),
        Case::egpu("refusals::unknown_key_in_the_configuration", unknown_key_in_the_configuration).on(unknown_key),
        Case::egpu("refusals::configuration_that_does_not_parse", configuration_that_does_not_parse).on(broken_config),
        Case::egpu("refusals::full_disk", full_disk).on(small_state),
        Case::egpu("refusals::no_cards_on_the_node", no_cards_on_the_node).on(no_cards),
    ]
}

fn two_per_card() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("device_split_count = 2\n"), ..Setup::default() }
}

fn one_per_owner() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("owner_split_count = 1\n"), ..Setup::default() }
}

fn unknown_key() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("memory_scalling = 2.0\n"), ..Setup::default() }
}

fn broken_config() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("max_inst = = 3\n"), ..Setup::default() }
}

fn small_state() -> Setup {
    Setup { state_tmpfs: Some("256k".to_owned()), ..Setup::default() }
}

fn no_cards() -> Setup {
    Setup { egpu: EgpuConfig::with_cards("[driver]\nkind = \"simulated\"\n"), ..Setup::default() }
}

/// Environment, and what the refusal must name.
type Refusal = (&'static [(&'static str, &'static str)], &'static [&'static str]);

const MALFORMED: &[Refusal] = &[
    (&[("EGPU_MEMORY", "6 bananas")], &["EGPU_MEMORY", "6 bananas"]),
    (&[("EGPU_MEMORY", "0")], &["EGPU_MEMORY"]),
    // Whole: containerd 1.x takes messages of some codes for format strings.
    (
        &[("EGPU_MEMORY", "1GiB"), ("EGPU_COMPUTE", "130%")],
        &["EGPU_COMPUTE=130% is not accepted: it must be 1% to 100%, or one for each card: 30%,50%"],
    ),
    (&[("EGPU_CARDS", "1"), ("EGPU_DEVICES", "0")], &["EGPU_CARDS", "EGPU_DEVICES"]),
    (&[("EGPU_CARDS", "2"), ("EGPU_MEMORY", "1GiB,2GiB,3GiB")], &["EGPU_MEMORY"]),
    (&[("EGPU_MEMORY", "1GiB"), ("EGPU_ISOLATION", "none")], &["EGPU_ISOLATION", "none"]),
    (
        &[("AMP_VGPU_ENABLE", "1"), ("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_SM_LIMIT", "10")],
        &["AMP_VGPU_ENABLE", "CUDA_DEVICE"],
    ),
    (
        &[("AMP_VGPU_ENABLE", "1"), ("NVIDIA_VISIBLE_DEVICES", "0"), ("ALIYUN_COM_GPU_MEM_DEV", "16")],
        &["ALIYUN_COM_GPU_MEM_DEV"],
    ),
    (
        &[("NVIDIA_VISIBLE_DEVICES", "0,1"), ("ALIYUN_COM_GPU_MEM_DEV", "16"), ("ALIYUN_COM_GPU_MEM_CONTAINER", "0,3")],
        &["ALIYUN_COM_GPU_MEM_CONTAINER", "0,3"],
    ),
    (
        &[("NVIDIA_VISIBLE_DEVICES", "0"), ("EGPU", "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=1,MEM=10,WEIGHT=10")],
        &["EGPU", "PGPU"],
    ),
    (&[("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_MEMORY_LIMIT", "much")], &["CUDA_DEVICE_MEMORY_LIMIT", "much"]),
    (&[("NVIDIA_VISIBLE_DEVICES", "0"), ("NVIDIA_REQUIRE_CUDA", "cuda>=99.0")], &["NVIDIA_REQUIRE_CUDA", "99.0"]),
];

fn malformed_requests(node: &Node) {
    for (index, (env, fragments)) in MALFORMED.iter().enumerate() {
        let id = format!("m{index}");
        let text = refused(node.container(&id).envs(env));
        for fragment in *fragments {
            assert!(text.contains(fragment), "{env:?}: {fragment:?} is not in {text:?}");
        }
        assert!(node.granted().is_empty(), "{env:?}");
        let steps = steps(node, &id);
        assert!(!steps.iter().any(|step| step.starts_with("reserve")), "{env:?}: {steps:?}");
    }
}

fn cards_that_are_not_there(node: &Node) {
    for value in ["7", "GPU-ffffffff-dead", "0000:ff:1f.0"] {
        let text = refused(node.container("a").env("NVIDIA_VISIBLE_DEVICES", value));
        assert!(text.contains(value), "{text:?}");
    }
    let text = refused(node.container("a").env("EGPU_CARDS", "5").env("EGPU_MEMORY", "1GiB"));
    assert!(text.contains('5') && text.contains('4'), "{text:?}");
}

fn exclusive_against_shared(node: &Node) {
    let whole = node.container("whole").env("NVIDIA_VISIBLE_DEVICES", "0").start().unwrap();
    let text = refused(node.container("a").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB"));
    assert!(text.contains("whole card"), "{text:?}");
    let share = node.container("share").env("EGPU_DEVICES", "1").env("EGPU_MEMORY", "1GiB").start().unwrap();
    refused(node.container("b").env("NVIDIA_VISIBLE_DEVICES", "1"));
    refused(node.container("c").env("NVIDIA_VISIBLE_DEVICES", "all"));
    assert_eq!(node.granted(), ["share", "whole"]);
    whole.end();
    node.container("d").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB").start().unwrap().end();
    share.end();
}

fn tiny_containers_keep_no_card_from_caps(node: &Node) {
    let on_all_cards = [("0", "soft"), ("1", "native"), ("2", "soft"), ("3", "native")];
    for (card, policy) in on_all_cards {
        let tiny = [("EGPU_DEVICES", card), ("EGPU_MEMORY", "1MiB"), ("EGPU_POLICY", policy)];
        let text = refused(node.container("tiny").envs(&tiny));
        assert!(text.contains("requested_policy_share") && text.contains("fixed"), "{text}");
    }
    // Without a policy it is welcome, and in nobody's way.
    let tiny = node.container("small").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1MiB")]).start().unwrap();
    let train = node.container("train").envs(&[("EGPU_CARDS", "4"), ("EGPU_COMPUTE", "25%"), ("EGPU_MEMORY", "8GiB")]);
    train.start().unwrap().end();
    tiny.end();
}

fn containers_of_one_owner(node: &Node) {
    let ask = |id: &str| node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]);
    let first = ask("first").start().unwrap();
    let text = refused(ask("second"));
    assert!(text.contains("owner_split_count"), "{text}");
    // Another owner's: of a pod.
    let pod = ask("pod")
        .annotation("io.kubernetes.cri.sandbox-namespace", "team")
        .annotation("io.kubernetes.cri.sandbox-name", "train")
        .annotation("io.kubernetes.cri.container-name", "main");
    pod.start().unwrap().end();
    first.end();
    ask("second").start().unwrap().end();
}

fn more_than_is_free(node: &Node) {
    let text = refused(node.container("a").env("EGPU_MEMORY", "33GiB"));
    assert!(text.contains("GiB") || text.contains("MiB"), "{text:?}");
    let first = node.container("first").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "31GiB").start().unwrap();
    refused(node.container("b").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1025MiB"));
    let exact = node.container("exact").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB").start().unwrap();
    first.end();
    exact.end();
}

fn containers_per_card(node: &Node) {
    let ask = |id: &str| node.container(id).env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB");
    let (first, second) = (ask("first").start().unwrap(), ask("second").start().unwrap());
    refused(ask("third"));
    first.end();
    ask("fourth").start().unwrap().end();
    second.end();
}

fn privileged_quota(node: &Node) {
    for capability in ["CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO"] {
        let edit = move |spec: &mut serde_json::Value| {
            for set in ["bounding", "effective", "permitted"] {
                spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!(capability));
            }
        };
        let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB").edit(edit));
        assert!(text.contains(capability), "{text:?}");
    }
    let host_pids = |spec: &mut serde_json::Value| {
        spec["linux"]["namespaces"].as_array_mut().unwrap().retain(|namespace| namespace["type"] != "pid");
    };
    let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB").edit(host_pids));
    assert!(text.contains("process ids"), "{text:?}");
    let every_device = |spec: &mut serde_json::Value| {
        spec["linux"]["resources"]["devices"] = json!([{ "allow": true, "access": "rwm" }]);
    };
    refused(node.container("a").env("EGPU_MEMORY", "1GiB").edit(every_device));
}

fn no_trace_of_a_create_that_fails_after_admission(node: &Node) {
    let ask = |id: &str| node.container(id).env("EGPU_MEMORY", "32GiB").env("EGPU_DEVICES", "0");
    refused(ask("mount").edit(|spec| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts
            .push(json!({ "destination": "/mnt", "type": "bind", "source": "/no/such/source", "options": ["rbind"] }));
    }));
    refused(ask("hook").hook("createRuntime", "exit 1"));
    refused(ask("hook2").hook("createContainer", "exit 1"));
    refused(ask("rootfs").rootfs("/no/such/rootfs"));
    // A program that is missing shows at start (or at create): then the container goes the ordinary
    // way.
    if let Ok(mut container) = ask("program").args(&["no-such-program"]).create() {
        container.start().expect_err("no such program");
        let _ = container.kill(nix::sys::signal::Signal::SIGKILL);
        let _ = container.wait();
        container.delete().unwrap();
    }
    assert!(node.granted().is_empty(), "{:?}", node.granted());
    for id in ["mount", "hook", "hook2"] {
        let steps = steps(node, id);
        assert!(
            steps.iter().any(|step| step.starts_with("rollback") || step.starts_with("release")),
            "{id}: {steps:?}"
        );
    }
    ask("whole").start().unwrap().end();
}

#[track_caller]
fn names_the_line(node: &Node, text: &str) {
    let path = node.directory().join("egpu.toml").display().to_string();
    assert!(text.contains(&path) && text.contains('3'), "the refusal names file and line: {text:?}");
}

fn unknown_key_in_the_configuration(node: &Node) {
    let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB"));
    names_the_line(node, &text);
    assert!(text.contains("memory_scalling") && text.contains("memory_scaling"), "{text:?}");
}

fn configuration_that_does_not_parse(node: &Node) {
    let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB"));
    names_the_line(node, &text);
}

fn full_disk(node: &Node) {
    let state = node.directory().join("egpu");
    // The first container shows that the state directory works at all.
    node.container("before").env("EGPU_MEMORY", "1GiB").start().unwrap().end();
    let ballast = state.join("ballast");
    let mut size = 256 << 10;
    while size > 0 && std::fs::write(&ballast, vec![0; size]).is_err() {
        size -= 4096;
    }
    // What is left of a page would hold a small record.
    for index in 0.. {
        if std::fs::write(state.join(format!("ballast{index}")), vec![0; 4096]).is_err() {
            let _ = std::fs::remove_file(state.join(format!("ballast{index}")));
            break;
        }
    }
    let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB"));
    assert!(text.to_lowercase().contains("no space left"), "{text:?}");
    for entry in std::fs::read_dir(&state).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("ballast") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(node.granted().is_empty());
    node.container("after").env("EGPU_MEMORY", "1GiB").start().unwrap().end();
}

fn no_cards_on_the_node(node: &Node) {
    let text = refused(node.container("a").env("EGPU_MEMORY", "1GiB"));
    assert!(text.to_lowercase().contains("card"), "{text:?}");
    node.container("plain").start().unwrap().end();
}

/// Two containers on one path: the second is refused before anything is reserved, and what it takes
/// to undo its create does not end the first. A reservation would name the first one's cgroup, and
/// its processes would be killed for it later.
fn cgroup_of_another_container(node: &Node) {
    let path = format!("/egpu-shared-{}", std::process::id());
    let edit = |spec: &mut serde_json::Value| spec["linux"]["cgroupsPath"] = json!(path.clone());
    let first = node.container("first").edit(edit).start().unwrap();
    for (id, asks) in [("second", false), ("third", true)] {
        let second = node.container(id).edit(edit);
        let text = refused(if asks { second.env("EGPU_MEMORY", "1GiB") } else { second });
        assert!(text.contains("in use"), "{text}");
        assert!(steps(node, id).is_empty(), "{id}: {:?}", steps(node, id));
        assert_eq!(first.read("echo alive"), "alive");
    }
    first.end();
}
