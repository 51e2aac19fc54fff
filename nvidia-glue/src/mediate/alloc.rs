//! Objects that come to be: `NV_ESC_RM_ALLOC`, `NV_ESC_RM_DUP_OBJECT`, `NV_ESC_RM_ALLOC_CONTEXT_DMA2`.

use runtime_config::Bytes;

use super::{
    Answer, Pid, Session, UnknownKind,
    call::{End, Flight},
    locks::{Name, lock},
    size,
    topology::Place,
};
use crate::{
    account::{Ask, Card, Kind, ObjectName, Placement, Reservation, WhyNot},
    driver::{DeviceFile, Holder},
    rm::{
        Handle, Status,
        classes::{Class, ClassKind},
        decode::{Alloc, AllocContextDma, Dup, MemoryRequest},
        layout::{Direction, read_u32, read_u64},
    },
};

/// An object that the driver is about to be asked for.
pub(super) struct Making<'a> {
    pub(super) client: Handle,
    pub(super) parent: Handle,
    /// Where the driver leaves its handle: in the struct, or in its parameters.
    pub(super) handle: (Holder, usize),
    pub(super) reservation: Reservation,
    /// What else it goes with.
    pub(super) dependencies: &'a [Handle],
    /// Where the size is that the driver returns.
    pub(super) size: Option<(Holder, usize)>,
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
}

impl Session {
    pub(super) fn alloc(&self, flight: &mut Flight<'_>, alloc: Alloc) -> Result<Answer, End> {
        let Some(class) = alloc.class() else {
            self.count_unknown(UnknownKind::Class(alloc.class), false);
            return Err(End::Status(Status::INVALID_CLASS));
        };
        if let ClassKind::Answered(status, _) | ClassKind::Refused(status, _) = class.kind {
            return Err(End::Status(status));
        }
        // The driver believes this size.
        if alloc.said_params_size > 4096 {
            return Err(End::Status(Status::INVALID_ARGUMENT));
        }
        if alloc.params != 0 {
            flight.copy_unsized(Alloc::PARAMS_AT, alloc.params)?;
        }
        if alloc.rights != 0 {
            let (at, length) = (Alloc::RIGHTS_AT, Alloc::RIGHTS_SIZE);
            flight.copy(Holder::Args, at, alloc.rights, length, Direction::InOut)?;
        }
        if class.kind == ClassKind::Root {
            return self.alloc_root(flight);
        }
        self.own_client(alloc.client)?;
        self.alloc_object(flight, alloc, class)
    }

    /// A new client: the mediator's own to the driver, the caller's to the accounts.
    fn alloc_root(&self, flight: &mut Flight<'_>) -> Result<Answer, End> {
        let reservation = self.reserve(flight.pid, |accounts| accounts.reserve_client(flight.pid))?;
        let status = flight.execute(self.driver.as_ref());
        let client = Handle(read_u32(&flight.args, Alloc::OBJECT_AT).unwrap_or(0));
        if !status.is_ok_and(Status::is_ok) {
            lock(&self.accounts).cancel_client(reservation);
            status?;
            return flight.finish();
        }
        self.locks.with(&[Name::Client(client)], || {
            let mut accounts = lock(&self.accounts);
            // The driver gave the handle away: whoever had it is gone.
            accounts.client_gone(client);
            accounts.commit_client(reservation, client);
            drop(accounts);
            lock(&self.topology).remove(client, client);
        });
        self.finish_made(flight, Made { client, object: client })
    }

    fn alloc_object(&self, flight: &mut Flight<'_>, alloc: Alloc, class: &Class) -> Result<Answer, End> {
        let wanted = self.wanted(flight, alloc, class)?;
        let kind = kind_of(class.kind);
        let ask = Ask { client: alloc.client, kind, memory: wanted.memory, process: flight.pid };
        let reservation = self.reserve(flight.pid, |accounts| accounts.reserve(ask))?;
        let making = Making {
            client: alloc.client,
            parent: alloc.parent,
            handle: (Holder::Args, Alloc::OBJECT_AT),
            reservation,
            dependencies: &wanted.dependencies,
            size: wanted.memory.map(|_| (Holder::Buffer(0), MEMORY_SIZE)),
        };
        let Some(made) = self.make(flight, making, &[])? else { return flight.finish() };
        if let Some((card, place)) = wanted.place {
            lock(&self.topology).add(made.client, alloc.parent, made.object, card, place);
        }
        if kind == Kind::Channel {
            self.charge_context(flight, alloc.parent, made)?;
        }
        self.finish_made(flight, made)
    }

    /// Looks at an object's parameters.
    fn wanted(&self, flight: &Flight<'_>, alloc: Alloc, class: &Class) -> Result<Wanted, End> {
        let params = flight.params();
        let on_card = || lock(&self.topology).card_of(alloc.client, alloc.parent);
        let mut wanted = Wanted::default();
        match class.kind {
            ClassKind::Device => {
                // Without parameters the driver would choose a card by itself.
                let instance = read_u32(params, 0).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
                let card = self.grant.by_device_instance(instance).ok_or(End::Status(Status::INVALID_DEVICE))?;
                self.device_clients_are_own(params)?;
                wanted.place = Some((card, Place::Device));
            }
            ClassKind::Subdevice => wanted.place = on_card().map(|card| (card, Place::Subdevice)),
            ClassKind::VideoMemory => {
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                let request = memory_request(params).ok_or(End::Status(Status::INVALID_ARGUMENT))?;
                let bytes = size::rounded(request).ok_or(End::Status(Status::NO_MEMORY))?;
                wanted.memory = Some((card, bytes));
            }
            ClassKind::ChannelGroup => {
                let card = on_card().ok_or(End::Status(Status::OBJECT_NOT_FOUND))?;
                wanted.place = Some((card, Place::Group { charged: false }));
                wanted.dependencies = handles(params, GROUP_DEPENDENCIES);
            }
            ClassKind::Channel => wanted.dependencies = handles(params, CHANNEL_DEPENDENCIES),
            ClassKind::ContextShare => wanted.dependencies = handles(params, &[0]),
            _ => {}
        }
        Ok(wanted)
    }

    /// `hClientShare` and `hTargetClient` of a device name whose address space it takes.
    fn device_clients_are_own(&self, params: &[u8]) -> Result<(), End> {
        for client in handles(params, &[4, 8]) {
            self.own_client(client)?;
        }
        Ok(())
    }

    /// Has the driver make an object, and takes it into the accounts, in one step to whoever else uses the client. `None`: the driver
    /// refused, with its status in the struct.
    pub(super) fn make(&self, flight: &mut Flight<'_>, making: Making<'_>, also: &[Name]) -> Result<Option<Made>, End> {
        let pid = flight.pid;
        let names: Vec<Name> = [Name::Client(making.client)].into_iter().chain(also.iter().copied()).collect();
        let made = self.locks.with(&names, || self.make_locked(flight, making))?;
        match made {
            Ok(made) => Ok(made),
            // It was more than the driver had been expected to give.
            Err(WhyNot::OverQuota(over)) => Err(self.over_quota(pid, over)),
            Err(WhyNot::ClientGone) => Err(End::Status(Status::INVALID_CLIENT)),
        }
    }

    fn make_locked(&self, flight: &mut Flight<'_>, making: Making<'_>) -> Result<Result<Option<Made>, WhyNot>, End> {
        let Making { client, parent, handle, reservation, dependencies, size } = making;
        match flight.execute(self.driver.as_ref()) {
            Ok(status) if status.is_ok() => {}
            refused => {
                lock(&self.accounts).cancel(reservation);
                return refused.map(|_| Ok(None));
            }
        }
        let object = Handle(flight.field(handle).and_then(|(bytes, at)| read_u32(bytes, at)).unwrap_or(0));
        let bytes = size.and_then(|size| flight.field(size)).and_then(|(bytes, at)| read_u64(bytes, at)).map(Bytes);
        let placement = Placement::under(parent, object).going_with(dependencies);
        let committed = lock(&self.accounts).commit(reservation, placement, bytes);
        let Err(not) = committed else { return Ok(Ok(Some(Made { client, object }))) };
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
        Ok(Err(not.why))
    }

    /// Gives the caller its new object; takes it back when that cannot be done.
    pub(super) fn finish_made(&self, flight: &Flight<'_>, made: Made) -> Result<Answer, End> {
        flight.finish().inspect_err(|_| self.unmake(&flight.file, made))
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
        // A client that is not known has nothing.
        let _ = lock(&self.accounts).free(client, object);
        lock(&self.topology).remove(client, object);
    }

    pub(super) fn dup(&self, flight: &mut Flight<'_>, dup: Dup) -> Result<Answer, End> {
        let source = ObjectName::new(dup.source_client, dup.source_object);
        let reservation = self.reserve(flight.pid, |accounts| accounts.reserve_duplicate(source, dup.client))?;
        let making = Making {
            client: dup.client,
            parent: dup.parent,
            handle: (Holder::Args, Dup::OBJECT_AT),
            reservation,
            dependencies: &[],
            size: None,
        };
        match self.make(flight, making, &[Name::Client(dup.source_client)])? {
            Some(made) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    pub(super) fn alloc_context_dma(&self, flight: &mut Flight<'_>, alloc: AllocContextDma) -> Result<Answer, End> {
        let ask = Ask { client: alloc.client, kind: Kind::Other, memory: None, process: flight.pid };
        let reservation = self.reserve(flight.pid, |accounts| accounts.reserve(ask))?;
        let made = Made { client: alloc.client, object: alloc.object };
        let making = Making {
            client: alloc.client,
            parent: alloc.parent,
            // The caller chooses it.
            handle: (Holder::Args, CONTEXT_DMA_OBJECT),
            reservation,
            dependencies: &[alloc.memory],
            size: None,
        };
        match self.make(flight, making, &[])? {
            Some(_) => self.finish_made(flight, made),
            None => flight.finish(),
        }
    }

    /// Frees an object and all that goes with it; a client's own handle frees the client.
    pub(super) fn free(&self, flight: &mut Flight<'_>, client: Handle, object: Handle) -> Result<Answer, End> {
        self.own_client(client)?;
        self.locks.with(&[Name::Client(client)], || -> Result<(), End> {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                self.forget(client, object);
            }
            Ok(())
        })?;
        flight.finish()
    }

    /// The context buffers that the driver has made for a channel: charged once for its group, or for the channel that has none.
    fn charge_context(&self, flight: &Flight<'_>, parent: Handle, channel: Made) -> Result<(), End> {
        let Made { client, object } = channel;
        let group = lock(&self.topology).group(client, parent);
        if group == Some(true) {
            return Ok(());
        }
        let Some(card) = lock(&self.topology).card_of(client, parent) else { return Ok(()) };
        let Some(bytes) = self.context_size(&flight.file, client, card, object) else { return Ok(()) };
        let charged = if group.is_some() { parent } else { object };
        let result = self.locks.with(&[Name::Client(client)], || {
            let result = lock(&self.accounts).charge_context(ObjectName::new(client, charged), card, bytes);
            lock(&self.topology).group_is_charged(client, charged);
            result
        });
        result.map_err(|refusal| {
            self.unmake(&flight.file, channel);
            if group.is_some() {
                self.unmake(&flight.file, Made { client, object: charged });
            }
            self.refused(flight.pid, refusal)
        })
    }

    /// Bytes of a channel's context buffers; `None`: it has none (a copy engine's).
    fn context_size(&self, file: &DeviceFile, client: Handle, card: Card, channel: Handle) -> Option<Bytes> {
        /// `NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE`: the channel, then the total.
        const GET_CONTEXT_SIZE: u32 = 0x2080_1218;
        let raw = self.raw(file, client);
        let (subdevice, device) = {
            let topology = lock(&self.topology);
            (topology.subdevice(client, card), topology.device(client, card))
        };
        let mut params = vec![0; 16];
        let _ = crate::rm::layout::write_u32(&mut params, 0, channel.0);
        let ask = |subdevice: Handle| raw.control(subdevice, GET_CONTEXT_SIZE, params.clone()).ok();
        let answer = match (subdevice, device) {
            (Some(subdevice), _) => ask(subdevice),
            // A client that has made none: one for the question.
            (None, Some(device)) => {
                let made = raw.alloc(device, Handle::NONE, super::grant::SUBDEVICE, vec![0; 4]).ok();
                let subdevice = made.filter(|(status, _)| status.is_ok()).map(|(_, handle)| handle);
                subdevice.and_then(|subdevice| {
                    let answer = ask(subdevice);
                    // It goes with the client at the latest.
                    let _ = raw.free(subdevice);
                    answer
                })
            }
            (None, None) => None,
        };
        let (status, params) = answer?;
        let bytes = read_u64(&params, 8).filter(|bytes| status.is_ok() && *bytes > 0)?;
        Some(Bytes(bytes))
    }

    /// Calls of the mediator's own in a client of the container's, on a duplicate of the file that it lives on.
    pub(super) fn raw<'b>(&'b self, file: &'b DeviceFile, client: Handle) -> super::raw::Raw<'b> {
        super::raw::Raw { driver: self.driver.as_ref(), abi: self.abi, file, client }
    }

    /// The card on which memory below `parent` would be.
    pub(super) fn card_of(&self, client: Handle, parent: Handle) -> Option<Card> {
        lock(&self.topology).card_of(client, parent)
    }

    /// Room for memory in a client, on that card if it is video memory.
    pub(super) fn reserve_memory(
        &self,
        pid: Pid,
        client: Handle,
        memory: Option<(Card, Bytes)>,
    ) -> Result<Reservation, End> {
        let ask = Ask { client, kind: Kind::Memory, memory, process: pid };
        self.reserve(pid, |accounts| accounts.reserve(ask))
    }
}

/// Offset of `NVOS39_PARAMETERS.hObjectNew`.
const CONTEXT_DMA_OBJECT: usize = 8;
/// `NV_MEMORY_ALLOCATION_PARAMS` (src/common/sdk/nvidia/inc/nvos.h): flags, attr, attr2, size. The same in every release.
const MEMORY_FLAGS: usize = 8;
const MEMORY_ATTR: usize = 24;
const MEMORY_ATTR2: usize = 28;
const MEMORY_SIZE: usize = 64;
/// `hVASpace` of a channel group's parameters.
const GROUP_DEPENDENCIES: &[usize] = &[8];
/// `hContextShare`, `hVASpace` and `hUserdMemory[0]` of a channel's parameters.
const CHANNEL_DEPENDENCIES: &[usize] = &[24, 28, 32];

fn memory_request(params: &[u8]) -> Option<MemoryRequest> {
    Some(MemoryRequest {
        flags: read_u32(params, MEMORY_FLAGS)?,
        attr: read_u32(params, MEMORY_ATTR)?,
        attr2: read_u32(params, MEMORY_ATTR2)?,
        size: read_u64(params, MEMORY_SIZE)?,
    })
}

/// The handles at these offsets, without those that are null.
fn handles(params: &[u8], at: &[usize]) -> Vec<Handle> {
    at.iter().filter_map(|at| read_u32(params, *at)).filter(|handle| *handle != 0).map(Handle).collect()
}

fn kind_of(kind: ClassKind) -> Kind {
    match kind {
        ClassKind::VideoMemory | ClassKind::SystemMemory | ClassKind::VirtualMemory => Kind::Memory,
        ClassKind::AddressSpace => Kind::AddressSpace,
        ClassKind::ChannelGroup => Kind::ChannelGroup,
        ClassKind::Channel => Kind::Channel,
        _ => Kind::Other,
    }
}
