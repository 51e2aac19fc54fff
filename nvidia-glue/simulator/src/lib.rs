//! A resource manager and unified memory without any card: for trying, demonstrating and testing
//! egpu anywhere.
//!
//! It has the bytes, sizes, statuses and life times of release 580.159.04 (the version that
//! simulated cards claim): the same checks of nodes, open files, handles and parents, the same
//! rounding of memory, and the same references that keep memory after its handle is gone. What it
//! cannot have is a processor: nothing that is submitted is computed, mapped memory has no content,
//! no event comes. But there is time: the channels of all processes share each card's engines as
//! real ones do, and each is given what it would have had of them (`engines`). What the kernel
//! would do in a caller's own context is done here in its place ([`Driver::in_callers_place`]).
//!
//! A client is owned by the open file that it was made on; when the last descriptor of that is
//! closed, it is freed with all that hangs on it. No process is notified of that, so it is seen at
//! the next call of any kind, by locks that stay with open files (`open_files`). Cards' memory is
//! one account for the machine (`card_memory`), so that an oversubscribed card is full for all its
//! users, and so is their time.
//!
//! Cards fail as whoever writes their error into the simulated kernel log wants it
//! (`cards::SimulatedFaults`): a card is lost, comes back, or its firmware does not answer.
#![forbid(unsafe_code)]

mod allocate;
mod bytes;
mod call;
mod card_memory;
mod card_page;
mod classes;
mod client_handles;
mod controls;
mod duplicate;
mod engines;
mod escapes;
mod fabric;
mod file_watch;
mod left_files;
mod objects;
mod open_files;
mod participants;
mod state;
#[cfg(test)]
mod tests;
mod uvm;
mod uvm_file;
mod vid_heap;

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use abi::{Abi, Handle, Node, Status};
use base::{Bytes, ProcessId};
use cards::{Card, CardMemory as CardMemoryUsed, Inventory, SimulatedNodesError, make_simulated_nodes};

use self::{
    call::Call,
    card_memory::CardMemory,
    client_handles::ClientHandles,
    engines::{Clock, Engines},
    file_watch::LockWatch,
    left_files::LeftFiles,
    open_files::OpenFiles,
    state::{SimulatedCard, State},
};
use driver::{CardPlace, DeviceFile, Driver, DriverCall, FileWatch, MappedPage, OwnClient};
use schedule::{SwitchLog, SwitchLogError};

/// The simulated driver could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedDriverError {
    #[error(transparent)]
    Nodes(#[from] SimulatedNodesError),
    #[error("the simulated driver cannot use {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Name of the account of the host's memory, where those of cards have a UUID.
const HOST_MEMORY: &str = "host";

/// The driver of simulated cards.
#[derive(Debug)]
pub struct SimulatedDriver {
    /// Device, inode and path of each node.
    nodes: HashMap<(u64, u64), (Node, PathBuf)>,
    state: Mutex<State>,
}

impl SimulatedDriver {
    /// The driver of the simulated cards of `inventory`, whose nodes (made if need be) and accounts
    /// are below `state_dir`.
    ///
    /// # Errors
    /// When the state directory cannot be written.
    pub fn new(state_dir: &Path, inventory: &Inventory) -> Result<Self, SimulatedDriverError> {
        Self::with_clock(state_dir, inventory, &Clock::Monotonic)
    }

    fn with_clock(state_dir: &Path, inventory: &Inventory, clock: &Clock) -> Result<Self, SimulatedDriverError> {
        let made = make_simulated_nodes(state_dir, inventory)?;
        let cards = made.cards.into_iter().map(|(minor, path)| (Node::Card(minor), path));
        let all = cards.chain([(Node::Control, made.control), (Node::Uvm, made.uvm)]);
        let (mut nodes, mut own) = (HashMap::new(), HashMap::new());
        for (node, path) in all {
            let at = |source| SimulatedDriverError::File { path: path.clone(), source };
            let file = open(&path).map_err(at)?;
            let metadata = file.metadata().map_err(at)?;
            own.insert(node, file);
            nodes.insert((metadata.dev(), metadata.ino()), (node, path));
        }
        let directory = state_dir.join("simulated");
        let this_process = ProcessId::current()
            .map_err(|source| SimulatedDriverError::File { path: PathBuf::from("/proc/self/stat"), source })?;
        let control = own.get(&Node::Control).map(File::try_clone);
        let left = control.ok_or(io::ErrorKind::NotFound.into()).flatten();
        let left = left.and_then(|control| LeftFiles::new(&directory, control, this_process));
        let left = Arc::new(left.map_err(|source| SimulatedDriverError::File { path: directory.clone(), source })?);
        let simulated = |card: &Card| {
            let at = |source| SimulatedDriverError::File { path: directory.join(&card.uuid), source };
            let memory = CardMemory::new(&directory, &card.uuid, card.memory.0, this_process);
            let memory = memory.map_err(at)?.with_left(Arc::clone(&left));
            let node = own.get(&Node::Card(card.minor)).ok_or_else(|| at(io::ErrorKind::NotFound.into()))?;
            let node = node.try_clone().map_err(at)?;
            let engines = Engines::new(&directory, card, node, this_process, clock.clone()).map_err(at)?;
            Ok(SimulatedCard::new(card.clone(), memory, engines))
        };
        let cards = inventory.cards.iter().map(simulated).collect::<Result<_, SimulatedDriverError>>()?;
        let handles = ClientHandles::new(&directory)
            .map_err(|source| SimulatedDriverError::File { path: directory.clone(), source })?;
        let host = CardMemory::new(&directory, HOST_MEMORY, u64::MAX, this_process)
            .map_err(|source| SimulatedDriverError::File { path: directory.join(HOST_MEMORY), source })?;
        let version = inventory.driver_version.clone();
        let state = State::new(cards, (OpenFiles::new(own), left), handles, host, version, state_dir.to_owned());
        Ok(Self { nodes, state: Mutex::new(state) })
    }

    /// Returns whether there is such a client; for tests.
    pub fn has_client(&self, client: u32) -> bool {
        let mut state = self.state();
        state.free_closed();
        state.clients.contains_key(&client)
    }

    /// Bytes of the video memory that a handle stands for; for tests.
    pub fn length_of(&self, client: u32, object: u32) -> Option<u64> {
        match &self.state().clients.get(&client)?.objects.get(&object)?.kind {
            objects::Kind::VideoMemory(memory) => Some(memory.length),
            _ => None,
        }
    }

    /// Returns how many pieces of memory are attached to addresses on the fabric; for tests.
    pub fn attached_to(&self, client: u32, object: u32) -> Option<usize> {
        let mut state = self.state();
        state.free_closed();
        state.forget_attachments();
        match &state.clients.get(&client)?.objects.get(&object)?.kind {
            objects::Kind::Fabric(addresses) => Some(addresses.count()),
            _ => None,
        }
    }

    /// Returns whether something was let through that makes a real driver write to memory that it
    /// has freed, or to page tables that it should not, or a page outlived its memory; for tests.
    pub fn is_corrupted(&self) -> bool {
        let state = self.state();
        state.is_corrupted || state.has_stale_page.load(Ordering::Relaxed)
    }

    /// Writes where a channel's ring has been fetched and filled up to, in memory of its client's;
    /// for tests.
    ///
    /// # Errors
    /// When there is no such channel, or its USERD is not in video memory.
    pub fn write_userd(&self, channel: (u32, u32), get: u32, put: u32) -> Result<(), Status> {
        card_page::write_userd(&self.state(), channel, get, put)
    }

    /// Memory of each card that all processes of the machine have taken; none of one that is lost.
    ///
    /// # Errors
    /// When a card's file cannot be read.
    pub fn memory_used(&self) -> io::Result<Vec<CardMemoryUsed>> {
        let state = self.state();
        let used = |card: &SimulatedCard| {
            let used = Bytes(if card.check().is_ok() { card.memory.used()? } else { 0 });
            Ok(CardMemoryUsed { card: card.card.uuid.clone(), used, processes: Vec::new() })
        };
        state.cards.iter().map(used).collect()
    }

    /// Bytes of the host's memory that it has taken; for tests.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn host_memory_used(&self) -> io::Result<u64> {
        let mut state = self.state();
        state.free_closed();
        state.host_memory_used()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves at worst an object too many.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for SimulatedDriver {
    fn ioctl(&self, file: &DeviceFile, call: DriverCall<'_>) -> io::Result<i32> {
        let DriverCall { command, args, buffers, files } = call;
        let mut state = self.state();
        let id = state.enter(file)?;
        let call = Call { file: id, args, buffers, files };
        match file.node {
            Node::Uvm => uvm::execute(&mut state, command, call),
            node => escapes::execute(&mut state, node, command, call),
        }
    }

    fn in_callers_place(&self, file: &DeviceFile, call: DriverCall<'_>) -> Option<io::Result<i32>> {
        Some(self.ioctl(file, call))
    }

    fn is_in_kernel(&self) -> bool {
        false
    }

    fn open(&self, node: Node) -> io::Result<DeviceFile> {
        let path = self.nodes.values().find(|(known, _)| *known == node).map(|(_, path)| path);
        let path =
            path.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no simulated card has this minor number"))?;
        let file = DeviceFile { node, file: Arc::new(open(path)?) };
        self.state().enter(&file)?;
        Ok(file)
    }

    fn node_of(&self, file: &File) -> io::Result<Option<Node>> {
        let metadata = file.metadata()?;
        Ok(self.nodes.get(&(metadata.dev(), metadata.ino())).map(|(node, _)| *node))
    }

    fn client_exists(&self, _: &OwnClient, client: Handle) -> io::Result<bool> {
        let mut state = self.state();
        state.free_closed();
        Ok(state.clients.contains_key(&client.0))
    }

    fn file_watch(&self) -> io::Result<Box<dyn FileWatch>> {
        let own = self.nodes.values().map(|(node, path)| Ok((*node, open(path)?)));
        Ok(Box::new(LockWatch::new(OpenFiles::new(own.collect::<io::Result<_>>()?))))
    }

    fn map_page(&self, _: &Abi, own: &OwnClient, place: CardPlace) -> io::Result<Box<dyn MappedPage>> {
        card_page::map(&self.state(), own, place)
    }

    fn switch_log(
        &self,
        _: &Abi,
        own: &OwnClient,
        subdevice: Handle,
    ) -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> {
        let engines = {
            let state = self.state();
            let card = state.clients.get(&own.client.0).and_then(|client| client.card_of(subdevice.0));
            card.and_then(|card| state.cards.get(card)).map(|card| Arc::clone(&card.engines))
        };
        let switches = engines.map(|engines| engines.switches()).transpose();
        let switches =
            switches.map_err(|source| SwitchLogError::Call { call: "the log of a simulated card", source })?;
        Ok(switches.map(|switches| Box::new(switches) as Box<dyn SwitchLog>))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}
