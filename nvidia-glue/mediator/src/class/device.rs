//! A card, `NV01_DEVICE_0`, which must be granted.
//!
//! A device has an address space for whoever names none: without `hClientShare` one that all
//! clients of the card have in common, neighbours too; it gets one of its own. Its page tables are
//! to come from the card's memory like everybody's, not from the driver's own small heap, without
//! which no new program starts on the card (device_share.c, `deviceInitClientShare`).

use std::time::Duration;

use abi::{Handle, Status, memory, params::NV0080_ALLOC_PARAMETERS as Params};
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, objects::topology::ObjectRole, requirements::AllocRequirements};

/// `NV_DEVICE_ALLOCATION_FLAGS_VASPACE_PTABLE_PMA_MANAGED` (nvos.h).
const PAGE_TABLES_OF_ALL_MEMORY: u32 = 0x1000;

#[derive(Debug)]
pub(super) struct Device;

impl ObjectClass for Device {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let (session, params) = (new.session, new.params());
        let instance = memory::device_instance(params);
        let card = session.grant.by_device_instance(instance).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        for client in memory::device_other_clients(params).into_iter().filter(|client| *client != 0) {
            session.check_client(Handle(client))?;
        }
        Ok(AllocRequirements { place: Some((card, ObjectRole::Device)), ..new.counted(Kind::Device(card)) })
    }

    fn override_params(&self, client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        let mut saved = SavedFields::default();
        saved.replace(params, Params::hClientShare.at(), |share| if share == 0 { client.0 } else { share })?;
        saved.replace(params, Params::flags.at(), |flags| flags | PAGE_TABLES_OF_ALL_MEMORY)?;
        Ok(saved)
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
