//! Ways to more of a card's time than was granted, or to less for others, that a hostile program
//! may try while it works.

use std::{thread, time::Duration};

use abi::{
    Handle,
    classes::GT200_DEBUGGER,
    controls::*,
    encode,
    params::{
        NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS, NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS, NV83DE_ALLOC_PARAMETERS,
        NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS, NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS, NVA06C_CTRL_BIND_PARAMS,
        NVA06C_CTRL_INTERLEAVE_LEVEL_PARAMS, NVA06C_CTRL_PREEMPT_PARAMS, NVA06F_CTRL_BIND_PARAMS,
        NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS, NVA06F_CTRL_INTERLEAVE_LEVEL_PARAMS, NVA06F_CTRL_STOP_CHANNEL_PARAMS,
    },
};

use crate::{
    RmError,
    bytes::put,
    compute::{ENDLESS, Engine, Group, disable},
};

/// Result of an attack.
#[derive(Debug, Default)]
pub struct Effect {
    /// Calls that were made.
    pub tried: u64,
    /// Those that were answered with success. An answer may be a lie.
    pub accepted: u64,
    /// Engine time that channels got which are gone again.
    pub executed: Duration,
}

impl Effect {
    /// Counts a call. What is refused, by whomever, is no failure of an attack.
    fn count(&mut self, outcome: Result<(), RmError>) -> Result<(), RmError> {
        self.tried += 1;
        match outcome {
            Ok(()) => self.accepted += 1,
            Err(RmError::Refused { .. } | RmError::System { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// One round of an attack, with a group that works.
pub type TimeAttack = fn(&Group<'_>, &mut Effect) -> Result<(), RmError>;

/// All of them, by name.
pub const ATTACKS: &[(&str, TimeAttack)] = &[
    ("own-timeslice", own_timeslice),
    ("duplicate-timeslice", duplicate_timeslice),
    ("channel-properties", channel_properties),
    ("interleave-level", interleave_level),
    ("preemption-mode", preemption_mode),
    ("enable-own", enable_own),
    ("disable-neighbours", disable_neighbours),
    ("schedule-again", schedule_again),
    ("new-channels", new_channels),
    ("new-groups", new_groups),
    ("bind", bind),
    ("stop-reset", stop_reset),
    ("resume", resume),
    ("many-channels", many_channels),
    ("idle-channels", idle_channels),
    ("preempt", preempt),
];

/// For how long a driver is asked to wait, with what everybody's calls need: as long as it lets
/// anybody say.
const HELD_US: u32 = 1_000_000;
/// For how long what has come to be may work before it is looked at what it got: most of the time,
/// no window is open.
const WORKS: Duration = Duration::from_millis(10);

/// Its group stays on the engine for a second.
fn own_timeslice(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    effect.count(group.set_timeslice(1_000_000))
}

/// The same by another handle of the group.
fn duplicate_timeslice(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    let other = crate::Client::open(&client.nodes)?;
    let device = other.device(0)?;
    let handle = match other.duplicate(device.device, client.handle, group.handle) {
        Ok(handle) => handle,
        Err(error) => return effect.count(Err(error)),
    };
    let duplicate = Group { device: &device, handle, channels: Vec::new() };
    effect.count(duplicate.set_timeslice(1_000_000))
}

/// `NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES`: no time slice for its channel.
fn channel_properties(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    type Params = NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS;
    const ENGINE_TIMESLICE: u32 = 0;
    const ENGINE_TIMESLICE_DISABLE: u32 = 2;
    let device = group.device;
    for channel in &group.channels {
        for (property, value) in [(ENGINE_TIMESLICE_DISABLE, 0), (ENGINE_TIMESLICE, 1_000_000)] {
            let mut params = encode!(Params { hChannel: Handle(*channel), property: property, value: value });
            let id = NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES;
            effect.count(device.client.control(device.device, id, &mut params))?;
        }
    }
    Ok(())
}

/// `SET_INTERLEAVE_LEVEL`: high.
fn interleave_level(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    const HIGH: u32 = 2;
    let client = group.device.client;
    let mut params = encode!(NVA06C_CTRL_INTERLEAVE_LEVEL_PARAMS { tsgInterleaveLevel: HIGH });
    effect.count(client.control(group.handle, NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, &mut params))?;
    for channel in &group.channels {
        let mut params = encode!(NVA06F_CTRL_INTERLEAVE_LEVEL_PARAMS { channelInterleaveLevel: HIGH });
        effect.count(client.control(*channel, NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL, &mut params))?;
    }
    Ok(())
}

/// `NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE`: none of its kernels is interrupted.
fn preemption_mode(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    type Params = NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS;
    const BOTH: u32 = 3;
    const WAIT_FOR_IDLE: u32 = 0;
    for channel in &group.channels {
        let mut params = encode!(Params { flags: BOTH, hChannel: Handle(*channel), cilpPreemptMode: WAIT_FOR_IDLE });
        let id = NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE;
        effect.count(group.device.client.control(group.device.subdevice, id, &mut params))?;
    }
    Ok(())
}

/// `DISABLE_CHANNELS` with bDisable = 0: back onto the card whenever somebody has taken it off.
fn enable_own(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client.handle;
    let named: Vec<(u32, u32)> = group.channels.iter().map(|channel| (client, *channel)).collect();
    effect.count(disable(group.device, &named, false))
}

/// `DISABLE_CHANNELS` for everybody near: the driver gives clients numbers in order, and objects as
/// well. What it finds of a list it takes off, whatever else is in there.
fn disable_neighbours(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    const FIRST_HANDLE: u32 = 0xcaf0_0000;
    let own = group.device.client.handle;
    let distance = u32::try_from(effect.tried / 2 % 64).unwrap_or(0) + 1;
    for client in [own.wrapping_sub(distance), own.wrapping_add(distance)] {
        let named: Vec<(u32, u32)> = (FIRST_HANDLE..FIRST_HANDLE + 32).map(|channel| (client, channel)).collect();
        effect.count(disable(group.device, &named, true))?;
    }
    Ok(())
}

/// `GPFIFO_SCHEDULE`, on and off, of the group and of its channels.
fn schedule_again(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    for enable in [0, 1] {
        let mut params = encode!(NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS { bEnable: enable });
        effect.count(client.control(group.handle, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, &mut params))?;
        for channel in &group.channels {
            let mut params = encode!(NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS { bEnable: enable });
            effect.count(client.control(*channel, NVC36F_CTRL_CMD_GPFIFO_SCHEDULE, &mut params))?;
        }
    }
    Ok(())
}

/// A new channel in its group each time, which may not be known to whoever takes channels off.
fn new_channels(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    let Ok(channel) = group.new_channel() else {
        return effect.count(Err(RmError::Refused { what: "a channel".into(), status: 0 }));
    };
    let new = Group { device: group.device, handle: group.handle, channels: vec![channel] };
    effect.count(new.submit(channel, ENDLESS).and_then(|()| new.schedule()))?;
    thread::sleep(WORKS);
    effect.executed += Duration::from_nanos(new.executed_ns()?);
    client.free(channel)
}

/// A new group with four channels each time.
fn new_groups(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let new = match Group::working(group.device, Engine::Compute, 4, ENDLESS) {
        Err(RmError::Refused { .. }) => {
            return effect.count(Err(RmError::Refused { what: "a group".into(), status: 0 }));
        }
        made => made?,
    };
    effect.count(Ok(()))?;
    thread::sleep(WORKS);
    effect.executed += Duration::from_nanos(new.executed_ns()?);
    new.free()
}

/// `BIND`, of the group and of its channels, to the engine that they are on.
fn bind(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    effect.count(client.control(group.handle, NVA06C_CTRL_CMD_BIND, &mut [0; NVA06C_CTRL_BIND_PARAMS::SIZE]))?;
    for channel in &group.channels {
        let mut params = encode!(NVA06F_CTRL_BIND_PARAMS { engineType: Engine::Compute as u32 });
        effect.count(client.control(*channel, NVA06F_CTRL_CMD_BIND, &mut params))?;
    }
    Ok(())
}

/// `STOP_CHANNEL` and `RESET_CHANNEL`: whatever becomes of the channel, it may count as on
/// afterwards.
fn stop_reset(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    for channel in &group.channels {
        let mut params = encode!(NVA06F_CTRL_STOP_CHANNEL_PARAMS { bImmediate: 1 });
        effect.count(client.control(*channel, NVA06F_CTRL_CMD_STOP_CHANNEL, &mut params))?;
        let mut params = encode!(NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS { engineID: Engine::Compute as u32 });
        effect.count(client.control(*channel, NVA06F_CTRL_CMD_RESET_CHANNEL, &mut params))?;
    }
    Ok(())
}

/// A debugger's session over its own group, which suspends the context and resumes it.
fn resume(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    let client = group.device.client;
    let mut params =
        encode!(NV83DE_ALLOC_PARAMETERS { hAppClient: Handle(client.handle), hClass3dObject: Handle(group.handle) });
    let session = match client.alloc(group.device.device, 0, GT200_DEBUGGER, Some(&mut params)) {
        Ok(session) => session,
        Err(error) => return effect.count(Err(error)),
    };
    effect.count(client.control(session, NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT, &mut [0; 8]))?;
    for _ in 0..4 {
        effect.count(client.control(session, NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT, &mut [0; 8]))?;
    }
    client.free(session)
}

/// More channels than two calls of the driver's take on or off, taken off by itself and put back
/// now and then.
fn many_channels(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    const CHANNELS: usize = 144;
    const OF_A_CALL: usize = 64;
    let many = match Group::working(group.device, Engine::Compute, CHANNELS, ENDLESS) {
        Err(RmError::Refused { .. }) => {
            return effect.count(Err(RmError::Refused { what: "many channels".into(), status: 0 }));
        }
        made => made?,
    };
    let client = group.device.client.handle;
    let named: Vec<(u32, u32)> = many.channels.iter().map(|channel| (client, *channel)).collect();
    for off in [true, false] {
        for named in named.chunks(OF_A_CALL) {
            effect.count(disable(group.device, named, off))?;
        }
    }
    effect.executed += Duration::from_nanos(many.executed_ns()?);
    many.free()
}

/// `IDLE_CHANNELS` of channels that always have work.
fn idle_channels(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    type Params = NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS;
    let mut params = encode!(Params { numChannels: 1, timeout: HELD_US });
    if let Some(first) = Params::hChannels.element(0) {
        put(&mut params, first, Handle(group.channels.first().copied().unwrap_or_default()));
    }
    let id = NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS;
    effect.count(group.device.client.control(group.device.device, id, &mut params))
}

/// `PREEMPT` with a time of its own to wait.
fn preempt(group: &Group<'_>, effect: &mut Effect) -> Result<(), RmError> {
    type Params = NVA06C_CTRL_PREEMPT_PARAMS;
    let mut params = encode!(Params { bWait: 1, bManualTimeout: 1, timeoutUs: HELD_US });
    effect.count(group.device.client.control(group.handle, NVA06C_CTRL_CMD_PREEMPT, &mut params))
}
