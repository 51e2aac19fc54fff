//! The controls of a device (class 0x0080).

use super::{
    ControlRow,
    ControlRule::{Pass, Refuse},
    INTERNAL, POINTERS, PRIVILEGED, SCHEDULING, SHARED, counted, row,
};
use crate::rm::{
    Status,
    layout::{Direction, Pointer},
};

/// By number.
pub(super) const DEVICE: &[ControlRow] = &[
    row(
        0x00800102,
        "NV0080_CTRL_CMD_BIF_RESET",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080bif.h",
    ),
    row(
        0x00800103,
        "NV0080_CTRL_CMD_BIF_GET_DMA_BASE_SYSMEM_ADDR",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080bif.h",
    ),
    row(
        0x00800104,
        "NV0080_CTRL_CMD_BIF_SET_ASPM_FEATURE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080bif.h",
    ),
    row(
        0x00800105,
        "NV0080_CTRL_CMD_BIF_ASPM_CYA_UPDATE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080bif.h",
    ),
    row(
        0x00800106,
        "NV0080_CTRL_CMD_BIF_GET_PCIE_POWER_CONTROL_MASK",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080bif.h",
    ),
    row(0x00800201, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST", Pass, "ctrl0080/ctrl0080gpu.h")
        .pointing(16, &[Pointer::new(8, counted(0, 4), Direction::InOut)]),
    row(0x00800280, "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(
        0x00800287,
        "NV0080_CTRL_CMD_GPU_MODIFY_SW_STATE_PERSISTENCE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080gpu.h",
    ),
    row(0x00800288, "NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x00800289, "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x0080028c, "NV0080_CTRL_CMD_GPU_GET_SPARSE_TEXTURE_COMPUTE_MODE", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(
        0x0080028d,
        "NV0080_CTRL_CMD_GPU_SET_SPARSE_TEXTURE_COMPUTE_MODE",
        Refuse(Status::NOT_SUPPORTED, SHARED),
        "ctrl0080/ctrl0080gpu.h",
    ),
    row(0x0080028e, "NV0080_CTRL_CMD_GPU_GET_VGX_CAPS", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(
        0x00800290,
        "NV0080_CTRL_CMD_GPU_VIRTUALIZATION_SWITCH_TO_VGA",
        Refuse(Status::NOT_SUPPORTED, SHARED),
        "src/nvidia/generated",
    ),
    row(0x00800291, "NV0080_CTRL_CMD_GPU_GET_SRIOV_CAPS", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x00800292, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x00800293, "NV0080_CTRL_CMD_GPU_FIND_SUBDEVICE_HANDLE", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x00800294, "NV0080_CTRL_CMD_GPU_GET_BRAND_CAPS", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(
        0x00800296,
        "NV0080_CTRL_GPU_SET_VGPU_VF_BAR1_SIZE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080gpu.h",
    ),
    row(
        0x00800297,
        "NV0080_CTRL_CMD_GPU_SET_VGPU_HETEROGENEOUS_MODE",
        Refuse(Status::NOT_SUPPORTED, SHARED),
        "ctrl0080/ctrl0080gpu.h",
    ),
    row(0x00800298, "NV0080_CTRL_CMD_GPU_GET_VGPU_HETEROGENEOUS_MODE", Pass, "ctrl0080/ctrl0080gpu.h"),
    row(0x00801102, "NV0080_CTRL_CMD_GR_GET_CAPS", Pass, "ctrl0080/ctrl0080gr.h")
        .pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801104, "NV0080_CTRL_CMD_GR_GET_INFO", Pass, "ctrl0080/ctrl0080gr.h")
        .pointing(16, &[Pointer::new(8, counted(0, 8), Direction::InOut)]),
    row(0x00801107, "NV0080_CTRL_CMD_GR_GET_TPC_PARTITION_MODE", Pass, "ctrl0080/ctrl0080gr.h"),
    row(
        0x00801108,
        "NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE",
        Refuse(Status::NOT_SUPPORTED, "SMs are divided by the grant"),
        "ctrl0080/ctrl0080gr.h",
    ),
    row(0x00801109, "NV0080_CTRL_CMD_GR_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080gr.h"),
    row(0x00801110, "NV0080_CTRL_CMD_GR_GET_INFO_V2", Pass, "ctrl0080/ctrl0080gr.h"),
    row(0x00801301, "NV0080_CTRL_CMD_FB_GET_CAPS", Pass, "ctrl0080/ctrl0080fb.h")
        .pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801306, "NV0080_CTRL_CMD_FB_GET_COMPBIT_STORE_INFO", Pass, "ctrl0080/ctrl0080fb.h"),
    row(0x00801307, "NV0080_CTRL_CMD_FB_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080fb.h"),
    row(
        0x00801308,
        "NV0080_CTRL_CMD_FB_SET_DEFAULT_VIDMEM_PHYSICALITY",
        Refuse(Status::NOT_SUPPORTED, SHARED),
        "ctrl0080/ctrl0080fb.h",
    ),
    row(0x00801401, "NV0080_CTRL_CMD_HOST_GET_CAPS", Pass, "ctrl0080/ctrl0080host.h")
        .pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801402, "NV0080_CTRL_CMD_HOST_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080host.h"),
    row(0x00801701, "NV0080_CTRL_CMD_FIFO_GET_CAPS", Pass, "ctrl0080/ctrl0080fifo.h")
        .pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(
        0x00801705,
        "NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS",
        Refuse(Status::NOT_SUPPORTED, "restarts channels of any client"),
        "ctrl0080/ctrl0080fifo.h",
    ),
    row(0x00801707, "NV0080_CTRL_CMD_FIFO_GET_ENGINE_CONTEXT_PROPERTIES", Pass, "ctrl0080/ctrl0080fifo.h"),
    row(0x0080170d, "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST", Pass, "ctrl0080/ctrl0080fifo.h").pointing(
        24,
        &[Pointer::new(8, counted(0, 4), Direction::In), Pointer::new(16, counted(0, 4), Direction::InOut)],
    ),
    row(0x0080170e, "NV0080_CTRL_CMD_FIFO_GET_LATENCY_BUFFER_SIZE", Pass, "ctrl0080/ctrl0080fifo.h"),
    row(
        0x0080170f,
        "NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES",
        Refuse(Status::NOT_SUPPORTED, SCHEDULING),
        "ctrl0080/ctrl0080fifo.h",
    ),
    row(
        0x00801711,
        "NV0080_CTRL_CMD_FIFO_STOP_RUNLIST",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080fifo.h",
    ),
    row(
        0x00801712,
        "NV0080_CTRL_CMD_FIFO_START_RUNLIST",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080fifo.h",
    ),
    row(0x00801713, "NV0080_CTRL_CMD_FIFO_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080fifo.h"),
    row(0x00801714, "NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS", Pass, "ctrl0080/ctrl0080fifo.h"),
    row(0x00801801, "NV0080_CTRL_CMD_DMA_GET_PTE_INFO", Pass, "ctrl0080/ctrl0080dma.h"),
    row(
        0x00801802,
        "NV0080_CTRL_CMD_DMA_FILL_PTE_MEM",
        Refuse(Status::NOT_SUPPORTED, POINTERS),
        "ctrl0080/ctrl0080dma.h",
    ),
    row(0x00801805, "NV0080_CTRL_CMD_DMA_FLUSH", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x00801806, "NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x00801809, "NV0080_CTRL_CMD_DMA_GET_PDE_INFO", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x0080180a, "NV0080_CTRL_CMD_DMA_SET_PTE_INFO", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x0080180c, "NV0080_CTRL_CMD_DMA_INVALIDATE_TLB", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x0080180d, "NV0080_CTRL_CMD_DMA_GET_CAPS", Pass, "ctrl0080/ctrl0080dma.h"),
    row(0x0080180e, "NV0080_CTRL_CMD_DMA_SET_VA_SPACE_SIZE", Pass, "ctrl0080/ctrl0080dma.h"),
    row(
        0x0080180f,
        "NV0080_CTRL_CMD_DMA_UPDATE_PDE_2",
        Refuse(Status::NOT_SUPPORTED, POINTERS),
        "ctrl0080/ctrl0080dma.h",
    ),
    row(0x00801810, "NV0080_CTRL_DMA_ENABLE_PRIVILEGED_RANGE", Pass, "ctrl0080/ctrl0080dma.h"),
    row(
        0x00801812,
        "NV0080_CTRL_DMA_SET_DEFAULT_VASPACE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080dma.h",
    ),
    row(
        0x00801813,
        "NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080dma.h",
    ),
    row(
        0x00801814,
        "NV0080_CTRL_CMD_DMA_UNSET_PAGE_DIRECTORY",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080dma.h",
    ),
    row(
        0x00801909,
        "NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL",
        Refuse(Status::NOT_SUPPORTED, SHARED),
        "ctrl0080/ctrl0080perf.h",
    ),
    row(0x00801b01, "NV0080_CTRL_CMD_MSENC_GET_CAPS", Pass, "ctrl0080/ctrl0080msenc.h")
        .pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801b02, "NV0080_CTRL_CMD_MSENC_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080msenc.h"),
    row(0x00801c01, "NV0080_CTRL_CMD_BSP_GET_CAPS", Pass, "ctrl0080/ctrl0080bsp.h")
        .pointing(24, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801c02, "NV0080_CTRL_CMD_BSP_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080bsp.h"),
    row(
        0x00801e01,
        "NV0080_CTRL_CMD_OS_UNIX_VT_SWITCH",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080unix.h",
    ),
    row(
        0x00801e02,
        "NV0080_CTRL_CMD_OS_UNIX_VT_GET_FB_INFO",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, PRIVILEGED),
        "ctrl0080/ctrl0080unix.h",
    ),
    row(0x00801f02, "NV0080_CTRL_CMD_NVJPG_GET_CAPS_V2", Pass, "ctrl0080/ctrl0080nvjpg.h"),
    row(
        0x00802004,
        "NV0080_CTRL_CMD_INTERNAL_PERF_CUDA_LIMIT_DISABLE",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, INTERNAL),
        "ctrl0080/ctrl0080internal.h",
    ),
    row(
        0x00802006,
        "NV0080_CTRL_CMD_INTERNAL_PERF_GET_UNDERPOWERED_GPU_COUNT",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, INTERNAL),
        "ctrl0080/ctrl0080internal.h",
    ),
    row(
        0x00802009,
        "NV0080_CTRL_CMD_INTERNAL_PERF_CUDA_LIMIT_SET_CONTROL",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, INTERNAL),
        "ctrl0080/ctrl0080internal.h",
    ),
    row(
        0x0080200a,
        "NV0080_CTRL_CMD_INTERNAL_MEMSYS_SET_ZBC_REFERENCED",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, INTERNAL),
        "ctrl0080/ctrl0080internal.h",
    ),
    row(
        0x00802046,
        "NV0080_CTRL_CMD_INTERNAL_KGR_INIT_BUG4208224_WAR",
        Refuse(Status::INSUFFICIENT_PERMISSIONS, INTERNAL),
        "ctrl0080/ctrl0080internal.h",
    ),
];
