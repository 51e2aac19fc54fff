//! `RM_USER_SHARED_DATA`: the page on which the driver tells about a card.

use std::time::Duration;

use abi::Handle;
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, objects::topology::ObjectRole, requirements::AllocRequirements, view};

#[derive(Debug)]
pub(super) struct UserSharedData;

impl ObjectClass for UserSharedData {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let is_watched = view::utilization::asks_for_load(new.params());
        let place = new.card().map(|card| (card, ObjectRole::SharedData { is_watched }));
        Ok(AllocRequirements { place, ..new.counted(Kind::Other) })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
