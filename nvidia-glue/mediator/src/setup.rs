//! Parts that a [`Session`](crate::Session) is made of, and errors in making it.

use std::{io, sync::Arc};

use abi::{DriverRelease, Status, UnknownDriver};
use base::{Bytes, GrantedCard, OverMemory, PciBusId, Throttle};
use driver::{Driver, OpenClientError};

use crate::{Observer, Processes};

/// Grant of one container, and who executes its driver calls.
#[derive(Debug)]
pub struct SessionSetup {
    /// Its cards; no other exists for it.
    pub cards: Vec<GrantedCard>,
    /// Host memory that the driver may pin for it.
    pub pinned_memory: Bytes,
    /// The driver that runs.
    pub release: DriverRelease,
    /// Set if a driver outside the known range is treated like the nearest known one. `false`:
    /// refused.
    pub pass_unknown_driver: bool,
    /// Executes the calls.
    pub driver: Arc<dyn Driver>,
    /// Engines whose channels are off a card outside the container's time.
    pub throttle: Throttle,
    /// Set if the container has the driver capability `graphics` or `display`: without, no object
    /// of 3D is made for it.
    pub may_draw: bool,
    /// Treatment of a process that asks for more than the container's grant.
    pub over_memory: OverMemory,
    /// Looks at the container's processes.
    pub processes: Arc<dyn Processes>,
    /// Receives the events.
    pub observer: Arc<dyn Observer>,
}

/// Reason why there can be no mediation for a container.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The driver's layouts are not known.
    #[error("the container's driver calls cannot be read")]
    Driver(#[source] UnknownDriver),
    /// The mediator gets no client of its own.
    #[error("the mediator gets no driver client of its own")]
    Client(#[source] OpenClientError),
    /// Files cannot be watched.
    #[error("the mediator cannot watch files of the driver's, to which memory of the host's may be mapped")]
    Watch(#[source] io::Error),
    /// A card's node cannot be opened.
    #[error("/dev/nvidia{minor} cannot be opened; check that the driver is loaded and that the mediator may open it")]
    Open {
        /// Minor number.
        minor: u32,
        #[source]
        source: io::Error,
    },
    /// One of the driver calls that a session begins with failed.
    #[error("the driver call `{call}`, with which mediation begins, failed")]
    Call {
        /// Its name.
        call: &'static str,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// One of the driver calls that a session begins with was refused by the driver.
    #[error("the driver refused `{call}`, with which mediation begins, with status {:#x}", status.0)]
    Refused {
        /// Its name.
        call: &'static str,
        /// Answer.
        status: Status,
    },
    /// A granted card is not among the driver's.
    #[error(
        "the driver does not know the granted card {uuid} at {pci}; it may have fallen off the bus: see `egpu doctor`"
    )]
    NoSuchCard {
        uuid: String,
        /// Expected address.
        pci: PciBusId,
    },
}
