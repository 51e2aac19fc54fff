//! Threads that change what is looked at, between the look and the use.

use integration::{Node, egpu::on_real_cards, hostile::MIB};

use super::{Neighbour, attacker, until_free};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("attacks::a_thread_that_rewrites_the_size", size),
        Case::egpu("attacks::a_thread_that_rewrites_the_class", class),
        Case::egpu("attacks::a_thread_that_rewrites_what_is_pinned", pinned),
        Case::egpu("attacks::a_thread_that_closes_the_file", close),
        Case::egpu("attacks::a_thread_with_its_own_descriptors", own_table),
    ]
}

/// Defence: the call is copied once, judged and executed from the copy. Read twice, or continued, a
/// size of 1 MiB becomes 8 GiB in between.
fn size(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["race", "8192", "2000"]).start().unwrap();
    assert!(container.stdio.value("got") + container.stdio.value("denied") == 2000);
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: the allocation of a client is executed as well, not continued, so that it cannot become
/// one of memory.
fn class(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["race-class", "2000"]).start().unwrap();
    container.stdio.value("done");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: what only the kernel can execute is made in a client of the mediator's
/// (`nvidia-glue/mediator/src/memory/staging.rs`), where nothing is hidden and from where nothing
/// else can be named. Who has made something else of it is ended; the memory goes with him.
fn pinned(node: &Node) {
    for way in [None, Some("name"), Some("hidden"), Some("client")] {
        let arguments: Vec<&str> = ["race-pin", "3000", "4"].into_iter().chain(way).collect();
        let neighbour = Neighbour::new(node);
        let mut container = attacker(node, &arguments).start().unwrap();
        let code = container.wait().unwrap();
        neighbour.is_well();
        container.delete().unwrap();
        let output = container.stdio.finish();
        assert_eq!(output.value("registered"), 0);
        assert!(code == 137 || (code == 0 && output.value("host") == 0), "exit {code}: {}", output.stdout());
        neighbour.container.end();
        until_free(node);
        if !on_real_cards() {
            assert_eq!(node.host_memory_used(), 0);
        }
    }
}

/// Defence: the call is executed on a duplicate that was taken once; a number that is no file of
/// the driver's is answered, not continued.
fn close(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["close", "3000"]).start().unwrap();
    assert_eq!(container.stdio.value("elsewhere"), -i64::from(libc::ENOTTY), "answered, not continued");
    let got = container.stdio.value("got").cast_unsigned();
    assert!(got > 0 && got * 64 * MIB <= 512 * MIB, "{got} pieces of 64 MiB");
    assert!(container.stdio.value("failed") > 0, "some calls found another file, or none");
    neighbour.and_quota_holds();
    neighbour.end(container);
}

/// Defence: descriptors are looked up in the calling thread's table, not in its process's; or the
/// call is refused (before Linux 6.9).
fn own_table(node: &Node) {
    let neighbour = Neighbour::new(node);
    let container = attacker(node, &["own-table"]).start().unwrap();
    let (begin, got) = (container.stdio.value("begin"), container.stdio.value("got").cast_unsigned());
    // In the process's table the number is another file's, of which the mediator says ENOTTY.
    let refused = -i64::from(libc::EIO);
    let full = got <= 512 * MIB && got + 64 * MIB >= 512 * MIB;
    assert!(if begin == refused { got == 0 } else { begin == 0 && full }, "begin {begin}, got {got}");
    container.stdio.value("afterwards");
    neighbour.and_quota_holds();
    neighbour.end(container);
}
