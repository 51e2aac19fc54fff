//! Addresses on the NVLink fabric to which memory is attached.
//!
//! As since 570 (src/nvidia/src/kernel/mem_mgr/mem_fabric.c): all handles of a block of addresses
//! share what is attached, which goes with the handle that it was attached by and with that of the
//! memory, neither of which it keeps.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use abi::{Status, params::NV00F8_ALLOCATION_PARAMETERS};

use super::{
    bytes::get,
    objects::{Attachment, Client, FabricAddresses, Kind, VideoMemory},
};

/// `NV00F8_ALLOC_FLAGS_FLEXIBLE_FLA`.
const FLEXIBLE: u32 = 1;
/// `NV00F8_ALLOC_FLAGS_READ_ONLY`.
const READ_ONLY: u32 = 8;
/// `NV_MEMORY_FABRIC_PAGE_SIZE_2M`, `..._512M`.
const PAGES: [u64; 2] = [2 << 20, 512 << 20];

/// An object of a client: the client's handle, and its own.
type Name = (u32, u32);

impl FabricAddresses {
    /// Returns whether parameters ask for addresses to which memory is attached later.
    pub(super) fn are_asked_for(params: &[u8]) -> bool {
        get(params, NV00F8_ALLOCATION_PARAMETERS::allocFlags) & FLEXIBLE != 0
    }

    pub(super) fn new(card: usize, params: &[u8]) -> Result<Arc<Self>, Status> {
        type Params = NV00F8_ALLOCATION_PARAMETERS;
        let (page, length) = (get(params, Params::pageSize), get(params, Params::allocSize));
        let is_whole = |bytes: u64| bytes.is_multiple_of(page);
        if !PAGES.contains(&page) || !is_whole(get(params, Params::alignment)) || !is_whole(length) || length == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        if get(params, Params::allocFlags) & READ_ONLY != 0 || get(params, Params::hVidMem).0 != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        Ok(Arc::new(Self { card, length, attached: Mutex::default() }))
    }

    /// Attaches memory of the client that has the addresses by that name.
    pub(super) fn attach(&self, by: Name, client: &Client, place: Place) -> Result<(), Status> {
        let Kind::VideoMemory(memory) = &client.object(place.memory)?.kind else {
            return Err(Status::INVALID_ARGUMENT);
        };
        let Place { offset, from, length, .. } = place;
        let is_within = |at: u64, whole: u64| at.checked_add(length).is_some_and(|end| end <= whole);
        if memory.card != self.card || [offset, from, length].iter().any(|bytes| !bytes.is_multiple_of(PAGES[0])) {
            return Err(Status::INVALID_ARGUMENT);
        }
        if length == 0 || !is_within(offset, self.length) || !is_within(from, memory.length) {
            return Err(Status::INVALID_OFFSET);
        }
        let mut attached = self.attached();
        if attached.contains_key(&offset) {
            return Err(Status::INSERT_DUPLICATE_NAME);
        }
        let memory = (place.memory, Arc::downgrade(memory));
        attached.insert(offset, Attachment { client: by.0, by: by.1, memory });
        Ok(())
    }

    /// Detaches what is at an offset; returns whether it was attached by that name.
    pub(super) fn detach(&self, by: Name, offset: u64) -> Result<bool, Status> {
        let gone = self.attached().remove(&offset).ok_or(Status::OBJECT_NOT_FOUND)?;
        Ok((gone.client, gone.by) == by)
    }

    /// Returns how many pieces of memory are attached.
    pub(super) fn count(&self) -> usize {
        self.attached().len()
    }

    /// Forgets what has gone with its memory, or with the handle that it was attached by.
    pub(super) fn forget_freed(self: &Arc<Self>, clients: &BTreeMap<u32, Client>) {
        let kind = |client: u32, object: u32| Some(&clients.get(&client)?.objects.get(&object)?.kind);
        self.attached().retain(|_, attachment| {
            let Attachment { client, by, memory: (handle, memory) } = attachment;
            let has_addresses = matches!(kind(*client, *by), Some(Kind::Fabric(own)) if Arc::ptr_eq(own, self));
            let is_same = |own: &Arc<VideoMemory>| Weak::ptr_eq(&Arc::downgrade(own), memory);
            has_addresses && matches!(kind(*client, *handle), Some(Kind::VideoMemory(own)) if is_same(own))
        });
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<u64, Attachment>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that is to be attached, and the place that it is to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) memory: u32,
    pub(super) offset: u64,
    /// First byte of the memory.
    pub(super) from: u64,
    pub(super) length: u64,
}
