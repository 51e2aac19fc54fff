//! Alibaba eGPU.

use runtime_config::{
    Bytes, Config,
    request::{ContainerRequest, MemoryLimit, Share, parse},
};

use crate::golden::{check, config, source};

const ON: &str = "AMP_VGPU_ENABLE=1";
const CARD: &str = "NVIDIA_VISIBLE_DEVICES=0";

#[test]
fn vendors_variables() {
    check(
        &Config::default(),
        &[
            (&[ON, CARD], "0 mem whole time free kill"),
            (&[ON, CARD, "AMP_USE_HOST_DAEMON=1"], "0 mem whole time free kill"),
            (
                &[ON, "NVIDIA_VISIBLE_DEVICES=0,GPU-ab", "GPU_MEM_PER_DEVICE=2000000000", "GPU_UTIL_PER_DEVICE=50"],
                "0,GPU-ab mem 1953125KiB-10MiB time 50% policy:fixed kill",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=2000000000", "ALIYUN_COM_GPU_MEM_RESERVED=0"],
                "0 mem 1953125KiB time free kill",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=2147483648", "ALIYUN_COM_GPU_MEM_RESERVED=100"],
                "0 mem 2GiB-100MiB time free kill",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=16", "ALIYUN_COM_GPU_MEM_CONTAINER=5"],
                "0 mem 5/16-10MiB time free kill",
            ),
            (&[ON, CARD, "ALIYUN_COM_GPU_MEM_CONTAINER=5"], "0 mem 5/card-10MiB time free kill"),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=16", "ALIYUN_COM_GPU_MEM_CONTAINER=16"],
                "0 mem 16/16-10MiB time free kill",
            ),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=33"], "0 mem whole time 33% policy:fixed kill"),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=95"], "0 mem whole time 95% policy:fixed kill"),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=0"], "0 mem whole time free kill"),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=96"], "0 mem whole time free kill"),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=1000"], "0 mem whole time free kill"),
            (&[ON, CARD, "ALIYUN_COM_GPU_OOM_SCRIPT=/opt/oom.sh"], "0 mem whole time free kill script:/opt/oom.sh"),
            (&[ON, "NVIDIA_VISIBLE_DEVICES=all", "GPU_UTIL_PER_DEVICE=20"], "all mem whole time 20% policy:fixed kill"),
        ],
    );
}

#[test]
fn without_the_switch_the_container_starts_the_default_way() {
    check(
        &Config::default(),
        &[
            (&[CARD, "GPU_MEM_PER_DEVICE=2000000000", "GPU_UTIL_PER_DEVICE=x"], "0 exclusive"),
            (&["AMP_VGPU_ENABLE=0", CARD, "GPU_MEM_PER_DEVICE=2000000000"], "0 exclusive"),
            (&["AMP_VGPU_ENABLE=", CARD, "ALIYUN_COM_GPU_OOM_SCRIPT=oom"], "0 exclusive"),
            (&["GPU_MEM_PER_DEVICE=2000000000"], "nothing"),
        ],
    );
    let Ok(ContainerRequest::Gpu(request)) = parse(&source(&[CARD, "GPU_MEM_PER_DEVICE=1"]), &Config::default()) else {
        panic!("no request");
    };
    assert_eq!(request.warnings, ["GPU_MEM_PER_DEVICE is ignored: it has a meaning only with AMP_VGPU_ENABLE=1"]);
}

#[test]
fn refusals_name_variable_value_and_what_is_accepted() {
    check(
        &Config::default(),
        &[
            (
                &["AMP_VGPU_ENABLE=yes", CARD],
                "refused: AMP_VGPU_ENABLE=yes is not accepted: it must be 1, or 0 for off",
            ),
            (
                &[ON, "GPU_MEM_PER_DEVICE=2000000000"],
                "refused: AMP_VGPU_ENABLE=1 asks for a share of cards, but none are named: set NVIDIA_VISIBLE_DEVICES to the cards",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=16"],
                "refused: ALIYUN_COM_GPU_MEM_DEV=16 is not accepted: it must be accompanied by ALIYUN_COM_GPU_MEM_CONTAINER",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=5", "ALIYUN_COM_GPU_MEM_CONTAINER=16"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=16 is not accepted: it must be at most ALIYUN_COM_GPU_MEM_DEV, which is 5",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=0", "ALIYUN_COM_GPU_MEM_CONTAINER=0"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=0 is not accepted: it must be a whole number above 0",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=0", "ALIYUN_COM_GPU_MEM_CONTAINER=1"],
                "refused: ALIYUN_COM_GPU_MEM_DEV=0 is",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_DEV=16", "ALIYUN_COM_GPU_MEM_CONTAINER=3,1"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3,1 is",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=1g", "ALIYUN_COM_GPU_MEM_CONTAINER=5"],
                "refused: GPU_MEM_PER_DEVICE=1g and ALIYUN_COM_GPU_MEM_CONTAINER=5 contradict each other: memory is given in bytes or as a ratio",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=2000000000", "ALIYUN_COM_GPU_MEM_DEV=5"],
                "refused: ALIYUN_COM_GPU_MEM_DEV=5 is",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=1GiB"],
                "refused: GPU_MEM_PER_DEVICE=1GiB is not accepted: it must be a whole number of bytes above 0",
            ),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=10485760"],
                "refused: GPU_MEM_PER_DEVICE=10485760 is not accepted: it must be more bytes than the 10MiB that ALIYUN_COM_GPU_MEM_RESERVED",
            ),
            (&[ON, CARD, "GPU_MEM_PER_DEVICE=-1"], "refused: GPU_MEM_PER_DEVICE=-1 is"),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=99999999999999999999"],
                "refused: GPU_MEM_PER_DEVICE=99999999999999999999 is",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_RESERVED=ten"],
                "refused: ALIYUN_COM_GPU_MEM_RESERVED=ten is not accepted: it must be a whole number of MiB",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_RESERVED=18446744073709551615"],
                "refused: ALIYUN_COM_GPU_MEM_RESERVED=18446744073709551615 is",
            ),
            (
                &[ON, CARD, "GPU_UTIL_PER_DEVICE=50%"],
                "refused: GPU_UTIL_PER_DEVICE=50% is not accepted: it must be a whole number of percent, such as 50",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_OOM_SCRIPT=oom.sh"],
                "refused: ALIYUN_COM_GPU_OOM_SCRIPT=oom.sh is not accepted: it must be an absolute path",
            ),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_SCHD_WEIGHT=2"],
                "refused: AMP_VGPU_ENABLE=1 and ALIYUN_COM_GPU_SCHD_WEIGHT=2 contradict each other",
            ),
            (
                &[ON, "NVIDIA_VISIBLE_DEVICES=0,one"],
                "refused: NVIDIA_VISIBLE_DEVICES=0,one is not accepted: it must be a list of cards",
            ),
        ],
    );
}

#[test]
fn of_two_values_the_tighter_holds() {
    check(
        &Config::default(),
        &[
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=20", "GPU_UTIL_PER_DEVICE=80"], "0 mem whole time 20% policy:fixed kill"),
            (&[ON, CARD, "GPU_UTIL_PER_DEVICE=0", "GPU_UTIL_PER_DEVICE=80"], "0 mem whole time 80% policy:fixed kill"),
            (
                &[ON, CARD, "GPU_MEM_PER_DEVICE=3221225472", "GPU_MEM_PER_DEVICE=1073741824"],
                "0 mem 3GiB-10MiB&1GiB-10MiB time free kill",
            ),
            (&[ON, CARD, "GPU_MEM_PER_DEVICE=1073741824", "GPU_MEM_PER_DEVICE="], "0 mem 1GiB-10MiB time free kill"),
            (
                &[ON, CARD, "ALIYUN_COM_GPU_MEM_CONTAINER=5", "ALIYUN_COM_GPU_MEM_CONTAINER=6"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER is set more than once with different values: \"5\", \"6\"; set it once",
            ),
            (&[ON, CARD, "NVIDIA_VISIBLE_DEVICES=1"], "refused: NVIDIA_VISIBLE_DEVICES is set more than once"),
            (&[ON, CARD, CARD], "0 mem whole time free kill"),
        ],
    );
}

/// The vendor's figures on a 16 GB V100, which reports 16170 MiB here.
#[test]
fn usable_bytes() {
    let card = Bytes(16170 * Bytes::MIB);
    let usable = |said: &[&str]| match parse(&source(&[&[ON, CARD], said].concat()), &config("")) {
        Ok(ContainerRequest::Gpu(request)) => match request.share {
            Share::Part { memory, .. } => MemoryLimit::tightest(memory.for_cards(1).unwrap()[0], card),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(usable(&[]), Some(card));
    assert_eq!(usable(&["ALIYUN_COM_GPU_MEM_CONTAINER=16"]), Some(Bytes(16160 * Bytes::MIB)));
    assert_eq!(
        usable(&["GPU_MEM_PER_DEVICE=2000000000"]),
        Some(Bytes((2_000_000_000 - 10 * Bytes::MIB) / 1024 * 1024))
    );
    let five_of_sixteen = Bytes((card.0 * 5 / 16 - 10 * Bytes::MIB) / 1024 * 1024);
    assert_eq!(usable(&["ALIYUN_COM_GPU_MEM_CONTAINER=5", "ALIYUN_COM_GPU_MEM_DEV=16"]), Some(five_of_sixteen));
    assert_eq!(usable(&["ALIYUN_COM_GPU_MEM_CONTAINER=5"]), Some(five_of_sixteen));
    assert_eq!(usable(&["ALIYUN_COM_GPU_MEM_CONTAINER=17"]), None);
}
