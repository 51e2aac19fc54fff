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
};

use super::spy::{DISABLE, Seen};

const BIND_GROUP: u32 = NVA06C_CTRL_CMD_BIND;
const BIND_CHANNEL: u32 = NVA06F_CTRL_CMD_BIND;
const STOP: u32 = NVA06F_CTRL_CMD_STOP_CHANNEL;
const RESET: u32 = NV906F_CTRL_CMD_RESET_CHANNEL;
const SUSPEND: u32 = NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT;
const RESUME: u32 = NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT;

/// Channels that controls name to be put on the card.
fn put_on(seen: &[Seen]) -> Vec<(u32, u32)> {
    seen.iter().filter(|seen| seen.id == DISABLE && seen.params[0] == 0).flat_map(named).collect()
}

/// Whom a `DISABLE_CHANNELS` names.
fn named(seen: &Seen) -> Vec<(u32, u32)> {
    let word = |at| read_u32(&seen.params, at).unwrap();
    (0..word(4) as usize).map(|at| (word(24 + 4 * at), word(280 + 4 * at))).collect()
}
