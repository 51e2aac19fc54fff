//! `egpu top` where nobody looks at a screen: plain tables, or JSON.

use std::thread;

use base::amounts::human;
use runtime_config::{Bytes, request::Priority};
use schedule::Running;

use super::{
    TopArguments,
    frame::{CardLine, ContainerCardLine, ContainerLines, Frame},
};
use crate::{
    error::CliError,
    exit::Exit,
    node::Node,
    output::{self, Format},
    schedules::{self, Schedules},
    usage,
};

/// Prints as many frames as are asked for, else one.
pub(super) fn run(arguments: &TopArguments) -> Result<Exit, CliError> {
    let count = arguments.count.unwrap_or(1);
    let mut before: Option<Schedules> = None;
    for frames in 0..count {
        if frames > 0 {
            thread::sleep(arguments.interval);
        }
        let node = Node::read()?;
        let (usage, warnings) = usage::measure(&node);
        let frame = Frame::new(&node, &usage, before.as_ref());
        output::print(&match arguments.output.output {
            Format::Json => output::json_line(&frame)?,
            Format::Table if frames > 0 => format!("\n{}", table(&frame)),
            Format::Table => table(&frame),
        })?;
        for warning in warnings {
            crate::output::say(&format!("egpu: {warning}"));
        }
        before = Some(node.schedules);
    }
    Ok(Exit::Success)
}

/// Formats a frame: each card with its containers below it.
pub(super) fn table(frame: &Frame) -> String {
    const TITLES: [&str; 10] =
        ["CARD", "POLICY", "GRANTED", "1 S", "60 S", "HELD", "WAIT", "MEMORY", "BUSY", "CONTAINER"];
    let of_card = |card: &CardLine| {
        let lines = frame.containers.iter().flat_map(|container| {
            let own = container.cards.iter().filter(|line| line.uuid == card.uuid);
            own.map(move |line| line_row(line, container))
        });
        std::iter::once(card_row(card)).chain(lines).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = frame.cards.iter().flat_map(of_card).collect();
    output::table(&TITLES, &rows)
}

fn card_row(card: &CardLine) -> Vec<String> {
    let CardLine { index, policy, time, memory_used_bytes, memory_total_bytes, containers, .. } = card;
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

fn line_row(line: &ContainerCardLine, container: &ContainerLines) -> Vec<String> {
    let busy = match (line.running, line.busy) {
        (Some(Running::Waiting), _) => "waits",
        (_, Some(true)) => "yes",
        (_, Some(false)) => "no",
        (_, None) => "?",
    };
    let granted = if line.exclusive { "whole".to_owned() } else { schedules::shown(line.time.granted_percent) };
    let how = match (container.priority, line.is_weight_only) {
        (Priority::High, false) => "",
        (Priority::High, true) => "weight only",
        (Priority::Low, false) => "low",
        (Priority::Low, true) => "low, weight only",
    };
    vec![
        String::new(),
        how.to_owned(),
        granted,
        schedules::shown(line.time.achieved_1s_percent),
        schedules::shown(line.time.achieved_60s_percent),
        known_or_dash(line.throttled_percent),
        known_or_dash(line.waited_1s_percent),
        memory(line.memory_used_bytes, line.memory_limit_bytes),
        busy.to_owned(),
        container.name(),
    ]
}

/// Formats a percentage; `-` if there is nothing to know.
fn known_or_dash(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |_| schedules::shown(percent))
}

fn memory(used: Option<Bytes>, of: Bytes) -> String {
    format!("{} / {}", used.map_or_else(|| "?".to_owned(), human), human(of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{test_support, usage::MemoryUsage};

    fn frame() -> Frame {
        Frame::new(&test_support::node(), &MemoryUsage::nothing_runs(), None)
    }

    #[test]
    fn a_card_is_followed_by_its_containers() {
        let frame = frame();
        let text = table(&frame);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("  HELD   WAIT  MEMORY "), "as on the screen: {text}");
        assert!(
            lines[1].starts_with("0     fixed   10.0%    9.9%  10.0%  -      -     0 B / 32 GiB   -     (1)"),
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
        let text = table(&frame);
        assert!(text.contains("yes   team/train-0/main\n") && text.contains("default/whole\n"), "{text}");
        let value = serde_json::to_value(&frame.containers).unwrap();
        assert_eq!((&value[0]["id"], &value[0]["pod"]["pod"]), (&"training".into(), &"train-0".into()));
    }

    #[test]
    fn a_cap_that_is_only_a_weight_is_shown_as_one() {
        assert!(!table(&frame()).contains("weight only"));
        let mut node = test_support::node();
        for status in node.schedules.status.values_mut() {
            status.cards[0].running = Running::Degraded;
        }
        let text = table(&Frame::new(&node, &MemoryUsage::nothing_runs(), None));
        assert!(text.contains("weight only"), "{text}");
    }
}
