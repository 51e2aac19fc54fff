//! Clients and the trees of objects below them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, Weak},
};

use abi::Status;

use super::{
    card_memory::Piece,
    engines::{Group, RunlistEntry},
    open_files::FileId,
};

/// Handles that the driver chooses itself (`RS_UNIQUE_HANDLE_BASE`).
const FIRST_CHOSEN_HANDLE: u32 = 0xcaf0_0000;

/// Memory on a card: every handle, mapping and export of it holds one `Arc`, and the last one gives
/// it back.
#[derive(Debug)]
pub(super) struct VideoMemory {
    /// Its card, by its place in the inventory.
    pub(super) card: usize,
    /// Bytes that the driver says it has.
    pub(super) length: u64,
    /// Piece of the card that it takes.
    pub(super) piece: Piece,
    /// Content that was written, by offset.
    pub(super) content: Mutex<BTreeMap<u64, u64>>,
}

/// Memory of the host's that the driver made or pinned: every handle of it, channel in it, and file
/// that it may be mapped through holds one `Arc`.
#[derive(Debug)]
pub(super) struct HostMemory {
    /// Bytes.
    pub(super) length: u64,
    /// `None`: it is the program's own.
    pub(super) _piece: Option<Piece>,
}

/// A block of addresses on the fabric: every handle, mapping and export of it holds one `Arc`.
#[derive(Debug)]
pub(super) struct FabricAddresses {
    /// Its card, by its place in the inventory.
    pub(super) card: usize,
    /// Bytes.
    pub(super) length: u64,
    /// Attached memory, by its offset.
    pub(super) attached: Mutex<BTreeMap<u64, Attachment>>,
}

/// Memory at an offset within a block of addresses.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) client: u32,
    /// Handle of the addresses that it was attached by.
    pub(super) by: u32,
    /// Its handle, and what that stood for.
    pub(super) memory: (u32, Weak<VideoMemory>),
}

/// Memory of either sort, or addresses to which some is attached, held by what outlives its handle.
#[derive(Debug, Clone)]
pub(super) enum Memory {
    Video(Arc<VideoMemory>),
    Host(Arc<HostMemory>),
    Fabric(Arc<FabricAddresses>),
}

impl Memory {
    /// Returns the memory that an object is made of, if any.
    pub(super) fn of(kind: &Kind) -> Option<Self> {
        match kind {
            Kind::VideoMemory(memory) => Some(Self::Video(Arc::clone(memory))),
            Kind::SystemMemory(memory) => Some(Self::Host(Arc::clone(memory))),
            Kind::Fabric(addresses) => Some(Self::Fabric(Arc::clone(addresses))),
            _ => None,
        }
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Video(memory) => memory.length,
            Self::Host(memory) => memory.length,
            Self::Fabric(addresses) => addresses.length,
        }
    }

    /// Video memory, if it is a card's.
    #[cfg(test)]
    pub(super) fn video(&self) -> Option<Arc<VideoMemory>> {
        match self {
            Self::Video(memory) => Some(Arc::clone(memory)),
            Self::Host(_) | Self::Fabric(_) => None,
        }
    }
}

/// Kind of an object.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Device {
        card: usize,
    },
    Subdevice {
        card: usize,
    },
    VideoMemory(Arc<VideoMemory>),
    SystemMemory(Arc<HostMemory>),
    /// Addresses on the fabric.
    Fabric(Arc<FabricAddresses>),
    /// Addresses only.
    VirtualMemory,
    AddressSpace,
    ChannelGroup {
        engine: u32,
        group: Arc<Group>,
        /// The context buffers of its engine, from its first scheduling on.
        buffers: Option<Arc<VideoMemory>>,
    },
    Channel {
        engine: u32,
        /// On its engine, until it is freed.
        runlist_entry: Arc<RunlistEntry>,
        /// As a group's, of a channel without one.
        buffers: Option<Arc<VideoMemory>>,
        /// Memory that its USERD is in, which it keeps (`memdescCreateSubMem` in the driver), and
        /// the offset there.
        userd: Option<(Memory, u64)>,
    },
    /// Everything else: engines on a channel, events, information pages.
    Plain,
}

/// An object of a client.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) parent: u32,
    pub(super) class: u32,
    pub(super) kind: Kind,
    /// Objects of the same client without which it cannot be.
    pub(super) depends_on: Vec<u32>,
}

impl Object {
    fn needs(&self) -> impl Iterator<Item = u32> {
        self.depends_on.iter().copied().chain([self.parent])
    }
}

/// A client: the root of a tree, owned by the open control file that it was allocated on.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) file: FileId,
    pub(super) objects: BTreeMap<u32, Object>,
    /// Each object with those that go with it.
    goes_with: BTreeSet<(u32, u32)>,
    next_handle: u32,
}

impl Client {
    pub(super) fn new(file: FileId) -> Self {
        Self { file, objects: BTreeMap::new(), goes_with: BTreeSet::new(), next_handle: FIRST_CHOSEN_HANDLE }
    }

    pub(super) fn add(&mut self, handle: u32, object: Object) {
        self.goes_with.extend(object.needs().map(|above| (above, handle)));
        self.objects.insert(handle, object);
    }

    pub(super) fn object(&self, handle: u32) -> Result<&Object, Status> {
        self.objects.get(&handle).ok_or(Status::OBJECT_NOT_FOUND)
    }

    pub(super) fn object_mut(&mut self, handle: u32) -> Result<&mut Object, Status> {
        self.objects.get_mut(&handle).ok_or(Status::OBJECT_NOT_FOUND)
    }

    /// A handle for a new object: the one asked for, if it may be, or one of the driver's choice
    /// for 0.
    pub(super) fn new_handle(&mut self, own: u32, asked: u32) -> Result<u32, Status> {
        if asked == own {
            return Err(Status::INVALID_OBJECT_HANDLE);
        }
        if asked != 0 {
            return if self.objects.contains_key(&asked) { Err(Status::INSERT_DUPLICATE_NAME) } else { Ok(asked) };
        }
        // Bounded: there are not more objects than tries.
        for _ in 0..=self.objects.len() {
            let handle = self.next_handle;
            self.next_handle = self.next_handle.checked_add(1).unwrap_or(FIRST_CHOSEN_HANDLE);
            if !self.objects.contains_key(&handle) && handle != own {
                return Ok(handle);
            }
        }
        Err(Status::INSUFFICIENT_RESOURCES)
    }

    /// Frees an object, what is below it, and what cannot be without any of those.
    pub(super) fn free(&mut self, handle: u32) -> Result<(), Status> {
        self.object(handle)?;
        let mut doomed = vec![handle];
        while let Some(gone) = doomed.pop() {
            let Some(object) = self.objects.remove(&gone) else { continue };
            for above in object.needs() {
                self.goes_with.remove(&(above, gone));
            }
            doomed.extend(self.goes_with.range((gone, 0)..=(gone, u32::MAX)).map(|(_, below)| below));
        }
        Ok(())
    }

    /// The card that an object is on: that of the device or subdevice above it.
    pub(super) fn card_of(&self, handle: u32) -> Option<usize> {
        let mut handle = handle;
        // A tree has no loops, and is not deeper than it has objects.
        for _ in 0..=self.objects.len() {
            let object = self.objects.get(&handle)?;
            if let Kind::Device { card } | Kind::Subdevice { card } = object.kind {
                return Some(card);
            }
            handle = object.parent;
        }
        None
    }
}
