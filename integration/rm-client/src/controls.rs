//! The controls by which a program could decide how a card is shared, or stop others there: each
//! tried once.

use abi::{
    Handle,
    classes::GT200_DEBUGGER,
    controls::*,
    encode,
    escapes::NV_ESC_RM_IDLE_CHANNELS,
    params::{NV83DE_ALLOC_PARAMETERS, NVOS30_PARAMETERS},
};

use crate::{
    RmError,
    bytes::{put_bytes, words},
    client::address_of,
    compute::{Engine, Group, disable},
    device::Device,
};

/// Handles that calls name.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// Its owner.
    pub client: u32,
    /// Of a card.
    pub device: u32,
    /// Below it.
    pub subdevice: u32,
    /// A channel group there.
    pub group: u32,
    pub channel: u32,
}

/// The object that a control is made on.
#[derive(Debug, Clone, Copy)]
enum Target {
    Device,
    Subdevice,
    Group,
    Channel,
}

/// The beginning of its parameters; the others are 0.
#[derive(Debug, Clone, Copy)]
enum FirstParam {
    Nothing,
    Number(u32),
    Channel,
    Group,
    /// A number of channels.
    OneChannel,
    /// Flags, then a channel.
    SecondChannel,
    /// A list of clients, and one of channels, of this many each.
    Lists(usize),
}

/// Name, object, number, bytes of parameters, what these begin with.
type ControlRow = (&'static str, Target, u32, usize, FirstParam);

/// Those that nobody may use, whatever they name.
const REFUSED: &[ControlRow] = &[
    (
        "FIFO_SET_CHANNEL_PROPERTIES",
        Target::Device,
        NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES,
        16,
        FirstParam::Channel,
    ),
    (
        "FIFO_START_SELECTED_CHANNELS",
        Target::Device,
        NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS,
        8,
        FirstParam::OneChannel,
    ),
    ("FIFO_STOP_RUNLIST", Target::Device, NV0080_CTRL_CMD_FIFO_STOP_RUNLIST, 4, FirstParam::Number(1)),
    ("FIFO_START_RUNLIST", Target::Device, NV0080_CTRL_CMD_FIFO_START_RUNLIST, 4, FirstParam::Number(1)),
    (
        "SUBDEVICE_SET_TPC_PARTITION_MODE",
        Target::Subdevice,
        NV2080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE,
        32,
        FirstParam::Group,
    ),
    ("SET_TPC_PARTITION_TABLE", Target::Group, NV9067_CTRL_CMD_SET_TPC_PARTITION_TABLE, 1028, FirstParam::Number(1)),
    (
        "FIFO_RUNLIST_SET_SCHED_POLICY",
        Target::Subdevice,
        NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY,
        8,
        FirstParam::Nothing,
    ),
    ("FIFO_OBJSCHED_SET_STATE", Target::Subdevice, NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE, 24, FirstParam::Number(1)),
    (
        "FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION",
        Target::Subdevice,
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION,
        520,
        FirstParam::Lists(64),
    ),
    (
        "FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2",
        Target::Subdevice,
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2,
        520,
        FirstParam::Lists(64),
    ),
    (
        "FIFO_DISABLE_USERMODE_CHANNELS",
        Target::Subdevice,
        NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS,
        4,
        FirstParam::Number(1),
    ),
    (
        "FIFO_CONFIG_CTXSW_TIMEOUT",
        Target::Subdevice,
        NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT,
        8,
        FirstParam::Number(1),
    ),
    ("GPU_EVICT_CTX", Target::Subdevice, NV2080_CTRL_CMD_GPU_EVICT_CTX, 24, FirstParam::Number(1)),
    (
        "GPU_SET_COMPUTE_MODE_RULES",
        Target::Subdevice,
        NV2080_CTRL_CMD_GPU_SET_COMPUTE_MODE_RULES,
        4,
        FirstParam::Number(1),
    ),
    (
        "GPU_SET_COMPUTE_POLICY_CONFIG",
        Target::Subdevice,
        NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG,
        24,
        FirstParam::Nothing,
    ),
    ("GPU_MARK_DEVICE_FOR_RESET", Target::Subdevice, NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_RESET, 0, FirstParam::Nothing),
    (
        "GPU_UNMARK_DEVICE_FOR_RESET",
        Target::Subdevice,
        NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_RESET,
        0,
        FirstParam::Nothing,
    ),
    (
        "GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET",
        Target::Subdevice,
        NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET,
        0,
        FirstParam::Nothing,
    ),
    (
        "GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET",
        Target::Subdevice,
        NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET,
        0,
        FirstParam::Nothing,
    ),
    ("RC_DISABLE_WATCHDOG", Target::Subdevice, NV2080_CTRL_CMD_RC_DISABLE_WATCHDOG, 0, FirstParam::Nothing),
    ("RC_ENABLE_WATCHDOG", Target::Subdevice, NV2080_CTRL_CMD_RC_ENABLE_WATCHDOG, 0, FirstParam::Nothing),
    ("SET_RC_RECOVERY", Target::Subdevice, NV2080_CTRL_CMD_SET_RC_RECOVERY, 4, FirstParam::Number(1)),
    ("PERF_SET_POWERSTATE", Target::Subdevice, NV2080_CTRL_CMD_PERF_SET_POWERSTATE, 4, FirstParam::Nothing),
    ("GROUP_SET_INTERLEAVE_LEVEL", Target::Group, NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, 4, FirstParam::Number(2)),
    ("GROUP_MAKE_REALTIME", Target::Group, NVA06C_CTRL_CMD_MAKE_REALTIME, 1, FirstParam::Nothing),
    ("GROUP_INTERNAL_GPFIFO_SCHEDULE", Target::Group, NVA06C_CTRL_CMD_INTERNAL_GPFIFO_SCHEDULE, 3, FirstParam::Nothing),
    (
        "GROUP_INTERNAL_SET_TIMESLICE",
        Target::Group,
        NVA06C_CTRL_CMD_INTERNAL_SET_TIMESLICE,
        8,
        FirstParam::Number(1_000_000),
    ),
    ("CHANNEL_SET_INTERLEAVE_LEVEL", Target::Channel, NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL, 4, FirstParam::Number(2)),
    ("CHANNEL_RESTART_RUNLIST", Target::Channel, NVA06F_CTRL_CMD_RESTART_RUNLIST, 2, FirstParam::Nothing),
    ("CHANNEL_RESET_ISOLATED", Target::Channel, NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL, 8, FirstParam::Number(1)),
    ("CHANNEL_SET_HW_STATE", Target::Channel, NVB06F_CTRL_CMD_SET_CHANNEL_HW_STATE, 1, FirstParam::Nothing),
];

/// Those that a program may use for what is its own.
const OWN_ONLY: &[ControlRow] = &[
    ("FIFO_IDLE_CHANNELS", Target::Device, NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS, 16396, FirstParam::OneChannel),
    (
        "GR_SET_CTXSW_PREEMPTION_MODE",
        Target::Subdevice,
        NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE,
        32,
        FirstParam::SecondChannel,
    ),
    ("DEVICE_SET_TPC_PARTITION_MODE", Target::Device, NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE, 32, FirstParam::Group),
    ("GROUP_GPFIFO_SCHEDULE", Target::Group, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, 3, FirstParam::Nothing),
    ("GROUP_BIND", Target::Group, NVA06C_CTRL_CMD_BIND, 4, FirstParam::Nothing),
    ("GROUP_SET_TIMESLICE", Target::Group, NVA06C_CTRL_CMD_SET_TIMESLICE, 8, FirstParam::Number(1)),
    ("GROUP_GET_TIMESLICE", Target::Group, NVA06C_CTRL_CMD_GET_TIMESLICE, 8, FirstParam::Nothing),
    ("GROUP_PREEMPT", Target::Group, NVA06C_CTRL_CMD_PREEMPT, 8, FirstParam::Nothing),
    ("CHANNEL_GPFIFO_SCHEDULE", Target::Channel, NVC36F_CTRL_CMD_GPFIFO_SCHEDULE, 3, FirstParam::Nothing),
    ("CHANNEL_BIND", Target::Channel, NVC36F_CTRL_CMD_BIND, 4, FirstParam::Number(1)),
    ("CHANNEL_STOP", Target::Channel, NVA06F_CTRL_CMD_STOP_CHANNEL, 1, FirstParam::Nothing),
    ("CHANNEL_RESET", Target::Channel, NV906F_CTRL_CMD_RESET_CHANNEL, 16, FirstParam::Number(1)),
];

impl Objects {
    /// One's own. A real driver may make no channel, or no group, of so few parameters: others
    /// stand in for them then.
    pub fn own(device: &Device<'_>) -> Self {
        let (handle, channel) = match Group::new(device, Engine::Compute, 1) {
            Ok(group) => (group.handle, group.channels.first().copied().unwrap_or(group.handle)),
            Err(_) => (device.subdevice, device.subdevice),
        };
        let (client, subdevice) = (device.client.handle, device.subdevice);
        Self { client, device: device.device, subdevice, group: handle, channel }
    }

    const fn on(&self, on: Target) -> u32 {
        match on {
            Target::Device => self.device,
            Target::Subdevice => self.subdevice,
            Target::Group => self.group,
            Target::Channel => self.channel,
        }
    }

    fn params(&self, length: usize, first: FirstParam) -> Vec<u8> {
        match first {
            FirstParam::Nothing => vec![0; length],
            FirstParam::Number(number) => words([number], length),
            FirstParam::Channel => words([self.channel], length),
            FirstParam::Group => words([self.group], length),
            FirstParam::OneChannel => words([1, self.channel], length),
            FirstParam::SecondChannel => words([1, self.channel], length),
            FirstParam::Lists(many) => {
                let mut params = words([1, self.client], length);
                put_bytes(&mut params, 4 + 4 * many, &self.channel.to_le_bytes());
                params
            }
        }
    }
}

/// Tries each control that nobody may use, on one's own objects.
pub fn try_own(device: &Device<'_>) -> Vec<(&'static str, Result<(), RmError>)> {
    try_all(device, &Objects::own(device), &[REFUSED])
}

/// Tries each control, and the calls that name other clients, on another's objects.
pub fn try_others(device: &Device<'_>, objects: &Objects) -> Vec<(&'static str, Result<(), RmError>)> {
    let mut outcomes = try_all(device, objects, &[REFUSED, OWN_ONLY]);
    let named = [(objects.client, objects.channel)];
    outcomes.push(("disable", disable(device, &named, true)));
    // Its own and the other's: what is found is done, whatever else is in the list.
    let group = Group::new(device, Engine::Compute, 1);
    let own = group.iter().flat_map(|group| &group.channels).map(|channel| (device.client.handle, *channel));
    let both: Vec<(u32, u32)> = own.chain(named).collect();
    outcomes.push(("disable-both", disable(device, &both, true)));
    outcomes.push(("duplicate", device.client.duplicate(device.device, objects.client, objects.group).map(drop)));
    outcomes.push(("debug", debug(device, objects)));
    outcomes.push(("idle", idle(device, objects)));
    outcomes
}

fn try_all(
    device: &Device<'_>,
    objects: &Objects,
    tables: &[&[ControlRow]],
) -> Vec<(&'static str, Result<(), RmError>)> {
    let own = Objects { client: device.client.handle, device: device.device, subdevice: device.subdevice, ..*objects };
    let mut outcomes = Vec::new();
    for (name, on, number, length, first) in tables.iter().copied().flatten() {
        let control = |objects: &Objects| {
            let mut params = objects.params(*length, *first);
            device.client.control_in(objects.client, objects.on(*on), *number, &mut params)
        };
        let outcome = control(objects);
        // By the other's client, and by the own one with the other's channels and groups as what is
        // named.
        outcomes.push((*name, if outcome.is_ok() { outcome } else { control(&own) }));
    }
    outcomes
}

/// A debugger's session over the other's group.
fn debug(device: &Device<'_>, objects: &Objects) -> Result<(), RmError> {
    let mut params =
        encode!(NV83DE_ALLOC_PARAMETERS { hAppClient: Handle(objects.client), hClass3dObject: Handle(objects.group) });
    device.client.alloc(device.device, 0, GT200_DEBUGGER, Some(&mut params)).map(drop)
}

/// `NV_ESC_RM_IDLE_CHANNELS`, the older call.
fn idle(device: &Device<'_>, objects: &Objects) -> Result<(), RmError> {
    let mut lists = [objects.client, objects.device, objects.channel].map(u32::to_le_bytes);
    let [clients, devices, channels] = lists.each_mut().map(|list| address_of(list));
    let mut args = encode!(NVOS30_PARAMETERS {
        hClient: Handle(device.client.handle),
        hDevice: Handle(device.device),
        hChannel: Handle(device.device),
        numChannels: 1,
        phClients: clients,
        phDevices: devices,
        phChannels: channels,
    });
    device.client.escape("idle channels", NV_ESC_RM_IDLE_CHANNELS, &mut args, NVOS30_PARAMETERS::status)
}
