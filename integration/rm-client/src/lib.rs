//! A client of NVIDIA's driver that uses a card's memory without CUDA.
//!
//! The bytes are those of driver 580 (src/common/sdk/nvidia/inc and kernel-open of its open kernel
//! modules). A [`Client`] is a root client on an open `/dev/nvidiactl`; a [`Device`] is a card
//! below it; [`uvm::AddressSpace`] is an open `/dev/nvidia-uvm`. Nothing is checked here that the
//! driver should check: tests use this to say what should be refused.

pub mod attacks;
pub mod bytes;
pub mod channels;
pub mod client;
pub mod compute;
pub mod compute_attacks;
pub mod controls;
pub mod device;
pub mod exports;
pub mod files;
pub mod fragment;
pub mod processes;
pub mod random;
pub mod smi;
pub mod sys;
pub mod utilization;
pub mod uvm;

pub use client::Client;
pub use device::{Allocation, Device, Memory};

use std::io;

use abi::Status;

/// `NV_ERR_NO_MEMORY`.
pub const NO_MEMORY: u32 = Status::NO_MEMORY.0;

/// Answer of the driver, or of a mediator before it, other than success.
#[derive(Debug, thiserror::Error)]
pub enum RmError {
    /// The system call failed.
    #[error("{what}")]
    System {
        /// The call that was tried.
        what: String,
        /// Its errno.
        #[source]
        source: io::Error,
    },
    /// The call was made, and the driver's status is not 0.
    #[error("{what}: {}", status_name(*.status))]
    Refused {
        /// The call that was made.
        what: String,
        /// `NV_STATUS`.
        status: u32,
    },
    /// An answer that makes no sense.
    #[error("{what}")]
    Nonsense {
        /// The fault in it.
        what: String,
    },
}

impl RmError {
    /// Tells the driver's, or the kernel's, "no memory" from other errors.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status == NO_MEMORY,
            Self::System { source, .. } => source.raw_os_error() == Some(libc::ENOMEM),
            Self::Nonsense { .. } => false,
        }
    }
}

/// For `map_err`: a system call that failed.
pub fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> RmError {
    let what = what.into();
    move |source| RmError::System { what, source }
}

/// Status 0, or an error.
///
/// # Errors
/// [`RmError::Refused`] for any other.
pub fn check(what: impl Into<String>, status: u32) -> Result<(), RmError> {
    if status == 0 { Ok(()) } else { Err(RmError::Refused { what: what.into(), status }) }
}

/// A status in words (src/common/sdk/nvidia/inc/nvstatuscodes.h).
pub fn status_name(status: u32) -> String {
    let name = match Status(status) {
        Status::INSERT_DUPLICATE_NAME => "the handle is taken",
        Status::INSUFFICIENT_RESOURCES => "insufficient resources",
        Status::INSUFFICIENT_PERMISSIONS => "insufficient permissions",
        Status::INVALID_ADDRESS => "invalid address",
        Status::INVALID_ARGUMENT => "invalid argument",
        Status::INVALID_CLASS => "invalid class",
        Status::INVALID_CLIENT => "invalid client",
        Status::INVALID_OBJECT_HANDLE => "invalid object handle",
        Status::INVALID_OBJECT_PARENT => "invalid parent",
        Status::NO_MEMORY => "out of memory",
        Status::NOT_SUPPORTED => "not supported",
        Status::OBJECT_NOT_FOUND => "object not found",
        _ => return format!("status {status:#x}"),
    };
    format!("{name} ({status:#x})")
}
