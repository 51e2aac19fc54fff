//! The container's own scheduling controls: none of them gets it more of the card, or others less.

use abi::{
    Status,
    classes::{BLACKWELL_INLINE_TO_MEMORY_A, HOPPER_COMPUTE_A, TURING_A, TURING_COMPUTE_A},
    controls::{
        NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS, NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES,
        NV0080_CTRL_CMD_FIFO_START_RUNLIST, NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS,
        NV0080_CTRL_CMD_FIFO_STOP_RUNLIST, NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE,
        NV0090_CTRL_CMD_SET_TPC_PARTITION_MODE, NV906F_CTRL_CMD_RESET_CHANNEL, NV2080_CTRL_CMD_FIFO_BIND_ENGINES,
        NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION,
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2, NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS,
        NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE, NV2080_CTRL_CMD_FIFO_ROTATE_KEYS,
        NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY, NV2080_CTRL_CMD_GPU_EVICT_CTX,
        NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET, NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_RESET,
        NV2080_CTRL_CMD_GPU_SET_COMPUTE_MODE_RULES, NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG,
        NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET, NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_RESET,
        NV2080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE, NV2080_CTRL_CMD_PERF_SET_POWERSTATE,
        NV2080_CTRL_CMD_SET_OPERATIONAL_PROPERTIES, NV2080_CTRL_CMD_SET_RC_RECOVERY,
        NV9067_CTRL_CMD_SET_TPC_PARTITION_TABLE, NVA06C_CTRL_CMD_INTERNAL_GPFIFO_SCHEDULE,
        NVA06C_CTRL_CMD_INTERNAL_SET_TIMESLICE, NVA06C_CTRL_CMD_MAKE_REALTIME, NVA06C_CTRL_CMD_PREEMPT,
        NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, NVA06F_CTRL_CMD_BIND, NVA06F_CTRL_CMD_RESET_CHANNEL,
        NVA06F_CTRL_CMD_RESTART_RUNLIST, NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL, NVA06F_CTRL_CMD_STOP_CHANNEL,
        NVB06F_CTRL_CMD_SET_CHANNEL_HW_STATE, NVC36F_CTRL_CMD_BIND, NVC36F_CTRL_CMD_RESET_CHANNEL,
    },
    layout::{read_u32, read_u64, write_u32},
};
use schedule::Edge;

use super::{
    alone::{OneContext, OneProgram},
    spy::{COPY, DISABLE, GET_TIMESLICE, GR, NVDEC, SCHEDULE_CHANNEL, SCHEDULE_GROUP, SET_TIMESLICE, Spy},
    world::{Context, Machine, struct_with, words},
};

#[test]
fn a_program_cannot_put_itself_back_in_the_off_time() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channels = context.scheduled(GR, 2);
    let named: Vec<_> = channels.iter().map(|channel| (context.client, *channel)).collect();
    let video = context.scheduled(NVDEC, 1)[0];
    gate.close().unwrap();
    spy.seen();
    for _ in 0..3 {
        // The first call since would count as one that moves the gate, if it did.
        context.disable(false, &named).unwrap();
    }
    assert_eq!(spy.seen().iter().filter(|seen| seen.id == DISABLE && seen.params[0] == 0).count(), 0);
    // Stopped and started again; with a channel that is not throttled.
    let all: Vec<_> = named.iter().copied().chain([(context.client, video)]).collect();
    context.disable(true, &all).unwrap();
    assert!(!spy.works(&context, video));
    context.disable(false, &all).unwrap();
    assert!(spy.works(&context, video));
    assert!(spy.none_works(&context, &channels));
    gate.open().unwrap();
    assert!(spy.all_work(&context, &channels));
}

#[test]
fn what_a_program_has_taken_off_stays_off() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channels = context.scheduled(GR, 2);
    let first = [(context.client, channels[0])];
    // In the window, and again out of it.
    context.disable(true, &first).unwrap();
    for _ in 0..2 {
        assert_eq!(gate.close().unwrap(), Edge { channels: 1, calls: 1 });
        context.disable(true, &first).unwrap();
        assert_eq!(gate.open().unwrap(), Edge { channels: 1, calls: 1 });
        assert!(!spy.works(&context, channels[0]) && spy.works(&context, channels[1]));
    }
    context.disable(false, &first).unwrap();
    assert!(spy.works(&context, channels[0]));
    // What the driver refuses is not remembered.
    spy.refuse(DISABLE, Status::INVALID_STATE);
    assert_eq!(context.disable(true, &first), Err(Status::INVALID_STATE));
    spy.refuse_nothing();
    assert_eq!(gate.close().unwrap().channels, 2);
    assert_eq!(gate.open().unwrap().channels, 2);
}

#[test]
fn nobody_is_let_off_for_having_been_taken_off_too_early() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let (group, channel) = context.group_of_one(GR);
    // It has no effect on the card, and none here.
    context.disable(true, &[(context.client, channel)]).unwrap();
    context.schedule(group, SCHEDULE_GROUP).unwrap();
    assert!(spy.works(&context, channel));
    spy.assert_obey(&*gate, &context, &[channel]);
}

#[test]
fn a_program_that_enables_while_the_gate_closes_is_taken_off() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let channel = context.scheduled(GR, 1)[0];
    context.disable(true, &[(context.client, channel)]).unwrap();
    let closing = spy.during_elsewhere(DISABLE, move || assert!(gate.close().is_ok()));
    context.disable(false, &[(context.client, channel)]).unwrap();
    closing.join();
    assert!(!spy.works(&context, channel));
}

#[test]
fn only_own_channels_can_be_named() {
    let machine = Machine::new(2);
    let spy = Spy::new(&machine);
    let (victims, attackers) = (spy.container(&machine), spy.container_with(&machine, &[0, 1]));
    let (victim, attacker) = (victims.program(), attackers.program());
    let (target, own, elsewhere) = (victim.context(0), attacker.context(0), attacker.context(1));
    let channel = target.scheduled(GR, 1)[0];
    let mine = own.scheduled(GR, 1)[0];
    let away = elsewhere.scheduled(GR, 1)[0];
    spy.seen();
    for disable in [true, false] {
        for (named, refused) in [
            (vec![(target.client, channel)], Status::INVALID_CLIENT),
            (vec![(own.client, mine), (target.client, channel)], Status::INVALID_CLIENT),
            (vec![(own.client, mine), (own.client, 0x1234)], Status::INVALID_CHANNEL),
            (vec![(own.client, own.device)], Status::INVALID_CHANNEL),
            (vec![(elsewhere.client, away)], Status::INVALID_CHANNEL),
        ] {
            assert_eq!(own.disable(disable, &named), Err(refused), "{named:?}");
        }
        let mut many = vec![0; 536];
        many[0] = u8::from(disable);
        assert!(write_u32(&mut many, 4, 65));
        assert_eq!(own.subdevice_control(DISABLE, &mut many), Err(Status::INVALID_ARGUMENT));
        assert_eq!(own.subdevice_control(DISABLE, &mut [0; 100]), Err(Status::INVALID_ARGUMENT));
        assert!(own.control(own.device, DISABLE, &mut vec![0; 536]).is_err(), "not a subdevice");
    }
    assert_eq!(spy.count(DISABLE), 0, "nothing of this reaches the driver");
    assert!(spy.works(&target, channel));
}

#[test]
fn the_kernels_event_is_not_the_containers_to_name() {
    let OneContext { spy, context, .. } = OneContext::new();
    let channel = context.scheduled(GR, 1)[0];
    let mut params = vec![0; 536];
    params[0] = 1;
    assert!(write_u32(&mut params, 4, 1));
    params[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(write_u32(&mut params, 24, context.client) && write_u32(&mut params, 280, channel));
    let given = params.clone();
    spy.seen();
    context.subdevice_control(DISABLE, &mut params).unwrap();
    assert_eq!(params, given, "what the program gave is as it was");
    let seen = spy.seen();
    assert_eq!(read_u64(&seen[0].params, 16), Some(0));
}

fn set_slice(context: &Context, group: u32, slice_us: u64) -> Result<(), Status> {
    let mut params = slice_us.to_le_bytes();
    let set = context.control(group, SET_TIMESLICE, &mut params);
    assert_eq!(params, slice_us.to_le_bytes(), "what the program gave is as it was");
    set
}

fn slice(context: &Context, group: u32) -> u64 {
    let mut params = [0; 8];
    context.control(group, GET_TIMESLICE, &mut params).unwrap();
    u64::from_le_bytes(params)
}

#[test]
fn time_slices_are_the_grants() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    let (group, _) = context.scheduled_group(GR);
    assert_eq!(slice(&context, group), 1024, "the driver's");
    // While slices are left to programs, they are bounded.
    set_slice(&context, group, 500).unwrap();
    assert_eq!((spy.slice(&context, group), slice(&context, group)), (Some(500), 500));
    set_slice(&context, group, 1_000_000).unwrap();
    assert_eq!((spy.slice(&context, group), slice(&context, group)), (Some(2048), 1_000_000));
    assert_eq!(set_slice(&context, group, 0), Err(Status::INVALID_ARGUMENT));

    gate.set_slice(Some(300)).unwrap();
    spy.seen();
    for asked in [2048, 1_000_000, u64::MAX] {
        set_slice(&context, group, asked).unwrap();
        assert_eq!((spy.slice(&context, group), slice(&context, group)), (Some(300), asked));
    }
    assert_eq!(spy.seen().iter().filter(|seen| [SET_TIMESLICE, GET_TIMESLICE].contains(&seen.id)).count(), 0);
    // A new group has it at once, and its program sees the driver's default.
    let (new, _) = context.group_of_one(GR);
    assert_eq!(slice(&context, new), 1024);
    context.schedule(new, SCHEDULE_GROUP).unwrap();
    assert_eq!(spy.slice(&context, new), Some(300));
    // One whose channels are scheduled one by one, too.
    let (single, channel) = context.group_of_one(GR);
    context.schedule(channel, SCHEDULE_CHANNEL).unwrap();
    assert_eq!(spy.slice(&context, single), Some(300));
    // Copies are not divided by slices; without a group nobody could set one.
    let (copies, _) = context.scheduled_group(COPY);
    assert_eq!(spy.slice(&context, copies), None);
    let bare = context.channel(context.device, GR).unwrap();
    assert_eq!(context.schedule(bare, SCHEDULE_CHANNEL), Err(Status::NOT_SUPPORTED));
    assert_eq!(gate.groups(), 3);

    gate.set_slice(Some(400)).unwrap();
    assert!([group, new, single].iter().all(|group| spy.slice(&context, *group) == Some(400)));
    gate.set_slice(None).unwrap();
    let slices = [group, new, single].map(|group| spy.slice(&context, group));
    assert_eq!(slices, [Some(2048), Some(1024), Some(1024)]);
    context.schedule(bare, SCHEDULE_CHANNEL).unwrap();
    assert_eq!(gate.groups(), 4);
}

#[test]
fn a_slice_that_changes_in_the_middle_of_a_call_has_the_last_word() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    let (group, _) = context.scheduled_group(GR);
    let gate = container.gate();
    spy.during(SET_TIMESLICE, move || gate.set_slice(Some(300)).unwrap());
    set_slice(&context, group, 2000).unwrap();
    assert_eq!(spy.slice(&context, group), Some(300));
    let gate = container.gate();
    let (new, _) = context.group_of_one(GR);
    spy.during(SCHEDULE_GROUP, move || gate.set_slice(Some(600)).unwrap());
    context.schedule(new, SCHEDULE_GROUP).unwrap();
    assert_eq!([group, new].map(|group| spy.slice(&context, group)), [Some(600); 2]);
    // While the new group gets its first.
    let gate = container.gate();
    let (newest, _) = context.group_of_one(GR);
    spy.during(SET_TIMESLICE, move || gate.set_slice(Some(700)).unwrap());
    context.schedule(newest, SCHEDULE_GROUP).unwrap();
    assert_eq!(spy.slice(&context, newest), Some(700));
}

#[test]
fn nobody_makes_the_driver_wait_for_a_preemption_or_for_channels_that_have_work() {
    let OneContext { spy, program, context, .. } = OneContext::new();
    let channel = context.scheduled(GR, 1)[0];
    // Not for as long as the program says.
    let mut preempt = [1, 1, 0, 0, 0x40, 0x42, 0x0f, 0];
    spy.seen();
    let _ = context.control(context.group(GR), NVA06C_CTRL_CMD_PREEMPT, &mut preempt);
    assert_eq!(spy.seen()[0].params, [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(preempt, [1, 1, 0, 0, 0x40, 0x42, 0x0f, 0]);
    // {numChannels, hChannels[4096], flags, timeout}
    let mut params = struct_with(16396, &[(0, 1), (4, channel), (16392, u32::MAX)]);
    let given = params.clone();
    spy.seen();
    let _ = context.control(context.device, NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS, &mut params);
    assert_eq!(read_u32(&spy.seen()[0].params, 16392), Some(1000));
    assert_eq!(params, given);
    // {hClient, hDevice, hChannel, numChannels, 3 lists, flags: a single one, timeout, status}
    let mut args = words(&[context.client, context.device, channel, 0]);
    args.extend([0; 24]);
    args.extend(words(&[0x10, u32::MAX, 0, 0]));
    spy.escapes(0);
    program.escape(context.control, 0x41, &mut args);
    let seen = spy.escapes(0x41);
    assert_eq!((seen.len(), read_u32(&seen[0], 44)), (1, Some(1000)));
    assert_eq!(read_u32(&args, 44), Some(u32::MAX));
    // Stopped when it has no work, or at once.
    let mut stop = [0];
    spy.seen();
    let _ = context.control(channel, NVA06F_CTRL_CMD_STOP_CHANNEL, &mut stop);
    assert_eq!((spy.seen()[0].params.as_slice(), stop), ([1].as_slice(), [0]));
}

#[test]
fn an_engine_that_is_bound_or_used_counts() {
    let OneContext { spy, context, gate, .. } = OneContext::new();
    // Called a video decoder's, then bound to compute; or given an object of compute.
    let (bound, used) = (context.scheduled(NVDEC, 1)[0], context.scheduled(NVDEC, 1)[0]);
    assert_eq!(gate.channels(), 0);
    let _ = context.control(bound, NVA06F_CTRL_CMD_BIND, &mut GR.to_le_bytes());
    context.object_below(used, HOPPER_COMPUTE_A, &mut [0; 8]).unwrap();
    assert_eq!(gate.channels(), 2);
    gate.close().unwrap();
    assert!(!spy.works(&context, bound) && !spy.works(&context, used));
    // In the off time as well.
    let (bound, used) = (context.scheduled(NVDEC, 1)[0], context.scheduled(NVDEC, 1)[0]);
    assert!(spy.works(&context, bound));
    let _ = context.control(bound, NVC36F_CTRL_CMD_BIND, &mut COPY.to_le_bytes());
    context.object_below(used, HOPPER_COMPUTE_A, &mut [0; 8]).unwrap();
    assert!(!spy.works(&context, bound) && !spy.works(&context, used));
}

#[test]
fn a_group_is_what_any_of_its_channels_is_found_to_be() {
    let OneContext { spy, context, gate, .. } = OneProgram::that_may_draw(1).with_context();
    // Cards before Ampere do not look at what is said of a group: 3D, compute, memory to memory.
    for class in [TURING_A, TURING_COMPUTE_A, BLACKWELL_INLINE_TO_MEMORY_A] {
        let group = context.group(NVDEC);
        let (one, other) = (context.channel(group, 0).unwrap(), context.channel(group, 0).unwrap());
        context.schedule(group, SCHEDULE_GROUP).unwrap();
        context.object_below(one, class, &mut [0; 8]).unwrap();
        let late = context.channel(group, 0).unwrap();
        gate.close().unwrap();
        assert!(spy.none_works(&context, &[one, other, late]), "{class:#x}");
        gate.open().unwrap();
    }
}

#[test]
fn a_channel_that_is_stopped_or_reset_obeys_afterwards() {
    let OneContext { spy, container, context, .. } = OneContext::new();
    // Nor does one that is scheduled or bound again.
    let again = [(SCHEDULE_CHANNEL, 3), (NVA06F_CTRL_CMD_BIND, 4)];
    let stopped = [
        NVA06F_CTRL_CMD_STOP_CHANNEL,
        NV906F_CTRL_CMD_RESET_CHANNEL,
        NVA06F_CTRL_CMD_RESET_CHANNEL,
        NVC36F_CTRL_CMD_RESET_CHANNEL,
    ]
    .map(|id| (id, 16));
    for (id, size) in again.into_iter().chain(stopped) {
        let channel = context.scheduled(GR, 1)[0];
        container.gate().close().unwrap();
        // As if it had waited as long as calls do.
        container.session.hurry(true);
        let mut params = vec![0; size];
        params[0] = 1;
        spy.seen();
        let _ = context.control(channel, id, &mut params);
        let seen: Vec<_> = spy.seen().iter().map(|seen| (seen.id, seen.params[0])).collect();
        // Whatever it was before, it is off: taken off once more, and never put on to do so.
        assert_eq!(seen, [(id, 1), (DISABLE, 1)]);
        assert!(!spy.works(&context, channel));
        container.session.hurry(false);
        container.gate().open().unwrap();
        assert!(spy.works(&context, channel));
    }
}

#[test]
fn a_partition_mode_is_an_own_groups() {
    let OneProgram { spy, container, program, .. } = OneProgram::new();
    let other = container.program();
    let (context, others) = (program.context(0), other.context(0));
    let others_channel = others.scheduled(GR, 1)[0];
    let channel = context.scheduled(GR, 1)[0];
    let group = context.group(GR);
    spy.seen();
    let set = |group: u32| {
        let mut params = words(&[group, 2, 0, 0, 0, 0, 0, 0]);
        context.control(context.device, NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE, &mut params)
    };
    for none in [0, channel, context.device, context.client, others_channel] {
        assert_eq!(set(none), Err(Status::OBJECT_NOT_FOUND), "{none:#x}");
    }
    assert_eq!(spy.seen(), []);
    assert_eq!(set(group), Ok(()));
}

#[test]
fn what_schedules_for_others_never_reaches_the_driver() {
    let OneContext { spy, context, .. } = OneContext::new();
    let (group, channel) = context.scheduled_group(GR);
    spy.seen();
    let controls = [
        (group, NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL),
        (channel, NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL),
        (group, NVA06C_CTRL_CMD_MAKE_REALTIME),
        (group, NVA06C_CTRL_CMD_INTERNAL_GPFIFO_SCHEDULE),
        (group, NVA06C_CTRL_CMD_INTERNAL_SET_TIMESLICE),
        (channel, NVA06F_CTRL_CMD_RESTART_RUNLIST),
        (context.subdevice, NV2080_CTRL_CMD_SET_OPERATIONAL_PROPERTIES),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_ROTATE_KEYS),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE),
        (context.subdevice, NV2080_CTRL_CMD_FIFO_BIND_ENGINES),
        (context.subdevice, NV2080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE),
        (channel, NV9067_CTRL_CMD_SET_TPC_PARTITION_TABLE),
        (channel, NV0090_CTRL_CMD_SET_TPC_PARTITION_MODE),
        (channel, NVB06F_CTRL_CMD_SET_CHANNEL_HW_STATE),
        (context.device, NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS),
        (context.device, NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES),
        (context.device, NV0080_CTRL_CMD_FIFO_STOP_RUNLIST),
        (context.device, NV0080_CTRL_CMD_FIFO_START_RUNLIST),
        (context.subdevice, NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_RESET),
        (context.subdevice, NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_RESET),
        (context.subdevice, NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET),
        (context.subdevice, NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET),
        (context.subdevice, NV2080_CTRL_CMD_GPU_EVICT_CTX),
        (context.subdevice, NV2080_CTRL_CMD_GPU_SET_COMPUTE_MODE_RULES),
        (context.subdevice, NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG),
        (context.subdevice, NV2080_CTRL_CMD_PERF_SET_POWERSTATE),
        (context.subdevice, NV2080_CTRL_CMD_SET_RC_RECOVERY),
        // IDLE_CHANNELS of the client.
        (context.client, 0x0000_0283),
    ];
    for (object, id) in controls {
        let mut params = [0; 256];
        let refused = context.control(object, id, &mut params);
        assert!(
            matches!(refused, Err(Status::NOT_SUPPORTED | Status::INSUFFICIENT_PERMISSIONS)),
            "{id:#x}: {refused:?}"
        );
        assert_eq!(spy.seen(), [], "{id:#x}");
    }
}
