//! Parameters of the controls of `NV_ESC_RM_CONTROL` (ctrl/).

use super::{
    Field, FieldInfo, Handle, Layout, R535, R545, R550, R555, R565, R570, R580, R595, Releases, Struct, params, ptr,
};

params! {
    // An element of the lists of NV2080_CTRL_CMD_FB_GET_INFO and its like.
    NVXXXX_CTRL_XXX_INFO [8] { index: u32 @0, data: u32 @4 }

    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS [536] {
        bDisable: u8 @0, numChannels: u32 @4, bOnlyDisableScheduling: u8 @8, bRewindGpPut: u8 @9,
        pRunlistPreemptEvent: ptr @16, hClientList: [Handle; 64] @24, hChannelList: [Handle; 64] @280,
    }

    // NV0080_CTRL_CMD_GR_GET_TPC_PARTITION_MODE, NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE
    NV0080_CTRL_GR_TPC_PARTITION_MODE_PARAMS [32] { hChannelGroup: Handle @0, mode: u32 @4 }

    // NVA06C_CTRL_CMD_SET_TIMESLICE, NVA06C_CTRL_CMD_GET_TIMESLICE
    NVA06C_CTRL_TIMESLICE_PARAMS [8] { timesliceUs: u64 @0 }

    NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS [128] { gpuIds: [u32; 32] @0 }
    NV0000_CTRL_GPU_GET_ID_INFO_PARAMS [40] {
        gpuId: u32 @0, gpuFlags: u32 @4, deviceInstance: u32 @8, subDeviceInstance: u32 @12,
        szName: ptr @16, sliStatus: u32 @24, boardId: u32 @28, gpuInstance: u32 @32, numaId: i32 @36,
    }
    NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS [32] {
        gpuId: u32 @0, gpuFlags: u32 @4, deviceInstance: u32 @8, subDeviceInstance: u32 @12,
        sliStatus: u32 @16, boardId: u32 @20, gpuInstance: u32 @24, numaId: i32 @28,
    }
    NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS [4] { deviceIds: u32 @0 }
    NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS_525 = "NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS" [256] before R580 {
        gpuIds: [u32; 32] @0, excludedGpuIds: [u32; 32] @128,
    }
    NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS [384] since R580 {
        gpuIds: [u32; 32] @0, excludedGpuIds: [u32; 32] @128, gpuFlags: [u32; 32] @256,
    }
    NV0000_CTRL_GPU_ATTACH_IDS_PARAMS [132] { gpuIds: [u32; 32] @0, failedId: u32 @128 }
    NV0000_CTRL_GPU_DETACH_IDS_PARAMS [128] { gpuIds: [u32; 32] @0 }
    NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS [12] { gpuId: u32 @0, domain: u32 @4, bus: u16 @8, slot: u16 @10 }
    NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS [272] {
        gpuUuid: [u8; 256] @0, flags: u32 @256, gpuId: u32 @260, deviceInstance: u32 @264,
        subdeviceInstance: u32 @268,
    }
    NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS [268] {
        gpuId: u32 @0, flags: u32 @4, gpuUuid: [u8; 256] @8, uuidStrLen: u32 @264,
    }
    NV0000_CTRL_GPU_ACTIVE_DEVICE [12] { gpuId: u32 @0, gpuInstanceId: u32 @4, computeInstanceId: u32 @8 }
    NV0000_CTRL_GPU_GET_ACTIVE_DEVICE_IDS_PARAMS [3076] {
        numDevices: u32 @0, devices: [NV0000_CTRL_GPU_ACTIVE_DEVICE; 256] @4,
    }
    NV0000_CTRL_GPU_ASYNC_ATTACH_ID_PARAMS [4] { gpuId: u32 @0 }
    NV0000_CTRL_GPU_WAIT_ATTACH_ID_PARAMS [4] { gpuId: u32 @0 }
    NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS_525 = "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS" [4252] before R550 {
        gpuIds: [u32; 32] @0, gpuCount: u32 @128, p2pCaps: u32 @132, p2pOptimalReadCEs: u32 @136,
        p2pOptimalWriteCEs: u32 @140, p2pCapsStatus: [u8; 9] @144, busPeerIds: [u32; 1024] @156,
    }
    NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS [8348] since R550 {
        gpuIds: [u32; 32] @0, gpuCount: u32 @128, p2pCaps: u32 @132, p2pOptimalReadCEs: u32 @136,
        p2pOptimalWriteCEs: u32 @140, p2pCapsStatus: [u8; 9] @144, busPeerIds: [u32; 1024] @156,
        busEgmPeerIds: [u32; 1024] @4252,
    }
    NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS [1352] {
        grpACount: u32 @0, grpBCount: u32 @4, gpuIdGrpA: [u32; 8] @8, gpuIdGrpB: [u32; 8] @40,
        p2pCaps: [u32; 64] @72,
    }
    NV0000_CTRL_CLIENT_GET_ADDR_SPACE_TYPE_PARAMS [12] { hObject: Handle @0, mapFlags: u32 @4, addrSpaceType: u32 @8 }
    NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS [16] {
        hObject: Handle @0, index: u32 @4, hResult = "data.hResult": Handle @8,
        iResult = "data.iResult": u64 @8,
    }
    NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS [12] { sharePolicy: RS_SHARE_POLICY @0 }
    NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS [12] { hParent: Handle @0, classId: u32 @4, hObject: Handle @8 }
    NV0000_CTRL_CLIENT_SHARE_OBJECT_PARAMS [16] { hObject: Handle @0, sharePolicy: RS_SHARE_POLICY @4 }
    NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS [12] {
        hObject1: Handle @0, hObject2: Handle @4, bDuplicates: u8 @8,
    }
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS [24] {
        r#type = "object.type": u32 @0, hDevice = "object.data.rmObject.hDevice": Handle @4,
        hParent = "object.data.rmObject.hParent": Handle @8,
        hObject = "object.data.rmObject.hObject": Handle @12, fd: i32 @16, flags: u32 @20,
    }
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS [20] {
        fd: i32 @0, r#type = "object.type": u32 @4, hDevice = "object.data.rmObject.hDevice": Handle @8,
        hParent = "object.data.rmObject.hParent": Handle @12,
        hObject = "object.data.rmObject.hObject": Handle @16,
    }
    NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS_525 = "NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS" [76] before R545 {
        fd: i32 @0, deviceInstance: u32 @4, maxObjects: u16 @8, metadata: [u8; 64] @10,
    }
    NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS [80] since R545 {
        fd: i32 @0, deviceInstance: u32 @4, gpuInstanceId: u32 @8, maxObjects: u16 @12,
        metadata: [u8; 64] @14,
    }
    NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS [76] {
        hDevice: Handle @0, maxObjects: u16 @4, metadata: [u8; 64] @6, fd: i32 @72,
    }
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS [2128] {
        fd: i32 @0, hDevice: Handle @4, maxObjects: u16 @8, metadata: [u8; 64] @10,
        objects: [Handle; 512] @76, numObjects: u16 @2124, index: u16 @2126,
    }
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS [652] {
        fd: i32 @0, hParent: Handle @4, objects: [Handle; 128] @8, objectTypes: [u8; 128] @520,
        numObjects: u16 @648, index: u16 @650,
    }
    NV0041_CTRL_GET_SURFACE_INFO_PARAMS [16] { surfaceInfoListSize: u32 @0, surfaceInfoList: ptr @8 }
    NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS [16] { hChannel: Handle @0, property: u32 @4, value: u64 @8 }
    NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS [16396] {
        numChannels: u32 @0, hChannels: [Handle; 4096] @4, flags: u32 @16388, timeout: u32 @16392,
    }
    NV00DE_CTRL_REQUEST_DATA_POLL_PARAMS [8] { polledDataMask: u64 @0 }
    NV00F8_CTRL_ATTACH_MEM_INFO [32] { hMemory: Handle @0, offset: u64 @8, mapOffset: u64 @16, mapLength: u64 @24 }
    NV00F8_CTRL_ATTACH_MEM_PARAMS [2064] {
        memInfos: [NV00F8_CTRL_ATTACH_MEM_INFO; 64] @0, numMemInfos: u16 @2048, flags: u32 @2052,
        numAttached: u16 @2056,
    }
    NV00F8_CTRL_DETACH_MEM_PARAMS [528] {
        offsets: [u64; 64] @0, numOffsets: u16 @512, flags: u32 @516, numDetached: u16 @520,
    }
    NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_525 = "NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS" [132] before R595 {
        gpuNameStringFlags: u32 @0, ascii = "gpuNameString.ascii": [u8; 64] @4,
        unicode = "gpuNameString.unicode": [u16; 64] @4,
    }
    NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS [68] since R595 {
        gpuNameStringFlags: u32 @0, ascii = "gpuNameString.ascii": [u8; 64] @4,
    }
    NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS [64] { gpuShortNameString: [u8; 64] @0 }
    NV2080_CTRL_GPU_GET_GID_INFO_PARAMS [268] { index: u32 @0, flags: u32 @4, length: u32 @8, data: [u8; 256] @12 }
    NV2080_CTRL_GPU_GET_PIDS_PARAMS [3812] { idType: u32 @0, id: u32 @4, pidTblCount: u32 @8, pidTbl: [u32; 950] @12 }
    NV2080_CTRL_GPU_PID_INFO [72] {
        pid: u32 @0, index: u32 @4, result: u32 @8, memPrivate = "data.vidMemUsage.memPrivate": u64 @16,
        memSharedOwned = "data.vidMemUsage.memSharedOwned": u64 @24,
        memSharedDuped = "data.vidMemUsage.memSharedDuped": u64 @32,
        protectedMemPrivate = "data.vidMemUsage.protectedMemPrivate": u64 @40,
        protectedMemSharedOwned = "data.vidMemUsage.protectedMemSharedOwned": u64 @48,
        protectedMemSharedDuped = "data.vidMemUsage.protectedMemSharedDuped": u64 @56,
        smcSubscription = "smcSubscription.computeInstanceId": u32 @64,
    }
    NV2080_CTRL_GPU_GET_PID_INFO_PARAMS [14408] {
        pidInfoListCount: u32 @0, pidInfoList: [NV2080_CTRL_GPU_PID_INFO; 200] @8,
    }
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS [32] {
        flags: u32 @0, hChannel: Handle @4, gfxpPreemptMode: u32 @8, cilpPreemptMode: u32 @12,
    }
    NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS [16] { hChannel: Handle @0, totalBufferSize: u64 @8 }
    NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS [24] {
        hEventBuffer: Handle @0, recordSize: u32 @4, levelOfDetail: u32 @8, eventFilter: u32 @12,
        bAllUsers: u8 @16, reasonCode: u32 @20,
    }
    NV2080_CTRL_FB_GET_INFO_PARAMS [16] { fbInfoListSize: u32 @0, fbInfoList: ptr @8 }
    NV2080_CTRL_FB_GET_INFO_V2_PARAMS [1028] since R580 {
        fbInfoListSize: u32 @0, fbInfoList: [NVXXXX_CTRL_XXX_INFO; 128] @4,
    }
    NV2080_CTRL_PERF_GET_VID_ENG_PERFMON_SAMPLE_PARAMS [12] {
        engineType: u32 @0, clkPercentBusy: u32 @4, samplingPeriodUs: u32 @8,
    }
    NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE [128 or 116] {
        util: u32 @0, vgpuScale: u32 @4, procId: u32 @8, subProcessID: u32 @12,
    }
    NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE [776] since R570 {
        timeStamp = "base.timeStamp": u64 @0, fb: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @8,
        gr: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @136,
        nvenc: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @264,
        nvdec: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @392,
        nvjpg: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @520,
        nvofa: NV2080_CTRL_PERF_GPUMON_ENGINE_UTIL_SAMPLE @648,
    }
    NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS [55888] since R570 {
        r#type = "type": u8 @0, bufSize: u32 @4, count: u32 @8, tracker: u32 @12,
        samples: [NV2080_CTRL_PERF_GPUMON_PERFMON_UTIL_SAMPLE; 72] @16,
    }
    NV0000_CTRL_GPUACCT_GET_ACCOUNTING_STATE_PARAMS [12] { gpuId: u32 @0, pid: u32 @4, state: u32 @8 }
    NV0000_CTRL_GPUACCT_GET_ACCOUNTING_PIDS_PARAMS [16012] {
        gpuId: u32 @0, pid: u32 @4, pidTbl: [u32; 4000] @8, pidCount: u32 @16008,
    }
    NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO_PARAMS [16] { sessionInfoTblEntry: u32 @0, sessionInfoTbl: ptr @8 }
    NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE_PARAMS [24] since R535 {
        hSubDevice: Handle @0, protectedMemSizeInKb: u64 @8, unprotectedMemSizeInKb: u64 @16,
    }
    NV2080_CTRL_TIMER_GPU_CPU_TIME_SAMPLE [16] { cpuTime: u64 @0, gpuTime: u64 @8 }
    NV2080_CTRL_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO_PARAMS [264] {
        cpuClkId: u8 @0, sampleCount: u8 @1, samples: [NV2080_CTRL_TIMER_GPU_CPU_TIME_SAMPLE; 16] @8,
    }
    NV503C_CTRL_REGISTER_VIDMEM_PARAMS [32] { hMemory: Handle @0, address: u64 @8, size: u64 @16, offset: u64 @24 }
    NV503C_CTRL_UNREGISTER_VIDMEM_PARAMS [4] { hMemory: Handle @0 }
    NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS [16] since R550 {
        engineID: u32 @0, subdeviceInstance: u32 @4, resetReason: u32 @8, bIsRcPending: u8 @12,
    }
    NVA06C_CTRL_BIND_PARAMS [4] {}
    NVA06C_CTRL_PREEMPT_PARAMS [8] { bWait: u8 @0, bManualTimeout: u8 @1, timeoutUs: u32 @4 }
    NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS [3 or 2] { bEnable: u8 @0 }
    NVA06F_CTRL_BIND_PARAMS [4] { engineType: u32 @0 }
    NVA06F_CTRL_STOP_CHANNEL_PARAMS [1] { bImmediate: u8 @0 }
    NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS [4] { workSubmitToken: u32 @0 }
    NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS [8] { enable: u8 @0, flags: u32 @4 }
    NVA06C_CTRL_INTERLEAVE_LEVEL_PARAMS [4] { tsgInterleaveLevel: u32 @0 }
    NVA06F_CTRL_INTERLEAVE_LEVEL_PARAMS [4] { channelInterleaveLevel: u32 @0 }
    RS_SHARE_POLICY [12] { target: Handle @0, r#type = "type": u16 @8, action: u8 @10 }
    NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS_525 = "NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS" [104] before R565 {
        flags: u32 @0, hClient: Handle @4, hChannel: Handle @8, gfxpPreemptMode: u32 @80,
        cilpPreemptMode: u32 @84,
    }
    NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS [112] since R565 {
        flags: u32 @0, hClient: Handle @4, hChannel: Handle @8, gfxpPreemptMode: u32 @88,
        cilpPreemptMode: u32 @92,
    }
    NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO_525 = "NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO" [48] before R580 {
        base: u64 @0, limit: u64 @8, reserved: u64 @16,
    }
    NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO [56] since R580 { base: u64 @0, limit: u64 @8, reserved: u64 @16 }
    NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS_525 = "NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS" [776] before R580 {
        numFBRegions: u32 @0, fbRegion: [NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO_525; 16] @8,
    }
    NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO_PARAMS [904] since R580 {
        numFBRegions: u32 @0, fbRegion: [NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO; 16] @8,
    }
    NV2080_CTRL_GPU_P2P_PEER_CAPS_PEER_INFO [52 or 48] { gpuId: u32 @0 }
    NV2080_CTRL_GET_P2P_CAPS_PARAMS_525 = "NV2080_CTRL_GET_P2P_CAPS_PARAMS" [1544] before R555 {
        bAllCaps: u8 @0, bUseUuid: u8 @1, peerGpuCount: u32 @4,
    }
    NV2080_CTRL_GET_P2P_CAPS_PARAMS [1672] since R555 {
        bAllCaps: u8 @0, bUseUuid: u8 @1, peerGpuCount: u32 @4,
        peerGpuCaps: [NV2080_CTRL_GPU_P2P_PEER_CAPS_PEER_INFO; 32] @8,
    }
    NV83DE_CTRL_DEBUG_SET_EXCEPTION_MASK_PARAMS [4] { exceptionMask: u32 @0 }
}
