//! A card that fails while containers are off it: its users are notified, nobody waits for ever,
//! nobody else notices, and after its reset it can be had again.

use integration::{Container, Node, eventually, exposition::value};

use super::{SPIN, end, exec, granted, spinning, until_shares};
use crate::{case::Case, events, metrics::scrape};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::a_card_that_is_lost", lost),
        Case::egpu("compute::a_card_that_is_lost_beside_another_of_the_container", other_card_of_the_same),
        Case::egpu("compute::a_card_that_is_reset_under_a_container", reset_under),
        Case::egpu("compute::a_card_that_takes_nobody_off_for_a_while", firmware),
    ]
}

const LOST: &str = "79, GPU has fallen off the bus.";
/// The driver's line when nothing is left to be done.
const RESET: &str = "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
/// `DISABLE_CHANNELS` is not answered.
const TIMEOUT: &str = "119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 \
                       (GSP_RM_CONTROL) sequence 5 (0x2080110b 0x218).";
/// Exit code of `rm-client` when the driver refuses a call.
const REFUSED: u32 = 3;

/// One on card 1, which has nothing to do with card 0.
fn elsewhere(node: &Node) -> Container<'_> {
    let asked = [("EGPU_DEVICES", "1"), ("EGPU_MEMORY", "1024MiB"), ("EGPU_COMPUTE", "60%")];
    let container = node.container("elsewhere").envs(&asked).args(SPIN).start().expect("a container with a share");
    container.stdio.value("working");
    container
}

/// Its status says that nothing holds the container to its share of card 0, and why: the driver's
/// answer.
#[track_caller]
fn until_degraded(node: &Node, id: &str, status: &str) {
    let event = events::until(node, id, "degraded");
    assert_eq!(event["card_index"], 0, "{event}");
    assert!(event["text"].as_str().unwrap().contains(&format!("answers {status})")), "{event}");
}

/// One on card 0 that has work without end and makes no call, so that no call tells it of an error.
fn silent<'node>(node: &'node Node, percent: &str) -> Container<'node> {
    let container = granted(node, "silent", &[("EGPU_COMPUTE", percent)]).args(&["rm-client", "spin", "600"]).start();
    let container = container.expect("a container with a share");
    container.stdio.value("working");
    container
}

/// Its program was refused a call, as on a card that is gone, and has ended.
fn was_refused(mut container: Container<'_>) {
    assert_eq!(container.wait().unwrap(), REFUSED);
    let said = container.stdio.finish().stderr();
    assert!(said.contains("status 0xf"), "{said}");
    container.delete().unwrap();
}

fn is_usable(node: &Node, card: &str) -> Option<f64> {
    value(&scrape(node), "egpu_card_usable", &[("card", card)])
}

/// Returns the doctor's line about card 0.
fn diagnosis(node: &Node) -> String {
    let report = String::from_utf8(node.egpu(&["doctor"]).stdout).unwrap();
    let line = report.lines().find(|line| line.contains("card 0") && line.contains("Tesla"));
    line.unwrap_or_else(|| panic!("nothing of card 0 in {report}")).to_owned()
}

fn lost(node: &Node) {
    let elsewhere = elsewhere(node);
    let (small, large) =
        (spinning(node, "small", &[("EGPU_COMPUTE", "10%")]), spinning(node, "large", &[("EGPU_COMPUTE", "50%")]));
    let silent = silent(node, "20%");
    until_shares("before", &[(&small.stdio, 10.0), (&large.stdio, 50.0), (&elsewhere.stdio, 60.0)]);
    let fine = diagnosis(node);

    node.card_error(0, LOST);
    was_refused(small);
    was_refused(large);
    until_degraded(node, "silent", "0xf");
    let (code, _) = silent.exec("more", &["rm-client", "spin", "1"]).run().unwrap();
    assert_eq!(code, REFUSED, "a call does not wait behind a closed gate");
    let is_weight = || value(&scrape(node), "egpu_container_weights_only", &[("id", "silent")]);
    eventually("its status says that nothing holds it to its share", || (is_weight() == Some(1.0)).then_some(()));
    let failures = value(&scrape(node), "egpu_container_schedule_failures_total", &[("id", "silent")]);
    assert!(failures > Some(0.0));
    assert_eq!((is_usable(node, "0"), is_usable(node, "1")), (Some(0.0), Some(1.0)));
    assert!(diagnosis(node).contains("Xid 79"), "{}", diagnosis(node));
    let refused = granted(node, "late", &[]).create().map(drop).unwrap_err();
    assert!(refused.message().contains("Xid 79"), "{}", refused.message());
    until_shares("who has another card", &[(&elsewhere.stdio, 60.0)]);
    end([silent]);
    eventually("nobody holds the card", || (node.granted() == ["elsewhere"]).then_some(()));

    node.card_error(0, RESET);
    assert_eq!((is_usable(node, "0"), diagnosis(node)), (Some(1.0), fine));
    let next = spinning(node, "next", &[("EGPU_COMPUTE", "30%")]);
    until_shares("after the reset", &[(&next.stdio, 30.0), (&elsewhere.stdio, 60.0)]);
    end([next, elsewhere]);
}

/// Each card has a thread of its own, and the one that fails holds up no other.
fn other_card_of_the_same(node: &Node) {
    let builder = node.container("both").env("EGPU_DEVICES", "0,1").env("EGPU_MEMORY", "1024MiB");
    let both = builder.env("EGPU_COMPUTE", "30%").start().unwrap();
    let first = exec(&both, "first", &["rm-client", "spin", "600"]);
    let second = exec(&both, "second", &[SPIN, &["--card", "1"]].concat());
    until_shares("before", &[(&second.stdio, 30.0)]);
    node.card_error(0, LOST);
    until_degraded(node, "both", "0xf");
    until_shares("the other card", &[(&second.stdio, 30.0)]);
    first.end();
    second.end();
    end([both]);
}

/// With a card goes everything that was there, also what keeps the container to its share.
fn reset_under(node: &Node) {
    let elsewhere = elsewhere(node);
    let mut silent = silent(node, "20%");
    until_shares("before", &[(&elsewhere.stdio, 60.0)]);
    node.card_error(0, LOST);
    until_degraded(node, "silent", "0xf");
    node.card_error(0, RESET);
    assert_eq!(silent.wait().unwrap(), 137);
    events::until(node, "silent", "mediator-ended");
    silent.delete().unwrap();
    eventually("its grant is gone", || (node.granted() == ["elsewhere"]).then_some(()));
    let next = spinning(node, "next", &[("EGPU_COMPUTE", "30%")]);
    until_shares("after the reset", &[(&next.stdio, 30.0), (&elsewhere.stdio, 60.0)]);
    end([next, elsewhere]);
}

fn firmware(node: &Node) {
    let (small, large) =
        (spinning(node, "small", &[("EGPU_COMPUTE", "10%")]), spinning(node, "large", &[("EGPU_COMPUTE", "60%")]));
    until_shares("before", &[(&small.stdio, 10.0), (&large.stdio, 60.0)]);
    node.card_error(0, TIMEOUT);
    for id in ["small", "large"] {
        until_degraded(node, id, "0x65");
    }
    // Soon: who is off the card is ended after a minute.
    node.card_error(0, RESET);
    for id in ["small", "large"] {
        events::until(node, id, "recovered");
    }
    until_shares("it is exact again", &[(&small.stdio, 10.0), (&large.stdio, 60.0)]);
    end([small, large]);
}
