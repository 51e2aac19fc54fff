//! A part of the program's own memory, `NV01_CONTEXT_DMA`.

use std::time::Duration;

use abi::Handle;
use account::Kind;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, memory::kernel_mappings::ContextDmaFields, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct ContextDma;

impl ObjectClass for ContextDma {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        ContextDmaFields::CLASS.limit_kernel_mapping(new.params())?;
        Ok(new.counted(Kind::Other))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
