//! CTYun eGPU.

use runtime_config::Config;

use crate::golden::{check, check_source, source};

const HEADER: &str = "EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER";

fn groups(groups: &str) -> String {
    format!("{HEADER}:{groups}")
}

#[test]
fn vendors_acceptance_tests_as_far_as_one_request_goes() {
    let three = |memory: [u32; 3], weight: u32| {
        let groups: Vec<String> =
            (0..3).map(|card| format!("PGPU={card},MEM={},WEIGHT={weight}", memory[card])).collect();
        format!("{HEADER}:{}", groups.join(":"))
    };
    for (variable, expected) in [
        (three([3276; 3], 10), "0,1,2 mem 3276MiB|3276MiB|3276MiB time 10%|10%|10% policy:fixed frozen"),
        (three([8192; 3], 10), "0,1,2 mem 8GiB|8GiB|8GiB time 10%|10%|10% policy:fixed frozen"),
        (three([10240; 3], 100), "0,1,2 mem 10GiB|10GiB|10GiB time 100%|100%|100% policy:fixed frozen"),
        (three([20480, 20480, 40960], 10), "0,1,2 mem 20GiB|20GiB|40GiB time 10%|10%|10% policy:fixed frozen"),
        (three([3276; 3], 110), "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=110:PGPU=1,"),
    ] {
        check(&Config::default(), &[(&[&variable], expected)]);
    }
    check(
        &Config::default(),
        &[(
            &[&groups("PGPU=0,MEM=1,WEIGHT=110")],
            "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=110 is not accepted: it must be written with WEIGHT from 1 to 100 in each group",
        )],
    );
}

#[test]
fn headers() {
    check(
        &Config::default(),
        &[
            (&["EGPU=POLICY=0,ONLINE=1,TYPE=K8S:PGPU=0,MEM=1,WEIGHT=1"], "0 mem 1MiB time 1% policy:fixed"),
            (
                &["EGPU=POLICY=1,ONLINE=1,TYPE=CONTAINERD:PGPU=0,MEM=1,WEIGHT=7:PGPU=1,MEM=1,WEIGHT=100"],
                "0,1 mem 1MiB|1MiB time w7|w100 policy:soft",
            ),
            (&["EGPU=POLICY=2,ONLINE=1:PGPU=0,MEM=1,WEIGHT=7"], "0 mem 1MiB time free isolation:memory"),
            (&["EGPU=POLICY=2:PGPU=0,MEM=1"], "0 mem 1MiB time free isolation:memory frozen"),
            (&["EGPU=TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=7"], "0 mem 1MiB time 7% policy:fixed frozen"),
            (
                &["EGPU=POLICY=3:PGPU=0,MEM=1,WEIGHT=1"],
                "refused: EGPU=POLICY=3:PGPU=0,MEM=1,WEIGHT=1 is not accepted: it must be written with POLICY=0, 1 or 2",
            ),
            (
                &["EGPU=ONLINE=yes:PGPU=0,MEM=1,WEIGHT=1"],
                "refused: EGPU=ONLINE=yes:PGPU=0,MEM=1,WEIGHT=1 is not accepted: it must be written with ONLINE=0 or 1",
            ),
            (
                &["EGPU=TYPE=PODMAN:PGPU=0,MEM=1,WEIGHT=1"],
                "refused: EGPU=TYPE=PODMAN:PGPU=0,MEM=1,WEIGHT=1 is not accepted: it must be written with TYPE=DOCKER",
            ),
            (&["EGPU=POLICY=0,POLICY=1:PGPU=0,MEM=1,WEIGHT=1"], "refused: EGPU=POLICY=0,POLICY=1:"),
            (&["EGPU=POLICY=0,MODE=1:PGPU=0,MEM=1,WEIGHT=1"], "refused: EGPU=POLICY=0,MODE=1:"),
            (&["EGPU=PGPU=0,MEM=1,WEIGHT=1"], "refused: EGPU=PGPU=0,MEM=1,WEIGHT=1 is"),
            (
                &["EGPU=POLICY=0"],
                "refused: EGPU=POLICY=0 is not accepted: it must be like POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=3276,WEIGHT=10, with a group",
            ),
            (&["EGPU=1"], "refused: EGPU=1 is"),
        ],
    );
}

#[test]
fn groups_are_whole_and_in_range() {
    for (group, part) in [
        ("MEM=1,WEIGHT=1", "written with PGPU"),
        ("PGPU=x,MEM=1,WEIGHT=1", "written with PGPU"),
        ("PGPU=4294967296,MEM=1,WEIGHT=1", "written with PGPU"),
        ("PGPU=0,WEIGHT=1", "written with MEM"),
        ("PGPU=0,MEM=0,WEIGHT=1", "written with MEM"),
        ("PGPU=0,MEM=-1,WEIGHT=1", "written with MEM"),
        ("PGPU=0,MEM=17592186044416,WEIGHT=1", "written with MEM"),
        ("PGPU=0,MEM=1", "written with WEIGHT"),
        ("PGPU=0,MEM=1,WEIGHT=0", "written with WEIGHT"),
        ("PGPU=0,MEM=1,WEIGHT=101", "written with WEIGHT"),
        ("PGPU=0,MEM=1,WEIGHT=10%", "written with WEIGHT"),
        ("PGPU=0,MEM=1,WEIGHT=1:PGPU=0,MEM=1,WEIGHT=1", "one group for each card; PGPU=0 stands twice"),
        ("PGPU=0,MEM=1,WEIGHT=1,CORE=2", "like POLICY=0"),
        ("PGPU=0,MEM=1,WEIGHT=1,MEM=2", "like POLICY=0"),
        ("", "like POLICY=0"),
        ("PGPU=0,MEM=1,WEIGHT=1:", "like POLICY=0"),
    ] {
        let variable = groups(group);
        let expected = format!("refused: {variable} is not accepted: it must be {part}");
        check(&Config::default(), &[(&[&variable], &expected)]);
    }
}

#[test]
fn groups_must_be_among_the_visible_cards() {
    let (zero, two) = (groups("PGPU=0,MEM=1,WEIGHT=1"), groups("PGPU=0,MEM=1,WEIGHT=1:PGPU=2,MEM=1,WEIGHT=1"));
    let (granted, both) =
        ("0 mem 1MiB time 1% policy:fixed frozen", "0,2 mem 1MiB|1MiB time 1%|1% policy:fixed frozen");
    check(
        &Config::default(),
        &[
            (&[&zero, "NVIDIA_VISIBLE_DEVICES=0"], granted),
            (&[&zero, "NVIDIA_VISIBLE_DEVICES=all"], granted),
            (&[&two, "NVIDIA_VISIBLE_DEVICES=2,0"], both),
            (
                &[&two, "NVIDIA_VISIBLE_DEVICES=0,1"],
                "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=1:PGPU=2,MEM=1,WEIGHT=1 and NVIDIA_VISIBLE_DEVICES=0,1 contradict each other: card 2 is not among",
            ),
            (
                &[&zero, "NVIDIA_VISIBLE_DEVICES=0,1"],
                "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=1 and NVIDIA_VISIBLE_DEVICES=0,1 contradict each other: card 1 is made visible, but",
            ),
            (&[&zero, "NVIDIA_VISIBLE_DEVICES=GPU-ab"], "0 within:GPU-ab mem 1MiB time 1% policy:fixed frozen"),
            (
                &[&zero, "NVIDIA_VISIBLE_DEVICES=void"],
                "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=1 and NVIDIA_VISIBLE_DEVICES=void contradict",
            ),
            (
                &[&zero, "NVIDIA_VISIBLE_DEVICES=none"],
                "refused: EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1,WEIGHT=1 and NVIDIA_VISIBLE_DEVICES=none contradict",
            ),
            (&[&zero, &two], "refused: EGPU is set more than once"),
        ],
    );
    let mut present = source(&[&zero, "NVIDIA_VISIBLE_DEVICES=void"]);
    present.nodes.cards = vec![3];
    check_source(&present, &Config::default(), "0 within:nodes[3][] mem 1MiB time 1% policy:fixed frozen");
}
