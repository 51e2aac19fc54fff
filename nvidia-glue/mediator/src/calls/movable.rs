//! Notes of calls for parking.

use std::sync::{PoisonError, RwLockReadGuard};

use abi::{
    Handle,
    classes::NV01_MEMORY_LOCAL_USER,
    decode::UvmMemory,
    params::{UVM_MAP_EXTERNAL_ALLOCATION_PARAMS as MapExternal, UvmGpuMappingAttributes},
};
use account::{ObjectName, UvmFile};
use driver::ExternalMapping;

use crate::{Session, calls::object_alloc::AllocSource, in_flight::InFlightCall, locks::lock, memory::movable::Asked};

impl Session {
    /// To be held while a call is handled.
    pub(crate) fn call_begins(&self) -> RwLockReadGuard<'_, ()> {
        self.parking.calls.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an object that was made.
    pub(crate) fn note_made(&self, flight: &InFlightCall<'_>, source: AllocSource, name: ObjectName, parent: Handle) {
        let asked = match source {
            AllocSource::Class(alloc, _) if alloc.class == NV01_MEMORY_LOCAL_USER => Some(flight.asked.clone()),
            _ => None,
        };
        lock(&self.parking.table).made(name, asked.map(|params| Asked { parent, params }));
    }

    pub(crate) fn note_mapped_otherwise(&self, name: ObjectName) {
        lock(&self.parking.table).mapped_otherwise(name);
    }

    /// Notes a mapping that the driver has made.
    pub(crate) fn note_mapped(&self, flight: &InFlightCall<'_>, file: UvmFile, map: &UvmMemory) {
        let (base, length) = (map.range.base, map.range.length);
        let mut table = lock(&self.parking.table);
        table.cut(file, base, length);
        let at = MapExternal::perGpuAttributes.at();
        let attributes = flight.args.get(at..).and_then(<[u8]>::first_chunk::<{ UvmGpuMappingAttributes::SIZE }>);
        let is_of_one = MapExternal::gpuAttributesCount.get(&flight.args) == Some(1);
        if let Some(&attributes) = attributes.filter(|_| is_of_one && flight.args.len() == MapExternal::SIZE) {
            let mapping = ExternalMapping { base, length, offset: map.offset, attributes };
            table.mapped(file, ObjectName::new(map.client, map.memory), mapping);
        }
    }

    pub(crate) fn note_unmapped(&self, file: UvmFile, base: u64, length: u64) {
        lock(&self.parking.table).cut(file, base, length);
    }
}
