//! The gates of cards: which channels they take off and put back, and that nothing slips by.

mod deeds;
mod driver;
mod edges;
mod waits;

use abi::{
    controls::{
        NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT, NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT, NV906F_CTRL_CMD_RESET_CHANNEL,
        NVA06C_CTRL_CMD_BIND, NVA06F_CTRL_CMD_BIND, NVA06F_CTRL_CMD_STOP_CHANNEL,
    },
    layout::read_u32,
    params::{
        NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS, NVA06C_CTRL_BIND_PARAMS, NVA06F_CTRL_BIND_PARAMS,
        NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS, NVA06F_CTRL_STOP_CHANNEL_PARAMS,
    },
};

use super::spy::{DISABLE, GR, Seen};

const BIND_GROUP: u32 = NVA06C_CTRL_CMD_BIND;
const BIND_CHANNEL: u32 = NVA06F_CTRL_CMD_BIND;
const STOP: u32 = NVA06F_CTRL_CMD_STOP_CHANNEL;
const RESET: u32 = NV906F_CTRL_CMD_RESET_CHANNEL;
const SUSPEND: u32 = NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT;
const RESUME: u32 = NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT;

/// Parameters of a control that schedules, as long as it takes them; they enable, and name [`GR`].
fn params_of(id: u32) -> Vec<u8> {
    let size = match id {
        BIND_GROUP => NVA06C_CTRL_BIND_PARAMS::SIZE,
        BIND_CHANNEL => NVA06F_CTRL_BIND_PARAMS::SIZE,
        STOP => NVA06F_CTRL_STOP_CHANNEL_PARAMS::SIZE,
        RESET => NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS::SIZE,
        _ => NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::SIZE,
    };
    let mut params = GR.to_le_bytes().to_vec();
    params.resize(size, 0);
    params
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
