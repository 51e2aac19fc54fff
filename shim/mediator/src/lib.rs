//! The mediator: one process for each container that shares a card. It executes the container's
//! driver calls.
//!
//! ```text
//!  container ── driver call ──> its filter's listener ──> receiver ── Session::handle ──> driver
//!     ^                                                        |
//!     └──────────────── answer ────────────────────────────────┘
//!  helper ── listeners (of init and of every exec) ──> broker ┐
//!  shim <── denials, kills, log ── control ───────────────────┴── main thread
//! ```
//!
//! It is a process of its own because it reads what hostile programs wrote, because the driver
//! judges each call by the capabilities of its caller, and because the driver's clients are its own
//! to free. The zygote forks it before the container exists. It opens what it needs, forks the
//! process that opens files of the container's processes for it ([`broker`]), moves to a mount
//! namespace with the files that it will open ([`mount_namespace`]), drops its privileges for good
//! ([`privileges`]), and only then starts threads. It lives in the shim's cgroup, not in the
//! container's. The shim sees its end, whatever the cause, and ends the container then; and it ends
//! when the shim does.
//!
//! No thread ever holds a lock while it reads from a caller: a page of the container can be made to
//! block for ever. Such a thread is lost to its own container only.
#![forbid(unsafe_code)]

mod address_space;
mod broker;
mod caller;
mod cost;
mod event_loop;
mod listener;
mod log;
mod mediation;
pub mod message;
mod mount_namespace;
mod observer;
mod outbox;
mod own_user;
#[cfg(feature = "parking")]
pub mod parking;
mod pid_namespaces;
mod privileges;
mod proc_read_watchdog;
mod processes;
pub mod rate_limit;
mod scheduler;
mod setup;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::Path,
    sync::Arc,
};

use abi::Node;
use base::usage::UsageFile;
use driver::{DeviceFile, Driver, NvidiaDriver};
use mediator::{GrantedCard, Session, SessionError};
use nvidia_glue::inject::{self, HELD_FILE};
use sys::spans;

use self::{
    cost::Cost, event_loop::EventLoop, mediation::Mediation, message::FromMediator, observer::Reporter, outbox::Outbox,
    privileges::Role, processes::ProcessTable, scheduler::Scheduler,
};
pub use self::{
    event_loop::MOST_LISTENERS,
    privileges::PrivilegeError,
    setup::{MediatedDriver, Setup},
};

/// Error that keeps a mediator from beginning.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    #[error("the mediator needs {wanted} descriptors, got {got}")]
    Descriptors { wanted: usize, got: usize },
    /// The kernel.
    #[error("this kernel's seccomp notifications cannot be used")]
    Notifications(#[source] io::Error),
    /// The driver's version.
    #[error("the version of the driver cannot be parsed")]
    Release(#[source] abi::abi::ParseReleaseError),
    #[error("the driver cannot be used")]
    Driver(#[source] io::Error),
    /// The simulated driver.
    #[cfg(feature = "simulated")]
    #[error("the simulated driver cannot be used")]
    Simulated(#[source] Box<simulator::SimulatedDriverError>),
    /// The simulated driver, in a build without it (`driver.kind = "simulated"`).
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
    /// The file to which it writes usage.
    #[error("cannot make the usage file {path}")]
    Usage {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The memory of the mediator before, which was killed.
    #[error(
        "the claim's mediator was killed a moment ago, and its memory may be in use: try again, which looks at it first"
    )]
    NotFreed,
    /// Its user.
    #[error(
        "the mediator cannot have a user id of its own, above 2147483647; if containerd is in a user namespace, that \
         has to have these ids"
    )]
    User(#[source] io::Error),
    /// Its watch on the timetables.
    #[error(
        "the mediator gets no inotify instance to watch the timetables with; look at the sysctl \
         fs.inotify.max_user_instances, and at containerd's limit of open files (LimitNOFILE)"
    )]
    Watch(#[source] io::Error),
    /// Timers and priorities of the scheduler.
    #[error("the container's time on its cards cannot be scheduled")]
    Scheduler(#[source] io::Error),
    /// The process that opens the container's processes for it.
    #[error("cannot start the mediator's broker")]
    Broker(#[source] io::Error),
    /// The figures of its own cost.
    #[error("cannot read what the mediator costs")]
    Cost(#[source] io::Error),
    #[error("cannot make a mount namespace for the mediator")]
    MountNamespace(#[source] io::Error),
    #[error("the mediator cannot drop its privileges")]
    Privileges(#[source] PrivilegeError),
    #[error("the container's driver calls cannot be mediated")]
    Session(#[source] SessionError),
    /// A card without hard caps that was taken for one with them.
    #[error(
        "card {card} cannot take containers off, as a probe showed, though NVML reports GSP firmware; hard caps need \
         that: ask for a weight with policy soft, use another card, or set hard_caps_unavailable = \"degrade\" in the \
         configuration"
    )]
    NoWindows { card: String },
    #[error("the mediator cannot wait for events")]
    EventLoop(#[source] io::Error),
}

/// A mediator that is ready to run.
#[expect(missing_debug_implementations, reason = "it is the whole process")]
pub struct Ready(EventLoop);

/// Opens files, drops privileges, prepares the session.
///
/// `shim` is the parent; `fds`: the receiving end of the intake, and the control socket.
pub fn begin(shim: i32, setup: Setup, fds: Vec<OwnedFd>) -> Result<Ready, BeginError> {
    let got = fds.len();
    let [intake, control] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| BeginError::Descriptors { wanted: 2, got })?;
    sys::set_name(c"egpu-mediator");
    cost::avoid_oom_killer();
    sys::require_notification_sizes().map_err(BeginError::Notifications)?;
    // All that the kernel counts by user is this mediator's and its broker's from here on.
    let user = own_user::take().map_err(BeginError::User)?;
    let timetables = Scheduler::new_watch().map_err(BeginError::Watch)?;
    user.act_as_root().map_err(BeginError::User)?;
    // The change of user has undone this.
    sys::die_with_parent(shim).map_err(BeginError::User)?;
    // Before this process has anything that the broker should not have.
    let started = broker::start(&intake, setup.cgroups.clone(), &timetables);
    let (broker, listeners) = started.map_err(BeginError::Broker)?;
    let cost = Cost::new(broker.pid(), setup.mediator_processors(), MOST_LISTENERS).map_err(BeginError::Cost)?;
    drop(intake);
    spans::mark("mediator broker", "");
    let outbox = Arc::new(Outbox::new(control).map_err(BeginError::EventLoop)?);
    log::to_shim(&outbox);
    observer::panics_to(&outbox);
    let parent = setup.usage_file.parent().unwrap_or(Path::new("/"));
    let usage = UsageFile::create(&setup.usage_file)
        .map_err(|source| BeginError::Usage { path: setup.usage_file.display().to_string(), source })?;
    let held = create_held_file(&setup.usage_file.with_file_name(HELD_FILE))?;
    let release = setup.release.parse().map_err(BeginError::Release)?;
    let driver = open_driver(&setup.driver)?;
    let cards = open_cards(&*driver, &setup)?;
    let processes = Arc::new(ProcessTable::new(Arc::new(broker)).map_err(BeginError::EventLoop)?);
    #[cfg(feature = "parking")]
    let door = parking::open(&setup.usage_file)
        .map_err(|source| BeginError::Usage { path: setup.usage_file.display().to_string(), source })?;
    let prepared = Scheduler::prepare(&setup, timetables).map_err(BeginError::Scheduler)?;

    spans::mark("mediator files", "");
    mount_namespace::enter(parent, &setup.visible_paths()).map_err(BeginError::MountNamespace)?;
    privileges::drop_privileges(Role::Mediator { shim }).map_err(BeginError::Privileges)?;
    let mut scheduler = Scheduler::new(prepared, &outbox).map_err(BeginError::Scheduler)?;
    sys::let_signal_interrupt(listener::INTERRUPT).map_err(BeginError::EventLoop)?;

    let reporter = Arc::new(Reporter::new(Arc::clone(&outbox), Arc::clone(&processes), scheduler.wakers()));
    let period = setup.reconcile_period();
    let capped: Vec<(String, bool)> =
        setup.cards.iter().filter(|card| card.is_capped).map(|card| (card.uuid.clone(), card.needs_windows)).collect();
    let session = Session::new(setup.into_session(release, driver, Arc::clone(&processes) as _, reporter as _))
        .map_err(BeginError::Session)?;
    for (card, needs_windows) in capped {
        // Discovery has asked NVML; this asks the driver itself, now.
        if session.can_close(&card) == Some(false) {
            if needs_windows {
                return Err(BeginError::NoWindows { card });
            }
            scheduler.mark_without_windows(&card);
            outbox.put(FromMediator::WeightsOnly { card }, None);
        }
    }
    let mediation = Arc::new(Mediation::new(session, processes, outbox, cost, held, cards));
    #[cfg(feature = "parking")]
    parking::start(&mediation, door).map_err(BeginError::EventLoop)?;
    Ok(Ready(EventLoop::new(mediation, listeners, scheduler, usage, period).map_err(BeginError::EventLoop)?))
}

impl Ready {
    /// Mediates until the shim ends it, or closes its end of the control socket.
    pub fn run(self) -> ! {
        // Nobody is left to report to: the shim sees the exit.
        let code = i32::from(self.0.run().is_err());
        sys::exit_now(code)
    }
}

/// Creates the file that says whether the driver holds something for the grant: nothing yet. A
/// mediator of the same claim that was killed may have one, which is not to be forgotten; if
/// somebody still looks at what that one left, it does not take this one's mark for it.
fn create_held_file(path: &Path) -> Result<File, BeginError> {
    if inject::says_held(path) {
        return Err(BeginError::NotFreed);
    }
    let new = path.with_extension("new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let created = file.and_then(|file| {
        file.write_all_at(b"0", 0)?;
        fs::rename(&new, path)?;
        Ok(file)
    });
    created.map_err(|source| BeginError::Usage { path: path.display().to_string(), source })
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
            let driver = simulator::SimulatedDriver::new(state_dir, inventory);
            Ok(Arc::new(driver.map_err(|source| BeginError::Simulated(Box::new(source)))?))
        }
    }
}

/// Opens the nodes of the cards, which stay open: the driver lets a process make objects on a card
/// only while it has its node open.
fn open_cards(driver: &dyn Driver, setup: &Setup) -> Result<Vec<DeviceFile>, BeginError> {
    let open = |card: &GrantedCard| {
        driver.open(Node::Card(card.minor)).map_err(|source| BeginError::Card { uuid: card.uuid.clone(), source })
    };
    setup.cards.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim's mediators have one place for their marks, one after the other.
    #[test]
    fn the_mark_of_a_killed_mediator_is_neither_overwritten_nor_taken_for_the_next_ones() {
        let state = tempfile::tempdir().unwrap();
        let path = inject::usage_file(state.path(), "claim").unwrap().with_file_name(HELD_FILE);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        create_held_file(&path).unwrap().write_all_at(b"1", 0).unwrap();
        assert!(matches!(create_held_file(&path), Err(BeginError::NotFreed)));
        assert!(inject::says_held(&path));
        let looked_at = [(); 2].map(|()| inject::HeldMark::open(state.path(), "claim").unwrap());
        looked_at[0].clear().unwrap();
        create_held_file(&path).unwrap().write_all_at(b"1", 0).unwrap();
        looked_at[1].clear().unwrap();
        assert!(inject::says_held(&path), "it is the next one's by now");
    }
}
