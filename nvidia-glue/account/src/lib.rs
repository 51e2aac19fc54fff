//! The account of what a container holds of its cards: every client, object and reference, and the
//! bytes charged for them.
//!
//! Pure: no I/O, no clock. Typed calls in, verdicts out; property-tested against a plain model.
//!
//! # The life of an allocation
//! ```text
//! reserve (counts as used from here on)
//!   -> the driver executes
//!        -> commit (what it returned is what counts)
//!        `-> cancel (it refused, or the object was freed again)
//! ```
//! Two allocations that race can so never both take the last bytes. A [`Reservation`] that is
//! dropped without either stays charged and is counted in [`Accounts::abandoned`]: forgetting one
//! may cost the container, never its neighbours.
//!
//! # Charges and references
//! A charge is one physical allocation. It is held by references: RM objects (the first one, and
//! each duplicate in any client of the container), external mappings of UVM files and channels
//! registered with them, exports, files through which memory of the host's was mapped, attachments
//! to other objects, and calls that are being executed ([`Hold`]). It is released with the last of
//! them, and it is never charged twice.
//!
//! # What the caller must keep in order
//! An operation here and the driver call that it stands for must be one step to whoever else uses
//! the same name: hold a lock of the client (both clients of a duplication), of the UVM file, or of
//! the export file over both. [`Accounts`] itself is behind a mutex that is only held for its own
//! operations. Whatever comes in another order ends in too large a charge, not in too small a one.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod accounts;
mod cards;
mod charges;
mod frames;
mod intervals;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod pins;
#[cfg(test)]
mod tests;
mod tree;
mod types;

pub use accounts::{
    Accounts, AllocRequest, ClientReservation, CommitError, Committed, Contended, Counts, Freed, Hold, ManagedDrift,
    ManagedReservation, ManagedSync, Mapping, NotCommitted, ObjectView, PageTableReservation, Placement, ProcessEnd,
    Reservation,
};
pub use cards::CardUsage;
pub use types::{
    Bound, Card, Counted, ExportFile, Kind, MappedFile, Mm, ObjectLimits, ObjectName, OverQuota, Refusal, UvmFile,
};
