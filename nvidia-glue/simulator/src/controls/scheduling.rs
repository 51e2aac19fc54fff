//! Taking channels on and off a card.

use std::{sync::Arc, time::Duration};

use abi::{Status, params::*};

use super::{
    super::{
        allocate::GRAPHICS,
        bytes::{get, list, put},
        card_memory::PieceLayout,
        engines::{Group, RunlistEntry},
        objects::{Client, Kind, Object},
        open_files::FileId,
        state::State,
    },
    Control,
};

/// Bytes that the buffers of a compute context take on an H200, and those of a copy engine's.
pub(in super::super) const GRAPHICS_CONTEXT: u64 = 8256 << 10;
pub(in super::super) const OTHER_CONTEXT: u64 = 256 << 10;
/// Channels of one `DISABLE_CHANNELS`.
const MOST_CHANNELS: u32 = 64;

/// Takes channels off the card, or puts them back.
///
/// As in the driver, they may be any client's, and those that are found are done even if others are
/// not.
pub(super) fn disable_channels(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS;
    let place = state.cards.get(control.card()?).ok_or(Status::INVALID_DEVICE)?;
    // The kernel's part of the driver answers so where there is no firmware to do it.
    if !place.card.hard_caps || place.card.simulated.is_some_and(|edges| !edges.are_taken) {
        return Err(Status::NOT_SUPPORTED);
    }
    let params = control.params();
    let (disable, count) = (get(params, Params::bDisable) != 0, get(params, Params::numChannels));
    if count == 0 || count > MOST_CHANNELS {
        return Err(Status::INVALID_PARAM_STRUCT);
    }
    if get(params, Params::pRunlistPreemptEvent) != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let rewind = get(params, Params::bRewindGpPut) != 0;
    let clients = list(params, Params::hClientList, count as usize);
    let channels = list(params, Params::hChannelList, count as usize);
    let named: Vec<(u32, u32)> =
        clients.into_iter().zip(channels).map(|(client, channel)| (client.0, channel.0)).collect();
    let found = place.engines.disable(&named, disable, rewind).map_err(|error| place.cannot_count(&error))?;
    if found { Ok(()) } else { Err(Status::INVALID_CHANNEL) }
}

/// Schedules one channel, or of all channels of a group, which must have some. The first time, the
/// context's buffers are made, which no object shows. Without bEnable it succeeds and nothing
/// stops, as was seen on a card.
pub(super) fn schedule(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target, card) = (control.call.file, control.client, control.object, control.card()?);
    let enable = get(control.params(), NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::bEnable) != 0;
    let owner = state.client(file, client)?;
    // Of a channel in a group, the group's.
    let parent = owner.object(target)?.parent;
    let grouped = owner.objects.get(&parent).is_some_and(|above| matches!(above.kind, Kind::ChannelGroup { .. }));
    let context = if grouped { parent } else { target };
    let named = owner.objects.iter().filter(|(handle, object)| **handle == target || object.parent == target);
    let runlist_entries: Vec<Arc<RunlistEntry>> = named.filter_map(|(_, object)| runlist_entry_of(object)).collect();
    if runlist_entries.is_empty() {
        return Err(Status::INVALID_STATE);
    }
    if enable {
        make_buffers(state, (file, client), context, card)?;
        let card = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
        for runlist_entry in runlist_entries {
            runlist_entry.schedule().map_err(|error| card.cannot_count(&error))?;
        }
    }
    Ok(())
}

/// `BIND`, `STOP_CHANNEL`, `RESET_CHANNEL`, `RESUME_CONTEXT`: what becomes of channels that have
/// been taken off. The worst for whoever did that: they are on the card, as if they had never been
/// off. Of a channel, of all in a group, or of all of a debugger's client.
pub(super) fn put_back(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target, card) = (control.call.file, control.client, control.object, control.card()?);
    let owner = state.client(file, client)?;
    let is_of_channels = matches!(owner.object(target)?.kind, Kind::Channel { .. } | Kind::ChannelGroup { .. });
    let is_named = |handle: u32, object: &Object| !is_of_channels || handle == target || object.parent == target;
    let named = owner.objects.iter().filter(|(handle, object)| is_named(**handle, object));
    let runlist_entries: Vec<Arc<RunlistEntry>> = named.filter_map(|(_, object)| runlist_entry_of(object)).collect();
    let card = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    runlist_entries
        .iter()
        .try_for_each(|runlist_entry| runlist_entry.put_back())
        .map_err(|error| card.cannot_count(&error))
}

fn runlist_entry_of(object: &Object) -> Option<Arc<RunlistEntry>> {
    match &object.kind {
        Kind::Channel { runlist_entry, .. } => Some(Arc::clone(runlist_entry)),
        _ => None,
    }
}

fn make_buffers(state: &mut State, (file, client): (FileId, u32), context: u32, card: usize) -> Result<(), Status> {
    let engine = match &state.client(file, client)?.object(context)?.kind {
        Kind::ChannelGroup { engine, buffers: None, .. } | Kind::Channel { engine, buffers: None, .. } => *engine,
        _ => return Ok(()),
    };
    let bytes = if engine == GRAPHICS { GRAPHICS_CONTEXT } else { OTHER_CONTEXT };
    let made = state.take(card, bytes, bytes, PieceLayout::ANYWHERE)?;
    if let Kind::ChannelGroup { buffers, .. } | Kind::Channel { buffers, .. } =
        &mut state.client(file, client)?.object_mut(context)?.kind
    {
        *buffers = Some(made);
    }
    Ok(())
}

/// Sets a group's time slice.
pub(super) fn set_timeslice(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target, card) = (control.call.file, control.client, control.object, control.card()?);
    let asked = get(control.params(), NVA06C_CTRL_TIMESLICE_PARAMS::timesliceUs);
    if asked == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let Kind::ChannelGroup { group, .. } = &state.client(file, client)?.object(target)?.kind else {
        return Err(Status::INVALID_ARGUMENT);
    };
    let group = Arc::clone(group);
    set_slice(state, card, &group, asked)
}

fn set_slice(state: &State, card: usize, group: &Group, slice_us: u64) -> Result<(), Status> {
    let card = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    card.engines.set_slice(group, slice_us).map_err(|error| card.cannot_count(&error))
}

pub(super) fn timeslice(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target) = (control.call.file, control.client, control.object);
    if let Kind::ChannelGroup { group, .. } = &state.client(file, client)?.object(target)?.kind {
        let slice_us = group.slice_us();
        put(control.params(), NVA06C_CTRL_TIMESLICE_PARAMS::timesliceUs, slice_us);
    }
    Ok(())
}

/// Waits for channels as if they always had something to do.
pub(super) fn idle_channels(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS;
    let (file, client, card) = (control.call.file, control.client, control.card()?);
    let params = control.params();
    let timeout_us = get(params, Params::timeout);
    let named = list(params, Params::hChannels, get(params, Params::numChannels).min(4096) as usize);
    let owner = state.client(file, client)?;
    for channel in &named {
        if !matches!(owner.object(channel.0)?.kind, Kind::Channel { .. }) {
            return Err(Status::INVALID_CHANNEL);
        }
    }
    if named.is_empty() { Ok(()) } else { hold(state, card, timeout_us) }
}

/// Sets the preemption mode of a channel or a group of the client.
///
/// One whose kernels are not to be interrupted has the engine for as long as it has work, as with a
/// slice without end.
pub(super) fn preemption_mode(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS;
    const SETS_CILP: u32 = 1;
    /// `NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP`.
    const CILP: u32 = 2;
    let (file, client, card) = (control.call.file, control.client, control.card()?);
    let params = control.params();
    let (flags, channel) = (get(params, Params::flags), get(params, Params::hChannel).0);
    let cilp = get(params, Params::cilpPreemptMode);
    let is_interrupted = flags & SETS_CILP == 0 || cilp == CILP;
    let owner = state.client(file, client)?;
    // Beside an object of 3D, 2D or memory to memory it is refused (580.159.04).
    if flags & SETS_CILP != 0 && cilp == CILP && draws(owner, channel) {
        return Err(Status::INVALID_REQUEST);
    }
    match &owner.object(channel)?.kind {
        Kind::Channel { .. } | Kind::ChannelGroup { .. } if is_interrupted => Ok(()),
        Kind::Channel { runlist_entry, .. } => {
            let runlist_entry = Arc::clone(runlist_entry);
            set_slice(state, card, runlist_entry.group(), u64::MAX)
        }
        Kind::ChannelGroup { group, .. } => {
            let group = Arc::clone(group);
            set_slice(state, card, &group, u64::MAX)
        }
        _ => Err(Status::INVALID_CHANNEL),
    }
}

/// Returns whether a channel, or one of a group, has an object of the graphics engine that is not
/// of compute.
fn draws(client: &Client, context: u32) -> bool {
    let is_in =
        |handle: u32| handle == context || client.objects.get(&handle).is_some_and(|channel| channel.parent == context);
    client.objects.values().any(|object| matches!(object.class & 0xff, 0x97 | 0x2d | 0x40) && is_in(object.parent))
}

/// Waits for a group as if it did not leave. A driver waits by itself, too, for an unknown time;
/// here, not at all.
pub(super) fn preempt(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NVA06C_CTRL_PREEMPT_PARAMS;
    let card = control.card()?;
    let params = control.params();
    let waits = get(params, Params::bWait) != 0 && get(params, Params::bManualTimeout) != 0;
    if waits { hold(state, card, get(params, Params::timeoutUs)) } else { Ok(()) }
}

fn hold(state: &State, card: usize, time_us: u32) -> Result<(), Status> {
    let card = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    card.engines.hold(Duration::from_micros(time_us.into())).map_err(|error| card.cannot_count(&error))
}

/// Sets a property of any channel of the client, whoever else uses the card.
pub(super) fn set_channel_properties(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS;
    /// `NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_*` (ctrl0080fifo.h).
    const ENGINE_TIMESLICE: u32 = 0;
    const ENGINE_TIMESLICE_DISABLE: u32 = 2;
    const NOOP: u32 = 7;
    let (file, client, card) = (control.call.file, control.client, control.card()?);
    let params = control.params();
    let (channel, property) = (get(params, Params::hChannel).0, get(params, Params::property));
    let value = get(params, Params::value);
    let Kind::Channel { runlist_entry, .. } = &state.client(file, client)?.object(channel)?.kind else {
        return Err(Status::INVALID_CHANNEL);
    };
    let runlist_entry = Arc::clone(runlist_entry);
    match property {
        ENGINE_TIMESLICE if value != 0 => set_slice(state, card, runlist_entry.group(), value),
        ENGINE_TIMESLICE_DISABLE => set_slice(state, card, runlist_entry.group(), u64::MAX),
        NOOP => Ok(()),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Returns the token that a program writes to the doorbell; here the number of its doorbell
/// (`engines::doorbells`), where the work that the channel has executed is reported from then on.
pub(super) fn work_submit_token(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, target, card) = (control.call.file, control.client, control.object, control.card()?);
    let Kind::Channel { runlist_entry, .. } = &state.client(file, client)?.object(target)?.kind else {
        return Err(Status::INVALID_CHANNEL);
    };
    let runlist_entry = Arc::clone(runlist_entry);
    let card = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    runlist_entry.tell().map_err(|error| card.cannot_count(&error))?;
    put(control.params(), NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS::workSubmitToken, runlist_entry.token());
    Ok(())
}
