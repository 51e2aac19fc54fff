//! One look at the node's cards and containers: JSON, plain table and screen are made of it.

use base::usage::Usage;
use cards::{Health, SensorReading, Source};
use ledger::{CardGrant, CardState, ContainerKey, Record};
use runtime_config::{
    Bytes, Percent,
    request::{PodContainer, Priority},
};
use schedule::{CardStatus, Running};
use serde::Serialize;

use crate::{
    node::Node,
    output::printable,
    schedules::{self, CardTime, Schedules},
    usage::MemoryUsage,
};

/// One frame, as `--output json` shows it: a line for each. Keys are fixed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Frame {
    /// The instant, microseconds of CLOCK_MONOTONIC.
    pub(super) at_us: u64,
    pub(super) cards: Vec<CardLine>,
    pub(super) containers: Vec<ContainerLines>,
}

/// A card, with sums over its containers.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CardLine {
    pub(super) index: u32,
    pub(super) uuid: String,
    pub(super) policy: &'static str,
    #[serde(flatten)]
    pub(super) time: CardTime,
    pub(super) memory_used_bytes: Option<Bytes>,
    pub(super) memory_granted_bytes: Bytes,
    pub(super) memory_total_bytes: Bytes,
    pub(super) containers: usize,
    /// For the screen only, as everything below.
    #[serde(skip)]
    pub(super) model: String,
    #[serde(skip)]
    pub(super) pci: String,
    #[serde(skip)]
    pub(super) period_us: u64,
    /// Part of its time that is promised, also while its containers do nothing.
    #[serde(skip)]
    pub(super) promised_percent: u32,
    /// The reason why it is not offered.
    #[serde(skip)]
    pub(super) unusable: Option<String>,
    /// It cannot take containers off: caps on it are weights.
    #[serde(skip)]
    pub(super) has_weights_only: bool,
    #[serde(skip)]
    pub(super) is_simulated: bool,
    /// `None`: nobody has asked, or the driver does not say.
    #[serde(skip)]
    pub(super) sensors: Option<SensorReading>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ContainerLines {
    pub(super) id: String,
    pub(super) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<PodContainer>,
    pub(super) priority: Priority,
    pub(super) cards: Vec<ContainerCardLine>,
    /// For the screen only, as everything below.
    #[serde(skip)]
    pub(super) key: ContainerKey,
    /// Calls that were refused for want of memory or of anything else; `None`: it has no mediator.
    #[serde(skip)]
    pub(super) denials: Option<u64>,
    #[serde(skip)]
    pub(super) processes: Option<usize>,
}

/// One container on one card.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ContainerCardLine {
    pub(super) index: u32,
    pub(super) uuid: String,
    pub(super) policy: &'static str,
    pub(super) exclusive: bool,
    #[serde(flatten)]
    pub(super) time: CardTime,
    /// Part of the time since the last frame (in the first one: of its life) in which its work was
    /// held back.
    pub(super) throttled_percent: Option<f64>,
    pub(super) throttled_us: u64,
    /// Part of the last second for which it had work and not the card, and all such time; null:
    /// not known.
    pub(super) waited_1s_percent: Option<f64>,
    pub(super) waited_us: Option<u64>,
    pub(super) memory_used_bytes: Option<Bytes>,
    pub(super) memory_limit_bytes: Bytes,
    /// True if it has work for the card; null where that is not known.
    pub(super) busy: Option<bool>,
    /// Null where it has no mediator.
    pub(super) running: Option<Running>,
    pub(super) channels: usize,
    pub(super) edges: u64,
    pub(super) late_edges: u64,
    /// Edges with calls that took more than 5 ms, the longest, and what all calls waited for.
    pub(super) slow_edges: u64,
    pub(super) longest_edge_us: u64,
    pub(super) edge_wait_us: u64,
    /// Time of its turns that it did not get and will not: in all, and in the last second.
    pub(super) lost_us: u64,
    pub(super) lost_1s_us: u64,
    /// Time that the card lost in switches to it from others, in all and in the last second; null:
    /// not known.
    pub(super) switching_us: Option<u64>,
    pub(super) switching_1s_us: Option<u64>,
    pub(super) failures: u64,
    /// Processor time of the thread that schedules it there, and the part of it in driver calls.
    pub(super) scheduler_cpu_us: u64,
    pub(super) scheduler_driver_cpu_us: u64,
    /// Its hard cap, where it has one.
    #[serde(skip)]
    pub(super) cap_percent: Option<u8>,
    /// The card cannot take it off: its part of the time is only a weight.
    #[serde(skip)]
    pub(super) is_weight_only: bool,
}

impl Frame {
    pub(crate) fn new(node: &Node, usage: &MemoryUsage, before: Option<&Schedules>) -> Self {
        let holds = |record: &&Record| record.cards.iter().any(CardGrant::holds);
        let containers: Vec<ContainerLines> =
            node.records.iter().filter(holds).map(|record| container(node, record, usage, before)).collect();
        let cards = node.cards.iter().map(|state| card(node, state, &containers)).collect();
        Self { at_us: node.schedules.now_us, cards, containers }
    }
}

fn container(node: &Node, record: &Record, usage: &MemoryUsage, before: Option<&Schedules>) -> ContainerLines {
    let line = |grant: &CardGrant| {
        let reported = node.schedules.card(record, &grant.uuid);
        let earlier = before.and_then(|before| before.card(record, &grant.uuid));
        let count = |number: fn(&CardStatus) -> u64| reported.map_or(0, number);
        ContainerCardLine {
            index: grant.index,
            uuid: grant.uuid.clone(),
            policy: grant.policy.name(),
            exclusive: grant.exclusive,
            time: node.schedules.time(record, &grant.uuid),
            throttled_percent: reported.and_then(|reported| throttled_percent(reported, earlier)),
            throttled_us: count(|reported| reported.throttled_us),
            waited_1s_percent: node.schedules.waited_1s_percent(record, &grant.uuid),
            waited_us: reported.and_then(|reported| reported.waited_us),
            memory_used_bytes: usage.of(record, &grant.uuid),
            memory_limit_bytes: grant.memory,
            busy: reported.and_then(|reported| reported.busy),
            running: reported.map(|reported| reported.running),
            channels: reported.map_or(0, |reported| reported.channels),
            edges: count(|reported| reported.edges),
            late_edges: count(|reported| reported.late_edges),
            slow_edges: count(|reported| reported.slow_edges),
            longest_edge_us: count(|reported| reported.longest_edge_us),
            edge_wait_us: count(|reported| reported.edge_wait_us),
            lost_us: count(|reported| reported.lost_us),
            lost_1s_us: count(|reported| reported.lost_1s_us),
            switching_us: reported.and_then(|reported| reported.switching_us),
            switching_1s_us: reported.and_then(|reported| reported.switching_1s_us),
            failures: count(|reported| reported.failures),
            scheduler_cpu_us: count(|reported| reported.scheduler_cpu_us),
            scheduler_driver_cpu_us: count(|reported| reported.scheduler_driver_cpu_us),
            cap_percent: grant.compute.cap().map(Percent::get),
            is_weight_only: node.schedules.is_weight_only(record, grant),
        }
    };
    let mediated = usage.mediated(record);
    ContainerLines {
        id: record.container.id.clone(),
        namespace: record.container.namespace.clone(),
        pod: record.request.pod.clone(),
        priority: record.priority(),
        cards: record.cards.iter().filter(|grant| grant.holds()).map(line).collect(),
        key: record.container.clone(),
        denials: mediated.map(|usage| {
            let Usage { denials, refused_by_bounds, refused_by_driver, .. } = usage;
            denials.saturating_add(*refused_by_bounds).saturating_add(*refused_by_driver)
        }),
        processes: mediated.map(|usage| usage.processes.len()),
    }
}

/// Returns the part of the time with channels in which it was held back; `None`: it had none.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people; sums below 2^53 us are 285 years")]
fn throttled_percent(now: &CardStatus, before: Option<&CardStatus>) -> Option<f64> {
    let since = |sum: fn(&CardStatus) -> u64| sum(now).checked_sub(before.map_or(0, sum));
    // Sums that have become smaller are of another mediator.
    let (open, throttled) = (since(|card| card.open_us)?, since(|card| card.throttled_us)?);
    let all = open.checked_add(throttled).filter(|all| *all > 0)?;
    Some(throttled as f64 * 100.0 / all as f64)
}

fn card(node: &Node, state: &CardState, containers: &[ContainerLines]) -> CardLine {
    let lines: Vec<&ContainerCardLine> =
        containers.iter().flat_map(|container| &container.cards).filter(|line| line.uuid == state.uuid).collect();
    let total = |part: fn(&CardTime) -> Option<f64>| schedules::sum(lines.iter().map(|line| part(&line.time)));
    let used = lines
        .iter()
        .map(|line| line.memory_used_bytes)
        .try_fold(Bytes(0), |sum, used| Some(Bytes(sum.0.saturating_add(used?.0))));
    let card = node.inventory.by_uuid(&state.uuid);
    CardLine {
        index: state.index,
        uuid: state.uuid.clone(),
        policy: node.policy(state).name(),
        time: CardTime {
            granted_percent: total(|time| time.granted_percent),
            achieved_1s_percent: total(|time| time.achieved_1s_percent),
            achieved_60s_percent: total(|time| time.achieved_60s_percent),
            // Use of grants of different sizes has no sum.
            utilization_percent: None,
        },
        memory_used_bytes: used,
        memory_granted_bytes: state.memory_granted,
        memory_total_bytes: state.memory_total,
        containers: state.containers.len(),
        model: card.map(|card| card.model.clone()).unwrap_or_default(),
        pci: card.map(|card| card.pci.to_string()).unwrap_or_default(),
        period_us: node.period_us(state),
        promised_percent: state.compute_granted_percent,
        unusable: card.and_then(|card| match &card.health {
            Health::Ok => None,
            Health::Unusable { reason } => Some(reason.clone()),
        }),
        has_weights_only: card.is_some_and(|card| !card.hard_caps),
        is_simulated: node.inventory.source == Source::Simulated,
        sensors: None,
    }
}

impl CardLine {
    /// Returns the part of its time that its containers are to have, in percent.
    pub(super) fn promised(&self) -> f64 {
        self.time.granted_percent.unwrap_or_else(|| f64::from(self.promised_percent))
    }
}

impl ContainerLines {
    /// Returns its name in Kubernetes, else containerd's.
    pub(super) fn name(&self) -> String {
        printable(&match &self.pod {
            Some(pod) => pod.to_string(),
            None => format!("{}/{}", self.namespace, self.id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    fn frame(before: Option<&Schedules>) -> Frame {
        Frame::new(&test_support::node(), &MemoryUsage::nothing_runs(), before)
    }

    #[test]
    fn json_keys_are_fixed() {
        let value = serde_json::to_value(frame(None)).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["at_us", "cards", "containers"]);
        let time = ["granted_percent", "achieved_1s_percent", "achieved_60s_percent"];
        let card = [
            &["index", "uuid", "policy"][..],
            &time,
            &["memory_used_bytes", "memory_granted_bytes", "memory_total_bytes", "containers"],
        ];
        assert_eq!(keys(&value["cards"][0]), card.concat());
        assert_eq!(keys(&value["containers"][0]), ["id", "namespace", "priority", "cards"]);
        let line = [
            &["index", "uuid", "policy", "exclusive"][..],
            &time,
            &["throttled_percent", "throttled_us", "waited_1s_percent", "waited_us"],
            &["memory_used_bytes", "memory_limit_bytes", "busy", "running"],
            &["channels", "edges", "late_edges", "slow_edges", "longest_edge_us", "edge_wait_us"],
            &[
                "lost_us",
                "lost_1s_us",
                "switching_us",
                "switching_1s_us",
                "failures",
                "scheduler_cpu_us",
                "scheduler_driver_cpu_us",
            ],
        ];
        assert_eq!(keys(&value["containers"][0]["cards"][0]), line.concat());
    }

    #[test]
    fn a_card_shows_the_sums_of_its_containers() {
        let frame = frame(None);
        let card = &frame.cards[0];
        assert_eq!(card.time.granted_percent, Some(10.0));
        assert_eq!(card.time.achieved_1s_percent, Some(9.87));
        assert_eq!(frame.containers[0].cards[0].throttled_percent, Some(90.0));
        assert_eq!(frame.cards[2].time, CardTime::default(), "nothing is known of an empty card's");
    }

    #[test]
    fn waits_are_those_of_the_last_second() {
        let mut node = test_support::node();
        let mut waited = |us, late_us| {
            node.schedules.now_us = test_support::NOW_US + late_us;
            for status in node.schedules.status.values_mut() {
                status.cards[0].waited_1s_us = us;
            }
            Frame::new(&node, &MemoryUsage::nothing_runs(), None).containers[0].cards[0].waited_1s_percent
        };
        assert_eq!(waited(Some(1_200_000), 0), Some(100.0), "the sum began earlier");
        assert_eq!(waited(Some(35_000), 3_000_000), None, "an old one");
        assert_eq!(waited(None, 0), None);
    }

    #[test]
    fn throttled_time_is_that_since_the_last_frame() {
        let mut before = test_support::node().schedules;
        for status in before.status.values_mut() {
            (status.cards[0].open_us, status.cards[0].throttled_us) = (500_000, 7_500_000);
        }
        assert_eq!(frame(Some(&before)).containers[0].cards[0].throttled_percent, Some(75.0));
        for status in before.status.values_mut() {
            status.cards[0].open_us = u64::MAX;
        }
        assert_eq!(frame(Some(&before)).containers[0].cards[0].throttled_percent, None, "another mediator's");
    }
}
