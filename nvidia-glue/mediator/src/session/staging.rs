//! Client in which the kernel pins memory ([`crate::memory::staging`]).

use std::{collections::BTreeMap, sync::Mutex};

use abi::{
    Handle, Node, Status,
    classes::{NV01_DEVICE_0, OS_DESCRIPTOR, internal},
    controls::{NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO},
    encode,
    params::{
        NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS as HandleInfo,
        NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE_PARAMS as ChildHandle,
    },
};
use account::Card;
use driver::{DeviceFile, OpenClientError, client_on};

use crate::{
    grant::device_params,
    in_flight::{CallEnd, errno},
    locks::lock,
    memory::staging::{NotReported, StagedObject, Staging, StagingClient},
    raw::Raw,
    session::Session,
};

/// The driver's internal classes of all that the call can make below a device without
/// CAP_SYS_ADMIN; what is there is `OS_DESC_MEMORY`. Of one that a release does not have the driver
/// says that there is no child.
const INTERNAL_CLASSES: [u32; 5] = [
    internal::OS_DESC_MEMORY,
    internal::SYSTEM_MEMORY,
    internal::REGISTER_MEMORY,
    internal::VIRTUAL_MEMORY_RANGE,
    internal::FLA_MEMORY,
];
/// Handles of devices; any that no object of the kernel's making is to have.
const DEVICES: u32 = 0xe692_0000;

impl Session {
    /// Returns the control file on which the client is, if there is one; opened when it is first
    /// needed, and the same ever after.
    pub(crate) fn staging(&self) -> Result<&Staging, CallEnd> {
        if let Some(staging) = self.pinned.staging.get() {
            return Ok(staging);
        }
        if lock(&self.objects.files).is_over() {
            return Err(CallEnd::Errno(libc::EBADF));
        }
        let control = self.driver.open(Node::Control).map_err(errno)?;
        Ok(self.pinned.staging.get_or_init(|| Staging { control, client: Mutex::default() }))
    }

    /// The client and its device of a card, made where they are not there.
    pub(crate) fn staging_device(
        &self,
        staging: &Staging,
        client: &mut Option<StagingClient>,
        card: Card,
    ) -> Result<(Handle, Handle), CallEnd> {
        let own = self.grant.get(card).ok_or(CallEnd::Status(Status::INVALID_DEVICE))?;
        if lock(&self.objects.files).is_over() {
            return Err(CallEnd::Errno(libc::EBADF));
        }
        let client = match client {
            Some(client) => client,
            None => {
                let made = client_on(self.driver.as_ref(), &self.abi, &staging.control);
                let made = made.map_err(|error| match error {
                    OpenClientError::Open(error) | OpenClientError::Call(error) => errno(error),
                    OpenClientError::Refused { status } => CallEnd::Status(status),
                    OpenClientError::NoHandle => CallEnd::Errno(libc::EIO),
                })?;
                client.insert(StagingClient { client: made, devices: BTreeMap::new(), left: None })
            }
        };
        if let Some(device) = client.devices.get(&card) {
            return Ok((client.client, *device));
        }
        let (handle, params) = (Handle(DEVICES + u32::from(card.0)), device_params(own.device_instance()));
        let made = self.raw_staging(staging, client).alloc(client.client, handle, NV01_DEVICE_0, params);
        match made.map_err(errno)? {
            (status, device) if status.is_ok() => {
                client.devices.insert(card, device);
                Ok((client.client, device))
            }
            (status, _) => Err(CallEnd::Status(status)),
        }
    }

    /// Calls in the staging client.
    pub(crate) fn raw_staging<'a>(&'a self, staging: &'a Staging, client: &StagingClient) -> Raw<'a> {
        self.raw(&staging.control, client.client)
    }

    /// Something that is in the staging client, whatever it is.
    ///
    /// # Errors
    /// When it cannot be told whether there is anything.
    pub(crate) fn any_staged(&self, staging: &Staging, client: &StagingClient) -> Result<Option<Handle>, NotReported> {
        for device in client.devices.values() {
            for class in INTERNAL_CLASSES {
                let params = encode!(ChildHandle { hParent: *device, classId: class }).to_vec();
                let raw = self.raw_staging(staging, client);
                let asked = raw.control(client.client, NV0000_CTRL_CMD_CLIENT_GET_CHILD_HANDLE, params);
                match asked.map_err(|_| NotReported)? {
                    (Status::OBJECT_NOT_FOUND, _) => {}
                    (status, params) if status.is_ok() => {
                        let child = ChildHandle::hObject.get(&params).filter(|child| *child != Handle::NONE);
                        return child.map(Some).ok_or(NotReported);
                    }
                    _ => return Err(NotReported),
                }
            }
        }
        Ok(None)
    }

    /// Returns the staged object of a handle, whose length matters only if it is pinned memory;
    /// `None`: nothing.
    ///
    /// # Errors
    /// When the driver does not say.
    pub(crate) fn staged_object(
        &self,
        staging: &Staging,
        client: &StagingClient,
        staged: Handle,
    ) -> Result<Option<StagedObject>, NotReported> {
        let Some(class) = self.class_of(&staging.control, client.client, staged).map_err(|_| NotReported)? else {
            return Ok(None);
        };
        let pages = self.raw_staging(staging, client).memory_pages(staged).map_err(|_| NotReported)?;
        match pages {
            Some(pages) => Ok(Some(StagedObject { class, bytes: u64::from(pages) * 4096 })),
            None if class == OS_DESCRIPTOR => Err(NotReported),
            None => Ok(Some(StagedObject { class, bytes: 0 })),
        }
    }

    /// Frees the client with all that is in it. Whether the driver has it still.
    pub(crate) fn end_staging_client(&self, staging: &Staging, client: &mut Option<StagingClient>) -> bool {
        let Some(known) = client else { return false };
        // Whether that was of use, the next question tells.
        let _ = self.raw_staging(staging, known).free(known.client);
        let is_left = !matches!(self.driver.client_exists(&self.own, known.client), Ok(false));
        if !is_left {
            *client = None;
        }
        is_left
    }

    /// The class of an object, as the driver has it (`NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO`
    /// {object, what is asked, answer}); `None`: there is none.
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
}
