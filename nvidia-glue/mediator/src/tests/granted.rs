//! Limits of a container beside memory.

use abi::{Handle, memory::Layout};
use std::sync::Arc;

use account::{AllocRequest, Card, Counted, Kind, ObjectLimits, Refusal};

use super::world::{CHANNELS, Container, GIB, Machine};

/// Reserves room for objects of a kind until one is refused; how many there were, and why there are
/// no more.
fn until_refused(container: &Arc<Container>, kind: Kind) -> (usize, Refusal) {
    let program = container.program();
    let context = program.context(0);
    let mut accounts = container.accounts();
    let ask = AllocRequest {
        client: Handle(context.client),
        kind,
        memory: None,
        layout: Layout::OwnFrames,
        process: program.pid,
    };
    let mut reserved = Vec::new();
    let refusal = loop {
        match accounts.reserve(ask) {
            Ok(reservation) => reserved.push(reservation),
            Err(refusal) => break refusal,
        }
    };
    let count = reserved.len();
    reserved.into_iter().for_each(|reservation| accounts.cancel(reservation));
    (count, refusal)
}

#[test]
fn no_more_channels_of_each_card_than_were_granted() {
    let machine = Machine::new(2);
    let container = machine.container(&[0, 1], GIB);
    for card in [Card(0), Card(1)] {
        let (count, refusal) = until_refused(&container, Kind::Channel { card, is_bare: false });
        let full = Refusal::TooMany { counted: Counted::Channels, limit: CHANNELS };
        assert_eq!((count, refusal), (CHANNELS as usize, full));
    }
}

#[test]
fn each_card_brings_objects() {
    let machine = Machine::new(2);
    let each = ObjectLimits::default().objects;
    for (cards, limit) in [(&[0][..], each), (&[0, 1], 2 * each)] {
        let (_, refusal) = until_refused(&machine.container(cards, GIB), Kind::Memory);
        assert_eq!(refusal, Refusal::TooMany { counted: Counted::Objects, limit });
    }
}
