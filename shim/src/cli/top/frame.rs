//! `egpu top`: each container's use of card time and memory, refreshed at an interval.

use std::{
    io::{self, IsTerminal},
    thread,
    time::Duration,
};

use nvidia_glue::{
    ledger::{CardState, Record},
    schedule::{CardStatus, Running},
};
use runtime_config::{
    Bytes,
    request::{PodContainer, Priority},
};
use serde::Serialize;

use super::{
    Exit, Output,
    error::CliError,
    node::Node,
    output::{self, Format, printable},
    schedules::{self, CardTime, Schedules},
    usage::{self, MemoryUsage},
    value_parsers,
};

/// Arguments of `egpu top`.
#[derive(Debug, clap::Args)]
pub(super) struct TopArguments {
    /// Time between two frames, 100ms or more
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = value_parsers::interval)]
    interval: Duration,
    /// Number of frames [default: until interrupted; with `--output json`: one]
    #[arg(long, short = 'n', value_name = "N", value_parser = value_parsers::repetitions)]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
}

/// Cursor home, and clear to the end of the screen (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn run(arguments: &TopArguments) -> Result<Exit, CliError> {
    let is_json = arguments.output.output == Format::Json;
    let count = arguments.count.or(is_json.then_some(1));
    let is_screen = !is_json && count != Some(1) && io::stdout().is_terminal();
    let mut before: Option<Schedules> = None;
    let mut frames = 0;
    loop {
        let node = Node::read()?;
        let (usage, warnings) = usage::measure(&node);
        let frame = Frame::new(&node, &usage, before.as_ref());
        output::print(&match arguments.output.output {
            Format::Json => output::json_line(&frame)?,
            Format::Table if is_screen => format!("{CLEAR}{}", frame.table()),
            Format::Table if frames > 0 => format!("\n{}", frame.table()),
            Format::Table => frame.table(),
        })?;
        for warning in warnings {
            super::say(&format!("egpu: {warning}"));
        }
        before = Some(node.schedules);
        frames += 1;
        if count.is_some_and(|count| frames >= count) {
            return Ok(Exit::Success);
        }
        thread::sleep(arguments.interval);
    }
}

/// One frame, as `--output json` shows it: a line for each. Keys are fixed.
#[derive(Debug, Serialize)]
struct Frame {
    /// The instant, microseconds of CLOCK_MONOTONIC.
    at_us: u64,
    cards: Vec<CardLine>,
    containers: Vec<ContainerLines>,
}

/// A card, with sums over its containers.
#[derive(Debug, Serialize)]
struct CardLine {
    index: u32,
    uuid: String,
    policy: &'static str,
    #[serde(flatten)]
    time: CardTime,
    memory_used_bytes: Option<Bytes>,
    memory_granted_bytes: Bytes,
    memory_total_bytes: Bytes,
    containers: usize,
}

#[derive(Debug, Serialize)]
struct ContainerLines {
    id: String,
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodContainer>,
    priority: Priority,
    cards: Vec<ContainerCardLine>,
}

/// One container on one card.
#[derive(Debug, Serialize)]
struct ContainerCardLine {
    index: u32,
    uuid: String,
    policy: &'static str,
    exclusive: bool,
    #[serde(flatten)]
    time: CardTime,
    /// Part of the time since the last frame (in the first one: of its life) in which its work was
    /// held back.
    throttled_percent: Option<f64>,
    throttled_us: u64,
    /// Part of the last second for which it had work and not the card, and all such time; null:
    /// not known.
    waited_1s_percent: Option<f64>,
    waited_us: Option<u64>,
    memory_used_bytes: Option<Bytes>,
    memory_limit_bytes: Bytes,
    /// True if it has work for the card; null where that is not known.
    busy: Option<bool>,
    /// Null where it has no mediator.
    running: Option<Running>,
    channels: usize,
    edges: u64,
    late_edges: u64,
    /// Edges with calls that took more than 5 ms, the longest, and what all calls waited for.
    slow_edges: u64,
    longest_edge_us: u64,
    edge_wait_us: u64,
    /// Time of its turns that it did not get and will not: in all, and in the last second.
    lost_us: u64,
    lost_1s_us: u64,
    failures: u64,
    /// Processor time of the thread that schedules it there, and the part of it in driver calls.
    scheduler_cpu_us: u64,
    scheduler_driver_cpu_us: u64,
    /// The card cannot take it off: its part of the time is only a weight.
    #[serde(skip)]
    is_weight_only: bool,
}

impl Frame {
    fn new(node: &Node, usage: &MemoryUsage, before: Option<&Schedules>) -> Self {
        let holds = |record: &&Record| record.cards.iter().any(nvidia_glue::ledger::CardGrant::holds);
        let containers: Vec<ContainerLines> =
            node.records.iter().filter(holds).map(|record| container(node, record, usage, before)).collect();
        let cards = node.cards.iter().map(|state| card(node, state, &containers)).collect();
        Self { at_us: node.schedules.now_us, cards, containers }
    }

    fn table(&self) -> String {
        const TITLES: [&str; 10] =
            ["CARD", "POLICY", "GRANTED", "1 S", "60 S", "THROTTLED", "WAITED", "MEMORY", "BUSY", "CONTAINER"];
        let of_card = |card: &CardLine| {
            let lines = self.containers.iter().flat_map(|container| {
                let own = container.cards.iter().filter(|line| line.uuid == card.uuid);
                own.map(move |line| line.row(container))
            });
            std::iter::once(card.row()).chain(lines).collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = self.cards.iter().flat_map(of_card).collect();
        output::table(&TITLES, &rows)
    }
}

fn container(node: &Node, record: &Record, usage: &MemoryUsage, before: Option<&Schedules>) -> ContainerLines {
    let line = |grant: &nvidia_glue::ledger::CardGrant| {
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
            failures: count(|reported| reported.failures),
            scheduler_cpu_us: count(|reported| reported.scheduler_cpu_us),
            scheduler_driver_cpu_us: count(|reported| reported.scheduler_driver_cpu_us),
            is_weight_only: node.schedules.is_weight_only(record, grant),
        }
    };
    ContainerLines {
        id: record.container.id.clone(),
        namespace: record.container.namespace.clone(),
        pod: record.request.pod.clone(),
        priority: record.priority(),
        cards: record.cards.iter().filter(|grant| grant.holds()).map(line).collect(),
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
    }
}

impl CardLine {
    fn row(&self) -> Vec<String> {
        let Self { index, policy, time, memory_used_bytes, memory_total_bytes, containers, .. } = self;
        vec![
            index.to_string(),
            (*policy).to_owned(),
            known_or_dash(time.granted_percent),
            known_or_dash(time.achieved_1s_percent),
            known_or_dash(time.achieved_60s_percent),
            "-".to_owned(),
            "-".to_owned(),
            memory(*memory_used_bytes, *memory_total_bytes),
            "-".to_owned(),
            format!("({containers})"),
        ]
    }
}

impl ContainerCardLine {
    fn row(&self, container: &ContainerLines) -> Vec<String> {
        let busy = match (self.running, self.busy) {
            (Some(Running::Waiting), _) => "waits",
            (_, Some(true)) => "yes",
            (_, Some(false)) => "no",
            (_, None) => "?",
        };
        let granted = if self.exclusive { "whole".to_owned() } else { schedules::shown(self.time.granted_percent) };
        let how = match (container.priority, self.is_weight_only) {
            (Priority::High, false) => "",
            (Priority::High, true) => "weight only",
            (Priority::Low, false) => "low",
            (Priority::Low, true) => "low, weight only",
        };
        vec![
            String::new(),
            how.to_owned(),
            granted,
            schedules::shown(self.time.achieved_1s_percent),
            schedules::shown(self.time.achieved_60s_percent),
            known_or_dash(self.throttled_percent),
            known_or_dash(self.waited_1s_percent),
            memory(self.memory_used_bytes, self.memory_limit_bytes),
            busy.to_owned(),
            match &container.pod {
                Some(pod) => printable(&pod.to_string()),
                None => format!("{}/{}", container.namespace, container.id),
            },
        ]
    }
}

/// Formats a percentage; `-` if there is nothing to know.
fn known_or_dash(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |_| schedules::shown(percent))
}

fn memory(used: Option<Bytes>, of: Bytes) -> String {
    let used = used.map_or_else(|| "?".to_owned(), |used| format!("{}MiB", used.whole_mib()));
    format!("{used} / {}MiB", of.whole_mib())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::test_support;

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
            &["lost_us", "lost_1s_us", "failures", "scheduler_cpu_us", "scheduler_driver_cpu_us"],
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
        let text = frame.table();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].starts_with("0     fixed   10.0%    9.9%  10.0%  -          -       0MiB / 32768MiB  -     (1)"),
            "{text}"
        );
        assert!(lines[2].contains("90.0%") && lines[2].ends_with("yes   default/training"), "{text}");
        assert!(lines[4].contains("whole") && lines[4].ends_with("default/whole"), "{text}");
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn a_pods_container_is_shown_by_its_name() {
        let mut node = test_support::node();
        node.records[0].request.pod = Some(test_support::pod());
        let frame = Frame::new(&node, &MemoryUsage::nothing_runs(), None);
        let text = frame.table();
        assert!(text.contains("yes   team/train-0/main\n") && text.contains("default/whole\n"), "{text}");
        let value = serde_json::to_value(&frame.containers).unwrap();
        assert_eq!((&value[0]["id"], &value[0]["pod"]["pod"]), (&"training".into(), &"train-0".into()));
    }

    #[test]
    fn a_cap_that_is_only_a_weight_is_shown_as_one() {
        assert!(!frame(None).table().contains("weight only"));
        let mut node = test_support::node();
        for status in node.schedules.status.values_mut() {
            status.cards[0].running = Running::Degraded;
        }
        let text = Frame::new(&node, &MemoryUsage::nothing_runs(), None).table();
        assert!(text.contains("weight only"), "{text}");
    }

    #[test]
    fn waits_are_those_of_the_last_second() {
        assert!(frame(None).table().contains("90.0%      3.5%    0MiB / 3276MiB"), "{}", frame(None).table());
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
