//! Parameters of the classes of `NV_ESC_RM_ALLOC` (nvos.h, class/, alloc/).

use super::{Field, FieldInfo, Handle, Layout, R535, R550, Releases, Struct, params, ptr};

params! {
    // NV01_EVENT, NV01_EVENT_OS_EVENT
    NV0005_ALLOC_PARAMETERS [24] { hParentClient: Handle @0, hSrcResource: Handle @4, hClass: u32 @8, notifyIndex: u32 @12, data: ptr @16 }

    // NV01_DEVICE_0
    NV0080_ALLOC_PARAMETERS [56] { deviceId: u32 @0, hClientShare: Handle @4, hTargetClient: Handle @8, hTargetDevice: Handle @12, flags: u32 @16 }

    // NV01_MEMORY_SYSTEM, NV01_MEMORY_LOCAL_USER, NV50_MEMORY_VIRTUAL
    NV_MEMORY_ALLOCATION_PARAMS [128 or 120] {
        owner: u32 @0, r#type = "type": u32 @4, flags: u32 @8, attr: u32 @24, attr2: u32 @28,
        rangeLo: u64 @48, rangeHi: u64 @56, size: u64 @64, alignment: u64 @72, offset: u64 @80,
        limit: u64 @88, address: ptr @96,
    }

    // *_CHANNEL_GPFIFO_*
    NV_CHANNEL_ALLOC_PARAMS [368 or 360 or 304] {
        hObjectError: Handle @0, hObjectBuffer: Handle @4, gpFifoOffset: u64 @8, gpFifoEntries: u32 @16,
        flags: u32 @20, hContextShare: Handle @24, hVASpace: Handle @28, hUserdMemory: [Handle; 8] @32,
        userdOffset: [u64; 8] @64, engineType: u32 @128, hObjectEccError: Handle @140,
    }

    // NV20_SUBDEVICE_0
    NV2080_ALLOC_PARAMETERS [4] { subDeviceId: u32 @0 }

    // GT200_DEBUGGER
    NV83DE_ALLOC_PARAMETERS [12] {
        hDebuggerClient_Obsolete: Handle @0, hAppClient: Handle @4, hClass3dObject: Handle @8,
    }

    // KEPLER_CHANNEL_GROUP_A
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS [20] {
        hObjectError: Handle @0, hObjectEccError: Handle @4, hVASpace: Handle @8, engineType: u32 @12,
    }

    // FERMI_CONTEXT_SHARE_A
    NV_CTXSHARE_ALLOCATION_PARAMETERS [12] { hVASpace: Handle @0, flags: u32 @4, subctxId: u32 @8 }

    // FERMI_VASPACE_A
    NV_VASPACE_ALLOCATION_PARAMETERS [56 or 48] {
        index: u32 @0, flags: u32 @4, vaSize: u64 @8, bigPageSize: u32 @32, vaBase: u64 @40,
    }

    // NV_MEMORY_FABRIC
    NV00F8_ALLOCATION_PARAMETERS_525 = "NV00F8_ALLOCATION_PARAMETERS" [40] before R535 {
        alignment: u64 @0, allocSize: u64 @8, pageSize: u32 @16, allocFlags: u32 @20,
        offset = "map.offset": u64 @24, hVidMem = "map.hVidMem": Handle @32,
        mapFlags = "map.flags": u32 @36,
    }
    NV00F8_ALLOCATION_PARAMETERS [48] since R535 {
        alignment: u64 @0, allocSize: u64 @8, pageSize: u64 @16, allocFlags: u32 @24,
        offset = "map.offset": u64 @32, hVidMem = "map.hVidMem": Handle @40,
        mapFlags = "map.flags": u32 @44,
    }

    // RM_USER_SHARED_DATA
    NV00DE_ALLOC_PARAMETERS [8] since R550 { polledDataMask: u64 @0 }

    // NV_EVENT_BUFFER
    NV_EVENT_BUFFER_ALLOC_PARAMETERS [72] {
        recordSize: u32 @16, recordCount: u32 @20, hSubDevice: Handle @52, flags: u32 @56,
        hBufferHeader: Handle @60, hRecordBuffer: Handle @64,
    }

    // NV_SEMAPHORE_SURFACE
    NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS [16] { hSemaphoreMem: Handle @0, hMaxSubmittedMem: Handle @4, flags: u64 @8 }

    // NV01_CONTEXT_DMA
    NV_CONTEXT_DMA_ALLOCATION_PARAMS [32] {
        hSubDevice: Handle @0, flags: u32 @4, hMemory: Handle @8, offset: u64 @16, limit: u64 @24,
    }
}
