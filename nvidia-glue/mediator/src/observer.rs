//! Events of a session: each is reported once, where it happens; whoever listens logs, counts and
//! kills.

use std::fmt;

use account::Bound;
use base::{Bytes, OverMemory, Pid};

/// Receives the events of a session. Called on listener threads, without locks held: it should
/// return soon.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A process asked for more memory than its container was granted.
    fn over_memory(&self, event: &OverMemoryEvent);

    /// Calls were refused for want of something else: the first of a kind at once, the others in
    /// sums.
    fn shortage(&self, _shortage: &Shortage) {}

    /// A process made its first driver call. It should be watched:
    /// [`Session::process_ended`](crate::Session::process_ended) when it is gone.
    fn new_process(&self, pid: Pid);

    /// A call that no table has. Reported for the first of each kind; all are counted in the
    /// usage.
    fn unknown_call(&self, kind: UnknownKind);

    /// A program asked for an object of `class`, which is one of 3D, and the container has neither
    /// driver capability that there is for that. Reported once.
    fn lacks_graphics(&self, _class: &str) {}

    /// A debugger's or a profiler's call was refused, since it would act on whoever is on the card.
    /// Reported once.
    fn refused_tool(&self, _call: &str) {}

    /// Reports what was found, in [`Session::compare`](crate::Session::compare), too.
    fn drift(&self, drift: &Drift);

    /// The container has more than it may, and to kill processes has not helped: all of it is to be
    /// ended. Reported again as long as that is so.
    fn end_container(&self, why: &str);

    /// The driver has freed something: [`Session::end`](crate::Session::end) makes progress.
    fn freed(&self) {}

    /// On card `uuid`, where the container had none, there is a channel on an engine that is
    /// throttled. Whoever opens and closes the card's [`Gate`](schedule::Gate) slept, and the gate
    /// is most likely closed. To be told after the channel is counted and before anything waits for
    /// the gate.
    fn first_channel(&self, _uuid: &str) {}
}

/// A process asked for too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverMemoryEvent {
    /// Process.
    pub pid: Pid,
    /// `GPU-...`.
    pub card: String,
    /// Bytes that it asked for, as the card would have given it (rounded).
    pub asked: Bytes,
    /// Bytes that the container had by then.
    pub used: Bytes,
    /// Bytes that it may have.
    pub limit: Bytes,
    /// Of what these are.
    pub bound: Bound,
    /// Action that follows.
    pub action: OverMemory,
}

/// Calls that were refused for want of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The bound that they met, in a line.
    pub text: String,
    /// Number of them since it was last told.
    pub count: u64,
}

/// Kind of an unknown call, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnknownKind {
    /// An ioctl of `/dev/nvidiactl` or `/dev/nvidiaN`.
    Escape(u32),
    /// An ioctl of `/dev/nvidia-uvm`.
    Uvm(u32),
    /// A class of `RM_ALLOC`.
    Class(u32),
    /// A control of `RM_CONTROL`.
    Control(u32),
}

impl fmt::Display for UnknownKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Escape(number) => write!(formatter, "ioctl {number:#04x}"),
            Self::Uvm(number) => write!(formatter, "UVM ioctl {number}"),
            Self::Class(class) => write!(formatter, "class {class:#06x}"),
            Self::Control(command) => write!(formatter, "control {command:#010x}"),
        }
    }
}

/// The accounts and the driver, or the processes, disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Kind of disagreement.
    pub kind: DriftKind,
    /// Set if the container has more than it may: the processes named are to be killed.
    pub excess: bool,
    /// Processes that it is about; empty: all of the container.
    pub pids: Vec<Pid>,
}

/// Kind of disagreement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriftKind {
    /// Memory that the driver says it has handed to the container's clients.
    Card {
        /// `GPU-...`.
        card: String,
        /// By the accounts.
        accounted: Bytes,
        /// By the driver.
        driver: Bytes,
        /// Bytes that the container may have.
        limit: Bytes,
    },
    /// A process maps managed memory that was never charged.
    Managed {
        /// By the accounts.
        accounted: Bytes,
        /// By `/proc/PID/maps`.
        mapped: Bytes,
    },
    /// A call that pins a program's own memory was rewritten between the look at it and its
    /// execution.
    Pinned {
        /// Process that made it; the thread that rewrote it may be another process's.
        by: Pid,
        /// Bytes that were asked for.
        asked: Bytes,
        /// Bytes that the driver has.
        found: Bytes,
        /// Of which class that is: 0x71, the program's memory; 0x3e, memory that the driver has
        /// made for it.
        class: u32,
        /// Bytes that the driver may make for the container.
        limit: Bytes,
    },
}
