//! The names of what is accounted, the limits, and the refusals.

use abi::{Handle, Status};
use base::Bytes;

/// A card, by its index within the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Card(pub u8);

impl Card {
    /// No card: memory of the host's that the driver pins for the container. It is charged like a
    /// card's, against [`ObjectLimits::host_memory`], and belongs to no grant.
    pub const HOST: Self = Self(u8::MAX);
}

/// An open file description of `/dev/nvidia-uvm` (a UVM address space), as the caller numbers them.
/// A number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UvmFile(pub u64);

/// An open file description that RM objects were exported to, as the caller numbers them. A number
/// is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportFile(pub u64);

/// An open file through which memory of the host's was mapped for the processor, as the caller
/// numbers them, once for each mapping. A number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappedFile(pub u64);

/// The address space of one or more processes (`mm_struct`), as the caller numbers them. A number
/// is never used again.
///
/// Processes that share one (`CLONE_VM`) must get the same number (`kcmp` with `KCMP_VM` tells);
/// one that executes a program has another from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mm(pub u64);

/// An object in a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName {
    /// The client.
    pub client: Handle,
    /// The object's handle there.
    pub object: Handle,
}

impl ObjectName {
    /// `object` in `client`.
    pub const fn new(client: Handle, object: Handle) -> Self {
        Self { client, object }
    }
}

/// Sort of object, as far as its number is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A channel group of a card (class `A06C`): its context buffers are video memory that no class
    /// shows.
    ChannelGroup(Card),
    /// A channel of a card (classes `*6F`).
    Channel {
        /// Its card.
        card: Card,
        /// It is in no group, so the driver makes one for it (`kchannelConstruct`,
        /// src/nvidia/src/kernel/gpu/fifo/kernel_channel.c).
        is_bare: bool,
    },
    /// A virtual address space of the card (class `90F1`): its page directories are video memory.
    AddressSpace,
    /// Memory of any sort.
    Memory,
    /// Pages of a program's own that the driver keeps pinned (class `0071`).
    Pinned,
    /// A device or subdevice of a card (classes `0080`, `2080`).
    Device(Card),
    /// A notification by the driver (classes `0005`, `0079`).
    Event,
    /// An engine's object, or MPS's, of this class: by those the driver lists processes.
    Engine(u32),
    /// Anything else.
    Other,
}

impl Kind {
    /// A channel, or a group of them.
    pub(super) const fn is_channel(self) -> bool {
        matches!(self, Self::Channel { .. } | Self::ChannelGroup(_))
    }
}

/// Limits on the number of a container's objects, so that what is not charged by size is bounded,
/// and the account itself too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectLimits {
    /// Clients.
    pub clients: u32,
    /// Channel groups.
    pub channel_groups: u32,
    /// Channels of each card, unless
    /// [`Accounts::set_channel_limit`](super::Accounts::set_channel_limit) says otherwise; groups
    /// of a card, those of channels without one included, are no more. A card has as many numbers
    /// for channels as for groups, for all containers together.
    pub channels: u32,
    /// Address spaces.
    pub address_spaces: u32,
    /// Devices and subdevices of each card. The card's firmware keeps each of them, in a heap that
    /// all clients of the card share: 96 MiB for their objects
    /// (src/nvidia/inc/kernel/gpu/gsp/gsp_fw_heap.h). When that is full, nobody gets any more.
    pub devices: u32,
    /// Events. The driver goes through those of an engine at each of its interrupts, whoever's work
    /// it was.
    pub events: u32,
    /// Objects that have no limit of their own and are not memory either (engines' objects, shares
    /// of groups ...): the firmware keeps most of them, too.
    pub others: u32,
    /// Pinned memory of programs' own.
    pub pinned: u32,
    /// Objects in total.
    pub objects: u32,
    /// References besides objects, in total: external ranges, pools, mappings and channels of UVM
    /// files, exports, attachments, and mappings in virtual memory.
    pub references: u32,
    /// Mappings in virtual memory of the resource manager's (`NV_ESC_RM_MAP_MEMORY_DMA`). They hang
    /// from one object, and the driver ends all of them when that goes, under the lock that every
    /// call of every container needs; nor does it find one but by looking through all.
    pub virtual_mappings: u32,
    /// Mappings for the processor (`NV_ESC_RM_MAP_MEMORY`), of which the driver keeps one whatever
    /// becomes of its file, and goes through all that an object has to find one.
    pub processor_mappings: u32,
    /// Groups of ranges of managed memory (`UVM_CREATE_RANGE_GROUP`): the kernel's memory, that
    /// nobody counts.
    pub range_groups: u32,
    /// Ranges of managed memory.
    pub managed_ranges: u32,
    /// Events that wake files (`NV_ESC_ALLOC_OS_EVENT`).
    pub os_events: u32,
    /// Memory of the host's that the driver has made for the container (class 0x3e, pools of
    /// semaphores), and that is kept by what is pinned ([`super::pins`]): no cgroup counts it.
    pub host_memory: Bytes,
    /// Open files through which such memory was mapped for the processor: each is watched by the
    /// kernel until it is gone.
    pub host_mappings: u32,
}

impl Default for ObjectLimits {
    /// Room for 32 processes with a context each on several cards. One CUDA context was seen to
    /// have 4 channel groups, 10 events, 4 devices and subdevices of its card, 79 other objects, 52
    /// pieces of memory, and 70 MiB of the host's memory; `nvidia-smi` 4 events and 9 devices.
    fn default() -> Self {
        Self {
            os_events: 1 << 16,
            host_memory: Bytes(16 * Bytes::GIB),
            host_mappings: 1 << 14,
            clients: 4096,
            channel_groups: 128,
            channels: 512,
            address_spaces: 64,
            devices: 1024,
            events: 2048,
            others: 1 << 14,
            // PyTorch pins a block for each size and worker, some thousand of them.
            pinned: 1 << 14,
            // 256 GiB in pieces of 2 MiB, the smallest that CUDA asks for, each mapped where it has
            // reserved addresses for it.
            objects: 1 << 17,
            references: 1 << 18,
            // CUDA maps by unified memory. Vulkan maps each of its allocations so, of which
            // programs are advised to have less than 4096.
            virtual_mappings: 1 << 13,
            // A CUDA context has 33.
            processor_mappings: 1 << 14,
            // A CUDA context has 8, and one for each stream.
            range_groups: 1 << 14,
            managed_ranges: 1 << 17,
        }
    }
}

impl ObjectLimits {
    /// Limits of a container with `cards` cards: objects and references for each of them, but no
    /// more than its account should grow to.
    #[must_use]
    pub fn with_cards(self, cards: usize) -> Self {
        const MOST: u32 = 1 << 20;
        let cards = u32::try_from(cards).unwrap_or(u32::MAX).max(1);
        let each = |limit: u32| limit.saturating_mul(cards).min(MOST.max(limit));
        Self { objects: each(self.objects), references: each(self.references), ..self }
    }

    /// Limits of a monitor: nothing that takes memory of a card for its own sake, or of the host.
    /// NVML has a client for each program and a few dozen objects in it.
    pub fn of_a_monitor() -> Self {
        let host_memory = Bytes(0);
        Self {
            channel_groups: 0,
            channels: 0,
            address_spaces: 0,
            references: 0,
            managed_ranges: 0,
            host_memory,
            ..Self::default()
        }
    }
}

/// One of the numbers of [`ObjectLimits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counted {
    /// Clients.
    Clients,
    /// Channel groups.
    ChannelGroups,
    /// Channels of a card.
    Channels,
    /// Address spaces.
    AddressSpaces,
    /// Devices and subdevices of a card.
    Devices,
    /// Events of objects.
    Events,
    /// Objects that have no limit of their own.
    Others,
    /// Objects in total.
    Objects,
    /// References besides objects.
    References,
    /// Mappings in virtual memory of the resource manager's.
    VirtualMappings,
    /// Mappings for the processor.
    ProcessorMappings,
    /// Pinned memory.
    Pinned,
    /// Groups of ranges of managed memory.
    RangeGroups,
    /// Ranges of managed memory.
    ManagedRanges,
    /// Threads that advise the driver about memory that is not managed.
    Advisers,
    /// Events that wake files.
    OsEvents,
    /// Mappings of the host's memory for the processor.
    HostMappings,
    /// KiB of page tables
    /// ([`Accounts::reserve_page_tables`](super::Accounts::reserve_page_tables)).
    PageTableKib,
    /// Addresses on the NVLink fabric for a block of memory, in its sizes.
    Fabric,
    /// Addresses on the NVLink fabric of a card, in its limits.
    CardFabric,
}

impl std::fmt::Display for Counted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Clients => "clients",
            Self::ChannelGroups => "channel groups",
            Self::Channels => "channels of a card",
            Self::AddressSpaces => "address spaces",
            Self::Devices => "devices and subdevices of a card",
            Self::Events => "events of objects",
            Self::Others => "objects besides memory and channels",
            Self::Objects => "objects",
            Self::References => "mappings and exports",
            Self::VirtualMappings => "mappings in virtual memory",
            Self::ProcessorMappings => "mappings for the processor",
            Self::Pinned => "pieces of pinned memory",
            Self::RangeGroups => "groups of ranges of managed memory",
            Self::ManagedRanges => "ranges of managed memory",
            Self::Advisers => "threads that advise the driver about ordinary memory",
            Self::OsEvents => "events that wake files",
            Self::HostMappings => "mappings of the host's memory",
            Self::PageTableKib => "KiB of page tables",
            Self::Fabric => "times the size of a block of memory in addresses on the fabric",
            Self::CardFabric => "times the limit of a card in addresses on the fabric",
        })
    }
}

/// One of the two limits of a card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The quota.
    Quota,
    /// Memory held open in frames of 2 MiB.
    Frames,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Quota => "",
            Self::Frames => " in frames of 2 MiB",
        })
    }
}

/// A card's limit is, or would be, exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("card {} of the grant: {asked} asked{bound}, {used} of {limit} used", card.0)]
pub struct OverQuota {
    /// The card.
    pub card: Card,
    /// Size of this allocation, asked for or granted.
    pub asked: Bytes,
    /// Bytes used without it, reservations included.
    pub used: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// The limit.
    pub bound: Bound,
}

/// Reason for which something may not be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client was not allocated through this account.
    #[error("client {:#x} is none of this container's", .0.0)]
    UnknownClient(Handle),
    /// There is no such object in a known client.
    #[error("client {:#x} has no object {:#x}", .0.client.0, .0.object.0)]
    UnknownObject(ObjectName),
    /// Nothing was exported to that file at that index.
    #[error("nothing was exported to this file at index {index}")]
    NothingExported {
        /// Its index.
        index: u32,
    },
    /// The grant has no such card.
    #[error("the grant has no card {}", .0.0)]
    UnknownCard(Card),
    /// It would exceed a card's limit.
    #[error(transparent)]
    OverQuota(#[from] OverQuota),
    /// There are too many already.
    #[error("there are {limit} {counted} already, the most that a container may have")]
    TooMany {
        /// Kind of object that is counted.
        counted: Counted,
        /// Most that there may be.
        limit: u32,
    },
}

impl Refusal {
    /// Returns whether there may be room once something is gone: not for what is more than there
    /// can ever be.
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::OverQuota(over) => over.asked.0 <= over.limit.0,
            Self::TooMany { limit, .. } => *limit > 0,
            Self::UnknownClient(_) | Self::UnknownObject(_) | Self::NothingExported { .. } | Self::UnknownCard(_) => {
                false
            }
        }
    }

    /// Status that the driver would answer with.
    pub const fn status(&self) -> Status {
        match self {
            Self::UnknownClient(_) => Status::INVALID_CLIENT,
            Self::UnknownObject(_) | Self::NothingExported { .. } => Status::OBJECT_NOT_FOUND,
            Self::UnknownCard(_) => Status::INVALID_DEVICE,
            Self::OverQuota(_) | Self::TooMany { counted: Counted::PageTableKib, .. } => Status::NO_MEMORY,
            Self::TooMany { .. } => Status::INSUFFICIENT_RESOURCES,
        }
    }
}
