//! Managed memory in address spaces that are hard to find, or to read.

use integration::{Node, hostile::MIB};

use super::{Neighbour, QUOTA, attacker};
use crate::case::Case;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::managed_memory_at_a_rounded_address", rounded),
        Case::egpu("attacks::managed_memory_shared_with_who_never_calls", sharer)
            .only_simulated("the exchanged file is a plain one"),
        Case::egpu("attacks::managed_memory_that_hops", hop).only_simulated("the exchanged file is a plain one"),
        Case::egpu("attacks::managed_memory_left_behind_by_exec", leap).only_simulated("programs share a UVM file"),
        Case::egpu("attacks::managed_memory_behind_much_to_read", slow)
            .only_simulated("the exchanged file is a plain one"),
    ]
}

/// Defence: an address that the kernel rounds to the offset is taken for that.
fn rounded(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["sharer", "8192"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 0);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: who has an excess is killed, all who have that memory, whether they made a driver call or not.
fn sharer(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["sharer", "8192", "1"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    container.wait().unwrap();
    neighbour.end(container);
}

/// Defence: an address space that lives while nobody is found who has it ends the container.
fn hop(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["hop", "8192", "1"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    container.wait().unwrap();
    neighbour.end(container);
}

/// Defence: what was mapped stays charged for as long as somebody has that memory, whatever the process that mapped it executes.
fn leap(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["leap", "400"]).start().unwrap();
    assert!(container.stdio.value("most").cast_unsigned() >= 400 * MIB);
    container.wait().unwrap();
    let told = container.stdio.stdout_so_far();
    let most = told.lines().filter_map(|line| line.strip_prefix("most=")?.parse::<u64>().ok()).max();
    assert!(most.is_some_and(|most| most <= QUOTA * MIB), "{told}");
    neighbour.end(container);
}

/// Defence: memory is read once for all who share it.
fn slow(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["slow", "8192", "1", "150"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    assert_eq!(container.stdio.value("killed"), 9);
    neighbour.and_quota_holds();
    neighbour.end(container);
}
