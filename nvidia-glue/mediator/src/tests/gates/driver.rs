//! Calls that a driver refuses, or cannot do, or has done all the same.

use abi::{
    Status,
    classes::{FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, HOPPER_DMA_COPY_A},
    controls::NV0080_CTRL_CMD_FB_GET_CAPS_V2,
};
use std::time::Duration;

use schedule::{Edge, EdgeError};

use super::put_on;
use crate::{
    clock::{Clock as _, tests::TestClock},
    tests::{
        alone::{OneContext, OneProgram},
        spy::{DISABLE, GR, SET_TIMESLICE, Spy},
        world::{Machine, struct_with},
    },
};

#[test]
fn a_card_that_cannot_take_channels_off_says_so() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let uuid = &container.machine.inventory.cards[0].uuid;
    assert_eq!((container.session.can_close(uuid), container.session.can_close("GPU-other")), (Some(true), None));
    let context = container.program().context(0);
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
    program.close(context.control);
    container.session.reconcile();
    container.assert_nothing_left();
    assert_eq!(spy.duplicates(), 0);
}

#[test]
fn a_channel_that_has_gone_has_nobody_put_on_while_the_gate_closes() {
    let OneProgram { spy, container, program: staying, .. } = OneProgram::new();
    let leaving = container.program();
    let context = staying.context(0);
    let gone = leaving.context(0);
    let mut channels = context.scheduled(GR, 40);
    gone.scheduled(GR, 3);
    channels.extend(context.scheduled(GR, 10));
    leaving.close(gone.control);
    let gate = container.gate();
    for _ in 0..3 {
        spy.seen();
        gate.close().unwrap();
        assert_eq!(put_on(&spy.seen()), []);
        assert!(spy.none_works(&context, &channels));
        gate.open().unwrap();
        assert!(spy.all_work(&context, &channels));
    }
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
    let ask = |parent: u32, share: u32, space: u32| {
        let mut params = struct_with(368, &[(24, share), (28, space)]);
        context.object_below(parent, HOPPER_CHANNEL_GPFIFO_A, &mut params)
    };
    spy.escapes(0);
    for (parent, share, space) in [(context.device, 0x77, space), (group, 0x77, space), (group, 0, space)] {
        assert_eq!(ask(parent, share, space), Err(Status::INVALID_ARGUMENT));
    }
    assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    ask(context.device, 0, space).unwrap();
}

/// So many cost nothing, and after them so many a second.
#[track_caller]
fn is_slowed_down(clock: &TestClock, free: u32, a_second: u32, ask: impl Fn()) {
    (0..free).for_each(|_| ask());
    assert_eq!(clock.now(), Duration::ZERO);
    (0..a_second).for_each(|_| ask());
    assert_eq!(clock.now(), Duration::from_secs(1));
}

/// For some of them the driver writes a line into the kernel's log.
#[test]
fn a_loop_of_objects_that_the_driver_does_not_make_is_slowed_down() {
    let (clock, OneProgram { program, .. }) = OneProgram::by_a_clock(1 << 30, Duration::ZERO);
    let context = program.context(0);
    // No engine hangs from a device.
    let ask = || assert!(context.object(HOPPER_DMA_COPY_A, &mut [0; 8]).is_err());
    is_slowed_down(&clock, 1024, 20, ask);
}

/// As for many controls: "size mismatch: client 0x0 rm 0x3".
#[test]
fn a_loop_of_other_calls_that_the_driver_refuses_is_slowed_down() {
    const FB_GET_CAPS_V2: u32 = NV0080_CTRL_CMD_FB_GET_CAPS_V2;
    let (clock, OneProgram { program, .. }) = OneProgram::by_a_clock(1 << 30, Duration::ZERO);
    let context = program.context(0);
    let ask = || {
        let answer = context.control(0xdead, FB_GET_CAPS_V2, &mut [0; 4]);
        assert_eq!(answer, Err(Status::OBJECT_NOT_FOUND));
    };
    is_slowed_down(&clock, 5 * 1024, 100, ask);
    // What it takes is not slowed down.
    program.context(0);
    assert_eq!(clock.now(), Duration::from_secs(1));
}
