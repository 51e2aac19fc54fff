//! The ioctls of `/dev/nvidia-uvm`.
//!
//! A file of it is one address space for all cards. What its mappings hold stays until it is
//! unmapped, freed, or the file is closed, whatever becomes of the handle. Structs are those of
//! 580; checks: uvm.c, uvm_map_external.c. Managed memory is made by `mmap`, which is not seen
//! here.

use std::io;

use abi::{Status, params::*, uvm::*};
use nix::errno::Errno;

use super::{
    bytes::{get, put},
    call::Call,
    controls::uuid_bytes,
    objects::{Kind, Memory},
    state::State,
    uvm_file::{Mapping, Range, RegisteredChannel, UvmFile},
};

/// Cards that a call can name (`UVM_MAX_GPUS`).
const MOST_GPUS: usize = 256;

/// Field with the 16 bytes of a card's UUID.
type Uuid = Field<[u8; 16]>;

type UvmHandler = fn(&mut State, &mut Call<'_>) -> Result<(), Status>;

/// One ioctl: its struct's size, the field for the status, the function that executes it.
struct UvmRow {
    size: usize,
    status: Field<u32>,
    act: UvmHandler,
}

/// Row of an ioctl; structs are those of 580.
fn row(command: u32) -> Option<UvmRow> {
    macro_rules! row {
        ($params:ident, $act:expr) => {
            UvmRow { size: $params::SIZE, status: $params::rmStatus, act: $act }
        };
    }
    Some(match command {
        UVM_INITIALIZE => row!(UVM_INITIALIZE_PARAMS, initialize),
        UVM_MM_INITIALIZE => row!(UVM_MM_INITIALIZE_PARAMS, no_effect),
        UVM_CREATE_RANGE_GROUP => row!(UVM_CREATE_RANGE_GROUP_PARAMS, create_group),
        UVM_DESTROY_RANGE_GROUP => row!(UVM_DESTROY_RANGE_GROUP_PARAMS, destroy_group),
        UVM_REGISTER_GPU_VASPACE => row!(UVM_REGISTER_GPU_VASPACE_PARAMS, register_address_space),
        UVM_UNREGISTER_GPU_VASPACE => row!(UVM_UNREGISTER_GPU_VASPACE_PARAMS, unregister_address_space),
        UVM_REGISTER_CHANNEL => row!(UVM_REGISTER_CHANNEL_PARAMS, register_channel),
        UVM_UNREGISTER_CHANNEL => row!(UVM_UNREGISTER_CHANNEL_PARAMS_525, unregister_channel),
        UVM_ENABLE_PEER_ACCESS => row!(UVM_ENABLE_PEER_ACCESS_PARAMS, two_cards),
        UVM_DISABLE_PEER_ACCESS => row!(UVM_DISABLE_PEER_ACCESS_PARAMS, two_cards),
        UVM_SET_RANGE_GROUP => row!(UVM_SET_RANGE_GROUP_PARAMS, set_group),
        UVM_MAP_EXTERNAL_ALLOCATION => row!(UVM_MAP_EXTERNAL_ALLOCATION_PARAMS, map_external),
        UVM_FREE => row!(UVM_FREE_PARAMS_525, free),
        UVM_REGISTER_GPU => row!(UVM_REGISTER_GPU_PARAMS, register_card),
        UVM_UNREGISTER_GPU => row!(UVM_UNREGISTER_GPU_PARAMS, unregister_card),
        UVM_PAGEABLE_MEM_ACCESS => row!(UVM_PAGEABLE_MEM_ACCESS_PARAMS, no_pageable_access),
        UVM_PREVENT_MIGRATION_RANGE_GROUPS => row!(UVM_PREVENT_MIGRATION_RANGE_GROUPS_PARAMS, no_effect),
        UVM_ALLOW_MIGRATION_RANGE_GROUPS => row!(UVM_ALLOW_MIGRATION_RANGE_GROUPS_PARAMS, no_effect),
        UVM_SET_PREFERRED_LOCATION => row!(UVM_SET_PREFERRED_LOCATION_PARAMS, at_addresses),
        UVM_UNSET_PREFERRED_LOCATION => row!(UVM_UNSET_PREFERRED_LOCATION_PARAMS, at_addresses),
        UVM_ENABLE_READ_DUPLICATION => row!(UVM_ENABLE_READ_DUPLICATION_PARAMS, at_addresses),
        UVM_DISABLE_READ_DUPLICATION => row!(UVM_DISABLE_READ_DUPLICATION_PARAMS, at_addresses),
        UVM_SET_ACCESSED_BY => row!(UVM_SET_ACCESSED_BY_PARAMS, at_addresses),
        UVM_UNSET_ACCESSED_BY => row!(UVM_UNSET_ACCESSED_BY_PARAMS, at_addresses),
        UVM_MIGRATE => row!(UVM_MIGRATE_PARAMS, migrate),
        UVM_MIGRATE_RANGE_GROUP => row!(UVM_MIGRATE_RANGE_GROUP_PARAMS, no_effect),
        UVM_ENABLE_SYSTEM_WIDE_ATOMICS => row!(UVM_ENABLE_SYSTEM_WIDE_ATOMICS_PARAMS, one_card),
        UVM_DISABLE_SYSTEM_WIDE_ATOMICS => row!(UVM_DISABLE_SYSTEM_WIDE_ATOMICS_PARAMS, one_card),
        UVM_MAP_DYNAMIC_PARALLELISM_REGION => row!(UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS, create_pool),
        UVM_UNMAP_EXTERNAL => row!(UVM_UNMAP_EXTERNAL_PARAMS, unmap_external),
        UVM_ALLOC_SEMAPHORE_POOL => row!(UVM_ALLOC_SEMAPHORE_POOL_PARAMS, create_pool),
        UVM_CLEAN_UP_ZOMBIE_RESOURCES => row!(UVM_CLEAN_UP_ZOMBIE_RESOURCES_PARAMS, no_effect),
        UVM_PAGEABLE_MEM_ACCESS_ON_GPU => row!(UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS, no_pageable_access_on_card),
        UVM_POPULATE_PAGEABLE => row!(UVM_POPULATE_PAGEABLE_PARAMS, at_addresses),
        UVM_VALIDATE_VA_RANGE => row!(UVM_VALIDATE_VA_RANGE_PARAMS, at_addresses),
        UVM_CREATE_EXTERNAL_RANGE => row!(UVM_CREATE_EXTERNAL_RANGE_PARAMS, create_external),
        UVM_MAP_EXTERNAL_SPARSE => row!(UVM_MAP_EXTERNAL_SPARSE_PARAMS, map_sparse),
        UVM_ALLOC_DEVICE_P2P => row!(UVM_ALLOC_DEVICE_P2P_PARAMS, not_supported),
        UVM_CLEAR_ALL_ACCESS_COUNTERS => row!(UVM_CLEAR_ALL_ACCESS_COUNTERS_PARAMS, no_effect),
        UVM_DISCARD => row!(UVM_DISCARD_PARAMS, at_addresses),
        _ => return None,
    })
}

pub(super) fn execute(state: &mut State, command: u32, mut call: Call<'_>) -> io::Result<i32> {
    if command == UVM_DEINITIALIZE {
        return Ok(0);
    }
    let UvmRow { size, status, act } = row(command).ok_or(Errno::EINVAL)?;
    if call.args.len() < size {
        return Err(Errno::EFAULT.into());
    }
    let initialized = state.uvm.get(&call.file).is_some_and(|file| file.flags.is_some());
    let outcome = if initialized || matches!(command, UVM_INITIALIZE | UVM_MM_INITIALIZE) {
        act(state, &mut call)
    } else {
        Err(Status::ILLEGAL_ACTION)
    };
    put(call.args, status, outcome.err().unwrap_or(Status::OK).0);
    Ok(0)
}

fn no_effect(_: &mut State, _: &mut Call<'_>) -> Result<(), Status> {
    Ok(())
}

fn not_supported(_: &mut State, _: &mut Call<'_>) -> Result<(), Status> {
    Err(Status::NOT_SUPPORTED)
}

fn no_pageable_access(_: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    put(call.args, UVM_PAGEABLE_MEM_ACCESS_PARAMS::pageableMemAccess, 0);
    Ok(())
}

fn no_pageable_access_on_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    one_card(state, call)?;
    put(call.args, UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS::pageableMemAccess, 0);
    Ok(())
}

fn file<'a>(state: &'a mut State, call: &Call<'_>) -> &'a mut UvmFile {
    state.uvm.entry(call.file).or_default()
}

fn initialize(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let flags = get(call.args, UVM_INITIALIZE_PARAMS::flags);
    let file = file(state, call);
    if *file.flags.get_or_insert(flags) == flags { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}

/// Card whose UUID a field names.
fn card_at(state: &State, args: &[u8], uuid: Uuid) -> Result<usize, Status> {
    let asked = uuid.bytes(args).unwrap_or_default();
    state.cards.iter().position(|card| uuid_bytes(&card.card.uuid) == asked).ok_or(Status::GPU_UUID_NOT_FOUND)
}

/// Card whose UUID a field names, of those that the file has.
fn registered_at(state: &mut State, call: &Call<'_>, uuid: Uuid) -> Result<usize, Status> {
    registered(state, call, call.args, uuid)
}

/// Card whose UUID a field of some bytes names, of those that the file has.
fn registered(state: &mut State, call: &Call<'_>, bytes: &[u8], uuid: Uuid) -> Result<usize, Status> {
    let card = card_at(state, bytes, uuid).map_err(|_| Status::INVALID_DEVICE)?;
    if file(state, call).cards.contains_key(&card) { Ok(card) } else { Err(Status::INVALID_DEVICE) }
}

fn one_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    registered_at(state, call, UVM_UNREGISTER_GPU_PARAMS::gpu_uuid).map(|_| ())
}

fn two_cards(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    registered_at(state, call, UVM_ENABLE_PEER_ACCESS_PARAMS::gpuUuidA)?;
    registered_at(state, call, UVM_ENABLE_PEER_ACCESS_PARAMS::gpuUuidB)?;
    // No simulated card reaches another's memory.
    Err(Status::NOT_SUPPORTED)
}

fn register_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = card_at(state, call.args, UVM_REGISTER_GPU_PARAMS::gpu_uuid)?;
    file(state, call).cards.entry(card).or_insert(None);
    put(call.args, UVM_REGISTER_GPU_PARAMS::numaEnabled, 0);
    put(call.args, UVM_REGISTER_GPU_PARAMS::numaNodeId, -1);
    Ok(())
}

fn unregister_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = registered_at(state, call, UVM_UNREGISTER_GPU_PARAMS::gpu_uuid)?;
    let file = file(state, call);
    file.cards.remove(&card);
    file.channels.retain(|_, channel| channel.card != card);
    for range in file.ranges.values_mut() {
        range.mappings.retain(|mapping| mapping.card != card);
    }
    Ok(())
}

/// An object of any client: the driver asks its share policy, which lets the process that made it.
fn kind_of(state: &State, client: u32, handle: u32) -> Result<&Kind, Status> {
    let client = state.clients.get(&client).ok_or(Status::INVALID_OBJECT_HANDLE)?;
    Ok(&client.object(handle)?.kind)
}

fn register_address_space(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_REGISTER_GPU_VASPACE_PARAMS;
    let card = registered_at(state, call, Args::gpuUuid)?;
    let (client, handle) = (get(call.args, Args::hClient).0, get(call.args, Args::hVaSpace).0);
    if !matches!(kind_of(state, client, handle)?, Kind::AddressSpace) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let space = file(state, call).cards.entry(card).or_insert(None);
    if space.is_some() {
        return Err(Status::INVALID_DEVICE);
    }
    *space = Some((client, handle));
    Ok(())
}

fn unregister_address_space(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = registered_at(state, call, UVM_UNREGISTER_GPU_VASPACE_PARAMS::gpuUuid)?;
    let file = file(state, call);
    file.cards.insert(card, None);
    file.channels.retain(|_, channel| channel.card != card);
    for range in file.ranges.values_mut() {
        range.mappings.retain(|mapping| mapping.card != card);
    }
    Ok(())
}

fn register_channel(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_REGISTER_CHANNEL_PARAMS;
    let card = registered_at(state, call, Args::gpuUuid)?;
    let name @ (client, handle) = (get(call.args, Args::hClient).0, get(call.args, Args::hChannel).0);
    let Kind::Channel { buffers, .. } = kind_of(state, client, handle)? else { return Err(Status::INVALID_ARGUMENT) };
    let above = state.clients.get(&client).and_then(|client| client.objects.get(&client.object(handle).ok()?.parent));
    let kept = match above.map(|above| &above.kind) {
        Some(Kind::ChannelGroup { buffers, .. }) => buffers.clone(),
        _ => buffers.clone(),
    };
    let channels = &mut file(state, call).channels;
    if channels.contains_key(&name) {
        return Err(Status::INVALID_CHANNEL);
    }
    channels.insert(name, RegisteredChannel { card, _buffers: kept });
    Ok(())
}

fn unregister_channel(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_UNREGISTER_CHANNEL_PARAMS_525;
    let channel = (get(call.args, Args::hClient).0, get(call.args, Args::hChannel).0);
    file(state, call).channels.remove(&channel).map(drop).ok_or(Status::INVALID_CHANNEL)
}

fn create_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let file = file(state, call);
    file.last_group += 1;
    let group = file.last_group;
    file.groups.insert(group);
    put(call.args, UVM_CREATE_RANGE_GROUP_PARAMS::rangeGroupId, group);
    Ok(())
}

fn destroy_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let group = get(call.args, UVM_DESTROY_RANGE_GROUP_PARAMS::rangeGroupId);
    if file(state, call).groups.remove(&group) { Ok(()) } else { Err(Status::OBJECT_NOT_FOUND) }
}

fn set_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_SET_RANGE_GROUP_PARAMS;
    let group = get(call.args, Args::rangeGroupId);
    if group != 0 && !file(state, call).groups.contains(&group) {
        return Err(Status::OBJECT_NOT_FOUND);
    }
    addresses(get(call.args, Args::requestedBase), get(call.args, Args::length)).map(|_| ())
}

/// First and last byte of a range given as base and length, in whole pages.
fn addresses(base: u64, length: u64) -> Result<(u64, u64), Status> {
    let aligned = base.is_multiple_of(4096) && length.is_multiple_of(4096);
    match base.checked_add(length) {
        Some(end) if aligned && length > 0 => Ok((base, end - 1)),
        _ => Err(Status::INVALID_ADDRESS),
    }
}

/// First and last byte of the range that a struct begins with, as most do.
fn first_addresses(args: &[u8]) -> Result<(u64, u64), Status> {
    type Args = UVM_CREATE_EXTERNAL_RANGE_PARAMS;
    addresses(get(args, Args::base), get(args, Args::length))
}

/// Accepts advice about addresses that other calls have mapped.
fn at_addresses(_: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    first_addresses(call.args).map(|_| ())
}

/// Accepts a migration. No memory moves: there is none. userSpaceStart and -Length say that all was
/// done. Without a length, the call only releases a semaphore (`uvm_api_migrate`).
fn migrate(_: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_MIGRATE_PARAMS;
    let only_wakes = get(call.args, Args::length) == 0 && get(call.args, Args::semaphoreAddress) != 0;
    if !only_wakes {
        first_addresses(call.args)?;
    }
    put(call.args, Args::userSpaceStart, 0);
    put(call.args, Args::userSpaceLength, 0);
    Ok(())
}

fn create(state: &mut State, call: &Call<'_>, external: bool) -> Result<(), Status> {
    let (start, last) = first_addresses(call.args)?;
    let file = file(state, call);
    let before = file.ranges.range(..=last).next_back();
    if before.is_some_and(|(base, range)| base + (range.length - 1) >= start) {
        return Err(Status::UVM_ADDRESS_IN_USE);
    }
    file.ranges.insert(start, Range { length: last - start + 1, mappings: Vec::new(), external });
    Ok(())
}

fn create_external(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    create(state, call, true)
}

fn create_pool(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    create(state, call, false)
}

/// The external range that has all of these addresses.
fn external_with(file: &mut UvmFile, start: u64, last: u64) -> Result<&mut Range, Status> {
    let (base, range) = file.ranges.range_mut(..=start).next_back().ok_or(Status::INVALID_ADDRESS)?;
    if range.external && base + (range.length - 1) >= last { Ok(range) } else { Err(Status::INVALID_ADDRESS) }
}

/// Maps memory for some cards.
fn map_external(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = UVM_MAP_EXTERNAL_ALLOCATION_PARAMS;
    let (start, last) = first_addresses(call.args)?;
    let offset = get(call.args, Args::offset);
    let count = usize::try_from(get(call.args, Args::gpuAttributesCount)).map_err(|_| Status::INVALID_ARGUMENT)?;
    if count == 0 || count > MOST_GPUS || !offset.is_multiple_of(4096) {
        return Err(Status::INVALID_ARGUMENT);
    }
    external_with(file(state, call), start, last)?;
    let mut cards = Vec::new();
    for index in 0..count {
        let attributes = Args::perGpuAttributes.element(index).and_then(|element| element.bytes(call.args));
        let card = registered(state, call, attributes.unwrap_or_default(), UvmGpuMappingAttributes::gpuUuid)?;
        // Mapped through the address space that was registered for the card.
        if file(state, call).cards.get(&card).copied().flatten().is_none() {
            return Err(Status::INVALID_DEVICE);
        }
        cards.push(card);
    }
    let (client, memory) = (get(call.args, Args::hClient).0, get(call.args, Args::hMemory).0);
    let memory = Memory::of(kind_of(state, client, memory)?);
    let memory = memory.ok_or(Status::INVALID_ARGUMENT)?;
    if offset.checked_add(last - start).is_none_or(|last| last >= memory.length()) {
        return Err(Status::INVALID_OFFSET);
    }
    let range = external_with(file(state, call), start, last)?;
    for card in cards {
        unmap(&mut range.mappings, card, start, last);
        range.mappings.push(Mapping { card, start, last, _memory: memory.clone() });
    }
    Ok(())
}

/// Takes addresses out of what is mapped for a card; of a mapping that goes beyond them, the rest
/// stays.
fn unmap(mappings: &mut Vec<Mapping>, card: usize, start: u64, last: u64) {
    let (touched, mut kept): (Vec<Mapping>, Vec<Mapping>) =
        mappings.drain(..).partition(|mapping| mapping.card == card && mapping.start <= last && mapping.last >= start);
    for mapping in touched {
        if mapping.start < start {
            kept.push(Mapping { last: start - 1, ..mapping.clone() });
        }
        if mapping.last > last {
            kept.push(Mapping { start: last + 1, ..mapping });
        }
    }
    *mappings = kept;
}

fn unmap_external(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (start, last) = first_addresses(call.args)?;
    external_with(file(state, call), start, last)?;
    let card = registered_at(state, call, UVM_UNMAP_EXTERNAL_PARAMS::gpuUuid)?;
    unmap(&mut external_with(file(state, call), start, last)?.mappings, card, start, last);
    Ok(())
}

fn map_sparse(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    unmap_external(state, call)
}

/// Frees a range, which must be named whole.
fn free(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (start, last) = first_addresses(call.args)?;
    let ranges = &mut file(state, call).ranges;
    match ranges.get(&start) {
        Some(range) if start + (range.length - 1) == last => {
            ranges.remove(&start);
            Ok(())
        }
        _ => Err(Status::INVALID_ADDRESS),
    }
}
