//! Memory of a card, `NV01_MEMORY_LOCAL_USER`.
//!
//! In pages smaller than 2 MiB it is contiguous where that is left to the driver: what is scattered
//! is counted at its worst. The driver says afterwards which it was, in any case.

use std::time::Duration;

use abi::{Handle, Status, memory::MemoryRequest, params::NV_MEMORY_ALLOCATION_PARAMS as Params};
use account::Kind;
use base::Bytes;
use driver::Holder;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{channels::driver_time::scrubbing, in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct VideoMemory;

impl ObjectClass for VideoMemory {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let card = new.known_card()?;
        let request = new.memory_request()?;
        may_be_placed(request)?;
        let memory = (card, Bytes(request.rounded_size()));
        let size = Some((Holder::Buffer(0), Params::size.at()));
        Ok(AllocRequirements { size, ..new.charged(Kind::Memory, Some(memory), request.layout()) })
    }

    fn override_params(&self, _client: Handle, params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        if let Some(attr) = MemoryRequest::of_params(params).and_then(|request| request.contiguous_attr()) {
            let _ = Params::attr.set(params, attr);
        }
        Ok(SavedFields::default())
    }

    fn driver_time(&self, params: &[u8]) -> Option<Duration> {
        Some(scrubbing(Bytes(Params::size.get(params).unwrap_or(0))))
    }
}

/// Returns whether memory of a card may be asked for so. What is at an address of the program's
/// choice may take more than it says, what is in a range of its choice opens any frame, and what is
/// localized keeps 64 MiB: no program on a shared card has a use for them.
pub(crate) fn may_be_placed(request: MemoryRequest) -> Result<(), CallEnd> {
    let is_refused = request.chooses_place() || request.is_localized();
    if is_refused { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}
