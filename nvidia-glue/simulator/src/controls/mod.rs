//! `NV_ESC_RM_CONTROL`: the controls that programs use.
//!
//! Numbers, structs and sizes: src/common/sdk/nvidia/inc/ctrl/ of 580.

mod export;
mod gpus;
mod load;
mod memory;
pub(super) mod scheduling;

use abi::Status;

use super::{
    bytes::{get, put},
    call::Call,
    objects::{Kind, Object},
    state::State,
};

/// `NV_ERR_INVALID_PARAM_STRUCT`: parameters of another size.
const INVALID_PARAM_STRUCT: Status = Status(0x3a);
/// `NVOS54_PARAMETERS.params`.
const PARAMS: usize = 16;
/// `NVOS54_FLAGS_FINN_SERIALIZED`.
const SERIALIZED: u32 = 4;

/// Which objects take a control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Client,
    Device,
    Subdevice,
    Group,
    Channel,
    Memory,
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

type Act = fn(&mut State, &mut Control<'_, '_>) -> Result<(), Status>;

/// One control.
struct Row {
    command: u32,
    on: On,
    /// Bytes of its parameters.
    size: usize,
    act: Act,
}

const fn row(command: u32, on: On, size: usize, act: Act) -> Row {
    Row { command, on, size, act }
}

/// Controls of which real programs are told success, and which change nothing on a simulated card and tell nothing of it: their
/// parameters stay as they are. Those with bit 15 set have no names: the driver hands them to the card's firmware.
const NO_EFFECT: &[u32] = &[
    // Of clients: versions, features, draining, memory operations, boost groups.
    0x101,
    0x1f0,
    0x279,
    0x27b,
    0xa04, // Of devices: counts, modes, classes, partitions, capabilities, channels, limits.
    0x0080_0280,
    0x0080_0288,
    0x0080_0289,
    0x0080_0292,
    0x0080_1307,
    0x0080_1402,
    0x0080_170d,
    0x0080_1909, // Of subdevices: the card.
    0x2080_0102,
    0x2080_0119,
    0x2080_012f,
    0x2080_0131,
    0x2080_0133,
    0x2080_0145,
    0x2080_014b,
    0x2080_0157,
    0x2080_0170,
    0x2080_0195,
    0x2080_01a3,
    0x2080_0406, // Its graphics engine.
    0x2080_1201,
    0x2080_121b,
    0x2080_1227,
    0x2080_122a,
    0x2080_122b,
    0x2080_1230,
    // Its chip, bus, clocks, watchdog, copy engines, links, firmware, partitions.
    0x2080_1701,
    0x2080_1801,
    0x2080_1802,
    0x2080_1803,
    0x2080_1823,
    0x2080_182a,
    0x2080_182b,
    0x2080_200a,
    0x2080_2210,
    0x2080_220c,
    0x2080_2a0a,
    0x2080_3002,
    0x2080_3601,
    0x2080_3801,
    0x2080_8159,
    0x2080_8162,
    0x2080_852e,
    0x2080_9001,
    0x2080_9009,
    0x2080_9038,
    0x2080_9064,
    0x2080_a026,
    0x2080_a084,
    0x2080_a612,
    0x2080_a618,
    0x2081_0108,
    0x2081_0110,
    // Of other objects: pages of information, inventories, peers, debuggers, channels, interrupts, confidential computing.
    0x00de_0001,
    0x208f_1105,
    0x503c_0102,
    0x83de_0309,
    0x83de_030c,
    0x83de_0310,
    0x83de_0315,
    0x83de_0317,
    0x906f_0101,
    0x90e6_0102,
    0xcb33_0101,
];

/// Controls that no program in a container has a use for. A real driver executes some for whoever asks, or whoever has `CAP_SYS_NICE`, and refuses
/// others to all but administrators, or the kernel, which is nothing to rely on: all are executed without an effect, so that it shows when one
/// is let through.
const HARMFUL: &[u32] = &[
    // Of devices: who may run where, which channels run, run lists.
    0x0080_1108,
    0x0080_1705,
    0x0080_1711,
    0x0080_1712,
    // Of subdevices: compute modes, resets, policies, timeouts, keys, clocks, watchdogs, recovery.
    0x2080_012c,
    0x2080_0130,
    0x2080_0194,
    0x2080_01a9,
    0x2080_01aa,
    0x2080_01ac,
    0x2080_01ad,
    0x2080_1110,
    0x2080_1115,
    0x2080_1117,
    0x2080_111a,
    0x2080_111b,
    0x2080_1121,
    0x2080_122c,
    0x2080_205b,
    0x2080_220a,
    0x2080_220b,
    0x2080_220d,
    // Of groups and channels: partitions, levels, real time, run lists, slices.
    0x506f_0105,
    0x9067_0102,
    0xa06c_0107,
    0xa06c_0110,
    0xa06c_0201,
    0xa06c_0202,
    0xa06f_0109,
    0xa06f_0111,
    0xb06f_0110,
];

/// `NV83DE_CTRL_CMD_DEBUG_RESUME_CONTEXT`, of whatever size.
const RESUME_CONTEXT: u32 = 0x83de_0318;

const CONTROLS: &[Row] = &[
    row(0x201, On::Client, 128, gpus::attached_ids),
    row(0x202, On::Client, 40, gpus::id_info),
    row(0x204, On::Client, 4, gpus::device_ids),
    row(0x205, On::Client, 32, gpus::id_info_v2),
    row(0x214, On::Client, 384, gpus::probed_ids),
    row(0x215, On::Client, 132, gpus::attach_ids),
    row(0x216, On::Client, 128, |_, _| Ok(())),
    row(0x21b, On::Client, 12, gpus::pci_info),
    row(0x274, On::Client, 272, gpus::uuid_info),
    row(0x275, On::Client, 268, gpus::uuid_of_gpu_id),
    row(0x288, On::Client, 3076, gpus::active_device_ids),
    row(0x289, On::Client, 4, gpus::attach_id),
    row(0x290, On::Client, 4, gpus::attach_id),
    row(0x12b, On::Client, 8348, gpus::p2p_caps),
    row(0x13a, On::Client, 1352, gpus::p2p_matrix),
    row(0xd01, On::Client, 12, memory::address_space_type),
    row(0xd02, On::Client, 16, handle_info),
    row(0xd04, On::Client, 12, |_, _| Ok(())),
    row(0xd05, On::Client, 12, child_handle),
    row(0xd06, On::Client, 16, share_object),
    row(0xd07, On::Client, 12, memory::are_duplicates),
    row(0x3d05, On::Client, 24, export::to_fd),
    row(0x3d06, On::Client, 20, export::from_fd),
    row(0x3d08, On::Client, 80, export::info),
    row(0x3d0a, On::Client, 76, export::create),
    row(0x3d0b, On::Client, 2128, export::objects_to_fd),
    row(0x3d0c, On::Client, 652, export::objects_from_fd),
    row(0x0041_0110, On::Memory, 16, memory::surface_info),
    row(0x2080_0110, On::Subdevice, 132, gpus::name),
    row(0x2080_0111, On::Subdevice, 64, gpus::short_name),
    row(0x2080_014a, On::Subdevice, 268, gpus::gid),
    row(0x2080_018d, On::Subdevice, 3812, memory::pids),
    row(0x2080_018e, On::Subdevice, 14408, memory::pid_info),
    row(0x2080_1210, On::Subdevice, 32, scheduling::preemption_mode),
    row(0x2080_1218, On::Subdevice, 16, memory::context_buffer_size),
    row(0x2080_1301, On::Subdevice, 16, memory::fb_info_v1),
    row(0x2080_1303, On::Subdevice, 1028, memory::fb_info),
    row(0x0080_170f, On::Device, 16, scheduling::set_channel_properties),
    row(0x0080_1714, On::Device, 16396, scheduling::idle_channels),
    row(0x2080_110b, On::Subdevice, 536, scheduling::disable_channels),
    row(0x2080_2087, On::Subdevice, 12, load::video_engine),
    row(0x2080_2096, On::Subdevice, 55888, load::samples),
    row(0xa06c_0101, On::Group, 3, scheduling::schedule),
    row(0xa06c_0103, On::Group, 8, scheduling::set_timeslice),
    row(0xa06c_0104, On::Group, 8, scheduling::timeslice),
    row(0xa06c_0105, On::Group, 8, scheduling::preempt),
    row(0xa06f_0103, On::Channel, 3, scheduling::schedule),
    row(0xa06c_0102, On::Group, 1, scheduling::put_back),
    row(0xa06f_0104, On::Channel, 4, scheduling::put_back),
    row(0xa06f_0112, On::Channel, 1, scheduling::put_back),
    row(0x906f_0102, On::Channel, 16, scheduling::put_back),
    row(0xa06f_0102, On::Channel, 16, scheduling::put_back),
    row(0xc36f_0103, On::Channel, 3, scheduling::schedule),
    row(0xc36f_0104, On::Channel, 4, scheduling::put_back),
    row(0xc36f_0108, On::Channel, 4, scheduling::work_submit_token),
    row(0x503c_0104, On::Any, 32, memory::object_at_0),
    row(0x503c_0105, On::Any, 4, memory::object_at_0),
];

/// The 16 bytes of a card's UUID.
pub(super) fn uuid_bytes(text: &str) -> Vec<u8> {
    gpus::uuid(text, true)
}

/// `NVOS54`: hClient, hObject, cmd, flags, params, paramsSize.
pub(super) fn control(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (client, object, command) = (get(call.args, 0), get(call.args, 4), get(call.args, 8));
    let (flags, size) = (get(call.args, 12), get(call.args, 24) as usize);
    if flags & SERIALIZED != 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    let owner = match state.client(call.file, client) {
        Err(super::objects::INVALID_OBJECT_HANDLE) => Err(Status::INVALID_CLIENT),
        other => other,
    }?;
    let card = owner.card_of(object);
    // A few, which are answered without the card (`RMCTRL_FLAGS_NO_GPUS_ACCESS`), a real driver answers all the same.
    card.and_then(|card| state.cards.get(card)).map_or(Ok(()), |card| card.check_control(command))?;
    let target = if object == client { None } else { Some(state.client(call.file, client)?.object(object)?) };
    if NO_EFFECT.contains(&command) || HARMFUL.contains(&command) {
        return Ok(());
    }
    if command == RESUME_CONTEXT {
        return scheduling::put_back(state, &mut Control { call, client, object, card });
    }
    let row = CONTROLS.iter().find(|row| row.command == command).ok_or(Status::NOT_SUPPORTED)?;
    if !takes(row.on, target) {
        return Err(Status::NOT_SUPPORTED);
    }
    let given = call.args_and_buffer(PARAMS).1.map_or(0, |params| params.len());
    if row.size != size {
        return Err(INVALID_PARAM_STRUCT);
    }
    if given < size {
        return Err(Status::INVALID_ARGUMENT);
    }
    (row.act)(state, &mut Control { call, client, object, card })
}

fn takes(on: On, target: Option<&Object>) -> bool {
    matches!(
        (on, target.map(|object| &object.kind)),
        (On::Any, _)
            | (On::Client, None)
            | (On::Device, Some(Kind::Device { .. }))
            | (On::Subdevice, Some(Kind::Subdevice { .. }))
            | (On::Group, Some(Kind::ChannelGroup { .. }))
            | (On::Channel, Some(Kind::Channel { .. }))
            | (On::Memory, Some(Kind::VideoMemory(_) | Kind::SystemMemory(_)))
    )
}

/// `GET_HANDLE_INFO`: hObject, index (1 the parent, 2 the class), result.
fn handle_info(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let object = state.client(file, client)?.object(get(params, 0))?;
    let result = match get(params, 4) {
        1 => object.parent,
        2 => object.class,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    params.get_mut(8..16).unwrap_or_default().fill(0);
    put(params, 8, result);
    Ok(())
}

/// `GET_CHILD_HANDLE`: hParent, class, the child with the lowest handle. The class is the driver's internal one; of those, these are known here.
fn child_handle(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    let (file, client) = (control.call.file, control.client);
    let params = control.params();
    let (parent, internal) = (get(params, 0), get(params, 4));
    let class = match internal {
        0x00_7a98 => 0x3e,
        0xb3_dacd => 0x71,
        // What class 40 is for those who are no administrators, made by `NV_ESC_RM_ALLOC_MEMORY`.
        0x70_32c6 => 0x40,
        _ => return Err(Status::OBJECT_NOT_FOUND),
    };
    let objects = &state.client(file, client)?.objects;
    let child = objects.iter().find(|(_, object)| object.parent == parent && object.class == class);
    let (handle, _) = child.ok_or(Status::OBJECT_NOT_FOUND)?;
    put(params, 8, *handle);
    Ok(())
}

fn share_object(state: &mut State, control: &mut Control<'_, '_>) -> Result<(), Status> {
    memory::object_at_0(state, control)
}
