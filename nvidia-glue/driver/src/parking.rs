//! Calls that move a container's memory to the host and back, with the feature `parking`.

use std::{fs::File, io, os::fd::AsFd};

use abi::{
    Handle, Status,
    classes::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
    controls::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD,
    encode,
    escapes::{NV_ESC_REGISTER_FD, NV_ESC_RM_ALLOC_MEMORY, NV_ESC_RM_CONTROL, command},
    params::{
        NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS as Export, UVM_MAP_EXTERNAL_ALLOCATION_PARAMS as MapExternal,
        UvmGpuMappingAttributes, nv_ioctl_nvos02_parameters_with_fd as AllocMemory, nv_ioctl_register_fd_t,
    },
    uvm::UVM_MAP_EXTERNAL_ALLOCATION,
};

use super::{DeviceFile, DriverCall, FileField, Holder, Raw, raw::control_parameters, sys::SharedMapping};

/// Mapping of memory in an external range of a UVM file, on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalMapping {
    /// First address.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Offset in the memory.
    pub offset: u64,
    /// `UvmGpuMappingAttributes`.
    pub attributes: [u8; UvmGpuMappingAttributes::SIZE],
}

/// Pages of a file in this process, which the driver can pin.
#[derive(Debug)]
pub struct HostPages(SharedMapping);

impl HostPages {
    /// Maps the first `length` bytes of a file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(file: &File, length: u64) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        SharedMapping::new(file.as_fd(), length).map(Self)
    }
}

/// Flags with which libcuda makes class 0x71 in `cuMemHostRegister` (580.159.04).
const OS_DESCRIPTOR_FLAGS: u32 = 0x4000_1010;
/// `NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM`.
const RM_OBJECT: u32 = 1;
/// Offset of what host memory has none of in `UvmGpuMappingAttributes`: format, element bits,
/// compression.
const FORMAT: usize = 24;

impl Raw<'_> {
    /// Registers an open file of a card's for [`Raw::pin`].
    ///
    /// # Errors
    /// When the driver cannot be called.
    pub fn register_card_file(&self, card: &DeviceFile) -> io::Result<()> {
        let mut args = encode!(nv_ioctl_register_fd_t {});
        let field = nv_ioctl_register_fd_t::ctl_fd.at();
        let control = FileField { holder: Holder::Args, offset: field, file: self.file.clone() };
        let number = command(NV_ESC_REGISTER_FD, args.len());
        let call = DriverCall { command: number, args: &mut args, buffers: &mut [], files: &[control] };
        self.driver.ioctl(card, call).map(drop)
    }

    /// Pins a range of pages (offset and bytes) as memory of the client's below a device, through
    /// an open file of the card's that is registered. The pages must outlive it.
    ///
    /// # Errors
    /// When the driver cannot be called, or the range is not in the pages.
    pub fn pin(
        &self,
        card: &DeviceFile,
        (device, memory): (Handle, Handle),
        pages: &HostPages,
        (offset, length): (u64, u64),
    ) -> io::Result<Status> {
        let end = offset.checked_add(length).filter(|end| *end <= pages.0.len() as u64);
        end.ok_or(io::ErrorKind::InvalidInput)?;
        let mut args = encode!(AllocMemory {
            hRoot: self.client,
            hObjectParent: device,
            hObjectNew: memory,
            hClass: NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
            flags: OS_DESCRIPTOR_FLAGS,
            pMemory: pages.0.address().saturating_add(offset),
            limit: length.saturating_sub(1),
            fd: -1,
        });
        Raw { file: card, ..*self }.call(NV_ESC_RM_ALLOC_MEMORY, &mut args, &mut [], &[])
    }

    /// Exports an object of the client's below a device into an open control file.
    ///
    /// # Errors
    /// When the driver cannot be called.
    pub fn export(&self, (device, object): (Handle, Handle), file: &DeviceFile) -> io::Result<Status> {
        let params = encode!(Export { r#type: RM_OBJECT, hDevice: device, hParent: device, hObject: object }).to_vec();
        let mut args = self.control_args(self.client, NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD, params.len())?;
        let field = FileField { holder: Holder::Buffer(0), offset: Export::fd.at(), file: file.clone() };
        self.call(NV_ESC_RM_CONTROL, &mut args, &mut [control_parameters(params)], &[field])
    }

    /// Maps memory of the client's in a UVM file, over what is mapped there. `is_of_card`: it is
    /// memory of the card's.
    ///
    /// # Errors
    /// When the driver cannot be called.
    pub fn map_external(
        &self,
        uvm: &DeviceFile,
        memory: Handle,
        mapping: &ExternalMapping,
        is_of_card: bool,
    ) -> io::Result<Status> {
        let mut args = vec![0; MapExternal::SIZE];
        let is_set = MapExternal::base.set(&mut args, mapping.base)
            && MapExternal::length.set(&mut args, mapping.length)
            && MapExternal::offset.set(&mut args, mapping.offset)
            && MapExternal::gpuAttributesCount.set(&mut args, 1)
            && MapExternal::hClient.set(&mut args, self.client)
            && MapExternal::hMemory.set(&mut args, memory)
            && MapExternal::rmStatus.set(&mut args, u32::MAX);
        let at = MapExternal::perGpuAttributes.at();
        let entry = args.get_mut(at..at + UvmGpuMappingAttributes::SIZE).filter(|_| is_set);
        let entry = entry.ok_or(io::ErrorKind::InvalidInput)?;
        entry.copy_from_slice(&mapping.attributes);
        if !is_of_card {
            entry.iter_mut().skip(FORMAT).for_each(|byte| *byte = 0);
        }
        let control = FileField { holder: Holder::Args, offset: MapExternal::rmCtrlFd.at(), file: self.file.clone() };
        let call =
            DriverCall { command: UVM_MAP_EXTERNAL_ALLOCATION, args: &mut args, buffers: &mut [], files: &[control] };
        self.driver.ioctl(uvm, call)?;
        Ok(Status(MapExternal::rmStatus.get(&args).unwrap_or(u32::MAX)))
    }
}
