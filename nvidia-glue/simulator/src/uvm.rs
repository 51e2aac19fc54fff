//! The ioctls of `/dev/nvidia-uvm`.
//!
//! A file of it is one address space for all cards. What its mappings hold stays until it is unmapped, freed, or the file is
//! closed, whatever becomes of the handle. Structs, numbers and sizes: kernel-open/nvidia-uvm/uvm_ioctl.h and
//! uvm_linux_ioctl.h of 580; checks: uvm.c, uvm_map_external.c. Managed memory is made by `mmap`, which is not seen here.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use abi::Status;
use nix::errno::Errno;

use super::{
    bytes::{get, get_u64, put, put_u64},
    call::Call,
    controls::uuid_bytes,
    objects::{INVALID_OBJECT_HANDLE, Kind, Memory, VideoMemory},
    state::State,
};

/// `NV_ERR_INVALID_ADDRESS`.
const INVALID_ADDRESS: Status = Status(0x1e);
/// `NV_ERR_ILLEGAL_ACTION`: the file was not initialized.
const ILLEGAL_ACTION: Status = Status(0x16);
/// `NV_ERR_UVM_ADDRESS_IN_USE`.
const ADDRESS_IN_USE: Status = Status(0x68);
/// `NV_ERR_GPU_UUID_NOT_FOUND`.
const GPU_UUID_NOT_FOUND: Status = Status(0x12);
/// `NV_ERR_INVALID_OFFSET`.
const INVALID_OFFSET: Status = Status(0x37);

const INITIALIZE: u32 = 0x3000_0001;
const DEINITIALIZE: u32 = 0x3000_0002;
const MM_INITIALIZE: u32 = 75;
/// `UVM_MAX_GPUS`, and the bytes of one `UvmGpuMappingAttributes`.
const MOST_GPUS: usize = 256;
const ATTRIBUTES: usize = 36;

/// What one open file of the node is.
#[derive(Debug, Default)]
pub(super) struct UvmFile {
    /// What it was initialized with.
    flags: Option<u64>,
    /// Cards that were registered; with the address space, where one was.
    cards: BTreeMap<usize, Option<(u32, u32)>>,
    /// Channels by client and handle.
    channels: BTreeMap<(u32, u32), Channel>,
    /// By their first address.
    ranges: BTreeMap<u64, Range>,
    groups: BTreeSet<u64>,
    last_group: u64,
}

/// A channel that was registered: it keeps its group.
#[derive(Debug)]
struct Channel {
    card: usize,
    _buffers: Option<Arc<VideoMemory>>,
}

/// A range of addresses that an ioctl has made.
#[derive(Debug)]
struct Range {
    length: u64,
    /// What is mapped there; none in a pool of semaphores.
    mappings: Vec<Mapping>,
    external: bool,
}

/// Memory of one allocation at some addresses of one card's view.
#[derive(Debug, Clone)]
struct Mapping {
    card: usize,
    start: u64,
    /// The last byte's address.
    last: u64,
    _memory: Memory,
}

type Act = fn(&mut State, &mut Call<'_>) -> Result<(), Status>;

/// One ioctl: number, size of its struct, place of the status, whether the file must be initialized.
struct Row(u32, usize, usize, Act);

const UVM: &[Row] = &[
    Row(INITIALIZE, 16, 8, initialize),
    Row(MM_INITIALIZE, 8, 4, |_, _| Ok(())),
    Row(23, 16, 8, create_group),
    Row(24, 16, 8, destroy_group),
    Row(25, 32, 28, register_address_space),
    Row(26, 20, 16, unregister_address_space),
    Row(27, 56, 48, register_channel),
    Row(28, 28, 24, unregister_channel),
    Row(29, 36, 32, two_cards),
    Row(30, 36, 32, two_cards),
    Row(31, 32, 24, set_group),
    Row(33, 9264, 9260, map_external),
    Row(34, 24, 16, free),
    Row(37, 40, 36, register_card),
    Row(38, 20, 16, unregister_card),
    Row(39, 8, 4, |_, call| {
        call.args.get_mut(..1).unwrap_or_default().fill(0);
        Ok(())
    }),
    Row(40, 272, 264, |_, _| Ok(())),
    Row(41, 272, 264, |_, _| Ok(())),
    Row(42, 40, 36, at_addresses),
    Row(43, 24, 16, at_addresses),
    Row(44, 24, 16, at_addresses),
    Row(45, 24, 16, at_addresses),
    Row(46, 40, 32, at_addresses),
    Row(47, 40, 32, at_addresses),
    Row(51, 80, 72, migrate),
    Row(53, 32, 24, |_, _| Ok(())),
    Row(54, 20, 16, one_card),
    Row(55, 20, 16, one_card),
    Row(65, 40, 32, create_pool),
    Row(66, 40, 32, unmap_external),
    Row(68, 9248, 9240, create_pool),
    Row(69, 4, 0, |_, _| Ok(())),
    Row(70, 24, 20, |state, call| {
        one_card(state, call)?;
        call.args.get_mut(16..17).unwrap_or_default().fill(0);
        Ok(())
    }),
    Row(71, 24, 20, at_addresses),
    Row(72, 24, 16, at_addresses),
    Row(73, 24, 16, create_external),
    Row(74, 40, 32, map_sparse),
    Row(78, 56, 52, |_, _| Err(Status::NOT_SUPPORTED)),
    Row(79, 4, 0, |_, _| Ok(())),
    Row(80, 32, 24, at_addresses),
];

/// Executes one.
pub(super) fn execute(state: &mut State, command: u32, mut call: Call<'_>) -> io::Result<i32> {
    if command == DEINITIALIZE {
        return Ok(0);
    }
    let Row(_, size, status, act) = UVM.iter().find(|row| row.0 == command).ok_or(Errno::EINVAL)?;
    if call.args.len() < *size {
        return Err(Errno::EFAULT.into());
    }
    let initialized = state.uvm.get(&call.file).is_some_and(|file| file.flags.is_some());
    let outcome = if initialized || matches!(command, INITIALIZE | MM_INITIALIZE) {
        act(state, &mut call)
    } else {
        Err(ILLEGAL_ACTION)
    };
    put(call.args, *status, outcome.err().unwrap_or(Status::OK).0);
    Ok(0)
}

fn file<'a>(state: &'a mut State, call: &Call<'_>) -> &'a mut UvmFile {
    state.uvm.entry(call.file).or_default()
}

fn initialize(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let flags = get_u64(call.args, 0);
    let file = file(state, call);
    if *file.flags.get_or_insert(flags) == flags { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}

/// The card whose 16 bytes of UUID are at `at`.
fn card_at(state: &State, args: &[u8], at: usize) -> Result<usize, Status> {
    let asked = args.get(at..at + 16).unwrap_or_default();
    state.cards.iter().position(|card| uuid_bytes(&card.card.uuid) == asked).ok_or(GPU_UUID_NOT_FOUND)
}

/// The same, of those that the file has.
fn registered_at(state: &mut State, call: &Call<'_>, at: usize) -> Result<usize, Status> {
    let card = card_at(state, call.args, at).map_err(|_| Status::INVALID_DEVICE)?;
    if file(state, call).cards.contains_key(&card) { Ok(card) } else { Err(Status::INVALID_DEVICE) }
}

fn one_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    registered_at(state, call, 0).map(|_| ())
}

fn two_cards(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    registered_at(state, call, 0)?;
    registered_at(state, call, 16)?;
    // No simulated card reaches another's memory.
    Err(Status::NOT_SUPPORTED)
}

fn register_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = card_at(state, call.args, 0)?;
    file(state, call).cards.entry(card).or_insert(None);
    // numaEnabled, numaNodeId.
    call.args.get_mut(16..17).unwrap_or_default().fill(0);
    put(call.args, 20, u32::MAX);
    Ok(())
}

fn unregister_card(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = registered_at(state, call, 0)?;
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
    let client = state.clients.get(&client).ok_or(INVALID_OBJECT_HANDLE)?;
    Ok(&client.object(handle)?.kind)
}

fn register_address_space(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = registered_at(state, call, 0)?;
    let (client, handle) = (get(call.args, 20), get(call.args, 24));
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
    let card = registered_at(state, call, 0)?;
    let file = file(state, call);
    file.cards.insert(card, None);
    file.channels.retain(|_, channel| channel.card != card);
    for range in file.ranges.values_mut() {
        range.mappings.retain(|mapping| mapping.card != card);
    }
    Ok(())
}

fn register_channel(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let card = registered_at(state, call, 0)?;
    let name @ (client, handle) = (get(call.args, 20), get(call.args, 24));
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
    channels.insert(name, Channel { card, _buffers: kept });
    Ok(())
}

fn unregister_channel(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let channel = (get(call.args, 16), get(call.args, 20));
    file(state, call).channels.remove(&channel).map(drop).ok_or(Status::INVALID_CHANNEL)
}

fn create_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let file = file(state, call);
    file.last_group += 1;
    let group = file.last_group;
    file.groups.insert(group);
    put_u64(call.args, 0, group);
    Ok(())
}

fn destroy_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let group = get_u64(call.args, 0);
    if file(state, call).groups.remove(&group) { Ok(()) } else { Err(Status::OBJECT_NOT_FOUND) }
}

fn set_group(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let group = get_u64(call.args, 0);
    if group != 0 && !file(state, call).groups.contains(&group) {
        return Err(Status::OBJECT_NOT_FOUND);
    }
    addresses(call.args, 8).map(|_| ())
}

/// First and last byte of a range given as base and length, in whole pages.
fn addresses(args: &[u8], at: usize) -> Result<(u64, u64), Status> {
    let (base, length) = (get_u64(args, at), get_u64(args, at + 8));
    let aligned = base.is_multiple_of(4096) && length.is_multiple_of(4096);
    match base.checked_add(length) {
        Some(end) if aligned && length > 0 => Ok((base, end - 1)),
        _ => Err(INVALID_ADDRESS),
    }
}

/// Advice about addresses that other calls have made.
fn at_addresses(_: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    addresses(call.args, 0).map(|_| ())
}

/// No memory moves: there is none. userSpaceStart and -Length say that all was done.
fn migrate(_: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    addresses(call.args, 0)?;
    put_u64(call.args, 56, 0);
    put_u64(call.args, 64, 0);
    Ok(())
}

fn create(state: &mut State, call: &Call<'_>, external: bool) -> Result<(), Status> {
    let (start, last) = addresses(call.args, 0)?;
    let file = file(state, call);
    let before = file.ranges.range(..=last).next_back();
    if before.is_some_and(|(base, range)| base + (range.length - 1) >= start) {
        return Err(ADDRESS_IN_USE);
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
    let (base, range) = file.ranges.range_mut(..=start).next_back().ok_or(INVALID_ADDRESS)?;
    if range.external && base + (range.length - 1) >= last { Ok(range) } else { Err(INVALID_ADDRESS) }
}

/// base, length, offset, a list of cards, its length, rmCtrlFd, hClient, hMemory.
fn map_external(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (start, last) = addresses(call.args, 0)?;
    let offset = get_u64(call.args, 16);
    let count = usize::try_from(get_u64(call.args, 9240)).map_err(|_| Status::INVALID_ARGUMENT)?;
    if count == 0 || count > MOST_GPUS || !offset.is_multiple_of(4096) {
        return Err(Status::INVALID_ARGUMENT);
    }
    external_with(file(state, call), start, last)?;
    let mut cards = Vec::new();
    for index in 0..count {
        let card = registered_at(state, call, 24 + index * ATTRIBUTES)?;
        // Mapped through the address space that was registered for the card.
        if file(state, call).cards.get(&card).copied().flatten().is_none() {
            return Err(Status::INVALID_DEVICE);
        }
        cards.push(card);
    }
    let memory = Memory::of(kind_of(state, get(call.args, 9252), get(call.args, 9256))?);
    let memory = memory.ok_or(Status::INVALID_ARGUMENT)?;
    if offset.checked_add(last - start).is_none_or(|last| last >= memory.length()) {
        return Err(INVALID_OFFSET);
    }
    let range = external_with(file(state, call), start, last)?;
    for card in cards {
        unmap(&mut range.mappings, card, start, last);
        range.mappings.push(Mapping { card, start, last, _memory: memory.clone() });
    }
    Ok(())
}

/// Takes addresses out of what is mapped for a card; of a mapping that goes beyond them, the rest stays.
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
    let (start, last) = addresses(call.args, 0)?;
    external_with(file(state, call), start, last)?;
    let card = registered_at(state, call, 16)?;
    unmap(&mut external_with(file(state, call), start, last)?.mappings, card, start, last);
    Ok(())
}

fn map_sparse(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    unmap_external(state, call)
}

/// A whole range, as it was made.
fn free(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (start, last) = addresses(call.args, 0)?;
    let ranges = &mut file(state, call).ranges;
    match ranges.get(&start) {
        Some(range) if start + (range.length - 1) == last => {
            ranges.remove(&start);
            Ok(())
        }
        _ => Err(INVALID_ADDRESS),
    }
}

impl UvmFile {
    /// Every piece of a card that a mapping holds.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> impl Iterator<Item = Arc<VideoMemory>> {
        let mapped =
            self.ranges.values().flat_map(|range| range.mappings.iter().filter_map(|mapping| mapping._memory.video()));
        mapped.chain(self.channels.values().filter_map(|channel| channel._buffers.clone()))
    }
}
