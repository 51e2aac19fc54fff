//! Calls that the mediator makes on its own account: on its own client, or in a container's to undo or to ask something.

use std::io;

use abi::{
    Abi, Handle, Status,
    escapes::escape,
    layout::{read_u32, write_u32},
};

use super::{Buffer, DeviceFile, Driver, DriverCall, FileField, Holder, cost::timed};

/// `NV_ESC_RM_FREE` and its like (src/nvidia/arch/nvalloc/unix/include/nv_escape.h).
const FREE: u8 = 0x29;
const CONTROL: u8 = 0x2a;
const ALLOC: u8 = 0x2b;
const DUP: u8 = 0x34;
const MAP_MEMORY: u8 = 0x4e;

/// `NVOS21_PARAMETERS` is the struct that every release takes.
const NVOS21: usize = 32;
const NVOS21_PARAMS: usize = 16;
const NVOS00: usize = 16;
const NVOS54: usize = 32;
const NVOS54_PARAMS: usize = 16;
const NVOS55: usize = 28;
/// `nv_ioctl_nvos33_parameters_with_fd` (src/nvidia/arch/nvalloc/unix/include/nv-unix-nvos-params-wrappers.h).
const NVOS33: usize = 56;
const NVOS33_LENGTH: usize = 24;
const NVOS33_FLAGS: usize = 44;
const NVOS33_FILE: usize = 48;
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
    /// `NV_ESC_RM_ALLOC`; the status, and the handle if it is good.
    pub fn alloc(&self, parent: Handle, object: Handle, class: u32, params: Vec<u8>) -> io::Result<(Status, Handle)> {
        let mut args = [0; NVOS21];
        for (at, value) in [(0, self.client.0), (4, parent.0), (8, object.0), (12, class)] {
            let _ = write_u32(&mut args, at, value);
        }
        let mut buffers = if params.is_empty() { Vec::new() } else { vec![parameters(NVOS21_PARAMS, params)] };
        let status = self.call(ALLOC, &mut args, &mut buffers, &[])?;
        Ok((status, Handle(read_u32(&args, 8).unwrap_or(0))))
    }

    /// `NV_ESC_RM_DUP_OBJECT` of another client's object, as `object` below `parent`, or as the driver chooses where that is none; the
    /// status, and the handle if it is good.
    pub fn dup(&self, (parent, object): (Handle, Handle), source: (Handle, Handle)) -> io::Result<(Status, Handle)> {
        let mut args = [0; NVOS55];
        for (at, value) in [(0, self.client), (4, parent), (8, object), (12, source.0), (16, source.1)] {
            let _ = write_u32(&mut args, at, value.0);
        }
        let status = self.call(DUP, &mut args, &mut [], &[])?;
        Ok((status, Handle(read_u32(&args, 8).unwrap_or(0))))
    }

    /// `NV_ESC_RM_FREE`.
    pub fn free(&self, object: Handle) -> io::Result<Status> {
        let mut args = [0; NVOS00];
        for (at, value) in [(0, self.client.0), (4, self.client.0), (8, object.0)] {
            let _ = write_u32(&mut args, at, value);
        }
        self.call(FREE, &mut args, &mut [], &[])
    }

    /// `NV_ESC_RM_CONTROL`; the parameters come back as the driver left them.
    pub fn control(&self, object: Handle, id: u32, params: Vec<u8>) -> io::Result<(Status, Vec<u8>)> {
        let mut args = self.control_args(object, id, params.len())?;
        // The driver refuses a pointer to nothing.
        let mut buffers = if params.is_empty() { Vec::new() } else { vec![parameters(NVOS54_PARAMS, params)] };
        let status = self.call(CONTROL, &mut args, &mut buffers, &[])?;
        Ok((status, buffers.pop().map_or_else(Vec::new, |buffer| buffer.bytes)))
    }

    /// The struct of a control whose parameters are so long.
    fn control_args(&self, object: Handle, id: u32, params: usize) -> io::Result<[u8; NVOS54]> {
        let mut args = [0; NVOS54];
        let size = u32::try_from(params).map_err(|_| io::ErrorKind::InvalidInput)?;
        for (at, value) in [(0, self.client.0), (4, object.0), (8, id), (24, size)] {
            let _ = write_u32(&mut args, at, value);
        }
        Ok(args)
    }

    /// `NV0041_CTRL_CMD_GET_SURFACE_INFO` {count, list} of memory in the client, for its length in pages of 4 KiB; `None`: the driver does not say.
    pub fn memory_pages(&self, memory: Handle) -> io::Result<Option<u32>> {
        const GET_SURFACE_INFO: u32 = 0x0041_0110;
        /// `surfaceInfoList`.
        const LIST: usize = 8;
        /// `NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE`, which every release has.
        const PAGES: u32 = 7;
        let (mut params, mut list) = (vec![0; 16], vec![0; 8]);
        let mut args = self.control_args(memory, GET_SURFACE_INFO, params.len())?;
        let _ = write_u32(&mut params, 0, 1) && write_u32(&mut list, 0, PAGES);
        let list = Buffer { holder: Holder::Buffer(0), offset: LIST, bytes: list };
        let mut buffers = [parameters(NVOS54_PARAMS, params), list];
        let status = self.call(CONTROL, &mut args, &mut buffers, &[])?;
        let pages = buffers.last().and_then(|list| read_u32(&list.bytes, 4));
        Ok(pages.filter(|_| status.is_ok()))
    }

    /// `NV_ESC_RM_MAP_MEMORY` of an object of the client's own that belongs to no card, for reading. `target`: whose next `mmap`
    /// at offset 0 maps it.
    pub fn map_for_reading(&self, object: Handle, length: u64, target: &DeviceFile) -> io::Result<Status> {
        let mut args = [0; NVOS33];
        for (at, value) in [(0, self.client.0), (4, self.client.0), (8, object.0), (NVOS33_FLAGS, READ_ONLY)] {
            let _ = write_u32(&mut args, at, value);
        }
        if let Some(place) = args.get_mut(NVOS33_LENGTH..NVOS33_LENGTH + 8) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        let file = FileField { holder: Holder::Args, offset: NVOS33_FILE, file: target.clone() };
        self.call(MAP_MEMORY, &mut args, &mut [], &[file])
    }

    fn call(&self, number: u8, args: &mut [u8], buffers: &mut [Buffer], files: &[FileField]) -> io::Result<Status> {
        let command = command(number, args.len());
        let layout = escape(number).and_then(|row| row.layout(self.abi, args.len()));
        let status_at = layout.and_then(|layout| layout.status).ok_or(io::ErrorKind::Unsupported)?;
        timed(|| self.driver.ioctl(self.file, DriverCall { command, args, buffers, files }))?;
        let status = read_u32(args, usize::from(status_at)).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Status(status))
    }
}

fn parameters(offset: usize, bytes: Vec<u8>) -> Buffer {
    // What the pointer was is the driver's business: any number that is not null.
    Buffer { holder: Holder::Args, offset, bytes }
}

/// `_IOWR('F', number, size)`.
fn command(number: u8, size: usize) -> u32 {
    let size = u32::try_from(size).unwrap_or(0) & 0x3fff;
    3 << 30 | size << 16 | u32::from(b'F') << 8 | u32::from(number)
}
