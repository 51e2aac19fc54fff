//! Attempts of a container to get more of a card's time than it was granted, or to take it from
//! others (integration/rm-client/src/compute_attacks.rs has each).

use std::{ops::RangeInclusive, time::Duration};

use integration::{Node, processes::Process, stdio::Output};
use serde_json::{Value, json};

use super::{each_time, end, granted, share, spinning, until_shares};
use crate::{attacks::assert_refused, case::Case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::stealing_with_calls", calls),
        Case::egpu("compute::stealing_with_calls_that_may_put_channels_back", doubtful_calls),
        Case::egpu("compute::stealing_with_new_channels", new_channels),
        Case::egpu("compute::stealing_with_many_channels", many_channels),
        Case::egpu("compute::stealing_with_many_processes", processes),
        Case::egpu("compute::stealing_on_a_soft_card", soft),
        Case::egpu("compute::stealing_where_the_driver_shares", native),
        Case::egpu("compute::stealing_by_making_the_driver_wait", waiting_driver),
        Case::egpu("compute::memory_freed_without_end", freed_memory),
        Case::egpu("compute::memory_taken_and_freed_by_a_pod_of_little_processor_time", little_processor)
            .needing(integration::hostile::available),
        Case::egpu("compute::each_control_that_could_decide_about_a_card", controls),
    ]
}

/// Of the attacker, in percent, and of whoever is beside it.
const OWN: i64 = 20;
const NEIGHBOURS: f64 = 60.0;
/// Share that the neighbour is to have beside an attack, in percent: edges of many channels take
/// many calls, each of which holds up those of others.
const NEAR: RangeInclusive<f64> = 45.0..=62.0;
/// Per mille that an attacker may be above its share in a few seconds on a busy machine: what an
/// edge was late by is taken off later windows, of which there may be none any more.
const SLACK: i64 = 40;

/// Defences: time slices, schedule and enable calls of a container's are kept and not carried out
/// while its window is closed; channels of others are not known to it; what would change how it is
/// scheduled is refused.
fn calls(node: &Node) {
    steal(
        node,
        &[
            // First, as long as the neighbour's numbers are near.
            "disable-neighbours",
            "own-timeslice",
            "duplicate-timeslice",
            "channel-properties",
            "interleave-level",
            "preemption-mode",
            "enable-own",
            "schedule-again",
        ],
    );
}

/// Defences: what may put a channel back waits for the window, and has it taken off once more where
/// it could wait no longer; nothing is put on the card in the off time to be sure of where it is.
fn doubtful_calls(node: &Node) {
    steal(node, &["bind", "stop-reset", "resume"]);
}

/// Defences: an edge is made as far ahead as the calls take that it needs, and what is on the card
/// meanwhile counts.
fn many_channels(node: &Node) {
    steal(node, &["many-channels"]);
}

/// Defence: a channel that comes to be in the off time waits for the window.
fn new_channels(node: &Node) {
    steal(node, &["new-channels", "new-groups"]);
}

/// Defence: the driver waits a millisecond at most, or as long as it does by itself, where the
/// program asks for a second each time: everybody's calls wait meanwhile, also those that end its
/// window.
fn waiting_driver(node: &Node) {
    steal_by(node, &["idle-channels", "preempt"], |output| {
        let tried = output.value("tried");
        (tried <= 4).then(|| format!("{tried} calls were answered in three seconds"))
    });
}

/// Defence: what the driver does outside the container's turns is paid by its share of the card's
/// time. Without it these take no time at all.
fn freed_memory(node: &Node) {
    let asked = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "30GiB"), ("EGPU_COMPUTE", "5%")];
    let attacker = node.container("attacker").envs(&asked).args(&["rm-client", "free-loop", "28GiB", "64"]);
    let (code, output) = attacker.run().unwrap();
    assert_eq!(code, 0, "{}", output.stderr());
    let said = output.stdout();
    let took_us = said.split_whitespace().rev().nth(1).and_then(|took_us| took_us.parse::<u64>().ok());
    assert!(took_us.is_some_and(|took_us| took_us > 1_500_000), "{said}");
}

/// Defence: no thread that makes driver calls is in a cgroup of its container, whose `cpu.max`
/// would stop it in the middle of one, with the driver's locks: everybody's edges would wait.
fn little_processor(node: &Node) {
    let neighbour = spinning(node, "neighbour", &[("EGPU_COMPUTE", "60%")]);
    let asked = [("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "512MiB"), ("EGPU_COMPUTE", "20%")];
    let slow = |spec: &mut Value| spec["linux"]["resources"]["cpu"] = json!({ "quota": 5_000, "period": 100_000 });
    let attacker = node.container("attacker").envs(&asked).hostile(&["flood", "600", "8"]).edit(slow).start().unwrap();
    attacker.stdio.value("flooding");
    until_shares("its calls delay nobody", &[(&neighbour.stdio, NEIGHBOURS)]);
    let cgroups = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("a process");
    let own = node.cgroup_path("attacker");
    assert!(cgroups(attacker.pid().cast_signed()).contains(&own), "{own}");
    let mediator = node.grant("attacker").unwrap().0["mediator"].as_i64().unwrap();
    let mediator = i32::try_from(mediator).unwrap();
    let shim = Process::read(mediator).expect("a mediator").parent;
    assert_eq!(cgroups(mediator), cgroups(shim));
    assert!(!cgroups(mediator).contains(&own), "{own}");
    end([neighbour, attacker]);
}

/// Defences: each is refused; of another container's objects, what a program may do to its own,
/// too. What is tried changes nothing for anybody.
fn controls(node: &Node) {
    let neighbour = spinning(node, "neighbour", &[("EGPU_COMPUTE", "60%")]);
    let attacker = spinning(node, "attacker", &[("EGPU_COMPUTE", "20%")]);
    let output = neighbour.stdio.stdout_so_far();
    let handles = output.lines().find_map(|line| line.strip_prefix("handles ")).expect("it prints its handles");
    let own = assert_refused(&attacker.read("rm-client controls"));
    let others = assert_refused(&attacker.read(&format!("rm-client controls {handles}")));
    assert!(own >= 31 && others >= own + 12, "{own} and {others} were tried");
    until_shares("nothing has changed", &[(&neighbour.stdio, NEIGHBOURS), (&attacker.stdio, 20.0)]);
    end([neighbour, attacker]);
}

fn steal(node: &Node, names: &[&str]) {
    steal_by(node, names, |_| None);
}

/// Each of these attacks has no effect, and nothing is `wrong` with what it has printed.
fn steal_by(node: &Node, names: &[&str], wrong: impl Fn(&Output) -> Option<String>) {
    let neighbour = spinning(node, "neighbour", &[("EGPU_COMPUTE", "60%")]);
    let mut stolen = Vec::new();
    for name in names {
        let outcome = each_time(|| {
            let attacker = granted(node, "attacker", &[("EGPU_COMPUTE", "20%")]);
            let (code, output) = attacker.args(&["rm-client", "steal", name, "3"]).run().unwrap();
            assert_eq!(code, 0, "{name}: {}", output.stderr());
            assert!(output.value("tried") > 0, "{name}");
            let got = output.value("share_permille");
            if got > OWN * 10 + SLACK {
                return Some(format!("{name}: {got} per mille, {} calls accepted", output.value("accepted")));
            }
            if let Some(wrong) = wrong(&output) {
                return Some(format!("{name}: {wrong}"));
            }
            // What was taken off would stay off.
            let left = share(&neighbour.stdio, 0, 0, Duration::from_secs(2));
            let hurt = left.is_none_or(|share| !NEAR.contains(&share));
            hurt.then(|| format!("{name}: the neighbour does not have its share: {left:?}"))
        });
        stolen.extend(outcome);
    }
    assert!(stolen.is_empty(), "{stolen:#?}");
    until_shares("the neighbour", &[(&neighbour.stdio, NEIGHBOURS)]);
    neighbour.end();
}

/// Defence: a window is all of its container's processes'.
fn processes(node: &Node) {
    let neighbour = spinning(node, "neighbour", &[("EGPU_COMPUTE", "60%")]);
    let stolen = each_time(|| {
        let attacker = granted(node, "attacker", &[("EGPU_COMPUTE", "20%")]);
        let (code, output) = attacker.args(&["rm-client", "storm", "4", "24", "--groups", "2"]).run().unwrap();
        assert_eq!(code, 0, "{}", output.stderr());
        assert!(output.value("worked") > 1, "{}", output.stdout());
        let got = output.value("share_permille");
        (got > OWN * 10 + SLACK).then(|| format!("{got} per mille"))
    });
    assert_eq!(stolen, None);
    until_shares("the neighbour", &[(&neighbour.stdio, NEIGHBOURS)]);
    neighbour.end();
}

/// Defences: slices are egpu's to set, and are divided among the groups of a container.
fn soft(node: &Node) {
    let weight = [("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", "1")];
    half_each(node, &weight, &["own-timeslice", "duplicate-timeslice", "channel-properties", "new-groups"]);
}

/// Defences: a program's own slices have a bound, and its kernels can be interrupted.
fn native(node: &Node) {
    let names = &["own-timeslice", "duplicate-timeslice", "channel-properties", "preemption-mode"];
    half_each(node, &[("EGPU_POLICY", "native")], names);
}

/// By none of these attacks a container gets more than half of a card that it shares with another
/// one without windows.
fn half_each(node: &Node, asked: &[(&str, &str)], names: &[&str]) {
    let neighbour = spinning(node, "neighbour", asked);
    for name in names {
        let stolen = each_time(|| {
            let attacker = granted(node, "attacker", asked).args(&["rm-client", "steal", name, "4"]);
            let (code, output) = attacker.run().unwrap();
            assert_eq!(code, 0, "{name}: {}", output.stderr());
            let got = output.value("share_permille");
            // Half of the card is its own. Unhindered, a slice of a second leaves a neighbour with
            // a few thousandths.
            (got > 560).then(|| format!("{name}: {got} per mille"))
        });
        assert_eq!(stolen, None);
    }
    until_shares("the neighbour", &[(&neighbour.stdio, 100.0)]);
    neighbour.end();
}
