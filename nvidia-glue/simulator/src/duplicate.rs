//! `NV_ESC_RM_DUP_OBJECT`: another handle of the same thing.

use abi::{Handle, Status, classes::RM_USER_SHARED_DATA, params::NVOS55_PARAMETERS};

use super::{
    bytes::{get, put},
    call::Call,
    objects::{Kind, Object},
    state::State,
};

/// Duplicates an object.
///
/// The source may be any client of this process: that is what the share policy which clients are
/// made with says (same process), and one process holds all clients of a container.
pub(super) fn duplicate(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let args = &mut *call.args;
    let (own, parent) = (get(args, NVOS55_PARAMETERS::hClient).0, get(args, NVOS55_PARAMETERS::hParent).0);
    let source = get(args, NVOS55_PARAMETERS::hClientSrc).0;
    let source_object = get(args, NVOS55_PARAMETERS::hObjectSrc).0;
    if !state.clients.contains_key(&source) {
        return Err(Status::INVALID_OBJECT_HANDLE);
    }
    state.client(call.file, own)?;
    if source_object == source {
        return Err(Status::INVALID_ARGUMENT);
    }
    let original = state.clients.get(&source).ok_or(Status::INVALID_OBJECT_HANDLE)?.object(source_object)?.clone();
    let client = state.client(call.file, own)?;
    if parent != own {
        client.object(parent)?;
    }
    // The latter is copied, too (gpu_user_shared_data.c, `gpushareddataCanCopy_IMPL`).
    if !may_be_duplicated(&original.kind) && original.class != RM_USER_SHARED_DATA {
        return Err(Status::INVALID_ARGUMENT);
    }
    let handle = client.new_handle(own, get(args, NVOS55_PARAMETERS::hObject).0)?;
    client.add(handle, Object { parent, depends_on: Vec::new(), ..original });
    put(args, NVOS55_PARAMETERS::hObject, Handle(handle));
    Ok(())
}

/// Returns whether the driver copies such an object (`resCanCopy`): memory, address spaces and
/// groups of channels; neither devices nor what runs on an engine.
pub(super) const fn may_be_duplicated(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::VideoMemory(_)
            | Kind::SystemMemory { .. }
            | Kind::Fabric(_)
            | Kind::VirtualMemory
            | Kind::AddressSpace
            | Kind::ChannelGroup { .. }
    )
}
