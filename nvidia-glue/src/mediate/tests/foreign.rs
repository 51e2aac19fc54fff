//! Calls that name clients, cards and files of others.

use super::world::{Context, MIB, Machine, Program, result, words};
use crate::{
    mediate::Answer,
    rm::{
        Node, Status,
        layout::{read_u32, write_u32},
    },
};

const LIMIT: u64 = 64 * MIB;

/// `NV_ESC_RM_IDLE_CHANNELS` of a channel in each of these clients.
fn idle(program: &Program<'_>, context: &Context<'_, '_>, clients: &[u32]) -> Result<(), Status> {
    let count = u32::try_from(clients.len()).unwrap();
    let (list, others) = (program.put(&words(clients)), program.put(&vec![0; 4 * clients.len()]));
    let mut args = words(&[context.client, context.device, context.device, count]);
    for address in [list, others, others] {
        args.extend(address.to_le_bytes());
    }
    args.extend([0; 16]);
    let answer = program.escape(context.control, 0x41, &mut args);
    result(answer, &args, 48)
}

#[test]
fn nobody_waits_for_another_containers_channels() {
    let machine = Machine::new(1);
    let (container, neighbour) = (machine.container(&[0], LIMIT), machine.container(&[0], LIMIT));
    let (program, other) = (container.program(), neighbour.program());
    let (context, foreign) = (program.context(0), other.context(0));
    assert_eq!(idle(&program, &context, &[context.client]), Ok(()));
    assert_eq!(idle(&program, &context, &[]), Ok(()));
    assert_eq!(idle(&program, &context, &[context.client, foreign.client]), Err(Status::INVALID_CLIENT));
}

#[test]
fn a_subdevice_is_not_asked_about_cards_that_are_not_granted() {
    let machine = Machine::new(2);
    let container = machine.container(&[0], LIMIT);
    let program = container.program();
    let context = program.context(0);
    let mut params = vec![0; 8 + 32 * 52];
    assert!(write_u32(&mut params, 4, 1) && write_u32(&mut params, 8, 0xdead_0000));
    assert_eq!(context.subdevice_control(0x2080_01a0, &mut params), Err(Status::INVALID_ARGUMENT));
}

#[test]
fn memory_is_registered_as_pinned_memory_of_an_own_client_only() {
    let machine = Machine::new(1);
    let (container, neighbour) = (machine.container(&[0], LIMIT), machine.container(&[0], LIMIT));
    let (program, other) = (container.program(), neighbour.program());
    let (context, foreign) = (program.context(0), other.context(0));
    let card = program.open(Node::Card(container.inventory.cards[0].minor));
    assert_eq!(program.escape(card, 0xc9, &mut context.control.to_le_bytes()), Answer::Return(0));
    let ask = |client: u32, class: u32| {
        let mut args = vec![0; 56];
        for (at, value) in [(0, client), (4, context.device), (8, 0xcaf_e001), (12, class), (48, u32::MAX)] {
            assert!(write_u32(&mut args, at, value));
        }
        let answer = program.escape(card, 0x27, &mut args);
        (answer, Status(read_u32(&args, 40).unwrap()))
    };
    // NV01_MEMORY_LOCAL_USER, NV01_MEMORY_FLA, NV01_MEMORY_LIST_FBMEM.
    for class in [0x40, 0xf3, 0x82] {
        assert_eq!(ask(context.client, class), (Answer::Return(0), Status::INVALID_CLASS), "{class:#x}");
    }
    assert_eq!(ask(foreign.client, 0x71), (Answer::Return(0), Status::INVALID_CLIENT));
    assert_eq!(ask(context.client, 0x71), (Answer::Return(0), Status::OK));
}
