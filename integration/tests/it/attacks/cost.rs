//! Work of a mediator that no cgroup of its container counts.

use std::time::{Duration, Instant};

use integration::{EgpuConfig, Node, Setup, eventually};
use serde_json::json;

use super::{attacker, floods::mediator_usage};
use crate::{
    case::{Case, Skip},
    memory::{granted, idle, until_free},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::calls_without_end_from_eight_threads", busy).on(a_tenth_of_a_processor).once(),
        Case::egpu("attacks::a_machine_without_memory", oom_killer).needing(may_lower_oom_scores).once(),
        Case::egpu("attacks::oom_scripts_that_leave_processes", scripts).once(),
        Case::egpu("attacks::execs_that_leave_processes", execs).once(),
    ]
}

const PROCESSORS: f64 = 0.1;

fn a_tenth_of_a_processor() -> Setup {
    Setup { egpu: EgpuConfig::with_keys(&format!("mediator_processors = {PROCESSORS}\n")), ..Setup::default() }
}

fn cost(node: &Node, key: &str) -> u64 {
    mediator_usage(node, "attacker")["mediator"][key].as_u64().expect("a mediator tells its cost")
}

/// Defence: calls wait for processor time of the mediator's (`shim/mediator/src/cost.rs`).
fn busy(node: &Node) {
    let container = attacker(node, &["flood", "600", "8"]).start().unwrap();
    container.stdio.value("flooding");
    eventually("its calls wait", || (cost(node, "held_back_us") > 0).then_some(()));
    let (began, before) = (Instant::now(), cost(node, "processor_us"));
    eventually("ten seconds pass", || (began.elapsed() > Duration::from_secs(10)).then_some(()));
    let used = Duration::from_micros(cost(node, "processor_us") - before);
    // What is told is up to a second old, and what looks at its processes waits for nothing.
    let most = began.elapsed().mul_f64(PROCESSORS) + Duration::from_secs(1);
    assert!(used <= most, "{used:?} of {most:?}");
    // Calls are late, and not refused.
    assert_eq!(container.sh("hostile step 64").0, 0);
    container.end();
    until_free(node);
}

fn may_lower_oom_scores() -> Skip {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let has_it = effective.is_some_and(|sets| sets >> CAP_SYS_RESOURCE & 1 == 1);
    if has_it { Ok(()) } else { Err("root lacks CAP_SYS_RESOURCE, which lowers a process's oom_score_adj".to_owned()) }
}

/// Defence: the kernel takes any other process before a mediator or its broker
/// (`shim/mediator/src/cost.rs`).
fn oom_killer(node: &Node) {
    let container = idle(node, "attacker", 64);
    let own = integration::processes::mentioning(node.directory());
    let score = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a process");
    for name in ["egpu-mediator", "egpu-broker"] {
        let process = own.iter().find(|process| process.name == name).expect(name);
        assert_eq!(score(process.pid), "-998\n", "{name}");
    }
    assert_ne!(score(container.pid().cast_signed()), "-998\n");
    container.end();
    until_free(node);
}

/// Processes that are left to the container, whoever started them.
const LEAVE_ONE: &str = "setsid sleep 3000 </dev/null >/dev/null 2>&1 &";

/// Defences: a script and what it leaves are in the container's cgroup, and count as its processes;
/// there are no more than a few scripts a second (`shim/src/task/excess.rs`).
fn scripts(node: &Node) {
    const PIDS: u64 = 32;
    let script = format!("printf '#!/bin/sh\\necho >>/tmp/ran\\n{LEAVE_ONE}\\n' >/tmp/oom.sh; chmod 755 /tmp/oom.sh");
    let began = Instant::now();
    let container = granted(node, "attacker", 32)
        .env("EGPU_OOM", "kill")
        .env("EGPU_OOM_SCRIPT", "/tmp/oom.sh")
        .edit(|spec| spec["linux"]["resources"]["pids"] = json!({ "limit": PIDS }))
        .script(&format!("{script}; hostile forks 600; true"))
        .start()
        .unwrap();
    let left = || {
        let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        container.pids().unwrap().iter().filter(|process| name(process.pid) == "sleep\n").count()
    };
    eventually("scripts have left processes", || (left() > 8).then_some(()));
    eventually("a script is left out", || {
        node.egpu_json(&["events"]).to_string().contains("an OOM script was left out").then_some(())
    });
    let ran = std::fs::read(format!("/proc/{}/root/tmp/ran", container.pid())).unwrap().len();
    assert!(ran as u64 <= 5 * (began.elapsed().as_secs() + 2), "{ran} scripts in {:?}", began.elapsed());
    let listeners = cost(node, "listeners");
    assert!(listeners <= PIDS, "each has a process of the container's: {listeners}");
    container.end();
    until_free(node);
}

/// Defence: a mediator has a bound on its listeners, each of which has a thread of it
/// (`shim/mediator/src/event_loop.rs`).
fn execs(node: &Node) {
    let container = idle(node, "attacker", 64);
    let start = |number: usize| container.exec(&format!("stays-{number}"), &["sleep", "3000"]).start();
    let mut execs = Vec::new();
    // A few more than there may be: those that begin before the shim has heard of it.
    let refused = (0..320).find_map(|number| start(number).map(|exec| execs.push(exec)).err()).expect("a bound");
    assert!(refused.message().contains("processes are left of 256"), "{refused}");
    assert!(execs.len() >= 255, "and the container's first process: {}", execs.len());
    execs.drain(240..).for_each(integration::Exec::end);
    eventually("there is room again", || start(1000).ok());
    container.end();
    until_free(node);
}
