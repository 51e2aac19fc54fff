//! What a container holds of its cards: every client, object and reference, and the bytes charged for them.
//!
//! Pure: no I/O, no clock. Typed calls in, verdicts out; property-tested against a plain model.
//!
//! # The life of an allocation
//! ```text
//! reserve (counts as used from here on) -> the driver executes -> commit (what it returned is what counts)
//!                                                             `-> cancel (it refused, or the object was freed again)
//! ```
//! Two allocations that race can so never both take the last bytes. A [`Reservation`] that is dropped without either stays
//! charged and is counted in [`Accounts::abandoned`]: forgetting one may cost the container, never its neighbours.
//!
//! # Charges and references
//! A charge is one physical allocation. It is held by references: RM objects (the first one, and each duplicate in any client of
//! the container), external mappings of UVM files and channels registered with them, exports, files through which memory of the host's was
//! mapped, attachments to other objects, and calls that are being executed ([`Hold`]). It is released with the last of them, and it is never charged twice.
//!
//! # What the caller must keep in order
//! An operation here and the driver call that it stands for must be one step to whoever else uses the same name: hold a lock of
//! the client (both clients of a duplication), of the UVM file, or of the export file over both. [`Accounts`] itself is behind a mutex
//! that is only held for its own operations. Whatever comes in another order ends in too large a charge, not in too small a one.
#![forbid(unsafe_code)]

mod cards;
mod charges;
mod exports;
mod frames;
mod host_mappings;
mod intervals;
mod managed;
mod objects;
mod page_tables;
mod pieces;
mod pinned;
mod pins;
mod processor_mappings;
mod query;
mod registrations;
mod reserve;
#[cfg(test)]
mod tests;
mod tree;
mod types;
mod uvm;

use std::sync::{Arc, atomic::AtomicU64};

use abi::Handle;
use base::Bytes;
pub use cards::CardUsage;
use foldhash::{HashMap, HashSet};
pub use managed::{ManagedDrift, ManagedReservation, ManagedSync, Mapping};
pub use objects::{Committed, Freed, Placement};
pub use page_tables::PageTableReservation;
pub use query::{Counts, ObjectView, ProcessEnd};
pub use reserve::{Ask, ClientReservation, Hold, NotCommitted, Reservation, WhyNot};
pub use types::{
    Bound, Card, Counted, ExportFile, Kind, MappedFile, Mm, ObjectLimits, ObjectName, OverQuota, Refusal, UvmFile,
};

/// The account of one container.
#[derive(Debug)]
pub struct Accounts {
    limits: ObjectLimits,
    cards: cards::Cards,
    charges: charges::Charges,
    tree: tree::Tree,
    clients: HashMap<Handle, objects::Client>,
    counts: objects::ObjectCounts,
    attachments: objects::Attachments,
    exports: exports::Exports,
    host_mappings: host_mappings::HostMappings,
    uvm: uvm::UvmFiles,
    managed: managed::Managed,
    page_tables: page_tables::PageTables,
    registrations: registrations::Registrations,
    processor_mappings: processor_mappings::ProcessorMappings,
    range_groups: HashMap<UvmFile, u32>,
    /// By client: the descriptors' numbers under which the driver knows them.
    os_events: HashMap<Handle, HashSet<i32>>,
    abandoned: Arc<AtomicU64>,
    conflicts: u64,
}

impl Accounts {
    /// Nothing held, of cards with these limits: the grant's first card is [`Card`] 0. A limit is floored to the driver's unit, KiB.
    pub fn new(limits: &[Bytes], object_limits: ObjectLimits) -> Self {
        Self {
            limits: object_limits,
            cards: cards::Cards::new(limits, object_limits.host_memory, object_limits.channels),
            charges: charges::Charges::default(),
            tree: tree::Tree::default(),
            clients: HashMap::default(),
            counts: objects::ObjectCounts::default(),
            attachments: objects::Attachments::default(),
            exports: exports::Exports::default(),
            host_mappings: host_mappings::HostMappings::default(),
            uvm: uvm::UvmFiles::default(),
            managed: managed::Managed::default(),
            page_tables: page_tables::PageTables::default(),
            registrations: registrations::Registrations::default(),
            processor_mappings: processor_mappings::ProcessorMappings::default(),
            range_groups: HashMap::default(),
            os_events: HashMap::default(),
            abandoned: Arc::default(),
            conflicts: 0,
        }
    }

    /// Nobody else has `card`: how many of its frames are held open is nobody's business.
    pub fn has_alone(&mut self, card: Card) {
        self.cards.is_alone(card);
    }
}
