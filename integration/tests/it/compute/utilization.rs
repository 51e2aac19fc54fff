//! Utilization as a container sees it: its own work against its share. The driver samples the card,
//! with everybody's work.

use std::time::{Duration, Instant};

use integration::{Node, stdio::Stdio};

use super::{AT_LAST, SPIN, end, exec, granted, spinning};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::utilization_is_of_the_share", of_the_share),
        Case::egpu("compute::a_busy_neighbour_is_not_seen", neighbour),
    ]
}

/// Prints the utilization that it sees, for longer than any test.
const WATCH: &[&str] = &["rm-client", "watch", "600"];

/// One reading: on the page, by samples, and which processes there are.
#[derive(Debug, Clone)]
struct Reading {
    page: Option<u32>,
    sampled: u32,
    pids: Vec<u32>,
}

fn readings(stdio: &Stdio) -> Vec<Reading> {
    let text = stdio.stdout_so_far();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        let mut words = line.strip_prefix("load ")?.split_whitespace();
        let page = words.next()?.parse().ok();
        let sampled = words.next()?.parse().expect("percent");
        Some(Reading { page, sampled, pids: words.map(|pid| pid.parse().expect("a pid")).collect() })
    };
    complete.lines().filter_map(parse).collect()
}

/// Waits until several readings in a row are in the range, by both ways.
#[track_caller]
fn await_utilization(what: &str, stdio: &Stdio, range: std::ops::RangeInclusive<u32>) {
    const IN_A_ROW: usize = 5;
    let deadline = Instant::now() + AT_LAST;
    loop {
        let readings = readings(stdio);
        let last = readings.get(readings.len().saturating_sub(IN_A_ROW)..).unwrap_or_default();
        let is_right = |reading: &Reading| {
            reading.page.is_some_and(|page| range.contains(&page)) && range.contains(&reading.sampled)
        };
        if last.len() == IN_A_ROW && last.iter().all(is_right) {
            return;
        }
        assert!(Instant::now() < deadline, "{what}: {last:?}, not {range:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn of_the_share(node: &Node) {
    let capped = spinning(node, "capped", &[("EGPU_COMPUTE", "25%")]);
    let inside = exec(&capped, "watch", WATCH);
    // A busy machine misses windows. Of the whole card it would be a quarter.
    await_utilization("a cap that is used up", &inside.stdio, 40..=100);
    let deadline = Instant::now() + AT_LAST;
    loop {
        let reported = node.grant("capped").and_then(|grant| grant.0["cards"][0]["utilization_percent"].as_u64());
        if reported.is_some_and(|percent| percent >= 40) {
            break;
        }
        assert!(Instant::now() < deadline, "egpu ps: {reported:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let pids: Vec<u32> = readings(&inside.stdio).into_iter().flat_map(|reading| reading.pids).collect();
    let mediators = node.grant("capped").unwrap().0["mediator"].as_u64();
    assert!(!pids.is_empty() && pids.iter().all(|pid| Some(u64::from(*pid)) != mediators), "{pids:?}");
    inside.end();
    end([capped]);
}

/// It has most of the card, and works all the time; the other one holds memory only.
fn neighbour(node: &Node) {
    let busy = spinning(node, "busy", &[("EGPU_COMPUTE", "70%")]);
    let watched = exec(&busy, "watch", WATCH);
    await_utilization("the neighbour", &watched.stdio, 40..=100);
    let idle = granted(node, "idle", &[("EGPU_COMPUTE", "25%")]).args(WATCH).start().unwrap();
    idle.stdio.value("working");
    await_utilization("who is idle", &idle.stdio, 0..=0);
    // Then it works, too, and sees that alone.
    let works = exec(&idle, "spin", SPIN);
    await_utilization("who works", &idle.stdio, 40..=100);
    works.end();
    await_utilization("who is idle again", &idle.stdio, 0..=0);
    let readings = readings(&idle.stdio);
    let busy_pids: Vec<u64> = ["busy", "idle"].iter().filter_map(|id| node.grant(id)?.0["mediator"].as_u64()).collect();
    assert!(
        readings.iter().flat_map(|reading| &reading.pids).all(|pid| !busy_pids.contains(&u64::from(*pid))),
        "{readings:?}"
    );
    watched.end();
    end([busy, idle]);
}
