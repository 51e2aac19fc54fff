//! Calls whose work the driver does outside the container's turns wait for the container's share of
//! that.

use abi::{
    Handle,
    classes::{KEPLER_CHANNEL_GROUP_A, NV01_MEMORY_LOCAL_USER},
    layout::read_u32,
};
use std::{sync::mpsc, time::Duration};

use account::Card;

use super::{
    alone::OneProgram,
    spy::HEAP,
    world::{Context, GIB, memory_params},
};
use crate::{clock::Clock, locks::lock};

type Loop = fn(&Context);

fn allocates(context: &Context) {
    let memory = context.object(NV01_MEMORY_LOCAL_USER, &mut memory_params(4 * GIB)).unwrap();
    context.free(memory).unwrap();
}

/// By `NVOS32_FUNCTION_ALLOC_SIZE`.
fn allocates_by_the_old_call(context: &Context) {
    let args = context.heap(2, &[(40, context.client)], &[(88, 4 * GIB)]).unwrap();
    context.free(read_u32(&args, 44).unwrap()).unwrap();
}

fn makes_a_group(context: &Context) {
    let group = context.group(super::spy::GR);
    context.free(group).unwrap();
}

fn makes_a_channel(context: &Context) {
    let channel = context.channel(context.device, super::spy::GR).unwrap();
    context.free(channel).unwrap();
}

#[test]
fn loops_of_them_wait_and_what_takes_no_memory_of_a_card_does_not() {
    let loops: [Loop; 4] = [allocates, allocates_by_the_old_call, makes_a_group, makes_a_channel];
    for (at, work) in loops.into_iter().enumerate() {
        let (clock, OneProgram { container, program, .. }) = OneProgram::by_a_clock(5 * GIB, Duration::ZERO);
        container.session.set_share(container.session.grant.uuid(Card(0)), 100_000);
        let context = program.context(0);
        (0..300).for_each(|_| work(&context));
        assert_eq!(clock.now(), Duration::ZERO, "loop {at}: no more than programs do when they start");
        (0..800).for_each(|_| work(&context));
        assert!(clock.now() > Duration::from_secs(1), "loop {at}: {:?}", clock.now());
        let before = clock.now();
        (0..1000).for_each(|_| {
            let memory = context.host_memory(1 << 20).unwrap();
            context.free(memory).unwrap();
        });
        assert_eq!(clock.now(), before, "memory of the host");
    }
}

/// Another thread may free the device as soon as the client is not locked any more.
#[test]
fn it_waits_whatever_becomes_of_the_device_meanwhile() {
    let loops: [(u32, Loop); 3] =
        [(0x40, allocates), (HEAP, allocates_by_the_old_call), (KEPLER_CHANNEL_GROUP_A, makes_a_group)];
    for (id, work) in loops {
        let (clock, OneProgram { spy, container, program, .. }) = OneProgram::by_a_clock(8 * GIB, Duration::ZERO);
        let session = &container.session;
        session.set_share(session.grant.uuid(Card(0)), 1);
        let context = program.context(0);
        while clock.now() == Duration::ZERO {
            work(&context);
        }
        let before = clock.now();
        let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            spy.during(id, move || {
                begins.send(()).unwrap();
                ended.recv().unwrap();
            });
            let (client, device) = (Handle(context.client), Handle(context.device));
            scope.spawn(move || {
                begun.recv().unwrap();
                lock(&session.objects.topology).remove(client, device);
                ends.send(()).unwrap();
            });
            work(&context);
        });
        assert!(clock.now() > before, "{id:#x}");
    }
}
