//! Bytes of a driver call -> the row that describes it and a typed [`Call`]. No state; no bytes make it panic.

mod calls;

pub use calls::*;

use super::{
    Abi, Handle, Node, Status,
    escapes::{Action, Escape, EscapeLayout, NO_LAYOUT, escape},
    layout::{Descriptor, Pointer, read_u32, read_u64, write_u32},
    memory::MemoryRequest,
    uvm::{NO_UVM_LAYOUT, UVM_DEINITIALIZE, UVM_INITIALIZE, UvmCommand, UvmLayout, UvmRule, uvm_command},
};

/// A call and the row that describes it.
#[derive(Debug, Clone, Copy)]
pub struct Decoded {
    /// Its row.
    pub row: Row,
    /// What it asks.
    pub call: Call,
}

/// The row of a call, as it is in one release.
#[derive(Debug, Clone, Copy)]
pub enum Row {
    /// Of `/dev/nvidiactl` or `/dev/nvidiaN`; with the size of this call's struct, or array of structs.
    Escape(&'static Escape, &'static EscapeLayout, usize),
    /// Of `/dev/nvidia-uvm`.
    Uvm(&'static UvmCommand, &'static UvmLayout),
}

impl Row {
    /// NVIDIA's name of the call.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Escape(escape, ..) => escape.name,
            Self::Uvm(command, _) => command.name,
        }
    }

    /// What is done with it.
    pub fn action(&self) -> Action {
        match self {
            Self::Escape(escape, ..) => escape.action,
            Self::Uvm(command, _) => match command.rule {
                UvmRule::Execute => Action::Execute,
                UvmRule::Continue(reason) => Action::Continue(reason),
                UvmRule::Refuse(status, reason) => Action::Refuse(status, reason),
            },
        }
    }

    /// Bytes of its argument struct.
    pub fn size(&self) -> usize {
        match self {
            Self::Escape(_, _, size) => *size,
            Self::Uvm(_, layout) => usize::from(layout.size),
        }
    }

    /// Where its status is in there; `None`: the errno tells.
    pub fn status_at(&self) -> Option<usize> {
        match self {
            Self::Escape(_, layout, _) => layout.status.map(usize::from),
            Self::Uvm(_, layout) => layout.status.map(usize::from),
        }
    }

    /// Pointers of fixed meaning in its argument struct. The parameters of [`Call::Alloc`] and [`Call::Control`] are not among
    /// them.
    pub fn pointers(&self) -> &'static [Pointer] {
        match self {
            Self::Escape(_, layout, _) => layout.pointers,
            Self::Uvm(..) => &[],
        }
    }

    /// Descriptors in its argument struct.
    pub fn descriptors(&self) -> &'static [Descriptor] {
        match self {
            Self::Escape(_, layout, _) => layout.descriptors,
            Self::Uvm(_, layout) => layout.descriptors,
        }
    }

    /// Puts `status` where the call's status is; `false` when it has none there (fail with an errno then).
    #[must_use]
    pub fn set_status(&self, args: &mut [u8], status: Status) -> bool {
        self.status_at().is_some_and(|at| write_u32(args, at, status.0))
    }

    /// The status that the driver left; `None` when it has none.
    pub fn status(&self, args: &[u8]) -> Option<Status> {
        self.status_at().and_then(|at| read_u32(args, at)).map(Status)
    }
}

/// Why bytes are no call that the driver would accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    /// No call of this number is known.
    #[error("command {command:#010x} is not one of this driver's")]
    Unknown {
        /// The command.
        command: u32,
    },
    /// The command is known, but not on this node.
    #[error("{name} cannot be made on this node")]
    WrongNode {
        /// Which.
        name: &'static str,
    },
    /// The command's size is none that the driver has.
    #[error("{name} with {size} bytes is none of this driver's")]
    WrongSize {
        /// Which.
        name: &'static str,
        /// Its size.
        size: usize,
    },
    /// The parameters are serialized (`FINN_SERIALIZED`), which user space does not do on bare metal.
    #[error("{name} with serialized parameters is not mediated")]
    Serialized {
        /// Which.
        name: &'static str,
        /// Where the status is.
        status_at: usize,
    },
}

impl Undecodable {
    /// What the system call fails with: the driver's own answer to such a call.
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// The driver's own type byte (kernel-open/common/inc/nv-ioctl-numbers.h).
const TYPE_F: u32 = b'F' as u32;

/// `_IOC_NR`, `_IOC_TYPE` and `_IOC_SIZE` of a command (asm-generic/ioctl.h).
const fn parts(command: u32) -> (u8, u32, usize) {
    let [number, kind, ..] = command.to_le_bytes();
    (number, kind as u32, (command >> 16 & 0x3fff) as usize)
}

/// The row of a command, which also tells how many bytes of argument to copy before [`decode`]: [`Row::size`].
///
/// # Errors
/// When the driver would not accept the command on that node.
pub fn row(abi: Abi, node: Node, command: u32) -> Result<Row, Undecodable> {
    if node == Node::Uvm {
        let row = uvm_command(command).ok_or(Undecodable::Unknown { command })?;
        return match row.layout(abi) {
            Some(layout) => Ok(Row::Uvm(row, layout)),
            None if row.layouts.is_empty() => Ok(Row::Uvm(row, &NO_UVM_LAYOUT)),
            None => Err(Undecodable::Unknown { command }),
        };
    }
    let (number, kind, size) = parts(command);
    let row = escape(number).filter(|_| kind == TYPE_F).ok_or(Undecodable::Unknown { command })?;
    if !row.node.takes(node) {
        return Err(Undecodable::WrongNode { name: row.name });
    }
    if row.layouts.is_empty() {
        return Ok(Row::Escape(row, &NO_LAYOUT, 0));
    }
    let layout = row.layout(abi, size).ok_or(Undecodable::WrongSize { name: row.name, size })?;
    Ok(Row::Escape(row, layout, size))
}

/// The call in `args`, which must have the bytes that [`row`] asks for.
///
/// # Errors
/// When the driver would not accept it, or it is serialized.
pub fn decode(abi: Abi, node: Node, command: u32, args: &[u8]) -> Result<Decoded, Undecodable> {
    let row = row(abi, node, command)?;
    if args.len() < row.size() {
        return Err(Undecodable::WrongSize { name: row.name(), size: args.len() });
    }
    let fields = Fields(args);
    let call = match row {
        Row::Escape(escape, layout, _) => escape_call(escape, layout, fields)?,
        Row::Uvm(command, layout) => uvm_call(command, layout, fields),
    };
    Ok(Decoded { row, call })
}

/// Reads fields of a struct whose length [`decode`] has checked; what is out of reach all the same reads as zero.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(self, at: usize) -> u32 {
        read_u32(self.0, at).unwrap_or(0)
    }

    fn u64(self, at: usize) -> u64 {
        read_u64(self.0, at).unwrap_or(0)
    }

    fn i32(self, at: usize) -> i32 {
        self.u32(at).cast_signed()
    }

    fn handle(self, at: usize) -> Handle {
        Handle(self.u32(at))
    }

    fn uuid(self, at: usize) -> [u8; 16] {
        self.0.get(at..at.saturating_add(16)).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default()
    }

    fn range(self, at: usize) -> Range {
        Range { base: self.u64(at), length: self.u64(at.saturating_add(8)) }
    }
}

/// `NVOS64_FLAGS_FINN_SERIALIZED` and `NVOS54_FLAGS_FINN_SERIALIZED` (nvos.h).
const ALLOC_SERIALIZED: u32 = 1;
const CONTROL_SERIALIZED: u32 = 4;

fn escape_call(
    escape: &'static Escape,
    layout: &'static EscapeLayout,
    fields: Fields<'_>,
) -> Result<Call, Undecodable> {
    let serialized = |flags: u32, bit: u32| match layout.status {
        Some(status_at) if flags & bit != 0 => {
            Err(Undecodable::Serialized { name: escape.name, status_at: usize::from(status_at) })
        }
        _ => Ok(()),
    };
    let handle = |at| fields.handle(at);
    Ok(match escape.number {
        0x27 => Call::AllocMemory(AllocMemory {
            client: handle(0),
            parent: handle(4),
            object: handle(8),
            class: fields.u32(12),
            flags: fields.u32(16),
            address: fields.u64(24),
            limit: fields.u64(32),
        }),
        0x28 => Call::AllocObject(AllocObject {
            client: handle(0),
            parent: handle(4),
            object: handle(8),
            class: fields.u32(12),
        }),
        0x29 => Call::Free(Free { client: handle(0), parent: handle(4), object: handle(8) }),
        0x2a => {
            serialized(fields.u32(Control::FLAGS_AT), CONTROL_SERIALIZED)?;
            Call::Control(Control {
                client: handle(0),
                object: handle(4),
                id: fields.u32(8),
                params: fields.u64(Control::PARAMS_AT),
                params_size: fields.u32(24),
            })
        }
        0x2b => {
            // Only the larger structs have rights and flags; the flags are right before the status in both of them.
            let larger = layout.size > 32;
            let flags_at = usize::from(layout.status.unwrap_or_default()).saturating_sub(4);
            serialized(if larger { fields.u32(flags_at) } else { 0 }, ALLOC_SERIALIZED)?;
            let said_params_size = match (layout.size, layout.status) {
                (32, Some(28)) => fields.u32(24),
                (48, _) => fields.u32(32),
                _ => 0,
            };
            Call::Alloc(Alloc {
                client: handle(0),
                parent: handle(4),
                object: handle(Alloc::OBJECT_AT),
                class: fields.u32(12),
                params: fields.u64(Alloc::PARAMS_AT),
                said_params_size,
                rights: if larger { fields.u64(Alloc::RIGHTS_AT) } else { 0 },
            })
        }
        0x34 => Call::Dup(Dup {
            client: handle(0),
            parent: handle(4),
            object: handle(Dup::OBJECT_AT),
            source_client: handle(12),
            source_object: handle(16),
            flags: fields.u32(20),
        }),
        0x35 => Call::Share(Share { client: handle(0), object: handle(4) }),
        0x41 => Call::IdleChannels(IdleChannels {
            client: handle(0),
            device: handle(4),
            channel: handle(8),
            count: fields.u32(12),
        }),
        0x4a => Call::VidHeap(VidHeap { client: handle(0), parent: handle(4), function: vid_heap_function(fields) }),
        0x4e => Call::MapMemory(MapMemory {
            client: handle(0),
            device: handle(4),
            memory: handle(8),
            offset: fields.u64(16),
            length: fields.u64(24),
            flags: fields.u32(44),
            fd: fields.i32(48),
        }),
        0x4f => Call::UnmapMemory(UnmapMemory {
            client: handle(0),
            device: handle(4),
            memory: handle(8),
            address: fields.u64(16),
        }),
        0x54 => Call::AllocContextDma(AllocContextDma {
            client: handle(0),
            parent: handle(4),
            object: handle(8),
            class: fields.u32(12),
            memory: handle(24),
        }),
        0x57 => Call::MapDma(map_dma(fields)),
        0x58 => Call::UnmapDma(map_dma(fields)),
        0x59 => Call::BindContextDma { client: handle(0), channel: handle(4), context_dma: handle(8) },
        0x5e => Call::UpdateMapping(UpdateMapping {
            client: handle(0),
            device: handle(4),
            memory: handle(8),
            old_address: fields.u64(16),
            new_address: fields.u64(24),
        }),
        0xc8 => Call::CardInfo,
        0xc9 => Call::RegisterFd { control_fd: fields.i32(0) },
        0xce => Call::AllocOsEvent(os_event(fields)),
        0xcf => Call::FreeOsEvent(os_event(fields)),
        0xd1 => Call::CardStatus { domain: fields.u32(0), bus: byte(fields, 4), slot: byte(fields, 5) },
        0xd2 => Call::CheckVersion,
        0xd4 => Call::AttachGpus,
        _ => Call::Other,
    })
}

fn byte(fields: Fields<'_>, at: usize) -> u8 {
    fields.0.get(at).copied().unwrap_or_default()
}

fn map_dma(fields: Fields<'_>) -> MapDma {
    MapDma { client: fields.handle(0), device: fields.handle(4), dma: fields.handle(8), memory: fields.handle(12) }
}

fn os_event(fields: Fields<'_>) -> OsEvent {
    OsEvent { client: fields.handle(0), device: fields.handle(4), fd: fields.i32(8) }
}

/// `NVOS32_FUNCTION_*` and the union of their data (nvos.h).
fn vid_heap_function(fields: Fields<'_>) -> VidHeapFunction {
    const ALLOC_SIZE: u32 = 2;
    const FREE: u32 = 3;
    const INFO: u32 = 5;
    const ALLOC_TILED_PITCH_HEIGHT: u32 = 6;
    const ALLOC_SIZE_RANGE: u32 = 14;
    const REACQUIRE_COMPR: u32 = 15;
    const RELEASE_COMPR: u32 = 16;
    const GET_MEM_ALIGNMENT: u32 = 18;

    let allocation = |attr_at, attr2_at, size_at, least: u64| {
        let request = MemoryRequest {
            flags: fields.u32(52),
            attr: fields.u32(attr_at),
            attr2: fields.u32(attr2_at),
            size: fields.u64(size_at).max(least),
        };
        VidHeapFunction::Alloc(VidHeapAlloc { memory: fields.handle(44), memory_at: 44, request, size_at })
    };
    match fields.u32(8) {
        ALLOC_SIZE => allocation(56, 144, 88, 0),
        ALLOC_TILED_PITCH_HEIGHT => {
            allocation(64, 144, 88, u64::from(fields.u32(56)).saturating_mul(u64::from(fields.u32(60))))
        }
        ALLOC_SIZE_RANGE => allocation(56, 136, 80, 0),
        FREE => VidHeapFunction::Free { memory: fields.handle(44) },
        INFO => VidHeapFunction::Info,
        function @ (REACQUIRE_COMPR | RELEASE_COMPR | GET_MEM_ALIGNMENT) => VidHeapFunction::Other(function),
        function => VidHeapFunction::Refused(function),
    }
}

fn uvm_call(command: &'static UvmCommand, layout: &'static UvmLayout, fields: Fields<'_>) -> Call {
    let object = |uuid_at, fd_at: usize| UvmObject {
        uuid: fields.uuid(uuid_at),
        control_fd: fields.i32(fd_at),
        client: fields.handle(fd_at.saturating_add(4)),
        object: fields.handle(fd_at.saturating_add(8)),
    };
    // Of a memory, the descriptor, client and handle are the last fields but the status.
    let memory = || {
        let fd_at = layout.descriptors.first().map_or(0, |descriptor| usize::from(descriptor.at));
        UvmMemory {
            range: fields.range(0),
            offset: fields.u64(16),
            control_fd: fields.i32(fd_at),
            client: fields.handle(fd_at.saturating_add(4)),
            memory: fields.handle(fd_at.saturating_add(8)),
        }
    };
    Call::Uvm(match command.command {
        23 => UvmCall::CreateRangeGroup,
        24 => UvmCall::DestroyRangeGroup,
        25 => UvmCall::RegisterGpuVaSpace(object(0, 16)),
        26 => UvmCall::UnregisterGpuVaSpace { uuid: fields.uuid(0) },
        27 => UvmCall::RegisterChannel { object: object(0, 16), range: fields.range(32) },
        28 => {
            let at = if layout.size == 28 { 16 } else { 0 };
            UvmCall::UnregisterChannel { client: fields.handle(at), channel: fields.handle(at.saturating_add(4)) }
        }
        33 => UvmCall::MapExternal(memory()),
        34 => UvmCall::Free { base: fields.u64(0) },
        37 => UvmCall::RegisterGpu(object(0, 24)),
        38 => UvmCall::UnregisterGpu { uuid: fields.uuid(0) },
        65 => UvmCall::DynamicParallelism { range: fields.range(0), uuid: fields.uuid(16) },
        66 => UvmCall::UnmapExternal { range: fields.range(0), uuid: fields.uuid(16) },
        68 => UvmCall::SemaphorePool(fields.range(0)),
        72 => UvmCall::ValidateVaRange(fields.range(0)),
        73 => UvmCall::CreateExternalRange(fields.range(0)),
        74 => UvmCall::MapSparse { range: fields.range(0), uuid: fields.uuid(16) },
        75 => UvmCall::MmInitialize { uvm_fd: fields.i32(0) },
        78 => UvmCall::DeviceP2p(memory()),
        42..=47 | 51 | 71 | 80 => UvmCall::Ranged(fields.range(0)),
        31 => UvmCall::Ranged(fields.range(8)),
        UVM_INITIALIZE => UvmCall::Initialize { flags: fields.u64(0) },
        UVM_DEINITIALIZE => UvmCall::Deinitialize,
        _ => UvmCall::Other,
    })
}
