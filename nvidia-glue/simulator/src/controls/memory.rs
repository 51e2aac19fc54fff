//! Sizes of a card's memory, and of its users' parts.

use std::{collections::BTreeMap, sync::Arc};

use abi::{Status, classes::RM_USER_SHARED_DATA, params::*};

use super::{
    super::{
        allocate::GRAPHICS,
        bytes::{elements, fill, get, put},
        classes::is_doorbells,
        objects::{Client, Kind, Memory, VideoMemory},
        state::State,
    },
    Control,
};

/// Bytes that the driver says the buffers of a graphics context take. Those of an H200, which take
/// more: `scheduling`.
const TOLD_CONTEXT_BUFFERS: u64 = 5_435_392;
/// Aperture that a simulated card says it has for the processor (`BAR1`), in KiB.
const BAR1_KIB: u64 = 256 << 10;
/// Part of it that is mapped, by anybody.
const BAR1_MAPPED_KIB: u64 = 5 << 10;

/// One of a list of questions and answers.
type Info = NVXXXX_CTRL_XXX_INFO;

/// Reports facts about the card's memory, in a list within the parameters.
pub(super) fn fb_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_FB_GET_INFO_V2_PARAMS;
    let card = control.card()?;
    let params = control.params();
    let count = get(params, Params::fbInfoListSize);
    let list = Params::fbInfoList.bytes_mut(params).unwrap_or_default();
    if list.len() / Info::SIZE < count as usize {
        return Err(Status::INVALID_ARGUMENT);
    }
    put_fb_info(state, card, list, count)
}

/// Reports facts about the card's memory, in a list that a pointer leads to.
pub(super) fn fb_info_v1(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let card = control.card()?;
    let count = get(control.params(), NV2080_CTRL_FB_GET_INFO_PARAMS::fbInfoListSize);
    match control.call.list_in_buffer(super::PARAMS, NV2080_CTRL_FB_GET_INFO_PARAMS::fbInfoList) {
        Some(list) if list.len() / Info::SIZE >= count as usize => put_fb_info(state, card, list, count),
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

fn put_fb_info(state: &State, card: usize, pairs: &mut [u8], count: u32) -> Result<(), Status> {
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    let (total, used) = (place.memory.capacity(), place.memory.used().map_err(|_| Status::GENERIC)?);
    for pair in pairs.chunks_exact_mut(Info::SIZE).take(count as usize) {
        let value = fb_value(get(pair, Info::index), total / 1024, total.saturating_sub(used) / 1024)?;
        put(pair, Info::data, u32::try_from(value).unwrap_or(u32::MAX));
    }
    Ok(())
}

/// `NV2080_CTRL_FB_INFO_INDEX_*` (ctrl2080fb.h); sizes in KiB. A simulated card keeps nothing back
/// for itself.
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

/// Lists the processes that have an object of a class on this card: this one, or none.
pub(super) fn pids(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_GPU_GET_PIDS_PARAMS;
    let card = control.card()?;
    let params = control.params();
    let (kind, class) = (get(params, Params::idType), get(params, Params::id));
    if kind != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let has = |client: &Client| {
        client.objects.iter().any(|(handle, object)| object.class == class && client.card_of(*handle) == Some(card))
    };
    let any = state.clients.values().any(has);
    put(params, Params::pidTblCount, u32::from(any));
    fill(params, Params::pidTbl, 0);
    if let Some(first) = Params::pidTbl.element(0).filter(|_| any) {
        put(params, first, std::process::id());
    }
    Ok(())
}

/// Reports the memory that processes hold.
pub(super) fn pid_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_GPU_GET_PID_INFO_PARAMS;
    type Info = NV2080_CTRL_GPU_PID_INFO;
    const MOST: u32 = 200;
    let card = control.card()?;
    let held = held_by_clients(state, card);
    let params = control.params();
    let count = get(params, Params::pidInfoListCount);
    if count == 0 || count > MOST {
        return Err(Status::INVALID_ARGUMENT);
    }
    for entry in elements(params, Params::pidInfoList).take(count as usize) {
        if get(entry, Info::index) != 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        let pid = get(entry, Info::pid);
        entry.get_mut(Info::result.at()..).unwrap_or_default().fill(0);
        if pid == std::process::id() {
            put(entry, Info::memPrivate, held);
        }
    }
    Ok(())
}

/// Bytes of a card that objects of class 0x40 hold, each piece once: not what only unified memory
/// or an export still has, and not the buffers of contexts. So it is in the driver, too
/// (gpu_rmapi.c).
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

/// Reports the size of the buffers of the whole group that a channel is in; less than those really
/// take.
pub(super) fn context_buffer_size(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let owner = state.client(file, client)?;
    let name = get(params, Params::hChannel).0;
    let channel = owner.object(name)?;
    let engine = match (&channel.kind, owner.objects.get(&channel.parent).map(|above| &above.kind)) {
        (Kind::Channel { .. }, Some(Kind::ChannelGroup { engine, .. })) => *engine,
        (Kind::Channel { engine, .. }, _) => *engine,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    // They come with the first object of the engine; the real driver complains in the kernel's log
    // when asked before.
    let has_engine =
        owner.objects.values().any(|below| below.parent == name && matches!(below.class & 0xff, 0x97 | 0xc0));
    if engine != GRAPHICS || !has_engine {
        return Err(Status::INVALID_OBJECT);
    }
    put(params, Params::totalBufferSize, TOLD_CONTEXT_BUFFERS);
    Ok(())
}

/// Reports facts about the memory of an object.
pub(super) fn surface_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client, object) = (control.call.file, control.client, control.object);
    let memory = Memory::of(&state.client(file, client)?.object(object)?.kind).ok_or(Status::NOT_SUPPORTED)?;
    let count = get(control.params(), NV0041_CTRL_GET_SURFACE_INFO_PARAMS::surfaceInfoListSize) as usize;
    let list = control.call.list_in_buffer(super::PARAMS, NV0041_CTRL_GET_SURFACE_INFO_PARAMS::surfaceInfoList);
    let Some(list) = list else { return Ok(()) };
    for pair in list.chunks_exact_mut(Info::SIZE).take(count) {
        let value = match (get(pair, Info::index), &memory) {
            // Attributes, compression.
            (1 | 5 | 8, _) => 0,
            (7, memory) => u32::try_from(memory.length() / 4096).map_err(|_| Status::GENERIC)?,
            (9, Memory::Host(_)) => 1,
            (9, Memory::Video(_) | Memory::Fabric(_)) => 2,
            _ => return Err(Status::INVALID_ARGUMENT),
        };
        put(pair, Info::data, value);
    }
    Ok(())
}

/// Reports the address space of a mapping of an object: 1 the machine's memory, 2 a card's, 3 its
/// registers.
pub(super) fn address_space_type(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_CLIENT_GET_ADDR_SPACE_TYPE_PARAMS;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let object = state.client(file, client)?.object(get(params, Params::hObject).0)?;
    let kind = match (&object.kind, object.class) {
        (Kind::SystemMemory { .. }, _) | (Kind::Plain, RM_USER_SHARED_DATA) => 1,
        (Kind::VideoMemory(_), _) => 2,
        (Kind::Plain, class) if is_doorbells(class) => 3,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    put(params, Params::addrSpaceType, kind);
    Ok(())
}

/// Returns whether two objects are the same memory.
pub(super) fn are_duplicates(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let owner = state.client(file, client)?;
    let one = owner.object(get(params, Params::hObject1).0)?;
    let other = owner.object(get(params, Params::hObject2).0)?;
    let same = match (&one.kind, &other.kind) {
        (Kind::VideoMemory(one), Kind::VideoMemory(other)) => Arc::ptr_eq(one, other),
        _ => false,
    };
    put(params, Params::bDuplicates, u8::from(same));
    Ok(())
}

/// Answers controls whose parameters begin with an object of the client, and that have no effect
/// here: it must exist.
pub(super) fn of_first_handle(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let handle = get(control.params(), NV503C_CTRL_UNREGISTER_VIDMEM_PARAMS::hMemory).0;
    state.client(file, client)?.object(handle).map(|_| ())
}
