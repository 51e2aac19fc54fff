//! Memory that the driver maps into the kernel's own addresses for an object over it: a notifier's
//! context DMA, a surface of semaphores.
//!
//! It does so again for each object (`_ctxdmaConstruct()`, `semsurfConstruct_IMPL()`: `vmap()` or
//! `ioremap()`), with page tables that nobody is charged for. The host has 32 TiB of such addresses
//! for all that runs on it: 2048 objects over 16 GiB would leave none.

use abi::{
    Handle, Status,
    params::{Field, NV_CONTEXT_DMA_ALLOCATION_PARAMS, NVOS39_PARAMETERS},
};
use account::{Accounts, Card, ObjectName};

use crate::in_flight::CallEnd;

/// The most for one object. Notifiers have 16 bytes, semaphores at most 64.
const MOST: u64 = 4 << 20;

/// Fields of parameters that make a context DMA: flags, and the last byte that it reaches from its
/// offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextDmaFields {
    flags: Field<u32>,
    limit: Field<u64>,
}

impl ContextDmaFields {
    /// `NV_CONTEXT_DMA_ALLOCATION_PARAMS` (src/common/sdk/nvidia/inc/nvos.h).
    pub(crate) const CLASS: Self =
        Self { flags: NV_CONTEXT_DMA_ALLOCATION_PARAMS::flags, limit: NV_CONTEXT_DMA_ALLOCATION_PARAMS::limit };
    /// `NVOS39_PARAMETERS`.
    pub(crate) const ESCAPE: Self = Self { flags: NVOS39_PARAMETERS::flags, limit: NVOS39_PARAMETERS::limit };

    /// Refuses a context DMA for which the kernel would map more than it may.
    pub(crate) fn limit_kernel_mapping(self, params: &[u8]) -> Result<(), CallEnd> {
        /// `NVOS03_FLAGS_MAPPING_KERNEL`, `NVOS03_FLAGS_TYPE_NOTIFIER`.
        const KERNEL: u32 = 1 << 20;
        let flags = self.flags.get(params).unwrap_or(0);
        let limit = self.limit.get(params).unwrap_or(0);
        if flags & KERNEL == 0 || limit < MOST { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) }
    }
}

/// Refuses memory of which the kernel would map more for a surface than it may: it maps them whole.
pub(crate) fn are_small(accounts: &Accounts, client: Handle, memories: &[Handle]) -> Result<(), CallEnd> {
    let is_little = |memory: &Handle| {
        let Some(known) = accounts.object(ObjectName::new(client, *memory)) else { return true };
        let of_the_host = known.charge.filter(|(card, _)| *card == Card::HOST);
        known.length.0.max(of_the_host.map_or(0, |(_, charged)| charged.0)) <= MOST
    };
    if memories.iter().all(is_little) { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) }
}
