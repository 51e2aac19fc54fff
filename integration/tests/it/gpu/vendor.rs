//! The vendor's acceptance tests that need no running GPU program: 1, 4, 5, 6 and 7, as written.

use integration::{Container, Node};

use super::{refused, steps};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("vendor::case_1_sizes", case_1_sizes),
        Case::egpu("vendor::case_4_too_much_on_the_third_card", case_4_too_much_on_the_third_card),
        Case::egpu("vendor::case_5_memory_is_used_up", case_5_memory_is_used_up),
        Case::egpu("vendor::case_6_weight_out_of_range", case_6_weight_out_of_range),
        Case::egpu("vendor::case_7_compute_is_used_up", case_7_compute_is_used_up),
    ]
}

/// `EGPU=` for the first cards, `(MEM, WEIGHT)` each.
fn request(groups: &[(u32, u32)]) -> String {
    let mut value = "POLICY=0,ONLINE=0,TYPE=DOCKER".to_owned();
    for (card, (memory, weight)) in groups.iter().enumerate() {
        value.push_str(&format!(":PGPU={card},MEM={memory},WEIGHT={weight}"));
    }
    value
}

const THREE: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "0,1,2");

fn start<'node>(node: &'node Node, id: &str, groups: &[(u32, u32)]) -> Container<'node> {
    node.container(id).envs(&[THREE, ("EGPU", &request(groups))]).start().unwrap()
}

fn refuse(node: &Node, id: &str, groups: &[(u32, u32)]) -> String {
    refused(node.container(id).envs(&[THREE, ("EGPU", &request(groups))]))
}

fn case_1_sizes(node: &Node) {
    let container = start(node, "one", &[(3276, 10); 3]);
    let grant = node.grant("one").expect("a grant");
    assert_eq!((grant.cards(), grant.memory_mib(), grant.compute()), (vec![0, 1, 2], vec![3276; 3], vec![Some(10); 3]));
    let table = String::from_utf8(node.egpu(&["ps"]).stdout).unwrap();
    assert_eq!(table.matches("0 B / 3.2 GiB").count(), 3, "{table}");
    container.end();
}

fn case_4_too_much_on_the_third_card(node: &Node) {
    let text = refuse(node, "four", &[(20480, 10), (20480, 10), (40960, 10)]);
    assert!(text.contains("40GiB"), "{text:?}");
    let steps = steps(node, "four");
    let position =
        |step: &str| steps.iter().position(|one| one == step).unwrap_or_else(|| panic!("no {step:?} in {steps:?}"));
    assert!(position("reserve 0") < position("reserve 1"));
    assert!(position("reserve 1") < position("refuse 2"));
    assert!(position("refuse 2") < position("rollback 1").min(position("rollback 0")));
    assert_eq!(steps.last().map(String::as_str), Some("destroy"), "{steps:?}");
    assert!(node.granted().is_empty());
}

fn case_5_memory_is_used_up(node: &Node) {
    let containers = [
        start(node, "first", &[(20480, 10), (20480, 10), (10240, 10)]),
        start(node, "second", &[(10240, 10), (10240, 10), (20480, 10)]),
        start(node, "third", &[(2048, 10); 3]),
    ];
    let cards = node.egpu_json(&["cards"]);
    for index in 0..3 {
        assert_eq!(cards[index]["memory_granted_bytes"], cards[index]["memory_total_bytes"], "card {index} is full");
    }
    let text = refuse(node, "fourth", &[(1024, 10); 3]);
    assert!(text.to_lowercase().contains("memory"), "{text:?}");
    assert_eq!(node.granted(), ["first", "second", "third"]);
    for container in containers {
        container.end();
    }
}

fn case_6_weight_out_of_range(node: &Node) {
    let text = refuse(node, "six", &[(1024, 110)]);
    assert!(text.contains("WEIGHT") && text.contains("110"), "{text:?}");
    let steps = steps(node, "six");
    assert!(steps.iter().any(|step| step == "invalid"), "{steps:?}");
    assert!(!steps.iter().any(|step| step.starts_with("reserve")), "{steps:?}");
    let log = node.decision_log();
    assert!(log.contains("reserved=nothing"), "the log says that nothing had been reserved: {log}");
}

fn case_7_compute_is_used_up(node: &Node) {
    let containers = [
        start(node, "first", &[(1024, 25); 3]),
        start(node, "second", &[(1024, 25); 3]),
        start(node, "third", &[(1024, 50); 3]),
    ];
    let text = refuse(node, "fourth", &[(1024, 10); 3]);
    assert!(text.to_lowercase().contains("compute"), "{text:?}");
    assert_eq!(node.granted(), ["first", "second", "third"]);
    for container in containers {
        container.end();
    }
}
