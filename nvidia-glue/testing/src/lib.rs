//! Support for the tests of several crates; no product depends on it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, clippy::indexing_slicing)]

mod fake_driver_files;
mod fake_node;
mod fixtures;
mod forks;
pub mod refused_calls;
pub mod replay;
mod skipped;

pub use fake_driver_files::{EM_386, EM_AARCH64, EM_X86_64, fake_host, fake_library, put};
pub use fake_node::FakeNode;
pub use fixtures::{fixture, is_document, is_fixture};
pub use forks::{NoForks, fork};
pub use skipped::skipped;
