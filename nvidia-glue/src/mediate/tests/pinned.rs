//! Pages of a program's own that the driver keeps pinned: the kernel makes them in the program's place, from what the program says by then.

use runtime_config::Bytes;

use super::world::{Container, Context, MIB, Machine, device_params, memory_params, result};
use crate::{
    account::{Accounts, Card, ObjectLimits, ObjectName},
    mediate::locks::lock,
    rm::{
        Handle, Node, Status,
        layout::{read_u32, write_u32, write_u64},
    },
};

/// What an object costs besides a 128th of its length.
const OBJECT: u64 = 4096;

fn host(container: &Container) -> u64 {
    lock(&container.session.accounts).card(Card::HOST).unwrap().used.0
}

fn pinned(container: &Container) -> u32 {
    lock(&container.session.accounts).counts().pinned
}

/// A card's file that belongs to the context's control file.
fn card_of(context: &Context<'_, '_>) -> i32 {
    let card = context.program.open(Node::Card(context.program.container.inventory.cards[0].minor));
    context.program.escape(card, 0xc9, &mut context.control.to_le_bytes());
    card
}

/// `NV_ESC_RM_ALLOC_MEMORY`.
fn pin(context: &Context<'_, '_>, card: i32, object: u32, length: u64) -> Result<u32, Status> {
    let mut args = vec![0; 56];
    for (at, value) in [(0, context.client), (4, context.device), (8, object), (12, 0x71), (48, u32::MAX)] {
        assert!(write_u32(&mut args, at, value));
    }
    assert!(write_u64(&mut args, 32, length.wrapping_sub(1)));
    let answer = context.program.escape(card, 0x27, &mut args);
    result(answer, &args, 40).map(|()| read_u32(&args, 8).unwrap())
}

#[test]
fn it_is_charged_until_it_ends() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], 64 * MIB);
    let program = container.program();
    let (context, other) = (program.context(0), program.context(0));
    let card = card_of(&context);
    assert_eq!(pin(&context, card, 0x70, 128 * MIB), Ok(0x70));
    assert_eq!((host(&container), pinned(&container)), (MIB + OBJECT, 1));
    // A duplicate keeps it.
    let duplicate = program.dup(other.control, (other.client, other.device), (context.client, 0x70)).unwrap();
    context.free(0x70).unwrap();
    assert_eq!((host(&container), pinned(&container)), (MIB + OBJECT, 1));
    other.free(duplicate).unwrap();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
    // So does a mapping.
    let uvm = program.uvm_file();
    context.register(uvm);
    pin(&context, card, 0x71, 2 * MIB).unwrap();
    context.map(uvm, 1 << 30, 2 * MIB, 0x71).unwrap();
    context.free(0x71).unwrap();
    assert!(host(&container) > 0);
    program.free_range(uvm, 1 << 30, 2 * MIB).unwrap();
    assert_eq!(host(&container), 0);
    // With a device or a client goes what is below it.
    pin(&context, card, 0x72, MIB).unwrap();
    context.free(context.device).unwrap();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
    pin(&other, card_of(&other), 0x73, MIB).unwrap();
    other.free(other.client).unwrap();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
}

#[test]
fn it_is_limited_in_number_and_size() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let limits = ObjectLimits { pinned: 3, host_memory: Bytes(MIB), ..ObjectLimits::default() };
    *lock(&container.session.accounts) = Accounts::new(&[Bytes(MIB)], limits);
    let program = container.program();
    let context = program.context(0);
    let card = card_of(&context);
    assert_eq!(pin(&context, card, 0x70, 128 * MIB), Err(Status::NO_MEMORY));
    assert_eq!(pin(&context, card, 0x70, u64::MAX), Err(Status::NO_MEMORY));
    for object in 0x70..0x73 {
        pin(&context, card, object, MIB).unwrap();
    }
    assert_eq!(pin(&context, card, 0x73, MIB), Err(Status::INSUFFICIENT_RESOURCES));
    context.free(0x70).unwrap();
    pin(&context, card, 0x73, MIB).unwrap();
    assert_eq!(pinned(&container), 3);
    // A handle that is not there is freed with success: that is no room.
    context.free(0x70).unwrap();
    assert_eq!(pin(&context, card, 0x74, MIB), Err(Status::INSUFFICIENT_RESOURCES));
}

/// Another thread has the kernel pin it elsewhere than the mediator was told: what is freed by the name that was said frees nothing.
#[test]
fn what_is_not_where_it_was_said_to_be_stays_charged_until_nothing_is_left() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let (context, other) = (program.context(0), program.context(0));
    // The kernel has done something else with these calls.
    let say = |context: &Context<'_, '_>, object: u32| {
        let name = ObjectName::new(Handle(context.client), Handle(object));
        lock(&container.session.accounts).pin(program.pid, name, Handle(context.device), 128 * MIB).unwrap();
    };
    let all = (5 * (MIB + OBJECT), 5);
    for object in [0x70, 0x71, 0x72, 0x73, 0] {
        say(&context, object);
    }
    context.free(0x70).unwrap();
    assert_eq!((host(&container), pinned(&container)), all);
    // Something else gets the handle.
    let place = (context.client, context.device, 0x71);
    program.alloc(context.control, place, 0x40, &mut memory_params(4096)).unwrap();
    context.free(0x71).unwrap();
    assert_eq!((host(&container), pinned(&container)), all);
    context.free(context.device).unwrap();
    context.free(context.client).unwrap();
    assert_eq!((host(&container), pinned(&container)), all);
    // They may have been in this one.
    other.free(other.client).unwrap();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
    container.assert_nothing_left();
    // The same where its process has ended.
    let context = program.context(0);
    say(&context, 0x70);
    program.exit();
    container.session.reconcile();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
    container.assert_nothing_left();
}

#[test]
fn what_outlives_what_it_should_go_with_stays_charged() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    let place = (context.client, context.client, 0);
    let second = program.alloc(context.control, place, 0x80, &mut device_params(0)).unwrap();
    pin(&context, card_of(&context), 0x70, 128 * MIB).unwrap();
    // The driver has it below the first device, and the account, as a thread would have it that was quick enough, below the second.
    let name = ObjectName::new(Handle(context.client), Handle(0x70));
    {
        let mut accounts = lock(&container.session.accounts);
        accounts.free(name.client, name.object).unwrap();
        accounts.pin(program.pid, name, Handle(second), 128 * MIB).unwrap();
    }
    context.free(second).unwrap();
    assert_eq!(pinned(&container), 1);
    context.free(context.client).unwrap();
    assert_eq!(pinned(&container), 0);
}
