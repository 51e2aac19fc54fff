//! Objects that the parameters of a channel and of a channel group name: what they go with, keep
//! and tell, and what may not be named (`NV_CHANNEL_ALLOC_PARAMS`,
//! src/common/sdk/nvidia/inc/alloc/alloc_channel.h; `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`,
//! nvos.h).

use abi::{
    Handle, Status,
    params::{Field, NV_CHANNEL_ALLOC_PARAMS as Channel, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS as Group},
};
use account::{Kind, ObjectName};

use crate::{Session, channels::gate::Userd, in_flight::CallEnd, locks::lock};

/// Objects that a channel group goes with.
pub(crate) const GROUP_DEPENDENCIES: &[Field<Handle>] = &[Group::hVASpace];
/// Objects that a channel goes with.
pub(crate) const CHANNEL_DEPENDENCIES: &[Field<Handle>] = &[Channel::hContextShare, Channel::hVASpace];
/// Memory for errors, of a channel and of a group.
pub(crate) const CHANNEL_NOTIFIERS: &[Field<Handle>] = &[Channel::hObjectError, Channel::hObjectEccError];
pub(crate) const GROUP_NOTIFIERS: &[Field<Handle>] = &[Group::hObjectError, Group::hObjectEccError];
/// Bytes of a USERD (`NV_RAMUSERD_CHAN_SIZE`, Volta and later).
const USERD_SIZE: u64 = 512;
/// Subdevices that a channel may have memory on.
const NV_MAX_SUBDEVICES: usize = 8;

/// Returns the memory that a channel's USERD is in. The channel outlives its handle, and keeps it.
pub(crate) fn userd_memory(params: &[u8]) -> Vec<Handle> {
    Channel::hUserdMemory.element(0).map_or_else(Vec::new, |memory| handles(params, &[memory]))
}

/// Returns where a channel's USERD is; `None`: in memory of the driver's own.
pub(crate) fn userd(params: &[u8]) -> Option<Userd> {
    let memory = *userd_memory(params).first()?;
    let offset = Channel::userdOffset.element(0)?.get(params)?;
    Some(Userd { memory, offset })
}

/// A channel has the address space of its context share, its group or its own. The driver refuses
/// more of them, too, with a line in the kernel's log each time
/// (src/nvidia/src/kernel/gpu/fifo/kernel_channel.c).
pub(crate) fn takes_one_address_space(params: &[u8], is_grouped: bool) -> Result<(), CallEnd> {
    let has = |field| !handles(params, &[field]).is_empty();
    let (has_share, has_space) = (has(Channel::hContextShare), has(Channel::hVASpace));
    if has_space && (has_share || is_grouped) { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}

/// Returns the handles in these fields, without those that are null.
pub(crate) fn handles(params: &[u8], fields: &[Field<Handle>]) -> Vec<Handle> {
    fields.iter().filter_map(|field| field.get(params)).filter(|handle| *handle != Handle::NONE).collect()
}

impl Session {
    /// A channel keeps the memory that its USERD is in, but goes with it (570 to 595) where that is
    /// pinned memory of the program's (`NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`): whoever opens and
    /// closes the gate would go on naming a channel that is not there. No program that was recorded
    /// has it there, and none may.
    ///
    /// The driver adds the offset to the memory's first physical address and asks no further
    /// (`kchannelCreateUserdMemDesc_GV100`,
    /// src/nvidia/src/kernel/gpu/fifo/arch/volta/kernel_channel_gv100.c, 525 to 595): beyond the
    /// memory's end the card would write into whatever lies there. A range of addresses (0x50a0) is
    /// none that it could be in.
    pub(crate) fn userd_is_known(&self, client: Handle, params: &[u8]) -> Result<(), CallEnd> {
        for index in 0..NV_MAX_SUBDEVICES {
            let memory = Channel::hUserdMemory.element(index).and_then(|field| field.get(params));
            let offset = Channel::userdOffset.element(index).and_then(|field| field.get(params));
            let (Some(memory), Some(offset)) = (memory, offset) else { continue };
            if memory == Handle::NONE && (index == 0 || offset == 0) {
                continue;
            }
            // Only a card's first subdevice has one; programs leave the others out.
            if index > 0 {
                return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
            }
            let memory = lock(&self.objects.accounts).object(ObjectName::new(client, memory));
            let memory = memory.filter(|memory| memory.kind == Kind::Memory && memory.length.0 > 0);
            let length = memory.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?.length.0;
            if offset.checked_add(USERD_SIZE).is_none_or(|end| end > length) {
                return Err(CallEnd::Status(Status::INVALID_OFFSET));
            }
        }
        Ok(())
    }

    /// The driver goes on writing a channel's errors to where it found that memory when the channel
    /// was made, and holds it by nothing (`pErrContextMemDesc`,
    /// src/nvidia/src/kernel/gpu/fifo/kernel_channel.c): only what is seen to be freed may be told.
    pub(crate) fn notifiers_are_known(&self, client: Handle, notifiers: &[Handle]) -> Result<(), CallEnd> {
        let accounts = lock(&self.objects.accounts);
        let is_known = |notifier: &Handle| {
            let object = accounts.object(ObjectName::new(client, *notifier));
            // Memory, or a context DMA, which goes with the memory that it is of.
            object.is_some_and(|object| match object.kind {
                Kind::Memory => object.length.0 > 0,
                Kind::Other => object.has_dependencies,
                _ => false,
            })
        };
        if notifiers.iter().all(is_known) { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
    }
}
