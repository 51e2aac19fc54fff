//! State of the simulated driver: cards, open files, clients, address spaces, exports.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, Weak, atomic::AtomicBool},
};

use abi::{Node, Status};
use cards::{Card, SimulatedFault, SimulatedFaults};
use driver::DeviceFile;

use super::{
    card_memory::{CardMemory, GRANULE, PieceLayout},
    client_handles::ClientHandles,
    engines::Engines,
    left_files::LeftFiles,
    objects::{Client, FabricAddresses, HostMemory, Kind, VideoMemory},
    open_files::{FileId, OpenFiles},
    uvm_file::UvmFile,
};

/// `NV_ERR_GPU_IS_LOST`.
const GPU_IS_LOST: Status = Status(0xf);
/// `NV_ERR_TIMEOUT`.
const TIMEOUT: Status = Status(0x65);

/// A card, and what is taken of it.
#[derive(Debug)]
pub(super) struct SimulatedCard {
    pub(super) card: Card,
    pub(super) memory: Arc<CardMemory>,
    pub(super) engines: Arc<Engines>,
    /// As its log said at the last call.
    fault: SimulatedFault,
}

impl SimulatedCard {
    pub(super) fn new(card: Card, memory: CardMemory, engines: Engines) -> Self {
        let (memory, engines) = (Arc::new(memory), Arc::new(engines));
        Self { card, memory, engines, fault: SimulatedFault::default() }
    }

    /// Refuses calls that need a lost card, as the kernel's part of the driver does
    /// (src/nvidia/src/kernel/rmapi/control.c, `_kgspRpcSanityCheck`). Frees succeed all the same.
    pub(super) fn check(&self) -> Result<(), Status> {
        if self.fault.is_lost { Err(GPU_IS_LOST) } else { Ok(()) }
    }

    /// Refuses a control on a lost card, or one that the card does not answer.
    pub(super) fn check_control(&self, command: u32) -> Result<(), Status> {
        self.check()?;
        if self.fault.unanswered.contains(&command) { Err(TIMEOUT) } else { Ok(()) }
    }

    /// Logs that an account of the card cannot be kept, and returns the status for it.
    pub(super) fn cannot_count(&self, error: &io::Error) -> Status {
        tracing::warn!(%error, card = self.card.uuid, "a simulated card's account cannot be kept");
        Status::GENERIC
    }

    /// The driver's number of the card: domain, bus and device, as `gpuId` is made.
    pub(super) fn gpu_id(&self) -> u32 {
        let pci = self.card.pci;
        pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device)
    }
}

/// Memory that a control file shares with all that have it, and that outlives its first owner.
#[derive(Debug, Default)]
pub(super) struct Export {
    pub(super) card: Option<usize>,
    pub(super) most: u32,
    pub(super) metadata: Vec<u8>,
    pub(super) objects: BTreeMap<u32, super::objects::Kind>,
}

/// The whole state. One lock around it, as the driver has one around its interface.
#[derive(Debug)]
pub(super) struct State {
    pub(super) cards: Vec<SimulatedCard>,
    pub(super) files: OpenFiles,
    /// Control files that were noted for the time after this process.
    noted: BTreeSet<FileId>,
    left: Arc<LeftFiles>,
    pub(super) clients: BTreeMap<u32, Client>,
    /// Control files by the file that was registered to them, which keeps them open.
    pub(super) registered: BTreeMap<FileId, FileId>,
    /// By client and descriptor: the file on which each was made, with which it goes.
    pub(super) os_events: BTreeMap<(u32, i32), FileId>,
    pub(super) exports: BTreeMap<FileId, Export>,
    pub(super) uvm: BTreeMap<FileId, UvmFile>,
    /// Files on which a mapping for the processor was prepared, with its memory if that is the
    /// host's (`mmap_context`, and the list of memory that was freed while it was mapped). The
    /// mapping itself is not seen here: the memory is kept until the file is closed, as if it were
    /// mapped, and freed meanwhile.
    pub(super) mapped: BTreeMap<FileId, Option<Arc<HostMemory>>>,
    /// Addresses on the fabric to which memory is attached.
    pub(super) fabric: Vec<Weak<FabricAddresses>>,
    /// Something was let through that a real driver does not survive.
    pub(super) is_corrupted: bool,
    /// A page was still mapped when its memory was freed.
    pub(super) has_stale_page: Arc<AtomicBool>,
    /// The machine's own, as the driver takes it.
    host_memory: Arc<CardMemory>,
    /// The driver's version.
    pub(super) version: String,
    client_handles: ClientHandles,
    /// Directory with the log of the cards' errors.
    state_dir: PathBuf,
}

impl State {
    pub(super) fn new(
        cards: Vec<SimulatedCard>,
        (files, left): (OpenFiles, Arc<LeftFiles>),
        client_handles: ClientHandles,
        host_memory: CardMemory,
        version: String,
        state_dir: PathBuf,
    ) -> Self {
        let mut state = Self {
            cards,
            files,
            noted: BTreeSet::new(),
            left,
            clients: BTreeMap::new(),
            registered: BTreeMap::new(),
            os_events: BTreeMap::new(),
            exports: BTreeMap::new(),
            uvm: BTreeMap::new(),
            mapped: BTreeMap::new(),
            fabric: Vec::new(),
            is_corrupted: false,
            has_stale_page: Arc::default(),
            host_memory: Arc::new(host_memory),
            version,
            client_handles,
            state_dir,
        };
        state.look_at_faults();
        state
    }

    /// Returns the file's identity, after everything that closed files held has been freed.
    pub(super) fn enter(&mut self, file: &DeviceFile) -> io::Result<FileId> {
        let id = self.files.identify(file)?;
        if file.node == Node::Control && self.noted.insert(id) {
            self.left.add(id)?;
        }
        self.free_closed();
        self.look_at_faults();
        self.forget_attachments();
        Ok(id)
    }

    /// Forgets what was attached to addresses on the fabric and has been freed since the last call.
    pub(super) fn forget_attachments(&mut self) {
        let clients = &self.clients;
        self.fabric.retain(|addresses| {
            let addresses = addresses.upgrade();
            addresses.inspect(|addresses| addresses.forget_freed(clients)).is_some()
        });
    }

    /// Applies the cards' faults. They are seen late, too.
    fn look_at_faults(&mut self) {
        let Some(faults) = SimulatedFaults::look(&self.state_dir) else { return };
        for index in 0..self.cards.len() {
            let Some(card) = self.cards.get_mut(index) else { return };
            let before = std::mem::replace(&mut card.fault, faults.of(card.card.pci));
            let (is_lost, is_reset) = (card.fault.is_lost, card.fault.resets != before.resets);
            if is_reset {
                self.free_devices(index);
            }
            if is_lost && (is_reset || !before.is_lost) {
                self.end_channels(index);
            }
        }
    }

    /// Ends all channels of a lost card (`kgspRcAndNotifyAllChannels`): they do nothing any more;
    /// their objects stay.
    fn end_channels(&self, card: usize) {
        for client in self.clients.values() {
            let of_card = client.objects.iter().filter(|(handle, _)| client.card_of(**handle) == Some(card));
            of_card.for_each(|(_, object)| {
                if let Kind::Channel { runlist_entry, .. } = &object.kind {
                    runlist_entry.leave();
                }
            });
        }
    }

    /// Frees all clients' devices on a card, with the objects below: a reset, which takes the card
    /// away from the driver, does so (`rmapiDelPendingDevices`).
    fn free_devices(&mut self, card: usize) {
        for client in self.clients.values_mut() {
            let is_device = |kind: &Kind| matches!(kind, Kind::Device { card: own } if *own == card);
            let of_card = client.objects.iter().filter(|(_, object)| is_device(&object.kind));
            let devices: Vec<u32> = of_card.map(|(handle, _)| *handle).collect();
            for device in devices {
                // It may have gone with another one.
                let _ = client.free(device);
            }
        }
        self.exports.retain(|_, export| export.card != Some(card));
    }

    /// Frees everything of files that were closed for the last time. They are seen late: at the
    /// next call.
    pub(super) fn free_closed(&mut self) {
        for closed in self.files.closed() {
            self.exports.remove(&closed);
            self.uvm.remove(&closed);
            self.registered.remove(&closed);
            self.mapped.remove(&closed);
            self.noted.remove(&closed);
            self.os_events.retain(|_, file| *file != closed);
        }
        let (files, registered) = (&self.files, &self.registered);
        let held = |file: &FileId| files.is_known(*file) || registered.values().any(|control| control == file);
        self.clients.retain(|_, client| held(&client.file));
        self.os_events.retain(|(client, _), _| self.clients.contains_key(client));
    }

    /// The client `handle`, if it may be used through `file`: the one it was allocated on, or one
    /// registered to that.
    pub(super) fn client(&mut self, file: FileId, handle: u32) -> Result<&mut Client, Status> {
        let control = self.registered.get(&file).copied().unwrap_or(file);
        let client = self.clients.get_mut(&handle).ok_or(Status::INVALID_OBJECT_HANDLE)?;
        if client.file == control { Ok(client) } else { Err(Status::INVALID_CLIENT) }
    }

    /// A new client on `file`. Its handle is the driver's choice, whatever was asked for.
    pub(super) fn new_client(&mut self, file: FileId) -> Result<u32, Status> {
        let handle = self.choose_client_handle()?;
        self.clients.insert(handle, Client::new(file));
        Ok(handle)
    }

    fn choose_client_handle(&mut self) -> Result<u32, Status> {
        for _ in 0..=self.clients.len() {
            let handle = self.client_handles.next().map_err(|error| {
                tracing::warn!(%error, "the handles of simulated clients cannot be counted");
                Status::GENERIC
            })?;
            if !self.clients.contains_key(&handle) {
                return Ok(handle);
            }
        }
        Err(Status::INSUFFICIENT_RESOURCES)
    }

    /// Allocates memory of the host's.
    pub(super) fn take_of_host(&self, length: u64) -> Result<Arc<HostMemory>, Status> {
        let piece = self.host_memory.take(length, PieceLayout::ANYWHERE).map_err(|error| {
            tracing::warn!(%error, "the account of the host's memory cannot be kept");
            Status::GENERIC
        })?;
        let piece = Some(piece.ok_or(Status::NO_MEMORY)?);
        Ok(Arc::new(HostMemory { length, _piece: piece }))
    }

    pub(super) fn host_memory_used(&self) -> io::Result<u64> {
        self.host_memory.used()
    }

    /// Allocates memory of a card: `length` is what the caller gets to know, and pieces of it are
    /// `consumed` whole.
    pub(super) fn take(
        &self,
        card: usize,
        length: u64,
        consumed: u64,
        layout: PieceLayout,
    ) -> Result<Arc<VideoMemory>, Status> {
        let place = self.cards.get(card).ok_or(Status::INVALID_DEVICE)?;
        let consumed = consumed.checked_next_multiple_of(GRANULE).ok_or(Status::NO_MEMORY)?;
        let piece = place.memory.take(consumed, layout).map_err(|error| place.cannot_count(&error))?;
        let piece = piece.ok_or(Status::NO_MEMORY)?;
        Ok(Arc::new(VideoMemory { card, length, piece, content: Mutex::default() }))
    }
}
