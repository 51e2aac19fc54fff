//! Many at once: nobody gets too much, nobody waits for ever, nothing drifts.

use std::time::Duration;

use integration::{EgpuConfig, Node, Setup, hostile::MIB};

use super::{assert_nothing_drifts, granted, until_free, until_used};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::thirty_two_processes_allocate_at_once", thirty_two_processes).on(often_compared),
        Case::egpu("memory::sixteen_containers_on_a_card", sixteen_containers).on(many_a_card),
    ]
}

/// Period in which accounts and driver are compared.
const PERIOD: Duration = Duration::from_millis(200);

fn often_compared() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("reconcile_period = \"200ms\"\n"), ..Setup::default() }
}

fn many_a_card() -> Setup {
    let keys = "device_split_count = 32\nreconcile_period = \"200ms\"\n";
    Setup { egpu: EgpuConfig::with_keys(keys), ..Setup::default() }
}

/// They have been compared again, and nothing was found.
#[track_caller]
fn nothing_drifts(node: &Node) {
    std::thread::sleep(4 * PERIOD);
    assert_nothing_drifts(node);
}

fn thirty_two_processes(node: &Node) {
    let container = granted(node, "a", 2048).hostile(&["together", "32", "8"]).start().unwrap();
    let got = container.stdio.value("got").cast_unsigned();
    super::assert_full(got, 2048);
    assert!(node.card_used(0) <= 2048 * MIB);
    until_used(node, "a", got / MIB, 2048);
    nothing_drifts(node);
    container.end();
    until_free(node);
}

fn sixteen_containers(node: &Node) {
    let ids: Vec<String> = (0..16).map(|index| format!("c{index}")).collect();
    // Something is held whenever they are compared.
    let holding = |id: &String| granted(node, id, 256).hostile(&["hold", "64"]).start().unwrap();
    let containers: Vec<_> = ids.iter().map(holding).collect();
    std::thread::scope(|scope| {
        for container in &containers {
            scope.spawn(|| {
                for _ in 0..3 {
                    super::assert_full(super::fill(container).0 + 64 * MIB, 256);
                }
            });
        }
    });
    nothing_drifts(node);
    for (id, container) in ids.iter().zip(containers) {
        let usage = node.usage(id);
        assert!(usage.used <= usage.limit, "{id}: {usage:?}");
        container.end();
    }
    until_free(node);
}
