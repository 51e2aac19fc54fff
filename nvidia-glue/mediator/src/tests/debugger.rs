//! Debuggers' sessions: a container looks into its own contexts, and neither holds a card with that
//! nor touches anybody else's.
//!
//! The driver lets any process of its own user make a session over an object that CUDA has shared
//! with that user; handles count up, and the mediators of all containers are of one user.

use abi::{
    Status,
    classes::{GT200_DEBUGGER, HOPPER_COMPUTE_A},
    controls::{
        NV83DE_CTRL_CMD_DEBUG_READ_MEMORY, NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT,
        NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK, NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT,
        NV2080_CTRL_CMD_GPU_EXEC_REG_OPS, NV2080_CTRL_CMD_RC_DISABLE_WATCHDOG, NV2080_CTRL_CMD_RC_ENABLE_WATCHDOG,
        NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ,
    },
    layout::read_u32,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use super::{
    alone::{OneContext, TwoContexts},
    spy::{DISABLE, GR, SCHEDULE_GROUP, Seen, Spy},
    world::{Container, Context, GIB},
};
use crate::locks::lock;

const COMPUTE: u32 = HOPPER_COMPUTE_A;
const DEBUGGER: u32 = GT200_DEBUGGER;
const SET_MASK: u32 = NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK;
const SUSPEND: u32 = NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT;
const RESUME: u32 = NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT;
const READ_MEMORY: u32 = NV83DE_CTRL_CMD_DEBUG_READ_MEMORY;
const FATAL: u32 = 1;

/// A scheduled channel with an object that computes, and a session over that.
struct Debugged {
    channel: u32,
    object: u32,
}

impl Debugged {
    fn new(context: &Context) -> Self {
        let (group, channel) = context.group_of_one(GR);
        let object = context.object_below(channel, COMPUTE, &mut [0; 8]).unwrap();
        context.schedule(group, SCHEDULE_GROUP).unwrap();
        Self { channel, object }
    }

    /// {obsolete, client, object}
    fn session(&self, context: &Context, client: u32) -> Result<u32, Status> {
        let params = [0, client, self.object];
        let mut params: Vec<u8> = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        context.object_below(context.device, DEBUGGER, &mut params)
    }
}

fn masks(seen: &[Seen]) -> Vec<u32> {
    seen.iter().filter(|seen| seen.id == SET_MASK).map(|seen| read_u32(&seen.params, 0).unwrap()).collect()
}

#[test]
fn nobody_debugs_another_container() {
    let TwoContexts { container: victim, context, foreign: own, .. } = TwoContexts::within(8 * GIB);
    let debugged = Debugged::new(&context);
    assert_eq!(debugged.session(&own, context.client), Err(Status::INVALID_CLIENT));
    // One of its own, but of an object that is not: the driver would write a line into the kernel's
    // log.
    assert_eq!(debugged.session(&own, own.client), Err(Status::OBJECT_NOT_FOUND));
    assert_eq!(debugged.session(&own, 0), Err(Status::OBJECT_NOT_FOUND));
    // Another process of the same container may, as a debugger is one.
    let debugger = victim.program().context(0);
    debugged.session(&debugger, context.client).unwrap();
    debugged.session(&context, 0).unwrap();
    let mut old = [1_u32, context.client, debugged.object].map(u32::to_le_bytes).concat();
    let refused = context.object_below(context.device, DEBUGGER, &mut old);
    assert_eq!(refused, Err(Status::INVALID_ARGUMENT), "the driver would log it");
}

fn alone(test: impl FnOnce(&Arc<Spy>, &Arc<Container>, &Context, &Debugged)) {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let debugged = Debugged::new(&context);
    spy.seen();
    test(&spy, &container, &context, &debugged);
}

#[test]
fn no_session_puts_off_the_recovery_from_what_a_kernel_did() {
    alone(|spy, _, context, debugged| {
        let session = debugged.session(context, context.client).unwrap();
        assert_eq!(masks(&spy.seen()), [0xfffe], "before its program hears of it");
        for (asked, told) in [(0x3a, 0x3a), (0xffff, 0xfffe), (FATAL, 0), (0, 0), (u32::MAX, u32::MAX - 1)] {
            let mut params = asked.to_le_bytes();
            context.control(session, SET_MASK, &mut params).unwrap();
            assert_eq!(masks(&spy.seen()), [told]);
            assert_eq!(u32::from_le_bytes(params), asked, "the program does not see it");
        }
    });
}

#[test]
fn a_session_that_cannot_be_kept_from_that_does_not_come_to_be() {
    alone(|spy, container, context, debugged| {
        let objects = || container.accounts().counts().objects;
        let before = objects();
        spy.refuse(SET_MASK, Status::INVALID_STATE);
        assert_eq!(debugged.session(context, context.client), Err(Status::INSUFFICIENT_RESOURCES));
        assert_eq!(objects(), before);
        // Where there is nothing to be kept from, there is a session.
        spy.refuse(SET_MASK, Status::NOT_SUPPORTED);
        debugged.session(context, context.client).unwrap();
    });
}

/// The driver stops the multiprocessors of a context that is on the card, and keeps one that is not
/// off it.
#[test]
fn a_context_is_suspended_off_the_card() {
    alone(|spy, container, context, debugged| {
        let other = context.scheduled(GR, 1)[0];
        let session = debugged.session(context, context.client).unwrap();
        for closed in [false, true] {
            if closed {
                container.gate().close().unwrap();
            }
            assert_eq!(spy.works(context, debugged.channel), !closed);
            spy.seen();
            context.control(session, SUSPEND, &mut [0; 8]).unwrap();
            let seen: Vec<(u32, bool)> = spy.seen().iter().map(|seen| (seen.id, seen.params[0] == 1)).collect();
            // Off, suspended, on; or off all the time.
            let expected = [(DISABLE, true), (SUSPEND, false), (DISABLE, false)];
            assert_eq!(seen, if closed { &expected[1..2] } else { &expected });
            assert_eq!(spy.works(context, debugged.channel), !closed, "to the gate; the driver keeps it off");
            assert_eq!(spy.works(context, other), !closed);
        }
    });
}

#[test]
fn who_took_its_channels_off_finds_them_off() {
    alone(|spy, _, context, debugged| {
        let other = context.scheduled(GR, 1)[0];
        let session = debugged.session(context, context.client).unwrap();
        context.disable(true, &[(context.client, other)]).unwrap();
        context.control(session, SUSPEND, &mut [0; 8]).unwrap();
        assert!(spy.works(context, debugged.channel) && !spy.works(context, other));
        context.disable(false, &[(context.client, other)]).unwrap();
        assert!(spy.works(context, other));
    });
}

/// On the card it would be stopped there, and stay.
#[test]
fn no_other_thread_puts_a_context_back_while_it_is_suspended() {
    alone(|spy, _, context, debugged| {
        let sessions = [(); 2].map(|()| debugged.session(context, context.client).unwrap());
        let name = (context.client, debugged.channel);
        let put_back = || context.disable(false, &[name]).unwrap();
        let suspend = || context.control(sessions[1], SUSPEND, &mut [0; 8]).unwrap();
        let attacks: [&(dyn Fn() + Sync); 2] = [&put_back, &suspend];
        for attack in attacks {
            let has_worked = Arc::new(AtomicBool::new(false));
            std::thread::scope(|scope| {
                let (tell, told) = mpsc::channel();
                let attacking = scope.spawn(move || {
                    told.recv().unwrap();
                    attack();
                });
                let (card, sees) = (Arc::clone(spy), Arc::clone(&has_worked));
                spy.during(SUSPEND, move || {
                    tell.send(()).unwrap();
                    // For it to come as far as it can.
                    std::thread::sleep(Duration::from_millis(20));
                    sees.store(card.does_work(name), Ordering::SeqCst);
                });
                context.control(sessions[0], SUSPEND, &mut [0; 8]).unwrap();
                attacking.join().unwrap();
            });
            assert!(!has_worked.load(Ordering::SeqCst), "it was on the card");
            assert!(spy.works(context, debugged.channel), "and is again");
        }
    });
}

#[test]
fn what_cannot_be_taken_off_is_not_suspended() {
    alone(|spy, _, context, debugged| {
        let session = debugged.session(context, context.client).unwrap();
        spy.refuse(DISABLE, Status::NOT_SUPPORTED);
        assert_eq!(context.control(session, SUSPEND, &mut [0; 8]), Err(Status::NOT_SUPPORTED));
        spy.refuse_nothing();
        assert_eq!(spy.count(SUSPEND), 0);
        assert!(spy.works(context, debugged.channel));
    });
}

#[test]
fn what_is_resumed_obeys() {
    alone(|spy, container, context, debugged| {
        let session = debugged.session(context, context.client).unwrap();
        container.gate().close().unwrap();
        // As if it had waited as long as calls do.
        container.session.hurry(true);
        spy.seen();
        context.control(session, RESUME, &mut []).unwrap();
        let seen: Vec<u32> = spy.seen().iter().map(|seen| seen.id).collect();
        assert_eq!(seen, [RESUME, DISABLE]);
        assert!(!spy.works(context, debugged.channel));
    });
}

#[test]
fn copies_for_a_debugger_wait_for_the_containers_time() {
    alone(|spy, container, context, debugged| {
        let session = debugged.session(context, context.client).unwrap();
        let buffer = context.program.put(&[0; 16]);
        let waited = || {
            container.gate().close().unwrap();
            spy.seen();
            std::thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let mut params = [0_u32, 16, 0, 0].map(u32::to_le_bytes).concat();
                    params.extend(buffer.to_le_bytes());
                    context.control(session, READ_MEMORY, &mut params)
                });
                std::thread::sleep(Duration::from_millis(30));
                container.gate().open().unwrap();
                reading.join().unwrap().unwrap();
            });
            let seen: Vec<u32> = spy.seen().iter().map(|seen| seen.id).collect();
            seen == [DISABLE, READ_MEMORY]
        };
        // No call waits for more than a second, which a busy machine may take to come back to this
        // thread.
        assert!((0..5).any(|_| waited()));
    });
}

/// They act on whatever context is on the card, or on the card.
#[test]
fn what_acts_on_whoever_is_on_the_card_never_reaches_the_driver() {
    alone(|spy, container, context, debugged| {
        let session = debugged.session(context, context.client).unwrap();
        spy.seen();
        let not_supported =
            [0x0301, 0x030b, 0x030f, 0x0313, 0x0314, 0x031d, 0x0321, 0x0322, 0x0323, 0x0324, 0x0325, 0x0329];
        for number in not_supported {
            let refused = context.control(session, (GT200_DEBUGGER << 16) + number, &mut [0; 16]);
            assert_eq!(refused, Err(Status::NOT_SUPPORTED), "{number:#x}");
        }
        let reported = lock(&container.observed.refused_tools).clone();
        assert_eq!(reported, ["NV83DE_CTRL_CMD_SM_DEBUG_MODE_ENABLE"], "once");
        for number in [0x0307, 0x032a] {
            let answered = context.control(session, (GT200_DEBUGGER << 16) + number, &mut [1, 0, 0, 0]);
            assert_eq!(answered, Ok(()), "{number:#x}: compute-sanitizer goes on without");
        }
        // The watchdog of all, registers, the clock of all timestamps.
        for id in [
            NV2080_CTRL_CMD_RC_DISABLE_WATCHDOG,
            NV2080_CTRL_CMD_RC_ENABLE_WATCHDOG,
            NV2080_CTRL_CMD_GPU_EXEC_REG_OPS,
            NV2080_CTRL_CMD_TIMER_SET_GR_TICK_FREQ,
        ] {
            let refused = context.subdevice_control(id, &mut [0; 48]);
            assert_eq!(refused, Err(Status::NOT_SUPPORTED), "{id:#x}");
        }
        assert_eq!(spy.seen(), []);
    });
}
