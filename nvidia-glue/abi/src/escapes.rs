//! The ioctls of `/dev/nvidiactl` and `/dev/nvidiaN`. The seccomp filter, decoding, traces and
//! docs/driver-calls.md come from this table.

mod named;

pub use named::*;

use super::{
    Abi, DriverRelease, Node, Status,
    layout::{Descriptor, Direction, Length, NoFile, Pointer, Releases, Width},
};

/// Command of an escape, `_IOWR('F', number, size)`.
#[expect(clippy::cast_possible_truncation, reason = "as in the kernel's macro, whose field has 14 bits")]
pub const fn command(number: u8, size: usize) -> u32 {
    3 << 30 | (size as u32 & 0x3fff) << 16 | (b'F' as u32) << 8 | number as u32
}

/// `_IOC_SIZE` of a command: bytes of its struct; UVM's numbers carry none.
pub const fn command_size(command: u32) -> usize {
    (command >> 16 & 0x3fff) as usize
}

/// One ioctl of `/dev/nvidiactl` and `/dev/nvidiaN`.
#[derive(Debug)]
pub struct Escape {
    /// NVIDIA's name.
    pub name: &'static str,
    /// The command's number, `_IOC_NR`.
    pub number: u8,
    /// Purpose of the call.
    pub what: &'static str,
    /// Nodes on which the driver takes it.
    pub node: OnNode,
    /// Its structs. Several may belong to one release, with different sizes. Empty: always refused.
    pub layouts: &'static [EscapeLayout],
    /// Treatment by the filter under another type byte than `F`.
    pub other_types: OtherTypes,
    /// Treatment by the mediator.
    pub action: Action,
    /// Header that defines the number.
    pub header: Header,
}

/// A struct that an escape takes.
#[derive(Debug)]
pub struct EscapeLayout {
    /// The releases that take it.
    pub releases: Releases,
    /// Its bytes; the driver demands them exactly.
    pub size: u16,
    /// True if any positive multiple of `size` is taken as well (an array of it).
    pub array: bool,
    /// Offset of the driver's status; `None`: it has none, and the errno is the only answer.
    pub status: Option<u16>,
    /// Pointers in it, other than the parameters of `NV_ESC_RM_ALLOC` and `NV_ESC_RM_CONTROL`.
    pub pointers: &'static [Pointer],
    /// Descriptors in it.
    pub descriptors: &'static [Descriptor],
}

/// Nodes on which the driver takes an escape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnNode {
    /// `/dev/nvidiactl` only.
    Control,
    /// `/dev/nvidiaN` only.
    Card,
    /// Both.
    Either,
}

/// Treatment by the filter of an escape's number under a type byte that is not the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherTypes {
    /// Refused at the sizes that a driver has: the driver would take it.
    Refused,
    /// Let through: the call can do nothing without the others, and somebody else's command may
    /// have its number and size.
    Allowed,
}

/// Treatment of a call by the mediator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Executed by the mediator, on a private copy and a duplicate of the caller's file.
    Execute,
    /// Executed by the kernel in the caller's place. The text says why that is harmless whatever a
    /// racing thread of the caller's turns the arguments into.
    Continue(&'static str),
    /// Never executed: this status where the struct has one, else EINVAL. The text says why.
    Refuse(Status, &'static str),
}

/// The headers of NVIDIA's open kernel modules that number the escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// src/nvidia/arch/nvalloc/unix/include/nv_escape.h
    NvEscape,
    /// kernel-open/common/inc/nv-ioctl-numbers.h and nv-ioctl-numa.h
    NvIoctlNumbers,
}

impl Header {
    /// Its path in NVIDIA's sources.
    pub const fn path(self) -> &'static str {
        match self {
            Self::NvEscape => "src/nvidia/arch/nvalloc/unix/include/nv_escape.h",
            Self::NvIoctlNumbers => "kernel-open/common/inc/nv-ioctl-numbers.h",
        }
    }
}

impl OnNode {
    /// Returns whether the driver takes it on `node`.
    pub const fn takes(self, node: Node) -> bool {
        matches!(
            (self, node),
            (Self::Control | Self::Either, Node::Control) | (Self::Card | Self::Either, Node::Card(_))
        )
    }
}

impl Escape {
    /// The struct of `size` bytes that a release takes; `None`: it takes none of that size.
    pub fn layout(&self, abi: Abi, size: usize) -> Option<&'static EscapeLayout> {
        self.layouts.iter().find(|layout| layout.releases.contain(abi) && layout.fits(size))
    }

    /// The sizes at which the filter refuses it under another type byte.
    pub fn guarded_sizes(&self) -> impl Iterator<Item = u16> {
        let layouts = match self.other_types {
            OtherTypes::Refused => self.layouts,
            OtherTypes::Allowed => &[],
        };
        layouts
            .iter()
            .enumerate()
            .filter(|(at, layout)| layouts.iter().take(*at).all(|earlier| earlier.size != layout.size))
            .map(|(_, layout)| layout.size)
    }
}

impl EscapeLayout {
    fn fits(&self, size: usize) -> bool {
        let own = usize::from(self.size);
        size == own || (self.array && size != 0 && size.is_multiple_of(own))
    }
}

/// The row of a number; `None`: no driver of the known range has it.
pub fn escape(number: u8) -> Option<&'static Escape> {
    ESCAPES.iter().find(|escape| escape.number == number)
}

/// First release with `paramsSize` in the structs of `NV_ESC_RM_ALLOC`. It moved the status of
/// `NVOS21_PARAMETERS` without changing its size.
const R535: DriverRelease = DriverRelease::new(535, 0, 0);
const R550: DriverRelease = DriverRelease::new(550, 0, 0);
const R570: DriverRelease = DriverRelease::new(570, 0, 0);
const R580: DriverRelease = DriverRelease::new(580, 0, 0);

const fn layout(size: u16, status: Option<u16>) -> EscapeLayout {
    EscapeLayout { releases: Releases::ALL, size, array: false, status, pointers: &[], descriptors: &[] }
}

/// Layout of an escape that has none: always refused.
pub(super) static NO_LAYOUT: EscapeLayout = layout(0, None);

impl EscapeLayout {
    const fn in_releases(mut self, releases: Releases) -> Self {
        self.releases = releases;
        self
    }

    const fn or_array(mut self) -> Self {
        self.array = true;
        self
    }

    const fn with_pointers(mut self, pointers: &'static [Pointer]) -> Self {
        self.pointers = pointers;
        self
    }

    const fn with_descriptors(mut self, descriptors: &'static [Descriptor]) -> Self {
        self.descriptors = descriptors;
        self
    }
}

const fn rm(
    name: &'static str,
    number: u8,
    action: Action,
    layouts: &'static [EscapeLayout],
    what: &'static str,
) -> Escape {
    Escape {
        name,
        number,
        what,
        node: OnNode::Control,
        layouts,
        other_types: OtherTypes::Refused,
        action,
        header: Header::NvEscape,
    }
}

const fn os(
    name: &'static str,
    number: u8,
    action: Action,
    layouts: &'static [EscapeLayout],
    what: &'static str,
) -> Escape {
    Escape {
        name,
        number,
        what,
        node: OnNode::Either,
        layouts,
        other_types: OtherTypes::Allowed,
        action,
        header: Header::NvIoctlNumbers,
    }
}

impl Escape {
    const fn on(mut self, node: OnNode) -> Self {
        self.node = node;
        self
    }

    const fn other_types(mut self, other_types: OtherTypes) -> Self {
        self.other_types = other_types;
        self
    }
}

/// A list of `numChannels` handles of `NV_ESC_RM_IDLE_CHANNELS`.
const fn idle_list(at: u16) -> Pointer {
    Pointer::new(at, Length::Counted { at: 12, width: Width::U32, element: 4, most: 4096 }, Direction::In)
}

const fn descriptor(at: u16, none: NoFile) -> Descriptor {
    Descriptor { at, none }
}

const OBSOLETE: Action = Action::Refuse(Status::NOT_SUPPORTED, "no driver of the known range has it");

/// Every escape that a driver from 515 to 595 knows, by number.
///
/// Numbers and sizes were compared with the 2280 commands of Linux 6.1's and libdrm's headers.
/// Where a call that can do nothing without the others has the number and size of somebody else's,
/// it is protected under type `F` only. One collision stays: (0x2b, 48) is also
/// `BTRFS_IOC_QGROUP_LIMIT`, an administrator's call; containers without CAP_SYS_ADMIN cannot make
/// it, and those with it are exempt from the fence.
pub const ESCAPES: &[Escape] = &[
    rm(
        "NV_ESC_RM_ALLOC_MEMORY",
        0x27,
        Action::Continue(
            "pins pages of the caller's own address space, which the kernel finds only in the caller's place. Let through \
             for class 0x71 (pinned memory), charged, and refused for every other. The caller's struct is made to name a client of the mediator's own, the \
             only one on the control file that the card's file is registered with, and a free handle in it; a thread that \
             rewrites it meanwhile can name no other client, and gets no video memory without CAP_SYS_ADMIN: class 0x40 is a dummy then, which tells the \
             size of the card's heap in `limit`; up to driver 580 class 0xf3 aliases what its owner has exported to an \
             NVLink fabric, and the mediator exports nothing. What has come into that client (control 0xd05) is moved to where the program wants it if it is \
             what was asked for (controls 0xd02, 0x410110); anything else that the call can make (classes 0x3e, 0x3f, 0x40, 0x70, 0xf3), or a greater length, is freed, and ends the container",
        ),
        &[layout(56, Some(40)).with_descriptors(&[descriptor(48, NoFile::Negative)])],
        "registers the program's memory",
    )
    .on(OnNode::Card),
    rm("NV_ESC_RM_ALLOC_OBJECT", 0x28, Action::Execute, &[layout(20, Some(16))], "makes an object without parameters"),
    rm("NV_ESC_RM_FREE", 0x29, Action::Execute, &[layout(16, Some(12))], "frees an object and all below it"),
    rm("NV_ESC_RM_CONTROL", 0x2a, Action::Execute, &[layout(32, Some(28))], "any control call"),
    rm(
        "NV_ESC_RM_ALLOC",
        0x2b,
        Action::Execute,
        &[
            layout(32, Some(24)).in_releases(Releases::before(R535)),
            layout(40, Some(36)).in_releases(Releases::before(R535)),
            layout(32, Some(28)).in_releases(Releases::since(R535)),
            layout(48, Some(40)).in_releases(Releases::since(R535)),
        ],
        "makes a client, device, channel, memory ...",
    )
    .on(OnNode::Either),
    rm("NV_ESC_RM_CONFIG_GET", 0x32, OBSOLETE, &[], "obsolete"),
    rm("NV_ESC_RM_CONFIG_SET", 0x33, OBSOLETE, &[], "obsolete"),
    rm("NV_ESC_RM_DUP_OBJECT", 0x34, Action::Execute, &[layout(28, Some(24))], "a second handle on an object"),
    rm("NV_ESC_RM_SHARE", 0x35, Action::Execute, &[layout(24, Some(20))], "lets others duplicate an object; done already if it names a client"),
    rm("NV_ESC_RM_CONFIG_GET_EX", 0x37, OBSOLETE, &[], "obsolete"),
    rm("NV_ESC_RM_CONFIG_SET_EX", 0x38, OBSOLETE, &[], "obsolete"),
    rm(
        "NV_ESC_RM_I2C_ACCESS",
        0x39,
        Action::Refuse(Status::NOT_SUPPORTED, "talks to chips on the board, which all its users share"),
        &[layout(32, Some(24))],
        "I2C bus of a card",
    )
    .on(OnNode::Card)
    .other_types(OtherTypes::Allowed),
    rm(
        "NV_ESC_RM_IDLE_CHANNELS",
        0x41,
        Action::Execute,
        &[layout(56, Some(48)).with_pointers(&[idle_list(16), idle_list(24), idle_list(32)])],
        "waits for channels; (0x41, 56) is DRM_IOCTL_SAVAGE_BCI_CMDBUF",
    )
    .other_types(OtherTypes::Allowed),
    rm(
        "NV_ESC_RM_VID_HEAP_CONTROL",
        0x4a,
        Action::Execute,
        &[layout(184, Some(20))],
        "allocates video memory the old way",
    ),
    rm(
        "NV_ESC_RM_ACCESS_REGISTRY",
        0x4d,
        Action::Refuse(Status::NOT_SUPPORTED, "settings of the driver, which all its users share"),
        &[layout(72, Some(64))],
        "driver settings",
    ),
    rm(
        "NV_ESC_RM_MAP_MEMORY",
        0x4e,
        Action::Execute,
        &[layout(56, Some(40)).with_descriptors(&[descriptor(48, NoFile::Never)])],
        "prepares a CPU mapping",
    ),
    rm(
        "NV_ESC_RM_UNMAP_MEMORY",
        0x4f,
        Action::Execute,
        &[layout(32, Some(24))],
        "ends a CPU mapping; (0x4f, 32) is PPPIOCSXASYNCMAP",
    )
    .other_types(OtherTypes::Allowed),
    rm(
        "NV_ESC_RM_GET_EVENT_DATA",
        0x52,
        Action::Continue("takes the next event off the caller's own file"),
        &[layout(16, Some(12))],
        "reads an event",
    )
    .on(OnNode::Either)
    .other_types(OtherTypes::Allowed),
    rm("NV_ESC_RM_ALLOC_CONTEXT_DMA2", 0x54, Action::Execute, &[layout(56, Some(48))], "a DMA context over memory"),
    rm("NV_ESC_RM_ADD_VBLANK_CALLBACK", 0x56, OBSOLETE, &[], "obsolete"),
    rm(
        "NV_ESC_RM_MAP_MEMORY_DMA",
        0x57,
        Action::Execute,
        &[
            layout(56, Some(48)).in_releases(Releases::before(R580)),
            layout(64, Some(56)).in_releases(Releases::since(R580)),
        ],
        "a GPU mapping",
    ),
    rm(
        "NV_ESC_RM_UNMAP_MEMORY_DMA",
        0x58,
        Action::Execute,
        &[
            layout(40, Some(32)).in_releases(Releases::before(R550)),
            layout(48, Some(40)).in_releases(Releases::since(R550)),
        ],
        "ends a GPU mapping",
    ),
    rm(
        "NV_ESC_RM_BIND_CONTEXT_DMA",
        0x59,
        Action::Execute,
        &[layout(16, Some(12))],
        "binds a DMA context; (0x59, 16) is DRM_IOCTL_RADEON_SETPARAM",
    )
    .other_types(OtherTypes::Allowed),
    rm("NV_ESC_RM_EXPORT_OBJECT_TO_FD", 0x5c, OBSOLETE, &[], "now a control call"),
    rm("NV_ESC_RM_IMPORT_OBJECT_FROM_FD", 0x5d, OBSOLETE, &[], "now a control call"),
    rm(
        "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO",
        0x5e,
        Action::Execute,
        &[layout(40, Some(32))],
        "renames a CPU mapping; (0x5e, 40) is DRM_IOCTL_I915_GEM_MMAP",
    )
    .other_types(OtherTypes::Allowed),
    rm(
        "NV_ESC_RM_LOCKLESS_DIAGNOSTIC",
        0x5f,
        Action::Refuse(Status::INSUFFICIENT_PERMISSIONS, "the driver's logs; administrators only"),
        &[],
        "diagnostics",
    ),
    os("NV_ESC_CARD_INFO", 0xc8, Action::Execute, &[layout(72, None).or_array()], "lists the cards")
        .on(OnNode::Control),
    os(
        "NV_ESC_REGISTER_FD",
        0xc9,
        Action::Execute,
        &[layout(4, None).with_descriptors(&[descriptor(0, NoFile::Never)])],
        "gives a file the rights of a control file, a card's file those of the mediator's for pinned memory; (0xc9, 4) is DRM's",
    ),
    // The descriptor of an OS event is a key beside the client's handle and never looked up, so its
    // number stays as it is.
    os("NV_ESC_ALLOC_OS_EVENT", 0xce, Action::Execute, &[layout(16, Some(12))], "an event for a client")
        .other_types(OtherTypes::Refused),
    os("NV_ESC_FREE_OS_EVENT", 0xcf, Action::Execute, &[layout(16, Some(12))], "ends an event")
        .other_types(OtherTypes::Refused),
    os("NV_ESC_STATUS_CODE", 0xd1, Action::Execute, &[layout(12, None)], "a card's status, by PCI address")
        .on(OnNode::Control),
    os(
        "NV_ESC_CHECK_VERSION_STR",
        0xd2,
        Action::Execute,
        &[layout(72, None)],
        "compares a string with the driver's version; one that is not the same gets to the driver once, which logs it",
    )
    .on(OnNode::Control),
    os(
        "NV_ESC_IOCTL_XFER_CMD",
        0xd3,
        Action::Refuse(
            Status::INVALID_ARGUMENT,
            "carries any other escape inside; made for structs above 16 KiB, which no escape of the known range has",
        ),
        &[layout(16, None)],
        "carries any other escape inside",
    )
    .other_types(OtherTypes::Refused),
    os("NV_ESC_ATTACH_GPUS_TO_FD", 0xd4, Action::Execute, &[layout(4, None).or_array()], "keeps cards initialised")
        .on(OnNode::Control),
    os(
        "NV_ESC_QUERY_DEVICE_INTR",
        0xd5,
        Action::Refuse(Status::NOT_SUPPORTED, "interrupt state of a card, which all its users share"),
        &[layout(8, Some(4))],
        "interrupt status",
    )
    .on(OnNode::Card),
    os(
        "NV_ESC_SYS_PARAMS",
        0xd6,
        Action::Continue("tells the size of a memory block of the host"),
        &[layout(8, None)],
        "memory block size",
    ),
    os(
        "NV_ESC_NUMA_INFO",
        0xd7,
        Action::Continue(
            "tells where the host has put the memory of a coherent card online, and nothing on other cards",
        ),
        &[layout(552, None).in_releases(Releases::before(R535)), layout(560, None).in_releases(Releases::since(R535))],
        "onlined card memory",
    )
    .on(OnNode::Card),
    os(
        "NV_ESC_SET_NUMA_STATUS",
        0xd8,
        Action::Refuse(Status::INSUFFICIENT_PERMISSIONS, "puts a card's memory online; administrators only"),
        &[],
        "onlines card memory; administrators only",
    ),
    os(
        "NV_ESC_EXPORT_TO_DMABUF_FD",
        0xd9,
        Action::Refuse(
            Status::NOT_SUPPORTED,
            "a dma-buf outlives the mediator and cannot be taken back: memory behind one would be charged to nobody",
        ),
        &[
            layout(2600, Some(2592)).in_releases(Releases::before(R570)),
            layout(2608, Some(2600)).in_releases(Releases::since(R570)),
        ],
        "a dma-buf over video memory",
    )
    .other_types(OtherTypes::Refused),
    os(
        "NV_ESC_WAIT_OPEN_COMPLETE",
        0xda,
        Action::Continue("waits until the file's card is initialised"),
        &[layout(8, None).in_releases(Releases::since(R550))],
        "waits for a card's initialisation",
    ),
];
