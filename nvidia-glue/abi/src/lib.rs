//! The NVIDIA driver's ioctl interface as tables and typed calls: no state, no I/O.
//!
//! Layouts and numbers are those of NVIDIA's open kernel modules, 525 to 595; each row of a table
//! names the header that it comes from. What depends on the driver's version is in [`Abi`] and
//! nowhere else.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod abi;
pub mod classes;
pub mod controls;
pub mod decode;
pub mod escapes;
pub mod layout;
pub mod memory;
mod named;
pub mod params;
pub mod status;
pub mod uvm;

pub use abi::{Abi, DriverRelease, UnknownDriver};
pub use decode::{Call, Decoded, Row, Undecodable, decode, row};
pub use status::Status;

use serde::{Deserialize, Serialize};

/// Names a client, or an object within one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// "Choose one for me" in an allocation.
    pub const NONE: Self = Self(0);
}

/// Device node of the driver's that an open file is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// `/dev/nvidiactl`.
    Control,
    /// `/dev/nvidiaN`, by minor number N.
    Card(u32),
    /// `/dev/nvidia-uvm`.
    Uvm,
}

#[cfg(test)]
mod arbitrary_tests;
#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tidy_tests;
