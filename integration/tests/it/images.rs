//! `NVIDIA_VISIBLE_DEVICES` of an image: what it is worth in a pod, and outside.

use integration::{
    Node, Setup,
    cri::{Pod, PodContainer, PodContainerConfig},
    egpu::EgpuConfig,
    rootfs::CUDA_IMAGE,
};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("images::what_only_the_image_says_is_no_request", what_only_the_image_says_is_no_request),
        Case::egpu("images::what_the_pod_says_is", what_the_pod_says_is),
        Case::egpu("images::an_unknown_image_is_refused", an_unknown_image_is_refused),
        Case::egpu("images::outside_pods_they_ask", outside_pods_they_ask),
    ];
    let mut cases: Vec<Case> = cases.into_iter().map(|case| case.on(Setup::cri)).collect();
    cases.push(Case::egpu("images::where_the_node_believes_them_they_ask", they_ask).on(believing));
    cases
}

const SETTING: &str = "accept_nvidia_visible_devices_of_images_in_pods";
type Env<'a> = &'a [(&'a str, &'a str)];

fn believing() -> Setup {
    Setup { egpu: EgpuConfig::with_keys(&format!("{SETTING} = true")), ..Setup::cri() }
}

fn of_cuda_image<'a>(env: Env<'a>) -> PodContainerConfig<'a> {
    PodContainerConfig {
        image: Some(CUDA_IMAGE),
        command: &["sleep", "infinity"],
        env,
        ..PodContainerConfig::default()
    }
}

/// Cards of the container's grant; `None`: it has none.
fn cards(node: &Node, container: &PodContainer<'_>) -> Option<Vec<u64>> {
    node.grant(&container.id).map(|grant| grant.cards())
}

/// It runs, without a card, and everybody who is asked says so.
fn runs_without_gpu(node: &Node, container: &PodContainer<'_>) {
    assert!(node.grant(&container.id).is_none());
    let nodes = container.exec(&["sh", "-c", "ls /dev | grep -c nvidia"]);
    assert_eq!(String::from_utf8_lossy(&nodes.stdout), "0\n");
    let inspected = node.egpu_json(&["inspect", &container.id]);
    let events = node.egpu_json(&["events", "--kind", "ignored", "--container", &container.id]);
    let texts = [inspected["without_gpu"].to_string(), events[0]["text"].to_string(), node.decision_log()];
    for text in texts {
        for part in ["starts without a GPU", "EGPU_DEVICES=all", "egpu.io/devices", SETTING] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert_eq!(inspected["container"]["id"], container.id.as_str());
    assert_eq!(inspected["pod"]["namespace"], "default");
    let decided: Vec<String> = node.decisions(&container.id).into_iter().map(|decision| decision.event).collect();
    assert_eq!(decided, ["ask", "ignore"]);
}

fn started<'pod>(pod: &'pod Pod<'_>, name: &str, env: Env<'_>) -> PodContainer<'pod> {
    pod.start(name, &of_cuda_image(env)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn what_only_the_image_says_is_no_request(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let worker = started(&pod, "worker", &[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]);
    assert_eq!(cards(node, &worker), Some(vec![0]));
    let sidecar = started(&pod, "sidecar", &[]);
    runs_without_gpu(node, &sidecar);
    let by_pod = node.egpu_json(&["inspect", "default/p/sidecar"]);
    assert_eq!(by_pod["container"]["id"], sidecar.id.as_str());
    // These say how, not that.
    runs_without_gpu(node, &started(&pod, "describes", &[("EGPU_POLICY", "soft"), ("NVIDIA_DISABLE_REQUIRE", "1")]));
    // Nobody can tell from the value who said it.
    runs_without_gpu(node, &started(&pod, "repeats", &[("NVIDIA_VISIBLE_DEVICES", "all")]));
    let looks = started(&pod, "looks", &[("NVIDIA_DRIVER_CAPABILITIES", "utility")]);
    assert_eq!(cards(node, &looks).map(|cards| cards.len()), Some(4), "utility alone holds nothing, and is believed");
    let id = looks.id.clone();
    assert!(node.decisions(&id).iter().all(|decision| decision.event != "ignore"));
    drop((worker, looks));
    pod.remove();
    assert!(!node.egpu(&["inspect", &id]).status.success(), "it is gone");
}

fn what_the_pod_says_is(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let another = started(&pod, "another", &[("NVIDIA_VISIBLE_DEVICES", "1")]);
    assert_eq!(cards(node, &another), Some(vec![1]));
    // As a device plugin does.
    let listed = node.egpu_json(&["cards"]);
    let uuid = listed[2]["uuid"].as_str().expect("a card's UUID");
    let plugin = started(&pod, "plugin", &[("NVIDIA_VISIBLE_DEVICES", uuid)]);
    assert_eq!(cards(node, &plugin), Some(vec![2]));
    let own = started(&pod, "own", &[("EGPU_DEVICES", "3")]);
    assert_eq!(cards(node, &own), Some(vec![3]));
    for container in [another, plugin, own] {
        container.stop(0).unwrap();
        container.remove().unwrap();
    }
    let plain = PodContainerConfig { image: None, ..of_cuda_image(&[("NVIDIA_VISIBLE_DEVICES", "all")]) };
    let plain = pod.start("plain", &plain).unwrap();
    assert_eq!(cards(node, &plain), Some(vec![0, 1, 2, 3]), "its image says nothing");
    plain.stop(0).unwrap();
    plain.remove().unwrap();
    let all = started(&pod, "all", &[("EGPU_DEVICES", "all")]);
    assert_eq!(cards(node, &all), Some(vec![0, 1, 2, 3]), "the way out that the message names");
    pod.remove();
}

fn an_unknown_image_is_refused(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let container = pod.create("a", &of_cuda_image(&[])).unwrap();
    let other = pod.create("b", &of_cuda_image(&[("EGPU_MEMORY", "1GiB")])).unwrap();
    node.ctr_ok(&["content", "rm", &node.image_id(CUDA_IMAGE).expect("the image's id")]);
    // A card that a device plugin has given may not be left out for that, nor an image believed.
    let refused = container.start().unwrap_err().to_string();
    for part in ["only its image's", "EGPU_DEVICES", SETTING, "containerd refused"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(cards(node, &container).is_none());
    other.start().unwrap();
    assert!(cards(node, &other).is_some(), "who asks in other words needs no image");
    pod.remove();
}

fn they_ask(node: &Node) {
    let pod = node.pod("p", &[]).unwrap();
    let container = started(&pod, "a", &[]);
    assert_eq!(cards(node, &container), Some(vec![0, 1, 2, 3]));
    pod.remove();
}

fn outside_pods_they_ask(node: &Node) {
    node.track("outside");
    let run = ["run", "--rm", "--runtime", node.runtime(), CUDA_IMAGE, "outside", "ls", "/dev"];
    let text = node.ctr_ok(&run);
    assert!((0..4).all(|card| text.lines().any(|name| name == format!("nvidia{card}"))), "{text}");
}
