//! Many at once: nobody gets too much, nobody waits for ever, nothing drifts.

use integration::{EgpuConfig, Node, Setup, hostile::MIB};

use super::{granted, idle, until_free, until_used};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::thirty_two_processes_allocate_at_once", thirty_two_processes),
        Case::egpu("memory::sixteen_containers_on_a_card", sixteen_containers).on(many_a_card),
    ]
}

fn many_a_card() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("device_split_count = 32\n"), ..Setup::default() }
}

fn thirty_two_processes(node: &Node) {
    let container = granted(node, "a", 2048).hostile(&["together", "32", "8"]).start().unwrap();
    let got = container.stdio.value("got").cast_unsigned();
    super::assert_full(got, 2048);
    assert!(node.card_used(0) <= 2048 * MIB);
    until_used(node, "a", got / MIB, 2048);
    container.end();
    until_free(node);
}

fn sixteen_containers(node: &Node) {
    let ids: Vec<String> = (0..16).map(|index| format!("c{index}")).collect();
    let containers: Vec<_> = ids.iter().map(|id| idle(node, id, 256)).collect();
    std::thread::scope(|scope| {
        for container in &containers {
            scope.spawn(|| {
                for _ in 0..3 {
                    super::assert_full(super::fill(container).0, 256);
                }
            });
        }
    });
    for (id, container) in ids.iter().zip(containers) {
        let usage = node.usage(id);
        assert!(usage.used <= usage.limit, "{id}: {usage:?}");
        container.end();
    }
    until_free(node);
}
