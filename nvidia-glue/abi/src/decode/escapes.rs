//! Calls on `/dev/nvidiactl` and `/dev/nvidiaN`, by the number of the escape: the fields of each.

use super::{
    Alloc, AllocContextDma, AllocMemory, AllocObject, Call, Control, Dup, Fields, Free, IdleChannels, MapDma,
    MapMemory, OsEvent, Share, Undecodable, UnmapMemory, UpdateMapping, VidHeap, VidHeapAlloc, VidHeapFunction,
};
use crate::{escapes::*, memory::MemoryRequest, params::*};

/// `NVOS64_FLAGS_FINN_SERIALIZED` and `NVOS54_FLAGS_FINN_SERIALIZED` (nvos.h).
const ALLOC_SERIALIZED: u32 = 1;
const CONTROL_SERIALIZED: u32 = 4;

pub(super) fn escape_call(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Call, Undecodable> {
    Ok(match escape.number {
        NV_ESC_RM_ALLOC_MEMORY => Call::AllocMemory(alloc_memory(fields)),
        NV_ESC_RM_ALLOC_OBJECT => Call::AllocObject(alloc_object(fields)),
        NV_ESC_RM_FREE => Call::Free(Free {
            client: fields.get(NVOS00_PARAMETERS::hRoot),
            parent: fields.get(NVOS00_PARAMETERS::hObjectParent),
            object: fields.get(NVOS00_PARAMETERS::hObjectOld),
        }),
        NV_ESC_RM_CONTROL => Call::Control(control(escape, layout, fields)?),
        NV_ESC_RM_ALLOC => Call::Alloc(alloc(escape, layout, fields)?),
        NV_ESC_RM_DUP_OBJECT => Call::Dup(dup(fields)),
        NV_ESC_RM_SHARE => Call::Share(Share {
            client: fields.get(NVOS57_PARAMETERS::hClient),
            object: fields.get(NVOS57_PARAMETERS::hObject),
        }),
        NV_ESC_RM_IDLE_CHANNELS => Call::IdleChannels(idle_channels(fields)),
        NV_ESC_RM_VID_HEAP_CONTROL => Call::VidHeap(VidHeap {
            client: fields.get(NVOS32_PARAMETERS::hRoot),
            parent: fields.get(NVOS32_PARAMETERS::hObjectParent),
            function: vid_heap_function(fields),
        }),
        NV_ESC_RM_MAP_MEMORY => Call::MapMemory(map_memory(fields)),
        NV_ESC_RM_UNMAP_MEMORY => Call::UnmapMemory(unmap_memory(fields)),
        NV_ESC_RM_ALLOC_CONTEXT_DMA2 => Call::AllocContextDma(alloc_context_dma(fields)),
        NV_ESC_RM_MAP_MEMORY_DMA => Call::MapDma(map_dma(fields)),
        NV_ESC_RM_UNMAP_MEMORY_DMA => Call::UnmapDma(map_dma(fields)),
        NV_ESC_RM_BIND_CONTEXT_DMA => Call::BindContextDma {
            client: fields.get(NVOS49_PARAMETERS::hClient),
            channel: fields.get(NVOS49_PARAMETERS::hChannel),
            context_dma: fields.get(NVOS49_PARAMETERS::hCtxDma),
        },
        NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO => Call::UpdateMapping(update_mapping(fields)),
        NV_ESC_CARD_INFO => Call::CardInfo,
        NV_ESC_REGISTER_FD => Call::RegisterFd { control_fd: fields.get(nv_ioctl_register_fd_t::ctl_fd) },
        NV_ESC_ALLOC_OS_EVENT => Call::AllocOsEvent(os_event(fields)),
        NV_ESC_FREE_OS_EVENT => Call::FreeOsEvent(os_event(fields)),
        NV_ESC_STATUS_CODE => Call::CardStatus {
            domain: fields.get(nv_ioctl_status_code_t::domain),
            bus: fields.get(nv_ioctl_status_code_t::bus),
            slot: fields.get(nv_ioctl_status_code_t::slot),
        },
        NV_ESC_CHECK_VERSION_STR => Call::CheckVersion,
        NV_ESC_ATTACH_GPUS_TO_FD => Call::AttachGpus,
        _ => Call::Other,
    })
}

/// Refuses a call whose parameters are serialized, as `bit` of its flags says.
fn not_serialized(escape: &Escape, layout: &EscapeLayout, flags: u32, bit: u32) -> Result<(), Undecodable> {
    match layout.status {
        Some(status_at) if flags & bit != 0 => {
            Err(Undecodable::Serialized { name: escape.name, status_at: usize::from(status_at) })
        }
        _ => Ok(()),
    }
}

fn alloc_memory(fields: Fields<'_>) -> AllocMemory {
    type Args = nv_ioctl_nvos02_parameters_with_fd;
    AllocMemory {
        client: fields.get(Args::hRoot),
        parent: fields.get(Args::hObjectParent),
        object: fields.get(Args::hObjectNew),
        class: fields.get(Args::hClass),
        flags: fields.get(Args::flags),
        address: fields.get(Args::pMemory),
        limit: fields.get(Args::limit),
    }
}

fn alloc_object(fields: Fields<'_>) -> AllocObject {
    type Args = NVOS05_PARAMETERS;
    AllocObject {
        client: fields.get(Args::hRoot),
        parent: fields.get(Args::hObjectParent),
        object: fields.get(Args::hObjectNew),
        class: fields.get(Args::hClass),
    }
}

fn control(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Control, Undecodable> {
    type Args = NVOS54_PARAMETERS;
    not_serialized(escape, layout, fields.get(Args::flags), CONTROL_SERIALIZED)?;
    Ok(Control {
        client: fields.get(Args::hClient),
        object: fields.get(Args::hObject),
        id: fields.get(Args::cmd),
        params: fields.get(Args::params),
        params_size: fields.get(Args::paramsSize),
    })
}

fn alloc(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Alloc, Undecodable> {
    // The structs begin alike; only the larger ones have rights and flags.
    type Args = NVOS64_PARAMETERS;
    type Smaller = NVOS21_PARAMETERS;
    let is_newer = layout.releases == Args::RELEASES;
    let is_larger = usize::from(layout.size) > Smaller::SIZE;
    let (params_size, flags) = match (is_newer, is_larger) {
        (true, true) => (Some(Args::paramsSize), Some(Args::flags)),
        (true, false) => (Some(Smaller::paramsSize), None),
        (false, true) => (None, Some(NVOS64_PARAMETERS_525::flags)),
        (false, false) => (None, None),
    };
    let optional = |field: Option<Field<u32>>| field.map_or(0, |field| fields.get(field));
    not_serialized(escape, layout, optional(flags), ALLOC_SERIALIZED)?;
    Ok(Alloc {
        client: fields.get(Args::hRoot),
        parent: fields.get(Args::hObjectParent),
        object: fields.get(Args::hObjectNew),
        class: fields.get(Args::hClass),
        params: fields.get(Args::pAllocParms),
        said_params_size: optional(params_size),
        rights: if is_larger { fields.get(Args::pRightsRequested) } else { 0 },
    })
}

fn dup(fields: Fields<'_>) -> Dup {
    type Args = NVOS55_PARAMETERS;
    Dup {
        client: fields.get(Args::hClient),
        parent: fields.get(Args::hParent),
        object: fields.get(Args::hObject),
        source_client: fields.get(Args::hClientSrc),
        source_object: fields.get(Args::hObjectSrc),
        flags: fields.get(Args::flags),
    }
}

fn idle_channels(fields: Fields<'_>) -> IdleChannels {
    type Args = NVOS30_PARAMETERS;
    IdleChannels {
        client: fields.get(Args::hClient),
        device: fields.get(Args::hDevice),
        channel: fields.get(Args::hChannel),
        count: fields.get(Args::numChannels),
    }
}

fn map_memory(fields: Fields<'_>) -> MapMemory {
    type Args = nv_ioctl_nvos33_parameters_with_fd;
    MapMemory {
        client: fields.get(Args::hClient),
        device: fields.get(Args::hDevice),
        memory: fields.get(Args::hMemory),
        offset: fields.get(Args::offset),
        length: fields.get(Args::length),
        flags: fields.get(Args::flags),
        fd: fields.get(Args::fd),
    }
}

fn unmap_memory(fields: Fields<'_>) -> UnmapMemory {
    type Args = NVOS34_PARAMETERS;
    UnmapMemory {
        client: fields.get(Args::hClient),
        device: fields.get(Args::hDevice),
        memory: fields.get(Args::hMemory),
        address: fields.get(Args::pLinearAddress),
    }
}

fn alloc_context_dma(fields: Fields<'_>) -> AllocContextDma {
    type Args = NVOS39_PARAMETERS;
    AllocContextDma {
        client: fields.get(Args::hObjectParent),
        parent: fields.get(Args::hSubDevice),
        object: fields.get(Args::hObjectNew),
        class: fields.get(Args::hClass),
        memory: fields.get(Args::hMemory),
    }
}

fn update_mapping(fields: Fields<'_>) -> UpdateMapping {
    type Args = NVOS56_PARAMETERS;
    UpdateMapping {
        client: fields.get(Args::hClient),
        device: fields.get(Args::hDevice),
        memory: fields.get(Args::hMemory),
        old_address: fields.get(Args::pOldCpuAddress),
        new_address: fields.get(Args::pNewCpuAddress),
    }
}

fn map_dma(fields: Fields<'_>) -> MapDma {
    // Both structs, of every release, begin alike.
    type Args = NVOS46_PARAMETERS;
    MapDma {
        client: fields.get(Args::hClient),
        device: fields.get(Args::hDevice),
        dma: fields.get(Args::hDma),
        memory: fields.get(Args::hMemory),
    }
}

fn os_event(fields: Fields<'_>) -> OsEvent {
    // The other struct is the same.
    type Args = nv_ioctl_alloc_os_event_t;
    let fd = fields.get(Args::fd).cast_signed();
    OsEvent { client: fields.get(Args::hClient), device: fields.get(Args::hDevice), fd }
}

/// `NVOS32_FUNCTION_*` and the union of their data (nvos.h).
fn vid_heap_function(fields: Fields<'_>) -> VidHeapFunction {
    const ALLOC_SIZE: u32 = 2;
    const FREE: u32 = 3;
    const INFO: u32 = 5;
    const ALLOC_TILED_PITCH_HEIGHT: u32 = 6;
    const ALLOC_SIZE_RANGE: u32 = 14;
    const REACQUIRE_COMPR: u32 = 15;
    const RELEASE_COMPR: u32 = 16;
    const GET_MEM_ALIGNMENT: u32 = 18;

    type Args = NVOS32_PARAMETERS;
    let allocation = |request: MemoryRequest, size: Field<u64>, attr: Field<u32>| {
        let (memory, memory_at) = (fields.get(Args::hMemory), Args::hMemory.at());
        VidHeapFunction::Alloc(VidHeapAlloc { memory, memory_at, request, size_at: size.at(), attr_at: attr.at() })
    };
    match fields.get(Args::function) {
        ALLOC_SIZE => {
            let request = MemoryRequest {
                flags: fields.get(Args::flags),
                attr: fields.get(Args::attr),
                attr2: fields.get(Args::attr2),
                size: fields.get(Args::size),
            };
            allocation(request, Args::size, Args::attr)
        }
        ALLOC_TILED_PITCH_HEIGHT => {
            let (height, pitch) = (fields.get(Args::tiledHeight), fields.get(Args::tiledPitch).cast_unsigned());
            let request = MemoryRequest {
                flags: fields.get(Args::tiledFlags),
                attr: fields.get(Args::tiledAttr),
                attr2: fields.get(Args::tiledAttr2),
                // Whatever `size` says.
                size: u64::from(height).saturating_mul(u64::from(pitch)),
            };
            allocation(request, Args::tiledSize, Args::tiledAttr)
        }
        ALLOC_SIZE_RANGE => {
            let request = MemoryRequest {
                flags: fields.get(Args::rangeFlags),
                attr: fields.get(Args::rangeAttr),
                attr2: fields.get(Args::rangeAttr2),
                size: fields.get(Args::rangeSize),
            };
            allocation(request, Args::rangeSize, Args::rangeAttr)
        }
        FREE => VidHeapFunction::Free { memory: fields.get(Args::freeMemory) },
        INFO => VidHeapFunction::Info,
        function @ (REACQUIRE_COMPR | RELEASE_COMPR | GET_MEM_ALIGNMENT) => VidHeapFunction::Other(function),
        function => VidHeapFunction::Refused(function),
    }
}
