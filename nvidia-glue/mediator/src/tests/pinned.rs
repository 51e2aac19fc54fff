//! Pages of a program's own that the driver keeps pinned: the kernel makes them in the program's
//! place, from what the program says by then.

use abi::{
    Handle, Node, Status,
    classes::{NV01_MEMORY_SYSTEM, NV20_SUBDEVICE_0},
    controls::{
        NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO,
        NV0041_CTRL_CMD_GET_SURFACE_INFO,
    },
    layout::{read_u32, write_u64},
};
use std::{collections::BTreeSet, sync::Arc};

use account::{Card, ObjectLimits};
use base::Bytes;
use driver::{DeviceFile, DriverCall, FileField, Holder};

use super::{
    alone::{OneContext, OneProgram},
    world::{Container, Context, MIB, Machine, Program, control_args, host_memory_params, struct_with},
};
use crate::{
    Answer, Drift, DriftKind, Trapped,
    locks::lock,
    memory::{
        inflight_pins::{PinNames, Pinning},
        pinned::{MOST, MOST_OPEN},
    },
};

/// `NV_ESC_RM_ALLOC_MEMORY`.
const PIN: u32 = 3 << 30 | 56 << 16 | (b'F' as u32) << 8 | 0x27;
/// Cost of an object besides a 128th of its length.
const OBJECT_COST: u64 = 4096;

fn pinned(container: &Container) -> u32 {
    container.accounts().counts().pinned
}

/// A card's file that belongs to the context's control file.
pub(super) fn card_of(context: &Context) -> i32 {
    let card = context.program.open(Node::Card(context.program.container.machine.inventory.cards[0].minor));
    context.program.escape(card, 0xc9, &mut context.control.to_le_bytes());
    card
}

fn pin_args(context: &Context, object: u32, length: u64) -> Vec<u8> {
    let mut args =
        struct_with(56, &[(0, context.client), (4, context.device), (8, object), (12, 0x71), (48, u32::MAX)]);
    assert!(write_u64(&mut args, 32, length.wrapping_sub(1)));
    args
}

/// `NV_ESC_RM_ALLOC_MEMORY`.
pub(super) fn pin(context: &Context, card: i32, object: u32, length: u64) -> Result<(), Status> {
    let mut args = pin_args(context, object, length);
    context.program.rm(card, 0x27, &mut args, 40)
}

#[test]
fn it_is_charged_until_it_ends() {
    let OneContext { container, program, context, .. } = OneContext::within(64 * MIB);
    let other = program.context(0);
    let card = card_of(&context);
    assert_eq!(pin(&context, card, 0x70, 128 * MIB), Ok(()));
    assert_eq!((container.host_used(), pinned(&container)), (MIB + OBJECT_COST, 1));
    // A duplicate keeps it.
    let duplicate = other.dup(&context, 0x70).unwrap();
    context.free(0x70).unwrap();
    assert_eq!((container.host_used(), pinned(&container)), (MIB + OBJECT_COST, 1));
    other.free(duplicate).unwrap();
    assert_eq!((container.host_used(), pinned(&container)), (0, 0));
    // So does a mapping.
    let uvm = context.uvm_file();
    pin(&context, card, 0x71, 2 * MIB).unwrap();
    context.map(uvm, 1 << 30, 2 * MIB, 0x71).unwrap();
    context.free(0x71).unwrap();
    assert!(container.host_used() > 0);
    program.free_range(uvm, 1 << 30, 2 * MIB).unwrap();
    assert_eq!(container.host_used(), 0);
    // With a device or a client goes what is below it.
    pin(&context, card, 0x72, MIB).unwrap();
    context.free(context.device).unwrap();
    assert_eq!((container.host_used(), pinned(&container)), (0, 0));
    pin(&other, card_of(&other), 0x73, MIB).unwrap();
    other.free(other.client).unwrap();
    assert_eq!((container.host_used(), pinned(&container)), (0, 0));
}

#[test]
fn it_is_limited_in_number_and_size() {
    let limits = ObjectLimits { pinned: 3, host_memory: Bytes(MIB), ..ObjectLimits::default() };
    let OneContext { container, context, .. } = OneContext::limited(MIB, limits);
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

/// Another thread rewrites words of the call, given with their offsets, after the mediator has read
/// it and before the kernel does; the call's status.
fn pin_rewritten(context: &Context, card: i32, (object, length): (u32, u64), words: &[(u64, u32)]) -> Status {
    let program = &context.program;
    let argument = program.put(&pin_args(context, object, length));
    let words = words.to_vec();
    program.race_after_writes(move |program, _| {
        words.iter().for_each(|(at, word)| program.poke(argument + at, &word.to_le_bytes()));
    });
    let answer = program.handle(Trapped::Ioctl { fd: card, command: PIN, argument });
    program.no_race();
    assert_eq!(answer, Answer::Return(0));
    Status(read_u32(&program.take(argument), 40).unwrap())
}

/// `GET_HANDLE_INFO` of the client itself: a call like any other.
fn any_call(context: &Context) -> Answer {
    let params = (context.program.put(&[0; 16]), 16);
    let own = (context.client, context.client);
    let mut args = control_args(own, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, params);
    context.program.escape(context.control, 0x2a, &mut args)
}

fn drifts(container: &Container) -> Vec<Drift> {
    std::mem::take(&mut *lock(&container.observed.drifts))
}

#[track_caller]
fn assert_caught(machine: &Machine, program: &Program, class: u32, (asked, found): (u64, u64)) {
    let drifts = drifts(&program.container);
    let [Drift { kind, excess: true, pids }] = drifts.as_slice() else { panic!("{drifts:?}") };
    assert!(pids.is_empty(), "all of the container");
    let limit = program.container.accounts().card(Card::HOST).unwrap().limit;
    let expected = DriftKind::Pinned { by: program.pid, asked: Bytes(asked), found: Bytes(found), class, limit };
    assert_eq!(kind, &expected);
    assert_eq!(machine.driver.host_memory_used().unwrap(), 0);
}

const ROOT: u64 = 0;
const PARENT: u64 = 4;
const OBJECT: u64 = 8;
const CLASS: u64 = 12;
const LIMIT: u64 = 32;

/// The thread that made it is told nothing, and ended at its next call; it need not make one.
#[test]
fn what_was_made_of_it_is_asked_when_the_thread_is_back_or_never_comes_back() {
    for (words, class, found) in [
        (&[(CLASS, 0x3e_u32)] as &[_], 0x3e, MIB),
        (&[(CLASS, 0x3e), (LIMIT, (256 << 20) - 1)], 0x3e, 256 * MIB),
        (&[(LIMIT, (256 << 20) - 1)], 0x71, 256 * MIB),
    ] {
        for is_back in [true, false] {
            let OneContext { machine, container, program, context, .. } = OneContext::within(MIB);
            assert_eq!(pin_rewritten(&context, card_of(&context), (0x70, MIB), words), Status::OK);
            // The program's own pages are none that the driver has taken.
            let taken = if class == 0x71 { 0 } else { found };
            assert_eq!(machine.driver.host_memory_used().unwrap(), taken);
            assert_eq!(drifts(&container), []);
            if is_back {
                assert_eq!(any_call(&context), Answer::KillCaller);
            } else {
                container.session.look_at_what_is_pinned();
            }
            assert_caught(&machine, &program, class, (MIB, found));
            container.session.look_at_what_is_pinned();
            assert_eq!(drifts(&container), []);
            assert_eq!((container.host_used(), pinned(&container)), (0, 0));
        }
    }
}

/// The driver tells of the memory with the lowest handle below a device. There is no other than
/// what such calls have made.
#[test]
fn nothing_is_hidden_under_another_name() {
    let OneProgram { machine, container, program, .. } = OneProgram::on_cards(2, MIB);
    let (context, second) = (program.context(0), program.context(1));
    let card = card_of(&context);
    // Memory that was asked for, under a handle lower than any other.
    context.object_named((context.device, 1), NV01_MEMORY_SYSTEM, &mut host_memory_params(MIB)).unwrap();
    // What the kernel makes for others is below the other device, and below this one.
    pin(&second, card_of(&second), 0x70, MIB).unwrap();
    pin(&context, card, 0x71, MIB).unwrap();
    context.free(0x71).unwrap();
    for (class, length) in [(0x3e_u32, MIB), (0x71, MIB), (0x3e, 8 * MIB), (0x40, 0)] {
        let limit = u32::try_from(length.max(4096) - 1).unwrap();
        let words = [(CLASS, class), (OBJECT, u32::MAX), (LIMIT, limit)];
        assert_eq!(pin_rewritten(&context, card, (0x72, MIB), &words), Status::OK);
        container.session.look_at_what_is_pinned();
        let drifts = drifts(&container);
        let [Drift { kind: DriftKind::Pinned { by, class: found, found: bytes, .. }, excess: true, .. }] =
            drifts.as_slice()
        else {
            panic!("{drifts:?}")
        };
        assert_eq!((*by, *found, bytes.0), (program.pid, class, length));
        assert_eq!(machine.driver.host_memory_used().unwrap(), MIB, "what was asked for");
        assert_eq!(any_call(&context), Answer::Return(0), "it was told once");
    }
}

/// Another thread has it made in a client that matters, or below an object that does.
#[test]
fn nothing_of_the_containers_can_be_named() {
    let OneContext { container, program, context, .. } = OneContext::within(MIB);
    let card = card_of(&context);
    let before = (container.host_used(), pinned(&container));
    for words in [
        &[(ROOT, context.client), (PARENT, context.device), (OBJECT, 0x70)] as &[_],
        &[(ROOT, context.client), (PARENT, context.device), (OBJECT, 0x70), (CLASS, 0x3e)],
        &[(ROOT, context.client)],
    ] {
        assert_eq!(pin_rewritten(&context, card, (0x70, MIB), words), Status::INVALID_CLIENT);
        assert_eq!(any_call(&context), Answer::Return(0));
    }
    // It knows the names that were there before.
    assert_ne!(pin_rewritten(&context, card, (0x70, MIB), &[(PARENT, context.device)]), Status::OK);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((drifts(&container), container.host_used(), pinned(&container)), (vec![], before.0, before.1));
    // Nor is it made on a card's file that was never registered.
    let stray = program.open(Node::Card(container.machine.inventory.cards[0].minor));
    assert_eq!(pin(&context, stray, 0x70, MIB), Err(Status::INVALID_CLIENT));
}

/// Some calls fail, as that of a program that names memory which it does not have.
#[test]
fn what_came_to_nothing_is_not_charged() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
    let card = card_of(&context);
    for _ in 0..2 * MOST {
        assert_ne!(pin_rewritten(&context, card, (0x70, MIB), &[(PARENT, 0xdead)]), Status::OK);
    }
    assert_eq!((container.host_used(), pinned(&container)), (MIB / 128 + OBJECT_COST, 1), "until the thread is back");
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((drifts(&container), container.host_used(), pinned(&container)), (vec![], 0, 0));
    // The name is free.
    pin(&context, card, 0x70, MIB).unwrap();
    context.free(context.client).unwrap();
    assert_eq!((container.host_used(), pinned(&container)), (0, 0));
}

/// A mapping would keep it, and the call itself could have mapped it.
#[test]
fn what_was_made_of_it_is_not_used_before_it_is_known() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(MIB);
    let other = container.program();
    // Another process has its file.
    let lent = context.lent_to(&other);
    pin_rewritten(&context, card_of(&context), (0x70, MIB), &[(CLASS, 0x3e)]);
    assert_eq!(any_call(&lent), Answer::KillCaller);
    assert_caught(&machine, &program, 0x3e, (MIB, MIB));
    // The thread has nothing there any more.
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!(drifts(&container), []);
}

/// Nobody tells when the kernel is done with it: another thread that has waited for this one may
/// name it at once.
#[test]
fn another_thread_may_use_it_first() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
    let other = container.program();
    let lent = context.lent_to(&other);
    let uvm = other.uvm_file();
    lent.register(uvm);
    pin(&context, card_of(&context), 0x70, MIB).unwrap();
    lent.map(uvm, 1 << 30, MIB, 0x70).unwrap();
    assert_eq!(
        (container.host_used(), pinned(&container), container.session.pinned.inflight.waiting()),
        (MIB / 128 + OBJECT_COST, 1, 0)
    );
}

/// The client or the device is gone by the time that it is moved there.
#[test]
fn what_has_nowhere_to_go_is_let_go_of() {
    let machine = Machine::new(1);
    for of_client in [true, false] {
        let container = machine.container(&[0], MIB);
        let context = container.program().context(0);
        pin(&context, card_of(&context), 0x70, MIB).unwrap();
        let client = Handle(context.client);
        let object = if of_client { client } else { Handle(context.device) };
        let kept = lock(&container.session.objects.files).control_of(client).unwrap();
        assert!(container.session.raw(&kept.file, client).free(object).unwrap().is_ok());
        any_call(&context);
        assert_eq!((drifts(&container), container.host_used(), pinned(&container)), (vec![], 0, 0));
        assert_eq!(container.session.pinned.inflight.open(), 0);
    }
}

/// Another process has freed the device by the time that the kernel makes it: no driver is asked to
/// put it below what is not there.
#[test]
fn nothing_is_moved_below_what_has_gone() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let other = container.program();
    let lent = context.lent_to(&other);
    for is_freed in [false, true] {
        let handle = stuck(&context, 0x70);
        if is_freed {
            lent.free(context.device).unwrap();
        }
        make_staged(&container, handle, 0x71);
        spy.escapes(0x34);
        assert_eq!(any_call(&context), Answer::Return(0));
        assert_eq!(spy.escapes(0x34).len(), usize::from(!is_freed));
        assert_eq!(pinned(&container), u32::from(!is_freed));
        let _ = context.free(0x70);
        assert_eq!((drifts(&container), container.host_used(), pinned(&container)), (vec![], 0, 0));
    }
}

/// All that the kernel can make of such a call is looked for, by the driver's internal classes:
/// `OsDescMemory`, `SystemMemory`, `RegisterMemory`, `VirtualMemoryRange`, `FlaMemory`.
#[test]
fn every_class_is_looked_for() {
    const GET_CHILD_HANDLE: u32 = NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE;
    let OneContext { spy, context, .. } = OneContext::new();
    pin(&context, card_of(&context), 0x70, MIB).unwrap();
    spy.seen();
    assert_eq!(any_call(&context), Answer::Return(0));
    let asked = spy.seen().into_iter().filter(|seen| seen.id == GET_CHILD_HANDLE);
    let classes: BTreeSet<u32> = asked.filter_map(|seen| read_u32(&seen.params, 4)).collect();
    assert_eq!(classes, BTreeSet::from([0xb3_dacd, 0x7a98, 0x40_d457, 0x70_32c6, 0xe6_1ee1]));
}

#[test]
fn nothing_is_staged_once_the_container_has_ended() {
    for is_opened_before in [false, true] {
        let OneProgram { container, .. } = OneProgram::within(MIB);
        let session = &container.session;
        let is_open = || session.staging().is_ok();
        if is_opened_before {
            assert!(is_open());
        }
        session.end().unwrap();
        assert_eq!(is_open(), is_opened_before);
        if let Ok(staging) = session.staging() {
            let mut client = lock(&staging.client);
            assert!(session.staging_device(staging, &mut client, Card(0)).is_err());
            assert!(client.is_none());
        }
    }
}

#[test]
fn the_container_takes_it_all_with_it() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(MIB);
    let card = card_of(&context);
    let before = machine.driver.host_memory_used().unwrap();
    pin(&context, card, 0x70, MIB).unwrap();
    pin_rewritten(&context, card, (0x71, MIB), &[(CLASS, 0x3e)]);
    assert_eq!(machine.driver.host_memory_used().unwrap(), before + MIB);
    // Somebody outside has the card's file.
    let _outside = program.file_of(card);
    container.session.end().unwrap();
    assert_eq!(machine.driver.host_memory_used().unwrap(), before);
    assert_eq!((container.host_used(), pinned(&container)), (0, 0));
    container.assert_nothing_left();
}

/// The driver chooses a handle for 0 and does not say it; what is taken it refuses.
#[test]
fn it_has_a_name_of_its_own() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
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
    assert_eq!((container.host_used(), pinned(&container)), (MIB / 128 + OBJECT_COST, 1));
}

/// The driver makes it below a device and nothing else.
#[test]
fn it_is_below_a_device() {
    let OneContext { context, .. } = OneContext::within(4 * MIB);
    let card = card_of(&context);
    let subdevice = context.object(NV20_SUBDEVICE_0, &mut [0; 4]).unwrap();
    for parent in [context.client, subdevice, context.memory(MIB).unwrap(), 0, 0xdead] {
        let elsewhere = Context { device: parent, ..context.clone() };
        assert_eq!(pin(&elsewhere, card, 0x70, MIB), Err(Status::OBJECT_NOT_FOUND), "{parent:#x}");
    }
    pin(&context, card, 0x70, MIB).unwrap();
}

#[test]
fn what_the_driver_says_is_what_counts() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
    pin_rewritten(&context, card_of(&context), (0x70, 128 * MIB), &[(LIMIT, (1 << 20) - 1)]);
    assert_eq!(container.host_used(), MIB + OBJECT_COST);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((container.host_used(), drifts(&container)), (MIB / 128 + OBJECT_COST, vec![]));
}

/// A call that the kernel has not looked at yet, as when its struct is in a page that does not
/// come; its handle in the staging client.
fn stuck(context: &Context, object: u32) -> Handle {
    let (program, session) = (&context.program, &context.program.container.session);
    let (client, parent) = (Handle(context.client), Handle(context.device));
    let reservation = lock(&session.objects.accounts).pin(program.pid, client, MIB).unwrap();
    let staging = session.staging().unwrap();
    let place = session.staging_device(staging, &mut lock(&staging.client), Card(0)).unwrap();
    let names = PinNames { client, parent, object: Handle(object) };
    let call = Pinning { names, thread: program.pid.0, pid: program.pid, length: MIB };
    session.pinned.inflight.add(place, call, reservation).object
}

/// Something under a handle in the staging client, as a call makes it.
fn make_staged(container: &Container, handle: Handle, class: u32) {
    let staging = container.session.staging().unwrap();
    let mut client = lock(&staging.client);
    let (own, device) = container.session.staging_device(staging, &mut client, Card(0)).unwrap();
    let mut args = struct_with(56, &[(0, own.0), (4, device.0), (8, handle.0), (12, class), (48, u32::MAX)]);
    assert!(write_u64(&mut args, 32, MIB - 1));
    let card = container.session.driver.open(Node::Card(container.machine.inventory.cards[0].minor)).unwrap();
    let register = |control: DeviceFile| {
        let files = [FileField { holder: Holder::Args, offset: 0, file: control }];
        let command = 3 << 30 | 4 << 16 | u32::from(b'F') << 8 | 0xc9;
        let call = DriverCall { command, args: &mut [0; 4], buffers: &mut [], files: &files };
        container.session.driver.ioctl(&card, call).unwrap();
    };
    register(staging.control.clone());
    let call = DriverCall { command: PIN, args: &mut args, buffers: &mut [], files: &[] };
    container.session.driver.in_callers_place(&card, call).unwrap().unwrap();
    assert_eq!(read_u32(&args, 40), Some(0));
}

/// An object under a call's handle may have been another thread's: its own may come yet.
#[test]
fn a_call_is_not_over_before_its_thread_is_back() {
    let OneContext { machine, container, context, .. } = OneContext::within(MIB);
    let other = container.program();
    let lent = context.lent_to(&other);
    let handle = stuck(&lent, 0x80);
    let words = [(OBJECT, handle.0)];
    assert_eq!(pin_rewritten(&context, card_of(&context), (0x70, MIB), &words), Status::OK);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((pinned(&container), container.session.pinned.inflight.open(), drifts(&container)), (1, 1, vec![]));
    context.free(0x80).unwrap();
    for other_handle in [handle, Handle(0x99)] {
        make_staged(&container, other_handle, 0x3e);
        container.session.look_at_what_is_pinned();
        assert_caught(&machine, &other, 0x3e, (MIB, MIB));
    }
    assert_eq!(any_call(&lent), Answer::Return(0));
    assert_eq!((container.session.pinned.inflight.open(), container.host_used()), (0, 0));
}

/// Whoever has a card's file outside the container finds nothing there when no such call is made.
#[test]
fn the_staging_client_is_there_while_calls_are_open() {
    let OneContext { machine, container, context, .. } = OneContext::within(MIB);
    let card = card_of(&context);
    let client = || lock(&container.session.staging().unwrap().client).as_ref().map(|client| client.client);
    assert_eq!(client(), None);
    for _ in 0..2 {
        pin(&context, card, 0x70, MIB).unwrap();
        let known = client().unwrap();
        container.session.reconcile();
        assert_eq!(client(), Some(known), "its thread is not back");
        context.free(0x70).unwrap();
        // Somebody else's, whom nobody watches.
        make_staged(&container, Handle(0x99), 0x3e);
        assert_eq!(container.session.reconcile(), []);
        assert!(matches!(drifts(&container).as_slice(), [Drift { kind: DriftKind::Pinned { .. }, .. }]));
        assert_eq!((client(), machine.driver.host_memory_used().unwrap()), (None, 0));
        assert!(matches!(container.session.driver.client_exists(&container.session.own, known), Ok(false)));
    }
    assert_eq!((pinned(&container), container.host_used()), (0, 0));
}

/// An interrupted call may be looked at when its thread has made another one by then.
#[test]
fn a_call_that_waits_no_more_says_nothing_of_a_later_one() {
    let OneContext { container, program, context, .. } = OneContext::within(MIB);
    let handle = stuck(&context, 0x70);
    program.goes_after_looks(0);
    assert_eq!(any_call(&context), Answer::Errno(libc::EINTR));
    program.comes_back();
    assert_eq!((container.session.pinned.inflight.open(), pinned(&container)), (1, 1));
    // It comes of it after all.
    make_staged(&container, handle, 0x71);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((drifts(&container), container.session.pinned.inflight.open()), (vec![], 0));
}

/// The driver does not say what came of calls: none has failed, and nobody is ended for it.
#[test]
fn what_is_not_known_is_asked_again() {
    const GET_CHILD_HANDLE: u32 = NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE;
    const GET_HANDLE_INFO: u32 = NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO;
    const GET_SURFACE_INFO: u32 = NV0041_CTRL_CMD_GET_SURFACE_INFO;
    let OneContext { spy, container, context, .. } = OneContext::new();
    let card = card_of(&context);
    for control in [GET_CHILD_HANDLE, GET_HANDLE_INFO, GET_SURFACE_INFO] {
        pin(&context, card, 0x70, MIB).unwrap();
        spy.refuse(control, Status::NO_MEMORY);
        container.session.look_at_what_is_pinned();
        assert_eq!(context.dup(&context, 0x70).ok(), None);
        assert_eq!((container.session.pinned.inflight.open(), drifts(&container)), (1, vec![]));
        spy.refuse_no_more();
        assert_eq!(any_call(&context), Answer::Return(0));
        assert_eq!((container.session.pinned.inflight.open(), drifts(&container)), (0, vec![]));
        context.free(0x70).unwrap();
        assert_eq!((pinned(&container), container.host_used()), (0, 0));
    }
}

#[test]
fn calls_under_way_are_limited_in_number() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
    let other = container.program();
    let card = card_of(&context);
    let lent = Context { program: Arc::clone(&other), ..context };
    for object in 0x1000..0x1000 + u32::try_from(MOST).unwrap() {
        stuck(&lent, object);
    }
    assert_eq!(pin(&context, card, 0x70, MIB), Err(Status::INSUFFICIENT_RESOURCES));
    other.exit();
    pin(&context, card, 0x70, MIB).unwrap();
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((container.session.pinned.inflight.open(), pinned(&container), drifts(&container)), (0, 1, vec![]));
}

/// The driver does not free in the staging client what was moved: it is moved once, and the call is
/// over when that is freed.
#[test]
fn what_is_not_freed_is_not_moved_again() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let session = &container.session;
    pin(&context, card_of(&context), 0x70, MIB).unwrap();
    let [staged] = session.pinned.inflight.which(|_, _| true)[..] else { panic!("one call") };
    spy.refuse_to_free_one(staged.0);
    spy.escapes(0x34);
    for _ in 0..3 {
        session.settle_staging();
        assert_eq!(any_call(&context), Answer::Return(0));
    }
    assert_eq!((spy.escapes(0x34).len(), session.pinned.inflight.open(), drifts(&container)), (1, 1, vec![]));
    spy.refuse_to_free_one(0);
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((spy.escapes(0x34).len(), session.pinned.inflight.open(), pinned(&container)), (0, 0, 1));
}

/// Threads that never come back, though something has come of their calls.
#[test]
fn calls_that_are_not_over_are_limited_in_number() {
    let OneContext { container, context, .. } = OneContext::within(MIB);
    let other = container.program();
    let session = &container.session;
    let card = card_of(&context);
    let lent = Context { program: Arc::clone(&other), ..context };
    for _ in 0..MOST_OPEN {
        let (_, reservation) = session.pinned.inflight.take(stuck(&lent, 0x1000)).unwrap();
        lock(&session.objects.accounts).cancel(reservation);
    }
    session.pinned.inflight.moved();
    assert_eq!((session.pinned.inflight.open(), session.pinned.inflight.waiting()), (MOST_OPEN, 0));
    assert_eq!(pin(&context, card, 0x70, MIB), Err(Status::INSUFFICIENT_RESOURCES));
    other.exit();
    assert_eq!(pin(&context, card, 0x70, MIB), Ok(()));
}

/// Nobody is left who would make a call, so it is looked for all the same.
#[test]
fn a_staging_client_that_is_left_is_looked_for() {
    let OneContext { machine, container, program, context, .. } = OneContext::within(MIB);
    let handle = stuck(&context, 0x70);
    container.session.process_ended(program.exit());
    container.session.look_for_closed_files();
    assert!(lock(&container.session.objects.files).all_controls().is_empty());
    make_staged(&container, handle, 0x71);
    assert!(container.session.holds_anything());
    container.session.reconcile();
    assert!(!container.session.holds_anything());
    assert_eq!((machine.driver.host_memory_used().unwrap(), container.host_used()), (0, 0));
}

/// A signal has interrupted it before the kernel was told to execute it: the program makes the same
/// call again.
#[test]
fn what_nobody_hears_of_is_as_if_it_were_never_asked_for() {
    let OneContext { container, program, context, .. } = OneContext::within(MIB);
    let card = card_of(&context);
    // As its struct was left, it names the staging client.
    let argument = program.put(&pin_args(&context, 0x70, MIB));
    for _ in 0..3 {
        let stopped = Trapped::Ioctl { fd: card, command: PIN, argument };
        let (_, sequel) = container.session.handle_with_sequel(&*program, &stopped);
        container.session.answered(sequel.unwrap(), false);
        assert_eq!((container.host_used(), pinned(&container), container.session.pinned.inflight.open()), (0, 0, 0));
    }
    let staged = program.take(argument);
    assert_ne!(read_u32(&staged, 0), Some(context.client));
    let argument = program.put(&staged);
    let again = Trapped::Ioctl { fd: card, command: PIN, argument };
    assert_eq!(program.handle(again), Answer::Return(0));
    assert_eq!(any_call(&context), Answer::Return(0));
    assert_eq!((container.host_used(), pinned(&container), drifts(&container)), (MIB / 128 + OBJECT_COST, 1, vec![]));
    context.free(0x70).unwrap();
    assert_eq!(pinned(&container), 0);
    // Another thread's word is not taken for it.
    let other = container.program();
    let card = other.give(program.file_of(card));
    let argument = other.put(&staged);
    let stranger = Trapped::Ioctl { fd: card, command: PIN, argument };
    assert_eq!(other.handle(stranger), Answer::Return(0));
    assert_eq!(Status(read_u32(&other.take(argument), 40).unwrap()), Status::INVALID_CLIENT);
}
