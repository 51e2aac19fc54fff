//! Calls that the mediator makes on its own account: on its own client, or in a container's to undo
//! or to ask something.

use std::io;

use abi::{
    Abi, Handle, Status,
    controls::NV0041_CTRL_CMD_GET_SURFACE_INFO,
    encode,
    escapes::{
        NV_ESC_RM_ALLOC, NV_ESC_RM_CONTROL, NV_ESC_RM_DUP_OBJECT, NV_ESC_RM_FREE, NV_ESC_RM_MAP_MEMORY, command, escape,
    },
    params::{
        NV0041_CTRL_GET_SURFACE_INFO_PARAMS, NVOS00_PARAMETERS, NVOS21_PARAMETERS, NVOS54_PARAMETERS,
        NVOS55_PARAMETERS, NVXXXX_CTRL_XXX_INFO, nv_ioctl_nvos33_parameters_with_fd as NVOS33_WITH_FD,
    },
};

use super::{Buffer, DeviceFile, Driver, DriverCall, FileField, Holder, cost::timed};

/// `NVOS33_FLAGS_ACCESS_READ_ONLY`.
const READ_ONLY: u32 = 1;

/// Makes calls on one open control file.
#[derive(Debug, Clone, Copy)]
pub struct Raw<'a> {
    /// Executes them.
    pub driver: &'a dyn Driver,
    /// Layouts of the driver.
    pub abi: Abi,
    /// The control file.
    pub file: &'a DeviceFile,
    /// In whose name.
    pub client: Handle,
}

impl Raw<'_> {
    /// Allocates by `NV_ESC_RM_ALLOC`; returns the status, and the handle if it is good.
    pub fn alloc(&self, parent: Handle, object: Handle, class: u32, params: Vec<u8>) -> io::Result<(Status, Handle)> {
        // Every release takes this struct, the smaller of two.
        let mut args =
            encode!(NVOS21_PARAMETERS { hRoot: self.client, hObjectParent: parent, hObjectNew: object, hClass: class });
        let pointer = NVOS21_PARAMETERS::pAllocParms.at();
        let mut buffers = if params.is_empty() { Vec::new() } else { vec![parameters(pointer, params)] };
        let status = self.call(NV_ESC_RM_ALLOC, &mut args, &mut buffers, &[])?;
        Ok((status, NVOS21_PARAMETERS::hObjectNew.get(&args).unwrap_or_default()))
    }

    /// Duplicates another client's object by `NV_ESC_RM_DUP_OBJECT`, as `object` below `parent`, or
    /// as the driver chooses where that is none; returns the status, and the handle if it is good.
    pub fn dup(&self, (parent, object): (Handle, Handle), source: (Handle, Handle)) -> io::Result<(Status, Handle)> {
        let mut args = encode!(NVOS55_PARAMETERS {
            hClient: self.client,
            hParent: parent,
            hObject: object,
            hClientSrc: source.0,
            hObjectSrc: source.1,
        });
        let status = self.call(NV_ESC_RM_DUP_OBJECT, &mut args, &mut [], &[])?;
        Ok((status, NVOS55_PARAMETERS::hObject.get(&args).unwrap_or_default()))
    }

    /// Frees by `NV_ESC_RM_FREE`.
    pub fn free(&self, object: Handle) -> io::Result<Status> {
        let mut args =
            encode!(NVOS00_PARAMETERS { hRoot: self.client, hObjectParent: self.client, hObjectOld: object });
        self.call(NV_ESC_RM_FREE, &mut args, &mut [], &[])
    }

    /// Makes a control call; the parameters come back as the driver left them.
    pub fn control(&self, object: Handle, id: u32, params: Vec<u8>) -> io::Result<(Status, Vec<u8>)> {
        let mut args = self.control_args(object, id, params.len())?;
        // The driver refuses a pointer to nothing.
        let mut buffers = if params.is_empty() { Vec::new() } else { vec![control_parameters(params)] };
        let status = self.call(NV_ESC_RM_CONTROL, &mut args, &mut buffers, &[])?;
        Ok((status, buffers.pop().map_or_else(Vec::new, |buffer| buffer.bytes)))
    }

    /// Struct of a control whose parameters have that many bytes.
    pub(super) fn control_args(
        &self,
        object: Handle,
        id: u32,
        params: usize,
    ) -> io::Result<[u8; NVOS54_PARAMETERS::SIZE]> {
        let size = u32::try_from(params).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(encode!(NVOS54_PARAMETERS { hClient: self.client, hObject: object, cmd: id, paramsSize: size }))
    }

    /// Asks the driver for the number of 4 KiB pages of a memory object
    /// (`NV0041_CTRL_CMD_GET_SURFACE_INFO`); `None`: the driver does not say.
    pub fn memory_pages(&self, memory: Handle) -> io::Result<Option<u32>> {
        type Params = NV0041_CTRL_GET_SURFACE_INFO_PARAMS;
        /// `NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE`, which every release has.
        const PAGES: u32 = 7;
        let params = encode!(NV0041_CTRL_GET_SURFACE_INFO_PARAMS { surfaceInfoListSize: 1 }).to_vec();
        let list = encode!(NVXXXX_CTRL_XXX_INFO { index: PAGES }).to_vec();
        let mut args = self.control_args(memory, NV0041_CTRL_CMD_GET_SURFACE_INFO, params.len())?;
        let list = Buffer { holder: Holder::Buffer(0), offset: Params::surfaceInfoList.at(), bytes: list };
        let mut buffers = [control_parameters(params), list];
        let status = self.call(NV_ESC_RM_CONTROL, &mut args, &mut buffers, &[])?;
        let pages = buffers.last().and_then(|list| NVXXXX_CTRL_XXX_INFO::data.get(&list.bytes));
        Ok(pages.filter(|_| status.is_ok()))
    }

    /// Prepares a mapping of an object below a device, or the client where it belongs to no card,
    /// for reading (`NV_ESC_RM_MAP_MEMORY`). `range`: offset and length. `target`: the file whose
    /// next `mmap` at offset 0 maps it.
    pub fn map_for_reading(
        &self,
        (device, object): (Handle, Handle),
        (offset, length): (u64, u64),
        target: &DeviceFile,
    ) -> io::Result<Status> {
        let mut args = encode!(NVOS33_WITH_FD {
            hClient: self.client,
            hDevice: device,
            hMemory: object,
            offset: offset,
            length: length,
            flags: READ_ONLY,
        });
        let file = FileField { holder: Holder::Args, offset: NVOS33_WITH_FD::fd.at(), file: target.clone() };
        self.call(NV_ESC_RM_MAP_MEMORY, &mut args, &mut [], &[file])
    }

    pub(super) fn call(
        &self,
        number: u8,
        args: &mut [u8],
        buffers: &mut [Buffer],
        files: &[FileField],
    ) -> io::Result<Status> {
        let command = command(number, args.len());
        let layout = escape(number).and_then(|row| row.layout(self.abi, args.len()));
        let status_at = layout.and_then(|layout| layout.status).ok_or(io::ErrorKind::Unsupported)?;
        timed(|| self.driver.ioctl(self.file, DriverCall { command, args, buffers, files }))?;
        let status = abi::layout::read_u32(args, usize::from(status_at)).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Status(status))
    }
}

pub(super) fn control_parameters(bytes: Vec<u8>) -> Buffer {
    parameters(NVOS54_PARAMETERS::params.at(), bytes)
}

fn parameters(offset: usize, bytes: Vec<u8>) -> Buffer {
    // The pointer's value is the driver's business: any number that is not null.
    Buffer { holder: Holder::Args, offset, bytes }
}
