//! Mediation of a container's driver calls: notification -> call -> verdict -> action -> answer.
//!
//! [`Session::handle`] is the whole way of one call. The kernel's part comes in through [`Caller`]
//! (the thread that made the call) and [`Driver`](driver::Driver) (which executes it); no lock is
//! held while the caller's memory is touched.
//!
//! **Parts.** A session is made of parts that own their state and know nothing of it: `Objects`
//! (accounts, topology, open files, named locks), `ManagedMemory`, `PinnedMemory`, `HostMappings`,
//! `Channels` (gates, driver time) and `View`. [`Session`] joins them; `reclaim` lets go of what is
//! gone; `calls` has the handlers, which use both. Nothing below uses what is above it.
//!
//! **Order of locks.** Whoever holds one takes only later ones:
//!
//! 1. `ReclaimThrottle`: one thread reclaims at a time, and holds nothing else when it begins
//! 2. the staging client (`Staging::client`)
//! 3. named locks (`objects::named_locks`): control files, clients, UVM files, exports, in this
//!    order
//! 4. `ManagedMemory`: `scanning`, then `sharing`
//! 5. `CardGate::acting`, by the cards' numbers: the driver is told where channels are to be
//! 6. `Objects::topology`
//! 7. `Objects::files`, the state of a gate
//! 8. all others, such as `Objects::accounts`: held for a few statements, and nothing is locked
//!    meanwhile
//!
//! A function that needs a named lock says so in a line "Precondition:".
#![forbid(unsafe_code)]

pub mod caller;
mod calls;
mod channels;
mod class;
mod clock;
mod grant;
mod in_flight;
mod locks;
mod memory;
mod objects;
mod observer;
#[cfg(feature = "parking")]
mod parking;
mod processes;
mod raw;
mod reclaim;
mod requirements;
mod session;
mod setup;
#[cfg(test)]
mod tests;
mod view;

use std::time::Duration;

/// Time for which an exported file may be on its way from one process to another through a socket,
/// when no process has it: while the memory has other holders, and when nothing else holds it.
const TRANSIT: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(5)];

pub use base::{GrantedCard, Pid};
pub use caller::{Caller, CallerError, Number, Numbers};
pub use calls::sequel::{Sequel, Undo};
pub use observer::{Drift, DriftKind, Observer, OverMemoryEvent, Shortage, UnknownKind};
#[cfg(feature = "parking")]
pub use parking::{Copier, Copying, ParkError, Parked, Piece, StillParked};
pub use processes::{AddressSpace, Processes, UvmMapping, is_for_want_of_room};
pub use reclaim::{ExitedProcesses, file_teardown::StillHeld};
pub use session::{Session, usage::NotGranted};
pub use setup::{SessionError, SessionSetup};
pub use view::card_utilization::Seen;

/// A system call that the filter stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trapped {
    /// `ioctl(fd, command, argument)`.
    Ioctl {
        /// The descriptor's number in the caller's table.
        fd: i32,
        /// The command's low 32 bits.
        command: u32,
        /// Address of the argument struct in the caller's memory.
        argument: u64,
    },
    /// `mmap` of a file, shared, at a non-zero offset: managed memory if the file is UVM's.
    Mmap {
        /// The address asked for; where, with `MAP_FIXED`.
        address: u64,
        /// Bytes.
        length: u64,
        /// `MAP_*`.
        flags: u32,
        /// The descriptor's number in the caller's table.
        fd: i32,
        /// Offset in bytes.
        offset: u64,
    },
}

/// End of the caller's system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Return(i64),
    /// It fails with this errno.
    Errno(i32),
    /// The kernel executes it as it stands (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`). Only for calls
    /// that cannot decide about memory, sharing or scheduling, whatever a racing thread turns them
    /// into.
    Continue,
    /// The calling process asked for more memory than its container may have, and its container's
    /// policy is to end it (`OverMemory::Kill`): it is not answered, and killed. The observer has
    /// been told.
    KillCaller,
}

/// Returns the pid by which the driver knows the container's processes.
pub(crate) fn mediator_pid() -> u32 {
    std::process::id()
}
