//! The ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`.
//!
//! As the driver does (src/nvidia/arch/nvalloc/unix/src/escape.c, kernel-open/nvidia/nv.c): the type byte and the direction are
//! not looked at, the size must be exactly that of the struct, and each number belongs to one kind of node. Sizes and offsets
//! are those of 580; the structs are in src/common/sdk/nvidia/inc/nvos.h and src/nvidia/arch/nvalloc/unix/include/nv-ioctl.h.

use std::{collections::btree_map::Entry, io, sync::Arc};

use abi::{Node, Status};
use nix::errno::Errno;

use super::{
    allocate::{Ask, allocate},
    bytes::{get, get_u64, put, put_bytes, put_u64},
    call::Call,
    controls, duplicate,
    objects::{HostMemory, Kind},
    state::State,
    vid_heap,
};

/// Which nodes take a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    Control,
    Card,
    Either,
}

/// One ioctl.
struct Escape {
    number: u32,
    on: On,
    /// Its struct's size; 0: the function looks.
    size: usize,
    /// Where in it the status goes; `None`: a failure is `EINVAL`.
    status: Option<usize>,
    act: fn(&mut State, &mut Call<'_>) -> Result<(), Status>,
}

const fn escape(
    number: u32,
    on: On,
    size: usize,
    status: Option<usize>,
    act: fn(&mut State, &mut Call<'_>) -> Result<(), Status>,
) -> Escape {
    Escape { number, on, size, status, act }
}

/// All that are known; `NV_ESC_RM_ALLOC` in both of its sizes. `NV_ESC_IOCTL_XFER_CMD` is not among them: the kernel reads the
/// call that it wraps from the caller's memory, which nobody else can do.
const ESCAPES: &[Escape] = &[
    escape(0x27, On::Card, 56, Some(40), alloc_memory),
    escape(0x28, On::Control, 20, Some(16), alloc_object),
    escape(0x29, On::Control, 16, Some(12), free),
    escape(0x2a, On::Control, 32, Some(28), controls::control),
    escape(0x2b, On::Either, 32, Some(28), alloc_short),
    escape(0x2b, On::Either, 48, Some(40), alloc_long),
    escape(0x34, On::Control, 28, Some(24), duplicate::duplicate),
    escape(0x35, On::Control, 24, Some(20), share),
    escape(0x41, On::Control, 56, Some(48), of_an_object_at_8),
    escape(0x4a, On::Control, 184, Some(20), vid_heap::control),
    escape(0x4e, On::Control, 56, Some(40), map_memory),
    escape(0x4f, On::Control, 32, Some(24), of_an_object_at_8),
    escape(0x52, On::Either, 16, Some(12), |_, _| Err(Status::OBJECT_NOT_FOUND)),
    escape(0x54, On::Control, 56, Some(48), alloc_context_dma),
    escape(0x57, On::Control, 64, Some(56), map_memory_dma),
    escape(0x58, On::Control, 48, Some(40), of_an_object_at_8),
    escape(0x59, On::Control, 16, Some(12), of_an_object_at_8),
    escape(0x5e, On::Control, 40, Some(32), of_an_object_at_8),
    escape(0xc8, On::Control, 0, None, card_info),
    escape(0xc9, On::Either, 4, None, register_fd),
    escape(0xce, On::Either, 16, Some(12), alloc_os_event),
    escape(0xcf, On::Either, 16, Some(12), free_os_event),
    escape(0xd1, On::Control, 12, None, |_, call| {
        put(call.args, 8, 0);
        Ok(())
    }),
    escape(0xd2, On::Control, 72, None, check_version),
    escape(0xd4, On::Control, 0, None, attach_gpus),
    escape(0xd6, On::Control, 8, None, |_, _| Ok(())),
    // Cards have no memory of their own on the machine's map.
    escape(0xd7, On::Card, 560, None, |_, _| Ok(())),
    // No dma-buf without a card behind it.
    escape(0xd9, On::Card, 2608, Some(2600), |_, _| Ok(())),
    escape(0xda, On::Either, 8, None, |_, call| {
        put_u64(call.args, 0, 0);
        Ok(())
    }),
];

/// Executes one.
pub(super) fn execute(state: &mut State, node: Node, command: u32, mut call: Call<'_>) -> io::Result<i32> {
    let size = abi::escapes::command_size(command);
    if call.args.len() < size {
        return Err(Errno::EFAULT.into());
    }
    let fits = |escape: &&Escape| escape.number == command & 0xff && (escape.size == 0 || escape.size == size);
    let escape = ESCAPES.iter().find(fits).ok_or(Errno::EINVAL)?;
    let allowed = match escape.on {
        On::Control => node == Node::Control,
        On::Card => matches!(node, Node::Card(_)),
        On::Either => true,
    };
    if !allowed {
        return Err(Errno::EINVAL.into());
    }
    let outcome = (escape.act)(state, &mut call);
    match (outcome, escape.status) {
        (outcome, Some(at)) => put(call.args, at, outcome.err().unwrap_or(Status::OK).0),
        (Ok(()), None) => {}
        (Err(_), None) => return Err(Errno::EINVAL.into()),
    }
    Ok(0)
}

fn alloc_short(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    alloc(state, call, None)
}

fn alloc_long(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    // NVOS64_FLAGS_FINN_SERIALIZED: another layout of the parameters, which user-mode drivers on bare metal do not use.
    let flags = get(call.args, 36);
    alloc(state, call, Some(flags))
}

/// `NVOS21`/`NVOS64`: hRoot, hParent, hNew, hClass, pParms.
fn alloc(state: &mut State, call: &mut Call<'_>, flags: Option<u32>) -> Result<(), Status> {
    if flags.is_some_and(|flags| flags & 1 != 0) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let file = call.file;
    let (args, params) = call.args_and_buffer(16);
    let ask =
        Ask { file, client: get(args, 0), parent: get(args, 4), handle: get(args, 8), class: get(args, 12), params };
    let handle = allocate(state, ask)?;
    put(args, 8, handle);
    Ok(())
}

/// `NVOS05`: an object without parameters.
fn alloc_object(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (file, args) = (call.file, &mut *call.args);
    let ask = Ask {
        file,
        client: get(args, 0),
        parent: get(args, 4),
        handle: get(args, 8),
        class: get(args, 12),
        params: None,
    };
    let handle = allocate(state, ask)?;
    put(args, 8, handle);
    Ok(())
}

/// `NVOS02` with a file: pins memory of the caller (class 0x71), or says how much there is (0x40); never memory of a card.
fn alloc_memory(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    const OS_DESCRIPTOR: u32 = 0x71;
    let (file, args) = (call.file, &mut *call.args);
    let (own, parent, class, limit) = (get(args, 0), get(args, 4), get(args, 12), get_u64(args, 32));
    let client = state.client(file, own)?;
    let card = client.card_of(parent).ok_or(super::objects::INVALID_OBJECT_PARENT)?;
    let handle = client.new_handle(own, get(args, 8))?;
    let length = limit.checked_add(1).and_then(|length| length.checked_next_multiple_of(4096));
    let length = length.ok_or(Status::INVALID_ARGUMENT);
    let kind = match class {
        0x3e => Kind::SystemMemory(state.take_of_host(length?)?),
        OS_DESCRIPTOR => Kind::SystemMemory(Arc::new(HostMemory { length: length?, _piece: None })),
        0x40 => Kind::VirtualMemory,
        _ => return Err(Status::INVALID_CLASS),
    };
    let client = state.client(file, own)?;
    client.objects.insert(handle, super::objects::Object { parent, class, kind, depends_on: Vec::new() });
    // What was made of the program's own memory, only those can name that have said how.
    if class != OS_DESCRIPTOR {
        put(args, 8, handle);
    }
    if class == 0x40 {
        let capacity = state.cards.get(card).map_or(0, |card| card.memory.capacity());
        put_u64(args, 32, capacity.saturating_sub(1));
    }
    Ok(())
}

/// `NVOS00`: an object with all that hangs on it, or a whole client. What is not there is freed with success: CUDA does so.
fn free(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, handle) = (get(call.args, 0), get(call.args, 8));
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

/// `NVOS57`: lets others duplicate an object. All clients here are of one process, which may anyway.
fn share(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, handle) = (get(call.args, 0), get(call.args, 4));
    let client = state.client(call.file, own)?;
    if handle == own { Ok(()) } else { client.object(handle).map(|_| ()) }
}

/// Calls that change nothing here: hClient at 0 must be usable, and the object at 8 must exist.
fn of_an_object_at_8(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    state.client(call.file, get(call.args, 0))?.object(get(call.args, 8)).map(|_| ())
}

/// `NVOS33`: the address that the caller maps afterwards is the mapping's number; the file must be one of the driver's, and nothing may have
/// been mapped through it yet. Memory of the host's is mapped through control files, and a card's through the card's (`nv_get_file_private`).
fn map_memory(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let object = state.client(call.file, get(call.args, 0))?.object(get(call.args, 8))?;
    let (offset, length) = (get_u64(call.args, 16), get_u64(call.args, 24));
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
    let file = call.file_in_args(48).filter(|file| file.node != Node::Uvm).ok_or(Status::INVALID_ARGUMENT)?;
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

/// `NVOS39`: hParent, hSubDevice, hNew, hClass, flags, selector, hMemory; the client is the parent's.
fn alloc_context_dma(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let (own, memory) = (get(call.args, 0), get(call.args, 24));
    let client = state.client(call.file, own)?;
    client.object(memory)?;
    let handle = client.new_handle(own, get(call.args, 8))?;
    let object = super::objects::Object {
        parent: memory,
        class: get(call.args, 12),
        kind: Kind::Plain,
        depends_on: vec![memory],
    };
    client.objects.insert(handle, object);
    put(call.args, 8, handle);
    Ok(())
}

/// `NVOS46`: hDma at 8 is a space of addresses, hMemory at 12 what is mapped there.
fn map_memory_dma(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let client = state.client(call.file, get(call.args, 0))?;
    client.object(get(call.args, 8))?;
    client.object(get(call.args, 12))?;
    Ok(())
}

/// An array of `nv_ioctl_card_info_t`, as many as there is room for.
fn card_info(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    const ENTRY: usize = 72;
    let room = call.args.len() / ENTRY;
    if room < state.cards.len() {
        return Err(Status::INVALID_ARGUMENT);
    }
    call.args.fill(0);
    for (card, entry) in state.cards.iter().zip(call.args.chunks_exact_mut(ENTRY)) {
        let pci = card.card.pci;
        put_bytes(entry, 0, &[1]);
        // nv_pci_info_t: domain, bus, slot, function, vendor_id, device_id.
        put(entry, 4, pci.domain);
        put_bytes(entry, 8, &[pci.bus, pci.device, pci.function]);
        put_bytes(entry, 12, &0x10de_u16.to_le_bytes());
        put_bytes(entry, 14, &0x2335_u16.to_le_bytes());
        put(entry, 16, card.gpu_id());
        put_u64(entry, 24, 0x9000_0000);
        put_u64(entry, 32, 16 << 20);
        put_u64(entry, 48, card.card.memory.0);
        put(entry, 56, card.card.minor);
    }
    Ok(())
}

/// Registers the file that the call is made on to a control file, whose clients it may use from then on.
fn register_fd(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    let Some(control) = call.file_in_args(0).filter(|file| file.node == Node::Control).cloned() else {
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
    (get(call.args, 0), get(call.args, 8).cast_signed())
}

/// Compares the version that the caller's libraries have with the driver's, which is put in its place. 525 does not tell it without that.
fn check_version(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    const QUERY: u32 = b'2' as u32;
    let own = state.version.as_bytes();
    let text = call.args.get(8..72).unwrap_or_default();
    let asked = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let same = asked == own;
    let command = get(call.args, 0);
    // The question was understood.
    put(call.args, 4, 1);
    if command == QUERY && state.version.starts_with("525.") {
        return Ok(());
    }
    let mut version = [0; 64];
    put_bytes(&mut version, 0, own);
    put_bytes(call.args, 8, &version);
    if same || command == QUERY { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}

/// Numbers of cards, 0 for none.
fn attach_gpus(state: &mut State, call: &mut Call<'_>) -> Result<(), Status> {
    if call.args.is_empty() || !call.args.len().is_multiple_of(4) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let known = |id: u32| id == 0 || state.cards.iter().any(|card| card.gpu_id() == id);
    if call.args.chunks_exact(4).all(|id| known(get(id, 0))) { Ok(()) } else { Err(Status::INVALID_ARGUMENT) }
}
