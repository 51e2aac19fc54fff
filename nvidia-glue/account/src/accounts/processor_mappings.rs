//! Mappings of objects for the processor.
//!
//! The driver keeps one with the object until a call ends it, or the object goes: not with the file
//! that it was prepared on (`refAddMapping` in src/nvidia/src/libraries/resserv/src/rs_resource.c).

use foldhash::HashMap;

use super::Accounts;
use crate::{Counted, ObjectName, Refusal, tree::Index};

/// Number of mappings for the processor of each object.
#[derive(Debug, Default)]
pub(super) struct ProcessorMappings {
    of_objects: HashMap<Index, u32>,
    all: u32,
}

impl ProcessorMappings {
    /// Drops the mappings of an object that is gone.
    pub(super) fn object_gone(&mut self, object: Index) {
        let gone = self.of_objects.remove(&object).unwrap_or(0);
        self.all = self.all.saturating_sub(gone);
    }

    pub(super) const fn len(&self) -> u32 {
        self.all
    }
}

impl Accounts {
    /// Returns whether one more may be made; ask before the driver is asked.
    ///
    /// # Errors
    /// When there are too many.
    pub fn processor_mapping_fits(&self) -> Result<(), Refusal> {
        let limit = self.limits.processor_mappings;
        if self.processor_mappings.all < limit {
            return Ok(());
        }
        Err(Refusal::TooMany { counted: Counted::ProcessorMappings, limit })
    }

    /// Counts a mapping of `object` (`NV_ESC_RM_MAP_MEMORY`).
    pub fn processor_mapped(&mut self, object: ObjectName) {
        let Some(index) = self.mapped_object(object) else { return };
        let count = self.processor_mappings.of_objects.entry(index).or_default();
        *count = count.saturating_add(1);
        self.processor_mappings.all = self.processor_mappings.all.saturating_add(1);
    }

    #[cfg(feature = "parking")]
    pub(super) fn is_mapped_for_processor(&self, object: Index) -> bool {
        self.processor_mappings.of_objects.contains_key(&object)
    }

    /// Removes a mapping of `object` (`NV_ESC_RM_UNMAP_MEMORY`). The driver reports success only
    /// for one that existed.
    pub fn processor_unmapped(&mut self, object: ObjectName) {
        let Some(index) = self.mapped_object(object) else { return };
        let mappings = &mut self.processor_mappings;
        let Some(count) = mappings.of_objects.get_mut(&index) else { return };
        *count = count.saturating_sub(1);
        mappings.all = mappings.all.saturating_sub(1);
        if *count == 0 {
            mappings.of_objects.remove(&index);
        }
    }

    /// Object that mappings of `object` are recorded under: the client's root, if it is not known.
    fn mapped_object(&self, object: ObjectName) -> Option<Index> {
        let root = || self.clients.get(&object.client).map(|client| client.root);
        self.tree.find(object).or_else(root)
    }
}
