//! KAI's scheduler and Run:ai.

use runtime_config::{
    Config,
    request::{ContainerRequest, Dialect, WrittenDialect, parse},
};

use crate::golden::{check, check_source, config, source};

const CARD: &str = "NVIDIA_VISIBLE_DEVICES=GPU-ab";
const MAIN: &str = "io.kubernetes.cri.container-name=main";
const SCHEDULED: &str = "runai/shared-gpu-configmap=train-abc-shared-gpu";

#[test]
fn shares() {
    check(
        &Config::default(),
        &[
            (&[CARD, "GPU_PORTION=0.5"], "GPU-ab mem 5/10 time free"),
            (&[CARD, "GPU_PORTION=0.25", "gpu-fraction=0.25"], "GPU-ab mem 25/100&25/100 time free"),
            (&[CARD, "GPU_PORTION=0.27", "gpu-memory=4096"], "GPU-ab mem 27/100&4GiB time free"),
            (&[CARD, "gpu-memory=4096"], "GPU-ab mem 4GiB time free"),
            (
                &["NVIDIA_VISIBLE_DEVICES=k8s.device-plugin.nvidia.com/gpu=GPU-ab", "GPU_PORTION=1"],
                "GPU-ab mem 1/1 time free",
            ),
            (&["gpu-fraction=0.5"], "any 1 mem 5/10 time free"),
            (&["gpu-fraction=0.5", "NVIDIA_VISIBLE_DEVICES=all"], "any 1 mem 5/10 time free"),
            (&["gpu-fraction=0.5", "gpu-fraction-num-devices=2"], "any 2 mem 5/10 time free"),
            (
                &["NVIDIA_VISIBLE_DEVICES=GPU-ab,GPU-cd", "gpu-memory=4096", "gpu-fraction-num-devices=2"],
                "GPU-ab,GPU-cd mem 4GiB time free",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=void", "gpu-fraction=0.5"], "nothing"),
            (
                &[CARD, "GPU_PORTION=0.5", "EGPU_MEMORY=1GiB", "EGPU_COMPUTE=30%"],
                "GPU-ab mem 1GiB&5/10 time 30% policy:fixed",
            ),
            (&[CARD, "GPU_PORTION="], "GPU-ab exclusive"),
            // KAI before 0.7.6; a whole number is no share.
            (&[CARD, "RUNAI_NUM_OF_GPUS=0.5", "gpu-fraction=0.5", SCHEDULED], "GPU-ab mem 5/10&5/10 time free"),
            (&[CARD, "RUNAI_NUM_OF_GPUS=0.25", "GPU_PORTION=1"], "GPU-ab mem 1/1&25/100 time free"),
            (&[CARD, "RUNAI_NUM_OF_GPUS=1"], "GPU-ab exclusive"),
            (
                &[CARD, "RUNAI_NUM_OF_GPUS=0,5"],
                "refused: RUNAI_NUM_OF_GPUS=0,5 is not accepted: it must be a part of a card, above 0 and up to 1, such as 0.25",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=GPU-ab,GPU-cd", "RUNAI_NUM_OF_GPUS=2"], "GPU-ab,GPU-cd exclusive"),
        ],
    );
    let mut hook = source(&["NVIDIA_VISIBLE_DEVICES=all", "gpu-fraction=0.5"]);
    hook.hook = Some(runtime_config::request::NvidiaHook::Environment);
    check_source(&hook, &Config::default(), "all mem 5/10 time free");
    check(
        &config("accept_env = false"),
        &[(&[CARD, "GPU_PORTION=0.25", "gpu-fraction=0.5"], "any 1 mem 5/10 time free")],
    );
}

#[test]
fn wrong_values_are_refused() {
    for wrong in ["0", "1.5", "-0.5", "half", "50%"] {
        for name in ["GPU_PORTION", "gpu-fraction"] {
            let said = format!("{name}={wrong}");
            let expected = format!("refused: {said} is not accepted: it must be a part of a card, above 0 and up to 1");
            check(&Config::default(), &[(&[CARD, &said], &expected)]);
        }
    }
    check(
        &Config::default(),
        &[
            (&["gpu-fraction="], "refused: gpu-fraction= is not accepted"),
            (
                &["gpu-memory=0"],
                "refused: gpu-memory=0 is not accepted: it must be a whole number of MiB above 0, such as 4096",
            ),
            (&["gpu-memory=4Gi"], "refused: gpu-memory=4Gi is not accepted"),
            (&["gpu-memory=4096", "gpu-fraction-num-devices=0"], "refused: gpu-fraction-num-devices=0 is not accepted"),
            (
                &["gpu-fraction-num-devices=2"],
                "refused: gpu-fraction-num-devices=2 is not accepted: it must be accompanied by gpu-fraction or gpu-memory",
            ),
            (
                &["gpu-fraction=0.5", "gpu-memory=4096"],
                "refused: gpu-fraction=0.5 and gpu-memory=4096 contradict each other: the one is a part of each card, the other MiB; set one of them",
            ),
            (
                &[CARD, "GPU_PORTION=0.5", "RUNAI_GPU_MEMORY_LIMIT=much"],
                "refused: RUNAI_GPU_MEMORY_LIMIT=much is not accepted: it must be a part of a card such as 0.5, or a quantity",
            ),
        ],
    );
}

#[test]
fn the_limit_is_held_and_a_lower_request_told() {
    let warnings = |said: &[&str]| match parse(&source(said), &Config::default()).unwrap() {
        ContainerRequest::Gpu(request) => request.warnings,
        other => panic!("{other:?}"),
    };
    let unused = "gpu-fraction=0.25 is not used yet: RUNAI_GPU_MEMORY_LIMIT=0.8 is reserved and held";
    for (said, expected, told) in [
        (
            &["gpu-fraction=0.25", "GPU_PORTION=0.25", "RUNAI_GPU_MEMORY_LIMIT=0.8"][..],
            "any 1 mem 8/10 time free",
            Some(unused),
        ),
        (&["gpu-fraction=0.5", "RUNAI_GPU_MEMORY_LIMIT=0.50"], "any 1 mem 50/100 time free", None),
        // As Run:ai writes it itself: MB of 10^6 bytes.
        (
            &["gpu-memory=8192", "GPU_PORTION=0.1", "RUNAI_GPU_MEMORY_LIMIT=8192000000"],
            "any 1 mem 7813MiB time free",
            None,
        ),
        (
            &["gpu-memory=1024", "RUNAI_GPU_MEMORY_LIMIT=2Gi"],
            "any 1 mem 2GiB time free",
            Some("gpu-memory=1024 is not used yet: RUNAI_GPU_MEMORY_LIMIT=2Gi is reserved and held"),
        ),
    ] {
        check(&Config::default(), &[(said, expected)]);
        assert_eq!(warnings(said), told.into_iter().collect::<Vec<_>>(), "{said:?}");
    }
    check(&Config::default(), &[(&[CARD, "RUNAI_GPU_MEMORY_LIMIT=0.8"], "GPU-ab exclusive")]);
}

#[test]
fn annotations_are_for_one_container_of_the_pod() {
    let half = "gpu-fraction=0.5";
    check(
        &Config::default(),
        &[
            (&[half, MAIN], "any 1 mem 5/10 time free"),
            (&[half, MAIN, "gpu-fraction-container-name=main"], "any 1 mem 5/10 time free"),
            (&[half, MAIN, "gpu-fraction-container-name=other"], "nothing"),
            (&[half, MAIN, "gpu-fraction-container-name=other", CARD, "GPU_PORTION=0.2"], "GPU-ab mem 2/10 time free"),
            // The scheduler has chosen one.
            (&[half, MAIN, SCHEDULED], "nothing"),
            (&[half, MAIN, SCHEDULED, CARD, "GPU_PORTION=0.5"], "GPU-ab mem 5/10&5/10 time free"),
            (&[half, MAIN, "nvidia.com/container.other.gpu-memory.request=8Gi"], "nothing"),
            (&[half, MAIN, "nvidia.com/container.main.gpu-memory.request=8Gi"], "any 1 mem 8GiB&5/10 time free"),
        ],
    );
}

#[test]
fn the_schedulers_words_in_other_languages_are_one_request() {
    let hami = "CUDA_DEVICE_MEMORY_LIMIT=4147m";
    let fractions =
        ["nvidia.com/container.main.gpu-memory.request=4147Mi", "nvidia.com/container.main.gpus.devices=GPU-cd"];
    check(
        &Config::default(),
        &[
            (&[CARD, "GPU_PORTION=0.27", "gpu-memory=4096", hami], "GPU-ab mem 4147MiB&27/100&4GiB time free"),
            (
                &[CARD, "GPU_PORTION=0.27", "CUDA_DEVICE_SM_LIMIT=30"],
                "GPU-ab mem 27/100 time 30%-if-contended policy:fixed",
            ),
            (&[CARD, "GPU_PORTION=0.27", hami, "CUDA_TASK_PRIORITY=1"], "GPU-ab mem 4147MiB&27/100 time free low"),
            (&[MAIN, "gpu-memory=4096", fractions[0], fractions[1]], "GPU-cd mem 4147MiB&4GiB time free"),
            (&[MAIN, CARD, "GPU_PORTION=0.27", fractions[0], hami], "GPU-ab mem 4147MiB&4147MiB&27/100 time free"),
            (
                &[MAIN, CARD, fractions[0], hami],
                "refused: nvidia.com/container.main.gpu-memory.request=4147Mi belongs to NVIDIA's fractions and CUDA_DEVICE_MEMORY_LIMIT=4147m to HAMi: a container can ask in one of them only",
            ),
            (
                &[CARD, "GPU_PORTION=0.27", "ALIYUN_COM_GPU_MEM_CONTAINER=3"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3 belongs to Alibaba cGPU and GPU_PORTION=0.27 to KAI",
            ),
            (
                &[CARD, "GPU_PORTION=0.27", "CUDA_DISABLE_CONTROL=true"],
                "refused: CUDA_DISABLE_CONTROL=true is not allowed",
            ),
        ],
    );
    check(
        &config("allow_isolation_none = true"),
        &[(&[CARD, "GPU_PORTION=0.27", "CUDA_DISABLE_CONTROL=true"], "GPU-ab mem 27/100 time free")],
    );
    let Ok(ContainerRequest::Gpu(request)) = parse(&source(&[CARD, "GPU_PORTION=0.27", hami]), &Config::default())
    else {
        panic!("no request");
    };
    assert_eq!((request.dialect, request.asked.len()), (Dialect::Kai.into(), 3));
    // The names stand in records, also those of languages that another build has.
    for (name, shown) in [("kai", "KAI"), ("nvidia-fractions", "NVIDIA's fractions"), ("another", "another")] {
        let written: WrittenDialect = serde_json::from_value(name.into()).unwrap();
        assert_eq!((serde_json::to_value(&written).unwrap(), written.to_string()), (name.into(), shown.to_owned()));
    }
}
