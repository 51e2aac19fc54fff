//! The ledger of grants: one record a container, one lock, sums that are never exceeded.
//!
//! - [`Ledger::admit`] reserves what a container asked for and writes its record, before the
//!   container is created. The record is *pending* and names the cgroups in which the container is
//!   going to be. Where there is no room, it may wait for some: see [`Patience`].
//! - [`Ledger::bind`] adds the container's init once it exists.
//! - [`Ledger::set`] changes a container's limits and priority while it runs,
//!   [`Ledger::set_policy`] how a card is shared, [`Ledger::set_present`] whether a container
//!   counts where those do that have the driver open.
//! - [`Ledger::release`] gives the grant back: after the container has ended, or when its create
//!   failed.
//! - [`claims`]: grants that Kubernetes has allocated to a pod, whichever containers use them.
//!
//! Each change also writes the [timetables](Ledger::card_timetable) of its cards: who runs when,
//! and from which instant on.
//!
//! # Whose end is whose
//! A grant is taken back without a release only when its shim is gone **and** nothing of its
//! container is left: its cgroups are empty and, while it is pending, the shim's helper is gone,
//! too, so that nothing can put a process there any more. Whoever holds the lock next does that for
//! the cards that it looks at, and for all cards before it refuses for want of room.
//!
//! A container whose shim is gone is killed by whoever finds it, because nobody holds its quota any
//! more, no shim ever comes back to a container that runs, and containerd deletes it, too, as soon
//! as it notices. Until its last process is gone its grant stays: memory that is still held is
//! never granted twice. A process leaves its cgroup only after it has closed its files, so an empty
//! cgroup also means that the driver has taken back what the container had.
//!
//! Every call may block on files and on the lock. An async caller uses a thread for blocking calls.
#![forbid(unsafe_code)]

mod admit;
mod bind;
mod card_demand;
mod card_sums;
mod change;
mod claim;
pub mod claims;
mod crowd;
pub mod decision_log;
mod error;
pub mod event_log;
mod floors;
mod formats;
mod grant_log;
mod index;
mod limits;
mod liveness;
mod members;
mod open;
mod policy;
mod reclaim;
mod record;
mod refusal;
mod release;
mod room;
mod select;
mod set;
mod settings;
mod state;
mod store;
#[cfg(test)]
pub mod test_support;
#[cfg(test)]
mod tests;
mod timetable;

use std::{collections::HashSet, path::Path, sync::Mutex, time::Duration};

pub use admit::{Admission, Patience, Waiter};
pub use base::{CardGrant, ComputeEnforcement, ContainerKey, Enforcement, ProcessId};
pub use card_demand::CardDemand;
pub use change::{Change, ChangeError, PolicyError};
pub use crowd::Crowd;
pub use error::{AdmitError, AdmitErrorKind, AttachError, BindError, ReleaseError, TriedCard};
pub use limits::Limits;
use liveness::{Linux, Node};
pub use record::{ContainerName, GrantState, Record};
pub use refusal::Refusal;
pub use release::ReleaseReason;
pub use room::CardRoom;
pub use select::SelectError;
pub use settings::CardSetting;
pub use state::CardState;
use store::Store;
pub use store::{StoreError, timetable_dir, timetable_name};
pub use timetable::TimetableError;

/// Longest wait for the lock. An admission holds it for some tenths of a millisecond.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// The ledger in one state directory. All processes that open the same directory see the same
/// ledger.
#[derive(Debug)]
pub struct Ledger {
    store: Store,
    node: Box<dyn Node>,
    /// Grants that cannot be taken back yet, and why, as far as that is logged: an
    /// admission looks again and again.
    logged: Mutex<HashSet<(String, &'static str)>>,
}

impl Ledger {
    /// Opens the ledger in `state_dir`, which is made if it is not there.
    ///
    /// # Errors
    /// When the directories cannot be made, or the boot id cannot be read.
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let store = Store::open(state_dir, LOCK_PATIENCE)?;
        Ok(Self { store, node: Box::new(Linux), logged: Mutex::default() })
    }

    /// Every grant, in ledger order. Takes no lock: each record is whole, and the list may be a
    /// moment old.
    ///
    /// # Errors
    /// When the records cannot be read, or one is not understood.
    pub fn records(&self) -> Result<Vec<Record>, StoreError> {
        self.store.records()
    }

    /// Every grant whose record is understood, in ledger order, and why the others are not: for
    /// views, which show the rest.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub fn readable_records(&self) -> Result<(Vec<Record>, Vec<StoreError>), StoreError> {
        self.store.readable_records()
    }

    /// One container's grant.
    ///
    /// # Errors
    /// When it cannot be read or is not understood.
    pub fn record(&self, container: &ContainerKey) -> Result<Option<Record>, StoreError> {
        self.store.find_record(container)
    }

    /// Returns whether the mediator of one container runs. `false` where there is no grant, or none
    /// that can be read.
    pub fn is_mediated(&self, container: &ContainerKey) -> bool {
        let record = self.record(container).ok().flatten();
        record.and_then(|record| record.mediator).is_some_and(|mediator| self.node.is_alive(mediator))
    }
}
