//! The classes of `NV_ESC_RM_ALLOC`.

mod named;
mod packed;

pub use named::*;

use super::Status;

/// One class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its number, `hClass`.
    pub id: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// Meaning of an object of it to the mediator.
    pub kind: ClassKind,
    /// Bytes of its largest parameter struct in any known release; 0: it takes none.
    pub params_size: u16,
    /// Header that defines it, below src/common/sdk/nvidia/inc/class/ unless it says otherwise.
    pub header: &'static str,
}

impl Class {
    /// Returns whether it is an engine's object of 3D: `MAXWELL_A`, `HOPPER_A` and the like, `*97`
    /// in every generation.
    pub const fn draws(&self) -> bool {
        matches!(self.kind, ClassKind::Engine) && self.id & 0xff == 0x97
    }
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
    Engine,
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
    packed::find(id)
}

/// Every known class.
pub fn classes() -> impl Iterator<Item = Class> {
    packed::all()
}

const fn row(id: u32, name: &'static str, kind: ClassKind, params_size: u16, header: &'static str) -> Class {
    Class { id, name, kind, params_size, header }
}

use ClassKind::{
    AddressSpace, Answered, Channel, ChannelGroup, ContextDma, ContextShare, Debugger, Device, Engine, Event,
    FabricMemory, MemoryReference, Mps, PeerToPeer, Plain, Refused, Root, Subdevice, SystemMemory, UserSharedData,
    VideoMemory, VirtualMemory,
};

/// Every class that a driver from 525 to 595 gives to user space or knows by that name, by number:
/// the union of `src/nvidia/src/kernel/rmapi/resource_list.h` over those releases, with the engines
/// of cards that only the closed modules drive. Sizes are the largest of those releases. Not for
/// the running program: [`packed`] has them there.
pub(super) const CLASSES: &[Class] = &[
    row(0x0000, "NV01_ROOT", Root, 120, "nvos.h"),
    row(0x0001, "NV01_ROOT_NON_PRIV", Root, 120, "nvos.h"),
    row(0x0002, "NV01_CONTEXT_DMA", ContextDma, 32, "class/cl0002.h"),
    row(
        0x0004,
        "NV01_TIMER",
        Refused(Status::INVALID_CLASS, "registers of the card, and alarms that nobody counts"),
        0,
        "class/cl0004.h",
    ),
    row(0x0005, "NV01_EVENT", Event(EventKind::ByClass), 24, "class/cl0005.h"),
    row(
        0x000f,
        "FABRIC_MANAGER_SESSION",
        Refused(Status::NOT_SUPPORTED, "manages the NVLink fabric of the whole host"),
        16,
        "class/cl000f.h",
    ),
    row(
        0x0020,
        "NV0020_GPU_MANAGEMENT",
        Refused(Status::NOT_SUPPORTED, "manages the cards of the whole host"),
        120,
        "class/cl0020.h",
    ),
    row(0x003e, "NV01_MEMORY_SYSTEM", SystemMemory, 128, "class/cl003e.h"),
    row(
        0x003f,
        "NV01_MEMORY_LOCAL_PRIVILEGED",
        Refused(Status::INVALID_CLASS, "a window onto the card's registers"),
        0,
        "class/cl003f.h",
    ),
    row(0x0040, "NV01_MEMORY_LOCAL_USER", VideoMemory, 128, "class/cl0040.h"),
    row(0x0041, "NV01_ROOT_CLIENT", Root, 120, "nvos.h"),
    row(
        0x0042,
        "NV_MEMORY_EXTENDED_USER",
        Refused(Status::INVALID_CLASS, "memory of the host that belongs to a card"),
        128,
        "class/cl0042.h",
    ),
    row(0x0050, "NV_CE_UTILS", Refused(Status::INVALID_CLASS, "copies through the kernel"), 24, "class/cl0050.h"),
    row(
        0x0060,
        "NV0060_SYNC_GPU_BOOST",
        Refused(Status::NOT_SUPPORTED, "clocks, which all users of a card share"),
        4,
        "class/cl0060.h",
    ),
    row(0x0070, "NV01_MEMORY_VIRTUAL", VirtualMemory, 24, "class/cl0070.h"),
    row(
        0x0071,
        "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR",
        Refused(Status::NOT_SUPPORTED, "pins pages of the caller, which only NV_ESC_RM_ALLOC_MEMORY does in its place"),
        40,
        "class/cl0071.h",
    ),
    row(0x0073, "NV04_DISPLAY_COMMON", Plain, 0, "class/cl0073.h"),
    row(
        0x0076,
        "NV01_MEMORY_FRAMEBUFFER_CONSOLE",
        Refused(Status::INVALID_CLASS, "the host's console"),
        0,
        "class/cl0076.h",
    ),
    row(
        0x0078,
        "NV01_EVENT_KERNEL_CALLBACK",
        Refused(Status::INVALID_CLASS, "calls back into the kernel"),
        24,
        "nvos.h",
    ),
    row(0x0079, "NV01_EVENT_OS_EVENT", Event(EventKind::OsEvent), 24, "nvos.h"),
    row(0x007d, "NV04_SOFTWARE_TEST", Refused(Status::INVALID_CLASS, "a test of the driver"), 0, "class/cl007d.h"),
    row(
        0x007e,
        "NV01_EVENT_KERNEL_CALLBACK_EX",
        Refused(Status::INVALID_CLASS, "calls back into the kernel"),
        24,
        "nvos.h",
    ),
    row(0x0080, "NV01_DEVICE_0", Device, 56, "class/cl0080.h"),
    row(
        0x0081,
        "NV01_MEMORY_LIST_SYSTEM",
        Refused(Status::INVALID_CLASS, "memory by physical address"),
        152,
        "class/cl84a0.h",
    ),
    row(
        0x0082,
        "NV01_MEMORY_LIST_FBMEM",
        Refused(Status::INVALID_CLASS, "memory by physical address"),
        152,
        "class/cl84a0.h",
    ),
    row(
        0x0083,
        "NV01_MEMORY_LIST_OBJECT",
        Refused(Status::INVALID_CLASS, "memory by physical address"),
        152,
        "class/cl84a0.h",
    ),
    row(0x008f, "KERNEL_WATCHDOG", Refused(Status::INVALID_CLASS, "internal to the kernel"), 0, "class/cl008f.h"),
    row(
        0x0090,
        "KERNEL_GRAPHICS_CONTEXT",
        Refused(Status::INVALID_CLASS, "internal to the kernel"),
        0,
        "class/cl0090.h",
    ),
    row(
        0x0092,
        "NV0092_RG_LINE_CALLBACK",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        32,
        "class/cl0092.h",
    ),
    row(
        0x00b1,
        "NV01_MEMORY_HW_RESOURCES",
        Refused(Status::INVALID_CLASS, "calls back into the kernel"),
        120,
        "class/cl00b1.h",
    ),
    row(
        0x00c2,
        "NV01_MEMORY_LOCAL_PHYSICAL",
        Refused(Status::INVALID_CLASS, "the card's whole memory by physical address"),
        24,
        "class/cl00c2.h",
    ),
    row(0x00c3, "NV01_MEMORY_SYNCPOINT", Refused(Status::INVALID_CLASS, "memory of Tegra"), 4, "class/cl00c3.h"),
    row(0x00da, "NV_SEMAPHORE_SURFACE", MemoryReference, 16, "class/cl00da.h"),
    row(
        0x00db,
        "NV40_DEBUG_BUFFER",
        Refused(Status::NOT_SUPPORTED, "a buffer for the debugging of the driver"),
        8,
        "class/cl00db.h",
    ),
    row(0x00de, "RM_USER_SHARED_DATA", UserSharedData, 8, "class/cl00de.h"),
    row(
        0x00e0,
        "NV_MEMORY_EXPORT",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "keeps memory that it exports allocated, out of sight"),
        244,
        "class/cl00e0.h",
    ),
    row(
        0x00f1,
        "NV_IMEX_SESSION",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "memory shared between hosts"),
        32,
        "class/cl00f1.h",
    ),
    row(
        0x00f3,
        "NV01_MEMORY_FLA",
        Refused(Status::NOT_SUPPORTED, "an alias of exported memory, of other clients too"),
        56,
        "class/cl00f3.h",
    ),
    row(0x00f8, "NV_MEMORY_FABRIC", FabricMemory, 48, "class/cl00f8.h"),
    row(
        0x00f9,
        "NV_MEMORY_FABRIC_IMPORT_V2",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "memory of other hosts"),
        64,
        "class/cl00f9.h",
    ),
    row(
        0x00fb,
        "NV_MEMORY_FABRIC_IMPORTED_REF",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "memory of other hosts"),
        32,
        "class/cl00fb.h",
    ),
    row(
        0x00fd,
        "NV_MEMORY_MULTICAST_FABRIC",
        Refused(Status::NOT_SUPPORTED, "keeps memory that is attached to it allocated, out of sight, on several cards"),
        80,
        "class/cl00fd.h",
    ),
    row(
        0x00fe,
        "NV_MEMORY_MAPPER",
        Refused(Status::NOT_SUPPORTED, "maps memory from the GPU, out of sight"),
        24,
        "class/cl00fe.h",
    ),
    row(0x0100, "LOCK_STRESS_OBJECT", Refused(Status::INVALID_CLASS, "a test of the driver"), 0, "class/cl0100.h"),
    row(
        0x0101,
        "LOCK_TEST_RELAXED_DUP_OBJECT",
        Refused(Status::INVALID_CLASS, "a test of the driver"),
        0,
        "class/cl0101.h",
    ),
    row(0x2080, "NV20_SUBDEVICE_0", Subdevice, 4, "class/cl2080.h"),
    row(0x2081, "NV2081_BINAPI", Plain, 4, "class/cl2081.h"),
    row(
        0x2082,
        "NV2082_BINAPI_PRIVILEGED",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "privileged"),
        4,
        "class/cl2082.h",
    ),
    row(0x208f, "NV20_SUBDEVICE_DIAG", Plain, 0, "class/cl208f.h"),
    row(0x30f1, "NV30_GSYNC", Refused(Status::NOT_SUPPORTED, "hardware that the host shares"), 4, "class/cl30f1.h"),
    row(
        0x402c,
        "NV40_I2C",
        Refused(Status::NOT_SUPPORTED, "chips on the board, which all users share"),
        0,
        "class/cl402c.h",
    ),
    row(0x503b, "NV50_P2P", PeerToPeer, 88, "class/cl503b.h"),
    // As the driver says it of cards that protect their memory. With INVALID_CLASS or
    // INSUFFICIENT_PERMISSIONS CUDA does not start (docs/driver-facts.md).
    row(
        0x503c,
        "NV50_THIRD_PARTY_P2P",
        Refused(
            Status::NOT_SUPPORTED,
            "GPUDirect RDMA, which finds memory by the process that it was made by: the mediator. CUDA tells programs that there is none",
        ),
        4,
        "class/cl503c.h",
    ),
    row(
        0x5080,
        "NV50_DEFERRED_API_CLASS",
        Refused(Status::NOT_SUPPORTED, "runs control calls from a channel, out of sight"),
        1,
        "class/cl5080.h",
    ),
    row(0x50a0, "NV50_MEMORY_VIRTUAL", VirtualMemory, 128, "class/cl50a0.h"),
    row(0x83de, "GT200_DEBUGGER", Debugger, 12, "class/cl83de.h"),
    row(
        0x844c,
        "G84_PERFBUFFER",
        Refused(Status::INVALID_CLASS, "performance counters of the whole card"),
        0,
        "class/cl844c.h",
    ),
    row(0x900e, "MPS_COMPUTE", Mps, 0, "class/cl900e.h"),
    row(
        0x9010,
        "NV9010_VBLANK_CALLBACK",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        32,
        "class/cl9010.h",
    ),
    row(0x902d, "FERMI_TWOD_A", Engine, 16, "class/cl902d.h"),
    row(0x9067, "FERMI_CONTEXT_SHARE_A", ContextShare, 12, "class/cl9067.h"),
    row(0x906f, "GF100_CHANNEL_GPFIFO", Channel, 368, "class/cl906f.h"),
    row(0x9072, "GF100_DISP_SW", Plain, 12, "class/cl9072.h"),
    row(
        0x9074,
        "GF100_TIMED_SEMAPHORE_SW",
        Refused(Status::INVALID_CLASS, "waiters without number, which the kernel keeps and nobody counts"),
        0,
        "class/cl9074.h",
    ),
    row(0x9096, "GF100_ZBC_CLEAR", Plain, 0, "class/cl9096.h"),
    row(
        0x90cc,
        "GF100_PROFILER",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "performance counters"),
        0,
        "class/cl90cc.h",
    ),
    row(
        0x90cd,
        "NV_EVENT_BUFFER",
        Refused(
            Status::NOT_SUPPORTED,
            "maps kernel memory into the calling process, and tells other containers' context switches",
        ),
        72,
        "class/cl90cd.h",
    ),
    row(
        0x90ce,
        "NV01_MEMORY_DEVICELESS",
        Refused(Status::INVALID_CLASS, "memory without a device"),
        128,
        "class/cl90ce.h",
    ),
    row(0x90e6, "GF100_SUBDEVICE_MASTER", Plain, 0, "class/cl90e6.h"),
    row(0x90e7, "GF100_SUBDEVICE_INFOROM", Plain, 0, "class/cl90e7.h"),
    row(0x90ec, "GF100_HDACODEC", Refused(Status::INVALID_CLASS, "sound of a card"), 0, "class/cl90ec.h"),
    row(0x90f1, "FERMI_VASPACE_A", AddressSpace, 56, "class/cl90f1.h"),
    row(0xa06c, "KEPLER_CHANNEL_GROUP_A", ChannelGroup, 20, "class/cla06c.h"),
    row(0xa06f, "KEPLER_CHANNEL_GPFIFO_A", Channel, 368, "class/cla06f.h"),
    row(0xa080, "KEPLER_DEVICE_VGPU", Refused(Status::NOT_SUPPORTED, "virtual GPUs, of the host"), 0, "class/cla080.h"),
    row(0xa081, "NVA081_VGPU_CONFIG", Refused(Status::NOT_SUPPORTED, "virtual GPUs, of the host"), 0, "class/cla081.h"),
    row(
        0xa083,
        "NVA083_GRID_DISPLAYLESS",
        Refused(Status::NOT_SUPPORTED, "virtual GPUs, of the host"),
        0,
        "class/cla083.h",
    ),
    row(
        0xa084,
        "NVA084_KERNEL_HOST_VGPU_DEVICE",
        Refused(Status::NOT_SUPPORTED, "virtual GPUs, of the host"),
        1696,
        "class/cla084.h",
    ),
    row(0xa0bc, "NVENC_SW_SESSION", Plain, 20, "class/cla0bc.h"),
    row(0xa0bd, "NVFBC_SW_SESSION", Plain, 20, "class/cla0bd.h"),
    row(0xa140, "KEPLER_INLINE_TO_MEMORY_B", Engine, 16, "class/cla140.h"),
    row(0xa16f, "KEPLER_CHANNEL_GPFIFO_B", Channel, 368, "class/cla16f.h"),
    row(0xb06f, "MAXWELL_CHANNEL_GPFIFO_A", Channel, 368, "class/clb06f.h"),
    row(0xb097, "MAXWELL_A", Engine, 16, "class/clb097.h"),
    row(0xb0b5, "MAXWELL_DMA_COPY_A", Engine, 8, "class/clb0b5.h"),
    row(0xb0c0, "MAXWELL_COMPUTE_A", Engine, 16, "class/clb0c0.h"),
    row(0xb197, "MAXWELL_B", Engine, 16, "class/clb197.h"),
    row(0xb1c0, "MAXWELL_COMPUTE_B", Engine, 16, "class/clb1c0.h"),
    row(
        0xb1cc,
        "MAXWELL_PROFILER_CONTEXT",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "performance counters"),
        4,
        "class/clb1cc.h",
    ),
    row(
        0xb2cc,
        "MAXWELL_PROFILER_DEVICE",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "performance counters of the whole card, neighbours' included"),
        8,
        "class/clb2cc.h",
    ),
    row(0xb4b7, "NVB4B7_VIDEO_ENCODER", Engine, 12, "class/clb4b7.h"),
    row(0xb8b0, "NVB8B0_VIDEO_DECODER", Engine, 12, "class/clb8b0.h"),
    row(0xb8d1, "NVB8D1_VIDEO_NVJPG", Engine, 12, "class/clb8d1.h"),
    row(0xb8fa, "NVB8FA_VIDEO_OFA", Engine, 12, "class/clb8fa.h"),
    row(0xc06f, "PASCAL_CHANNEL_GPFIFO_A", Channel, 368, "class/clc06f.h"),
    row(0xc076, "GP100_UVM_SW", Refused(Status::INVALID_CLASS, "internal to the kernel"), 0, "class/clc076.h"),
    row(0xc097, "PASCAL_A", Engine, 16, "class/clc097.h"),
    row(0xc0b5, "PASCAL_DMA_COPY_A", Engine, 8, "class/clc0b5.h"),
    row(0xc0c0, "PASCAL_COMPUTE_A", Engine, 16, "class/clc0c0.h"),
    row(0xc197, "PASCAL_B", Engine, 16, "class/clc197.h"),
    row(0xc1b5, "PASCAL_DMA_COPY_B", Engine, 8, "class/clc1b5.h"),
    row(0xc1c0, "PASCAL_COMPUTE_B", Engine, 16, "class/clc1c0.h"),
    row(0xc361, "VOLTA_USERMODE_A", Plain, 0, "class/clc361.h"),
    row(
        0xc365,
        "ACCESS_COUNTER_NOTIFY_BUFFER",
        Refused(Status::INVALID_CLASS, "access counters of the whole card"),
        8,
        "class/clc365.h",
    ),
    row(0xc369, "MMU_FAULT_BUFFER", Refused(Status::INVALID_CLASS, "internal to the kernel"), 0, "class/clc369.h"),
    row(0xc36f, "VOLTA_CHANNEL_GPFIFO_A", Channel, 368, "class/clc36f.h"),
    row(
        0xc371,
        "NVC371_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc371.h",
    ),
    row(
        0xc372,
        "NVC372_DISPLAY_SW",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc372sw.h",
    ),
    row(0xc397, "VOLTA_A", Engine, 16, "class/clc397.h"),
    row(0xc3b5, "VOLTA_DMA_COPY_A", Engine, 8, "class/clc3b5.h"),
    row(0xc3c0, "VOLTA_COMPUTE_A", Engine, 16, "class/clc3c0.h"),
    row(0xc461, "TURING_USERMODE_A", Plain, 0, "class/clc461.h"),
    row(0xc46f, "TURING_CHANNEL_GPFIFO_A", Channel, 368, "class/clc46f.h"),
    row(0xc4b0, "NVC4B0_VIDEO_DECODER", Engine, 12, "class/clc4b0.h"),
    row(0xc4b7, "NVC4B7_VIDEO_ENCODER", Engine, 12, "class/clc4b7.h"),
    row(0xc4d1, "NVC4D1_VIDEO_NVJPG", Engine, 12, "class/clc4d1.h"),
    row(0xc561, "AMPERE_USERMODE_A", Plain, 0, "class/clc561.h"),
    row(0xc56f, "AMPERE_CHANNEL_GPFIFO_A", Channel, 368, "class/clc56f.h"),
    row(0xc570, "NVC570_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clc570.h"),
    row(
        0xc573,
        "NVC573_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc573.h",
    ),
    row(0xc574, "UVM_CHANNEL_RETAINER", Refused(Status::INVALID_CLASS, "internal to the kernel"), 8, "class/clc574.h"),
    row(
        0xc57a,
        "NVC57A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clc57a.h",
    ),
    row(
        0xc57b,
        "NVC57B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc57b.h",
    ),
    row(
        0xc57d,
        "NVC57D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc57d.h",
    ),
    row(
        0xc57e,
        "NVC57E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc57e.h",
    ),
    row(0xc597, "TURING_A", Engine, 16, "class/clc597.h"),
    row(0xc5b5, "TURING_DMA_COPY_A", Engine, 8, "class/clc5b5.h"),
    row(0xc5c0, "TURING_COMPUTE_A", Engine, 16, "class/clc5c0.h"),
    row(
        0xc637,
        "AMPERE_SMC_PARTITION_REF",
        Refused(Status::NOT_SUPPORTED, "a MIG instance; whole cards only"),
        16,
        "class/clc637.h",
    ),
    row(
        0xc638,
        "AMPERE_SMC_EXEC_PARTITION_REF",
        Refused(Status::NOT_SUPPORTED, "a MIG instance; whole cards only"),
        16,
        "class/clc638.h",
    ),
    row(
        0xc639,
        "AMPERE_SMC_CONFIG_SESSION",
        Answered(
            Status::INSUFFICIENT_PERMISSIONS,
            "configures MIG; the driver would refuse it and write to the host's kernel log",
        ),
        8,
        "class/clc639.h",
    ),
    row(
        0xc640,
        "AMPERE_SMC_MONITOR_SESSION",
        Answered(
            Status::INSUFFICIENT_PERMISSIONS,
            "monitors MIG; the driver would refuse it and write to the host's kernel log",
        ),
        8,
        "class/clc640.h",
    ),
    row(0xc661, "HOPPER_USERMODE_A", Plain, 2, "class/clc661.h"),
    row(0xc670, "NVC670_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clc670.h"),
    row(
        0xc671,
        "NVC671_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc671.h",
    ),
    row(
        0xc673,
        "NVC673_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc673.h",
    ),
    row(
        0xc67a,
        "NVC67A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clc67a.h",
    ),
    row(
        0xc67b,
        "NVC67B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc67b.h",
    ),
    row(
        0xc67d,
        "NVC67D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc67d.h",
    ),
    row(
        0xc67e,
        "NVC67E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc67e.h",
    ),
    row(0xc697, "AMPERE_A", Engine, 16, "class/clc697.h"),
    row(0xc6b0, "NVC6B0_VIDEO_DECODER", Engine, 12, "class/clc6b0.h"),
    row(0xc6b5, "AMPERE_DMA_COPY_A", Engine, 8, "class/clc6b5.h"),
    row(0xc6c0, "AMPERE_COMPUTE_A", Engine, 16, "class/clc6c0.h"),
    row(0xc6fa, "NVC6FA_VIDEO_OFA", Engine, 12, "class/clc6fa.h"),
    row(0xc761, "BLACKWELL_USERMODE_A", Plain, 2, "class/clc761.h"),
    row(
        0xc763,
        "MMU_VIDMEM_ACCESS_BIT_BUFFER",
        Refused(Status::INVALID_CLASS, "access counters of the whole card"),
        528,
        "class/clc763.h",
    ),
    row(0xc770, "NVC770_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clc770.h"),
    row(
        0xc771,
        "NVC771_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc771.h",
    ),
    row(
        0xc773,
        "NVC773_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc773.h",
    ),
    row(
        0xc77d,
        "NVC77D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc77d.h",
    ),
    row(
        0xc77f,
        "NVC77F_ANY_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc77f.h",
    ),
    row(0xc797, "AMPERE_B", Engine, 16, "class/clc797.h"),
    row(0xc7b0, "NVC7B0_VIDEO_DECODER", Engine, 12, "class/clc7b0.h"),
    row(0xc7b5, "AMPERE_DMA_COPY_B", Engine, 8, "class/clc7b5.h"),
    row(0xc7b7, "NVC7B7_VIDEO_ENCODER", Engine, 12, "class/clc7b7.h"),
    row(0xc7c0, "AMPERE_COMPUTE_B", Engine, 16, "class/clc7c0.h"),
    row(0xc7fa, "NVC7FA_VIDEO_OFA", Engine, 12, "class/clc7fa.h"),
    row(
        0xc863,
        "HOPPER_MMU_VIDMEM_ACCESS_BIT_BUFFER",
        Refused(Status::INVALID_CLASS, "access counters of the whole card"),
        528,
        "class/clc863.h",
    ),
    row(0xc86f, "HOPPER_CHANNEL_GPFIFO_A", Channel, 368, "class/clc86f.h"),
    row(0xc8b5, "HOPPER_DMA_COPY_A", Engine, 8, "class/clc8b5.h"),
    row(0xc96f, "BLACKWELL_CHANNEL_GPFIFO_A", Channel, 368, "class/clc96f.h"),
    row(0xc970, "NVC970_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clc970.h"),
    row(
        0xc971,
        "NVC971_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc971.h",
    ),
    row(
        0xc973,
        "NVC973_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clc973.h",
    ),
    row(
        0xc97a,
        "NVC97A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clc97a.h",
    ),
    row(
        0xc97b,
        "NVC97B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc97b.h",
    ),
    row(
        0xc97d,
        "NVC97D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc97d.h",
    ),
    row(
        0xc97e,
        "NVC97E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clc97e.h",
    ),
    row(0xc997, "ADA_A", Engine, 16, "class/clc997.h"),
    row(0xc9b0, "NVC9B0_VIDEO_DECODER", Engine, 12, "class/clc9b0.h"),
    row(0xc9b5, "BLACKWELL_DMA_COPY_A", Engine, 8, "class/clc9b5.h"),
    row(0xc9b7, "NVC9B7_VIDEO_ENCODER", Engine, 12, "class/clc9b7.h"),
    row(0xc9c0, "ADA_COMPUTE_A", Engine, 16, "class/clc9c0.h"),
    row(0xc9d1, "NVC9D1_VIDEO_NVJPG", Engine, 12, "class/clc9d1.h"),
    row(0xc9fa, "NVC9FA_VIDEO_OFA", Engine, 12, "class/clc9fa.h"),
    row(0xca6f, "BLACKWELL_CHANNEL_GPFIFO_B", Channel, 368, "class/clca6f.h"),
    row(0xca70, "NVCA70_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clca70.h"),
    row(
        0xca71,
        "NVCA71_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clca71.h",
    ),
    row(
        0xca73,
        "NVCA73_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clca73.h",
    ),
    row(
        0xca7a,
        "NVCA7A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clca7a.h",
    ),
    row(
        0xca7b,
        "NVCA7B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clca7b.h",
    ),
    row(
        0xca7d,
        "NVCA7D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clca7d.h",
    ),
    row(
        0xca7e,
        "NVCA7E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clca7e.h",
    ),
    row(0xcab5, "BLACKWELL_DMA_COPY_B", Engine, 8, "class/clcab5.h"),
    row(0xcb33, "NV_CONFIDENTIAL_COMPUTE", Plain, 4, "class/clcb33.h"),
    row(0xcb70, "NVCB70_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clcb70.h"),
    row(
        0xcb71,
        "NVCB71_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clcb71.h",
    ),
    row(
        0xcb73,
        "NVCB73_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clcb73.h",
    ),
    row(
        0xcb7a,
        "NVCB7A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clcb7a.h",
    ),
    row(
        0xcb7b,
        "NVCB7B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcb7b.h",
    ),
    row(
        0xcb7d,
        "NVCB7D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcb7d.h",
    ),
    row(
        0xcb7e,
        "NVCB7E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcb7e.h",
    ),
    row(0xcb97, "HOPPER_A", Engine, 16, "class/clcb97.h"),
    row(0xcba2, "HOPPER_SEC2_WORK_LAUNCH_A", Engine, 0, "class/clcba2.h"),
    row(0xcbc0, "HOPPER_COMPUTE_A", Engine, 16, "class/clcbc0.h"),
    row(
        0xcbca,
        "NV_COUNTER_COLLECTION_UNIT",
        Refused(Status::INSUFFICIENT_PERMISSIONS, "performance counters of the whole card, neighbours' included"),
        0,
        "class/clcbca.h",
    ),
    row(0xcc70, "NVCC70_DISPLAY", Refused(Status::INVALID_CLASS, "display hardware, of the host"), 0, "class/clcc70.h"),
    row(
        0xcc71,
        "NVCC71_DISP_SF_USER",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clcc71.h",
    ),
    row(
        0xcc73,
        "NVCC73_DISP_CAPABILITIES",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        0,
        "class/clcc73.h",
    ),
    row(
        0xcc7a,
        "NVCC7A_CURSOR_IMM_CHANNEL_PIO",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        16,
        "class/clcc7a.h",
    ),
    row(
        0xcc7b,
        "NVCC7B_WINDOW_IMM_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcc7b.h",
    ),
    row(
        0xcc7d,
        "NVCC7D_CORE_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcc7d.h",
    ),
    row(
        0xcc7e,
        "NVCC7E_WINDOW_CHANNEL_DMA",
        Refused(Status::INVALID_CLASS, "display hardware, of the host"),
        40,
        "class/clcc7e.h",
    ),
    row(0xcd40, "BLACKWELL_INLINE_TO_MEMORY_A", Engine, 16, "class/clcd40.h"),
    row(0xcd97, "BLACKWELL_A", Engine, 16, "class/clcd97.h"),
    row(0xcdb0, "NVCDB0_VIDEO_DECODER", Engine, 12, "class/clcdb0.h"),
    row(0xcdc0, "BLACKWELL_COMPUTE_A", Engine, 16, "class/clcdc0.h"),
    row(0xcdd1, "NVCDD1_VIDEO_NVJPG", Engine, 12, "class/clcdd1.h"),
    row(0xcdfa, "NVCDFA_VIDEO_OFA", Engine, 12, "class/clcdfa.h"),
    row(0xce97, "BLACKWELL_B", Engine, 16, "class/clce97.h"),
    row(0xceb0, "NVCEB0_VIDEO_DECODER", Engine, 12, "class/clceb0.h"),
    row(0xceb7, "NVCEB7_VIDEO_ENCODER", Engine, 12, "class/clceb7.h"),
    row(0xcec0, "BLACKWELL_COMPUTE_B", Engine, 16, "class/clcec0.h"),
    row(0xced0, "NVCED0_VIDEO_NVJPG", Engine, 12, "class/clced0.h"),
    row(0xcefa, "NVCEFA_VIDEO_OFA", Engine, 12, "class/clcefa.h"),
    row(0xcfb0, "NVCFB0_VIDEO_DECODER", Engine, 12, "class/clcfb0.h"),
    row(0xcfb7, "NVCFB7_VIDEO_ENCODER", Engine, 12, "class/clcfb7.h"),
    row(0xcfd1, "NVCFD1_VIDEO_NVJPG", Engine, 12, "class/clcfd1.h"),
    row(0xcffa, "NVCFFA_VIDEO_OFA", Engine, 12, "class/clcffa.h"),
    row(0xd1b0, "NVD1B0_VIDEO_DECODER", Engine, 12, "class/cld1b0.h"),
    row(0xd1b7, "NVD1B7_VIDEO_ENCODER", Engine, 12, "class/cld1b7.h"),
    row(0xd1fa, "NVD1FA_VIDEO_OFA", Engine, 12, "class/cld1fa.h"),
];
