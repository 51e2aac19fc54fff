//! Unified memory: the address space that CUDA maps all its memory in, and managed memory.

use std::{fs::File, os::fd::AsRawFd};

use abi::{
    Handle, encode,
    params::{
        Field, UVM_CREATE_EXTERNAL_RANGE_PARAMS, UVM_DISABLE_READ_DUPLICATION_PARAMS, UVM_FREE_PARAMS_525,
        UVM_INITIALIZE_PARAMS, UVM_MAP_EXTERNAL_ALLOCATION_PARAMS, UVM_MM_INITIALIZE_PARAMS, UVM_REGISTER_GPU_PARAMS,
        UVM_REGISTER_GPU_VASPACE_PARAMS, UVM_VALIDATE_VA_RANGE_PARAMS,
    },
    uvm::{
        UVM_CREATE_EXTERNAL_RANGE, UVM_DISABLE_READ_DUPLICATION, UVM_FREE, UVM_INITIALIZE, UVM_MAP_EXTERNAL_ALLOCATION,
        UVM_MM_INITIALIZE, UVM_REGISTER_GPU, UVM_REGISTER_GPU_VASPACE, UVM_VALIDATE_VA_RANGE,
    },
};

use crate::{
    RmError,
    bytes::get,
    check,
    device::{Allocation, Device},
    files::Nodes,
    sys::Mapping,
    system,
};

/// Addresses that nothing else is at: below what file systems of 16 TiB files can be mapped at.
const FIRST_ADDRESS: u64 = 0x0200_0000_0000;

/// An open file of unified memory with one card.
#[derive(Debug)]
pub struct AddressSpace {
    nodes: Nodes,
    file: File,
    /// Another file of the node: while it is open, the driver may use the process's memory on the
    /// first one's behalf. The driver takes no address space of a card without.
    memory_holder: File,
    uuid: [u8; 16],
    next: u64,
}

impl AddressSpace {
    /// Opens the node and registers the card and an address space of it.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn open(device: &Device<'_>) -> Result<Self, RmError> {
        let space = Self {
            nodes: device.client.nodes.clone(),
            file: device.client.nodes.uvm()?,
            memory_holder: device.client.nodes.uvm()?,
            uuid: device.uuid_bytes()?,
            next: FIRST_ADDRESS,
        };
        let (what, mut args) = ("initializing unified memory", encode!(UVM_INITIALIZE_PARAMS {}));
        space.call(what, UVM_INITIALIZE, &mut args, UVM_INITIALIZE_PARAMS::rmStatus)?;
        let mut args = encode!(UVM_MM_INITIALIZE_PARAMS { uvmFd: space.file.as_raw_fd() });
        // A status of its own, where the kernel needs no such file: a warning, which does not matter.
        space.nodes.ioctl(&space.memory_holder, UVM_MM_INITIALIZE, &mut args).map_err(system(what))?;
        let mut args = encode!(UVM_REGISTER_GPU_PARAMS { gpu_uuid: space.uuid, rmCtrlFd: -1 });
        space.call("registering a card", UVM_REGISTER_GPU, &mut args, UVM_REGISTER_GPU_PARAMS::rmStatus)?;
        type AddressSpaceArgs = UVM_REGISTER_GPU_VASPACE_PARAMS;
        let mut args = encode!(AddressSpaceArgs {
            gpuUuid: space.uuid,
            rmCtrlFd: device.client.control.as_raw_fd(),
            hClient: Handle(device.client.handle),
            hVaSpace: Handle(device.address_space()?),
        });
        let what = "registering an address space";
        space.call(what, UVM_REGISTER_GPU_VASPACE, &mut args, AddressSpaceArgs::rmStatus)?;
        Ok(space)
    }

    /// Makes a call; `status` is the field of its struct for the status.
    ///
    /// # Errors
    /// The errno, or the status.
    pub fn call(&self, what: &str, number: u32, args: &mut [u8], status: Field<u32>) -> Result<(), RmError> {
        self.nodes.ioctl(&self.file, number, args).map_err(system(what))?;
        check(what, get(args, status))
    }

    /// Maps memory of the card, as CUDA does with each allocation; says where.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn map(&mut self, device: &Device<'_>, memory: Allocation) -> Result<u64, RmError> {
        let base = self.reserve(memory.size);
        type Range = UVM_CREATE_EXTERNAL_RANGE_PARAMS;
        type Args = UVM_MAP_EXTERNAL_ALLOCATION_PARAMS;
        let mut args = encode!(Range { base: base, length: memory.size });
        self.call("making a range", UVM_CREATE_EXTERNAL_RANGE, &mut args, Range::rmStatus)?;
        let mut args = encode!(Args {
            base: base,
            length: memory.size,
            gpuAttributesCount: 1,
            rmCtrlFd: device.client.control.as_raw_fd(),
            hClient: Handle(device.client.handle),
            hMemory: Handle(memory.handle),
        });
        // The first card's attributes begin with its UUID.
        let uuid = Args::perGpuAttributes.bytes_mut(&mut args).and_then(|list| list.first_chunk_mut());
        if let Some(place) = uuid {
            *place = self.uuid;
        }
        self.call("mapping memory", UVM_MAP_EXTERNAL_ALLOCATION, &mut args, Args::rmStatus)?;
        Ok(base)
    }

    /// Undoes [`AddressSpace::map`].
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn unmap(&self, base: u64, size: u64) -> Result<(), RmError> {
        let mut args = encode!(UVM_FREE_PARAMS_525 { base: base, length: size });
        self.call("freeing a range", UVM_FREE, &mut args, UVM_FREE_PARAMS_525::rmStatus)
    }

    /// Managed memory, as `cudaMallocManaged` makes it: a mapping of the node at the offset that is
    /// its address.
    ///
    /// # Errors
    /// `ENOMEM` as out of memory; what the driver answers.
    pub fn managed(&mut self, size: u64) -> Result<Mapping, RmError> {
        let size = size.next_multiple_of(2 << 20);
        let base = self.reserve(size);
        let length = usize::try_from(size).map_err(|_| RmError::Nonsense { what: "too long".into() })?;
        let mapping = self.nodes.map_at(&self.file, base, length, base).map_err(system("managed memory"))?;
        type Range = UVM_VALIDATE_VA_RANGE_PARAMS;
        type Advice = UVM_DISABLE_READ_DUPLICATION_PARAMS;
        let mut args = encode!(Range { base: base, length: size });
        self.call("validating managed memory", UVM_VALIDATE_VA_RANGE, &mut args, Range::rmStatus)?;
        let mut args = encode!(Advice { requestedBase: base, length: size });
        self.call("advice on managed memory", UVM_DISABLE_READ_DUPLICATION, &mut args, Advice::rmStatus)?;
        Ok(mapping)
    }

    fn reserve(&mut self, size: u64) -> u64 {
        let base = self.next;
        self.next = (base + size).next_multiple_of(2 << 20);
        base
    }
}
