//! Calls that may let channels work: they wait for the window, and what they may have done is
//! undone.

use abi::{
    classes::{GT200_DEBUGGER, HOPPER_COMPUTE_A},
    escapes::NV_ESC_RM_CONTROL,
    params::NVOS54_PARAMETERS,
};
use std::{
    sync::{Arc, mpsc},
    time::Instant,
};

use super::{BIND_CHANNEL, BIND_GROUP, RESET, RESUME, STOP, params_of, put_on};
use crate::{
    Answer, Trapped,
    channels::gate::MOST_WAIT,
    tests::{
        alone::{OneContext, OneProgram},
        spy::{COPY, DISABLE, GR, NVDEC, SCHEDULE_CHANNEL, SCHEDULE_GROUP, Spy},
        world::{Context, Machine, control_args, words},
    },
};

/// Observation of calls that wait, as long as calls do: a thread that was off the processor for
/// longer has seen nothing, and looks again.
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

/// Returns whether a channel worked before the gate opened, and which calls had been executed.
fn call_before_the_window() -> (bool, (usize, usize)) {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let (video, _) = context.group_of_one(NVDEC);
    let (group, channel) = context.group_of_one(GR);
    let (working, _) = context.scheduled_group(GR);
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
        // However long this takes: they have not been executed when the gate opens, or the gate has
        // them off.
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
fn impatient(context: &Context, (object, id): (u32, u32)) -> Answer {
    let program = &context.program;
    let params = params_of(id);
    let size = u32::try_from(params.len()).unwrap();
    let params = program.put(&params);
    let mut args = control_args((context.client, object), id, (params, size));
    // When it comes, and when it is answered.
    program.goes_after_looks(2);
    let answer = program.escape(context.control, 0x2a, &mut args);
    program.comes_back();
    answer
}

#[test]
fn what_could_put_a_channel_on_the_card_waits_for_the_window() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    let (channel, video) = (context.scheduled(GR, 1)[0], context.scheduled(NVDEC, 1)[0]);
    let (bound, _) = context.scheduled_group(GR);
    let object = context.object_below(channel, HOPPER_COMPUTE_A, &mut [0; 8]).unwrap();
    let mut session = words(&[0, context.client, object]);
    let debugger = context.object_below(context.device, GT200_DEBUGGER, &mut session).unwrap();
    let (group, _) = context.group_of_one(GR);
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

/// Several groups are scheduled at once, and the gate closes while the driver is at the first of
/// them: what has reached it before the next window, whether anything works then, and what is owed.
fn calls_over_the_edge() -> (Vec<u32>, bool, u64) {
    let OneProgram { spy, container, program, .. } = OneProgram::new();
    // Each in a client of its own, so that none waits for another's.
    let contexts: Vec<_> = (0..4).map(|_| program.context(0)).collect();
    let groups: Vec<_> = contexts.iter().map(|context| (context, context.group_of_one(GR))).collect();
    let works = || groups.iter().any(|(context, (_, channel))| spy.works(context, *channel));
    let (gate, card) = (container.gate(), Arc::clone(&container.session.channels.gates()[0]));
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
        let call = |(context, (group, _)): &(&Context, (u32, u32))| {
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
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    let channel = context.scheduled(GR, 1)[0];
    let (group, _) = context.group_of_one(GR);
    let (joined, _) = context.scheduled_group(GR);
    let slow = |id| spy.during(id, || std::thread::sleep(std::time::Duration::from_millis(3)));
    for (object, id) in [(channel, STOP), (channel, RESET), (channel, BIND_CHANNEL), (group, SCHEDULE_GROUP)] {
        let mut params = params_of(id);
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
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let (group, channel) = context.group_of_one(GR);
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
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let (group, _) = context.group_of_one(GR);
    container.gate().close().unwrap();
    spy.seen();
    let params = program.put(&[1, 0, 0]);
    let args = control_args((context.client, group), SCHEDULE_GROUP, (params, 3));
    let argument = program.put(&args);
    // Both are read; then it is killed.
    program.goes_after_reads(2);
    assert_eq!(
        program.handle(Trapped::escape(context.control, (NV_ESC_RM_CONTROL, NVOS54_PARAMETERS::SIZE), argument)),
        Answer::Errno(libc::EINTR)
    );
    assert_eq!(spy.count(SCHEDULE_GROUP), 0);
}

#[test]
fn a_loop_that_makes_channels_in_the_off_time_gains_nothing() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    gate.close().unwrap();
    // As if each had waited as long as calls do.
    container.session.hurry(true);
    let old = context.group(GR);
    let mut channels = vec![context.channel(old, 0).unwrap()];
    context.schedule(old, SCHEDULE_GROUP).unwrap();
    for _ in 0..10 {
        // In groups of their own, without one, in a group that is scheduled, and in one that
        // another client has a handle of.
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
    assert!(spy.none_works(&context, &channels));
    assert_eq!(gate.open().unwrap().channels, channels.len());
    assert!(spy.all_work(&context, &channels));
}

#[test]
fn a_gate_that_moves_in_the_middle_of_a_call_has_the_last_word() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    // It closes before the driver has scheduled: an edge that came then would be too early for the
    // channel.
    let (group, late) = context.group_of_one(GR);
    let closed = Arc::clone(&gate);
    let closing = spy.during_elsewhere(SCHEDULE_GROUP, move || assert!(closed.close().is_ok()));
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    closing.join();
    assert!(!spy.works(&context, late));
    // It opens while the new channel is being taken off.
    container.session.hurry(true);
    let (group, early) = context.group_of_one(GR);
    let opened = Arc::clone(&gate);
    let opening = spy.during_elsewhere(DISABLE, move || assert!(opened.open().is_ok()));
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    opening.join();
    assert!(spy.works(&context, early) && spy.works(&context, late));
}

#[test]
fn a_loop_of_bind_stop_or_reset_in_the_off_time_puts_nothing_on_the_card() {
    let OneContext { spy, container, context, gate, .. } = OneContext::new();
    // More than one call names.
    let channels: Vec<u32> = (0..2).flat_map(|_| context.scheduled(GR, 65)).collect();
    for id in [BIND_CHANNEL, STOP, RESET, SCHEDULE_CHANNEL] {
        gate.close().unwrap();
        // As if each had waited as long as calls do.
        container.session.hurry(true);
        spy.seen();
        for channel in channels.iter().cycle().take(10 * channels.len()) {
            let _ = context.control(*channel, id, &mut params_of(id));
            assert!(!spy.works(&context, *channel));
        }
        assert_eq!(put_on(&spy.seen()), [], "{id:#x}");
        container.session.hurry(false);
        // However often: the calls that it takes to open are bounded.
        assert!(gate.open().unwrap().calls <= 3 * 4, "{id:#x}");
        assert!(spy.all_work(&context, &channels), "{id:#x}");
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
        assert!(spy.none_works(context, channels));
    }
    assert_eq!(gate.open().unwrap().channels, 48);
    for (context, channels) in contexts.iter().zip(&all) {
        assert!(spy.all_work(context, channels));
    }
}
