//! Memory of the host that the driver makes, `NV01_MEMORY_SYSTEM`.

use std::time::Duration;

use abi::{Handle, memory::Layout, params::NV_MEMORY_ALLOCATION_PARAMS};
use account::{Card, Kind};
use base::Bytes;
use driver::Holder;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct SystemMemory;

impl ObjectClass for SystemMemory {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let memory = (Card::HOST, Bytes(new.memory_request()?.host_size()));
        let size = Some((Holder::Buffer(0), NV_MEMORY_ALLOCATION_PARAMS::size.at()));
        Ok(AllocRequirements { size, ..new.charged(Kind::Memory, Some(memory), Layout::OwnFrames) })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
