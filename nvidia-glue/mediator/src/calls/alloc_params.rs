//! What the parameters of an allocation say: which memory it takes, where it belongs, what it goes with; and whether the container may have it.

use abi::{
    Handle, Status,
    classes::{Class, ClassKind, EventKind, NV01_CONTEXT_DMA, NV50_MEMORY_VIRTUAL, OS_EVENT},
    decode::Alloc,
    memory::{self, Layout, MemoryRequest},
    params::{
        Field, NV_CHANNEL_ALLOC_PARAMS, NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, NV_CTXSHARE_ALLOCATION_PARAMETERS,
        NV_SEMAPHORE_SURFACE_ALLOC_PARAMETERS as Surface, NV00F8_ALLOCATION_PARAMETERS as Fabric,
        NV83DE_ALLOC_PARAMETERS as Debugger,
    },
};
use account::{Card, ObjectName};
use base::Bytes;

use super::{
    channel_params::{
        CHANNEL_DEPENDENCIES, CHANNEL_NOTIFIERS, GROUP_DEPENDENCIES, GROUP_NOTIFIERS, handles, takes_one_address_space,
        userd_memory,
    },
    in_flight::{CallEnd, InFlightCall},
    object_alloc::SchedulingRole,
};
use crate::{
    Session,
    locks::lock,
    memory::{context_buffers, kernel_mappings::ContextDmaFields},
    objects::topology::ObjectRole,
    view,
};

/// Whether memory of a card may be asked for so. What is at an address of the program's choice may take more than it says, what is in a range of its
/// choice opens any frame, and what is localized keeps 64 MiB: no program on a shared card has a use for them.
pub(crate) fn may_be_placed(request: MemoryRequest) -> Result<(), CallEnd> {
    let is_refused = request.chooses_place() || request.is_localized();
    if is_refused { Err(CallEnd::Status(Status::INVALID_ARGUMENT)) } else { Ok(()) }
}

/// What of an object's parameters says what it is, beside its class.
#[derive(Debug, Default)]
pub(crate) struct AllocRequirements {
    pub(crate) memory: Option<(Card, Bytes)>,
    /// How that lies in the frames of the card; `None`: in frames of its own.
    pub(crate) layout: Option<Layout>,
    /// Memory for which it is addresses on the fabric, and how many bytes of these.
    pub(crate) fabric: Option<(Handle, u64)>,
    pub(crate) place: Option<(Card, ObjectRole)>,
    pub(crate) dependencies: Vec<Handle>,
    /// Memory to which it is a reference.
    pub(crate) references: Vec<Handle>,
    /// What is told of its errors.
    pub(crate) notifiers: Vec<Handle>,
    pub(crate) role: Option<SchedulingRole>,
}

impl Session {
    /// Looks at an object's parameters.
    pub(crate) fn alloc_requirements(
        &self,
        flight: &InFlightCall<'_>,
        alloc: Alloc,
        class: &Class,
    ) -> Result<AllocRequirements, CallEnd> {
        let params = flight.params();
        let on_card = || lock(&self.topology).card_of(alloc.client, alloc.parent);
        let mut needs = AllocRequirements::default();
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
                needs.memory = Some((card, Bytes(request.rounded_size())));
                needs.layout = Some(request.layout());
            }
            ClassKind::SystemMemory => {
                let request = MemoryRequest::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
                needs.memory = Some((Card::HOST, Bytes(request.host_size())));
            }
            ClassKind::VirtualMemory if alloc.class == NV50_MEMORY_VIRTUAL => {
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                let request = MemoryRequest::of_params(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
                let tables = request.page_tables_at_once();
                needs.memory = (tables > 0).then_some((card, Bytes(tables)));
                // The driver takes granules for them one by one (pool_alloc.c, `allocUpstreamTopPool`).
                needs.layout = Some(Layout::Scattered);
            }
            ClassKind::ChannelGroup => {
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                return self.channel_group_requirements(params, alloc, card);
            }
            ClassKind::Channel => {
                // One on a card that is not known would run whenever it likes.
                let card = on_card().ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
                return self.channel_requirements(params, alloc, card);
            }
            ClassKind::ContextShare => {
                needs.dependencies = handles(params, &[NV_CTXSHARE_ALLOCATION_PARAMETERS::hVASpace])
            }
            ClassKind::MemoryReference => {
                needs.references = handles(params, &[Surface::hSemaphoreMem, Surface::hMaxSubmittedMem]);
                self.are_small(alloc.client, &needs.references)?;
            }
            ClassKind::FabricMemory => needs.fabric = Some(self.fabric_requirements(params)?),
            ClassKind::Plain if alloc.class == NV01_CONTEXT_DMA => {
                ContextDmaFields::CLASS.limit_kernel_mapping(params)?
            }
            ClassKind::Event(EventKind::ByClass | EventKind::OsEvent) => self.event_is_own(params, class)?,
            _ => {}
        }
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

    /// `NV00F8_ALLOCATION_PARAMETERS` {alignment, allocSize, pageSize, allocFlags at 24, map {offset, hVidMem at 40, flags}}, as since 535. To a flexible
    /// object memory is attached later, with which it would be kept.
    fn fabric_requirements(&self, params: &[u8]) -> Result<(Handle, u64), CallEnd> {
        const CONTIGUOUS_OR_NOT: u32 = 1 << 1 | 1 << 2;
        let fields = (Fabric::allocSize.get(params), Fabric::allocFlags.get(params), Fabric::hVidMem.get(params));
        let (Some(bytes), Some(flags), Some(memory)) = fields else {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        };
        if !Fabric::RELEASES.contain(self.abi) || flags & !CONTIGUOUS_OR_NOT != 0 || memory == Handle::NONE {
            return Err(CallEnd::Status(Status::NOT_SUPPORTED));
        }
        Ok((memory, bytes))
    }

    fn channel_group_requirements(
        &self,
        params: &[u8],
        alloc: Alloc,
        card: Card,
    ) -> Result<AllocRequirements, CallEnd> {
        let notifiers = handles(params, GROUP_NOTIFIERS);
        self.notifiers_are_known(alloc.client, &notifiers)?;
        let engine = NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::engineType.get(params).unwrap_or(0);
        Ok(AllocRequirements {
            memory: Some((card, context_buffers::expected(engine))),
            layout: Some(context_buffers::LAYOUT),
            place: Some((card, ObjectRole::NEW_GROUP)),
            role: Some(SchedulingRole::Group(engine)),
            dependencies: handles(params, GROUP_DEPENDENCIES),
            notifiers,
            ..AllocRequirements::default()
        })
    }

    fn channel_requirements(&self, params: &[u8], alloc: Alloc, card: Card) -> Result<AllocRequirements, CallEnd> {
        self.userd_is_known(alloc.client, params)?;
        let notifiers = handles(params, CHANNEL_NOTIFIERS);
        self.notifiers_are_known(alloc.client, &notifiers)?;
        // One that is not in a group gets buffers of its own.
        let is_grouped = lock(&self.topology).group(alloc.client, alloc.parent).is_some();
        takes_one_address_space(params, is_grouped)?;
        let engine = NV_CHANNEL_ALLOC_PARAMS::engineType.get(params).unwrap_or(0);
        Ok(AllocRequirements {
            memory: (!is_grouped).then(|| (card, context_buffers::expected(engine))),
            place: Some((card, ObjectRole::NEW_CHANNEL)),
            role: Some(SchedulingRole::Channel(engine)),
            dependencies: handles(params, CHANNEL_DEPENDENCIES),
            references: userd_memory(params),
            notifiers,
            layout: Some(context_buffers::LAYOUT),
            fabric: None,
        })
    }

    /// `NV83DE_ALLOC_PARAMETERS` {obsolete, client, object}: the driver would let anybody of its own user look into an object of any client that
    /// CUDA made, and all mediators are of one user. What it does not find it writes into the kernel's log.
    fn debugs_own(&self, params: &[u8], client: Handle) -> Result<(), CallEnd> {
        let field = |field: Field<Handle>| field.get(params).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT));
        let (obsolete, named) = (field(Debugger::hDebuggerClient_Obsolete)?, field(Debugger::hAppClient)?);
        let object = field(Debugger::hClass3dObject)?;
        if obsolete != Handle::NONE {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let named = if named == Handle::NONE { client } else { named };
        self.own_client(named)?;
        let known = lock(&self.accounts).object(ObjectName::new(named, object));
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
