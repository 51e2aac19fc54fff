//! Managed memory in address spaces that are hard to find, or to read.

use std::{path::Path, thread, time::Duration};

use base::cgroup_tree;
use integration::{Node, eventually, hostile::MIB, processes::Process};

use super::{Neighbour, QUOTA, attacker};
use crate::{case::Case, memory::until_used};

/// From asm-generic/errno.h.
const ENOSYS: i32 = 38;
/// MiB of managed memory of which not even the page tables fit into the quota.
const TOO_LARGE: &str = "409600";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::managed_memory_at_a_rounded_address", rounded),
        Case::egpu("attacks::managed_memory_by_remap_file_pages", remapped),
        Case::egpu("attacks::managed_memory_shared_with_a_process_that_never_calls", sharer)
            .only_simulated("the exchanged file is a plain one"),
        Case::egpu("attacks::managed_memory_that_hops", hop).only_simulated("the exchanged file is a plain one"),
        Case::egpu("attacks::managed_memory_left_behind_by_exec", leap).only_simulated("programs share a UVM file"),
        Case::egpu("attacks::managed_memory_of_a_program_that_passes_for_another", mask)
            .only_simulated("programs share a UVM file"),
        Case::egpu("attacks::managed_memory_behind_much_to_read", slow)
            .only_simulated("the exchanged file is a plain one"),
    ]
}

/// Defence: an address that the kernel rounds to the offset is taken for that.
fn rounded(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["sharer", TOO_LARGE]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 0);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: in a share there is no `remap_file_pages` (`nvidia-glue/fence/src`).
fn remapped(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["remap", "256"]).start().unwrap();
    assert_eq!((container.stdio.value("mapped"), container.stdio.value("moved")), (0, 0));
    assert_eq!(container.stdio.value("remapped"), -i64::from(ENOSYS));
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: who has an excess is killed, all who have that memory, whether they made a driver call
/// or not.
fn sharer(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["sharer", TOO_LARGE, "1"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    container.wait().unwrap();
    neighbour.end(container);
}

/// Returns how many processes the container has beside its first one and those that do nothing.
fn runaways(node: &Node) -> usize {
    let own = node.cgroup_path("attacker");
    let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
    let cgroup = roots.map(|root| root.join(own.trim_start_matches('/'))).into_iter().find(|path| path.exists());
    let pids = cgroup.as_ref().and_then(|cgroup| cgroup_tree::pids(cgroup).unwrap()).unwrap_or_default();
    // Of one that is gone by now, another may have the memory.
    let is_idle = |pid: &i32| Process::read(*pid).is_some_and(|process| process.command.ends_with(" idle"));
    pids.iter().filter(|pid| !is_idle(pid)).count().saturating_sub(1)
}

/// Of those who had the memory nobody is left.
#[track_caller]
fn nobody_runs_away(node: &Node) {
    let is_quiet = || {
        thread::sleep(Duration::from_millis(3));
        runaways(node) == 0
    };
    eventually("those who had it are gone", || (0..8).all(|_| is_quiet()).then_some(()));
}

/// Defence: who has an address space with more than the quota is found and killed in whatever
/// process it is by then; what may be in one where nobody is found counts.
fn hop(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["hop", TOO_LARGE, "1"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    nobody_runs_away(node);
    neighbour.end(container);
}

/// Defence: what was mapped stays charged for as long as somebody has that memory, whatever the
/// process that mapped it executes. It is charged once more for each process that it is found in
/// later, which can end them all.
fn leap(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["leap", "400"]).start().unwrap();
    let most = || {
        let output = container.stdio.stdout_so_far();
        output.lines().filter_map(|line| line.strip_prefix("most=")?.parse::<u64>().ok()).max().unwrap_or_default()
    };
    eventually("it has mapped what fits", || (most() >= 400 * MIB).then_some(()));
    // It tries again every three seconds.
    thread::sleep(Duration::from_secs(7));
    assert!(most() <= QUOTA * MIB, "{}", most());
    let used = node.usage("attacker").used;
    assert!(used >= most() || runaways(node) == 0, "{used} of {}", most());
    neighbour.end(container);
}

/// Defence: a program is distinguished from the one that its process executed before by any of its
/// threads (`shim/mediator/src/address_space.rs`).
fn mask(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["mask", "400"]).start().unwrap();
    // What does not fit beside it is on the host, for page tables and, on a busy machine, more.
    assert!(container.stdio.value("got").cast_unsigned() >= 400 * MIB);
    until_used(node, "attacker", 400, u64::MAX >> 20);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: memory is read once for all who share it.
fn slow(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["slow", TOO_LARGE, "1", "150"]).start().unwrap();
    assert_eq!(container.stdio.value("mapped"), 1, "the race is won");
    assert_eq!(container.stdio.value("killed"), 9);
    eventually("what it had is released", || {
        let usage = node.usage("attacker");
        (usage.used <= usage.limit).then_some(())
    });
    neighbour.and_quota_holds();
    neighbour.end(container);
}
