//! A channel (`NV_CHANNEL_ALLOC_PARAMS`, src/common/sdk/nvidia/inc/alloc/alloc_channel.h): the
//! objects that its parameters name, which it goes with, keeps and tells, and those that they may
//! not name.

use std::time::Duration;

use abi::{Handle, Status, decode::Alloc, params::NV_CHANNEL_ALLOC_PARAMS as Params};
use account::{Kind, ObjectName};

use super::{NewObject, ObjectClass, SavedFields, handles};
use crate::{
    Session,
    channels::{SchedulingRole, driver_time, gate::Userd},
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    memory::context_buffers,
    objects::topology::ObjectRole,
    requirements::AllocRequirements,
};

/// Bytes of a USERD (`NV_RAMUSERD_CHAN_SIZE`, Volta and later).
const USERD_SIZE: u64 = 512;
/// Subdevices that a channel may have memory on.
const NV_MAX_SUBDEVICES: usize = 8;

#[derive(Debug)]
pub(super) struct Channel;

impl ObjectClass for Channel {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        // One on a card that is not known would run whenever it likes.
        let card = new.known_card()?;
        let params = new.params();
        let is_grouped = lock(&new.session.objects.topology).group(new.alloc.client, new.alloc.parent).is_some();
        new.userd_is_known()?;
        let notifiers = new.handles(&[Params::hObjectError, Params::hObjectEccError]);
        new.notifiers_are_known(&notifiers)?;
        takes_one_address_space(params, is_grouped)?;
        let engine = Params::engineType.get(params).unwrap_or(0);
        // One that is not in a group gets buffers of its own.
        let memory = (!is_grouped).then(|| (card, context_buffers::expected(engine)));
        let kind = Kind::Channel { card, is_bare: memory.is_some() };
        Ok(AllocRequirements {
            notifiers,
            place: Some((card, ObjectRole::NEW_CHANNEL)),
            role: Some(SchedulingRole::Channel(engine, userd(params))),
            dependencies: new.handles(&[Params::hContextShare, Params::hVASpace]),
            references: userd_memory(params),
            ..new.charged(kind, memory, context_buffers::LAYOUT)
        })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        Some(driver_time::CHANNEL)
    }

    fn prepare(&self, session: &Session, flight: &mut InFlightCall<'_>, alloc: Alloc) -> Result<(), CallEnd> {
        // In a group that does work it could do some, too, before it is taken off.
        Ok(session.channels.wait_to_attach(flight.caller, ObjectName::new(alloc.client, alloc.parent))?)
    }
}

/// Returns the memory that a channel's USERD is in. The channel outlives its handle, and keeps it.
fn userd_memory(params: &[u8]) -> Vec<Handle> {
    Params::hUserdMemory.element(0).map_or_else(Vec::new, |memory| handles(params, &[memory]))
}

/// Returns where a channel's USERD is; `None`: in memory of the driver's own.
fn userd(params: &[u8]) -> Option<Userd> {
    let memory = *userd_memory(params).first()?;
    let offset = Params::userdOffset.element(0)?.get(params)?;
    Some(Userd { memory, offset })
}

/// A channel has the address space of its context share, its group or its own. The driver refuses
/// more of them, too, with a line in the kernel's log each time
/// (src/nvidia/src/kernel/gpu/fifo/kernel_channel.c).
fn takes_one_address_space(params: &[u8], is_grouped: bool) -> Result<(), CallEnd> {
    let has = |field| !handles(params, &[field]).is_empty();
    let (has_share, has_space) = (has(Params::hContextShare), has(Params::hVASpace));
    if has_space && (has_share || is_grouped) { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}

impl NewObject<'_, '_> {
    /// A channel keeps the memory that its USERD is in, but goes with it (570 to 595) where that is
    /// pinned memory of the program's (`NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`): whoever opens and
    /// closes the gate would go on naming a channel that is not there. No program that was recorded
    /// has it there, and none may.
    ///
    /// The driver adds the offset to the memory's first physical address and asks no further
    /// (`kchannelCreateUserdMemDesc_GV100`,
    /// src/nvidia/src/kernel/gpu/fifo/arch/volta/kernel_channel_gv100.c, 525 to 595): beyond the
    /// memory's end the card would write into whatever lies there. A range of addresses (0x50a0) is
    /// none that it could be in.
    fn userd_is_known(&self) -> Result<(), CallEnd> {
        let params = self.params();
        for index in 0..NV_MAX_SUBDEVICES {
            let memory = Params::hUserdMemory.element(index).and_then(|field| field.get(params));
            let offset = Params::userdOffset.element(index).and_then(|field| field.get(params));
            let (Some(memory), Some(offset)) = (memory, offset) else { continue };
            if memory == Handle::NONE && (index == 0 || offset == 0) {
                continue;
            }
            // Only a card's first subdevice has one; programs leave the others out.
            if index > 0 {
                return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
            }
            let memory = lock(&self.session.objects.accounts).object(ObjectName::new(self.alloc.client, memory));
            let memory = memory.filter(|memory| memory.kind == Kind::Memory && memory.length.0 > 0);
            let length = memory.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?.length.0;
            if offset.checked_add(USERD_SIZE).is_none_or(|end| end > length) {
                return Err(CallEnd::Status(Status::INVALID_OFFSET));
            }
        }
        Ok(())
    }

    /// The driver goes on writing a channel's errors to where it found that memory when the channel
    /// was made, and holds it by nothing (`pErrContextMemDesc`,
    /// src/nvidia/src/kernel/gpu/fifo/kernel_channel.c): only what is seen to be freed may be told.
    pub(super) fn notifiers_are_known(&self, notifiers: &[Handle]) -> Result<(), CallEnd> {
        let accounts = lock(&self.session.objects.accounts);
        let is_known = |notifier: &Handle| {
            let object = accounts.object(ObjectName::new(self.alloc.client, *notifier));
            // Memory, or a context DMA, which goes with the memory that it is of.
            object.is_some_and(|object| match object.kind {
                Kind::Memory => object.length.0 > 0,
                Kind::Other => object.has_dependencies,
                Kind::ChannelGroup(_)
                | Kind::Channel { .. }
                | Kind::AddressSpace
                | Kind::Pinned
                | Kind::Device(_)
                | Kind::Event
                | Kind::Engine(_) => false,
            })
        };
        if notifiers.iter().all(is_known) { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
    }
}
