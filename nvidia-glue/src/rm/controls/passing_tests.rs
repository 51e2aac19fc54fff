//! Why controls of channels, engines, debuggers and clocks may be executed as they stand: a row that has no reason here fails.

use super::{ControlRule, controls};

/// Headers whose controls could decide about others' time.
const HEADERS: &[&str] = &[
    "ctrl0080/ctrl0080fifo.h",
    "ctrl0080/ctrl0080gr.h",
    "ctrl0080/ctrl0080perf.h",
    "ctrl2080/ctrl2080fifo.h",
    "ctrl2080/ctrl2080gr.h",
    "ctrl2080/ctrl2080perf.h",
    "ctrl2080/ctrl2080rc.h",
    "ctrl2080/ctrl2080tmr.h",
    "ctrl506f.h",
    "ctrl83de/ctrl83dedebug.h",
    "ctrl9067.h",
    "ctrl906f.h",
    "ctrla06c.h",
    "ctrla06f/ctrla06fgpfifo.h",
    "ctrla16f.h",
    "ctrla26f.h",
    "ctrlb06f.h",
    "ctrlc06f.h",
    "ctrlc36f.h",
    "ctrlc56f.h",
];

/// By number, each group with what is true of all in it.
pub(in crate::rm) const PASSING: &[(&str, &[u32])] = &[
    (
        "tells constants of the card: capabilities, layouts, sizes, numbers of engines, the clock",
        &[
            0x0080_1102,
            0x0080_1104,
            0x0080_1107,
            0x0080_1109,
            0x0080_1110,
            0x0080_1701,
            0x0080_1707,
            0x0080_170e,
            0x0080_1713,
            0x2080_0403,
            0x2080_0404,
            0x2080_0406,
            0x2080_1108,
            0x2080_1109,
            0x2080_110d,
            0x2080_1120,
            0x2080_1122,
            0x2080_1201,
            0x2080_1206,
            0x2080_120f,
            0x2080_1213,
            0x2080_121b,
            0x2080_121d,
            0x2080_121e,
            0x2080_1227,
            0x2080_1228,
            0x2080_122a,
            0x2080_122b,
            0x2080_122d,
            0x2080_1230,
            0x2080_1233,
            0x2080_1234,
            0x2080_1236,
            0x2080_1237,
            0x2080_1239,
            0x2080_123c,
            0x2080_123d,
        ],
    ),
    (
        "tells of the calling client's own channel or group, which the driver looks for in that client only",
        &[
            0x0080_170d,
            0x2080_1123,
            0x2080_1215,
            0x2080_1218,
            0x2080_1235,
            0x906f_0101,
            0x906f_0105,
            0x906f_0106,
            0xa06c_0106,
            0xa06f_0101,
            0xa06f_0107,
            0xa06f_0113,
            0xa16f_0101,
            0xa26f_0101,
            0xb06f_0101,
            0xb06f_010b,
            0xb06f_010e,
            0xb06f_010f,
            0xc06f_0101,
            0xc36f_0101,
            0xc36f_0108,
            0xc56f_010b,
            0xc56f_010e,
        ],
    ),
    (
        "chooses how the driver notifies the calling client, or where its own channel's state is kept; a client that it names has to be the \
         container's. None puts a channel on the card",
        &[
            0x2080_0401,
            0x2080_0402,
            0x2080_1102,
            0x2080_1205,
            0x2080_1208,
            0x2080_1209,
            0x2080_123a,
            0x906f_0203,
            0xa06c_0109,
            0xa06f_0108,
            0xc36f_010a,
            0xc56f_010c,
        ],
    ),
    ("clocks: CUDA does not start without it. All who use a card have the same clocks", &[0x0080_1909, 0x2080_200a]),
    (
        "tells the clocks or power of the card, which its users share",
        &[0x2080_200b, 0x2080_205a, 0x2080_205d, 0x2080_2068, 0x2080_206e],
    ),
    (
        "withdraws what the calling client asked of the watchdog, or keeps it from ending long kernels: CUDA does both at its start",
        &[0x2080_220c, 0x2080_2210],
    ),
    ("counts the card's errors, without a name", &[0x2080_2205, 0x2080_2209, 0x2080_2213]),
    (
        "ends the debugging of the session's own context, or tells of it; what the driver keeps by channel is that channel's",
        &[0x83de_0302, 0x83de_0308, 0x83de_0310, 0x83de_030c, 0x83de_031c, 0x83de_0320, 0x83de_0328, 0x83de_032b],
    ),
    ("makes errors of the session's own context precise", &[0x83de_031f]),
];

/// Why a control passes.
pub(in crate::rm) fn reason(id: u32) -> Option<&'static str> {
    PASSING.iter().find(|(_, ids)| ids.contains(&id)).map(|(reason, _)| *reason)
}

#[test]
fn what_passes_near_scheduling_has_a_reason() {
    let passing = |id| controls().any(|row| row.id == id && row.rule == ControlRule::Pass);
    let unexplained: Vec<String> = controls()
        .filter(|row| row.rule == ControlRule::Pass && HEADERS.contains(&row.header) && reason(row.id).is_none())
        .map(|row| format!("{:#010x} {}", row.id, row.name))
        .collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    let stale: Vec<u32> = PASSING.iter().flat_map(|(_, ids)| *ids).copied().filter(|id| !passing(*id)).collect();
    assert!(stale.is_empty(), "{stale:#x?}");
    assert!(HEADERS.iter().all(|header| controls().any(|row| row.header == *header)), "a header that no row has");
}
