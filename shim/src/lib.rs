//! The containerd runtime `io.containerd.egpu.v1` and the `egpu` command.
//!
//! containerd --ttrpc--> Task service -> request -> grant -> spec edits -> helper (libcontainer) ->
//! container.

pub mod args;
pub mod blocking;
pub mod bootstrap;
pub mod bundle;
mod capabilities;
pub mod cgroup;
pub mod cli;
pub mod delete;
pub mod events;
mod frame;
pub mod gpu;
pub mod helper;
pub mod info;
pub mod io;
pub mod logging;
pub mod mediator;
pub mod mediator_client;
pub mod options;
mod process_instance;
pub mod reaper;
#[cfg(test)]
mod refused_calls;
pub mod registry;
pub mod server;
pub mod spans;
pub mod start;
mod state_group;
mod sync;
pub mod sys;
pub mod task;
pub mod version;
