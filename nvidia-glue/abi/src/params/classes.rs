//! Parameters of the classes of `NV_ESC_RM_ALLOC` (nvos.h, class/, alloc/).

use super::{Field, FieldInfo, Handle, Layout, Releases, Struct, params, ptr};

params! {
    // NV01_EVENT, NV01_EVENT_OS_EVENT
    NV0005_ALLOC_PARAMETERS [24] { hParentClient: Handle @0, hSrcResource: Handle @4, hClass: u32 @8, notifyIndex: u32 @12, data: ptr @16 }

    // NV01_DEVICE_0
    NV0080_ALLOC_PARAMETERS [56] { deviceId: u32 @0, hClientShare: Handle @4, hTargetClient: Handle @8, hTargetDevice: Handle @12 }

    // NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER, NV50_MEMORY_VIRTUAL
    NV_MEMORY_ALLOCATION_PARAMS [128 or 120] {
        owner: u32 @0, r#type = "type": u32 @4, flags: u32 @8, attr: u32 @24, attr2: u32 @28, size: u64 @64,
        alignment: u64 @72, offset: u64 @80, limit: u64 @88, address: ptr @96,
    }

    // *_CHANNEL_GPFIFO_*
    NV_CHANNEL_ALLOC_PARAMS [368 or 360 or 304] { engineType: u32 @128 }
}
