//! The ledger of grants: one record a container, one lock, sums that are never exceeded.

mod record;

pub use record::{CardGrant, ContainerKey, Enforcement, GrantState, Process, Record};
