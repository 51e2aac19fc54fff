//! Little memory in many frames of 2 MiB (`integration/rm-client/src/fragment.rs`), which nearly
//! everybody needs whole.

use integration::{
    Node, eventually,
    hostile::{MIB, OUT_OF_MEMORY},
};

use super::{QUOTA, clients::rm_client};
use crate::{
    case::Case,
    memory::{granted, idle, until_free, until_used},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case::egpu("attacks::little_memory_in_many_frames", fragments).needing(rm_client)]
}

/// Frames that may be held open with the attacker's quota: a sixty-fourth of it and 128 MiB more.
const MOST: u64 = (QUOTA + QUOTA / 64 + 128) / 2;

/// Memory that the neighbour leaves of the card: what the attacker may hold open, and what the
/// driver keeps for itself.
const LEFT: u64 = QUOTA + 1024;

/// `NV_ERR_INVALID_ARGUMENT`.
const INVALID_ARGUMENT: i64 = 0x1f;

/// Ways by which each piece takes another frame.
const SPREAD: [&str; 3] = ["aligned", "default", "heap"];

/// Defence: what is held open in frames has a bound beside the quota
/// (`nvidia-glue/account/src/frames.rs`), and a program chooses no place on the card. Without it, a
/// quota of 512 MiB holds 16 GiB open, and a neighbour is out of memory where that much is free.
fn fragments(node: &Node) {
    let listing = idle(node, "attacker", QUOTA);
    let ways = listing.read("rm-client fragment list");
    listing.end();
    until_free(node);
    assert!(ways.lines().count() >= 6, "{ways}");
    let rest = rest_of_the_card(node);
    let unattacked = had_by_the_neighbour(node, rest);
    until_free(node);
    for way in ways.lines() {
        let attack = &["rm-client", "fragment", way, "--hold", "stdin"];
        let mut container = granted(node, "attacker", QUOTA).args(attack).stdin().start().unwrap();
        let value = |name| container.stdio.value(name);
        let (pieces, frames, status) =
            (value("pieces").cast_unsigned(), value("frames").cast_unsigned(), value("status"));
        assert!(frames <= MOST, "{way} holds {frames} frames open");
        match way {
            "range" => assert_eq!((pieces, status), (0, INVALID_ARGUMENT)),
            "emptied" | "holes" => until_used(node, "attacker", pieces / 16, pieces / 16 + 32),
            _ => assert_eq!(status, OUT_OF_MEMORY, "{way}: {pieces} pieces"),
        }
        if SPREAD.contains(&way) {
            assert!(pieces == frames && frames + 4 >= MOST, "{way}: {pieces} pieces in {frames} frames of {MOST}");
            until_used(node, "attacker", pieces / 16, pieces / 16 + 32);
            eventually("an event says which bound it was", || names_the_bound(node).then_some(()));
        }
        let got = had_by_the_neighbour(node, rest);
        assert!(got + 96 >= unattacked, "{way}: {got} MiB of {rest}, {unattacked} before");
        let _ = container.close_stdin();
        container.end();
        until_free(node);
    }
}

fn names_the_bound(node: &Node) -> bool {
    node.egpu_json(&["events", "--kind", "denied"]).to_string().contains("open in frames of 2 MiB")
}

/// MiB of the card that the neighbour is granted.
fn rest_of_the_card(node: &Node) -> u64 {
    let total = node.egpu_json(&["cards"])[0]["memory_total_bytes"].as_u64().expect("the card's memory");
    total / MIB - LEFT
}

/// MiB that the neighbour gets of the rest of the card. A real driver keeps some of what contexts
/// have needed, so that only what the same card gave a moment before says what to expect.
#[track_caller]
fn had_by_the_neighbour(node: &Node, rest: u64) -> u64 {
    let neighbour = idle(node, "neighbour", rest);
    let (_, output) = neighbour.sh("hostile fill 64");
    assert_eq!(output.value("status"), OUT_OF_MEMORY);
    neighbour.end();
    let got = output.value("got").cast_unsigned() / MIB;
    assert!(got <= rest && got + LEFT >= rest, "{got} MiB of {rest}");
    got
}
