//! Calls that prepare CPU mappings, let others duplicate, or ask about cards without a client.

use std::{fs::File, sync::Arc};

use super::{
    Answer, Session,
    call::{End, Flight},
    view,
};
use crate::{
    driver::Holder,
    rm::{
        Status,
        decode::{MapMemory, Row, Share},
        layout::{Width, read_number, read_u32},
    },
};

/// `NV_ESC_CARD_INFO`, `NV_ESC_STATUS_CODE`, `NV_ESC_ATTACH_GPUS_TO_FD`, `NV_ESC_RM_ALLOC_OBJECT`.
const CARD_INFO: u8 = 0xc8;
const STATUS_CODE: u8 = 0xd1;
const ATTACH_GPUS: u8 = 0xd4;
const ALLOC_OBJECT: u8 = 0x28;
/// Offset of the policy in `NVOS57_PARAMETERS`.
const SHARE_POLICY: usize = 8;

impl Session {
    pub(super) fn map_memory(&self, flight: &mut Flight<'_>, map: MapMemory) -> Result<Answer, End> {
        self.on_client(flight, map.client)
    }

    pub(super) fn share(&self, flight: &mut Flight<'_>, share: Share) -> Result<Answer, End> {
        self.own_client(share.client)?;
        self.policy_is_own(flight.args.get(SHARE_POLICY..).unwrap_or_default())?;
        self.pass(flight)
    }

    /// An `RS_SHARE_POLICY` {target, access mask, type, action} names no client of another container. That others may duplicate an object is
    /// harmless for the rest: whoever is mediated can only name clients of its own container.
    pub(super) fn policy_is_own(&self, policy: &[u8]) -> Result<(), End> {
        /// `RS_SHARE_TYPE_CLIENT` (src/common/sdk/nvidia/inc/rs_access.h).
        const CLIENT: u64 = 3;
        if read_number(policy, 8, Width::U16) == Some(CLIENT) {
            let target = read_u32(policy, 0).unwrap_or(0);
            self.own_client(crate::rm::Handle(target))?;
        }
        Ok(())
    }

    /// Calls of which only the number matters.
    pub(super) fn other(&self, flight: &mut Flight<'_>) -> Result<Answer, End> {
        let Row::Escape(escape, _) = flight.row else { return self.pass(flight) };
        match escape.number {
            CARD_INFO => {
                self.execute_row(flight)?;
                view::cards::card_info(&mut flight.args, self.grant.names());
                flight.finish()
            }
            STATUS_CODE => {
                let byte = |at: usize| flight.args.get(at).copied().unwrap_or(u8::MAX);
                let domain = read_u32(&flight.args, 0).unwrap_or(u32::MAX);
                self.grant.by_pci(domain, byte(4), byte(5)).ok_or(End::Errno(libc::EINVAL))?;
                self.pass(flight)
            }
            ATTACH_GPUS => {
                let ids = flight.args.chunks_exact(4).filter(|id| id.iter().any(|byte| *byte != 0));
                if ids.into_iter().any(|id| !view::cards::names_granted(id, 0, self.grant.names())) {
                    return Err(End::Errno(libc::EINVAL));
                }
                self.pass(flight)
            }
            // What no decoder has looked into must not make objects.
            ALLOC_OBJECT => Err(End::Status(Status::NOT_SUPPORTED)),
            _ => self.pass(flight),
        }
    }

    /// The file that a descriptor of the call names; it must be one of the driver's control files.
    pub(super) fn control_file(&self, flight: &Flight<'_>, fd: i32) -> Result<Arc<File>, End> {
        let file = super::call::driver_file(self.driver.as_ref(), flight.caller, fd)?;
        match file {
            Some(file) if file.node == crate::rm::Node::Control => Ok(file.file),
            _ => Err(End::Status(Status::INVALID_ARGUMENT)),
        }
    }

    /// Copies a control's parameters, `size` bytes at `address`.
    pub(super) fn copy_params(&self, flight: &mut Flight<'_>, at: usize, address: u64, size: usize) -> Result<(), End> {
        if address == 0 {
            return Ok(());
        }
        flight.copy(Holder::Args, at, address, size, crate::rm::layout::Direction::InOut)
    }
}
