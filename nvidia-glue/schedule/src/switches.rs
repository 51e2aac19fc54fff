//! Context switches of a card's compute engine, as a driver logs them.

use std::{fmt, io};

use abi::Status;

/// A context came onto a card's compute engine, or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// Time by `CLOCK_MONOTONIC`, in nanoseconds. Between two switches of a log, exact; against the
    /// host's clock, to some 50 microseconds.
    pub at_ns: u64,
    /// The process that made the context's channel, as the initial namespace numbers it: a
    /// container's mediator.
    pub process: u32,
    /// Context of the card's.
    pub context: u32,
    /// Direction of the switch.
    pub presence: Presence,
}

/// Presence of a context on the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// From then on.
    On,
    /// No longer.
    Off,
}

/// The log of one card.
///
/// A context that nobody displaces stays on the engine when its work is done: presence is use only
/// where somebody else wants the card, or where channels are taken off it. A context that is off
/// comes back only when it has work. Work of copy and video engines is not in it.
pub trait SwitchLog: fmt::Debug + Send {
    /// Adds the switches since the last time, the oldest first.
    ///
    /// # Errors
    /// When the driver does not answer.
    fn take(&mut self, into: &mut Vec<Switch>) -> Result<SwitchBatch, SwitchLogError>;
}

/// Completeness of a part of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchBatch {
    /// Switches that are missing, as far as is known.
    pub lost: u64,
}

/// Reason for which there is no log.
#[derive(Debug, thiserror::Error)]
pub enum SwitchLogError {
    /// The system call.
    #[error("{call} failed")]
    Call {
        /// The call, by its name in NVIDIA's headers.
        call: &'static str,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// The driver refuses.
    #[error("the driver answers {call} with status {:#x}", status.0)]
    Refused {
        /// The call, by its name in NVIDIA's headers.
        call: &'static str,
        /// Its verdict.
        status: Status,
    },
}
