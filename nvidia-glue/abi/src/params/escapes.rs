//! Structs of the escapes (nvos.h, nv-unix-nvos-params-wrappers.h).

use super::{Field, FieldInfo, Handle, Layout, R535, R550, R570, R580, RS_SHARE_POLICY, Releases, Struct, params, ptr};

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

    // NV_ESC_RM_VID_HEAP_CONTROL; what the functions take is a union from 40 on: of ALLOC_SIZE where
    // nothing is said, `tiled` of ALLOC_TILED_PITCH_HEIGHT, `range` of ALLOC_SIZE_RANGE.
    NVOS32_PARAMETERS [184] {
        hRoot: Handle @0, hObjectParent: Handle @4, function: u32 @8, status: u32 @20, total: u64 @24, free: u64 @32,
        owner = "data.AllocSize.owner": u32 @40, hMemory = "data.AllocSize.hMemory": Handle @44,
        freeMemory = "data.Free.hMemory": Handle @44, flags = "data.AllocSize.flags": u32 @52,
        tiledFlags = "data.AllocTiledPitchHeight.flags": u32 @52, rangeFlags = "data.AllocSizeRange.flags": u32 @52,
        attr = "data.AllocSize.attr": u32 @56, tiledHeight = "data.AllocTiledPitchHeight.height": u32 @56,
        rangeAttr = "data.AllocSizeRange.attr": u32 @56, infoSize = "data.Info.size": u64 @56,
        tiledPitch = "data.AllocTiledPitchHeight.pitch": i32 @60, tiledAttr = "data.AllocTiledPitchHeight.attr": u32 @64,
        rangeSize = "data.AllocSizeRange.size": u64 @80, size = "data.AllocSize.size": u64 @88,
        tiledSize = "data.AllocTiledPitchHeight.size": u64 @88, rangeAlignment = "data.AllocSizeRange.alignment": u64 @88,
        alignment = "data.AllocSize.alignment": u64 @96, tiledAlignment = "data.AllocTiledPitchHeight.alignment": u64 @96,
        rangeOffset = "data.AllocSizeRange.offset": u64 @96, offset = "data.AllocSize.offset": u64 @104,
        tiledOffset = "data.AllocTiledPitchHeight.offset": u64 @104, rangeAttr2 = "data.AllocSizeRange.attr2": u32 @136,
        attr2 = "data.AllocSize.attr2": u32 @144, tiledAttr2 = "data.AllocTiledPitchHeight.attr2": u32 @144,
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

    // NV_ESC_RM_ALLOC_MEMORY
    nv_ioctl_nvos02_parameters_with_fd [56] {
        hRoot = "params.hRoot": Handle @0, hObjectParent = "params.hObjectParent": Handle @4,
        hObjectNew = "params.hObjectNew": Handle @8, hClass = "params.hClass": u32 @12,
        flags = "params.flags": u32 @16, pMemory = "params.pMemory": ptr @24,
        limit = "params.limit": u64 @32, status = "params.status": u32 @40, fd: i32 @48,
    }

    // NV_ESC_RM_ALLOC_OBJECT
    NVOS05_PARAMETERS [20] {
        hRoot: Handle @0, hObjectParent: Handle @4, hObjectNew: Handle @8, hClass: u32 @12,
        status: u32 @16,
    }

    // NV_ESC_RM_IDLE_CHANNELS
    NVOS30_PARAMETERS [56] {
        hClient: Handle @0, hDevice: Handle @4, hChannel: Handle @8, numChannels: u32 @12,
        phClients: ptr @16, phDevices: ptr @24, phChannels: ptr @32, flags: u32 @40, timeout: u32 @44,
        status: u32 @48,
    }

    // NV_ESC_RM_MAP_MEMORY
    nv_ioctl_nvos33_parameters_with_fd [56] {
        hClient = "params.hClient": Handle @0, hDevice = "params.hDevice": Handle @4,
        hMemory = "params.hMemory": Handle @8, offset = "params.offset": u64 @16,
        length = "params.length": u64 @24, pLinearAddress = "params.pLinearAddress": ptr @32,
        status = "params.status": u32 @40, flags = "params.flags": u32 @44, fd: i32 @48,
    }

    // NV_ESC_RM_UNMAP_MEMORY
    NVOS34_PARAMETERS [32] {
        hClient: Handle @0, hDevice: Handle @4, hMemory: Handle @8, pLinearAddress: ptr @16,
        status: u32 @24, flags: u32 @28,
    }

    // NV_ESC_RM_ALLOC_CONTEXT_DMA2
    NVOS39_PARAMETERS [56] {
        hObjectParent: Handle @0, hSubDevice: Handle @4, hObjectNew: Handle @8, hClass: u32 @12,
        flags: u32 @16, selector: u32 @20, hMemory: Handle @24, offset: u64 @32, limit: u64 @40,
        status: u32 @48,
    }

    // NV_ESC_RM_UNMAP_MEMORY_DMA
    NVOS47_PARAMETERS_525 = "NVOS47_PARAMETERS" [40] before R550 {
        hClient: Handle @0, hDevice: Handle @4, hDma: Handle @8, hMemory: Handle @12, flags: u32 @16,
        dmaOffset: u64 @24, status: u32 @32,
    }
    NVOS47_PARAMETERS [48] since R550 {
        hClient: Handle @0, hDevice: Handle @4, hDma: Handle @8, hMemory: Handle @12, flags: u32 @16,
        dmaOffset: u64 @24, size: u64 @32, status: u32 @40,
    }

    // NV_ESC_RM_BIND_CONTEXT_DMA
    NVOS49_PARAMETERS [16] { hClient: Handle @0, hChannel: Handle @4, hCtxDma: Handle @8, status: u32 @12 }

    // NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
    NVOS56_PARAMETERS [40] {
        hClient: Handle @0, hDevice: Handle @4, hMemory: Handle @8, pOldCpuAddress: ptr @16,
        pNewCpuAddress: ptr @24, status: u32 @32,
    }

    // NV_ESC_RM_SHARE
    NVOS57_PARAMETERS [24] { hClient: Handle @0, hObject: Handle @4, sharePolicy: RS_SHARE_POLICY @8, status: u32 @20 }

    // NV_ESC_CARD_INFO, one of an array
    nv_ioctl_card_info_t [72] {
        valid: u8 @0, domain = "pci_info.domain": u32 @4, bus = "pci_info.bus": u8 @8,
        slot = "pci_info.slot": u8 @9, function = "pci_info.function": u8 @10,
        vendor_id = "pci_info.vendor_id": u16 @12, device_id = "pci_info.device_id": u16 @14,
        gpu_id: u32 @16, interrupt_line: u16 @20, reg_address: u64 @24, reg_size: u64 @32,
        fb_address: u64 @40, fb_size: u64 @48, minor_number: u32 @56,
    }

    // NV_ESC_REGISTER_FD
    nv_ioctl_register_fd_t [4] { ctl_fd: i32 @0 }

    // NV_ESC_ALLOC_OS_EVENT
    nv_ioctl_alloc_os_event_t [16] { hClient: Handle @0, hDevice: Handle @4, fd: u32 @8, Status: u32 @12 }

    // NV_ESC_FREE_OS_EVENT
    nv_ioctl_free_os_event_t [16] { hClient: Handle @0, hDevice: Handle @4, fd: u32 @8, Status: u32 @12 }

    // NV_ESC_STATUS_CODE
    nv_ioctl_status_code_t [12] { domain: u32 @0, bus: u8 @4, slot: u8 @5, status: u32 @8 }

    // NV_ESC_CHECK_VERSION_STR
    nv_ioctl_rm_api_version_t [72] { cmd: u32 @0, reply: u32 @4, versionString: [u8; 64] @8 }

    // NV_ESC_IOCTL_XFER_CMD
    nv_ioctl_xfer_t [16] { cmd: u32 @0, size: u32 @4, ptr: ptr @8 }

    // NV_ESC_WAIT_OPEN_COMPLETE
    nv_ioctl_wait_open_complete_t [8] { rc: i32 @0, adapterStatus: u32 @4 }

    // NV_ESC_RM_GET_EVENT_DATA
    NVOS41_PARAMETERS [16] { pEvent: ptr @0, MoreEvents: u32 @8, status: u32 @12 }

    // NV_ESC_SYS_PARAMS
    nv_ioctl_sys_params_t [8] { memblock_size: u64 @0 }

    // NV_ESC_NUMA_INFO
    nv_ioctl_numa_info_t [560 or 552] { nid: i32 @0, status: i32 @4 }

    // NV_ESC_EXPORT_TO_DMABUF_FD
    nv_ioctl_export_to_dma_buf_fd_t [2608] since R570 { fd: i32 @0, hClient: Handle @4, status: u32 @2600 }
}
