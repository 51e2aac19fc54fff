//! Families of metrics.
//!
//! There is at most one sample for each container and card, or for each of a fixed set of words:
//! labels are bounded by what the node runs.

use base::usage::{self, CardUsage};
use cards::{Card, Health, Source};
use ledger::{
    CardGrant, CardState, ComputeEnforcement, Enforcement, GrantState, Record,
    event_log::{Kind, Totals},
};
use runtime_config::request::{ComputeShare, Priority};
use schedule::{CardStatus, Running, WAIT_BOUNDS_US};

use super::exposition::{
    Exposition, Histogram, Labels,
    Type::{Counter, Gauge},
    Value,
};
use crate::{
    node::Node,
    schedules::{self, CardTime},
    usage::MemoryUsage,
};

/// Snapshot of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot<'a> {
    pub(super) node: &'a Node,
    pub(super) usage: &'a MemoryUsage,
    /// Numbers of events by kind; `None`: not known.
    pub(super) events: Option<&'a Totals>,
}

/// Metrics of a node.
pub(super) fn exposition(snapshot: &Snapshot<'_>) -> String {
    let mut text = Exposition::default();
    node(&mut text, snapshot);
    let containers: Vec<ContainerMetrics<'_>> =
        snapshot.node.records.iter().map(|record| ContainerMetrics::new(snapshot, record)).collect();
    let parts: Vec<Part<'_>> = containers.iter().flat_map(|container| Part::all(snapshot, container)).collect();
    cards(&mut text, snapshot.node, &parts);
    of_containers(&mut text, &containers);
    memory(&mut text, &parts);
    time(&mut text, &parts);
    waits(&mut text, &parts);
    schedule(&mut text, &parts);
    text.into_text()
}

fn node(text: &mut Exposition, Snapshot { node, events, .. }: &Snapshot<'_>) {
    let build = Labels::new(&[("version", env!("CARGO_PKG_VERSION"))]);
    text.family(("egpu_build_info", Gauge), "The egpu that tells this.", [(build, true.into())]);
    let source = if node.inventory.source == Source::Simulated { "simulated" } else { "nvidia" };
    let driver = Labels::new(&[("version", &node.inventory.driver_version), ("source", source)]);
    text.family(("egpu_driver_info", Gauge), "The driver of the node's cards.", [(driver, true.into())]);
    let grants = |state: GrantState| node.records.iter().filter(|record| record.state == state).count();
    let states = [("prepared", GrantState::Prepared), ("pending", GrantState::Pending), ("bound", GrantState::Bound)];
    let grants = states.map(|(name, state)| (Labels::new(&[("state", name)]), grants(state).into()));
    text.family(
        ("egpu_grants", Gauge),
        "Grants in the ledger; pending: the container is being created; prepared: a claim's that no container uses.",
        grants,
    );
    let waiting = node.waiters.len();
    text.family(
        ("egpu_containers_waiting", Gauge),
        "Containers whose create waits for room.",
        [(Labels::default(), waiting.into())],
    );
    let overdue = node.records.iter().filter(|record| is_overdue(node, record)).count();
    let help = "Containers whose mediator did not tell of its schedule in time.";
    text.family(("egpu_schedules_overdue", Gauge), help, [(Labels::default(), overdue.into())]);
    let Some(events) = events else { return };
    let known = Kind::ALL.map(Kind::name);
    let other: u64 = events.iter().filter(|(kind, _)| !known.contains(&kind.as_str())).map(|(_, count)| *count).sum();
    let reported = known.map(|kind| (Labels::new(&[("kind", kind)]), events.get(kind).copied().unwrap_or(0).into()));
    let other = (other > 0).then(|| (Labels::new(&[("kind", "other")]), other.into()));
    let help = "What happened since the machine's start, as `egpu events` tells it.";
    text.family(("egpu_events_total", Counter), help, reported.into_iter().chain(other));
}

/// Returns whether its status is late by two of its intervals.
fn is_overdue(node: &Node, record: &Record) -> bool {
    let late_by = node.schedules.status(record).and_then(|status| status.late_by(node.schedules.now_us));
    late_by.is_some_and(|(late, interval)| late > interval * 2)
}

fn cards(text: &mut Exposition, node: &Node, parts: &[Part<'_>]) {
    let all: Vec<(Labels, &Card, &CardState)> = node
        .inventory
        .cards
        .iter()
        .zip(&node.cards)
        .map(|(card, state)| (card_labels(card.index, &card.uuid), card, state))
        .collect();
    let mut family = |name: &str, help: &str, value: &dyn Fn(&Card, &CardState) -> Option<Value>| {
        let samples = all.iter().filter_map(|(labels, card, state)| Some((labels.clone(), value(card, state)?)));
        text.family((name, Gauge), help, samples);
    };
    let of_card = |state: &CardState| parts.iter().filter(|part| part.grant.uuid == state.uuid).collect::<Vec<_>>();
    family("egpu_card_memory_total_bytes", "Memory of the card.", &|_, state| Some(state.memory_total.0.into()));
    let help = "What may be granted of the card's memory in all.";
    family("egpu_card_memory_grantable_bytes", help, &|_, state| Some(state.memory_grantable.0.into()));
    let help = "What is granted of the card's memory.";
    family("egpu_card_memory_granted_bytes", help, &|_, state| Some(state.memory_granted.0.into()));
    family("egpu_card_memory_used_bytes", "What the card's containers use of its memory.", &|_, state| {
        let mut used = of_card(state).into_iter().map(|part| part.memory_used);
        used.try_fold(0u64, |sum, used| Some(sum.saturating_add(used?))).map(Value::from)
    });
    let help = "Part of the card's time that is promised.";
    family("egpu_card_compute_granted_ratio", help, &|_, state| {
        Some(Value::ratio(state.compute_granted_percent.into()))
    });
    family("egpu_card_containers", "Containers that hold a part of the card.", &|_, state| {
        Some(state.containers.len().into())
    });
    let help = "Containers that only look at the card.";
    family("egpu_card_monitors", help, &|_, state| Some(state.monitors.len().into()));
    let help = "How often the card's containers have their turns.";
    family("egpu_card_period_seconds", help, &|_, state| Some(Value::seconds(node.period_us(state))));
    let help = "One container has the whole card.";
    family("egpu_card_exclusive", help, &|_, state| Some(state.exclusive.into()));
    let help = "The card is offered: it is there, and healthy.";
    family("egpu_card_usable", help, &|card, _| Some((card.health == Health::Ok).into()));
    let help = "The card can take containers off, and so hold them to a part of its time; 0: weights only.";
    family("egpu_card_hard_caps", help, &|card, _| Some(card.hard_caps.into()));
    let simulated = node.inventory.source == Source::Simulated;
    family("egpu_card_simulated", "The card is made up.", &|_, _| Some(simulated.into()));
    let info = |(labels, card, state): &(Labels, &Card, &CardState)| {
        let labels = labels.clone().and("model", &card.model).and("pci", &card.pci.to_string());
        (labels.and("policy", node.policy(state).name()), true.into())
    };
    text.family(("egpu_card_info", Gauge), "What the card is, and how it is shared.", all.iter().map(info));
    let achieved = all.iter().flat_map(|(labels, _, state)| {
        let own = of_card(state);
        let sum = |of: fn(&CardTime) -> Option<f64>| schedules::sum(own.iter().map(|part| of(&part.time)));
        windows(labels, sum(|time| time.achieved_1s_percent), sum(|time| time.achieved_60s_percent))
    });
    let help = "Part of the card's time that its containers achieved.";
    text.family(("egpu_card_compute_achieved_ratio", Gauge), help, achieved.collect::<Vec<_>>());
}

fn card_labels(index: u32, uuid: &str) -> Labels {
    Labels::new(&[("card", &index.to_string()), ("uuid", uuid)])
}

/// Returns the samples of the last second and the last minute, as far as they are known.
fn windows(labels: &Labels, second: Option<f64>, minute: Option<f64>) -> impl Iterator<Item = (Labels, Value)> {
    let labels = labels.clone();
    let known = [("1s", second), ("60s", minute)].into_iter();
    known.filter_map(move |(window, percent)| Some((labels.clone().and("window", window), Value::ratio(percent?))))
}

/// A container, and its labels.
struct ContainerMetrics<'a> {
    record: &'a Record,
    labels: Labels,
    reported: Option<&'a usage::Usage>,
}

impl<'a> ContainerMetrics<'a> {
    fn new(snapshot: &Snapshot<'a>, record: &'a Record) -> Self {
        let key = &record.container;
        let labels = Labels::new(&[("containerd", &key.containerd), ("namespace", &key.namespace), ("id", &key.id)]);
        let labels = match &record.request.pod {
            Some(pod) => {
                labels.and("pod_namespace", &pod.namespace).and("pod", &pod.pod).and("container", &pod.container)
            }
            None => labels,
        };
        Self { record, labels, reported: snapshot.usage.mediated(record) }
    }
}

fn of_containers(text: &mut Exposition, containers: &[ContainerMetrics<'_>]) {
    let info = containers.iter().map(|container| {
        let record = container.record;
        let priority = match record.priority() {
            Priority::High => "high",
            Priority::Low => "low",
        };
        (container.labels.clone().and("share", share(record)).and("priority", priority), true.into())
    });
    text.family(("egpu_container_info", Gauge), "A container that holds or looks at cards.", info);
    let reported = |value: fn(&usage::Usage) -> u64| {
        containers
            .iter()
            .filter_map(move |container| Some((container.labels.clone(), value(container.reported?).into())))
    };
    let kind = |kind: &'static str| move |(labels, value): (Labels, Value)| (labels.and("kind", kind), value);
    let denials = reported(|reported| reported.denials).map(kind("memory"));
    let unknown = reported(|reported| reported.unknown_refused).map(kind("unknown-call"));
    let bounds = reported(|reported| reported.refused_by_bounds).map(kind("bound"));
    let driver = reported(|reported| reported.refused_by_driver).map(kind("driver"));
    let help = "Driver calls that were refused: over the memory that the container may have, over another bound of it, by \
                the driver itself for want of memory or resources, or not known to egpu.";
    text.family(("egpu_container_denials_total", Counter), help, denials.chain(bounds).chain(driver).chain(unknown));
    let help = "Processes that were ended for asking for more memory than the container may have.";
    text.family(("egpu_container_kills_total", Counter), help, reported(|reported| reported.kills));
    text.family(("egpu_container_driver_calls_total", Counter), "Driver calls.", reported(|reported| reported.calls));
    let help = "Processes of the container that use the driver.";
    text.family(("egpu_container_processes", Gauge), help, reported(|reported| reported.processes.len() as u64));
    // A monitor may have none, and an older mediator does not report it.
    let pinned = |value: fn(&usage::Usage) -> u64| {
        let limited = containers.iter().filter_map(|container| Some((container, container.reported?)));
        let limited = limited.filter(|(_, reported)| reported.pinned_memory_limit_bytes.0 > 0);
        limited.map(move |(container, reported)| (container.labels.clone(), value(reported).into()))
    };
    let help = "Host memory that the driver may pin for the container.";
    text.family(
        ("egpu_container_pinned_memory_limit_bytes", Gauge),
        help,
        pinned(|reported| reported.pinned_memory_limit_bytes.0),
    );
    let help = "Host memory that the driver has pinned for the container, or keeps for what the container has pinned.";
    text.family(
        ("egpu_container_pinned_memory_used_bytes", Gauge),
        help,
        pinned(|reported| reported.pinned_memory_used_bytes.0),
    );
    of_mediators(text, containers);
}

fn of_mediators(text: &mut Exposition, containers: &[ContainerMetrics<'_>]) {
    // An older mediator does not report it.
    let told = |value: fn(&usage::MediatorCost) -> Value| {
        let told = move |container: &ContainerMetrics<'_>| {
            Some((container.labels.clone(), value(container.reported?.mediator.as_ref()?)))
        };
        containers.iter().filter_map(told)
    };
    let mut family = |name, of, help, value| text.family((name, of), help, told(value));
    family(
        "egpu_container_mediator_processor_seconds_total",
        Counter,
        "Processor time of the container's mediator, which no cgroup of the container's counts.",
        |cost| Value::seconds(cost.processor_us),
    );
    family(
        "egpu_container_mediator_processors_limit",
        Gauge,
        "Processors that the container's mediator may use for long.",
        #[expect(clippy::cast_precision_loss, reason = "the configuration bounds it")]
        |cost| Value::from(cost.processor_limit_millis as f64 / 1000.0),
    );
    family(
        "egpu_container_mediator_held_back_seconds_total",
        Counter,
        "Time for which driver calls of the container waited for processor time of its mediator.",
        |cost| Value::seconds(cost.held_back_us),
    );
    family(
        "egpu_container_mediator_memory_used_bytes",
        Gauge,
        "The host's memory that the container's mediator has.",
        |cost| cost.memory_used_bytes.0.into(),
    );
    family(
        "egpu_container_mediator_memory_limit_bytes",
        Gauge,
        "The host's memory that the container's mediator may have.",
        |cost| cost.memory_limit_bytes.0.into(),
    );
    family(
        "egpu_container_mediator_listeners",
        Gauge,
        "Processes started in the container (its first one, execs, OOM scripts) of which some are left.",
        |cost| u64::from(cost.listeners).into(),
    );
    family(
        "egpu_container_mediator_listeners_limit",
        Gauge,
        "The most of them; no further exec begins then.",
        |cost| u64::from(cost.listeners_limit).into(),
    );
}

fn share(record: &Record) -> &'static str {
    if record.cards.iter().all(|grant| grant.enforcement == Enforcement::Monitor) {
        "monitor"
    } else if record.exclusive {
        "whole"
    } else {
        "part"
    }
}

/// A container on one card.
struct Part<'a> {
    labels: Labels,
    grant: &'a CardGrant,
    is_whole: bool,
    memory_used: Option<u64>,
    reported: Option<&'a CardUsage>,
    time: CardTime,
    status: Option<&'a CardStatus>,
}

impl<'a> Part<'a> {
    fn all(snapshot: &Snapshot<'a>, container: &ContainerMetrics<'a>) -> Vec<Self> {
        let (node, record) = (snapshot.node, container.record);
        let part = |grant: &'a CardGrant| {
            let index = node.inventory.by_uuid(&grant.uuid).map_or(grant.index, |card| card.index);
            let labels = container.labels.clone().and("card", &index.to_string()).and("uuid", &grant.uuid);
            Self {
                labels: labels.and_if("mig_uuid", grant.mig_uuid.as_deref()),
                grant,
                is_whole: grant.exclusive,
                memory_used: snapshot.usage.of(record, &grant.uuid).map(|used| used.0),
                reported: container
                    .reported
                    .and_then(|reported| reported.cards.iter().find(|card| card.uuid == grant.uuid)),
                time: node.schedules.time(record, &grant.uuid),
                status: node.schedules.card(record, &grant.uuid),
            }
        };
        record.cards.iter().map(part).collect()
    }
}

fn samples<'a>(
    parts: &'a [Part<'_>],
    value: impl Fn(&Part<'_>) -> Option<Value> + 'a,
) -> impl Iterator<Item = (Labels, Value)> + 'a {
    parts.iter().filter_map(move |part| Some((part.labels.clone(), value(part)?)))
}

fn memory(text: &mut Exposition, parts: &[Part<'_>]) {
    // A monitor has no meaningful limit.
    let limit = samples(parts, |part| part.grant.holds().then(|| part.grant.memory.0.into()));
    text.family(
        ("egpu_container_memory_limit_bytes", Gauge),
        "What the container may have of the card's memory.",
        limit,
    );
    let used = samples(parts, |part| part.memory_used.map(Value::from));
    text.family(("egpu_container_memory_used_bytes", Gauge), "What the container has of the card's memory.", used);
    let peak = samples(parts, |part| part.reported.map(|reported| reported.peak.0.into()));
    text.family(("egpu_container_memory_peak_bytes", Gauge), "The most that it ever had of it.", peak);
    let channels = |part: &Part<'_>, value: fn(&CardUsage) -> u32| {
        part.reported.filter(|reported| reported.channels_limit > 0).map(|reported| u64::from(value(reported)).into())
    };
    let limit = samples(parts, move |part| channels(part, |reported| reported.channels_limit));
    text.family(("egpu_container_channels_limit", Gauge), "Channels that the container may have of the card.", limit);
    let used = samples(parts, move |part| channels(part, |reported| reported.channels_used));
    text.family(("egpu_container_channels_used", Gauge), "Channels that the container has of the card.", used);
}

fn time(text: &mut Exposition, parts: &[Part<'_>]) {
    let cap = samples(parts, |part| match part.grant.compute {
        ComputeShare::Cap { percent, .. } => Some(Value::ratio(percent.get().into())),
        ComputeShare::Weight(_) | ComputeShare::Unlimited => None,
    });
    let help = "The part of the card's time that the container asked for.";
    text.family(("egpu_container_compute_limit_ratio", Gauge), help, cap);
    let weight = samples(parts, |part| match part.grant.compute {
        ComputeShare::Weight(weight) => Some(u64::from(weight.get()).into()),
        ComputeShare::Cap { .. } | ComputeShare::Unlimited => None,
    });
    text.family(("egpu_container_compute_weight", Gauge), "The container's weight among those of its card.", weight);
    let granted = samples(parts, |part| match part.is_whole {
        true => Some(Value::ratio(100.0)),
        false => part.time.granted_percent.map(Value::ratio),
    });
    let help = "The part of the card's time that is granted to the container beside the others that are there now.";
    text.family(("egpu_container_compute_granted_ratio", Gauge), help, granted);
    let achieved = parts.iter().flat_map(|part| {
        windows(&part.labels, part.time.achieved_1s_percent, part.time.achieved_60s_percent).collect::<Vec<_>>()
    });
    let help = "The part of the card's time that the container achieved.";
    text.family(("egpu_container_compute_achieved_ratio", Gauge), help, achieved);
    let mut seconds = |name: &str, help: &str, us: fn(&CardStatus) -> Option<u64>| {
        let samples = samples(parts, |part| us(part.status?).map(Value::seconds));
        text.family((name, Counter), help, samples);
    };
    let help = "Time during which the container had channels, and they were kept off the card.";
    seconds("egpu_container_throttled_seconds_total", help, |status| Some(status.throttled_us));
    let help = "Time during which the container's channels were on the card, alone or beside others'.";
    seconds("egpu_container_on_card_seconds_total", help, |status| Some(status.open_us));
    let help = "Card time that the container used: its windows in which anything ran, or, where it has none, its time on the compute \
                engine, but no more than the card was busy.";
    seconds("egpu_container_busy_seconds_total", help, |status| status.used_us);
    let help = "Time of its turns that the container did not get, and will not.";
    seconds("egpu_container_turn_lost_seconds_total", help, |status| Some(status.lost_us));
    let help = "Time that the card lost in switches of contexts to the container from others.";
    seconds("egpu_container_switching_seconds_total", help, |status| status.switching_us);
    let help = "Time that putting the container on its cards and taking it off waited in the driver.";
    seconds("egpu_container_schedule_wait_seconds_total", help, |status| Some(status.edge_wait_us));
}

fn waits(text: &mut Exposition, parts: &[Part<'_>]) {
    let samples = parts.iter().filter_map(|part| Some((part.labels.clone(), waits_of(part.status?)?)));
    let help = "Times for which the container had work and not the card, estimated from looks some 20 ms apart at what its compute \
                channels have submitted; only where others share the card or it has turns.";
    text.histograms("egpu_container_wait_seconds", help, samples);
}

/// Returns the waits by their lengths; `None`: not known, or counted by other bounds.
fn waits_of(status: &CardStatus) -> Option<Histogram> {
    let (above, counts) = status.waits.split_last()?;
    let is_by_bounds = counts.len() == WAIT_BOUNDS_US.len();
    let bounds = WAIT_BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
    let buckets = bounds.zip(counts.iter().copied()).collect();
    is_by_bounds.then_some(Histogram { buckets, above: *above, sum: Value::seconds(status.waited_us?) })
}

fn schedule(text: &mut Exposition, parts: &[Part<'_>]) {
    let mut counter = |name: &str, help: &str, count: fn(&CardStatus) -> u64| {
        text.family((name, Counter), help, samples(parts, |part| Some(count(part.status?).into())));
    };
    let help = "How often the container was put on the card or taken off.";
    counter("egpu_container_schedule_edges_total", help, |status| status.edges);
    let help = "How often that began late by more than a millisecond.";
    counter("egpu_container_schedule_late_edges_total", help, |status| status.late_edges);
    let help = "Calls for that which the driver refused.";
    counter("egpu_container_schedule_failures_total", help, |status| status.failures);
    let degraded = samples(parts, |part| {
        let admitted = part.grant.compute_by == ComputeEnforcement::WeightsOnly;
        let running = part.status.map(|status| status.running == Running::Degraded);
        let shared = part.grant.is_shared() && part.grant.enforcement == Enforcement::Mediated;
        (shared && (admitted || running.is_some())).then(|| (admitted || running == Some(true)).into())
    });
    let help = "The card cannot take the container off: its cap is only a weight.";
    text.family(("egpu_container_weights_only", Gauge), help, degraded);
}
