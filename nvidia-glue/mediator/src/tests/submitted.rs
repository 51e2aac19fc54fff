//! Work that is seen in the USERDs of channels, without a call.

use abi::{
    Status,
    classes::{HOPPER_CHANNEL_GPFIFO_A, NV01_MEMORY_LOCAL_USER},
    layout::{write_u32, write_u64},
};
use std::sync::atomic::{AtomicBool, Ordering};

use schedule::Submitted;

use super::{
    alone::{OneContext, OneProgram, TwoContexts},
    spy::{COPY, GR, SCHEDULE_GROUP},
    world::{Container, Context, GIB, MIB, memory_params, struct_with},
};
use crate::locks::lock;

const NONE: Option<Submitted> = Some(Submitted { is_pending: false, puts: 0 });

impl Context {
    fn channel_in(&self, parent: u32, (memory, offset): (u32, u64)) -> Result<u32, Status> {
        let mut params = [0; 368];
        assert!(write_u32(&mut params, 32, memory) && write_u64(&mut params, 64, offset));
        self.object_below(parent, HOPPER_CHANNEL_GPFIFO_A, &mut params)
    }

    /// A scheduled group with channels in new memory, the memory and the channels.
    fn at_work(&self, engine: u32, channels: u64) -> (u32, u32, Vec<u32>) {
        let (group, memory) = (self.group(engine), self.memory(2 * MIB).unwrap());
        let make = |at| self.channel_in(group, (memory, 0x2000 + 0x3000 * at)).unwrap();
        let channels = (0..channels).map(make).collect();
        self.schedule(group, SCHEDULE_GROUP).unwrap();
        (group, memory, channels)
    }

    fn write_userd(&self, channel: u32, get: u32, put: u32) {
        self.program.container.machine.driver.write_userd((self.client, channel), get, put).unwrap();
    }
}

fn submitted(container: &Container) -> Option<Submitted> {
    container.gate().submitted()
}

fn pending(puts: u64) -> Option<Submitted> {
    Some(Submitted { is_pending: true, puts })
}

#[test]
fn work_is_seen_until_it_is_fetched() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    assert_eq!(submitted(&container), NONE, "no channels, no work");
    let (_, _, channels) = context.at_work(GR, 2);
    assert_eq!(spy.duplicates(), 0, "nobody has asked");
    assert_eq!(submitted(&container), NONE);
    context.write_userd(channels[0], 0, 3);
    assert_eq!(submitted(&container), pending(3));
    context.write_userd(channels[1], 7, 9);
    assert_eq!(submitted(&container), pending(12));
    context.write_userd(channels[0], 3, 3);
    context.write_userd(channels[1], 9, 9);
    spy.escapes(0);
    assert_eq!(submitted(&container), Some(Submitted { is_pending: false, puts: 12 }));
    // The ring's end.
    context.write_userd(channels[1], u32::MAX, 0);
    assert_eq!(submitted(&container), pending(3));
    assert_eq!((spy.duplicates(), spy.escapes(0x34).len()), (2, 0), "mapped once");
}

#[test]
fn only_compute_that_may_run_is_looked_at() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let (_, memory, copies) = context.at_work(COPY, 1);
    let group = context.group(GR);
    let channel = context.channel_in(group, (memory, 0)).unwrap();
    context.write_userd(copies[0], 0, 1);
    context.write_userd(channel, 0, 1);
    assert_eq!(submitted(&container), NONE);
    assert_eq!(spy.duplicates(), 0);
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    assert_eq!(submitted(&container), pending(1));
    // What waits for the gate, waits for the card; what the program has taken off does not.
    container.gate().close().unwrap();
    assert_eq!(submitted(&container), pending(1));
    context.disable(true, &[(context.client, channel)]).unwrap();
    assert_eq!(submitted(&container), NONE);
}

#[test]
fn a_page_goes_with_its_channel_whatever_that_goes_with() {
    type Free = fn(&Context, u32, u32);
    let ways: [Free; 5] = [
        |context, _, channel| context.free(channel).unwrap(),
        |context, group, _| context.free(group).unwrap(),
        |context, _, _| context.free(context.device).unwrap(),
        |context, _, _| context.free(context.client).unwrap(),
        |context, _, _| {
            context.program.close(context.control);
            context.program.container.session.reconcile();
        },
    ];
    for free in ways {
        let OneContext { machine, spy, container, program, context, .. } = OneContext::new();
        let (group, _, channels) = context.at_work(GR, 1);
        context.write_userd(channels[0], 0, 1);
        assert_eq!((submitted(&container), spy.duplicates()), (pending(1), 1));
        free(&context, group, channels[0]);
        assert_eq!(spy.duplicates(), 0);
        assert_eq!(submitted(&container), NONE);
        program.exit();
        container.session.reconcile();
        container.assert_nothing_left();
        assert!(!machine.driver.is_corrupted());
        assert!(lock(&container.observed.drifts).is_empty());
    }
}

#[test]
fn memory_may_be_freed_before_and_after_its_channel() {
    let OneContext { machine, spy, container, context, .. } = OneContext::new();
    let (_, memory, channels) = context.at_work(GR, 1);
    assert_eq!(submitted(&container), NONE);
    // The channel keeps its memory, and the page its own handle.
    context.free(memory).unwrap();
    context.write_userd(channels[0], 0, 5);
    assert_eq!(submitted(&container), pending(5));
    context.free(channels[0]).unwrap();
    assert_eq!((submitted(&container), spy.duplicates()), (NONE, 0));

    let (_, memory, channels) = context.at_work(GR, 1);
    assert_eq!(submitted(&container), NONE);
    context.free(channels[0]).unwrap();
    assert_eq!(spy.duplicates(), 0);
    context.free(memory).unwrap();
    assert!(!machine.driver.is_corrupted());
    // A handle that is used again.
    let (_, memory, channels) = context.at_work(GR, 1);
    context.free(channels[0]).unwrap();
    let group = context.group(GR);
    let mut params = struct_with(368, &[(32, memory)]);
    context.object_named((group, channels[0]), HOPPER_CHANNEL_GPFIFO_A, &mut params).unwrap();
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    context.write_userd(channels[0], 1, 2);
    assert_eq!(submitted(&container), pending(2));
}

#[test]
fn memory_that_has_the_handle_of_another_is_not_kept() {
    let OneContext { machine, spy, container, context, .. } = OneContext::new();
    for is_mapped in [false, true] {
        let (_, memory, channels) = context.at_work(GR, 1);
        if is_mapped {
            assert_eq!((submitted(&container), spy.duplicates()), (NONE, 1));
        }
        context.free(memory).unwrap();
        context.object_named((context.device, memory), NV01_MEMORY_LOCAL_USER, &mut memory_params(GIB)).unwrap();
        assert_eq!((submitted(&container), spy.duplicates()), (None, 0));
        context.free(memory).unwrap();
        assert!(container.session.compare().is_empty(), "nothing of it is left");
        context.free(channels[0]).unwrap();
    }
    assert!(!machine.driver.is_corrupted());
}

#[test]
fn what_is_not_mapped_is_not_known() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let (_, _, channels) = context.at_work(GR, 1);
    context.write_userd(channels[0], 0, 1);
    let group = context.group(GR);
    let freed = context.memory(2 * MIB).unwrap();
    let host = context.host_memory(MIB).unwrap();
    // Memory of the driver's own, of the host's, and a handle that is gone before anybody asks.
    let bare = context.channel(group, 0).unwrap();
    let in_host = context.channel_in(group, (host, 0)).unwrap();
    let late = context.channel_in(group, (freed, 0)).unwrap();
    context.free(freed).unwrap();
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    // A few of them are tried at a time.
    assert_eq!(submitted(&container), None);
    for channel in [bare, in_host, late] {
        assert_eq!(submitted(&container), None);
        spy.escapes(0);
        assert_eq!(submitted(&container), None);
        assert_eq!(spy.escapes(0x34).len(), 0, "it is not tried again");
        context.free(channel).unwrap();
    }
    assert_eq!(submitted(&container), pending(1));
    assert_eq!(spy.duplicates(), 1);
}

#[test]
fn another_containers_memory_is_not_mapped() {
    let TwoContexts { spy, neighbour: attackers, context: theirs, foreign: own, .. } = TwoContexts::within(8 * GIB);
    let memory = theirs.memory(2 * MIB).unwrap();
    let (_, mine, _) = own.at_work(GR, 1);
    let group = own.group(GR);
    let handle = if mine == memory { memory + 1 } else { memory };
    assert_eq!(own.channel_in(group, (handle, 0)), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(own.channel_in(group, (mine, 2 * MIB - 8)), Err(Status::INVALID_OFFSET));
    assert_eq!((submitted(&attackers), spy.duplicates()), (NONE, 1));
}

#[test]
fn of_too_many_channels_nothing_is_known() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let (_, _, channels) = context.at_work(GR, 66);
    context.write_userd(channels[65], 0, 1);
    assert_eq!((submitted(&container), spy.duplicates()), (None, 0));
    context.free(channels[0]).unwrap();
    context.free(channels[1]).unwrap();
    for _ in 0..31 {
        assert_eq!(submitted(&container), None, "two are mapped at a time");
    }
    assert_eq!(submitted(&container), pending(1));
}

#[test]
fn a_page_that_goes_while_it_is_asked_for_is_not_kept() {
    let OneProgram { machine, spy, container, program } = OneProgram::new();
    let (gate, is_over) = (container.gate(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                gate.submitted();
            }
        });
        for _ in 0..20 {
            let context = program.context(0);
            let (_, memory, channels) = context.at_work(GR, 4);
            context.free(memory).unwrap();
            context.object_named((context.device, memory), NV01_MEMORY_LOCAL_USER, &mut memory_params(MIB)).unwrap();
            context.free(channels[0]).unwrap();
            context.free(context.client).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!((submitted(&container), spy.duplicates()), (NONE, 0));
    container.assert_nothing_left();
    assert!(!machine.driver.is_corrupted());
}
