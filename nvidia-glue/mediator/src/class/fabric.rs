//! Addresses on the NVLink fabric: `NV_MEMORY_FABRIC`, and memory that is attached to them.
//!
//! Flexible addresses have no memory of their own. Since 570 what is attached to them is kept by
//! nothing but its own handle, so the ledger has nothing to do with it; before, the driver kept it
//! for as long as the addresses are there, which nobody would count
//! (src/nvidia/src/kernel/mem_mgr/mem_fabric.c, `_memoryFabricAttachMem`).
//!
//! The driver has one tree of what is attached to a block of addresses, for all its handles, and a
//! list of it for each handle. Whoever detaches by another handle than attached has it unlink a
//! piece from the wrong list, and free it (`_memoryFabricDetachMem`, `refRemoveInterMapping`). By a
//! duplicate below another card's device, it writes to that card's page tables. So only the handle
//! that the addresses were made with may do either.

use std::time::Duration;

use abi::{
    DriverRelease, Handle, Status,
    controls::NV00F8_CTRL_CMD_ATTACH_MEM,
    decode::Control,
    layout::Releases,
    params::{
        NV00F8_ALLOCATION_PARAMETERS as Fabric, NV00F8_CTRL_ATTACH_MEM_INFO as AttachInfo,
        NV00F8_CTRL_ATTACH_MEM_PARAMS as Attach,
    },
};
use account::{Card, Kind, ObjectName};
use base::Bytes;

use super::{INVALID, NewObject, ObjectClass, SavedFields};
use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::{named_locks::LockName, topology::ObjectRole},
    requirements::{AllocRequirements, Charge},
};

/// `NV00F8_ALLOC_FLAGS_FLEXIBLE_FLA`: memory is attached later.
const FLEXIBLE: u32 = 1;
/// `NV00F8_ALLOC_FLAGS_FORCE_NONCONTIGUOUS`: for tests of the driver.
const NONCONTIGUOUS: u32 = 2;
/// `NV00F8_ALLOC_FLAGS_FORCE_CONTIGUOUS`.
const CONTIGUOUS: u32 = 4;
/// Releases in which what is attached is not kept.
const FLEXIBLE_RELEASES: Releases = Releases::since(DriverRelease::new(570, 0, 0));
/// Pieces of memory that one call may attach (`NV00F8_MAX_ATTACHABLE_MEM_INFOS`).
const MOST: u16 = 64;

/// `NV00F8_ALLOCATION_PARAMETERS` {alignment, allocSize, pageSize, allocFlags at 24, map {offset,
/// hVidMem at 40, flags}}, as since 535: addresses for memory that exists, or flexible ones.
#[derive(Debug)]
pub(super) struct FabricMemory;

impl ObjectClass for FabricMemory {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let (abi, params) = (new.session.abi, new.params());
        if !Fabric::RELEASES.contain(abi) {
            return Err(CallEnd::Status(Status::NOT_SUPPORTED));
        }
        let (flags, memory) = (Fabric::allocFlags.get(params), Fabric::hVidMem.get(params));
        let (Some(flags), Some(memory)) = (flags, memory) else { return Err(INVALID) };
        let bytes = taken(params).ok_or(INVALID)?;
        if flags & !(NONCONTIGUOUS | CONTIGUOUS) == 0 && memory != Handle::NONE {
            return Ok(Charge::Fabric(ObjectName::new(new.alloc.client, memory), bytes).into());
        }
        if flags & !CONTIGUOUS != FLEXIBLE || memory != Handle::NONE || !FLEXIBLE_RELEASES.contain(abi) {
            return Err(CallEnd::Status(Status::NOT_SUPPORTED));
        }
        let card = new.known_card()?;
        let place = Some((card, ObjectRole::FlexibleFabric));
        Ok(AllocRequirements { place, ..Charge::Addresses((card, Bytes(bytes)), new.flight.pid).into() })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}

impl Session {
    /// Attaches memory to flexible addresses, or detaches it.
    pub(crate) fn attach_control(&self, flight: &mut InFlightCall<'_>, control: Control) -> Result<Answer, CallEnd> {
        // Nobody gives the handles to other objects between the check and the call.
        let status = self.objects.locks.with(&[LockName::Client(control.client)], || {
            let card = lock(&self.objects.topology).flexible_fabric(control.client, control.object);
            // What the driver says of addresses that take nothing.
            let card = card.ok_or(CallEnd::Status(Status::NOT_SUPPORTED))?;
            if control.id == NV00F8_CTRL_CMD_ATTACH_MEM {
                self.may_be_attached(flight.params(), control.client, card)?;
            }
            flight.execute(self.driver.as_ref())
        })?;
        if !status.is_ok() {
            tracing::debug!(
                control = format_args!("{:#010x}", control.id),
                status = format_args!("{:#x}", status.0),
                "the driver does not attach memory to addresses on the fabric, or detach it"
            );
        }
        flight.finish()
    }

    /// Refuses to attach what the container is not charged for on the card that has the addresses:
    /// the driver's own buffers, too, have handles in the client.
    fn may_be_attached(&self, params: &[u8], client: Handle, card: Card) -> Result<(), CallEnd> {
        let count = Attach::numMemInfos.get(params).filter(|count| (1..=MOST).contains(count)).ok_or(INVALID)?;
        let infos = Attach::memInfos.bytes(params).ok_or(INVALID)?;
        let accounts = lock(&self.objects.accounts);
        for info in infos.chunks_exact(AttachInfo::SIZE).take(count.into()) {
            let memory = AttachInfo::hMemory.get(info).ok_or(INVALID)?;
            let known = accounts.object(ObjectName::new(client, memory));
            let is_charged = known.is_some_and(|known| {
                known.kind == Kind::Memory && known.charge.is_some_and(|(on, bytes)| on == card && bytes.0 > 0)
            });
            if !is_charged {
                return Err(CallEnd::Status(Status::OBJECT_NOT_FOUND));
            }
        }
        Ok(())
    }
}

/// Bytes of addresses that nobody else can have then: where there are not as many in a row, the
/// driver takes them page by page, each aligned. `None`: it gives none
/// (`fabricvaspaceAllocNonContiguous`, which complains in the kernel's log).
fn taken(params: &[u8]) -> Option<u64> {
    let (size, page) = (Fabric::allocSize.get(params)?, Fabric::pageSize.get(params)?);
    let alignment = Fabric::alignment.get(params)?;
    let is_any = size > 0 && page > 0 && alignment > 0;
    is_any.then(|| size.div_ceil(page).saturating_mul(alignment.max(page)))
}
