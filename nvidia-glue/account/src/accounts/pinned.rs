//! Pages of a program's own memory that the driver keeps pinned
//! (`NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`).
//!
//! What the driver needs to remember them is the kernel's memory, which no cgroup counts: for each
//! page of 4 KiB 32 bytes (kernel-open/nvidia/os-mlock.c, nv.c), and some thousand for each object.
//! The pages are the program's own.

use abi::{Handle, memory::Layout};
use base::{Pid, units::Bytes};

use super::{Accounts, AllocRequest, NotCommitted, Placement, Reservation, objects::Committed};
use crate::{Card, Kind, Refusal};

/// Bytes of a program's memory for each byte of the kernel's.
const FOR_EACH: u64 = 128;
/// Bytes for an object itself.
const OBJECT: u64 = 4096;
/// The largest that pages are anywhere: the last one may be pinned for less.
const PAGE: u64 = 64 << 10;

impl Accounts {
    /// Reserves the charge of `length` bytes that `process` is about to have pinned in `client`: to
    /// be given to [`Accounts::pinned`] or [`Accounts::cancel`] once it is known what the kernel
    /// has made of it. Until then it may pin any pages that are mapped.
    ///
    /// # Errors
    /// When the client is not registered, or that is too much.
    pub fn pin(&mut self, process: Pid, client: Handle, length: u64) -> Result<Reservation, Refusal> {
        let memory = Some((Card::HOST, Bytes(length / FOR_EACH + OBJECT)));
        let layout = Layout::OwnFrames;
        let reservation = self.reserve(AllocRequest { client, kind: Kind::Pinned, memory, layout, process })?;
        if let Some(charge) = reservation.charge {
            self.charges.pins(charge);
        }
        Ok(reservation)
    }

    /// Charges for the `length` bytes that the driver has pinned as an object, in place of the
    /// reservation.
    ///
    /// # Errors
    /// When its client has gone, and the object with it.
    pub fn pinned(
        &mut self,
        reservation: Reservation,
        placement: Placement<'_>,
        length: u64,
    ) -> Result<Committed, NotCommitted> {
        if let Some(charge) = reservation.charge {
            self.charges.resize(&mut self.cards, charge, Bytes(length / FOR_EACH + OBJECT));
            self.charges.has_pinned(charge, length.saturating_add(PAGE));
        }
        self.place(reservation, placement)
    }

    /// Bytes of host memory that only pinned pages may still keep.
    pub fn kept_by_pins(&mut self) -> Bytes {
        self.charges.update_kept(&mut self.cards)
    }
}
