//! Calls whose work the driver does outside the container's turns wait for the container's share of that.

use std::time::Duration;

use super::world::{Context, GIB, Machine, memory_params, result, words};
use crate::{
    account::Card,
    mediate::looks::{Clock, tests::Told},
    rm::layout::{read_u32, write_u32, write_u64},
};

type Loop = fn(&Context<'_, '_>);

fn allocates(context: &Context<'_, '_>) {
    let memory = context.object(0x40, &mut memory_params(4 * GIB)).unwrap();
    context.free(memory).unwrap();
}

/// By `NVOS32_FUNCTION_ALLOC_SIZE`.
fn allocates_by_the_old_call(context: &Context<'_, '_>) {
    let mut args = words(&[context.client, context.device, 2]);
    args.resize(184, 0);
    assert!(write_u32(&mut args, 40, context.client) && write_u64(&mut args, 88, 4 * GIB));
    let answer = context.program.escape(context.control, 0x4a, &mut args);
    result(answer, &args, 20).unwrap();
    context.free(read_u32(&args, 44).unwrap()).unwrap();
}

fn makes_a_group(context: &Context<'_, '_>) {
    let group = context.group(super::spy::GR);
    context.free(group).unwrap();
}

fn makes_a_channel(context: &Context<'_, '_>) {
    let channel = context.channel(context.device, super::spy::GR).unwrap();
    context.free(channel).unwrap();
}

#[test]
fn loops_of_them_wait_and_what_takes_no_memory_of_a_card_does_not() {
    let loops: [Loop; 4] = [allocates, allocates_by_the_old_call, makes_a_group, makes_a_channel];
    for (at, work) in loops.into_iter().enumerate() {
        let machine = Machine::new(1);
        let mut container = machine.container(&[0], 5 * GIB);
        let clock = Told::default();
        container.looks_cost(&clock, Duration::ZERO);
        container.session.set_share(container.session.grant.uuid(Card(0)), 100_000);
        let program = container.program();
        let context = program.context(0);
        (0..300).for_each(|_| work(&context));
        assert_eq!(clock.now(), Duration::ZERO, "loop {at}: no more than programs do when they start");
        (0..800).for_each(|_| work(&context));
        assert!(clock.now() > Duration::from_secs(1), "loop {at}: {:?}", clock.now());
        let before = clock.now();
        (0..1000).for_each(|_| {
            let memory = context.object(0x3e, &mut super::world::host_memory_params(1 << 20)).unwrap();
            context.free(memory).unwrap();
        });
        assert_eq!(clock.now(), before, "memory of the host");
    }
}
