//! What the driver keeps once a handle is freed: it stays charged, counted, and under its gate.

use super::{
    spy::{GR, SCHEDULE_GROUP, Spy},
    world::{Context, MIB, Machine, host_memory_params},
};
use crate::{
    account::Card,
    mediate::locks::lock,
    rm::{Status, layout::write_u32},
};

/// A channel whose USERD is in that memory (`hUserdMemory[0]`).
fn channel_with_userd(context: &Context<'_, '_>, parent: u32, memory: u32) -> Result<u32, Status> {
    let mut params = [0; 368];
    assert!(write_u32(&mut params, 32, memory) && write_u32(&mut params, 128, GR));
    context.program.alloc(context.control, (context.client, parent, 0), 0xc86f, &mut params)
}

/// The driver goes on running it: to believe otherwise would give the container the card for itself.
#[test]
fn a_channel_outlives_the_memory_of_its_userd_and_keeps_it() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let gate = container.gate();
    for is_grouped in [true, false] {
        let parent = if is_grouped { context.group(GR) } else { context.device };
        let before = container.used(0);
        let memory = context.memory(2 * MIB).unwrap();
        let channel = channel_with_userd(&context, parent, memory).unwrap();
        let with_channel = container.used(0);
        if is_grouped {
            context.schedule(parent, SCHEDULE_GROUP).unwrap();
        }
        // Another handle of it makes no difference.
        let duplicate =
            program.dup(context.control, (context.client, context.device), (context.client, memory)).unwrap();
        context.free(memory).unwrap();
        context.free(duplicate).unwrap();
        assert_eq!(container.used(0), with_channel, "the channel keeps the memory, and its own context");
        assert_eq!((gate.channels(), lock(&container.session.accounts).counts().channels), (1, 1));
        if is_grouped {
            assert!(spy.works(&context, channel));
            gate.close().unwrap();
            assert!(!spy.works(&context, channel), "it obeys all the same");
            gate.open().unwrap();
        }
        context.free(channel).unwrap();
        assert_eq!((gate.channels(), container.used(0)), (0, before));
    }
}

#[test]
fn a_channel_keeps_memory_of_the_hosts_too() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let host = || lock(&container.session.accounts).card(Card::HOST).unwrap().used.0;
    let memory = context.object(0x3e, &mut host_memory_params(MIB)).unwrap();
    let channel = channel_with_userd(&context, context.device, memory).unwrap();
    context.free(memory).unwrap();
    assert_eq!(host(), MIB);
    context.free(channel).unwrap();
    assert_eq!(host(), 0);
}

/// Pinned memory is made without the mediator. A channel goes with it in newer drivers, which would not be seen.
#[test]
fn a_userd_in_memory_that_nobody_knows_is_refused() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let unknown = 0x77;
    let address_space = context.object(0x90f1, &mut [0; 56]).unwrap();
    spy.escapes(0);
    for memory in [unknown, address_space, context.device] {
        assert_eq!(channel_with_userd(&context, context.device, memory), Err(Status::OBJECT_NOT_FOUND));
    }
    assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    let counts = lock(&container.session.accounts).counts();
    assert_eq!((counts.channels, counts.abandoned, container.gate().channels()), (0, 0, 0));
}
