//! Listings of containers that have work, and the end of containers whose mediators stall.

use integration::{Container, ContainerBuilder, Node, eventually, processes::Process};
use serde_json::Value;

use crate::{attacks::rm_client, case::Case};

pub(crate) fn cases() -> Vec<Case> {
    let cases = [
        Case::egpu("running::shares_that_are_achieved_are_shown", achieved),
        Case::egpu("running::a_scheduler_that_stalls_ends_its_container_alone", stalled),
        Case::egpu("running::preemptive_counts_those_that_use_the_card", preemptive),
        Case::egpu("running::a_busy_container_stays_on_the_card_when_it_becomes_preemptive", becomes_preemptive),
    ];
    cases.map(|case| case.needing(rm_client)).into()
}

fn shared<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")])
}

/// With a share of card 0, and work without end.
#[track_caller]
fn busy<'node>(node: &'node Node, id: &str, compute: &str) -> Container<'node> {
    let container = shared(node, id).env("EGPU_COMPUTE", compute).args(&["rm-client", "spin", "600"]).start().unwrap();
    container.stdio.value("working");
    container
}

/// Its card in `egpu top`.
fn line(node: &Node, id: &str) -> Value {
    line_of(&node.egpu_json(&["top"]), id)
}

fn line_of(frame: &Value, id: &str) -> Value {
    let containers = frame["containers"].as_array().expect("containers");
    let container = containers.iter().find(|container| container["id"] == id);
    container.map_or(Value::Null, |container| container["cards"][0].clone())
}

fn granted(node: &Node, id: &str) -> Option<f64> {
    line(node, id)["granted_percent"].as_f64()
}

fn achieved(node: &Node) {
    let containers = [busy(node, "a", "25%"), busy(node, "b", "50%")];
    for (id, least, most) in [("a", 10.0, 40.0), ("b", 20.0, 70.0)] {
        eventually("what it achieves is near what it was granted", || {
            let achieved = line(node, id)["achieved_1s_percent"].as_f64()?;
            (least..=most).contains(&achieved).then_some(())
        });
    }
    eventually("egpu ps has it, too", || {
        let grant = node.grant("a")?;
        (grant.0["cards"][0]["utilization_percent"].as_u64()? > 0 && grant.0["throttled_us"].as_u64()? > 0)
            .then_some(())
    });
    // In one frame: how much they are held back changes from one second to the next.
    eventually("whoever has less is held back more", || {
        let frame = node.egpu_json(&["top"]);
        let held_back = |id| line_of(&frame, id)["throttled_percent"].as_f64();
        (held_back("a")? > held_back("b")?).then_some(())
    });
    eventually("all of it is in the table", || {
        let table = String::from_utf8(node.egpu(&["ps"]).stdout).unwrap();
        (table.contains("  25% / ") && table.contains("  50% / ") && !table.contains('?')).then_some(())
    });
    let inspected = String::from_utf8(node.egpu(&["inspect", "a"]).stdout).unwrap();
    assert!(inspected.contains("of every 100.0 ms, 25.0% of its time"), "{inspected}");
    for container in containers {
        container.end();
    }
}

fn stalled(node: &Node) {
    let (mut first, second) = (busy(node, "a", "30%"), busy(node, "b", "30%"));
    eventually("its scheduler promises when it tells again", || {
        node.egpu_json(&["inspect", "a"])["schedule"]["next_by_us"].as_u64()
    });
    let mediator = node.grant("a").unwrap().0["mediator"].as_i64().unwrap();
    let mediator = Process::read(i32::try_from(mediator).unwrap()).unwrap();
    mediator.stop();
    assert_eq!(first.wait().unwrap(), 137);
    // The shim's log comes to containerd by a FIFO.
    eventually("that is in the log", || {
        node.containerd_log().contains("the mediator has stalled, its scheduler is late by").then_some(())
    });
    first.delete().unwrap();
    eventually("the mediator has ended", || (!mediator.alive()).then_some(()));
    assert_eq!(node.granted(), ["b"]);
    let turns = || line(node, "b")["edges"].as_u64().unwrap();
    let before = turns();
    eventually("the neighbour goes on", || (turns() > before + 10).then_some(()));
    second.end();
}

fn preemptive(node: &Node) {
    let start = |id| shared(node, id).env("EGPU_POLICY", "preemptive").start().unwrap();
    let (one, two) = (start("one"), start("two"));
    let work = one.exec("work", &["rm-client", "spin", "600"]).start().unwrap();
    work.stdio.value("working");
    eventually("who is alone has the whole card", || (granted(node, "one") == Some(100.0)).then_some(()));
    let visit = two.exec("visit", &["rm-client", "spin", "600"]).start().unwrap();
    visit.stdio.value("working");
    for id in ["one", "two"] {
        eventually("both have half of it", || (granted(node, id) == Some(50.0)).then_some(()));
    }
    visit.end();
    eventually("who has gone is skipped", || (granted(node, "one") == Some(100.0)).then_some(()));
    work.end();
    for container in [one, two] {
        container.end();
    }
}

fn becomes_preemptive(node: &Node) {
    let idle = shared(node, "idle").env("EGPU_POLICY", "weighted").start().unwrap();
    let container = shared(node, "busy").env("EGPU_POLICY", "weighted").start().unwrap();
    let work = container.exec("work", &["rm-client", "spin", "600"]).start().unwrap();
    work.stdio.value("working");
    eventually("its mediator says so", || {
        node.egpu_json(&["inspect", "busy"])["schedule"]["has_processes"].as_bool()?.then_some(())
    });
    node.egpu_json(&["policy", "0", "preemptive", "--wait"]);
    assert_eq!(granted(node, "busy"), Some(100.0), "it was never taken for one that has no processes");
    work.end();
    for container in [idle, container] {
        container.end();
    }
}
