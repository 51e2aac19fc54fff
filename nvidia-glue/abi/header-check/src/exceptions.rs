//! Facts that cannot be read from NVIDIA's sources.

/// Structs of an escape; NVIDIA's sources name them in the code of each escape only.
pub(crate) fn structs_of_escape(name: &str) -> &'static [&'static str] {
    match name {
        "NV_ESC_RM_ALLOC_MEMORY" => &["nv_ioctl_nvos02_parameters_with_fd"],
        "NV_ESC_RM_ALLOC_OBJECT" => &["NVOS05_PARAMETERS"],
        "NV_ESC_RM_FREE" => &["NVOS00_PARAMETERS"],
        "NV_ESC_RM_CONTROL" => &["NVOS54_PARAMETERS"],
        "NV_ESC_RM_ALLOC" => &["NVOS21_PARAMETERS", "NVOS64_PARAMETERS"],
        "NV_ESC_RM_DUP_OBJECT" => &["NVOS55_PARAMETERS"],
        "NV_ESC_RM_SHARE" => &["NVOS57_PARAMETERS"],
        "NV_ESC_RM_I2C_ACCESS" => &["NVOS_I2C_ACCESS_PARAMS"],
        "NV_ESC_RM_IDLE_CHANNELS" => &["NVOS30_PARAMETERS"],
        "NV_ESC_RM_VID_HEAP_CONTROL" => &["NVOS32_PARAMETERS"],
        "NV_ESC_RM_ACCESS_REGISTRY" => &["NVOS38_PARAMETERS"],
        "NV_ESC_RM_MAP_MEMORY" => &["nv_ioctl_nvos33_parameters_with_fd"],
        "NV_ESC_RM_UNMAP_MEMORY" => &["NVOS34_PARAMETERS"],
        "NV_ESC_RM_GET_EVENT_DATA" => &["NVOS41_PARAMETERS"],
        "NV_ESC_RM_ALLOC_CONTEXT_DMA2" => &["NVOS39_PARAMETERS"],
        "NV_ESC_RM_MAP_MEMORY_DMA" => &["NVOS46_PARAMETERS"],
        "NV_ESC_RM_UNMAP_MEMORY_DMA" => &["NVOS47_PARAMETERS"],
        "NV_ESC_RM_BIND_CONTEXT_DMA" => &["NVOS49_PARAMETERS"],
        "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO" => &["NVOS56_PARAMETERS"],
        "NV_ESC_CARD_INFO" => &["nv_ioctl_card_info_t"],
        "NV_ESC_REGISTER_FD" => &["nv_ioctl_register_fd_t"],
        "NV_ESC_ALLOC_OS_EVENT" => &["nv_ioctl_alloc_os_event_t"],
        "NV_ESC_FREE_OS_EVENT" => &["nv_ioctl_free_os_event_t"],
        "NV_ESC_STATUS_CODE" => &["nv_ioctl_status_code_t"],
        "NV_ESC_CHECK_VERSION_STR" => &["nv_ioctl_rm_api_version_t"],
        "NV_ESC_IOCTL_XFER_CMD" => &["nv_ioctl_xfer_t"],
        "NV_ESC_ATTACH_GPUS_TO_FD" => &["NvU32"],
        "NV_ESC_QUERY_DEVICE_INTR" => &["nv_ioctl_query_device_intr_t"],
        "NV_ESC_SYS_PARAMS" => &["nv_ioctl_sys_params_t"],
        "NV_ESC_NUMA_INFO" => &["nv_ioctl_numa_info_t"],
        "NV_ESC_EXPORT_TO_DMABUF_FD" => &["nv_ioctl_export_to_dma_buf_fd_t"],
        "NV_ESC_WAIT_OPEN_COMPLETE" => &["nv_ioctl_wait_open_complete_t"],
        _ => &[],
    }
}

/// Returns whether a struct's `status` is something else than the driver's answer.
pub(crate) fn is_no_status(name: &str) -> bool {
    // A card's status and that of its memory, as they were asked for.
    matches!(name, "nv_ioctl_status_code_t" | "nv_ioctl_numa_info_t")
}

/// Returns whether a field of an escape's struct that is called a descriptor stays as it is: a key
/// beside the client, never looked up.
pub(crate) fn is_no_file(name: &str) -> bool {
    matches!(name, "nv_ioctl_alloc_os_event_t" | "nv_ioctl_free_os_event_t")
}

/// Returns whether the row need not describe a pointer of an escape's struct.
pub(crate) fn is_no_pointer_of_escape(name: &str, path: &str) -> bool {
    match (name, path) {
        // Parameters, whose size depends on the class or the control, and rights: the decoded call
        // has them.
        ("NVOS21_PARAMETERS" | "NVOS64_PARAMETERS", "pAllocParms" | "pRightsRequested") => true,
        ("NVOS54_PARAMETERS", "params") => true,
        // Addresses in the program that are remembered or given out, not followed.
        ("nv_ioctl_nvos33_parameters_with_fd", "params.pLinearAddress") => true,
        ("NVOS34_PARAMETERS", "pLinearAddress") => true,
        ("NVOS56_PARAMETERS", "pOldCpuAddress" | "pNewCpuAddress") => true,
        // Given out by the allocations that are let through; the other functions of the heap are
        // refused.
        ("NVOS32_PARAMETERS", path) => {
            let function = path.strip_prefix("data.").and_then(|path| path.split('.').next());
            matches!(
                function,
                Some("AllocSize" | "AllocTiledPitchHeight" | "AllocSizeRange")
                    | Some("AllocDepthWidthHeight" | "AllocOsDesc" | "Dump" | "HwAlloc")
            )
        }
        _ => false,
    }
}

/// Returns whether a pointer of a class's parameters is never followed.
pub(crate) fn is_no_pointer_of_class(params: &str, path: &str) -> bool {
    // A descriptor of the program's, and an address that is given out.
    matches!((params, path), ("NV0005_ALLOC_PARAMETERS", "data") | ("NV_MEMORY_ALLOCATION_PARAMS", "address"))
}

/// Returns whether a pointer of a control's parameters is the kernel's own: whoever executes the
/// control zeroes it.
pub(crate) fn is_no_pointer_of_control(params: &str, path: &str) -> bool {
    (params, path) == ("NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", "pRunlistPreemptEvent")
}

/// Returns whether the code of a control, not its row, checks the clients that its parameters name.
pub(crate) fn is_no_client(params: &str, path: &str) -> bool {
    (params, path) == ("NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", "hClientList")
}

/// Returns whether a row has the size of parameters from before they grew: the driver itself
/// refuses any size but its own.
pub(crate) fn is_longer_by_now(params: &str) -> bool {
    params == "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_PARAMS"
}

/// Controls whose number the headers leave out, with the type of their parameters.
pub(crate) const UNNUMBERED_CONTROLS: [(u32, &str, &str); 1] = [(
    0x2080_a083,
    "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES",
    "NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_PARAM",
)];
