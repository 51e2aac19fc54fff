//! NVIDIA cards, driver files, edits of the OCI spec, card selection and the ledger of grants.
//!
//! It knows nothing of containerd, ttrpc or tokio: request in, [`Grant`] and spec edits out.

pub mod account;
pub mod block_file;
pub mod cards;
pub mod cgroup_tree;
pub mod decision_log;
pub mod doctor;
pub mod driver;
pub mod driver_files;
pub mod event_log;
pub mod fence;
#[cfg(test)]
mod forks;
pub mod inject;
pub mod ledger;
pub mod mediate;
pub mod rm;
pub mod schedule;
mod select;
#[cfg(test)]
mod skipped;
pub mod spec;
mod sys;
pub mod trace;
pub mod usage;

pub use select::SelectError;
