//! Requirements in the parameters of an allocation: which memory it takes, where it belongs, what
//! it goes with; and whether the container may have it.

use abi::{
    Handle, Status,
    classes::{Class, ClassKind, EventKind, MPS_COMPUTE, NV01_CONTEXT_DMA, NV50_MEMORY_VIRTUAL, OS_EVENT},
    decode::Alloc,
    memory,
    memory::{Layout, MemoryRequest},
    params::{
        Field, NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_CTXSHARE_ALLOCATION_PARAMETERS,
        NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS as Surface, NV83DE_ALLOC_PARAMETERS as Debugger,
    },
};
use account::{AllocRequest, Card, Kind, ObjectName};
use base::Bytes;

use crate::{
    Session,
    calls::{
        channel_params::{
            CHANNEL_DEPENDENCIES, CHANNEL_NOTIFIERS, GROUP_DEPENDENCIES, GROUP_NOTIFIERS, handles,
            takes_one_address_space, userd, userd_memory,
        },
        object_alloc::{AllocRequirements, Charge},
    },
    channels::SchedulingRole,
    in_flight::{CallEnd, InFlightCall},
    locks::lock,
    memory::{
        context_buffers,
        kernel_mappings::{ContextDmaFields, are_small},
    },
    objects::topology::ObjectRole,
    view,
};

/// Returns whether memory of a card may be asked for so. What is at an address of the program's
/// choice may take more than it says, what is in a range of its choice opens any frame, and what is
/// localized keeps 64 MiB: no program on a shared card has a use for them.
pub(crate) fn may_be_placed(request: MemoryRequest) -> Result<(), CallEnd> {
    let is_refused = request.chooses_place() || request.is_localized();
    if is_refused { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}

impl Session {
    /// Requirements of an object of a class, by its parameters.
    pub(crate) fn class_requirements(
        &self,
        flight: &InFlightCall<'_>,
        alloc: Alloc,
        class: &Class,
    ) -> Result<AllocRequirements, CallEnd> {
        let params = flight.params();
        let on_card = || lock(&self.objects.topology).card_of(alloc.client, alloc.parent);
        let process = flight.pid;
        let mut ask =
            AllocRequest { client: alloc.client, kind: Kind::Other, memory: None, layout: Layout::OwnFrames, process };
        let mut needs = AllocRequirements::from(Charge::Object(ask));
        match class.kind {
            ClassKind::Device => needs.place = Some((self.device_requirements(params)?, ObjectRole::Device)),
            ClassKind::Subdevice => needs.place = on_card().map(|card| (card, ObjectRole::Subdevice)),
            ClassKind::UserSharedData => {
                let is_watched = view::utilization::asks_for_load(params);
                needs.place = on_card().map(|card| (card, ObjectRole::SharedData { is_watched }));
            }
            ClassKind::Debugger => self.debugs_own(params, alloc.client)?,
            ClassKind::VideoMemory => {
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                let request = MemoryRequest::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
                may_be_placed(request)?;
                ask.memory = Some((card, Bytes(request.rounded_size())));
                ask.layout = request.layout();
            }
            ClassKind::SystemMemory => {
                let request = MemoryRequest::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
                ask.memory = Some((Card::HOST, Bytes(request.host_size())));
            }
            ClassKind::VirtualMemory if alloc.class == NV50_MEMORY_VIRTUAL => {
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                let request = MemoryRequest::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
                let tables = request.page_tables_at_once();
                ask.memory = (tables > 0).then_some((card, Bytes(tables)));
                // The driver takes granules for them one by one (pool_alloc.c,
                // `allocUpstreamTopPool`).
                ask.layout = Layout::Scattered;
            }
            ClassKind::ChannelGroup => {
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                self.channel_group_requirements(params, alloc, card, &mut needs)?;
                ask.memory = Some((card, context_buffers::expected(group_engine(params))));
                ask.layout = context_buffers::LAYOUT;
            }
            ClassKind::Channel => {
                // One on a card that is not known would run whenever it likes.
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                let is_grouped = lock(&self.objects.topology).group(alloc.client, alloc.parent).is_some();
                self.channel_requirements(params, alloc, (card, is_grouped), &mut needs)?;
                // One that is not in a group gets buffers of its own.
                let engine = channel_engine(params);
                ask.memory = (!is_grouped).then(|| (card, context_buffers::expected(engine)));
                ask.layout = context_buffers::LAYOUT;
            }
            ClassKind::ContextShare => {
                needs.dependencies = handles(params, &[NV_CTXSHARE_ALLOCATION_PARAMETERS::hVASpace]);
            }
            ClassKind::MemoryReference => {
                needs.references = handles(params, &[Surface::hSemaphoreMem, Surface::hMaxSubmittedMem]);
                are_small(&lock(&self.objects.accounts), alloc.client, &needs.references)?;
            }
            ClassKind::FabricMemory => return self.fabric_requirements(params, alloc, process),
            ClassKind::Plain if alloc.class == NV01_CONTEXT_DMA => {
                ContextDmaFields::CLASS.limit_kernel_mapping(params)?;
            }
            ClassKind::Event(EventKind::ByClass | EventKind::OsEvent) => self.event_is_own(params, class)?,
            _ => {}
        }
        ask.kind = kind_of(class, needs.place, ask.memory.is_some());
        needs.charge = Charge::Object(ask);
        Ok(needs)
    }

    /// The card of a device.
    fn device_requirements(&self, params: &[u8]) -> Result<Card, CallEnd> {
        let instance = memory::device_instance(params);
        let card = self.grant.by_device_instance(instance).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        for client in memory::device_other_clients(params).into_iter().filter(|client| *client != 0) {
            self.own_client(Handle(client))?;
        }
        Ok(card)
    }

    fn channel_group_requirements(
        &self,
        params: &[u8],
        alloc: Alloc,
        card: Card,
        needs: &mut AllocRequirements,
    ) -> Result<(), CallEnd> {
        needs.notifiers = handles(params, GROUP_NOTIFIERS);
        self.notifiers_are_known(alloc.client, &needs.notifiers)?;
        needs.place = Some((card, ObjectRole::NEW_GROUP));
        needs.role = Some(SchedulingRole::Group(group_engine(params)));
        needs.dependencies = handles(params, GROUP_DEPENDENCIES);
        Ok(())
    }

    fn channel_requirements(
        &self,
        params: &[u8],
        alloc: Alloc,
        (card, is_grouped): (Card, bool),
        needs: &mut AllocRequirements,
    ) -> Result<(), CallEnd> {
        self.userd_is_known(alloc.client, params)?;
        needs.notifiers = handles(params, CHANNEL_NOTIFIERS);
        self.notifiers_are_known(alloc.client, &needs.notifiers)?;
        takes_one_address_space(params, is_grouped)?;
        needs.place = Some((card, ObjectRole::NEW_CHANNEL));
        needs.role = Some(SchedulingRole::Channel(channel_engine(params), userd(params)));
        needs.dependencies = handles(params, CHANNEL_DEPENDENCIES);
        needs.references = userd_memory(params);
        Ok(())
    }

    /// `NV83DE_ALLOC_PARAMETERS` {obsolete, client, object}: the driver would let anybody of its
    /// own user look into an object of any client that CUDA made, and all mediators are of one
    /// user. What it does not find it writes into the kernel's log.
    fn debugs_own(&self, params: &[u8], client: Handle) -> Result<(), CallEnd> {
        let field = |field: Field<Handle>| field.get(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT));
        let (obsolete, named) = (field(Debugger::hDebuggerClient_Obsolete)?, field(Debugger::hAppClient)?);
        let object = field(Debugger::hClass3dObject)?;
        if obsolete != Handle::NONE {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let named = if named == Handle::NONE { client } else { named };
        self.own_client(named)?;
        let known = lock(&self.objects.accounts).object(ObjectName::new(named, object));
        if known.is_some() { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
    }

    /// An event watches an object of the container's, and wakes a file.
    fn event_is_own(&self, params: &[u8], class: &Class) -> Result<(), CallEnd> {
        let event = memory::EventParams::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
        if class.kind == ClassKind::Event(EventKind::ByClass) && event.class != OS_EVENT {
            return Err(CallEnd::Status(Status::INVALID_CLASS));
        }
        if event.source_client != 0 {
            self.own_client(Handle(event.source_client))?;
        }
        Ok(())
    }
}

fn group_engine(params: &[u8]) -> u32 {
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::engineType.get(params).unwrap_or(0)
}

fn channel_engine(params: &[u8]) -> u32 {
    NV_CHANNEL_ALLOC_PARAMS::engineType.get(params).unwrap_or(0)
}

/// Returns the kind that an object counts as. `has_memory`: it has memory of its own, as a channel
/// that is in no group.
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
