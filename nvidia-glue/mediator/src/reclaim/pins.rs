//! Outcome of the calls that pin memory ([`crate::memory::pinned`]).

use abi::{Handle, Status, classes::OS_DESCRIPTOR};
use account::{Card, Placement, Reservation};
use base::{Bytes, Pid};

use crate::{
    Caller, CallerError, Drift, DriftKind, Session,
    in_flight::CallEnd,
    locks::lock,
    memory::{
        inflight_pins::{PinNames, Pinning},
        staging::{NotReported, StagedObject, Staging, StagingClient},
    },
    objects::named_locks::LockName,
};

/// By how much the driver may have rounded: its largest pages for the host's memory.
const ROUNDING: u64 = 2 * Bytes::MIB;

impl Session {
    /// A thread makes a call: what it pinned before is done, and what others have pinned may be
    /// named.
    ///
    /// # Errors
    /// It is to be killed, and the container with it: something else was done. Or it does not make
    /// this call any more, but perhaps another one.
    pub(crate) fn settle_pins_before_call(&self, caller: &dyn Caller) -> Result<(), CallEnd> {
        if self.pinned.inflight.open() == 0 {
            return Ok(());
        }
        let thread = caller.thread();
        let over = self.pinned.inflight.which(|call, _| call.thread == thread);
        if !over.is_empty() && !caller.is_waiting() {
            return Err(CallerError::Gone.into());
        }
        if over.is_empty() && self.pinned.inflight.waiting() == 0 || self.settle_pinned(&over) {
            Ok(())
        } else {
            Err(CallEnd::Kill)
        }
    }

    /// Asks the driver what came of the calls that pin memory. To be called from time to time.
    pub fn look_at_what_is_pinned(&self) {
        if self.pinned.inflight.open() > 0 {
            self.settle_pins_of_exited(|is_waiting| is_waiting);
        }
    }

    /// The same, whether there are any or not; lets go of the staging client where there are none.
    pub(crate) fn settle_staging(&self) {
        self.settle_pins_of_exited(|_| true);
        let Some(staging) = self.pinned.staging.get() else { return };
        let mut client = lock(&staging.client);
        if self.pinned.inflight.open() == 0 {
            self.end_staging_client(staging, &mut client);
        }
    }

    /// Of those calls, by whether something is to come of them yet, the ones are over whose threads
    /// have ended.
    pub(crate) fn settle_pins_of_exited(&self, which: impl Fn(bool) -> bool) {
        let is_dead = |call: &Pinning| !self.processes.is_thread_running(call.thread);
        let over = self.pinned.inflight.which(|call, is_waiting| which(is_waiting) && is_dead(call));
        self.settle_pinned(&over);
    }

    /// Moves what was made to where it is to be. What calls that are over have made is there by
    /// now. Whether all of it was what was asked for.
    fn settle_pinned(&self, over: &[Handle]) -> bool {
        let Some(staging) = self.pinned.staging.get() else { return true };
        let mut client = lock(&staging.client);
        let mut is_honest = true;
        let is_empty = client.as_mut().is_none_or(|client| self.empty_staging(staging, client, &mut is_honest).is_ok());
        // Where that is not said, nothing has failed yet.
        if is_empty {
            self.close_pins(over);
        }
        is_honest
    }

    /// These calls are over; what has brought nothing has failed.
    fn close_pins(&self, over: &[Handle]) {
        let closed = over.iter().filter_map(|handle| self.pinned.inflight.close(*handle));
        self.cancel_all(closed.filter_map(|(_, reservation)| reservation));
    }

    pub(crate) fn cancel_all(&self, reservations: impl IntoIterator<Item = Reservation>) {
        reservations.into_iter().for_each(|reservation| lock(&self.objects.accounts).cancel(reservation));
    }

    fn empty_staging(
        &self,
        staging: &Staging,
        client: &mut StagingClient,
        is_honest: &mut bool,
    ) -> Result<(), NotReported> {
        while let Some(handle) = self.any_staged(staging, client)? {
            if client.left != Some(handle) {
                let found = self.staged_object(staging, client, handle)?.ok_or(NotReported)?;
                *is_honest &= self.unstage(client, handle, found);
                client.left = Some(handle);
            }
            if !self.raw_staging(staging, client).free(handle).is_ok_and(Status::is_ok) {
                return Err(NotReported);
            }
            client.left = None;
        }
        Ok(())
    }

    /// Has what was made under that handle where it is to be; else ends the container.
    fn unstage(&self, client: &StagingClient, handle: Handle, found: StagedObject) -> bool {
        let most = |asked: u64| asked.checked_next_multiple_of(ROUNDING).unwrap_or(u64::MAX);
        let is_as_asked = |call: &Pinning| found.class == OS_DESCRIPTOR && found.bytes <= most(call.length);
        let (call, reservation) = self.pinned.inflight.take(handle).unzip();
        let is_honest = call.as_ref().is_some_and(is_as_asked);
        match (call, reservation) {
            (Some(call), Some(reservation)) if is_honest => {
                self.move_to_client((client.client, handle), call.names, (reservation, found.bytes));
            }
            (call, reservation) => {
                self.cancel_all(reservation);
                // Where it is no call's handle, it is of one that is open.
                let of_call = call.map(|call| (call.pid, call.length));
                self.report_forged_pin(of_call.or_else(|| self.pinned.inflight.anybody()), found);
            }
        }
        self.pinned.inflight.moved();
        is_honest
    }

    /// The program has named the client, the parent and the handle: where the driver does not take
    /// them it has none of it.
    fn move_to_client(&self, source: (Handle, Handle), names: PinNames, (reservation, length): (Reservation, u64)) {
        let (client, name) = (names.client, names.object());
        self.objects.locks.with(&[LockName::Client(client)], || {
            let kept = lock(&self.objects.files)
                .control_of(client)
                .filter(|_| self.objects.is_parent(client, names.parent).is_ok());
            let place = (names.parent, names.object);
            let moved = kept.map(|kept| self.raw(&kept.file, client).dup(place, source));
            if !matches!(moved, Some(Ok((status, _))) if status.is_ok()) {
                lock(&self.objects.accounts).cancel(reservation);
                return;
            }
            let placement = Placement::under(names.parent, names.object);
            let pinned = lock(&self.objects.accounts).pinned(reservation, placement, length);
            // Without its client it is gone again.
            pinned.map(drop).unwrap_or_else(|not| lock(&self.objects.accounts).cancel(not.reservation));
            self.replace_handle(name);
        });
    }

    /// Has the container ended for what a call was made to do.
    fn report_forged_pin(&self, by: Option<(Pid, u64)>, found: StagedObject) {
        let (by, asked) = by.unwrap_or((Pid(0), 0));
        let limit = lock(&self.objects.accounts).card(Card::HOST).map_or(Bytes(0), |host| host.limit);
        let kind = DriftKind::Pinned { by, asked: Bytes(asked), found: Bytes(found.bytes), class: found.class, limit };
        self.observer.drift(&Drift { kind, excess: true, pids: Vec::new() });
    }

    /// The container has ended, and no call is under way any more: frees what is left of them.
    /// Whether the driver still has it.
    pub(crate) fn end_staging(&self) -> bool {
        let Some(staging) = self.pinned.staging.get() else { return false };
        let mut client = lock(&staging.client);
        self.close_pins(&self.pinned.inflight.which(|_, _| true));
        self.end_staging_client(staging, &mut client)
    }
}
