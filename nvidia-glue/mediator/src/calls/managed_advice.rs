//! Calls that say where managed memory is to lie: what is to stay on the host is left out of them,
//! unless the quota has room for it by now.
//!
//! They are executed on copies, where managed memory is meant: a racing thread could turn them into
//! others. Advice about a program's ordinary memory only the kernel can execute in its place.

use abi::{
    Status,
    decode::{HOST_UUID, Range},
    encode,
    params::{UVM_MIGRATE_PARAMS as Migrate, UVM_UNSET_PREFERRED_LOCATION_PARAMS as Unset},
    uvm::UVM_UNSET_PREFERRED_LOCATION,
};
use account::{Mapping, UvmFile};
use driver::DriverCall;

use crate::{
    Answer, Session,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
};

/// Of which UVM takes a card's memory.
const BLOCK: u64 = 2 << 20;

impl Session {
    /// Says where memory is to lie, or whether it may be copied to each card that reads it.
    pub(super) fn advise(&self, flight: &mut InFlightCall<'_>, range: Range) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.while_it_lasts(file, &[], || {
            let (is_managed, _) = self.find_managed(file, range);
            if !is_managed && lock(&self.objects.accounts).may_advise(flight.caller.thread()) {
                return self.continue_call(flight);
            }
            let status = self.execute_pieces(flight, &self.beside_host(file, range))?;
            // Not for others than the program itself, says the driver of its ordinary memory.
            if !is_managed && status == Status::NOT_SUPPORTED {
                flight.set_status(Status::OK);
            }
            flight.finish()
        })
    }

    /// libcuda is about to give out a part of a range, such as a pool's: it may come onto the cards
    /// if all of it fits. (Where the range as a whole did not fit, it does not now.)
    pub(super) fn about_to_use(&self, flight: &mut InFlightCall<'_>, range: Range) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.while_it_lasts(file, &[], || {
            self.move_to_cards(flight, file, Mapping { start: range.base, length: range.length });
            self.continue_call(flight)
        })
    }

    /// Memory is moved at once: to a card, what is there already, and of the rest as much as fits.
    pub(super) fn migrate(
        &self,
        flight: &mut InFlightCall<'_>,
        range: Range,
        destination: [u8; 16],
    ) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.while_it_lasts(file, &[], || {
            let (is_managed, on_host) = self.find_managed(file, range);
            if !is_managed && lock(&self.objects.accounts).may_advise(flight.caller.thread()) {
                return self.continue_call(flight);
            }
            if on_host.is_empty() || destination == HOST_UUID {
                flight.execute(self.driver.as_ref())?;
                return flight.finish();
            }
            let mut room = lock(&self.objects.accounts).room_for_managed().0;
            let mut fitting = None;
            for part in on_host {
                if room < BLOCK {
                    break;
                }
                let length = if part.length <= room { part.length } else { room - room % BLOCK };
                room = if length < part.length { 0 } else { room - length };
                fitting = Some(part.start + length);
            }
            if let Some(end) = fitting {
                self.move_to_cards(flight, file, Mapping { start: range.base, length: end - range.base });
            }
            self.migrate_pieces(flight, &self.beside_host(file, range))?;
            flight.finish()
        })
    }

    /// Moves all parts; who waits for the semaphore is woken by the last of them.
    fn migrate_pieces(&self, flight: &mut InFlightCall<'_>, pieces: &[Mapping]) -> Result<(), CallEnd> {
        let (address, payload) = (Migrate::semaphoreAddress, Migrate::semaphorePayload);
        let wake = (address.get(&flight.args).unwrap_or(0), payload.get(&flight.args).unwrap_or(0));
        let set_wake = |flight: &mut InFlightCall<'_>, wake: (u64, u32)| {
            let _ = address.set(&mut flight.args, wake.0);
            let _ = payload.set(&mut flight.args, wake.1);
        };
        let (last, before) = match pieces.split_last() {
            Some((last, before)) => (*last, before),
            // The driver takes a length of 0 where there is a semaphore.
            None if wake.0 != 0 => (Mapping { start: 0, length: 0 }, pieces),
            None => {
                flight.set_status(Status::OK);
                return Ok(());
            }
        };
        set_wake(flight, (0, 0));
        let status = self.execute_pieces(flight, before)?;
        set_wake(flight, wake);
        if status.is_ok() {
            self.execute_pieces(flight, &[last])?;
        }
        Ok(())
    }

    /// Ranges that a program has put together (`cudaStreamAttachMemAsync`): where some of them are
    /// to stay on the host, none is moved to a card.
    pub(super) fn migrate_group(
        &self,
        flight: &mut InFlightCall<'_>,
        destination: [u8; 16],
    ) -> Result<Answer, CallEnd> {
        let file = self.uvm_file(flight)?;
        self.in_order(flight, file, |flight| {
            let (_, on_host) = self.find_managed(file, Range { base: 0, length: u64::MAX });
            if on_host.is_empty() || destination == HOST_UUID {
                return flight.execute(self.driver.as_ref()).map(drop);
            }
            flight.set_status(Status::OK);
            Ok(())
        })
    }

    /// Returns whether part of a range is managed memory, and the parts that are to stay on the
    /// host.
    fn find_managed(&self, file: UvmFile, Range { base, length }: Range) -> (bool, Vec<Mapping>) {
        let accounts = lock(&self.objects.accounts);
        (accounts.knows_managed(file, base, length), accounts.managed_on_host(file, base, length))
    }

    fn beside_host(&self, file: UvmFile, Range { base, length }: Range) -> Vec<Mapping> {
        lock(&self.objects.accounts).managed_beside_host(file, base, length)
    }

    /// Charges what of a range is on the host and lets it come onto the cards. If not all of it
    /// fits, none does.
    ///
    /// Precondition: the file's lock.
    fn move_to_cards(&self, flight: &InFlightCall<'_>, file: UvmFile, range: Mapping) {
        let charged = lock(&self.objects.accounts).move_managed_to_cards(file, range.start, range.length);
        for Mapping { start, length } in charged.unwrap_or_default() {
            let mut args = encode!(Unset { requestedBase: start, length: length });
            let call =
                DriverCall { command: UVM_UNSET_PREFERRED_LOCATION, args: &mut args, buffers: &mut [], files: &[] };
            // Where the driver refuses it, it stays where it is, charged.
            let _ = self.driver.ioctl(&flight.file, call);
        }
    }

    /// Has the driver execute a call on several ranges; its first refusal.
    fn execute_pieces(&self, flight: &mut InFlightCall<'_>, pieces: &[Mapping]) -> Result<Status, CallEnd> {
        // Every struct of these begins with a range.
        let (base, length) = (Unset::requestedBase, Unset::length);
        let asked = (base.get(&flight.args).unwrap_or(0), length.get(&flight.args).unwrap_or(0));
        let set = |flight: &mut InFlightCall<'_>, range: (u64, u64)| {
            let _ = base.set(&mut flight.args, range.0);
            let _ = length.set(&mut flight.args, range.1);
        };
        flight.set_status(Status::OK);
        let mut status = Status::OK;
        for piece in pieces {
            set(flight, (piece.start, piece.length));
            status = flight.execute(self.driver.as_ref())?;
            if !status.is_ok() {
                break;
            }
        }
        set(flight, asked);
        Ok(status)
    }
}
