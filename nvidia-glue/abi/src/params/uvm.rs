//! Structs of the UVM commands (uvm_ioctl.h, uvm_linux_ioctl.h).

use super::{Field, FieldInfo, Handle, Layout, R550, R550_40_53, R590, Releases, Struct, params};

params! {
    UvmGpuMappingAttributes [36] { gpuUuid: [u8; 16] @0, gpuMappingType: u32 @16 }
    UVM_INITIALIZE_PARAMS [16] { flags: u64 @0, rmStatus: u32 @8 }
    UVM_MM_INITIALIZE_PARAMS [8] { uvmFd: i32 @0, rmStatus: u32 @4 }
    UVM_CREATE_RANGE_GROUP_PARAMS [16] { rangeGroupId: u64 @0, rmStatus: u32 @8 }
    UVM_DESTROY_RANGE_GROUP_PARAMS [16] { rangeGroupId: u64 @0, rmStatus: u32 @8 }
    UVM_REGISTER_GPU_VASPACE_PARAMS [32] {
        gpuUuid: [u8; 16] @0, rmCtrlFd: i32 @16, hClient: Handle @20, hVaSpace: Handle @24,
        rmStatus: u32 @28,
    }
    UVM_UNREGISTER_GPU_VASPACE_PARAMS [20] { gpuUuid: [u8; 16] @0, rmStatus: u32 @16 }
    UVM_REGISTER_CHANNEL_PARAMS [56] {
        gpuUuid: [u8; 16] @0, rmCtrlFd: i32 @16, hClient: Handle @20, hChannel: Handle @24,
        base: u64 @32, length: u64 @40, rmStatus: u32 @48,
    }
    UVM_UNREGISTER_CHANNEL_PARAMS_525 = "UVM_UNREGISTER_CHANNEL_PARAMS" [28] before R590 {
        hClient: Handle @16, hChannel: Handle @20, rmStatus: u32 @24,
    }
    UVM_UNREGISTER_CHANNEL_PARAMS [12] since R590 { hClient: Handle @0, hChannel: Handle @4, rmStatus: u32 @8 }
    UVM_ENABLE_PEER_ACCESS_PARAMS [36] { gpuUuidA: [u8; 16] @0, gpuUuidB: [u8; 16] @16, rmStatus: u32 @32 }
    UVM_DISABLE_PEER_ACCESS_PARAMS [36] { gpuUuidA: [u8; 16] @0, gpuUuidB: [u8; 16] @16, rmStatus: u32 @32 }
    UVM_SET_RANGE_GROUP_PARAMS [32] { rangeGroupId: u64 @0, requestedBase: u64 @8, length: u64 @16, rmStatus: u32 @24 }
    UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_525 = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS" [1200] before R550_40_53 {
        base: u64 @0, length: u64 @8, offset: u64 @16, gpuAttributesCount: u64 @1176,
        rmCtrlFd: i32 @1184, hClient: Handle @1188, hMemory: Handle @1192, rmStatus: u32 @1196,
    }
    UVM_MAP_EXTERNAL_ALLOCATION_PARAMS [9264] since R550_40_53 {
        base: u64 @0, length: u64 @8, offset: u64 @16,
        perGpuAttributes: [UvmGpuMappingAttributes; 256] @24, gpuAttributesCount: u64 @9240,
        rmCtrlFd: i32 @9248, hClient: Handle @9252, hMemory: Handle @9256, rmStatus: u32 @9260,
    }
    UVM_FREE_PARAMS_525 = "UVM_FREE_PARAMS" [24] before R590 { base: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_FREE_PARAMS [16] since R590 { base: u64 @0, rmStatus: u32 @8 }
    UVM_REGISTER_GPU_PARAMS [40] {
        gpu_uuid: [u8; 16] @0, numaEnabled: u8 @16, numaNodeId: i32 @20, rmCtrlFd: i32 @24,
        hClient: Handle @28, hSmcPartRef: Handle @32, rmStatus: u32 @36,
    }
    UVM_UNREGISTER_GPU_PARAMS [20] { gpu_uuid: [u8; 16] @0, rmStatus: u32 @16 }
    UVM_PAGEABLE_MEM_ACCESS_PARAMS [8] { pageableMemAccess: u8 @0, rmStatus: u32 @4 }
    UVM_PREVENT_MIGRATION_RANGE_GROUPS_PARAMS [272] { rmStatus: u32 @264 }
    UVM_ALLOW_MIGRATION_RANGE_GROUPS_PARAMS [272] { rmStatus: u32 @264 }
    UVM_SET_PREFERRED_LOCATION_PARAMS_525 = "UVM_SET_PREFERRED_LOCATION_PARAMS" [40] before R550 {
        requestedBase: u64 @0, length: u64 @8, preferredLocation: [u8; 16] @16, rmStatus: u32 @32,
    }
    UVM_SET_PREFERRED_LOCATION_PARAMS [40] since R550 {
        requestedBase: u64 @0, length: u64 @8, preferredLocation: [u8; 16] @16, preferredCpuNumaNode: i32 @32,
        rmStatus: u32 @36,
    }
    UVM_UNSET_PREFERRED_LOCATION_PARAMS [24] { requestedBase: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_ENABLE_READ_DUPLICATION_PARAMS [24] { requestedBase: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_DISABLE_READ_DUPLICATION_PARAMS [24] { requestedBase: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_SET_ACCESSED_BY_PARAMS [40] { requestedBase: u64 @0, length: u64 @8, rmStatus: u32 @32 }
    UVM_UNSET_ACCESSED_BY_PARAMS [40] { requestedBase: u64 @0, length: u64 @8, rmStatus: u32 @32 }
    UVM_MIGRATE_PARAMS [80] {
        base: u64 @0, length: u64 @8, destinationUuid: [u8; 16] @16, flags: u32 @32, semaphoreAddress: u64 @40,
        semaphorePayload: u32 @48, userSpaceStart: u64 @56, userSpaceLength: u64 @64, rmStatus: u32 @72,
    }
    UVM_MIGRATE_RANGE_GROUP_PARAMS [32] { rangeGroupId: u64 @0, destinationUuid: [u8; 16] @8, rmStatus: u32 @24 }
    UVM_ENABLE_SYSTEM_WIDE_ATOMICS_PARAMS [20] { gpu_uuid: [u8; 16] @0, rmStatus: u32 @16 }
    UVM_MAP_DYNAMIC_PARALLELISM_REGION_PARAMS [40] { base: u64 @0, length: u64 @8, rmStatus: u32 @32 }
    UVM_UNMAP_EXTERNAL_PARAMS [40] { base: u64 @0, length: u64 @8, gpuUuid: [u8; 16] @16, rmStatus: u32 @32 }
    UVM_ALLOC_SEMAPHORE_POOL_PARAMS_525 = "UVM_ALLOC_SEMAPHORE_POOL_PARAMS" [1184] before R550_40_53 {
        base: u64 @0, length: u64 @8, rmStatus: u32 @1176,
    }
    UVM_ALLOC_SEMAPHORE_POOL_PARAMS [9248] since R550_40_53 { base: u64 @0, length: u64 @8, rmStatus: u32 @9240 }
    UVM_PAGEABLE_MEM_ACCESS_ON_GPU_PARAMS [24] { gpu_uuid: [u8; 16] @0, pageableMemAccess: u8 @16, rmStatus: u32 @20 }
    UVM_POPULATE_PAGEABLE_PARAMS [24] { base: u64 @0, length: u64 @8, rmStatus: u32 @20 }
    UVM_VALIDATE_VA_RANGE_PARAMS [24] { base: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_CREATE_EXTERNAL_RANGE_PARAMS [24] { base: u64 @0, length: u64 @8, rmStatus: u32 @16 }
    UVM_MAP_EXTERNAL_SPARSE_PARAMS [40] { base: u64 @0, length: u64 @8, gpuUuid: [u8; 16] @16, rmStatus: u32 @32 }
    UVM_DISCARD_PARAMS [32] { base: u64 @0, length: u64 @8, rmStatus: u32 @24 }
    UVM_DISABLE_SYSTEM_WIDE_ATOMICS_PARAMS [20] { gpu_uuid: [u8; 16] @0, rmStatus: u32 @16 }
    UVM_CLEAN_UP_ZOMBIE_RESOURCES_PARAMS [4] { rmStatus: u32 @0 }
    UVM_CLEAR_ALL_ACCESS_COUNTERS_PARAMS [4] { rmStatus: u32 @0 }
    UVM_ALLOC_DEVICE_P2P_PARAMS [56] {
        base: u64 @0, length: u64 @8, offset: u64 @16, gpuUuid: [u8; 16] @24, rmCtrlFd: i32 @40, hClient: Handle @44,
        hMemory: Handle @48, rmStatus: u32 @52,
    }
}
