//! Bytes of a driver call -> the row that describes it and a typed [`Call`]. No state; no bytes make it panic.

use super::{
    Abi, Handle, Node, Status,
    classes::{Class, class},
    controls::ControlRow,
    escapes::{Action, Escape, EscapeLayout},
    layout::{Descriptor, Pointer},
    uvm::{UvmCommand, UvmLayout, UvmRule},
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
    /// Of `/dev/nvidiactl` or `/dev/nvidiaN`.
    Escape(&'static Escape, &'static EscapeLayout),
    /// Of `/dev/nvidia-uvm`.
    Uvm(&'static UvmCommand, &'static UvmLayout),
}

impl Row {
    /// NVIDIA's name of the call.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Escape(escape, _) => escape.name,
            Self::Uvm(command, _) => command.name,
        }
    }

    /// What is done with it.
    pub fn action(&self) -> Action {
        match self {
            Self::Escape(escape, _) => escape.action,
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
            Self::Escape(_, layout) => usize::from(layout.size),
            Self::Uvm(_, layout) => usize::from(layout.size),
        }
    }

    /// Where its status is in there; `None`: the errno tells.
    pub fn status_at(&self) -> Option<usize> {
        match self {
            Self::Escape(_, layout) => layout.status.map(usize::from),
            Self::Uvm(_, layout) => layout.status.map(usize::from),
        }
    }

    /// Pointers of fixed meaning in its argument struct. The parameters of [`Call::Alloc`] and [`Call::Control`] are not among
    /// them.
    pub fn pointers(&self) -> &'static [Pointer] {
        match self {
            Self::Escape(_, layout) => layout.pointers,
            Self::Uvm(..) => &[],
        }
    }

    /// Descriptors in its argument struct.
    pub fn descriptors(&self) -> &'static [Descriptor] {
        match self {
            Self::Escape(_, layout) => layout.descriptors,
            Self::Uvm(_, layout) => layout.descriptors,
        }
    }

    /// Puts `status` where the call's status is; `false` when it has none there (fail with an errno then).
    #[must_use]
    pub fn set_status(&self, args: &mut [u8], status: Status) -> bool {
        self.status_at().is_some_and(|at| super::layout::write_u32(args, at, status.0))
    }

    /// The status that the driver left; `None` when it has none.
    pub fn status(&self, args: &[u8]) -> Option<Status> {
        self.status_at().and_then(|at| super::layout::read_u32(args, at)).map(Status)
    }
}

/// What a call asks.
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
    /// `NV_ESC_EXPORT_TO_DMABUF_FD`.
    ExportToDmaBuf {
        /// The client; the handles are in the struct, see [`dma_buf_objects`].
        client: Handle,
        /// An existing dma-buf, or negative for a new one, whose number is written here.
        fd: i32,
    },
    /// `NV_ESC_REGISTER_FD`: the card's file that it is made on gets the rights of this control file.
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
    /// Their bytes, where the program says so; often 0. What to copy is [`Alloc::params_size`]'s answer.
    pub said_params_size: u32,
    /// Address of an `RS_ACCESS_MASK` (4 bytes); 0: none.
    pub rights: u64,
}

impl Alloc {
    /// Offset of `hObjectNew`, where the driver leaves the handle.
    pub const OBJECT_AT: usize = 8;
    /// Offset of `pAllocParms`.
    pub const PARAMS_AT: usize = 16;
    /// Offset of `pRightsRequested` in the larger struct.
    pub const RIGHTS_AT: usize = 24;
    /// Bytes of an `RS_ACCESS_MASK`.
    pub const RIGHTS_SIZE: usize = 4;

    /// The row of its class.
    pub fn class(&self) -> Option<&'static Class> {
        class(self.class)
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
    /// Offset of `params`.
    pub const PARAMS_AT: usize = 16;
    /// More bytes than the driver copies (`RMAPI_PARAM_COPY_MAX_PARAMS_SIZE`).
    pub const PARAMS_MOST: u32 = 1 << 20;

    /// The row of its number.
    pub fn row(&self) -> Option<&'static ControlRow> {
        super::controls::control(self.id)
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

impl VidHeap {
    /// Offset of `total`, the card's memory in bytes, that any function may be answered with.
    pub const TOTAL_AT: usize = 24;
    /// Offset of `free`.
    pub const FREE_AT: usize = 32;
}

/// `NVOS32_FUNCTION_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VidHeapFunction {
    /// Allocates: `ALLOC_SIZE`, `ALLOC_TILED_PITCH_HEIGHT`, `ALLOC_SIZE_RANGE`.
    Alloc(VidHeapAlloc),
    /// `FREE`.
    Free {
        /// What.
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
    /// Where that handle is.
    pub memory_at: usize,
    /// What is asked.
    pub request: MemoryRequest,
    /// Where the size is that the driver returns.
    pub size_at: usize,
}

/// What decides how much memory an allocation takes, and of which kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRequest {
    /// `NVOS32_ALLOC_FLAGS_*`.
    pub flags: u32,
    /// `NVOS32_ATTR_*`.
    pub attr: u32,
    /// `NVOS32_ATTR2_*`.
    pub attr2: u32,
    /// Bytes asked for.
    pub size: u64,
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
    pub const OBJECT_AT: usize = 8;
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
    /// `UVM_MM_INITIALIZE`.
    MmInitialize {
        /// The UVM file whose address space this one keeps alive.
        uvm_fd: i32,
    },
    /// `UVM_REGISTER_GPU`.
    RegisterGpu(UvmObject),
    /// `UVM_UNREGISTER_GPU`.
    UnregisterGpu {
        /// Which card.
        uuid: [u8; 16],
    },
    /// `UVM_REGISTER_GPU_VASPACE`.
    RegisterGpuVaSpace(UvmObject),
    /// `UVM_UNREGISTER_GPU_VASPACE`.
    UnregisterGpuVaSpace {
        /// Which card.
        uuid: [u8; 16],
    },
    /// `UVM_REGISTER_CHANNEL`.
    RegisterChannel {
        /// The channel.
        object: UvmObject,
        /// Where its buffers may be mapped.
        range: Range,
    },
    /// `UVM_UNREGISTER_CHANNEL`.
    UnregisterChannel,
    /// `UVM_CREATE_EXTERNAL_RANGE`.
    CreateExternalRange(Range),
    /// `UVM_MAP_EXTERNAL_ALLOCATION`: keeps the memory allocated until unmapped or freed.
    MapExternal {
        /// Where.
        range: Range,
        /// Offset in the memory.
        offset: u64,
        /// Control file of the client that owns the memory.
        control_fd: i32,
        /// Its client.
        client: Handle,
        /// The memory.
        memory: Handle,
    },
    /// `UVM_UNMAP_EXTERNAL`.
    UnmapExternal {
        /// Where.
        range: Range,
        /// On which card.
        uuid: [u8; 16],
    },
    /// `UVM_FREE`: ends the range that begins there, whatever it is.
    Free {
        /// Where.
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

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
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

/// How many bytes of argument a command has, so that they can be copied before [`decode`].
///
/// # Errors
/// When the driver would not accept the command on that node.
pub fn args_size(abi: Abi, node: Node, command: u32) -> Result<usize, Undecodable> {
    let _ = (abi, node);
    Err(Undecodable::Unknown { command })
}

/// The call in `args`.
///
/// # Errors
/// When the driver would not accept it, or it is serialized.
pub fn decode(abi: Abi, node: Node, command: u32, args: &[u8]) -> Result<Decoded, Undecodable> {
    let _ = (abi, node, args);
    Err(Undecodable::Unknown { command })
}
