//! The ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`.
//!
//! As the driver does (src/nvidia/arch/nvalloc/unix/src/escape.c, kernel-open/nvidia/nv.c): the
//! type byte and the direction are not looked at, the size must be exactly that of the struct, and
//! each number belongs to one kind of node. Sizes and offsets are those of 580; the structs are in
//! src/common/sdk/nvidia/inc/nvos.h and src/nvidia/arch/nvalloc/unix/include/nv-ioctl.h.

use std::{collections::btree_map::Entry, io, sync::Arc};

use abi::{Handle, Node, Status, classes::*, escapes::*, params::*};
use nix::errno::Errno;

use super::{
    allocate::{AllocRequest, allocate},
    bytes::{get, put, put_text},
    call::Call,
    controls, duplicate,
    objects::{HostMemory, Kind},
    state::State,
    vid_heap,
};

/// Nodes that take a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnNode {
    Control,
    Card,
    Either,
}

/// PCI numbers of a card, and where its registers are.
const NVIDIA: u16 = 0x10de;
const H200: u16 = 0x2335;
const REGISTERS: u64 = 0x9000_0000;

/// One ioctl.
struct Escape {
    number: u8,
    on: OnNode,
    /// Its struct's size; 0: the function checks it.
    size: usize,
    /// The field for the status; `None`: a failure is `EINVAL`.
    status: Option<Field<u32>>,
    act: fn(&mut State, &mut Call<'_>) -> Result<(), Status>,
}

const fn escape(
    number: u8,
    on: OnNode,
    size: usize,
    status: Option<Field<u32>>,
    act: fn(&mut State, &mut Call<'_>) -> Result<(), Status>,
) -> Escape {
    Escape { number, on, size, status, act }
}

/// All that are known; `NV_ESC_RM_ALLOC` in both of its sizes. `NV_ESC_IOCTL_XFER_CMD` is not among
/// them: the kernel reads the call that it wraps from the caller's memory, which nobody else can
/// do.
const ESCAPES: &[Escape] = &[
    escape(
        NV_ESC_RM_ALLOC_MEMORY,
        OnNode::Card,
        nv_ioctl_nvos02_parameters_with_fd::SIZE,
        Some(nv_ioctl_nvos02_parameters_with_fd::status),
        alloc_memory,
    ),
    escape(
        NV_ESC_RM_ALLOC_OBJECT,
        OnNode::Control,
        NVOS05_PARAMETERS::SIZE,
        Some(NVOS05_PARAMETERS::status),
        alloc_object,
    ),
    escape(NV_ESC_RM_FREE, OnNode::Control, NVOS00_PARAMETERS::SIZE, Some(NVOS00_PARAMETERS::status), free),
    escape(
        NV_ESC_RM_CONTROL,
        OnNode::Control,
        NVOS54_PARAMETERS::SIZE,
        Some(NVOS54_PARAMETERS::status),
        controls::control,
    ),
    escape(NV_ESC_RM_ALLOC, OnNode::Either, NVOS21_PARAMETERS::SIZE, Some(NVOS21_PARAMETERS::status), alloc_short),
    escape(NV_ESC_RM_ALLOC, OnNode::Either, NVOS64_PARAMETERS::SIZE, Some(NVOS64_PARAMETERS::status), alloc_long),
    escape(
        NV_ESC_RM_DUP_OBJECT,
        OnNode::Control,
        NVOS55_PARAMETERS::SIZE,
        Some(NVOS55_PARAMETERS::status),
        duplicate::duplicate,
    ),
    escape(NV_ESC_RM_SHARE, OnNode::Control, NVOS57_PARAMETERS::SIZE, Some(NVOS57_PARAMETERS::status), share),
    escape(
        NV_ESC_RM_IDLE_CHANNELS,
        OnNode::Control,
        NVOS30_PARAMETERS::SIZE,
        Some(NVOS30_PARAMETERS::status),
        of_third_handle,
    ),
    escape(
        NV_ESC_RM_VID_HEAP_CONTROL,
        OnNode::Control,
        NVOS32_PARAMETERS::SIZE,
        Some(NVOS32_PARAMETERS::status),
        vid_heap::control,
    ),
    escape(
        NV_ESC_RM_MAP_MEMORY,
        OnNode::Control,
        nv_ioctl_nvos33_parameters_with_fd::SIZE,
        Some(nv_ioctl_nvos33_parameters_with_fd::status),
        map_memory,
    ),
    escape(
        NV_ESC_RM_UNMAP_MEMORY,
        OnNode::Control,
        NVOS34_PARAMETERS::SIZE,
        Some(NVOS34_PARAMETERS::status),
        of_third_handle,
    ),
    escape(
        NV_ESC_RM_GET_EVENT_DATA,
        OnNode::Either,
        NVOS41_PARAMETERS::SIZE,
        Some(NVOS41_PARAMETERS::status),
        |_, _| Err(Status::OBJECT_NOT_FOUND),
    ),
    escape(
        NV_ESC_RM_ALLOC_CONTEXT_DMA2,
        OnNode::Control,
        NVOS39_PARAMETERS::SIZE,
        Some(NVOS39_PARAMETERS::status),
        alloc_context_dma,
    ),
    escape(
        NV_ESC_RM_MAP_MEMORY_DMA,
        OnNode::Control,
        NVOS46_PARAMETERS::SIZE,
        Some(NVOS46_PARAMETERS::status),
        map_memory_dma,
    ),
    escape(
        NV_ESC_RM_UNMAP_MEMORY_DMA,
        OnNode::Control,
        NVOS47_PARAMETERS::SIZE,
        Some(NVOS47_PARAMETERS::status),
        of_third_handle,
    ),
    escape(
        NV_ESC_RM_BIND_CONTEXT_DMA,
        OnNode::Control,
        NVOS49_PARAMETERS::SIZE,
        Some(NVOS49_PARAMETERS::status),
        of_third_handle,
    ),
    escape(
        NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO,
        OnNode::Control,
        NVOS56_PARAMETERS::SIZE,
        Some(NVOS56_PARAMETERS::status),
        of_third_handle,
    ),
    escape(NV_ESC_CARD_INFO, OnNode::Control, 0, None, card_info),
    escape(NV_ESC_REGISTER_FD, OnNode::Either, nv_ioctl_register_fd_t::SIZE, None, register_fd),
    escape(
        NV_ESC_ALLOC_OS_EVENT,
        OnNode::Either,
        nv_ioctl_alloc_os_event_t::SIZE,
        Some(nv_ioctl_alloc_os_event_t::Status),
        alloc_os_event,
    ),
    escape(
        NV_ESC_FREE_OS_EVENT,
        OnNode::Either,
        nv_ioctl_free_os_event_t::SIZE,
        Some(nv_ioctl_free_os_event_t::Status),
        free_os_event,
    ),
    escape(NV_ESC_STATUS_CODE, OnNode::Control, nv_ioctl_status_code_t::SIZE, None, |_, call| {
        put(call.args, nv_ioctl_status_code_t::status, 0);
        Ok(())
    }),
    escape(NV_ESC_CHECK_VERSION_STR, OnNode::Control, nv_ioctl_rm_api_version_t::SIZE, None, check_version),
    escape(NV_ESC_ATTACH_GPUS_TO_FD, OnNode::Control, 0, None, attach_gpus),
    escape(NV_ESC_SYS_PARAMS, OnNode::Control, nv_ioctl_sys_params_t::SIZE, None, |_, _| Ok(())),
    // Cards have no memory of their own on the machine's map.
    escape(NV_ESC_NUMA_INFO, OnNode::Card, nv_ioctl_numa_info_t::SIZE, None, |_, _| Ok(())),
    // No dma-buf without a card behind it.
    escape(
        NV_ESC_EXPORT_TO_DMABUF_FD,
        OnNode::Card,
        nv_ioctl_export_to_dma_buf_fd_t::SIZE,
        Some(nv_ioctl_export_to_dma_buf_fd_t::status),
        |_, _| Ok(()),
    ),
    escape(NV_ESC_WAIT_OPEN_COMPLETE, OnNode::Either, nv_ioctl_wait_open_complete_t::SIZE, None, |_, call| {
        put(call.args, nv_ioctl_wait_open_complete_t::rc, 0);
        put(call.args, nv_ioctl_wait_open_complete_t::adapterStatus, 0);
        Ok(())
    }),
];

pub(super) fn execute(state: &mut State, node: Node, command: u32, mut call: Call<'_>) -> io::Result<i32> {
    let size = command_size(command);
    if call.args.len() < size {
        return Err(Errno::EFAULT.into());
    }
    let fits =
        |escape: &&Escape| u32::from(escape.number) == command & 0xff && (escape.size == 0 || escape.size == size);
    let escape = ESCAPES.iter().find(fits).ok_or(Errno::EINVAL)?;
    let allowed = match escape.on {
        OnNode::Control => node == Node::Control,
        OnNode::Card => matches!(node, Node::Card(_)),
        OnNode::Either => true,
    };
    if !allowed {
        return Err(Errno::EINVAL.into());
    }
    let outcome = (escape.act)(state, &mut call);
    match (outcome, escape.status) {
        (outcome, Some(status)) => put(call.args, status, outcome.err().unwrap_or(Status::OK).0),
        (Ok(()), None) => {}
        (Err(_), None) => return Err(Errno::EINVAL.into()),
    }
    Ok(0)
}

fn alloc_short(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    alloc(state, call, None)
}

fn alloc_long(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    // NVOS64_FLAGS_FINN_SERIALIZED: another layout of the parameters, which user-mode drivers on
    // bare metal do not use.
    let flags = get(call.args, NVOS64_PARAMETERS::flags);
    alloc(state, call, Some(flags))
}

/// Allocates; both structs begin with the same fields.
fn alloc(state: &mut State, call: &mut Call<'_>, flags: Option<u32>) -> Result<(), Status> {
    if flags.is_some_and(|flags| flags & 1 != 0) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let file = call.file;
    let (args, params) = call.args_and_buffer(NVOS21_PARAMETERS::pAllocParms);
    let ask = AllocRequest {
        file,
        client: get(args, NVOS21_PARAMETERS::hRoot).0,
        parent: get(args, NVOS21_PARAMETERS::hObjectParent).0,
        handle: get(args, NVOS21_PARAMETERS::hObjectNew).0,
        class: get(args, NVOS21_PARAMETERS::hClass),
        params,
    };
    let handle = allocate(state, ask)?;
    put(args, NVOS21_PARAMETERS::hObjectNew, Handle(handle));
    Ok(())
}

/// Allocates an object without parameters.
fn alloc_object(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (file, args) = (call.file, &mut *call.args);
    let ask = AllocRequest {
        file,
        client: get(args, NVOS05_PARAMETERS::hRoot).0,
        parent: get(args, NVOS05_PARAMETERS::hObjectParent).0,
        handle: get(args, NVOS05_PARAMETERS::hObjectNew).0,
        class: get(args, NVOS05_PARAMETERS::hClass),
        params: None,
    };
    let handle = allocate(state, ask)?;
    put(args, NVOS05_PARAMETERS::hObjectNew, Handle(handle));
    Ok(())
}

/// Pins memory of the caller (class 0x71), or says how much there is (0x40); never makes memory of
/// a card.
fn alloc_memory(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = nv_ioctl_nvos02_parameters_with_fd;
    let (file, args) = (call.file, &mut *call.args);
    let (own, parent) = (get(args, Args::hRoot).0, get(args, Args::hObjectParent).0);
    let (class, limit) = (get(args, Args::hClass), get(args, Args::limit));
    let client = state.client(file, own)?;
    let card = client.card_of(parent).ok_or(Status::INVALID_OBJECT_PARENT)?;
    let handle = client.new_handle(own, get(args, Args::hObjectNew).0)?;
    let length = limit.checked_add(1).and_then(|length| length.checked_next_multiple_of(4096));
    let length = length.ok_or(Status::INVALID_ARGUMENT);
    let kind = match class {
        NV01_MEMORY_SYSTEM => Kind::SystemMemory(state.take_of_host(length?)?),
        NV01_MEMORY_SYSTEM_OS_DESCRIPTOR => Kind::SystemMemory(Arc::new(HostMemory { length: length?, _piece: None })),
        NV01_MEMORY_LOCAL_USER => Kind::VirtualMemory,
        _ => return Err(Status::INVALID_CLASS),
    };
    let client = state.client(file, own)?;
    client.add(handle, super::objects::Object { parent, class, kind, depends_on: Vec::new() });
    // An object of the program's own memory can be named by those only who have chosen its handle.
    if class != NV01_MEMORY_SYSTEM_OS_DESCRIPTOR {
        put(args, Args::hObjectNew, Handle(handle));
    }
    if class == NV01_MEMORY_LOCAL_USER {
        let capacity = state.cards.get(card).map_or(0, |card| card.memory.capacity());
        put(args, Args::limit, capacity.saturating_sub(1));
    }
    Ok(())
}

/// Frees an object with all that hangs on it, or a whole client. What is not there is freed with
/// success: CUDA does so.
fn free(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, handle) = (get(call.args, NVOS00_PARAMETERS::hRoot).0, get(call.args, NVOS00_PARAMETERS::hObjectOld).0);
    let client = state.client(call.file, own)?;
    if handle != own {
        return match client.free(handle) {
            Err(Status::OBJECT_NOT_FOUND) => Ok(()),
            freed => freed,
        };
    }
    state.clients.remove(&own);
    state.os_events.retain(|(client, _), _| *client != own);
    Ok(())
}

/// Lets others duplicate an object. All clients here are of one process, which may anyway.
fn share(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, handle) = (get(call.args, NVOS57_PARAMETERS::hClient).0, get(call.args, NVOS57_PARAMETERS::hObject).0);
    let client = state.client(call.file, own)?;
    if handle == own { Ok(()) } else { client.object(handle).map(|_| ()) }
}

/// Answers calls that change nothing here: their structs begin with a client, a device and another
/// object, and both the client and that object must exist.
fn of_third_handle(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = NVOS34_PARAMETERS;
    let (client, object) = (get(call.args, Args::hClient).0, get(call.args, Args::hMemory).0);
    state.client(call.file, client)?.object(object).map(|_| ())
}

/// Prepares a mapping: the address that the caller maps afterwards is the mapping's number; the
/// file must be one of the driver's, and nothing may have been mapped through it yet. Memory of the
/// host's is mapped through control files, and a card's through the card's (`nv_get_file_private`).
fn map_memory(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = nv_ioctl_nvos33_parameters_with_fd;
    let (client, memory) = (get(call.args, Args::hClient).0, get(call.args, Args::hMemory).0);
    let object = state.client(call.file, client)?.object(memory)?;
    let (offset, length) = (get(call.args, Args::offset), get(call.args, Args::length));
    let end = offset.checked_add(length).ok_or(Status::INVALID_ARGUMENT)?;
    let whole = match &object.kind {
        Kind::VideoMemory(memory) => memory.length,
        Kind::SystemMemory(memory) => memory.length,
        Kind::Plain | Kind::Channel { .. } => u64::MAX,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    if length == 0 || end > whole {
        return Err(Status::INVALID_ARGUMENT);
    }
    let memory = match &object.kind {
        Kind::SystemMemory(memory) => Some(Arc::clone(memory)),
        _ => None,
    };
    let file = call.file_in_args(Args::fd).filter(|file| file.node != Node::Uvm).ok_or(Status::INVALID_ARGUMENT)?;
    if memory.is_some() && file.node != Node::Control {
        return Err(Status::INVALID_ARGUMENT);
    }
    let file = state.files.identify(file).map_err(|_| Status::INVALID_ARGUMENT)?;
    match state.mapped.entry(file) {
        Entry::Occupied(_) => Err(Status::STATE_IN_USE),
        Entry::Vacant(place) => {
            place.insert(memory);
            Ok(())
        }
    }
}

/// Creates a DMA context; the client is the parent's.
fn alloc_context_dma(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Args = NVOS39_PARAMETERS;
    let (own, memory) = (get(call.args, Args::hObjectParent).0, get(call.args, Args::hMemory).0);
    let client = state.client(call.file, own)?;
    client.object(memory)?;
    let handle = client.new_handle(own, get(call.args, Args::hObjectNew).0)?;
    let object = super::objects::Object {
        parent: memory,
        class: get(call.args, Args::hClass),
        kind: Kind::Plain,
        depends_on: vec![memory],
    };
    client.add(handle, object);
    put(call.args, Args::hObjectNew, Handle(handle));
    Ok(())
}

/// Maps memory (`hMemory`) in a space of addresses (`hDma`).
fn map_memory_dma(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let client = state.client(call.file, get(call.args, NVOS46_PARAMETERS::hClient).0)?;
    client.object(get(call.args, NVOS46_PARAMETERS::hDma).0)?;
    client.object(get(call.args, NVOS46_PARAMETERS::hMemory).0)?;
    Ok(())
}

/// An array of `nv_ioctl_card_info_t`, as many as there is room for.
fn card_info(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    type Entry = nv_ioctl_card_info_t;
    let room = call.args.len() / Entry::SIZE;
    if room < state.cards.len() {
        return Err(Status::INVALID_ARGUMENT);
    }
    call.args.fill(0);
    for (card, entry) in state.cards.iter().zip(call.args.chunks_exact_mut(Entry::SIZE)) {
        let pci = card.card.pci;
        put(entry, Entry::valid, 1);
        put(entry, Entry::domain, pci.domain);
        put(entry, Entry::bus, pci.bus);
        put(entry, Entry::slot, pci.device);
        put(entry, Entry::function, pci.function);
        put(entry, Entry::vendor_id, NVIDIA);
        put(entry, Entry::device_id, H200);
        put(entry, Entry::gpu_id, card.gpu_id());
        put(entry, Entry::reg_address, REGISTERS);
        put(entry, Entry::reg_size, 16 << 20);
        put(entry, Entry::fb_size, card.card.memory.0);
        put(entry, Entry::minor_number, card.card.minor);
    }
    Ok(())
}

/// Registers the file that the call is made on to a control file, whose clients it may use from
/// then on.
fn register_fd(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let Some(control) =
        call.file_in_args(nv_ioctl_register_fd_t::ctl_fd).filter(|file| file.node == Node::Control).cloned()
    else {
        return Err(Status::INVALID_ARGUMENT);
    };
    let control = state.files.identify(&control).map_err(|_| Status::INVALID_ARGUMENT)?;
    if state.registered.contains_key(&call.file) {
        return Err(Status::INVALID_STATE);
    }
    if control == call.file || state.registered.contains_key(&control) {
        return Err(Status::INVALID_ARGUMENT);
    }
    state.registered.insert(call.file, control);
    Ok(())
}

/// Events reach a simulated card's programs as they reach those of an idle one: never.
fn alloc_os_event(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    match state.os_events.entry(os_event(call)) {
        Entry::Occupied(_) => Err(Status::INSUFFICIENT_RESOURCES),
        Entry::Vacant(event) => {
            event.insert(call.file);
            Ok(())
        }
    }
}

fn free_os_event(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    state.os_events.remove(&os_event(call)).map(|_| ()).ok_or(Status::INVALID_EVENT)
}

/// Client and descriptor, which the driver takes as they are.
fn os_event(call: &Call<'_>) -> (u32, i32) {
    (get(call.args, nv_ioctl_alloc_os_event_t::hClient).0, get(call.args, nv_ioctl_alloc_os_event_t::fd).cast_signed())
}

/// Compares the version that the caller's libraries have with the driver's, which is put in its
/// place. 525 does not tell it without that.
fn check_version(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    const QUERY: u32 = b'2' as u32;
    type Args = nv_ioctl_rm_api_version_t;
    let own = state.version.as_bytes();
    let text = Args::versionString.bytes(call.args).unwrap_or_default();
    let asked = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let same = asked == own;
    let command = get(call.args, Args::cmd);
    // The question was understood.
    put(call.args, Args::reply, 1);
    if command == QUERY && state.version.starts_with("525.") {
        return Ok(());
    }
    put_text(call.args, Args::versionString, own);
    if same || command == QUERY { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}

/// Numbers of cards, 0 for none.
fn attach_gpus(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    if call.args.is_empty() || !call.args.len().is_multiple_of(4) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let known = |id: u32| id == 0 || state.cards.iter().any(|card| card.gpu_id() == id);
    if call.args.as_chunks::<4>().0.iter().all(|id| known(u32::from_le_bytes(*id))) {
        Ok(())
    } else {
        Err(Status::INVALID_ARGUMENT)
    }
}
