//! The controls of a device (class 0x0080).

use super::{
    ControlRow,
    ControlRule::{Pass, Schedule},
    ScheduleKind, counted, row,
};
use crate::layout::{Direction, Pointer};

/// By number.
#[rustfmt::skip] // One row, one line.
pub(super) const DEVICE: &[ControlRow] = &[
    row(0x00800201, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST", Pass).pointing(16, &[Pointer::new(8, counted(0, 4), Direction::InOut)]),
    row(0x00800280, "NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES", Pass),
    row(0x00800288, "NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE", Pass),
    row(0x00800289, "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE", Pass),
    row(0x0080028c, "NV0080_CTRL_CMD_GPU_GET_SPARSE_TEXTURE_COMPUTE_MODE", Pass),
    row(0x0080028e, "NV0080_CTRL_CMD_GPU_GET_VGX_CAPS", Pass),
    row(0x00800291, "NV0080_CTRL_CMD_GPU_GET_SRIOV_CAPS", Pass),
    row(0x00800292, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2", Pass),
    row(0x00800293, "NV0080_CTRL_CMD_GPU_FIND_SUBDEVICE_HANDLE", Pass),
    row(0x00800294, "NV0080_CTRL_CMD_GPU_GET_BRAND_CAPS", Pass),
    row(0x00800298, "NV0080_CTRL_CMD_GPU_GET_VGPU_HETEROGENEOUS_MODE", Pass),
    row(0x00801102, "NV0080_CTRL_CMD_GR_GET_CAPS", Pass).pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801104, "NV0080_CTRL_CMD_GR_GET_INFO", Pass).pointing(16, &[Pointer::new(8, counted(0, 8), Direction::InOut)]),
    row(0x00801107, "NV0080_CTRL_CMD_GR_GET_TPC_PARTITION_MODE", Pass),
    row(0x00801108, "NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE", Schedule(ScheduleKind::PartitionMode)),
    row(0x00801109, "NV0080_CTRL_CMD_GR_GET_CAPS_V2", Pass),
    row(0x00801110, "NV0080_CTRL_CMD_GR_GET_INFO_V2", Pass),
    row(0x00801301, "NV0080_CTRL_CMD_FB_GET_CAPS", Pass).pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801306, "NV0080_CTRL_CMD_FB_GET_COMPBIT_STORE_INFO", Pass),
    row(0x00801307, "NV0080_CTRL_CMD_FB_GET_CAPS_V2", Pass),
    row(0x00801401, "NV0080_CTRL_CMD_HOST_GET_CAPS", Pass).pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801402, "NV0080_CTRL_CMD_HOST_GET_CAPS_V2", Pass),
    row(0x00801701, "NV0080_CTRL_CMD_FIFO_GET_CAPS", Pass).pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801707, "NV0080_CTRL_CMD_FIFO_GET_ENGINE_CONTEXT_PROPERTIES", Pass),
    row(0x0080170d, "NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST", Pass).pointing(24, &[Pointer::new(8, counted(0, 4), Direction::In), Pointer::new(16, counted(0, 4), Direction::InOut)]),
    row(0x0080170e, "NV0080_CTRL_CMD_FIFO_GET_LATENCY_BUFFER_SIZE", Pass),
    row(0x00801713, "NV0080_CTRL_CMD_FIFO_GET_CAPS_V2", Pass),
    row(0x00801714, "NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS", Schedule(ScheduleKind::Idle)),
    row(0x00801806, "NV0080_CTRL_CMD_DMA_ADV_SCHED_GET_VA_CAPS", Pass),
    row(0x0080180d, "NV0080_CTRL_CMD_DMA_GET_CAPS", Pass),
    // Clocks are shared, but libcuda sets this at every start and does not start without.
    row(0x00801909, "NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL", Pass),
    row(0x00801b01, "NV0080_CTRL_CMD_MSENC_GET_CAPS", Pass).pointing(16, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801b02, "NV0080_CTRL_CMD_MSENC_GET_CAPS_V2", Pass),
    row(0x00801c01, "NV0080_CTRL_CMD_BSP_GET_CAPS", Pass).pointing(24, &[Pointer::new(8, counted(0, 1), Direction::Out)]),
    row(0x00801c02, "NV0080_CTRL_CMD_BSP_GET_CAPS_V2", Pass),
    row(0x00801f02, "NV0080_CTRL_CMD_NVJPG_GET_CAPS_V2", Pass),
];
