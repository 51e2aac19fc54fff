//! HAMi.

use runtime_config::Config;

use crate::golden::{check, config};

const CARD: &str = "NVIDIA_VISIBLE_DEVICES=GPU-ab";

#[test]
fn limits() {
    check(
        &Config::default(),
        &[
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=3000m"], "GPU-ab mem 3000MiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=3g"], "GPU-ab mem 3GiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=3G"], "GPU-ab mem 3GiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=4096k"], "GPU-ab mem 4MiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=1048576"], "GPU-ab mem 1MiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=0"], "GPU-ab mem whole time free low"),
            (
                &[CARD, "CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT=30"],
                "GPU-ab mem 3000MiB|5000MiB* time 30%-if-contended policy:fixed low",
            ),
            (
                &[
                    "NVIDIA_VISIBLE_DEVICES=GPU-ab,GPU-cd",
                    "CUDA_DEVICE_MEMORY_LIMIT_1=2g",
                    "CUDA_DEVICE_MEMORY_LIMIT=1g",
                ],
                "GPU-ab,GPU-cd mem 1GiB|2GiB|1GiB* time free low",
            ),
            (
                &[
                    "NVIDIA_VISIBLE_DEVICES=GPU-ab,GPU-cd",
                    "CUDA_DEVICE_MEMORY_LIMIT_1=0",
                    "CUDA_DEVICE_MEMORY_LIMIT=1g",
                ],
                "GPU-ab,GPU-cd mem 1GiB|1GiB|1GiB* time free low",
            ),
            (
                &[
                    "NVIDIA_VISIBLE_DEVICES=GPU-ab,GPU-cd",
                    "CUDA_DEVICE_MEMORY_LIMIT=1g",
                    "CUDA_DEVICE_SM_LIMIT_0=20",
                    "CUDA_DEVICE_SM_LIMIT_1=60",
                ],
                "GPU-ab,GPU-cd mem 1GiB time 20%-if-contended|60%-if-contended|free* policy:fixed low",
            ),
            (
                &[CARD, "CUDA_DEVICE_MEMORY_LIMIT_1=2g"],
                "refused: CUDA_DEVICE_MEMORY_LIMIT_1=2g is not accepted: it must be as many values as there are cards",
            ),
            (&[CARD, "CUDA_DEVICE_SM_LIMIT=0"], "GPU-ab mem 5000MiB time free low"),
            (&[CARD, "CUDA_DEVICE_SM_LIMIT=100"], "GPU-ab mem 5000MiB time free low"),
            (&[CARD, "CUDA_DEVICE_SM_LIMIT=300"], "GPU-ab mem 5000MiB time free low"),
            (&[CARD, "CUDA_DEVICE_MEMORY_SHARED_CACHE=/x/y.cache"], "GPU-ab mem 5000MiB time free low"),
            (&["CUDA_DEVICE_MEMORY_LIMIT=1g"], "any 1 mem 1GiB time free low"),
            (&["NVIDIA_VISIBLE_DEVICES=none", "CUDA_DEVICE_MEMORY_LIMIT=1g"], "none monitor low"),
            (&["NVIDIA_VISIBLE_DEVICES=void", "CUDA_DEVICE_MEMORY_LIMIT=1g"], "nothing"),
        ],
    );
}

#[test]
fn cuda_variables_of_others_are_not_hamis() {
    check(
        &Config::default(),
        &[
            (
                &[CARD, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_MEMORY_LIMITS=1"],
                "GPU-ab exclusive",
            ),
            (&["CUDA_DEVICE_MAX_CONNECTIONS=1", "ACTIVE_OOM_KILLER=true"], "nothing"),
        ],
    );
}

#[test]
fn when_the_cap_holds() {
    let cap = |policy| [CARD, "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_SM_LIMIT=30", policy];
    check(
        &Config::default(),
        &[
            (&cap("GPU_CORE_UTILIZATION_POLICY=default"), "GPU-ab mem 1GiB time 30%-if-contended policy:fixed low"),
            (&cap("GPU_CORE_UTILIZATION_POLICY=FORCE"), "GPU-ab mem 1GiB time 30% policy:fixed low"),
            (&cap("GPU_CORE_UTILIZATION_POLICY=disable"), "GPU-ab mem 1GiB time free low"),
            (
                &cap("GPU_CORE_UTILIZATION_POLICY=never"),
                "refused: GPU_CORE_UTILIZATION_POLICY=never is not accepted: it must be one of default, force, disable",
            ),
        ],
    );
}

#[test]
fn priority_and_oom_killer() {
    let with = |variable| [CARD, "CUDA_DEVICE_MEMORY_LIMIT=1g", variable];
    check(
        &Config::default(),
        &[
            (&with("CUDA_TASK_PRIORITY=0"), "GPU-ab mem 1GiB time free"),
            (&with("CUDA_TASK_PRIORITY=1"), "GPU-ab mem 1GiB time free low"),
            (&with("CUDA_TASK_PRIORITY=2"), "refused: CUDA_TASK_PRIORITY=2 is not accepted: it must be one of 0, 1"),
            (&with("ACTIVE_OOM_KILLER=true"), "GPU-ab mem 1GiB time free kill low"),
            (&with("ACTIVE_OOM_KILLER=0"), "GPU-ab mem 1GiB time free low"),
            (&with("ACTIVE_OOM_KILLER=on"), "refused: ACTIVE_OOM_KILLER=on is"),
        ],
    );
}

#[test]
fn oversubscription_and_no_control_need_the_nodes_leave() {
    let oversubscribe = [CARD, "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_OVERSUBSCRIBE=true"];
    let disable = [CARD, "CUDA_DISABLE_CONTROL=true"];
    check(
        &Config::default(),
        &[
            (
                &oversubscribe,
                "refused: CUDA_OVERSUBSCRIBE=true is not allowed on this node: it needs memory_scaling above 1.0",
            ),
            (
                &disable,
                "refused: CUDA_DISABLE_CONTROL=true is not allowed on this node: it needs allow_isolation_none = true",
            ),
            (&[CARD, "CUDA_DISABLE_CONTROL=false"], "GPU-ab exclusive"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_OVERSUBSCRIBE=false"], "GPU-ab mem 1GiB time free low"),
        ],
    );
    check(&config("memory_scaling = 1.2"), &[(&oversubscribe, "GPU-ab mem 1GiB time free low")]);
    check(&config("allow_isolation_none = true"), &[(&disable, "GPU-ab mem 5000MiB time free isolation:none low")]);
}

#[test]
fn the_nodes_defaults_fill_in_what_is_left_out() {
    let node = config("[hami]\ndefault_memory = '0'\ndefault_compute = 25\ndefault_cards = 2");
    check(
        &node,
        &[
            (&["CUDA_DEVICE_MEMORY_LIMIT=1g"], "any 2 mem 1GiB time 25%-if-contended policy:fixed low"),
            (&["CUDA_DEVICE_SM_LIMIT=0"], "any 2 mem whole time free low"),
            (&["NVIDIA_VISIBLE_DEVICES=0"], "0 exclusive"),
        ],
    );
    let without_compute = config("[hami]\ndisable_compute_limit = true");
    check(&without_compute, &[(&[CARD, "CUDA_DEVICE_SM_LIMIT=30"], "GPU-ab mem 5000MiB time free low")]);
}

#[test]
fn malformed_limits_are_refused() {
    for value in ["1t", "g", "-1", "1.5g", "1gg", "1gm", "x", "18446744073709551615g", "512", "0x10"] {
        let variable = format!("CUDA_DEVICE_MEMORY_LIMIT={value}");
        let expected = format!(
            "refused: {variable} is not accepted: it must be a number of bytes, or one with a suffix g, m or k"
        );
        check(&Config::default(), &[(&[CARD, &variable], &expected)]);
    }
    check(
        &Config::default(),
        &[
            (&[CARD, "CUDA_DEVICE_SM_LIMIT=30%"], "refused: CUDA_DEVICE_SM_LIMIT=30% is"),
            (
                &[CARD, "CUDA_DEVICE_SM_LIMIT_x=30"],
                "refused: CUDA_DEVICE_SM_LIMIT_x=30 is not accepted: it must be CUDA_DEVICE_SM_LIMIT_<i> with i",
            ),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT_64=1g"], "refused: CUDA_DEVICE_MEMORY_LIMIT_64=1g is"),
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT_=1g"], "refused: CUDA_DEVICE_MEMORY_LIMIT_=1g is"),
        ],
    );
}

#[test]
fn of_two_values_the_tighter_holds() {
    check(
        &Config::default(),
        &[
            (&[CARD, "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_DEVICE_MEMORY_LIMIT=0"], "GPU-ab mem 1GiB time free low"),
            (
                &[CARD, "CUDA_DEVICE_SM_LIMIT=30", "CUDA_DEVICE_SM_LIMIT=0"],
                "GPU-ab mem 5000MiB time 30%-if-contended policy:fixed low",
            ),
            (
                &[
                    CARD,
                    "CUDA_DEVICE_SM_LIMIT=30",
                    "GPU_CORE_UTILIZATION_POLICY=force",
                    "GPU_CORE_UTILIZATION_POLICY=disable",
                ],
                "GPU-ab mem 5000MiB time 30% policy:fixed low",
            ),
        ],
    );
}

#[test]
fn the_schedulers_note_is_a_cross_check_only() {
    const LIMIT: &str = "CUDA_DEVICE_MEMORY_LIMIT=1g";
    check(
        &Config::default(),
        &[
            (
                &[CARD, LIMIT, "hami.io/vgpu-devices-allocated=GPU-ab12,NVIDIA,9000,10:;"],
                "GPU-ab mem 1GiB time free low",
            ),
            (
                &[CARD, LIMIT, "hami.io/vgpu-devices-allocated=GPU-00,NVIDIA,9000,10:;GPU-AB12,NVIDIA,1,1:;"],
                "GPU-ab mem 1GiB time free low",
            ),
            (
                &[CARD, LIMIT, "hami.io/vgpu-devices-allocated=GPU-cd,NVIDIA,9000,10:;"],
                "refused: NVIDIA_VISIBLE_DEVICES=GPU-ab and hami.io/vgpu-devices-allocated=",
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=0", LIMIT, "hami.io/vgpu-devices-allocated=GPU-cd,NVIDIA,9000,10:;"],
                "0 mem 1GiB time free low",
            ),
            (&["hami.io/vgpu-devices-allocated=GPU-cd,NVIDIA,9000,10:;"], "nothing"),
        ],
    );
}
