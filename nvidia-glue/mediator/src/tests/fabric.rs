//! Addresses on the NVLink fabric: on machines that have one, libcuda gets some for each block of
//! 512 MiB or more.

use abi::{
    Abi, DriverRelease, Status,
    classes::{NV01_MEMORY_SYSTEM, NV20_SUBDEVICE_0},
    layout::{write_u32, write_u64},
};

use super::{
    spy::Spy,
    world::{Context, MIB, Machine, host_memory_params},
};

const CLASS: u32 = 0xf8;

/// `NV00F8_ALLOCATION_PARAMETERS` below a subdevice.
fn fabric(context: &Context<'_, '_>, memory: u32, (bytes, flags): (u64, u32)) -> Result<u32, Status> {
    let subdevice = context.object(NV20_SUBDEVICE_0, &mut [0; 4])?;
    let mut params = [0; 48];
    assert!(
        write_u64(&mut params, 0, 2 * MIB) && write_u64(&mut params, 8, bytes) && write_u64(&mut params, 16, 2 * MIB)
    );
    assert!(write_u32(&mut params, 24, flags) && write_u32(&mut params, 40, memory));
    let made = context.program.alloc(context.control, (context.client, subdevice, 0), CLASS, &mut params);
    if made.is_err() {
        context.free(subdevice).unwrap();
    }
    made
}

#[test]
fn they_keep_memory_and_it_stays_charged() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], 64 * MIB);
    let program = container.program();
    let (context, other) = (program.context(0), program.context(0));
    let memory = context.memory(32 * MIB).unwrap();
    let addresses = fabric(&context, memory, (32 * MIB, 0)).unwrap();
    assert_eq!(container.used(0), 32 * MIB, "they are no memory of their own");
    // libcuda frees the memory first.
    context.free(memory).unwrap();
    assert_eq!(container.used(0), 32 * MIB);
    let duplicate = program.dup(other.control, (other.client, other.device), (context.client, addresses)).unwrap();
    let uvm = program.uvm_file();
    context.register(uvm);
    context.map(uvm, 1 << 30, 32 * MIB, addresses).unwrap();
    context.free(addresses).unwrap();
    other.free(duplicate).unwrap();
    assert_eq!(container.used(0), 32 * MIB, "mapped by them");
    assert_eq!(context.memory(64 * MIB), Err(Status::NO_MEMORY));
    program.free_range(uvm, 1 << 30, 32 * MIB).unwrap();
    assert_eq!(container.used(0), 0);
}

/// A card has few for all who use it, and mappings keep them.
#[test]
fn there_are_twice_as_many_as_memory() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], 64 * MIB);
    let program = container.program();
    let context = program.context(0);
    let memory = context.memory(32 * MIB).unwrap();
    // What the driver refuses does not count.
    assert_eq!(fabric(&context, memory, (34 * MIB, 0)), Err(Status::INVALID_ARGUMENT));
    let both = [0, 0].map(|flags| fabric(&context, memory, (32 * MIB, flags)).unwrap());
    assert_eq!(fabric(&context, memory, (2 * MIB, 0)), Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!(fabric(&context, memory, (u64::MAX, 0)), Err(Status::INSUFFICIENT_RESOURCES));
    both.iter().for_each(|addresses| context.free(*addresses).unwrap());
    assert_eq!(fabric(&context, memory, (2 * MIB, 0)), Err(Status::INSUFFICIENT_RESOURCES), "some may be mapped");
    context.free(memory).unwrap();
    assert_eq!(container.used(0), 0);
    let memory = context.memory(32 * MIB).unwrap();
    fabric(&context, memory, (32 * MIB, 0)).unwrap();
}

#[test]
fn only_known_memory_of_the_card_gets_them() {
    const FLEXIBLE: u32 = 1;
    const READ_ONLY: u32 = 8;
    let machine = Machine::new(1);
    let container = machine.container(&[0], 64 * MIB);
    let program = container.program();
    let context = program.context(0);
    let memory = context.memory(2 * MIB).unwrap();
    let host = context.object(NV01_MEMORY_SYSTEM, &mut host_memory_params(2 * MIB)).unwrap();
    for (of, flags, status) in [
        (memory, FLEXIBLE, Status::NOT_SUPPORTED),
        (memory, READ_ONLY, Status::NOT_SUPPORTED),
        (0, 0, Status::NOT_SUPPORTED),
        (0, FLEXIBLE, Status::NOT_SUPPORTED),
        (0xdead, 0, Status::OBJECT_NOT_FOUND),
        (context.device, 0, Status::OBJECT_NOT_FOUND),
        (host, 0, Status::INSUFFICIENT_RESOURCES),
    ] {
        assert_eq!(fabric(&context, of, (2 * MIB, flags)), Err(status), "{of:#x} {flags}");
    }
    for flags in [2, 4] {
        fabric(&context, memory, (2 * MIB, flags)).unwrap();
    }
}

/// The struct of older drivers is another one (525: src/common/sdk/nvidia/inc/class/cl00f8.h).
#[test]
fn drivers_before_535_give_none() {
    for (release, reaches_driver) in [((525, 147, 5), false), ((535, 0, 0), true)] {
        let machine = Machine::new(1);
        let spy = Spy::new(&machine);
        let mut container = spy.container(&machine);
        container.session.abi = Abi::of(DriverRelease::new(release.0, release.1, release.2)).unwrap();
        let program = container.program();
        let context = program.context(0);
        let memory = context.memory(2 * MIB).unwrap();
        // What became of it stands elsewhere in an older call.
        let _ = fabric(&context, memory, (2 * MIB, 0));
        assert_eq!(spy.last_params(CLASS).is_some(), reaches_driver, "{release:?}");
    }
}
