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
enum On {
    Device,
    Subdevice,
    Group,
    Channel,
}

/// The beginning of its parameters; the others are 0.
#[derive(Debug, Clone, Copy)]
enum First {
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
type Row = (&'static str, On, u32, usize, First);

/// Those that nobody may use, whatever they name.
const REFUSED: &[Row] = &[
    ("FIFO_SET_CHANNEL_PROPERTIES", On::Device, 0x0080_170f, 16, First::Channel),
    ("FIFO_START_SELECTED_CHANNELS", On::Device, 0x0080_1705, 8, First::OneChannel),
    ("FIFO_STOP_RUNLIST", On::Device, 0x0080_1711, 4, First::Number(1)),
    ("FIFO_START_RUNLIST", On::Device, 0x0080_1712, 4, First::Number(1)),
    ("DEVICE_SET_TPC_PARTITION_MODE", On::Device, 0x0080_1108, 32, First::Group),
    ("SUBDEVICE_SET_TPC_PARTITION_MODE", On::Subdevice, 0x2080_122c, 32, First::Group),
    ("SET_TPC_PARTITION_TABLE", On::Group, 0x9067_0102, 1028, First::Number(1)),
    ("FIFO_RUNLIST_SET_SCHED_POLICY", On::Subdevice, 0x2080_1115, 8, First::Nothing),
    ("FIFO_OBJSCHED_SET_STATE", On::Subdevice, 0x2080_1121, 24, First::Number(1)),
    ("FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION", On::Subdevice, 0x2080_111a, 520, First::Lists(64)),
    ("FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2", On::Subdevice, 0x2080_111b, 520, First::Lists(64)),
    ("FIFO_DISABLE_USERMODE_CHANNELS", On::Subdevice, 0x2080_1117, 4, First::Number(1)),
    ("FIFO_CONFIG_CTXSW_TIMEOUT", On::Subdevice, 0x2080_1110, 8, First::Number(1)),
    ("GPU_EVICT_CTX", On::Subdevice, 0x2080_012c, 24, First::Number(1)),
    ("GPU_SET_COMPUTE_MODE_RULES", On::Subdevice, 0x2080_0130, 4, First::Number(1)),
    ("GPU_SET_COMPUTE_POLICY_CONFIG", On::Subdevice, 0x2080_0194, 24, First::Nothing),
    ("GPU_MARK_DEVICE_FOR_RESET", On::Subdevice, 0x2080_01a9, 0, First::Nothing),
    ("GPU_UNMARK_DEVICE_FOR_RESET", On::Subdevice, 0x2080_01aa, 0, First::Nothing),
    ("GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET", On::Subdevice, 0x2080_01ac, 0, First::Nothing),
    ("GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET", On::Subdevice, 0x2080_01ad, 0, First::Nothing),
    ("RC_DISABLE_WATCHDOG", On::Subdevice, 0x2080_220a, 0, First::Nothing),
    ("RC_ENABLE_WATCHDOG", On::Subdevice, 0x2080_220b, 0, First::Nothing),
    ("SET_RC_RECOVERY", On::Subdevice, 0x2080_220d, 4, First::Number(1)),
    ("PERF_SET_POWERSTATE", On::Subdevice, 0x2080_205b, 4, First::Nothing),
    ("GROUP_SET_INTERLEAVE_LEVEL", On::Group, 0xa06c_0107, 4, First::Number(2)),
    ("GROUP_MAKE_REALTIME", On::Group, 0xa06c_0110, 1, First::Nothing),
    ("GROUP_INTERNAL_GPFIFO_SCHEDULE", On::Group, 0xa06c_0201, 3, First::Nothing),
    ("GROUP_INTERNAL_SET_TIMESLICE", On::Group, 0xa06c_0202, 8, First::Number(1_000_000)),
    ("CHANNEL_SET_INTERLEAVE_LEVEL", On::Channel, 0xa06f_0109, 4, First::Number(2)),
    ("CHANNEL_RESTART_RUNLIST", On::Channel, 0xa06f_0111, 2, First::Nothing),
    ("CHANNEL_RESET_ISOLATED", On::Channel, 0x506f_0105, 8, First::Number(1)),
    ("CHANNEL_SET_HW_STATE", On::Channel, 0xb06f_0110, 1, First::Nothing),
];

/// Those that a program may use for what is its own.
const OWN_ONLY: &[Row] = &[
    ("FIFO_IDLE_CHANNELS", On::Device, 0x0080_1714, 16396, First::OneChannel),
    ("GR_SET_CTXSW_PREEMPTION_MODE", On::Subdevice, 0x2080_1210, 32, First::SecondChannel),
    ("GROUP_GPFIFO_SCHEDULE", On::Group, 0xa06c_0101, 3, First::Nothing),
    ("GROUP_BIND", On::Group, 0xa06c_0102, 1, First::Nothing),
    ("GROUP_SET_TIMESLICE", On::Group, 0xa06c_0103, 8, First::Number(1)),
    ("GROUP_GET_TIMESLICE", On::Group, 0xa06c_0104, 8, First::Nothing),
    ("GROUP_PREEMPT", On::Group, 0xa06c_0105, 8, First::Nothing),
    ("CHANNEL_GPFIFO_SCHEDULE", On::Channel, 0xc36f_0103, 3, First::Nothing),
    ("CHANNEL_BIND", On::Channel, 0xc36f_0104, 4, First::Number(1)),
    ("CHANNEL_STOP", On::Channel, 0xa06f_0112, 1, First::Nothing),
    ("CHANNEL_RESET", On::Channel, 0x906f_0102, 16, First::Number(1)),
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

    const fn on(&self, on: On) -> u32 {
        match on {
            On::Device => self.device,
            On::Subdevice => self.subdevice,
            On::Group => self.group,
            On::Channel => self.channel,
        }
    }

    fn params(&self, length: usize, first: First) -> Vec<u8> {
        match first {
            First::Nothing => vec![0; length],
            First::Number(number) => words([number], length),
            First::Channel => words([self.channel], length),
            First::Group => words([self.group], length),
            First::OneChannel => words([1, self.channel], length),
            First::SecondChannel => words([1, self.channel], length),
            First::Lists(many) => {
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

fn try_all(device: &Device<'_>, objects: &Objects, tables: &[&[Row]]) -> Vec<(&'static str, Result<(), RmError>)> {
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
