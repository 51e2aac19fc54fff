//! Whoever ends while a container's channels are off the card: the container is gone, nothing stays
//! off, neighbours go on.

use integration::{Container, Node, eventually, processes::Process};

use super::{end, spinning, until_shares};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("compute::a_mediator_that_dies_in_the_off_time", mediator_dies),
        Case::egpu("compute::a_mediator_that_stalls_in_the_off_time", mediator_stalls),
        Case::egpu("compute::a_shim_that_dies_in_the_off_time", shim_dies),
        Case::egpu("compute::a_container_that_is_killed_in_the_off_time", container_dies),
        Case::egpu("compute::a_container_that_is_paused", paused),
    ]
}

const SMALL: [(&str, &str); 1] = [("EGPU_COMPUTE", "10%")];
const LARGE: [(&str, &str); 1] = [("EGPU_COMPUTE", "60%")];

/// The one mediator there is.
fn mediator(node: &Node) -> Process {
    let own = integration::processes::mentioning(node.directory());
    let mut mediators: Vec<Process> = own.into_iter().filter(|process| process.name == "egpu-mediator").collect();
    assert_eq!(mediators.len(), 1);
    mediators.remove(0)
}

/// A container that is off the card for nine tenths of the time, its mediator, and one beside it.
fn victim_and_neighbour(node: &Node) -> (Container<'_>, Process, Container<'_>) {
    let victim = spinning(node, "victim", &SMALL);
    let mediator = mediator(node);
    let neighbour = spinning(node, "neighbour", &LARGE);
    until_shares("before", &[(&victim.stdio, 10.0), (&neighbour.stdio, 60.0)]);
    (victim, mediator, neighbour)
}

/// The neighbour has what it had, and the whole card can be had by who comes next.
fn afterwards(node: &Node, neighbour: Container<'_>) {
    until_shares("the neighbour goes on", &[(&neighbour.stdio, 60.0)]);
    end([neighbour]);
    eventually("all grants are gone", || node.granted().is_empty().then_some(()));
    let next = spinning(node, "next", &[]);
    until_shares("nothing is left off", &[(&next.stdio, 100.0)]);
    end([next]);
}

fn mediator_dies(node: &Node) {
    let (mut victim, mediator, neighbour) = victim_and_neighbour(node);
    mediator.kill();
    // Killed, unless its program found first that there is no driver any more.
    assert!(matches!(victim.wait().unwrap(), 4 | 137));
    victim.delete().unwrap();
    afterwards(node, neighbour);
}

fn mediator_stalls(node: &Node) {
    let (mut victim, mediator, neighbour) = victim_and_neighbour(node);
    mediator.stop();
    assert_eq!(victim.wait().unwrap(), 137);
    victim.delete().unwrap();
    afterwards(node, neighbour);
}

fn shim_dies(node: &Node) {
    let victim = spinning(node, "victim", &SMALL);
    let shim = node.shim();
    let neighbour = spinning(node, "neighbour", &LARGE);
    shim.kill();
    eventually("its grant is gone", || (node.granted() == ["neighbour"]).then_some(()));
    victim.forget();
    afterwards(node, neighbour);
}

fn container_dies(node: &Node) {
    let (victim, _, neighbour) = victim_and_neighbour(node);
    victim.end();
    afterwards(node, neighbour);
}

/// Its channels stay what they are: work that is on the card goes on, as on a real one, in its
/// window and no more.
fn paused(node: &Node) {
    let (victim, _, neighbour) = victim_and_neighbour(node);
    victim.pause().unwrap();
    until_shares("beside one that is paused", &[(&neighbour.stdio, 60.0)]);
    victim.resume().unwrap();
    until_shares("after it", &[(&victim.stdio, 10.0), (&neighbour.stdio, 60.0)]);
    victim.end();
    afterwards(node, neighbour);
}
