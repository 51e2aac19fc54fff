//! Taking channels on and off a card.

use super::{
    super::{
        allocate::GRAPHICS,
        bytes::{get, get_u64, put, put_u64},
        objects::{Kind, Object},
        open_files::FileId,
        state::State,
    },
    Control,
};
use crate::rm::Status;

/// What the buffers of a compute context take on an H200, and those of a copy engine's.
pub(in super::super) const GRAPHICS_CONTEXT: u64 = 8256 << 10;
pub(in super::super) const OTHER_CONTEXT: u64 = 256 << 10;
/// `NV_ERR_INVALID_CHANNEL`.
const INVALID_CHANNEL: Status = Status(0x21);
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
        let object = state.clients.get_mut(&client).and_then(|client| client.objects.get_mut(&channel));
        match object.map(|object| &mut object.kind) {
            Some(Kind::Channel { disabled, .. }) => *disabled = disable,
            _ => return Err(INVALID_CHANNEL),
        }
    }
    Ok(())
}

/// bEnable: of one channel, or of all channels of a group, which must have some. The first time, the context's buffers are
/// made, which no object shows.
pub(super) fn schedule(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target, card) = (control.call.file, control.client, control.object, control.card()?);
    let enable = control.params().first().is_some_and(|flag| *flag != 0);
    let owner = state.client(file, client)?;
    // Of a channel in a group, the group's.
    let parent = owner.object(target)?.parent;
    let grouped = owner.objects.get(&parent).is_some_and(|above| matches!(above.kind, Kind::ChannelGroup { .. }));
    let context = if grouped { parent } else { target };
    let is_named = |handle: u32, object: &Object| {
        matches!(object.kind, Kind::Channel { .. }) && (handle == target || object.parent == target)
    };
    if !owner.objects.iter().any(|(handle, object)| is_named(*handle, object)) {
        return Err(Status::INVALID_STATE);
    }
    if enable {
        make_buffers(state, (file, client), context, card)?;
    }
    for (handle, object) in &mut state.client(file, client)?.objects {
        let named = is_named(*handle, object);
        if let Kind::Channel { scheduled, .. } = &mut object.kind
            && named
        {
            *scheduled = enable;
        }
    }
    Ok(())
}

fn make_buffers(state: &mut State, (file, client): (FileId, u32), context: u32, card: usize) -> Result<(), Status> {
    let engine = match &state.client(file, client)?.object(context)?.kind {
        Kind::ChannelGroup { engine, buffers: None, .. } | Kind::Channel { engine, buffers: None, .. } => *engine,
        _ => return Ok(()),
    };
    let bytes = if engine == GRAPHICS { GRAPHICS_CONTEXT } else { OTHER_CONTEXT };
    let made = state.take(card, bytes, bytes)?;
    if let Kind::ChannelGroup { buffers, .. } | Kind::Channel { buffers, .. } =
        &mut state.client(file, client)?.object_mut(context)?.kind
    {
        *buffers = Some(made);
    }
    Ok(())
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
