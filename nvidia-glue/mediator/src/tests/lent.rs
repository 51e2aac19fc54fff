//! Files of the driver that are in other hands, or on their way there, when their container is
//! through with them.

use abi::{Node, Status};

use super::{
    alone::{OneContext, OneProgram},
    world::{Container, Context, MIB, Machine, range},
};
use crate::{Answer, StillHeld, locks::lock};

const AT: u64 = 0x7f00_0000_0000;
const LIMIT: u64 = 64 * MIB;
const NO_MEMORY: Result<u32, Status> = Err(Status::NO_MEMORY);
const FREE: u32 = 34;
const UNREGISTER_GPU: u32 = 38;
const CLEAN_UP_ZOMBIES: u32 = 69;

fn has_client(machine: &Machine, context: &Context) -> bool {
    machine.driver.has_client(context.client)
}

/// Bytes of semaphores, in memory of the host's.
fn pool(context: &Context, uvm: i32) {
    let mut pool = vec![0; 9248];
    pool[..16].copy_from_slice(&range(AT, MIB)[..16]);
    context.program.uvm(uvm, 68, &mut pool, 9240).unwrap();
}

fn kept_uvm(container: &Container) -> usize {
    lock(&container.session.objects.files).all_uvm().len()
}

#[test]
fn a_client_goes_with_the_process_though_others_have_its_file() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(LIMIT);
    context.memory(LIMIT).unwrap();
    let client = context.client;
    let elsewhere = program.file_of(context.control);
    container.session.process_ended(program.exit());
    assert!(!machine.driver.has_client(client), "the memory is free again");
    container.assert_nothing_left();
    assert!(!container.session.holds_anything());
    drop(elsewhere);
}

#[test]
fn a_client_goes_with_the_file_when_its_memory_is_needed() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(LIMIT);
    let other = container.program();
    context.memory(LIMIT).unwrap();
    let elsewhere = program.file_of(context.control);
    let next = other.context(0);
    assert_eq!(next.memory(LIMIT), NO_MEMORY);
    program.close(context.control);
    next.memory(LIMIT).unwrap();
    assert!(!has_client(&machine, &context));
    drop(elsewhere);
}

#[test]
fn a_client_stays_while_any_process_of_the_container_has_its_file() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let child = container.program();
    let memory = context.memory(MIB).unwrap();
    let inherited = child.give(program.file_of(context.control));
    let (client, device) = (context.client, context.device);
    container.session.process_ended(program.exit());
    container.session.reconcile();
    assert_eq!(container.used(0), MIB);
    child.dup(inherited, (client, device), (client, memory)).unwrap();
    child.free(inherited, client, client).unwrap();
    container.session.reconcile();
    container.assert_nothing_left();
    assert!(!lock(&container.session.objects.files).has_controls(), "no duplicate is kept of a file without clients");
}

#[test]
fn at_the_end_everything_is_freed_and_no_client_is_made_any_more() {
    let OneProgram { machine, container, program, .. } = OneProgram::within(LIMIT);
    let (first, second) = (program.context(0), program.context(0));
    let memory = first.memory(MIB).unwrap();
    second.memory(MIB).unwrap();
    let uvm = program.uvm_file();
    first.register(uvm);
    first.map(uvm, AT + 2 * MIB, MIB, memory).unwrap();
    pool(&first, uvm);
    assert_eq!(container.session.end(), Ok(()));
    assert!(!has_client(&machine, &first) && !has_client(&machine, &second));
    container.assert_nothing_left();
    let refused = program.escape(first.control, 0x2b, &mut super::world::words(&[0, 0, 0, 0x41, 0, 0, 0, 0]));
    assert_eq!(refused, Answer::Errno(libc::EBADF));
    let fresh = program.open(Node::Uvm);
    assert_eq!(program.ioctl(fresh, 0x3000_0001, &mut [0; 16]), Answer::Errno(libc::EBADF));
    assert_eq!(container.session.end(), Ok(()), "a second time there is nothing to do");
}

#[test]
fn a_driver_that_does_not_free_is_told_of_at_the_end() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    context.memory(MIB).unwrap();
    spy.refuse_to_free(Status::INVALID_STATE);
    assert_eq!(container.session.end(), Err(StillHeld { clients: 1 }));
    assert_eq!(container.used(0), MIB, "it stays charged");
    spy.refuse_nothing();
    assert_eq!(container.session.end(), Ok(()));
    container.assert_nothing_left();
}

/// As it does for good once it has met an error that it takes for fatal: containers must be deleted
/// all the same.
#[test]
fn unified_memory_that_refuses_everything_keeps_no_container() {
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let uvm = program.uvm_file();
    pool(&context, uvm);
    for (command, status_at) in [(FREE, 16), (UNREGISTER_GPU, 16), (CLEAN_UP_ZOMBIES, 0)] {
        spy.refuse_uvm(command, status_at, Status::INVALID_STATE);
    }
    assert_eq!(container.session.end(), Ok(()));
    container.assert_nothing_left();
}

/// It is mapped and used by a child, and the file is in a socket when the child ends: the driver
/// keeps the memory as long as that.
#[test]
fn managed_memory_that_outlives_its_process_is_freed_before_its_file_is_given_up() {
    let OneProgram { spy, container, program: parent, .. } = OneProgram::new();
    let child = container.program();
    let uvm = parent.uvm_file();
    let inherited = child.give(parent.file_of(uvm));
    child.has_managed(inherited, AT, LIMIT);
    child.open(Node::Control);
    let in_a_socket = parent.file_of(uvm);
    parent.close(uvm);
    child.close(inherited);
    // Mapped it is still: the file stays known, as nothing else could free what becomes of the
    // memory.
    container.session.reconcile();
    assert_eq!((container.used(0), kept_uvm(&container)), (LIMIT, 1));
    spy.refuse_uvm(CLEAN_UP_ZOMBIES, 0, Status::INVALID_STATE);
    container.session.process_ended(child.exit());
    container.session.reconcile();
    assert_eq!((container.used(0), kept_uvm(&container)), (LIMIT, 1), "not freed, and so charged");
    spy.refuse_nothing();
    spy.uvm_seen();
    container.session.reconcile();
    assert!(spy.uvm_seen().contains(&CLEAN_UP_ZOMBIES));
    assert_eq!((container.used(0), kept_uvm(&container)), (0, 0));
    drop(in_a_socket);
}

#[test]
fn a_pool_is_freed_before_its_file_is_given_up() {
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let uvm = program.uvm_file();
    pool(&context, uvm);
    let charges = || container.accounts().counts().charges;
    let with_pool = charges();
    let in_a_socket = program.file_of(uvm);
    program.close(uvm);
    spy.refuse_uvm(FREE, 16, Status::INVALID_ARGUMENT);
    container.session.reconcile();
    assert_eq!((charges(), kept_uvm(&container)), (with_pool, 1), "not freed, and so charged");
    spy.refuse_nothing();
    container.session.reconcile();
    assert_eq!((charges(), kept_uvm(&container)), (with_pool - 1, 0));
    // It comes back, and has nothing: the same addresses are free in the driver, too.
    let again = program.give(in_a_socket);
    pool(&context, again);
    assert_eq!(charges(), with_pool);
}

#[test]
fn no_client_is_made_where_none_can_be_freed() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    let card = program.open(Node::Card(0));
    let refused = program.escape(card, 0x2b, &mut super::world::words(&[0, 0, 0, 0x41, 0, 0, 0, 0]));
    assert_eq!(refused, Answer::Errno(libc::EINVAL));
    container.assert_nothing_left();
}
