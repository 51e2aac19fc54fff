//! GPU addresses: `NV50_MEMORY_VIRTUAL`, which can come with page tables, and
//! `NV01_MEMORY_VIRTUAL`.

use std::time::Duration;

use abi::{Handle, classes::NV50_MEMORY_VIRTUAL, memory::Layout};
use account::Kind;
use base::Bytes;

use super::{NewObject, ObjectClass, SavedFields};
use crate::{in_flight::CallEnd, requirements::AllocRequirements};

#[derive(Debug)]
pub(super) struct VirtualMemory;

impl ObjectClass for VirtualMemory {
    fn requirements(&self, new: &NewObject<'_, '_>) -> Result<AllocRequirements, CallEnd> {
        if new.alloc.class != NV50_MEMORY_VIRTUAL {
            return Ok(new.counted(Kind::Memory));
        }
        let card = new.known_card()?;
        let tables = new.memory_request()?.page_tables_at_once();
        let memory = (tables > 0).then_some((card, Bytes(tables)));
        // The driver takes granules for them one by one (pool_alloc.c, `allocUpstreamTopPool`).
        Ok(new.charged(Kind::Memory, memory, Layout::Scattered))
    }

    fn override_params(&self, _client: Handle, _params: &mut [u8]) -> Result<SavedFields, CallEnd> {
        Ok(SavedFields::default())
    }

    fn driver_time(&self, _params: &[u8]) -> Option<Duration> {
        None
    }
}
