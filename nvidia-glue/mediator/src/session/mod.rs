//! One container's mediation.

use std::{
    collections::HashSet,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use abi::{Abi, Handle, Status, classes::Class};
use account::{Accounts, Card, ObjectLimits};
use base::{Bytes, OverMemory};
use driver::{DeviceFile, Driver, OwnClient, open_own_client};

use crate::{
    Drift, Observer, Processes, SessionError, SessionSetup, UnknownKind,
    channels::{Channels, gate::CardGate},
    grant::{Grant, OwnCard},
    in_flight::CallEnd,
    locks::lock,
    memory::{
        host_mappings::HostMappings,
        managed::{ManagedMemory, ScanEnv},
        pinned::PinnedMemory,
    },
    objects::Objects,
    session::{
        failures::FailureThrottle, managed_on_host::LeftUntold, own_memory::OwnMemory, process_table::ProcessTable,
        reclaim_throttle::ReclaimThrottle, shortages::Shortages,
    },
    view::{View, card_utilization::CardUtilization},
};

pub(crate) mod failures;
mod freeing;
pub(crate) mod managed_on_host;
pub(crate) mod own_memory;
pub(crate) mod process_table;
pub(crate) mod reclaim_throttle;
mod scheduling;
pub(crate) mod shortages;
mod staging;
pub(crate) mod usage;

/// One container's mediation. Shared by its listener threads.
pub struct Session {
    pub(crate) abi: Abi,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) processes: Arc<dyn Processes>,
    pub(crate) observer: Arc<dyn Observer>,
    /// Set if there are objects of 3D for the container.
    pub(crate) may_draw: bool,
    pub(crate) over_memory: OverMemory,
    /// The mediator's own client; its control file is open for as long as the session lives.
    pub(crate) own: Arc<OwnClient>,
    pub(crate) grant: Grant,
    pub(crate) objects: Objects,
    pub(crate) managed: ManagedMemory,
    pub(crate) left_untold: LeftUntold,
    pub(crate) pinned: PinnedMemory,
    pub(crate) host_mappings: HostMappings,
    pub(crate) channels: Channels,
    pub(crate) view: View,
    pub(crate) process_table: Mutex<ProcessTable>,
    pub(crate) reclaim_throttle: ReclaimThrottle,
    /// Since when the driver says that the container has too much of a card.
    pub(crate) over_since: Mutex<Option<Duration>>,
    /// Objects that the driver was asked for and did not make.
    pub(crate) failures: FailureThrottle,
    pub(crate) shortages: Shortages,
    pub(crate) own_memory: OwnMemory,
    /// The driver's own version, once it is known.
    pub(crate) driver_version: Mutex<Option<Vec<u8>>>,
    /// The driver has refused a client that is known here, which most likely went with its file. It
    /// writes a line into the kernel's log for each control in such a client: from then on it is
    /// asked first whether a client is there, which costs a microsecond.
    pub(crate) checks_clients: AtomicBool,
    /// Set once the observer has heard that an object of 3D was refused.
    graphics_reported: AtomicBool,
    /// Set once the observer has heard of a debugger or a profiler.
    tool_reported: AtomicBool,
    unknown: Mutex<HashSet<UnknownKind>>,
    pub(crate) counters: Counters,
    #[cfg(feature = "parking")]
    pub(crate) parking: crate::memory::movable::Parking,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) kills: AtomicU64,
    unknown_passed: AtomicU64,
    unknown_refused: AtomicU64,
}

/// More kinds of unknown calls than that are counted, but no longer reported one by one.
const MOST_REPORTED_UNKNOWN: usize = 256;

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("grant", &self.grant).finish_non_exhaustive()
    }
}

impl Session {
    /// Opens a control file and a client of the mediator's own, and finds the granted cards among
    /// the driver's.
    ///
    /// # Errors
    /// When the driver is not known, refuses its first calls, or lacks a card.
    pub fn new(setup: SessionSetup) -> Result<Self, SessionError> {
        let SessionSetup {
            cards,
            pinned_memory,
            release,
            pass_unknown_driver,
            driver,
            throttle,
            may_draw,
            over_memory,
            processes,
            observer,
        } = setup;
        let abi = match Abi::of(release) {
            Ok(abi) => abi,
            Err(_) if pass_unknown_driver => Abi::nearest(release),
            Err(error) => return Err(SessionError::Driver(error)),
        };
        let own = Arc::new(open_own_client(driver.as_ref(), &abi).map_err(SessionError::Client)?);
        let limits: Vec<Bytes> = cards.iter().map(|card| card.memory_limit).collect();
        let only_looks = cards.iter().all(|card| card.monitored);
        let object_limits = match only_looks {
            true => ObjectLimits::of_a_monitor(),
            false => ObjectLimits { host_memory: pinned_memory, ..ObjectLimits::default() },
        };
        let object_limits = object_limits.with_cards(cards.len());
        let mut accounts = Accounts::new(&limits, object_limits);
        for (card, granted) in (0..).map(Card).zip(&cards) {
            // Every card of the grant has an account.
            let _ = accounts.set_channel_limit(card, if granted.monitored { 0 } else { granted.channels });
            if granted.whole {
                accounts.set_sole_holder(card);
            }
        }
        let host_mappings = HostMappings::new(driver.as_ref()).map_err(SessionError::Watch)?;
        let grant = Grant::find(driver.as_ref(), abi, &own, cards)?;
        let gate = |card: &OwnCard| Arc::new(CardGate::new(card, throttle, &driver, abi, &own));
        let gates = grant.cards.iter().map(gate).collect();
        let utilization = |card: &OwnCard| CardUtilization::new(card, &driver, abi, &own);
        let utilizations = grant.cards.iter().map(utilization).collect();
        Ok(Self {
            abi,
            driver,
            processes,
            observer,
            may_draw,
            over_memory,
            own,
            objects: Objects::new(accounts),
            managed: ManagedMemory::default(),
            left_untold: LeftUntold::default(),
            pinned: PinnedMemory::default(),
            host_mappings,
            channels: Channels::new(gates),
            view: View::new(utilizations),
            grant,
            process_table: Mutex::default(),
            reclaim_throttle: ReclaimThrottle::default(),
            over_since: Mutex::default(),
            failures: FailureThrottle::default(),
            shortages: Shortages::default(),
            own_memory: OwnMemory::new(&object_limits),
            driver_version: Mutex::default(),
            checks_clients: AtomicBool::new(false),
            graphics_reported: AtomicBool::new(false),
            tool_reported: AtomicBool::new(false),
            unknown: Mutex::default(),
            counters: Counters::default(),
            #[cfg(feature = "parking")]
            parking: crate::memory::movable::Parking::default(),
        })
    }

    /// Refuses a client that was not made through this session.
    pub(crate) fn check_client(&self, client: Handle) -> Result<(), CallEnd> {
        let is_known = lock(&self.objects.accounts).knows_client(client);
        let is_gone = || {
            self.checks_clients.load(Ordering::Relaxed)
                && matches!(self.driver.client_exists(&self.own, client), Ok(false))
        };
        if is_known && !is_gone() { Ok(()) } else { Err(CallEnd::Status(Status::INVALID_CLIENT)) }
    }

    /// Counts a call that no table has, and reports it if it was refused. Those that pass are the
    /// firmware's, of which NVIDIA's own tools ask for more in each release.
    pub(crate) fn count_unknown(&self, kind: UnknownKind, passed: bool) {
        if passed {
            self.counters.unknown_passed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counters.unknown_refused.fetch_add(1, Ordering::Relaxed);
        let is_new = {
            let mut unknown = lock(&self.unknown);
            unknown.len() < MOST_REPORTED_UNKNOWN && unknown.insert(kind)
        };
        if is_new {
            self.observer.unknown_call(kind);
        }
    }

    /// An object of 3D was refused, for want of the driver capability.
    pub(crate) fn report_missing_graphics(&self, class: &Class) {
        if !self.graphics_reported.swap(true, Ordering::Relaxed) {
            self.observer.lacks_graphics(class.name);
        }
    }

    /// A debugger's or a profiler's call was refused.
    pub(crate) fn report_refused_tool(&self, call: &str) {
        if !self.tool_reported.swap(true, Ordering::Relaxed) {
            self.observer.refused_tool(call);
        }
    }

    /// Returns the parts that a scan of managed memory needs.
    pub(crate) fn scan_env(&self) -> ScanEnv<'_> {
        ScanEnv {
            accounts: &self.objects.accounts,
            processes: self.processes.as_ref(),
            clock: self.reclaim_throttle.clock.as_ref(),
        }
    }

    /// Tells the observer of what was found, and returns it.
    pub(crate) fn report_drifts(&self, drifts: Vec<Drift>) -> Vec<Drift> {
        drifts.iter().for_each(|drift| self.observer.drift(drift));
        drifts
    }

    /// Calls of the mediator's own in a client of the container's, on a duplicate of the file that
    /// it lives on.
    pub(crate) fn raw<'b>(&'b self, file: &'b DeviceFile, client: Handle) -> crate::raw::Raw<'b> {
        crate::raw::Raw { driver: self.driver.as_ref(), abi: self.abi, file, client }
    }
}
