//! The plugin between a kubelet and an API server, both stood in for, on a node of simulated cards.

mod api_server;
mod bench;
mod claims;
mod files;
mod kubelet;
mod publication;
mod registration;
