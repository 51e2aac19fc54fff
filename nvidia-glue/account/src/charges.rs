//! Physical allocations and how many references each has.

use abi::memory::Layout;
use base::{Pid, units::Bytes};

use super::{
    Card, Counted, Refusal,
    cards::{Cards, FABRIC},
    frames::Extent,
    pins::{Pins, Window},
};

/// Index of a charge, valid for as long as a reference to it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChargeId(u32);

#[derive(Debug, Clone, Copy)]
struct Charge {
    bytes: u64,
    layout: Layout,
    extent: Extent,
    process: Pid,
    /// 0: the slot is free.
    references: u32,
    /// Number of references that are exports.
    exports: u32,
    /// Number of references that are files through which it was mapped for the processor.
    mappings: u32,
    card: Card,
    pages: Pages,
    /// Bytes of addresses on the fabric that it was ever given; all that it is for, if there is no
    /// memory behind them.
    fabric: u64,
}

impl Charge {
    fn change(&mut self, cards: &mut Cards, bytes: Bytes, extent: Extent) {
        cards.subtract_in(self.process, self.card, self.bytes.into(), self.extent);
        cards.add_in(self.process, self.card, bytes.0.into(), extent);
        (self.bytes, self.extent) = (bytes.0, extent);
    }
}

/// Part of a charge in pages that are pinned.
#[derive(Debug, Clone, Copy)]
enum Pages {
    /// Nothing.
    Other,
    /// It is for pages that the driver keeps pinned; their name.
    Pins(u64),
    /// It is for pages that were mapped for the processor, so that they could be pinned.
    Mapped(Window),
}

/// All charges.
#[derive(Debug, Default)]
pub(super) struct Charges {
    slots: Vec<Charge>,
    free: Vec<u32>,
    pins: Pins,
}

impl Charges {
    /// A charge with one reference; whether it fits is the caller's business.
    pub(super) fn add(
        &mut self,
        cards: &mut Cards,
        process: Pid,
        (card, bytes): (Card, Bytes),
        layout: Layout,
    ) -> Option<ChargeId> {
        let extent = Extent::unplaced(layout, bytes.0);
        let charge = Charge {
            bytes: bytes.0,
            layout,
            extent,
            process,
            references: 1,
            exports: 0,
            mappings: 0,
            card,
            pages: Pages::Other,
            fabric: 0,
        };
        let id = match self.free.pop() {
            Some(index) => {
                *self.slots.get_mut(index as usize)? = charge;
                index
            }
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(charge);
                index
            }
        };
        cards.add_in(process, card, bytes.0.into(), extent);
        Some(ChargeId(id))
    }

    /// Adds a charge for addresses on the fabric behind which there is no memory; whether they fit
    /// is the caller's business.
    pub(super) fn add_addresses(
        &mut self,
        cards: &mut Cards,
        process: Pid,
        (card, bytes): (Card, u64),
    ) -> Option<ChargeId> {
        let id = self.add(cards, process, (card, Bytes(0)), Layout::OwnFrames)?;
        self.get_mut(id)?.fabric = bytes;
        cards.add_fabric(card, bytes);
        Some(id)
    }

    /// Adds bytes of addresses on the fabric to a charge, if it is of a card's memory and has not
    /// too many already.
    pub(super) fn add_fabric(&mut self, cards: &mut Cards, id: Option<ChargeId>, bytes: u64) -> Result<(), Refusal> {
        const TOO_MANY: Refusal = Refusal::TooMany { counted: Counted::Fabric, limit: FABRIC };
        let charge = id.and_then(|id| self.get_mut(id)).ok_or(TOO_MANY)?;
        let fabric = charge.fabric.saturating_add(bytes);
        if charge.card == Card::HOST || fabric > charge.bytes.saturating_mul(FABRIC.into()) {
            return Err(TOO_MANY);
        }
        cards.fabric_fits(charge.card, bytes)?;
        cards.add_fabric(charge.card, bytes);
        charge.fabric = fabric;
        Ok(())
    }

    /// Removes bytes of addresses on the fabric that were not allocated.
    pub(super) fn subtract_fabric(&mut self, cards: &mut Cards, id: ChargeId, bytes: u64) {
        if let Some(charge) = self.get_mut(id) {
            let bytes = bytes.min(charge.fabric);
            charge.fabric -= bytes;
            cards.subtract_fabric(charge.card, bytes);
        }
    }

    fn get(&self, id: ChargeId) -> Option<&Charge> {
        self.slots.get(id.0 as usize).filter(|charge| charge.references > 0)
    }

    fn get_mut(&mut self, id: ChargeId) -> Option<&mut Charge> {
        self.slots.get_mut(id.0 as usize).filter(|charge| charge.references > 0)
    }

    /// Card of a charge, and the bytes of it.
    pub(super) fn amount(&self, id: ChargeId) -> Option<(Card, Bytes)> {
        self.get(id).map(|charge| (charge.card, Bytes(charge.bytes)))
    }

    /// Returns whether just so many references hold it, none of them an export or a file, and it
    /// has no addresses on the fabric.
    #[cfg(feature = "parking")]
    pub(super) fn is_held_by(&self, id: ChargeId, references: u32) -> bool {
        self.get(id).is_some_and(|charge| {
            charge.references == references && (charge.exports, charge.mappings, charge.fabric) == (0, 0, 0)
        })
    }

    /// Its bytes and addresses, if exports (and files through which it was mapped) are all that
    /// holds it.
    pub(super) fn held_by_exports(&self, id: ChargeId) -> Bytes {
        let is_alone = |charge: &&Charge| charge.references == charge.exports.saturating_add(charge.mappings);
        let size = |charge: &Charge| Bytes(charge.bytes.saturating_add(charge.fabric));
        self.get(id).filter(is_alone).map_or(Bytes(0), size)
    }

    /// Returns whether files through which it was mapped are all that holds it.
    pub(super) fn is_held_by_mappings(&self, id: ChargeId) -> bool {
        self.get(id).is_some_and(|charge| charge.references == charge.mappings)
    }

    /// Marks one of the references as a file through which it was mapped.
    pub(super) fn mapped(&mut self, id: ChargeId) {
        if let Some(charge) = self.slots.get_mut(id.0 as usize) {
            charge.mappings = charge.mappings.saturating_add(1);
            match &mut charge.pages {
                Pages::Mapped(window) => window.reopen(),
                Pages::Pins(_) => {}
                pages @ Pages::Other => *pages = Pages::Mapped(self.pins.open_window()),
            }
        }
    }

    /// Drops a reference that was a file through which it was mapped. Returns the bytes that this
    /// released.
    pub(super) fn release_mapping(&mut self, cards: &mut Cards, id: ChargeId) -> Bytes {
        if let Some(charge) = self.slots.get_mut(id.0 as usize) {
            charge.mappings = charge.mappings.saturating_sub(1);
            if let (0, Pages::Mapped(window)) = (charge.mappings, &mut charge.pages) {
                self.pins.close(window);
            }
        }
        self.release(cards, id)
    }

    /// Marks one of the references as an export.
    pub(super) fn exported(&mut self, id: ChargeId) {
        if let Some(charge) = self.slots.get_mut(id.0 as usize) {
            charge.exports = charge.exports.saturating_add(1);
        }
    }

    /// Drops a reference that was an export. Returns the bytes that this released.
    pub(super) fn release_export(&mut self, cards: &mut Cards, id: ChargeId) -> Bytes {
        if let Some(charge) = self.slots.get_mut(id.0 as usize) {
            charge.exports = charge.exports.saturating_sub(1);
        }
        self.release(cards, id)
    }

    /// Adds a reference.
    pub(super) fn hold(&mut self, id: ChargeId) {
        if let Some(charge) = self.get_mut(id) {
            // It cannot wrap: each reference is something that is limited in number.
            charge.references = charge.references.saturating_add(1);
        } else {
            debug_assert!(false, "a reference to a charge that is gone");
        }
    }

    /// Drops a reference. Returns the bytes that this released.
    pub(super) fn release(&mut self, cards: &mut Cards, id: ChargeId) -> Bytes {
        let Some(charge) = self.get_mut(id) else {
            debug_assert!(false, "a charge is released twice");
            return Bytes(0);
        };
        charge.references -= 1;
        if charge.references > 0 {
            return Bytes(0);
        }
        let bytes = charge.bytes;
        cards.subtract_in(charge.process, charge.card, bytes.into(), charge.extent);
        cards.subtract_fabric(charge.card, charge.fabric);
        match charge.pages {
            Pages::Other => {}
            Pages::Pins(pin) => self.pins.unpinned(pin),
            Pages::Mapped(window) => {
                self.pins.keep(window, bytes);
                // The exact number is computed where it matters.
                cards.set_kept(self.pins.kept_at_most());
            }
        }
        self.free.push(id.0);
        Bytes(bytes)
    }

    /// Marks the charge as that of pages that a call is about to pin.
    pub(super) fn pins(&mut self, id: ChargeId) {
        if let Some(charge) = self.slots.get_mut(id.0 as usize).filter(|charge| charge.references > 0) {
            charge.pages = Pages::Pins(self.pins.pinned());
        }
    }

    /// Records the bytes that the call has pinned, once it is over.
    pub(super) fn has_pinned(&mut self, id: ChargeId, length: u64) {
        if let Some(Charge { pages: Pages::Pins(pin), .. }) = self.get(id).copied() {
            self.pins.over(pin, length);
        }
    }

    /// Updates the bytes that only pinned pages may still keep, and returns them.
    pub(super) fn update_kept(&mut self, cards: &mut Cards) -> Bytes {
        let kept = self.pins.kept();
        cards.set_kept(kept.0);
        kept
    }

    /// Resizes a charge to `bytes`.
    pub(super) fn resize(&mut self, cards: &mut Cards, id: ChargeId, bytes: Bytes) {
        if let Some(charge) = self.get_mut(id) {
            let extent = Extent::unplaced(charge.layout, bytes.0);
            charge.change(cards, bytes, extent);
        }
    }

    /// Sets the address of its card at which a charge begins, if it can be there.
    pub(super) fn place(&mut self, cards: &mut Cards, id: ChargeId, address: u64) {
        if let Some(charge) = self.get_mut(id) {
            let extent = Extent::at(charge.layout, address, charge.bytes);
            let is_there = cards.has_room_in_frames(charge.card, extent);
            let extent = if is_there { extent } else { Extent::unplaced(charge.layout, charge.bytes) };
            charge.change(cards, Bytes(charge.bytes), extent);
        }
    }

    /// Layout of a charge in the frames of its card.
    pub(super) fn layout(&self, id: ChargeId) -> Layout {
        self.get(id).map_or(Layout::OwnFrames, |charge| charge.layout)
    }

    /// Number of charges.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
