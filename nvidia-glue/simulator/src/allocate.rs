//! `NV_ESC_RM_ALLOC`: making objects.

use std::sync::Arc;

use abi::{
    Node, Status,
    params::{
        NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_CTXSHARE_ALLOCATION_PARAMETERS,
        NV_MEMORY_ALLOCATION_PARAMS, NV00F8_ALLOCATION_PARAMETERS, NV0080_ALLOC_PARAMETERS, NV2080_ALLOC_PARAMETERS,
    },
};

use super::{
    bytes::{get, put},
    card_memory::{GRANULE, PieceLayout},
    classes::{self, Below, Class, Makes},
    engines::Group,
    objects::{Client, FabricAddresses, HostMemory, Kind, Memory, Object, VideoMemory},
    open_files::FileId,
    state::{SimulatedCard, State},
};

/// `NV2080_ENGINE_TYPE_GRAPHICS`.
pub(super) const GRAPHICS: u32 = 1;
type MemoryParams = NV_MEMORY_ALLOCATION_PARAMS;

const FLAG_FIXED_ADDRESS: u32 = 0x10;
/// `NVOS32_ALLOC_FLAGS_ALIGNMENT_HINT` and `_FORCE`: without one of them the alignment is not
/// looked at.
const FLAGS_ALIGNMENT: u32 = 0x180;
const FLAG_VIRTUAL: u32 = 0x8_0000;
/// `NVOS32_ATTR_PHYSICALITY`.
const PHYSICALITY: u32 = 27;
const NONCONTIGUOUS: u32 = 1;
const CONTIGUOUS: u32 = 2;
const ALLOW_NONCONTIGUOUS: u32 = 3;
const HUGE: u64 = 2 << 20;
const HUGE_512M: u64 = 512 << 20;

/// One allocation as it is asked for.
#[derive(Debug)]
pub(super) struct AllocRequest<'a> {
    pub(super) file: FileId,
    pub(super) client: u32,
    pub(super) parent: u32,
    pub(super) handle: u32,
    pub(super) class: u32,
    pub(super) params: Option<&'a mut [u8]>,
}

/// Allocates; returns the new handle.
pub(super) fn allocate(state: &mut State, ask: AllocRequest<'_>) -> Result<u32, Status> {
    let class = classes::find(ask.class).ok_or(Status::INVALID_CLASS)?;
    if class.makes == Makes::Client {
        return state.new_client(ask.file);
    }
    let client = state.client(ask.file, ask.client)?;
    check_parent(client, ask.client, ask.parent, class.below)?;
    let card = client.card_of(ask.parent);
    let handle = client.new_handle(ask.client, ask.handle)?;
    let mut none = [];
    let params = match ask.params {
        Some(params) if params.len() >= class.params => params,
        None if class.optional => none.as_mut_slice(),
        // Shorter than the driver would copy: the rest is not readable.
        Some(_) | None => return Err(Status::INVALID_POINTER),
    };
    let depends_on = depends_on(class, params);
    for needed in &depends_on {
        state.client(ask.file, ask.client)?.object(*needed)?;
    }
    let place = Place { client: ask.client, parent: ask.parent, handle, card };
    let kind = make(state, class, place, params)?;
    let object = Object { parent: ask.parent, class: ask.class, kind, depends_on };
    state.client(ask.file, ask.client)?.add(handle, object);
    Ok(handle)
}

/// Client, parent, handle and card of a new object.
#[derive(Debug, Clone, Copy)]
struct Place {
    client: u32,
    parent: u32,
    handle: u32,
    card: Option<usize>,
}

fn make(state: &mut State, class: Class, place: Place, params: &mut [u8]) -> Result<Kind, Status> {
    let on_card = place.card.ok_or(Status::INVALID_OBJECT_PARENT);
    // Nearly all of them are registered with the card's firmware.
    place.card.and_then(|card| state.cards.get(card)).map_or(Ok(()), SimulatedCard::check)?;
    Ok(match class.makes {
        Makes::NotSupported => return Err(Status::NOT_SUPPORTED),
        Makes::Refused => return Err(Status::INSUFFICIENT_PERMISSIONS),
        Makes::Device => Kind::Device { card: device(state, get(params, NV0080_ALLOC_PARAMETERS::deviceId))? },
        Makes::Subdevice if get(params, NV2080_ALLOC_PARAMETERS::subDeviceId) != 0 => {
            return Err(Status::INVALID_ARGUMENT);
        }
        Makes::Subdevice => Kind::Subdevice { card: on_card? },
        Makes::VideoMemory => Kind::VideoMemory(video_memory(state, on_card?, params)?),
        Makes::SystemMemory => Kind::SystemMemory(system_memory(state, params)?),
        Makes::FabricMemory if FabricAddresses::are_asked_for(params) => {
            let addresses = FabricAddresses::new(on_card?, params)?;
            state.fabric.push(Arc::downgrade(&addresses));
            Kind::Fabric(addresses)
        }
        Makes::FabricMemory => fabric_memory(state, place, params)?,
        Makes::VirtualMemory => Kind::VirtualMemory,
        Makes::AddressSpace => Kind::AddressSpace,
        Makes::ChannelGroup => {
            let engine = get(params, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::engineType);
            Kind::ChannelGroup { engine, group: Group::new(), buffers: None }
        }
        Makes::Channel => channel(state, place, params)?,
        Makes::ContextShare | Makes::Plain | Makes::Client => Kind::Plain,
    })
}

/// Memory with addresses on the fabric, which keep it.
fn fabric_memory(state: &State, place: Place, params: &[u8]) -> Result<Kind, Status> {
    let client = state.clients.get(&place.client).ok_or(Status::INVALID_OBJECT_PARENT)?;
    match &client.object(get(params, NV00F8_ALLOCATION_PARAMETERS::hVidMem).0)?.kind {
        memory @ Kind::VideoMemory(block) if get(params, NV00F8_ALLOCATION_PARAMETERS::allocSize) <= block.length => {
            Ok(memory.clone())
        }
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

/// A channel; what its parameters say of an engine counts where there is no group above.
fn channel(state: &State, place: Place, params: &[u8]) -> Result<Kind, Status> {
    let client = state.clients.get(&place.client).ok_or(Status::INVALID_OBJECT_PARENT)?;
    let (engine, group) = match client.objects.get(&place.parent).map(|above| &above.kind) {
        Some(Kind::ChannelGroup { engine, group, .. }) => (*engine, Arc::clone(group)),
        _ => (get(params, NV_CHANNEL_ALLOC_PARAMS::engineType), Group::new()),
    };
    // Without one, the driver has memory of its own for it.
    let userd = match NV_CHANNEL_ALLOC_PARAMS::hUserdMemory.element(0).map_or(0, |first| get(params, first).0) {
        0 => None,
        memory => {
            let memory = Memory::of(&client.object(memory)?.kind).ok_or(Status::OBJECT_NOT_FOUND)?;
            let offset = NV_CHANNEL_ALLOC_PARAMS::userdOffset.element(0).map_or(0, |first| get(params, first));
            Some((memory, offset))
        }
    };
    let card = place.card.and_then(|card| state.cards.get(card)).ok_or(Status::INVALID_OBJECT_PARENT)?;
    let runlist_entry = card.engines.join((place.client, place.handle), &group, engine);
    let runlist_entry = runlist_entry.map_err(|error| card.cannot_count(&error))?.ok_or(Status::NO_FREE_FIFOS)?;
    Ok(Kind::Channel { engine, runlist_entry, buffers: None, userd })
}

fn check_parent(client: &Client, own: u32, parent: u32, below: Below) -> Result<(), Status> {
    if parent == own {
        return if matches!(below, Below::Client | Below::Anything) {
            Ok(())
        } else {
            Err(Status::INVALID_OBJECT_PARENT)
        };
    }
    let above = client.objects.get(&parent).ok_or(Status::INVALID_OBJECT_PARENT)?;
    let fits = matches!(
        (below, &above.kind),
        (Below::Anything, _)
            | (Below::Device, Kind::Device { .. })
            | (Below::Subdevice, Kind::Subdevice { .. })
            | (Below::DeviceOrSubdevice, Kind::Device { .. } | Kind::Subdevice { .. })
            | (Below::DeviceOrGroup, Kind::Device { .. } | Kind::ChannelGroup { .. })
            | (Below::Group, Kind::ChannelGroup { .. })
            | (Below::Channel, Kind::Channel { .. })
    );
    if fits { Ok(()) } else { Err(Status::INVALID_OBJECT_PARENT) }
}

/// Objects named in parameters without which the new one could not be (`refAddDependant` in the
/// driver).
fn depends_on(class: Class, params: &[u8]) -> Vec<u32> {
    type ChannelParams = NV_CHANNEL_ALLOC_PARAMS;
    let named: &[_] = match class.makes {
        Makes::ChannelGroup => &[NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::hVASpace],
        Makes::ContextShare => &[NV_CTXSHARE_ALLOCATION_PARAMETERS::hVASpace],
        Makes::Channel => &[ChannelParams::hContextShare, ChannelParams::hVASpace],
        _ => &[],
    };
    named.iter().map(|field| get(params, *field).0).filter(|handle| *handle != 0).collect()
}

/// `NV0080_ALLOC_PARAMETERS.deviceId`: the card, if its node is open (device.c of the driver asks
/// for that).
fn device(state: &State, instance: u32) -> Result<usize, Status> {
    let card = usize::try_from(instance).map_err(|_| Status::INVALID_ARGUMENT)?;
    let place = state.cards.get(card).ok_or(Status::INVALID_ARGUMENT)?;
    place.check()?;
    if state.files.has(Node::Card(place.card.minor)) { Ok(card) } else { Err(Status::INSUFFICIENT_PERMISSIONS) }
}

/// `stdmemValidateParams` (src/nvidia/src/kernel/mem_mgr/standard_mem.c): memory has an owner,
/// which clients put themselves for; the driver's own have numbers that nobody else may use.
fn check_owner(params: &[u8]) -> Result<(), Status> {
    if matches!(get(params, MemoryParams::owner), 0 | u32::MAX) { Err(Status::INVALID_OWNER) } else { Ok(()) }
}

/// Class 0x40 (src/nvidia/src/kernel/mem_mgr/video_mem.c): always memory of the card, in whole
/// pages.
fn video_memory(state: &mut State, card: usize, params: &mut [u8]) -> Result<Arc<VideoMemory>, Status> {
    check_owner(params)?;
    let (flags, attr) = (get(params, MemoryParams::flags), get(params, MemoryParams::attr));
    let attr2 = get(params, MemoryParams::attr2);
    // LOCATION: 0 is the card.
    if attr >> 25 & 3 != 0 || flags & FLAG_VIRTUAL != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let asked = get(params, MemoryParams::size);
    let page = page_size(asked, attr, attr2)?;
    let length = asked.checked_next_multiple_of(page).ok_or(Status::NO_MEMORY)?;
    // At a fixed address the driver takes whole multiples of the alignment that was asked for.
    let aligned = flags & FLAG_FIXED_ADDRESS != 0 && flags & FLAGS_ALIGNMENT != 0;
    let unit = if aligned { get(params, MemoryParams::alignment).max(page) } else { page };
    let consumed = length.checked_next_multiple_of(unit).ok_or(Status::NO_MEMORY)?;
    let layout = layout(flags, attr, page, get(params, MemoryParams::alignment))?;
    let memory = state.take(card, length, consumed, layout)?;
    let physicality = if memory.piece.is_contiguous() { CONTIGUOUS } else { NONCONTIGUOUS };
    put(params, MemoryParams::size, length);
    put(params, MemoryParams::limit, length - 1);
    put(params, MemoryParams::offset, memory.piece.address());
    put(params, MemoryParams::alignment, page);
    let attr = attr & !(3 << 23 | 3 << PHYSICALITY);
    put(params, MemoryParams::attr, attr | page_attribute(page) << 23 | physicality << PHYSICALITY);
    Ok(memory)
}

/// Layout that an allocation is to have (`_vidmemPmaAllocate`): in one run, unless it may or shall
/// be scattered.
fn layout(flags: u32, attr: u32, page: u64, asked: u64) -> Result<PieceLayout, Status> {
    let page = page.max(GRANULE);
    let alignment = match asked {
        asked if flags & FLAGS_ALIGNMENT == 0 || asked <= page => page,
        asked if asked.is_power_of_two() => asked,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    match attr >> PHYSICALITY & 3 {
        NONCONTIGUOUS if alignment > page => Err(Status::INVALID_ARGUMENT),
        NONCONTIGUOUS => Ok(PieceLayout { run: None, pages: Some(page) }),
        ALLOW_NONCONTIGUOUS => Ok(PieceLayout { run: Some(alignment), pages: Some(page) }),
        _ => Ok(PieceLayout { run: Some(alignment), pages: None }),
    }
}

/// Size of the pages that an allocation is made of (mem_mgr.c, `_memmgrPickDefaultGpuPageSize`;
/// mem_mgr_gm107.c).
fn page_size(asked: u64, attr: u32, attr2: u32) -> Result<u64, Status> {
    if asked == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    match (attr >> 23 & 3, attr2 >> 20 & 3) {
        (0, _) if asked >= HUGE => Ok(HUGE),
        (0 | 2, _) => Ok(GRANULE),
        (1, _) => Ok(4096),
        (_, 0 | 1) => Ok(HUGE),
        (_, 2) => Ok(HUGE_512M),
        // 256 GiB: newer cards.
        _ => Err(Status::INVALID_ARGUMENT),
    }
}

/// `NVOS32_ATTR_PAGE_SIZE` of pages of that size.
const fn page_attribute(page: u64) -> u32 {
    match page {
        4096 => 1,
        GRANULE => 2,
        _ => 3,
    }
}

/// Class 0x3e: the machine's memory, in pages of 4 KiB; never the card's.
fn system_memory(state: &State, params: &mut [u8]) -> Result<Arc<HostMemory>, Status> {
    check_owner(params)?;
    let asked = get(params, MemoryParams::size);
    if get(params, MemoryParams::attr) >> 25 & 3 == 0 || asked == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let length = asked.checked_next_multiple_of(4096).ok_or(Status::NO_MEMORY)?;
    let memory = state.take_of_host(length)?;
    put(params, MemoryParams::size, length);
    put(params, MemoryParams::limit, length - 1);
    Ok(memory)
}
