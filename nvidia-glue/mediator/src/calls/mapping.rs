//! Calls that prepare CPU mappings, let others duplicate, or ask about cards without a client.

use std::{fs::File, io, sync::Arc};

use abi::{
    Handle, Status,
    decode::{IdleChannels, MapDma, MapMemory, OsEvent, Share, UnmapMemory},
    layout::{read_u32, read_u64},
    params::{NVOS30_PARAMETERS, NVOS46_PARAMETERS, NVOS47_PARAMETERS, NVOS57_PARAMETERS, RS_SHARE_POLICY},
};
use account::{Card, ObjectName};
use driver::{FileField, Holder};

use crate::{
    Answer, CallerError, Session,
    calls::schedule::MOST_IDLE_US,
    in_flight::{CallEnd, InFlightCall, errno},
    locks::lock,
    objects::named_locks::LockName,
    requirements::AllocAbort,
    view,
    view::card_utilization::PAGE,
};

/// Bytes of `NV_ESC_ATTACH_GPUS_TO_FD`'s ids: of as many cards as there can be (`NV_MAX_DEVICES`).
const ATTACHED_MOST: usize = 32 * 4;

impl Session {
    pub(crate) fn map_memory(&self, flight: &mut InFlightCall<'_>, map: MapMemory) -> Result<Answer, CallEnd> {
        self.check_client(map.client)?;
        if let Some(card) = self.hidden_page(map) {
            return self.map_own_page(flight, map, card);
        }
        flight.duplicate_files(self.driver.as_ref(), Holder::Args, flight.row.descriptors())?;
        flight.confirm()?;
        let pid = flight.pid;
        self.reserve(pid, |accounts| accounts.processor_mapping_fits())?;
        self.with_room(pid, &[LockName::Client(map.client)], || {
            // Another thread may have made a page of the handle meanwhile.
            if self.hidden_page(map).is_some() {
                return Err(AllocAbort::End(CallEnd::Status(Status::INVALID_ARGUMENT)));
            }
            let object = ObjectName::new(map.client, map.memory);
            self.map_for_processor(flight, object)?;
            if flight.row.status(&flight.args).is_some_and(Status::is_ok) {
                lock(&self.objects.accounts).processor_mapped(object);
            }
            Ok(())
        })?;
        flight.finish()
    }

    /// Has the driver prepare a mapping of `object` on the file that the call names, and the file
    /// hold what the object is charged for, if that is memory of the host's.
    ///
    /// Precondition: the client is locked.
    fn map_for_processor(&self, flight: &mut InFlightCall<'_>, object: ObjectName) -> Result<(), AllocAbort> {
        let held = lock(&self.objects.accounts).hold_host_memory(object)?;
        let Some(hold) = held else {
            flight.execute(self.driver.as_ref())?;
            return Ok(());
        };
        // Every layout of the call names one.
        let file = flight.files.first().ok_or(io::ErrorKind::InvalidInput.into());
        let watched = match file.and_then(|field| self.host_mappings.watch(&field.file)) {
            Ok(watched) => watched,
            Err(error) => {
                lock(&self.objects.accounts).release(hold);
                return Err(AllocAbort::End(errno(error)));
            }
        };
        let status = flight.execute(self.driver.as_ref());
        self.host_mappings.settle(
            &self.objects.accounts,
            hold,
            watched,
            status.as_ref().is_ok_and(|status| status.is_ok()),
        );
        status?;
        Ok(())
    }

    /// `NV_ESC_RM_UNMAP_MEMORY`.
    pub(crate) fn unmap_memory(&self, flight: &mut InFlightCall<'_>, unmap: UnmapMemory) -> Result<Answer, CallEnd> {
        self.check_client(unmap.client)?;
        flight.copy_pointers(Holder::Args, flight.row.pointers())?;
        flight.duplicate_files(self.driver.as_ref(), Holder::Args, flight.row.descriptors())?;
        self.objects.locks.with(&[LockName::Client(unmap.client)], || -> Result<(), CallEnd> {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).processor_unmapped(ObjectName::new(unmap.client, unmap.memory));
            }
            Ok(())
        })?;
        flight.finish()
    }

    /// Memory is mapped in an address space of the resource manager's: what that costs are page
    /// tables.
    pub(crate) fn map_dma(&self, flight: &mut InFlightCall<'_>, map: MapDma) -> Result<Answer, CallEnd> {
        self.check_client(map.client)?;
        let card = self.objects.card_of(map.client, map.device).ok_or(CallEnd::Status(Status::OBJECT_NOT_FOUND))?;
        let length = NVOS46_PARAMETERS::length.get(&flight.args).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
        flight.confirm()?;
        let tables = self.reserve(flight.pid, |accounts| {
            accounts.dma_fits()?;
            accounts.reserve_virtual_page_tables(card, length)
        })?;
        let done = self.objects.locks.with(&[LockName::Client(map.client)], || {
            let status = flight.execute(self.driver.as_ref())?;
            // The status stands behind it in every release.
            let offset = flight.row.status_at().and_then(|at| read_u64(&flight.args, at.checked_sub(8)?));
            if let Some(offset) = offset.filter(|_| status.is_ok()) {
                #[cfg(feature = "parking")]
                self.note_mapped_otherwise(ObjectName::new(map.client, map.memory));
                lock(&self.objects.accounts).dma_mapped(
                    ObjectName::new(map.client, map.dma),
                    map.device,
                    card,
                    offset,
                    length,
                );
            }
            Ok(())
        });
        lock(&self.objects.accounts).release_page_tables(tables);
        done.and_then(|()| flight.finish())
    }

    /// `NV_ESC_RM_UNMAP_MEMORY_DMA`; since 550 of whatever lies in a range, too.
    pub(crate) fn unmap_dma(&self, flight: &mut InFlightCall<'_>, map: MapDma) -> Result<Answer, CallEnd> {
        self.check_client(map.client)?;
        let has_size = flight.args.len() == NVOS47_PARAMETERS::SIZE;
        let length = NVOS47_PARAMETERS::size.get(&flight.args).filter(|_| has_size).unwrap_or(0);
        if length > 0 {
            flight.confirm()?;
            self.reserve(flight.pid, |accounts| accounts.dma_fits())?;
        }
        self.objects.locks.with(&[LockName::Client(map.client)], || -> Result<(), CallEnd> {
            if flight.execute(self.driver.as_ref())?.is_ok()
                && let Some(offset) = NVOS47_PARAMETERS::dmaOffset.get(&flight.args)
            {
                let object = ObjectName::new(map.client, map.dma);
                lock(&self.objects.accounts).dma_unmapped(object, map.device, offset, length);
            }
            Ok(())
        })?;
        flight.finish()
    }

    /// `NV_ESC_ALLOC_OS_EVENT`: a little of the kernel's memory, that nobody counts.
    pub(crate) fn alloc_os_event(&self, flight: &mut InFlightCall<'_>, event: OsEvent) -> Result<Answer, CallEnd> {
        self.check_client(event.client)?;
        flight.confirm()?;
        self.reserve(flight.pid, |accounts| accounts.os_event_fits())?;
        if self.execute_row(flight)?.is_ok() {
            lock(&self.objects.accounts).os_event(event.client, event.fd);
        }
        flight.finish()
    }

    /// `NV_ESC_FREE_OS_EVENT`. Of one that it does not find, the driver tells the kernel's log in
    /// three lines: it is not asked for those.
    pub(crate) fn free_os_event(&self, flight: &mut InFlightCall<'_>, event: OsEvent) -> Result<Answer, CallEnd> {
        self.check_client(event.client)?;
        if !lock(&self.objects.accounts).has_os_event(event.client, event.fd) {
            return Err(CallEnd::Status(Status::INVALID_EVENT));
        }
        let status = self.execute_row(flight)?;
        if matches!(status, Status::OK | Status::INVALID_EVENT) {
            lock(&self.objects.accounts).os_event_gone(event.client, event.fd);
        }
        flight.finish()
    }

    /// The card, if it is the driver's page about one that the container does not only look at.
    fn hidden_page(&self, map: MapMemory) -> Option<Card> {
        let card = lock(&self.objects.topology).shared_data(map.client, map.memory)?;
        self.grant.get(card).filter(|own| !own.granted.monitored).map(|_| card)
    }

    /// The page on which the driver tells the card's real memory and load cannot be rewritten where
    /// it is: the driver prepares the mapping on a file of the mediator's own, and the program gets
    /// a page of the mediator's, on which its own load stands and all else is zero, which to it
    /// means that it is not valid.
    fn map_own_page(&self, flight: &mut InFlightCall<'_>, map: MapMemory, card: Card) -> Result<Answer, CallEnd> {
        let descriptor = flight.row.descriptors().first().map(|fd| usize::from(fd.at));
        let file = flight.named_file(self.driver.as_ref(), map.fd)?;
        let (Some(offset), Some(file)) = (descriptor, file) else {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        };
        if map.length > PAGE {
            return Err(CallEnd::Status(Status::INVALID_ARGUMENT));
        }
        let utilization = self.view.utilization(card).ok_or(CallEnd::Status(Status::INVALID_ARGUMENT))?;
        match flight.caller.replace(map.fd, utilization.page().map_err(errno)?) {
            Ok(()) => {}
            // A kernel that cannot: the program sees the whole card's numbers there.
            Err(CallerError::Other(error)) if error.kind() == io::ErrorKind::Unsupported => return self.pass(flight),
            Err(error) => return Err(error.into()),
        }
        let own = self.driver.open(file.node).map_err(errno)?;
        flight.files.push(FileField { holder: Holder::Args, offset, file: own });
        self.reserve(flight.pid, |accounts| accounts.processor_mapping_fits())?;
        self.objects.locks.with(&[LockName::Client(map.client)], || -> Result<(), CallEnd> {
            if flight.execute(self.driver.as_ref())?.is_ok() {
                lock(&self.objects.accounts).processor_mapped(ObjectName::new(map.client, map.memory));
            }
            Ok(())
        })?;
        flight.finish()
    }

    /// The driver waits for channels that are named by client, and nothing keeps it from waiting
    /// for anybody's.
    pub(crate) fn idle_channels(&self, flight: &mut InFlightCall<'_>, idle: IdleChannels) -> Result<Answer, CallEnd> {
        self.check_client(idle.client)?;
        flight.copy_pointers(Holder::Args, flight.row.pointers())?;
        let list = (Holder::Args, NVOS30_PARAMETERS::phClients.at());
        let clients = flight.buffers.iter().find(|buffer| (buffer.holder, buffer.offset) == list);
        let mut clients = clients.map(|buffer| buffer.bytes.chunks_exact(4)).into_iter().flatten();
        {
            let accounts = lock(&self.objects.accounts);
            if !clients.all(|client| read_u32(client, 0).is_some_and(|client| accounts.knows_client(Handle(client)))) {
                return Err(CallEnd::Status(Status::INVALID_CLIENT));
            }
        }
        let asked = NVOS30_PARAMETERS::timeout.get(&flight.args).unwrap_or(0);
        let _ = NVOS30_PARAMETERS::timeout.set(&mut flight.args, asked.min(MOST_IDLE_US));
        flight.execute(self.driver.as_ref())?;
        let _ = NVOS30_PARAMETERS::timeout.set(&mut flight.args, asked);
        flight.finish()
    }

    pub(crate) fn share(&self, flight: &mut InFlightCall<'_>, share: Share) -> Result<Answer, CallEnd> {
        self.check_client(share.client)?;
        self.may_be_shared(flight.args.get(NVOS57_PARAMETERS::sharePolicy.at()..).unwrap_or_default())?;
        self.pass(flight)
    }

    /// An `RS_SHARE_POLICY` {target, access mask, type, action} names no client. For each time that
    /// it does, the driver keeps an entry with the target, and copies all that there are to
    /// whatever is shared below (`clientAddAccessBackRef`, `rsShareListCopy`). Nor is there
    /// anything to do: to the driver, all clients of a container are of one process, the mediator,
    /// and may duplicate each other's objects. That others may is harmless: whoever is mediated can
    /// only name clients of its own container.
    pub(crate) fn may_be_shared(&self, policy: &[u8]) -> Result<(), CallEnd> {
        /// `RS_SHARE_TYPE_CLIENT` (src/common/sdk/nvidia/inc/rs_access.h).
        const CLIENT: u16 = 3;
        if RS_SHARE_POLICY::r#type.get(policy) == Some(CLIENT) {
            self.check_client(RS_SHARE_POLICY::target.get(policy).unwrap_or(Handle::NONE))?;
            return Err(CallEnd::Status(Status::OK));
        }
        Ok(())
    }

    /// The cards of the host, of which the granted ones are shown.
    pub(crate) fn card_info(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        self.execute_row(flight)?;
        view::cards::card_info(&mut flight.args, self.grant.names());
        flight.finish()
    }

    pub(crate) fn card_status(
        &self,
        flight: &mut InFlightCall<'_>,
        domain: u32,
        bus: u8,
        slot: u8,
    ) -> Result<Answer, CallEnd> {
        self.grant.by_pci(domain, bus, slot).ok_or(CallEnd::Errno(libc::EINVAL))?;
        self.pass(flight)
    }

    /// A list of cards' ids, 0 for none.
    pub(crate) fn attach_gpus(&self, flight: &mut InFlightCall<'_>) -> Result<Answer, CallEnd> {
        // The driver keeps as many as there are said to be with the file.
        if flight.args.len() > ATTACHED_MOST {
            return Err(CallEnd::Errno(libc::EINVAL));
        }
        let mut ids = flight.args.chunks_exact(4).filter(|id| id.iter().any(|byte| *byte != 0));
        if !ids.all(|id| view::cards::id_granted(id, self.grant.names())) {
            return Err(CallEnd::Errno(libc::EINVAL));
        }
        self.pass(flight)
    }

    /// The file that a descriptor of the call names; it must be one of the driver's control files.
    pub(crate) fn control_file(&self, flight: &mut InFlightCall<'_>, fd: i32) -> Result<Arc<File>, CallEnd> {
        let file = flight.named_file(self.driver.as_ref(), fd)?;
        match file {
            Some(file) if file.node == abi::Node::Control => Ok(file.file),
            _ => Err(CallEnd::Status(Status::INVALID_ARGUMENT)),
        }
    }

    /// Copies a control's parameters, `size` bytes at `address`.
    pub(crate) fn copy_params(
        &self,
        flight: &mut InFlightCall<'_>,
        at: usize,
        address: u64,
        size: usize,
    ) -> Result<(), CallEnd> {
        if address == 0 {
            return Ok(());
        }
        flight.copy(Holder::Args, at, address, size, abi::layout::Direction::InOut)
    }
}
