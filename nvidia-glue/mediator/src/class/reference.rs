//! A reference to memory that exists already, which keeps it allocated: `NV_SEMAPHORE_SURFACE`.

use std::time::Duration;

use abi::{Handle, params::NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS as Params};
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, locks::lock, memory::kernel_mappings::are_small, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct MemoryReference;

impl ObjectClass for MemoryReference {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        let references = new.handles(&[Params::hSemaphoreMem, Params::hMaxSubmittedMem]);
        are_small(&lock(&new.session.objects.accounts), new.alloc.client, &references)?;
        Ok(AllocRequirements { references, ..new.counted(Kind::Other) })
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
