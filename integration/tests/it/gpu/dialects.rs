//! Each dialect through a real container: what `egpu ps` says of the grant, and which nodes are
//! inside.

use integration::{
    Node, Setup,
    egpu::{EgpuConfig, Grant},
};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("dialects::native", native),
        Case::egpu("dialects::native_annotations", native_annotations),
        Case::egpu("dialects::native_policies_and_weights", native_policies_and_weights),
        Case::egpu("dialects::nvidia_whole_cards", nvidia_whole_cards),
        Case::egpu("dialects::nvidia_by_uuid_and_bus_id", nvidia_by_uuid_and_bus_id),
        Case::egpu("dialects::nvidia_without_a_card", nvidia_without_a_card),
        Case::egpu("dialects::nvidia_monitoring_holds_nothing", nvidia_monitoring_holds_nothing),
        Case::egpu("dialects::alibaba_egpu", alibaba_egpu),
        Case::egpu("dialects::alibaba_cgpu", alibaba_cgpu),
        Case::egpu("dialects::alibaba_cgpu_on_the_vendors_card", alibaba_cgpu_on_the_vendors_card).on(fifteen_gb_card),
        Case::egpu("dialects::alibaba_cgpu_weights", alibaba_cgpu_weights).on(weighted_cards),
        Case::egpu("dialects::ctyun", ctyun),
        Case::egpu("dialects::hami", hami),
        Case::egpu("dialects::hami_defaults", hami_defaults),
        Case::egpu("dialects::nvidia_fractions", nvidia_fractions),
        Case::egpu("dialects::kai", kai),
        Case::egpu("dialects::the_tighter_limit_holds", the_tighter_limit_holds),
    ]
}

fn fifteen_gb_card() -> Setup {
    let card = "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Tesla T4\"\nmemory = \"15109MiB\"\n";
    Setup { egpu: EgpuConfig::with_cards(card), ..Setup::default() }
}

fn weighted_cards() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("default_policy = \"weighted\"\n"), ..Setup::default() }
}

/// Starts a container that asks with `env`, looks at its grant and at the nodes inside, and ends
/// it.
#[track_caller]
fn grant(node: &Node, env: &[(&str, &str)]) -> Grant {
    let container = node.container("a").envs(env).start().unwrap_or_else(|status| panic!("{env:?}: {status:?}"));
    let grant = node.grant("a").unwrap_or_else(|| panic!("{env:?}: not in egpu ps"));
    let mut nodes = card_nodes(&container);
    nodes.sort_unstable();
    let mut cards = grant.cards();
    cards.sort_unstable();
    assert_eq!(nodes, cards, "{env:?}: nodes inside and cards granted");
    container.end();
    assert!(node.grant("a").is_none(), "{env:?}: the grant outlives its container");
    grant
}

/// Numbers of the `/dev/nvidiaN` inside. Simulated cards have their index as minor number.
fn card_nodes(container: &integration::Container<'_>) -> Vec<u64> {
    let listing = container.read("ls /dev");
    listing.lines().filter_map(|name| name.strip_prefix("nvidia")?.parse().ok()).collect()
}

const GIB: u64 = 1024;

fn native(node: &Node) {
    let one = grant(node, &[("EGPU_MEMORY", "6GiB")]);
    assert_eq!((one.memory_mib(), one.compute(), one.exclusive()), (vec![6 * GIB], vec![None], false));

    let percent = grant(node, &[("EGPU_MEMORY", "40%"), ("EGPU_COMPUTE", "30%")]);
    assert_eq!((percent.memory_mib(), percent.compute()), (vec![32768 * 40 / 100], vec![Some(30)]));

    let chosen = grant(node, &[("EGPU_DEVICES", "3,1"), ("EGPU_MEMORY", "3GiB,4GiB"), ("EGPU_COMPUTE", "10%,20%")]);
    assert_eq!(chosen.cards(), [3, 1]);
    assert_eq!((chosen.memory_mib(), chosen.compute()), (vec![3 * GIB, 4 * GIB], vec![Some(10), Some(20)]));

    let two = grant(node, &[("EGPU_CARDS", "2"), ("EGPU_MEMORY", "1GiB")]);
    assert_eq!((two.cards().len(), two.memory_mib()), (2, vec![GIB, GIB]));
}

fn native_annotations(node: &Node) {
    let container = node
        .container("a")
        .annotation("egpu.io/devices", "2")
        .annotation("egpu.io/memory", "2GiB")
        .annotation("egpu.io/compute", "50%")
        .start()
        .unwrap();
    let grant = node.grant("a").expect("a grant");
    assert_eq!((grant.cards(), grant.memory_mib(), grant.compute()), (vec![2], vec![2 * GIB], vec![Some(50)]));
    assert_eq!(card_nodes(&container), [2]);
    container.end();
}

fn native_policies_and_weights(node: &Node) {
    let soft = grant(node, &[("EGPU_MEMORY", "1GiB"), ("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", "40")]);
    assert_eq!((soft.policies(), soft.weight()), (vec!["soft".to_owned()], vec![Some(40)]));
    let native = grant(node, &[("EGPU_MEMORY", "1GiB"), ("EGPU_POLICY", "native")]);
    assert_eq!(native.policies(), ["native"]);
}

fn nvidia_whole_cards(node: &Node) {
    let one = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "1")]);
    assert_eq!((one.cards(), one.exclusive()), (vec![1], true));
    let list = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "2,0")]);
    assert_eq!((list.cards().len(), list.exclusive()), (2, true));
    let all = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "all")]);
    assert_eq!((all.cards(), all.exclusive()), (vec![0, 1, 2, 3], true));
}

fn nvidia_by_uuid_and_bus_id(node: &Node) {
    let cards = node.egpu_json(&["cards"]);
    let uuid = cards[2]["uuid"].as_str().expect("a UUID").to_owned();
    let whole = grant(node, &[("NVIDIA_VISIBLE_DEVICES", &uuid)]);
    assert_eq!(whole.cards(), [2]);
    let mixed = grant(node, &[("NVIDIA_VISIBLE_DEVICES", &format!("0,{uuid}")), ("EGPU_MEMORY", "1GiB")]);
    assert_eq!((mixed.cards(), mixed.exclusive()), (vec![0, 2], false));
}

fn nvidia_without_a_card(node: &Node) {
    for value in ["none", "void", ""] {
        let container = node.container("a").env("NVIDIA_VISIBLE_DEVICES", value).start().unwrap();
        assert!(card_nodes(&container).is_empty(), "{value:?}");
        assert!(node.grant("a").is_none_or(|grant| grant.cards().is_empty()), "{value:?}");
        container.end();
    }
}

fn nvidia_monitoring_holds_nothing(node: &Node) {
    let monitor = node
        .container("monitor")
        .envs(&[("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "utility")])
        .start()
        .unwrap();
    assert_eq!(card_nodes(&monitor).len(), 4);
    let whole = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "0")]);
    assert!(whole.exclusive());
    monitor.end();
}

fn alibaba_egpu(node: &Node) {
    let switch = ("AMP_VGPU_ENABLE", "1");
    let bytes = grant(
        node,
        &[
            switch,
            ("NVIDIA_VISIBLE_DEVICES", "0,2"),
            ("GPU_MEM_PER_DEVICE", "2000000000"),
            ("GPU_UTIL_PER_DEVICE", "50"),
        ],
    );
    let usable = (2_000_000_000 - (10 << 20)) >> 20;
    assert_eq!((bytes.cards(), bytes.memory_mib(), bytes.compute()), (vec![0, 2], vec![usable; 2], vec![Some(50); 2]));

    let ratio = grant(
        node,
        &[
            switch,
            ("NVIDIA_VISIBLE_DEVICES", "1"),
            ("ALIYUN_COM_GPU_MEM_DEV", "16"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "5"),
            ("GPU_UTIL_PER_DEVICE", "33"),
        ],
    );
    assert_eq!((ratio.memory_mib(), ratio.compute()), (vec![32768 * 5 / 16 - 10], vec![Some(33)]));

    let gigabytes = grant(
        node,
        &[
            switch,
            ("NVIDIA_VISIBLE_DEVICES", "1"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "8"),
            ("ALIYUN_COM_GPU_MEM_RESERVED", "0"),
        ],
    );
    assert_eq!((gigabytes.memory_mib(), gigabytes.compute()), (vec![8 * GIB], vec![None]));
}

fn alibaba_cgpu(node: &Node) {
    let all = ("NVIDIA_VISIBLE_DEVICES", "0,1,2,3");
    let list = grant(node, &[all, ("ALIYUN_COM_GPU_MEM_DEV", "32"), ("ALIYUN_COM_GPU_MEM_CONTAINER", "3,1")]);
    assert_eq!(list.memory_mib(), [3 * GIB, GIB, GIB, GIB]);

    let shared_and_whole = grant(
        node,
        &[
            all,
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES", "0,1"),
            ("ALIYUN_COM_GPU_MEM_DEV", "32"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "4"),
        ],
    );
    let mut cards = shared_and_whole.cards();
    cards.sort_unstable();
    assert_eq!(cards, [0, 1, 2, 3]);
    let shared: Vec<u64> = shared_and_whole.memory_mib().into_iter().filter(|mib| *mib == 4 * GIB).collect();
    assert_eq!(shared.len(), 2, "{:?}", shared_and_whole.0);
}

fn alibaba_cgpu_on_the_vendors_card(node: &Node) {
    let grant = grant(
        node,
        &[("NVIDIA_VISIBLE_DEVICES", "0"), ("ALIYUN_COM_GPU_MEM_DEV", "15"), ("ALIYUN_COM_GPU_MEM_CONTAINER", "6")],
    );
    assert_eq!(grant.memory_mib(), [6043]);
}

fn alibaba_cgpu_weights(node: &Node) {
    let ask = |weight: &'static str| {
        [
            ("ALIYUN_COM_GPU_VISIBLE_DEVICES", "0"),
            ("NVIDIA_VISIBLE_DEVICES", "0"),
            ("ALIYUN_COM_GPU_MEM_DEV", "32"),
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "2"),
            ("ALIYUN_COM_GPU_SCHD_WEIGHT", weight),
        ]
    };
    let first = node.container("first").envs(&ask("10")).start().unwrap();
    let grant = node.grant("first").expect("a grant");
    assert_eq!((grant.weight(), grant.policies()), (vec![Some(10)], vec!["weighted".to_owned()]));
    // 6 of 16 slices are free.
    super::refused(node.container("second").envs(&ask("7")));
    let third = node.container("third").envs(&ask("6")).start().unwrap();
    first.end();
    third.end();
}

fn ctyun(node: &Node) {
    let value = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10:PGPU=3,MEM=8192,WEIGHT=50";
    let grant = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "all"), ("EGPU", value)]);
    assert_eq!(grant.memory_mib().len(), grant.cards().len());
    let limits: Vec<(u64, u64, Option<u64>)> = grant
        .cards()
        .into_iter()
        .zip(grant.memory_mib())
        .zip(grant.compute())
        .map(|((card, memory), compute)| (card, memory, compute))
        .filter(|(card, ..)| [0, 3].contains(card))
        .collect();
    assert_eq!(limits, [(0, 3276, Some(10)), (3, 8192, Some(50))]);
}

fn hami(node: &Node) {
    let env = [
        ("NVIDIA_VISIBLE_DEVICES", "0,1"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "2g"),
        ("CUDA_DEVICE_SM_LIMIT", "30"),
        ("GPU_CORE_UTILIZATION_POLICY", "force"),
    ];
    let grant = grant(node, &env);
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![3000, 2048], vec![Some(30); 2]));
}

fn hami_defaults(node: &Node) {
    let grant = grant(node, &[("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_SM_LIMIT", "25")]);
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![5000], vec![Some(25)]));
}

fn nvidia_fractions(node: &Node) {
    let env =
        [("NVIDIA_VISIBLE_DEVICES", "1"), ("NVIDIA_GPU_MEMORY_LIMIT", "3000"), ("NVIDIA_GPU_MEMORY_REQUEST", "1000")];
    let variables = grant(node, &env);
    assert_eq!((variables.cards(), variables.memory_mib()), (vec![1], vec![3000]));
    let events = node.egpu_json(&["events", "--kind", "warning"]);
    let unused = "NVIDIA_GPU_MEMORY_REQUEST=1000 is not used yet: NVIDIA_GPU_MEMORY_LIMIT=3000 is reserved and held";
    assert!(events.to_string().contains(unused), "{events}");
    let uuid = node.egpu_json(&["cards"])[2]["uuid"].as_str().unwrap().to_owned();
    let container = node
        .container("a")
        .annotation("io.kubernetes.cri.container-name", "main")
        .annotation("nvidia.com/container.main.gpu-memory.request", "2Gi")
        .annotation("nvidia.com/container.main.gpu-compute.portion", "0.25")
        .annotation("nvidia.com/container.main.gpus.devices", &uuid)
        .start()
        .unwrap();
    let grant = node.grant("a").unwrap();
    assert_eq!((grant.cards(), grant.memory_mib(), grant.compute()), (vec![2], vec![2 * GIB], vec![Some(25)]));
    container.end();
}

/// As KAI's scheduler and its plugin for HAMi-core leave it.
fn kai(node: &Node) {
    let env = [("NVIDIA_VISIBLE_DEVICES", "0"), ("GPU_PORTION", "0.25"), ("CUDA_DEVICE_MEMORY_LIMIT", "9000m")];
    let scheduled = grant(node, &env);
    assert_eq!((scheduled.cards(), scheduled.memory_mib()), (vec![0], vec![8 * GIB]));
    let container = node.container("a").annotation("gpu-memory", "2000").start().unwrap();
    assert_eq!(node.grant("a").unwrap().memory_mib(), [2000]);
    container.end();
}

fn the_tighter_limit_holds(node: &Node) {
    let wider = [("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_MEMORY_LIMIT", "2g"), ("EGPU_MEMORY", "16GiB")];
    assert_eq!(grant(node, &wider).memory_mib(), [2 * GIB]);
    let narrower = [("NVIDIA_VISIBLE_DEVICES", "0"), ("CUDA_DEVICE_MEMORY_LIMIT", "2g"), ("EGPU_MEMORY", "1GiB")];
    assert_eq!(grant(node, &narrower).memory_mib(), [GIB]);
}
