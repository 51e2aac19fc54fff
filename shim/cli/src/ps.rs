//! `egpu ps`: the containers that hold cards, those with whole cards too, and those that wait for
//! room.

use std::collections::BTreeSet;

use base::{amounts::human, usage::ProcessUsage};
use ledger::{
    CardGrant, Enforcement, GrantState, Record, Waiter,
    claims::{ClaimContainer, ClaimGrant},
};
use runtime_config::{Bytes, Percent, Weight, request::PodContainer};
use schedule::policy::rules;
use serde::Serialize;

use super::{
    listing::Listing,
    node::Node,
    schedules::{self, CardTime, Schedules},
    table::{Cell, CellState, Column},
    usage::MemoryUsage,
};

/// One container, as `--output json` shows it. Keys are fixed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ContainerListing {
    id: String,
    namespace: String,
    /// Its names in Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<PodContainer>,
    /// The container's init; null while it is being created.
    pid: Option<i32>,
    cards: Vec<GrantListing>,
    exclusive: bool,
    /// It only monitors its cards, and holds nothing.
    monitor: bool,
    /// Time that its work has been held back: it had channels, and they were off their cards.
    throttled_us: u64,
    /// Allocations that were refused.
    denials: u64,
    /// The process of the host that the driver sees in place of the container; null where it sees
    /// the container's own.
    mediator: Option<i32>,
    /// Its processes that use a card, if its mediator reports them.
    processes: Vec<ProcessListing>,
    /// Version of egpu that runs it until it ends; null where it has not said.
    version: Option<String>,
    /// The claim whose request it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<ClaimListing>,
    /// It has nothing yet and waits for room.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitListing>,
}

/// A request of a Kubernetes ResourceClaim, and the containers that use it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ClaimListing {
    namespace: String,
    name: String,
    uid: String,
    request: String,
    containers: Vec<UserListing>,
}

/// A container that uses a claim.
#[derive(Debug, Clone, Serialize)]
pub(super) struct UserListing {
    /// Its name in the pod.
    name: String,
    id: String,
    pid: Option<i32>,
}

/// A container's wait for room.
#[derive(Debug, Clone, Serialize)]
pub(super) struct WaitListing {
    /// RFC 3339.
    since: String,
    /// Its request for GPUs.
    asked: Vec<String>,
}

/// One process of a container.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProcessListing {
    pid: i32,
    pid_in_container: i32,
    memory_used_bytes: Bytes,
}

/// Its grant of one card.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GrantListing {
    index: u32,
    uuid: String,
    /// `MIG-...` where a MIG device is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    mig_uuid: Option<String>,
    memory_limit_bytes: Bytes,
    /// Memory that its processes use, as the driver reports it; null where it does not.
    memory_used_bytes: Option<Bytes>,
    /// Its hard cap, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_percent: Option<u8>,
    /// Its weight, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u16>,
    policy: &'static str,
    /// The part of its grant that it used in the last second, which is the utilization that the
    /// container sees; null where that is not known.
    utilization_percent: Option<u8>,
    #[serde(flatten)]
    time: CardTime,
    /// The card cannot take it off: its cap is only a weight.
    #[serde(skip)]
    is_weight_only: bool,
    /// The card's policy gives it a part of the time that it need not ask for.
    #[serde(skip)]
    has_part: bool,
}

pub(super) fn list(node: &Node, usage: &MemoryUsage) -> Vec<ContainerListing> {
    let waiting = node.waiters.iter().map(waiter);
    node.records.iter().map(|record| container(record, usage, &node.schedules)).chain(waiting).collect()
}

fn waiter(waiter: &Waiter) -> ContainerListing {
    ContainerListing {
        id: waiter.container.id.clone(),
        namespace: waiter.container.namespace.clone(),
        pod: waiter.request.pod.clone(),
        pid: None,
        cards: Vec::new(),
        exclusive: false,
        monitor: false,
        throttled_us: 0,
        denials: 0,
        mediator: None,
        processes: Vec::new(),
        version: None,
        claim: None,
        waiting: Some(WaitListing { since: waiter.since.clone(), asked: waiter.request.asked.clone() }),
    }
}

fn container(record: &Record, usage: &MemoryUsage, schedules: &Schedules) -> ContainerListing {
    let reported = usage.mediated(record);
    let pid = match record.state {
        GrantState::Bound => record.init.map(|init| init.pid),
        GrantState::Prepared | GrantState::Pending => None,
    };
    ContainerListing {
        id: record.container.id.clone(),
        namespace: record.container.namespace.clone(),
        pod: record.request.pod.clone(),
        pid,
        cards: record
            .cards
            .iter()
            .map(|grant| {
                let is_weight_only = schedules.is_weight_only(record, grant);
                card(grant, usage.of(record, &grant.uuid), schedules.time(record, &grant.uuid), is_weight_only)
            })
            .collect(),
        exclusive: record.exclusive,
        monitor: record.cards.iter().all(|grant| grant.enforcement == Enforcement::Monitor),
        throttled_us: schedules.throttled_us(record),
        denials: reported.map_or(0, |reported| reported.denials),
        mediator: record.mediator.map(|mediator| mediator.pid),
        processes: reported.into_iter().flat_map(|reported| &reported.processes).map(process).collect(),
        version: record.egpu_version.clone(),
        claim: record.claim.as_ref().map(claim),
        waiting: None,
    }
}

fn claim(ClaimGrant { claim, request, containers, .. }: &ClaimGrant) -> ClaimListing {
    let user = |user: &ClaimContainer| UserListing {
        name: user.name.clone(),
        id: user.key.id.clone(),
        pid: user.init.map(|init| init.pid),
    };
    ClaimListing {
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
        uid: claim.uid.clone(),
        request: request.clone(),
        containers: containers.iter().map(user).collect(),
    }
}

fn process(process: &ProcessUsage) -> ProcessListing {
    let used = process.cards.iter().fold(0u64, |sum, (_, used)| sum.saturating_add(used.0));
    let ProcessUsage { pid, pid_in_container, .. } = *process;
    ProcessListing { pid, pid_in_container, memory_used_bytes: Bytes(used) }
}

fn card(grant: &CardGrant, used: Option<Bytes>, time: CardTime, is_weight_only: bool) -> GrantListing {
    GrantListing {
        index: grant.index,
        uuid: grant.uuid.clone(),
        mig_uuid: grant.mig_uuid.clone(),
        memory_limit_bytes: grant.memory,
        memory_used_bytes: used,
        compute_percent: grant.compute.cap().map(Percent::get),
        weight: grant.compute.weight().map(Weight::get),
        policy: grant.policy.name(),
        utilization_percent: time.utilization_percent.map(rounded),
        time,
        is_weight_only,
        has_part: rules(grant.policy).promises_time(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped to 0 to 100")]
fn rounded(percent: f64) -> u8 {
    percent.round().clamp(0.0, 100.0) as u8
}

const COLUMNS: [Column; 13] = [
    Column::name("NAMESPACE"),
    Column::name("CONTAINER"),
    Column::new("PID"),
    Column::name("CARD"),
    Column::new("MEMORY"),
    Column::new("COMPUTE"),
    Column::new("POLICY").spare(),
    Column::new("UUID").wide(),
    Column::new("HELD BACK").wide(),
    Column::new("DENIALS").wide(),
    Column::new("MEDIATOR").wide(),
    Column::new("VERSION").wide(),
    Column::name("POD").used(),
];

/// Formats one line for each card of each container, and for each one that waits. Pods have a
/// column if there are any; versions of egpu if there are several, as after a renewal.
pub(super) fn listing(containers: Vec<ContainerListing>) -> Listing<ContainerListing> {
    let holding = containers.iter().filter(|container| container.waiting.is_none());
    let versions: BTreeSet<_> = holding.map(|container| container.version.clone()).collect();
    let mut listing = Listing::new(&COLUMNS, containers, rows);
    for column in listing.columns.iter_mut().filter(|column| column.title == "VERSION" && versions.len() > 1) {
        *column = Column::new(column.title);
    }
    listing
}

fn rows(container: &ContainerListing) -> Vec<Vec<Cell>> {
    let cards = container.cards.iter().enumerate().map(|(position, card)| row(container, position, card));
    cards.chain(container.waiting.as_ref().map(|_| waiting_row(container))).collect()
}

fn waiting_row(container: &ContainerListing) -> Vec<Cell> {
    let pod = container.pod.as_ref().map(PodContainer::to_string).unwrap_or_default();
    let waiting = Cell::from("waiting").in_state(CellState::Warning);
    let mut cells = vec![container.namespace.as_str().into(), container.id.as_str().into(), waiting];
    cells.resize(COLUMNS.len() - 1, Cell::from("-"));
    cells.push(pod.into());
    cells
}

fn row(container: &ContainerListing, position: usize, card: &GrantListing) -> Vec<Cell> {
    let index = match &card.mig_uuid {
        Some(mig) => format!("{} {mig}", card.index),
        None => card.index.to_string(),
    };
    let policy = match (container.exclusive || container.monitor, card.is_weight_only) {
        (true, _) => "-".into(),
        (false, false) => card.policy.into(),
        (false, true) => Cell::from(format!("{} (as a weight only)", card.policy)).in_state(CellState::Warning),
    };
    let of_card = [
        Cell::number(card.index.into(), index),
        memory(container, card),
        compute(container, card),
        policy,
        card.uuid.as_str().into(),
    ];
    // Of a container with several cards, only the first line names it.
    let (names, of_container) = if position == 0 { of_container(container) } else { Default::default() };
    let pod = container.pod.as_ref().filter(|_| position == 0).map(PodContainer::to_string).unwrap_or_default();
    names.into_iter().chain(of_card).chain(of_container).chain([pod.into()]).collect()
}

/// The cells before those of a card, and after them.
fn of_container(container: &ContainerListing) -> ([Cell; 3], [Cell; 4]) {
    let number = |pid: i32| Cell::number(pid.unsigned_abs().into(), pid.to_string());
    let pid = container.pid.map_or_else(|| Cell::from("being created").in_state(CellState::Warning), number);
    let held_back_us = container.throttled_us;
    let held_back =
        Cell::number(held_back_us, format!("{}.{} s", held_back_us / 1_000_000, held_back_us % 1_000_000 / 100_000));
    let denials = Cell::number(container.denials, container.denials.to_string());
    let mediator = container.mediator.map_or_else(|| "-".into(), number);
    let version = container.version.as_deref().unwrap_or("?").into();
    let names = [container.namespace.as_str().into(), container.id.as_str().into(), pid];
    (names, [held_back, denials, mediator, version])
}

fn memory(container: &ContainerListing, card: &GrantListing) -> Cell {
    let used = card.memory_used_bytes.map_or_else(|| "?".to_owned(), human);
    let of = if container.monitor { "-".to_owned() } else { human(card.memory_limit_bytes) };
    let is_full = card.memory_used_bytes.is_some_and(|used| used >= card.memory_limit_bytes) && !container.monitor;
    let state = if is_full { CellState::Warning } else { CellState::Plain };
    Cell::amount(card.memory_used_bytes, format!("{used} / {of}")).in_state(state)
}

fn compute(container: &ContainerListing, card: &GrantListing) -> Cell {
    let achieved = schedules::shown(card.time.achieved_1s_percent);
    let text = match (card.compute_percent, card.weight) {
        _ if container.monitor => "monitor".to_owned(),
        _ if container.exclusive => "whole".to_owned(),
        (Some(percent), _) => format!("{percent}% / {achieved}"),
        (None, Some(weight)) => format!("weight {weight} / {achieved}"),
        (None, None) if card.has_part => format!("{} / {achieved}", schedules::shown(card.time.granted_percent)),
        (None, None) => format!("no limit / {achieved}"),
    };
    Cell::percent(card.time.achieved_1s_percent, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{self, shown};

    fn table(containers: &[ContainerListing]) -> String {
        shown(listing(containers.to_vec()), &[])
    }

    #[test]
    fn json_keys_are_fixed() {
        let containers = list(&test_support::node(), &MemoryUsage::nothing_runs());
        let value = serde_json::to_value(&containers).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            keys(&value[0]),
            [
                "id",
                "namespace",
                "pid",
                "cards",
                "exclusive",
                "monitor",
                "throttled_us",
                "denials",
                "mediator",
                "processes",
                "version",
            ]
        );
        assert_eq!(
            keys(&value[0]["cards"][0]),
            [
                "index",
                "uuid",
                "memory_limit_bytes",
                "memory_used_bytes",
                "compute_percent",
                "policy",
                "utilization_percent",
                "granted_percent",
                "achieved_1s_percent",
                "achieved_60s_percent",
            ]
        );
        assert_eq!(value[0]["id"], "training");
        assert_eq!(value[0]["pid"], 4711);
        assert_eq!(value[0]["cards"][0]["memory_limit_bytes"], 3_435_134_976_u64);
        assert_eq!(value[0]["cards"][0]["memory_used_bytes"], 0);
        assert_eq!(value[0]["cards"][0]["compute_percent"], 10);
        assert_eq!(
            value[0]["cards"][0]["utilization_percent"], 99,
            "9.87 % of the card are 98.7 of the 10 that it has"
        );
        assert_eq!(value[1]["exclusive"], true);
        assert_eq!(value[1]["pid"], serde_json::Value::Null);
        assert_eq!(list(&test_support::empty_node(), &MemoryUsage::nothing_runs()).len(), 0);
    }

    #[test]
    fn sizes_are_shown_in_the_units_that_people_read() {
        let text = table(&list(&test_support::node(), &MemoryUsage::nothing_runs()));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("0 B / 3.2 GiB"), "{text}");
        assert!(lines[2].contains("0 B / 32 GiB"), "{text}");
        assert!(lines[2].contains("whole"), "{text}");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_part_that_a_policy_gives_is_shown() {
        use runtime_config::request::{CardPolicy, ComputeShare};

        let mut node = test_support::node();
        let grant = &mut node.records[0].cards[0];
        (grant.policy, grant.compute) = (CardPolicy::Fair, ComputeShare::Unlimited);
        let text = table(&list(&node, &MemoryUsage::nothing_runs()));
        assert!(text.contains("10.0% / 9.9%"), "{text}");
        node.records[0].cards[0].policy = CardPolicy::Native;
        let text = table(&list(&node, &MemoryUsage::nothing_runs()));
        assert!(text.contains("no limit / 9.9%"), "{text}");
    }

    #[test]
    fn pods_are_named_where_there_are_any() {
        let mut node = test_support::node();
        let both = |node: &Node| {
            let containers = list(node, &MemoryUsage::nothing_runs());
            (table(&containers), serde_json::to_value(containers).unwrap())
        };
        let (text, value) = both(&node);
        assert!(text.lines().next().unwrap().ends_with("  POLICY") && value[0].get("pod").is_none(), "{text}");
        node.records[0].request.pod = Some(PodContainer { pod: "train\x1b[2J".to_owned(), ..test_support::pod() });
        let (text, value) = both(&node);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("  POLICY  POD"), "{text}");
        assert!(lines[1].ends_with("  fixed   team/train?[2J/main") && lines[2].ends_with("  -"), "{text}");
        assert_eq!((&value[0]["pod"]["namespace"], value[1].get("pod")), (&"team".into(), None));
    }

    #[test]
    fn who_waits_is_shown_after_those_who_hold() {
        let mut node = test_support::node();
        node.waiters = vec![test_support::waiter("late")];
        let containers = list(&node, &MemoryUsage::nothing_runs());
        let text = table(&containers);
        assert!(
            text.lines().last().is_some_and(|line| line.starts_with("default") && line.contains("late  ")),
            "{text}"
        );
        assert!(text.lines().last().is_some_and(|line| line.contains("waiting")), "{text}");
        let value = serde_json::to_value(&containers).unwrap();
        let waiting = serde_json::json!({ "since": "2026-01-02T03:04:05Z", "asked": ["EGPU_MEMORY=1GiB"] });
        assert_eq!((&value[2]["waiting"], &value[2]["cards"]), (&waiting, &serde_json::json!([])));
        assert!(value[0].get("waiting").is_none());
    }

    #[test]
    fn the_usage_that_a_mediator_reports_is_shown() {
        use base::usage::CardUsage;
        let mut node = test_support::node();
        let record = &mut node.records[0];
        record.mediator = Some(ledger::ProcessId { pid: 4712, start_time: 3 });
        let card = CardUsage {
            uuid: record.cards[0].uuid.clone(),
            used: Bytes(100 * Bytes::MIB),
            limit: record.cards[0].memory,
            peak: Bytes(200 * Bytes::MIB),
            channels_used: 20,
            channels_limit: 512,
        };
        let process = ProcessUsage {
            pid: 4720,
            pid_in_container: 7,
            cards: vec![(card.uuid.clone(), Bytes(60)), ("GPU-other".into(), Bytes(40))],
        };
        let reported = base::usage::Usage {
            cards: vec![card],
            processes: vec![process],
            denials: 3,
            ..base::usage::Usage::default()
        };
        let usage = MemoryUsage::reported(&node.records[0], reported);
        let containers = list(&node, &usage);
        assert!(table(&containers).contains("100 MiB / 3.2 GiB"));
        let value = serde_json::to_value(&containers).unwrap();
        assert_eq!((&value[0]["denials"], &value[0]["mediator"]), (&3.into(), &4712.into()));
        let process = serde_json::json!({ "pid": 4720, "pid_in_container": 7, "memory_used_bytes": 100 });
        assert_eq!(value[0]["processes"], serde_json::json!([process]));
        assert_eq!(value[1]["processes"], serde_json::json!([]));
    }

    #[test]
    fn a_cap_that_is_only_a_weight_is_shown_as_one() {
        let mut node = test_support::node();
        let text = |node: &Node| table(&list(node, &MemoryUsage::nothing_runs()));
        assert!(!text(&node).contains("weight only"));
        node.records[0].cards[0].compute_by = ledger::ComputeEnforcement::WeightsOnly;
        assert!(text(&node).contains("10% / 9.9%  fixed (as a weight only)"), "{}", text(&node));
        let mut node = test_support::node();
        for status in node.schedules.status.values_mut() {
            status.cards[0].running = schedule::Running::Degraded;
        }
        assert!(text(&node).contains("fixed (as a weight only)"), "{}", text(&node));
    }

    #[test]
    fn versions_have_a_column_while_there_are_several() {
        let mut node = test_support::node();
        let text = |node: &Node| table(&list(node, &MemoryUsage::nothing_runs()));
        assert!(!text(&node).contains("VERSION"));
        node.waiters = vec![test_support::waiter("late")];
        assert!(!text(&node).contains("VERSION"), "who waits has none yet");
        node.records[0].egpu_version = Some("0.2.0 (abc)".to_owned());
        let both = text(&node);
        let lines: Vec<&str> = both.lines().collect();
        assert!(lines[0].ends_with("POLICY  VERSION"), "{both}");
        assert!(lines[1].ends_with("  0.2.0 (abc)") && lines[2].ends_with("  0.1.0"), "{both}");
        node.records[0].egpu_version = None;
        assert!(text(&node).lines().nth(1).unwrap().ends_with("  ?"), "an older version did not say");
    }

    #[test]
    fn what_the_driver_does_not_say_is_not_made_up() {
        let text = table(&list(&test_support::node(), &MemoryUsage::unknown()));
        assert!(text.contains("? / 3.2 GiB"), "{text}");
    }

    #[test]
    fn wide_shows_all_that_is_known() {
        let containers = list(&test_support::node(), &MemoryUsage::nothing_runs());
        let text = shown(listing(containers), &["-o", "wide"]);
        assert!(text.contains("  HELD BACK  DENIALS  MEDIATOR  VERSION\n"), "{text}");
        assert!(text.contains("  9.0 s      0        -         0.1.0\n"), "{text}");
    }
}
