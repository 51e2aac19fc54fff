//! containerd's configuration on this node.

pub(crate) mod config;
pub(crate) mod cri;
pub(crate) mod distribution;
