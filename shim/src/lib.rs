//! The containerd runtime `io.containerd.egpu.v1` and the `egpu` command.
//!
//! containerd --ttrpc--> Task service -> request -> grant -> spec edits -> helper (libcontainer) -> container.

pub mod cgroup;
pub mod helper;
pub mod sys;
