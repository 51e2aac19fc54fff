//! Channels that an edge takes off the card and puts back.

use abi::{
    Status,
    controls::{NVA06C_CTRL_CMD_BIND, NVA06C_CTRL_CMD_PREEMPT, NVA06F_CTRL_CMD_BIND, NVA06F_CTRL_CMD_STOP_CHANNEL},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use schedule::{Calls, Edge};

use super::{named, put_on};
use crate::{
    locks::lock,
    tests::{
        alone::{OneContext, OneProgram},
        spy::{COPY, DISABLE, GR, NVDEC, SCHEDULE_CHANNEL, SCHEDULE_GROUP, Seen, Spy},
        world::Machine,
    },
};

#[test]
fn a_closed_gate_has_every_throttled_channel_of_every_process_off() {
    let machine = Machine::new(2);
    let spy = Spy::new(&machine);
    let container = spy.container_with(&machine, &[0, 1]);
    let (one, other) = (container.program(), container.program());
    let (first, second, elsewhere) = (one.context(0), other.context(0), other.context(1));
    let mut throttled: Vec<_> = first.scheduled(GR, 3).into_iter().map(|channel| (&first, channel)).collect();
    throttled.extend(second.scheduled(COPY, 2).into_iter().map(|channel| (&second, channel)));
    let video = second.scheduled(NVDEC, 1)[0];
    let away = elsewhere.scheduled(GR, 1)[0];
    let bare = first.channel(first.device, GR).unwrap();
    first.schedule(bare, SCHEDULE_CHANNEL).unwrap();
    throttled.push((&first, bare));
    let idle = first.channel(first.device, GR).unwrap();
    let gate = container.gate();
    assert_eq!((gate.channels(), gate.groups()), (7, 2), "one group, one channel without");
    assert_eq!(gate.uuid(), container.machine.inventory.cards[0].uuid);
    assert_eq!(
        *lock(&container.observed.first_channels),
        [0, 1].map(|card| machine.inventory.cards[card].uuid.clone())
    );

    assert_eq!(gate.close().unwrap(), Edge { channels: 6, calls: 1 });
    for (context, channel) in &throttled {
        assert!(!spy.works(context, *channel));
    }
    assert!(spy.works(&second, video) && spy.works(&elsewhere, away) && !spy.works(&first, idle));
    // Again: nothing is lost, nothing counted.
    gate.close().unwrap();
    assert_eq!(gate.open().unwrap(), Edge { channels: 6, calls: 1 });
    for (context, channel) in throttled {
        assert!(spy.works(context, channel));
    }
}

#[test]
fn more_channels_than_a_call_takes_are_named_in_several() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channels: Vec<u32> = (0..13).flat_map(|_| context.scheduled(GR, 10)).collect();
    assert_eq!(gate.close().unwrap(), Edge { channels: 130, calls: 3 });
    assert!(spy.none_works(&context, &channels));
    gate.open().unwrap();
    assert!(spy.all_work(&context, &channels));
}

#[test]
fn compute_is_the_first_to_go_and_the_last_to_come() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    assert_eq!(gate.calls(), Calls { all: 0, compute: 0 });
    let compute: Vec<_> =
        (0..2).flat_map(|_| context.scheduled(GR, 32)).map(|channel| (context.client, channel)).collect();
    assert_eq!(gate.calls(), Calls { all: 1, compute: 1 });
    (0..3).for_each(|_| drop(context.scheduled(COPY, 30)));
    assert_eq!(gate.calls(), Calls { all: 3, compute: 1 });
    // What the program has taken off itself counts.
    context.disable(true, &compute).unwrap();
    assert_eq!(gate.calls(), Calls { all: 3, compute: 1 });
    context.disable(false, &compute).unwrap();
    for is_first in [true, false] {
        spy.seen();
        if is_first { gate.close() } else { gate.open() }.unwrap();
        let calls: Vec<_> = spy.seen().iter().filter(|seen| seen.id == DISABLE).map(named).collect();
        let with_compute: Vec<usize> =
            (0..calls.len()).filter(|at| calls[*at].iter().any(|name| compute.contains(name))).collect();
        assert_eq!((calls.len(), with_compute), (3, vec![if is_first { 0 } else { 2 }]));
    }
}

#[test]
fn what_is_gone_keeps_nobody_on_the_card_and_has_nobody_put_on() {
    for gone in [3, 30] {
        let OneContext { spy, container, context, gate, .. } = OneContext::new();
        let leaving = container.program();
        let left = leaving.context(0);
        // Before, in the middle and after in the order of names.
        let mut channels = context.scheduled(GR, 40);
        left.scheduled(GR, gone);
        channels.extend(context.scheduled(GR, 10));
        // Its file closes, what it had is gone, and nobody tells.
        left.ended_by_the_driver();
        leaving.close(left.control);
        assert_eq!(gate.channels(), 50 + gone);
        for _ in 0..3 {
            spy.seen();
            let edge = gate.close().unwrap();
            assert_eq!(put_on(&spy.seen()), []);
            assert!(spy.none_works(&context, &channels));
            assert!(edge.calls <= 4, "{edge:?}");
            gate.open().unwrap();
            assert!(spy.all_work(&context, &channels));
        }
        container.session.process_ended(leaving.exit());
        assert_eq!(gate.channels(), 50);
        assert_eq!(gate.close().unwrap(), Edge { channels: 50, calls: 1 });
    }
}

#[test]
fn what_the_dead_have_on_a_card_is_off_before_any_of_it_is_freed() {
    let OneProgram { spy, container, program: one, .. } = OneProgram::new();
    let (other, living) = (container.program(), container.program());
    let mut of_the_dead = BTreeSet::new();
    for (program, engines) in [(&one, [GR, NVDEC]), (&other, [GR, COPY])] {
        let context = program.context(0);
        let channels = engines.into_iter().flat_map(|engine| context.scheduled(engine, 3));
        of_the_dead.extend(channels.map(|channel| (context.client, channel)));
    }
    let context = living.context(0);
    let lives = context.scheduled(GR, 2);
    spy.seen();
    spy.escapes(0x29);
    let freed_before = Arc::new(Mutex::new(None));
    spy.during(DISABLE, {
        let (spy, freed_before) = (Arc::clone(&spy), Arc::clone(&freed_before));
        move || *lock(&freed_before) = Some(spy.escapes(0x29).len())
    });

    let mut left = container.session.process_exited(one.exit());
    left.add(container.session.process_exited(other.exit()));
    container.session.reclaim_after_exit(&left);
    let taken_off: Vec<Seen> = spy.seen().into_iter().filter(|seen| seen.id == DISABLE).collect();
    assert_eq!(taken_off.len(), 1, "one call for all of them");
    assert_eq!((taken_off[0].params[0], named(&taken_off[0]).into_iter().collect()), (1, of_the_dead));
    assert_eq!(*lock(&freed_before), Some(0));
    assert_eq!(spy.escapes(0x29).len(), 2, "then both are freed");
    assert!(spy.all_work(&context, &lives));
    assert_eq!(container.gate().channels(), 2);
}

#[test]
fn channels_go_with_what_they_hang_from() {
    let OneProgram { container, program, .. } = OneProgram::new();
    let gate = container.gate();
    for free in 0..5 {
        let context = program.context(0);
        let (group, channel) = context.scheduled_group(GR);
        assert_eq!((gate.channels(), gate.groups()), (1, 1));
        let doomed = [channel, group, context.device, context.client].get(free).copied();
        match doomed {
            Some(object) => context.free(object).unwrap(),
            None => {
                program.close_and_reconcile(context.control);
            }
        }
        assert_eq!(gate.channels(), 0, "{free}");
        assert_eq!(gate.groups(), usize::from(doomed == Some(channel)), "{free}");
        if doomed == Some(channel) {
            context.free(group).unwrap();
        }
    }
    assert_eq!(gate.close().unwrap(), Edge::default());
}

#[test]
fn a_channel_is_taken_off_once_and_put_back_once() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    // The firmware counts: each of these would need an opening of its own.
    container.session.hurry(true);
    gate.close().unwrap();
    let channel = context.scheduled(GR, 1)[0];
    gate.close().unwrap();
    gate.close().unwrap();
    context.disable(true, &[(context.client, channel)]).unwrap();
    context.disable(false, &[(context.client, channel)]).unwrap();
    context.schedule(channel, SCHEDULE_CHANNEL).unwrap();
    assert!(!spy.works(&context, channel));
    gate.open().unwrap();
    assert!(spy.works(&context, channel));
}

#[test]
fn no_edge_names_a_channel_that_has_never_been_scheduled() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let (group, channel) = context.group_of_one(GR);
    spy.seen();
    let moved = Arc::clone(&gate);
    let moving = spy.during_elsewhere(SCHEDULE_GROUP, move || {
        for _ in 0..3 {
            moved.close().unwrap();
            moved.open().unwrap();
        }
    });
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    moving.join();
    assert!(spy.works(&context, channel));
    assert_eq!(gate.close().unwrap().channels, 1);
    assert!(!spy.works(&context, channel));
}

#[test]
fn what_the_driver_does_not_schedule_is_not_named() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let empty = context.group(GR);
    assert_eq!(context.schedule(empty, SCHEDULE_GROUP), Err(Status::INVALID_STATE));
    let channel = context.channel(empty, 0).unwrap();
    assert_eq!((gate.channels(), gate.close().unwrap()), (1, Edge::default()));
    gate.open().unwrap();
    context.schedule(empty, SCHEDULE_GROUP).unwrap();
    assert_eq!(gate.close().unwrap().channels, 1);
    assert!(!spy.works(&context, channel));
}

#[test]
fn a_group_is_one_by_any_of_its_handles() {
    let OneProgram { spy, container, program, .. } = OneProgram::new();
    let (server, client) = (program.context(0), program.context(0));
    let (group, first) = server.scheduled_group(GR);
    // As the MPS server does for its clients.
    let same = client.dup(&server, group).unwrap();
    let second = client.channel(same, 0).unwrap();
    client.schedule(second, SCHEDULE_CHANNEL).unwrap();
    let gate = container.gate();
    assert_eq!((gate.channels(), gate.groups()), (2, 1));
    gate.close().unwrap();
    assert!(!spy.works(&server, first) && !spy.works(&client, second));
    gate.set_slice(Some(700)).unwrap();
    assert_eq!(spy.slice(&server, group), Some(700));
    server.free(group).unwrap();
    assert_eq!((gate.channels(), gate.groups()), (1, 1));
}

#[test]
fn what_is_not_known_is_not_scheduled() {
    let OneContext { spy, context, .. } = OneContext::new();
    let channel = context.scheduled(GR, 1)[0];
    spy.seen();
    // Neither a channel nor a group, and one that was exported and taken in again.
    for object in [context.device, context.subdevice, 0x1234] {
        for id in [
            SCHEDULE_GROUP,
            SCHEDULE_CHANNEL,
            NVA06F_CTRL_CMD_BIND,
            NVA06C_CTRL_CMD_BIND,
            NVA06F_CTRL_CMD_STOP_CHANNEL,
            NVA06C_CTRL_CMD_PREEMPT,
        ] {
            assert_eq!(context.schedule(object, id), Err(Status::OBJECT_NOT_FOUND), "{object:#x} {id:#x}");
        }
    }
    let stranger = 0x5c00_7777;
    assert_eq!(context.channel(stranger, GR), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(context.channel(channel, GR), Err(Status(0x36)), "the driver's own word");
    assert_eq!(spy.seen(), []);
}
