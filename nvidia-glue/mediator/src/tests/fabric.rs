//! Addresses on the NVLink fabric: on machines that have one, libcuda gets some for each block of
//! 512 MiB or more, and for memory pools that another card may use or that are exported.

use std::sync::Arc;

use abi::{
    DriverRelease, Node, Status,
    classes::{NV01_DEVICE_0, NV20_SUBDEVICE_0, NV50_MEMORY_VIRTUAL},
    controls::{NV00F8_CTRL_CMD_ATTACH_MEM, NV00F8_CTRL_CMD_DETACH_MEM},
    encode,
    layout::{read_u32, write_u32, write_u64},
    params::{
        NV00F8_CTRL_ATTACH_MEM_INFO, NV00F8_CTRL_ATTACH_MEM_PARAMS as Attach, NV00F8_CTRL_DETACH_MEM_PARAMS as Detach,
    },
};

use super::{
    alone::{OneContext, OneProgram},
    exports::{export, import},
    spy::Spy,
    world::{Container, Context, GIB, MIB, device_params, memory_params, words},
};

const CLASS: u32 = 0xf8;
const FLEXIBLE: u32 = 1;
/// Bytes that a memory pool of libcuda's takes at once, on a card and on the fabric.
const BLOCK: u64 = 32 * MIB;
const CHUNK: u64 = 512 * MIB;

/// `NV00F8_ALLOCATION_PARAMETERS` below a subdevice.
fn fabric(context: &Context, memory: u32, (bytes, flags): (u64, u32)) -> Result<u32, Status> {
    let subdevice = context.object(NV20_SUBDEVICE_0, &mut [0; 4])?;
    let mut params = [0; 48];
    assert!(
        write_u64(&mut params, 0, 2 * MIB) && write_u64(&mut params, 8, bytes) && write_u64(&mut params, 16, 2 * MIB)
    );
    assert!(write_u32(&mut params, 24, flags) && write_u32(&mut params, 40, memory));
    let made = context.object_below(subdevice, CLASS, &mut params);
    if made.is_err() {
        context.free(subdevice).unwrap();
    }
    made
}

#[test]
fn they_keep_memory_and_it_stays_charged() {
    let OneContext { container, program, context, .. } = OneContext::within(64 * MIB);
    let other = program.context(0);
    let memory = context.memory(32 * MIB).unwrap();
    let addresses = fabric(&context, memory, (32 * MIB, 0)).unwrap();
    assert_eq!(container.used(0), 32 * MIB, "they are no memory of their own");
    // libcuda frees the memory first.
    context.free(memory).unwrap();
    assert_eq!(container.used(0), 32 * MIB);
    let duplicate = other.dup(&context, addresses).unwrap();
    let uvm = context.uvm_file();
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
    let OneContext { container, context, .. } = OneContext::within(64 * MIB);
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
    const READ_ONLY: u32 = 8;
    let OneContext { context, .. } = OneContext::within(64 * MIB);
    let memory = context.memory(2 * MIB).unwrap();
    let host = context.host_memory(2 * MIB).unwrap();
    for (of, flags, status) in [
        (memory, FLEXIBLE, Status::NOT_SUPPORTED),
        (memory, READ_ONLY, Status::NOT_SUPPORTED),
        (0, 0, Status::NOT_SUPPORTED),
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
        let release = DriverRelease::new(release.0, release.1, release.2);
        let OneContext { spy, context, .. } = OneProgram::beside(release).with_context();
        let memory = context.memory(2 * MIB).unwrap();
        // What became of it stands elsewhere in an older call.
        let _ = fabric(&context, memory, (2 * MIB, 0));
        assert_eq!(spy.last_params(CLASS).is_some(), reaches_driver, "{release:?}");
    }
}

/// Flexible addresses, as libcuda asks for them: in pages of 512 MiB, where those fit.
fn flexible(context: &Context, (bytes, flags): (u64, u32)) -> Result<u32, Status> {
    let page = if bytes.is_multiple_of(CHUNK) { CHUNK } else { 2 * MIB };
    aligned(context, [page, bytes, page], flags)
}

/// The same by alignment, size, and size of a page.
fn aligned(context: &Context, numbers: [u64; 3], flags: u32) -> Result<u32, Status> {
    let mut params = [numbers.map(u64::to_le_bytes).concat(), vec![0; 24]].concat();
    assert!(write_u32(&mut params, 24, flags));
    context.object_below(context.subdevice, CLASS, &mut params)
}

/// Attaches whole pieces of memory; the number of those that were.
fn attach(context: &Context, to: u32, pieces: &[(u32, u64)]) -> Result<(), (Status, u16)> {
    let count = u16::try_from(pieces.len()).unwrap();
    let mut params = encode!(Attach { numMemInfos: count });
    for (&(memory, offset), info) in pieces.iter().zip(params.chunks_exact_mut(32)) {
        let memory = abi::Handle(memory);
        let piece = encode!(NV00F8_CTRL_ATTACH_MEM_INFO { hMemory: memory, offset: offset, mapLength: BLOCK });
        info.copy_from_slice(&piece);
    }
    let name = (context.client, to);
    let result = context.program.control(context.control, name, NV00F8_CTRL_CMD_ATTACH_MEM, &mut params);
    result.map_err(|status| (status, Attach::numAttached.get(&params).unwrap()))
}

fn detach(context: &Context, from: u32, offset: u64) -> Result<(), Status> {
    let mut params = encode!(Detach { numOffsets: 1_u16 });
    assert!(write_u64(&mut params, 0, offset));
    context.control(from, NV00F8_CTRL_CMD_DETACH_MEM, &mut params)
}

fn addresses(container: &Container) -> u64 {
    let accounts = container.accounts();
    accounts.card(account::Card(0)).unwrap().fabric.0
}

/// Refuses both, and asks the driver for neither.
fn assert_takes_nothing(spy: &Spy, context: &Context, object: u32, memory: u32) {
    spy.seen();
    assert_eq!(attach(context, object, &[(memory, 2 * BLOCK)]), Err((Status::NOT_SUPPORTED, 0)));
    assert_eq!(detach(context, object, 0), Err(Status::NOT_SUPPORTED));
    assert!(!spy.seen().iter().any(|seen| seen.id >> 16 == CLASS), "the driver was asked");
}

#[test]
fn flexible_addresses_are_no_memory_and_keep_none() {
    let OneContext { machine, container, context, .. } = OneContext::within(GIB);
    let chunk = flexible(&context, (CHUNK, FLEXIBLE)).unwrap();
    assert_eq!((container.used(0), addresses(&container)), (0, CHUNK));
    let blocks = [0, 0].map(|_| context.memory(BLOCK).unwrap());
    // libcuda attaches one a call.
    for (block, offset) in blocks.into_iter().zip([0, BLOCK]) {
        attach(&context, chunk, &[(block, offset)]).unwrap();
    }
    assert_eq!(machine.driver.attached_to(context.client, chunk), Some(2));
    assert_eq!((container.used(0), addresses(&container)), (2 * BLOCK, CHUNK));
    context.free(blocks[0]).unwrap();
    assert_eq!(container.used(0), BLOCK, "they do not keep it");
    assert_eq!(machine.driver.attached_to(context.client, chunk), Some(1));
    let block = context.memory(BLOCK).unwrap();
    attach(&context, chunk, &[(block, 0)]).unwrap();
    detach(&context, chunk, BLOCK).unwrap();
    context.free(chunk).unwrap();
    assert_eq!((container.used(0), addresses(&container)), (2 * BLOCK, 0));
    context.free(context.client).unwrap();
    assert!(!machine.driver.is_corrupted());
    container.assert_nothing_left();
}

/// A card has few addresses for all who use it, and anything that is left of an object keeps them.
#[test]
fn a_container_has_twice_its_limit_of_addresses() {
    const LIMIT: u64 = 64 * MIB;
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let other = program.context(0);
    let full = Err(Status::INSUFFICIENT_RESOURCES);
    assert_eq!(flexible(&context, (2 * LIMIT + 2 * MIB, FLEXIBLE)), full);
    assert_eq!(flexible(&context, (u64::MAX, FLEXIBLE)), full);
    // Each page of these may be in another stretch of so many bytes.
    assert_eq!(aligned(&context, [LIMIT, 6 * MIB, 2 * MIB], FLEXIBLE), full);
    for nothing in [[0, 2 * MIB, 2 * MIB], [2 * MIB, 0, 2 * MIB], [2 * MIB, 2 * MIB, 0]] {
        assert_eq!(aligned(&context, nothing, FLEXIBLE), Err(Status::INVALID_ARGUMENT));
    }
    let scattered = aligned(&context, [LIMIT, 4 * MIB, 2 * MIB], FLEXIBLE).unwrap();
    assert_eq!(flexible(&context, (2 * MIB, FLEXIBLE)), full);
    context.free(scattered).unwrap();
    let all = flexible(&context, (2 * LIMIT, FLEXIBLE)).unwrap();
    assert_eq!(flexible(&context, (2 * MIB, FLEXIBLE)), full);
    let memory = context.memory(2 * MIB).unwrap();
    assert_eq!(fabric(&context, memory, (2 * MIB, 0)), full, "with memory behind them or without");
    let duplicate = other.dup(&context, all).unwrap();
    let token = program.open(Node::Control);
    export(&context, all, token).unwrap();
    let imported = import(&other, token).unwrap();
    let uvm = context.uvm_file();
    context.map(uvm, 1 << 30, 2 * MIB, all).unwrap();
    context.free(all).unwrap();
    other.free(duplicate).unwrap();
    other.free(imported).unwrap();
    program.close(token);
    container.session.look_for_closed_files();
    assert_eq!((flexible(&context, (2 * MIB, FLEXIBLE)), container.used(0)), (full, 2 * MIB));
    program.free_range(uvm, 1 << 30, 2 * MIB).unwrap();
    flexible(&context, (2 * LIMIT, FLEXIBLE)).unwrap();
}

/// The driver notes what is attached with the handle, and has one tree of it for all handles.
#[test]
fn only_the_handle_that_addresses_were_made_with_takes_memory() {
    let OneProgram { machine, spy, program, .. } = OneProgram::on_cards(2, 8 * GIB);
    let (context, other, elsewhere) = (program.context(0), program.context(0), program.context(1));
    let chunk = flexible(&context, (CHUNK, FLEXIBLE)).unwrap();
    let memory = context.memory(BLOCK).unwrap();
    attach(&context, chunk, &[(memory, 0)]).unwrap();
    let second = context.object_below(context.client, NV01_DEVICE_0, &mut device_params(1)).unwrap();
    for (of, parent) in [
        (&context, context.device),
        (&context, context.subdevice),
        (&context, second),
        (&other, other.subdevice),
        (&elsewhere, elsewhere.device),
    ] {
        let duplicate = program.dup(of.control, (of.client, parent), (context.client, chunk)).unwrap();
        assert_takes_nothing(&spy, of, duplicate, of.memory(BLOCK).unwrap());
    }
    let token = program.open(Node::Control);
    export(&context, chunk, token).unwrap();
    for of in [&context, &other] {
        let imported = import(of, token).unwrap();
        assert_takes_nothing(&spy, of, imported, of.memory(BLOCK).unwrap());
    }
    // Nor does anything else.
    let sticky = fabric(&context, memory, (BLOCK, 0)).unwrap();
    for object in [sticky, memory, context.subdevice, 0xdead] {
        assert_takes_nothing(&spy, &context, object, memory);
    }
    detach(&context, chunk, 0).unwrap();
    assert!(!machine.driver.is_corrupted());
}

#[test]
fn a_handle_that_a_duplicate_takes_is_no_longer_the_one_that_attaches() {
    let OneContext { machine, spy, container, program, context, .. } = OneContext::new();
    let other = program.context(0);
    let (chunk, source) =
        (flexible(&context, (CHUNK, FLEXIBLE)).unwrap(), flexible(&other, (CHUNK, FLEXIBLE)).unwrap());
    let (memory, theirs) = (context.memory(BLOCK).unwrap(), other.memory(BLOCK).unwrap());
    attach(&other, source, &[(theirs, 0)]).unwrap();
    let (client, device, from) = (context.client, context.device, other.client);
    let thread = (Arc::clone(&container), program.file_of(context.control));
    let replacing = spy.during_elsewhere(NV00F8_CTRL_CMD_ATTACH_MEM, move || {
        let (container, file) = thread;
        let program = container.program();
        let fd = program.give(file);
        program.free(fd, client, chunk).unwrap();
        let mut args = words(&[client, device, chunk, from, source, 0, 0]);
        program.escape(fd, 0x34, &mut args);
        assert_eq!((read_u32(&args, 8), read_u32(&args, 24)), (Some(chunk), Some(0)));
    });
    attach(&context, chunk, &[(memory, 0)]).unwrap();
    replacing.join();
    assert_takes_nothing(&spy, &context, chunk, memory);
    assert_eq!(machine.driver.attached_to(other.client, source), Some(1));
    assert!(!machine.driver.is_corrupted());
}

#[test]
fn only_charged_memory_of_the_card_is_attached() {
    let OneProgram { machine, spy, container, program } = OneProgram::on_cards(2, 8 * GIB);
    let (context, other, elsewhere) = (program.context(0), program.context(0), program.context(1));
    let chunk = flexible(&context, (CHUNK, FLEXIBLE)).unwrap();
    let memory = context.memory(BLOCK).unwrap();
    let host = context.host_memory(BLOCK).unwrap();
    let space = context.object(NV50_MEMORY_VIRTUAL, &mut memory_params(BLOCK)).unwrap();
    let of_another_card = elsewhere.memory(BLOCK).unwrap();
    let of_card_1 = (elsewhere.client, of_another_card);
    let of_card_1 = program.dup(context.control, (context.client, context.device), of_card_1).unwrap();
    let of_others = other.host_memory(BLOCK).unwrap();
    spy.seen();
    for unfit in [0, 0xdead, context.client, context.device, host, of_card_1, of_others, chunk] {
        let pieces = [(memory, 0), (unfit, BLOCK)];
        assert_eq!(attach(&context, chunk, &pieces), Err((Status::OBJECT_NOT_FOUND, 0)), "{unfit:#x}");
    }
    for count in [0, 65] {
        let pieces = vec![(memory, 0); count];
        assert_eq!(attach(&context, chunk, &pieces), Err((Status::INVALID_ARGUMENT, 0)), "{count}");
    }
    for (id, length) in [(NV00F8_CTRL_CMD_ATTACH_MEM, 2063), (NV00F8_CTRL_CMD_DETACH_MEM, 527)] {
        let short = context.control(chunk, id, &mut vec![0; length]);
        assert_eq!(short, Err(Status::INVALID_ARGUMENT));
    }
    assert!(!spy.seen().iter().any(|seen| seen.id >> 16 == CLASS), "the driver was asked");
    // What the driver refuses; that memory is charged for its page tables.
    assert_eq!(attach(&context, chunk, &[(space, 0)]), Err((Status::INVALID_ARGUMENT, 0)));
    context.free(space).unwrap();
    let pieces = [(memory, 0), (memory, CHUNK), (memory, BLOCK)];
    assert_eq!(attach(&context, chunk, &pieces), Err((Status::INVALID_OFFSET, 1)));
    assert_eq!(detach(&context, chunk, BLOCK), Err(Status::OBJECT_NOT_FOUND));
    detach(&context, chunk, 0).unwrap();
    let duplicate = context.dup(&context, memory).unwrap();
    attach(&context, chunk, &[(memory, 0), (duplicate, BLOCK)]).unwrap();
    assert_eq!((container.used(0), machine.driver.attached_to(context.client, chunk)), (BLOCK, Some(2)));
    assert!(!machine.driver.is_corrupted());
}

/// Before, the driver kept what was attached.
#[test]
fn drivers_before_570_have_no_flexible_addresses() {
    for (release, reaches_driver) in
        [((525, 147, 5), false), ((565, 77, 0), false), ((570, 86, 15), true), ((595, 45, 4), true)]
    {
        let release = DriverRelease::new(release.0, release.1, release.2);
        let OneContext { spy, context, .. } = OneProgram::beside(release).with_context();
        let _ = flexible(&context, (CHUNK, FLEXIBLE));
        assert_eq!(spy.last_params(CLASS).is_some(), reaches_driver, "{release:?}");
    }
    let OneContext { context, .. } = OneContext::within(GIB);
    for flags in [1 | 2, 1 | 8, 1 | 16, 1 | 2 | 4] {
        assert_eq!(flexible(&context, (CHUNK, flags)), Err(Status::NOT_SUPPORTED), "{flags}");
    }
    flexible(&context, (CHUNK, 1 | 4)).unwrap();
}
