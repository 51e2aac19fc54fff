//! Memory that is given from process to process through files.

use abi::{
    Node, Status,
    classes::NV01_DEVICE_0,
    controls::{
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
        NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
    },
    layout::{read_u32, write_u32},
};
use std::time::Duration;

use super::{
    alone::{OneContext, OneProgram, TwoContexts},
    world::{Context, MIB, device_params, struct_with},
};

const LIMIT: u64 = 64 * MIB;

pub(super) fn export(context: &Context, memory: u32, fd: i32) -> Result<(), Status> {
    let mut params =
        struct_with(24, &[(0, 1), (4, context.device), (8, context.device), (12, memory), (16, fd.cast_unsigned())]);
    let result = context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, &mut params);
    assert_eq!(read_u32(&params, 16), Some(fd.cast_unsigned()), "the caller's own number comes back");
    result
}

/// A file of the program's that memory was exported to.
fn exported(context: &Context, memory: u32) -> i32 {
    let token = context.program.open(Node::Control);
    export(context, memory, token).unwrap();
    token
}

/// At the first of a file's `places`.
fn export_many(context: &Context, (memories, places): (&[u32], u32), fd: i32) -> Result<(), Status> {
    let count = u32::try_from(memories.len()).unwrap();
    let mut params = struct_with(2128, &[(0, fd.cast_unsigned()), (4, context.device), (8, places), (2124, count)]);
    for (at, memory) in memories.iter().enumerate() {
        assert!(write_u32(&mut params, 76 + 4 * at, *memory));
    }
    context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, &mut params)
}

pub(super) fn import(context: &Context, fd: i32) -> Result<u32, Status> {
    import_below(context, fd, context.device)
}

fn import_below(context: &Context, fd: i32, parent: u32) -> Result<u32, Status> {
    let mut params = struct_with(20, &[(0, fd.cast_unsigned()), (4, 1), (8, context.device), (12, parent), (16, 0)]);
    let result = context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, &mut params);
    result.map(|()| read_u32(&params, 16).unwrap())
}

/// From a place of the file's on, under these handles.
fn import_many(context: &Context, fd: i32, parent: u32, (first, handles): (u8, &[u32])) -> Result<(), Status> {
    let mut params = struct_with(652, &[(0, fd.cast_unsigned()), (4, parent)]);
    for (at, handle) in handles.iter().enumerate().take(128) {
        assert!(write_u32(&mut params, 8 + 4 * at, *handle));
    }
    (params[648], params[650]) = (u8::try_from(handles.len()).unwrap(), first);
    context.control(context.client, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD, &mut params)
}

/// The driver would keep its locks for good (575.51 to 595).
#[test]
fn nothing_is_imported_below_what_is_not_there() {
    const IMPORTS: [u32; 2] =
        [NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD, NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD];
    let OneProgram { spy, program, .. } = OneProgram::new();
    let (owner, taker) = (program.context(0), program.context(0));
    let memory = owner.memory(MIB).unwrap();
    let token = program.open(Node::Control);
    // Two, as one is imported like any other.
    export_many(&owner, (&[memory, memory], 2), token).unwrap();
    for parent in [0, 0xdead, memory] {
        assert_eq!(import_below(&taker, token, parent), Err(Status::OBJECT_NOT_FOUND), "{parent:#x}");
        let many = import_many(&taker, token, parent, (0, &[0; 2]));
        assert_eq!(many, Err(Status::OBJECT_NOT_FOUND), "{parent:#x}");
    }
    assert!(!spy.seen().iter().any(|seen| IMPORTS.contains(&seen.id)), "the driver was not asked");
    import_below(&taker, token, taker.device).unwrap();
    assert_eq!(spy.count(IMPORTS[0]), 1);
}

#[test]
fn an_export_is_charged_once_and_as_long_as_anybody_can_import_it() {
    let OneProgram { container, program: giver, .. } = OneProgram::within(LIMIT);
    let taker = container.program();
    let owner = giver.context(0);
    let memory = owner.memory(LIMIT).unwrap();
    let token = exported(&owner, memory);
    let sent = taker.give(giver.file_of(token));
    owner.free(owner.client).unwrap();
    container.session.process_ended(giver.exit());
    assert_eq!(container.used(0), LIMIT, "the token keeps it");
    let user = taker.context(0);
    assert_eq!(user.memory(1), Err(Status::NO_MEMORY));
    let imported = import(&user, sent).unwrap();
    assert_eq!(container.used(0), LIMIT);
    taker.close(sent);
    container.session.drop_unheld_tokens([Duration::ZERO; 2]);
    assert_eq!(container.used(0), LIMIT, "the import keeps it");
    user.free(imported).unwrap();
    assert_eq!(container.used(0), 0);
    user.memory(LIMIT).unwrap();
}

#[test]
fn several_objects_travel_in_one_file_as_cuda_sends_them() {
    let OneProgram { container, program: giver, .. } = OneProgram::within(LIMIT);
    let taker = container.program();
    let owner = giver.context(0);
    let memory: Vec<u32> = (0..3).map(|_| owner.memory(2 * MIB).unwrap()).collect();
    let token = giver.open(Node::Control);
    export_many(&owner, (&memory, 3), token).unwrap();
    let sent = taker.give(giver.file_of(token));
    container.session.process_ended(giver.exit());
    assert_eq!(container.used(0), 6 * MIB);

    let user = taker.context(0);
    let mut info = struct_with(80, &[(0, sent.cast_unsigned())]);
    user.control(user.client, NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO, &mut info).unwrap();
    let import = |first: u8, handles: &[u32]| import_many(&user, sent, user.device, (first, handles));
    import(1, &[0x701, 0x702]).unwrap();
    import(0, &[0x700]).unwrap();
    assert!(import(3, &[0x703]).is_err(), "nothing was exported there");
    assert!(import(0, &[0x710; 129]).is_err());
    assert_eq!(container.used(0), 6 * MIB);
    taker.close(sent);
    container.session.drop_unheld_tokens([Duration::ZERO; 2]);
    user.free(0x701).unwrap();
    assert_eq!(container.used(0), 4 * MIB);
    user.free(user.client).unwrap();
    assert_eq!(container.used(0), 0);
}

/// The driver takes an empty place of a file for nothing to import: it says that all is well, and
/// leaves the handle that the importer has written there, be it that of another object.
#[test]
fn a_place_that_was_emptied_gives_nobody_a_second_name_for_something_else() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let [kept, emptied] = [(); 2].map(|()| context.memory(2 * MIB).unwrap());
    let token = program.open(Node::Control);
    export_many(&context, (&[emptied, kept], 2), token).unwrap();
    export_many(&context, (&[0], 2), token).unwrap();
    context.free(emptied).unwrap();
    assert_eq!(container.used(0), 2 * MIB, "it was let go of");
    let second = context.object_below(context.client, NV01_DEVICE_0, &mut device_params(0)).unwrap();
    for handles in [&[context.device, 0x700][..], &[context.device]] {
        assert!(import_many(&context, token, second, (0, handles)).is_err());
    }
    // It is below the first device, as far as the account knows, too.
    let used = container.used(0);
    context.memory(LIMIT / 2).unwrap();
    context.free(second).unwrap();
    assert_eq!(container.used(0), used + LIMIT / 2);
    assert_eq!(context.memory(LIMIT / 2), Err(Status::NO_MEMORY));
}

#[test]
fn a_token_may_be_on_its_way_for_a_while() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let memory = context.memory(MIB).unwrap();
    let token = exported(&context, memory);
    let in_a_socket = program.file_of(token);
    program.close_and_reconcile(token);
    container.session.reconcile();
    let received = program.give(in_a_socket);
    import(&context, received).unwrap();
    program.close(received);
    container.session.drop_unheld_tokens([Duration::ZERO; 2]);
    let late = program.open(Node::Control);
    assert_eq!(import(&context, late), Err(Status::INVALID_ARGUMENT), "another file stands for nothing");
}

#[test]
fn memory_that_only_an_export_holds_goes_sooner_than_the_rest_and_is_waited_for() {
    let OneProgram { container, program, .. } = OneProgram::within(LIMIT);
    assert!(!container.session.holds_anything());
    let context = program.context(0);
    let (kept, freed) = (context.memory(MIB).unwrap(), context.memory(MIB).unwrap());
    // The one that is freed twice: exports do not keep each other.
    let tokens = [kept, freed, freed].map(|memory| exported(&context, memory));
    context.free(freed).unwrap();
    tokens.into_iter().for_each(|token| program.close(token));
    let hour = Duration::from_secs(3600);
    container.session.drop_unheld_tokens([hour, hour]);
    assert_eq!(container.used(0), 2 * MIB);
    container.session.drop_unheld_tokens([hour, Duration::ZERO]);
    assert_eq!(container.used(0), MIB);
    program.exit();
    container.session.reconcile();
    // What is left is the other's export, now alone.
    assert!(container.session.holds_anything());
    container.session.drop_unheld_tokens([hour, Duration::ZERO]);
    assert_eq!(container.used(0), 0);
    assert!(!container.session.holds_anything());
}

#[test]
fn memory_that_only_an_unheld_export_holds_is_there_for_whoever_needs_it() {
    let OneContext { program, context, .. } = OneContext::within(LIMIT);
    let memory = context.memory(LIMIT).unwrap();
    let token = exported(&context, memory);
    context.free(memory).unwrap();
    assert_eq!(context.memory(MIB), Err(Status::NO_MEMORY), "somebody has the token");
    program.close(token);
    context.memory(LIMIT).unwrap();
}

#[test]
fn a_token_means_nothing_in_another_container() {
    let TwoContexts { neighbour: other, context: owner, foreign: thief, .. } = TwoContexts::within(LIMIT);
    let token = exported(&owner, owner.memory(LIMIT).unwrap());
    let sent = thief.program.give(owner.program.file_of(token));
    assert_eq!(import(&thief, sent), Err(Status::INVALID_ARGUMENT));
    // Nor does a file that the driver really exported to.
    assert_eq!(other.used(0), 0);
}

#[test]
fn what_cannot_be_exported_leaves_no_token() {
    let OneContext { container, program, context, .. } = OneContext::within(LIMIT);
    let token = program.open(Node::Control);
    assert!(export(&context, 0x1234, token).is_err());
    assert_eq!(import(&context, token), Err(Status::INVALID_ARGUMENT));
    let other = program.give(tempfile::tempfile().unwrap());
    let memory = context.memory(MIB).unwrap();
    assert_eq!(export(&context, memory, other), Err(Status::INVALID_ARGUMENT));
    context.free(context.client).unwrap();
    container.assert_nothing_left();
}

/// libcuda asks for a place for each 32 MiB that a memory pool can have: 4512 on a card of 141 GiB.
#[test]
fn a_pool_of_a_whole_card_is_exported_and_places_are_bounded_together() {
    let OneContext { program, context, .. } = OneContext::within(LIMIT);
    let memory = [context.memory(MIB).unwrap()];
    let with = |places: u32| export_many(&context, (&memory, places), program.open(Node::Control));
    with(4512).unwrap();
    let most = u32::from(u16::MAX);
    (0..31).for_each(|_| with(most).unwrap());
    assert_eq!(with(most), Err(Status::INSUFFICIENT_RESOURCES));
    with(4512).unwrap();
}

#[test]
fn no_dma_buf_leaves_the_container() {
    let OneContext { program, context, .. } = OneContext::within(LIMIT);
    let memory = context.memory(MIB).unwrap();
    let mut args = struct_with(2608, &[(0, u32::MAX), (4, context.client), (8, 1), (12, 1), (40, memory)]);
    let card = program.open(Node::Card(0));
    assert_eq!(program.rm(card, 0xd9, &mut args, 2600), Err(Status::NOT_SUPPORTED));
}
