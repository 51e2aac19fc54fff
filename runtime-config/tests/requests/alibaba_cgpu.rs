//! Alibaba cGPU.

use runtime_config::{
    Bytes, Config,
    request::{ContainerRequest, MemoryLimit, Share, parse},
};

use crate::golden::{check, check_source, config, source};

const CARD: &str = "NVIDIA_VISIBLE_DEVICES=0";
const FOUR: &str = "NVIDIA_VISIBLE_DEVICES=0,1,2,3";
const OF_15: &str = "ALIYUN_COM_GPU_MEM_DEV=15";

#[test]
fn memory_lists() {
    check(
        &Config::default(),
        &[
            (&[CARD, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=6"], "0 mem 6/15 time w1"),
            (&[CARD, "ALIYUN_COM_GPU_MEM_CONTAINER=6"], "0 mem 6/card time w1"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3"], "0,1,2,3 mem 3/15 time w1"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3,1"], "0,1,2,3 mem 3/15|1/15|1/15* time w1"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3,4,5,6"], "0,1,2,3 mem 3/15|4/15|5/15|6/15|6/15* time w1"),
            (&[FOUR, OF_15], "0,1,2,3 mem whole time w1"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=0"], "0,1,2,3 mem whole time w1"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=1,0,0"], "0,1,2,3 mem whole time w1"),
            (
                &[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=0,3"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=0,3 is not accepted: it must be whole numbers",
            ),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3,0,5"], "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3,0,5 is"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3,,5"], "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3,,5 is"),
            (&[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=3,-1"], "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3,-1 is"),
            (
                &[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=16"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=16 is not accepted: it must be at most ALIYUN_COM_GPU_MEM_DEV, which is 15",
            ),
            (
                &[FOUR, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=1,1,1,1,1"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=1,1,1,1,1 is not accepted: it must be as many values as there are cards: 5 values are listed for 4 cards",
            ),
            (
                &[FOUR, "ALIYUN_COM_GPU_MEM_DEV=0", "ALIYUN_COM_GPU_MEM_CONTAINER=1"],
                "refused: ALIYUN_COM_GPU_MEM_DEV=0 is",
            ),
            (
                &["ALIYUN_COM_GPU_MEM_CONTAINER=6"],
                "refused: ALIYUN_COM_GPU_MEM_CONTAINER=6 asks for a share of cards, but none are named",
            ),
            (&["NVIDIA_VISIBLE_DEVICES=void", "ALIYUN_COM_GPU_MEM_CONTAINER=6"], "nothing"),
        ],
    );
}

#[test]
fn vendors_figure_of_six_in_fifteen() {
    let said = source(&[CARD, OF_15, "ALIYUN_COM_GPU_MEM_CONTAINER=6"]);
    let Ok(ContainerRequest::Gpu(request)) = parse(&said, &Config::default()) else { panic!("no request") };
    let Share::Part { memory, .. } = request.share else { panic!("no part") };
    let usable = MemoryLimit::tightest(memory.for_cards(1).unwrap()[0], Bytes(15109 * Bytes::MIB)).unwrap();
    assert_eq!(usable.whole_mib(), 6043);
}

#[test]
fn weights_are_slices() {
    let of_15 = |weight| [CARD, "ALIYUN_COM_GPU_MEM_CONTAINER=6", weight];
    let max = |slices: u16| config(&format!("max_inst = {slices}"));
    check(
        &Config::default(),
        &[
            (&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=1"), "0 mem 6/card time w1"),
            (&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=2"), "0 mem 6/card time w2 policy:weighted"),
            (&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=16"), "0 mem 6/card time w16 policy:weighted"),
            (
                &of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=17"),
                "refused: ALIYUN_COM_GPU_SCHD_WEIGHT=17 is not accepted: it must be a whole number from 1 to 16",
            ),
            (&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=0"), "refused: ALIYUN_COM_GPU_SCHD_WEIGHT=0 is"),
            (
                &[CARD, "ALIYUN_COM_GPU_SCHD_WEIGHT=4", "ALIYUN_COM_GPU_SCHD_WEIGHT=2"],
                "0 mem whole time w2 policy:weighted",
            ),
        ],
    );
    check(&max(20), &[(&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=17"), "refused: ALIYUN_COM_GPU_SCHD_WEIGHT=17 is")]);
    check(
        &max(4),
        &[
            (&of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=4"), "0 mem 6/card time w4 policy:weighted"),
            (
                &of_15("ALIYUN_COM_GPU_SCHD_WEIGHT=5"),
                "refused: ALIYUN_COM_GPU_SCHD_WEIGHT=5 is not accepted: it must be a whole number from 1 to 4",
            ),
        ],
    );
}

#[test]
fn shared_and_whole_cards_together() {
    const SHARED: &str = "ALIYUN_COM_GPU_VISIBLE_DEVICES=0,1";
    const MEMORY: &str = "ALIYUN_COM_GPU_MEM_CONTAINER=3";
    check(
        &Config::default(),
        &[
            (&[SHARED, MEMORY], "0,1 mem 3/card time w1"),
            (&[SHARED, MEMORY, FOUR], "0,1 whole:2,3 mem 3/card time w1"),
            (&[SHARED, MEMORY, "NVIDIA_VISIBLE_DEVICES=0,1"], "0,1 mem 3/card time w1"),
            (&[SHARED, MEMORY, "NVIDIA_VISIBLE_DEVICES=GPU-ab"], "0,1 whole:GPU-ab mem 3/card time w1"),
            (&[SHARED, MEMORY, "NVIDIA_VISIBLE_DEVICES=all"], "0,1 mem 3/card time w1"),
            (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=all", FOUR, MEMORY], "0,1,2,3 mem 3/card time w1"),
            (&[SHARED, "ALIYUN_COM_GPU_MEM_CONTAINER=3,1,1"], "refused: ALIYUN_COM_GPU_MEM_CONTAINER=3,1,1 is"),
            (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=none", FOUR, MEMORY], "refused: ALIYUN_COM_GPU_VISIBLE_DEVICES=none is"),
            (&["ALIYUN_COM_GPU_VISIBLE_DEVICES=x", FOUR, MEMORY], "refused: ALIYUN_COM_GPU_VISIBLE_DEVICES=x is"),
        ],
    );
    let mut present = source(&[SHARED, MEMORY]);
    present.nodes.cards = vec![0];
    check_source(&present, &Config::default(), "0,1 within:nodes[0][] mem 3/card time w1");
}

#[test]
fn going_without_a_quota_needs_the_nodes_leave() {
    let leave = config("allow_isolation_none = true");
    check(
        &Config::default(),
        &[
            (
                &[CARD, "CGPU_DISABLE=true"],
                "refused: CGPU_DISABLE=true is not allowed on this node: it needs allow_isolation_none = true",
            ),
            (&[CARD, "CGPU_DISABLE=1", "ALIYUN_COM_GPU_MEM_CONTAINER=3"], "refused: CGPU_DISABLE=1 is not allowed"),
            (&[CARD, "CGPU_DISABLE=0"], "0 exclusive"),
            (
                &[CARD, "CGPU_DISABLE=maybe"],
                "refused: CGPU_DISABLE=maybe is not accepted: it must be true, 1, false or 0",
            ),
            (&[CARD, "CGPU_DISABLE=false", "ALIYUN_COM_GPU_MEM_CONTAINER=3"], "0 mem 3/card time w1"),
        ],
    );
    check(
        &leave,
        &[
            (&[CARD, "CGPU_DISABLE=true"], "0 mem whole time w1 isolation:none"),
            (&[CARD, "CGPU_DISABLE=1", "ALIYUN_COM_GPU_MEM_CONTAINER=3"], "0 mem 3/card time w1 isolation:none"),
            (&[CARD, "CGPU_DISABLE=1", "CGPU_DISABLE=0", "ALIYUN_COM_GPU_MEM_CONTAINER=3"], "0 mem 3/card time w1"),
        ],
    );
}
