//! The sum of what a container's processes hold stays within its quota.

use integration::{
    EgpuConfig, Node, Setup,
    hostile::{MIB, OUT_OF_MEMORY},
};

use super::{assert_full, fill, granted, idle, until_free, until_used};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::a_program_gets_its_quota_and_no_more", a_program),
        Case::egpu("memory::execs_and_children_share_one_quota", execs_and_children),
        Case::egpu("memory::containers_do_not_touch_each_others_quota", neighbours),
        Case::egpu("memory::every_card_has_its_own_quota", three_cards).only_simulated("three cards"),
        Case::egpu("memory::managed_memory_counts", managed_memory),
        Case::egpu("memory::an_oversubscribed_card_can_be_full", oversubscribed).on(twice_the_memory),
        Case::egpu("memory::a_container_without_a_request_reaches_no_driver", no_request),
    ]
}

fn twice_the_memory() -> Setup {
    let card = "[driver]\nkind = \"simulated\"\n[[driver.simulated]]\nmodel = \"Tesla V100-PCIE-32GB\"\nmemory = \"1024MiB\"\n";
    let egpu = EgpuConfig { driver: card.to_owned(), keys: "memory_scaling = 2.0\n".to_owned() };
    Setup { egpu, ..Setup::default() }
}

/// The program is static and speaks to the driver itself: nothing in it cooperates.
fn a_program(node: &Node) {
    let (code, output) = granted(node, "a", 512).hostile(&["fill", "16"]).run().unwrap();
    assert_eq!(code, 0, "{}", output.stderr());
    assert_eq!(output.value("status"), OUT_OF_MEMORY, "the driver's own words");
    assert_full(output.value("got").cast_unsigned(), 512);
    until_free(node);
}

fn execs_and_children(node: &Node) {
    let container = granted(node, "a", 1024).hostile(&["hold", "256"]).start().unwrap();
    assert_eq!(container.stdio.value("status"), 0);
    let shell = container.exec("shell", &["sh", "-c", "hostile hold 256 & wait"]).start().unwrap();
    assert_eq!(shell.stdio.value("status"), 0);
    let (got, status) = fill(&container);
    assert_eq!(status, OUT_OF_MEMORY);
    assert_full(got + 512 * MIB, 1024);
    until_used(node, "a", 512, 560);
    assert!(node.card_used(0) <= 1024 * MIB);
    shell.end();
    container.end();
    until_free(node);
}

fn neighbours(node: &Node) {
    let (first, second) = (idle(node, "a", 512), idle(node, "b", 1024));
    let hog = first.exec("hog", &["hostile", "hold", "400"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    let (got, status) = fill(&second);
    assert_eq!(status, OUT_OF_MEMORY);
    assert_full(got, 1024);
    assert_full(fill(&first).0 + 400 * MIB, 512);
    hog.end();
    first.end();
    second.end();
    until_free(node);
}

fn three_cards(node: &Node) {
    let container = node
        .container("a")
        .env("EGPU", "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=1,MEM=256,WEIGHT=10:PGPU=2,MEM=512,WEIGHT=10")
        .env("NVIDIA_VISIBLE_DEVICES", "1,2")
        .armed()
        .start()
        .unwrap();
    // The first device is the container's first card, and it is not card 0 of the node.
    let (got, _) = fill(&container);
    assert_full(got, 256);
    assert_eq!(node.card_used(0), 0);
    container.end();
}

/// cGPU and xGPU do not count it.
fn managed_memory(node: &Node) {
    let container = granted(node, "a", 1024).hostile(&["managed", "256"]).start().unwrap();
    let managed = container.stdio.value("got").cast_unsigned();
    let and = container.stdio.value("and").cast_unsigned();
    assert_eq!(container.stdio.value("status"), OUT_OF_MEMORY);
    assert!(managed >= 512 * MIB, "managed memory works: {managed}");
    assert!(managed + and <= 1024 * MIB, "{managed} managed and {and} besides");
    until_used(node, "a", managed / MIB, 1024);
    container.end();
    until_free(node);
}

/// A card of 1 GiB, of which two containers were promised 1 GiB each.
fn oversubscribed(node: &Node) {
    let (first, second) = (idle(node, "a", 1024), idle(node, "b", 1024));
    let hog = first.exec("hog", &["hostile", "hold", "700"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    let (got, status) = fill(&second);
    // Not its quota: the driver's own error, since the card is full.
    assert_eq!(status, OUT_OF_MEMORY);
    assert!(got <= 324 * MIB && got + 48 * MIB >= 324 * MIB, "{}", got / MIB);
    assert_eq!(node.usage("b").denials, 0, "egpu refused nothing");
    hog.end();
    assert!(fill(&first).0 > 700 * MIB, "what the hog held is free");
    first.end();
    second.end();
}

fn no_request(node: &Node) {
    let (code, output) = node.container("a").hostile(&["fill"]).run().unwrap();
    assert_ne!(code, 0, "{}", output.stdout());
    assert!(!output.stdout().contains("got="), "{}", output.stdout());
}
