//! Memory that a container uses goes up and down with what its programs do, and ends with them.

use integration::{Node, eventually, hostile::MIB, processes::Process};
use nix::sys::signal::Signal;

use super::{fill, granted, idle, until_free, until_used};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::use_goes_back_after_free_close_exit_and_kill", goes_back),
        Case::egpu("memory::denials_are_counted", denials),
        Case::egpu("memory::a_killed_mediator_ends_its_container_alone", killed_mediator),
        Case::egpu("memory::a_stalled_mediator_ends_its_container_alone", stalled_mediator),
        Case::egpu("memory::an_idle_mediator_that_stalls_is_noticed", stalled_and_idle),
        Case::egpu("memory::a_killed_shim_leaves_no_mediator", killed_shim),
        Case::egpu("memory::a_paused_container_keeps_its_memory", paused),
    ]
}

fn goes_back(node: &Node) {
    let container = idle(node, "a", 1024);
    let mut talk = container.exec("talk", &["hostile", "talk"]).stdin().start().unwrap();
    talk.stdio.value("ready");
    talk.stdio.write(b"a 300\n");
    until_used(node, "a", 300, 350);
    talk.stdio.write(b"a 200\n");
    until_used(node, "a", 500, 550);
    talk.stdio.write(b"f\n");
    until_used(node, "a", 300, 350);
    // The last close of the control file frees the client with all it holds.
    talk.stdio.write(b"c\n");
    until_used(node, "a", 0, 50);
    talk.stdio.write(b"a 400\n");
    until_used(node, "a", 400, 450);
    talk.stdio.write(b"q\n");
    talk.wait().unwrap();
    until_used(node, "a", 0, 0);
    until_free(node);
    let victim = container.exec("victim", &["hostile", "hold", "600"]).start().unwrap();
    assert_eq!(victim.stdio.value("status"), 0);
    until_used(node, "a", 600, 650);
    victim.kill(Signal::SIGKILL).unwrap();
    victim.wait().unwrap();
    until_used(node, "a", 0, 0);
    until_free(node);
    container.end();
}

fn denials(node: &Node) {
    let container = idle(node, "a", 256);
    assert_eq!(node.usage("a").denials, 0);
    fill(&container);
    eventually("a denial is counted", || (node.usage("a").denials >= 1).then_some(()));
    assert_eq!(node.usage("a").limit, 256 * MIB);
    container.end();
}

/// The one process that holds `id`'s memory; containers without a quota have none.
fn mediators(node: &Node) -> Vec<Process> {
    let own = integration::processes::mentioning(node.directory());
    own.into_iter().filter(|process| process.name == "egpu-mediator").collect()
}

fn killed_mediator(node: &Node) {
    let first = granted(node, "a", 512).hostile(&["hold", "256"]).start().unwrap();
    assert_eq!(first.stdio.value("status"), 0);
    let of_first = mediators(node);
    assert_eq!(of_first.len(), 1);
    let second = idle(node, "b", 512);
    of_first[0].kill();
    // A container whose quota nobody holds does not go on.
    assert_eq!(first.wait().unwrap(), 137);
    assert!(fill(&second).0 > 400 * MIB, "the neighbour goes on");
    let mut first = first;
    first.delete().unwrap();
    second.end();
    assert!(mediators(node).is_empty());
    until_free(node);
}

/// Stopped, it neither keeps its schedule nor answers.
fn stalled_mediator(node: &Node) {
    let first = granted(node, "a", 512).hostile(&["hold", "256"]).start().unwrap();
    assert_eq!(first.stdio.value("status"), 0);
    let of_first = mediators(node);
    assert_eq!(of_first.len(), 1);
    let second = idle(node, "b", 512);
    of_first[0].stop();
    assert_eq!(first.wait().unwrap(), 137);
    assert!(fill(&second).0 > 400 * MIB, "the neighbour goes on");
    let mut first = first;
    first.delete().unwrap();
    assert_eq!(node.granted(), ["b"]);
    second.end();
    assert!(mediators(node).is_empty());
    until_free(node);
}

/// Whoever made a driver call would wait for ever.
fn stalled_and_idle(node: &Node) {
    let container = idle(node, "a", 512);
    mediators(node)[0].stop();
    assert_eq!(container.wait().unwrap(), 137);
    let mut container = container;
    container.delete().unwrap();
    assert!(node.granted().is_empty() && mediators(node).is_empty());
}

fn killed_shim(node: &Node) {
    let container = granted(node, "a", 512).hostile(&["hold", "256"]).start().unwrap();
    assert_eq!(container.stdio.value("status"), 0);
    node.shim().kill();
    eventually("nothing is left of it", || (mediators(node).is_empty() && node.granted().is_empty()).then_some(()));
    container.forget();
    until_free(node);
}

fn paused(node: &Node) {
    let container = granted(node, "a", 512).hostile(&["flood", "1000", "8"]).start().unwrap();
    container.stdio.value("flooding");
    for _ in 0..5 {
        container.pause().unwrap();
        container.resume().unwrap();
    }
    let hog = container.exec("hog", &["hostile", "hold", "300"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    container.pause().unwrap();
    until_used(node, "a", 300, 350);
    container.resume().unwrap();
    hog.end();
    container.end();
    until_free(node);
}
