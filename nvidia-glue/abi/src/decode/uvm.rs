//! Commands on `/dev/nvidia-uvm`, by number: the fields of each.

use super::{Call, Fields};
use crate::{Handle, params::*, uvm::*};

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
    /// Advice that may bring managed memory onto a card: `UVM_SET_PREFERRED_LOCATION`,
    /// `UVM_UNSET_PREFERRED_LOCATION`, `UVM_ENABLE_READ_DUPLICATION`.
    Advise(Range),
    /// `UVM_DISABLE_READ_DUPLICATION`: libcuda's first word on managed memory that it is about to
    /// use.
    DisableReadDuplication(Range),
    /// `UVM_MIGRATE`.
    Migrate {
        /// Addresses.
        range: Range,
        /// The card, or [`HOST_UUID`].
        destination: [u8; 16],
    },
    /// `UVM_MIGRATE_RANGE_GROUP`.
    MigrateGroup {
        /// The card, or [`HOST_UUID`].
        destination: [u8; 16],
    },
    /// Any other command on a range of addresses.
    Ranged(Range),
    /// A command of which only the row matters.
    Other,
}

/// UUID by which UVM's commands name the host (`NV_PROCESSOR_UUID_CPU_DEFAULT`,
/// kernel-open/nvidia-uvm/nvCpuUuid.c).
pub const HOST_UUID: [u8; 16] =
    [0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77, 0x73];

/// An RM object that a UVM call names.
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
    type VaSpace = UVM_REGISTER_GPU_VASPACE_PARAMS;
    type Channel = UVM_REGISTER_CHANNEL_PARAMS;
    type Gpu = UVM_REGISTER_GPU_PARAMS;
    type Unmap = UVM_UNMAP_EXTERNAL_PARAMS;
    // Most structs begin with a range, or with the UUID of a card.
    let range = || fields.range(Unmap::base, Unmap::length);
    let uuid = || fields.get(UVM_UNREGISTER_GPU_PARAMS::gpu_uuid);
    Call::Uvm(match command.command {
        UVM_CREATE_RANGE_GROUP => UvmCall::CreateRangeGroup,
        UVM_DESTROY_RANGE_GROUP => UvmCall::DestroyRangeGroup,
        UVM_REGISTER_GPU_VASPACE => UvmCall::RegisterGpuVaSpace(UvmObject {
            uuid: fields.get(VaSpace::gpuUuid),
            control_fd: fields.get(VaSpace::rmCtrlFd),
            client: fields.get(VaSpace::hClient),
            object: fields.get(VaSpace::hVaSpace),
        }),
        UVM_UNREGISTER_GPU_VASPACE => UvmCall::UnregisterGpuVaSpace { uuid: uuid() },
        UVM_REGISTER_CHANNEL => UvmCall::RegisterChannel {
            object: UvmObject {
                uuid: fields.get(Channel::gpuUuid),
                control_fd: fields.get(Channel::rmCtrlFd),
                client: fields.get(Channel::hClient),
                object: fields.get(Channel::hChannel),
            },
            range: fields.range(Channel::base, Channel::length),
        },
        UVM_UNREGISTER_CHANNEL => {
            type New = UVM_UNREGISTER_CHANNEL_PARAMS;
            type Old = UVM_UNREGISTER_CHANNEL_PARAMS_525;
            let is_new = layout.releases == New::RELEASES;
            let (client, channel) = if is_new { (New::hClient, New::hChannel) } else { (Old::hClient, Old::hChannel) };
            UvmCall::UnregisterChannel { client: fields.get(client), channel: fields.get(channel) }
        }
        UVM_MAP_EXTERNAL_ALLOCATION => UvmCall::MapExternal(memory(layout, fields)),
        UVM_FREE => UvmCall::Free { base: fields.get(UVM_FREE_PARAMS::base) },
        UVM_REGISTER_GPU => UvmCall::RegisterGpu(UvmObject {
            uuid: fields.get(Gpu::gpu_uuid),
            control_fd: fields.get(Gpu::rmCtrlFd),
            client: fields.get(Gpu::hClient),
            object: fields.get(Gpu::hSmcPartRef),
        }),
        UVM_UNREGISTER_GPU => UvmCall::UnregisterGpu { uuid: uuid() },
        UVM_MAP_DYNAMIC_PARALLELISM_REGION => {
            UvmCall::DynamicParallelism { range: range(), uuid: fields.get(Unmap::gpuUuid) }
        }
        UVM_UNMAP_EXTERNAL => UvmCall::UnmapExternal { range: range(), uuid: fields.get(Unmap::gpuUuid) },
        UVM_ALLOC_SEMAPHORE_POOL => UvmCall::SemaphorePool(range()),
        UVM_VALIDATE_VA_RANGE => UvmCall::ValidateVaRange(range()),
        UVM_CREATE_EXTERNAL_RANGE => UvmCall::CreateExternalRange(range()),
        UVM_MAP_EXTERNAL_SPARSE => UvmCall::MapSparse { range: range(), uuid: fields.get(Unmap::gpuUuid) },
        UVM_MM_INITIALIZE => UvmCall::MmInitialize { uvm_fd: fields.get(UVM_MM_INITIALIZE_PARAMS::uvmFd) },
        UVM_ALLOC_DEVICE_P2P => UvmCall::DeviceP2p(memory(layout, fields)),
        UVM_SET_PREFERRED_LOCATION | UVM_UNSET_PREFERRED_LOCATION | UVM_ENABLE_READ_DUPLICATION => {
            UvmCall::Advise(range())
        }
        UVM_DISABLE_READ_DUPLICATION => UvmCall::DisableReadDuplication(range()),
        UVM_MIGRATE => {
            UvmCall::Migrate { range: range(), destination: fields.get(UVM_MIGRATE_PARAMS::destinationUuid) }
        }
        UVM_MIGRATE_RANGE_GROUP => {
            UvmCall::MigrateGroup { destination: fields.get(UVM_MIGRATE_RANGE_GROUP_PARAMS::destinationUuid) }
        }
        UVM_SET_ACCESSED_BY | UVM_UNSET_ACCESSED_BY | UVM_POPULATE_PAGEABLE | UVM_DISCARD => UvmCall::Ranged(range()),
        UVM_SET_RANGE_GROUP => {
            type Args = UVM_SET_RANGE_GROUP_PARAMS;
            UvmCall::Ranged(fields.range(Args::requestedBase, Args::length))
        }
        UVM_INITIALIZE => UvmCall::Initialize { flags: fields.get(UVM_INITIALIZE_PARAMS::flags) },
        UVM_DEINITIALIZE => UvmCall::Deinitialize,
        _ => UvmCall::Other,
    })
}

/// Memory that a command names: its descriptor, client and handle stand together at a place that
/// depends on the release.
fn memory(layout: &UvmLayout, fields: Fields<'_>) -> UvmMemory {
    type New = UVM_MAP_EXTERNAL_ALLOCATION_PARAMS;
    type Old = UVM_MAP_EXTERNAL_ALLOCATION_PARAMS_525;
    type P2p = UVM_ALLOC_DEVICE_P2P_PARAMS;
    let (control_fd, client, memory) = match usize::from(layout.size) {
        New::SIZE => (New::rmCtrlFd, New::hClient, New::hMemory),
        Old::SIZE => (Old::rmCtrlFd, Old::hClient, Old::hMemory),
        _ => (P2p::rmCtrlFd, P2p::hClient, P2p::hMemory),
    };
    UvmMemory {
        range: fields.range(New::base, New::length),
        offset: fields.get(New::offset),
        control_fd: fields.get(control_fd),
        client: fields.get(client),
        memory: fields.get(memory),
    }
}
