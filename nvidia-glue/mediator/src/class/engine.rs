//! An engine's object in a channel. The first one of the graphics engine brings a context.

use std::time::Duration;

use abi::{Handle, classes::EngineKind};
use account::{Kind, ObjectName};

use super::{NewObject, ObjectClass, SavedFields};
use crate::{
    in_flight::CallEnd,
    requirements::{AllocAbort, AllocRequirements},
};

#[derive(Debug)]
pub(super) struct Engine(EngineKind);

impl Engine {
    pub(super) const fn of(kind: EngineKind) -> &'static Self {
        match kind {
            EngineKind::Graphics => &Self(EngineKind::Graphics),
            EngineKind::Compute => &Self(EngineKind::Compute),
            EngineKind::TwoD => &Self(EngineKind::TwoD),
            EngineKind::InlineToMemory => &Self(EngineKind::InlineToMemory),
            EngineKind::Copy => &Self(EngineKind::Copy),
            EngineKind::Video => &Self(EngineKind::Video),
        }
    }
}

impl ObjectClass for Engine {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        new.session.make_preemptible(new.flight, new.alloc, self.0)?;
        Ok(new.counted(Kind::Engine(new.alloc.class)))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }

    fn complete(&self, new: &NewObject<'_, '_>, made: ObjectName) -> Result<(), AllocAbort> {
        let NewObject { session, flight, alloc } = *new;
        session.channels.works_on(ObjectName::new(alloc.client, alloc.parent), self.0);
        if self.0.is_of_graphics_engine() { session.charge_context(flight, alloc.parent, made) } else { Ok(()) }
    }
}
