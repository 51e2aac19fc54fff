//! Parking, with the feature `parking`: memory of a container leaves its card for the host and
//! comes back, while its channels are off the card and its calls wait. A prototype
//! (docs/design/parking.md): one card, by hand, and nothing of it is lent to anybody.
//!
//! What leaves are whole objects of class 0x40 of 2 MiB and more to which nothing refers but their
//! handle and external ranges of UVM's. Somebody else copies ([`Copier`]), who gets them as
//! exported files. Host memory is an object of the mediator's own client, so nothing that a program
//! can name changes.

use std::{
    fs::File,
    io,
    sync::{RwLockWriteGuard, TryLockError},
    thread,
    time::{Duration, Instant},
};

use abi::{
    Handle, Node, Status, classes::NV01_MEMORY_LOCAL_USER, params::UVM_MAP_EXTERNAL_ALLOCATION_PARAMS as MapExternal,
};
use account::{ObjectName, UvmFile};
use driver::{DeviceFile, ExternalMapping, HostPages};
use schedule::EdgeError;

use crate::{
    Session, channels::gate::CardGate, grant::OwnCard, locks::lock, memory::movable::Asked,
    objects::named_locks::LockName,
};

/// Smallest object that leaves; places in the host's memory are multiples of it.
const GRANULE: u64 = 2 << 20;
/// Longest wait for calls that are being handled to end.
const QUIET_LIMIT: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);
/// The host's memory in the mediator's own client: one object for each that leaves, as it takes UVM
/// long to map a part of a large one. The number of the first one, and the most.
const OWN_PAGES: u32 = 0xe692_0000;
const MOST_OBJECTS: u32 = 1 << 16;

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copying {
    /// From the card to the host.
    Out,
    /// From the host to the card.
    In,
}

/// One object, for whoever copies.
#[derive(Debug)]
pub struct Piece {
    /// A control file that the object is exported to.
    pub file: DeviceFile,
    /// Its place in the host's pages.
    pub at: u64,
    /// Bytes.
    pub size: u64,
}

/// Somebody who copies between a card and pages that both have.
pub trait Copier {
    /// Copies all of the pieces, and holds nothing of them afterwards.
    ///
    /// # Errors
    /// When not all of it was copied.
    fn copy(&mut self, direction: Copying, pieces: Vec<Piece>) -> io::Result<()>;
}

/// Error that keeps memory where it is.
#[derive(Debug, thiserror::Error)]
pub enum ParkError {
    /// Not one card that the container shares.
    #[error("a container is parked only if it has one card that it computes on, not {cards}")]
    Cards {
        /// Cards that it has.
        cards: usize,
    },
    /// An old driver.
    #[error("memory can be parked with drivers since 550 only")]
    Release,
    /// A call does not end.
    #[error("a driver call of the container's has not ended within {} s; try again", QUIET_LIMIT.as_secs())]
    Busy,
    #[error("the host's pages cannot be mapped")]
    Pages(#[source] io::Error),
    /// The program has allocated or freed since.
    #[error("the container's memory has changed meanwhile; try again")]
    Changed,
    #[error("the container's channels are not taken off its card")]
    Channels(#[source] EdgeError),
    /// The driver.
    #[error("the driver refuses to {step} with status {:#x}", status.0)]
    Refused {
        /// Step that it was asked for.
        step: &'static str,
        status: Status,
    },
    /// A call could not be made.
    #[error("the driver cannot be called to {step}")]
    Call {
        /// Step that was to be taken.
        step: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    #[error("the memory was not copied")]
    Copy(#[source] io::Error),
    /// Memory of the container's is mapped nowhere: it has to end.
    #[error("memory of the container's cannot be mapped again: it ends")]
    Lost,
}

/// Result of a step of the driver's.
fn done(step: &'static str, answer: io::Result<Status>) -> Result<(), ParkError> {
    match answer {
        Ok(status) if status.is_ok() => Ok(()),
        Ok(status) => Err(ParkError::Refused { step, status }),
        Err(source) => Err(ParkError::Call { step, source }),
    }
}

/// An object that can leave its card, or has left it.
#[derive(Debug)]
struct Object {
    name: ObjectName,
    asked: Asked,
    mappings: Vec<(UvmFile, ExternalMapping)>,
    size: u64,
    at: u64,
    /// The host's memory for it.
    pages: Handle,
}

/// A container that is parked: its calls wait for as long as this is there. To be given to
/// [`Session::unpark`]; dropped, the container never comes back.
#[derive(Debug)]
pub struct Parked<'s> {
    objects: Vec<Object>,
    channels: Vec<ObjectName>,
    took: Duration,
    _calls: RwLockWriteGuard<'s, ()>,
    /// After the calls, which need not wait for that.
    _pins: Pins<'s>,
}

/// A container that has not come back.
#[derive(Debug)]
pub struct StillParked<'s> {
    /// To try again with; `None`: memory of it is lost.
    pub parked: Option<Parked<'s>>,
    /// The reason.
    pub error: ParkError,
}

/// Pinned pages of the host's.
#[derive(Debug)]
struct Pins<'s> {
    session: &'s Session,
    count: u32,
    /// Unmapped after the driver has let them go.
    _pages: HostPages,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        (0..self.count).for_each(|at| self.session.free_own(Handle(OWN_PAGES + at)));
    }
}

impl Parked<'_> {
    /// Number of objects that are away, and their bytes.
    pub fn away(&self) -> (usize, u64) {
        (self.objects.len(), self.objects.iter().map(|object| object.size).sum())
    }

    /// Time from the first call that waited.
    pub const fn took(&self) -> Duration {
        self.took
    }
}

impl Session {
    /// Bytes of the host's memory that it takes to park the container now.
    ///
    /// # Errors
    /// When it cannot be parked at all.
    pub fn bytes_to_park(&self) -> Result<u64, ParkError> {
        self.parked_card()?;
        let objects = self.movable_objects();
        Ok(objects.last().map_or(0, |last| last.at.saturating_add(last.size.next_multiple_of(GRANULE))))
    }

    /// Takes the container off its card, and all of its memory that can leave to `pages`, of which
    /// the first `length` bytes are there. What cannot be moved stays.
    ///
    /// # Errors
    /// When the container goes on as if nothing had been tried; but for [`ParkError::Lost`].
    pub fn park(&self, pages: &File, length: u64, copier: &mut dyn Copier) -> Result<Parked<'_>, ParkError> {
        let (card, gate) = self.parked_card()?;
        let planned = self.movable_objects();
        let pins = self.pin_pages(card, HostPages::map(pages, length).map_err(ParkError::Pages)?, &planned)?;
        let began = Instant::now();
        let calls = self.wait_for_calls()?;
        let channels = gate.take_off().map_err(ParkError::Channels)?;
        let objects = self.movable_objects();
        let plan = |objects: &[Object]| objects.iter().map(|object| (object.name, object.size)).collect::<Vec<_>>();
        let is_planned = if plan(&objects) == plan(&planned) { Ok(()) } else { Err(ParkError::Changed) };
        let copied = is_planned.and_then(|()| self.copy(card, &objects, Copying::Out, copier));
        if let Err(error) = copied {
            gate.put_back(&channels);
            return Err(error);
        }
        let mut away = Vec::new();
        for object in objects {
            if self.exchange(&object)? {
                away.push(object);
            }
        }
        Ok(Parked { objects: away, channels, took: began.elapsed(), _calls: calls, _pins: pins })
    }

    fn pin_pages(&self, card: &OwnCard, pages: HostPages, objects: &[Object]) -> Result<Pins<'_>, ParkError> {
        let call = |source| ParkError::Call { step: "pin the host's pages", source };
        let file = self.driver.open(Node::Card(card.granted.minor)).map_err(call)?;
        self.own_raw().register_card_file(&file).map_err(call)?;
        let mut pins = Pins { session: self, count: 0, _pages: pages };
        for object in objects {
            let (memory, range) = ((card.device, object.pages), (object.at, object.size));
            done("pin the host's pages", self.own_raw().pin(&file, memory, &pins._pages, range))?;
            pins.count += 1;
        }
        Ok(pins)
    }

    /// Brings the container's memory back, and the container onto its card; returns the time that
    /// took. What belonged to processes that have ended meanwhile is left out.
    ///
    /// # Errors
    /// When it stays parked, with the reason.
    pub fn unpark<'s>(
        &'s self,
        mut parked: Parked<'s>,
        copier: &mut dyn Copier,
    ) -> Result<Duration, Box<StillParked<'s>>> {
        let began = Instant::now();
        let (card, gate) = match self.parked_card() {
            Ok(found) => found,
            Err(error) => return Err(Box::new(StillParked { parked: Some(parked), error })),
        };
        parked.objects.retain(|object| lock(&self.objects.accounts).object(object.name).is_some());
        for at in 0..parked.objects.len() {
            let made = parked.objects.get(at).map_or(Ok(()), |object| self.make_again(object));
            if let Err(error) = made {
                parked.objects.iter().take(at).for_each(|object| self.free_memory(object.name));
                return Err(Box::new(StillParked { parked: Some(parked), error }));
            }
        }
        if let Err(error) = self.copy(card, &parked.objects, Copying::In, copier) {
            parked.objects.iter().for_each(|object| self.free_memory(object.name));
            return Err(Box::new(StillParked { parked: Some(parked), error }));
        }
        if parked.objects.iter().any(|object| self.map_all(object, false).is_err()) {
            return Err(Box::new(StillParked { parked: None, error: ParkError::Lost }));
        }
        gate.put_back(&parked.channels);
        Ok(began.elapsed())
    }

    /// The one card that a container has.
    fn parked_card(&self) -> Result<(&OwnCard, &CardGate), ParkError> {
        if !MapExternal::RELEASES.contain(self.abi) {
            return Err(ParkError::Release);
        }
        let only = match self.grant.cards.as_slice() {
            [card] if !card.granted.monitored => Some(card),
            _ => None,
        };
        let found = only.zip(self.channels.gates().first().map(AsRef::as_ref));
        found.ok_or(ParkError::Cards { cards: self.grant.cards.len() })
    }

    /// Waits until no call is handled, and lets none begin.
    fn wait_for_calls(&self) -> Result<RwLockWriteGuard<'_, ()>, ParkError> {
        let until = Instant::now() + QUIET_LIMIT;
        loop {
            match self.parking.calls.try_write() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => return Err(ParkError::Busy),
            }
        }
    }

    fn movable_objects(&self) -> Vec<Object> {
        let mapped = lock(&self.parking.table).mapped_objects();
        let files: Vec<UvmFile> = lock(&self.objects.files).all_uvm().iter().map(|kept| kept.id).collect();
        let accounts = lock(&self.objects.accounts);
        let mut at = 0_u64;
        let mut objects = Vec::new();
        let mut handles = (0..MOST_OBJECTS).map(|number| Handle(OWN_PAGES + number));
        for (name, (asked, mut mappings)) in mapped {
            // A file that was given up has no mappings any more.
            mappings.retain(|(file, _)| files.contains(file));
            let bytes = accounts.movable(name, u32::try_from(mappings.len()).unwrap_or(u32::MAX));
            let size = bytes.map(|bytes| bytes.0).filter(|size| *size >= GRANULE);
            if let Some((size, pages)) = size.and_then(|size| Some((size, handles.next()?))) {
                objects.push(Object { name, asked, mappings, size, at, pages });
                at = at.saturating_add(size.next_multiple_of(GRANULE));
            }
        }
        objects
    }

    fn own_raw(&self) -> crate::raw::Raw<'_> {
        self.raw(&self.own.control, self.own.client)
    }

    /// Frees an object of the mediator's own. What is not freed goes with its client.
    fn free_own(&self, object: Handle) {
        let _ = self.own_raw().free(object);
    }

    /// Has all objects copied, through duplicates in the mediator's own client.
    fn copy(
        &self,
        card: &OwnCard,
        objects: &[Object],
        direction: Copying,
        copier: &mut dyn Copier,
    ) -> Result<(), ParkError> {
        let pieces: Result<Vec<Piece>, ParkError> =
            objects.iter().map(|object| self.export_for_copy(card, object)).collect();
        // The exports go with their files, once the copier has closed its own.
        copier.copy(direction, pieces?).map_err(ParkError::Copy)
    }

    fn export_for_copy(&self, card: &OwnCard, object: &Object) -> Result<Piece, ParkError> {
        let call = |step| move |source| ParkError::Call { step, source };
        let file = self.driver.open(Node::Control).map_err(call("open a control file"))?;
        let source = (object.name.client, object.name.object);
        let (status, duplicate) =
            self.own_raw().dup((card.device, Handle::NONE), source).map_err(call("duplicate memory"))?;
        done("duplicate memory", Ok(status))?;
        let exported = done("export memory", self.own_raw().export((card.device, duplicate), &file));
        self.free_own(duplicate);
        exported.map(|()| Piece { file, at: object.at, size: object.size })
    }

    /// Maps the host's memory over an object's mappings, and frees the object. `false`: it is where
    /// it was.
    fn exchange(&self, object: &Object) -> Result<bool, ParkError> {
        if self.map_all(object, true).is_err() {
            return self.map_all(object, false).map(|()| false).map_err(|_| ParkError::Lost);
        }
        let ObjectName { client, object: handle } = object.name;
        let file = lock(&self.objects.files).control_of(client).map(|kept| kept.file);
        let freed = file
            .map(|file| self.objects.locks.with(&[LockName::Client(client)], || self.raw(&file, client).free(handle)));
        match freed {
            Some(Ok(status)) if status.is_ok() => Ok(true),
            _ => self.map_all(object, false).map(|()| false).map_err(|_| ParkError::Lost),
        }
    }

    /// Has all mappings of an object lead to the host's memory, or to itself.
    fn map_all(&self, object: &Object, to_host: bool) -> Result<(), ParkError> {
        let files = lock(&self.objects.files).all_uvm();
        let of_program = self.raw(&self.own.control, object.name.client);
        let (raw, memory) = if to_host { (self.own_raw(), object.pages) } else { (of_program, object.name.object) };
        for (id, mapping) in &object.mappings {
            // With a file that was given up went its mappings.
            let Some(uvm) = files.iter().find(|kept| kept.id == *id) else { continue };
            let names = [LockName::Client(object.name.client), LockName::Uvm(*id)];
            let map = || raw.map_external(&uvm.file, memory, mapping, !to_host);
            done("map memory", self.objects.locks.with(&names, map))?;
        }
        Ok(())
    }

    /// Makes an object once more, with the handle that it had.
    fn make_again(&self, object: &Object) -> Result<(), ParkError> {
        let ObjectName { client, object: handle } = object.name;
        let step = "allocate memory of the card";
        let file = lock(&self.objects.files).control_of(client).map(|kept| kept.file);
        let file = file.ok_or(ParkError::Refused { step, status: Status::INVALID_CLIENT })?;
        let Asked { parent, params } = object.asked.clone();
        let made = self.objects.locks.with(&[LockName::Client(client)], || {
            self.raw(&file, client).alloc(parent, handle, NV01_MEMORY_LOCAL_USER, params)
        });
        done(step, made.map(|(status, _)| status))
    }

    fn free_memory(&self, name: ObjectName) {
        if let Some(kept) = lock(&self.objects.files).control_of(name.client) {
            let free = || self.raw(&kept.file, name.client).free(name.object);
            let _ = self.objects.locks.with(&[LockName::Client(name.client)], free);
        }
    }
}
