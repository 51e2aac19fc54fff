//! Preemption of kernels: nothing that computes comes to be in a context whose kernels cannot be
//! preempted at any instruction.

use abi::{
    Handle, Status,
    classes::{
        FERMI_TWOD_A, HOPPER_A, HOPPER_COMPUTE_A, HOPPER_DMA_COPY_A, KEPLER_INLINE_TO_MEMORY_B, NV01_DEVICE_0,
        NV20_SUBDEVICE_0, TURING_A,
    },
    controls::{NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND, NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE},
    layout::{read_u32, write_u32},
};
use std::sync::Arc;

use super::{
    alone::{OneContext, OneProgram},
    spy::{COPY, GR, SCHEDULE_GROUP, Spy},
    world::{Container, Context, Program, device_params, result, struct_with, words},
};
use crate::locks::lock;

const MODE: u32 = NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE;
const BIND: u32 = NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND;
const COMPUTE: u32 = HOPPER_COMPUTE_A;
const DRAW: u32 = HOPPER_A;
const DRAW_FLAT: u32 = FERMI_TWOD_A;
const INLINE: u32 = KEPLER_INLINE_TO_MEMORY_B;
/// `NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_*`.
const WAIT: u32 = 0;
const BLOCKS: u32 = 1;
const INSTRUCTIONS: u32 = 2;

fn engine(context: &Context, channel: u32, class: u32) -> Result<u32, Status> {
    context.object_below(channel, class, &mut [0; 16])
}

fn is_preemptible(container: &Container, context: &Context, object: u32) -> bool {
    lock(&container.session.objects.topology).is_preemptible(Handle(context.client), Handle(object))
}

/// The modes that the driver was asked for: flags, the channel or group, that of compute; and the
/// subdevice.
fn modes(spy: &Spy) -> Vec<(u32, u32, u32, u32)> {
    let field = |params: &[u8], at| read_u32(params, at).unwrap();
    let seen = spy.seen().into_iter().filter(|seen| seen.id == MODE);
    seen.map(|seen| (field(&seen.params, 0), field(&seen.params, 4), field(&seen.params, 12), seen.object)).collect()
}

/// {flags, hChannel, gfxp, cilp, route}; {flags, hClient, hChannel, -, buffers[9], gfxp, cilp,
/// route}: the size, and where the client, the channel and the mode of compute are.
const CONTROLS: [(u32, usize, Option<usize>, usize, usize); 2] = [(MODE, 32, None, 4, 12), (BIND, 112, Some(4), 8, 92)];

/// Returns what reaches the driver of a mode that a program asks for.
fn asked(spy: &Spy, context: &Context, channel: u32, mode: u32) -> [u32; 2] {
    CONTROLS.map(|(id, size, client_at, channel_at, mode_at)| {
        let mut params = struct_with(size, &[(0, 1), (channel_at, channel), (mode_at, mode)]);
        assert!(client_at.is_none_or(|at| write_u32(&mut params, at, context.client)));
        let given = params.clone();
        spy.seen();
        // Whether the simulated driver knows it does not matter here.
        let _ = context.subdevice_control(id, &mut params);
        assert_eq!(params, given, "the program does not see it");
        read_u32(&spy.seen()[0].params, mode_at).unwrap()
    })
}

#[test]
fn kernels_can_always_be_preempted() {
    let OneContext { spy, context, .. } = OneContext::new();
    let group = context.group(GR);
    for mode in [WAIT, BLOCKS, INSTRUCTIONS] {
        assert_eq!(asked(&spy, &context, group, mode), [INSTRUCTIONS; 2]);
    }
    for (id, size, ..) in CONTROLS {
        let mut graphics = struct_with(size, &[(0, 2)]);
        spy.seen();
        let _ = context.subdevice_control(id, &mut graphics);
        assert_eq!(spy.seen()[0].params, graphics, "the mode of compute is not set");
        assert!(context.subdevice_control(id, &mut [1, 0, 0, 0]).is_err(), "cut off");
    }
}

#[test]
fn kernels_of_who_does_not_ask_can_be_preempted_too() {
    let OneContext { spy, context, .. } = OneContext::new();
    let modes_set = |channel: u32, class: u32| {
        spy.seen();
        engine(&context, channel, class).unwrap();
        modes(&spy)
    };
    let (group, grouped) = context.group_of_one(GR);
    let set = |context: &Context, object: u32| (1, object, INSTRUCTIONS, context.subdevice);
    assert_eq!(modes_set(grouped, COMPUTE), [set(&context, group)], "of all the group");
    assert_eq!(modes_set(context.channel(group, 0).unwrap(), COMPUTE), [], "once");
    let alone = context.channel(context.device, GR).unwrap();
    assert_eq!(modes_set(alone, COMPUTE), [set(&context, alone)]);
    // It has a context with any object of the engine.
    for class in [INLINE, DRAW_FLAT] {
        let (group, channel) = context.group_of_one(GR);
        assert_eq!(modes_set(channel, class), [set(&context, group)]);
        assert_eq!(modes_set(channel, COMPUTE), []);
    }
    let copies = context.channel(context.group(COPY), 0).unwrap();
    assert_eq!(modes_set(copies, HOPPER_DMA_COPY_A), []);
}

/// A program, the channels that it has in each way there is, and the context that each is in.
fn ways(program: &Arc<Program>) -> Vec<(&'static str, Context, u32, u32)> {
    let (in_group, alone, by_duplicate, bare) =
        (program.context(0), program.context(0), program.context(0), program.context(0));
    let (group, channel) = in_group.group_of_one(GR);
    let single = alone.channel(alone.device, GR).unwrap();
    let duplicate = by_duplicate.dup(&in_group, group).unwrap();
    let below = by_duplicate.channel(duplicate, 0).unwrap();
    let (other_group, other_below) = {
        let group = bare.group(COPY);
        (group, bare.channel(group, 0).unwrap())
    };
    bare.free(bare.subdevice).unwrap();
    vec![
        ("in a group", in_group, channel, group),
        ("in none", alone, single, single),
        ("in the duplicate of a group", by_duplicate, below, duplicate),
        ("below a device without a subdevice", bare, other_below, other_group),
    ]
}

/// By either escape; an object that is made is none that could be taken away again: another thread
/// might have used it by then.
#[test]
fn what_cannot_be_made_preemptible_does_not_come_to_be() {
    const DRIVERS_NO: [Status; 4] =
        [Status::OBJECT_NOT_FOUND, Status::INVALID_REQUEST, Status::INVALID_ARGUMENT, Status::BUSY_RETRY];
    let OneProgram { spy, container, program, .. } = OneProgram::new();
    for (way, context, channel, owner) in ways(&program) {
        for (class, status) in
            [COMPUTE, INLINE, DRAW_FLAT].into_iter().flat_map(|class| DRIVERS_NO.map(|no| (class, no)))
        {
            spy.refuse(MODE, status);
            spy.escapes(0);
            let made = engine(&context, channel, class);
            assert_eq!(made, Err(Status::INSUFFICIENT_RESOURCES), "{way}, {class:#x}, {status:x?}");
            let mut args = words(&[context.client, channel, 0, class, 0]);
            let answer = program.escape(context.control, 0x28, &mut args);
            assert_eq!(
                result(answer, &args, 16),
                Err(Status::INSUFFICIENT_RESOURCES),
                "{way}, {class:#x}, {status:x?}"
            );
            let classes: Vec<u32> = spy.made_classes();
            assert!(!classes.contains(&class), "{way}: the driver was asked for {classes:x?}");
            assert!(!is_preemptible(&container, &context, owner));
        }
        spy.refuse_nothing();
        engine(&context, channel, COMPUTE).unwrap();
        assert!(is_preemptible(&container, &context, owner), "{way}");
        context.free(context.client).unwrap();
    }
    container.assert_nothing_left();
}

#[test]
fn a_card_that_does_not_know_the_mode_computes() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let (group, channel) = context.group_of_one(GR);
    spy.refuse(MODE, Status::NOT_SUPPORTED);
    engine(&context, channel, COMPUTE).unwrap();
    assert!(!is_preemptible(&container, &context, group));
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    assert!(spy.works(&context, channel));
}

/// The subdevice is the program's own, and it may not go between the question and its answer; nor
/// may the group, to be another one by the same handle.
#[test]
fn nobody_takes_anything_away_while_a_context_is_made_preemptible() {
    for takes_subdevice in [true, false] {
        let OneContext { spy, container, program, context, .. } = OneContext::new();
        let (group, channel) = context.group_of_one(GR);
        let taken = if takes_subdevice { context.subdevice } else { group };
        let client = context.client;
        let thread = (Arc::clone(&container), program.file_of(context.control));
        let freeing = spy.during_elsewhere(MODE, move || {
            let (container, file) = thread;
            let program = container.program();
            program.free(program.give(file), client, taken).unwrap();
        });
        spy.seen();
        let made = engine(&context, channel, COMPUTE);
        assert_eq!(modes(&spy), [(1, group, INSTRUCTIONS, context.subdevice)]);
        freeing.join();
        made.unwrap();
        assert_eq!(is_preemptible(&container, &context, group), takes_subdevice, "the group lives, or has gone since");
    }
}

/// The driver looks for the channel below the subdevice's own device.
#[test]
fn the_channels_own_device_is_asked() {
    let OneContext { spy, context, .. } = OneContext::new();
    for number in 0..8 {
        let device = context.object_below(context.client, NV01_DEVICE_0, &mut device_params(0)).unwrap();
        let subdevice = context.object_below(device, NV20_SUBDEVICE_0, &mut [0; 4]).unwrap();
        let channel = context.channel(device, GR).unwrap();
        spy.seen();
        engine(&context, channel, COMPUTE).unwrap();
        assert_eq!(modes(&spy), [(1, channel, INSTRUCTIONS, subdevice)], "{number}");
    }
}

#[test]
fn there_is_no_other_way_to_an_object_that_computes() {
    let OneContext { spy, program, context, .. } = OneContext::new();
    let other = program.context(0);
    let (group, channel) = context.group_of_one(GR);
    let made = engine(&context, channel, COMPUTE).unwrap();
    spy.escapes(0);
    // Below anything but a channel; a duplicate of one, or of its channel.
    for parent in [context.client, context.device, context.subdevice, made, 0x1234] {
        assert_eq!(engine(&context, parent, COMPUTE), Err(Status::OBJECT_NOT_FOUND), "{parent:#x}");
    }
    assert_eq!(spy.made_classes(), Vec::<u32>::new());
    assert!(engine(&context, group, COMPUTE).is_err());
    for object in [made, channel] {
        assert!(other.dup(&context, object).is_err());
    }
}

#[test]
fn objects_of_3d_take_the_driver_capability_for_graphics() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let channel = context.channel(context.group(GR), 0).unwrap();
    let all: Vec<u32> = (0xb0..=0xcf).map(|generation| generation << 8 | 0x97).collect();
    let known: Vec<u32> = all.iter().copied().filter(|class| abi::classes::class(*class).is_some()).collect();
    assert_eq!(known.len(), 12, "{known:x?}");
    spy.escapes(0);
    for class in &known {
        assert_eq!(engine(&context, channel, *class), Err(Status::INVALID_CLASS), "{class:#x}");
    }
    assert_eq!(spy.made_classes(), Vec::<u32>::new());
    assert_eq!(*lock(&container.observed.lacks_graphics), ["MAXWELL_A"], "told once");
    assert_eq!(container.session.usage().unknown_refused, 0);
    // What a copy or a kernel has beside it is no matter of graphics.
    engine(&context, channel, COMPUTE).unwrap();
    engine(&context, channel, HOPPER_DMA_COPY_A).unwrap();
    let OneContext { container, context, .. } = OneProgram::that_may_draw(1).with_context();
    for class in [DRAW, TURING_A, DRAW_FLAT, INLINE] {
        engine(&context, context.channel(context.group(GR), 0).unwrap(), class).unwrap();
    }
    assert_eq!(*lock(&container.observed.lacks_graphics), Vec::<String>::new());
}

/// The driver refuses the mode in a context that draws, and objects that draw in a context that has
/// it.
#[test]
fn a_context_that_draws_is_left_as_it_is_and_one_that_computes_is_not() {
    let OneContext { spy, container, context, .. } = OneProgram::that_may_draw(1).with_context();
    let (draws, computes) = (context.group(GR), context.group(GR));
    let (drawing, computing) = (context.channel(draws, 0).unwrap(), context.channel(computes, 0).unwrap());
    spy.seen();
    for class in [DRAW_FLAT, INLINE, DRAW] {
        engine(&context, drawing, class).unwrap();
    }
    assert_eq!(modes(&spy), []);
    // As Vulkan does.
    assert_eq!(asked(&spy, &context, draws, BLOCKS), [BLOCKS; 2]);
    engine(&context, drawing, COMPUTE).unwrap();
    assert!(!is_preemptible(&container, &context, draws));
    // What computes only is as it is anywhere.
    spy.refuse(MODE, Status::OBJECT_NOT_FOUND);
    assert_eq!(engine(&context, computing, COMPUTE), Err(Status::INSUFFICIENT_RESOURCES));
    spy.refuse_nothing();
    engine(&context, computing, COMPUTE).unwrap();
    assert!(is_preemptible(&container, &context, computes));
    for named in [computes, computing] {
        assert_eq!(asked(&spy, &context, named, BLOCKS), [INSTRUCTIONS; 2]);
    }
}
