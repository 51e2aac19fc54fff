//! Edits of a container's OCI spec for its part of the node's NVIDIA cards, on the crates below.
//!
//! It knows nothing of containerd, ttrpc or tokio: request in, grant and spec edits out.
#![forbid(unsafe_code)]

pub mod inject;
pub mod spec;
