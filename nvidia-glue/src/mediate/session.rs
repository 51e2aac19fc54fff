//! One container's mediation.

use std::fmt;

use runtime_config::Bytes;

use super::{Answer, Caller, Drift, Pid, SessionError, SessionSetup, Stopped};
use crate::usage::Usage;

/// One container's mediation. Shared by its listener threads.
pub struct Session {
    setup: SessionSetup,
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("setup", &self.setup).finish_non_exhaustive()
    }
}

/// A card that a change of limits names is none of the container's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the container has no card {0}")]
pub struct NotGranted(pub String);

impl Session {
    /// Opens a control file and a client of the mediator's own, and finds the granted cards among the driver's.
    ///
    /// # Errors
    /// When the driver is not known, refuses its first calls, or lacks a card.
    pub fn new(setup: SessionSetup) -> Result<Self, SessionError> {
        Ok(Self { setup })
    }

    /// The whole way of one call. May block for as long as the caller's memory does; any number of threads may be in it.
    pub fn handle(&self, _caller: &dyn Caller, _stopped: &Stopped) -> Answer {
        Answer::Errno(libc::ENOTTY)
    }

    /// What only lived with the process is let go of.
    pub fn process_ended(&self, _pid: Pid) {}

    /// Compares the accounts with what the driver and the processes say, lets go of what is gone, and tells the observer of
    /// differences.
    pub fn reconcile(&self) -> Vec<Drift> {
        Vec::new()
    }

    /// What the container uses now.
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// New limits, by card UUID; cards that are not named keep theirs. A limit below what is used refuses what is asked from then
    /// on; nothing is taken away.
    ///
    /// # Errors
    /// When a card is none of the container's; then no limit has changed.
    pub fn set_limits(&self, _limits: &[(String, Bytes)]) -> Result<(), NotGranted> {
        Ok(())
    }
}
