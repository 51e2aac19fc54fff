//! A container's part of the node's NVIDIA cards: injection into the OCI spec, and the node's
//! check, on the layers below, each a crate of its own, all of them re-exported here.
//!
//! It knows nothing of containerd, ttrpc or tokio: request in, grant and spec edits out.
#![forbid(unsafe_code)]

pub mod doctor;
pub mod inject;
pub mod spec;

pub use abi as rm;
pub use account;
pub use base::{self, block_file, cgroup_tree, usage};
pub use cards::{self, driver_files};
pub use fence;
pub use ledger::{self, SelectError, decision_log, event_log};
pub use mediator as mediate;
pub use schedule;
pub use trace;

/// Calls of the driver, the real one and the simulated one.
pub mod driver {
    pub use driver::*;
    #[cfg(feature = "simulated")]
    pub use simulator::{SimulatedDriver, SimulatedDriverError};
}
