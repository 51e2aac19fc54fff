//! A driver client of the mediator's own: to ask and to schedule without any file of a container.

use std::io;

use abi::{
    Abi, Handle, Node, Status,
    classes::NV01_ROOT_CLIENT,
    encode,
    escapes::{NV_ESC_RM_ALLOC, command},
    params::{NVOS64_PARAMETERS, NVOS64_PARAMETERS_525},
};

use super::{DeviceFile, Driver, DriverCall, OwnClient};

/// The mediator could not get a client of its own.
#[derive(Debug, thiserror::Error)]
pub enum OpenClientError {
    /// `/dev/nvidiactl`.
    #[error("the driver's control device cannot be opened; is the driver loaded and its device nodes there?")]
    Open(#[source] io::Error),
    /// The call itself.
    #[error("the driver does not take a call on its control device")]
    Call(#[source] io::Error),
    /// What the driver said.
    #[error("the driver refuses a client with status {:#x}", status.0)]
    Refused {
        /// Its status.
        status: Status,
    },
    /// A struct that is not as this release's should be.
    #[error("the driver's answer to a client's allocation is no handle")]
    NoHandle,
}

/// Opens a control file and allocates a client on it. It lives as long as the file.
///
/// # Errors
/// When the node cannot be opened or the driver refuses.
pub fn open_own_client(driver: &dyn Driver, abi: &Abi) -> Result<OwnClient, OpenClientError> {
    let control = driver.open(Node::Control).map_err(OpenClientError::Open)?;
    let client = client_on(driver, abi, &control)?;
    Ok(OwnClient { control, client })
}

/// Allocates a client on a control file of the mediator's own.
pub fn client_on(driver: &dyn Driver, abi: &Abi, control: &DeviceFile) -> Result<Handle, OpenClientError> {
    type Older = NVOS64_PARAMETERS_525;
    let has_params_size = NVOS64_PARAMETERS::RELEASES.contain(*abi);
    let (size, status) = if has_params_size {
        (NVOS64_PARAMETERS::SIZE, NVOS64_PARAMETERS::status)
    } else {
        (Older::SIZE, Older::status)
    };
    let mut args = encode!(NVOS64_PARAMETERS { hClass: NV01_ROOT_CLIENT });
    let args = args.get_mut(..size).ok_or(OpenClientError::NoHandle)?;
    let call = DriverCall { command: command(NV_ESC_RM_ALLOC, size), args, buffers: &mut [], files: &[] };
    driver.ioctl(control, call).map_err(OpenClientError::Call)?;
    let status = Status(status.get(args).ok_or(OpenClientError::NoHandle)?);
    if !status.is_ok() {
        return Err(OpenClientError::Refused { status });
    }
    // Both structs have it at one place.
    match NVOS64_PARAMETERS::hObjectNew.get(args) {
        Some(handle) if handle != Handle::NONE => Ok(handle),
        _ => Err(OpenClientError::NoHandle),
    }
}
