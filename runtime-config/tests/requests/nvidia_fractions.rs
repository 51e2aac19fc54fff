//! NVIDIA's fractions.

use runtime_config::{
    Config,
    request::{ContainerRequest, parse},
};

use crate::golden::{check, check_source, config, source};

const CARD: &str = "NVIDIA_VISIBLE_DEVICES=GPU-ab";
const MAIN: &str = "io.kubernetes.cri.container-name=main";
const ANNOTATION: &str = "nvidia.com/container.main.";

/// Checks what the pod's annotations make of the container `main`.
fn annotated(annotations: &[&str], more: &[&str], expected: &str) {
    let annotations: Vec<String> = annotations.iter().map(|said| format!("{ANNOTATION}{said}")).collect();
    let said: Vec<&str> = annotations.iter().map(String::as_str).chain([MAIN]).chain(more.iter().copied()).collect();
    check_source(&source(&said), &Config::default(), expected);
}

fn warnings(said: &[&str]) -> Vec<String> {
    match parse(&source(said), &Config::default()).unwrap() {
        ContainerRequest::Gpu(request) => request.warnings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn variables() {
    check(
        &Config::default(),
        &[
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMIT=4096"], "GPU-ab mem 4GiB time free"),
            (&[CARD, "NVIDIA_GPU_MEMORY_REQUEST=4096"], "GPU-ab mem 4GiB time free"),
            (&[CARD, "NVIDIA_GPU_MEMORY_REQUEST=2048", "NVIDIA_GPU_MEMORY_LIMIT=4096"], "GPU-ab mem 4GiB time free"),
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMIT=4096", "NVIDIA_GPU_MEMORY_LIMIT=1024"], "GPU-ab mem 1GiB time free"),
            (&["NVIDIA_GPU_MEMORY_LIMIT=4096"], "any 1 mem 4GiB time free"),
            (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GPU_MEMORY_LIMIT=4096"], "any 1 mem 4GiB time free"),
            (&["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_GPU_MEMORY_LIMIT=4096"], "nothing"),
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMIT="], "GPU-ab exclusive"),
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMITS=4096"], "GPU-ab exclusive"),
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMIT=4096", "EGPU_MEMORY=1GiB"], "GPU-ab mem 1GiB&4GiB time free"),
            (
                &[CARD, "NVIDIA_GPU_MEMORY_LIMIT=0"],
                "refused: NVIDIA_GPU_MEMORY_LIMIT=0 is not accepted: it must be a whole number of MiB above 0, such as 4096",
            ),
            (&[CARD, "NVIDIA_GPU_MEMORY_LIMIT=4Gi"], "refused: NVIDIA_GPU_MEMORY_LIMIT=4Gi is not accepted"),
            (
                &[CARD, "NVIDIA_GPU_MEMORY_LIMIT=17592186044416"],
                "refused: NVIDIA_GPU_MEMORY_LIMIT=17592186044416 is not accepted",
            ),
            (
                &[CARD, "NVIDIA_GPU_MEMORY_LIMIT=1024", "NVIDIA_GPU_MEMORY_REQUEST=2048"],
                "refused: NVIDIA_GPU_MEMORY_REQUEST=2048 and NVIDIA_GPU_MEMORY_LIMIT=1024 contradict each other: a request is at most its limit",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=MIG-ab", "NVIDIA_GPU_MEMORY_LIMIT=4096"],
                "refused: NVIDIA_GPU_MEMORY_LIMIT=4096 asks for a quota on MIG-ab",
            ),
        ],
    );
}

/// Those of the node agent's own tests, and what it refuses.
#[test]
fn quantities() {
    for (quantity, expected) in [
        ("4Gi", "4GiB"),
        ("7680Mi", "7680MiB"),
        ("1024Ki", "1MiB"),
        ("100M", "96MiB"),
        ("4096M", "3907MiB"),
        ("1G", "954MiB"),
        ("1.5Gi", "1536MiB"),
        ("4294967296", "4GiB"),
    ] {
        annotated(&[&format!("gpu-memory.limit={quantity}")], &[CARD], &format!("GPU-ab mem {expected} time free"));
    }
    for wrong in ["", " ", "0", "1M", "500Ki", "1048575", "-1Gi", "4GiB", "x", "16Ei"] {
        let accepted = "is not accepted: it must be a quantity of at least 1Mi, such as 8Gi";
        let expected = format!("refused: {ANNOTATION}gpu-memory.limit={wrong} {accepted}");
        annotated(&[&format!("gpu-memory.limit={wrong}")], &[CARD], &expected);
    }
}

#[test]
fn annotations_name_the_container_that_they_are_for() {
    let limit = "nvidia.com/container.main.gpu-memory.limit=8Gi";
    for (name, expected) in [("main", "GPU-ab mem 8GiB time free"), ("mai", "nothing"), ("main.gpu-memory", "nothing")]
    {
        let name = format!("io.kubernetes.cri.container-name={name}");
        let card = if expected == "nothing" { "PATH=/bin" } else { CARD };
        check(&Config::default(), &[(&[card, limit, &name], expected)]);
    }
    check(&Config::default(), &[(&[limit], "nothing")]);
    annotated(&["gpu-memory.request=8Gi"], &[CARD], "GPU-ab mem 8GiB time free");
    annotated(&["gpu-memory.request=4Gi", "gpu-memory.limit=8Gi"], &[CARD], "GPU-ab mem 8GiB time free");
    annotated(
        &["gpu-memory.request=9Gi", "gpu-memory.limit=8Gi"],
        &[CARD],
        "refused: nvidia.com/container.main.gpu-memory.request=9Gi and nvidia.com/container.main.gpu-memory.limit=8Gi contradict",
    );
    // The agent's variables beside, and a tenant's, which do not widen it.
    annotated(&["gpu-memory.limit=8Gi"], &[CARD, "NVIDIA_GPU_MEMORY_LIMIT=8192"], "GPU-ab mem 8GiB&8GiB time free");
    annotated(
        &["gpu-memory.request=8Gi"],
        &[CARD, "NVIDIA_GPU_MEMORY_LIMIT=99999"],
        "GPU-ab mem 8GiB&99999MiB time free",
    );
}

#[test]
fn a_part_of_the_time() {
    for (portion, expected) in [
        ("0.5", "50% policy:fixed"),
        (".25", "25% policy:fixed"),
        ("0.333", "33% policy:fixed"),
        ("0.336", "34% policy:fixed"),
        ("0.005", "1% policy:fixed"),
        ("0.0000001", "1% policy:fixed"),
        ("0.99", "99% policy:fixed"),
        ("1", "free"),
        ("1.0", "free"),
    ] {
        let portion = format!("gpu-compute.portion={portion}");
        annotated(&["gpu-memory.limit=8Gi", &portion], &[CARD], &format!("GPU-ab mem 8GiB time {expected}"));
    }
    annotated(&["gpu-compute.portion=0.5"], &[CARD], "GPU-ab mem whole time 50% policy:fixed");
    for wrong in ["", "0", "0.0", "-0.5", "1.5", "1.0000001", "50", "50%", "500m", "NaN", ".", "0.1234567891", "5e-1"] {
        let expected = format!(
            "refused: {ANNOTATION}gpu-compute.portion={wrong} is not accepted: it must be a part of a card, above 0 and up to 1, such as 0.25"
        );
        annotated(&[&format!("gpu-compute.portion={wrong}")], &[CARD], &expected);
    }
}

#[test]
fn modes() {
    let limit = "gpu-memory.limit=8Gi";
    for mode in ["time-slicing", "sm-sharing"] {
        annotated(&[limit, &format!("gpu-compute.mode={mode}")], &[CARD], "GPU-ab mem 8GiB time free");
    }
    for wrong in ["", "mig", "SM-Sharing"] {
        let mode = format!("gpu-compute.mode={wrong}");
        let expected =
            format!("refused: {ANNOTATION}{mode} is not accepted: it must be one of time-slicing, sm-sharing");
        annotated(&[limit, &mode], &[CARD], &expected);
    }
}

#[test]
fn the_schedulers_cards() {
    let limit = "gpu-memory.limit=8Gi";
    for devices in ["GPU-ab", " GPU-ab ", "k8s.device-plugin.nvidia.com/gpu=GPU-ab"] {
        annotated(&[limit, &format!("gpus.devices={devices}")], &[], "GPU-ab mem 8GiB time free");
    }
    let devices = "gpus.devices=GPU-ab,GPU-cd";
    annotated(&[limit, devices], &["NVIDIA_VISIBLE_DEVICES=all"], "GPU-ab,GPU-cd mem 8GiB time free");
    annotated(&[limit, "gpus.devices= "], &[], "any 1 mem 8GiB time free");
    annotated(
        &[limit, "gpus.devices=all"],
        &[],
        "refused: nvidia.com/container.main.gpus.devices=all is not accepted: it must be a list of cards",
    );
    annotated(&[limit, devices], &["NVIDIA_VISIBLE_DEVICES=void"], "refused: nvidia.com/container.main.gpus.devices=");
    // Annotations ask, also where variables may not.
    let strict = config("accept_nvidia_visible_devices_envvar_when_unprivileged = false");
    let limit = "nvidia.com/container.main.gpu-memory.limit=8Gi";
    check(&strict, &[(&[MAIN, limit], "any 1 mem 8GiB time free"), (&["NVIDIA_GPU_MEMORY_LIMIT=8192"], "nothing")]);
}

#[test]
fn what_is_not_held_as_asked_is_told() {
    assert_eq!(
        warnings(&[CARD, "NVIDIA_GPU_MEMORY_REQUEST=2048", "NVIDIA_GPU_MEMORY_LIMIT=4096"]),
        ["NVIDIA_GPU_MEMORY_REQUEST=2048 is not used yet: NVIDIA_GPU_MEMORY_LIMIT=4096 is reserved and held"]
    );
    assert!(warnings(&[CARD, "NVIDIA_GPU_MEMORY_REQUEST=4096", "NVIDIA_GPU_MEMORY_LIMIT=4096"]).is_empty());
    let mode = "nvidia.com/container.main.gpu-compute.mode=sm-sharing";
    assert_eq!(
        warnings(&[CARD, MAIN, "NVIDIA_GPU_MEMORY_LIMIT=4096", mode]),
        [format!("{mode}: containers take turns on a card all the same")]
    );
}
