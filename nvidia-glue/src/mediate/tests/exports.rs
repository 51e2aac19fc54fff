//! Memory that is given from process to process through files.

use std::time::Duration;

use super::world::{Context, MIB, Machine};
use crate::rm::{
    Node, Status,
    layout::{read_u32, write_u32},
};

const LIMIT: u64 = 64 * MIB;

fn export(context: &Context<'_, '_>, memory: u32, fd: i32) -> Result<(), Status> {
    let mut params = [0; 24];
    for (at, value) in [(0, 1), (4, context.device), (8, context.device), (12, memory), (16, fd.cast_unsigned())] {
        assert!(write_u32(&mut params, at, value));
    }
    let result = context.program.control(context.control, (context.client, context.client), 0x3d05, &mut params);
    assert_eq!(read_u32(&params, 16), Some(fd.cast_unsigned()), "the caller's own number comes back");
    result
}

fn import(context: &Context<'_, '_>, fd: i32) -> Result<u32, Status> {
    let mut params = [0; 20];
    for (at, value) in [(0, fd.cast_unsigned()), (4, 1), (8, context.device), (12, context.device), (16, 0)] {
        assert!(write_u32(&mut params, at, value));
    }
    let result = context.program.control(context.control, (context.client, context.client), 0x3d06, &mut params);
    result.map(|()| read_u32(&params, 16).unwrap())
}

#[test]
fn an_export_is_charged_once_and_as_long_as_anybody_can_import_it() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    let (giver, taker) = (container.program(), container.program());
    let owner = giver.context(0);
    let memory = owner.memory(LIMIT).unwrap();
    let token = giver.open(Node::Control);
    export(&owner, memory, token).unwrap();
    let sent = taker.give(giver.file_of(token));
    owner.free(owner.client).unwrap();
    let pid = giver.exit();
    container.session.process_ended(pid);
    assert_eq!(container.used(0), LIMIT, "the token keeps it");
    let user = taker.context(0);
    assert_eq!(user.memory(1), Err(Status::NO_MEMORY));
    let imported = import(&user, sent).unwrap();
    assert_eq!(container.used(0), LIMIT);
    taker.close(sent);
    container.session.drop_unheld_tokens(Duration::ZERO);
    assert_eq!(container.used(0), LIMIT, "the import keeps it");
    user.free(imported).unwrap();
    assert_eq!(container.used(0), 0);
    user.memory(LIMIT).unwrap();
}

#[test]
fn a_token_may_be_on_its_way_for_a_while() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    let program = container.program();
    let context = program.context(0);
    let memory = context.memory(MIB).unwrap();
    let token = program.open(Node::Control);
    export(&context, memory, token).unwrap();
    let in_a_socket = program.file_of(token);
    program.close(token);
    container.session.reconcile();
    container.session.reconcile();
    let received = program.give(in_a_socket);
    import(&context, received).unwrap();
    program.close(received);
    container.session.drop_unheld_tokens(Duration::ZERO);
    let late = program.open(Node::Control);
    assert_eq!(import(&context, late), Err(Status::INVALID_ARGUMENT), "another file stands for nothing");
}

#[test]
fn a_token_means_nothing_in_another_container() {
    let machine = Machine::new(1);
    let (one, other) = (machine.container(&[0], LIMIT), machine.container(&[0], LIMIT));
    let (giver, taker) = (one.program(), other.program());
    let owner = giver.context(0);
    let memory = owner.memory(LIMIT).unwrap();
    let token = giver.open(Node::Control);
    export(&owner, memory, token).unwrap();
    let sent = taker.give(giver.file_of(token));
    let thief = taker.context(0);
    assert_eq!(import(&thief, sent), Err(Status::INVALID_ARGUMENT));
    // Nor does a file that the driver really exported to.
    assert_eq!(other.used(0), 0);
}

#[test]
fn what_cannot_be_exported_leaves_no_token() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    let program = container.program();
    let context = program.context(0);
    let token = program.open(Node::Control);
    assert!(export(&context, 0x1234, token).is_err());
    assert_eq!(import(&context, token), Err(Status::INVALID_ARGUMENT));
    let other = program.give(tempfile::tempfile().unwrap());
    let memory = context.memory(MIB).unwrap();
    assert_eq!(export(&context, memory, other), Err(Status::INVALID_ARGUMENT));
    context.free(context.client).unwrap();
    container.assert_nothing_left();
}

#[test]
fn no_dma_buf_leaves_the_container() {
    let machine = Machine::new(1);
    let container = machine.container(&[0], LIMIT);
    let program = container.program();
    let context = program.context(0);
    let memory = context.memory(MIB).unwrap();
    let mut args = vec![0; 2608];
    for (at, value) in [(0, u32::MAX), (4, context.client), (8, 1), (12, 1), (40, memory)] {
        assert!(write_u32(&mut args, at, value));
    }
    let card = program.open(Node::Card(0));
    let answer = program.escape(card, 0xd9, &mut args);
    assert_eq!(super::world::result(answer, &args, 2600), Err(Status::NOT_SUPPORTED));
}
