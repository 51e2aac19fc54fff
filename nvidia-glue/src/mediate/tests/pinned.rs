//! Pages of a program's own that the driver keeps pinned: the kernel makes them in the program's place, from what the program says by then.

use runtime_config::Bytes;

use super::world::{
    Container, Context, MIB, Machine, Program, device_params, host_memory_params, memory_params, result,
};
use crate::{
    account::{Accounts, Card, ObjectLimits, ObjectName},
    mediate::{Answer, Drift, DriftKind, Stopped, locks::lock, pinned::MOST},
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

fn pin_args(context: &Context<'_, '_>, object: u32, length: u64) -> Vec<u8> {
    let mut args = vec![0; 56];
    for (at, value) in [(0, context.client), (4, context.device), (8, object), (12, 0x71), (48, u32::MAX)] {
        assert!(write_u32(&mut args, at, value));
    }
    assert!(write_u64(&mut args, 32, length.wrapping_sub(1)));
    args
}

/// `NV_ESC_RM_ALLOC_MEMORY`.
fn pin(context: &Context<'_, '_>, card: i32, object: u32, length: u64) -> Result<u32, Status> {
    let mut args = pin_args(context, object, length);
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

/// Another thread rewrites words of the call, given with their offsets, after the mediator has read it and before the kernel does; the call's
/// status.
fn pin_rewritten(context: &Context<'_, '_>, card: i32, (object, length): (u32, u64), words: &[(u64, u32)]) -> Status {
    const PIN: u32 = 3 << 30 | 56 << 16 | (b'F' as u32) << 8 | 0x27;
    let program = context.program;
    let argument = program.put(&pin_args(context, object, length));
    let words = words.to_vec();
    program.race_with(move |program, _| {
        words.iter().for_each(|(at, word)| program.poke(argument + at, &word.to_le_bytes()));
    });
    let answer = program.handle(Stopped::Ioctl { fd: card, command: PIN, argument });
    program.no_race();
    assert_eq!(answer, Answer::Return(0));
    Status(read_u32(&program.take(argument), 40).unwrap())
}

/// `GET_HANDLE_INFO` of the client itself: a call like any other.
fn any_call(context: &Context<'_, '_>) -> Answer {
    let address = context.program.put(&[0; 16]);
    let mut args: Vec<u8> =
        [context.client, context.client, 0xd02, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    args.extend(address.to_le_bytes());
    args.extend([16, 0, 0, 0, 0, 0, 0, 0]);
    context.program.escape(context.control, 0x2a, &mut args)
}

fn drifts(container: &Container) -> Vec<Drift> {
    std::mem::take(&mut *lock(&container.told.drifts))
}

#[track_caller]
fn assert_caught(machine: &Machine, program: &Program<'_>, class: u32, (asked, found): (u64, u64)) {
    let drifts = drifts(program.container);
    let [Drift { kind, excess: true, pids }] = drifts.as_slice() else { panic!("{drifts:?}") };
    assert!(pids.is_empty(), "all of the container");
    let limit = lock(&program.container.session.accounts).card(Card::HOST).unwrap().limit;
    let expected = DriftKind::Pinned { by: program.pid, asked: Bytes(asked), found: Bytes(found), class, limit };
    assert_eq!(kind, &expected);
    assert_eq!(machine.driver.host_memory_used(), 0);
}

const CLASS: u64 = 12;
const LIMIT: u64 = 32;

/// The thread that made it is told nothing, and ended at its next call.
#[test]
fn what_was_made_of_it_is_asked_when_the_thread_is_back() {
    let machine = Machine::new(1);
    for (words, class, found) in [
        (&[(CLASS, 0x3e_u32)] as &[_], 0x3e, MIB),
        (&[(CLASS, 0x3e), (LIMIT, (256 << 20) - 1)], 0x3e, 256 * MIB),
        (&[(LIMIT, (256 << 20) - 1)], 0x71, 256 * MIB),
    ] {
        let container = machine.container(&[0], MIB);
        let program = container.program();
        let context = program.context(0);
        assert_eq!(pin_rewritten(&context, card_of(&context), (0x70, MIB), words), Status::OK);
        assert_eq!(drifts(&container), []);
        assert_eq!(any_call(&context), Answer::KillCaller);
        assert_caught(&machine, &program, class, (MIB, found));
        assert_eq!((host(&container), pinned(&container)), (0, 0));
    }
}

#[test]
fn what_was_made_of_it_is_asked_though_the_thread_never_comes_back() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    pin_rewritten(&context, card_of(&context), (0x70, MIB), &[(CLASS, 0x3e)]);
    assert_eq!(machine.driver.host_memory_used(), MIB);
    container.session.look_at_what_is_pinned();
    assert_caught(&machine, &program, 0x3e, (MIB, MIB));
    container.session.look_at_what_is_pinned();
    assert_eq!(drifts(&container), []);
}

/// The driver tells of the memory with the lowest handle below a device.
#[test]
fn what_was_made_under_another_name_is_looked_for() {
    const OBJECT: u64 = 8;
    const PARENT: u64 = 4;
    const ROOT: u64 = 0;
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    // Another client on the same file, which the call can name as well.
    let second = program.alloc(context.control, (0, 0, 0), 0x41, &mut []).unwrap();
    let place = (second, second, 0);
    let device = program.alloc(context.control, place, 0x80, &mut device_params(0)).unwrap();
    let card = card_of(&context);
    for words in [
        &[(CLASS, 0x3e_u32), (OBJECT, 0x99)] as &[_],
        &[(CLASS, 0x3e), (OBJECT, 0x99), (ROOT, second), (PARENT, device)],
    ] {
        assert_eq!(pin_rewritten(&context, card, (0x70, MIB), words), Status::OK);
        assert_eq!(machine.driver.host_memory_used(), MIB);
        // The kernel could still be at it.
        container.session.look_at_what_is_pinned();
        assert_eq!((drifts(&container), machine.driver.host_memory_used()), (vec![], MIB));
        assert_eq!(any_call(&context), Answer::KillCaller);
        assert_caught(&machine, &program, 0x3e, (MIB, MIB));
    }
}

/// Some calls fail, as that of a program that names memory which it does not have.
#[test]
fn what_came_to_nothing_stays_charged_and_ends_nobody() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    let known = context.object(0x3e, &mut host_memory_params(MIB)).unwrap();
    let before = (host(&container), pinned(&container));
    assert_ne!(pin_rewritten(&context, card_of(&context), (0x70, MIB), &[(4, 0xdead)]), Status::OK);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((drifts(&container), host(&container) - before.0, pinned(&container)), (vec![], MIB / 128 + OBJECT, 1));
    // The name is free.
    pin(&context, card_of(&context), 0x70, MIB).unwrap();
    context.free(known).unwrap();
    context.free(context.client).unwrap();
    assert_eq!((host(&container), pinned(&container)), (0, 0));
}

/// A call that names an object.
type Use<'a> = &'a dyn Fn(u32) -> Result<(), Status>;

/// A mapping would keep it, and the call itself could have mapped it.
#[test]
fn what_was_made_of_it_is_not_used_before_it_is_known() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let (program, other) = (container.program(), container.program());
    let context = program.context(0);
    let card = card_of(&context);
    // Another process has its file.
    let control = other.give(program.file_of(context.control));
    let lent = Context { program: &other, control, ..context };
    let uvm = other.uvm_file();
    lent.register(uvm);
    let map = |object: u32| {
        let file = other.open(Node::Control);
        let mut args = vec![0; 56];
        for (at, value) in [(0, lent.client), (4, lent.device), (8, object), (48, file.cast_unsigned())] {
            assert!(write_u32(&mut args, at, value));
        }
        assert!(write_u64(&mut args, 24, MIB));
        let answer = other.escape(control, 0x4e, &mut args);
        result(answer, &args, 40)
    };
    let map_on_card = |object: u32| lent.map(uvm, 1 << 30, MIB, object);
    let space = lent.object(0x50a0, &mut memory_params(4 * MIB)).unwrap();
    let map_by_driver = |object: u32| {
        let mut args = vec![0; 64];
        for (at, value) in [(0, lent.client), (4, lent.device), (8, space), (12, object)] {
            assert!(write_u32(&mut args, at, value));
        }
        assert!(write_u64(&mut args, 24, MIB));
        let answer = other.escape(control, 0x57, &mut args);
        result(answer, &args, 56)
    };
    let free = |object: u32| lent.free(object);
    let uses: [(u32, Use<'_>, _); 4] = [
        (0x70, &map, Err(Status::OBJECT_NOT_FOUND)),
        (0x71, &map_on_card, Err(Status::OBJECT_NOT_FOUND)),
        (0x72, &map_by_driver, Err(Status::OBJECT_NOT_FOUND)),
        (0x73, &free, Ok(())),
    ];
    for (object, used, expected) in uses {
        pin_rewritten(&context, card, (object, MIB), &[(CLASS, 0x3e)]);
        assert_eq!(used(object), expected);
        assert_caught(&machine, &program, 0x3e, (MIB, MIB));
        // The thread has nothing there any more.
        any_call(&context);
        assert_eq!(drifts(&container), []);
    }
}

/// The driver chooses a handle for 0 and does not say it; what is taken it refuses.
#[test]
fn it_has_a_name_of_its_own() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    let card = card_of(&context);
    for (name, status) in [
        (0, Status::INVALID_ARGUMENT),
        (context.client, Status::INVALID_ARGUMENT),
        (context.device, Status::INSERT_DUPLICATE_NAME),
    ] {
        assert_eq!(pin(&context, card, name, MIB), Err(status));
    }
    pin(&context, card, 0x70, MIB).unwrap();
    assert_eq!(pin(&context, card, 0x70, MIB), Err(Status::INSERT_DUPLICATE_NAME));
    assert_eq!((host(&container), pinned(&container)), (MIB / 128 + OBJECT, 1));
}

#[test]
fn what_the_driver_says_is_what_counts() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    pin_rewritten(&context, card_of(&context), (0x70, 128 * MIB), &[(LIMIT, (1 << 20) - 1)]);
    assert_eq!(host(&container), MIB + OBJECT);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((host(&container), drifts(&container)), (MIB / 128 + OBJECT, vec![]));
}

#[test]
fn calls_under_way_are_limited_in_number() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let (program, other) = (container.program(), container.program());
    let context = program.context(0);
    let card = card_of(&context);
    let name = |object| ObjectName::new(Handle(context.client), Handle(object));
    for object in 0..u32::try_from(MOST).unwrap() {
        container.session.pinning.add(other.pid.0, other.pid, name(0x1000 + object), MIB);
    }
    assert_eq!(pin(&context, card, 0x70, MIB), Err(Status::INSUFFICIENT_RESOURCES));
    other.exit();
    pin(&context, card, 0x70, MIB).unwrap();
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((container.session.pinning.len(), drifts(&container)), (0, vec![]));
}

/// A signal has interrupted it before the kernel was told to execute it: the program makes the same call again.
#[test]
fn what_nobody_hears_of_is_as_if_it_were_never_asked_for() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], MIB);
    let program = container.program();
    let context = program.context(0);
    let card = card_of(&context);
    for _ in 0..3 {
        let argument = program.put(&pin_args(&context, 0x70, MIB));
        let stopped = Stopped::Ioctl { fd: card, command: 3 << 30 | 56 << 16 | u32::from(b'F') << 8 | 0x27, argument };
        let (_, undo) = container.session.handle_undoably(&program, &stopped);
        container.session.undo(undo.unwrap());
        assert_eq!((host(&container), pinned(&container), container.session.pinning.len()), (0, 0, 0));
    }
    pin(&context, card, 0x70, MIB).unwrap();
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((host(&container), pinned(&container), drifts(&container)), (MIB / 128 + OBJECT, 1, vec![]));
}
