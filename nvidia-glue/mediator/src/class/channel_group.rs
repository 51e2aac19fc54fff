//! A channel group (TSG), `KEPLER_CHANNEL_GROUP_A` (`NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`,
//! nvos.h): its context buffers are charged.

use std::time::Duration;

use abi::{Handle, params::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS as Params};
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{
    channels::{SchedulingRole, driver_time},
    in_flight::CallEnd,
    memory::context_buffers,
    objects::topology::ObjectRole,
    requirements::AllocRequirements,
};

#[derive(Debug)]
pub(super) struct ChannelGroup;

impl ObjectClass for ChannelGroup {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let card = new.known_card()?;
        let notifiers = new.handles(&[Params::hObjectError, Params::hObjectEccError]);
        new.notifiers_are_known(&notifiers)?;
        let engine = Params::engineType.get(new.params()).unwrap_or(0);
        let memory = (card, context_buffers::expected(engine));
        Ok(AllocRequirements {
            notifiers,
            place: Some((card, ObjectRole::NEW_GROUP)),
            role: Some(SchedulingRole::Group(engine)),
            dependencies: new.handles(&[Params::hVASpace]),
            ..new.charged(Kind::ChannelGroup(card), Some(memory), context_buffers::LAYOUT)
        })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        Some(driver_time::CHANNEL_GROUP)
    }
}
