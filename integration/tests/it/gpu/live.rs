//! Limits and policies that change while containers run: `egpu set`, `egpu policy`, and who shows
//! them.

use integration::{Container, ContainerBuilder, Node, Setup, egpu::EgpuConfig, eventually, hostile::MIB};
use serde_json::Value;

use crate::{
    case::Case,
    memory::{assert_full, fill},
};

/// A change holds within four periods of 100 ms.
const FOUR_PERIODS_US: u64 = 400_000;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("live::a_container_gets_more_and_less", more_and_less).needing(integration::hostile::available),
        Case::egpu("live::what_does_not_fit_is_refused_whole", does_not_fit),
        Case::egpu("live::what_has_no_limits_or_may_not_change_is_refused", no_change),
        Case::egpu("live::containers_and_cards_are_named", names),
        Case::egpu("live::each_card_has_its_own_limits", per_card),
        Case::egpu("live::policy_and_period_of_a_card", policy_and_period),
        Case::egpu("live::a_policy_that_breaks_a_grant_is_refused", policy_refused),
        Case::egpu("live::cards_without_hard_caps", without_hard_caps).on(no_gsp),
        Case::egpu("live::top_shows_cards_and_containers", top),
    ]
}

fn no_gsp() -> Setup {
    let cards =
        "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Old\"\nmemory = \"16GiB\"\ngsp = false\n";
    Setup { egpu: EgpuConfig::with_cards(cards), ..Setup::default() }
}

fn ask<'node>(node: &'node Node, id: &str, memory: &str, compute: &str) -> ContainerBuilder<'node> {
    node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory), ("EGPU_COMPUTE", compute)])
}

fn weighted<'node>(node: &'node Node, id: &str, weight: &str) -> Container<'node> {
    let builder = node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]);
    builder.envs(&[("EGPU_WEIGHT", weight), ("EGPU_POLICY", "weighted")]).start().expect("a container with a weight")
}

/// `egpu`, which must fail: its exit code and what it says.
#[track_caller]
fn fails(node: &Node, arguments: &[&str]) -> (i32, String) {
    let output = node.egpu(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    (output.status.code().expect("an exit code"), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn more_and_less(node: &Node) {
    let container = ask(node, "a", "1GiB", "10%").armed().start().unwrap();
    assert_full(fill(&container).0, 1024);
    let changed = node.egpu_json(&["set", "a", "--memory", "2GiB", "--compute", "30%", "--wait"]);
    assert_eq!(changed["cards"][0]["memory_limit_bytes"], serde_json::json!({"before": 1 << 30, "after": 2_u64 << 30}));
    assert_eq!(changed["cards"][0]["compute_percent"], serde_json::json!({"before": 10, "after": 30}));
    assert_eq!(changed["cards"][0]["granted_percent"], 30.0);
    assert_eq!(changed["in_us"], 0, "it was waited for");
    let grant = node.grant("a").unwrap();
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![2048], vec![Some(30)]));
    assert_full(fill(&container).0, 2048);
    let changed = node.egpu_json(&["set", "a", "--memory", "25%", "--compute", "none"]);
    assert!(number(&changed["in_us"]) <= FOUR_PERIODS_US, "{changed}");
    let grant = node.grant("a").unwrap();
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![8192], vec![None]));
    // Less than it has: it keeps that, and gets no more.
    let hog = container.exec("hog", &["hostile", "hold", "900"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    eventually("its use is reported", || (node.usage("a").used >= 900 * MIB).then_some(()));
    let output = node.egpu(&["set", "a", "--memory", "512MiB", "--wait"]);
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("memory 8 GiB -> 512 MiB") && said.ends_with("in force\n"), "{said}");
    assert!(warned.contains("more than its new limit"), "{warned}");
    assert!(fill(&container).0 < 16 * MIB, "there is no room");
    hog.end();
    eventually("what it freed is free", || (fill(&container).0 > 400 * MIB).then_some(()));
    assert_full(fill(&container).0, 512);
    container.end();
}

fn does_not_fit(node: &Node) {
    let (first, second) =
        (ask(node, "a", "20GiB", "60%").start().unwrap(), ask(node, "b", "4GiB", "30%").start().unwrap());
    // What they were granted, and not what they have of it just now.
    let granted = || {
        ["a", "b"].map(|id| {
            let grant = node.grant(id).unwrap();
            (grant.memory_mib(), grant.compute())
        })
    };
    let before = granted();
    let (code, said) = fails(node, &["set", "b", "--compute", "41%"]);
    assert!(code == 5 && said.contains("/b") && said.contains("/a"), "{code}: {said}");
    let (code, said) = fails(node, &["set", "b", "--memory", "13GiB", "--compute", "10%"]);
    assert!(code == 5 && said.contains("13GiB"), "{code}: {said}");
    assert_eq!(granted(), before, "nothing has changed");
    assert!(node.decisions("b").iter().any(|decision| decision.event == "refuse"), "the log tells of it");
    let output = node.egpu(&["set", "b", "--compute", "40%", "--memory", "12GiB"]);
    assert!(output.status.success(), "{output:?}");
    assert!(node.decisions("b").iter().any(|decision| decision.event == "change"));
    for container in [first, second] {
        container.end();
    }
}

fn no_change(node: &Node) {
    let whole = node.container("whole").env("NVIDIA_VISIBLE_DEVICES", "1").start().unwrap();
    let offline = node.container("offline").env("NVIDIA_VISIBLE_DEVICES", "0");
    let offline = offline.env("EGPU", "POLICY=0,ONLINE=0:PGPU=0,MEM=1024,WEIGHT=10").start().unwrap();
    for (id, says) in [("whole", "whole"), ("offline", "ONLINE=0")] {
        let (code, said) = fails(node, &["set", id, "--compute", "20%"]);
        assert!(code == 5 && said.contains(says), "{code}: {said}");
    }
    for container in [whole, offline] {
        container.end();
    }
}

fn names(node: &Node) {
    let containers = [ask(node, "web-1", "1GiB", "10%").start(), ask(node, "web-2", "1GiB", "10%").start()];
    let code = |arguments: &[&str]| fails(node, arguments).0;
    assert_eq!(code(&["set", "nobody", "--weight", "2"]), 4);
    assert_eq!(code(&["set", "web", "--weight", "2"]), 4, "two begin so");
    assert_eq!(code(&["set", "web-1", "--namespace", "elsewhere", "--weight", "2"]), 4);
    assert_eq!(code(&["set", "web-1"]), 2);
    assert_eq!(code(&["set", "web-1", "--compute", "0%"]), 2);
    assert_eq!(code(&["policy", "9", "soft"]), 4);
    let uuid = node.egpu_json(&["cards"])[1]["uuid"].as_str().unwrap().to_owned();
    assert_eq!(code(&["policy", &uuid[..20], "soft"]), 4, "all begin so");
    assert_eq!(code(&["policy", "0", "fastest"]), 2);
    assert_eq!(code(&["policy", "0", "--period", "1s"]), 2);
    let changed = node.egpu_json(&["set", "web-1", "--namespace", node.namespace(), "--compute", "20%"]);
    assert_eq!((&changed["id"], &changed["namespace"]), (&"web-1".into(), &node.namespace().into()));
    assert_eq!(node.egpu_json(&["policy", &uuid])[0]["index"], 1);
    for container in containers {
        container.unwrap().end();
    }
}

fn per_card(node: &Node) {
    let container =
        node.container("a").envs(&[("EGPU_DEVICES", "0,2"), ("EGPU_MEMORY", "1GiB,2GiB"), ("EGPU_COMPUTE", "10%")]);
    let container = container.start().unwrap();
    node.egpu_json(&["set", "a", "--memory", "3GiB,4GiB", "--compute", "20%,30%"]);
    let grant = node.grant("a").unwrap();
    assert_eq!((grant.memory_mib(), grant.compute()), (vec![3072, 4096], vec![Some(20), Some(30)]));
    let (code, said) = fails(node, &["set", "a", "--memory", "1GiB,1GiB,1GiB"]);
    assert!(code == 5 && said.contains("3 values are listed for 2 cards"), "{code}: {said}");
    container.end();
}

fn policy_and_period(node: &Node) {
    let listed = node.egpu_json(&["policy"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(4));
    assert_eq!((&listed[0]["policy"], &listed[0]["policy_in_use"]), (&"fixed".into(), &false.into()));
    let set = node.egpu_json(&["policy", "0", "weighted"]);
    assert_eq!((&set["before"]["policy"], &set["after"]["policy"]), (&"fixed".into(), &"weighted".into()));
    let one = node.container("one").envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", "1GiB")]).start().unwrap();
    let two = weighted(node, "two", "3");
    assert_eq!(node.grant("one").unwrap().policies(), ["weighted"], "who comes later follows it");
    // Null until the epoch begins that has it.
    let granted = || -> Vec<Option<f64>> {
        let turn = |id| node.egpu_json(&["inspect", id])["turn"]["cards"][0]["share_ppm"].as_f64();
        ["one", "two"].map(|id| turn(id).map(|ppm| ppm / 1e4)).into()
    };
    eventually("their shares are 1 to 3", || (granted() == [Some(25.0), Some(75.0)]).then_some(()));
    node.egpu_json(&["set", "one", "--weight", "3", "--wait"]);
    assert_eq!(granted(), [Some(50.0), Some(50.0)]);
    let soft = node.egpu_json(&["policy", "0", "soft"]);
    assert!(number(&soft["in_us"]) <= FOUR_PERIODS_US, "{soft}");
    for id in ["one", "two"] {
        assert_eq!(node.grant(id).unwrap().policies(), ["soft"]);
        eventually("time slices by weight", || {
            let turn = node.egpu_json(&["inspect", id]);
            turn["turn"]["cards"][0]["pass"].get("weight").map(drop)
        });
    }
    node.egpu_json(&["policy", "0", "weighted", "--period", "50ms", "--wait"]);
    assert_eq!(node.egpu_json(&["inspect", "one"])["turn"]["period_us"], 50_000);
    assert_eq!(node.egpu_json(&["cards"])[0]["period_us"], 50_000);
    let again = String::from_utf8(node.egpu(&["policy", "0", "weighted"]).stdout).unwrap();
    assert!(again.ends_with("policy weighted, period 50ms, as before\n"), "{again}");
    for container in [one, two] {
        container.end();
    }
}

fn policy_refused(node: &Node) {
    let container = ask(node, "a", "1GiB", "30%").start().unwrap();
    let before = node.egpu_json(&["policy"]);
    let (code, said) = fails(node, &["policy", "0", "soft"]);
    assert!(code == 5 && said.contains("/a") && said.contains("30%"), "{code}: {said}");
    assert_eq!(node.egpu_json(&["policy"]), before);
    container.end();
}

fn without_hard_caps(node: &Node) {
    assert_eq!(node.egpu_json(&["cards"])[0]["hard_caps"], false);
    let cards = String::from_utf8(node.egpu(&["cards"]).stdout).unwrap();
    assert!(cards.contains("weights only, simulated"), "{cards}");
    let report = String::from_utf8(node.egpu(&["doctor"]).stdout).unwrap();
    assert!(report.contains("card 0 shares") && report.contains("weights only: without GSP firmware"), "{report}");
    let refused = ask(node, "a", "1GiB", "30%").start().map(drop).unwrap_err();
    assert!(refused.message().contains("30%"), "{}", refused.message());
    let container = node.container("b").envs(&[("EGPU_MEMORY", "1GiB"), ("EGPU_POLICY", "soft")]).start().unwrap();
    let (code, said) = fails(node, &["set", "b", "--compute", "30%"]);
    assert_eq!(code, 5, "{said}");
    container.end();
}

fn top(node: &Node) {
    let container = ask(node, "a", "1GiB", "25%").start().unwrap();
    // Null until the epoch begins that has it.
    eventually("its share is shown", || {
        let frame = node.egpu_json(&["top"]);
        let (card, line) = (&frame["cards"][0], &frame["containers"][0]["cards"][0]);
        assert_eq!((&card["containers"], &line["memory_limit_bytes"]), (&1.into(), &(1 << 30).into()));
        let granted = [card, line].map(|place| place["granted_percent"].as_f64());
        (granted == [Some(25.0); 2]).then_some(())
    });
    let two = node.egpu(&["top", "--count", "2", "--interval", "100ms"]);
    let text = String::from_utf8(two.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("CARD ")).count(), 2, "{text}");
    assert!(text.contains(&format!("{}/a", node.namespace())), "{text}");
    let lines = node.egpu(&["top", "-n", "3", "-i", "100ms", "--output", "json"]);
    assert_eq!(String::from_utf8(lines.stdout).unwrap().lines().count(), 3);
    container.end();
}
