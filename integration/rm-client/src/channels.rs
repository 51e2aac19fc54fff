//! Channels that do nothing, on simulated cards and on real ones: a card has so many numbers for
//! them.

use crate::{
    RmError,
    bytes::{put, put_u64, words},
    compute::{CHANNEL, Engine, GROUP},
    device::Device,
};

/// `FERMI_VASPACE_A`.
const ADDRESS_SPACE: u32 = 0x90f1;
/// Channels of a group, each with its USERD in memory that the group's have together.
const IN_A_GROUP: u32 = 8;
const USERD: u64 = 512;

/// Makes `most` channels, or as many as it gets: how many these are, and what refused the next one.
///
/// # Errors
/// When what channels need is refused.
pub fn fill(device: &Device<'_>, most: u64) -> Result<(u64, Option<RmError>), RmError> {
    let client = device.client;
    let space = client.alloc(device.device, 0, ADDRESS_SPACE, Some(&mut [0; 56]))?;
    let userd = device.alloc(u64::from(IN_A_GROUP) * USERD)?.handle;
    let (mut made, mut group) = (0, 0);
    while made < most {
        let at = u32::try_from(made).unwrap_or(u32::MAX) % IN_A_GROUP;
        if at == 0 {
            let mut params = words([0, 0, space, Engine::Copy as u32], 20);
            match client.alloc(device.device, 0, GROUP, Some(&mut params)) {
                Ok(handle) => group = handle,
                Err(error) => return Ok((made, Some(error))),
            }
        }
        match channel(device, group, userd, at) {
            Ok(_) => made += 1,
            Err(error) => return Ok((made, Some(error))),
        }
    }
    Ok((made, None))
}

/// `NV_CHANNEL_ALLOC_PARAMS`, with a ring that has a place and nothing in it.
fn channel(device: &Device<'_>, group: u32, userd: u32, at: u32) -> Result<u32, RmError> {
    const RING: u64 = 0x2_0060_0000;
    const ENTRIES: u32 = 0x400;
    let mut params = vec![0; 368];
    put_u64(&mut params, 8, RING);
    put(&mut params, 16, ENTRIES);
    put(&mut params, 32, userd);
    put_u64(&mut params, 64, u64::from(at) * USERD);
    put(&mut params, 128, Engine::Copy as u32);
    device.client.alloc(group, 0, CHANNEL, Some(&mut params))
}
