//! `NV_ESC_RM_CONTROL`: the controls that programs use.
//!
//! Numbers, structs and sizes: src/common/sdk/nvidia/inc/ctrl/ of 580.

mod export;
mod fabric;
mod gpus;
mod load;
mod memory;
pub(super) mod scheduling;

use abi::{Handle, Status, classes, controls::*, params::*};

use super::{
    bytes::{get, put},
    call::Call,
    objects::{Kind, Object},
    state::State,
};

/// Pointer to the parameters.
const PARAMS: Field<ptr> = NVOS54_PARAMETERS::params;
/// `NVOS54_FLAGS_FINN_SERIALIZED`.
const SERIALIZED: u32 = 4;

/// Objects that take a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnObject {
    Client,
    Device,
    Subdevice,
    Group,
    Channel,
    Memory,
    Fabric,
    Any,
}

/// A control that is being executed.
struct Control<'a, 'b> {
    call: &'a mut Call<'b>,
    client: u32,
    object: u32,
    /// Of the object that it is for, where that has one.
    card: Option<usize>,
}

impl Control<'_, '_> {
    /// The parameters; as long as the row says.
    fn params(&mut self) -> &mut [u8] {
        self.call.args_and_buffer(PARAMS).1.unwrap_or_default()
    }

    fn card(&self) -> Result<usize, Status> {
        self.card.ok_or(Status::INVALID_DEVICE)
    }
}

type ControlHandler = fn(&mut State, &mut Control<'_, '_>) -> Result<(), Status>;

struct ControlRow {
    command: u32,
    on: OnObject,
    /// Bytes of its parameters.
    size: usize,
    act: ControlHandler,
}

const fn row(command: u32, on: OnObject, size: usize, act: ControlHandler) -> ControlRow {
    ControlRow { command, on, size, act }
}

/// Controls that real programs have succeed, and that change nothing on a simulated card and report
/// nothing of it: their parameters stay as they are. With them, [`NAMELESS`].
const NO_EFFECT: &[u32] = &[
    // Of clients: versions, features, draining, memory operations, boost groups.
    NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION,
    NV0000_CTRL_CMD_SYSTEM_GET_FEATURES,
    NV0000_CTRL_CMD_GPU_QUERY_DRAIN_STATE,
    NV0000_CTRL_CMD_GPU_GET_MEMOP_ENABLE,
    NV0000_CTRL_CMD_SYNC_GPU_BOOST_GROUP_INFO,
    // Of devices: counts, modes, classes, partitions, capabilities, channels, limits.
    NV0080_CTRL_CMD_GPU_GET_NUM_SUBDEVICES,
    NV0080_CTRL_CMD_GPU_QUERY_SW_STATE_PERSISTENCE,
    NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE,
    NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2,
    NV0080_CTRL_CMD_FB_GET_CAPS_V2,
    NV0080_CTRL_CMD_HOST_GET_CAPS_V2,
    NV0080_CTRL_CMD_FIFO_GET_CHANNELLIST,
    NV0080_CTRL_CMD_PERF_CUDA_LIMIT_SET_CONTROL,
    // Of subdevices: the card.
    NV2080_CTRL_CMD_GPU_GET_INFO_V2,
    NV2080_CTRL_CMD_GPU_GET_SIMULATION_INFO,
    NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS,
    NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES,
    NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION,
    NV2080_CTRL_CMD_GPU_ACQUIRE_COMPUTE_MODE_RESERVATION,
    NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION,
    NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT,
    NV2080_CTRL_CMD_GPU_GET_ENGINES_V2,
    NV2080_CTRL_CMD_GPU_GET_COMPUTE_POLICY_CONFIG,
    NV2080_CTRL_CMD_GET_GPU_FABRIC_PROBE_INFO,
    NV2080_CTRL_CMD_GPU_GET_RECOVERY_ACTION,
    NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO,
    // Its graphics engine.
    NV2080_CTRL_CMD_GR_GET_INFO,
    NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER,
    NV2080_CTRL_CMD_GR_GET_CAPS_V2,
    NV2080_CTRL_CMD_GR_GET_GPC_MASK,
    NV2080_CTRL_CMD_GR_GET_TPC_MASK,
    NV2080_CTRL_CMD_GR_GET_SM_ISSUE_RATE_MODIFIER,
    // Its chip, bus, clocks, watchdog, copy engines, links, firmware, partitions.
    NV2080_CTRL_CMD_MC_GET_ARCH_INFO,
    NV2080_CTRL_CMD_BUS_GET_PCI_INFO,
    NV2080_CTRL_CMD_BUS_GET_INFO,
    NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO,
    NV2080_CTRL_CMD_BUS_GET_INFO_V2,
    NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS,
    NV2080_CTRL_CMD_BUS_GET_C2C_INFO,
    NV2080_CTRL_CMD_PERF_BOOST,
    NV2080_CTRL_CMD_RC_SOFT_DISABLE_WATCHDOG,
    NV2080_CTRL_CMD_RC_RELEASE_WATCHDOG_REQUESTS,
    NV2080_CTRL_CMD_CE_GET_ALL_CAPS,
    NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS,
    NV2080_CTRL_CMD_GSP_GET_FEATURES,
    NV2080_CTRL_CMD_GRMGR_GET_GR_FS_INFO,
    // Of other objects: pages of information, inventories, peers, debuggers, channels, interrupts,
    // confidential computing.
    NV00DE_CTRL_CMD_REQUEST_DATA_POLL,
    NV208F_CTRL_CMD_GPU_VERIFY_INFOROM,
    NV503C_CTRL_CMD_REGISTER_VA_SPACE,
    NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE,
    NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK,
    NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES,
    NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES,
    NV83DE_CTRL_CMD_DEBUG_READ_MEMORY,
    NV83DE_CTRL_CMD_DEBUG_SUSPEND_CONTEXT,
    NV906F_CTRL_GET_CLASS_ENGINEID,
    NV90E6_CTRL_CMD_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK,
    NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES,
];

/// Controls that no program in a container has a use for. A real driver executes some for whoever
/// asks, or whoever has `CAP_SYS_NICE`, and refuses others to all but administrators, or the
/// kernel, which is nothing to rely on: all are executed without an effect, so that it shows when
/// one is let through.
const HARMFUL: &[u32] = &[
    // Of devices: who may run where, which channels run, run lists.
    NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS,
    NV0080_CTRL_CMD_FIFO_STOP_RUNLIST,
    NV0080_CTRL_CMD_FIFO_START_RUNLIST,
    // Of subdevices: compute modes, resets, policies, timeouts, keys, clocks, watchdogs, recovery.
    NV2080_CTRL_CMD_GPU_EVICT_CTX,
    NV2080_CTRL_CMD_GPU_SET_COMPUTE_MODE_RULES,
    NV2080_CTRL_CMD_GPU_SET_COMPUTE_POLICY_CONFIG,
    NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_RESET,
    NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_RESET,
    NV2080_CTRL_CMD_GPU_MARK_DEVICE_FOR_DRAIN_AND_RESET,
    NV2080_CTRL_CMD_GPU_UNMARK_DEVICE_FOR_DRAIN_AND_RESET,
    NV2080_CTRL_CMD_FIFO_CONFIG_CTXSW_TIMEOUT,
    NV2080_CTRL_CMD_FIFO_RUNLIST_SET_SCHED_POLICY,
    NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS,
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION,
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS_FOR_KEY_ROTATION_V2,
    NV2080_CTRL_CMD_FIFO_OBJSCHED_SET_STATE,
    NV2080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE,
    NV2080_CTRL_CMD_PERF_SET_POWERSTATE,
    NV2080_CTRL_CMD_RC_DISABLE_WATCHDOG,
    NV2080_CTRL_CMD_RC_ENABLE_WATCHDOG,
    NV2080_CTRL_CMD_SET_RC_RECOVERY,
    // Of groups and channels: partitions, levels, real time, run lists, slices.
    NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL,
    NV9067_CTRL_CMD_SET_TPC_PARTITION_TABLE,
    NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL,
    NVA06C_CTRL_CMD_MAKE_REALTIME,
    NVA06C_CTRL_CMD_INTERNAL_GPFIFO_SCHEDULE,
    NVA06C_CTRL_CMD_INTERNAL_SET_TIMESLICE,
    NVA06F_CTRL_CMD_SET_INTERLEAVE_LEVEL,
    NVA06F_CTRL_CMD_RESTART_RUNLIST,
    NVB06F_CTRL_CMD_SET_CHANNEL_HW_STATE,
];

const CONTROLS: &[ControlRow] = &[
    row(
        NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS::SIZE,
        gpus::attached_ids,
    ),
    row(NV0000_CTRL_CMD_GPU_GET_ID_INFO, OnObject::Client, NV0000_CTRL_GPU_GET_ID_INFO_PARAMS::SIZE, gpus::id_info),
    row(
        NV0000_CTRL_CMD_GPU_GET_DEVICE_IDS,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_DEVICE_IDS_PARAMS::SIZE,
        gpus::device_ids,
    ),
    row(
        NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS::SIZE,
        gpus::id_info_v2,
    ),
    row(
        NV0000_CTRL_CMD_GPU_GET_PROBED_IDS,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_PROBED_IDS_PARAMS::SIZE,
        gpus::probed_ids,
    ),
    row(NV0000_CTRL_CMD_GPU_ATTACH_IDS, OnObject::Client, NV0000_CTRL_GPU_ATTACH_IDS_PARAMS::SIZE, gpus::attach_ids),
    row(NV0000_CTRL_CMD_GPU_DETACH_IDS, OnObject::Client, NV0000_CTRL_GPU_DETACH_IDS_PARAMS::SIZE, |_, _| Ok(())),
    row(NV0000_CTRL_CMD_GPU_GET_PCI_INFO, OnObject::Client, NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS::SIZE, gpus::pci_info),
    row(
        NV0000_CTRL_CMD_GPU_GET_UUID_INFO,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_UUID_INFO_PARAMS::SIZE,
        gpus::uuid_info,
    ),
    row(
        NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS::SIZE,
        gpus::uuid_of_gpu_id,
    ),
    row(
        NV0000_CTRL_CMD_GPU_GET_ACTIVE_DEVICE_IDS,
        OnObject::Client,
        NV0000_CTRL_GPU_GET_ACTIVE_DEVICE_IDS_PARAMS::SIZE,
        gpus::active_device_ids,
    ),
    row(
        NV0000_CTRL_CMD_GPU_ASYNC_ATTACH_ID,
        OnObject::Client,
        NV0000_CTRL_GPU_ASYNC_ATTACH_ID_PARAMS::SIZE,
        gpus::attach_id,
    ),
    row(
        NV0000_CTRL_CMD_GPU_WAIT_ATTACH_ID,
        OnObject::Client,
        NV0000_CTRL_GPU_WAIT_ATTACH_ID_PARAMS::SIZE,
        gpus::attach_id,
    ),
    row(
        NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_V2,
        OnObject::Client,
        NV0000_CTRL_SYSTEM_GET_P2P_CAPS_V2_PARAMS::SIZE,
        gpus::p2p_caps,
    ),
    row(
        NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX,
        OnObject::Client,
        NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS::SIZE,
        gpus::p2p_matrix,
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_GET_ADDR_SPACE_TYPE,
        OnObject::Client,
        NV0000_CTRL_CLIENT_GET_ADDR_SPACE_TYPE_PARAMS::SIZE,
        memory::address_space_type,
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO,
        OnObject::Client,
        NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS::SIZE,
        handle_info,
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY,
        OnObject::Client,
        NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS::SIZE,
        |_, _| Ok(()),
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE,
        OnObject::Client,
        NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS::SIZE,
        child_handle,
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_SHARE_OBJECT,
        OnObject::Client,
        NV0000_CTRL_CLIENT_SHARE_OBJECT_PARAMS::SIZE,
        share_object,
    ),
    row(
        NV0000_CTRL_CMD_CLIENT_OBJECTS_ARE_DUPLICATES,
        OnObject::Client,
        NV0000_CTRL_CLIENT_OBJECTS_ARE_DUPLICATES_PARAMS::SIZE,
        memory::are_duplicates,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS::SIZE,
        export::to_fd,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS::SIZE,
        export::from_fd,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS::SIZE,
        export::info,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_CREATE_EXPORT_OBJECT_FD_PARAMS::SIZE,
        export::create,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS::SIZE,
        export::objects_to_fd,
    ),
    row(
        NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD,
        OnObject::Client,
        NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS::SIZE,
        export::objects_from_fd,
    ),
    row(
        NV0041_CTRL_CMD_GET_SURFACE_INFO,
        OnObject::Memory,
        NV0041_CTRL_GET_SURFACE_INFO_PARAMS::SIZE,
        memory::surface_info,
    ),
    row(
        NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
        OnObject::Subdevice,
        NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_525::SIZE,
        gpus::name,
    ),
    row(
        NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING,
        OnObject::Subdevice,
        NV2080_CTRL_GPU_GET_SHORT_NAME_STRING_PARAMS::SIZE,
        gpus::short_name,
    ),
    row(NV2080_CTRL_CMD_GPU_GET_GID_INFO, OnObject::Subdevice, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS::SIZE, gpus::gid),
    row(NV2080_CTRL_CMD_GPU_GET_PIDS, OnObject::Subdevice, NV2080_CTRL_GPU_GET_PIDS_PARAMS::SIZE, memory::pids),
    row(
        NV2080_CTRL_CMD_GPU_GET_PID_INFO,
        OnObject::Subdevice,
        NV2080_CTRL_GPU_GET_PID_INFO_PARAMS::SIZE,
        memory::pid_info,
    ),
    row(
        NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE,
        OnObject::Subdevice,
        NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS::SIZE,
        scheduling::preemption_mode,
    ),
    row(
        NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE,
        OnObject::Subdevice,
        NV2080_CTRL_GR_GET_CTX_BUFFER_SIZE_PARAMS::SIZE,
        memory::context_buffer_size,
    ),
    row(NV2080_CTRL_CMD_FB_GET_INFO, OnObject::Subdevice, NV2080_CTRL_FB_GET_INFO_PARAMS::SIZE, memory::fb_info_v1),
    row(NV2080_CTRL_CMD_FB_GET_INFO_V2, OnObject::Subdevice, NV2080_CTRL_FB_GET_INFO_V2_PARAMS::SIZE, memory::fb_info),
    row(
        NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES,
        OnObject::Device,
        NV0080_CTRL_FIFO_SET_CHANNEL_PROPERTIES_PARAMS::SIZE,
        scheduling::set_channel_properties,
    ),
    row(
        NV0080_CTRL_CMD_FIFO_IDLE_CHANNELS,
        OnObject::Device,
        NV0080_CTRL_FIFO_IDLE_CHANNELS_PARAMS::SIZE,
        scheduling::idle_channels,
    ),
    row(
        NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
        OnObject::Subdevice,
        NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS::SIZE,
        scheduling::disable_channels,
    ),
    row(
        NV2080_CTRL_CMD_PERF_GET_VID_ENG_PERFMON_SAMPLE,
        OnObject::Subdevice,
        NV2080_CTRL_PERF_GET_VID_ENG_PERFMON_SAMPLE_PARAMS::SIZE,
        load::video_engine,
    ),
    row(
        NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2,
        OnObject::Subdevice,
        NV2080_CTRL_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2_PARAMS::SIZE,
        load::samples,
    ),
    row(
        NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        OnObject::Group,
        NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::SIZE,
        scheduling::schedule,
    ),
    row(NVA06C_CTRL_CMD_SET_TIMESLICE, OnObject::Group, NVA06C_CTRL_TIMESLICE_PARAMS::SIZE, scheduling::set_timeslice),
    row(NVA06C_CTRL_CMD_GET_TIMESLICE, OnObject::Group, NVA06C_CTRL_TIMESLICE_PARAMS::SIZE, scheduling::timeslice),
    row(NVA06C_CTRL_CMD_PREEMPT, OnObject::Group, NVA06C_CTRL_PREEMPT_PARAMS::SIZE, scheduling::preempt),
    row(
        NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
        OnObject::Channel,
        NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::SIZE,
        scheduling::schedule,
    ),
    row(NVA06C_CTRL_CMD_BIND, OnObject::Group, NVA06C_CTRL_BIND_PARAMS::SIZE, scheduling::put_back),
    row(NVA06F_CTRL_CMD_BIND, OnObject::Channel, NVA06F_CTRL_BIND_PARAMS::SIZE, scheduling::put_back),
    row(NVA06F_CTRL_CMD_STOP_CHANNEL, OnObject::Channel, NVA06F_CTRL_STOP_CHANNEL_PARAMS::SIZE, scheduling::put_back),
    row(
        NV906F_CTRL_CMD_RESET_CHANNEL,
        OnObject::Channel,
        NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS::SIZE,
        scheduling::put_back,
    ),
    row(
        NVA06F_CTRL_CMD_RESET_CHANNEL,
        OnObject::Channel,
        NV906F_CTRL_CMD_RESET_CHANNEL_PARAMS::SIZE,
        scheduling::put_back,
    ),
    row(
        NVC36F_CTRL_CMD_GPFIFO_SCHEDULE,
        OnObject::Channel,
        NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS::SIZE,
        scheduling::schedule,
    ),
    row(NVC36F_CTRL_CMD_BIND, OnObject::Channel, NVA06F_CTRL_BIND_PARAMS::SIZE, scheduling::put_back),
    row(
        NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN,
        OnObject::Channel,
        NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS::SIZE,
        scheduling::work_submit_token,
    ),
    row(NV00F8_CTRL_CMD_ATTACH_MEM, OnObject::Fabric, NV00F8_CTRL_ATTACH_MEM_PARAMS::SIZE, fabric::attach),
    row(NV00F8_CTRL_CMD_DETACH_MEM, OnObject::Fabric, NV00F8_CTRL_DETACH_MEM_PARAMS::SIZE, fabric::detach),
    row(
        NV503C_CTRL_CMD_REGISTER_VIDMEM,
        OnObject::Any,
        NV503C_CTRL_REGISTER_VIDMEM_PARAMS::SIZE,
        memory::of_first_handle,
    ),
    row(
        NV503C_CTRL_CMD_UNREGISTER_VIDMEM,
        OnObject::Any,
        NV503C_CTRL_UNREGISTER_VIDMEM_PARAMS::SIZE,
        memory::of_first_handle,
    ),
];

/// The 16 bytes of a card's UUID.
pub(super) fn uuid_bytes(text: &str) -> Vec<u8> {
    gpus::uuid(text, true)
}

/// Executes `NV_ESC_RM_CONTROL`.
pub(super) fn control(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = NVOS54_PARAMETERS;
    let (client, object) = (get(call.args, Args::hClient).0, get(call.args, Args::hObject).0);
    let (command, flags) = (get(call.args, Args::cmd), get(call.args, Args::flags));
    let size = get(call.args, Args::paramsSize) as usize;
    if flags & SERIALIZED != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let owner = match state.client(call.file, client) {
        Err(Status::INVALID_OBJECT_HANDLE) => Err(Status::INVALID_CLIENT),
        other => other,
    }?;
    let card = owner.card_of(object);
    // A few, which are answered without the card (`RMCTRL_FLAGS_NO_GPUS_ACCESS`), a real driver
    // answers all the same.
    card.and_then(|card| state.cards.get(card)).map_or(Ok(()), |card| card.check_control(command))?;
    let target = if object == client { None } else { Some(state.client(call.file, client)?.object(object)?) };
    if NO_EFFECT.contains(&command) || NAMELESS.contains(&command) || HARMFUL.contains(&command) {
        return Ok(());
    }
    // Of whatever size.
    if command == NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT {
        return scheduling::put_back(state, &mut Control { call, client, object, card });
    }
    let row = CONTROLS.iter().find(|row| row.command == command).ok_or(Status::NOT_SUPPORTED)?;
    if !takes(row.on, target) {
        return Err(Status::NOT_SUPPORTED);
    }
    let given = call.args_and_buffer(PARAMS).1.map_or(0, |params| params.len());
    if row.size != size {
        return Err(Status::INVALID_PARAM_STRUCT);
    }
    if given < size {
        return Err(Status::INVALID_ARGUMENT);
    }
    (row.act)(state, &mut Control { call, client, object, card })
}

fn takes(on: OnObject, target: Option<&Object>) -> bool {
    matches!(
        (on, target.map(|object| &object.kind)),
        (OnObject::Any, _)
            | (OnObject::Client, None)
            | (OnObject::Device, Some(Kind::Device { .. }))
            | (OnObject::Subdevice, Some(Kind::Subdevice { .. }))
            | (OnObject::Group, Some(Kind::ChannelGroup { .. }))
            | (OnObject::Channel, Some(Kind::Channel { .. }))
            | (OnObject::Fabric, Some(Kind::Fabric(_)))
            | (OnObject::Memory, Some(Kind::VideoMemory(_) | Kind::SystemMemory(_)))
    )
}

/// Reports an object's parent (index 1) or class (index 2).
fn handle_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let object = state.client(file, client)?.object(get(params, Params::hObject).0)?;
    let result = match get(params, Params::index) {
        1 => object.parent,
        2 => object.class,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    put(params, Params::iResult, u64::from(result));
    Ok(())
}

/// Finds an object's child of a class: that with the lowest handle.
///
/// The class is the driver's internal one; of those, these are known here.
fn child_handle(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    type Params = NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS;
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let (parent, internal) = (get(params, Params::hParent).0, get(params, Params::classId));
    let class = match internal {
        classes::internal::SYSTEM_MEMORY => classes::NV01_MEMORY_SYSTEM,
        classes::internal::OS_DESC_MEMORY => classes::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
        // A dummy, for those who are no administrators, made by `NV_ESC_RM_ALLOC_MEMORY`.
        classes::internal::VIRTUAL_MEMORY_RANGE => classes::NV01_MEMORY_LOCAL_USER,
        _ => return Err(Status::OBJECT_NOT_FOUND),
    };
    let objects = &state.client(file, client)?.objects;
    let child = objects.iter().find(|(_, object)| object.parent == parent && object.class == class);
    let (handle, _) = child.ok_or(Status::OBJECT_NOT_FOUND)?;
    put(params, Params::hObject, Handle(*handle));
    Ok(())
}

fn share_object(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    memory::of_first_handle(state, control)
}
