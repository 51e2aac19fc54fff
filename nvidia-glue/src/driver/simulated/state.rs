//! What the simulated driver knows: cards, open files, clients, address spaces, exports.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    card_memory::{CardMemory, GRANULE},
    client_handles::ClientHandles,
    engines::Engines,
    objects::{Client, GENERIC, INVALID_OBJECT_HANDLE, VideoMemory},
    open_files::{FileId, OpenFiles},
    uvm::UvmFile,
};
use crate::{cards::Card, driver::DeviceFile, rm::Status};

/// A card, and what is taken of it.
#[derive(Debug)]
pub(super) struct SimulatedCard {
    pub(super) card: Card,
    pub(super) memory: Arc<CardMemory>,
    pub(super) engines: Arc<Engines>,
    next_address: u64,
}

impl SimulatedCard {
    pub(super) fn new(card: Card, memory: CardMemory, engines: Engines) -> Self {
        Self { card, memory: Arc::new(memory), engines: Arc::new(engines), next_address: 0 }
    }

    /// An account of the card cannot be kept.
    pub(super) fn cannot_count(&self, error: &io::Error) -> Status {
        tracing::warn!(%error, card = self.card.uuid, "a simulated card's account cannot be kept");
        GENERIC
    }

    /// The driver's number of the card: domain, bus and device, as `gpuId` is made.
    pub(super) fn gpu_id(&self) -> u32 {
        let pci = self.card.pci;
        pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device)
    }
}

/// What a control file shares with whoever has it: memory that outlives its first owner.
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
    pub(super) clients: BTreeMap<u32, Client>,
    /// Control files by the file that was registered to them, which keeps them open.
    pub(super) registered: BTreeMap<FileId, FileId>,
    pub(super) exports: BTreeMap<FileId, Export>,
    pub(super) uvm: BTreeMap<FileId, UvmFile>,
    /// What the driver calls its version.
    pub(super) version: String,
    client_handles: ClientHandles,
}

impl State {
    pub(super) fn new(
        cards: Vec<SimulatedCard>,
        files: OpenFiles,
        client_handles: ClientHandles,
        version: String,
    ) -> Self {
        Self {
            cards,
            files,
            clients: BTreeMap::new(),
            registered: BTreeMap::new(),
            exports: BTreeMap::new(),
            uvm: BTreeMap::new(),
            version,
            client_handles,
        }
    }

    /// Which file this is, after everything that closed files held has been freed.
    pub(super) fn enter(&mut self, file: &DeviceFile) -> io::Result<FileId> {
        let id = self.files.identify(file)?;
        self.free_closed();
        Ok(id)
    }

    /// Does what last closes do. They are seen late: at the next call.
    pub(super) fn free_closed(&mut self) {
        for closed in self.files.closed() {
            self.exports.remove(&closed);
            self.uvm.remove(&closed);
            self.registered.remove(&closed);
        }
        let (files, registered) = (&self.files, &self.registered);
        let held = |file: &FileId| files.is_known(*file) || registered.values().any(|control| control == file);
        self.clients.retain(|_, client| held(&client.file));
    }

    /// The client `handle`, if it may be used through `file`: the one it was allocated on, or one registered to that.
    pub(super) fn client(&mut self, file: FileId, handle: u32) -> Result<&mut Client, Status> {
        let control = self.registered.get(&file).copied().unwrap_or(file);
        let client = self.clients.get_mut(&handle).ok_or(INVALID_OBJECT_HANDLE)?;
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
                GENERIC
            })?;
            if !self.clients.contains_key(&handle) {
                return Ok(handle);
            }
        }
        Err(Status::INSUFFICIENT_RESOURCES)
    }

    /// Takes memory of a card: `length` is what the caller is told, and pieces of it are `consumed` whole.
    pub(super) fn take(&mut self, card: usize, length: u64, consumed: u64) -> Result<Arc<VideoMemory>, Status> {
        let place = self.cards.get_mut(card).ok_or(Status::INVALID_DEVICE)?;
        let consumed = consumed.checked_next_multiple_of(GRANULE).ok_or(Status::NO_MEMORY)?;
        let piece = place.memory.take(consumed).map_err(|error| place.cannot_count(&error))?;
        let piece = piece.ok_or(Status::NO_MEMORY)?;
        let address = place.next_address;
        place.next_address = place.next_address.wrapping_add(consumed);
        Ok(Arc::new(VideoMemory { card, length, _piece: piece, address }))
    }
}
