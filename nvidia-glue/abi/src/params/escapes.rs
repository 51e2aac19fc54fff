//! Structs of the escapes (nvos.h, nv-unix-nvos-params-wrappers.h).

use super::{Field, FieldInfo, Handle, Layout, R535, R580, Releases, Struct, params, ptr};

params! {
    // NV_ESC_RM_FREE
    NVOS00_PARAMETERS [16] { hRoot: Handle @0, hObjectParent: Handle @4, hObjectOld: Handle @8, status: u32 @12 }

    // NV_ESC_RM_ALLOC, the smaller struct
    NVOS21_PARAMETERS_525 = "NVOS21_PARAMETERS" [32] before R535 {
        hRoot: Handle @0, hObjectParent: Handle @4, hObjectNew: Handle @8, hClass: u32 @12, pAllocParms: ptr @16, status: u32 @24,
    }
    NVOS21_PARAMETERS [32] since R535 {
        hRoot: Handle @0, hObjectParent: Handle @4, hObjectNew: Handle @8, hClass: u32 @12, pAllocParms: ptr @16,
        paramsSize: u32 @24, status: u32 @28,
    }

    // NV_ESC_RM_ALLOC, the larger struct
    NVOS64_PARAMETERS_525 = "NVOS64_PARAMETERS" [40] before R535 {
        hRoot: Handle @0, hObjectParent: Handle @4, hObjectNew: Handle @8, hClass: u32 @12, pAllocParms: ptr @16,
        pRightsRequested: ptr @24, flags: u32 @32, status: u32 @36,
    }
    NVOS64_PARAMETERS [48] since R535 {
        hRoot: Handle @0, hObjectParent: Handle @4, hObjectNew: Handle @8, hClass: u32 @12, pAllocParms: ptr @16,
        pRightsRequested: ptr @24, paramsSize: u32 @32, flags: u32 @36, status: u32 @40,
    }

    // NV_ESC_RM_VID_HEAP_CONTROL
    NVOS32_PARAMETERS [184] {
        hRoot: Handle @0, hObjectParent: Handle @4, function: u32 @8, status: u32 @20, total: u64 @24, free: u64 @32,
    }

    // NV_ESC_RM_MAP_MEMORY_DMA
    NVOS46_PARAMETERS_525 = "NVOS46_PARAMETERS" [56] before R580 {
        hClient: Handle @0, hDevice: Handle @4, hDma: Handle @8, hMemory: Handle @12, offset: u64 @16, length: u64 @24,
        flags: u32 @32, dmaOffset: u64 @40, status: u32 @48,
    }
    NVOS46_PARAMETERS [64] since R580 {
        hClient: Handle @0, hDevice: Handle @4, hDma: Handle @8, hMemory: Handle @12, offset: u64 @16, length: u64 @24,
        flags: u32 @32, flags2: u32 @36, kindOverride: u32 @40, dmaOffset: u64 @48, status: u32 @56,
    }

    // NV_ESC_RM_CONTROL
    NVOS54_PARAMETERS [32] {
        hClient: Handle @0, hObject: Handle @4, cmd: u32 @8, flags: u32 @12, params: ptr @16, paramsSize: u32 @24, status: u32 @28,
    }

    // NV_ESC_RM_DUP_OBJECT
    NVOS55_PARAMETERS [28] {
        hClient: Handle @0, hParent: Handle @4, hObject: Handle @8, hClientSrc: Handle @12, hObjectSrc: Handle @16,
        flags: u32 @20, status: u32 @24,
    }
}
