//! A part of a card, `NV20_SUBDEVICE_0`.

use std::time::Duration;

use abi::Handle;
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, objects::topology::ObjectRole, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct Subdevice;

impl ObjectClass for Subdevice {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let card = new.card();
        let kind = card.map_or(Kind::Other, Kind::Device);
        Ok(AllocRequirements { place: card.map(|card| (card, ObjectRole::Subdevice)), ..new.counted(kind) })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
