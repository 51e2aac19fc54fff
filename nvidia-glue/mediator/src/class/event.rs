//! Events: each watches an object of the container's, and wakes a file.
//!
//! They bring no data: those that bring some are queued in the kernel without limit until they are
//! read, and each interrupt of an engine makes one (kernel-open/nvidia/nv.c, `nv_post_event`). CUDA
//! has all of its own without data.

use std::time::Duration;

use abi::{
    Handle, Status,
    classes::{EventKind, OS_EVENT},
    decode::Alloc,
    memory::EventParams,
    params::NV0005_ALLOC_PARAMETERS as Params,
};
use account::Kind;

use super::{INVALID, NewObject, ObjectClass, SavedFields};
use crate::{
    Session,
    in_flight::{CallEnd, InFlightCall},
    requirements::AllocRequirements,
};

/// `NV01_EVENT_WITHOUT_EVENT_DATA` (nvos.h).
const WITHOUT_DATA: u32 = 0x1000_0000;

#[derive(Debug)]
pub(super) struct Event(pub(super) EventKind);

impl ObjectClass for Event {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let event = EventParams::of_params(new.params()).ok_or(INVALID)?;
        let is_allowed = match self.0 {
            EventKind::OsEvent => true,
            EventKind::ByClass => event.class == OS_EVENT,
        };
        if !is_allowed {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        if event.source_client != 0 {
            new.session.check_client(Handle(event.source_client))?;
        }
        Ok(new.counted(Kind::Event))
    }

    fn override_params(&self, _client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        let mut saved = SavedFields::default();
        saved.replace(params, Params::notifyIndex.at(), |index| index | WITHOUT_DATA)?;
        Ok(saved)
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }

    fn prepare(&self, session: &Session, flight: &mut InFlightCall<'_>, alloc: Alloc) -> Result<(), CallEnd> {
        session.on_control_file(flight, alloc.client);
        Ok(())
    }
}
