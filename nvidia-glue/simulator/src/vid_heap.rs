//! `NV_ESC_RM_VID_HEAP_CONTROL`: the older way to the same memory (`NVOS32_PARAMETERS`, 184 bytes).
//!
//! It becomes an allocation of class 0x40, 0x3e or 0x50a0, whichever the attributes say
//! (src/nvidia/interface/deprecated/rmapi_deprecated_vidheapctrl.c).

use abi::Status;

use super::{
    allocate::{Ask, allocate},
    bytes::{get, get_u64, put, put_bytes, put_u64},
    call::Call,
    state::State,
};

const ALLOC_SIZE: u32 = 2;
const FREE: u32 = 3;
const INFO: u32 = 5;
const ALLOC_TILED: u32 = 6;
const ALLOC_RANGE: u32 = 14;

/// Offsets of one function's fields within the whole struct.
struct Fields {
    flags: usize,
    attr: usize,
    attr2: usize,
    size: usize,
}

pub(super) fn control(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, device, function) = (get(call.args, 0), get(call.args, 4), get(call.args, 8));
    let card = state.client(call.file, own)?.card_of(device).ok_or(super::objects::INVALID_OBJECT_PARENT)?;
    let outcome = match function {
        ALLOC_SIZE => allocate_by(state, call, &Fields { flags: 52, attr: 56, attr2: 144, size: 88 }),
        ALLOC_RANGE => allocate_by(state, call, &Fields { flags: 52, attr: 56, attr2: 136, size: 80 }),
        ALLOC_TILED => {
            let size = u64::from(get(call.args, 56)) * u64::from(get(call.args, 60));
            put_u64(call.args, 88, size);
            allocate_by(state, call, &Fields { flags: 52, attr: 64, attr2: 144, size: 88 })
        }
        FREE => state.client(call.file, own)?.free(get(call.args, 44)),
        INFO => Ok(()),
        _ => Err(Status::NOT_SUPPORTED),
    };
    outcome?;
    // Whatever the function, the answer says how much there is and how much is free.
    let place = state.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
    let (total, used) = (place.memory.capacity(), place.memory.used().unwrap_or(u64::MAX));
    put_u64(call.args, 24, total);
    put_u64(call.args, 32, total.saturating_sub(used));
    if function == INFO {
        put_u64(call.args, 56, total.saturating_sub(used));
    }
    Ok(())
}

fn allocate_by(state: &mut State, call: &mut Call<'_>, fields: &Fields) -> Result<(), Status> {
    let (file, args) = (call.file, &mut *call.args);
    let (flags, attr) = (get(args, fields.flags), get(args, fields.attr));
    let class = match (flags & 0x8_0000 != 0, attr >> 25 & 3) {
        (true, _) => 0x50a0,
        (false, 0) => 0x40,
        _ => 0x3e,
    };
    let mut params = [0; 128];
    put(&mut params, 0, get(args, 40));
    put(&mut params, 8, flags);
    put(&mut params, 24, attr);
    put(&mut params, 28, get(args, fields.attr2));
    put_u64(&mut params, 64, get_u64(args, fields.size));
    put_u64(&mut params, 72, get_u64(args, fields.size + 8));
    let (client, parent, handle) = (get(args, 0), get(args, 4), get(args, 44));
    let handle = allocate(state, Ask { file, client, parent, handle, class, params: Some(&mut params) })?;
    put(args, 44, handle);
    put(args, fields.attr, get(&params, 24));
    // And where it is, behind the alignment.
    for (at, field) in [(fields.size, 64), (fields.size + 16, 80)] {
        put_bytes(args, at, &get_u64(&params, field).to_le_bytes());
    }
    Ok(())
}
