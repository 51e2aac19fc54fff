//! The classes of `NV_ESC_RM_ALLOC`.

mod named;

pub use named::*;

use super::{
    Status,
    params::{
        NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_CONTEXT_DMA_ALLOCATION_PARAMS,
        NV_CTXSHARE_ALLOCATION_PARAMETERS, NV_MEMORY_ALLOCATION_PARAMS, NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS,
        NV_VASPACE_ALLOCATION_PARAMETERS, NV00DE_ALLOC_PARAMETERS, NV00F8_ALLOCATION_PARAMETERS,
        NV0005_ALLOC_PARAMETERS, NV0080_ALLOC_PARAMETERS, NV83DE_ALLOC_PARAMETERS, NV2080_ALLOC_PARAMETERS,
    },
};

/// One class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its number, `hClass`.
    pub id: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// Meaning of an object of it to the mediator.
    pub kind: ClassKind,
    /// Bytes of its largest parameter struct in any known release; 0: it takes none, or is refused.
    pub params_size: u16,
}

/// Meaning of an object of a class to the mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassKind {
    /// A client.
    Root,
    /// A card, by device instance (`deviceId` of the parameters).
    Device,
    /// A subdevice of one.
    Subdevice,
    /// Video memory: charged.
    VideoMemory,
    /// Memory of the host, pinned by the kernel.
    SystemMemory,
    /// A range of GPU addresses, or memory that the attributes alone place (`attr.LOCATION`).
    VirtualMemory,
    /// An address space of a GPU: page directories, limited in number.
    AddressSpace,
    /// A channel group (TSG): context buffers, limited in number.
    ChannelGroup,
    /// A channel: instance block, context buffers, limited in number.
    Channel,
    /// A context share of a channel group.
    ContextShare,
    /// An engine's object below a channel.
    Engine(EngineKind),
    /// An event; the parameters' `data` names what is signalled.
    Event(EventKind),
    /// `RM_USER_SHARED_DATA`: a page, mapped by the program, that shows the card's real memory and
    /// load.
    UserSharedData,
    /// A reference to memory that exists already (the handles at 0 and 4 of the parameters), which
    /// keeps it allocated.
    MemoryReference,
    /// Addresses on the NVLink fabric (`NV00F8_ALLOCATION_PARAMETERS`): for video memory that
    /// exists already, which it keeps allocated, or for memory that is attached later.
    FabricMemory,
    /// A debugger's session (`GT200_DEBUGGER`): the parameters name a client at 4, and at 8 its
    /// object that is looked into. CUDA makes one for itself.
    Debugger,
    /// A path between two cards; the parameters name two subdevices, both of which must be the
    /// caller's.
    PeerToPeer,
    /// `NV01_CONTEXT_DMA`: a part of the caller's own memory.
    ContextDma,
    /// `MPS_COMPUTE`: says that a server of MPS runs.
    Mps,
    /// An object that decides nothing and holds no memory of note.
    Plain,
    /// Answered by the mediator with this status, never given to the driver.
    Answered(Status, &'static str),
    /// Refused with this status.
    Refused(Status, &'static str),
}

/// Kind of an engine's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// 3D, of the graphics engine: draws.
    Graphics,
    /// Compute, of the graphics engine.
    Compute,
    /// 2D, of the graphics engine.
    TwoD,
    /// Memory to memory, of the graphics engine.
    InlineToMemory,
    /// Copies between memories.
    Copy,
    /// Video, JPEG, optical flow and the like: the channel says which.
    Video,
}

impl EngineKind {
    /// Returns whether its objects are the graphics engine's, and bring a context.
    pub const fn is_of_graphics_engine(self) -> bool {
        match self {
            Self::Graphics | Self::Compute | Self::TwoD | Self::InlineToMemory => true,
            Self::Copy | Self::Video => false,
        }
    }
}

/// Kind of an event's signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An OS event: `data` is the descriptor that was registered with `NV_ESC_ALLOC_OS_EVENT`.
    OsEvent,
    /// The parameters' `hClass` says which kind; anything but [`OS_EVENT`] is to be refused: it
    /// calls back into the kernel.
    ByClass,
}

/// `NV01_EVENT_OS_EVENT`.
pub const OS_EVENT: u32 = NV01_EVENT_OS_EVENT;

/// `NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`: pages of the program, pinned; by `NV_ESC_RM_ALLOC_MEMORY`
/// only.
pub const OS_DESCRIPTOR: u32 = NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;

/// `NV01_MEMORY_SYSTEM`: memory of the host's that the driver makes.
pub const SYSTEM_MEMORY: u32 = NV01_MEMORY_SYSTEM;

/// The driver's own numbers of classes, which `NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE` takes
/// (src/nvidia/generated/g_*_nvoc.h, `__nvoc_class_id_*`).
///
/// They are the same in every release from 525 to 595.
pub mod internal {
    /// Of class 0x71.
    pub const OS_DESC_MEMORY: u32 = 0xb3_dacd;
    /// Of class 0x3e.
    pub const SYSTEM_MEMORY: u32 = 0x7a98;
    /// Of class 0x3f.
    pub const REGISTER_MEMORY: u32 = 0x40_d457;
    /// Of class 0x70, and of 0x40 as a dummy.
    pub const VIRTUAL_MEMORY_RANGE: u32 = 0x70_32c6;
    /// Of class 0xf3, to 580.
    pub const FLA_MEMORY: u32 = 0xe6_1ee1;
}

/// Numbers of the classes that each generation of cards has its own of, from Volta to Blackwell:
/// the low byte identifies them.
pub const GENERATIONS: std::ops::RangeInclusive<u32> = 0xc300..=0xcfff;

/// The row of a class; `None`: not known, to be refused with [`Status::INVALID_CLASS`] and counted,
/// because it could obtain memory.
pub fn class(id: u32) -> Option<Class> {
    static TABLES: [&[Class]; 2] = [REFUSED, CLASSES];
    TABLES.iter().find_map(|rows| rows.get(rows.binary_search_by_key(&id, |row| row.id).ok()?)).copied()
}

/// Every known class.
pub fn classes() -> impl Iterator<Item = Class> {
    CLASSES.iter().chain(REFUSED).copied()
}

include!(concat!(env!("OUT_DIR"), "/refused_classes.rs"));

const fn row(id: u32, name: &'static str, kind: ClassKind, params_size: usize) -> Class {
    assert!(params_size <= u16::MAX as usize, "larger than any parameters");
    #[expect(clippy::cast_possible_truncation, reason = "it is less")]
    let params_size = params_size as u16;
    Class { id, name, kind, params_size }
}

use ClassKind::{
    AddressSpace, Answered, Channel, ChannelGroup, ContextDma, ContextShare, Debugger, Device, Engine, Event,
    FabricMemory, MemoryReference, Mps, PeerToPeer, Plain, Root, Subdevice, SystemMemory, UserSharedData, VideoMemory,
    VirtualMemory,
};

/// Every class that is not refused, by number. With `classes/refused.txt` it is every class that a
/// driver from 525 to 595 gives to user space or knows by that name: the union of
/// `src/nvidia/src/kernel/rmapi/resource_list.h` over those releases, with the engines of cards
/// that only the closed modules drive. Sizes are the largest of those releases; a struct that code
/// reads has its own in `params/classes.rs`. Headers are src/common/sdk/nvidia/inc/class/clXXXX.h.
pub(super) const CLASSES: &[Class] = &[
    row(0x0000, "NV01_ROOT", Root, 120),
    row(0x0001, "NV01_ROOT_NON_PRIV", Root, 120),
    row(0x0002, "NV01_CONTEXT_DMA", ContextDma, NV_CONTEXT_DMA_ALLOCATION_PARAMS::SIZE),
    row(0x0005, "NV01_EVENT", Event(EventKind::ByClass), NV0005_ALLOC_PARAMETERS::SIZE),
    row(0x003e, "NV01_MEMORY_SYSTEM", SystemMemory, NV_MEMORY_ALLOCATION_PARAMS::SIZE),
    row(0x0040, "NV01_MEMORY_LOCAL_USER", VideoMemory, NV_MEMORY_ALLOCATION_PARAMS::SIZE),
    row(0x0041, "NV01_ROOT_CLIENT", Root, 120),
    row(0x0070, "NV01_MEMORY_VIRTUAL", VirtualMemory, 24),
    row(0x0073, "NV04_DISPLAY_COMMON", Plain, 0),
    row(0x0079, "NV01_EVENT_OS_EVENT", Event(EventKind::OsEvent), NV0005_ALLOC_PARAMETERS::SIZE),
    row(0x0080, "NV01_DEVICE_0", Device, NV0080_ALLOC_PARAMETERS::SIZE),
    row(0x00da, "NV_SEMAPHORE_SURFACE", MemoryReference, NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS::SIZE),
    row(0x00de, "RM_USER_SHARED_DATA", UserSharedData, NV00DE_ALLOC_PARAMETERS::SIZE),
    row(0x00f8, "NV_MEMORY_FABRIC", FabricMemory, NV00F8_ALLOCATION_PARAMETERS::SIZE),
    row(0x2080, "NV20_SUBDEVICE_0", Subdevice, NV2080_ALLOC_PARAMETERS::SIZE),
    row(0x2081, "NV2081_BINAPI", Plain, 4),
    row(0x208f, "NV20_SUBDEVICE_DIAG", Plain, 0),
    row(0x503b, "NV50_P2P", PeerToPeer, 88),
    row(0x50a0, "NV50_MEMORY_VIRTUAL", VirtualMemory, NV_MEMORY_ALLOCATION_PARAMS::SIZE),
    row(0x83de, "GT200_DEBUGGER", Debugger, NV83DE_ALLOC_PARAMETERS::SIZE),
    row(0x900e, "MPS_COMPUTE", Mps, 0),
    row(0x902d, "FERMI_TWOD_A", Engine(EngineKind::TwoD), 16),
    row(0x9067, "FERMI_CONTEXT_SHARE_A", ContextShare, NV_CTXSHARE_ALLOCATION_PARAMETERS::SIZE),
    row(0x906f, "GF100_CHANNEL_GPFIFO", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0x9072, "GF100_DISP_SW", Plain, 12),
    row(0x9096, "GF100_ZBC_CLEAR", Plain, 0),
    row(0x90e6, "GF100_SUBDEVICE_MASTER", Plain, 0),
    row(0x90e7, "GF100_SUBDEVICE_INFOROM", Plain, 0),
    row(0x90f1, "FERMI_VASPACE_A", AddressSpace, NV_VASPACE_ALLOCATION_PARAMETERS::SIZE),
    row(0xa06c, "KEPLER_CHANNEL_GROUP_A", ChannelGroup, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::SIZE),
    row(0xa06f, "KEPLER_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xa0bc, "NVENC_SW_SESSION", Plain, 20),
    row(0xa0bd, "NVFBC_SW_SESSION", Plain, 20),
    row(0xa140, "KEPLER_INLINE_TO_MEMORY_B", Engine(EngineKind::InlineToMemory), 16),
    row(0xa16f, "KEPLER_CHANNEL_GPFIFO_B", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xb06f, "MAXWELL_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xb097, "MAXWELL_A", Engine(EngineKind::Graphics), 16),
    row(0xb0b5, "MAXWELL_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xb0c0, "MAXWELL_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xb197, "MAXWELL_B", Engine(EngineKind::Graphics), 16),
    row(0xb1c0, "MAXWELL_COMPUTE_B", Engine(EngineKind::Compute), 16),
    row(0xb4b7, "NVB4B7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xb8b0, "NVB8B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xb8d1, "NVB8D1_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xb8fa, "NVB8FA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xc06f, "PASCAL_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc097, "PASCAL_A", Engine(EngineKind::Graphics), 16),
    row(0xc0b5, "PASCAL_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc0c0, "PASCAL_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xc197, "PASCAL_B", Engine(EngineKind::Graphics), 16),
    row(0xc1b5, "PASCAL_DMA_COPY_B", Engine(EngineKind::Copy), 8),
    row(0xc1c0, "PASCAL_COMPUTE_B", Engine(EngineKind::Compute), 16),
    row(0xc361, "VOLTA_USERMODE_A", Plain, 0),
    row(0xc36f, "VOLTA_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc397, "VOLTA_A", Engine(EngineKind::Graphics), 16),
    row(0xc3b5, "VOLTA_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc3c0, "VOLTA_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xc461, "TURING_USERMODE_A", Plain, 0),
    row(0xc46f, "TURING_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc4b0, "NVC4B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xc4b7, "NVC4B7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xc4d1, "NVC4D1_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xc561, "AMPERE_USERMODE_A", Plain, 0),
    row(0xc56f, "AMPERE_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc597, "TURING_A", Engine(EngineKind::Graphics), 16),
    row(0xc5b5, "TURING_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc5c0, "TURING_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(
        0xc639,
        "AMPERE_SMC_CONFIG_SESSION",
        Answered(
            Status::INSUFFICIENT_PERMISSIONS,
            "configures MIG; the driver would refuse it and write to the host's kernel log",
        ),
        8,
    ),
    row(
        0xc640,
        "AMPERE_SMC_MONITOR_SESSION",
        Answered(
            Status::INSUFFICIENT_PERMISSIONS,
            "monitors MIG; the driver would refuse it and write to the host's kernel log",
        ),
        8,
    ),
    row(0xc661, "HOPPER_USERMODE_A", Plain, 2),
    row(0xc697, "AMPERE_A", Engine(EngineKind::Graphics), 16),
    row(0xc6b0, "NVC6B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xc6b5, "AMPERE_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc6c0, "AMPERE_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xc6fa, "NVC6FA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xc761, "BLACKWELL_USERMODE_A", Plain, 2),
    row(0xc797, "AMPERE_B", Engine(EngineKind::Graphics), 16),
    row(0xc7b0, "NVC7B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xc7b5, "AMPERE_DMA_COPY_B", Engine(EngineKind::Copy), 8),
    row(0xc7b7, "NVC7B7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xc7c0, "AMPERE_COMPUTE_B", Engine(EngineKind::Compute), 16),
    row(0xc7fa, "NVC7FA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xc86f, "HOPPER_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc8b5, "HOPPER_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc96f, "BLACKWELL_CHANNEL_GPFIFO_A", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xc997, "ADA_A", Engine(EngineKind::Graphics), 16),
    row(0xc9b0, "NVC9B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xc9b5, "BLACKWELL_DMA_COPY_A", Engine(EngineKind::Copy), 8),
    row(0xc9b7, "NVC9B7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xc9c0, "ADA_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xc9d1, "NVC9D1_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xc9fa, "NVC9FA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xca6f, "BLACKWELL_CHANNEL_GPFIFO_B", Channel, NV_CHANNEL_ALLOC_PARAMS::SIZE),
    row(0xcab5, "BLACKWELL_DMA_COPY_B", Engine(EngineKind::Copy), 8),
    row(0xcb33, "NV_CONFIDENTIAL_COMPUTE", Plain, 4),
    row(0xcb97, "HOPPER_A", Engine(EngineKind::Graphics), 16),
    row(0xcba2, "HOPPER_SEC2_WORK_LAUNCH_A", Engine(EngineKind::Video), 0),
    row(0xcbc0, "HOPPER_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xcd40, "BLACKWELL_INLINE_TO_MEMORY_A", Engine(EngineKind::InlineToMemory), 16),
    row(0xcd97, "BLACKWELL_A", Engine(EngineKind::Graphics), 16),
    row(0xcdb0, "NVCDB0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xcdc0, "BLACKWELL_COMPUTE_A", Engine(EngineKind::Compute), 16),
    row(0xcdd1, "NVCDD1_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xcdfa, "NVCDFA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xce97, "BLACKWELL_B", Engine(EngineKind::Graphics), 16),
    row(0xceb0, "NVCEB0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xceb7, "NVCEB7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xcec0, "BLACKWELL_COMPUTE_B", Engine(EngineKind::Compute), 16),
    row(0xced0, "NVCED0_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xcefa, "NVCEFA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xcfb0, "NVCFB0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xcfb7, "NVCFB7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xcfd1, "NVCFD1_VIDEO_NVJPG", Engine(EngineKind::Video), 12),
    row(0xcffa, "NVCFFA_VIDEO_OFA", Engine(EngineKind::Video), 12),
    row(0xd1b0, "NVD1B0_VIDEO_DECODER", Engine(EngineKind::Video), 12),
    row(0xd1b7, "NVD1B7_VIDEO_ENCODER", Engine(EngineKind::Video), 12),
    row(0xd1fa, "NVD1FA_VIDEO_OFA", Engine(EngineKind::Video), 12),
];
