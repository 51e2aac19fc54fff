//! `egpu events` lists what happened.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use integration::{Node, eventually, exposition::value, processes};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    attacks::rm_client,
    case::Case,
    memory::{fill, granted, idle},
    metrics::scrape,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("events::of_creates_and_changes", creates_and_changes).once(),
        Case::egpu("events::of_a_container_over_its_memory", over_its_memory)
            .needing(integration::hostile::available)
            .once(),
        Case::egpu("events::of_a_mediator_that_ends", mediator_ends).needing(integration::hostile::available).once(),
        Case::egpu("events::of_a_mediator_that_stalls", mediator_stalls).needing(rm_client).once(),
        Case::egpu("events::of_accounts_that_drift", drift)
            .needing(integration::hostile::available)
            .only_simulated("mappings of the real driver's do not grow")
            .once(),
        Case::egpu("events::of_objects_of_3d_without_the_capability", objects_of_3d)
            .needing(rm_client)
            .only_simulated("channels of rm-client's do no work on a card")
            .once(),
        Case::egpu("events::are_followed", followed).once(),
    ]
}

/// Those about `container`, the oldest first.
#[track_caller]
pub(crate) fn events(node: &Node, container: &str) -> Vec<Value> {
    let container = format!("{}/{container}", node.namespace());
    node.egpu_json(&["events", "--container", &container]).as_array().expect("an array").clone()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().expect("a kind")).collect()
}

/// The first of a kind, once there is one.
#[track_caller]
pub(crate) fn until(node: &Node, container: &str, kind: &str) -> Value {
    eventually(&format!("an event of kind {kind}"), || {
        events(node, container).into_iter().find(|event| event["kind"] == kind)
    })
}

fn creates_and_changes(node: &Node) {
    node.container("big").env("EGPU_DEVICES", "1").env("EGPU_MEMORY", "64GiB").create().unwrap_err();
    let refused = until(node, "big", "refused");
    assert_eq!(refused["container"], "big");
    assert!(refused["text"].as_str().unwrap().contains("64GiB"), "{refused}");

    let container = node.container("a").env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "1GiB").start().unwrap();
    assert!(node.egpu(&["set", "a", "--memory", "2GiB"]).status.success());
    assert!(!node.egpu(&["set", "a", "--memory", "64GiB"]).status.success());
    container.end();
    until(node, "a", "released");
    let all = events(node, "a");
    assert_eq!(
        kinds(&all).into_iter().filter(|kind| *kind != "warning").collect::<Vec<_>>(),
        ["admitted", "changed", "refused", "released"],
        "{all:?}"
    );
    let released = all.last().unwrap();
    assert_eq!(released["card_index"], 0);
    assert!(released["text"].as_str().unwrap().contains("memory 2 GiB"), "{released}");

    // A choice of kinds, and a table.
    let only = node.egpu_json(&["events", "--kind", "refused", "--since", "1h"]);
    assert_eq!(kinds(only.as_array().unwrap()), ["refused", "refused"]);
    let table = node.egpu(&["events"]);
    assert!(
        String::from_utf8(table.stdout).unwrap().lines().any(|line| line.contains("refused") && line.contains("/big "))
    );
    let unknown = node.egpu(&["events", "--kind", "melted"]);
    assert!(unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("melted"));
}

fn over_its_memory(node: &Node) {
    let container = idle(node, "a", 256);
    let begin = std::time::Instant::now();
    for _ in 0..20 {
        fill(&container);
    }
    let denied = until(node, "a", "denied");
    assert!(denied["card"].as_str().unwrap().starts_with("GPU-"), "{denied}");
    assert!(denied["text"].as_str().unwrap().contains("asked for 16 MiB"), "{denied}");
    container.end();
    // What was not reported at once is reported in one sum at the end.
    let reported = eventually("all are reported", || {
        let all = events(node, "a");
        let denied = all.iter().filter(|event| event["kind"] == "denied");
        let reported: Vec<u64> = denied.map(|event| event["count"].as_u64().unwrap()).collect();
        (reported.iter().sum::<u64>() > 1).then_some(reported)
    });
    // Five a second and a sum are reported; on a busy machine there may be no more than that.
    let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap();
    assert!(reported.len() <= 6 * (seconds + 2), "each by itself: {reported:?} in {seconds} s");

    let mut killed = granted(node, "b", 256).env("EGPU_OOM", "kill").hostile(&["fill", "16"]).start().unwrap();
    killed.wait().unwrap();
    killed.delete().unwrap();
    assert!(until(node, "b", "killed")["text"].as_str().unwrap().contains("asked for 16 MiB"));
}

fn mediator_ends(node: &Node) {
    let mut container = idle(node, "a", 256);
    let own = processes::mentioning(node.directory());
    own.iter().find(|process| process.name == "egpu-mediator").expect("a mediator").kill();
    container.wait().unwrap();
    container.delete().unwrap();
    until(node, "a", "mediator-ended");
}

fn mediator_stalls(node: &Node) {
    let container = granted(node, "a", 256).env("EGPU_COMPUTE", "30%").args(&["rm-client", "spin", "600"]);
    let mut container = container.start().unwrap();
    container.stdio.value("working");
    eventually("its scheduler promises when it tells again", || {
        node.egpu_json(&["inspect", "a"])["schedule"]["next_by_us"].as_u64()
    });
    let own = processes::mentioning(node.directory());
    let mediator = own.iter().find(|process| process.name == "egpu-mediator").expect("a mediator");
    mediator.stop();
    let stalled = until(node, "a", "stalled");
    assert!(stalled["text"].as_str().unwrap().starts_with("the mediator has stalled, "), "{stalled}");
    assert!(value(&scrape(node), "egpu_events_total", &[("kind", "stalled")]) >= Some(1.0));
    assert_eq!(container.wait().unwrap(), 137);
    container.delete().unwrap();
    until(node, "a", "released");
    let all = events(node, "a");
    assert!(!kinds(&all).contains(&"mediator-ended"), "that it is ended then is no news: {all:?}");
}

/// Beside what computes, whoever may draw may draw.
fn objects_of_3d(node: &Node) {
    const DRAWS: &str = "cb97";
    const INVALID_CLASS: i64 = 0x22;
    for (id, capabilities, status) in
        [("a", "compute,utility", INVALID_CLASS), ("b", "compute,graphics", 0), ("c", "display", 0), ("d", "all", 0)]
    {
        let container = granted(node, id, 256).env("NVIDIA_DRIVER_CAPABILITIES", capabilities);
        let container = container.args(&["sleep", "infinity"]).start().unwrap();
        let (code, output) = container.sh(&format!("rm-client objects {DRAWS} cbc0 {DRAWS}"));
        assert_eq!(code, 0, "{}{}", output.stdout(), output.stderr());
        assert_eq!((output.value(DRAWS), output.value("cbc0")), (status, 0), "{capabilities}");
        let is_reported = |event: &Value| {
            let text = event["text"].as_str().unwrap();
            text.contains("HOPPER_A") && text.contains("`graphics` or `display`")
        };
        if status != 0 {
            eventually("it is reported", || events(node, id).iter().any(is_reported).then_some(()));
        }
        container.end();
        let reported = events(node, id).iter().filter(|event| is_reported(event)).count();
        assert_eq!(reported, usize::from(status != 0), "{capabilities}");
    }
}

fn drift(node: &Node) {
    let mut container = granted(node, "a", 256).hostile(&["grow", "1024"]).start().unwrap();
    assert_eq!(container.stdio.value("grown"), 0);
    let drift = until(node, "a", "drift");
    assert!(drift["text"].as_str().unwrap().starts_with("accounts and driver disagree: "), "{drift}");
    // Nobody has that much by mistake.
    let killed = until(node, "a", "killed");
    assert!(killed["text"].as_str().unwrap().contains("accounts and driver disagree: "), "{killed}");
    container.wait().unwrap();
    container.delete().unwrap();
    assert!(value(&scrape(node), "egpu_events_total", &[("kind", "drift")]) >= Some(1.0));
}

/// `egpu events --follow` as JSON.
fn follow(node: &Node) -> Child {
    let mut command = node.egpu_command(&["events", "--follow", "--kind", "refused", "--output", "json"]);
    command.stdout(Stdio::piped()).spawn().expect("run egpu")
}

fn refuse(node: &Node, id: &str) {
    node.container(id).env("EGPU_MEMORY", "nonsense").create().unwrap_err();
}

fn followed(node: &Node) {
    refuse(node, "before");
    let (mut interrupted, mut unread) = (follow(node), follow(node));
    let mut lines = BufReader::new(interrupted.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["container"], "before");
    for id in ["one", "other"] {
        refuse(node, id);
        assert_eq!(next()["container"], id);
    }
    kill(Pid::from_raw(i32::try_from(interrupted.id()).unwrap()), Signal::SIGINT).unwrap();
    assert!(interrupted.wait().unwrap().success());
    assert!(lines.next().is_none(), "nothing but events");
    // It notices without an event to print.
    let mut first = String::new();
    let mut output = BufReader::new(unread.stdout.take().unwrap());
    output.read_line(&mut first).unwrap();
    drop(output);
    assert!(unread.wait().unwrap().success());
}
