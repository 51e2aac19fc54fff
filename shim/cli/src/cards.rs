//! `egpu cards`: the node's cards, and what is granted of them.

use base::amounts::human;
use cards::{Card, Health, Source};
use ledger::{CardState, ContainerKey};
use runtime_config::{Bytes, request::PodContainer};
use serde::Serialize;

use super::{
    listing::Listing,
    node::Node,
    policy, schedules,
    table::{Cell, CellState, Column},
};

/// One card, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CardListing {
    index: u32,
    uuid: String,
    model: String,
    memory_total_bytes: Bytes,
    /// Memory that may be granted in all: more than the card has where the configuration
    /// oversubscribes.
    memory_grantable_bytes: Bytes,
    memory_granted_bytes: Bytes,
    compute_granted_percent: u32,
    /// Policy; while no container shares the card, the one that it gets unless the first container
    /// needs another.
    policy: &'static str,
    /// True if its containers have settled the policy.
    policy_in_use: bool,
    /// The period of its containers' turns.
    period_us: u64,
    /// Part of the last second that was lost in switches between its containers; null: not known.
    switching_1s_percent: Option<f64>,
    /// True if it can take containers off, and so enforce hard caps; otherwise there are weights
    /// only.
    hard_caps: bool,
    free_weight: u32,
    max_inst: u32,
    /// One container has all of it.
    exclusive: bool,
    containers: Vec<ContainerName>,
    /// Containers that only monitor it.
    monitors: Vec<ContainerName>,
    /// UUIDs of its MIG devices.
    mig_devices: Vec<String>,
    /// UUIDs of those that are held.
    mig_held: Vec<String>,
    pci: String,
    numa_node: Option<u32>,
    simulated: bool,
    /// The reason why it is not offered; null where it is.
    unusable: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ContainerName {
    namespace: String,
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodContainer>,
}

impl ContainerName {
    fn of(key: &ContainerKey, node: &Node) -> Self {
        let record = node.records.iter().find(|record| record.container == *key);
        let pod = record.and_then(|record| record.request.pod.clone());
        Self { namespace: key.namespace.clone(), id: key.id.clone(), pod }
    }
}

/// Returns a remark about an empty list.
pub(super) fn remark(cards: &[CardListing]) -> Option<&'static str> {
    cards.is_empty().then_some("egpu: this node has no cards; `egpu doctor` shows why and suggests fixes")
}

pub(super) fn list(node: &Node) -> Vec<CardListing> {
    let named = |keys: &[ContainerKey]| keys.iter().map(|key| ContainerName::of(key, node)).collect();
    let simulated = node.inventory.source == Source::Simulated;
    let listing = |(card, state): (&Card, &CardState)| CardListing {
        index: card.index,
        uuid: card.uuid.clone(),
        model: card.model.clone(),
        memory_total_bytes: state.memory_total,
        memory_grantable_bytes: state.memory_grantable,
        memory_granted_bytes: state.memory_granted,
        compute_granted_percent: state.compute_granted_percent,
        policy: node.policy(state).name(),
        policy_in_use: state.policy.is_some(),
        period_us: node.period_us(state),
        switching_1s_percent: node.schedules.switching_percent(&node.records, &card.uuid),
        hard_caps: card.hard_caps,
        free_weight: state.free_weight,
        max_inst: state.max_inst,
        exclusive: state.exclusive,
        containers: named(&state.containers),
        monitors: named(&state.monitors),
        mig_devices: card.mig_devices.iter().map(|device| device.uuid.clone()).collect(),
        mig_held: state.mig_held.clone(),
        pci: card.pci.to_string(),
        numa_node: card.numa_node,
        simulated,
        unusable: match &card.health {
            Health::Ok => None,
            Health::Unusable { reason } => Some(reason.clone()),
        },
    };
    node.inventory.cards.iter().zip(&node.cards).map(listing).collect()
}

const COLUMNS: [Column; 14] = [
    Column::new("CARD"),
    Column::name("MODEL"),
    Column::name("UUID").spare(),
    Column::new("MEMORY"),
    Column::new("COMPUTE"),
    Column::new("POLICY"),
    Column::new("PERIOD").spare(),
    Column::new("SWITCHES").spare(),
    Column::new("FREE WEIGHT").spare(),
    Column::new("CONTAINERS"),
    Column::new("MONITORS").wide(),
    Column::new("PCI").wide(),
    Column::new("NUMA").wide(),
    Column::text("STATE"),
];

pub(super) fn listing(cards: Vec<CardListing>) -> Listing<CardListing> {
    Listing::new(&COLUMNS, cards, |card| vec![row(card)])
}

fn row(card: &CardListing) -> Vec<Cell> {
    let granted = card.memory_granted_bytes;
    let memory = format!("{} / {}", human(granted), human(card.memory_grantable_bytes));
    let count = |count: usize| Cell::number(u64::try_from(count).unwrap_or(u64::MAX), count.to_string());
    vec![
        Cell::number(card.index.into(), card.index.to_string()),
        card.model.as_str().into(),
        card.uuid.as_str().into(),
        Cell::number(granted.0, memory),
        Cell::percent(Some(card.compute_granted_percent.into()), format!("{}%", card.compute_granted_percent)),
        policy::shown(card.policy, card.policy_in_use).into(),
        Cell::number(card.period_us, policy::period(card.period_us)),
        Cell::percent(card.switching_1s_percent, schedules::shown(card.switching_1s_percent)),
        Cell::number(card.free_weight.into(), format!("{} / {}", card.free_weight, card.max_inst)),
        count(card.containers.len()),
        count(card.monitors.len()),
        card.pci.as_str().into(),
        card.numa_node.map_or_else(|| "-".into(), |node| Cell::number(node.into(), node.to_string())),
        state(card),
    ]
}

fn state(card: &CardListing) -> Cell {
    let (mut states, state) = match &card.unusable {
        Some(reason) => (vec![format!("not offered: {reason}")], CellState::Bad),
        None if card.exclusive => (vec!["held whole".to_owned()], CellState::Good),
        None => (vec!["ok".to_owned()], CellState::Good),
    };
    if !card.mig_devices.is_empty() {
        states.push(format!("MIG {}/{}", card.mig_held.len(), card.mig_devices.len()));
    }
    if !card.hard_caps {
        states.push(policy::caps(false).to_owned());
    }
    if card.simulated {
        states.push("simulated".to_owned());
    }
    Cell::from(states.join(", ")).in_state(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    #[test]
    fn a_node_without_cards_gets_a_remark() {
        assert!(remark(&[]).unwrap().contains("no cards"));
        assert_eq!(remark(&list(&test_support::node())), None);
    }

    #[test]
    fn json_keys_are_fixed() {
        let cards = list(&test_support::node());
        let value = serde_json::to_value(&cards).unwrap();
        let keys: Vec<&String> = value[0].as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "index",
                "uuid",
                "model",
                "memory_total_bytes",
                "memory_grantable_bytes",
                "memory_granted_bytes",
                "compute_granted_percent",
                "policy",
                "policy_in_use",
                "period_us",
                "switching_1s_percent",
                "hard_caps",
                "free_weight",
                "max_inst",
                "exclusive",
                "containers",
                "monitors",
                "mig_devices",
                "mig_held",
                "pci",
                "numa_node",
                "simulated",
                "unusable",
            ]
        );
        assert_eq!(value[0]["memory_total_bytes"], 34_359_738_368_u64);
        assert_eq!(value[0]["memory_granted_bytes"], 3_435_134_976_u64);
        assert_eq!(value[0]["compute_granted_percent"], 10);
        assert_eq!(value[0]["containers"], serde_json::json!([{"namespace": "default", "id": "training"}]));
        assert_eq!(value[0]["simulated"], true);
        assert_eq!(value[0]["policy"], "fixed");
        assert_eq!(value[1]["exclusive"], true);
    }

    #[test]
    fn containers_are_named_by_their_pods_too() {
        let mut node = test_support::node();
        node.records[0].request.pod = Some(test_support::pod());
        let value = serde_json::to_value(list(&node)).unwrap();
        let pod = serde_json::json!({"namespace": "team", "pod": "train-0", "container": "main"});
        assert_eq!(value[0]["containers"], serde_json::json!([{"namespace": "default", "id": "training", "pod": pod}]));
        assert_eq!(value[1]["containers"], serde_json::json!([{"namespace": "default", "id": "whole"}]));
    }

    #[test]
    fn the_table_shows_what_is_granted_and_that_cards_are_simulated() {
        let text = test_support::shown(listing(list(&test_support::node())), &[]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains(" 3.2 GiB / 32 GiB  ") && lines[1].contains("  10%  "), "{text}");
        assert!(lines[1].ends_with("ok, simulated"), "{text}");
        assert!(lines[2].ends_with("held whole, simulated"), "{text}");
        assert!(lines[3].contains("(fixed)"), "{text}");
    }
}
