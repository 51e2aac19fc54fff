//! Other ways into the driver than the calls that its library makes.

use integration::{
    Node,
    hostile::{MIB, OUT_OF_MEMORY, value},
};

use super::{Neighbour, QUOTA, attacker, run, whole_quota};
use crate::{case::Case, memory::until_used};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::a_foreign_type_byte", type_byte),
        Case::egpu("attacks::rubbish_above_the_command", high_word),
        Case::egpu("attacks::the_32_bit_entry", entry_of_32_bits).needing(x86),
        Case::egpu("attacks::the_x32_entry", x32_entry).needing(x86),
        Case::egpu("attacks::the_wrapper_around_calls", xfer),
        Case::egpu("attacks::garbage_in_every_field", garbage),
        Case::egpu("attacks::handles_used_again", handles),
        Case::egpu("attacks::managed_memory_beside_the_quota", managed),
        Case::egpu("attacks::managed_memory_without_a_first_thread", leaderless),
    ]
}

fn x86() -> Result<(), String> {
    if cfg!(target_arch = "x86_64") { integration::hostile::available() } else { Err("entries of x86-64".to_owned()) }
}

/// Defence: the filter goes by number and size; the driver ignores the type. With a filter on type
/// 'F' alone the call would reach the node, and make a client that nobody watches. A simulated node
/// answers ENOTTY as the filter does, so the call is also made on no file at all, which only a
/// filter answers so.
fn type_byte(node: &Node) {
    let output = run(node, &["type-byte"]);
    assert_eq!(value(&output, "returned"), -1);
    assert_eq!(value(&output, "errno"), i64::from(libc::ENOTTY));
    assert_eq!(value(&output, "nowhere"), -i64::from(libc::ENOTTY));
}

/// Defence: the filter compares the low half of the command alone, as the kernel cuts the rest off.
/// It is the mediator that answers this call: a filter that compared all 64 bits would let it
/// through to the node, where it fails.
fn high_word(node: &Node) {
    let output = run(node, &["high-word"]);
    assert_eq!((value(&output, "returned"), value(&output, "status")), (0, 0));
}

/// Defence: the filter knows the other architectures' numbers, and the mediator their calls. A
/// filter for one architecture lets the call through to the node, where it fails with ENOTTY on a
/// simulated card, and gets all memory of a real one.
fn entry_of_32_bits(node: &Node) {
    held_by_entry(&run(node, &["int80"]));
}

/// Defence: likewise.
fn x32_entry(node: &Node) {
    held_by_entry(&run(node, &["x32"]));
}

#[track_caller]
fn held_by_entry(output: &str) {
    assert_eq!(value(output, "status"), OUT_OF_MEMORY, "{output}");
    assert!((64 * MIB..=QUOTA * MIB).contains(&value(output, "got").cast_unsigned()), "{output}");
}

/// Defence: a call that wraps another is refused by the mediator. The node of a simulated card
/// would say ENOTTY; a real driver executes what is wrapped.
fn xfer(node: &Node) {
    let output = run(node, &["xfer", "8192"]);
    let result = (value(&output, "returned"), value(&output, "errno"), value(&output, "status"));
    assert_eq!(result, (-1, i64::from(libc::EINVAL), UNTOUCHED), "{output}");
}

/// The status that a call has before anybody answers it.
const UNTOUCHED: i64 = 0xdead;

/// Defence: decoding that trusts nothing. A mediator that falls over ends its container; this one
/// lives and works on.
fn garbage(node: &Node) {
    for seed in ["1", "2", "3"] {
        let output = run(node, &["garbage", "20000", seed]);
        assert_eq!((value(&output, "done"), value(&output, "status")), (20_000, 0), "seed {seed}");
    }
    whole_quota(node);
}

/// Defence: accounts follow objects, not handles: one that was freed with its parent, or twice, is
/// not charged or given back twice.
fn handles(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["handles", "300"]).start().unwrap();
    assert_eq!(container.stdio.value("status"), 0);
    assert_eq!(container.stdio.value("twice"), 0, "a handle names one object");
    // One piece is left.
    until_used(node, "attacker", 64, 96);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: what a process has mapped is asked of its other threads where the first one has ended,
/// and so is with whom it shares it.
fn leaderless(node: &Node) {
    for processes in ["1", "3"] {
        let neighbour = Neighbour::new(node);
        let container = attacker(node, &["leaderless", "64", processes]).start().unwrap();
        let (got, and) = (container.stdio.value("got").cast_unsigned(), container.stdio.value("and").cast_unsigned());
        assert!(got >= QUOTA * MIB / 2, "managed memory works: {got}");
        assert!(got + and <= QUOTA * MIB, "{got} managed by {processes} processes, and {and} besides");
        neighbour.and_quota_holds();
        neighbour.end(container);
    }
}

/// Defence: shared mappings of the UVM node are charged.
fn managed(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["managed", "64"]).start().unwrap();
    let sum = container.stdio.value("got") + container.stdio.value("and");
    assert!(sum.cast_unsigned() <= QUOTA * MIB, "{sum}");
    neighbour.and_quota_holds();
    neighbour.end(container);
}
