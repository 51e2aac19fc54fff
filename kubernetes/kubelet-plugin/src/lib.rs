//! The kubelet plugin of a node: a DRA driver that offers shares of cards.
//!
//! ```text
//! API server  <── ResourceSlices ──  publisher  <── ledger, cards, configuration, other slices
//!             ──  ResourceClaim  ──> prepare    ──> ledger, CDI file
//! kubelet     ──  gRPC           ──> registration, prepare, health
//! ```
//! It decides nothing that lasts: the ledger's records of claims are its checkpoint, and CDI files
//! and slices are made anew from them at any time. Whatever kills it, running containers keep what
//! they have, and the next instance goes on from the ledger.
#![forbid(unsafe_code)]

mod api_client;
mod cdi;
mod changes;
mod claim;
mod device;
mod events;
mod grpc;
mod health;
mod kubelet_api;
mod local_changes;
mod node;
mod options;
mod plugin;
mod prepare;
mod publisher;
mod registration;
mod slices;
mod taints;
#[cfg(test)]
mod tests;

pub use options::Options;
pub use plugin::{PluginError, main_of, run};
pub use publisher::PublishError;
