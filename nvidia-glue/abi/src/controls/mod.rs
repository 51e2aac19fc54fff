//! The controls of `NV_ESC_RM_CONTROL`.
//!
//! **Which are here.** Every control that an open release from 525 to 595 exports
//! (`src/nvidia/generated/g_*_nvoc.c`; `abi/header-check` compares them), and those of the headers
//! whose parameters hold a pointer. A control that none of them has is refused: the open modules
//! would answer the same, and closed modules might take a pointer from its parameters, which would
//! be an address in the mediator. The exception are those whose parameters the kernel hands to the
//! card's firmware as they are (bit 15, class 0x2081): they pass, unless a table says otherwise.
//!
//! **Pointers.** The driver follows pointers in the parameters of some controls. Executed by the
//! mediator, such a pointer must lead to a private copy. The list of these controls
//! (`pointer_controls.txt`, written by `header-check --pointer-controls`, and held against the rows
//! by a test) is the union, over the releases, of
//! - the cases of `embeddedParamCopyIn()`, src/nvidia/src/kernel/rmapi/embedded_param_copy.c;
//! - the converters of src/nvidia/interface/deprecated/rmapi_deprecated_control.c. These copy the
//!   whole struct whatever size the caller says: hence [`ControlRow::least_params`];
//! - every control that is exported, or is in the headers (src/common/sdk/nvidia/inc/ctrl), with a
//!   field of any pointer type, also in a nested struct.
//!
//! One of these is neither described nor refused: `FIFO_DISABLE_CHANNELS`, whose pointer only the
//! kernel may use; it is [`ScheduleKind::DisableChannels`], and whoever executes it zeroes the
//! field.

mod client;
mod device;
mod named;
mod other;
mod subdevice;

pub use named::*;

use super::{
    Abi, DriverRelease, Status,
    layout::{Descriptor, Length, Pointer, Releases, Width},
};

/// One control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlRow {
    /// Its number.
    pub id: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// Treatment by the mediator.
    pub rule: ControlRule,
    /// The pointers in its parameters; those of one release: [`ControlRow::pointers_in`].
    pub pointers: &'static [Pointer],
    /// Fewer bytes of parameters than this are refused with [`Status::INVALID_ARGUMENT`]: the
    /// driver copies as many whatever the caller says.
    pub least_params: u16,
    /// The descriptors in its parameters.
    pub descriptors: &'static [Descriptor],
    /// Fields that name a client, which must be one of the caller's container; 0 there: none. Those
    /// of one release: [`ControlRow::clients_in`].
    pub clients: &'static [ClientField],
}

/// A field that names a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientField {
    /// Offset of the 4-byte handle.
    pub at: u16,
    /// Releases whose struct has it.
    pub releases: Releases,
}

impl ClientField {
    const fn new(at: u16) -> Self {
        Self { at, releases: Releases::ALL }
    }

    const fn before(at: u16, release: DriverRelease) -> Self {
        Self { at, releases: Releases::before(release) }
    }
}

/// Treatment of a control by the mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlRule {
    /// Executed on a copy.
    Pass,
    /// Executed, then its answer is rewritten so that it shows the grant.
    View(ViewKind),
    /// Decides about scheduling.
    Schedule(ScheduleKind),
    /// Exports memory (or another object) to a file.
    Export,
    /// Imports an object from a file, or queries the exports there.
    Import,
    /// Lets other clients duplicate an object.
    Share,
    /// Attaches memory to addresses on the NVLink fabric, or detaches it.
    Attach,
    /// `NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE`: executed where the channel has a context.
    ContextSize,
    /// Answered with this status; the driver is not asked.
    Answered(Status, &'static str),
    /// Refused.
    Refuse(Status, &'static str),
}

/// Answer that has to be rewritten.
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
    /// `NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_STATS`, `NV2080_CTRL_GPU_GET_NVFBC_SW_SESSION_STATS`.
    SessionStats,
    /// `NV2080_CTRL_GPU_GET_NVENC_SW_SESSION_INFO`, its `_V2`, `..._NVFBC_SW_SESSION_INFO`: the
    /// sessions of all who use the card, one by one. Answered as if there were none.
    Sessions,
    /// `NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_STATE`: of all processes of the card. Answered as if
    /// it were off.
    AccountingState,
    /// `NV0000_CTRL_CMD_GPUACCT_GET_ACCOUNTING_PIDS`. Answered as if there were none.
    AccountingPids,
    /// `NV_CONF_COMPUTE_CTRL_CMD_GPU_GET_VIDMEM_SIZE`.
    ConfComputeSize,
    /// `NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2`.
    UtilSamples,
    /// `NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE`.
    VideoEngineSample,
    /// `NV00DE_CTRL_CMD_REQUEST_DATA_POLL`.
    PageData,
    /// `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS`.
    AttachedIds,
    /// `NV0000_CTRL_CMD_GPU_GET_PROBED_IDS`.
    ProbedIds,
    /// Of the card whose id the parameters begin with; the answer is of it alone.
    OfACard,
    /// `NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS`.
    DeviceIds,
    /// `NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS`.
    ActiveDeviceIds,
    /// `NV0000_CTRL_CMD_GPU_GET_UUID_INFO`.
    UuidInfo,
    /// `NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS`, and its `_V2`.
    P2pCaps,
    /// `NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX`.
    P2pCapsMatrix,
    /// `NV2080_CTRL_CMD_GET_P2P_CAPS`.
    SubdeviceP2pCaps,
    /// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`, `NV0000_CTRL_CMD_GPU_DETACH_IDS`: a list of ids, or "all".
    AttachIds,
}

/// Scheduling decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleKind {
    /// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`. `pRunlistPreemptEvent` (8 bytes at 16) is the
    /// kernel's and to be zeroed.
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
    /// `NV2080_CTRL_CMD_GR_CTXSW_PREEMPTION_BIND`: the same, with buffers.
    PreemptionBind,
    /// `NVA06C_CTRL_CMD_BIND`, `NVA06F_CTRL_CMD_BIND`: chooses the engine.
    Bind,
    /// `NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT`: one that is on the card would stay there, its
    /// multiprocessors stopped.
    Suspend,
    /// `NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT`.
    Resume,
    /// `NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK`.
    ExceptionMask,
    /// `NV83DE_CTRL_CMD_DEBUG_READ_MEMORY` and its like: the driver copies, on channels of its own.
    DebuggerCopy,
    /// `NVA06F_CTRL_CMD_STOP_CHANNEL`.
    Stop,
    /// `NV906F_CTRL_CMD_RESET_CHANNEL`.
    Reset,
    /// `NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS`.
    Idle,
    /// `NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE`: a mode of one channel group, which the MPS
    /// server sets.
    PartitionMode,
}

impl ControlRow {
    /// Returns whether it is refused for what a debugger or a profiler does with it.
    pub fn is_refused_to_tools(&self) -> bool {
        matches!(self.rule, ControlRule::Refuse(_, DEBUGGER | PROFILER))
    }

    /// The pointers that its parameters have in a release.
    pub fn pointers_in(&self, abi: Abi) -> impl Iterator<Item = &'static Pointer> {
        self.pointers.iter().filter(move |pointer| pointer.releases.contain(abi))
    }

    /// Offsets of the clients that its parameters name in a release.
    pub fn clients_in(&self, abi: Abi) -> impl Iterator<Item = u16> {
        self.clients.iter().filter(move |client| client.releases.contain(abi)).map(|client| client.at)
    }

    const fn pointing(mut self, least_params: u16, pointers: &'static [Pointer]) -> Self {
        self.least_params = least_params;
        self.pointers = pointers;
        self
    }

    const fn naming_file(mut self, descriptors: &'static [Descriptor]) -> Self {
        self.descriptors = descriptors;
        self
    }

    const fn naming_client(mut self, clients: &'static [ClientField]) -> Self {
        self.clients = clients;
        self
    }
}

const fn row(id: u32, name: &'static str, rule: ControlRule) -> ControlRow {
    ControlRow { id, name, rule, pointers: &[], least_params: 0, descriptors: &[], clients: &[] }
}

/// A list of at most 1 MiB (`RMAPI_PARAM_COPY_MAX_PARAMS_SIZE`) whose length is a 4-byte count at
/// `at`.
const fn counted(at: u16, element: u32) -> Length {
    Length::Counted { at, width: Width::U32, element, most: (1 << 20) / element }
}

/// A client at the beginning of the parameters, or after a flag or another handle.
const CLIENT_AT_0: &[ClientField] = &[ClientField::new(0)];
const CLIENT_AT_4: &[ClientField] = &[ClientField::new(4)];

const R550: DriverRelease = DriverRelease::new(550, 0, 0);
const R560: DriverRelease = DriverRelease::new(560, 0, 0);

// Reasons that several rows share, or that code asks about.
const DEBUGGER: &str = "stops multiprocessors of the card, or reads them, whoever's work is on them";
const PROFILER: &str = "for profilers: makes buffers on the card that nobody counts, or samples whatever runs there";
const RESERVATION: &str = "in an exclusive compute mode the first container would lock out all others; who uses a card is decided by the grant";
const MMU_DEBUG: &str = "may change the card for all; compute-sanitizer asks for it and does without";

/// The rows of what is not refused.
const TABLES: [&[ControlRow]; 4] = [client::CLIENT, device::DEVICE, subdevice::SUBDEVICE, other::OTHER];

include!(concat!(env!("OUT_DIR"), "/refused_controls.rs"));

/// The row of a control; `None`: not known. What to do then is what [`rule_of`] says.
pub fn control(id: u32) -> Option<ControlRow> {
    let find = |rows: &'static [ControlRow]| rows.get(rows.binary_search_by_key(&id, |row| row.id).ok()?).copied();
    // What is refused is, should another table have it, too.
    find(REFUSED).or_else(|| find(TABLES.get(table_of(id))?))
}

/// Returns the index in [`TABLES`] of the controls of this one's class.
const fn table_of(id: u32) -> usize {
    match id >> 16 {
        0x0000 => 0,
        0x0080 => 1,
        0x2080 => 2,
        _ => 3,
    }
}

/// Returns the treatment of a control, known or not.
pub fn rule_of(id: u32) -> ControlRule {
    match control(id) {
        Some(row) => row.rule,
        None if goes_to_the_firmware(id) || is_of_the_binary_api(id) => ControlRule::Pass,
        None => ControlRule::Refuse(Status::NOT_SUPPORTED, "no known release has it"),
    }
}

/// Returns whether the kernel hands a control's parameters to the card's firmware without looking
/// at them (`RM_GSS_LEGACY_MASK`), and lets anybody ask (`RM_GSS_LEGACY_MASK_PRIVILEGED` clear).
const fn goes_to_the_firmware(id: u32) -> bool {
    id & 0xc000 == 0x8000
}

/// Returns whether a control is one of `NV2081_BINAPI` objects, whose parameters the kernel hands
/// to the card's firmware as they are (src/nvidia/src/kernel/rmapi/binary_api.c): libcuda asks for
/// 0x20810108 at every start. The privileged 0x2082 are not.
const fn is_of_the_binary_api(id: u32) -> bool {
    id >> 16 == 0x2081
}

/// Every known control.
pub fn controls() -> impl Iterator<Item = ControlRow> {
    TABLES.into_iter().flatten().chain(REFUSED).copied()
}

#[cfg(test)]
pub(super) mod passing_tests;
#[cfg(test)]
mod tests;
