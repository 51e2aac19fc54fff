//! A container that only looks at its cards: it sees all of them, and can have nothing.

use abi::{
    Status,
    classes::{FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A},
    controls::{NV2080_CTRL_CMD_FB_GET_INFO_V2, NV2080_CTRL_CMD_GPU_GET_PIDS},
    layout::read_u32,
};
use std::{collections::BTreeSet, sync::Arc};

use super::{
    replay::{Replay, machine_of},
    world::{Container, GIB, MIB, Machine, struct_with, uuid_bytes},
};
use crate::{Answer, locks::lock};

/// `NV2080_CTRL_CMD_FB_GET_INFO_V2` with HEAP_SIZE and HEAP_FREE: both, KiB.
fn heap(context: &super::world::Context) -> (u32, u32) {
    let mut params = struct_with(1028, &[(0, 2), (4, 0x09), (12, 0x16)]);
    context.subdevice_control(NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params).unwrap();
    (read_u32(&params, 8).unwrap(), read_u32(&params, 16).unwrap())
}

fn beside_a_neighbour(test: impl FnOnce(&Arc<Container>)) {
    let machine = Machine::new(1);
    let neighbour = machine.container(&[0], 8 * GIB);
    let other = neighbour.program();
    other.context(0).memory(4 * GIB).unwrap();
    let monitor = machine.container(&[0], 0);
    test(&monitor);
    assert_eq!(monitor.used(0), 0);
    assert_eq!(neighbour.used(0), 4 * GIB);
}

#[test]
fn it_sees_the_whole_card_and_what_is_taken_of_it() {
    beside_a_neighbour(|monitor| {
        let context = monitor.program().context(0);
        let (size, free) = heap(&context);
        let seen = |kib: u32| u64::from(kib) << 10;
        assert!(seen(size) > 100 * GIB, "{size} KiB");
        let taken = seen(size) - seen(free);
        assert!((4 * GIB..5 * GIB).contains(&taken), "{} MiB", taken / MIB);
        // No process of its own has anything, and others are nobody's business.
        let mut pids = struct_with(3812, &[(4, 0x40)]);
        context.subdevice_control(NV2080_CTRL_CMD_GPU_GET_PIDS, &mut pids).unwrap();
        assert_eq!(read_u32(&pids, 8), Some(0));
    });
}

#[test]
fn it_can_have_nothing() {
    beside_a_neighbour(|monitor| {
        let program = monitor.program();
        let context = program.context(0);
        for size in [1, MIB, u64::MAX] {
            assert_eq!(context.memory(size), Err(Status::NO_MEMORY), "{size}");
        }
        // NVOS32_FUNCTION_ALLOC_SIZE.
        assert_eq!(context.heap(2, &[], &[(88, 1)]), Err(Status::NO_MEMORY));
        // A channel group, a channel without one, an address space.
        let refused = Status::INSUFFICIENT_RESOURCES;
        for (class, size) in [(KEPLER_CHANNEL_GROUP_A, 20), (HOPPER_CHANNEL_GPFIFO_A, 368), (FERMI_VASPACE_A, 56)] {
            assert_eq!(context.object(class, &mut vec![0; size]), Err(refused), "{class:#x}");
        }
        let uvm = program.uvm_file();
        let mut gpu = [uuid_bytes(&monitor.machine.inventory.cards[0].uuid).to_vec(), vec![0; 24]].concat();
        assert_eq!(program.uvm(uvm, 37, &mut gpu, 36), Err(Status::INSUFFICIENT_PERMISSIONS));
        assert_eq!(program.mmap(uvm, 0x7f00_0000_0000, 4096, 0x7f00_0000_0000), Answer::Errno(libc::ENOMEM));
        assert_eq!(program.create_range(uvm, 0x7000_0000, MIB), Err(refused));
        // Nor of the host's memory: the ledger counts none for it.
        assert_eq!(context.host_memory(MIB), Err(Status::NO_MEMORY));
    });
}

#[test]
fn a_limit_of_nothing_alone_refuses_what_takes_memory() {
    let machine = Machine::new(1);
    // As a grant with a limit that was set to nothing: without the counts of a container that only
    // looks.
    let container = machine.container(&[0], GIB);
    container.session.set_limits(&[(container.machine.inventory.cards[0].uuid.clone(), base::Bytes(0))]).unwrap();
    let context = container.program().context(0);
    assert_eq!(context.object(KEPLER_CHANNEL_GROUP_A, &mut [0; 20]), Err(Status::NO_MEMORY));
    assert_eq!(context.object(HOPPER_CHANNEL_GPFIFO_A, &mut [0; 368]), Err(Status::NO_MEMORY));
    assert_eq!(container.used(0), 0);
}

#[test]
fn nvidia_smi_is_answered_as_it_was() {
    let (machine, lines) = machine_of("nvidia-smi");
    let monitor = machine.container(&[0, 1], 0);
    let mut replay = Replay::in_container(&monitor, 0, 139 * GIB..=140 * GIB);
    replay.run(&lines);
    assert_eq!(replay.differences, BTreeSet::new());
    assert!(replay.compared > 150, "{} calls were compared", replay.compared);
    assert_eq!(*lock(&monitor.observed.over_memory), []);
    assert_eq!(monitor.session.reconcile(), []);
    monitor.assert_nothing_left();
}
