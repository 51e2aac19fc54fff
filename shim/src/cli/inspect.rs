//! `egpu inspect`: one container's whole record.

use std::{fmt::Write, slice};

use nvidia_glue::{
    ledger::{CardGrant, ComputeEnforcement, ContainerName, Enforcement, GrantState, Record},
    schedule::{CardStatus, CardTurn, Pass, Running, Status, Turn, Window},
    usage::Usage,
};
use runtime_config::{
    config::PriorityMode,
    request::{ComputeShare, Priority},
};
use serde::Serialize;

use super::{
    Exit, Output, container_name,
    error::CliError,
    node,
    output::printable,
    schedules::{self, Schedules},
    usage, without_gpu,
};

/// Arguments of `egpu inspect`.
#[derive(Debug, clap::Args)]
pub(super) struct InspectArguments {
    /// The container: its id or enough of its beginning, NAMESPACE/ID, POD, NAMESPACE/POD or
    /// NAMESPACE/POD/CONTAINER
    id: String,
    /// containerd's namespace or the pod's, where several have a container of that name
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) fn run(arguments: &InspectArguments) -> Result<Exit, CliError> {
    let config = super::load()?;
    let (granted, without_gpu) = (node::records(&config)?, without_gpu::list(&config.state_dir));
    let record = match find(&granted, &without_gpu, &arguments.id, arguments.namespace.as_deref())? {
        InspectedContainer::Granted(record) => record,
        InspectedContainer::WithoutGpu(reported) => {
            return super::show(arguments.output, reported, || without_gpu::text(reported));
        }
    };
    let usage = usage::mediated(&config.state_dir, record).unwrap_or_else(|error| {
        super::say(&format!("egpu: {}", super::chain(&error)));
        None
    });
    let (schedules, warnings) = Schedules::read(&config.state_dir, slice::from_ref(record));
    for warning in warnings {
        super::say(&format!("egpu: {warning}"));
    }
    let inspected = Inspected::new(record, usage, &schedules);
    super::show(arguments.output, &inspected, || text(&inspected))
}

/// A container that can be inspected.
#[derive(Debug, Clone, Copy)]
enum InspectedContainer<'a> {
    Granted(&'a Record),
    WithoutGpu(&'a without_gpu::ContainerWithoutGpu),
}

impl<'a> From<&'a InspectedContainer<'_>> for ContainerName<'a> {
    fn from(container: &'a InspectedContainer<'_>) -> Self {
        match *container {
            InspectedContainer::Granted(record) => record.into(),
            InspectedContainer::WithoutGpu(reported) => reported.into(),
        }
    }
}

/// Looks a name up among both together: one that fits a container of each is refused.
fn find<'a>(
    granted: &'a [Record],
    without_gpu: &'a [without_gpu::ContainerWithoutGpu],
    wanted: &str,
    namespace: Option<&str>,
) -> Result<InspectedContainer<'a>, CliError> {
    let without_gpu = without_gpu.iter().map(InspectedContainer::WithoutGpu);
    let all: Vec<InspectedContainer<'a>> = granted.iter().map(InspectedContainer::Granted).chain(without_gpu).collect();
    container_name::find(&all, wanted, namespace).copied()
}

/// A container's record, and the reports of its mediator.
#[derive(Debug, Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    record: &'a Record,
    /// Null where it has no mediator.
    usage: Option<Usage>,
    /// Its turn; null where it shares no card.
    turn: Option<&'a Turn>,
    /// Its next turn; null where nothing changes.
    next_turn: Option<NextTurn<'a>>,
    /// The schedule that its mediator reports; null where it has none.
    schedule: Option<&'a Status>,
}

/// A turn that is not in force yet.
#[derive(Debug, Serialize)]
struct NextTurn<'a> {
    in_us: u64,
    #[serde(flatten)]
    turn: &'a Turn,
}

impl<'a> Inspected<'a> {
    fn new(record: &'a Record, usage: Option<Usage>, schedules: &'a Schedules) -> Self {
        let next_turn = schedules.next_turn(record).map(|(in_us, turn)| NextTurn { in_us, turn });
        Self { record, usage, turn: schedules.turn(record), next_turn, schedule: schedules.status(record) }
    }
}

/// Formats it for people.
fn text(inspected: &Inspected<'_>) -> String {
    let Inspected { record, usage, turn, next_turn, schedule } = inspected;
    let request = &record.request;
    let mut lines: Vec<(&str, String)> = vec![
        ("container", record.container.to_string()),
        ("containerd", record.container.containerd.clone()),
        (
            "state",
            match record.state {
                GrantState::Prepared => "prepared for its pod, used by no container".to_owned(),
                GrantState::Pending => "reserved, being created".to_owned(),
                GrantState::Bound => "in use".to_owned(),
            },
        ),
        ("init", record.init.map_or_else(|| "-".to_owned(), |init| init.pid.to_string())),
        ("shim", if record.state == GrantState::Prepared { "-".to_owned() } else { record.shim.pid.to_string() }),
        ("mediator", record.mediator.map_or_else(|| "-".to_owned(), |mediator| mediator.pid.to_string())),
        ("grant", record.grant_id.clone()),
        ("admitted", record.admitted_at.clone()),
        ("version", record.egpu_version.clone().unwrap_or_else(|| "-".to_owned())),
        ("order", record.order.to_string()),
    ];
    lines.extend(request.pod.iter().map(|pod| ("pod", pod.to_string())));
    if let Some(grant) = &record.claim {
        let claim = &grant.claim;
        lines.push(("claim", format!("{}/{} request {} ({})", claim.namespace, claim.name, grant.request, claim.uid)));
        lines.extend(grant.containers.iter().map(|user| ("used by", format!("{} [{}]", user.name, user.key))));
    }
    lines.extend(record.cgroups.iter().map(|cgroup| ("cgroup", cgroup.clone())));
    lines.push(("dialect", request.dialect.to_string()));
    lines.extend(request.asked.iter().map(|asked| ("asked", asked.clone())));
    lines.extend(request.warnings.iter().map(|warning| ("warning", warning.clone())));
    lines.push(("capabilities", request.driver_capabilities.names()));
    lines.push(("may change live", if request.live_update { "yes" } else { "no" }.to_owned()));
    lines.extend(request.group.iter().map(|group| ("group", group.clone())));
    lines.extend(record.cards.iter().map(|grant| ("card", card(grant))));
    lines.extend(turn.iter().flat_map(|turn| turn_lines("turn", turn, "")));
    lines.extend(next_turn.iter().flat_map(|next| {
        let soon = format!(", from {} ms from now on", next.in_us / 1000);
        turn_lines("next turn", next.turn, &soon)
    }));
    lines.extend(schedule.iter().flat_map(|status| &status.cards).map(|card| ("time", time(card))));
    lines.extend(usage.iter().flat_map(used));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<width$}  {}", printable(&value));
    }
    text
}

fn turn_lines(name: &'static str, turn: &Turn, when: &str) -> Vec<(&'static str, String)> {
    let ms = |us: u64| format!("{}.{}", us / 1000, us % 1000 / 100);
    let period = ms(turn.period_us);
    let line = |card: &CardTurn| {
        let pass = match &card.pass {
            Pass::Free => "not scheduled".to_owned(),
            Pass::Weight(weight) => format!("time slices of weight {weight}"),
            Pass::Windows(windows) if windows.is_empty() => "does not run".to_owned(),
            Pass::Windows(windows) => {
                let window = |window: &Window| format!("{} to {}", ms(window.start_us), ms(window.end_us));
                let windows: Vec<String> = windows.iter().map(window).collect();
                format!("{} of every {period} ms", windows.join(", "))
            }
        };
        let share = schedules::shown(Some(schedules::percent(card.share_ppm)));
        let behind = if turn.priority == Priority::Low { ", behind those of high priority" } else { "" };
        (name, format!("{}: {pass}, {share} of its time, {} of memory{behind}{when}", card.uuid, card.memory))
    };
    turn.cards.iter().map(line).collect()
}

fn time(card: &CardStatus) -> String {
    let running = match card.running {
        Running::Free => "runs",
        Running::Open => "in its window",
        Running::Closed => "off the card",
        Running::Waiting => "waits for others of higher priority",
        Running::Slices => "by time slices",
        Running::Degraded => "cannot be taken off the card: weights only",
    };
    let gives_way = match card.gives_way {
        None => "",
        Some(PriorityMode::Harvest) => ", low priority, harvests breaks",
        Some(PriorityMode::Strict) => ", low priority, strict",
    };
    let achieved = |ppm: Option<u32>| schedules::shown(ppm.map(schedules::percent));
    let seconds = |us: u64| format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000);
    let duration = |us: u64| if us < 1_000_000 { format!("{} ms", us / 1_000) } else { seconds(us) };
    let lost = match card.lost_us / 1_000 {
        0 => String::new(),
        _ => {
            let (all, last_ms) = (duration(card.lost_us), card.lost_1s_us / 1_000);
            format!(", lost {all} of its turns, {last_ms} ms in the last second")
        }
    };
    let waited = card.waited_us.zip(card.waited_1s_us).map_or_else(String::new, |(all_us, last_us)| {
        let (all, last_ms) = (duration(all_us), schedules::within_a_second(last_us) / 1_000);
        format!(", waited {all} for the card, {last_ms} ms in the last second")
    });
    format!(
        "{}: {running}{gives_way}, {} in the last second and {} in the last minute; on the card {}, held back {}{lost}{waited}; {} \
         channels, {} edges ({} late, at most {} us; longest call {} ms), {} failed calls",
        card.uuid,
        achieved(card.achieved_1s_ppm),
        achieved(card.achieved_60s_ppm),
        seconds(card.open_us),
        seconds(card.throttled_us),
        card.channels,
        card.edges,
        card.late_edges,
        card.latest_edge_us,
        card.longest_edge_us / 1_000,
        card.failures,
    )
}

fn used(usage: &Usage) -> Vec<(&'static str, String)> {
    let cards = usage.cards.iter().map(|card| {
        let (used, limit, peak) = (card.used.whole_mib(), card.limit.whole_mib(), card.peak.whole_mib());
        let channels = match card.channels_limit {
            // An older mediator does not report it.
            0 => String::new(),
            limit => format!("; {} of {limit} channels", card.channels_used),
        };
        ("used", format!("{}: {used}MiB / {limit}MiB, at most {peak}MiB so far{channels}", card.uuid))
    });
    let (pinned, pinned_limit) =
        (usage.pinned_memory_used_bytes.whole_mib(), usage.pinned_memory_limit_bytes.whole_mib());
    let pinned =
        (pinned_limit > 0).then(|| ("pinned memory", format!("{pinned}MiB / {pinned_limit}MiB of the host's")));
    let processes = usage.processes.iter().map(|process| {
        let on_card = |(uuid, used): &(String, runtime_config::Bytes)| format!("{}MiB of {uuid}", used.whole_mib());
        let cards: Vec<String> = process.cards.iter().map(on_card).collect();
        let cards = if cards.is_empty() { "nothing".to_owned() } else { cards.join(", ") };
        ("process", format!("{} (in the container {}): {cards}", process.pid, process.pid_in_container))
    });
    let Usage { denials, refused_by_bounds, refused_by_driver, .. } = usage;
    let Usage { kills, unknown_passed, unknown_refused, calls, .. } = usage;
    let counts = format!(
        "{calls} calls, {denials} refused for want of memory, {refused_by_bounds} for want of other things, \
         {refused_by_driver} by the driver itself for want of either, {kills} kills, unknown: {unknown_passed} passed and \
         {unknown_refused} refused"
    );
    cards.chain(pinned).chain(processes).chain([("driver calls", counts)]).collect()
}

fn card(grant: &CardGrant) -> String {
    let device = grant.mig_uuid.as_ref().unwrap_or(&grant.uuid);
    let held_by = match grant.enforcement {
        Enforcement::WholeCard => return format!("{} {device}: whole, {}", grant.index, grant.memory),
        Enforcement::Monitor => return format!("{} {device}: monitor", grant.index),
        Enforcement::Mig => "by MIG",
        Enforcement::Admission => "at admission; the running program is not held to it",
        Enforcement::Mediated => match grant.compute_by {
            ComputeEnforcement::None => "by its mediator",
            ComputeEnforcement::Windows => "by its mediator, its time by windows",
            ComputeEnforcement::Slices => "by its mediator, its time by time slices",
            ComputeEnforcement::WeightsOnly => {
                "by its mediator, its time by time slices (weights only: the card cannot take containers off)"
            }
        },
    };
    let time = match grant.compute {
        ComputeShare::Unlimited => "no limit of time".to_owned(),
        ComputeShare::Cap { percent, lifted_when_alone: false } => format!("{percent} of its time"),
        ComputeShare::Cap { percent, lifted_when_alone: true } => {
            format!("{percent} of its time while others share it")
        }
        ComputeShare::Weight(weight) => format!("weight {weight}"),
    };
    format!("{} {device}: {} of memory, {time}, policy {}, held {held_by}", grant.index, grant.memory, grant.policy)
}

#[cfg(test)]
mod tests {
    use nvidia_glue::{ledger::ContainerKey, usage::CardUsage};
    use runtime_config::{Bytes, request::PodContainer};

    use super::*;
    use crate::cli::test_support;

    #[test]
    fn a_name_is_looked_up_among_all_containers() {
        let mut granted = test_support::node().records.remove(0);
        granted.container.id = "aab1".to_owned();
        granted.request.pod = Some(test_support::pod());
        let without_gpu = ["aa", "bb"].map(|id| without_gpu::ContainerWithoutGpu {
            container: ContainerKey { id: id.to_owned(), ..granted.container.clone() },
            pod: Some(PodContainer { container: id.to_owned(), ..test_support::pod() }),
            asked: Vec::new(),
            without_gpu: String::new(),
        });
        let find = |wanted: &str| find(slice::from_ref(&granted), &without_gpu, wanted, None);
        assert!(matches!(find("aa"), Ok(InspectedContainer::WithoutGpu(_))), "a whole id goes before a beginning");
        assert!(matches!(find("aab"), Ok(InspectedContainer::Granted(_))));
        assert!(matches!(find("bb"), Ok(InspectedContainer::WithoutGpu(_))));
        assert!(matches!(find("train-0"), Err(CliError::Ambiguous { .. })), "one has a GPU and two have none");
    }

    #[test]
    fn keys_of_the_schedule_are_there_for_programs() {
        let node = test_support::node();
        let value = |record| serde_json::to_value(Inspected::new(record, None, &node.schedules)).unwrap();
        let scheduled = value(&node.records[0]);
        assert_eq!(scheduled["turn"]["cards"][0]["pass"]["windows"][0]["end_us"], 10_000);
        assert_eq!(scheduled["next_turn"]["in_us"], 150_000);
        assert_eq!(scheduled["next_turn"]["cards"][0]["pass"]["windows"][0]["start_us"], 20_000);
        assert_eq!(scheduled["schedule"]["cards"][0]["throttled_us"], 9_000_000);
        let whole = value(&node.records[1]);
        for key in ["turn", "next_turn", "schedule"] {
            assert_eq!(whole[key], serde_json::Value::Null);
        }
    }

    #[test]
    fn the_text_says_what_was_asked_and_granted() {
        let node = test_support::node();
        let cards = vec![CardUsage {
            uuid: "GPU-a".to_owned(),
            used: Bytes(64 << 20),
            limit: Bytes(3276 << 20),
            peak: Bytes(70 << 20),
            channels_used: 20,
            channels_limit: 512,
        }];
        let usage = Usage {
            cards,
            pinned_memory_used_bytes: Bytes(70 << 20),
            pinned_memory_limit_bytes: Bytes(16 << 30),
            denials: 3,
            refused_by_bounds: 5,
            refused_by_driver: 1,
            calls: 400,
            ..Usage::default()
        };
        let mut record = node.records[0].clone();
        record.request.pod = Some(test_support::pod());
        let text = text(&Inspected::new(&record, Some(usage), &node.schedules));
        for line in [
            "container        default/training\n",
            "pod              team/train-0/main\n",
            "asked            EGPU=POLICY=0",
            "mediator         -\n",
            "used             GPU-a: 64MiB / 3276MiB, at most 70MiB so far; 20 of 512 channels\n",
            "pinned memory    70MiB / 16384MiB of the host's\n",
            "driver calls     400 calls, 3 refused for want of memory, 5 for want of other things, 1 by the driver itself for want \
             of either, 0 kills",
            "3276MiB of memory, 10% of its time, policy fixed, held by its mediator, its time by windows",
            ": 0.0 to 10.0 of every 100.0 ms, 10.0% of its time, 3276MiB of memory\n",
            ": 20.0 to 30.0 of every 100.0 ms, 10.0% of its time, 3276MiB of memory, from 150 ms from now on\n",
            ": off the card, 9.9% in the last second and 10.0% in the last minute; on the card 1.0 s, held back 9.0 s, \
             lost 30 ms of its turns, 3 ms in the last second, waited 1.2 s for the card, 35 ms in the last second; 8 channels, \
             200 edges (1 late, at most 1200 us; longest call 41 ms), 0 failed calls\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn the_time_says_how_low_priority_gives_way() {
        let card = |gives_way| CardStatus { gives_way, running: Running::Slices, ..CardStatus::default() };
        assert!(time(&card(None)).starts_with(": by time slices, ? in the last second"));
        let harvests = time(&card(Some(PriorityMode::Harvest)));
        assert!(harvests.starts_with(": by time slices, low priority, harvests breaks, ? in"), "{harvests}");
        let strict = time(&card(Some(PriorityMode::Strict)));
        assert!(strict.starts_with(": by time slices, low priority, strict, ? in"), "{strict}");
        assert!(!strict.contains("waited"), "not known");
    }
}
