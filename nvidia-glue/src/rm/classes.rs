//! The classes of `NV_ESC_RM_ALLOC`.

use super::Status;

/// One class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its number, `hClass`.
    pub id: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// What an object of it is to us.
    pub kind: ClassKind,
    /// Bytes of its largest parameter struct in any known release; 0: it takes none.
    pub params_size: u16,
    /// Where it is defined, below src/common/sdk/nvidia/inc/class/ unless it says otherwise.
    pub header: &'static str,
}

/// What an object of a class is to us.
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
    /// `RM_USER_SHARED_DATA`: a page, mapped by the program, that tells the card's real memory and load.
    UserSharedData,
    /// A reference to memory that exists already, which keeps it allocated.
    MemoryReference,
    /// An object that decides nothing and holds no memory of note.
    Plain,
    /// Answered by the mediator with this status, never given to the driver.
    Answered(Status, &'static str),
    /// Refused with this status.
    Refused(Status, &'static str),
}

/// What an event signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An OS event: `data` is the descriptor that was registered with `NV_ESC_ALLOC_OS_EVENT`.
    OsEvent,
    /// A callback into the kernel; not for user space.
    KernelCallback,
}

/// The row of a class; `None`: not known, to be refused with [`Status::INVALID_CLASS`] and counted, because it could obtain
/// memory.
pub fn class(id: u32) -> Option<&'static Class> {
    CLASSES.binary_search_by_key(&id, |class| class.id).ok().and_then(|at| CLASSES.get(at))
}

/// Every known class, by number.
pub const CLASSES: &[Class] = &[];
