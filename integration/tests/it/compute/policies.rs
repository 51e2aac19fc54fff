//! The policies that share a card in other ways than by caps, and priority.

use integration::{EgpuConfig, Node, Setup};

use super::{SPIN, end, exec, granted, planned, spinning, until_shares, until_within};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::fair_is_a_slice_each_also_alone", fair).on(four_slices),
        Case::egpu("compute::weighted_is_by_the_weights_of_all_containers", weighted).on(weights),
        Case::egpu("compute::preemptive_is_equal_among_those_with_processes", preemptive),
        Case::egpu("compute::soft_lends_what_is_not_used", soft),
        Case::egpu("compute::soft_goes_by_containers_not_by_their_groups", groups),
        Case::egpu("compute::soft_lets_groups_that_do_not_fit_take_turns", many_groups),
        Case::egpu("compute::those_without_a_cap_share_by_containers", without_cap),
        Case::egpu("compute::adaptive_goes_by_weight_and_lends", adaptive),
        Case::egpu("compute::low_priority_with_many_groups_is_low_priority", many_low_groups),
        Case::egpu("compute::low_priority_runs_in_what_high_leaves", priority),
        Case::egpu("compute::low_containers_take_turns_in_what_high_leaves", two_low),
        Case::egpu("compute::strict_priority_leaves_short_breaks_alone", strict).on(strict_priority),
    ]
}

fn four_slices() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("max_inst = 4\ndefault_policy = \"fair\"\n"), ..Setup::default() }
}

fn fair(node: &Node) {
    let one = spinning(node, "one", &[]);
    until_shares("a quarter, alone", &[(&one.stdio, 25.0)]);
    let two = spinning(node, "two", &[]);
    until_shares("a quarter each", &[(&one.stdio, 25.0), (&two.stdio, 25.0)]);
    planned(node, &[("one", 25.0), ("two", 25.0)]);
    end([one, two]);
}

fn weights() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("default_policy = \"weighted\"\n"), ..Setup::default() }
}

/// Alibaba's: a share of a card by weight, whether the others use theirs or not.
fn weighted(node: &Node) {
    let of = |id: &str, weight: &str| {
        let builder = node.container(id).env("NVIDIA_VISIBLE_DEVICES", "0").env("ALIYUN_COM_GPU_MEM_DEV", "32");
        builder.env("ALIYUN_COM_GPU_MEM_CONTAINER", "4").env("ALIYUN_COM_GPU_SCHD_WEIGHT", weight)
    };
    let one = of("one", "2").args(SPIN).start().unwrap();
    until_shares("alone: the whole card", &[(&one.stdio, 100.0)]);
    let idle = of("idle", "2").start().unwrap();
    until_shares("half of it, although the other is idle", &[(&one.stdio, 50.0)]);
    let heavy = of("heavy", "4").args(SPIN).start().unwrap();
    until_shares("1 to 2", &[(&one.stdio, 25.0), (&heavy.stdio, 50.0)]);
    end([idle]);
    until_shares("1 to 2, of the whole card", &[(&one.stdio, 100.0 / 3.0), (&heavy.stdio, 200.0 / 3.0)]);
    end([one, heavy]);
}

fn preemptive(node: &Node) {
    let policy = [("EGPU_POLICY", "preemptive")];
    // Its groups would get three times as much as the other's one without windows.
    let one = granted(node, "one", &policy).args(&[SPIN, &["--groups", "3"]].concat()).start().unwrap();
    // It exists, and uses no card.
    let late = granted(node, "late", &policy).start().unwrap();
    until_shares("the only one with a process", &[(&one.stdio, 100.0)]);
    let process = exec(&late, "process", SPIN);
    until_shares("equal", &[(&one.stdio, 50.0), (&process.stdio, 50.0)]);
    planned(node, &[("one", 50.0), ("late", 50.0)]);
    process.end();
    until_shares("the only one again", &[(&one.stdio, 100.0)]);
    end([one, late]);
}

fn soft(node: &Node) {
    let weight = |weight: &'static str| [("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", weight)];
    let light = spinning(node, "light", &weight("1"));
    until_shares("alone", &[(&light.stdio, 100.0)]);
    let heavy = granted(node, "heavy", &weight("3")).start().unwrap();
    until_shares("beside one without work", &[(&light.stdio, 100.0)]);
    let work = exec(&heavy, "work", SPIN);
    until_shares("1 to 3", &[(&light.stdio, 25.0), (&work.stdio, 75.0)]);
    work.end();
    until_shares("what is not used is lent", &[(&light.stdio, 100.0)]);
    // Works for a tenth of the time, which is less than its share.
    let bursts = ["rm-client", "burst", "600", "10ms", "100ms", "--every", "100ms"];
    let bursts = exec(&heavy, "bursts", &bursts);
    until_shares("bursts", &[(&light.stdio, 90.0), (&bursts.stdio, 10.0)]);
    bursts.end();
    end([light, heavy]);
}

/// Ten groups are not ten shares.
fn groups(node: &Node) {
    let weight = [("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", "1")];
    let spin = [SPIN, &["--groups", "10"]].concat();
    let many = granted(node, "many", &weight).args(&spin).start().unwrap();
    let one = spinning(node, "one", &weight);
    until_shares("half each", &[(&many.stdio, 50.0), (&one.stdio, 50.0)]);
    end([many, one]);
}

/// By time slices, ten groups would have ten shares.
fn without_cap(node: &Node) {
    let spin = [SPIN, &["--groups", "10"]].concat();
    let many = granted(node, "many", &[]).args(&spin).start().unwrap();
    let one = spinning(node, "one", &[]);
    until_shares("half each", &[(&many.stdio, 50.0), (&one.stdio, 50.0)]);
    end([many]);
    until_shares("alone", &[(&one.stdio, 100.0)]);
    end([one]);
}

fn adaptive(node: &Node) {
    let weight = |weight: &'static str| [("EGPU_POLICY", "adaptive"), ("EGPU_WEIGHT", weight)];
    let light = spinning(node, "light", &weight("1"));
    let heavy = granted(node, "heavy", &weight("3")).start().unwrap();
    until_shares("beside one without work", &[(&light.stdio, 100.0)]);
    let work = exec(&heavy, "work", SPIN);
    until_shares("1 to 3", &[(&light.stdio, 25.0), (&work.stdio, 75.0)]);
    work.end();
    until_shares("what is not used is lent", &[(&light.stdio, 100.0)]);
    end([light, heavy]);
}

/// More of them than its share has time slices for: with the shortest ones they would have a
/// quarter of the card.
fn many_groups(node: &Node) {
    let of = |id, weight| granted(node, id, &[("EGPU_POLICY", "soft"), ("EGPU_WEIGHT", weight)]);
    let many = of("many", "1").args(&[SPIN, &["--groups", "60"]].concat()).start().unwrap();
    let one = of("one", "8").args(SPIN).start().unwrap();
    until_within("1 to 8", &[(&many.stdio, 4.0..=17.0), (&one.stdio, 35.0..=96.0)]);
    end([one]);
    until_shares("alone", &[(&many.stdio, 100.0)]);
    end([many]);
}

/// Each would have a share of its own, were they not off the card.
fn many_low_groups(node: &Node) {
    let spin = [SPIN, &["--groups", "60"]].concat();
    let low = granted(node, "low", &[("EGPU_PRIORITY", "low")]).args(&spin).start().unwrap();
    until_shares("alone", &[(&low.stdio, 100.0)]);
    let high = granted(node, "high", &[("EGPU_PRIORITY", "high")]).start().unwrap();
    let work = exec(&high, "work", SPIN);
    until_within("nothing is left", &[(&low.stdio, 0.0..=8.0), (&work.stdio, 40.0..=100.0)]);
    work.end();
    until_shares("high has no work", &[(&low.stdio, 100.0)]);
    end([low, high]);
}

/// Work for a quarter of the time, with breaks of 30 ms.
const SHORT_BURSTS: &[&str] = &["rm-client", "burst", "600", "10ms", "40ms", "--every", "100ms"];

fn of_priority(priority: &'static str) -> [(&'static str, &'static str); 1] {
    [("EGPU_PRIORITY", priority)]
}

fn priority(node: &Node) {
    let low = spinning(node, "low", &of_priority("low"));
    until_shares("alone", &[(&low.stdio, 100.0)]);
    let high = granted(node, "high", &of_priority("high")).start().unwrap();
    let work = exec(&high, "work", SPIN);
    until_within("nothing is left", &[(&low.stdio, 0.0..=3.0), (&work.stdio, 90.0..=100.0)]);
    work.end();
    until_shares("high has no work", &[(&low.stdio, 100.0)]);
    let bursts = exec(&high, "bursts", SHORT_BURSTS);
    until_shares("what high leaves", &[(&low.stdio, 75.0), (&bursts.stdio, 25.0)]);
    let card = node.egpu_json(&["inspect", "low"])["schedule"]["cards"][0].take();
    assert_eq!(card["gives_way"], "harvest", "{card}");
    bursts.end();
    end([low, high]);
}

fn two_low(node: &Node) {
    let [one, two] = ["one", "two"].map(|id| spinning(node, id, &of_priority("low")));
    let high = granted(node, "high", &of_priority("high")).start().unwrap();
    let bursts = exec(&high, "bursts", SHORT_BURSTS);
    let (each, quarter) = (30.0..=42.0, 20.0..=30.0);
    until_within("half each", &[(&one.stdio, each.clone()), (&two.stdio, each), (&bursts.stdio, quarter.clone())]);
    end([two]);
    until_within("all of it", &[(&one.stdio, 70.0..=80.0), (&bursts.stdio, quarter)]);
    bursts.end();
    end([one, high]);
}

fn strict_priority() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("priority = \"strict\"\n"), ..Setup::default() }
}

fn strict(node: &Node) {
    let low = spinning(node, "low", &of_priority("low"));
    let high = granted(node, "high", &of_priority("high")).start().unwrap();
    let bursts = exec(&high, "bursts", SHORT_BURSTS);
    until_within("next to nothing", &[(&low.stdio, 0.0..=10.0), (&bursts.stdio, 20.0..=30.0)]);
    bursts.end();
    let bursts = exec(&high, "long", &["rm-client", "burst", "600", "1s", "2s", "--every", "100ms"]);
    // Three seconds have one or two of its bursts.
    until_within("what high leaves", &[(&low.stdio, 15.0..=60.0), (&bursts.stdio, 30.0..=70.0)]);
    bursts.end();
    end([low, high]);
}
