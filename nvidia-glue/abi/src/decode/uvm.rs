//! Commands on `/dev/nvidia-uvm`: what each asks, and where that is in its struct.

use super::{Call, Fields};
use crate::{
    Handle,
    uvm::{UVM_DEINITIALIZE, UVM_INITIALIZE, UvmCommand, UvmLayout},
};

/// A UVM command's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UvmCall {
    /// `UVM_INITIALIZE`.
    Initialize {
        /// `flags`.
        flags: u64,
    },
    /// `UVM_DEINITIALIZE`.
    Deinitialize,
    /// `UVM_CREATE_RANGE_GROUP`.
    CreateRangeGroup,
    /// `UVM_DESTROY_RANGE_GROUP`.
    DestroyRangeGroup,
    /// `UVM_MM_INITIALIZE`.
    MmInitialize {
        /// The UVM file whose address space this one keeps alive.
        uvm_fd: i32,
    },
    /// `UVM_REGISTER_GPU`.
    RegisterGpu(UvmObject),
    /// `UVM_UNREGISTER_GPU`.
    UnregisterGpu {
        /// UUID of the card.
        uuid: [u8; 16],
    },
    /// `UVM_REGISTER_GPU_VASPACE`.
    RegisterGpuVaSpace(UvmObject),
    /// `UVM_UNREGISTER_GPU_VASPACE`.
    UnregisterGpuVaSpace {
        /// UUID of the card.
        uuid: [u8; 16],
    },
    /// `UVM_REGISTER_CHANNEL`.
    RegisterChannel {
        /// The channel.
        object: UvmObject,
        /// Addresses at which its buffers may be mapped.
        range: Range,
    },
    /// `UVM_UNREGISTER_CHANNEL`.
    UnregisterChannel {
        /// Its client.
        client: Handle,
        /// The channel.
        channel: Handle,
    },
    /// `UVM_CREATE_EXTERNAL_RANGE`.
    CreateExternalRange(Range),
    /// `UVM_MAP_EXTERNAL_ALLOCATION`: keeps the memory allocated until unmapped or freed.
    MapExternal(UvmMemory),
    /// `UVM_ALLOC_DEVICE_P2P`: like [`UvmCall::MapExternal`], but begins its range itself.
    DeviceP2p(UvmMemory),
    /// `UVM_UNMAP_EXTERNAL`.
    UnmapExternal {
        /// Addresses.
        range: Range,
        /// On which card.
        uuid: [u8; 16],
    },
    /// `UVM_MAP_EXTERNAL_SPARSE`: nothing is mapped there, in place of what was.
    MapSparse {
        /// Addresses.
        range: Range,
        /// On which card.
        uuid: [u8; 16],
    },
    /// `UVM_MAP_DYNAMIC_PARALLELISM_REGION`: like [`UvmCall::MapSparse`], but begins its range
    /// itself.
    DynamicParallelism {
        /// Addresses.
        range: Range,
        /// On which card.
        uuid: [u8; 16],
    },
    /// `UVM_FREE`: ends the range that begins there, whatever it is.
    Free {
        /// First address.
        base: u64,
    },
    /// `UVM_VALIDATE_VA_RANGE`.
    ValidateVaRange(Range),
    /// `UVM_ALLOC_SEMAPHORE_POOL`.
    SemaphorePool(Range),
    /// Any other command on a range of addresses.
    Ranged(Range),
    /// A command of which only the row matters.
    Other,
}

/// An RM object that UVM is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UvmObject {
    /// The card; zero where the command has none.
    pub uuid: [u8; 16],
    /// `rmCtrlFd`; negative: none.
    pub control_fd: i32,
    /// `hClient`.
    pub client: Handle,
    /// The object.
    pub object: Handle,
}

/// Memory that UVM is to map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UvmMemory {
    /// Addresses.
    pub range: Range,
    /// Offset in the memory.
    pub offset: u64,
    /// Control file of the client that owns the memory.
    pub control_fd: i32,
    /// Its client.
    pub client: Handle,
    /// The memory.
    pub memory: Handle,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
}

pub(super) fn uvm_call(command: &'static UvmCommand, layout: &'static UvmLayout, fields: Fields<'_>) -> Call {
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
