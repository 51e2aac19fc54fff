//! Objects that come to be: `NV_ESC_RM_ALLOC`, `NV_ESC_RM_DUP_OBJECT`, `NV_ESC_RM_ALLOC_CONTEXT_DMA2`.

use runtime_config::Bytes;

use super::{
    Answer, Pid, Session, UnknownKind,
    call::{End, Flight},
    channel_params::{
        CHANNEL_DEPENDENCIES, CHANNEL_NOTIFIERS, GROUP_DEPENDENCIES, GROUP_NOTIFIERS, USERD_MEMORY, handles,
        takes_one_address_space,
    },
    context,
    locks::{Name, lock},
    topology::Place,
    view,
};
use crate::{
    account::{Ask, Card, Hold, Kind, ObjectName, Placement, Refusal, Reservation, WhyNot},
    driver::{DeviceFile, Holder},
    rm::{
        Handle, Status,
        classes::{Class, ClassKind, EventKind, OS_DESCRIPTOR, OS_EVENT},
        decode::{Alloc, AllocContextDma, AllocObject, Dup},
        layout::{Direction, read_u32, read_u64, write_u32},
        memory::{self, MemoryRequest},
    },
};

/// An object that the driver is about to be asked for.
pub(super) struct Making<'a> {
    pub(super) client: Handle,
    pub(super) parent: Handle,
    /// Where the driver leaves its handle: in the struct, or in its parameters.
    pub(super) handle: (Holder, usize),
    /// Where the size is that the driver returns.
    pub(super) size: Option<(Holder, usize)>,
    /// Says what it is to be charged for and where it belongs. Asked while nobody else works in the client: what the handles that the call
    /// names stand for is the same to the driver.
    pub(super) prepare: &'a dyn Fn(&Flight<'_>) -> Result<Prepared, Stop>,
}

/// What is known of an object before the driver makes it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) reservation: Reservation,
    /// What else it goes with.
    pub(super) dependencies: Vec<Handle>,
    /// Memory to which it is a reference.
    pub(super) references: Vec<Handle>,
    /// What is told of its errors.
    pub(super) notifiers: Vec<Handle>,
    /// What matters of it to later calls.
    pub(super) place: Option<(Card, Place)>,
    /// What it is to the card's gate.
    pub(super) gated: Option<Gated>,
    /// The class that it has to turn out to have.
    pub(super) must_be: Option<u32>,
}

/// What an object is to the gate of its card.
#[derive(Debug, Clone, Copy)]
pub(super) enum Gated {
    /// A channel group of an `NV2080_ENGINE_TYPE_*`.
    Group(u32),
    /// A channel, by its own word of such an engine.
    Channel(u32),
    /// A duplicate of what may be a group.
    Duplicate(ObjectName),
}

impl From<Reservation> for Prepared {
    fn from(reservation: Reservation) -> Self {
        Self {
            reservation,
            dependencies: Vec::new(),
            references: Vec::new(),
            notifiers: Vec::new(),
            place: None,
            gated: None,
            must_be: None,
        }
    }
}

/// Why an object is not made.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    /// The call goes no further.
    End(End),
    /// The accounts have no room for it; the driver was not asked.
    Refused(Refusal),
    /// The driver has made it, the accounts do not take it, and it is gone again.
    NotTaken(WhyNot),
}

impl From<End> for Stop {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What has been made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made {
    pub(super) client: Handle,
    pub(super) object: Handle,
}

/// What of an object's parameters says what it is, beside its class.
#[derive(Debug, Default)]
struct Wanted {
    memory: Option<(Card, Bytes)>,
    place: Option<(Card, Place)>,
    dependencies: Vec<Handle>,
    /// Memory to which it is a reference.
    references: Vec<Handle>,
    /// What is told of its errors.
    notifiers: Vec<Handle>,
    gated: Option<Gated>,
}

impl Session {
    pub(super) fn alloc(&self, flight: &mut Flight<'_>, alloc: Alloc) -> Result<Answer, End> {
        let class = self.known_class(alloc.class)?;
        // The driver believes this size.
        if alloc.said_params_size > PARAMS_MOST {
            return Err(End::Status(Status::INVALID_ARGUMENT));
        }
        if alloc.params != 0 {
            flight.copy_unsized(Alloc::PARAMS_AT, alloc.params, alloc.buffer_size())?;
        }
        if alloc.rights != 0 {
            let (at, length) = (Alloc::RIGHTS_AT, Alloc::RIGHTS_SIZE);
            flight.copy(Holder::Args, at, alloc.rights, length, Direction::InOut)?;
        }
        if class.kind == ClassKind::Root {
            return self.alloc_root(flight);
        }
        self.own_client(alloc.client)?;
        self.alloc_object(flight, alloc, &class)
    }

    /// `NV_ESC_RM_ALLOC_OBJECT`: the same, for classes that need no parameters.
    pub(super) fn alloc_without_params(&self, flight: &mut Flight<'_>, alloc: AllocObject) -> Result<Answer, End> {
        let AllocObject { client, parent, object, class } = alloc;
        let known = self.known_class(class)?;
        if known.kind == ClassKind::Root {
            return Err(End::Status(Status::INVALID_CLASS));
        }
        self.own_client(client)?;
        let alloc = Alloc { client, parent, object, class, params: 0, said_params_size: 0, rights: 0 };
        self.alloc_object(flight, alloc, &known)
    }

    fn known_class(&self, class: u32) -> Result<Class, End> {
        let Some(row) = crate::rm::classes::class(class) else {
            self.count_unknown(UnknownKind::Class(class), false);
            return Err(End::Status(Status::INVALID_CLASS));
        };
        match row.kind {
            ClassKind::Answered(status, _) | ClassKind::Refused(status, _) => Err(End::Status(status)),
            _ => Ok(row),
        }
    }

    fn alloc_object(&self, flight: &mut Flight<'_>, alloc: Alloc, class: &Class) -> Result<Answer, End> {
        let pid = flight.pid;
        let prepare = |flight: &Flight<'_>| {
            let Wanted { memory, place, dependencies, references, notifiers, gated } =
                self.wanted(flight, alloc, class)?;
            let ask = Ask { client: alloc.client, kind: kind_of(class.kind, place), memory, process: pid };
            let reservation = lock(&self.accounts).reserve(ask)?;
            Ok(Prepared { dependencies, references, notifiers, place, gated, ..reservation.into() })
        };
        let making = Making {
            client: alloc.client,
            parent: alloc.parent,
            handle: (Holder::Args, Alloc::OBJECT_AT),
            size: matches!(class.kind, ClassKind::VideoMemory | ClassKind::SystemMemory)
                .then_some((Holder::Buffer(0), memory::SIZE_AT)),
            prepare: &prepare,
        };
        if class.kind == ClassKind::Channel {
            // In a group that does work it could do some, too, before it is taken off.
            self.wait_to_join(flight, ObjectName::new(alloc.client, alloc.parent))?;
        }
        let Some(made) = self.make(flight, &making, &[])? else {
            self.failures.wait(self.looks.clock.as_ref());
            return flight.finish();
        };
        match class.kind {
            ClassKind::Channel => self.tell_first_channels(),
            ClassKind::Engine => self.works_on(ObjectName::new(alloc.client, alloc.parent), alloc.class),
            ClassKind::Debugger => self.mute_debugger(flight, made),
            _ => {}
        }
        if class.kind == ClassKind::Engine && context::brings_context(alloc.class) {
            self.charge_context(flight, alloc.parent, made)?;
        }
        if class.kind == ClassKind::Engine && context::computes(alloc.class) {
            self.make_preemptible(flight, alloc.parent, made);
        }
        self.finish_made(flight, made)
    }

    /// `NV83DE_ALLOC_PARAMETERS` {obsolete, client, object}: the driver would let anybody of its own user look into an object of any client that
    /// CUDA made, and all mediators are of one user. What it does not find it writes into the kernel's log.
    fn debugs_own(&self, params: &[u8], client: Handle) -> Result<(), End> {
        let field = |at| read_u32(params, at).ok_or(End::Status(Status::INVALID_ARGUMENT));
        let (obsolete, named, object) = (field(0)?, Handle(field(4)?), Handle(field(8)?));
        if obsolete != 0 {
            return Err(End::Status(Status::INVALID_ARGUMENT));
        }
        let named = if named == Handle::NONE { client } else { named };
        self.own_client(named)?;
        let known = lock(&self.accounts).object(ObjectName::new(named, object));
        if known.is_some_and(|known| known.kind != Kind::Pinned) {
            Ok(())
        } else {
            Err(End::Status(Status::OBJECT_NOT_FOUND))
        }
    }

    /// Looks at an object's parameters.
    fn wanted(&self, flight: &Flight<'_>, alloc: Alloc, class: &Class) -> Result<Wanted, End> {
        let params = flight.params();
        let on_card = || lock(&self.topology).card_of(alloc.client, alloc.parent);
        let mut wanted = Wanted::default();
        match class.kind {
            ClassKind::Device => {
                let instance = memory::device_instance(params);
                let card = self.grant.by_device_instance(instance).ok_or(End::Status(Status::INVALID_DEVICE))?;
                for client in memory::device_other_clients(params).into_iter().filter(|client| *client != 0) {
                    self.own_client(Handle(client))?;
                }
                wanted.place = Some((card, Place::Device));
            }
            ClassKind::Subdevice => wanted.place = on_card().map(|card| (card, Place::Subdevice)),
            ClassKind::UserSharedData => {
                let is_watched = view::utilization::asks_for_load(params);
                wanted.place = on_card().map(|card| (card, Place::SharedData { is_watched }));
            }
            ClassKind::Debugger => self.debugs_own(params, alloc.client)?,
            ClassKind::VideoMemory => {
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                let request = MemoryRequest::of_params(params).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
                // It would take more than it says. No program on a shared card has a use for it.
                if request.is_at_fixed_address() {
                    return Err(End::Status(Status::INVALID_ARGUMENT));
                }
                wanted.memory = Some((card, Bytes(request.rounded_size())));
            }
            ClassKind::SystemMemory => {
                let request = MemoryRequest::of_params(params).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
                wanted.memory = Some((Card::HOST, Bytes(request.size)));
            }
            ClassKind::VirtualMemory if alloc.class == VIRTUAL_MEMORY => {
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                let request = MemoryRequest::of_params(params).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
                let tables = request.page_tables_at_once();
                wanted.memory = (tables > 0).then_some((card, Bytes(tables)));
            }
            ClassKind::ChannelGroup => {
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                let engine = memory::channel_group_engine(params).unwrap_or(0);
                wanted.memory = Some((card, context::expected(engine)));
                wanted.place = Some((card, Place::NEW_GROUP));
                wanted.gated = Some(Gated::Group(engine));
                wanted.dependencies = handles(params, GROUP_DEPENDENCIES);
                wanted.notifiers = handles(params, GROUP_NOTIFIERS);
                self.notifiers_are_known(alloc.client, &wanted.notifiers)?;
            }
            ClassKind::Channel => {
                // One on a card that is not known would run whenever it likes.
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                wanted.dependencies = handles(params, CHANNEL_DEPENDENCIES);
                wanted.references = handles(params, USERD_MEMORY);
                self.userd_is_known(alloc.client, params)?;
                wanted.notifiers = handles(params, CHANNEL_NOTIFIERS);
                self.notifiers_are_known(alloc.client, &wanted.notifiers)?;
                // One that is not in a group gets buffers of its own.
                let is_grouped = lock(&self.topology).group(alloc.client, alloc.parent).is_some();
                takes_one_address_space(params, is_grouped)?;
                let engine = memory::channel_engine(params).unwrap_or(0);
                wanted.memory = (!is_grouped).then(|| (card, context::expected(engine)));
                wanted.place = Some((card, Place::Channel { has_context: false }));
                wanted.gated = Some(Gated::Channel(engine));
            }
            ClassKind::ContextShare => wanted.dependencies = handles(params, &[0]),
            ClassKind::MemoryReference => wanted.references = handles(params, &[0, 4]),
            ClassKind::Event(EventKind::ByClass | EventKind::OsEvent) => self.event_is_own(params, class)?,
            _ => {}
        }
        Ok(wanted)
    }

    /// An event watches an object of the container's, and wakes a file.
    fn event_is_own(&self, params: &[u8], class: &Class) -> Result<(), End> {
        let event = memory::EventParams::of_params(params).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
        if class.kind == ClassKind::Event(EventKind::ByClass) && event.class != OS_EVENT {
            return Err(End::Status(Status::INVALID_CLASS));
        }
        if event.source_client != 0 {
            self.own_client(Handle(event.source_client))?;
        }
        Ok(())
    }

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
    fn attach_all(&self, holds: Vec<Hold>, made: Option<Made>) {
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
    pub(super) fn make(
        &self,
        flight: &mut Flight<'_>,
        making: &Making<'_>,
        also: &[Name],
    ) -> Result<Option<Made>, End> {
        flight.confirm()?;
        let pid = flight.pid;
        let names: Vec<Name> = [Name::Client(making.client)].into_iter().chain(also.iter().copied()).collect();
        self.with_room(pid, &names, || self.make_locked(flight, making))
    }

    /// Does `work` with these locked. If there is no room, what is gone meanwhile is looked for, and it is done once more.
    pub(super) fn with_room<T>(
        &self,
        pid: Pid,
        names: &[Name],
        mut work: impl FnMut() -> Result<T, Stop>,
    ) -> Result<T, End> {
        let mut done = self.locks.with(names, &mut work);
        if let Err(Stop::Refused(refusal)) = &done
            && refusal.may_pass()
        {
            self.refresh();
            done = self.locks.with(names, &mut work);
        }
        done.map_err(|stop| self.stopped(pid, stop))
    }

    /// How a call ends that was stopped for good.
    fn stopped(&self, pid: Pid, stop: Stop) -> End {
        match stop {
            Stop::End(end) => end,
            Stop::Refused(refusal) => self.refused(pid, refusal),
            // It was more than the driver had been expected to give.
            Stop::NotTaken(WhyNot::OverQuota(over)) => self.refused(pid, over.into()),
            Stop::NotTaken(WhyNot::ClientGone) => End::Status(Status::INVALID_CLIENT),
        }
    }

    fn make_locked(&self, flight: &mut Flight<'_>, making: &Making<'_>) -> Result<Option<Made>, Stop> {
        let Prepared { reservation, dependencies, references, notifiers, place, gated, must_be } =
            (making.prepare)(flight)?;
        let holds = match self.hold_all(making.client, &references) {
            Ok(holds) => holds,
            Err(refusal) => {
                lock(&self.accounts).cancel(reservation);
                return Err(refusal.into());
            }
        };
        // No edge passes between the driver's making it and its being known.
        let turn = match gated {
            Some(Gated::Channel(_)) => self.turn_to_join(ObjectName::new(making.client, making.parent)),
            _ => None,
        };
        let made = self.execute_reserved(flight, making, reservation, (&dependencies, &notifiers), must_be);
        let object = made.as_ref().ok().copied().flatten();
        self.attach_all(holds, object);
        if let Some(made) = object {
            let mut topology = lock(&self.topology);
            let is_handle_used = topology.card_of(made.client, made.object).is_some();
            match place {
                Some((card, place)) => topology.add(made.client, making.parent, made.object, card, place),
                // Whatever had the handle before is gone.
                None => topology.remove(made.client, made.object),
            }
            drop(topology);
            // The gates are left alone where they have nothing to do with it: who opens and closes them should find them free.
            if is_handle_used {
                self.leaves_gates(ObjectName::new(made.client, made.object));
            }
            self.passes_gates(made, making.parent, place.map(|(card, _)| card), gated);
            if let Some(turn) = turn {
                // What is refused here is found by the next edge.
                let _ = turn.bring(&[ObjectName::new(made.client, made.object)]);
            }
        }
        made
    }

    /// Tells the gates what an object is to them.
    fn passes_gates(&self, made: Made, parent: Handle, card: Option<Card>, gated: Option<Gated>) {
        let name = ObjectName::new(made.client, made.object);
        let (Some(gated), Some(gate)) = (gated, card.and_then(|card| self.gate(card))) else { return };
        match gated {
            Gated::Group(engine) => gate.with(|channels| channels.add_group(name, engine)),
            Gated::Duplicate(source) => gate.with(|channels| channels.add_duplicate(name, source)),
            Gated::Channel(engine) => gate.add_channel(name, parent, engine),
        }
    }

    fn execute_reserved(
        &self,
        flight: &mut Flight<'_>,
        making: &Making<'_>,
        reservation: Reservation,
        (dependencies, notifiers): (&[Handle], &[Handle]),
        must_be: Option<u32>,
    ) -> Result<Option<Made>, Stop> {
        let &Making { client, parent, handle, size, .. } = making;
        match flight.execute(self.driver.as_ref()) {
            Ok(status) if status.is_ok() => {}
            refused => {
                lock(&self.accounts).cancel(reservation);
                return Ok(refused.map(|_| None)?);
            }
        }
        let object = Handle(flight.field(handle).and_then(|(bytes, at)| read_u32(bytes, at)).unwrap_or(0));
        if must_be.is_some() && must_be != self.class_of(&flight.file, client, object) {
            let _ = self.raw(&flight.file, client).free(object);
            lock(&self.accounts).cancel(reservation);
            return Err(Stop::End(End::Status(Status::INVALID_ARGUMENT)));
        }
        let bytes = size.and_then(|size| flight.field(size)).and_then(|(bytes, at)| read_u64(bytes, at));
        let length = Bytes(bytes.unwrap_or(0));
        // An allocation in pages of 4 KiB says less than it takes of the card.
        let bytes = bytes.map(|bytes| Bytes(bytes.checked_next_multiple_of(memory::GRANULE).unwrap_or(u64::MAX)));
        let placement = Placement::under(parent, object).going_with(dependencies).telling(notifiers).long(length);
        let committed = lock(&self.accounts).commit(reservation, placement, bytes);
        let Err(not) = committed else { return Ok(Some(Made { client, object })) };
        let freed = self.raw(&flight.file, client).free(object);
        let mut accounts = lock(&self.accounts);
        match (not.why, freed) {
            (WhyNot::OverQuota(_), Ok(status)) if status.is_ok() => accounts.cancel(not.reservation),
            // It exists, and stays charged, over the limit.
            (WhyNot::OverQuota(_), _) => match accounts.commit_anyway(not.reservation, placement) {
                Ok(_) => {}
                Err(gone) => accounts.cancel(gone.reservation),
            },
            // It went with its client.
            (WhyNot::ClientGone, _) => accounts.cancel(not.reservation),
        }
        Err(Stop::NotTaken(not.why))
    }

    /// Gives the caller its new object; takes it back when that cannot be done.
    pub(super) fn finish_made(&self, flight: &mut Flight<'_>, made: Made) -> Result<Answer, End> {
        self.finish_all(flight, vec![made])
    }

    /// The same for several.
    pub(super) fn finish_all(&self, flight: &mut Flight<'_>, made: Vec<Made>) -> Result<Answer, End> {
        let answer = flight.finish().inspect_err(|_| made.iter().for_each(|made| self.unmake(&flight.file, *made)))?;
        flight.made = made;
        Ok(answer)
    }

    /// Frees what the caller will never hear of.
    pub(super) fn unmake(&self, file: &DeviceFile, made: Made) {
        let Made { client, object } = made;
        self.locks.with(&[Name::Client(client)], || {
            // If the driver refuses, the object is still there, and is charged until its client goes.
            if self.raw(file, client).free(object).is_ok_and(Status::is_ok) {
                self.forget(client, object);
            }
        });
    }

    /// An object is gone, and what went with it.
    pub(super) fn forget(&self, client: Handle, object: Handle) {
        let freed = lock(&self.accounts).free(client, object);
        let mut topology = lock(&self.topology);
        topology.remove(client, object);
        if client == object {
            lock(&self.files).remove_client(client);
            self.client_leaves_gates(client);
        }
        // Groups go with other objects than their parents, too. A client that is not known has nothing.
        for name in freed.map(|freed| freed.channels).unwrap_or_default() {
            topology.remove(name.client, name.object);
            self.leaves_gates(name);
        }
    }

    /// The class of an object, as the driver has it (`NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO` {object, what is asked, answer}).
    pub(super) fn class_of(&self, file: &DeviceFile, client: Handle, object: Handle) -> Option<u32> {
        const GET_HANDLE_INFO: u32 = 0xd02;
        const CLASS: u32 = 2;
        let mut params = vec![0; 16];
        let _ = write_u32(&mut params, 0, object.0) && write_u32(&mut params, 4, CLASS);
        let (status, params) = self.raw(file, client).control(client, GET_HANDLE_INFO, params).ok()?;
        read_u32(&params, 8).filter(|_| status.is_ok())
    }

    /// What the account does not know is pinned memory of the program's, or an object that the driver has made for another one's sake: the group
    /// of a channel without one, the graphics context of a group. Those are no handles that anybody was given, but can be guessed, and a
    /// duplicate would keep the buffers when all that is charged for them is gone.
    pub(super) fn dup(&self, flight: &mut Flight<'_>, dup: Dup) -> Result<Answer, End> {
        let source = ObjectName::new(dup.source_client, dup.source_object);
        let prepare = |_: &Flight<'_>| {
            let mut accounts = lock(&self.accounts);
            let is_sure = accounts.object(source).is_some_and(|known| known.kind != Kind::Pinned);
            let must_be = (!is_sure).then_some(OS_DESCRIPTOR);
            let reservation = accounts.reserve_duplicate(source, dup.client)?;
            drop(accounts);
            // A page that is not to be seen is not to be seen through a duplicate either.
            let topology = lock(&self.topology);
            let page = topology
                .shared_data(source.client, source.object)
                .map(|card| (card, Place::SharedData { is_watched: false }));
            // A channel may be made below any handle of its; they share one charge.
            let group = topology.group_card(source.client, source.object);
            let group = group.map(|card| (card, Place::NEW_GROUP));
            let gated = group.map(|_| Gated::Duplicate(source));
            Ok(Prepared { place: page.or(group), gated, must_be, ..reservation.into() })
        };
        let making = Making {
            client: dup.client,
            parent: dup.parent,
            handle: (Holder::Args, Dup::OBJECT_AT),
            size: None,
            prepare: &prepare,
        };
        match self.make(flight, &making, &[Name::Client(dup.source_client)])? {
            Some(made) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    pub(super) fn alloc_context_dma(&self, flight: &mut Flight<'_>, alloc: AllocContextDma) -> Result<Answer, End> {
        let ask = Ask { client: alloc.client, kind: Kind::Other, memory: None, process: flight.pid };
        let prepare = |_: &Flight<'_>| {
            let reservation = lock(&self.accounts).reserve(ask)?;
            Ok(Prepared { dependencies: vec![alloc.memory], ..reservation.into() })
        };
        let made = Made { client: alloc.client, object: alloc.object };
        let making = Making {
            client: alloc.client,
            parent: alloc.parent,
            // The caller chooses it.
            handle: (Holder::Args, CONTEXT_DMA_OBJECT),
            size: None,
            prepare: &prepare,
        };
        match self.make(flight, &making, &[])? {
            Some(_) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    /// Frees an object and all that goes with it; a client's own handle frees the client.
    pub(super) fn free(&self, flight: &mut Flight<'_>, client: Handle, object: Handle) -> Result<Answer, End> {
        self.own_client(client)?;
        flight.confirm()?;
        self.locks.with(&[Name::Client(client)], || -> Result<(), End> {
            // The driver would go on writing a channel's errors to where that was. No program that was recorded does it.
            if lock(&self.accounts).is_told_by_others(ObjectName::new(client, object)) {
                return Err(End::Status(Status::STATE_IN_USE));
            }
            let file = flight.file.clone();
            self.free_pieces(&file, client, object);
            self.free_known(&file, client, object, || flight.execute(self.driver.as_ref())).map(|_| ())
        })?;
        flight.finish()
    }

    /// Calls of the mediator's own in a client of the container's, on a duplicate of the file that it lives on.
    pub(super) fn raw<'b>(&'b self, file: &'b DeviceFile, client: Handle) -> super::raw::Raw<'b> {
        super::raw::Raw { driver: self.driver.as_ref(), abi: self.abi, file, client }
    }

    /// The card on which memory below `parent` would be.
    pub(super) fn card_of(&self, client: Handle, parent: Handle) -> Option<Card> {
        lock(&self.topology).card_of(client, parent)
    }
}

/// `NV50_MEMORY_VIRTUAL` (src/common/sdk/nvidia/inc/class/cl50a0.h).
const VIRTUAL_MEMORY: u32 = 0x50a0;
/// More bytes of parameters than any class has.
const PARAMS_MOST: u32 = 4096;
/// Offset of `NVOS39_PARAMETERS.hObjectNew`.
const CONTEXT_DMA_OBJECT: usize = 8;
fn kind_of(kind: ClassKind, place: Option<(Card, Place)>) -> Kind {
    if let Some((card, Place::Device | Place::Subdevice)) = place {
        return Kind::Device(card);
    }
    match kind {
        ClassKind::VideoMemory | ClassKind::SystemMemory | ClassKind::VirtualMemory => Kind::Memory,
        ClassKind::AddressSpace => Kind::AddressSpace,
        ClassKind::ChannelGroup => Kind::ChannelGroup,
        ClassKind::Channel => Kind::Channel,
        _ => Kind::Other,
    }
}
