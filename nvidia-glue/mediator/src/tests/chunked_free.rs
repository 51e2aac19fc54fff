//! Large frees: in pieces, between which others have their turn at the driver's lock.

use abi::{Handle, Status, layout::read_u32};

use super::{
    alone::{OneContext, OneProgram},
    spy::{GR, Spy},
    world::{Context, MIB},
};

const MANY: usize = 1500;

/// Returns what was freed since it was last asked.
fn freed(spy: &Spy) -> Vec<u32> {
    spy.escapes(0x29).iter().map(|args| read_u32(args, 8).unwrap()).collect()
}

/// Much memory, and a channel at work; the channel's group.
fn fill(context: &Context) -> u32 {
    let (group, _) = context.scheduled_group(GR);
    for _ in 0..MANY {
        context.memory(4096).unwrap();
    }
    group
}

#[test]
fn what_a_program_frees_goes_in_pieces_channels_first() {
    let OneProgram { spy, container, program, .. } = OneProgram::new();
    for whole in [true, false] {
        let context = program.context(0);
        let group = fill(&context);
        freed(&spy);
        let object = if whole { context.client } else { context.device };
        context.free(object).unwrap();
        let freed = freed(&spy);
        assert_eq!((freed.first(), freed.last()), (Some(&group), Some(&object)));
        assert!(freed.len() > MANY, "{}", freed.len());
        assert_eq!((container.used(0), container.gate().channels()), (0, 0));
        assert_eq!(container.accounts().counts().objects, 0);
        if !whole {
            context.free(context.client).unwrap();
        }
    }
    container.assert_nothing_left();
}

#[test]
fn what_a_process_leaves_goes_in_pieces_too() {
    let OneContext { spy, container, program, context, .. } = OneContext::new();
    let (group, client) = (fill(&context), context.client);
    freed(&spy);
    program.exit();
    container.session.reconcile();
    let freed = freed(&spy);
    let of_the_client = freed.iter().position(|object| *object == client).unwrap();
    assert!(of_the_client > MANY && freed[0] == group, "{of_the_client}");
    container.assert_nothing_left();
}

/// The driver goes on writing the errors of a channel that it has not freed.
#[test]
fn what_is_told_of_a_channel_that_stays_is_no_piece() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    // One before it and one after it, whichever is freed first.
    let [_, stays, _] = [(); 3].map(|()| context.group(GR));
    let notifier = context.host_memory(4096).unwrap();
    context.channel_with(stays, &[(0, notifier)]).unwrap();
    for _ in 0..MANY {
        context.memory(4096).unwrap();
    }
    spy.refuse_to_free_one(stays);
    freed(&spy);
    context.free(context.client).unwrap();
    let freed = freed(&spy);
    assert!(freed.len() > MANY && freed.contains(&stays), "{}", freed.len());
    assert!(!freed.contains(&notifier), "it goes with its client, as the channel does");
    container.assert_nothing_left();
}

#[test]
fn what_is_small_goes_at_once() {
    let OneContext { spy, context, .. } = OneContext::new();
    context.memory(MIB).unwrap();
    freed(&spy);
    context.free(context.client).unwrap();
    assert_eq!(freed(&spy), [context.client]);
}

/// Whoever has the wrong file, or a driver that frees nothing: one try tells.
#[test]
fn a_driver_that_frees_nothing_is_not_asked_for_each() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    fill(&context);
    spy.refuse_to_free(Status::INVALID_CLIENT);
    freed(&spy);
    assert_eq!(context.free(context.client), Err(Status::INVALID_CLIENT));
    assert_eq!(freed(&spy).len(), 2);
    spy.refuse_nothing();
    assert!(container.accounts().knows_client(Handle(context.client)));
    context.free(context.client).unwrap();
    container.assert_nothing_left();
}
