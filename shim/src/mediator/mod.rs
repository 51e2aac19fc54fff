//! The mediator: one process for each container that shares a card. It executes the container's driver calls.
//!
//! ```text
//!  container ── driver call ──> its filter's listener ──> receiving thread ── Session::handle ──> the driver
//!     ^                                                        |
//!     └──────────────── answer ────────────────────────────────┘
//!  helper ── listeners (of init and of every exec) ──> broker ┐
//!  shim <── who asked for too much, log ── control ───────────┴── main thread
//! ```
//!
//! It is a process of its own because it reads what hostile programs wrote, because the driver judges each call by the
//! capabilities of whoever makes it, and because the driver's clients are its own to free. The zygote forks it before the container
//! exists; it opens what it needs, forks who opens processes for it ([`broker`]), moves to a mount namespace that has what it will open ([`mount_namespace`]), gives up
//! its rights for good ([`privileges`]), and only then starts threads. It lives in the shim's cgroup, not in the container's. Its end, however it comes, is seen by the shim, which then ends the container;
//! and it ends when the shim does.
//!
//! No thread ever holds a lock while it looks into a caller: a page of the container's can be made to block for ever. Such a
//! thread is lost to its own container only.

mod broker;
mod caller;
pub mod client;
mod events;
mod limited;
mod listener;
mod looks_into;
mod maps;
pub mod message;
mod mount_namespace;
mod observer;
mod outbox;
mod pid_namespaces;
mod privileges;
mod processes;
mod scheduler;
mod setup;

use std::{io, os::fd::OwnedFd, path::Path, sync::Arc};

use nvidia_glue::{
    driver::{DeviceFile, Driver, NvidiaDriver},
    mediate::{Session, SessionError},
    rm::Node,
    usage::UsageFile,
};

pub use self::{
    client::{Mediator, MediatorError},
    setup::{MediatedCard, MediatedDriver, Setup},
};
use self::{
    events::Events,
    listener::Mediation,
    message::FromMediator,
    observer::Reporter,
    outbox::Outbox,
    privileges::{PrivilegeError, Role},
    processes::ProcessTable,
    scheduler::Scheduler,
};
use crate::sys;

/// Why a mediator could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    /// The descriptors that belong to it.
    #[error("the mediator wants {wanted} descriptors, got {got}")]
    Descriptors { wanted: usize, got: usize },
    /// The kernel.
    #[error("this kernel's seccomp notifications cannot be used")]
    Notifications(#[source] io::Error),
    /// The driver's version.
    #[error("the driver's version is not understood")]
    Release(#[source] nvidia_glue::rm::abi::ParseReleaseError),
    /// The driver.
    #[error("the driver cannot be used")]
    Driver(#[source] io::Error),
    /// The simulated driver.
    #[cfg(feature = "simulated")]
    #[error("the simulated driver cannot be used")]
    Simulated(#[source] Box<nvidia_glue::driver::SimulatedDriverError>),
    /// The configuration says `driver.kind = "simulated"`.
    #[cfg(not(feature = "simulated"))]
    #[error(
        "this egpu was built without simulated cards; build it with feature `simulated`, or set `driver.kind` to \"nvidia\""
    )]
    NoSimulator,
    /// A card's node.
    #[error("the device node of card {uuid} cannot be opened")]
    Card {
        uuid: String,
        #[source]
        source: io::Error,
    },
    /// Where usage is told.
    #[error("cannot make the usage file {path}")]
    Usage {
        path: String,
        #[source]
        source: io::Error,
    },
    /// What it needs to keep to its turns.
    #[error("the container's time on its cards cannot be scheduled")]
    Scheduler(#[source] io::Error),
    /// Who opens the container's processes for it.
    #[error("the mediator's broker cannot be had")]
    Broker(#[source] io::Error),
    /// What it sees of the host.
    #[error("the mediator cannot have a mount namespace of its own")]
    MountNamespace(#[source] io::Error),
    /// Its rights.
    #[error("the mediator cannot give up its privileges")]
    Privileges(#[source] PrivilegeError),
    /// The session.
    #[error("the container's driver calls cannot be mediated")]
    Session(#[source] SessionError),
    /// A card that was taken for one with windows.
    #[error(
        "card {card} does not take containers off, as a probe has shown, though it is said to have GSP firmware; hard caps are refused \
         without that: ask for a weight with policy soft, use another card, or set hard_caps_unavailable = \"degrade\" in the \
         configuration"
    )]
    NoWindows { card: String },
    /// Its event loop.
    #[error("the mediator cannot wait for events")]
    Events(#[source] io::Error),
}

/// A mediator that is ready to run.
pub(crate) struct Ready(Events);

/// Opens, gives up rights, prepares the session. `shim` is the parent; `fds`: the receiving end of the intake, and the
/// control socket.
pub(crate) fn begin(shim: i32, setup: Setup, fds: Vec<OwnedFd>) -> Result<Ready, BeginError> {
    let got = fds.len();
    let [intake, control] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| BeginError::Descriptors { wanted: 2, got })?;
    sys::set_name(c"egpu-mediator");
    sys::require_notification_sizes().map_err(BeginError::Notifications)?;
    // Before there is anything that it should not have.
    let (broker, listeners) = broker::start(&intake, setup.cgroups.clone()).map_err(BeginError::Broker)?;
    drop(intake);
    let outbox = Arc::new(Outbox::new(control).map_err(BeginError::Events)?);
    observer::log_to(&outbox);
    let parent = setup.usage_file.parent().unwrap_or(Path::new("/"));
    let usage = std::fs::create_dir_all(parent)
        .and_then(|()| UsageFile::create(&setup.usage_file))
        .map_err(|source| BeginError::Usage { path: setup.usage_file.display().to_string(), source })?;
    let release = setup.release.parse().map_err(BeginError::Release)?;
    let driver = open_driver(&setup.driver)?;
    let cards = open_cards(&*driver, &setup)?;
    let processes = Arc::new(ProcessTable::new(Arc::new(broker)).map_err(BeginError::Events)?);
    let prepared = Scheduler::prepare(&setup).map_err(BeginError::Scheduler)?;

    mount_namespace::enter(parent, &setup.seen()).map_err(BeginError::MountNamespace)?;
    privileges::drop_for_good(Role::Mediator { shim }).map_err(BeginError::Privileges)?;
    let mut scheduler = Scheduler::new(prepared).map_err(BeginError::Scheduler)?;
    sys::let_signal_interrupt(listener::INTERRUPT).map_err(BeginError::Events)?;

    let reporter = Arc::new(Reporter::new(Arc::clone(&outbox), Arc::clone(&processes), scheduler.wakers()));
    let period = setup.reconcile_period();
    let capped: Vec<(String, bool)> =
        setup.cards.iter().filter(|card| card.is_capped).map(|card| (card.uuid.clone(), card.needs_windows)).collect();
    let session = Session::new(setup.into_session(release, driver, Arc::clone(&processes) as _, reporter as _))
        .map_err(BeginError::Session)?;
    for (card, needs_windows) in capped {
        // What discovery says of a card is NVML's word; this is the driver's own, of this card, now.
        if session.can_close(&card) == Some(false) {
            if needs_windows {
                return Err(BeginError::NoWindows { card });
            }
            scheduler.without_windows(&card);
            outbox.put(FromMediator::WeightsOnly { card }, None);
        }
    }
    let mediation = Arc::new(Mediation::new(session, processes, outbox, cards));
    Ok(Ready(Events::new(mediation, listeners, scheduler, usage, period).map_err(BeginError::Events)?))
}

impl Ready {
    /// Mediates until the shim ends it, or its end of the control socket.
    pub(crate) fn run(self) -> ! {
        // Nothing is left to tell anybody: the shim sees the exit.
        let code = i32::from(self.0.run().is_err());
        sys::exit_now(code)
    }
}

fn open_driver(driver: &MediatedDriver) -> Result<Arc<dyn Driver>, BeginError> {
    match driver {
        MediatedDriver::Nvidia { device_root } => {
            let driver = NvidiaDriver::new(&setup::roots(device_root)).map_err(BeginError::Driver)?;
            Ok(Arc::new(driver))
        }
        #[cfg(not(feature = "simulated"))]
        MediatedDriver::Simulated { .. } => Err(BeginError::NoSimulator),
        #[cfg(feature = "simulated")]
        MediatedDriver::Simulated { state_dir, inventory } => {
            let driver = nvidia_glue::driver::SimulatedDriver::new(state_dir, inventory);
            Ok(Arc::new(driver.map_err(|source| BeginError::Simulated(Box::new(source)))?))
        }
    }
}

/// The driver lets a process make objects on a card only while it has the card's node open; these stay open for that.
fn open_cards(driver: &dyn Driver, setup: &Setup) -> Result<Vec<DeviceFile>, BeginError> {
    let open = |card: &MediatedCard| {
        driver.open(Node::Card(card.minor)).map_err(|source| BeginError::Card { uuid: card.uuid.clone(), source })
    };
    setup.cards.iter().map(open).collect()
}
