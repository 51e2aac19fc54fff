//! How an object comes to be: reserved, made by the driver and taken into the accounts, in one step to whoever else uses its client.

use abi::{
    Handle, Status,
    layout::{read_u32, read_u64},
    memory,
};
use account::{Card, CommitError, Hold, ObjectName, Placement, Refusal, Reservation};
use base::{Bytes, Pid};
use driver::{DeviceFile, Holder};

use super::in_flight::{CallEnd, InFlightCall};
use crate::{
    Answer, Session,
    locks::{LockName, lock},
    objects::topology::ObjectRole,
};

/// An object that the driver is about to be asked for.
pub(crate) struct ObjectAlloc<'a> {
    pub(crate) client: Handle,
    pub(crate) parent: Handle,
    /// Where the driver leaves its handle: in the struct, or in its parameters.
    pub(crate) handle: (Holder, usize),
    /// Where the size is that the driver returns.
    pub(crate) size: Option<(Holder, usize)>,
    /// Says what it is to be charged for and where it belongs. Asked while nobody else works in the client: what the handles that the call
    /// names stand for is the same to the driver.
    pub(crate) prepare: &'a dyn Fn(&InFlightCall<'_>) -> Result<PreparedAlloc, AllocAbort>,
}

/// What is known of an object before the driver makes it.
#[derive(Debug)]
pub(crate) struct PreparedAlloc {
    pub(crate) reservation: Reservation,
    /// What else it goes with.
    pub(crate) dependencies: Vec<Handle>,
    /// Memory to which it is a reference.
    pub(crate) references: Vec<Handle>,
    /// What is told of its errors.
    pub(crate) notifiers: Vec<Handle>,
    /// What matters of it to later calls.
    pub(crate) place: Option<(Card, ObjectRole)>,
    /// What it is to the card's gate.
    pub(crate) role: Option<SchedulingRole>,
}

/// What an object is to the gate of its card.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SchedulingRole {
    /// A channel group of an `NV2080_ENGINE_TYPE_*`.
    Group(u32),
    /// A channel, by its own word of such an engine.
    Channel(u32),
    /// A duplicate of what may be a group.
    Duplicate(ObjectName),
}

impl From<Reservation> for PreparedAlloc {
    fn from(reservation: Reservation) -> Self {
        Self {
            reservation,
            dependencies: Vec::new(),
            references: Vec::new(),
            notifiers: Vec::new(),
            place: None,
            role: None,
        }
    }
}

/// Why an object is not made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AllocAbort {
    /// The call goes no further.
    CallEnd(CallEnd),
    /// The accounts have no room for it; the driver was not asked.
    Refused(Refusal),
    /// The driver has made it, the accounts do not take it, and it is gone again.
    CommitRefused(CommitError),
}

impl From<CallEnd> for AllocAbort {
    fn from(end: CallEnd) -> Self {
        Self::CallEnd(end)
    }
}

impl From<Refusal> for AllocAbort {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What has been made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocatedObject {
    pub(crate) client: Handle,
    pub(crate) object: Handle,
}

impl Session {
    /// Holds memory to which an object is about to be a reference.
    fn hold_all(&self, client: Handle, memories: &[Handle]) -> Result<Vec<Hold>, Refusal> {
        let mut holds = Vec::new();
        for memory in memories {
            let held = lock(&self.accounts).hold(ObjectName::new(client, *memory));
            match held {
                Ok(hold) => holds.push(hold),
                Err(refusal) => {
                    self.attach_all(holds, None);
                    return Err(refusal);
                }
            }
        }
        Ok(holds)
    }

    /// The object that was made holds what was held for it; without one, nothing does.
    fn attach_all(&self, holds: Vec<Hold>, made: Option<AllocatedObject>) {
        let mut accounts = lock(&self.accounts);
        for hold in holds {
            let left = match made {
                Some(made) => accounts.attach(hold, ObjectName::new(made.client, made.object)).err(),
                None => Some(hold),
            };
            left.into_iter().for_each(|hold| accounts.release(hold));
        }
    }

    /// Has the driver make an object, and takes it into the accounts, in one step to whoever else uses the client. `None`: the driver
    /// refused, with its status in the struct.
    pub(crate) fn make(
        &self,
        flight: &mut InFlightCall<'_>,
        making: &ObjectAlloc<'_>,
        also: &[LockName],
    ) -> Result<Option<AllocatedObject>, CallEnd> {
        flight.confirm()?;
        let pid = flight.pid;
        let names: Vec<LockName> = [LockName::Client(making.client)].into_iter().chain(also.iter().copied()).collect();
        self.with_room(pid, &names, || self.make_locked(flight, making))
    }

    /// Does `work` with these locked. If there is no room, what is gone meanwhile is looked for, and it is done once more.
    pub(crate) fn with_room<T>(
        &self,
        pid: Pid,
        names: &[LockName],
        mut work: impl FnMut() -> Result<T, AllocAbort>,
    ) -> Result<T, CallEnd> {
        let mut done = self.locks.with(names, &mut work);
        if let Err(AllocAbort::Refused(refusal)) = &done
            && refusal.may_pass()
        {
            self.reclaim();
            done = self.locks.with(names, &mut work);
        }
        done.map_err(|stop| self.stopped(pid, stop))
    }

    /// How a call ends that was stopped for good.
    fn stopped(&self, pid: Pid, stop: AllocAbort) -> CallEnd {
        match stop {
            AllocAbort::CallEnd(end) => end,
            AllocAbort::Refused(refusal) => self.refused(pid, refusal),
            // It was more than the driver had been expected to give.
            AllocAbort::CommitRefused(CommitError::OverQuota(over)) => self.refused(pid, over.into()),
            AllocAbort::CommitRefused(CommitError::ClientGone) => CallEnd::Status(Status::INVALID_CLIENT),
        }
    }

    /// The same for whoever has the client locked.
    pub(crate) fn make_locked(
        &self,
        flight: &mut InFlightCall<'_>,
        making: &ObjectAlloc<'_>,
    ) -> Result<Option<AllocatedObject>, AllocAbort> {
        let PreparedAlloc { reservation, dependencies, references, notifiers, place, role } = (making.prepare)(flight)?;
        let holds = match self.hold_all(making.client, &references) {
            Ok(holds) => holds,
            Err(refusal) => {
                lock(&self.accounts).cancel(reservation);
                return Err(refusal.into());
            }
        };
        // No edge passes between the driver's making it and its being known.
        let turn = match role {
            Some(SchedulingRole::Channel(_)) => self.begin_attach(ObjectName::new(making.client, making.parent)),
            _ => None,
        };
        let made = self.execute_reserved(flight, making, reservation, (&dependencies, &notifiers));
        let object = made.as_ref().ok().copied().flatten();
        self.attach_all(holds, object);
        if let Some(made) = object {
            self.handle_is_anew(ObjectName::new(made.client, made.object));
            if let Some((card, place)) = place {
                lock(&self.topology).add(made.client, making.parent, made.object, card, place);
            }
            self.register_with_gate(made, making.parent, place.map(|(card, _)| card), role);
            if let Some(turn) = turn {
                // What is refused here is found by the next edge.
                let _ = turn.bring(&[ObjectName::new(made.client, made.object)]);
            }
        }
        made
    }

    /// An object was made: whatever had its handle before is gone.
    pub(crate) fn handle_is_anew(&self, name: ObjectName) {
        let is_handle_used = {
            let mut topology = lock(&self.topology);
            let is_handle_used = topology.card_of(name.client, name.object).is_some();
            topology.remove(name.client, name.object);
            is_handle_used
        };
        // The gates are left alone where they have nothing to do with it: who opens and closes them should find them free.
        if is_handle_used {
            self.remove_from_gates(name);
        }
    }

    /// Tells the gates what an object is to them.
    fn register_with_gate(
        &self,
        made: AllocatedObject,
        parent: Handle,
        card: Option<Card>,
        role: Option<SchedulingRole>,
    ) {
        let name = ObjectName::new(made.client, made.object);
        let (Some(role), Some(gate)) = (role, card.and_then(|card| self.gate(card))) else { return };
        match role {
            SchedulingRole::Group(engine) => gate.with(|channels| channels.add_group(name, engine)),
            SchedulingRole::Duplicate(source) => gate.with(|channels| channels.add_duplicate(name, source)),
            SchedulingRole::Channel(engine) => gate.add_channel(name, parent, engine),
        }
    }

    fn execute_reserved(
        &self,
        flight: &mut InFlightCall<'_>,
        making: &ObjectAlloc<'_>,
        reservation: Reservation,
        (dependencies, notifiers): (&[Handle], &[Handle]),
    ) -> Result<Option<AllocatedObject>, AllocAbort> {
        let &ObjectAlloc { client, parent, handle, size, .. } = making;
        match flight.execute(self.driver.as_ref()) {
            Ok(status) if status.is_ok() => {}
            refused => {
                lock(&self.accounts).cancel(reservation);
                return Ok(refused.map(|_| None)?);
            }
        }
        let object = Handle(flight.field(handle).and_then(|(bytes, at)| read_u32(bytes, at)).unwrap_or(0));
        let bytes = size.and_then(|size| flight.field(size)).and_then(|(bytes, at)| read_u64(bytes, at));
        let length = Bytes(bytes.unwrap_or(0));
        let address = size.and_then(|(holder, at)| flight.field((holder, at + memory::ADDRESS_AFTER_SIZE)));
        let address = address.and_then(|(bytes, at)| read_u64(bytes, at));
        // An allocation in pages of 4 KiB says less than it takes of the card.
        let bytes = bytes.map(|bytes| Bytes(bytes.checked_next_multiple_of(memory::GRANULE).unwrap_or(u64::MAX)));
        let placement = Placement::under(parent, object)
            .going_with(dependencies)
            .with_notifiers(notifiers)
            .long(length)
            .at(address);
        let committed = lock(&self.accounts).commit(reservation, placement, bytes);
        let Err(not) = committed else { return Ok(Some(AllocatedObject { client, object })) };
        let freed = self.raw(&flight.file, client).free(object);
        let mut accounts = lock(&self.accounts);
        match (not.why, freed) {
            (CommitError::OverQuota(_), Ok(status)) if status.is_ok() => accounts.cancel(not.reservation),
            // It exists, and stays charged, over the limit.
            (CommitError::OverQuota(_), _) => match accounts.commit_anyway(not.reservation, placement) {
                Ok(_) => {}
                Err(gone) => accounts.cancel(gone.reservation),
            },
            // It went with its client.
            (CommitError::ClientGone, _) => accounts.cancel(not.reservation),
        }
        Err(AllocAbort::CommitRefused(not.why))
    }

    /// Gives the caller its new object; takes it back when that cannot be done.
    pub(crate) fn finish_made(&self, flight: &mut InFlightCall<'_>, made: AllocatedObject) -> Result<Answer, CallEnd> {
        self.finish_all(flight, vec![made])
    }

    /// The same for several.
    pub(crate) fn finish_all(
        &self,
        flight: &mut InFlightCall<'_>,
        made: Vec<AllocatedObject>,
    ) -> Result<Answer, CallEnd> {
        let answer = flight.finish().inspect_err(|_| made.iter().for_each(|made| self.unmake(&flight.file, *made)))?;
        flight.made = made;
        Ok(answer)
    }

    /// Frees what the caller will never hear of.
    pub(crate) fn unmake(&self, file: &DeviceFile, made: AllocatedObject) {
        self.locks.with(&[LockName::Client(made.client)], || self.unmake_locked(file, made));
    }

    /// The same for whoever has the client locked.
    pub(crate) fn unmake_locked(&self, file: &DeviceFile, made: AllocatedObject) {
        let AllocatedObject { client, object } = made;
        // If the driver refuses, the object is still there, and is charged until its client goes.
        if self.raw(file, client).free(object).is_ok_and(Status::is_ok) {
            self.forget(client, object);
        }
    }

    /// An object is gone, and what went with it.
    pub(crate) fn forget(&self, client: Handle, object: Handle) {
        let freed = lock(&self.accounts).free(client, object);
        let mut topology = lock(&self.topology);
        topology.remove(client, object);
        if client == object {
            lock(&self.files).remove_client(client);
            self.remove_client_from_gates(client);
        }
        // Groups go with other objects than their parents, too. A client that is not known has nothing.
        for name in freed.map(|freed| freed.channels).unwrap_or_default() {
            topology.remove(name.client, name.object);
            self.remove_from_gates(name);
        }
    }
}
