//! Shares change with `egpu set` and `egpu policy`, while programs run.

use integration::{Container, Node, eventually};

use super::{SPIN, end, granted, planned, spinning, until_shares, until_within};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::a_cap_that_changes", caps),
        Case::egpu("compute::a_weight_that_changes", weights),
        Case::egpu("compute::a_policy_that_changes", policies),
        Case::egpu("compute::a_period_that_changes", period),
    ]
}

fn caps(node: &Node) {
    let (one, two) =
        (spinning(node, "one", &[("EGPU_COMPUTE", "20%")]), spinning(node, "two", &[("EGPU_COMPUTE", "30%")]));
    until_shares("as granted", &[(&one.stdio, 20.0), (&two.stdio, 30.0)]);
    node.egpu_json(&["set", "one", "--compute", "60%", "--wait"]);
    until_shares("more for one", &[(&one.stdio, 60.0), (&two.stdio, 30.0)]);
    node.egpu_json(&["set", "two", "--compute", "10%", "--wait"]);
    until_shares("less for the other", &[(&one.stdio, 60.0), (&two.stdio, 10.0)]);
    planned(node, &[("one", 60.0), ("two", 10.0)]);
    node.egpu_json(&["set", "one", "--compute", "none", "--wait"]);
    until_shares("no cap: what is left", &[(&one.stdio, 90.0), (&two.stdio, 10.0)]);
    planned(node, &[("one", 90.0), ("two", 10.0)]);
    end([one, two]);
}

fn weights(node: &Node) {
    let of = |id| spinning(node, id, &[("EGPU_POLICY", "weighted"), ("EGPU_WEIGHT", "1")]);
    let (one, two) = (of("one"), of("two"));
    until_shares("as granted", &[(&one.stdio, 50.0), (&two.stdio, 50.0)]);
    node.egpu_json(&["set", "one", "--weight", "4", "--wait"]);
    until_shares("4 to 1", &[(&one.stdio, 80.0), (&two.stdio, 20.0)]);
    end([one, two]);
}

/// Whom the driver itself gives three times as much as the other.
fn three_to_one(node: &Node) -> [Container<'_>; 2] {
    let more = granted(node, "more", &[]).args(&[SPIN, &["--groups", "3"]].concat()).start().unwrap();
    [more, spinning(node, "less", &[])]
}

fn policies(node: &Node) {
    let [more, less] = three_to_one(node);
    until_shares("fixed, and nobody has a cap", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    node.egpu_json(&["policy", "0", "soft", "--wait"]);
    until_shares("soft", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    node.egpu_json(&["policy", "0", "preemptive", "--wait"]);
    until_shares("preemptive", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    planned(node, &[("more", 50.0), ("less", 50.0)]);
    node.egpu_json(&["policy", "0", "fair", "--wait"]);
    until_shares("fair: a sixteenth each", &[(&more.stdio, 6.25), (&less.stdio, 6.25)]);
    planned(node, &[("more", 6.25), ("less", 6.25)]);
    node.egpu_json(&["policy", "0", "weighted", "--wait"]);
    until_shares("weighted", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    node.egpu_json(&["policy", "0", "native", "--wait"]);
    until_shares("native", &[(&more.stdio, 75.0), (&less.stdio, 25.0)]);
    end([more, less]);
}

/// The shares are the same with each period, so these say nothing of whether mediators follow.
fn period(node: &Node) {
    let (one, two) =
        (spinning(node, "one", &[("EGPU_COMPUTE", "20%")]), spinning(node, "two", &[("EGPU_COMPUTE", "50%")]));
    for period_ms in [40, 300] {
        let period = format!("{period_ms}ms");
        node.egpu_json(&["policy", "0", "fixed", "--period", &period, "--wait"]);
        // A period of 40 ms has so many edges that what each moves is some points.
        until_within(&period, &[(&one.stdio, 15.0..=23.0), (&two.stdio, 45.0..=55.0)]);
        planned(node, &[("one", 20.0), ("two", 50.0)]);
        for (id, percent) in [("one", 20), ("two", 50)] {
            assert_eq!(node.egpu_json(&["inspect", id])["turn"]["period_us"], period_ms * 1000);
            // Windows that a busy machine misses make it longer, and nothing makes it shorter. It
            // was 100 ms, and is 40 ms after that.
            let range_us = period_ms * 950..period_ms * 2250;
            eventually(&format!("the mediator of {id} has periods of {range_us:?} us"), || {
                range_us.contains(&enforced_period_us(node, id, percent)).then_some(())
            });
        }
    }
    end([one, two]);
}

/// Returns the length of the periods that a container's mediator enforces, by its own status: it
/// opens and closes its gate once in each, and between the two it is off the card but for its
/// share.
fn enforced_period_us(node: &Node, id: &str, percent: u64) -> u64 {
    let counters = || {
        let schedule = node.egpu_json(&["inspect", id])["schedule"].take();
        let number = |name: &str| schedule["cards"][0][name].as_u64().unwrap_or_else(|| panic!("{name} in {schedule}"));
        (number("edges"), number("throttled_us"))
    };
    let (edges, throttled_us) = counters();
    let (more_edges, more_us) = eventually("twenty edges more", || {
        let (now, now_us) = counters();
        (now >= edges + 20).then(|| (now - edges, now_us - throttled_us))
    });
    more_us * 2 * 100 / (100 - percent) / more_edges
}
