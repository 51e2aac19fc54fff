//! Text of `egpu inspect` in sections.

use std::fmt::Write as _;

use base::{
    amounts::human,
    usage::{MediatorCost, Usage},
};
use ledger::{CardGrant, ComputeEnforcement, Enforcement, GrantState, Record};
use runtime_config::{
    config::PriorityMode,
    request::{ComputeShare, Priority},
};
use schedule::{CardStatus, CardTurn, Pass, Running, Status, Turn, Window, policy::rules};

use super::Inspected;
use crate::{
    output::printable,
    schedules,
    screen::Screen,
    table::{self, CellState},
};

/// Lines about one question.
pub(super) struct Section {
    title: &'static str,
    lines: Vec<Line>,
}

/// Name, value and the state that the value shows.
type Line = (&'static str, String, CellState);

fn plain((name, value): (&'static str, String)) -> Line {
    (name, value, CellState::Plain)
}

/// Formats sections, without those that have no lines.
pub(super) fn text(sections: &[Section], screen: Screen) -> String {
    let names = sections.iter().flat_map(|section| &section.lines).map(|(name, ..)| name.len());
    let indent = names.max().unwrap_or(0) + 4;
    let width = screen.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(24));
    let mut text = String::new();
    for Section { title, lines } in sections.iter().filter(|section| !section.lines.is_empty()) {
        let gap = if text.is_empty() { "" } else { "\n" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{gap}{title}");
        for (name, value, state) in lines {
            let mut name = *name;
            for line in table::wrapped(&printable(value), width) {
                let _ = writeln!(text, "  {name:<0$}{1}", indent - 2, state.paint(&line, screen));
                name = "";
            }
        }
    }
    text
}

/// Makes the sections; `events` are the container's last ones.
pub(super) fn sections(inspected: &Inspected<'_>, events: &[[String; 4]]) -> [Section; 6] {
    let Inspected { record, usage, turn, next_turn, schedule } = inspected;
    let cards: Vec<&CardStatus> = schedule.iter().flat_map(|status: &&Status| &status.cards).collect();
    let mut now: Vec<Line> = turn.iter().flat_map(|turn| turn_lines("turn", turn, "")).map(plain).collect();
    now.extend(next_turn.iter().flat_map(|next| {
        let soon = format!(", from {} ms from now on", next.in_us / 1000);
        turn_lines("next turn", next.turn, &soon).into_iter().map(plain)
    }));
    now.extend(cards.iter().map(|card| running(card)));
    now.extend(usage.iter().flat_map(used));
    let event = |[time, kind, count, text]: &[String; 4]| {
        let times = if count == "1" { String::new() } else { format!(" ({count} times)") };
        ("event", format!("{time} {kind}{times}: {text}"), CellState::Plain)
    };
    let history = [("admitted", record.admitted_at.clone(), CellState::Plain)];
    let past = cards.iter().map(|card| plain(("time", past(card))));
    let peaks = usage.iter().flat_map(|usage| &usage.cards);
    let peaks = peaks.map(|card| plain(("memory", format!("{}: at most {} so far", card.uuid, human(card.peak)))));
    let mut calls: Vec<Line> = usage.iter().flat_map(driver_calls).collect();
    calls.extend(cards.iter().map(|card| plain(("scheduling", scheduling(card)))));
    [
        Section { title: "Who", lines: who(record) },
        Section { title: "Asked", lines: asked(record) },
        Section { title: "Granted", lines: record.cards.iter().map(|grant| plain(("card", card(grant)))).collect() },
        Section { title: "Now", lines: now },
        Section {
            title: "History",
            lines: history.into_iter().chain(past).chain(peaks).chain(events.iter().map(event)).collect(),
        },
        Section { title: "Driver calls", lines: calls },
    ]
}

fn who(record: &Record) -> Vec<Line> {
    let (state, colour) = match record.state {
        GrantState::Prepared => ("prepared for its pod, used by no container", CellState::Warning),
        GrantState::Pending => ("reserved, being created", CellState::Warning),
        GrantState::Bound => ("in use", CellState::Good),
    };
    let pid = |process: Option<i32>| process.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let shim = (record.state != GrantState::Prepared).then_some(record.shim.pid);
    let mut lines = vec![plain(("container", record.container.to_string()))];
    lines.extend(record.request.pod.iter().map(|pod| plain(("pod", pod.to_string()))));
    if let Some(grant) = &record.claim {
        let claim = &grant.claim;
        let text = format!("{}/{} request {} ({})", claim.namespace, claim.name, grant.request, claim.uid);
        lines.push(plain(("claim", text)));
        lines.extend(grant.containers.iter().map(|user| plain(("used by", format!("{} [{}]", user.name, user.key)))));
    }
    lines.push(("state", state.to_owned(), colour));
    lines.extend(
        [
            ("containerd", record.container.containerd.clone()),
            ("init", pid(record.init.map(|init| init.pid))),
            ("shim", pid(shim)),
            ("mediator", pid(record.mediator.map(|mediator| mediator.pid))),
            ("version", record.egpu_version.clone().unwrap_or_else(|| "-".to_owned())),
            ("grant", format!("{}, number {} of this node", record.grant_id, record.order)),
        ]
        .map(plain),
    );
    lines.extend(record.cgroups.iter().map(|cgroup| plain(("cgroup", cgroup.clone()))));
    lines
}

fn asked(record: &Record) -> Vec<Line> {
    let request = &record.request;
    let mut lines = vec![plain(("dialect", request.dialect.to_string()))];
    lines.extend(request.asked.iter().map(|asked| plain(("asked", asked.clone()))));
    lines.extend(request.warnings.iter().map(|warning| ("warning", warning.clone(), CellState::Warning)));
    lines.push(plain(("capabilities", request.driver_capabilities.names())));
    lines.extend(request.group.iter().map(|group| plain(("group", group.clone()))));
    lines.push(plain(("may change live", if request.live_update { "yes" } else { "no" }.to_owned())));
    lines
}

fn card(grant: &CardGrant) -> String {
    let device = grant.mig_uuid.as_ref().unwrap_or(&grant.uuid);
    let memory = human(grant.memory);
    let held_by = match grant.enforcement {
        Enforcement::WholeCard => return format!("{} {device}: whole, {memory}", grant.index),
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
        ComputeShare::Unlimited if rules(grant.policy).promises_time() => "its policy's part of the time".to_owned(),
        ComputeShare::Unlimited => "no limit of time".to_owned(),
        ComputeShare::Cap { percent, lifted_when_alone: false } => format!("{percent} of its time"),
        ComputeShare::Cap { percent, lifted_when_alone: true } => {
            format!("{percent} of its time while others share it")
        }
        ComputeShare::Weight(weight) => format!("weight {weight}"),
    };
    format!("{} {device}: {memory} of memory, {time}, policy {}, held {held_by}", grant.index, grant.policy)
}

fn turn_lines(name: &'static str, turn: &Turn, when: &str) -> Vec<(&'static str, String)> {
    let ms = |us: u64| format!("{}.{}", us / 1000, us % 1000 / 100);
    let period = ms(turn.period_us);
    let line = |card: &CardTurn| {
        let pass = match &card.pass {
            Pass::Free => "not scheduled".to_owned(),
            Pass::Weight(weight) => format!("time slices of weight {weight}"),
            Pass::Turns(weight) => format!("time slices or turns of weight {weight}"),
            Pass::Windows(windows) if windows.is_empty() => "does not run".to_owned(),
            Pass::Windows(windows) => {
                let window = |window: &Window| format!("{} to {}", ms(window.start_us), ms(window.end_us));
                let windows: Vec<String> = windows.iter().map(window).collect();
                format!("{} of every {period} ms", windows.join(", "))
            }
        };
        let share = schedules::shown(Some(schedules::percent(card.share_ppm)));
        let behind = if turn.priority == Priority::Low { ", behind those of high priority" } else { "" };
        (name, format!("{}: {pass}, {share} of its time, {} of memory{behind}{when}", card.uuid, human(card.memory)))
    };
    turn.cards.iter().map(line).collect()
}

/// The container's work on a card now.
fn running(card: &CardStatus) -> Line {
    let running = match card.running {
        Running::Free => "runs",
        Running::Open => "in its window",
        Running::Closed => "off the card",
        Running::Waiting => "waits for others of higher priority",
        Running::Slices => "by time slices",
        Running::Degraded => "cannot be taken off the card: weights only",
    };
    let state = if card.running == Running::Degraded { CellState::Bad } else { CellState::Plain };
    let gives_way = match card.gives_way {
        None => "",
        Some(PriorityMode::Harvest) => ", low priority, harvests breaks",
        Some(PriorityMode::Strict) => ", low priority, strict",
    };
    let achieved = |ppm: Option<u32>| schedules::shown(ppm.map(schedules::percent));
    let waited = card.waited_1s_us.map_or_else(String::new, |us| {
        format!(", waited {} ms for the card in the last second", schedules::within_a_second(us) / 1_000)
    });
    let lost = match card.lost_1s_us / 1_000 {
        0 => String::new(),
        ms => format!(", lost {ms} ms of its turns in the last second"),
    };
    let switches = match card.switching_1s_us.unwrap_or(0) / 1_000 {
        0 => String::new(),
        ms => format!(", switches to it cost {ms} ms of the card's time in the last second"),
    };
    let (second, minute) = (achieved(card.achieved_1s_ppm), achieved(card.achieved_60s_ppm));
    let text = format!(
        "{}: {running}{gives_way}, {second} in the last second and {minute} in the last minute{waited}{lost}{switches}",
        card.uuid
    );
    ("time", text, state)
}

/// The container's time on a card since its start.
fn past(card: &CardStatus) -> String {
    let seconds = |us: u64| format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000);
    let duration = |us: u64| if us < 1_000_000 { format!("{} ms", us / 1_000) } else { seconds(us) };
    let (on, held_back) = (seconds(card.open_us), seconds(card.throttled_us));
    let lost = match card.lost_us / 1_000 {
        0 => String::new(),
        _ => format!(", lost {} of its turns", duration(card.lost_us)),
    };
    let waited = card.waited_us.map_or_else(String::new, |us| format!(", waited {} for the card", duration(us)));
    format!("{}: on the card {on}, held back {held_back}{waited}{lost}", card.uuid)
}

fn scheduling(card: &CardStatus) -> String {
    format!(
        "{}: {} channels, put on the card or taken off {} times ({} late, at most {} us; longest call {} ms), {} failed calls",
        card.uuid,
        card.channels,
        card.edges,
        card.late_edges,
        card.latest_edge_us,
        card.longest_edge_us / 1_000,
        card.failures,
    )
}

fn used(usage: &Usage) -> Vec<Line> {
    let cards = usage.cards.iter().map(|card| {
        let channels = match card.channels_limit {
            // An older mediator does not report it.
            0 => String::new(),
            limit => format!("; {} of {limit} channels", card.channels_used),
        };
        let state = if card.used >= card.limit { CellState::Warning } else { CellState::Plain };
        ("memory", format!("{}: {} of {}{channels}", card.uuid, human(card.used), human(card.limit)), state)
    });
    let (pinned, limit) = (usage.pinned_memory_used_bytes, usage.pinned_memory_limit_bytes);
    let pinned =
        (limit.0 > 0).then(|| plain(("pinned memory", format!("{} of {} of the host's", human(pinned), human(limit)))));
    let processes = usage.processes.iter().map(|process| {
        let on_card = |(uuid, used): &(String, runtime_config::Bytes)| format!("{} of {uuid}", human(*used));
        let cards: Vec<String> = process.cards.iter().map(on_card).collect();
        let cards = if cards.is_empty() { "nothing".to_owned() } else { cards.join(", ") };
        plain(("process", format!("{} (in the container {}): {cards}", process.pid, process.pid_in_container)))
    });
    cards.chain(pinned).chain(processes).chain(usage.mediator.iter().flat_map(mediator)).collect()
}

fn mediator(cost: &MediatorCost) -> [Line; 3] {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let thousandths = |value: u64| value as f64 / 1000.0;
    let seconds = |us: u64| thousandths(us / 1000);
    let processor = format!(
        "{:.3} s of processor time, of {} processors; driver calls waited {:.3} s for that",
        seconds(cost.processor_us),
        thousandths(cost.processor_limit_millis),
        seconds(cost.held_back_us),
    );
    let memory = format!(
        "{} of {} of the host's; oom_score_adj {}",
        human(cost.memory_used_bytes),
        human(cost.memory_limit_bytes),
        cost.oom_score_adj
    );
    let listeners = format!("{} of {} listeners", cost.listeners, cost.listeners_limit);
    let state = |is_over| if is_over { CellState::Warning } else { CellState::Plain };
    [
        ("mediator", processor, state(cost.held_back_us > 0)),
        ("mediator", memory, state(cost.memory_used_bytes > cost.memory_limit_bytes)),
        ("mediator", listeners, state(cost.listeners >= cost.listeners_limit)),
    ]
}

fn driver_calls(usage: &Usage) -> Vec<Line> {
    let Usage { calls, denials, refused_by_bounds, refused_by_driver, .. } = usage;
    let Usage { kills, unknown_passed, unknown_refused, .. } = usage;
    let bad = |count: u64| if count == 0 { CellState::Plain } else { CellState::Warning };
    vec![
        plain(("calls", calls.to_string())),
        ("refused", format!("{denials} over its memory"), bad(*denials)),
        ("refused", format!("{refused_by_bounds} over another bound, such as channels"), bad(*refused_by_bounds)),
        ("refused", format!("{refused_by_driver} by the driver itself, for want of either"), bad(*refused_by_driver)),
        ("kills", format!("{kills} processes ended for asking for more memory"), bad(*kills)),
        ("unknown", format!("{unknown_passed} passed, {unknown_refused} refused"), bad(*unknown_refused)),
    ]
}

#[cfg(test)]
mod tests {
    use base::usage::CardUsage;
    use runtime_config::Bytes;

    use super::*;
    use crate::test_support;

    fn shown(inspected: &Inspected<'_>, screen: Screen) -> String {
        let event = ["2026-01-01T00:00:00Z", "denied", "3", "too much"].map(str::to_owned);
        text(&sections(inspected, &[event]), screen)
    }

    #[test]
    fn the_text_says_who_asked_for_what_and_what_came_of_it() {
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
            mediator: Some(test_support::mediator_cost()),
            ..Usage::default()
        };
        let mut record = node.records[0].clone();
        record.request.pod = Some(test_support::pod());
        let text = shown(&Inspected::new(&record, Some(usage), &node.schedules), Screen::default());
        for line in [
            "Who\n  container        default/training\n  pod              team/train-0/main\n  state            in use\n",
            "\n\nAsked\n  dialect  ",
            "  asked            EGPU=POLICY=0",
            "  mediator         -\n",
            "\n\nGranted\n  card             0 GPU-",
            "3.2 GiB of memory, 10% of its time, policy fixed, held by its mediator, its time by windows\n",
            "\n\nNow\n  turn             GPU-",
            ": 0.0 to 10.0 of every 100.0 ms, 10.0% of its time, 3.2 GiB of memory\n",
            ": 20.0 to 30.0 of every 100.0 ms, 10.0% of its time, 3.2 GiB of memory, from 150 ms from now on\n",
            ": off the card, 9.9% in the last second and 10.0% in the last minute, waited 35 ms for the card in the last \
             second, lost 3 ms of its turns in the last second, switches to it cost 2 ms of the card's time in the last \
             second\n",
            "  memory           GPU-a: 64 MiB of 3.2 GiB; 20 of 512 channels\n",
            "  pinned memory    70 MiB of 16 GiB of the host's\n",
            "  mediator         12.500 s of processor time, of 0.5 processors; driver calls waited 1.250 s for that\n",
            "  mediator         3 MiB of 322 MiB of the host's; oom_score_adj -998\n",
            "  mediator         2 of 256 listeners\n",
            "\n\nHistory\n  admitted         2026-01-01T00:00:00Z\n",
            ": on the card 1.0 s, held back 9.0 s, waited 1.2 s for the card, lost 30 ms of its turns\n",
            "  memory           GPU-a: at most 70 MiB so far\n",
            "  event            2026-01-01T00:00:00Z denied (3 times): too much\n",
            "\n\nDriver calls\n  calls            400\n  refused          3 over its memory\n",
            ": 8 channels, put on the card or taken off 200 times (1 late, at most 1200 us; longest call 41 ms), 0 failed \
             calls\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
    }

    #[test]
    fn lines_fit_the_terminal_and_hostile_text_stays_on_its_own() {
        let node = test_support::node();
        let mut record = node.records[0].clone();
        record.request.asked =
            vec!["A=\u{202e}\u{1b}[2J\nWho\n  container  other".to_owned(), "B=".to_owned() + &"x".repeat(4096)];
        let inspected = Inspected::new(&record, None, &node.schedules);
        let text = shown(&inspected, Screen { width: Some(80), ..Screen::default() });
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']) && text.matches("Who").count() == 2, "{text}");
        let painted = shown(&inspected, Screen { has_colours: true, ..Screen::default() });
        assert!(painted.contains("\u{1b}[32min use\u{1b}[0m\n"), "{painted}");
    }

    #[test]
    fn the_time_says_how_low_priority_gives_way() {
        let time = |gives_way| running(&CardStatus { gives_way, running: Running::Slices, ..CardStatus::default() }).1;
        assert!(time(None).starts_with(": by time slices, ? in the last second"));
        let harvests = time(Some(PriorityMode::Harvest));
        assert!(harvests.starts_with(": by time slices, low priority, harvests breaks, ? in"), "{harvests}");
        let strict = time(Some(PriorityMode::Strict));
        assert!(strict.starts_with(": by time slices, low priority, strict, ? in"), "{strict}");
        assert!(!strict.contains("waited"), "not known");
    }
}
