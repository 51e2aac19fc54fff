//! What the parameters of a channel and of a channel group name: what they go with, keep and tell, and what may not be named
//! (`NV_CHANNEL_ALLOC_PARAMS`, src/common/sdk/nvidia/inc/alloc/alloc_channel.h; `NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS`, nvos.h).

use abi::{
    Handle, Status,
    layout::{read_u32, read_u64},
};
use account::{Kind, ObjectName};

use super::in_flight::CallEnd;
use crate::{Session, locks::lock};

/// `hVASpace` of a channel group's parameters.
pub(crate) const GROUP_DEPENDENCIES: &[usize] = &[8];
/// `hContextShare` and `hVASpace` of a channel's parameters.
pub(crate) const CHANNEL_DEPENDENCIES: &[usize] = &[24, 28];
/// `hUserdMemory[0]` of a channel's parameters. The channel outlives its handle, and keeps the memory.
pub(crate) const USERD_MEMORY: &[usize] = &[32];

/// `hUserdMemory` and `userdOffset` of a channel's parameters: of eight subdevices each.
const USERD_HANDLES: std::ops::Range<usize> = 32..64;
const USERD_OFFSETS: std::ops::Range<usize> = 64..128;
/// Bytes of a USERD (`NV_RAMUSERD_CHAN_SIZE`, Volta and later).
const USERD_SIZE: u64 = 512;
/// `hObjectError` and `hObjectEccError` of a channel's parameters, and of a group's.
pub(crate) const CHANNEL_NOTIFIERS: &[usize] = &[0, 140];
pub(crate) const GROUP_NOTIFIERS: &[usize] = &[0, 4];

/// A channel has the address space of its context share, its group or its own. The driver refuses more of them, too, with a line in the kernel's
/// log each time (src/nvidia/src/kernel/gpu/fifo/kernel_channel.c).
pub(crate) fn takes_one_address_space(params: &[u8], is_grouped: bool) -> Result<(), CallEnd> {
    let [has_share, has_space] = [24, 28].map(|at| !handles(params, &[at]).is_empty());
    if has_space && (has_share || is_grouped) { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}

/// The handles at these offsets, without those that are null.
pub(crate) fn handles(params: &[u8], at: &[usize]) -> Vec<Handle> {
    at.iter().filter_map(|at| read_u32(params, *at)).filter(|handle| *handle != 0).map(Handle).collect()
}

impl Session {
    /// A channel keeps the memory that its USERD is in, but goes with it (570 to 595) where that is pinned memory of the program's
    /// (`NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`): whoever opens and closes the gate would go on naming a channel that is not there. No program that
    /// was recorded has it there, and none may.
    ///
    /// The driver adds the offset to the memory's first physical address and asks no further (`kchannelCreateUserdMemDesc_GV100`,
    /// src/nvidia/src/kernel/gpu/fifo/arch/volta/kernel_channel_gv100.c, 525 to 595): beyond the memory's end the card would write into
    /// whatever lies there. A range of addresses (0x50a0) is none that it could be in.
    pub(crate) fn userd_is_known(&self, client: Handle, params: &[u8]) -> Result<(), CallEnd> {
        let pairs = params.get(USERD_HANDLES).unwrap_or_default().chunks_exact(4);
        let offsets = params.get(USERD_OFFSETS).unwrap_or_default().chunks_exact(8);
        let pairs = pairs.zip(offsets).map(|(handle, offset)| (read_u32(handle, 0), read_u64(offset, 0)));
        for (index, pair) in pairs.enumerate() {
            let (handle, offset) = (pair.0.unwrap_or(0), pair.1.unwrap_or(0));
            if handle == 0 && (index == 0 || offset == 0) {
                continue;
            }
            // Only a card's first subdevice has one; programs leave the others out.
            if index > 0 {
                return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
            }
            let memory = lock(&self.accounts).object(ObjectName::new(client, Handle(handle)));
            let memory = memory.filter(|memory| memory.kind == Kind::Memory && memory.length.0 > 0);
            let length = memory.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?.length.0;
            if offset.checked_add(USERD_SIZE).is_none_or(|end| end > length) {
                return Err(CallEnd::Status(Status::INVALID_OFFSET));
            }
        }
        Ok(())
    }

    /// The driver goes on writing a channel's errors to where it found that memory when the channel was made, and holds it by nothing
    /// (`pErrContextMemDesc`, src/nvidia/src/kernel/gpu/fifo/kernel_channel.c): only what is seen to be freed may be told.
    pub(crate) fn notifiers_are_known(&self, client: Handle, notifiers: &[Handle]) -> Result<(), CallEnd> {
        let accounts = lock(&self.accounts);
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
