//! Resources that a card or the host has once for all containers: some take all that they get, and
//! there is enough for the next.

use integration::{Container, EgpuConfig, Node, Setup, eventually, hostile::MIB};

use super::{
    floods::{mediator_usage, unasked_bound},
    granted, rm_client,
};
use crate::{
    case::Case,
    memory::{idle, until_free},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::channels_are_left_for_others", channels)
            .needing(rm_client)
            .only_simulated("channels of one generation of cards"),
        Case::egpu("attacks::pinned_memory_is_left_for_others", pinned_memory)
            .on(little_pinned_memory)
            .only_simulated("it would take 12 GiB of the host's memory"),
    ]
}

/// Defence: the ledger gives each grant its channels, and leaves a context's to every place
/// (`nvidia-glue/ledger/src/floors.rs`). A card has some 2000 for all containers.
fn channels(node: &Node) {
    let greedy = |index: usize| -> (Container<'_>, u64) {
        let flood = &["rm-client", "channels", "--hold", "stdin"];
        let container = granted(node, &format!("greedy{index}"), 512).args(flood).stdin().start().unwrap();
        let made = eventually("it has all that it gets", || {
            let said = container.stdio.stdout_so_far();
            said.contains("holding").then(|| said.split_whitespace().nth(1).unwrap().parse().unwrap())
        });
        (container, made)
    };
    let all: Vec<_> = (0..4).map(greedy).collect();
    let made: Vec<u64> = all.iter().map(|(_, made)| *made).collect();
    assert_eq!(made, [512, 512, 196, 100]);
    let card = &mediator_usage(node, "greedy2")["cards"][0];
    assert_eq!(card["channels_limit"], 196);
    eventually("its status says that it has them", || {
        (mediator_usage(node, "greedy2")["cards"][0]["channels_used"] == 196).then_some(())
    });
    eventually("an event names the bound", || {
        let denied = node.egpu_json(&["events", "--kind", "denied"]).to_string();
        denied.contains("there are 196 channels of a card already").then_some(())
    });
    let counted = mediator_usage(node, "greedy2")["refused_by_bounds"].as_u64();
    assert!(counted >= Some(1), "{counted:?}");
    let fifth = idle(node, "fifth", 512);
    assert_eq!(fifth.read("rm-client channels --count 24"), "channels 24 status 0x0");
    fifth.end();
    for (mut container, _) in all {
        let _ = container.close_stdin();
        container.end();
    }
    until_free(node);
}

/// Eight places on four cards.
fn little_pinned_memory() -> Setup {
    let keys = "device_split_count = 2\npinned_memory = \"12GiB\"\n";
    Setup { egpu: EgpuConfig::with_keys(keys), ..Setup::default() }
}

/// Defence: the ledger gives each grant its part of the node's pinned memory, and leaves 1 GiB to
/// every place.
fn pinned_memory(node: &Node) {
    let greedy = |card: usize| {
        let container = node.container(&format!("greedy{card}")).armed().envs(&[("EGPU_MEMORY", "512MiB")]);
        let container = container.env("EGPU_DEVICES", &card.to_string()).hostile(&["pin", "64", "65536"]).stdin();
        let container = container.start().unwrap();
        let pinned = container.stdio.value("pinned").cast_unsigned();
        (container, pinned)
    };
    let all: Vec<_> = (0..4).map(greedy).collect();
    let sum: u64 = all.iter().map(|(_, pinned)| pinned).sum();
    assert!(sum <= (12 - 4) << 30, "{} MiB, though four places are free", sum / MIB);
    assert_eq!(node.host_memory_used(), sum, "what the driver itself says");
    let refused = granted(node, "fifth", 512).env("EGPU_PINNED_MEMORY", "6GiB").start();
    let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(refused.contains("6GiB of pinned host memory needed"), "{refused}");
    assert!(refused.contains("of the node's 12GiB free for one container"), "{refused}");
    assert!(!refused.contains("greedy"), "nobody learns who has the rest: {refused}");
    let fifth = granted(node, "fifth", 512).hostile(&["pin", "64", "65536"]).stdin().start().unwrap();
    let limit = mediator_usage(node, "fifth")["pinned_memory_limit_bytes"].as_u64().unwrap();
    let pinned = fifth.stdio.value("pinned").cast_unsigned();
    assert!(pinned <= limit && pinned + 64 * MIB > limit, "{} of {} MiB", pinned / MIB, limit / MIB);
    assert!(limit >= unasked_bound().min(1 << 30), "its floor: {} MiB", limit / MIB);
    eventually("its status says that it has them", || {
        (mediator_usage(node, "fifth")["pinned_memory_used_bytes"].as_u64() == Some(pinned)).then_some(())
    });
    fifth.end();
    for (container, _) in all {
        container.end();
    }
    until_free(node);
}
