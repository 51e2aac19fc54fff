//! Pinning of a program's own pages ([`crate::memory::pinned`]).

use abi::{Handle, Node, Status, classes::OS_DESCRIPTOR, decode::AllocMemory};
use account::{Card, Kind, ObjectName, Reservation};
use driver::Holder;

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    memory::{
        inflight_pins::{PinNames, Pinning},
        pinned::{MOST, MOST_OPEN},
    },
};

impl Session {
    /// `NV_ESC_RM_ALLOC_MEMORY`: what programs use it for is let through, into the staging client.
    pub(crate) fn alloc_memory(&self, flight: &mut InFlightCall<'_>, alloc: AllocMemory) -> Result<Answer, CallEnd> {
        let thread = flight.caller.thread();
        // A call that a signal has interrupted, or that its program repeats, is made with the
        // struct as it was left.
        let said = PinNames { client: alloc.client, parent: alloc.parent, object: alloc.object };
        let names = self.pinned.inflight.meant(thread, said);
        self.check_client(names.client)?;
        if alloc.class != OS_DESCRIPTOR {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        // The driver would choose a name, and not say it.
        if names.object == Handle::NONE || names.object == names.client {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let card = lock(&self.objects.topology).device_card(names.client, names.parent);
        let card = card.ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
        flight.confirm()?;
        if lock(&self.objects.accounts).object(names.object()).is_some() {
            return Err(CallEnd::Status(Status::INSERT_DUPLICATE_NAME));
        }
        let is_full = || self.pinned.inflight.waiting() >= MOST || self.pinned.inflight.open() >= MOST_OPEN;
        if is_full() {
            self.settle_pins_of_exited(|_| true);
        }
        if is_full() {
            return Err(CallEnd::Insufficient("as many calls that pin memory are under way as a container may make"));
        }
        let (pid, length) = (flight.pid, alloc.limit.saturating_add(1));
        let reservation = self.reserve(pid, |accounts| accounts.pin(pid, names.client, length))?;
        let staged = self.stage(card, Pinning { names, thread, pid, length }, reservation)?;
        let answer = flight.rewrite(0, &staged.bytes()).and_then(|()| self.continue_call(flight));
        match answer {
            Ok(_) => flight.pinning = Some(staged.object),
            Err(_) => self.undo_pinning(staged.object),
        }
        answer
    }

    /// Makes room for a call in the staging client; what it is to say.
    fn stage(&self, card: Card, call: Pinning, reservation: Reservation) -> Result<PinNames, CallEnd> {
        let place = self.staging().and_then(|staging| {
            let mut client = lock(&staging.client);
            let place = self.staging_device(staging, &mut client, card)?;
            Ok((client, place))
        });
        match place {
            Ok((_client, place)) => Ok(self.pinned.inflight.add(place, call, reservation)),
            Err(end) => {
                lock(&self.objects.accounts).cancel(reservation);
                Err(end)
            }
        }
    }

    /// The kernel was not told to execute it, or nobody hears of what a driver outside the kernel
    /// has done.
    pub(crate) fn undo_pinning(&self, handle: Handle) {
        let Some(staging) = self.pinned.staging.get() else { return };
        let client = lock(&staging.client);
        let Some((call, reservation)) = self.pinned.inflight.close(handle) else { return };
        let is_moved = reservation.is_none();
        self.cancel_all(reservation);
        // The kernel has done nothing.
        if self.driver.is_in_kernel() {
            return;
        }
        if let Some(client) = client.as_ref().filter(|_| !is_moved) {
            if let Ok(Some(_)) = self.staged_object(staging, client, handle) {
                let _ = self.raw_staging(staging, client).free(handle);
            }
            return;
        }
        drop(client);
        let name = call.names.object();
        let kept = lock(&self.objects.files).control_of(name.client);
        let known = lock(&self.objects.accounts).object(name);
        if let Some(kept) = kept.filter(|_| known.is_some_and(|known| known.kind == Kind::Pinned)) {
            self.unmake(&kept.file, ObjectName { client: name.client, object: name.object });
        }
    }

    /// `NV_ESC_REGISTER_FD`: a card's file is registered with the staging client's control file,
    /// not with the container's own. Only pinning needs it; events, which can be had on such a
    /// file, too, are made on the control file ([`Session::on_control_file`]).
    pub(crate) fn register_file(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        flight.duplicate_files(self.driver.as_ref(), Holder::Args, flight.row.descriptors())?;
        let is_card = matches!(flight.file.node, Node::Card(_));
        // Any other the driver refuses.
        if let Some(named) = flight.files.first_mut().filter(|named| is_card && named.file.node == Node::Control) {
            named.file = self.staging()?.control.clone();
        }
        flight.execute(self.driver.as_ref())?;
        flight.finish()
    }

    /// A call in `client` that was made on a card's file goes to the control file that the client
    /// lives on.
    pub(crate) fn on_control_file(&self, flight: &mut InFlightCall<'_>, client: Handle) {
        let is_card = matches!(flight.file.node, Node::Card(_));
        if let Some(kept) = is_card.then(|| lock(&self.objects.files).control_of(client)).flatten() {
            flight.file = kept.file;
        }
    }
}
