//! Objects that cost memory and have no size that a quota could be charged for: limited.

use abi::{
    Node, Status,
    classes::{NV_SEMAPHORE_SURFACE, NV01_CONTEXT_DMA, NV50_MEMORY_VIRTUAL},
    layout::{write_u32, write_u64},
};

use account::{Card, ObjectLimits};
use base::Bytes;

use super::{
    alone::{OneContext, OneProgram},
    world::{Container, Context, MIB, memory_params, result, struct_with, uuid_bytes, words},
};
use crate::{Answer, locks::lock};

const LIMIT: u64 = 64 * MIB;
const GIB_512: u64 = 512 << 30;
/// Bytes that page tables may come to: see `account::page_tables`.
const TABLES: u64 = 32 * MIB + LIMIT / 128;

fn tables(container: &Container) -> u64 {
    container.accounts().page_tables(Card(0)).0
}

/// Little memory, mapped at many places that lie far apart: each needs page tables of its own.
#[test]
fn page_tables_of_mappings_are_bounded() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    let memory = context.memory(2 * MIB).unwrap();
    let place = |at: u64| GIB_512 + (at << 30);
    let mapped = (0..1 << 14).take_while(|at| match context.map(uvm, place(*at), 2 * MIB, memory) {
        Ok(()) => true,
        Err(status) => {
            assert_eq!(status, Status::NO_MEMORY, "what CUDA takes for out of memory");
            false
        }
    });
    let mapped = mapped.count() as u64;
    assert!((1000..2000).contains(&mapped), "{mapped}");
    assert!(tables(&container) <= TABLES, "{}", tables(&container));
    assert_eq!(container.used(0), 2 * MIB, "one piece of memory, however often it is mapped");
    // The range that was made for the one that was refused.
    program.free_range(uvm, place(mapped), 2 * MIB).unwrap();
    for at in 0..2 {
        program.free_range(uvm, place(at), 2 * MIB).unwrap();
    }
    context.map(uvm, place(mapped), 2 * MIB, memory).unwrap();
    program.close_and_reconcile(uvm);
    assert_eq!(tables(&container), 0);
}

/// Addresses behind which there is no memory have page tables too, and one call asks for as many as
/// there are.
#[test]
fn page_tables_of_no_memory_are_bounded() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    const SPARSE: u32 = 74;
    const DYNAMIC_PARALLELISM: u32 = 65;
    let map = |command: u32, base: u64, length: u64| {
        let mut args = [base.to_le_bytes(), length.to_le_bytes(), [0; 8], [0; 8], [0; 8]].concat();
        args[16..32].copy_from_slice(&uuid_bytes(&container.machine.inventory.cards[0].uuid));
        program.uvm(uvm, command, &mut args, 32)
    };
    program.create_range(uvm, GIB_512, 2 * GIB_512).unwrap();
    assert_eq!(map(SPARSE, GIB_512, 2 * GIB_512), Err(Status::NO_MEMORY));
    assert_eq!(tables(&container), 0);
    map(SPARSE, GIB_512, 4 << 30).unwrap();
    let sparse = tables(&container);
    assert_eq!(sparse, (2048 + 8 * 4) * 4096);
    let beside = 4 * GIB_512;
    map(DYNAMIC_PARALLELISM, beside, 2 * MIB).unwrap();
    assert_eq!(tables(&container), sparse + 5 * 4096);
    program.free_range(uvm, beside, 2 * MIB).unwrap();
    program.free_range(uvm, GIB_512, 2 * GIB_512).unwrap();
    assert_eq!(tables(&container), 0);
    // A card that the container does not have.
    let mut args = [0; 40];
    args[8..16].copy_from_slice(&(2 * MIB).to_le_bytes());
    assert_eq!(program.uvm(uvm, SPARSE, &mut args, 32), Err(Status::INVALID_DEVICE));
}

/// CUDA is far from the bound: all of the grant, in pieces of 2 MiB that lie side by side, mapped
/// by two processes.
#[test]
fn a_program_that_maps_all_it_has_is_far_from_the_bound() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvms = [program.uvm_file(), program.uvm_file()];
    uvms.iter().for_each(|uvm| context.register(*uvm));
    for at in 0..LIMIT / (2 * MIB) {
        let memory = context.memory(2 * MIB).unwrap();
        uvms.iter().for_each(|uvm| context.map(*uvm, GIB_512 + at * 2 * MIB, 2 * MIB, memory).unwrap());
    }
    assert!(tables(&container) < TABLES / 50, "{}", tables(&container));
}

/// `NV_ESC_RM_MAP_MEMORY_DMA` and its end; the driver chooses nothing here.
fn dma(context: &Context, (space, memory): (u32, u32), offset: u64, length: u64) -> Result<(), Status> {
    let mut args = struct_with(64, &[(0, context.client), (4, context.device), (8, space), (12, memory)]);
    assert!(write_u64(&mut args, 24, length) && write_u64(&mut args, 48, offset));
    context.program.rm(context.control, 0x57, &mut args, 56)
}

fn end_dma(context: &Context, (space, memory): (u32, u32), offset: u64, length: u64) {
    let mut args = words(&[context.client, context.device, space, memory, 0, 0]);
    args.extend([offset.to_le_bytes(), length.to_le_bytes(), [0; 8]].concat());
    context.program.rm(context.control, 0x58, &mut args, 40).unwrap();
}

#[test]
fn mappings_of_the_resource_managers_are_bounded_too() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let memory = context.memory(2 * MIB).unwrap();
    let space = context.object(NV50_MEMORY_VIRTUAL, &mut lazy_space(GIB_512)).unwrap();
    let names = (space, memory);
    let place = |at: u64| at << 30;
    let mapped = (0..1 << 14).take_while(|at| dma(&context, names, place(*at), 2 * MIB).is_ok()).count() as u64;
    // Before there are as many tables as there may be, their granules are in as many frames.
    assert!((250..350).contains(&mapped), "{mapped}");
    assert!(tables(&container) <= TABLES);
    assert_eq!(dma(&context, names, place(mapped), 2 * MIB), Err(Status::NO_MEMORY));
    // The driver says "done" to the end of what is not there.
    let all = tables(&container);
    end_dma(&context, names, place(mapped), MIB);
    end_dma(&context, names, place(mapped), 4096);
    assert_eq!(tables(&container), all);
    // One that grows no table more than it ends, in parts and whole.
    end_dma(&context, names, place(0), MIB);
    end_dma(&context, names, place(0) + MIB, MIB);
    end_dma(&context, names, place(1), 0);
    dma(&context, names, place(mapped), 2 * MIB).unwrap();
    assert_eq!(dma(&context, names, 0, u64::MAX), Err(Status::NO_MEMORY));
    context.free(space).unwrap();
    assert_eq!(tables(&container), 0);
}

/// All of them go with one object, at once.
#[test]
fn mappings_of_the_resource_managers_are_limited_in_number() {
    let OneContext { container, context, .. } =
        OneContext::limited(LIMIT, ObjectLimits { virtual_mappings: 3, ..ObjectLimits::default() });
    let memory = context.memory(2 * MIB).unwrap();
    let names = (context.object(NV50_MEMORY_VIRTUAL, &mut lazy_space(GIB_512)).unwrap(), memory);
    (0..3).for_each(|at| dma(&context, names, at << 12, 4096).unwrap());
    assert_eq!(dma(&context, names, 3 << 12, 4096), Err(Status::INSUFFICIENT_RESOURCES));
    end_dma(&context, names, 0, 0);
    dma(&context, names, 3 << 12, 4096).unwrap();
    context.free(names.0).unwrap();
    assert_eq!(container.accounts().counts().references, 0);
}

fn lazy_space(size: u64) -> Vec<u8> {
    let mut params = memory_params(size);
    assert!(write_u32(&mut params, 8, 0x0008_0400));
    params
}

/// 1 TiB of addresses needs 2 GiB of page tables, which the driver makes at once when it is not
/// told to wait.
#[test]
fn page_tables_that_are_made_at_once_are_charged() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let space = context.object(NV50_MEMORY_VIRTUAL, &mut lazy_space(2 * GIB_512)).unwrap();
    assert_eq!(container.used(0), 0, "as libcuda asks for them");
    let mut at_once = memory_params(2 * GIB_512);
    assert!(write_u32(&mut at_once, 8, 0x0008_0000));
    assert_eq!(context.object(NV50_MEMORY_VIRTUAL, &mut at_once), Err(Status::NO_MEMORY));
    let mut sparse = memory_params(2 * GIB_512);
    assert!(write_u32(&mut sparse, 8, 0x0408_0400));
    assert_eq!(context.object(NV50_MEMORY_VIRTUAL, &mut sparse), Err(Status::NO_MEMORY));
    // The older call: NVOS32_FUNCTION_ALLOC_SIZE.
    assert_eq!(context.heap(2, &[(52, 0x0008_0000)], &[(88, 2 * GIB_512)]), Err(Status::NO_MEMORY));
    let mut small = memory_params(2 * MIB);
    assert!(write_u32(&mut small, 8, 0x0008_0000));
    let small = context.object(NV50_MEMORY_VIRTUAL, &mut small).unwrap();
    assert!((1..MIB).contains(&container.used(0)), "{}", container.used(0));
    context.free(small).unwrap();
    context.free(space).unwrap();
    assert_eq!(container.used(0), 0);
}

/// No cgroup counts what the driver pins of the host's memory.
#[test]
fn memory_of_the_hosts_is_bounded() {
    let OneContext { container, program, context, .. } =
        OneContext::limited(LIMIT, ObjectLimits { host_memory: Bytes(64 * MIB), ..ObjectLimits::default() });
    let pieces: Vec<u32> = (0..4).map(|_| context.host_memory(16 * MIB).unwrap()).collect();
    assert_eq!(context.host_memory(MIB), Err(Status::NO_MEMORY));
    assert_eq!(context.host_memory(u64::MAX), Err(Status::NO_MEMORY));
    assert_eq!((container.used(0), container.session.usage().denials), (0, 0), "nothing of a card's");
    assert_eq!(*lock(&container.observed.over_memory), [], "nor what a process is killed for");
    // A duplicate is the same memory, which stays with it.
    let other = program.context(0);
    let duplicate = other.dup(&context, pieces[0]).unwrap();
    assert_eq!(container.host_used(), 64 * MIB);
    context.free(pieces[0]).unwrap();
    assert_eq!(container.host_used(), 64 * MIB);
    other.free(duplicate).unwrap();
    assert_eq!(container.host_used(), 48 * MIB);
    context.host_memory(16 * MIB).unwrap();
    context.free(context.client).unwrap();
    assert_eq!(container.host_used(), 0);
    assert!(container.session.usage().processes.iter().all(|process| process.cards.is_empty()));
}

#[test]
fn pools_of_semaphores_are_the_hosts_memory_and_refused_where_their_mapping_would_be() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    let base = 0x7f00_0000_0000;
    program.pool(uvm, base, 2 * MIB).unwrap();
    assert_eq!((container.host_used(), container.used(0)), (2 * MIB, 0));
    assert_eq!(program.mmap(uvm, base, 2 * MIB, base), Answer::Continue);
    program.map_uvm(base, 2 * MIB);
    assert_eq!(container.used(0), 2 * MIB);
    program.free_range(uvm, base, 2 * MIB).unwrap();
    assert_eq!(container.host_used(), 0);
    // The last 2 MiB of a quota: the program hears that it is out of memory, and not first from a
    // mmap.
    context.memory(LIMIT - 3 * MIB).unwrap();
    assert_eq!(program.pool(uvm, base + LIMIT, 2 * MIB), Err(Status::NO_MEMORY));
    assert_eq!(container.host_used(), 0);
    assert_eq!(program.pool(uvm, base + LIMIT, u64::MAX), Err(Status::NO_MEMORY));
    container.session.reconcile();
    program.close_and_reconcile(uvm);
    assert_eq!(container.host_used(), 0);
}

#[test]
fn events_are_limited_in_number() {
    let OneContext { container, program, context, .. } =
        OneContext::limited(LIMIT, ObjectLimits { os_events: 3, ..ObjectLimits::default() });
    let event = |number, fd| {
        let mut args = words(&[context.client, context.device, fd, 0]);
        program.rm(context.control, number, &mut args, 12)
    };
    (20..23).for_each(|fd| event(0xce, fd).unwrap());
    assert_eq!(event(0xce, 23), Err(Status::INSUFFICIENT_RESOURCES));
    event(0xcf, 21).unwrap();
    event(0xce, 23).unwrap();
    context.free(context.client).unwrap();
    assert_eq!(container.accounts().counts().os_events, 0);
    let node = program.open(Node::Control);
    program.close(node);
}

/// For each that it does not find, the driver writes three lines into the kernel's log.
#[test]
fn the_driver_is_not_asked_for_events_that_nobody_made() {
    let OneContext { spy, program, context, .. } = OneContext::new();
    let on = |file, number, client, fd| {
        let mut args = words(&[client, context.device, fd, 0]);
        let answer = program.escape(file, number, &mut args);
        (result(answer, &args, 12), spy.escapes(number).len())
    };
    let event = |number, fd| on(context.control, number, context.client, fd);
    assert_eq!(event(0xcf, 20), (Err(Status::INVALID_EVENT), 0));
    assert_eq!(event(0xce, 20), (Ok(()), 1));
    assert_eq!(event(0xce, 20), (Err(Status::INSUFFICIENT_RESOURCES), 1), "the driver's own word");
    assert_eq!(event(0xcf, 21), (Err(Status::INVALID_EVENT), 0));
    assert_eq!(event(0xcf, 20), (Ok(()), 1));
    assert_eq!(event(0xcf, 20), (Err(Status::INVALID_EVENT), 0));
    // One that went with the file on which it was made is asked for once.
    let node = program.open(Node::Control);
    assert_eq!(on(node, 0xce, context.client, 20), (Ok(()), 1));
    program.close(node);
    assert_eq!(event(0xcf, 20), (Err(Status::INVALID_EVENT), 1));
    assert_eq!(event(0xcf, 20), (Err(Status::INVALID_EVENT), 0));
    // And it may be made again.
    assert_eq!(event(0xce, 20), (Ok(()), 1));
}

/// Each stays with the object, whatever becomes of the file.
#[test]
fn mappings_for_the_processor_are_limited_in_number() {
    let OneContext { container, program, context, .. } =
        OneContext::limited(LIMIT, ObjectLimits { processor_mappings: 3, ..ObjectLimits::default() });
    let count = || container.accounts().counts().processor_mappings;
    let card = container.machine.inventory.cards[0].minor;
    let map = |memory: u32| {
        let file = program.open(Node::Card(card));
        let mapped = context.map_on(file, (context.device, memory), 4096);
        program.close(file);
        mapped
    };
    let unmap = |memory: u32| {
        let mut args = words(&[context.client, context.device, memory, 0, 0, 0, 0, 0]);
        program.rm(context.control, 0x4f, &mut args, 24)
    };
    let memory = context.memory(MIB).unwrap();
    (0..3).for_each(|_| map(memory).unwrap());
    assert_eq!(map(memory), Err(Status::INSUFFICIENT_RESOURCES));
    unmap(memory).unwrap();
    map(memory).unwrap();
    unmap(memory).unwrap();
    // What the driver refuses is none.
    assert!(map(0x77).is_err() && unmap(0x77).is_err());
    assert_eq!(count(), 2);
    context.free(memory).unwrap();
    assert_eq!(count(), 0);
    let memory = context.memory(MIB).unwrap();
    (0..3).for_each(|_| map(memory).unwrap());
    context.free(context.client).unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn groups_of_ranges_are_limited_in_number() {
    let OneProgram { container, program, .. } =
        OneProgram::limited(LIMIT, ObjectLimits { range_groups: 3, ..ObjectLimits::default() });
    let uvm = program.uvm_file();
    let count = || container.accounts().counts().range_groups;
    let create = |uvm: i32| {
        let mut args = [0; 16];
        program.uvm(uvm, 23, &mut args, 8).map(|()| args)
    };
    let destroy = |mut group: [u8; 16]| program.uvm(uvm, 24, &mut group, 8);
    let groups: Vec<[u8; 16]> = (0..3).map(|_| create(uvm).unwrap()).collect();
    assert_eq!(create(uvm), Err(Status::INSUFFICIENT_RESOURCES));
    destroy(groups[0]).unwrap();
    assert!(destroy(groups[0]).is_err(), "once only");
    assert_eq!(count(), 2);
    create(uvm).unwrap();
    // Whoever has closed the file and asks again has room.
    program.close(uvm);
    let uvm = program.uvm_file();
    create(uvm).unwrap();
    assert_eq!(count(), 1);
    program.close_and_reconcile(uvm);
    assert_eq!(count(), 0);
}

/// For each of them, the driver maps the memory into the addresses of the host's kernel.
#[test]
fn objects_that_the_kernel_maps_memory_for_are_over_little_of_it() {
    const MOST: u64 = 4 << 20;
    let OneContext { spy, program, context, .. } = OneContext::new();
    let memory = |size| context.host_memory(size).unwrap();
    let (little, much) = (memory(MOST), memory(1 << 30));
    let much_again = context.dup(&context, much).unwrap();
    spy.escapes(0);
    for memories in [[much, little], [little, much], [much_again, little]] {
        let mut params: Vec<u8> = memories.iter().flat_map(|memory| memory.to_le_bytes()).collect();
        params.resize(16, 0);
        assert_eq!(context.object(NV_SEMAPHORE_SURFACE, &mut params), Err(Status::INVALID_ARGUMENT));
    }
    let notifier = |flags: u32, last: u64| {
        let mut params = [0; 32];
        params[4..8].copy_from_slice(&flags.to_le_bytes());
        params[8..12].copy_from_slice(&much.to_le_bytes());
        params[24..].copy_from_slice(&last.to_le_bytes());
        context.object(NV01_CONTEXT_DMA, &mut params)
    };
    assert_eq!(notifier(1 << 20, MOST), Err(Status::INVALID_ARGUMENT));
    let mut args = [0; 56];
    for (at, value) in [(0, context.client), (16, 1 << 20), (24, much)] {
        args[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    args[40..48].copy_from_slice(&MOST.to_le_bytes());
    assert_eq!(program.rm(context.control, 0x54, &mut args, 48), Err(Status::INVALID_ARGUMENT));
    assert_eq!((spy.escapes(0x2b), spy.escapes(0x54)), (Vec::<Vec<u8>>::new(), Vec::new()));
    // What is not mapped may be as long as the memory, and a notifier is short.
    for (flags, last) in [(0, MOST), (1 << 20, MOST - 1)] {
        let _ = notifier(flags, last);
    }
    assert_eq!(spy.escapes(0x2b).len(), 2);
}
