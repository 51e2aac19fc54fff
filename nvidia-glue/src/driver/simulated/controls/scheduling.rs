//! Taking channels on and off a card.

use super::{
    super::{
        bytes::{get, get_u64, put, put_u64},
        objects::Kind,
        state::State,
    },
    Control,
};
use crate::rm::Status;

/// Channels of one `DISABLE_CHANNELS`.
const MOST_CHANNELS: u32 = 64;

/// bDisable, count, bOnlyDisableScheduling, bRewind, event, hClient\[64\], hChannel\[64\]. As in the driver, the channels may be
/// any client's.
pub(super) fn disable_channels(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const CLIENTS: usize = 24;
    const CHANNELS: usize = 280;
    let params = control.params();
    let (disable, count) = (params.first().is_some_and(|flag| *flag != 0), get(params, 4));
    if count > MOST_CHANNELS || get_u64(params, 16) != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let named: Vec<(u32, u32)> = (0..count as usize)
        .map(|index| (get(params, CLIENTS + index * 4), get(params, CHANNELS + index * 4)))
        .collect();
    for (client, channel) in named {
        let client = state.clients.get_mut(&client).ok_or(Status::INVALID_CLIENT)?;
        match &mut client.object_mut(channel)?.kind {
            Kind::Channel { disabled, .. } => *disabled = disable,
            _ => return Err(Status::INVALID_ARGUMENT),
        }
    }
    Ok(())
}

/// bEnable: of one channel, or of all channels of a group, which must have some.
pub(super) fn schedule(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target) = (control.call.file, control.client, control.object);
    let enable = control.params().first().is_some_and(|flag| *flag != 0);
    let mut any = false;
    for (handle, object) in &mut state.client(file, client)?.objects {
        if let Kind::Channel { scheduled, .. } = &mut object.kind
            && (*handle == target || object.parent == target)
        {
            *scheduled = enable;
            any = true;
        }
    }
    if any { Ok(()) } else { Err(Status::INVALID_STATE) }
}

/// In microseconds.
pub(super) fn set_timeslice(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target) = (control.call.file, control.client, control.object);
    let asked = get_u64(control.params(), 0);
    if asked == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    if let Kind::ChannelGroup { timeslice_us, .. } = &mut state.client(file, client)?.object_mut(target)?.kind {
        *timeslice_us = asked;
    }
    Ok(())
}

pub(super) fn timeslice(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target) = (control.call.file, control.client, control.object);
    if let Kind::ChannelGroup { timeslice_us, .. } = state.client(file, client)?.object(target)?.kind {
        put_u64(control.params(), 0, timeslice_us);
    }
    Ok(())
}

/// What a program writes to the doorbell.
pub(super) fn work_submit_token(_: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let token = control.object & 0xffff;
    put(control.params(), 0, token);
    Ok(())
}
