//! What programs get changes with `egpu set` and `egpu policy`, while they run.

use integration::{Container, Node};

use super::{SPIN, around, end, granted, spinning, until_shares, until_within};
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
    node.egpu_json(&["set", "one", "--compute", "none", "--wait"]);
    // More than what it had with its cap.
    until_within("no cap: what is left", &[(&one.stdio, 67.0..=95.0), (&two.stdio, around(10.0))]);
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
    until_shares("fixed, and nobody has a cap", &[(&more.stdio, 75.0), (&less.stdio, 25.0)]);
    node.egpu_json(&["policy", "0", "soft", "--wait"]);
    until_within("soft", &[(&more.stdio, 20.0..=58.0), (&less.stdio, 20.0..=58.0)]);
    node.egpu_json(&["policy", "0", "preemptive", "--wait"]);
    until_shares("preemptive", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    node.egpu_json(&["policy", "0", "fair", "--wait"]);
    until_shares("fair: a sixteenth each", &[(&more.stdio, 6.25), (&less.stdio, 6.25)]);
    node.egpu_json(&["policy", "0", "weighted", "--wait"]);
    until_shares("weighted", &[(&more.stdio, 50.0), (&less.stdio, 50.0)]);
    node.egpu_json(&["policy", "0", "native", "--wait"]);
    until_shares("native", &[(&more.stdio, 75.0), (&less.stdio, 25.0)]);
    end([more, less]);
}

fn period(node: &Node) {
    let (one, two) =
        (spinning(node, "one", &[("EGPU_COMPUTE", "20%")]), spinning(node, "two", &[("EGPU_COMPUTE", "50%")]));
    for period in ["40ms", "300ms"] {
        node.egpu_json(&["policy", "0", "fixed", "--period", period, "--wait"]);
        until_shares(period, &[(&one.stdio, 20.0), (&two.stdio, 50.0)]);
    }
    end([one, two]);
}
