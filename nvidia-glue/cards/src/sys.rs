//! The calls into the driver's library that no safe wrapper covers.
#![allow(unsafe_code)]

use std::os::raw::c_uint;

use nvml_wrapper::{
    Device,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::nvmlMemory_t;

/// GPU instance id and compute instance id of a MIG device.
///
/// # Errors
/// What NVML answers; `InvalidArg` for a device that is no MIG device.
pub(crate) fn mig_instance_ids(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = device.nvml().lib();
    let gpu_instance = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let compute_instance = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute): (c_uint, c_uint) = (0, 0);
    // SAFETY: the symbols come from the library that `device` belongs to and have the types of
    // NVML's header; the handle is valid while `device` borrows the initialised library; both
    // pointers are to live integers.
    unsafe {
        nvml_try(gpu_instance(device.handle(), &raw mut gpu))?;
        nvml_try(compute_instance(device.handle(), &raw mut compute))?;
    }
    Ok((gpu, compute))
}

/// Memory of a card or MIG device in bytes, by the call that drivers before 510 have.
///
/// # Errors
/// What NVML answers.
pub(crate) fn memory_total(device: &Device<'_>) -> Result<u64, NvmlError> {
    let ask = nvml_sym(device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: as in `mig_instance_ids`; the pointer is to a live structure of the header's type.
    unsafe { nvml_try(ask(device.handle(), &raw mut memory))? };
    Ok(memory.total)
}
