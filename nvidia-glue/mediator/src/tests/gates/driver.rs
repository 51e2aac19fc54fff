//! Calls that a driver refuses, or cannot do, or has done all the same.

use abi::{
    Status,
    classes::{FERMI_VASPACE_A, HOPPER_DMA_COPY_A},
    controls::NV0080_CTRL_CMD_FB_GET_CAPS_V2,
};
use std::time::Duration;

use schedule::{Edge, EdgeError};

use crate::{
    clock::Clock as _,
    tests::{
        alone::{OneContext, OneProgram},
        spy::{DISABLE, GR, SET_TIMESLICE},
        world::{Context, Machine},
    },
};

#[test]
fn a_card_that_cannot_take_channels_off_says_so() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let uuid = &container.machine.inventory.cards[0].uuid;
    assert_eq!((container.session.can_close(uuid), container.session.can_close("GPU-other")), (Some(true), None));
    context.scheduled(GR, 2);
    // With GSP the empty list is refused for what it is.
    spy.refuse(DISABLE, Status(0x3a));
    assert_eq!(container.session.can_close(uuid), Some(true));
    spy.refuse(DISABLE, Status::NOT_SUPPORTED);
    assert_eq!(container.session.can_close(uuid), Some(false));
    spy.seen();
    let refused = container.gate().close().unwrap_err();
    assert!(matches!(refused, EdgeError::Refused { status: Status::NOT_SUPPORTED, .. }), "{refused}");
    assert_eq!(spy.count(DISABLE), 1, "it is not asked again");
}

#[test]
fn a_card_without_firmware_cannot_be_closed() {
    let machine = Machine::with_firmware(1, false);
    let container = machine.container(&[0], 64 << 20);
    assert_eq!(container.session.can_close(&machine.inventory.cards[0].uuid), Some(false));
    assert_eq!(container.gate().close().unwrap(), Edge::default(), "nothing to close");
}

#[test]
fn a_driver_that_refuses_is_told_of_and_tried_again() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channels = context.scheduled(GR, 2);
    gate.close().unwrap();
    spy.refuse(DISABLE, Status::INVALID_STATE);
    let refused = gate.open().unwrap_err();
    assert!(matches!(refused, EdgeError::Refused { status: Status::INVALID_STATE, .. }), "{refused}");
    // A card that does not answer is not asked for each channel: NV_ERR_TIMEOUT,
    // NV_ERR_GPU_IS_LOST.
    for status in [Status(0x65), Status(0x0f)] {
        spy.refuse(DISABLE, status);
        spy.seen();
        assert!(gate.open().is_err());
        assert_eq!(spy.count(DISABLE), 1);
    }
    spy.refuse(SET_TIMESLICE, Status::INVALID_STATE);
    assert!(gate.set_slice(Some(1000)).is_err());
    // A new attempt of the scheduler's.
    spy.refuse_nothing();
    gate.open().unwrap();
    assert!(spy.all_work(&context, &channels));
}

#[test]
fn a_gate_keeps_no_file_and_nobody_alive() {
    let OneContext { spy, container, program, context, gate, .. } = OneContext::new();
    context.scheduled(GR, 2);
    gate.set_slice(Some(500)).unwrap();
    gate.close().unwrap();
    assert!(spy.count(SET_TIMESLICE) == 1 && container.used(0) > 0);
    program.close_and_reconcile(context.control);
    container.assert_nothing_left();
    assert_eq!(spy.duplicates(), 0);
}

#[test]
fn what_a_call_that_failed_may_have_done_is_undone() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channels = context.scheduled(GR, 2);
    // NV_ERR_TIMEOUT: the card did it all the same, and nobody knows.
    spy.refuse_what_is_done(DISABLE, Status(0x65));
    for _ in 0..3 {
        assert!(gate.close().is_err());
    }
    spy.refuse_nothing();
    spy.assert_obey(&*gate, &context, &channels);
}

/// The driver refuses them, too, and writes a line into the kernel's log each time.
#[test]
fn a_channel_of_two_address_spaces_does_not_reach_the_driver() {
    let OneContext { spy, context, .. } = OneContext::new();
    let space = context.object(FERMI_VASPACE_A, &mut [0; 56]).unwrap();
    let group = context.group(GR);
    let ask = |parent: u32, share: u32, space: u32| context.channel_with(parent, &[(24, share), (28, space)]);
    spy.escapes(0);
    for (parent, share, space) in [(context.device, 0x77, space), (group, 0x77, space), (group, 0, space)] {
        assert_eq!(ask(parent, share, space), Err(Status::INVALID_ARGUMENT));
    }
    assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    ask(context.device, 0, space).unwrap();
}

/// For some of them the driver writes a line into the kernel's log, as for many controls: "size
/// mismatch: client 0x0 rm 0x3".
#[test]
fn a_loop_of_calls_that_the_driver_refuses_is_slowed_down() {
    type Ask = fn(&Context);
    // No engine hangs from a device.
    let makes_nothing = |context: &Context| assert!(context.object(HOPPER_DMA_COPY_A, &mut [0; 8]).is_err());
    let asks_nobody = |context: &Context| {
        let answer = context.control(0xdead, NV0080_CTRL_CMD_FB_GET_CAPS_V2, &mut [0; 4]);
        assert_eq!(answer, Err(Status::OBJECT_NOT_FOUND));
    };
    // So many cost nothing, and after them so many a second.
    let loops: [(Ask, u32, u32); 2] = [(makes_nothing, 1024, 20), (asks_nobody, 5 * 1024, 100)];
    for (ask, free, a_second) in loops {
        let (clock, OneProgram { program, .. }) = OneProgram::by_a_clock(1 << 30, Duration::ZERO);
        let context = program.context(0);
        (0..free).for_each(|_| ask(&context));
        assert_eq!(clock.now(), Duration::ZERO);
        (0..a_second).for_each(|_| ask(&context));
        assert_eq!(clock.now(), Duration::from_secs(1));
        // What it takes is not slowed down.
        program.context(0);
        assert_eq!(clock.now(), Duration::from_secs(1));
    }
}
