//! The share that `egpu top` reports is work, and not presence: a context stays on the engine when
//! its work is done.

use std::time::{Duration, Instant};

use integration::{Node, eventually};

use super::{AT_LAST, LONG_ENOUGH, SPIN, end, exec, granted, share, spinning};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::a_container_alone_achieves_its_own_work", alone),
        Case::egpu("compute::weighted_containers_achieve_their_own_work", soft),
    ]
}

/// Returns the percent of its card that a container achieved in the last second; `None`: not known.
fn achieved(node: &Node, id: &str) -> Option<f64> {
    card(node, id)?["achieved_1s_percent"].as_f64()
}

/// The container's card in `egpu top`.
fn card(node: &Node, id: &str) -> Option<serde_json::Value> {
    let frame = node.egpu_json(&["top"]);
    let containers = frame["containers"].as_array().expect("containers");
    Some(containers.iter().find(|container| container["id"] == id)?["cards"][0].clone())
}

/// Waits until the right figures are reported for all, several times in a row.
#[track_caller]
fn until_achieved<const N: usize>(what: &str, node: &Node, ids: [&str; N], is_right: impl Fn([f64; N]) -> bool) {
    const IN_A_ROW: u32 = 5;
    let (deadline, mut right) = (Instant::now() + AT_LAST, 0);
    while right < IN_A_ROW {
        let reported = ids.map(|id| achieved(node, id));
        let known = reported.iter().all(Option::is_some);
        right = if known && is_right(reported.map(Option::unwrap_or_default)) { right + 1 } else { 0 };
        assert!(Instant::now() < deadline, "{what}: {reported:?}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// A program that works for a moment, and then stays on the card without work.
const MOMENT: &[&str] = &["rm-client", "burst", "600", "10ms", "500s", "--every", "100ms"];

fn alone(node: &Node) {
    let container = granted(node, "alone", &[]).args(MOMENT).start().unwrap();
    container.stdio.value("working");
    until_achieved("a context and memory", node, ["alone"], |[reported]| reported < 2.0);
    let work = exec(&container, "work", SPIN);
    until_achieved("work", node, ["alone"], |[reported]| (80.0..=100.0).contains(&reported));
    eventually("what its scheduler costs is reported, and what of that are driver calls", || {
        let card = card(node, "alone")?;
        let [all, calls] = ["scheduler_cpu_us", "scheduler_driver_cpu_us"].map(|key| card[key].as_u64());
        (all? > calls? && calls? > 0).then_some(())
    });
    work.end();
    until_achieved("no work again", node, ["alone"], |[reported]| reported < 2.0);
    end([container]);
}

fn soft(node: &Node) {
    let weight = |weight: &'static str| [("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", weight)];
    let light = spinning(node, "light", &weight("1"));
    let heavy = granted(node, "heavy", &weight("2")).start().unwrap();
    let ids = ["light", "heavy"];
    until_achieved("beside one without a context", node, ids, |[light, heavy]| light >= 80.0 && heavy < 2.0);
    let moment = exec(&heavy, "moment", MOMENT);
    until_achieved("beside one without work", node, ids, |[light, heavy]| light >= 80.0 && heavy < 2.0);
    let work = exec(&heavy, "work", SPIN);
    until_achieved("1 to 2", node, ids, |reported| {
        let got = [&light.stdio, &work.stdio].map(|stdio| share(stdio, 0, 0, LONG_ENOUGH).unwrap_or_default());
        let is_reported = reported.iter().zip(got).all(|(reported, got)| (reported - got).abs() < 12.0);
        // Each is reported as of its own last sample.
        is_reported && reported[0] * 1.3 < reported[1] && reported[0] > 10.0 && reported[0] + reported[1] <= 101.0
    });
    work.end();
    until_achieved("without work again", node, ids, |[light, heavy]| light >= 80.0 && heavy < 2.0);
    light.end();
    until_achieved("who is left", node, ["heavy"], |[reported]| reported < 2.0);
    moment.end();
    end([heavy]);
}
