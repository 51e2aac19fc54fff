//! A driver client of the mediator's own: to ask and to schedule without any file of a container.

use std::io;

use abi::{Abi, DriverRelease, Handle, Node, Status};

use super::{DeviceFile, Driver, DriverCall, OwnClient, patch};

/// `NV_ESC_RM_ALLOC` (src/nvidia/arch/nvalloc/unix/include/nv_escape.h).
const RM_ALLOC: u32 = 0x2b;
/// `NV01_ROOT_CLIENT` (src/common/sdk/nvidia/inc/class/cl0041.h).
const ROOT_CLIENT: u32 = 0x41;
/// Offset of `NVOS64_PARAMETERS.hObjectNew` (src/common/sdk/nvidia/inc/nvos.h).
const OBJECT_NEW: usize = 8;
/// Offset of `.hClass`.
const CLASS: usize = 12;
/// The first release whose `NVOS64_PARAMETERS` has `paramsSize`.
const WITH_PARAMS_SIZE: DriverRelease = DriverRelease::new(535, 54, 3);

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
    let (size, status_at): (u32, usize) = if abi.release() >= WITH_PARAMS_SIZE { (48, 40) } else { (40, 36) };
    let mut args = [0_u8; 48];
    let args = args.get_mut(..size as usize).ok_or(OpenClientError::NoHandle)?;
    if let Some(class) = args.get_mut(CLASS..CLASS + 4) {
        class.copy_from_slice(&ROOT_CLIENT.to_ne_bytes());
    }
    let call = DriverCall { command: read_write(RM_ALLOC, size), args, buffers: &mut [], files: &[] };
    driver.ioctl(control, call).map_err(OpenClientError::Call)?;
    let status = Status(patch::u32_at(args, status_at).ok_or(OpenClientError::NoHandle)?);
    if !status.is_ok() {
        return Err(OpenClientError::Refused { status });
    }
    match patch::u32_at(args, OBJECT_NEW) {
        Some(handle) if handle != 0 => Ok(Handle(handle)),
        _ => Err(OpenClientError::NoHandle),
    }
}

/// `_IOWR('F', number, size)`.
pub const fn read_write(number: u32, size: u32) -> u32 {
    3 << 30 | size << 16 | (b'F' as u32) << 8 | number
}
