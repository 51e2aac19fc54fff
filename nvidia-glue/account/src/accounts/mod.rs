//! The account itself: its operations, one file for each kind of thing that a container can hold.

mod chunked_free;
mod exports;
mod host_mappings;
mod managed;
mod objects;
mod page_tables;
mod pinned;
mod processor_mappings;
mod query;
mod registrations;
mod reserve;
mod uvm;

use std::sync::{Arc, atomic::AtomicU64};

use abi::Handle;
use base::Bytes;
use foldhash::{HashMap, HashSet};
pub use managed::{Contended, ManagedDrift, ManagedReservation, ManagedSync, Mapping};
pub use objects::{Committed, Freed, Placement};
pub use page_tables::PageTableReservation;
pub use query::{Counts, ObjectView, ProcessEnd};
pub use reserve::{AllocRequest, ClientReservation, CommitError, Hold, NotCommitted, Reservation};

use crate::{Card, ObjectLimits, UvmFile, cards::Cards, charges::Charges, tree::Tree};

/// The account of one container.
#[derive(Debug)]
pub struct Accounts {
    limits: ObjectLimits,
    cards: Cards,
    charges: Charges,
    tree: Tree,
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
    /// Account of cards with these limits, of which nothing is held yet: the grant's first card is
    /// [`Card`] 0. A limit is floored to the driver's unit, KiB.
    pub fn new(limits: &[Bytes], object_limits: ObjectLimits) -> Self {
        Self {
            limits: object_limits,
            cards: Cards::new(limits, object_limits.host_memory, object_limits.channels),
            charges: Charges::default(),
            tree: Tree::default(),
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

    /// Lifts the limit on frames held open of `card`, as no other container has it.
    pub fn set_sole_holder(&mut self, card: Card) {
        self.cards.set_sole_holder(card);
    }
}
