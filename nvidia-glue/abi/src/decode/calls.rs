//! Calls of the driver with names instead of offsets.

use super::UvmCall;
use crate::{
    Handle,
    classes::{Class, class},
    controls::{ControlRow, control},
    memory::MemoryRequest,
    params::{NVOS54_PARAMETERS, NVOS55_PARAMETERS, NVOS64_PARAMETERS},
};

/// Decoded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `NV_ESC_RM_ALLOC`.
    Alloc(Alloc),
    /// `NV_ESC_RM_FREE`.
    Free(Free),
    /// `NV_ESC_RM_CONTROL`.
    Control(Control),
    /// `NV_ESC_RM_ALLOC_MEMORY`.
    AllocMemory(AllocMemory),
    /// `NV_ESC_RM_VID_HEAP_CONTROL`.
    VidHeap(VidHeap),
    /// `NV_ESC_RM_DUP_OBJECT`.
    Dup(Dup),
    /// `NV_ESC_RM_SHARE`.
    Share(Share),
    /// `NV_ESC_RM_MAP_MEMORY`.
    MapMemory(MapMemory),
    /// `NV_ESC_RM_UNMAP_MEMORY`.
    UnmapMemory(UnmapMemory),
    /// `NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO`.
    UpdateMapping(UpdateMapping),
    /// `NV_ESC_RM_MAP_MEMORY_DMA`.
    MapDma(MapDma),
    /// `NV_ESC_RM_UNMAP_MEMORY_DMA`.
    UnmapDma(MapDma),
    /// `NV_ESC_RM_ALLOC_CONTEXT_DMA2`.
    AllocContextDma(AllocContextDma),
    /// `NV_ESC_RM_BIND_CONTEXT_DMA`.
    BindContextDma {
        /// The client.
        client: Handle,
        /// The channel.
        channel: Handle,
        /// The context DMA.
        context_dma: Handle,
    },
    /// `NV_ESC_RM_ALLOC_OBJECT`.
    AllocObject(AllocObject),
    /// `NV_ESC_RM_IDLE_CHANNELS`.
    IdleChannels(IdleChannels),
    /// `NV_ESC_CARD_INFO`: the struct is an array of cards, rewritten for the view.
    CardInfo,
    /// `NV_ESC_STATUS_CODE` of the card at a PCI address.
    CardStatus {
        /// PCI domain.
        domain: u32,
        /// PCI bus.
        bus: u8,
        /// PCI slot.
        slot: u8,
    },
    /// `NV_ESC_CHECK_VERSION_STR`: the struct is a command, a reply, and a string of 64 bytes.
    CheckVersion,
    /// `NV_ESC_ATTACH_GPUS_TO_FD`: the struct is an array of GPU ids (4 bytes, 0: none), all of
    /// which must be granted.
    AttachGpus,
    /// `NV_ESC_REGISTER_FD`: the card's file that it is made on gets the rights of this control
    /// file.
    RegisterFd {
        /// The control file's number.
        control_fd: i32,
    },
    /// `NV_ESC_ALLOC_OS_EVENT`.
    AllocOsEvent(OsEvent),
    /// `NV_ESC_FREE_OS_EVENT`.
    FreeOsEvent(OsEvent),
    /// A UVM command.
    Uvm(UvmCall),
    /// A call of which only the row matters.
    Other,
}

/// `NVOS21_PARAMETERS`, `NVOS64_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alloc {
    /// `hRoot`; for a root class the driver ignores it.
    pub client: Handle,
    /// `hObjectParent`.
    pub parent: Handle,
    /// `hObjectNew`; [`Handle::NONE`]: the driver chooses.
    pub object: Handle,
    /// `hClass`.
    pub class: u32,
    /// Address of the class's parameters; 0: none.
    pub params: u64,
    /// Their bytes, where the program says so; often 0. What to copy is [`Alloc::buffer_size`].
    pub said_params_size: u32,
    /// Address of an `RS_ACCESS_MASK` (4 bytes); 0: none.
    pub rights: u64,
}

impl Alloc {
    /// Offset of `hObjectNew`, where the driver leaves the handle.
    pub const OBJECT_AT: usize = NVOS64_PARAMETERS::hObjectNew.at();
    /// Offset of `pAllocParms`.
    pub const PARAMS_AT: usize = NVOS64_PARAMETERS::pAllocParms.at();
    /// Offset of `pRightsRequested` in the larger struct.
    pub const RIGHTS_AT: usize = NVOS64_PARAMETERS::pRightsRequested.at();
    /// Bytes of an `RS_ACCESS_MASK`.
    pub const RIGHTS_SIZE: usize = 4;

    /// Most bytes of parameters, more than any class has.
    const PARAMS_MOST: usize = 4096;

    /// The row of its class.
    pub fn class(&self) -> Option<Class> {
        class(self.class)
    }

    /// Returns the bytes that the buffer for the parameters must have. As much of it as the caller
    /// has is copied in, the rest is zero: the driver reads and writes as many bytes as its release
    /// has in that class, whatever the caller says, so a shorter buffer would be overrun.
    pub fn buffer_size(&self) -> usize {
        let said = usize::try_from(self.said_params_size).unwrap_or(usize::MAX).min(Self::PARAMS_MOST);
        self.class().map_or(Self::PARAMS_MOST, |class| usize::from(class.params_size).max(said))
    }
}

/// `NVOS00_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// `hRoot`.
    pub client: Handle,
    /// `hObjectParent`; the driver ignores it.
    pub parent: Handle,
    /// `hObjectOld`; the client itself to free all.
    pub object: Handle,
}

/// `NVOS54_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// `hClient`.
    pub client: Handle,
    /// `hObject`.
    pub object: Handle,
    /// `cmd`.
    pub id: u32,
    /// Address of the parameters; 0: none.
    pub params: u64,
    /// Their bytes.
    pub params_size: u32,
}

impl Control {
    /// Offset of `flags`. All of them are for the kernel's own use: write 0 there before the driver
    /// sees the call.
    pub const FLAGS_AT: usize = NVOS54_PARAMETERS::flags.at();
    /// Offset of `params`.
    pub const PARAMS_AT: usize = NVOS54_PARAMETERS::params.at();
    /// Most bytes that the driver copies (`RMAPI_PARAM_COPY_MAX_PARAMS_SIZE`).
    pub const PARAMS_MOST: u32 = 1 << 20;

    /// The row of its number.
    pub fn row(&self) -> Option<ControlRow> {
        control(self.id)
    }
}

/// `NVOS02_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocMemory {
    /// `hRoot`.
    pub client: Handle,
    /// `hObjectParent`.
    pub parent: Handle,
    /// `hObjectNew`.
    pub object: Handle,
    /// `hClass`.
    pub class: u32,
    /// `flags`.
    pub flags: u32,
    /// `pMemory`.
    pub address: u64,
    /// `limit`: size less one.
    pub limit: u64,
}

/// `NVOS32_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VidHeap {
    /// `hRoot`.
    pub client: Handle,
    /// `hObjectParent`.
    pub parent: Handle,
    /// `function` and its data.
    pub function: VidHeapFunction,
}

/// `NVOS32_FUNCTION_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VidHeapFunction {
    /// Allocates: `ALLOC_SIZE`, `ALLOC_TILED_PITCH_HEIGHT`, `ALLOC_SIZE_RANGE`.
    Alloc(VidHeapAlloc),
    /// `FREE`.
    Free {
        /// The memory.
        memory: Handle,
    },
    /// `INFO`: the heap's size and what is free.
    Info,
    /// Refused: obsolete, or allocates in ways that are not described here.
    Refused(u32),
    /// Asks about alignment or compression of memory that exists.
    Other(u32),
}

/// An allocation through `NV_ESC_RM_VID_HEAP_CONTROL`, and where its fields are in the struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VidHeapAlloc {
    /// `hMemory`; [`Handle::NONE`]: the driver chooses.
    pub memory: Handle,
    /// Offset of that handle.
    pub memory_at: usize,
    /// Size and kind of the memory.
    pub request: MemoryRequest,
    /// Offset of the size that the driver returns.
    pub size_at: usize,
    /// Offset of `attr`.
    pub attr_at: usize,
}

/// `NVOS55_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dup {
    /// `hClient`: whose the new handle is.
    pub client: Handle,
    /// `hParent`.
    pub parent: Handle,
    /// `hObject`; [`Handle::NONE`]: the driver chooses.
    pub object: Handle,
    /// `hClientSrc`.
    pub source_client: Handle,
    /// `hObjectSrc`.
    pub source_object: Handle,
    /// `flags`.
    pub flags: u32,
}

impl Dup {
    /// Offset of `hObject`, where the driver leaves the handle.
    pub const OBJECT_AT: usize = NVOS55_PARAMETERS::hObject.at();
}

/// `NVOS05_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocObject {
    /// `hRoot`.
    pub client: Handle,
    /// `hObjectParent`.
    pub parent: Handle,
    /// `hObjectNew`.
    pub object: Handle,
    /// `hClass`.
    pub class: u32,
}

/// `NVOS30_PARAMETERS`. The lists behind its pointers name clients too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleChannels {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `hChannel`.
    pub channel: Handle,
    /// Length of the lists of clients, devices and channels.
    pub count: u32,
}

/// `NVOS57_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// `hClient`.
    pub client: Handle,
    /// `hObject`.
    pub object: Handle,
}

/// `NVOS33_PARAMETERS` with its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapMemory {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `hMemory`.
    pub memory: Handle,
    /// `offset`.
    pub offset: u64,
    /// `length`.
    pub length: u64,
    /// `flags`.
    pub flags: u32,
    /// The open file that the mapping is prepared on.
    pub fd: i32,
}

/// `NVOS34_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnmapMemory {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `hMemory`.
    pub memory: Handle,
    /// `pLinearAddress`.
    pub address: u64,
}

/// `NVOS56_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateMapping {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `hMemory`.
    pub memory: Handle,
    /// `pOldCpuAddress`.
    pub old_address: u64,
    /// `pNewCpuAddress`.
    pub new_address: u64,
}

/// `NVOS46_PARAMETERS`, `NVOS47_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapDma {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `hDma`: the virtual memory.
    pub dma: Handle,
    /// `hMemory`.
    pub memory: Handle,
}

/// `NVOS39_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocContextDma {
    /// `hObjectParent`'s client.
    pub client: Handle,
    /// `hSubDevice` or device.
    pub parent: Handle,
    /// `hObjectNew`.
    pub object: Handle,
    /// `hClass`.
    pub class: u32,
    /// `hMemory`.
    pub memory: Handle,
}

/// `nv_ioctl_alloc_os_event_t`, `nv_ioctl_free_os_event_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OsEvent {
    /// `hClient`.
    pub client: Handle,
    /// `hDevice`.
    pub device: Handle,
    /// `fd`: the driver's open file that becomes readable.
    pub fd: i32,
}
