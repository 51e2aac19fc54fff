//! Parking: which memory leaves its card, that it comes back, and that a copy that fails changes
//! nothing.

use std::{fs::File, io, sync::mpsc, time::Duration};

use account::Card;

use super::{
    alone::OneContext,
    world::{Container, GIB, MIB, Machine},
};
use crate::{Copier, Copying, ParkError, Piece, StillParked};

/// Copies nothing; notes what it is asked for.
#[derive(Default)]
struct Recorder {
    asked: Vec<(Copying, Vec<u64>)>,
    fails: bool,
}

impl Copier for Recorder {
    fn copy(&mut self, direction: Copying, pieces: Vec<Piece>) -> io::Result<()> {
        self.asked.push((direction, pieces.iter().map(|piece| piece.size).collect()));
        if self.fails { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

/// Bytes that the driver has given the container of its card.
fn on_card(container: &Container) -> u64 {
    container.session.driver_truth(Card(0)).unwrap().0
}

fn pages(bytes: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn memory_that_only_uvm_maps_leaves_and_comes_back() {
    let OneContext { container, program, context, .. } = OneContext::within(4 * GIB);
    let uvm = context.uvm_file();
    let [moved, duplicated, small, _unmapped] =
        [64 * MIB, 32 * MIB, MIB, 16 * MIB].map(|size| context.memory(size).unwrap());
    for (base, (memory, size)) in (1..).zip([(moved, 64 * MIB), (duplicated, 32 * MIB), (small, MIB)]) {
        context.map(uvm, base * GIB, size, memory).unwrap();
    }
    context.dup(&context, duplicated).unwrap();
    let (session, before, used) = (&container.session, on_card(&container), container.used(0));
    assert_eq!(session.bytes_to_park().unwrap(), 64 * MIB);

    let mut copier = Recorder::default();
    let parked = session.park(&pages(64 * MIB), 64 * MIB, &mut copier).unwrap();
    assert_eq!(parked.away(), (1, 64 * MIB));
    assert_eq!((on_card(&container), container.used(0)), (before - 64 * MIB, used), "charged all the same");

    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let (context, program) = (&context, &program);
        scope.spawn(move || {
            program.free(context.control, context.client, small).unwrap();
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_millis(50)).is_err(), "a call waits");
        session.unpark(parked, &mut copier).unwrap();
        is_done.recv().unwrap();
    });
    assert_eq!(copier.asked, [(Copying::Out, vec![64 * MIB]), (Copying::In, vec![64 * MIB])]);
    assert_eq!(on_card(&container), before - MIB, "all but the one that was freed; the driver counts handles");
    program.free_range(uvm, GIB, 64 * MIB).unwrap();
    context.free(moved).unwrap();
    assert_eq!(on_card(&container), before - 65 * MIB, "the program's handle is that of the new object");
    assert_eq!(session.bytes_to_park().unwrap(), 0);
}

#[test]
fn a_copy_that_fails_leaves_everything_where_it_was() {
    let OneContext { container, context, .. } = OneContext::within(4 * GIB);
    let uvm = context.uvm_file();
    let memory = context.memory(8 * MIB).unwrap();
    context.map(uvm, GIB, 8 * MIB, memory).unwrap();
    let (session, before) = (&container.session, on_card(&container));
    let mut copier = Recorder { fails: true, ..Recorder::default() };
    let refused = session.park(&pages(8 * MIB), 8 * MIB, &mut copier);
    assert!(matches!(refused, Err(ParkError::Copy(_))), "{refused:?}");
    assert_eq!(on_card(&container), before);

    copier.fails = false;
    let parked = session.park(&pages(8 * MIB), 8 * MIB, &mut copier).unwrap();
    copier.fails = true;
    let StillParked { parked, error } = *session.unpark(parked, &mut copier).unwrap_err();
    assert!(matches!(error, ParkError::Copy(_)), "{error:?}");
    assert_eq!(on_card(&container), before - 8 * MIB, "it stays parked");
    copier.fails = false;
    session.unpark(parked.unwrap(), &mut copier).unwrap();
    assert_eq!(on_card(&container), before);
    context.free(memory).unwrap();
}

#[test]
fn a_container_without_just_one_card_is_not_parked() {
    let machine = Machine::new(2);
    for cards in [&[0, 1][..], &[]] {
        let container = machine.container(cards, 4 * GIB);
        assert!(matches!(container.session.bytes_to_park(), Err(ParkError::Cards { .. })), "{cards:?}");
    }
    let looks = machine.container(&[0], 0);
    assert!(matches!(looks.session.bytes_to_park(), Err(ParkError::Cards { .. })), "one that only looks");
}
