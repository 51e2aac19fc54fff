//! The container's objects in the driver and its open files.

pub(crate) mod named_locks;
pub(crate) mod open_files;
pub(crate) mod topology;

use std::sync::Mutex;

use abi::{Handle, Status};
use account::{Accounts, Card};

use self::named_locks::Locks;
use crate::{
    in_flight::CallEnd,
    locks::lock,
    objects::{open_files::OpenFiles, topology::Topology},
};

/// The container's objects, what they are charged for, and the files on which they live.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) accounts: Mutex<Accounts>,
    pub(crate) topology: Mutex<Topology>,
    pub(crate) files: Mutex<OpenFiles>,
    pub(crate) locks: Locks,
}

impl Objects {
    pub(crate) fn new(accounts: Accounts) -> Self {
        Self {
            accounts: Mutex::new(accounts),
            topology: Mutex::default(),
            files: Mutex::default(),
            locks: Locks::default(),
        }
    }

    /// The card on which memory below `parent` would be.
    pub(crate) fn card_of(&self, client: Handle, parent: Handle) -> Option<Card> {
        lock(&self.topology).card_of(client, parent)
    }

    /// An object may be duplicated or imported below a device, a subdevice or the client itself,
    /// one that is there. From 575.51 to 595 the driver keeps its locks for good when the parent of
    /// a duplicate does not exist, and no process of the host gets a call through any more
    /// (`serverCopyResource`, src/nvidia/src/libraries/resserv/src/rs_server.c).
    ///
    /// Precondition: the client is locked.
    pub(crate) fn is_parent(&self, client: Handle, parent: Handle) -> Result<(), CallEnd> {
        if !lock(&self.accounts).knows_client(client) {
            return Err(CallEnd::Status(Status::INVALID_CLIENT));
        }
        let is_there = parent == client || lock(&self.topology).is_device(client, parent);
        if is_there { Ok(()) } else { Err(CallEnd::Status(Status::OBJECT_NOT_FOUND)) }
    }
}
