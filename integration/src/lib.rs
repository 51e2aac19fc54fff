//! The harness: a private containerd with egpu as a runtime, containers on it, and proof that
//! nothing stays behind.
//!
//! A test gets a [`Node`] (one containerd, one egpu configuration, one state directory, all its
//! own), makes containers with [`Node::container`] and asserts. [`Node::finish`] then fails the
//! test if anything is left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test fails by panicking and reports by printing"
)]

mod client;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod egpu;
pub mod events;
pub mod exposition;
pub mod hostile;
#[cfg(target_arch = "x86_64")]
pub mod injector;
pub mod leftovers;
pub mod node;
pub mod processes;
pub mod rootfs;
mod shared;
pub mod spec;
pub mod stdio;
pub mod user_namespace;
pub mod wait;

pub use container::{Container, ContainerBuilder, Exec};
pub use containerd::ContainerdRelease;
pub use egpu::EgpuConfig;
pub use node::{Node, Setup};
pub use wait::eventually;

/// Runtime that the tests drive: `EGPU_TEST_RUNTIME`, else egpu. With `io.containerd.runc.v2` the
/// plain task tests run against runc, which shows that they test the right thing.
pub fn runtime() -> String {
    std::env::var("EGPU_TEST_RUNTIME").unwrap_or_else(|_| EGPU_RUNTIME.to_owned())
}

/// egpu's runtime type.
pub const EGPU_RUNTIME: &str = "io.containerd.egpu.v1";

/// Returns whether the runtime under test is egpu.
pub fn is_egpu() -> bool {
    runtime() == EGPU_RUNTIME
}
