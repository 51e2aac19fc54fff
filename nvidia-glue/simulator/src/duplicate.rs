//! `NV_ESC_RM_DUP_OBJECT`: another handle of the same thing.

use abi::Status;

use super::{
    bytes::{get, put},
    call::Call,
    objects::{INVALID_OBJECT_HANDLE, Kind, Object},
    state::State,
};

/// `NVOS55`: hClient, hParent, hObject, hClientSrc, hObjectSrc, flags, status.
///
/// The source may be any client of this process: that is what the share policy which clients are made with says (same
/// process), and one process holds all clients of a container.
pub(super) fn duplicate(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let args = &mut *call.args;
    let (own, parent, source) = (get(args, 0), get(args, 4), get(args, 12));
    if !state.clients.contains_key(&source) {
        return Err(INVALID_OBJECT_HANDLE);
    }
    state.client(call.file, own)?;
    if get(args, 16) == source {
        return Err(Status::INVALID_ARGUMENT);
    }
    let original = state.clients.get(&source).ok_or(INVALID_OBJECT_HANDLE)?.object(get(args, 16))?.clone();
    let client = state.client(call.file, own)?;
    if parent != own {
        client.object(parent)?;
    }
    if !may_be_duplicated(&original.kind) && original.class != USER_SHARED_DATA {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handle = client.new_handle(own, get(args, 8))?;
    client.objects.insert(handle, Object { parent, depends_on: Vec::new(), ..original });
    put(args, 8, handle);
    Ok(())
}

/// `RM_USER_SHARED_DATA`, which is copied too (gpu_user_shared_data.c, `gpushareddataCanCopy_IMPL`).
const USER_SHARED_DATA: u32 = 0xde;

/// Whether the driver copies such an object (`resCanCopy`): memory, address spaces and groups of
/// channels; neither devices nor what runs on an engine.
pub(super) const fn may_be_duplicated(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::VideoMemory(_)
            | Kind::SystemMemory { .. }
            | Kind::VirtualMemory
            | Kind::AddressSpace
            | Kind::ChannelGroup { .. }
    )
}
