//! Client in which the kernel makes what only it can make, in the program's place
//! (`NV_ESC_RM_ALLOC_MEMORY`), the mediator's own.
//!
//! The kernel reads that call from the program's memory, whose other threads can make any such call
//! of it. What they cannot choose is the clients that it may name: those of the control file that
//! the card's file was registered with, which is this one's (`osapi.c`, `rmclientValidate` in
//! client.c). There is nothing else in it. So nothing that comes into it is hidden, and nothing is
//! there to be named that matters.
//!
//! The client is there only while such calls are made: whoever has a card's file outside the
//! container finds none otherwise.

use std::{collections::BTreeMap, sync::Mutex};

use abi::Handle;
use account::Card;
use driver::DeviceFile;

/// The control file that cards' files are registered with, which no process of the container has,
/// and the client on it.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) control: DeviceFile,
    /// Locked while something is put in or taken out.
    pub(crate) client: Mutex<Option<StagingClient>>,
}

/// A client, and its devices of the cards.
#[derive(Debug)]
pub(crate) struct StagingClient {
    pub(crate) client: Handle,
    pub(crate) devices: BTreeMap<Card, Handle>,
    /// Object that was dealt with and could not be freed.
    pub(crate) left: Option<Handle>,
}

/// The driver does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotReported;

/// Object that is staged, as the driver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedObject {
    pub(crate) class: u32,
    pub(crate) bytes: u64,
}
