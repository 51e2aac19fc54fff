//! Events as people read them.

use abi::{Call, Handle, Status, classes, decode::UvmCall, layout::read_u32};

use crate::{Event, Ioctl};

/// The class or the control of a call, by name where the tables have one, else by number.
pub(super) fn subject(call: &Call) -> Option<String> {
    match call {
        Call::Alloc(alloc) => Some(class(alloc.class)),
        Call::AllocMemory(alloc) => Some(class(alloc.class)),
        Call::AllocObject(alloc) => Some(class(alloc.class)),
        Call::AllocContextDma(alloc) => Some(class(alloc.class)),
        Call::Control(control) => {
            Some(control.row().map_or_else(|| format!("{:#010x}", control.id), |row| row.name.to_owned()))
        }
        _ => None,
    }
}

fn class(id: u32) -> String {
    classes::class(id).map_or_else(|| format!("{id:#06x}"), |class| class.name.to_owned())
}

/// One line of a call.
pub(super) fn ioctl(node: &str, traced: &Ioctl, call: Option<&Call>) -> String {
    let name = traced.name.clone().unwrap_or_else(|| format!("ioctl {:#010x}", traced.command));
    let mut words = vec![format!("{node}#{} {name}", traced.file)];
    words.extend(traced.subject.clone());
    words.extend(call.map(|call| objects(call, traced)).filter(|objects| !objects.is_empty()));
    if call.is_none() {
        words.push(format!("{} bytes", traced.args.before.0.len()));
    }
    let lengths: Vec<_> = traced.buffers.iter().map(|buffer| buffer.bytes.before.0.len().to_string()).collect();
    if !lengths.is_empty() {
        words.push(format!("[{}]", lengths.join(" ")));
    }
    for file in &traced.files {
        words.push(file.file.map_or_else(|| "file none".to_owned(), |number| format!("file #{number}")));
    }
    format!("{} -> {} {} us", words.join(" "), outcome(traced), traced.took_us)
}

fn outcome(traced: &Ioctl) -> String {
    if traced.result < 0 {
        return errno(traced.result);
    }
    match traced.status {
        None | Some(0) => "ok".to_owned(),
        Some(status) => match status_name(Status(status)) {
            Some(name) => format!("{status:#x} {name}"),
            None => format!("{status:#x}"),
        },
    }
}

fn errno(result: i64) -> String {
    let number = i32::try_from(result.unsigned_abs()).unwrap_or_default();
    format!("{:?}", nix::errno::Errno::from_raw(number))
}

/// NVIDIA's names of the more frequent statuses, without `NV_ERR_`.
fn status_name(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::BUSY_RETRY => "BUSY_RETRY",
        Status::INSERT_DUPLICATE_NAME => "INSERT_DUPLICATE_NAME",
        Status::INSUFFICIENT_RESOURCES => "INSUFFICIENT_RESOURCES",
        Status::INSUFFICIENT_PERMISSIONS => "INSUFFICIENT_PERMISSIONS",
        Status::INVALID_ARGUMENT => "INVALID_ARGUMENT",
        Status::INVALID_CLASS => "INVALID_CLASS",
        Status::INVALID_CLIENT => "INVALID_CLIENT",
        Status::INVALID_DEVICE => "INVALID_DEVICE",
        Status::INVALID_STATE => "INVALID_STATE",
        Status::NO_MEMORY => "NO_MEMORY",
        Status::NOT_SUPPORTED => "NOT_SUPPORTED",
        Status::OBJECT_NOT_FOUND => "OBJECT_NOT_FOUND",
        Status::STATE_IN_USE => "STATE_IN_USE",
        _ => return None,
    })
}

/// The handles and ranges of a call. A handle that the driver chooses is shown as chosen.
fn objects(call: &Call, traced: &Ioctl) -> String {
    let chosen = |at: usize, asked: Handle| read_u32(traced.args.after(), at).map_or(asked, Handle);
    match call {
        Call::Alloc(alloc) => {
            let object = chosen(abi::decode::Alloc::OBJECT_AT, alloc.object);
            handles(&[("client", alloc.client), ("parent", alloc.parent), ("object", object)])
        }
        Call::Free(free) => handles(&[("client", free.client), ("object", free.object)]),
        Call::Control(control) => handles(&[("client", control.client), ("object", control.object)]),
        Call::AllocMemory(alloc) => format!(
            "{} address {:#x} limit {:#x}",
            handles(&[("client", alloc.client), ("parent", alloc.parent), ("object", alloc.object)]),
            alloc.address,
            alloc.limit
        ),
        Call::VidHeap(heap) => format!("{} {:?}", handles(&[("client", heap.client)]), heap.function),
        Call::Dup(dup) => {
            let object = chosen(abi::decode::Dup::OBJECT_AT, dup.object);
            handles(&[
                ("client", dup.client),
                ("parent", dup.parent),
                ("object", object),
                ("of client", dup.source_client),
                ("object", dup.source_object),
            ])
        }
        Call::Share(share) => handles(&[("client", share.client), ("object", share.object)]),
        Call::MapMemory(map) => format!(
            "{} offset {:#x} {} bytes",
            handles(&[("client", map.client), ("memory", map.memory)]),
            map.offset,
            map.length
        ),
        Call::UnmapMemory(unmap) => {
            format!("{} at {:#x}", handles(&[("client", unmap.client), ("memory", unmap.memory)]), unmap.address)
        }
        Call::AllocOsEvent(event) | Call::FreeOsEvent(event) => {
            format!("{} descriptor {}", handles(&[("client", event.client)]), event.fd)
        }
        Call::Uvm(uvm) => uvm_objects(uvm),
        _ => String::new(),
    }
}

fn uvm_objects(call: &UvmCall) -> String {
    match call {
        UvmCall::Initialize { flags } => format!("flags {flags:#x}"),
        UvmCall::RegisterGpu(object)
        | UvmCall::RegisterGpuVaSpace(object)
        | UvmCall::RegisterChannel { object, .. } => handles(&[("client", object.client), ("object", object.object)]),
        UvmCall::UnregisterChannel { client, channel } => handles(&[("client", *client), ("object", *channel)]),
        UvmCall::MapExternal(memory) | UvmCall::DeviceP2p(memory) => format!(
            "{} {} bytes at {:#x}",
            handles(&[("client", memory.client), ("memory", memory.memory)]),
            memory.range.length,
            memory.range.base
        ),
        UvmCall::Free { base } => format!("at {base:#x}"),
        UvmCall::CreateExternalRange(range)
        | UvmCall::UnmapExternal { range, .. }
        | UvmCall::MapSparse { range, .. }
        | UvmCall::DynamicParallelism { range, .. }
        | UvmCall::ValidateVaRange(range)
        | UvmCall::SemaphorePool(range)
        | UvmCall::Ranged(range) => format!("{} bytes at {:#x}", range.length, range.base),
        _ => String::new(),
    }
}

/// Names and values of the handles that are not 0.
fn handles(named: &[(&str, Handle)]) -> String {
    let words = named.iter().filter(|(_, handle)| *handle != Handle::NONE);
    words.map(|(name, handle)| format!("{name} {:x}", handle.0)).collect::<Vec<_>>().join(" ")
}

/// One line of an event that is no call of the driver's. `node` is that of its file.
pub(super) fn event(event: &Event, node: Option<&str>) -> String {
    match event {
        Event::Open { file, node } => format!("{node}#{file} open"),
        Event::Close { file } => format!("#{file} close"),
        Event::Mmap { file, address, length, offset, result, .. } => {
            let result = if (-4095..0).contains(result) { errno(*result) } else { format!("{result:#x}") };
            let node = node.unwrap_or_default();
            format!("{node}#{file} mmap {address:#x} {length} bytes offset {offset:#x} -> {result}")
        }
        Event::Munmap { address, length } => format!("munmap {address:#x} {length} bytes"),
        Event::Fork { child } => format!("fork {child}"),
        Event::Exec => "exec".to_owned(),
        Event::Exit => "exit".to_owned(),
        Event::Ioctl(_) => String::new(),
    }
}
