//! NVIDIA cards, driver files, edits of the OCI spec, card selection and the ledger of grants.
//!
//! It knows nothing of containerd, ttrpc or tokio: request in, [`Grant`] and spec edits out.

pub mod account;
pub mod cards;
pub mod decision_log;
pub mod doctor;
pub mod driver;
pub mod driver_files;
pub mod event_log;
pub mod fence;
pub mod inject;
pub mod ledger;
pub mod mediate;
pub mod rm;
pub mod schedule;
mod select;
pub mod spec;
mod sys;
pub mod trace;

pub use base::{block_file, cgroup_tree, usage};
pub use select::SelectError;
