//! Calls on `/dev/nvidiactl` and `/dev/nvidiaN`, by the number of the escape: the fields of each.

use super::{
    Alloc, AllocContextDma, AllocMemory, AllocObject, Call, Control, Dup, Fields, Free, IdleChannels, MapDma,
    MapMemory, OsEvent, Share, Undecodable, UnmapMemory, UpdateMapping, VidHeap, VidHeapAlloc, VidHeapFunction,
};
use crate::{
    escapes::{Escape, EscapeLayout},
    memory::MemoryRequest,
};

/// `NVOS64_FLAGS_FINN_SERIALIZED` and `NVOS54_FLAGS_FINN_SERIALIZED` (nvos.h).
const ALLOC_SERIALIZED: u32 = 1;
const CONTROL_SERIALIZED: u32 = 4;

pub(super) fn escape_call(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Call, Undecodable> {
    let handle = |at| fields.handle(at);
    Ok(match escape.number {
        0x27 => Call::AllocMemory(alloc_memory(fields)),
        0x28 => Call::AllocObject(alloc_object(fields)),
        0x29 => Call::Free(Free { client: handle(0), parent: handle(4), object: handle(8) }),
        0x2a => Call::Control(control(escape, layout, fields)?),
        0x2b => Call::Alloc(alloc(escape, layout, fields)?),
        0x34 => Call::Dup(dup(fields)),
        0x35 => Call::Share(Share { client: handle(0), object: handle(4) }),
        0x41 => Call::IdleChannels(idle_channels(fields)),
        0x4a => Call::VidHeap(VidHeap { client: handle(0), parent: handle(4), function: vid_heap_function(fields) }),
        0x4e => Call::MapMemory(map_memory(fields)),
        0x4f => Call::UnmapMemory(unmap_memory(fields)),
        0x54 => Call::AllocContextDma(alloc_context_dma(fields)),
        0x57 => Call::MapDma(map_dma(fields)),
        0x58 => Call::UnmapDma(map_dma(fields)),
        0x59 => Call::BindContextDma { client: handle(0), channel: handle(4), context_dma: handle(8) },
        0x5e => Call::UpdateMapping(update_mapping(fields)),
        0xc8 => Call::CardInfo,
        0xc9 => Call::RegisterFd { control_fd: fields.i32(0) },
        0xce => Call::AllocOsEvent(os_event(fields)),
        0xcf => Call::FreeOsEvent(os_event(fields)),
        0xd1 => Call::CardStatus { domain: fields.u32(0), bus: byte(fields, 4), slot: byte(fields, 5) },
        0xd2 => Call::CheckVersion,
        0xd4 => Call::AttachGpus,
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
    AllocMemory {
        client: fields.handle(0),
        parent: fields.handle(4),
        object: fields.handle(8),
        class: fields.u32(12),
        flags: fields.u32(16),
        address: fields.u64(24),
        limit: fields.u64(32),
    }
}

fn alloc_object(fields: Fields<'_>) -> AllocObject {
    AllocObject { client: fields.handle(0), parent: fields.handle(4), object: fields.handle(8), class: fields.u32(12) }
}

fn control(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Control, Undecodable> {
    not_serialized(escape, layout, fields.u32(Control::FLAGS_AT), CONTROL_SERIALIZED)?;
    Ok(Control {
        client: fields.handle(0),
        object: fields.handle(4),
        id: fields.u32(8),
        params: fields.u64(Control::PARAMS_AT),
        params_size: fields.u32(24),
    })
}

fn alloc(escape: &Escape, layout: &EscapeLayout, fields: Fields<'_>) -> Result<Alloc, Undecodable> {
    // Only the larger structs have rights and flags; the flags are right before the status in both
    // of them.
    let larger = layout.size > 32;
    let flags_at = usize::from(layout.status.unwrap_or_default()).saturating_sub(4);
    not_serialized(escape, layout, if larger { fields.u32(flags_at) } else { 0 }, ALLOC_SERIALIZED)?;
    let said_params_size = match (layout.size, layout.status) {
        (32, Some(28)) => fields.u32(24),
        (48, _) => fields.u32(32),
        _ => 0,
    };
    Ok(Alloc {
        client: fields.handle(0),
        parent: fields.handle(4),
        object: fields.handle(Alloc::OBJECT_AT),
        class: fields.u32(12),
        params: fields.u64(Alloc::PARAMS_AT),
        said_params_size,
        rights: if larger { fields.u64(Alloc::RIGHTS_AT) } else { 0 },
    })
}

fn dup(fields: Fields<'_>) -> Dup {
    Dup {
        client: fields.handle(0),
        parent: fields.handle(4),
        object: fields.handle(Dup::OBJECT_AT),
        source_client: fields.handle(12),
        source_object: fields.handle(16),
        flags: fields.u32(20),
    }
}

fn idle_channels(fields: Fields<'_>) -> IdleChannels {
    IdleChannels {
        client: fields.handle(0),
        device: fields.handle(4),
        channel: fields.handle(8),
        count: fields.u32(12),
    }
}

fn map_memory(fields: Fields<'_>) -> MapMemory {
    MapMemory {
        client: fields.handle(0),
        device: fields.handle(4),
        memory: fields.handle(8),
        offset: fields.u64(16),
        length: fields.u64(24),
        flags: fields.u32(44),
        fd: fields.i32(48),
    }
}

fn unmap_memory(fields: Fields<'_>) -> UnmapMemory {
    UnmapMemory {
        client: fields.handle(0),
        device: fields.handle(4),
        memory: fields.handle(8),
        address: fields.u64(16),
    }
}

fn alloc_context_dma(fields: Fields<'_>) -> AllocContextDma {
    AllocContextDma {
        client: fields.handle(0),
        parent: fields.handle(4),
        object: fields.handle(8),
        class: fields.u32(12),
        memory: fields.handle(24),
    }
}

fn update_mapping(fields: Fields<'_>) -> UpdateMapping {
    UpdateMapping {
        client: fields.handle(0),
        device: fields.handle(4),
        memory: fields.handle(8),
        old_address: fields.u64(16),
        new_address: fields.u64(24),
    }
}

fn byte(fields: Fields<'_>, at: usize) -> u8 {
    fields.0.get(at).copied().unwrap_or_default()
}

fn map_dma(fields: Fields<'_>) -> MapDma {
    MapDma { client: fields.handle(0), device: fields.handle(4), dma: fields.handle(8), memory: fields.handle(12) }
}

fn os_event(fields: Fields<'_>) -> OsEvent {
    OsEvent { client: fields.handle(0), device: fields.handle(4), fd: fields.i32(8) }
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

    let allocation = |attr_at, attr2_at, size_at, size: Option<u64>| {
        let request = MemoryRequest {
            flags: fields.u32(52),
            attr: fields.u32(attr_at),
            attr2: fields.u32(attr2_at),
            size: size.unwrap_or_else(|| fields.u64(size_at)),
        };
        VidHeapFunction::Alloc(VidHeapAlloc { memory: fields.handle(44), memory_at: 44, request, size_at, attr_at })
    };
    match fields.u32(8) {
        ALLOC_SIZE => allocation(56, 144, 88, None),
        ALLOC_TILED_PITCH_HEIGHT => {
            // Whatever is said of the size.
            let size = u64::from(fields.u32(56)).saturating_mul(u64::from(fields.u32(60)));
            allocation(64, 144, 88, Some(size))
        }
        ALLOC_SIZE_RANGE => allocation(56, 136, 80, None),
        FREE => VidHeapFunction::Free { memory: fields.handle(44) },
        INFO => VidHeapFunction::Info,
        function @ (REACQUIRE_COMPR | RELEASE_COMPR | GET_MEM_ALIGNMENT) => VidHeapFunction::Other(function),
        function => VidHeapFunction::Refused(function),
    }
}
