//! The containerd runtime `io.containerd.egpu.v1`: the Task service of a pod.
//!
//! containerd --ttrpc--> Task service -> request -> grant -> spec edits -> crate `runtime`.
#![forbid(unsafe_code)]

pub mod args;
pub mod bootstrap;
pub mod bundle;
pub mod delete;
pub mod events;
pub mod gpu;
pub mod info;
pub mod io;
pub mod logging;
pub mod mediator_client;
pub mod options;
mod process_instance;
pub mod registry;
pub mod server;
pub mod start;
pub mod state_group;
pub mod task;
pub mod version;
