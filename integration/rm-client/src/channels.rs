//! Channels that do nothing, on simulated cards and on real ones: a card has so many numbers for
//! them.

use abi::{
    Handle,
    classes::{FERMI_VASPACE_A, HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A},
    encode,
    params::{NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_VASPACE_ALLOCATION_PARAMETERS},
};

use crate::{RmError, compute::Engine, device::Device};

/// Channels of a group, each with its USERD in memory that the group's have together.
const IN_A_GROUP: u32 = 8;
const USERD: u64 = 512;

/// Creates `most` channels, or as many as it gets: how many these are, and what refused the next
/// one.
///
/// # Errors
/// When what channels need is refused.
pub fn fill(device: &Device<'_>, most: u64) -> Result<(u64, Option<RmError>), RmError> {
    let client = device.client;
    let mut params = encode!(NV_VASPACE_ALLOCATION_PARAMETERS {});
    let space = client.alloc(device.device, 0, FERMI_VASPACE_A, Some(&mut params))?;
    let userd = device.alloc(u64::from(IN_A_GROUP) * USERD)?.handle;
    let (mut made, mut group) = (0, 0);
    while made < most {
        let at = u32::try_from(made).unwrap_or(u32::MAX) % IN_A_GROUP;
        if at == 0 {
            let mut params = encode!(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS {
                hVASpace: Handle(space),
                engineType: Engine::Copy as u32,
            });
            match client.alloc(device.device, 0, KEPLER_CHANNEL_GROUP_A, Some(&mut params)) {
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
    let none = Handle::NONE;
    let mut params = encode!(NV_CHANNEL_ALLOC_PARAMS {
        gpFifoOffset: RING,
        gpFifoEntries: ENTRIES,
        hUserdMemory: [Handle(userd), none, none, none, none, none, none, none],
        userdOffset: [u64::from(at) * USERD, 0, 0, 0, 0, 0, 0, 0],
        engineType: Engine::Copy as u32,
    });
    device.client.alloc(group, 0, HOPPER_CHANNEL_GPFIFO_A, Some(&mut params))
}
