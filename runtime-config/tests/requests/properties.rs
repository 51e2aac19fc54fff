//! Properties that hold whatever a container says.

use proptest::prelude::*;
use runtime_config::{
    Bytes, Config,
    request::{
        CardRequest, ComputeShare, ContainerRequest, GpuRequest, Isolation, MemoryLimit, NvidiaHook, PresentNodes,
        Privileges, Share, Source, parse,
    },
};

use crate::golden::{config, source};

const NAMES: [&str; 65] = [
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_REQUIRE_OTHER",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_GDS",
    "CUDA_VERSION",
    "AMP_VGPU_ENABLE",
    "GPU_MEM_PER_DEVICE",
    "GPU_UTIL_PER_DEVICE",
    "ALIYUN_COM_GPU_MEM_RESERVED",
    "ALIYUN_COM_GPU_MEM_DEV",
    "ALIYUN_COM_GPU_MEM_CONTAINER",
    "ALIYUN_COM_GPU_OOM_SCRIPT",
    "ALIYUN_COM_GPU_SCHD_WEIGHT",
    "ALIYUN_COM_GPU_VISIBLE_DEVICES",
    "CGPU_DISABLE",
    "EGPU",
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DEVICE_SM_LIMIT_1",
    "GPU_CORE_UTILIZATION_POLICY",
    "CUDA_TASK_PRIORITY",
    "ACTIVE_OOM_KILLER",
    "CUDA_OVERSUBSCRIBE",
    "CUDA_DISABLE_CONTROL",
    "EGPU_CARDS",
    "EGPU_DEVICES",
    "EGPU_MEMORY",
    "EGPU_COMPUTE",
    "EGPU_WEIGHT",
    "EGPU_POLICY",
    "EGPU_PRIORITY",
    "EGPU_PLACEMENT",
    "EGPU_GROUP",
    "EGPU_ISOLATION",
    "EGPU_OOM",
    "EGPU_OOM_SCRIPT",
    "egpu.io/cards",
    "egpu.io/devices",
    "egpu.io/memory",
    "egpu.io/compute",
    "egpu.io/weight",
    "egpu.io/policy",
    "egpu.io/isolation",
    "hami.io/vgpu-devices-allocated",
    "NVIDIA_GPU_MEMORY_LIMIT",
    "NVIDIA_GPU_MEMORY_REQUEST",
    "nvidia.com/container.main.gpu-memory.limit",
    "nvidia.com/container.main.gpu-memory.request",
    "nvidia.com/container.main.gpu-compute.portion",
    "nvidia.com/container.main.gpus.devices",
    "GPU_PORTION",
    "RUNAI_GPU_MEMORY_LIMIT",
    "RUNAI_NUM_OF_GPUS",
    "gpu-fraction",
    "gpu-memory",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.sandbox-name",
    "PATH",
];

const VALUES: [&str; 45] = [
    "",
    "0",
    "1",
    "2",
    "3",
    "10",
    "15",
    "16",
    "50",
    "100",
    "2000000000",
    "18446744073709551615",
    "true",
    "false",
    "all",
    "none",
    "void",
    "0,1",
    "0,1,2,3",
    "GPU-ab",
    "MIG-ab",
    "0:1",
    "0000:65:00.0",
    "3,1",
    "1,0,0",
    "0,3",
    "6GiB",
    "8Gi",
    "0.25",
    "main",
    "40%",
    "3GiB,4GiB",
    "30%",
    "3g",
    "3000m",
    "force",
    "soft",
    "fixed",
    "memory",
    "kill",
    "/oom",
    "utility",
    "cuda>=12.0",
    "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=3276,WEIGHT=10",
    "enabled",
];

const FOREIGN: [&[&str]; 7] = [
    &["AMP_VGPU_ENABLE=1", "GPU_MEM_PER_DEVICE=4000000000", "GPU_UTIL_PER_DEVICE=40"],
    &["ALIYUN_COM_GPU_MEM_CONTAINER=3,1", "ALIYUN_COM_GPU_MEM_DEV=16"],
    &["EGPU=POLICY=0:PGPU=0,MEM=3276,WEIGHT=10:PGPU=1,MEM=1024,WEIGHT=30"],
    &["CUDA_DEVICE_MEMORY_LIMIT_0=3g", "CUDA_DEVICE_SM_LIMIT=25", "GPU_CORE_UTILIZATION_POLICY=force"],
    &["NVIDIA_GPU_MEMORY_LIMIT=4096", "NVIDIA_GPU_MEMORY_REQUEST=2048"],
    &[
        "io.kubernetes.cri.container-name=main",
        "nvidia.com/container.main.gpu-memory.limit=4Gi",
        "nvidia.com/container.main.gpu-compute.portion=0.25",
    ],
    &["GPU_PORTION=0.25", "gpu-memory=3000", "CUDA_DEVICE_MEMORY_LIMIT=3g"],
];

fn some_value() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => proptest::sample::select(&VALUES[..]).prop_map(ToOwned::to_owned),
        1 => "\\PC{0,24}",
        1 => "[0-9a-zA-Z,:=%. -]{0,40}",
        1 => any::<String>(),
    ]
}

fn some_statement() -> impl Strategy<Value = String> {
    (proptest::sample::select(&NAMES[..]), some_value()).prop_map(|(name, value)| format!("{name}={value}"))
}

fn some_source() -> impl Strategy<Value = Source> {
    let statements = proptest::collection::vec(prop_oneof![20 => some_statement(), 1 => any::<String>()], 0..7);
    let nodes = proptest::collection::vec(0..8_u32, 0..3);
    let privileges = any::<(bool, bool, bool)>();
    (statements, nodes, privileges, 0..6_u8).prop_map(|(statements, cards, (admin, wildcard, userns), hook)| {
        let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
        Source {
            nodes: PresentNodes { control: !cards.is_empty(), cards, capabilities: Vec::new() },
            hook: match hook {
                0 => Some(NvidiaHook::Environment),
                1 => Some(NvidiaHook::CommandLine {
                    devices: vec!["0".into()],
                    capabilities: vec!["compute".into()],
                    requirements: vec![],
                }),
                _ => None,
            },
            privileges: Privileges {
                cap_sys_admin: admin && hook == 2,
                wildcard_device_rule: wildcard && hook == 3,
                user_namespace: userns,
                ..Privileges::default()
            },
            ..source(&statements)
        }
    })
}

fn some_config() -> impl Strategy<Value = Config> {
    proptest::sample::select(
        &[
            "",
            "legacy_images = true\nshare_by_default = true",
            "allow_isolation_none = true\nmemory_scaling = 2.0\nallow_privileged_quota = true",
            "accept_env = false",
            "accept_nvidia_visible_devices_envvar_when_unprivileged = false",
        ][..],
    )
    .prop_map(config)
}

fn granted(source: &Source, config: &Config) -> Option<GpuRequest> {
    match parse(source, config) {
        Ok(ContainerRequest::Gpu(request)) => Some(*request),
        Ok(_) | Err(_) => None,
    }
}

/// Usable bytes and percent of one 16 GiB card at one position of the request.
fn at(request: &GpuRequest, position: usize) -> Option<(Bytes, u8)> {
    let card = Bytes(16 * Bytes::GIB);
    if request.cards == CardRequest::None {
        return None;
    }
    let Share::Part { memory, compute, isolation } = &request.share else { return Some((card, 100)) };
    if *isolation == Isolation::None {
        return Some((card, 100));
    }
    let count = position + 1;
    let cards = (count..=64).find(|cards| memory.for_cards(*cards).is_ok() && compute.for_cards(*cards).is_ok())?;
    let limits = memory.for_cards(cards).ok()?;
    let share = compute.for_cards(cards).ok()?;
    let percent = match share[position] {
        ComputeShare::Cap { percent, .. } => percent.get(),
        ComputeShare::Unlimited | ComputeShare::Weight(_) => 100,
    };
    Some((MemoryLimit::tightest(limits[position], card)?.min(card), percent))
}

proptest! {
    #[test]
    fn anything_is_a_request_or_a_clean_refusal(source in some_source(), config in some_config()) {
        match parse(&source, &config) {
            Ok(ContainerRequest::None { warnings }) => prop_assert!(warnings.iter().all(|text| !text.contains('\n'))),
            Ok(ContainerRequest::Gpu(request)) => {
                prop_assert!(!request.asked.is_empty());
                prop_assert!(request.asked.iter().chain(&request.warnings).all(|text| !text.contains('\n')));
                if let CardRequest::Count(count) = request.cards {
                    prop_assert!(count > 0);
                }
                if let CardRequest::Devices(devices) = &request.cards {
                    prop_assert!(!devices.is_empty());
                }
                prop_assert_eq!(request.policy.is_some() && !matches!(request.share, Share::Part { .. }), false);
                let text = serde_json::to_string(&request).unwrap();
                // Only the creation asks for it: no record has it.
                let kept = GpuRequest { visible_devices_alone: Vec::new(), ..*request };
                prop_assert_eq!(serde_json::from_str::<GpuRequest>(&text).unwrap(), kept);
            }
            Ok(ContainerRequest::Claims(_) | ContainerRequest::WithoutClaim { .. }) => prop_assert!(false, "nobody speaks of claims"),
            Err(error) => {
                let message = error.to_string();
                prop_assert!(!message.is_empty() && !message.contains('\n') && message.len() < 2500, "{}", message);
            }
        }
    }

    #[test]
    fn any_strings_are_a_request_or_a_clean_refusal(
        env in proptest::collection::vec(any::<String>(), 0..5),
        annotations in proptest::collection::btree_map(any::<String>(), any::<String>(), 0..5),
    ) {
        let source = Source { env, annotations, ..Source::default() };
        let _ = parse(&source, &Config::default());
    }

    #[test]
    fn a_container_without_leave_is_never_without_limits(source in some_source()) {
        if let Some(GpuRequest { share: Share::Part { isolation, .. }, .. }) = granted(&source, &Config::default()) {
            prop_assert_ne!(isolation, Isolation::None);
            let privileges = source.privileges;
            prop_assert!(!privileges.wildcard_device_rule && !privileges.host_pid_namespace);
            prop_assert!(!privileges.cap_sys_admin || privileges.user_namespace);
        }
    }

    #[test]
    fn native_limits_never_widen_foreign_ones(
        foreign in proptest::sample::select(&FOREIGN[..]),
        native in proptest::collection::vec(some_statement(), 0..4),
    ) {
        let native: Vec<&str> =
            native.iter().map(String::as_str).filter(|said| said.starts_with("EGPU_") || said.starts_with("egpu.io/")).collect();
        let cards = ["NVIDIA_VISIBLE_DEVICES=0,1"];
        let leave = config("allow_isolation_none = true");
        let alone = granted(&source(&[&cards, foreign].concat()), &leave).unwrap();
        let Some(joined) = granted(&source(&[&cards, foreign, &native].concat()), &leave) else { return Ok(()) };
        for position in 0..2 {
            if let (Some(alone), Some(joined)) = (at(&alone, position), at(&joined, position)) {
                prop_assert!(joined.0 <= alone.0 && joined.1 <= alone.1, "{:?}: {:?} > {:?}", native, joined, alone);
            }
        }
    }

    #[test]
    fn saying_something_twice_never_widens_it(name in proptest::sample::select(&NAMES[..]), one in some_value(), other in some_value()) {
        let rest = ["NVIDIA_VISIBLE_DEVICES=0", "AMP_VGPU_ENABLE=1"];
        let hami = ["NVIDIA_VISIBLE_DEVICES=0", "CUDA_DEVICE_MEMORY_LIMIT=8g"];
        let native = ["EGPU_CARDS=1", "EGPU_MEMORY=8GiB"];
        let (first, second) = (format!("{name}={one}"), format!("{name}={other}"));
        // An annotation cannot be said twice.
        if !source(&[&first]).annotations.is_empty() || name == "NVIDIA_VISIBLE_DEVICES" || name == "EGPU_CARDS" {
            return Ok(());
        }
        let config = config("allow_isolation_none = true\nmemory_scaling = 2.0");
        let kai = ["NVIDIA_VISIBLE_DEVICES=0", "GPU_PORTION=0.5"];
        for base in [&rest[..], &hami[..], &kai[..], &native[..]] {
            let said = |more: &[&str]| granted(&source(&[base, more].concat()), &config);
            let Some(both) = said(&[&first, &second]) else { continue };
            // An empty value says nothing, so that with another it is said once.
            let spoken = [(&one, &first), (&other, &second)].into_iter().filter(|(value, _)| !value.trim().is_empty());
            for single in spoken.filter_map(|(_, statement)| said(&[statement])) {
                // A base that sets the name itself is a third voice.
                if let (Some(both), Some(single)) = (at(&both, 0), at(&single, 0)) {
                    prop_assert!(both.0 <= single.0 && both.1 <= single.1, "{} {}: {:?} > {:?}", first, second, both, single);
                }
            }
            let Some(swapped) = said(&[&second, &first]) else {
                return Err(TestCaseError::fail("the order decides"));
            };
            prop_assert_eq!(at(&both, 0), at(&swapped, 0));
            prop_assert_eq!((both.cards, both.policy, both.over_memory), (swapped.cards, swapped.policy, swapped.over_memory));
        }
    }
}
