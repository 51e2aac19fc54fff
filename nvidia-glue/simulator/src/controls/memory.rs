//! How much memory there is, and who has it.

use std::{collections::BTreeMap, sync::Arc};

use abi::Status;
use driver::{Buffer, Holder};

use super::{
    super::{
        allocate::GRAPHICS,
        bytes::{get, put, put_u64},
        objects::{Client, GENERIC, Kind, Memory, VideoMemory},
        state::State,
    },
    Control,
};

/// What the driver says that the buffers of a graphics context take. An H200's, whose take more: `scheduling`.
const TOLD_CONTEXT_BUFFERS: u64 = 5_435_392;
/// `NV_ERR_INVALID_OBJECT`.
const INVALID_OBJECT: Status = Status(0x31);
/// Aperture that a simulated card says it has for the processor (`BAR1`), in KiB.
const BAR1_KIB: u64 = 256 << 10;
/// What of it is mapped, by whomever.
const BAR1_MAPPED_KIB: u64 = 5 << 10;
/// Entries of `NV2080_CTRL_FB_GET_INFO_V2_PARAMS` since 580.
const MOST_FB_INFO: u32 = 128;

/// count, then pairs of index and value.
pub(super) fn fb_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let params = control.params();
    let count = get(params, 0);
    if count > MOST_FB_INFO {
        return Err(Status::INVALID_ARGUMENT);
    }
    put_fb_info(state, card, params.get_mut(4..).unwrap_or_default(), count)
}

/// The same with the pairs elsewhere: count, pointer.
pub(super) fn fb_info_v1(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let count = get(control.params(), 0);
    let params =
        control.call.buffers.iter().position(|buffer| buffer.holder == Holder::Args && buffer.offset == super::PARAMS);
    let list = control
        .call
        .buffers
        .iter_mut()
        .find(|buffer| buffer.offset == 8 && params.is_some_and(|params| buffer.holder == Holder::Buffer(params)));
    match list {
        Some(list) if list.bytes.len() / 8 >= count as usize => put_fb_info(state, card, &mut list.bytes, count),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn put_fb_info(state: &State, card: usize, pairs: &mut [u8], count: u32) -> Result<(), Status> {
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    let (total, used) = (place.memory.capacity(), place.memory.used().map_err(|_| GENERIC)?);
    for pair in pairs.chunks_exact_mut(8).take(count as usize) {
        let value = fb_value(get(pair, 0), total / 1024, total.saturating_sub(used) / 1024)?;
        put(pair, 4, u32::try_from(value).unwrap_or(u32::MAX));
    }
    Ok(())
}

/// `NV2080_CTRL_FB_INFO_INDEX_*` (ctrl2080fb.h); sizes in KiB. A simulated card keeps nothing back for itself.
fn fb_value(index: u32, total: u64, free: u64) -> Result<u64, Status> {
    Ok(match index {
        // RAM, total RAM, heap, mappable heap, usable RAM.
        0x07 | 0x08 | 0x09 | 0x0a | 0x20 => total,
        // Largest free region, free heap.
        0x12 | 0x16 => free,
        // BAR1, and what of it is free.
        0x05 => BAR1_KIB,
        0x1d | 0x1f => BAR1_KIB - BAR1_MAPPED_KIB,
        // Bus width, RAM type (HBM3), partitions, their masks.
        0x0b => 5120,
        0x0d => 19,
        0x04 | 0x19 => 1,
        0x14 | 0x1a => 1,
        0x00..=0x3b => 0,
        _ => return Err(Status::INVALID_ARGUMENT),
    })
}

/// idType, id, count, pids: who has an object of class `id` on this card. All of them are this process's.
pub(super) fn pids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let params = control.params();
    let (kind, class) = (get(params, 0), get(params, 4));
    if kind != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let has = |client: &Client| {
        client.objects.iter().any(|(handle, object)| object.class == class && client.card_of(*handle) == Some(card))
    };
    let any = state.clients.values().any(has);
    params.get_mut(8..).unwrap_or_default().fill(0);
    if any {
        put(params, 8, 1);
        put(params, 12, std::process::id());
    }
    Ok(())
}

/// count, then entries of 72 bytes: pid, index, result, data (memory private, shared and owned, shared and duplicated, ...).
pub(super) fn pid_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const MOST: u32 = 200;
    const ENTRY: usize = 72;
    let card = control.card()?;
    let held = held_by_clients(state, card);
    let params = control.params();
    let count = get(params, 0);
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    for entry in params.get_mut(8..).unwrap_or_default().chunks_exact_mut(ENTRY).take(count as usize) {
        if get(entry, 4) != 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let pid = get(entry, 0);
        entry.get_mut(8..).unwrap_or_default().fill(0);
        if pid == std::process::id() {
            put_u64(entry, 16, held);
        }
    }
    Ok(())
}

/// What objects of class 0x40 hold of a card, each piece once: not what only unified memory or an export still has, and not
/// the buffers of contexts. So it is in the driver, too (gpu_rmapi.c).
fn held_by_clients(state: &State, card: usize) -> u64 {
    let pieces: BTreeMap<*const VideoMemory, u64> = state
        .clients
        .values()
        .flat_map(|client| client.objects.values())
        .filter_map(|object| match &object.kind {
            Kind::VideoMemory(memory) if memory.card == card => Some((Arc::as_ptr(memory), memory.length)),
            _ => None,
        })
        .collect();
    pieces.values().sum()
}

/// hChannel, size: of the buffers of the whole group that the channel is in, and less than those really take.
pub(super) fn context_buffer_size(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let owner = state.client(file, client)?;
    let channel = owner.object(get(params, 0))?;
    let engine = match (&channel.kind, owner.objects.get(&channel.parent).map(|above| &above.kind)) {
        (Kind::Channel { .. }, Some(Kind::ChannelGroup { engine, .. })) => *engine,
        (Kind::Channel { engine, .. }, _) => *engine,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    // They come with the first object of the engine; the real driver complains in the kernel's log when asked before.
    let name = get(params, 0);
    let has_engine =
        owner.objects.values().any(|below| below.parent == name && matches!(below.class & 0xff, 0x97 | 0xc0));
    if engine != GRAPHICS || !has_engine {
        return Err(INVALID_OBJECT);
    }
    put_u64(params, 8, TOLD_CONTEXT_BUFFERS);
    Ok(())
}

/// `NV0041_CTRL_GET_SURFACE_INFO_PARAMS`: count, pointer to pairs of index and value.
pub(super) fn surface_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, object) = (control.call.file, control.client, control.object);
    let memory = Memory::of(&state.client(file, client)?.object(object)?.kind).ok_or(Status::NOT_SUPPORTED)?;
    let count = get(control.params(), 0) as usize;
    let params =
        control.call.buffers.iter().position(|buffer| buffer.holder == Holder::Args && buffer.offset == super::PARAMS);
    let is_list = |buffer: &&mut Buffer| {
        buffer.offset == 8 && params.is_some_and(|params| buffer.holder == Holder::Buffer(params))
    };
    let Some(list) = control.call.buffers.iter_mut().find(is_list) else { return Ok(()) };
    for pair in list.bytes.chunks_exact_mut(8).take(count) {
        let value = match (get(pair, 0), &memory) {
            // Attributes, compression.
            (1 | 5 | 8, _) => 0,
            (7, memory) => u32::try_from(memory.length() / 4096).map_err(|_| GENERIC)?,
            (9, Memory::Host(_)) => 1,
            (9, Memory::Video(_)) => 2,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        put(pair, 4, value);
    }
    Ok(())
}

/// hObject, mapFlags, and what a mapping of it would be of: 1 the machine's memory, 2 a card's, 3 its registers.
pub(super) fn address_space_type(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    const USER_SHARED_DATA: u32 = 0xde;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let object = state.client(file, client)?.object(get(params, 0))?;
    let kind = match (&object.kind, object.class) {
        (Kind::SystemMemory { .. }, _) | (Kind::Plain, USER_SHARED_DATA) => 1,
        (Kind::VideoMemory(_), _) => 2,
        (Kind::Plain, doorbells) if doorbells & 0xf0ff == 0xc061 => 3,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    put(params, 8, kind);
    Ok(())
}

/// hObject1, hObject2, whether they are the same memory.
pub(super) fn are_duplicates(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let owner = state.client(file, client)?;
    let (one, other) = (owner.object(get(params, 0))?, owner.object(get(params, 4))?);
    let same = match (&one.kind, &other.kind) {
        (Kind::VideoMemory(one), Kind::VideoMemory(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    if let Some(answer) = params.get_mut(8) {
        *answer = u8::from(same);
    }
    Ok(())
}

/// Controls that name an object of the client and have no effect on a simulated one: it must exist.
pub(super) fn object_at_0(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let handle = get(control.params(), 0);
    state.client(file, client)?.object(handle).map(|_| ())
}
