//! The classes that can be allocated: how long their parameters are, and what they can be below.
//!
//! Sizes are those of 580.

use abi::{
    classes::*,
    params::{
        NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_CTXSHARE_ALLOCATION_PARAMETERS,
        NV_MEMORY_ALLOCATION_PARAMS, NV_VASPACE_ALLOCATION_PARAMETERS, NV00DE_ALLOC_PARAMETERS,
        NV00F8_ALLOCATION_PARAMETERS, NV0005_ALLOC_PARAMETERS, NV0080_ALLOC_PARAMETERS, NV83DE_ALLOC_PARAMETERS,
        NV2080_ALLOC_PARAMETERS,
    },
};

/// What may be above an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below {
    Client,
    Device,
    Subdevice,
    DeviceOrSubdevice,
    DeviceOrGroup,
    Group,
    Channel,
    /// Events go below anything.
    Anything,
}

/// What an allocation of a class makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Makes {
    Client,
    Device,
    Subdevice,
    VideoMemory,
    SystemMemory,
    VirtualMemory,
    FabricMemory,
    AddressSpace,
    ChannelGroup,
    Channel,
    ContextShare,
    Plain,
    /// The driver refuses it to those without rights.
    Refused,
    /// Of cards that do more than compute.
    NotSupported,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    pub(super) makes: Makes,
    pub(super) below: Below,
    /// Bytes of its parameters.
    pub(super) params: usize,
    /// Whether they may be left out.
    pub(super) optional: bool,
}

const fn class(makes: Makes, below: Below, params: usize) -> Class {
    Class { makes, below, params, optional: params == 0 }
}

const fn optional(makes: Makes, below: Below, params: usize) -> Class {
    Class { makes, below, params, optional: true }
}

/// Row of a class.
pub(super) fn find(number: u32) -> Option<Class> {
    let row = match number {
        NV01_ROOT | NV01_ROOT_NON_PRIV | NV01_ROOT_CLIENT => optional(Makes::Client, Below::Client, 108),
        NV01_DEVICE_0 => optional(Makes::Device, Below::Client, NV0080_ALLOC_PARAMETERS::SIZE),
        NV20_SUBDEVICE_0 => optional(Makes::Subdevice, Below::Device, NV2080_ALLOC_PARAMETERS::SIZE),
        NV01_MEMORY_LOCAL_USER => {
            class(Makes::VideoMemory, Below::DeviceOrSubdevice, NV_MEMORY_ALLOCATION_PARAMS::SIZE)
        }
        NV01_MEMORY_SYSTEM => class(Makes::SystemMemory, Below::Device, NV_MEMORY_ALLOCATION_PARAMS::SIZE),
        NV50_MEMORY_VIRTUAL => class(Makes::VirtualMemory, Below::Device, NV_MEMORY_ALLOCATION_PARAMS::SIZE),
        NV01_MEMORY_VIRTUAL => class(Makes::VirtualMemory, Below::Device, 24),
        FERMI_VASPACE_A => optional(Makes::AddressSpace, Below::Device, NV_VASPACE_ALLOCATION_PARAMETERS::SIZE),
        KEPLER_CHANNEL_GROUP_A => {
            class(Makes::ChannelGroup, Below::Device, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::SIZE)
        }
        FERMI_CONTEXT_SHARE_A => class(Makes::ContextShare, Below::Group, NV_CTXSHARE_ALLOCATION_PARAMETERS::SIZE),
        NV01_EVENT | NV01_EVENT_OS_EVENT => class(Makes::Plain, Below::Anything, NV0005_ALLOC_PARAMETERS::SIZE),
        // Whole frame buffer, lists of pages, and MIG's capability files.
        NV01_MEMORY_LOCAL_PRIVILEGED
        | NV01_MEMORY_LOCAL_PHYSICAL
        | NV01_MEMORY_LIST_SYSTEM
        | NV01_MEMORY_LIST_FBMEM
        | NV01_MEMORY_LIST_OBJECT
        | AMPERE_SMC_CONFIG_SESSION
        | AMPERE_SMC_MONITOR_SESSION => optional(Makes::Refused, Below::Anything, 0),
        NV01_TIMER | NV20_SUBDEVICE_DIAG | GF100_SUBDEVICE_MASTER => optional(Makes::Plain, Below::Subdevice, 0),
        _ if is_doorbells(number) => optional(Makes::Plain, Below::Subdevice, 2),
        NV2081_BINAPI => optional(Makes::Plain, Below::Subdevice, 4),
        RM_USER_SHARED_DATA => optional(Makes::Plain, Below::Subdevice, NV00DE_ALLOC_PARAMETERS::SIZE),
        NV04_DISPLAY_COMMON => optional(Makes::NotSupported, Below::Device, 0),
        GT200_DEBUGGER => optional(Makes::Plain, Below::Anything, NV83DE_ALLOC_PARAMETERS::SIZE),
        MPS_COMPUTE => optional(Makes::Plain, Below::Anything, 0),
        NV50_P2P => class(Makes::Plain, Below::Client, 72),
        NV50_THIRD_PARTY_P2P => optional(Makes::Plain, Below::Subdevice, 4),
        NV_MEMORY_FABRIC => class(Makes::FabricMemory, Below::Subdevice, NV00F8_ALLOCATION_PARAMETERS::SIZE),
        // Newer generations have these, too.
        FERMI_TWOD_A | KEPLER_INLINE_TO_MEMORY_B => optional(Makes::Plain, Below::Channel, 8),
        NV_CONFIDENTIAL_COMPUTE => optional(Makes::Plain, Below::Client, 4),
        _ => return family(number),
    };
    Some(row)
}

/// Whether a class is of the doorbells of user mode; since Hopper they have parameters.
pub(super) const fn is_doorbells(number: u32) -> bool {
    matches!(
        number,
        VOLTA_USERMODE_A | TURING_USERMODE_A | AMPERE_USERMODE_A | HOPPER_USERMODE_A | BLACKWELL_USERMODE_A
    )
}

/// Row of a class that each generation of cards has its own number of.
fn family(number: u32) -> Option<Class> {
    if !GENERATIONS.contains(&number) {
        return None;
    }
    match number & 0xff {
        // Channels.
        0x6f => Some(class(Makes::Channel, Below::DeviceOrGroup, NV_CHANNEL_ALLOC_PARAMS::SIZE)),
        // Engines on a channel: 3D, compute, copy, inline-to-memory, video decoders and encoders, JPEG, optical flow.
        0x97 | 0xc0 | 0xb5 | 0x40 | 0xb0 | 0xb7 | 0xd1 | 0xfa => Some(optional(Makes::Plain, Below::Channel, 8)),
        _ => None,
    }
}
