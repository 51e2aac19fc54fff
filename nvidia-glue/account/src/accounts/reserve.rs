//! Reservations before a call is executed, and their end after it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use abi::{Handle, memory::Layout};
use base::{Pid, units::Bytes};

use super::{
    Accounts,
    objects::{Committed, Placement},
};
use crate::{Card, ExportFile, Kind, ObjectName, OverQuota, Refusal, charges::ChargeId};

/// An allocation of an object that is about to be executed.
#[derive(Debug, Clone, Copy)]
pub struct AllocRequest {
    /// In which client.
    pub client: Handle,
    /// Sort of object.
    pub kind: Kind,
    /// Video memory that it takes, rounded as the driver rounds, and of which card.
    pub memory: Option<(Card, Bytes)>,
    /// Position in the frames of the card.
    pub layout: Layout,
    /// Process that asks.
    pub process: Pid,
}

/// Guard of a reservation that must be used up; counts those that are not.
#[derive(Debug)]
pub(super) struct Armed(Option<Arc<AtomicU64>>);

impl Armed {
    pub(super) fn new(abandoned: &Arc<AtomicU64>) -> Self {
        Self(Some(Arc::clone(abandoned)))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(abandoned) = &self.0 {
            abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Room for an object, and what it will be charged for; to be given to [`Accounts::commit`] or
/// [`Accounts::cancel`].
#[must_use = "what is reserved stays charged until it is committed or cancelled"]
#[derive(Debug)]
pub struct Reservation {
    pub(super) client: Handle,
    pub(super) kind: Kind,
    pub(super) charge: Option<ChargeId>,
    /// True if the charge was made for it, and not for an object of which it is a duplicate.
    pub(super) fresh: bool,
    /// Charges attached to the object of which it is a duplicate: both share it.
    pub(super) attached: Vec<ChargeId>,
    /// Bytes of addresses on the fabric that were counted for it.
    pub(super) fabric: u64,
    pub(super) armed: Armed,
}

/// Room for a client; to be given to [`Accounts::commit_client`] or [`Accounts::cancel_client`].
#[must_use = "what is reserved stays counted until it is committed or cancelled"]
#[derive(Debug)]
pub struct ClientReservation {
    pub(super) process: Pid,
    pub(super) armed: Armed,
}

/// A reference to what an object is charged for, held by a call that is being executed: to be given
/// to [`Accounts::map`], [`Accounts::export`], [`Accounts::attach`] or [`Accounts::release`].
#[must_use = "what is held stays charged until it is released"]
#[derive(Debug)]
pub struct Hold {
    /// `None`: the object is charged for nothing (a subdevice, for one).
    pub(super) charge: Option<ChargeId>,
    pub(super) armed: Armed,
}

/// An object that the driver has made but that the account does not take: free it again, then
/// [`Accounts::cancel`] the reservation; if it cannot be freed, [`Accounts::commit_anyway`].
#[must_use = "the object must be freed and the reservation cancelled"]
#[derive(Debug)]
pub struct NotCommitted {
    /// Still counted, with the size that the driver returned.
    pub reservation: Reservation,
    /// The reason.
    pub why: CommitError,
}

/// Reason for which an object is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitError {
    /// It has become larger than asked, and does not fit.
    OverQuota(OverQuota),
    /// Its client has gone meanwhile.
    ClientGone,
}

impl Accounts {
    /// Reserves room for an object and for the memory that it takes.
    ///
    /// # Errors
    /// When the client is not registered, the grant has no such card, the memory does not fit, or
    /// there are too many objects.
    pub fn reserve(&mut self, ask: AllocRequest) -> Result<Reservation, Refusal> {
        if !self.clients.contains_key(&ask.client) {
            return Err(Refusal::UnknownClient(ask.client));
        }
        self.kind_fits(ask.kind)?;
        let mut charge = None;
        if let Some(memory) = ask.memory {
            self.fits_laid_out(memory, ask.layout)?;
            let added = self.charges.add(&mut self.cards, ask.process, memory, ask.layout);
            charge = Some(added.ok_or(self.too_many_objects())?);
        }
        self.counts.add(ask.kind);
        Ok(Reservation {
            client: ask.client,
            kind: ask.kind,
            charge,
            fresh: charge.is_some(),
            attached: Vec::new(),
            fabric: 0,
            armed: Armed::new(&self.abandoned),
        })
    }

    fn kind_fits(&self, kind: Kind) -> Result<(), Refusal> {
        self.counts.fits(kind, &self.limits, |card| self.cards.channel_limit(card))
    }

    /// Returns whether `bytes` more would fit, in frames of their own.
    pub(super) fn fits(&mut self, card: Card, bytes: Bytes) -> Result<(), Refusal> {
        self.fits_laid_out((card, bytes), Layout::OwnFrames)
    }

    fn fits_laid_out(&mut self, (card, bytes): (Card, Bytes), layout: Layout) -> Result<(), Refusal> {
        if self.page_tables.has_no_virtual(card) {
            self.cards.set_tables(card, Bytes(0));
        }
        let fits = self.cards.fits_laid_out(card, bytes, layout);
        if fits.is_ok() || card != Card::HOST || !self.cards.has_kept() {
            return fits;
        }
        // Pinned memory may go without an update of what it keeps.
        self.charges.update_kept(&mut self.cards);
        self.cards.fits_laid_out(card, bytes, layout)
    }

    /// Reserves room for a duplicate of `source` in `client`; it is charged for nothing of its own,
    /// and holds what is attached to `source`.
    ///
    /// # Errors
    /// When one of the clients or the source is not registered, or there are too many objects or
    /// references.
    pub fn reserve_duplicate(&mut self, source: ObjectName, client: Handle) -> Result<Reservation, Refusal> {
        for client in [source.client, client] {
            if !self.clients.contains_key(&client) {
                return Err(Refusal::UnknownClient(client));
            }
        }
        let index = self.tree.find(source).ok_or(Refusal::UnknownObject(source))?;
        let object = self.tree.get(index).ok_or(Refusal::UnknownObject(source))?;
        let (kind, charge) = (object.kind, object.charge);
        let attached: Vec<_> = self.attachments.of(index).collect();
        if !attached.is_empty() {
            self.references_fit(attached.len())?;
        }
        let mut reservation = self.reserve_sharing(client, kind, charge)?;
        attached.iter().for_each(|charge| self.charges.hold(*charge));
        reservation.attached = attached;
        Ok(reservation)
    }

    /// Reserves room for `bytes` of addresses on the NVLink fabric for `memory`, an object of the
    /// same client. They share its charge: the driver keeps the memory as long as there are any, or
    /// mappings of them.
    ///
    /// # Errors
    /// When the memory is not known or none of a card's, has too many such addresses, or there are
    /// too many objects.
    pub fn reserve_fabric(&mut self, memory: ObjectName, bytes: u64) -> Result<Reservation, Refusal> {
        let known = self.tree.find(memory).and_then(|index| self.tree.get(index));
        known.filter(|known| known.kind == Kind::Memory).ok_or(Refusal::UnknownObject(memory))?;
        let mut reservation = self.reserve_duplicate(memory, memory.client)?;
        match self.charges.add_fabric(&mut self.cards, reservation.charge, bytes) {
            Ok(()) => {
                reservation.fabric = bytes;
                Ok(reservation)
            }
            Err(refusal) => {
                self.cancel(reservation);
                Err(refusal)
            }
        }
    }

    /// Reserves room for an object of `client` that has `bytes` of addresses on the NVLink fabric
    /// of a card, and no memory: what is attached to them stays an object of its own. They count
    /// as long as there are handles, exports or mappings of them.
    ///
    /// # Errors
    /// When the client is not registered, the grant has no such card, there are too many such
    /// addresses of it, or too many objects.
    pub fn reserve_addresses(
        &mut self,
        client: Handle,
        (card, bytes): (Card, Bytes),
        process: Pid,
    ) -> Result<Reservation, Refusal> {
        if !self.clients.contains_key(&client) {
            return Err(Refusal::UnknownClient(client));
        }
        let kind = Kind::Memory;
        self.kind_fits(kind)?;
        self.cards.fabric_fits(card, bytes.0)?;
        let charge = self.charges.add_addresses(&mut self.cards, process, (card, bytes.0));
        let charge = Some(charge.ok_or(self.too_many_objects())?);
        self.counts.add(kind);
        let armed = Armed::new(&self.abandoned);
        Ok(Reservation { client, kind, charge, fresh: true, attached: Vec::new(), fabric: bytes.0, armed })
    }

    /// Reserves room for an object of `client` made of what was exported to `file` at `index`.
    ///
    /// # Errors
    /// When the client is not registered, nothing was exported there, or there are too many
    /// objects.
    pub fn reserve_import(&mut self, file: ExportFile, index: u32, client: Handle) -> Result<Reservation, Refusal> {
        if !self.clients.contains_key(&client) {
            return Err(Refusal::UnknownClient(client));
        }
        let charge = self.exports.get(file, index).ok_or(Refusal::NothingExported { index })?;
        self.reserve_sharing(client, Kind::Memory, charge)
    }

    fn reserve_sharing(
        &mut self,
        client: Handle,
        kind: Kind,
        charge: Option<ChargeId>,
    ) -> Result<Reservation, Refusal> {
        self.kind_fits(kind)?;
        self.counts.add(kind);
        if let Some(charge) = charge {
            self.charges.hold(charge);
        }
        let armed = Armed::new(&self.abandoned);
        Ok(Reservation { client, kind, charge, fresh: false, attached: Vec::new(), fabric: 0, armed })
    }

    /// The object exists. `bytes` is the size that the driver returned, `None` to take what was
    /// asked; it only matters when memory was asked for.
    ///
    /// # Errors
    /// When it is larger than asked and does not fit, or its client has gone.
    pub fn commit(
        &mut self,
        reservation: Reservation,
        placement: Placement<'_>,
        bytes: Option<Bytes>,
    ) -> Result<Committed, NotCommitted> {
        if !self.clients.contains_key(&reservation.client) {
            return Err(NotCommitted { reservation, why: CommitError::ClientGone });
        }
        if let (true, Some(charge), Some(bytes)) = (reservation.fresh, reservation.charge, bytes)
            && let Some((card, asked)) = self.charges.amount(charge)
        {
            self.charges.resize(&mut self.cards, charge, bytes);
            if bytes > asked
                && let Some(over) = self.cards.excess(card, bytes, self.charges.layout(charge))
            {
                return Err(NotCommitted { reservation, why: CommitError::OverQuota(over) });
            }
        }
        if let (true, Some(charge), Some(address)) = (reservation.fresh, reservation.charge, placement.address) {
            self.charges.place(&mut self.cards, charge, address);
        }
        self.place(reservation, placement)
    }

    /// Takes an object that did not fit and that cannot be freed either: it stays charged, over the
    /// limit.
    ///
    /// # Errors
    /// When its client has gone.
    pub fn commit_anyway(
        &mut self,
        reservation: Reservation,
        placement: Placement<'_>,
    ) -> Result<Committed, NotCommitted> {
        self.place(reservation, placement)
    }

    /// Cancels the reservation of an object that does not exist: the driver refused it, or it was
    /// freed again.
    pub fn cancel(&mut self, reservation: Reservation) {
        if let Some(charge) = reservation.charge {
            self.charges.subtract_fabric(&mut self.cards, charge, reservation.fabric);
            self.charges.release(&mut self.cards, charge);
        }
        for charge in reservation.attached {
            self.charges.release(&mut self.cards, charge);
        }
        self.counts.subtract(reservation.kind);
        reservation.armed.disarm();
    }

    /// Holds the charge of `object` while a call is executed that may make a reference to it. An
    /// unknown object of a known client has no charge.
    ///
    /// # Errors
    /// When the client is not registered, or there are too many references.
    pub fn hold(&mut self, object: ObjectName) -> Result<Hold, Refusal> {
        if !self.clients.contains_key(&object.client) {
            return Err(Refusal::UnknownClient(object.client));
        }
        self.references_fit(1)?;
        let charge = self.tree.find(object).and_then(|index| self.tree.get(index)).and_then(|object| object.charge);
        if let Some(charge) = charge {
            self.charges.hold(charge);
        }
        Ok(Hold { charge, armed: Armed::new(&self.abandoned) })
    }

    /// Ends the hold of a call that has made no reference.
    pub fn release(&mut self, hold: Hold) {
        if let Some(charge) = hold.charge {
            self.charges.release(&mut self.cards, charge);
        }
        hold.armed.disarm();
    }

    /// Number of reservations and holds that were dropped without being used up: a defect of the
    /// program. They stay charged.
    pub fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }
}
