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

/// Tells what it is told, for longer than any test.
const WATCH: &[&str] = &["rm-client", "watch", "600"];

/// One look: on the page, by samples, and which processes there are.
#[derive(Debug, Clone)]
struct Look {
    page: Option<u32>,
    sampled: u32,
    pids: Vec<u32>,
}

fn looks(stdio: &Stdio) -> Vec<Look> {
    let text = stdio.stdout_so_far();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        let mut words = line.strip_prefix("load ")?.split_whitespace();
        let page = words.next()?.parse().ok();
        let sampled = words.next()?.parse().expect("percent");
        Some(Look { page, sampled, pids: words.map(|pid| pid.parse().expect("a pid")).collect() })
    };
    complete.lines().filter_map(parse).collect()
}

/// Waits until it is told something for several looks in a row, by both ways.
#[track_caller]
fn until_told(what: &str, stdio: &Stdio, range: std::ops::RangeInclusive<u32>) {
    const IN_A_ROW: usize = 5;
    let deadline = Instant::now() + AT_LAST;
    loop {
        let looks = looks(stdio);
        let last = looks.get(looks.len().saturating_sub(IN_A_ROW)..).unwrap_or_default();
        let is_right =
            |look: &Look| look.page.is_some_and(|page| range.contains(&page)) && range.contains(&look.sampled);
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
    until_told("a cap that is used up", &inside.stdio, 40..=100);
    let deadline = Instant::now() + AT_LAST;
    loop {
        let told = node.grant("capped").and_then(|grant| grant.0["cards"][0]["utilization_percent"].as_u64());
        if told.is_some_and(|percent| percent >= 40) {
            break;
        }
        assert!(Instant::now() < deadline, "egpu ps: {told:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let pids: Vec<u32> = looks(&inside.stdio).into_iter().flat_map(|look| look.pids).collect();
    let mediators = node.grant("capped").unwrap().0["mediator"].as_u64();
    assert!(!pids.is_empty() && pids.iter().all(|pid| Some(u64::from(*pid)) != mediators), "{pids:?}");
    inside.end();
    end([capped]);
}

/// It has most of the card, and works all the time; the other one holds memory only.
fn neighbour(node: &Node) {
    let busy = spinning(node, "busy", &[("EGPU_COMPUTE", "70%")]);
    let watched = exec(&busy, "watch", WATCH);
    until_told("the neighbour", &watched.stdio, 40..=100);
    let idle = granted(node, "idle", &[("EGPU_COMPUTE", "25%")]).args(WATCH).start().unwrap();
    idle.stdio.value("working");
    until_told("who is idle", &idle.stdio, 0..=0);
    // Then it works, too, and is told of that alone.
    let works = exec(&idle, "spin", SPIN);
    until_told("who works", &idle.stdio, 40..=100);
    works.end();
    until_told("who is idle again", &idle.stdio, 0..=0);
    let looks = looks(&idle.stdio);
    let busy_pids: Vec<u64> = ["busy", "idle"].iter().filter_map(|id| node.grant(id)?.0["mediator"].as_u64()).collect();
    assert!(looks.iter().flat_map(|look| &look.pids).all(|pid| !busy_pids.contains(&u64::from(*pid))), "{looks:?}");
    watched.end();
    end([busy, idle]);
}
