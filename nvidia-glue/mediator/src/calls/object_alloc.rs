//! Making of an object: check, reserve, execute, commit, register, in one step to whoever else uses
//! its client.

use abi::{
    Handle, Status,
    decode::{Alloc, VidHeapAlloc},
    layout::{read_u32, read_u64},
    memory,
    memory::HeapMemory,
};
use account::{AllocRequest, Card, CommitError, ExportFile, Hold, ObjectName, Placement, Refusal, Reservation};
use base::{Bytes, Pid};
use driver::Holder;

use crate::{
    Answer, Session,
    channels::SchedulingRole,
    class::{NewObject, ObjectClass},
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    objects::named_locks::LockName,
    requirements::{AllocAbort, AllocRequirements, Charge},
};

/// An object that a call asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectAlloc {
    pub(crate) client: Handle,
    pub(crate) parent: Handle,
    /// Field in which the driver leaves its handle.
    pub(crate) handle: (Holder, usize),
    pub(crate) source: AllocSource,
}

/// The call that asks for an object, and what it names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AllocSource {
    /// `NV_ESC_RM_ALLOC`, `NV_ESC_RM_ALLOC_OBJECT`.
    Class(Alloc, &'static dyn ObjectClass),
    /// `NV_ESC_RM_DUP_OBJECT`, of this object.
    Duplicate(ObjectName),
    /// `NV_ESC_RM_ALLOC_CONTEXT_DMA2`, over this memory.
    ContextDma(Handle),
    /// `NV_ESC_RM_VID_HEAP_CONTROL`.
    Heap(VidHeapAlloc, HeapMemory),
    /// An import, by the index of the object in the export.
    Import(ExportFile, u32),
}

impl Session {
    /// Makes an object. Returns the card that it is on, too, if that matters: afterwards its device
    /// may be freed. `None`: the driver refused, with its status in the struct.
    pub(crate) fn make_object(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: &ObjectAlloc,
    ) -> Result<Option<(ObjectName, Option<Card>)>, CallEnd> {
        flight.confirm()?;
        let client = LockName::Client(alloc.client);
        let also = match alloc.source {
            AllocSource::Duplicate(source) => LockName::Client(source.client),
            AllocSource::Import(export, _) => LockName::Export(export),
            AllocSource::Class(..) | AllocSource::ContextDma(_) | AllocSource::Heap(..) => client,
        };
        let pid = flight.pid;
        self.with_room(pid, &[client, also], || self.make_object_locked(flight, alloc))
    }

    /// Does `work` with these locked. If there is no room, reclaims what is gone, and does it once
    /// more.
    pub(crate) fn with_room<T>(
        &self,
        pid: Pid,
        names: &[LockName],
        mut work: impl FnMut() -> Result<T, AllocAbort>,
    ) -> Result<T, CallEnd> {
        let mut done = self.objects.locks.with(names, &mut work);
        if let Err(AllocAbort::Refused(refusal)) = &done
            && refusal.may_pass()
        {
            self.reclaim();
            done = self.objects.locks.with(names, &mut work);
        }
        done.map_err(|abort| match abort {
            AllocAbort::End(end) => end,
            AllocAbort::Refused(refusal) => self.refused(pid, refusal),
            // It was more than the driver had been expected to give.
            AllocAbort::CommitRefused(CommitError::OverQuota(over)) => self.refused(pid, over.into()),
            AllocAbort::CommitRefused(CommitError::ClientGone) => CallEnd::Status(Status::INVALID_CLIENT),
        })
    }

    /// Precondition: the client is locked, and what else the call names.
    fn make_object_locked(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: &ObjectAlloc,
    ) -> Result<Option<(ObjectName, Option<Card>)>, AllocAbort> {
        let needs = self.check_object(flight, alloc)?;
        let reservation = self.reserve_object(alloc.client, needs.charge)?;
        let holds = match self.hold_all(alloc.client, &needs.references) {
            Ok(holds) => holds,
            Err(refusal) => {
                lock(&self.objects.accounts).cancel(reservation);
                return Err(refusal.into());
            }
        };
        // No edge passes between the driver's making it and its being known.
        let guard = match needs.role {
            Some(SchedulingRole::Channel(..)) => {
                self.channels.begin_attach(ObjectName::new(alloc.client, alloc.parent))
            }
            Some(SchedulingRole::Group(_) | SchedulingRole::Duplicate(_)) | None => None,
        };
        #[cfg(feature = "parking")]
        flight.keep_params();
        let made = match flight.execute(self.driver.as_ref()) {
            Ok(status) if status.is_ok() => self.commit_object(flight, alloc, reservation, &needs).map(Some),
            refused => {
                lock(&self.objects.accounts).cancel(reservation);
                refused.map(|_| None).map_err(AllocAbort::from)
            }
        };
        self.attach_all(holds, made.ok().flatten());
        let Some(made) = made? else { return Ok(None) };
        self.replace_handle(made);
        #[cfg(feature = "parking")]
        self.note_made(flight, alloc.source, made, alloc.parent);
        if let Some((card, role)) = needs.place {
            lock(&self.objects.topology).add(made.client, alloc.parent, made.object, card, role);
        }
        self.channels.register_with_gate(made, alloc.parent, needs.place.map(|(card, _)| card), needs.role);
        if let Some(guard) = guard {
            // What is refused here is found by the next edge.
            let _ = guard.bring(&[made]);
        }
        if let AllocSource::Class(request, class) = alloc.source {
            class.complete(&NewObject { session: self, flight, alloc: request }, made)?;
        }
        Ok(Some((made, needs.card())))
    }

    /// Checks what a call names, and says what the object needs.
    ///
    /// Precondition: the client is locked, so that what the handles stand for is the same to the
    /// driver.
    fn check_object(&self, flight: &InFlightCall<'_>, alloc: &ObjectAlloc) -> Result<AllocRequirements, CallEnd> {
        match alloc.source {
            AllocSource::Class(request, class) => {
                class.requirements(&NewObject { session: self, flight, alloc: request })
            }
            AllocSource::Duplicate(source) => self.duplicate_requirements(alloc, source),
            AllocSource::ContextDma(memory) => Ok(context_dma_requirements(alloc.client, memory, flight.pid)),
            AllocSource::Heap(request, memory) => self.heap_requirements(alloc, request, memory, flight.pid),
            AllocSource::Import(export, index) => {
                self.objects.is_parent(alloc.client, alloc.parent)?;
                Ok(Charge::Import(export, index).into())
            }
        }
    }

    fn reserve_object(&self, client: Handle, charge: Charge) -> Result<Reservation, Refusal> {
        let mut accounts = lock(&self.objects.accounts);
        match charge {
            Charge::Object(ask) => accounts.reserve(ask),
            Charge::Fabric(memory, bytes) => accounts.reserve_fabric(memory, bytes),
            Charge::Addresses(addresses, process) => accounts.reserve_addresses(client, addresses, process),
            Charge::Duplicate(source) => accounts.reserve_duplicate(source, client),
            Charge::Import(export, index) => accounts.reserve_import(export, index, client),
        }
    }

    /// Holds memory to which an object is about to be a reference.
    fn hold_all(&self, client: Handle, memories: &[Handle]) -> Result<Vec<Hold>, Refusal> {
        let mut holds = Vec::new();
        for memory in memories {
            let held = lock(&self.objects.accounts).hold(ObjectName::new(client, *memory));
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

    /// Hands what was held to the object that was made; without one, nothing holds it.
    fn attach_all(&self, holds: Vec<Hold>, made: Option<ObjectName>) {
        let mut accounts = lock(&self.objects.accounts);
        for hold in holds {
            let left = match made {
                Some(made) => accounts.attach(hold, made).err(),
                None => Some(hold),
            };
            left.into_iter().for_each(|hold| accounts.release(hold));
        }
    }

    /// Charges the object that the driver has made, at the size that the driver says; frees it
    /// if the accounts do not take it.
    fn commit_object(
        &self,
        flight: &InFlightCall<'_>,
        alloc: &ObjectAlloc,
        reservation: Reservation,
        needs: &AllocRequirements,
    ) -> Result<ObjectName, AllocAbort> {
        let (&ObjectAlloc { client, parent, handle, .. }, size) = (alloc, needs.size);
        let object = Handle(flight.field(handle).and_then(|(bytes, at)| read_u32(bytes, at)).unwrap_or(0));
        let bytes = size.and_then(|size| flight.field(size)).and_then(|(bytes, at)| read_u64(bytes, at));
        let length = Bytes(bytes.unwrap_or(0));
        let address = size.and_then(|(holder, at)| flight.field((holder, at + memory::ADDRESS_AFTER_SIZE)));
        let address = address.and_then(|(bytes, at)| read_u64(bytes, at));
        // An allocation in pages of 4 KiB says less than it takes of the card.
        let bytes = bytes.map(|bytes| Bytes(bytes.checked_next_multiple_of(memory::GRANULE).unwrap_or(u64::MAX)));
        let placement = Placement::under(parent, object)
            .going_with(&needs.dependencies)
            .with_notifiers(&needs.notifiers)
            .long(length)
            .at(address);
        let committed = lock(&self.objects.accounts).commit(reservation, placement, bytes);
        let Err(not) = committed else { return Ok(ObjectName { client, object }) };
        let freed = self.raw(&flight.file, client).free(object);
        // Meanwhile it may have been mapped as the memory that had the handle before.
        self.channels.replace_userd_memory(ObjectName { client, object });
        let mut accounts = lock(&self.objects.accounts);
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
    pub(crate) fn finish_object(
        &self,
        flight: &mut InFlightCall<'_>,
        made: Option<ObjectName>,
    ) -> Result<Answer, CallEnd> {
        self.finish_objects(flight, made.into_iter().collect())
    }

    /// Gives the caller several new objects.
    pub(crate) fn finish_objects(
        &self,
        flight: &mut InFlightCall<'_>,
        made: Vec<ObjectName>,
    ) -> Result<Answer, CallEnd> {
        let answer = flight.finish().inspect_err(|_| made.iter().for_each(|made| self.unmake(&flight.file, *made)))?;
        flight.made = made;
        Ok(answer)
    }
}

fn context_dma_requirements(client: Handle, memory: Handle, process: Pid) -> AllocRequirements {
    let layout = memory::Layout::OwnFrames;
    let ask = AllocRequest { client, kind: account::Kind::Other, memory: None, layout, process };
    AllocRequirements { dependencies: vec![memory], ..Charge::Object(ask).into() }
}
