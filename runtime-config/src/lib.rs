//! The node's configuration file, and the languages in which containers ask for GPUs, turned into
//! one [`GpuRequest`].
//!
//! This crate is pure: environment variables, annotations and a file's text go in, a request or an
//! error comes out. It knows nothing of NVML, containerd or `/proc`.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod config;
mod driver_capabilities;
mod memory_limit;
pub mod request;

pub use base::units::{self, Bytes, Percent, Weight};
pub use config::{Config, ConfigError};
pub use request::{ContainerRequest, GpuRequest};
