//! Memory quotas hold at the driver's boundary, whatever a container runs. On simulated cards:
//! decoding, accounting and verdicts are the same as on real ones, and the simulated driver has an
//! account of its own to compare with.

mod hold;
mod kill;
mod live;
mod many;
mod monitor;
mod view;

use integration::{Container, ContainerBuilder, Node, eventually, hostile::MIB};

use crate::case::Case;

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    let all = [hold::cases(), kill::cases(), live::cases(), many::cases(), monitor::cases(), view::cases()];
    let armed = all.into_iter().flatten().map(|case| case.also_needing(integration::hostile::available));
    armed.map(Case::on_real_cards_too).collect()
}

/// A container with `mib` of card 0.
pub(crate) fn granted<'node>(node: &'node Node, id: &str, mib: u64) -> ContainerBuilder<'node> {
    node.container(id).armed().env("EGPU_DEVICES", "0").env("EGPU_MEMORY", &format!("{mib}MiB"))
}

/// One that waits for execs.
#[track_caller]
pub(crate) fn idle<'node>(node: &'node Node, id: &str, mib: u64) -> Container<'node> {
    granted(node, id, mib).start().expect("a container with a grant")
}

/// Allocates memory in the container, 16 MiB at a time, until it is refused: bytes and last status.
#[track_caller]
pub(crate) fn fill(container: &Container<'_>) -> (u64, i64) {
    let (code, output) = container.sh("hostile fill 16");
    assert_eq!(code, 0, "{}{}", output.stdout(), output.stderr());
    (output.value("got").cast_unsigned(), output.value("status"))
}

/// `bytes` is what a quota of `mib` lets a program have: all of it but a last piece, and what its
/// own objects take.
#[track_caller]
pub(crate) fn assert_full(bytes: u64, mib: u64) {
    assert!(bytes <= mib * MIB, "{} MiB of {mib} MiB", bytes / MIB);
    assert!(bytes + 48 * MIB >= mib * MIB, "{} MiB of {mib} MiB", bytes / MIB);
}

/// A card with nothing taken: what is freed is given back by the mediator, and it may take a moment
/// to be seen.
#[track_caller]
pub(crate) fn until_free(node: &Node) {
    // A real driver counts in whole MiB, and keeps a little for itself.
    let reserved = if integration::egpu::on_real_cards() { 64 * MIB } else { 0 };
    eventually("card 0 is free", || (node.card_used(0) <= reserved).then_some(()));
}

/// `egpu ps` says so: it shows what the mediator last wrote down, which it does a few times a
/// second.
#[track_caller]
pub(crate) fn until_used(node: &Node, id: &str, at_least: u64, at_most: u64) {
    eventually(&format!("{id} uses {at_least} to {at_most} MiB"), || {
        let used = node.usage(id).used;
        (used >= at_least * MIB && used <= at_most * MIB).then_some(())
    });
}

/// Checks that the mediators' accounts and the driver's have agreed whenever they were compared,
/// since the node began.
#[track_caller]
pub(crate) fn assert_nothing_drifts(node: &Node) {
    let drifts = node.egpu_json(&["events", "--kind", "drift"]);
    assert_eq!(drifts, serde_json::json!([]), "accounts and driver disagree");
}
