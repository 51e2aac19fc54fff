//! Too much of everything.

use integration::{
    EgpuConfig, Node, Setup,
    egpu::on_real_cards,
    eventually,
    hostile::{MIB, OUT_OF_MEMORY, TOO_MANY},
};

use super::{Neighbour, QUOTA, attacker};
use crate::{
    case::{Case, Skip},
    memory::{assert_full, assert_nothing_drifts, fill, granted, idle, until_free, until_used},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::fork_and_exec_storms", forks),
        Case::egpu("attacks::many_tiny_allocations", tiny),
        Case::egpu("attacks::more_tiny_allocations_than_a_container_may_have", tiniest)
            .only_simulated("it takes many gigabytes of a card"),
        Case::egpu("attacks::objects_with_hidden_memory", objects),
        Case::egpu("attacks::memory_of_the_hosts_freed_while_it_is_mapped", pinned).on(much_pinned_memory),
        Case::egpu("attacks::memory_of_the_hosts_pinned_while_it_is_mapped", pinned_while_mapped)
            .on(much_pinned_memory),
        Case::egpu("attacks::a_flooded_mediator", flood),
        Case::egpu("attacks::descriptors_on_their_way", in_flight),
        Case::egpu("attacks::a_storm_of_signals", signals),
        Case::egpu("attacks::recycled_process_ids", recycled).needing(few_process_ids),
    ]
}

/// Defence: mediators and their brokers, which send descriptors, are of users of their own.
fn in_flight(node: &Node) {
    let neighbour = Neighbour::new(node);
    // As CRI writes it: with containerd's own limits.
    let other = node.container("other").hostile(&["in-flight"]).edit(|spec| {
        spec["process"].as_object_mut().unwrap().remove("rlimits");
    });
    let other = other.start().unwrap();
    assert_eq!(other.stdio.value("error"), i64::from(libc::ETOOMANYREFS));
    assert!(other.stdio.value("sent") > 0);
    neighbour.is_well();
    let late = granted(node, "late", QUOTA).hostile(&["hold", "64"]).start().unwrap();
    assert_eq!(late.stdio.value("status"), 0);
    neighbour.is_well();
    other.end();
    late.end();
    neighbour.container.end();
    until_free(node);
}

/// Enough for what these containers may have of it, on any machine.
fn much_pinned_memory() -> Setup {
    Setup { egpu: EgpuConfig::with_keys("pinned_memory = \"200GiB\"\n"), ..Setup::default() }
}

/// Defence: what a process held goes back with it, exactly once, however it ends.
fn forks(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = idle(node, "attacker", QUOTA);
    let (code, output) = container.sh("hostile forks 3");
    assert_eq!(code, 0, "{}", output.stderr());
    assert!(output.value("children") > 0);
    let usage = node.egpu_json(&["inspect", "attacker"])["usage"].clone();
    assert!(usage["cards"][0]["peak"].as_u64() >= Some(64 * MIB), "what was stormed was memory: {usage}");
    until_used(node, "attacker", 0, 0);
    assert_nothing_drifts(node);
    // The storm's own container, which may have all that it could have before.
    assert_full(fill(&container).0, QUOTA);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: what the driver says that a piece takes is charged, not what was asked: one byte takes
/// 64 KiB.
fn tiny(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["tiny"]).start().unwrap();
    let (count, got) = (container.stdio.value("count"), container.stdio.value("got").cast_unsigned());
    assert!(container.stdio.value("status") != 0, "it ends");
    assert!(got <= QUOTA * MIB, "{count} pieces, {got} bytes");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Objects that a container of one card may have (`ObjectLimits::objects`).
const OBJECTS: i64 = 1 << 17;

/// Defence: objects are limited in number, whatever memory is left: the accounts, and the driver's
/// own tables, do not grow for ever.
fn tiniest(node: &Node) {
    let neighbour = Neighbour::new(node);
    let quota = 16 << 10;
    let container = granted(node, "attacker", quota).hostile(&["tiny"]).start().unwrap();
    let said = || container.stdio.stdout_so_far();
    while !said().contains("status=") {
        let before = said();
        eventually("it gets on", || (said() != before).then_some(()));
        // Whoever takes so many holds up nobody.
        neighbour.is_well();
    }
    let (count, got) = (container.stdio.value("count"), container.stdio.value("got").cast_unsigned());
    assert_eq!(container.stdio.value("status"), TOO_MANY, "after {count} pieces");
    assert!((OBJECTS - 64..OBJECTS).contains(&count), "{count} pieces, besides its client and what that needs");
    assert!(got < quota * MIB, "there is memory left");
    assert_eq!(container.stdio.value("more"), 0, "nor any more later");
    assert_eq!(container.stdio.value("again"), 0, "for one that goes, one comes");
    // What was refused is not charged.
    until_used(node, "attacker", got / MIB, got / MIB + 16);
    neighbour.is_well();
    assert!(node.card_used(0) < got + 320 * MIB, "{} bytes are taken of the card", node.card_used(0));
    neighbour.end(container);
}

/// Defence: objects that cost memory which is not theirs to ask for are limited in number, and
/// charged.
fn objects(node: &Node) {
    for class in ["0xa06c", "0x90f1"] {
        let neighbour = Neighbour::new(node);
        let container = attacker(node, &["objects", class]).start().unwrap();
        let count = container.stdio.value("count");
        assert!((1..5_000).contains(&count), "{count} of {class}");
        neighbour.and_quota_holds();
        neighbour.end(container);
    }
}

/// Defence: memory that the driver makes on the host, which no cgroup counts, stays charged until
/// the file of its mapping is gone (`nvidia-glue/mediator/src/memory/host_mappings.rs`): the driver
/// keeps it so long, freed or not.
fn pinned(node: &Node) {
    let neighbour = Neighbour::new(node);
    let mut container = attacker(node, &["pin", "64", "65536"]).stdin().start().unwrap();
    let bound = pinned_memory_limit(node);
    let pinned = container.stdio.value("pinned").cast_unsigned();
    assert_eq!((container.stdio.value("mapped"), container.stdio.value("status")), (0, OUT_OF_MEMORY));
    assert!(pinned <= bound && pinned + 64 * MIB > bound, "{} MiB of {}", pinned / MIB, bound / MIB);
    if !on_real_cards() {
        assert_eq!(node.host_memory_used(), pinned, "what the driver itself says");
    }
    neighbour.and_quota_holds();
    container.stdio.write(b"go on\n");
    assert_eq!(container.stdio.value("again"), 0, "what was let go of is to be had again");
    neighbour.end(container);
    if !on_real_cards() {
        assert_eq!(node.host_memory_used(), 0);
    }
}

/// Defence: memory that was mapped counts for as long as something lives that was pinned meanwhile
/// (`nvidia-glue/account/src/pins.rs`), and in the same bound.
fn pinned_while_mapped(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["pin-mapped", "256", "65536"]).start().unwrap();
    let bound = pinned_memory_limit(node);
    assert_eq!(container.stdio.value("registered"), 0);
    let kept = container.stdio.value("kept").cast_unsigned();
    assert_eq!(container.stdio.value("status"), OUT_OF_MEMORY, "after {} MiB", kept / MIB);
    assert!(kept <= bound, "{} MiB of {}", kept / MIB, bound / MIB);
    assert_eq!(container.stdio.value("again"), 0, "what was let go of is to be had again");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Host memory that the driver may pin for the attacker.
#[track_caller]
fn pinned_memory_limit(node: &Node) -> u64 {
    mediator_usage(node, "attacker")["pinned_memory_limit_bytes"].as_u64().unwrap()
}

/// A container's usage, by its mediator.
#[track_caller]
pub(super) fn mediator_usage(node: &Node, id: &str) -> serde_json::Value {
    eventually("its mediator reports", || {
        let usage = node.egpu_json(&["inspect", id])["usage"].clone();
        (usage["pinned_memory_limit_bytes"].as_u64() > Some(0)).then_some(usage)
    })
}

/// The most for one that asks for no number: a quarter of the machine's memory, and 16 GiB at the
/// most.
pub(super) fn unasked_bound() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    let total: u64 = total.expect("how much memory there is");
    (total / 4 * 1024).min(16 << 30)
}

/// Defence: each container has a mediator of its own.
fn flood(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["flood", "1000", "64"]).start().unwrap();
    container.stdio.value("flooding");
    for _ in 0..5 {
        neighbour.is_well();
    }
    // Its own execs are served as well, and it can be ended.
    let (code, _) = container.sh("hostile step 1");
    assert_eq!(code, 0);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: a call that was executed is answered although a signal came (`WAIT_KILLABLE_RECV`), or
/// undone: an allocation whose caller never learned of it would be charged for ever.
fn signals(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["signals", "3"]).start().unwrap();
    assert!(container.stdio.value("done") > 0, "a program with signals gets on");
    assert_eq!(container.stdio.value("failed"), 0);
    assert_eq!(container.stdio.value("status"), 0);
    // One piece of 2 MiB is left.
    until_used(node, "attacker", 2, 32);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// `/proc/sys/kernel/pid_max` is the machine's before Linux 6.14, and no test's to change.
fn few_process_ids() -> Skip {
    let release = nix::sys::utsname::uname().map_err(|error| format!("uname: {error}"))?;
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (6, 14) {
        Ok(())
    } else {
        Err(format!("process ids of a namespace are few from Linux 6.14 on; this is {release}"))
    }
}

/// Defence: processes are known by pidfd, not by number.
fn recycled(node: &Node) {
    let neighbour = Neighbour::new(node);
    let mut container = attacker(node, &["recycled", "700"])
        .edit(|spec| {
            // /proc/sys is the container's own to write here: the number of its pids is that of its
            // namespace (Linux 6.14).
            spec["linux"]["readonlyPaths"] = serde_json::json!([]);
        })
        .start()
        .unwrap();
    container.wait().unwrap();
    container.delete().unwrap();
    let output = container.stdio.finish();
    assert_eq!(output.value("pid_max"), 0, "process ids are few");
    assert!(output.value("again") > 0, "they came again");
    let got = output.value("got").cast_unsigned();
    assert!(got <= QUOTA * MIB && got + 48 * MIB >= QUOTA * MIB, "nothing of the dead is still charged: {got}");
    neighbour.is_well();
    neighbour.container.end();
    until_free(node);
}
