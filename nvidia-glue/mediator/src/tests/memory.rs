//! Memory: charged, refused, released.

use abi::{
    Handle, Node, Status,
    classes::{
        FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, HOPPER_COMPUTE_A, KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_LOCAL_USER,
        VOLTA_COMPUTE_A,
    },
    controls::NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE,
    escapes::{self, NV_ESC_RM_ALLOC},
    layout::{read_u32, read_u64, write_u32},
    params::NVOS21_PARAMETERS,
};
use std::{sync::Arc, time::Duration};

use base::{Bytes, OverMemory};

use super::{
    alone::{OneContext, OneProgram},
    spy::COPY,
    world::{Container, GIB, MIB, Machine, OWNER, alloc_args, memory_params, struct_with, words},
};
use crate::{Answer, Drift, DriftKind, Trapped, clock::Clock, locks::lock};

const LIMIT: u64 = 64 * MIB;

/// Returns what `work` is charged in a fresh context.
fn charged(container: &Arc<Container>, work: impl FnOnce(&super::world::Context)) -> u64 {
    let context = container.program().context(0);
    let before = container.used(0);
    work(&context);
    container.used(0) - before
}

#[test]
fn the_last_that_fits_fits_and_the_next_is_refused_in_the_drivers_own_way() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    for _ in 0..32 {
        context.memory(2 * MIB).unwrap();
    }
    assert_eq!(container.used(0), LIMIT);
    // CUDA asks twice.
    for _ in 0..2 {
        assert_eq!(context.memory(1), Err(Status::NO_MEMORY));
    }
    assert_eq!(container.used(0), LIMIT, "a refusal is not charged");
    let told = lock(&container.observed.over_memory);
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].pid, told[0].used, told[0].limit), (program.pid, Bytes(LIMIT), Bytes(LIMIT)));
    assert_eq!(told[0].card, container.machine.inventory.cards[0].uuid);
    assert_eq!(container.session.usage().denials, 2);
}

#[test]
fn what_the_card_gives_counts_and_not_what_is_asked() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let given = charged(&container, |context| {
        let mut params = memory_params(4_325_376);
        context.object(NV01_MEMORY_LOCAL_USER, &mut params).unwrap();
        assert_eq!(read_u64(&params, 64), Some(6 * MIB), "the caller is told");
    });
    assert_eq!(given, 6 * MIB);
    let mut huge = memory_params(4096);
    assert!(write_u32(&mut huge, 24, 3 << 23) && write_u32(&mut huge, 28, 2 << 20));
    assert_eq!(context.object(NV01_MEMORY_LOCAL_USER, &mut huge), Err(Status::NO_MEMORY), "one page of 512 MiB");
    assert_eq!(context.memory(u64::MAX), Err(Status::NO_MEMORY));
}

#[test]
fn whatever_is_freed_can_be_had_again() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    for how in 0..4 {
        let context = program.context(0);
        let memory = context.memory(LIMIT).unwrap();
        assert_eq!(context.memory(1), Err(Status::NO_MEMORY));
        match how {
            0 => context.free(memory).unwrap(),
            1 => context.free(context.device).unwrap(),
            2 => context.free(context.client).unwrap(),
            // Nobody says so: it is found when room is needed.
            _ => program.close(context.control),
        }
        let again = program.context(0);
        again.memory(LIMIT).unwrap();
        again.free(again.client).unwrap();
        assert_eq!(container.used(0), 0, "{how}");
    }
}

#[test]
fn a_process_that_ends_leaves_nothing() {
    let OneContext { container, program, context, .. } = OneProgram::on_cards(2, LIMIT).with_context();
    let uvm = context.uvm_file();
    let memory = context.memory(4 * MIB).unwrap();
    context.map(uvm, 0x7000_0000, 4 * MIB, memory).unwrap();
    program.context(1).memory(2 * MIB).unwrap();
    let used = container.session.usage();
    assert_eq!(used.processes.len(), 1);
    assert_eq!(used.processes[0].cards.len(), 2);
    assert_eq!(used.processes[0].pid_in_container, program.pid.0 - 999);
    let pid = program.exit();
    container.session.process_ended(pid);
    container.assert_nothing_left();
    assert!(container.session.usage().processes.is_empty());
    assert_eq!(*lock(&container.observed.new_processes), [pid]);
}

#[test]
fn memory_that_something_still_maps_stays_charged() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    // Map, free the handle, again and again: the oldest way around a quota.
    let mut refused = 0;
    for round in 0..40_u64 {
        let Ok(memory) = context.memory(4 * MIB) else {
            refused += 1;
            continue;
        };
        context.map(uvm, 0x7000_0000 + round * 4 * MIB, 4 * MIB, memory).unwrap();
        context.free(memory).unwrap();
    }
    assert!(container.used(0) <= LIMIT && refused > 20, "{refused}");
    let before = container.used(0);
    program.free_range(uvm, 0x7000_0000, 4 * MIB).unwrap();
    assert_eq!(before - container.used(0), 4 * MIB);
    // A program that is replaced (exec) loses its UVM file, and with it all mappings.
    program.exec();
    let context = program.context(0);
    context.memory(LIMIT).unwrap();
}

#[test]
fn a_duplicate_is_charged_once_and_lives_as_long_as_either() {
    let OneProgram { container, program: one, .. } = OneProgram::within(LIMIT);
    let other = container.program();
    let (owner, user) = (one.context(0), other.context(0));
    let memory = owner.memory(LIMIT).unwrap();
    let duplicate = user.dup(&owner, memory).unwrap();
    assert_eq!(container.used(0), LIMIT);
    owner.free(memory).unwrap();
    assert_eq!(container.used(0), LIMIT);
    user.free(duplicate).unwrap();
    assert_eq!(container.used(0), 0);
}

#[test]
fn the_old_heap_call_is_charged_by_where_the_memory_is() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let alloc_of = |location: u32, attr2: u32, size: u64| {
        // NVOS32_FUNCTION_ALLOC_SIZE.
        let made = context.heap(2, &[(40, OWNER), (56, location << 25), (144, attr2)], &[(88, size)]);
        made.map(|args| read_u32(&args, 44).unwrap())
    };
    let alloc = |location, size| alloc_of(location, 0, size);
    let memory = alloc(0, 2 * MIB).unwrap();
    assert_eq!(container.used(0), 2 * MIB);
    alloc(1, 2 * MIB).unwrap();
    assert_eq!(container.used(0), 2 * MIB, "memory of the host");
    assert_eq!(alloc(0, LIMIT), Err(Status::NO_MEMORY));
    alloc(3, 2 * MIB).unwrap();
    let of_the_host = container.host_used();
    assert_eq!((container.used(0), of_the_host), (2 * MIB, 4 * MIB), "anywhere is the host");
    assert_eq!(alloc_of(0, 1 << 24, MIB), Err(Status::INVALID_CLASS), "another node's memory");
    // NVOS32_FUNCTION_FREE.
    context.heap(3, &[(44, memory)], &[]).unwrap();
    assert_eq!(container.used(0), 0);
}

#[test]
fn contexts_are_charged_for_what_no_allocation_shows() {
    let OneContext { container, context, .. } = OneContext::within(64 * MIB);
    let group = |engine: u32| {
        let mut params = struct_with(20, &[(12, engine)]);
        context.object(KEPLER_CHANNEL_GROUP_A, &mut params)
    };
    let first = group(1).unwrap();
    let graphics = container.used(0);
    assert!(graphics >= 8 * MIB, "{graphics}");
    group(9).unwrap();
    assert_eq!(container.used(0) - graphics, 256 << 10);
    let groups = std::iter::from_fn(|| group(1).ok()).count();
    assert!((3..8).contains(&groups), "{groups}");
    assert_eq!(group(1), Err(Status::NO_MEMORY));
    context.free(first).unwrap();
    group(1).unwrap();
}

#[test]
fn objects_that_cost_hidden_memory_are_limited_in_number() {
    let OneContext { context, .. } = OneContext::within(LIMIT);
    let spaces = std::iter::from_fn(|| context.object(FERMI_VASPACE_A, &mut [0; 56]).ok()).take(1000).count();
    assert_eq!(spaces, 64);
    assert_eq!(context.object(FERMI_VASPACE_A, &mut [0; 56]), Err(Status::INSUFFICIENT_RESOURCES));
}

#[test]
fn by_policy_the_process_is_killed_instead() {
    let OneContext { container, program, context, .. } = OneProgram::killed_beyond(LIMIT).with_context();
    let params = program.put(&memory_params(2 * LIMIT));
    let mut args = alloc_args((context.client, context.device, 0), 0x40, params);
    assert_eq!(program.escape(context.control, 0x2b, &mut args), Answer::KillCaller);
    assert_eq!(lock(&container.observed.over_memory)[0].action, OverMemory::Kill);
    assert_eq!(container.session.usage().kills, 1);
}

#[test]
fn limits_change_while_programs_run() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    context.memory(LIMIT / 2).unwrap();
    let card = container.machine.inventory.cards[0].uuid.clone();
    container.session.set_limits(&[(card.clone(), Bytes(LIMIT / 2))]).unwrap();
    assert_eq!(context.memory(1), Err(Status::NO_MEMORY));
    container.session.set_limits(&[(card.clone(), Bytes(LIMIT / 4))]).unwrap();
    assert_eq!(container.used(0), LIMIT / 2, "nothing is taken away");
    let wrong = container.session.set_limits(&[(card.clone(), Bytes(2 * LIMIT)), ("GPU-x".into(), Bytes(1))]);
    assert!(wrong.is_err());
    assert_eq!(context.memory(1), Err(Status::NO_MEMORY), "nothing has changed");
    container.session.set_limits(&[(card, Bytes(2 * LIMIT))]).unwrap();
    context.memory(LIMIT).unwrap();
}

#[test]
fn a_card_that_is_full_says_so_itself() {
    let machine = Machine::new(1);
    // Oversubscribed: each may have the whole card.
    let total = machine.inventory.cards[0].memory.0;
    let (one, other) = (machine.container(&[0], total), machine.container(&[0], total));
    let (first, second) = (one.program(), other.program());
    first.context(0).memory(total - 1024 * MIB).unwrap();
    let context = second.context(0);
    assert_eq!(context.memory(2048 * MIB), Err(Status::NO_MEMORY));
    assert_eq!(other.used(0), 0);
    assert!(lock(&other.observed.over_memory).is_empty(), "it is not over its quota");
}

#[test]
fn the_driver_and_the_accounts_agree() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let uvm = context.uvm_file();
    let memory = context.memory(6 * MIB).unwrap();
    context.map(uvm, 0x7000_0000, 6 * MIB, memory).unwrap();
    context.memory(1).unwrap();
    context.free(memory).unwrap();
    assert_eq!(container.session.reconcile(), []);
    // What was handed out behind the accounts' back is found.
    container.accounts().client_gone(Handle(context.client));
    context.program.close(uvm);
    let drifts = container.session.reconcile();
    assert_eq!(drifts.len(), 1, "{drifts:?}");
    assert!(!drifts[0].excess);
    assert_eq!(*lock(&container.observed.drifts), drifts);
}

/// Whatever way round the accounts a container finds: what the driver has handed to it counts.
#[test]
fn more_than_the_limit_behind_the_accounts_back_is_an_excess_of_the_whole_container() {
    let OneProgram { container, program: one, .. } = OneProgram::within(LIMIT);
    let other = container.program();
    let first = one.context(0);
    first.memory(LIMIT).unwrap();
    // The accounts let go of what the driver keeps.
    container.accounts().client_gone(Handle(first.client));
    let excess = |drifts: &[Drift]| drifts.iter().map(|drift| drift.excess).collect::<Vec<_>>();
    assert_eq!(excess(&container.session.reconcile()), [false], "that is all that it may have");
    other.context(0).memory(MIB).unwrap();
    let drifts = container.session.reconcile();
    let [Drift { kind, excess: true, pids }] = &drifts[..] else { panic!("{drifts:?}") };
    let uuid = container.machine.inventory.cards[0].uuid.clone();
    let (accounted, driver, limit) = (Bytes(MIB), Bytes(LIMIT + MIB), Bytes(LIMIT));
    assert_eq!(*kind, DriftKind::Card { card: uuid, accounted, driver, limit });
    assert_eq!(pids[..], [], "the driver does not say whose it is: all of the container");
    assert_eq!(lock(&container.observed.drifts).last(), drifts.last());
}

#[test]
fn processes_that_ask_at_once_never_get_more_than_there_is() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let program = container.program();
                    let context = program.context(0);
                    let mut held = Vec::new();
                    for size in [1, 3 * MIB, 7 * MIB, 2 * MIB] {
                        held.extend(context.memory(size));
                        assert!(container.used(0) <= LIMIT);
                    }
                    held.pop().into_iter().for_each(|memory| context.free(memory).unwrap());
                    container.session.process_ended(program.exit());
                }
            });
        }
    });
    container.assert_nothing_left();
}

#[test]
fn a_call_on_another_file_is_none_of_the_drivers() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let other = program.give(tempfile::tempfile().unwrap());
    let command = escapes::command(NV_ESC_RM_ALLOC, NVOS21_PARAMETERS::SIZE);
    assert_eq!(program.handle(Trapped::Ioctl { fd: other, command, argument: 0 }), Answer::Errno(libc::ENOTTY));
    assert_eq!(program.handle(Trapped::Ioctl { fd: 99, command, argument: 0 }), Answer::Errno(libc::EBADF));
    assert_eq!(program.handle(Trapped::Ioctl { fd: other, command: 33, argument: 0 }), Answer::Errno(libc::ENOTTY));
    let control = program.open(Node::Control);
    assert_eq!(program.handle(Trapped::Ioctl { fd: control, command, argument: 0 }), Answer::Errno(libc::EFAULT));
    assert!(lock(&container.observed.new_processes).len() <= 1);
}

#[test]
fn a_context_is_charged_what_the_driver_tells_of_it_and_nobody_asks_before_it_can_tell() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    let mut params = struct_with(20, &[(12, 1)]);
    let group = context.object(KEPLER_CHANNEL_GROUP_A, &mut params).unwrap();
    let expected = container.used(0);
    let mut params = vec![0; 368];
    let channel = context.object_below(group, HOPPER_CHANNEL_GPFIFO_A, &mut params).unwrap();
    let mut question = [words(&[channel, 0]), vec![0; 8]].concat();
    assert_eq!(context.subdevice_control(NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &mut question), Err(Status(0x31)));
    assert_eq!(container.used(0), expected, "not measured yet");
    context.object_below(channel, HOPPER_COMPUTE_A, &mut []).unwrap();
    context.subdevice_control(NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE, &mut question).unwrap();
    let told = read_u64(&question, 8).unwrap();
    assert_eq!(container.used(0), told + 2948 * 1024);
    context.free(group).unwrap();
    assert_eq!(container.used(0), 0);
}

/// Before Ampere the driver does not look at what a group or a channel is said to be for
/// (kernel_channel_group_api.c).
#[test]
fn what_is_said_to_copy_and_computes_is_charged_as_what_computes() {
    const CONTEXT_SIZE: u32 = NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
    let OneContext { spy, container, context, .. } = OneContext::new();
    let told = 5 * MIB;
    spy.answer(CONTEXT_SIZE, [vec![0; 8], told.to_le_bytes().to_vec()].concat());
    let group = context.group(COPY);
    let duplicate = context.dup(&context, group).unwrap();
    for parent in [group, duplicate, context.device] {
        let before = container.used(0);
        let channel = context.channel(parent, COPY).unwrap();
        let expected = container.used(0);
        for _ in 0..2 {
            context.object_below(channel, VOLTA_COMPUTE_A, &mut []).unwrap();
        }
        assert_eq!(spy.count(CONTEXT_SIZE), 1);
        if parent == duplicate {
            assert_eq!(container.used(0), before, "one group, one charge");
        } else {
            assert_eq!(container.used(0), expected - 256 * 1024 + told + 2948 * 1024);
        }
    }
    // Room for its buffers, or none of it.
    let bare = context.channel(context.device, COPY).unwrap();
    spy.answer(CONTEXT_SIZE, [vec![0; 8], (8 * GIB).to_le_bytes().to_vec()].concat());
    let before = container.used(0);
    let computes = context.object_below(bare, VOLTA_COMPUTE_A, &mut []);
    assert_eq!(computes, Err(Status::NO_MEMORY));
    assert_eq!(container.used(0), before - 256 * 1024, "the channel is gone with it");
    context.free(context.client).unwrap();
    assert_eq!(container.used(0), 0);
}

/// While the driver is asked for the size of the buffers, nobody takes away what it is asked on:
/// then they would cost what was expected.
#[test]
fn nobody_keeps_the_mediator_from_hearing_what_a_context_takes() {
    const CONTEXT_SIZE: u32 = NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE;
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let channel = context.channel(context.device, COPY).unwrap();
    let (client, subdevice) = (context.client, context.subdevice);
    let thread = (Arc::clone(&container), Arc::clone(&spy), program.file_of(context.control));
    let freeing = spy.during_elsewhere(CONTEXT_SIZE, move || {
        let (container, spy, file) = thread;
        let program = container.program();
        program.free(program.give(file), client, subdevice).unwrap();
        spy.refuse(CONTEXT_SIZE, Status::OBJECT_NOT_FOUND);
    });
    spy.answer(CONTEXT_SIZE, [vec![0; 8], (5 * MIB).to_le_bytes().to_vec()].concat());
    context.object_below(channel, VOLTA_COMPUTE_A, &mut []).unwrap();
    freeing.join();
    assert_eq!(container.used(0), 5 * MIB + 2948 * 1024);
}

/// The driver says the size in pages of 4 KiB, and takes 64 KiB of the card.
#[test]
fn a_page_of_4_kib_costs_what_it_takes() {
    let OneContext { container, context, .. } = OneContext::within(LIMIT);
    for (number, size) in (1..).zip([4096, 64 << 10, 1]) {
        let mut params = memory_params(size);
        assert!(write_u32(&mut params, 24, 1 << 23));
        context.object(NV01_MEMORY_LOCAL_USER, &mut params).unwrap();
        assert_eq!(read_u64(&params, 64), Some(size.next_multiple_of(4096)), "what the program is told");
        assert_eq!(container.used(0), number * 64 * 1024);
    }
}

/// Each look costs the mediator what its container has of processes, files and clients.
#[test]
fn a_loop_of_refusals_does_not_burn_a_processor() {
    let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(LIMIT, Duration::from_millis(5));
    let context = program.context(0);
    context.memory(LIMIT).unwrap();
    let looks = |work: &dyn Fn()| {
        let before = container.session.reclaim_throttle.count();
        work();
        container.session.reclaim_throttle.count() - before
    };
    for _ in 0..100 {
        assert_eq!(context.memory(MIB), Err(Status::NO_MEMORY));
    }
    let (now, worked) = (clock.now(), clock.worked());
    assert!(worked * 9 <= now, "{worked:?} of {now:?}");
    assert_eq!(looks(&|| assert_eq!(context.memory(2 * LIMIT), Err(Status::NO_MEMORY))), 0, "it will never fit");
    // What was seen to go leaves room at once; what was not, after one look.
    let memory = container.program().context(0);
    let freed = looks(&|| {
        context.free(context.client).unwrap();
        let again = memory.memory(LIMIT).unwrap();
        memory.free(again).unwrap();
    });
    assert_eq!(freed, 0);
    let other = program.context(0);
    other.memory(LIMIT).unwrap();
    let closed = looks(&|| {
        program.close(other.control);
        memory.memory(LIMIT).unwrap();
    });
    assert_eq!(closed, 1);
}
