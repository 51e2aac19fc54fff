//! A whole exposition.

use base::usage::CardUsage;
use ledger::event_log::Totals;
use runtime_config::{Bytes, request::PodContainer};

use super::*;
use crate::{test_support, usage::MemoryUsage};

/// Metrics of the test node, on which a container with a share belongs to a pod, and its mediator
/// reports its use.
fn exposition() -> String {
    let mut node = test_support::node();
    node.records[0].request.pod =
        Some(PodContainer { namespace: "team".to_owned(), pod: "train-0".to_owned(), container: "main".to_owned() });
    let reported = base::usage::Usage {
        cards: vec![CardUsage {
            uuid: node.records[0].cards[0].uuid.clone(),
            used: Bytes(1 << 30),
            limit: node.records[0].cards[0].memory,
            peak: Bytes(3 << 30),
            channels_used: 20,
            channels_limit: 512,
        }],
        pinned_memory_used_bytes: Bytes(70 << 20),
        pinned_memory_limit_bytes: Bytes(16 << 30),
        denials: 7,
        refused_by_bounds: 5,
        refused_by_driver: 1,
        kills: 1,
        unknown_refused: 2,
        calls: 4096,
        mediator: Some(test_support::mediator_cost()),
        ..Default::default()
    };
    let usage = MemoryUsage::reported(&node.records[0], reported);
    let events = Totals::from([("refused".to_owned(), 3), ("denied".to_owned(), 7), ("of-later".to_owned(), 2)]);
    families::exposition(&Snapshot { node: &node, usage: &usage, events: Some(&events) })
}

#[test]
fn the_whole_text() {
    let text = exposition().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let golden = include_str!("golden.prom");
    for (line, (is, should)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(is, should, "line {} of golden.prom", line + 1);
    }
    assert_eq!(text, golden);
}

#[test]
fn names_follow_the_conventions() {
    let text = exposition();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, of) = line.split_once(' ').unwrap();
        assert!(name.starts_with("egpu_"), "{line}");
        assert_eq!(name.ends_with("_total"), of == "counter", "{line}");
        assert!(!name.contains("percent") && !name.ends_with("_us"), "base units: {line}");
        assert!(text.contains(&format!("# HELP {name} ")), "{line}");
    }
}

#[test]
fn every_figure_is_documented() {
    let document = include_str!("../../../../docs/monitoring.md");
    let text = exposition();
    for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = line.split_once(' ').unwrap();
        assert!(document.lines().any(|row| row.starts_with(&format!("| `{name}` | ")) && row.contains(help)), "{line}");
    }
}

#[test]
fn what_is_not_known_is_left_out() {
    let node = test_support::node();
    let text = families::exposition(&Snapshot { node: &node, usage: &MemoryUsage::unknown(), events: None });
    for absent in
        ["egpu_events_total", "egpu_container_memory_used_bytes", "memory_peak_bytes", "denials_total", "pod="]
    {
        assert!(!text.contains(absent), "{absent}");
    }
    // Of the container with a whole card, only its grant is reported.
    let whole: Vec<&str> = text.lines().filter(|line| line.contains("id=\"whole\"")).collect();
    assert!(whole.iter().all(|line| !line.contains("achieved") && !line.contains("seconds")), "{whole:?}");
    assert!(
        whole.iter().any(|line| line.contains("compute_granted_ratio") && line.ends_with(" 1.000000")),
        "{whole:?}"
    );
    let empty = test_support::empty_node();
    let text = families::exposition(&Snapshot { node: &empty, usage: &MemoryUsage::nothing_runs(), events: None });
    assert!(text.contains("egpu_card_containers{") && !text.contains("egpu_container_"), "{text}");
}

#[test]
fn waits_by_other_bounds_are_left_out() {
    let mut node = test_support::node();
    for status in node.schedules.status.values_mut() {
        status.cards[0].waits.push(1);
    }
    let text = families::exposition(&Snapshot { node: &node, usage: &MemoryUsage::unknown(), events: None });
    assert!(!text.contains("egpu_container_wait_seconds"), "{text}");
}

#[test]
fn a_schedule_without_a_status_in_time_is_overdue() {
    let mut node = test_support::node();
    let overdue = |node: &Node| {
        let text =
            families::exposition(&Snapshot { node, usage: &MemoryUsage::nothing_runs(), events: Some(&Totals::new()) });
        text.lines().find_map(|line| line.strip_prefix("egpu_schedules_overdue ")).map(str::to_owned)
    };
    assert_eq!(overdue(&node).as_deref(), Some("0"));
    node.schedules.now_us += 1_000_000;
    assert_eq!(overdue(&node).as_deref(), Some("1"));
}

#[test]
fn a_file_or_a_server_or_stdout() {
    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: MetricsArguments,
    }
    let parse = |line: &str| <Command as clap::Parser>::try_parse_from(line.split(' '));
    for line in [
        "metrics",
        "metrics --textfile x.prom",
        "metrics --listen 127.0.0.1:9402",
        "metrics --listen [::1]:0",
        "metrics --listen 127.0.0.1:9402 --page --page-token /etc/egpu/page-token",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
    for line in [
        "metrics --listen 9402",
        "metrics --textfile x --listen 127.0.0.1:1",
        "metrics --output json",
        "metrics --page",
        "metrics --listen 127.0.0.1:1 --page-token x",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_page_for_everybody_is_refused() {
    let arguments = |token: Option<&str>| MetricsArguments {
        textfile: None,
        listen: None,
        page: true,
        page_token: token.map(PathBuf::from),
    };
    let refused =
        |address: &str, token| site(&arguments(token), address.parse().unwrap()).err().map(|error| error.to_string());
    for address in ["127.0.0.1:0", "[::1]:0", "127.1.2.3:9402"] {
        assert_eq!(refused(address, None), None, "{address}");
    }
    for address in ["0.0.0.0:9402", "[::]:9402", "10.0.0.1:9402"] {
        assert!(refused(address, None).unwrap().contains("--page-token"), "{address}");
    }
    assert!(refused("127.0.0.1:0", Some("/nowhere")).unwrap().contains("/nowhere"));
}
