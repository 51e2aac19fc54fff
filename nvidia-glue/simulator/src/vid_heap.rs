//! `NV_ESC_RM_VID_HEAP_CONTROL`: the older way to the same memory (`NVOS32_PARAMETERS`, 184 bytes).
//!
//! It becomes an allocation of class 0x40, 0x3e or 0x50a0, whichever the attributes say
//! (src/nvidia/interface/deprecated/rmapi_deprecated_vidheapctrl.c).

use abi::{
    Handle, Status,
    classes::{NV01_MEMORY_LOCAL_USER, NV01_MEMORY_SYSTEM, NV50_MEMORY_VIRTUAL},
    encode,
    params::{Field, NV_MEMORY_ALLOCATION_PARAMS, NVOS32_PARAMETERS},
};

use super::{
    allocate::{Ask, allocate},
    bytes::{get, put},
    call::Call,
    state::State,
};

/// `NVOS32_FUNCTION_*`.
const ALLOC_SIZE: u32 = 2;
const FREE: u32 = 3;
const INFO: u32 = 5;
const ALLOC_TILED: u32 = 6;
const ALLOC_RANGE: u32 = 14;

/// Fields of one function in the union of all.
struct Fields {
    flags: Field<u32>,
    attr: Field<u32>,
    attr2: Field<u32>,
    size: Field<u64>,
    alignment: Field<u64>,
    offset: Field<u64>,
}

type Heap = NVOS32_PARAMETERS;

const OF_SIZE: Fields = Fields {
    flags: Heap::flags,
    attr: Heap::attr,
    attr2: Heap::attr2,
    size: Heap::size,
    alignment: Heap::alignment,
    offset: Heap::offset,
};
const OF_RANGE: Fields = Fields {
    flags: Heap::rangeFlags,
    attr: Heap::rangeAttr,
    attr2: Heap::rangeAttr2,
    size: Heap::rangeSize,
    alignment: Heap::rangeAlignment,
    offset: Heap::rangeOffset,
};
const OF_TILED: Fields = Fields {
    flags: Heap::tiledFlags,
    attr: Heap::tiledAttr,
    attr2: Heap::tiledAttr2,
    size: Heap::tiledSize,
    alignment: Heap::tiledAlignment,
    offset: Heap::tiledOffset,
};

pub(super) fn control(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, device) = (get(call.args, Heap::hRoot).0, get(call.args, Heap::hObjectParent).0);
    let function = get(call.args, Heap::function);
    let card = state.client(call.file, own)?.card_of(device).ok_or(Status::INVALID_OBJECT_PARENT)?;
    let outcome = match function {
        ALLOC_SIZE => allocate_by(state, call, &OF_SIZE),
        ALLOC_RANGE => allocate_by(state, call, &OF_RANGE),
        ALLOC_TILED => {
            let pitch = get(call.args, Heap::tiledPitch).cast_unsigned();
            let size = u64::from(get(call.args, Heap::tiledHeight)) * u64::from(pitch);
            put(call.args, Heap::tiledSize, size);
            allocate_by(state, call, &OF_TILED)
        }
        FREE => state.client(call.file, own)?.free(get(call.args, Heap::freeMemory).0),
        INFO => Ok(()),
        _ => Err(Status::NOT_SUPPORTED),
    };
    outcome?;
    // Any function's answer says how much there is and how much is free.
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    let (total, used) = (place.memory.capacity(), place.memory.used().unwrap_or(u64::MAX));
    put(call.args, Heap::total, total);
    put(call.args, Heap::free, total.saturating_sub(used));
    if function == INFO {
        put(call.args, Heap::infoSize, total.saturating_sub(used));
    }
    Ok(())
}

fn allocate_by(state: &mut State, call: &mut Call<'_>, fields: &Fields) -> Result<(), Status> {
    type Memory = NV_MEMORY_ALLOCATION_PARAMS;
    const VIRTUAL: u32 = 0x8_0000;
    let (file, args) = (call.file, &mut *call.args);
    let (flags, attr) = (get(args, fields.flags), get(args, fields.attr));
    let class = match (flags & VIRTUAL != 0, attr >> 25 & 3) {
        (true, _) => NV50_MEMORY_VIRTUAL,
        (false, 0) => NV01_MEMORY_LOCAL_USER,
        _ => NV01_MEMORY_SYSTEM,
    };
    let mut params = encode!(Memory {
        owner: get(args, Heap::owner),
        flags: flags,
        attr: attr,
        attr2: get(args, fields.attr2),
        size: get(args, fields.size),
        alignment: get(args, fields.alignment),
    });
    let (client, parent) = (get(args, Heap::hRoot).0, get(args, Heap::hObjectParent).0);
    let handle = get(args, Heap::hMemory).0;
    let handle = allocate(state, Ask { file, client, parent, handle, class, params: Some(&mut params) })?;
    put(args, Heap::hMemory, Handle(handle));
    put(args, fields.attr, get(&params, Memory::attr));
    put(args, fields.size, get(&params, Memory::size));
    put(args, fields.offset, get(&params, Memory::offset));
    Ok(())
}
