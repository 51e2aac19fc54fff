//! The classes that can be allocated: how long their parameters are, and what they can be below.
//!
//! Numbers and structs: src/common/sdk/nvidia/inc/class/ and nvos.h of 580.

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

/// What is known of a class number.
pub(super) fn find(number: u32) -> Option<Class> {
    let row = match number {
        0x0000 | 0x0001 | 0x0041 => optional(Makes::Client, Below::Client, 108),
        0x0080 => optional(Makes::Device, Below::Client, 56),
        0x2080 => optional(Makes::Subdevice, Below::Device, 4),
        0x0040 => class(Makes::VideoMemory, Below::DeviceOrSubdevice, 128),
        0x003e => class(Makes::SystemMemory, Below::Device, 128),
        0x50a0 => class(Makes::VirtualMemory, Below::Device, 128),
        0x0070 => class(Makes::VirtualMemory, Below::Device, 24),
        0x90f1 => optional(Makes::AddressSpace, Below::Device, 56),
        0xa06c => class(Makes::ChannelGroup, Below::Device, 20),
        0x9067 => class(Makes::ContextShare, Below::Group, 12),
        // NV01_EVENT, NV01_EVENT_OS_EVENT: NV0005_ALLOC_PARAMETERS.
        0x0005 | 0x0079 => class(Makes::Plain, Below::Anything, 24),
        // Whole frame buffer, lists of pages, and MIG's capability files.
        0x003f | 0x00c2 | 0x0081..=0x0083 | 0xc639 | 0xc640 => optional(Makes::Refused, Below::Anything, 0),
        // NV01_TIMER, NV20_SUBDEVICE_DIAG, GF100_SUBDEVICE_MASTER.
        0x0004 | 0x208f | 0x90e6 => optional(Makes::Plain, Below::Subdevice, 0),
        // Doorbells of user mode; since Hopper with parameters.
        0xc361 | 0xc461 | 0xc561 | 0xc661 | 0xc761 => optional(Makes::Plain, Below::Subdevice, 2),
        // NV2081_BINAPI.
        0x2081 => optional(Makes::Plain, Below::Subdevice, 4),
        // RM_USER_SHARED_DATA.
        0x00de => optional(Makes::Plain, Below::Subdevice, 8),
        // NV04_DISPLAY_COMMON.
        0x0073 => optional(Makes::NotSupported, Below::Device, 0),
        // GT200_DEBUGGER, MPS_COMPUTE.
        0x83de => optional(Makes::Plain, Below::Anything, 12),
        0x900e => optional(Makes::Plain, Below::Anything, 0),
        // NV50_P2P, NV50_THIRD_PARTY_P2P.
        0x503b => class(Makes::Plain, Below::Client, 72),
        0x503c => optional(Makes::Plain, Below::Subdevice, 4),
        // NV_MEMORY_FABRIC.
        0x00f8 => class(Makes::FabricMemory, Below::Subdevice, 48),
        // FERMI_TWOD_A, KEPLER_INLINE_TO_MEMORY_B, which newer generations have, too.
        0x902d | 0xa140 => optional(Makes::Plain, Below::Channel, 8),
        // NV_CONFIDENTIAL_COMPUTE.
        0xcb33 => optional(Makes::Plain, Below::Client, 4),
        _ => return family(number),
    };
    Some(row)
}

/// Classes that each generation of cards has its own number of.
fn family(number: u32) -> Option<Class> {
    // Volta to Blackwell.
    if !(0xc300..=0xcfff).contains(&number) {
        return None;
    }
    match number & 0xff {
        // Channels: NV_CHANNEL_ALLOC_PARAMS.
        0x6f => Some(class(Makes::Channel, Below::DeviceOrGroup, 368)),
        // Engines on a channel: 3D, compute, copy, inline-to-memory, video decoders and encoders, JPEG, optical flow.
        0x97 | 0xc0 | 0xb5 | 0x40 | 0xb0 | 0xb7 | 0xd1 | 0xfa => Some(optional(Makes::Plain, Below::Channel, 8)),
        _ => None,
    }
}
