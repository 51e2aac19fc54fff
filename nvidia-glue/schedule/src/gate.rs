//! A container's channels on one card, as a scheduler acts on them.

use std::{fmt, io};

use abi::Status;

/// A container's channels on one card. Channels that come to be while the gate is closed do not run
/// before it opens.
///
/// A gate is open when it is made. Calls come from one thread at a time; they wait for no caller of
/// the container's.
pub trait Gate: fmt::Debug + Send + Sync {
    /// `GPU-...`.
    fn uuid(&self) -> &str;

    /// Puts every channel back on the card. Also when it is open: what an earlier failure left off
    /// comes back.
    ///
    /// # Errors
    /// When the driver refuses; the gate then counts as open, though some channels may still be
    /// off.
    fn open(&self) -> Result<Edge, EdgeError>;

    /// Takes every channel off the card, in the middle of a kernel too.
    ///
    /// # Errors
    /// When the driver refuses; the gate then counts as closed, though some channels may still run.
    fn close(&self) -> Result<Edge, EdgeError>;

    /// Sets the time slice of each of the container's channel groups on the card, those to come
    /// included. `None`: what the program asked for.
    ///
    /// # Errors
    /// When the driver refuses.
    fn set_slice(&self, slice_us: Option<u64>) -> Result<(), EdgeError>;

    /// Number of driver calls that an edge takes if all channels are in the other state. What the
    /// program has taken off itself counts, too, as it may put that back at any time.
    fn calls(&self) -> Calls {
        Calls::default()
    }

    /// Microseconds for which the program's calls had channels on the card while the gate was
    /// closed, since the last call of this function.
    fn take_overrun_us(&self) -> u64 {
        0
    }

    /// Keeps so many of the container's compute groups on the card while it is open, the next ones
    /// each time; `None`: all.
    ///
    /// # Errors
    /// When the driver refuses.
    fn rotate(&self, on_card: Option<usize>) -> Result<Edge, EdgeError>;

    /// Work that the container's channels on the compute engine have submitted and the card has not
    /// fetched, without a call to the driver once their memory is mapped, which each question does
    /// for a few of them.
    ///
    /// `None`: of one of them it is not known yet, or cannot be, or there are more than 64.
    fn submitted(&self) -> Option<Submitted> {
        None
    }

    /// Channels on the engines that are throttled. 0: nothing to open or to close.
    fn channels(&self) -> usize;

    /// Channel groups on the compute engine, among which the container's share of time slices is
    /// divided.
    fn groups(&self) -> usize;
}

/// Number of driver calls of an edge: compute is named by the last ones that open and the first
/// ones that close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    pub all: usize,
    /// Those that name channels of the compute engine.
    pub compute: usize,
}

impl Default for Calls {
    fn default() -> Self {
        Self { all: 1, compute: 1 }
    }
}

/// Work that channels have submitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Submitted {
    /// Some entry was put into a ring and not fetched by the card. What is fetched may still run.
    pub is_pending: bool,
    /// Sum of where the rings are filled up to: changes with each submission, and with the channels
    /// that there are.
    pub puts: u64,
}

/// Measurement of one opening or closing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Edge {
    /// Channels that were named to the driver.
    pub channels: usize,
    /// Calls that it took.
    pub calls: usize,
}

/// Reason for which channels could not be taken off or put back.
#[derive(Debug, thiserror::Error)]
pub enum EdgeError {
    /// The system call.
    #[error("{call} on card {uuid} failed")]
    Call {
        /// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`.
        call: &'static str,
        /// The card.
        uuid: String,
        /// The errno.
        #[source]
        source: io::Error,
    },
    /// The driver.
    #[error("the driver answers {call} on card {uuid} with status {:#x}", status.0)]
    Refused {
        /// `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`.
        call: &'static str,
        /// The card.
        uuid: String,
        /// Its verdict. `NOT_SUPPORTED`: this card cannot take channels off.
        status: Status,
    },
}
