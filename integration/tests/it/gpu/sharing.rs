//! Sums, placement and races.

use std::sync::atomic::{AtomicUsize, Ordering};

use integration::{Node, Setup, egpu::EgpuConfig};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("sharing::binpack_and_spread", binpack_and_spread),
        Case::egpu("sharing::replicas_of_a_group_are_kept_apart", replicas_of_a_group_are_kept_apart),
        Case::egpu("sharing::sums_in_egpu_cards", sums_in_egpu_cards),
        Case::egpu("sharing::race_for_the_last_gigabytes", race_for_the_last_gigabytes).on(one_card),
        Case::egpu("sharing::race_for_a_whole_card", race_for_a_whole_card).on(one_card),
        Case::egpu("sharing::race_that_all_win", race_that_all_win).on(one_card),
        Case::egpu("sharing::memory_scaling", memory_scaling).on(doubled),
    ]
}

fn one_card() -> Setup {
    let card = "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Small\"\nmemory = \"4096MiB\"\n";
    let egpu = EgpuConfig { keys: "device_split_count = 100\n".to_owned(), ..EgpuConfig::with_cards(card) };
    Setup { egpu, ..Setup::default() }
}

fn doubled() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("memory_scaling = 2.0\n"), ..Setup::default() }
}

fn card_of(node: &Node, id: &str) -> u64 {
    node.grant(id).expect("a grant").cards()[0]
}

fn binpack_and_spread(node: &Node) {
    let ask = |id: &str| node.container(id).env("EGPU_MEMORY", "4GiB");
    let (first, second) = (ask("first").start().unwrap(), ask("second").start().unwrap());
    assert_eq!(card_of(node, "first"), card_of(node, "second"), "binpack fills one card first");
    let third = ask("third").env("EGPU_PLACEMENT", "spread").start().unwrap();
    assert_ne!(card_of(node, "third"), card_of(node, "first"), "spread takes an empty one");
    let big = node.container("big").env("EGPU_MEMORY", "26GiB").start().unwrap();
    assert_ne!(card_of(node, "big"), card_of(node, "first"), "what does not fit goes elsewhere");
    for container in [first, second, third, big] {
        container.end();
    }
}

fn replicas_of_a_group_are_kept_apart(node: &Node) {
    let ask = |id: &str| {
        node.container(id)
            .envs(&[("EGPU_MEMORY", "1GiB"), ("EGPU_PLACEMENT", "spread"), ("EGPU_GROUP", "web")])
            .start()
            .unwrap()
    };
    let replicas: Vec<_> = (0..4).map(|index| ask(&format!("r{index}"))).collect();
    let mut cards: Vec<u64> = (0..4).map(|index| card_of(node, &format!("r{index}"))).collect();
    cards.sort_unstable();
    assert_eq!(cards, [0, 1, 2, 3]);
    for replica in replicas {
        replica.end();
    }
}

fn sums_in_egpu_cards(node: &Node) {
    let ask = |id: &str, card: &str| {
        node.container(id)
            .envs(&[("EGPU_DEVICES", card), ("EGPU_MEMORY", "2GiB"), ("EGPU_COMPUTE", "20%")])
            .start()
            .unwrap()
    };
    let containers = [ask("a", "1"), ask("b", "1"), ask("c", "2")];
    let cards = node.egpu_json(&["cards"]);
    let sums = |index: usize| {
        let card = &cards[index];
        let number = |key: &str| card[key].as_u64().unwrap_or_else(|| panic!("{key} in {card}"));
        (
            number("memory_granted_bytes") >> 30,
            number("compute_granted_percent"),
            card["containers"].as_array().map(Vec::len),
        )
    };
    assert_eq!([sums(0), sums(1), sums(2)], [(0, 0, Some(0)), (4, 40, Some(2)), (2, 20, Some(1))]);
    assert_eq!(cards[0]["memory_total_bytes"].as_u64(), Some(32 << 30));
    assert_eq!(cards[0]["simulated"].as_bool(), Some(true));
    for container in containers {
        container.end();
    }
}

/// Creates 64 containers at the same time; how many came to be. They are ended again.
fn race(node: &Node, name: &str, variables: &[(&str, &str)]) -> usize {
    let won = AtomicUsize::new(0);
    let barrier = std::sync::Barrier::new(64);
    std::thread::scope(|scope| {
        for index in 0..64 {
            let (won, barrier) = (&won, &barrier);
            scope.spawn(move || {
                let builder = node.container(&format!("{name}{index}")).envs(variables);
                barrier.wait();
                let container = builder.start();
                if container.is_ok() {
                    won.fetch_add(1, Ordering::Relaxed);
                }
                // Nobody gives anything back before everybody has asked.
                barrier.wait();
                if let Ok(container) = container {
                    container.end();
                }
            });
        }
    });
    won.into_inner()
}

fn race_for_the_last_gigabytes(node: &Node) {
    let first = node.container("first").env("EGPU_MEMORY", "1GiB").start().unwrap();
    assert_eq!(race(node, "r", &[("EGPU_MEMORY", "1GiB")]), 3, "three gigabytes are left");
    assert_eq!(node.granted(), ["first"]);
    first.end();
}

fn race_for_a_whole_card(node: &Node) {
    assert_eq!(race(node, "r", &[("NVIDIA_VISIBLE_DEVICES", "0")]), 1);
    assert!(node.granted().is_empty());
}

/// On a busy machine the mediators' real-time threads must not keep the others from running.
fn race_that_all_win(node: &Node) {
    assert_eq!(race(node, "r", &[("EGPU_MEMORY", "64MiB")]), 64);
    assert!(node.granted().is_empty());
}

fn memory_scaling(node: &Node) {
    let ask = |id: &str| node.container(id).env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "32GiB");
    let (first, second) = (ask("first").start().unwrap(), ask("second").start().unwrap());
    super::refused(ask("third"));
    first.end();
    second.end();
}
