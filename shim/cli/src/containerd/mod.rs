//! containerd's configuration on this node.

pub(in crate::cli) mod config;
pub(in crate::cli) mod cri;
pub(in crate::cli) mod distribution;
