//! The gates of cards: which channels they take off and put back, and that nothing slips by.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    spy::{COPY, DISABLE, GR, NVDEC, SCHEDULE_CHANNEL, SCHEDULE_GROUP, SET_TIMESLICE, Seen, Spy},
    world::{Container, Context, Machine, Program},
};
use crate::{
    mediate::{
        Answer, Stopped,
        gate::MOST_WAIT,
        locks::lock,
        looks::{Clock as _, tests::Told},
    },
    rm::{
        Status,
        layout::{read_u32, write_u32},
    },
    schedule::{Calls, Edge, EdgeError},
};

const BIND_GROUP: u32 = 0xa06c_0102;
const BIND_CHANNEL: u32 = 0xa06f_0104;
const STOP: u32 = 0xa06f_0112;
const RESET: u32 = 0x906f_0102;
const SUSPEND: u32 = 0x83de_0317;
const RESUME: u32 = 0x83de_0318;

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
    assert_eq!(gate.uuid(), container.inventory.cards[0].uuid);
    assert_eq!(*lock(&container.told.first_channels), [0, 1].map(|card| machine.inventory.cards[card].uuid.clone()));

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
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let channels: Vec<u32> = (0..13).flat_map(|_| context.scheduled(GR, 10)).collect();
    let gate = container.gate();
    assert_eq!(gate.close().unwrap(), Edge { channels: 130, calls: 3 });
    assert!(channels.iter().all(|channel| !spy.works(&context, *channel)));
    gate.open().unwrap();
    assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
}

#[test]
fn compute_is_the_first_to_go_and_the_last_to_come() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let gate = container.gate();
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
fn what_is_gone_keeps_nobody_on_the_card() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let (staying, leaving) = (container.program(), container.program());
    let context = staying.context(0);
    let gone = leaving.context(0);
    // Before, in the middle and after in the order of names.
    let mut channels = context.scheduled(GR, 40);
    gone.scheduled(GR, 30);
    channels.extend(context.scheduled(GR, 10));
    // Its file closes, and nobody tells.
    leaving.close(gone.control);
    let gate = container.gate();
    assert_eq!(gate.channels(), 80);
    let edge = gate.close().unwrap();
    assert!(channels.iter().all(|channel| !spy.works(&context, *channel)));
    assert!(edge.calls <= 4, "{edge:?}");
    gate.open().unwrap();
    assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
    container.session.process_ended(leaving.exit());
    assert_eq!(gate.channels(), 50);
    assert_eq!(gate.close().unwrap(), Edge { channels: 50, calls: 1 });
}

#[test]
fn channels_go_with_what_they_hang_from() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let gate = container.gate();
    for free in 0..5 {
        let context = program.context(0);
        let group = context.group(GR);
        let channel = context.channel(group, 0).unwrap();
        context.schedule(group, SCHEDULE_GROUP).unwrap();
        assert_eq!((gate.channels(), gate.groups()), (1, 1));
        let doomed = [channel, group, context.device, context.client].get(free).copied();
        match doomed {
            Some(object) => context.free(object).unwrap(),
            None => {
                program.close(context.control);
                container.session.reconcile();
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

/// What is seen of calls that wait, as long as calls do: a thread that was off the processor for longer has seen nothing, and
/// looks again.
fn while_calls_wait<T>(mut look: impl FnMut() -> T) -> T {
    for _ in 0..100 {
        let begin = Instant::now();
        let seen = look();
        if begin.elapsed() < MOST_WAIT {
            return seen;
        }
    }
    panic!("nothing is done within {MOST_WAIT:?} here");
}

#[test]
fn a_schedule_call_waits_for_the_window() {
    let (works, executed) = while_calls_wait(call_before_the_window);
    assert!(!works);
    assert_eq!(executed, (0, 0));
}

/// Whether a channel worked before the gate opened, and which calls had been executed.
fn call_before_the_window() -> (bool, (usize, usize)) {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let video = context.group(NVDEC);
    context.channel(video, 0).unwrap();
    let group = context.group(GR);
    let channel = context.channel(group, 0).unwrap();
    let working = context.group(GR);
    context.channel(working, 0).unwrap();
    context.schedule(working, SCHEDULE_GROUP).unwrap();
    let gate = container.gate();
    gate.close().unwrap();
    // Not for a channel that is not throttled.
    context.schedule(video, SCHEDULE_GROUP).unwrap();
    context.channel(video, 0).unwrap();
    spy.seen();
    spy.escapes(0);
    let (started, has_started) = mpsc::channel();
    let before = std::thread::scope(|scope| {
        let other = started.clone();
        let (context, gate) = (&context, &gate);
        let waiting = scope.spawn(move || {
            started.send(()).unwrap();
            context.schedule(group, SCHEDULE_GROUP)
        });
        // Nor is a channel added to what does work.
        let joining = scope.spawn(move || {
            other.send(()).unwrap();
            context.channel(working, 0)
        });
        has_started.iter().take(2).for_each(drop);
        // However long this takes: they have not been executed when the gate opens, or the gate has them off.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let before = (spy.works(context, channel), (spy.count(SCHEDULE_GROUP), spy.escapes(0x2b).len()));
        gate.open().unwrap();
        waiting.join().unwrap().unwrap();
        joining.join().unwrap().unwrap();
        before
    });
    assert!(spy.works(&context, channel));
    before
}

/// The answer to a control whose caller is killed if it has to wait for more than the driver.
fn impatient(context: &Context<'_, '_>, (object, id): (u32, u32)) -> Answer {
    let program = context.program;
    let params = program.put(&[1, 0, 0]);
    let mut args = super::world::words(&[context.client, object, id, 0]);
    args.extend(params.to_le_bytes());
    args.extend(super::world::words(&[3, 0]));
    // When it comes, and when it is answered.
    program.goes_after_looks(2);
    let answer = program.escape(context.control, 0x2a, &mut args);
    program.comes_back();
    answer
}

#[test]
fn what_could_put_a_channel_on_the_card_waits_for_the_window() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let (channel, video) = (context.scheduled(GR, 1)[0], context.scheduled(NVDEC, 1)[0]);
    let bound = context.group(GR);
    context.channel(bound, 0).unwrap();
    context.schedule(bound, SCHEDULE_GROUP).unwrap();
    let object = program.alloc(context.control, (context.client, channel, 0), 0xcbc0, &mut [0; 8]).unwrap();
    let mut session = super::world::words(&[0, context.client, object]);
    let place = (context.client, context.device, 0);
    let debugger = program.alloc(context.control, place, 0x83de, &mut session).unwrap();
    let group = context.group(GR);
    context.channel(group, 0).unwrap();
    let waiting = [
        (group, SCHEDULE_GROUP),
        (channel, SCHEDULE_CHANNEL),
        (channel, STOP),
        (channel, RESET),
        (channel, BIND_CHANNEL),
        (bound, BIND_GROUP),
        (debugger, RESUME),
    ];
    // One that cannot do work yet may be bound.
    let others = [(video, SCHEDULE_CHANNEL), (video, STOP), (video, RESET), (group, BIND_GROUP)];
    let gate = container.gate();
    gate.close().unwrap();
    for call in waiting {
        let (answer, seen) = while_calls_wait(|| {
            spy.seen();
            (impatient(&context, call), spy.seen())
        });
        assert_eq!(answer, Answer::Errno(libc::EINTR), "{call:x?}");
        assert_eq!(seen, [], "{call:x?}");
    }
    for call in others {
        assert_eq!(impatient(&context, call), Answer::Return(0), "{call:x?} is not throttled");
    }
    container.session.hurry(true);
    for call in waiting {
        assert_eq!(impatient(&context, call), Answer::Return(0), "{call:x?} is hurried");
    }
    container.session.hurry(false);
    gate.open().unwrap();
    for call in waiting {
        assert_eq!(impatient(&context, call), Answer::Return(0), "{call:x?} is in the window");
    }
}

#[test]
fn calls_that_queue_over_the_edge_wait_for_the_next_window() {
    let (seen, works, overrun_us) = while_calls_wait(calls_over_the_edge);
    assert_eq!(seen, [SCHEDULE_GROUP, DISABLE], "the one that the driver was at, and taking it off");
    assert!(!works);
    assert_eq!(overrun_us, 0);
}

/// Several groups are scheduled at once, and the gate closes while the driver is at the first of them: what has reached it before the next
/// window, whether anything works then, and what is owed.
fn calls_over_the_edge() -> (Vec<u32>, bool, u64) {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    // Each in a client of its own, so that none waits for another's.
    let contexts: Vec<_> = (0..4).map(|_| program.context(0)).collect();
    let group = |context: &Context<'_, '_>| {
        let group = context.group(GR);
        (group, context.channel(group, 0).unwrap())
    };
    let groups: Vec<_> = contexts.iter().map(|context| (context, group(context))).collect();
    let works = || groups.iter().any(|(context, (_, channel))| spy.works(context, *channel));
    let (gate, card) = (container.gate(), Arc::clone(&container.session.gates[0]));
    let (begun, has_begun) = mpsc::channel();
    let (closing, closed) = (mpsc::channel(), Arc::clone(&gate));
    spy.seen();
    let all = std::thread::scope(|scope| {
        spy.during(SCHEDULE_GROUP, move || {
            begun.send(()).unwrap();
            let (closed, told) = (Arc::clone(&closed), closing.0.clone());
            std::thread::spawn(move || told.send(closed.close().is_ok()));
            while !card.is_closed() {
                std::thread::yield_now();
            }
        });
        let call = |(context, (group, _)): &(&Context<'_, '_>, (u32, u32))| {
            context.schedule(*group, SCHEDULE_GROUP).unwrap();
        };
        let (first, others) = groups.split_first().unwrap();
        scope.spawn(move || call(first));
        has_begun.recv().unwrap();
        for other in others {
            scope.spawn(move || call(other));
        }
        assert!(closing.1.recv().unwrap());
        // However long this takes: who has to wait does.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let all = (spy.seen().iter().map(|seen| seen.id).collect(), works(), gate.take_overrun_us());
        gate.open().unwrap();
        all
    });
    assert!(groups.iter().all(|(context, (_, channel))| spy.works(context, *channel)));
    all
}

#[test]
fn time_on_the_card_out_of_the_window_is_owed() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let channel = context.scheduled(GR, 1)[0];
    let group = context.group(GR);
    context.channel(group, 0).unwrap();
    let joined = context.group(GR);
    context.channel(joined, 0).unwrap();
    context.schedule(joined, SCHEDULE_GROUP).unwrap();
    let gate = container.gate();
    let slow = |id| spy.during(id, || std::thread::sleep(std::time::Duration::from_millis(3)));
    for (object, id) in [(channel, STOP), (channel, RESET), (channel, BIND_CHANNEL), (group, SCHEDULE_GROUP)] {
        let mut params = vec![
            0;
            if id == SCHEDULE_GROUP {
                3
            } else if id == BIND_CHANNEL {
                4
            } else {
                16
            }
        ];
        params[0] = 1;
        for is_closed in [false, true] {
            if is_closed {
                gate.close().unwrap();
            }
            // As if each had waited as long as calls do.
            container.session.hurry(true);
            slow(id);
            let _ = context.control(object, id, &mut params);
            let owed_us = gate.take_overrun_us();
            assert_eq!(owed_us >= 3_000, is_closed, "{id:#x}: {owed_us}");
            assert_eq!(gate.take_overrun_us(), 0, "once");
            container.session.hurry(false);
        }
        gate.open().unwrap();
    }
    // One that joins a group at work.
    gate.close().unwrap();
    container.session.hurry(true);
    context.channel(joined, 0).unwrap();
    let owed_us = gate.take_overrun_us();
    assert!(owed_us > 0);
}

#[test]
fn who_waited_as_long_as_calls_do_is_scheduled_and_off() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let group = context.group(GR);
    let channel = context.channel(group, 0).unwrap();
    let gate = container.gate();
    gate.close().unwrap();
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            context.schedule(group, SCHEDULE_GROUP).unwrap();
            done.send(()).unwrap();
        });
        let is_done = is_done.recv_timeout(std::time::Duration::from_secs(120));
        if is_done.is_err() {
            gate.open().unwrap();
        }
        assert!(is_done.is_ok(), "it waits without an end");
    });
    assert!(spy.is_scheduled(&context, channel) && !spy.works(&context, channel));
    gate.open().unwrap();
    assert!(spy.works(&context, channel));
}

#[test]
fn a_caller_that_is_gone_waits_for_nothing() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let group = context.group(GR);
    context.channel(group, 0).unwrap();
    container.gate().close().unwrap();
    spy.seen();
    let params = program.put(&[1, 0, 0]);
    let mut args = super::world::words(&[context.client, group, SCHEDULE_GROUP, 0]);
    args.extend(params.to_le_bytes());
    args.extend(super::world::words(&[3, 0]));
    let argument = program.put(&args);
    // Both are read; then it is killed.
    program.goes_after_reads(2);
    let stopped = Stopped::Ioctl { fd: context.control, command: 0xc020_462a, argument };
    assert_eq!(program.handle(stopped), Answer::Errno(libc::EINTR));
    assert_eq!(spy.count(SCHEDULE_GROUP), 0);
}

#[test]
fn a_loop_that_makes_channels_in_the_off_time_gains_nothing() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let gate = container.gate();
    gate.close().unwrap();
    // As if each had waited as long as calls do.
    container.session.hurry(true);
    let old = context.group(GR);
    let mut channels = vec![context.channel(old, 0).unwrap()];
    context.schedule(old, SCHEDULE_GROUP).unwrap();
    for _ in 0..10 {
        // In groups of their own, without one, in a group that is scheduled, and in one that another client has a handle of.
        channels.extend(context.scheduled(GR, 2));
        channels.extend(context.scheduled(COPY, 1));
        let bare = context.channel(context.device, 0).unwrap();
        context.schedule(bare, SCHEDULE_CHANNEL).unwrap();
        let added = context.channel(old, 0).unwrap();
        context.schedule(added, SCHEDULE_CHANNEL).unwrap();
        context.schedule(old, SCHEDULE_GROUP).unwrap();
        // Added where others are scheduled, without a call of its own.
        channels.extend([bare, added, context.channel(old, 0).unwrap()]);
    }
    for channel in &channels {
        assert!(!spy.works(&context, *channel));
    }
    assert_eq!(gate.open().unwrap().channels, channels.len());
    assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
}

#[test]
fn a_gate_that_moves_in_the_middle_of_a_call_has_the_last_word() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let new_group = || {
        let group = context.group(GR);
        (group, context.channel(group, 0).unwrap())
    };
    // It closes before the driver has scheduled: an edge that came then would be too early for the channel.
    let (group, late) = new_group();
    let gate = container.gate();
    let closed = Arc::clone(&gate);
    let closing = spy.during_elsewhere(SCHEDULE_GROUP, move || assert!(closed.close().is_ok()));
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    closing.join();
    assert!(!spy.works(&context, late));
    // It opens while the new channel is being taken off.
    container.session.hurry(true);
    let (group, early) = new_group();
    let opened = Arc::clone(&gate);
    let opening = spy.during_elsewhere(DISABLE, move || assert!(opened.open().is_ok()));
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    opening.join();
    assert!(spy.works(&context, early) && spy.works(&context, late));
}

#[test]
fn a_channel_is_taken_off_once_and_put_back_once() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let gate = container.gate();
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
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let group = context.group(GR);
    let channel = context.channel(group, 0).unwrap();
    let gate = container.gate();
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
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let empty = context.group(GR);
    assert_eq!(context.schedule(empty, SCHEDULE_GROUP), Err(Status::INVALID_STATE));
    let channel = context.channel(empty, 0).unwrap();
    let gate = container.gate();
    assert_eq!((gate.channels(), gate.close().unwrap()), (1, Edge::default()));
    gate.open().unwrap();
    context.schedule(empty, SCHEDULE_GROUP).unwrap();
    assert_eq!(gate.close().unwrap().channels, 1);
    assert!(!spy.works(&context, channel));
}

#[test]
fn a_group_is_one_by_any_of_its_handles() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let (server, client) = (program.context(0), program.context(0));
    let group = server.group(GR);
    let first = server.channel(group, 0).unwrap();
    server.schedule(group, SCHEDULE_GROUP).unwrap();
    // As the MPS server does for its clients.
    let same = program.dup(client.control, (client.client, client.device), (server.client, group)).unwrap();
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
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let channel = context.scheduled(GR, 1)[0];
    spy.seen();
    // Neither a channel nor a group, and one that was exported and taken in again.
    for object in [context.device, context.subdevice, 0x1234] {
        for id in [SCHEDULE_GROUP, SCHEDULE_CHANNEL, 0xa06f_0104, 0xa06c_0102, 0xa06f_0112, 0xa06c_0105] {
            assert_eq!(context.schedule(object, id), Err(Status::OBJECT_NOT_FOUND), "{object:#x} {id:#x}");
        }
    }
    let stranger = 0x5c00_7777;
    assert_eq!(context.channel(stranger, GR), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(context.channel(channel, GR), Err(Status(0x36)), "the driver's own word");
    assert_eq!(spy.seen(), []);
}

#[test]
fn a_card_that_cannot_take_channels_off_says_so() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let uuid = &container.inventory.cards[0].uuid;
    assert_eq!((container.session.can_close(uuid), container.session.can_close("GPU-other")), (Some(true), None));
    let program = container.program();
    let context = program.context(0);
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
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let channels = context.scheduled(GR, 2);
    let gate = container.gate();
    gate.close().unwrap();
    spy.refuse(DISABLE, Status::INVALID_STATE);
    let refused = gate.open().unwrap_err();
    assert!(matches!(refused, EdgeError::Refused { status: Status::INVALID_STATE, .. }), "{refused}");
    // A card that does not answer is not asked for each channel: NV_ERR_TIMEOUT, NV_ERR_GPU_IS_LOST.
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
    assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
}

#[test]
fn a_gate_keeps_no_file_and_nobody_alive() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    context.scheduled(GR, 2);
    let gate = container.gate();
    gate.set_slice(Some(500)).unwrap();
    gate.close().unwrap();
    assert!(spy.count(SET_TIMESLICE) == 1 && container.used(0) > 0);
    program.close(context.control);
    container.session.reconcile();
    container.assert_nothing_left();
    assert_eq!(spy.duplicates(), 0);
}

#[test]
fn a_loop_of_bind_stop_or_reset_in_the_off_time_puts_nothing_on_the_card() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    // More than one call names.
    let channels: Vec<u32> = (0..2).flat_map(|_| context.scheduled(GR, 65)).collect();
    let gate = container.gate();
    for id in [BIND_CHANNEL, STOP, RESET, SCHEDULE_CHANNEL] {
        gate.close().unwrap();
        // As if each had waited as long as calls do.
        container.session.hurry(true);
        spy.seen();
        for channel in channels.iter().cycle().take(10 * channels.len()) {
            let mut params = GR.to_le_bytes().to_vec();
            params.resize(
                if id == SCHEDULE_CHANNEL {
                    3
                } else if id == BIND_CHANNEL {
                    4
                } else {
                    16
                },
                0,
            );
            let _ = context.control(*channel, id, &mut params);
            assert!(!spy.works(&context, *channel));
        }
        assert_eq!(put_on(&spy.seen()), [], "{id:#x}");
        container.session.hurry(false);
        // However often: the calls that it takes to open are bounded.
        assert!(gate.open().unwrap().calls <= 3 * 4, "{id:#x}");
        assert!(channels.iter().all(|channel| spy.works(&context, *channel)), "{id:#x}");
    }
}

#[test]
fn a_channel_that_has_gone_has_nobody_put_on_while_the_gate_closes() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let (staying, leaving) = (container.program(), container.program());
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
        assert!(channels.iter().all(|channel| !spy.works(&context, *channel)));
        gate.open().unwrap();
        assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
    }
}

#[test]
fn what_a_call_that_failed_may_have_done_is_undone() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let channels = context.scheduled(GR, 2);
    let gate = container.gate();
    // NV_ERR_TIMEOUT: the card did it all the same, and nobody knows.
    spy.refuse_what_is_done(DISABLE, Status(0x65));
    for _ in 0..3 {
        assert!(gate.close().is_err());
    }
    spy.refuse_nothing();
    gate.close().unwrap();
    assert!(channels.iter().all(|channel| !spy.works(&context, *channel)));
    gate.open().unwrap();
    assert!(channels.iter().all(|channel| spy.works(&context, *channel)));
}

/// Channels that controls name to be put on the card.
fn put_on(seen: &[Seen]) -> Vec<(u32, u32)> {
    seen.iter().filter(|seen| seen.id == DISABLE && seen.params[0] == 0).flat_map(named).collect()
}

/// Whom a `DISABLE_CHANNELS` names.
fn named(seen: &Seen) -> Vec<(u32, u32)> {
    let word = |at| read_u32(&seen.params, at).unwrap();
    (0..word(4) as usize).map(|at| (word(24 + 4 * at), word(280 + 4 * at))).collect()
}

/// What programs and the scheduler do, in any order.
#[derive(Debug, Clone)]
enum Deed {
    Group(u32),
    Channel {
        below: Option<Index>,
        engine: u32,
    },
    Duplicate(Index),
    Schedule(Index),
    Disable {
        channel: Index,
        disable: bool,
    },
    Bind {
        channel: Index,
        engine: u32,
    },
    Object(Index),
    Stop(Index),
    Reset(Index),
    Suspend,
    Resume,
    Free(Index),
    /// The driver refuses to take channels off or to put them on for as long as the next deed takes; or says so, and does it.
    Refuse {
        is_done: bool,
        status: u32,
    },
    Open,
    Close,
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let engine = prop::sample::select(vec![0, GR, COPY, NVDEC]);
    let index = any::<Index>();
    let deed = prop_oneof![
        2 => engine.clone().prop_map(Deed::Group),
        4 => (prop::option::of(index.clone()), engine.clone())
            .prop_map(|(below, engine)| Deed::Channel { below, engine }),
        1 => index.clone().prop_map(Deed::Duplicate),
        4 => index.clone().prop_map(Deed::Schedule),
        3 => (index.clone(), any::<bool>()).prop_map(|(channel, disable)| Deed::Disable { channel, disable }),
        3 => (index.clone(), engine).prop_map(|(channel, engine)| Deed::Bind { channel, engine }),
        1 => index.clone().prop_map(Deed::Object),
        1 => index.clone().prop_map(Deed::Stop),
        1 => index.clone().prop_map(Deed::Reset),
        1 => Just(Deed::Suspend),
        1 => Just(Deed::Resume),
        1 => index.prop_map(Deed::Free),
        // NV_ERR_TIMEOUT, NV_ERR_INVALID_STATE, NV_ERR_INVALID_CHANNEL.
        1 => prop::sample::select(vec![(true, 0x65), (true, 0x40), (false, 0x65), (false, 0x40), (false, 0x21)])
            .prop_map(|(is_done, status)| Deed::Refuse { is_done, status }),
        2 => Just(Deed::Open),
        2 => Just(Deed::Close),
    ];
    vec(deed, 1..40)
}

/// A channel as its program knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    channel: u32,
    group: Option<u32>,
    /// The most throttled of all that it was said or found to work on.
    throttled: bool,
    wanted: bool,
}

struct Play<'p, 'a> {
    spy: &'a Spy,
    container: &'a Container,
    program: &'p Program<'a>,
    context: Context<'p, 'a>,
    /// Handles of groups: which group each is, and whether that is throttled.
    groups: Vec<(u32, u32, bool)>,
    channels: Vec<Known>,
    debugger: u32,
    closed: bool,
    /// The driver refused something, and there was no edge since.
    is_troubled: bool,
    refuses: bool,
}

impl Play<'_, '_> {
    fn does(&mut self, deed: &Deed) {
        let is_throttled = |engine: u32| engine != NVDEC;
        let context = &self.context;
        match deed {
            Deed::Group(engine) => {
                let group = context.group(*engine);
                self.groups.push((group, group, is_throttled(*engine)));
            }
            Deed::Channel { below, engine } => {
                let group = below.as_ref().filter(|_| !self.groups.is_empty()).map(|at| *at.get(&self.groups));
                let channel = context.channel(group.map_or(context.device, |group| group.0), *engine).unwrap();
                let throttled = group.map_or(is_throttled(*engine), |group| group.2);
                self.channels.push(Known { channel, group: group.map(|group| group.1), throttled, wanted: true });
            }
            Deed::Duplicate(at) if !self.groups.is_empty() => {
                let (handle, group, throttled) = *at.get(&self.groups);
                let place = (context.client, context.device);
                let same = self.program.dup(context.control, place, (context.client, handle)).unwrap();
                self.groups.push((same, group, throttled));
            }
            Deed::Schedule(at) if !self.channels.is_empty() => {
                let known = *at.get(&self.channels);
                let group = self.groups.iter().find(|group| Some(group.1) == known.group);
                // By the channel, or by any handle of its group.
                let _ = match group {
                    Some((handle, ..)) if known.channel % 2 == 0 => context.schedule(*handle, SCHEDULE_GROUP),
                    _ => context.schedule(known.channel, SCHEDULE_CHANNEL),
                };
            }
            Deed::Disable { channel, disable } if !self.channels.is_empty() => {
                let at = channel.index(self.channels.len());
                let done = context.disable(*disable, &[(context.client, self.channels[at].channel)]);
                assert!(done.is_ok() || self.refuses);
                // What is refused is not remembered.
                self.channels[at].wanted = !disable || done.is_err();
            }
            Deed::Bind { channel, engine } if !self.channels.is_empty() => {
                let at = channel.index(self.channels.len());
                let _ = context.control(self.channels[at].channel, 0xa06f_0104, &mut engine.to_le_bytes());
                if is_throttled(*engine) {
                    self.is_found_throttled(at);
                }
            }
            Deed::Object(at) if !self.channels.is_empty() => {
                let at = at.index(self.channels.len());
                let place = (context.client, self.channels[at].channel, 0);
                if self.program.alloc(context.control, place, 0xcbc0, &mut [0; 8]).is_ok() {
                    self.is_found_throttled(at);
                }
            }
            Deed::Stop(at) | Deed::Reset(at) if !self.channels.is_empty() => {
                let id = if matches!(deed, Deed::Stop(_)) { STOP } else { RESET };
                let _ = context.control(at.get(&self.channels).channel, id, &mut [0; 16]);
            }
            Deed::Suspend | Deed::Resume => {
                let id = if matches!(deed, Deed::Suspend) { SUSPEND } else { RESUME };
                let _ = context.control(self.debugger, id, &mut [0; 16]);
            }
            Deed::Refuse { is_done, status } => {
                let refuse = if *is_done { Spy::refuse_what_is_done } else { Spy::refuse };
                refuse(self.spy, DISABLE, Status(*status));
                (self.refuses, self.is_troubled) = (true, true);
            }
            Deed::Free(at) if !self.channels.is_empty() => {
                let known = self.channels.swap_remove(at.index(self.channels.len()));
                context.free(known.channel).unwrap();
            }
            Deed::Open | Deed::Close => {
                let (gate, closes) = (self.container.gate(), matches!(deed, Deed::Close));
                let edge = if closes { gate.close() } else { gate.open() };
                assert!(edge.is_ok() || self.refuses, "{edge:?}");
                self.closed = closes;
                self.is_troubled = edge.is_err();
            }
            _ => {}
        }
        if self.refuses && !matches!(deed, Deed::Refuse { .. }) {
            self.spy.refuse_nothing();
            (self.refuses, self.is_troubled) = (false, true);
        }
    }

    /// A channel is, and with it its group.
    fn is_found_throttled(&mut self, at: usize) {
        self.channels[at].throttled = true;
        if let Some(group) = self.channels[at].group {
            self.channels
                .iter_mut()
                .filter(|known| known.group == Some(group))
                .for_each(|known| known.throttled = true);
            self.groups.iter_mut().filter(|(_, of, _)| *of == group).for_each(|(.., throttled)| *throttled = true);
        }
    }

    /// Channels that are to be off outside the window.
    fn throttled(&self) -> impl Iterator<Item = &Known> {
        self.channels.iter().filter(|known| known.throttled)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_no_throttled_channel_works_or_is_put_on_while_the_gate_is_closed(deeds in deeds()) {
        let machine = Machine::new(1);
        let spy = Spy::new(&machine);
        let container = spy.container(&machine);
        container.session.hurry(true);
        let program = container.program();
        let context = program.context(0);
        let mut session = super::world::words(&[0, context.client, context.device]);
        let debugger = program.alloc(context.control, (context.client, context.device, 0), 0x83de, &mut session).unwrap();
        let mut play = Play {
            spy: &spy,
            container: &container,
            program: &program,
            context,
            groups: Vec::new(),
            channels: Vec::new(),
            debugger,
            closed: false,
            is_troubled: false,
            refuses: false,
        };
        for deed in &deeds {
            spy.seen();
            play.does(deed);
            let put_on = put_on(&spy.seen());
            for known in play.throttled().filter(|_| play.closed) {
                let name = (play.context.client, known.channel);
                prop_assert!(!put_on.contains(&name), "{known:?} is put on by {deed:?}");
            }
            for known in play.channels.iter().filter(|_| !play.is_troubled) {
                if play.closed && known.throttled {
                    prop_assert!(!spy.works(&play.context, known.channel), "{known:?} works after {deed:?}");
                }
                let can_work = spy.is_scheduled(&play.context, known.channel);
                if !play.closed && known.wanted && can_work {
                    prop_assert!(spy.works(&play.context, known.channel), "{known:?} is off after {deed:?}");
                }
            }
            prop_assert_eq!(container.gate().channels(), play.throttled().count());
        }
    }
}

#[test]
fn a_gate_that_moves_while_many_threads_call_has_the_last_word() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    container.session.hurry(true);
    let program = container.program();
    let contexts = [program.context(0), program.context(0), program.context(0)];
    let gate = container.gate();
    let all = std::thread::scope(|scope| {
        let callers: Vec<_> = contexts
            .iter()
            .map(|context| {
                scope.spawn(move || {
                    let mut channels = Vec::new();
                    for _ in 0..8 {
                        channels.extend(context.scheduled(GR, 2));
                        let named: Vec<_> = channels.iter().map(|channel| (context.client, *channel)).collect();
                        context.disable(true, &named).unwrap();
                        context.disable(false, &named).unwrap();
                    }
                    channels
                })
            })
            .collect();
        while !callers.iter().all(|caller| caller.is_finished()) {
            gate.open().unwrap();
            gate.close().unwrap();
        }
        callers.into_iter().map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
    });
    for (context, channels) in contexts.iter().zip(&all) {
        assert!(channels.iter().all(|channel| !spy.works(context, *channel)));
    }
    assert_eq!(gate.open().unwrap().channels, 48);
    for (context, channels) in contexts.iter().zip(&all) {
        assert!(channels.iter().all(|channel| spy.works(context, *channel)));
    }
}

/// The driver refuses them, too, and writes a line into the kernel's log each time.
#[test]
fn a_channel_of_two_address_spaces_does_not_reach_the_driver() {
    let machine = Machine::new(1);
    let spy = Spy::new(&machine);
    let container = spy.container(&machine);
    let program = container.program();
    let context = program.context(0);
    let space = context.object(0x90f1, &mut [0; 56]).unwrap();
    let group = context.group(GR);
    let ask = |parent: u32, share: u32, space: u32| {
        let mut params = [0; 368];
        assert!(write_u32(&mut params, 24, share) && write_u32(&mut params, 28, space));
        program.alloc(context.control, (context.client, parent, 0), 0xc86f, &mut params)
    };
    spy.escapes(0);
    for (parent, share, space) in [(context.device, 0x77, space), (group, 0x77, space), (group, 0, space)] {
        assert_eq!(ask(parent, share, space), Err(Status::INVALID_ARGUMENT));
    }
    assert_eq!(spy.escapes(0x2b), Vec::<Vec<u8>>::new());
    ask(context.device, 0, space).unwrap();
}

/// For some of them the driver writes a line into the kernel's log.
#[test]
fn a_loop_of_objects_that_the_driver_does_not_make_is_slowed_down() {
    let machine = Machine::new(1);
    let mut container = machine.container(&[0], 1 << 30);
    let clock = Told::default();
    container.looks_cost(&clock, Duration::ZERO);
    let program = container.program();
    let context = program.context(0);
    // No engine hangs from a device.
    let ask = || assert!(context.object(0xc8b5, &mut [0; 8]).is_err());
    (0..1024).for_each(|_| ask());
    assert_eq!(clock.now(), Duration::ZERO);
    (0..20).for_each(|_| ask());
    assert_eq!(clock.now(), Duration::from_secs(1));
}
