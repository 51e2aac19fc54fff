//! Bound on the memory that the mediator itself needs for a container.
//!
//! All that it writes down is limited in number, so what it can come to need is a sum. The process
//! is held to that: beyond it, what would have to be written down is refused as out of memory.

use std::sync::atomic::{AtomicBool, Ordering};

use abi::{Call, decode::UvmCall};
use account::ObjectLimits;
use base::Bytes;

use crate::{Session, in_flight::CallEnd};

/// Memory of a mediator whose container has nothing: its program's own, its threads', its driver's.
const BASE: Bytes = Bytes(64 << 20);
/// Of an object, with its references. A simulated card's own tables are among that (0.6 KiB
/// together).
const OBJECT: u64 = 1 << 10;
/// Of a mapping, a range or an event.
const SMALL: u64 = 256;

/// The bound, and whether it is exceeded.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    limit: Bytes,
    is_exceeded: AtomicBool,
}

impl OwnMemory {
    pub(crate) fn new(limits: &ObjectLimits) -> Self {
        let small = [
            limits.references,
            limits.managed_ranges,
            limits.os_events,
            limits.host_mappings,
            limits.processor_mappings,
            limits.virtual_mappings,
            limits.range_groups,
            limits.pinned,
        ];
        let small: u64 = small.into_iter().map(u64::from).sum();
        let limit = Bytes(BASE.0 + u64::from(limits.objects) * OBJECT + small * SMALL);
        Self { limit, is_exceeded: AtomicBool::new(false) }
    }
}

impl Session {
    /// The most memory that the mediator may need for this container.
    pub fn own_memory_limit(&self) -> Bytes {
        self.own_memory.limit
    }

    /// Sets the memory that the mediator's process has.
    pub fn set_own_memory(&self, used: Bytes) {
        self.own_memory.is_exceeded.store(used > self.own_memory.limit, Ordering::Relaxed);
    }

    /// Refuses a call for which something would have to be written down, once there is no room.
    pub(crate) fn has_room_for(&self, call: &Call) -> Result<(), CallEnd> {
        if !self.own_memory.is_exceeded.load(Ordering::Relaxed) || !takes_room(call) {
            return Ok(());
        }
        Err(CallEnd::OutOfOwnMemory(self.own_memory.limit))
    }

    /// The same for a mapping of managed memory.
    pub(crate) fn has_room_for_mapping(&self) -> Result<(), CallEnd> {
        if !self.own_memory.is_exceeded.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(CallEnd::OutOfOwnMemory(self.own_memory.limit))
    }
}

/// Returns whether the mediator has more to remember after a call.
fn takes_room(call: &Call) -> bool {
    match call {
        Call::Alloc(_)
        | Call::AllocMemory(_)
        | Call::VidHeap(_)
        | Call::Dup(_)
        | Call::MapMemory(_)
        | Call::MapDma(_)
        | Call::AllocContextDma(_)
        | Call::AllocObject(_)
        | Call::AllocOsEvent(_)
        | Call::RegisterFd { .. } => true,
        Call::Free(_)
        | Call::Control(_)
        | Call::Share(_)
        | Call::UnmapMemory(_)
        | Call::UpdateMapping(_)
        | Call::UnmapDma(_)
        | Call::BindContextDma { .. }
        | Call::IdleChannels(_)
        | Call::CardInfo
        | Call::CardStatus { .. }
        | Call::CheckVersion
        | Call::AttachGpus
        | Call::FreeOsEvent(_)
        | Call::Other => false,
        Call::Uvm(call) => match call {
            UvmCall::Initialize { .. }
            | UvmCall::CreateRangeGroup
            | UvmCall::MmInitialize { .. }
            | UvmCall::RegisterGpu(_)
            | UvmCall::RegisterGpuVaSpace(_)
            | UvmCall::RegisterChannel { .. }
            | UvmCall::CreateExternalRange(_)
            | UvmCall::MapExternal(_)
            | UvmCall::DeviceP2p(_)
            | UvmCall::MapSparse { .. }
            | UvmCall::DynamicParallelism { .. }
            | UvmCall::SemaphorePool(_) => true,
            UvmCall::Deinitialize
            | UvmCall::DestroyRangeGroup
            | UvmCall::UnregisterGpu { .. }
            | UvmCall::UnregisterGpuVaSpace { .. }
            | UvmCall::UnregisterChannel { .. }
            | UvmCall::UnmapExternal { .. }
            | UvmCall::Free { .. }
            | UvmCall::ValidateVaRange(_)
            | UvmCall::Advise(_)
            | UvmCall::DisableReadDuplication(_)
            | UvmCall::Migrate { .. }
            | UvmCall::MigrateGroup { .. }
            | UvmCall::Ranged(_)
            | UvmCall::Other => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_sum_that_the_document_states() {
        let mib = |cards| OwnMemory::new(&ObjectLimits::default().with_cards(cards)).limit.0 >> 20;
        assert_eq!((mib(1), mib(8)), (322, 1410));
    }
}
