//! The gates of cards: which channels they take off and put back, and that nothing slips by.

mod deeds;
mod driver;
mod edges;
mod waits;

use abi::layout::read_u32;

use super::spy::{DISABLE, Seen};

const BIND_GROUP: u32 = 0xa06c_0102;
const BIND_CHANNEL: u32 = 0xa06f_0104;
const STOP: u32 = 0xa06f_0112;
const RESET: u32 = 0x906f_0102;
const SUSPEND: u32 = 0x83de_0317;
const RESUME: u32 = 0x83de_0318;

/// Channels that controls name to be put on the card.
fn put_on(seen: &[Seen]) -> Vec<(u32, u32)> {
    seen.iter().filter(|seen| seen.id == DISABLE && seen.params[0] == 0).flat_map(named).collect()
}

/// Whom a `DISABLE_CHANNELS` names.
fn named(seen: &Seen) -> Vec<(u32, u32)> {
    let word = |at| read_u32(&seen.params, at).unwrap();
    (0..word(4) as usize).map(|at| (word(24 + 4 * at), word(280 + 4 * at))).collect()
}
