//! Several voices at once, and containers that could get around a quota.

use runtime_config::{
    Config,
    request::{ContainerRequest, Privileges, parse},
};

use crate::golden::{check, check_source, config, source};

const EGPU: [&str; 3] = ["NVIDIA_VISIBLE_DEVICES=0", "AMP_VGPU_ENABLE=1", "GPU_MEM_PER_DEVICE=1073741824"];
const CGPU: [&str; 2] = ["NVIDIA_VISIBLE_DEVICES=0", "ALIYUN_COM_GPU_MEM_CONTAINER=3"];
const CTYUN: &str = "EGPU=POLICY=0,ONLINE=1:PGPU=0,MEM=1024,WEIGHT=20";
const HAMI: [&str; 2] = ["NVIDIA_VISIBLE_DEVICES=0", "CUDA_DEVICE_MEMORY_LIMIT=1g"];

fn with<'a>(said: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [said, more].concat()
}

#[test]
fn two_foreign_languages_are_refused_naming_both() {
    check(
        &Config::default(),
        &[
            (
                &with(&EGPU, &[CTYUN]),
                "refused: AMP_VGPU_ENABLE=1 belongs to Alibaba eGPU and EGPU=POLICY=0,ONLINE=1:PGPU=0,MEM=1024,WEIGHT=20 to CTYun eGPU: a container can ask in one of them only; leave out the variables of the other",
            ),
            (
                &with(&EGPU, &HAMI),
                "refused: AMP_VGPU_ENABLE=1 belongs to Alibaba eGPU and CUDA_DEVICE_MEMORY_LIMIT=1g to HAMi",
            ),
            (&with(&CGPU, &[CTYUN]), "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3 belongs to Alibaba cGPU and EGPU="),
            (
                &with(&CGPU, &HAMI),
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3 belongs to Alibaba cGPU and CUDA_DEVICE_MEMORY_LIMIT=1g to HAMi",
            ),
            (&with(&HAMI, &[CTYUN]), "refused: EGPU="),
        ],
    );
}

#[test]
fn a_tenant_cannot_widen_what_a_device_plugin_set() {
    check(
        &config("allow_isolation_none = true"),
        &[
            (&with(&EGPU, &["EGPU_MEMORY=20GiB"]), "0 mem 20GiB&1GiB-10MiB time free kill"),
            (&with(&EGPU, &["egpu.io/memory=20GiB"]), "0 mem 20GiB&1GiB-10MiB time free kill"),
            (
                &with(&EGPU, &["GPU_UTIL_PER_DEVICE=20", "EGPU_COMPUTE=80%"]),
                "0 mem 1GiB-10MiB time 20% policy:fixed kill",
            ),
            (
                &with(&EGPU, &["GPU_UTIL_PER_DEVICE=20", "EGPU_COMPUTE=10%"]),
                "0 mem 1GiB-10MiB time 10% policy:fixed kill",
            ),
            (&with(&EGPU, &["EGPU_COMPUTE=10%"]), "0 mem 1GiB-10MiB time 10% policy:fixed kill"),
            (&with(&EGPU, &["EGPU_ISOLATION=none"]), "0 mem 1GiB-10MiB time free kill"),
            (&with(&EGPU, &["EGPU_OOM=deny", "EGPU_PRIORITY=low"]), "0 mem 1GiB-10MiB time free kill low"),
            (
                &with(&CGPU, &["ALIYUN_COM_GPU_SCHD_WEIGHT=2", "EGPU_WEIGHT=100"]),
                "0 mem 3/card time w2 policy:weighted",
            ),
            (&with(&CGPU, &["ALIYUN_COM_GPU_SCHD_WEIGHT=4", "EGPU_POLICY=fixed"]), "0 mem 3/card time w4 policy:fixed"),
            (&with(&CGPU, &["CGPU_DISABLE=1", "EGPU_MEMORY=1GiB"]), "0 mem 1GiB&3/card time w1"),
            (&with(&HAMI, &["CUDA_DEVICE_SM_LIMIT=30", "EGPU_COMPUTE=50%"]), "0 mem 1GiB time 30% policy:fixed low"),
            (&with(&HAMI, &["EGPU_PRIORITY=high", "EGPU_OOM=kill"]), "0 mem 1GiB time free kill low"),
            (&[CTYUN, "EGPU_MEMORY=512MiB", "EGPU_COMPUTE=50%"], "0 mem 512MiB&1GiB time 20% policy:fixed"),
        ],
    );
}

#[test]
fn nor_choose_other_cards() {
    check(
        &Config::default(),
        &[
            (
                &with(&EGPU, &["EGPU_DEVICES=1"]),
                "refused: EGPU_DEVICES=1 and NVIDIA_VISIBLE_DEVICES=0 contradict each other: card 1 is not among",
            ),
            (&with(&EGPU, &["EGPU_DEVICES=0"]), "0 mem 1GiB-10MiB time free kill"),
            (&with(&EGPU, &["EGPU_CARDS=1"]), "any 1 within:0 mem 1GiB-10MiB time free kill"),
            (
                &["NVIDIA_VISIBLE_DEVICES=GPU-ab", "AMP_VGPU_ENABLE=1", "egpu.io/devices=1"],
                "1 within:GPU-ab mem whole time free kill",
            ),
            (
                &[CTYUN, "EGPU_DEVICES=1"],
                "refused: EGPU_DEVICES=1 and EGPU=POLICY=0,ONLINE=1:PGPU=0,MEM=1024,WEIGHT=20 contradict each other: both name cards",
            ),
            (
                &["ALIYUN_COM_GPU_VISIBLE_DEVICES=0", "EGPU_CARDS=1"],
                "refused: EGPU_CARDS=1 and ALIYUN_COM_GPU_VISIBLE_DEVICES=0 contradict",
            ),
            (&["CUDA_DEVICE_MEMORY_LIMIT=1g", "EGPU_CARDS=2"], "any 2 mem 1GiB time free low"),
        ],
    );
}

#[test]
fn what_cannot_be_joined_is_refused_naming_both() {
    check(
        &Config::default(),
        &[
            (
                &with(&EGPU, &["GPU_UTIL_PER_DEVICE=20", "EGPU_WEIGHT=3"]),
                "refused: EGPU_WEIGHT=3 and GPU_UTIL_PER_DEVICE=20 contradict each other: a percentage and a weight cannot be compared",
            ),
            (
                &[CTYUN, "EGPU_MEMORY=1GiB,2GiB"],
                "refused: EGPU_MEMORY=1GiB,2GiB and EGPU=POLICY=0,ONLINE=1:PGPU=0,MEM=1024,WEIGHT=20 contradict each other: they are for different numbers of cards",
            ),
            (
                &[CTYUN, "EGPU_POLICY=soft"],
                "refused: EGPU_POLICY=soft and EGPU=POLICY=0,ONLINE=1:PGPU=0,MEM=1024,WEIGHT=20 contradict each other: the one needs the card policy soft, the other fixed",
            ),
            (
                &with(&EGPU, &["GPU_UTIL_PER_DEVICE=20", "EGPU_POLICY=soft"]),
                "refused: EGPU_POLICY=soft and GPU_UTIL_PER_DEVICE=20 contradict each other: a percentage is a hard cap",
            ),
            (
                &with(&EGPU, &["ALIYUN_COM_GPU_OOM_SCRIPT=/a", "EGPU_OOM_SCRIPT=/b"]),
                "refused: EGPU_OOM_SCRIPT=/b and ALIYUN_COM_GPU_OOM_SCRIPT=/a contradict each other",
            ),
        ],
    );
}

#[test]
fn a_quota_for_a_container_that_can_get_around_it_is_refused_saying_why() {
    type Set = fn(&mut Privileges);
    let ways: [(Set, &str); 5] = [
        (|p| p.cap_sys_admin = true, "CAP_SYS_ADMIN"),
        (|p| p.cap_sys_module = true, "CAP_SYS_MODULE"),
        (|p| p.cap_sys_rawio = true, "CAP_SYS_RAWIO"),
        (|p| p.wildcard_device_rule = true, "a device rule for every device"),
        (|p| p.host_pid_namespace = true, "the host's process ids"),
    ];
    for (set, name) in ways {
        let mut container = source(&EGPU);
        set(&mut container.privileges);
        let message = format!(
            "refused: AMP_VGPU_ENABLE=1 asks for a quota, which cannot hold for a container with {name}: take that away, or set allow_privileged_quota = true"
        );
        check_source(&container, &Config::default(), &message);
        check_source(&container, &config("allow_privileged_quota = true"), "0 mem 1GiB-10MiB time free kill");
        let Ok(ContainerRequest::Gpu(request)) = parse(&container, &config("allow_privileged_quota = true")) else {
            panic!("no request");
        };
        assert_eq!(request.warnings, [format!("the quota is advice: the container has {name}")]);
        // In a user namespace of its own the container's capabilities mean nothing to the driver.
        container.privileges.user_namespace = true;
        let still = container.privileges.wildcard_device_rule || container.privileges.host_pid_namespace;
        let expected =
            if still { "refused: AMP_VGPU_ENABLE=1 asks for a quota" } else { "0 mem 1GiB-10MiB time free kill" };
        check_source(&container, &Config::default(), expected);
        // Nor to its files, unless it is the host's root there.
        container.privileges.maps_host_root = true;
        let still = still || container.privileges.cap_sys_admin;
        let expected =
            if still { "refused: AMP_VGPU_ENABLE=1 asks for a quota" } else { "0 mem 1GiB-10MiB time free kill" };
        check_source(&container, &Config::default(), expected);
        // Whole cards have no quota that could be got around.
        container.env = vec!["NVIDIA_VISIBLE_DEVICES=0".to_owned()];
        check_source(&container, &Config::default(), "0 exclusive");
        container.env = vec!["EGPU_CARDS=1".to_owned(), "EGPU_ISOLATION=none".to_owned()];
        check_source(&container, &config("allow_isolation_none = true"), "any 1 mem whole time free isolation:none");
    }
}
