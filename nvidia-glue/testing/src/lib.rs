//! Support for the tests of several crates; no product depends on it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod fake_node;
mod forks;
mod skipped;

pub use fake_node::FakeNode;
pub use forks::{NoForks, fork};
pub use skipped::skipped;
