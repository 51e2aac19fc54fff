//! NVIDIA's variables alone, and what stands for them: CDI's nodes, hooks, volume mounts.

use runtime_config::{
    Config,
    request::{ContainerRequest, DriverCapabilities, GpuRequest, NvidiaHook, PresentNodes, Privileges, Source, parse},
};

use crate::golden::{check, check_source, config, outcome, source};

fn request(source: &Source, config: &Config) -> GpuRequest {
    match parse(source, config) {
        Ok(ContainerRequest::Gpu(request)) => *request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn visible_devices() {
    let uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
    check(
        &Config::default(),
        &[
            (&[], "nothing"),
            (&["NVIDIA_VISIBLE_DEVICES="], "nothing"),
            (&["NVIDIA_VISIBLE_DEVICES=void"], "nothing"),
            (&["NVIDIA_VISIBLE_DEVICES=none"], "none monitor"),
            (&["NVIDIA_VISIBLE_DEVICES=all"], "all exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0"], "0 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0,2,0"], "0,2 exclusive"),
            (&[&format!("NVIDIA_VISIBLE_DEVICES={uuid}")], &format!("{uuid} exclusive")),
            (&["NVIDIA_VISIBLE_DEVICES=GPU-89"], "GPU-89 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=MIG-89"], "MIG-89 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0:1"], "0:1 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0000:65:00.0,GPU-89,1"], "0000:65:00.0,GPU-89,1 exclusive"),
            (
                &["NVIDIA_VISIBLE_DEVICES=0;1"],
                "refused: NVIDIA_VISIBLE_DEVICES=0;1 is not accepted: it must be a list of cards, all, none or void",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"],
                "refused: NVIDIA_VISIBLE_DEVICES is set more than once with different values: \"0\", \"1\"",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=GPU-ab", "NVIDIA_VISIBLE_DEVICES=all"], "GPU-ab exclusive"),
            (
                &["NVIDIA_VISIBLE_DEVICES=0,1,2", "NVIDIA_VISIBLE_DEVICES=2,1", "NVIDIA_VISIBLE_DEVICES=all"],
                "2,1 exclusive",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=none"], "none monitor"),
            (&["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0"], "nothing"),
            (
                &["NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_VISIBLE_DEVICES=1,2"],
                "refused: NVIDIA_VISIBLE_DEVICES is set more than once",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=GPU-ab"],
                "refused: NVIDIA_VISIBLE_DEVICES is set more than once",
            ),
            // An image's requirements alone ask for nothing, however broken.
            (&["NVIDIA_REQUIRE_CUDA=nonsense", "NVIDIA_DRIVER_CAPABILITIES=nonsense"], "nothing"),
        ],
    );
}

#[test]
fn a_sandbox_gets_nothing() {
    let sandbox = Source { is_sandbox: true, ..source(&["NVIDIA_VISIBLE_DEVICES=all", "EGPU_MEMORY=x"]) };
    check_source(&sandbox, &Config::default(), "nothing");
}

#[test]
fn driver_capabilities() {
    use DriverCapabilities as C;
    let capabilities = |value: &str| {
        let variable = format!("NVIDIA_DRIVER_CAPABILITIES={value}");
        request(&source(&["NVIDIA_VISIBLE_DEVICES=0", &variable]), &Config::default()).driver_capabilities
    };
    assert_eq!(capabilities(""), C::COMPUTE | C::UTILITY);
    assert_eq!(capabilities("compute"), C::COMPUTE);
    assert_eq!(capabilities("compute, video,graphics,display,ngx,compat32,utility"), C::all());
    assert_eq!(capabilities("all"), C::all());
    let narrow = config("supported_driver_capabilities = 'compute,utility'");
    let all = source(&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]);
    assert_eq!(request(&all, &narrow).driver_capabilities, C::COMPUTE | C::UTILITY);
    check(
        &narrow,
        &[
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=graphics"],
                "refused: NVIDIA_DRIVER_CAPABILITIES=graphics is not accepted: it must be a comma-separated list of compute,utility, or all",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=cuda"],
                "refused: NVIDIA_DRIVER_CAPABILITIES=cuda is",
            ),
            (
                &[
                    "NVIDIA_VISIBLE_DEVICES=0",
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                    "NVIDIA_DRIVER_CAPABILITIES=utility",
                ],
                "0 monitor",
            ),
            (
                &[
                    "NVIDIA_VISIBLE_DEVICES=0",
                    "NVIDIA_DRIVER_CAPABILITIES=compute",
                    "NVIDIA_DRIVER_CAPABILITIES=utility",
                ],
                "refused: NVIDIA_DRIVER_CAPABILITIES is set more than once",
            ),
        ],
    );
}

#[test]
fn utility_alone_holds_nothing() {
    check(
        &Config::default(),
        &[
            (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"], "all monitor"),
            (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility,compute"], "all exclusive"),
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility", "EGPU_MEMORY=1GiB"],
                "0 mem 1GiB time free",
            ),
        ],
    );
}

#[test]
fn requests_that_an_image_alone_may_have_made_are_distinguished() {
    let rows: &[(&[&str], &[&str])] = &[
        (&["NVIDIA_VISIBLE_DEVICES=all"], &["all"]),
        (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"], &["0"]),
        (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES="], &["0", "all"]),
        // These say how, not that.
        (&["NVIDIA_VISIBLE_DEVICES=all", "egpu.io/policy=soft", "EGPU_PLACEMENT=spread"], &["all"]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=none"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "EGPU_DEVICES=all"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "egpu.io/devices=0"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "EGPU_CARDS=2"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "egpu.io/memory=1GiB"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "AMP_VGPU_ENABLE=1", "GPU_MEM_PER_DEVICE=1073741824"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "ALIYUN_COM_GPU_MEM_CONTAINER=1", "ALIYUN_COM_GPU_MEM_DEV=8"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=0", "EGPU=POLICY=0,ONLINE=0,TYPE=K8S:PGPU=0,MEM=3276,WEIGHT=10"], &[]),
        (&["NVIDIA_VISIBLE_DEVICES=all", "CUDA_DEVICE_MEMORY_LIMIT=3000m"], &[]),
    ];
    for (said, expected) in rows {
        assert_eq!(request(&source(said), &Config::default()).visible_devices_alone, *expected, "{said:?}");
    }
    let all = source(&["NVIDIA_VISIBLE_DEVICES=all"]);
    let shared = request(&all, &config("share_by_default = true"));
    assert_eq!(shared.visible_devices_alone, ["all"], "a share is held, too");
    // Docker's `--gpus`, CDI and a plugin's mounts are nobody's image.
    let hook = Source { hook: Some(NvidiaHook::Environment), ..all.clone() };
    let nodes = Source { nodes: PresentNodes { cards: vec![0], ..PresentNodes::default() }, ..all.clone() };
    let mounts = Source { volume_mount_devices: vec!["GPU-ab".into()], ..all };
    let with_mounts = config("accept_nvidia_visible_devices_as_volume_mounts = true");
    for (source, config) in [(&hook, &Config::default()), (&nodes, &Config::default()), (&mounts, &with_mounts)] {
        assert!(request(source, config).visible_devices_alone.is_empty(), "{source:?}");
    }
}

#[test]
fn nodes_that_are_there_are_the_request() {
    let cdi = |said: &[&str]| Source {
        nodes: PresentNodes { cards: vec![3, 1, 3], capabilities: vec![], control: true },
        ..source(said)
    };
    let config = Config::default();
    check_source(&cdi(&["NVIDIA_VISIBLE_DEVICES=void"]), &config, "nodes[1, 3][] exclusive");
    // The image's own value, which CDI's `void` stands beside.
    check_source(
        &cdi(&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"]),
        &config,
        "nodes[1, 3][] exclusive",
    );
    check_source(&cdi(&["EGPU_MEMORY=1GiB"]), &config, "nodes[1, 3][] mem 1GiB time free");
    check_source(&cdi(&["EGPU_CARDS=1"]), &config, "any 1 within:nodes[1, 3][] exclusive");
    check_source(&cdi(&["EGPU_MEMORY=1GiB,2GiB,3GiB"]), &config, "refused: EGPU_MEMORY=1GiB,2GiB,3GiB is");
    let mut mig = cdi(&[]);
    mig.nodes.capabilities = vec![12, 13];
    check_source(&mig, &config, "nodes[1, 3][12, 13] exclusive");
    mig.env.push("EGPU_MEMORY=1GiB".to_owned());
    check_source(
        &mig,
        &config,
        "refused: EGPU_MEMORY=1GiB asks for a quota on the MIG device of /dev/nvidia-caps/nvidia-cap12: MIG devices",
    );
}

#[test]
fn the_hosts_nodes_in_a_privileged_container_are_no_request() {
    let mut daemon =
        Source { nodes: PresentNodes { cards: vec![0, 1], capabilities: vec![], control: true }, ..Source::default() };
    daemon.privileges = Privileges { cap_sys_admin: true, wildcard_device_rule: true, ..Privileges::default() };
    check_source(&daemon, &Config::default(), "nothing");
    daemon.env.push("NVIDIA_VISIBLE_DEVICES=all".to_owned());
    check_source(&daemon, &Config::default(), "all exclusive");
}

#[test]
fn hooks() {
    let cli = |devices: &[&str], capabilities: &[&str], said: &[&str]| Source {
        hook: Some(NvidiaHook::CommandLine {
            devices: devices.iter().map(ToString::to_string).collect(),
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            requirements: vec!["cuda>=12.0".to_owned()],
        }),
        ..source(said)
    };
    let config = Config::default();
    check_source(&cli(&["0", "1"], &["compute"], &["NVIDIA_VISIBLE_DEVICES=all"]), &config, "0,1 exclusive");
    check_source(&cli(&["all"], &["compute"], &["EGPU_MEMORY=1GiB"]), &config, "all mem 1GiB time free");
    check_source(&cli(&["0"], &["compute"], &["ALIYUN_COM_GPU_MEM_CONTAINER=3"]), &config, "0 mem 3/card time w1");
    check_source(&cli(&["0,x"], &[], &[]), &config, "refused: nvidia-container-cli --device=0,x is");
    let request = request(&cli(&["0"], &["compute", "utility", "display", "unknown"], &[]), &config);
    assert_eq!(
        request.driver_capabilities,
        DriverCapabilities::COMPUTE | DriverCapabilities::UTILITY | DriverCapabilities::DISPLAY
    );
    assert_eq!(request.requirements.len(), 1);
    assert_eq!(request.asked, ["nvidia-container-cli --device=0"]);
}

#[test]
fn volume_mounts_count_where_the_node_accepts_them() {
    // As NVIDIA's device plugin sets it.
    let plugin = Source {
        volume_mount_devices: vec!["GPU-ab".into()],
        ..source(&["NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices"])
    };
    let refused = "refused: NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices is not allowed on this node: it needs \
                   accept_nvidia_visible_devices_as_volume_mounts = true in the node's configuration";
    check_source(&plugin, &Config::default(), refused);
    check_source(&plugin, &config("accept_nvidia_visible_devices_as_volume_mounts = true"), "GPU-ab exclusive");
    let mounted =
        Source { volume_mount_devices: vec!["GPU-ab".into(), "1".into()], ..source(&["NVIDIA_VISIBLE_DEVICES=all"]) };
    check_source(&mounted, &Config::default(), "all exclusive");
    let config = config("accept_nvidia_visible_devices_as_volume_mounts = true");
    check_source(&mounted, &config, "GPU-ab,1 exclusive");
}

#[test]
fn variables_count_where_the_node_accepts_them() {
    let unprivileged = config("accept_nvidia_visible_devices_envvar_when_unprivileged = false");
    check(
        &unprivileged,
        &[
            (&["NVIDIA_VISIBLE_DEVICES=all"], "nothing"),
            (&["EGPU_MEMORY=1GiB"], "nothing"),
            (&["EGPU_DEVICES=0"], "nothing"),
            (&["NVIDIA_VISIBLE_DEVICES=0", "AMP_VGPU_ENABLE=1"], "nothing"),
            (&["EGPU=POLICY=0:PGPU=0,MEM=1,WEIGHT=1"], "nothing"),
            (&["CUDA_DEVICE_MEMORY_LIMIT=1g"], "nothing"),
            (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=0"], "nothing"),
            (&["egpu.io/cards=1", "EGPU_MEMORY=1GiB"], "any 1 mem 1GiB time free"),
            (&["egpu.io/memory=1GiB"], "any 1 mem 1GiB time free"),
        ],
    );
    let mut cdi = source(&["EGPU_MEMORY=1GiB"]);
    cdi.nodes.cards = vec![0];
    check_source(&cdi, &unprivileged, "nodes[0][] mem 1GiB time free");
    let mut privileged = source(&["NVIDIA_VISIBLE_DEVICES=all"]);
    privileged.privileges.cap_sys_admin = true;
    check_source(&privileged, &unprivileged, "all exclusive");
    privileged.privileges.user_namespace = true;
    check_source(&privileged, &unprivileged, "nothing");

    let no_env = config("accept_env = false");
    check(
        &no_env,
        &[
            (&["NVIDIA_VISIBLE_DEVICES=all", "EGPU_MEMORY=x", "AMP_VGPU_ENABLE=1"], "nothing"),
            (&["egpu.io/memory=1GiB", "EGPU_COMPUTE=30%", "NVIDIA_VISIBLE_DEVICES=0"], "any 1 mem 1GiB time free"),
        ],
    );
    let Ok(ContainerRequest::None { warnings }) = parse(&source(&["PATH=/", "NVIDIA_VISIBLE_DEVICES=all"]), &no_env)
    else {
        panic!("a request");
    };
    assert_eq!(
        warnings,
        ["NVIDIA_VISIBLE_DEVICES and all other variables are ignored: accept_env is off in the configuration"]
    );
}

#[test]
fn whole_cards_may_be_shared_by_default() {
    let node = config("share_by_default = true\n[default_share]\nmemory = '25%'\ncompute = 'none'");
    check(
        &node,
        &[
            (&["NVIDIA_VISIBLE_DEVICES=0"], "0 mem 25/100 time free"),
            (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"], "0 monitor"),
            (&["NVIDIA_VISIBLE_DEVICES=none"], "none monitor"),
            (&["NVIDIA_VISIBLE_DEVICES=0:1"], "0:1 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0", "EGPU_MEMORY=1GiB"], "0 mem 1GiB time free"),
        ],
    );
    check(&config("share_by_default = true"), &[(&["NVIDIA_VISIBLE_DEVICES=0"], "0 mem 50/100 time 50% policy:fixed")]);
}

#[test]
fn mig_and_a_quota_do_not_go_together() {
    check(
        &Config::default(),
        &[
            (
                &["NVIDIA_VISIBLE_DEVICES=0:1", "EGPU_MEMORY=1GiB"],
                "refused: EGPU_MEMORY=1GiB asks for a quota on 0:1: MIG devices cannot be shared",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=MIG-ab", "AMP_VGPU_ENABLE=1"],
                "refused: AMP_VGPU_ENABLE=1 asks for a quota on MIG-ab",
            ),
        ],
    );
}

#[test]
fn old_images_get_cards_only_where_the_node_says_so() {
    let legacy = config("legacy_images = true");
    let image = source(&["CUDA_VERSION=9.0.176"]);
    check_source(&image, &Config::default(), "nothing");
    check_source(&image, &legacy, "all exclusive");
    let request = request(&image, &legacy);
    assert_eq!(request.driver_capabilities, DriverCapabilities::all());
    assert_eq!(request.asked, ["CUDA_VERSION=9.0.176"]);
    assert_eq!(request.requirements.len(), 1);
    assert_eq!(request.requirements[0].alternatives[0][0].to_string(), "cuda>=9.0");
    check(
        &legacy,
        &[
            (&["CUDA_VERSION=9.0", "NVIDIA_VISIBLE_DEVICES="], "nothing"),
            (&["CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"], "nothing"),
            (
                &["CUDA_VERSION=nine"],
                "refused: CUDA_VERSION=nine is not accepted: it must be a version such as 9.0.176",
            ),
        ],
    );
}

#[test]
fn requirements() {
    let with = |said: &[&str]| {
        let said = [&["NVIDIA_VISIBLE_DEVICES=0"], said].concat();
        request(&source(&said), &Config::default()).requirements.len()
    };
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=cuda>=12.0 brand=tesla,driver>=470", "NVIDIA_REQUIRE_OTHER=arch>=7.0"]), 2);
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_CUDA=cuda>=11.0"]), 2);
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=", "NVIDIA_REQUIRE_JETPACK=csv-mounts=all"]), 0);
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=nonsense", "NVIDIA_DISABLE_REQUIRE=t"]), 0);
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_DISABLE_REQUIRE=0"]), 1);
    assert_eq!(with(&["NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_DISABLE_REQUIRE=0", "NVIDIA_DISABLE_REQUIRE=1"]), 1);
    check(
        &Config::default(),
        &[
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda~12"],
                "refused: NVIDIA_REQUIRE_CUDA=cuda~12 is not accepted: it must be conditions such as",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DISABLE_REQUIRE=yes"], "refused: NVIDIA_DISABLE_REQUIRE=yes is"),
        ],
    );
    let off = config("disable_require = true");
    let said = source(&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=nonsense"]);
    assert_eq!(request(&said, &off).requirements, []);
}

#[test]
fn extras() {
    let said = source(&[
        "NVIDIA_VISIBLE_DEVICES=0",
        "NVIDIA_IMEX_CHANNELS=channel3,1,1",
        "NVIDIA_GDS=enabled",
        "NVIDIA_MOFED=on",
        "NVIDIA_GDRCOPY=enabled",
    ]);
    let extras = request(&said, &Config::default()).extras;
    assert_eq!(extras.imex_channels, [1, 3]);
    assert!(extras.gds && extras.gdrcopy && !extras.mofed && !extras.nvswitch && !extras.mig_config);
    let mut management = source(&["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_MIG_CONFIG_DEVICES=all"]);
    check_source(
        &management,
        &Config::default(),
        "refused: NVIDIA_MIG_CONFIG_DEVICES=all is not accepted: it must be left out for a container without CAP_SYS_ADMIN",
    );
    management.privileges.cap_sys_admin = true;
    assert!(request(&management, &Config::default()).extras.mig_config);
    management.privileges.user_namespace = true;
    check_source(&management, &Config::default(), "refused: NVIDIA_MIG_CONFIG_DEVICES=all is");
    management.privileges.user_namespace = false;
    management.env = vec!["NVIDIA_VISIBLE_DEVICES=0:0".into(), "NVIDIA_MIG_MONITOR_DEVICES=all".into()];
    check_source(&management, &Config::default(), "refused: NVIDIA_MIG_MONITOR_DEVICES=all is");
    check(
        &Config::default(),
        &[
            (
                &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_MIG_MONITOR_DEVICES=0"],
                "refused: NVIDIA_MIG_MONITOR_DEVICES=0 is not accepted: it must be all",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=all"], "0 exclusive"),
            (&["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_IMEX_CHANNELS=1048576"], "refused: NVIDIA_IMEX_CHANNELS=1048576 is"),
        ],
    );
}

#[test]
fn what_was_asked_is_kept_for_the_log() {
    let said = source(&[
        "PATH=/bin",
        "SECRET=x",
        "NVIDIA_VISIBLE_DEVICES=0",
        "EGPU_MEMORY=1GiB",
        "egpu.io/group=web",
        "other.io/x=y",
        "NVIDIA_PRODUCT_NAME=CUDA",
    ]);
    assert_eq!(
        request(&said, &Config::default()).asked,
        ["egpu.io/group=web", "EGPU_MEMORY=1GiB", "NVIDIA_VISIBLE_DEVICES=0"]
    );
    let forged = source(&["NVIDIA_VISIBLE_DEVICES=0\nadmitted"]);
    assert!(!outcome(&forged, &Config::default()).contains('\n'));
}
