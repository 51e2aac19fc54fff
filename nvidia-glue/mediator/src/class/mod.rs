//! Classes of objects, one file a class: what an object of it needs, what it is charged, and what
//! the driver reads in its parameters instead of what the program has put there.

mod address_space;
mod channel;
mod channel_group;
mod context_dma;
mod context_share;
mod debugger;
mod device;
mod engine;
mod event;
mod fabric;
mod plain;
mod reference;
mod shared_data;
mod subdevice;
mod system_memory;
mod video_memory;
mod virtual_memory;

use std::time::Duration;

use abi::{
    Handle, Status,
    classes::{ClassKind, EventKind, MPS_COMPUTE},
    decode::Alloc,
    layout::{read_u32, write_u32},
    memory::{Layout, MemoryRequest},
    params::Field,
};
use account::{AllocRequest, Card, Kind, ObjectName};
use base::Bytes;
pub(crate) use video_memory::may_be_placed;

use crate::{
    Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    requirements::{AllocAbort, AllocRequirements, Charge},
};

/// Decisions about the objects of a class. A question about memory, time or rights has no default:
/// each class answers it.
pub(crate) trait ObjectClass: std::fmt::Debug + Sync {
    /// Checks what the parameters name, and returns what the object needs and is charged.
    ///
    /// Precondition: the client is locked.
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd>;

    /// Puts into the parameters what the driver is to read there, and refuses what no program is to
    /// have.
    fn override_params(&self, client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd>;

    /// Returns the time that the driver spends on an object, and on its end. Reads the parameters
    /// as the driver has left them.
    fn driver_time(&self, params: &[u8]) -> Option<Duration>;

    /// Does what comes before the client is locked.
    fn prepare(&self, _session: &Session, _flight: &mut InFlightCall<'_>, _alloc: Alloc) -> Result<(), CallEnd> {
        Ok(())
    }

    /// Does what follows from an object's being made.
    ///
    /// Precondition: the client is locked.
    fn complete(&self, _new: &NewObject<'_, '_>, _made: ObjectName) -> Result<(), AllocAbort> {
        Ok(())
    }
}

/// Product of an allocation by class.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Handler {
    Client,
    Object(&'static dyn ObjectClass),
}

/// Returns the handler of a kind of class.
///
/// # Errors
/// With the status that is answered, where the driver is not asked.
pub(crate) fn handler(kind: ClassKind) -> Result<Handler, Status> {
    let class: &'static dyn ObjectClass = match kind {
        ClassKind::Root => return Ok(Handler::Client),
        ClassKind::Answered(status, _) | ClassKind::Refused(status, _) => return Err(status),
        ClassKind::Device => &device::Device,
        ClassKind::Subdevice => &subdevice::Subdevice,
        ClassKind::VideoMemory => &video_memory::VideoMemory,
        ClassKind::SystemMemory => &system_memory::SystemMemory,
        ClassKind::VirtualMemory => &virtual_memory::VirtualMemory,
        ClassKind::AddressSpace => &address_space::AddressSpace,
        ClassKind::ChannelGroup => &channel_group::ChannelGroup,
        ClassKind::Channel => &channel::Channel,
        ClassKind::ContextShare => &context_share::ContextShare,
        ClassKind::Engine(kind) => engine::Engine::of(kind),
        ClassKind::Event(EventKind::OsEvent) => &event::Event(EventKind::OsEvent),
        ClassKind::Event(EventKind::ByClass) => &event::Event(EventKind::ByClass),
        ClassKind::UserSharedData => &shared_data::UserSharedData,
        ClassKind::MemoryReference => &reference::MemoryReference,
        ClassKind::FabricMemory => &fabric::FabricMemory,
        ClassKind::Debugger => &debugger::Debugger,
        // The driver looks the subdevices that its parameters name up in the program's own client,
        // which has none of a card that is not granted.
        ClassKind::PeerToPeer => &plain::Plain(Kind::Other),
        ClassKind::ContextDma => &context_dma::ContextDma,
        // The accounts can be asked whether there is one.
        ClassKind::Mps => &plain::Plain(Kind::Engine(MPS_COMPUTE)),
        ClassKind::Plain => &plain::Plain(Kind::Other),
    };
    Ok(Handler::Object(class))
}

/// An object that an allocation by class asks for.
#[derive(Clone, Copy)]
pub(crate) struct NewObject<'a, 'f> {
    pub(crate) session: &'a Session,
    pub(crate) flight: &'a InFlightCall<'f>,
    pub(crate) alloc: Alloc,
}

impl NewObject<'_, '_> {
    fn params(&self) -> &[u8] {
        self.flight.params()
    }

    /// Returns the card that its parent is on.
    fn card(&self) -> Option<Card> {
        lock(&self.session.objects.topology).card_of(self.alloc.client, self.alloc.parent)
    }

    /// Returns the same where an object on an unknown card would be charged to none.
    fn known_card(&self) -> Result<Card, CallEnd> {
        self.card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))
    }

    fn memory_request(&self) -> Result<MemoryRequest, CallEnd> {
        MemoryRequest::of_params(self.params()).ok_or(INVALID)
    }

    /// Returns the handles in these fields, without those that are null.
    fn handles(&self, fields: &[Field<Handle>]) -> Vec<Handle> {
        handles(self.params(), fields)
    }

    /// Returns the requirements of an object that may have memory.
    fn charged(&self, kind: Kind, memory: Option<(Card, Bytes)>, layout: Layout) -> AllocRequirements {
        let (client, process) = (self.alloc.client, self.flight.pid);
        Charge::Object(AllocRequest { client, kind, memory, layout, process }).into()
    }

    /// Returns the requirements of an object that only counts.
    fn counted(&self, kind: Kind) -> AllocRequirements {
        self.charged(kind, None, Layout::OwnFrames)
    }
}

/// Values of the program's that the driver is not to read.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct SavedFields(Vec<(usize, u32)>);

impl SavedFields {
    /// Replaces the value at an offset, until [`SavedFields::restore`].
    fn replace(&mut self, params: &mut [u8], at: usize, change: impl Fn(u32) -> u32) -> Result<(), CallEnd> {
        let said = read_u32(params, at).ok_or(INVALID)?;
        let is_put = write_u32(params, at, change(said));
        self.0.push((at, said));
        if is_put { Ok(()) } else { Err(INVALID) }
    }

    /// Once the driver has read them, they are the program's again, which may have them where it
    /// cannot be written.
    pub(crate) fn restore(self, params: &mut [u8]) {
        for (at, value) in self.0 {
            let _ = write_u32(params, at, value);
        }
    }
}

const INVALID: CallEnd = CallEnd::Status(Status::INVALID_ARGUMENT);

fn handles(params: &[u8], fields: &[Field<Handle>]) -> Vec<Handle> {
    fields.iter().filter_map(|field| field.get(params)).filter(|handle| *handle != Handle::NONE).collect()
}
