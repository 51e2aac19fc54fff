//! Pages of a program's own memory that the driver keeps pinned (`NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`).
//!
//! What the driver needs to remember them is the kernel's memory, which no cgroup counts: for each page of 4 KiB 32 bytes
//! (kernel-open/nvidia/os-mlock.c, nv.c), and some thousand for each object. The pages are the program's own.
//!
//! They are pinned by the kernel in the program's place, from a struct that another thread may rewrite meanwhile. So an object that was asked
//! for may be somewhere else, or nowhere. What ends is charged no more only where the driver has said that it was there. The rest stays charged
//! and counted, under no name, until the container has no client left in which it could be.

use runtime_config::units::Bytes;

use super::{Accounts, Ask, Card, Kind, ObjectName, Placement, Refusal, charges::ChargeId, tree::Index};
use crate::{mediate::Pid, rm::Handle};

/// Bytes of the program's for one of the kernel's.
const FOR_EACH: u64 = 128;
/// For an object itself.
const OBJECT: u64 = 4096;
/// The largest that pages are anywhere: the last one may be pinned for less.
const PAGE: u64 = 64 << 10;

/// Pinned memory that is nowhere to be found.
#[derive(Debug, Default)]
pub(super) struct Unfound(Vec<ChargeId>);

impl Accounts {
    /// `process` is about to have `length` bytes pinned as `object` below `parent`. They are charged whether the driver does so or not.
    ///
    /// # Errors
    /// When the client is not registered, or that is too much.
    pub fn pin(&mut self, process: Pid, object: ObjectName, parent: Handle, length: u64) -> Result<(), Refusal> {
        let memory = Some((Card::HOST, Bytes(length / FOR_EACH + OBJECT)));
        let reservation = self.reserve(Ask { client: object.client, kind: Kind::Pinned, memory, process })?;
        if let Some(charge) = reservation.charge {
            self.charges.pins(charge);
        }
        // Another thread may have taken the name meanwhile; then the driver refuses it. (None that it would choose itself is asked for.)
        let is_named = object.object != Handle::NONE && self.tree.find(object).is_none();
        if is_named {
            // Its client is there.
            if let Err(not) = self.commit(reservation, Placement::under(parent, object.object), None) {
                self.cancel(not.reservation);
            }
        } else {
            self.unfound.0.extend(reservation.charge);
            reservation.armed.disarm();
        }
        Ok(())
    }

    /// The driver has `object`, and `length` bytes of the program's pinned by it: that is what is charged for from now on.
    pub fn found_pinned(&mut self, object: ObjectName, length: u64) {
        if let Some(charge) = self.pin_of(object) {
            self.charges.resize(&mut self.cards, charge, Bytes(length / FOR_EACH + OBJECT));
            self.charges.has_pinned(charge, Some(length.saturating_add(PAGE)));
        }
    }

    /// Whether `object` is pinned memory of which the driver was not asked yet, or did not say, what it is.
    pub fn is_pin_unknown(&self, object: ObjectName) -> bool {
        self.pin_of(object).is_some_and(|charge| !self.charges.is_pin_known(charge))
    }

    /// Whether `object` is pinned memory, and known to be.
    pub fn is_pin_known(&self, object: ObjectName) -> bool {
        self.pin_of(object).is_some_and(|charge| self.charges.is_pin_known(charge))
    }

    /// How much memory of the host's is gone but for what pinned memory may keep of it.
    pub fn kept_by_pins(&mut self) -> Bytes {
        self.charges.look_at_kept(&mut self.cards)
    }

    fn pin_of(&self, object: ObjectName) -> Option<ChargeId> {
        let object = self.tree.find(object).and_then(|index| self.tree.get(index));
        object.filter(|object| object.kind == Kind::Pinned).and_then(|object| object.charge)
    }

    /// The pinned memory that goes with `object`, itself included.
    pub fn pinned_with(&self, client: Handle, object: Handle) -> Vec<Handle> {
        let Some(root) = self.tree.find(ObjectName::new(client, object)).filter(|_| self.counts.pinned > 0) else {
            return Vec::new();
        };
        let pinned = self.tree.goes_with(root).into_iter().filter_map(|(index, _)| self.tree.get(index));
        pinned.filter(|object| object.kind == Kind::Pinned).map(|object| object.name.object).collect()
    }

    /// The driver does not have it, or will have it still when what it should go with is gone.
    pub fn pinned_elsewhere(&mut self, object: ObjectName) {
        if let Some(index) = self.tree.find(object) {
            self.lose(index);
        }
    }

    pub(super) fn lose(&mut self, index: Index) {
        let Some(object) = self.tree.get(index).copied().filter(|object| object.kind == Kind::Pinned) else { return };
        if let Some(charge) = object.charge {
            self.charges.hold(charge);
            self.charges.has_pinned(charge, None);
            self.unfound.0.push(charge);
            self.counts.add(Kind::Pinned);
        }
        self.remove(index);
    }

    /// No client is left, and with the last went whatever was in any.
    pub(super) fn nothing_is_pinned(&mut self) {
        for charge in std::mem::take(&mut self.unfound.0) {
            self.charges.release(&mut self.cards, charge);
            self.counts.subtract(Kind::Pinned);
        }
    }
}
