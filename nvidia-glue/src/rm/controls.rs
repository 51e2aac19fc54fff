//! The controls of `NV_ESC_RM_CONTROL`.

use super::{
    Status,
    layout::{Descriptor, Pointer},
};

/// One control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRow {
    /// Its number.
    pub id: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// What is done with it.
    pub rule: ControlRule,
    /// The pointers in its parameters.
    pub pointers: &'static [Pointer],
    /// The descriptors in its parameters.
    pub descriptors: &'static [Descriptor],
    /// Where it is defined, below src/common/sdk/nvidia/inc/ctrl/ unless it says otherwise.
    pub header: &'static str,
}

/// What is done with a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRule {
    /// Executed on a copy.
    Pass,
    /// Executed, then its answer is rewritten so that it shows the grant.
    View(ViewKind),
    /// Decides about scheduling.
    Schedule(ScheduleKind),
    /// Gives memory (or another object) out to a file.
    Export,
    /// Takes an object in from a file.
    Import,
    /// Attaches memory to an object that keeps it: a reference.
    Attach,
    /// Ends a reference.
    Detach,
    /// Lets other clients duplicate an object.
    Share,
    /// Refused.
    Refuse(Status, &'static str),
}

/// Which answer has to be rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewKind {
    /// `NV2080_CTRL_CMD_FB_GET_INFO`: a list behind a pointer.
    FbInfo,
    /// `NV2080_CTRL_CMD_FB_GET_INFO_V2`: the list is in the struct.
    FbInfoV2,
    /// `NV2080_CTRL_CMD_FB_GET_FB_REGION_INFO`.
    FbRegionInfo,
    /// `NV2080_CTRL_CMD_GPU_GET_PIDS`.
    Pids,
    /// `NV2080_CTRL_CMD_GPU_GET_PID_INFO`.
    PidInfo,
    /// `NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`.
    UtilSamples,
    /// `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS`.
    AttachedIds,
    /// `NV0000_CTRL_CMD_GPU_GET_PROBED_IDS`.
    ProbedIds,
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO`.
    IdInfo,
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`.
    IdInfoV2,
    /// `NV0000_CTRL_CMD_GPU_GET_PCI_INFO`.
    PciInfo,
    /// `NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS`.
    DeviceIds,
    /// `NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS`.
    ActiveDeviceIds,
    /// `NV0000_CTRL_CMD_GPU_GET_UUID_INFO`.
    UuidInfo,
    /// `NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID`.
    UuidFromGpuId,
    /// `NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS`, `_V2` and `_MATRIX`.
    P2pCaps,
}

/// Which scheduling decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleKind {
    /// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`.
    DisableChannels,
    /// `NVA06C_CTRL_CMD_SET_TIMESLICE`.
    SetTimeslice,
    /// `NVA06C_CTRL_CMD_GET_TIMESLICE`.
    GetTimeslice,
    /// `NVA06C_CTRL_CMD_GPFIFO_SCHEDULE`: of a channel group.
    ScheduleGroup,
    /// `NVA06F_CTRL_CMD_GPFIFO_SCHEDULE`: of a channel.
    ScheduleChannel,
    /// `NVA06C_CTRL_CMD_PREEMPT`.
    Preempt,
    /// `NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE`.
    PreemptionMode,
}

/// The row of a control; `None`: not known. Ask [`rule_of`] what to do then.
pub fn control(id: u32) -> Option<&'static ControlRow> {
    CONTROLS.binary_search_by_key(&id, |control| control.id).ok().and_then(|at| CONTROLS.get(at))
}

/// What is done with a control, known or not.
pub fn rule_of(id: u32) -> ControlRule {
    if let Some(row) = control(id) {
        return row.rule;
    }
    if is_internal(id) {
        return ControlRule::Refuse(Status::INSUFFICIENT_PERMISSIONS, "internal to the kernel");
    }
    ControlRule::Pass
}

/// Whether a number belongs to the ranges that only the kernel uses (`NV2080_CTRL_CMD_INTERNAL_*` and its like).
fn is_internal(id: u32) -> bool {
    (id >> 8) & 0xff == 0x0a
}

/// Every known control, by number.
pub const CONTROLS: &[ControlRow] = &[];
