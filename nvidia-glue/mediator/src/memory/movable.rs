//! Notes about a container's video memory, for parking: how it was asked for, and where it is
//! mapped.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, RwLock},
};

use abi::Handle;
use account::{ObjectName, UvmFile};
use driver::ExternalMapping;

/// Request for an object of class 0x40.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) parent: Handle,
    /// `NV_MEMORY_ALLOCATION_PARAMS` as the driver was given them.
    pub(crate) params: Vec<u8>,
}

/// The notes, and the lock that calls wait for while the container is parked.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// Read by each call while it is handled; written while the container is parked. Before all
    /// other locks.
    pub(crate) calls: RwLock<()>,
    pub(crate) table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    objects: BTreeMap<ObjectName, Asked>,
    /// Objects that the resource manager has mapped itself.
    mapped_otherwise: BTreeSet<ObjectName>,
    /// By file and first address; none overlap.
    mappings: BTreeMap<(UvmFile, u64), (ObjectName, ExternalMapping)>,
}

impl Table {
    /// An object has the handle from now on; `asked`: one that may leave the card.
    pub(crate) fn made(&mut self, name: ObjectName, asked: Option<Asked>) {
        self.mapped_otherwise.remove(&name);
        self.mappings.retain(|_, (mapped, _)| *mapped != name);
        match asked {
            Some(asked) => drop(self.objects.insert(name, asked)),
            None => drop(self.objects.remove(&name)),
        }
    }

    pub(crate) fn mapped_otherwise(&mut self, name: ObjectName) {
        self.mapped_otherwise.insert(name);
    }

    pub(crate) fn mapped(&mut self, file: UvmFile, name: ObjectName, mapping: ExternalMapping) {
        self.cut(file, mapping.base, mapping.length);
        self.mappings.insert((file, mapping.base), (name, mapping));
    }

    /// Nothing of a range is mapped any more; of what lies across its ends, the rest is.
    pub(crate) fn cut(&mut self, file: UvmFile, base: u64, length: u64) {
        let end = base.saturating_add(length);
        let end_of = |mapping: &ExternalMapping| mapping.base.saturating_add(mapping.length);
        let overlapping = self.mappings.range((file, 0)..(file, end)).rev();
        let overlapping = overlapping.take_while(|(_, (_, mapping))| end_of(mapping) > base);
        let cut: Vec<_> = overlapping.map(|(key, value)| (*key, *value)).collect();
        for (key, (name, mapping)) in cut {
            self.mappings.remove(&key);
            if mapping.base < base {
                let before = ExternalMapping { length: base - mapping.base, ..mapping };
                self.mappings.insert(key, (name, before));
            }
            let left = end_of(&mapping).saturating_sub(end);
            if left > 0 {
                let offset = mapping.offset.saturating_add(end - mapping.base);
                let after = ExternalMapping { base: end, length: left, offset, ..mapping };
                self.mappings.insert((file, end), (name, after));
            }
        }
    }

    /// The objects that may leave the card, each with how it was asked for and its mappings; those
    /// alone that are mapped.
    pub(crate) fn mapped_objects(&self) -> BTreeMap<ObjectName, (Asked, Vec<(UvmFile, ExternalMapping)>)> {
        let mut objects = BTreeMap::new();
        for (&(file, _), &(name, mapping)) in &self.mappings {
            let Some(asked) = self.objects.get(&name).filter(|_| !self.mapped_otherwise.contains(&name)) else {
                continue;
            };
            let object = objects.entry(name).or_insert_with(|| (asked.clone(), Vec::new()));
            object.1.push((file, mapping));
        }
        objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_is_cut_keeps_what_is_left_of_it() {
        let (mut table, name, file) = (Table::default(), ObjectName::new(Handle(1), Handle(2)), UvmFile(3));
        table.made(name, Some(Asked { parent: Handle(1), params: Vec::new() }));
        let mapping = |base, length, offset| ExternalMapping { base, length, offset, attributes: [0; 36] };
        table.mapped(file, name, mapping(100, 50, 7));
        table.cut(file, 110, 10);
        table.cut(UvmFile(4), 100, 50);
        let objects = table.mapped_objects();
        assert_eq!(objects[&name].1, [(file, mapping(100, 10, 7)), (file, mapping(120, 30, 27))]);
        table.cut(file, 0, 130);
        assert_eq!(table.mapped_objects()[&name].1, [(file, mapping(130, 20, 37))]);
        table.mapped_otherwise(name);
        assert!(table.mapped_objects().is_empty());
        table.made(name, None);
        assert!(table.mapped_objects().is_empty(), "another object has the handle");
    }
}
