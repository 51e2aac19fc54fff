//! Where the kernel makes what only it can make, in the program's place (`NV_ESC_RM_ALLOC_MEMORY`): a client of the mediator's own.
//!
//! The kernel reads that call from the program's memory, whose other threads can make any such call of it. What they cannot choose is the clients
//! that it may name: those of the control file that the card's file was registered with, which is this one's. There is nothing else in it. So
//! nothing that comes into it is hidden, and nothing is there to be named that matters (`osapi.c`, `rmclientValidate` in client.c).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{
    Answer, Session,
    call::{End, Flight, errno},
    grant::{DEVICE, device_params},
    locks::lock,
};
use crate::{
    account::Card,
    driver::{OpenClientError, OwnClient, Raw, open_own_client},
    rm::{
        Handle, Node, Status,
        layout::{read_u32, write_u32},
    },
};

/// `NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE` {parent, class, child}. The classes are the driver's internal ones, the same in every release
/// (src/nvidia/generated/g_system_mem_nvoc.h, g_os_desc_mem_nvoc.h).
const GET_CHILD_HANDLE: u32 = 0xd05;
const INTERNAL_SYSTEM_MEMORY: u32 = 0x7a98;
const INTERNAL_OS_DESCRIPTOR: u32 = 0xb3_dacd;
/// All that the call can make of memory (docs/driver-facts.md).
pub(super) const INTERNAL_CLASSES: [u32; 2] = [INTERNAL_SYSTEM_MEMORY, INTERNAL_OS_DESCRIPTOR];
/// Handles of devices; any that no object of the kernel's making is to have.
const DEVICES: u32 = 0xe692_0000;

/// The client, and the control file that it lives on, which no process of the container has.
#[derive(Debug)]
pub(super) struct Staging {
    own: OwnClient,
    devices: Mutex<BTreeMap<Card, Handle>>,
    /// Held while what is in it is taken out.
    pub(super) turn: Mutex<()>,
}

impl Staging {
    pub(super) const fn client(&self) -> Handle {
        self.own.client
    }

    pub(super) fn devices(&self) -> Vec<Handle> {
        lock(&self.devices).values().copied().collect()
    }
}

impl Session {
    /// `NV_ESC_REGISTER_FD`: a card's file is registered with the staging client's control file, not with the container's own. Only pinning
    /// needs it; events, which can be had on such a file, too, are made on the control file ([`Session::on_control_file`]).
    pub(super) fn register_file(&self, flight: &mut Flight<'_>) -> Result<Answer, End> {
        flight.duplicate_files(self.driver.as_ref(), crate::driver::Holder::Args, flight.row.descriptors())?;
        let is_card = matches!(flight.file.node, Node::Card(_));
        // Any other the driver refuses.
        if let Some(named) = flight.files.first_mut().filter(|named| is_card && named.file.node == Node::Control) {
            named.file = self.staging()?.own.control.clone();
        }
        flight.execute(self.driver.as_ref())?;
        flight.finish()
    }

    /// A call in `client` that was made on a card's file goes to the control file that the client lives on.
    pub(super) fn on_control_file(&self, flight: &mut Flight<'_>, client: Handle) {
        let is_card = matches!(flight.file.node, Node::Card(_));
        if let Some(kept) = is_card.then(|| lock(&self.files).control_of(client)).flatten() {
            flight.file = kept.file;
        }
    }

    /// The staging client; made when it is first needed.
    pub(super) fn staging(&self) -> Result<Arc<Staging>, End> {
        let mut staging = lock(&self.staging);
        if let Some(staging) = staging.as_ref() {
            return Ok(Arc::clone(staging));
        }
        let own = open_own_client(self.driver.as_ref(), &self.abi).map_err(|error| match error {
            OpenClientError::Open(error) | OpenClientError::Call(error) => errno(error),
            OpenClientError::Refused { .. } | OpenClientError::NoHandle => End::Errno(libc::EIO),
        })?;
        let made = Arc::new(Staging { own, devices: Mutex::default(), turn: Mutex::default() });
        *staging = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The staging client, if there is one.
    pub(super) fn known_staging(&self) -> Option<Arc<Staging>> {
        lock(&self.staging).clone()
    }

    /// Its device of a card; made when it is first needed.
    pub(super) fn staging_device(&self, staging: &Staging, card: Card) -> Result<Handle, End> {
        let mut devices = lock(&staging.devices);
        if let Some(device) = devices.get(&card) {
            return Ok(*device);
        }
        let own = self.grant.get(card).ok_or(End::Status(Status::INVALID_DEVICE))?;
        let params = device_params(own.device_instance());
        let handle = Handle(DEVICES + u32::from(card.0));
        let made = self.raw_staging(staging).alloc(staging.client(), handle, DEVICE, params);
        match made.map_err(errno)? {
            (status, device) if status.is_ok() => {
                devices.insert(card, device);
                Ok(device)
            }
            (status, _) => Err(End::Status(status)),
        }
    }

    /// Calls in the staging client.
    pub(super) fn raw_staging<'a>(&'a self, staging: &'a Staging) -> Raw<'a> {
        self.raw(&staging.own.control, staging.client())
    }

    /// The object of an internal class below a device of the staging client that has the lowest handle.
    pub(super) fn lowest_staged(&self, staging: &Staging, device: Handle, class: u32) -> Option<Handle> {
        let mut params = vec![0; 12];
        let _ = write_u32(&mut params, 0, device.0) && write_u32(&mut params, 4, class);
        let asked = self.raw_staging(staging).control(staging.client(), GET_CHILD_HANDLE, params);
        let (status, params) = asked.ok()?;
        let child = Handle(read_u32(&params, 8).filter(|_| status.is_ok())?);
        (child != Handle::NONE).then_some(child)
    }

    /// The class and the length, in bytes, of what is staged, as the driver says.
    pub(super) fn what_is_staged(&self, staging: &Staging, staged: Handle) -> (Option<u32>, Option<u64>) {
        let class = self.class_of(&staging.own.control, staging.client(), staged);
        let pages = self.raw_staging(staging).memory_pages(staged).ok().flatten();
        (class, pages.map(|pages| u64::from(pages) * 4096))
    }

    /// The container has ended: frees the staging client with all that is left in it. Whether the driver still has it.
    pub(super) fn end_staging(&self) -> bool {
        let Some(staging) = lock(&self.staging).take() else { return false };
        let _turn = lock(&staging.turn);
        self.cancel_pinning();
        // Whether that was of use, the next question tells.
        let _ = self.raw_staging(&staging).free(staging.client());
        let is_gone = matches!(self.driver.client_exists(&self.own, staging.client()), Ok(false));
        if !is_gone {
            // To be tried again.
            *lock(&self.staging) = Some(Arc::clone(&staging));
        }
        !is_gone
    }
}
