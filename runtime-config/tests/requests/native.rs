//! egpu's own language.

use runtime_config::{
    Config,
    request::{ContainerRequest, NvidiaHook, Source, parse},
};

use crate::golden::{check, check_source, config, source};

#[test]
fn caps_and_weights_are_for_the_policies_that_have_a_use_for_them() {
    for (policy, caps, weights) in [
        ("fair", false, false),
        ("preemptive", false, false),
        ("weighted", false, true),
        ("fixed", true, true),
        ("soft", false, true),
        ("native", false, false),
    ] {
        for (asked, is_taken) in [("EGPU_COMPUTE=30%", caps), ("EGPU_WEIGHT=4", weights)] {
            let policy = format!("EGPU_POLICY={policy}");
            let answer = parse(&source(&[asked, &policy]), &Config::default());
            assert_eq!(answer.is_ok(), is_taken, "{asked} {policy}");
        }
    }
}

#[test]
fn variables() {
    check(
        &Config::default(),
        &[
            (&["EGPU_CARDS=2"], "any 2 exclusive"),
            (&["EGPU_DEVICES=0,GPU-ab"], "0,GPU-ab exclusive"),
            (&["EGPU_DEVICES=all"], "all exclusive"),
            (&["EGPU_DEVICES=none"], "none monitor"),
            (&["EGPU_DEVICES=void"], "nothing"),
            (&["EGPU_MEMORY=6GiB"], "any 1 mem 6GiB time free"),
            (&["EGPU_MEMORY=40%"], "any 1 mem 40/100 time free"),
            (&["EGPU_CARDS=2", "EGPU_MEMORY=3GiB,4GiB"], "any 2 mem 3GiB|4GiB time free"),
            (&["EGPU_CARDS=2", "EGPU_MEMORY=3GiB"], "any 2 mem 3GiB time free"),
            (&["EGPU_COMPUTE=30%"], "any 1 mem whole time 30% policy:fixed"),
            (&["EGPU_DEVICES=0,1", "EGPU_COMPUTE=30%,50%"], "0,1 mem whole time 30%|50% policy:fixed"),
            (&["EGPU_WEIGHT=1000"], "any 1 mem whole time w1000 policy:soft"),
            (&["EGPU_MEMORY=6GiB", "EGPU_POLICY=soft"], "any 1 mem 6GiB time free policy:soft"),
            (&["EGPU_WEIGHT=16", "EGPU_POLICY=weighted"], "any 1 mem whole time w16 policy:weighted"),
            (&["EGPU_WEIGHT=4", "EGPU_POLICY=fixed"], "any 1 mem whole time w4 policy:fixed"),
            (&["EGPU_COMPUTE=30%", "EGPU_POLICY=fixed"], "any 1 mem whole time 30% policy:fixed"),
            (
                &["EGPU_MEMORY=6GiB", "EGPU_PRIORITY=low", "EGPU_PLACEMENT=spread", "EGPU_GROUP=web"],
                "any 1 mem 6GiB time free low spread group:web",
            ),
            (&["EGPU_MEMORY=6GiB", "EGPU_PRIORITY=high", "EGPU_PLACEMENT=binpack"], "any 1 mem 6GiB time free"),
            (&["EGPU_MEMORY=6GiB", "EGPU_ISOLATION=full"], "any 1 mem 6GiB time free"),
            (&["EGPU_MEMORY=6GiB", "EGPU_ISOLATION=memory"], "any 1 mem 6GiB time free isolation:memory"),
            (
                &["EGPU_MEMORY=6GiB", "EGPU_OOM=kill", "EGPU_OOM_SCRIPT=/oom"],
                "any 1 mem 6GiB time free kill script:/oom",
            ),
            (&["EGPU_MEMORY=6GiB", "EGPU_OOM=deny"], "any 1 mem 6GiB time free"),
            (&["EGPU_MEMORY=6GiB", "EGPU_PINNED_MEMORY=32GiB"], "any 1 mem 6GiB time free pinned:32GiB"),
        ],
    );
}

#[test]
fn pinned_memory_without_effect_is_warned_about() {
    let asked = |variables: &[&str], config: &str| {
        let variables = [&["EGPU_PINNED_MEMORY=1GiB"], variables].concat();
        match parse(&source(&variables), &Config::from_toml(config, "test").unwrap()) {
            Ok(ContainerRequest::Gpu(request)) => (request.pinned_memory.is_some(), request.warnings.len()),
            other => panic!("{other:?}"),
        }
    };
    let utility = &["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility"];
    assert_eq!(asked(&["EGPU_MEMORY=1GiB"], ""), (true, 0));
    assert_eq!(asked(&["EGPU_CARDS=1"], ""), (false, 1));
    assert_eq!(asked(&["EGPU_CARDS=1"], "whole_cards = 'mediated'"), (true, 0));
    assert_eq!(asked(utility, "whole_cards = 'mediated'"), (false, 1));
}

#[test]
fn a_priority_without_effect_is_warned_about() {
    let warned = |variables: &[&str]| {
        let variables = [&["EGPU_MEMORY=6GiB"], variables].concat();
        match parse(&source(&variables), &Config::default()) {
            Ok(ContainerRequest::Gpu(request)) => request.warnings.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(warned(&["EGPU_PRIORITY=low", "EGPU_COMPUTE=30%"]), 1);
    assert_eq!(warned(&["EGPU_PRIORITY=low", "EGPU_POLICY=fair"]), 1);
    for heeded in [&["EGPU_PRIORITY=low"][..], &["EGPU_PRIORITY=low", "EGPU_WEIGHT=2"], &["EGPU_COMPUTE=30%"]] {
        assert_eq!(warned(heeded), 0, "{heeded:?}");
    }
}

#[test]
fn annotations_are_the_same_and_take_the_place_of_variables() {
    check(
        &Config::default(),
        &[
            (
                &["egpu.io/cards=2", "egpu.io/memory=6GiB", "egpu.io/compute=30%"],
                "any 2 mem 6GiB time 30% policy:fixed",
            ),
            (
                &["egpu.io/devices=1", "egpu.io/weight=3", "egpu.io/policy=weighted"],
                "1 mem whole time w3 policy:weighted",
            ),
            (
                &[
                    "egpu.io/memory=1GiB",
                    "egpu.io/placement=spread",
                    "egpu.io/group=g",
                    "egpu.io/priority=low",
                    "egpu.io/oom=kill",
                    "egpu.io/oom-script=/x",
                    "egpu.io/isolation=memory",
                ],
                "any 1 mem 1GiB time free isolation:memory kill script:/x low spread group:g",
            ),
            // For the cluster's scorer.
            (&["egpu.io/memory=6GiB", "egpu.io/node-placement=spread"], "any 1 mem 6GiB time free"),
            (&["egpu.io/node-placement=binpack"], "nothing"),
            (
                &["egpu.io/node-placement=spreed"],
                "refused: egpu.io/node-placement=spreed is not accepted: it must be one of binpack, spread",
            ),
            (&["egpu.io/memory=6GiB", "EGPU_MEMORY=nonsense"], "any 1 mem 6GiB time free"),
            (&["egpu.io/memory=6GiB", "EGPU_COMPUTE=30%"], "any 1 mem 6GiB time 30% policy:fixed"),
            (
                &["egpu.io/memory=lots"],
                "refused: egpu.io/memory=lots is not accepted: it must be an amount such as 6GiB (or MiB, KiB, B), a percentage",
            ),
            (
                &["egpu.io/devices=0", "EGPU_CARDS=1"],
                "refused: egpu.io/devices=0 and EGPU_CARDS=1 contradict each other: the one says which",
            ),
        ],
    );
}

#[test]
fn nvidias_variable_names_the_cards() {
    check(
        &Config::default(),
        &[
            (&["EGPU_MEMORY=6GiB", "NVIDIA_VISIBLE_DEVICES=0,1"], "0,1 mem 6GiB time free"),
            // NVIDIA's images set it to `all` without anybody having asked.
            (&["EGPU_MEMORY=6GiB", "NVIDIA_VISIBLE_DEVICES=all"], "any 1 mem 6GiB time free"),
            (&["EGPU_MEMORY=6GiB", "NVIDIA_VISIBLE_DEVICES=void"], "any 1 mem 6GiB time free"),
            (&["EGPU_CARDS=1", "NVIDIA_VISIBLE_DEVICES=all"], "any 1 exclusive"),
            (&["EGPU_CARDS=1", "NVIDIA_VISIBLE_DEVICES=0,1"], "any 1 within:0,1 exclusive"),
            (&["EGPU_DEVICES=1", "NVIDIA_VISIBLE_DEVICES=0,1"], "1 exclusive"),
            (
                &["EGPU_DEVICES=3", "NVIDIA_VISIBLE_DEVICES=0,1"],
                "refused: EGPU_DEVICES=3 and NVIDIA_VISIBLE_DEVICES=0,1 contradict each other: card 3 is not among those made visible",
            ),
            (&["EGPU_DEVICES=3", "NVIDIA_VISIBLE_DEVICES=GPU-ab"], "3 within:GPU-ab exclusive"),
            (&["EGPU_DEVICES=GPU-AB", "NVIDIA_VISIBLE_DEVICES=GPU-ab"], "GPU-AB exclusive"),
            // Wishes alone ask for nothing.
            (&["EGPU_GROUP=web", "EGPU_PLACEMENT=spread"], "nothing"),
            (&["EGPU_GROUP=web", "NVIDIA_VISIBLE_DEVICES=0"], "0 exclusive group:web"),
        ],
    );
    let docker =
        Source { hook: Some(NvidiaHook::Environment), ..source(&["EGPU_MEMORY=6GiB", "NVIDIA_VISIBLE_DEVICES=all"]) };
    check_source(&docker, &Config::default(), "all mem 6GiB time free");
}

#[test]
fn refusals() {
    check(
        &Config::default(),
        &[
            (&["EGPU_CARDS=0"], "refused: EGPU_CARDS=0 is not accepted: it must be a whole number from 1 to 1024"),
            (&["EGPU_CARDS=two"], "refused: EGPU_CARDS=two is"),
            (&["EGPU_CARDS=1", "EGPU_DEVICES=0"], "refused: EGPU_DEVICES=0 and EGPU_CARDS=1 contradict each other"),
            (
                &["EGPU_DEVICES=first"],
                "refused: EGPU_DEVICES=first is not accepted: it must be a list of cards, all, none or void; a card is named by",
            ),
            (
                &["EGPU_MEMORY="],
                "refused: EGPU_MEMORY= is not accepted: it must be an amount such as 6GiB (or MiB, KiB, B), a percentage",
            ),
            (&["EGPU_MEMORY=6"], "refused: EGPU_MEMORY=6 is"),
            (&["EGPU_MEMORY=0GiB"], "refused: EGPU_MEMORY=0GiB is"),
            (
                &["EGPU_MEMORY=3GiB,4GiB"],
                "refused: EGPU_MEMORY=3GiB,4GiB is not accepted: it must be as many values as there are cards: 2 values are listed for 1 card",
            ),
            (
                &["EGPU_DEVICES=none", "EGPU_MEMORY=1GiB"],
                "refused: EGPU_MEMORY=1GiB and EGPU_DEVICES=none contradict each other: limits need a card",
            ),
            (&["EGPU_COMPUTE=0%"], "refused: EGPU_COMPUTE=0% is not accepted: it must be 1% to 100%"),
            (&["EGPU_COMPUTE=101%"], "refused: EGPU_COMPUTE=101% is"),
            (&["EGPU_COMPUTE=30"], "refused: EGPU_COMPUTE=30 is"),
            (&["EGPU_WEIGHT=0"], "refused: EGPU_WEIGHT=0 is not accepted: it must be a whole number from 1 to 1000"),
            (&["EGPU_WEIGHT=1001"], "refused: EGPU_WEIGHT=1001 is"),
            (
                &["EGPU_WEIGHT=2", "EGPU_COMPUTE=30%"],
                "refused: EGPU_COMPUTE=30% and EGPU_WEIGHT=2 contradict each other",
            ),
            (
                &["EGPU_POLICY=best", "EGPU_CARDS=1"],
                "refused: EGPU_POLICY=best is not accepted: it must be one of fair, preemptive",
            ),
            (
                &["EGPU_POLICY=soft", "EGPU_COMPUTE=30%"],
                "refused: EGPU_POLICY=soft and EGPU_COMPUTE=30% contradict each other: a percentage is a hard cap",
            ),
            (
                &["EGPU_POLICY=fair", "EGPU_WEIGHT=2"],
                "refused: EGPU_POLICY=fair and EGPU_WEIGHT=2 contradict each other: weights",
            ),
            (
                &["EGPU_POLICY=weighted", "EGPU_WEIGHT=17"],
                "refused: EGPU_POLICY=weighted and EGPU_WEIGHT=17 contradict each other: under the policy weighted a weight counts slices, of which a card has 16",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_PLACEMENT=best"],
                "refused: EGPU_PLACEMENT=best is not accepted: it must be one of binpack, spread",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_PRIORITY=1"],
                "refused: EGPU_PRIORITY=1 is not accepted: it must be one of high, low",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_ISOLATION=some"],
                "refused: EGPU_ISOLATION=some is not accepted: it must be one of full, memory, none",
            ),
            (
                &["EGPU_COMPUTE=30%", "EGPU_ISOLATION=memory"],
                "refused: EGPU_ISOLATION=memory and EGPU_COMPUTE=30% contradict each other",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_OOM=ignore"],
                "refused: EGPU_OOM=ignore is not accepted: it must be one of deny, kill",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_OOM_SCRIPT=/oom"],
                "refused: EGPU_OOM_SCRIPT=/oom is not accepted: it must be accompanied by EGPU_OOM=kill",
            ),
            (
                &["EGPU_CARDS=1", "EGPU_OOM=kill", "EGPU_OOM_SCRIPT=oom"],
                "refused: EGPU_OOM_SCRIPT=oom is not accepted: it must be an absolute path",
            ),
            (&["EGPU_CARDS=1", "EGPU_GROUP="], "refused: EGPU_GROUP= is"),
            (
                &["EGPU_MEMORY=1GiB", "EGPU_PINNED_MEMORY=40%"],
                "refused: EGPU_PINNED_MEMORY=40% is not accepted: it must be an amount such as 8GiB",
            ),
        ],
    );
}

#[test]
fn mistyped_names_are_refused_with_a_suggestion() {
    check(
        &Config::default(),
        &[
            (&["EGPU_MEMROY=6GiB"], "refused: there is no EGPU_MEMROY, did you mean EGPU_MEMORY?"),
            (&["EGPU_CARDS=1", "EGPU_XYZ=1"], "refused: there is no EGPU_XYZ; leave it out"),
            (&["egpu.io/memmory=6GiB"], "refused: there is no egpu.io/memmory, did you mean egpu.io/memory?"),
            (&["egpu.io/xyz=1"], "refused: there is no egpu.io/xyz; leave it out"),
            // Somebody else's, in a container that asks for nothing.
            (&["EGPU_XYZ=1"], "nothing"),
            (&["EGPU_CARDS=1", "EGPU_CONFIG=/etc/x"], "any 1 exclusive"),
        ],
    );
}

#[test]
fn of_two_values_the_tighter_holds() {
    check(
        &config("allow_isolation_none = true"),
        &[
            (&["EGPU_MEMORY=6GiB", "EGPU_MEMORY=40%"], "any 1 mem 6GiB&40/100 time free"),
            (&["EGPU_COMPUTE=30%", "EGPU_COMPUTE=20%"], "any 1 mem whole time 20% policy:fixed"),
            (&["EGPU_WEIGHT=3", "EGPU_WEIGHT=2"], "any 1 mem whole time w2 policy:soft"),
            (&["EGPU_CARDS=3", "EGPU_CARDS=2"], "any 2 exclusive"),
            (&["EGPU_CARDS=1", "EGPU_OOM=deny", "EGPU_OOM=kill"], "any 1 exclusive kill"),
            (&["EGPU_CARDS=1", "EGPU_PRIORITY=low", "EGPU_PRIORITY=high"], "any 1 exclusive low"),
            (&["EGPU_CARDS=1", "EGPU_ISOLATION=none", "EGPU_ISOLATION=full"], "any 1 mem whole time free"),
            (&["EGPU_CARDS=2", "EGPU_MEMORY=1GiB,2GiB", "EGPU_MEMORY=3GiB"], "any 2 mem 1GiB&3GiB|2GiB&3GiB time free"),
            (
                &["EGPU_CARDS=2", "EGPU_MEMORY=1GiB,2GiB", "EGPU_MEMORY=1GiB,2GiB,3GiB"],
                "refused: EGPU_MEMORY is set more than once",
            ),
            (&["EGPU_DEVICES=0", "EGPU_DEVICES=1"], "refused: EGPU_DEVICES is set more than once"),
            (&["EGPU_CARDS=1", "EGPU_POLICY=soft", "EGPU_POLICY=fair"], "refused: EGPU_POLICY is set more than once"),
        ],
    );
}

#[test]
fn no_isolation_needs_the_nodes_leave() {
    let said = ["EGPU_MEMORY=6GiB", "EGPU_ISOLATION=none"];
    check(
        &Config::default(),
        &[(
            &said,
            "refused: EGPU_ISOLATION=none is not allowed on this node: it needs allow_isolation_none = true in the node's configuration",
        )],
    );
    check(&config("allow_isolation_none = true"), &[(&said, "any 1 mem 6GiB time free isolation:none")]);
}
