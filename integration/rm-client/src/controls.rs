//! The controls by which a program could decide how a card is shared, or stop others there: each
//! tried once.

use crate::{
    RmError,
    bytes::{put, put_u64, words},
    client::address_of,
    compute::{Engine, Group, disable},
    device::Device,
};

/// Handles that calls name.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// Whose.
    pub client: u32,
    /// Of a card.
    pub device: u32,
    /// Below it.
    pub subdevice: u32,
    /// A channel group there.
    pub group: u32,
    /// A channel in it.
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
    ("FIFO_SET_CHANNEL_PROPERTIES", Target::Device, 0x0080_170f, 16, FirstParam::Channel),
    ("FIFO_START_SELECTED_CHANNELS", Target::Device, 0x0080_1705, 8, FirstParam::OneChannel),
    ("FIFO_STOP_RUNLIST", Target::Device, 0x0080_1711, 4, FirstParam::Number(1)),
    ("FIFO_START_RUNLIST", Target::Device, 0x0080_1712, 4, FirstParam::Number(1)),
    ("DEVICE_SET_TPC_PARTITION_MODE", Target::Device, 0x0080_1108, 32, FirstParam::Group),
    ("SUBDEVICE_SET_TPC_PARTITION_MODE", Target::Subdevice, 0x2080_122c, 32, FirstParam::Group),
    ("SET_TPC_PARTITION_TABLE", Target::Group, 0x9067_0102, 1028, FirstParam::Number(1)),
    ("FIFO_RUNLIST_SET_SCHED_POLICY", Target::Subdevice, 0x2080_1115, 8, FirstParam::Nothing),
    ("FIFO_OBJSCHED_SET_STATE", Target::Subdevice, 0x2080_1121, 24, FirstParam::Number(1)),
    ("FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION", Target::Subdevice, 0x2080_111a, 520, FirstParam::Lists(64)),
    ("FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2", Target::Subdevice, 0x2080_111b, 520, FirstParam::Lists(64)),
    ("FIFO_DISABLE_USERMODE_CHANNELS", Target::Subdevice, 0x2080_1117, 4, FirstParam::Number(1)),
    ("FIFO_CONFIG_CTXSW_TIMEOUT", Target::Subdevice, 0x2080_1110, 8, FirstParam::Number(1)),
    ("GPU_EVICT_CTX", Target::Subdevice, 0x2080_012c, 24, FirstParam::Number(1)),
    ("GPU_SET_COMPUTE_MODE_RULES", Target::Subdevice, 0x2080_0130, 4, FirstParam::Number(1)),
    ("GPU_SET_COMPUTE_POLICY_CONFIG", Target::Subdevice, 0x2080_0194, 24, FirstParam::Nothing),
    ("GPU_MARK_DEVICE_FOR_RESET", Target::Subdevice, 0x2080_01a9, 0, FirstParam::Nothing),
    ("GPU_UNMARK_DEVICE_FOR_RESET", Target::Subdevice, 0x2080_01aa, 0, FirstParam::Nothing),
    ("GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET", Target::Subdevice, 0x2080_01ac, 0, FirstParam::Nothing),
    ("GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET", Target::Subdevice, 0x2080_01ad, 0, FirstParam::Nothing),
    ("RC_DISABLE_WATCHDOG", Target::Subdevice, 0x2080_220a, 0, FirstParam::Nothing),
    ("RC_ENABLE_WATCHDOG", Target::Subdevice, 0x2080_220b, 0, FirstParam::Nothing),
    ("SET_RC_RECOVERY", Target::Subdevice, 0x2080_220d, 4, FirstParam::Number(1)),
    ("PERF_SET_POWERSTATE", Target::Subdevice, 0x2080_205b, 4, FirstParam::Nothing),
    ("GROUP_SET_INTERLEAVE_LEVEL", Target::Group, 0xa06c_0107, 4, FirstParam::Number(2)),
    ("GROUP_MAKE_REALTIME", Target::Group, 0xa06c_0110, 1, FirstParam::Nothing),
    ("GROUP_INTERNAL_GPFIFO_SCHEDULE", Target::Group, 0xa06c_0201, 3, FirstParam::Nothing),
    ("GROUP_INTERNAL_SET_TIMESLICE", Target::Group, 0xa06c_0202, 8, FirstParam::Number(1_000_000)),
    ("CHANNEL_SET_INTERLEAVE_LEVEL", Target::Channel, 0xa06f_0109, 4, FirstParam::Number(2)),
    ("CHANNEL_RESTART_RUNLIST", Target::Channel, 0xa06f_0111, 2, FirstParam::Nothing),
    ("CHANNEL_RESET_ISOLATED", Target::Channel, 0x506f_0105, 8, FirstParam::Number(1)),
    ("CHANNEL_SET_HW_STATE", Target::Channel, 0xb06f_0110, 1, FirstParam::Nothing),
];

/// Those that a program may use for what is its own.
const OWN_ONLY: &[ControlRow] = &[
    ("FIFO_IDLE_CHANNELS", Target::Device, 0x0080_1714, 16396, FirstParam::OneChannel),
    ("GR_SET_CTXSW_PREEMPTION_MODE", Target::Subdevice, 0x2080_1210, 32, FirstParam::SecondChannel),
    ("GROUP_GPFIFO_SCHEDULE", Target::Group, 0xa06c_0101, 3, FirstParam::Nothing),
    ("GROUP_BIND", Target::Group, 0xa06c_0102, 1, FirstParam::Nothing),
    ("GROUP_SET_TIMESLICE", Target::Group, 0xa06c_0103, 8, FirstParam::Number(1)),
    ("GROUP_GET_TIMESLICE", Target::Group, 0xa06c_0104, 8, FirstParam::Nothing),
    ("GROUP_PREEMPT", Target::Group, 0xa06c_0105, 8, FirstParam::Nothing),
    ("CHANNEL_GPFIFO_SCHEDULE", Target::Channel, 0xc36f_0103, 3, FirstParam::Nothing),
    ("CHANNEL_BIND", Target::Channel, 0xc36f_0104, 4, FirstParam::Number(1)),
    ("CHANNEL_STOP", Target::Channel, 0xa06f_0112, 1, FirstParam::Nothing),
    ("CHANNEL_RESET", Target::Channel, 0x906f_0102, 16, FirstParam::Number(1)),
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
                put(&mut params, 4 + 4 * many, self.channel);
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
    const DEBUGGER: u32 = 0x83de;
    let mut params = words([0, objects.client, objects.group], 12);
    device.client.alloc(device.device, 0, DEBUGGER, Some(&mut params)).map(drop)
}

/// `NV_ESC_RM_IDLE_CHANNELS`, the older call.
fn idle(device: &Device<'_>, objects: &Objects) -> Result<(), RmError> {
    const IDLE_CHANNELS: u32 = 0x41;
    let mut lists = [objects.client, objects.device, objects.channel].map(u32::to_le_bytes);
    let mut args = words([device.client.handle, device.device, device.device, 1], 56);
    for (at, list) in (16..).step_by(8).zip(&mut lists) {
        put_u64(&mut args, at, address_of(list));
    }
    device.client.escape("idle channels", IDLE_CHANNELS, &mut args, 48)
}
