//! Fields that the driver is told otherwise than the program said them.

use abi::{
    Node, Status,
    classes::FERMI_VASPACE_A,
    controls::NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT,
    layout::{read_u32, write_u32},
};
use account::ObjectLimits;

use super::{
    alone::{OneContext, OneProgram},
    world::{GIB, device_params, result, struct_with, words},
};
use crate::Answer;

const DEVICE: u32 = 0x80;
const EVENT: u32 = 0x79;
const ADDRESS_SPACE: u32 = FERMI_VASPACE_A;

#[test]
fn a_devices_address_space_is_its_clients_own() {
    let OneContext { spy, context, .. } = OneContext::new();
    for (share, flags) in [(0, 0), (context.client, 0x40)] {
        let mut params = device_params(0);
        assert!(write_u32(&mut params, 4, share) && write_u32(&mut params, 16, flags));
        let said = params.clone();
        context.object_below(context.client, DEVICE, &mut params).unwrap();
        let told = spy.last_params(DEVICE).unwrap();
        assert_eq!((read_u32(&told, 4), read_u32(&told, 16)), (Some(context.client), Some(flags | 0x1000)));
        assert_eq!(params, said, "the program finds what it put there");
    }
    let nothing = context.object_below(context.client, DEVICE, &mut []);
    assert_eq!(nothing, Err(Status::INVALID_ARGUMENT), "nowhere to say it");
}

#[test]
fn an_address_space_is_the_programs_own_and_in_the_cards_memory() {
    let OneContext { context, .. } = OneContext::within(1 << 30);
    let make = |index: u32, flags: u32| {
        let mut params = struct_with(56, &[(0, index), (4, flags)]);
        context.object(ADDRESS_SPACE, &mut params).map(|_| ())
    };
    for flags in [0, 0x48, 0x1def] {
        assert_eq!(make(0, flags), Ok(()), "{flags:#x}");
    }
    for (index, flags) in
        [(1, 0), (2, 0), (3, 0), (4, 0), (0, 1 << 4), (0, 1 << 9), (0, 1 << 13), (0, 1 << 14), (0, 1 << 31)]
    {
        assert_eq!(make(index, flags), Err(Status::INVALID_ARGUMENT), "{index} {flags:#x}");
    }
}

#[test]
fn events_bring_no_data_and_are_limited_in_number() {
    let OneContext { spy, context, .. } = OneContext::new();
    for index in [0x0800_000c_u32, 0x3800_000c] {
        let mut params = words(&[context.client, context.device, EVENT, index, 40, 0]);
        let said = params.clone();
        context.object(EVENT, &mut params).unwrap();
        assert_eq!(read_u32(&spy.last_params(EVENT).unwrap(), 12), Some(index | 0x1000_0000));
        assert_eq!(params, said);
    }
    let OneContext { context, .. } = OneContext::limited(GIB, ObjectLimits { events: 2, ..ObjectLimits::default() });
    let event = || context.object(EVENT, &mut words(&[context.client, context.device, EVENT, 12, 40, 0])).map(|_| ());
    assert_eq!([event(), event(), event()], [Ok(()), Ok(()), Err(Status::INSUFFICIENT_RESOURCES)]);
}

#[test]
fn what_is_shared_with_a_client_makes_no_entry_in_the_driver() {
    let OneContext { spy, program, context, .. } = OneContext::new();
    let other = program.context(0);
    let share = |target: u32, kind: u32| {
        let mut args = words(&[context.client, context.device, target, 1, kind, 0xdead]);
        let answer = program.escape(context.control, 0x35, &mut args);
        (result(answer, &args, 20), spy.escapes(0x35).len())
    };
    assert_eq!(share(other.client, 3), (Ok(()), 0));
    assert_eq!(share(0xc1d0_7777, 3), (Err(Status::INVALID_CLIENT), 0));
    assert_eq!(share(context.client, 1), (Ok(()), 1), "with all: the driver's");
    let by_control = |id: u32, params: &mut [u8]| {
        spy.seen();
        let status = context.control(context.client, id, params);
        (status, spy.count(id))
    };
    assert_eq!(by_control(0xd04, &mut words(&[other.client, 1, 3])), (Ok(()), 0));
    assert_eq!(
        by_control(NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT, &mut words(&[context.device, other.client, 1, 3])),
        (Ok(()), 0)
    );
    assert_eq!(by_control(NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT, &mut words(&[context.device, 0, 1, 1])), (Ok(()), 1));
    // And it may be duplicated all the same.
    let memory = context.memory(1 << 20).unwrap();
    other.dup(&context, memory).unwrap();
}

#[test]
fn the_driver_keeps_no_more_with_a_file_than_there_are_cards() {
    let OneProgram { program, .. } = OneProgram::within(1 << 30);
    let file = program.open(Node::Control);
    let attach = |ids: usize| program.escape(file, 0xd4, &mut vec![0; 4 * ids]);
    assert_eq!((attach(32), attach(33)), (Answer::Return(0), Answer::Errno(libc::EINVAL)));
}
