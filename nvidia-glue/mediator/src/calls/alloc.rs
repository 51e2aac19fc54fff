//! Objects that come to be: `NV_ESC_RM_ALLOC`, `NV_ESC_RM_DUP_OBJECT`, `NV_ESC_RM_ALLOC_CONTEXT_DMA2`; and that go: `NV_ESC_RM_FREE`.

use std::cell::Cell;

use abi::{
    Handle, Status,
    classes::{Class, ClassKind, MPS_COMPUTE},
    controls::NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO,
    decode::{Alloc, AllocContextDma, AllocObject, Dup},
    encode,
    layout::Direction,
    memory::Layout,
    params::{
        NV_MEMORY_ALLOCATION_PARAMS, NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS as HandleInfo, NVOS39_PARAMETERS,
        NVOS55_PARAMETERS, NVOS64_PARAMETERS,
    },
};
use account::{AllocRequest, Card, Kind, ObjectName};
use base::Bytes;
use driver::{DeviceFile, Holder};

use super::{
    alloc_overrides,
    alloc_params::AllocRequirements,
    in_flight::{CallEnd, InFlightCall, errno},
    object_alloc::{AllocAbort, AllocatedObject, ObjectAlloc, PreparedAlloc, SchedulingRole},
};
use crate::{
    Answer, Session, UnknownKind,
    channels::driver_time,
    locks::{LockName, lock},
    memory::{context_buffers, kernel_mappings::ContextDmaFields},
    objects::topology::ObjectRole,
};

impl Session {
    pub(crate) fn alloc(&self, flight: &mut InFlightCall<'_>, alloc: Alloc) -> Result<Answer, CallEnd> {
        let class = self.known_class(alloc.class)?;
        // The driver believes this size.
        if alloc.said_params_size > PARAMS_MOST {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        if alloc.params != 0 {
            flight.copy_unsized(NVOS64_PARAMETERS::pAllocParms.at(), alloc.params, alloc.buffer_size())?;
        }
        if alloc.rights != 0 {
            let (at, length) = (NVOS64_PARAMETERS::pRightsRequested.at(), Alloc::RIGHTS_SIZE);
            flight.copy(Holder::Args, at, alloc.rights, length, Direction::InOut)?;
        }
        if class.kind == ClassKind::Root {
            return self.alloc_root(flight);
        }
        self.own_client(alloc.client)?;
        if let ClassKind::Event(_) = class.kind {
            self.on_control_file(flight, alloc.client);
        }
        self.alloc_object(flight, alloc, &class)
    }

    /// `NV_ESC_RM_ALLOC_OBJECT`: the same, for classes that need no parameters.
    pub(crate) fn alloc_without_params(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: AllocObject,
    ) -> Result<Answer, CallEnd> {
        let AllocObject { client, parent, object, class } = alloc;
        let known = self.known_class(class)?;
        if known.kind == ClassKind::Root {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        self.own_client(client)?;
        let alloc = Alloc { client, parent, object, class, params: 0, said_params_size: 0, rights: 0 };
        self.alloc_object(flight, alloc, &known)
    }

    fn known_class(&self, class: u32) -> Result<Class, CallEnd> {
        let Some(row) = abi::classes::class(class) else {
            self.count_unknown(UnknownKind::Class(class), false);
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        };
        match row.kind {
            ClassKind::Answered(status, _) | ClassKind::Refused(status, _) => Err(CallEnd::Status(status)),
            ClassKind::Engine if row.draws() && !self.may_draw => {
                self.report_missing_graphics(&row);
                // As on a card that does not have it.
                Err(CallEnd::Status(Status::INVALID_CLASS))
            }
            _ => Ok(row),
        }
    }

    fn alloc_object(&self, flight: &mut InFlightCall<'_>, alloc: Alloc, class: &Class) -> Result<Answer, CallEnd> {
        let pid = flight.pid;
        // Known while nobody else works in the client: afterwards its device may be freed.
        let card = Cell::new(None);
        let prepare = |flight: &InFlightCall<'_>| {
            if class.kind == ClassKind::Engine {
                self.make_preemptible(flight, alloc)?;
            }
            let AllocRequirements { memory, layout, fabric, place, dependencies, references, notifiers, role } =
                self.alloc_requirements(flight, alloc, class)?;
            card.set(memory.map(|(card, _)| card).or(place.map(|(card, _)| card)));
            let layout = layout.unwrap_or(Layout::OwnFrames);
            let ask = AllocRequest {
                client: alloc.client,
                kind: kind_of(class, place, memory.is_some()),
                memory,
                layout,
                process: pid,
            };
            let reservation = match fabric {
                Some((of, bytes)) => lock(&self.accounts).reserve_fabric(ObjectName::new(alloc.client, of), bytes)?,
                None => lock(&self.accounts).reserve(ask)?,
            };
            Ok(PreparedAlloc { dependencies, references, notifiers, place, role, ..reservation.into() })
        };
        let making = ObjectAlloc {
            client: alloc.client,
            parent: alloc.parent,
            handle: (Holder::Args, NVOS64_PARAMETERS::hObjectNew.at()),
            size: matches!(class.kind, ClassKind::VideoMemory | ClassKind::SystemMemory)
                .then_some((Holder::Buffer(0), NV_MEMORY_ALLOCATION_PARAMS::size.at())),
            prepare: &prepare,
        };
        if class.kind == ClassKind::Channel {
            // In a group that does work it could do some, too, before it is taken off.
            self.wait_to_attach(flight, ObjectName::new(alloc.client, alloc.parent))?;
        }
        let saved = alloc_overrides::apply(class.kind, alloc.client, flight.params_mut())?;
        flight.confirm()?;
        let made = self.with_room(pid, &[LockName::Client(alloc.client)], || {
            let made = self.make_locked(flight, &making)?;
            made.map_or(Ok(()), |made| self.complete(flight, alloc, class, made))?;
            Ok(made)
        });
        saved.restore(flight.params_mut());
        let Some(made) = made? else {
            return flight.finish();
        };
        self.alloc_takes_driver_time(flight, card.get(), class.kind);
        if class.kind == ClassKind::Channel {
            self.report_first_channels();
        }
        self.finish_made(flight, made)
    }

    /// Notes what the driver has to do for an object, and for its end.
    fn alloc_takes_driver_time(&self, flight: &mut InFlightCall<'_>, card: Option<Card>, kind: ClassKind) {
        let cost = match kind {
            ClassKind::VideoMemory => {
                driver_time::scrubbing(Bytes(NV_MEMORY_ALLOCATION_PARAMS::size.get(flight.params()).unwrap_or(0)))
            }
            ClassKind::ChannelGroup => driver_time::CHANNEL_GROUP,
            ClassKind::Channel => driver_time::CHANNEL,
            _ => return,
        };
        self.takes_driver_time(flight, card, cost);
    }

    /// What follows from an object's coming to be, before anybody else works in its client.
    fn complete(
        &self,
        flight: &InFlightCall<'_>,
        alloc: Alloc,
        class: &Class,
        made: AllocatedObject,
    ) -> Result<(), AllocAbort> {
        match class.kind {
            ClassKind::Engine => {
                self.works_on(ObjectName::new(alloc.client, alloc.parent), alloc.class);
                if context_buffers::brings_context(alloc.class) {
                    self.charge_context(flight, alloc.parent, made)?;
                }
                Ok(())
            }
            ClassKind::Debugger => self.mute_debugger(flight, made),
            _ => Ok(()),
        }
    }

    /// The class of an object, as the driver has it (`NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO` {object, what is asked, answer}); `None`: there is
    /// none.
    pub(crate) fn class_of(&self, file: &DeviceFile, client: Handle, object: Handle) -> Result<Option<u32>, CallEnd> {
        /// `NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID`.
        const CLASS_ID: u32 = 2;
        let params = encode!(HandleInfo { hObject: object, index: CLASS_ID }).to_vec();
        let asked = self.raw(file, client).control(client, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, params);
        match asked.map_err(errno)? {
            (Status::OBJECT_NOT_FOUND, _) => Ok(None),
            (status, params) if status.is_ok() => {
                Ok(HandleInfo::iResult.get(&params).and_then(|class| u32::try_from(class).ok()))
            }
            (status, _) => Err(CallEnd::Status(status)),
        }
    }

    /// An object may be duplicated or imported below a device, a subdevice or the client itself, one that is there. From 575.51 to 595 the driver
    /// keeps its locks for good when the parent of a duplicate does not exist, and no process of the host gets a call through any more
    /// (`serverCopyResource`, src/nvidia/src/libraries/resserv/src/rs_server.c). For whoever has the client locked.
    pub(crate) fn is_parent(&self, client: Handle, parent: Handle) -> Result<(), CallEnd> {
        if !lock(&self.accounts).knows_client(client) {
            return Err(CallEnd::Status(Status::INVALID_CLIENT));
        }
        let is_there = parent == client || lock(&self.topology).is_device(client, parent);
        if is_there { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
    }

    /// What the account does not know is an object that the driver has made for another one's sake: the group of a channel without one, the
    /// graphics context of a group. Those are no handles that anybody was given, but can be guessed, and a duplicate would keep the buffers when
    /// all that is charged for them is gone.
    pub(crate) fn dup(&self, flight: &mut InFlightCall<'_>, dup: Dup) -> Result<Answer, CallEnd> {
        let source = ObjectName::new(dup.source_client, dup.source_object);
        let prepare = |_: &InFlightCall<'_>| {
            self.is_parent(dup.client, dup.parent)?;
            let mut accounts = lock(&self.accounts);
            let reservation = accounts.reserve_duplicate(source, dup.client)?;
            drop(accounts);
            // A page that is not to be seen is not to be seen through a duplicate either.
            let topology = lock(&self.topology);
            let page = topology
                .shared_data(source.client, source.object)
                .map(|card| (card, ObjectRole::SharedData { is_watched: false }));
            // A channel may be made below any handle of its; they share one charge.
            let group = topology.group_card(source.client, source.object);
            let group = group.map(|card| (card, ObjectRole::NEW_GROUP));
            let role = group.map(|_| SchedulingRole::Duplicate(source));
            Ok(PreparedAlloc { place: page.or(group), role, ..reservation.into() })
        };
        let making = ObjectAlloc {
            client: dup.client,
            parent: dup.parent,
            handle: (Holder::Args, NVOS55_PARAMETERS::hObject.at()),
            size: None,
            prepare: &prepare,
        };
        match self.make(flight, &making, &[LockName::Client(dup.source_client)])? {
            Some(made) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    pub(crate) fn alloc_context_dma(
        &self,
        flight: &mut InFlightCall<'_>,
        alloc: AllocContextDma,
    ) -> Result<Answer, CallEnd> {
        ContextDmaFields::ESCAPE.limit_kernel_mapping(&flight.args)?;
        let layout = Layout::OwnFrames;
        let ask = AllocRequest { client: alloc.client, kind: Kind::Other, memory: None, layout, process: flight.pid };
        let prepare = |_: &InFlightCall<'_>| {
            let reservation = lock(&self.accounts).reserve(ask)?;
            Ok(PreparedAlloc { dependencies: vec![alloc.memory], ..reservation.into() })
        };
        let made = AllocatedObject { client: alloc.client, object: alloc.object };
        let making = ObjectAlloc {
            client: alloc.client,
            parent: alloc.parent,
            // The caller chooses it.
            handle: (Holder::Args, NVOS39_PARAMETERS::hObjectNew.at()),
            size: None,
            prepare: &prepare,
        };
        match self.make(flight, &making, &[])? {
            Some(_) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    /// Frees an object and all that goes with it; a client's own handle frees the client.
    pub(crate) fn free(
        &self,
        flight: &mut InFlightCall<'_>,
        client: Handle,
        object: Handle,
    ) -> Result<Answer, CallEnd> {
        self.own_client(client)?;
        flight.confirm()?;
        self.locks.with(&[LockName::Client(client)], || -> Result<(), CallEnd> {
            // The driver would go on writing a channel's errors to where that was. No program that was recorded does it.
            if lock(&self.accounts).has_outside_notifiers(ObjectName::new(client, object)) {
                return Err(CallEnd::Status(Status::STATE_IN_USE));
            }
            let file = flight.file.clone();
            self.free_in_chunks(&file, client, object);
            self.free_known(client, object, || flight.execute(self.driver.as_ref())).map(|_| ())
        })?;
        flight.finish()
    }

    /// Calls of the mediator's own in a client of the container's, on a duplicate of the file that it lives on.
    pub(crate) fn raw<'b>(&'b self, file: &'b DeviceFile, client: Handle) -> crate::raw::Raw<'b> {
        crate::raw::Raw { driver: self.driver.as_ref(), abi: self.abi, file, client }
    }

    /// The card on which memory below `parent` would be.
    pub(crate) fn card_of(&self, client: Handle, parent: Handle) -> Option<Card> {
        lock(&self.topology).card_of(client, parent)
    }
}

/// More bytes of parameters than any class has.
const PARAMS_MOST: u32 = 4096;
/// `has_memory`: it takes memory of its own, as a channel does that is in no group.
fn kind_of(class: &Class, place: Option<(Card, ObjectRole)>, has_memory: bool) -> Kind {
    match (class.kind, place) {
        (_, Some((card, ObjectRole::Device | ObjectRole::Subdevice))) => Kind::Device(card),
        (ClassKind::ChannelGroup, Some((card, _))) => Kind::ChannelGroup(card),
        (ClassKind::Channel, Some((card, _))) => Kind::Channel { card, is_bare: has_memory },
        (ClassKind::VideoMemory | ClassKind::SystemMemory | ClassKind::VirtualMemory, _) => Kind::Memory,
        (ClassKind::AddressSpace, _) => Kind::AddressSpace,
        (ClassKind::Event(_), _) => Kind::Event,
        (ClassKind::Engine, _) => Kind::Engine(class.id),
        _ if class.id == MPS_COMPUTE => Kind::Engine(MPS_COMPUTE),
        _ => Kind::Other,
    }
}
