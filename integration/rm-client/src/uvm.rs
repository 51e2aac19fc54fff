//! Unified memory: the address space that CUDA maps all its memory in, and managed memory.

use std::{fs::File, os::fd::AsRawFd};

use crate::{
    RmError,
    bytes::{get, put, put_bytes, put_u64},
    check,
    device::{Allocation, Device},
    files::Nodes,
    sys::Mapping,
    system,
};

/// `UVM_INITIALIZE`, and others of uvm_ioctl.h.
pub const INITIALIZE: u32 = 0x3000_0001;
/// `UVM_REGISTER_GPU_VASPACE`.
pub const REGISTER_ADDRESS_SPACE: u32 = 25;
/// `UVM_MAP_EXTERNAL_ALLOCATION`.
pub const MAP_EXTERNAL: u32 = 33;
/// `UVM_FREE`.
pub const FREE: u32 = 34;
/// `UVM_REGISTER_GPU`.
pub const REGISTER_GPU: u32 = 37;
/// `UVM_DISABLE_READ_DUPLICATION`.
pub const DISABLE_READ_DUPLICATION: u32 = 45;
/// `UVM_VALIDATE_VA_RANGE`.
pub const VALIDATE: u32 = 72;
/// `UVM_MM_INITIALIZE`.
pub const MM_INITIALIZE: u32 = 75;
/// `UVM_CREATE_EXTERNAL_RANGE`.
pub const CREATE_EXTERNAL: u32 = 73;

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
        space.call("initializing unified memory", INITIALIZE, &mut [0; 16], 8)?;
        let mut args = [0; 8];
        put(&mut args, 0, space.file.as_raw_fd().cast_unsigned());
        // A status of its own, where the kernel needs no such file: a warning, which does not
        // matter.
        space
            .nodes
            .ioctl(&space.memory_holder, MM_INITIALIZE, &mut args)
            .map_err(system("initializing unified memory"))?;
        let mut args = vec![0; 40];
        put_bytes(&mut args, 0, &space.uuid);
        put(&mut args, 24, u32::MAX);
        space.call("registering a card", REGISTER_GPU, &mut args, 36)?;
        let mut args = vec![0; 32];
        put_bytes(&mut args, 0, &space.uuid);
        put(&mut args, 16, device.client.control.as_raw_fd().cast_unsigned());
        put(&mut args, 20, device.client.handle);
        put(&mut args, 24, device.address_space()?);
        space.call("registering an address space", REGISTER_ADDRESS_SPACE, &mut args, 28)?;
        Ok(space)
    }

    /// One call; the status is at `status`.
    ///
    /// # Errors
    /// The errno, or the status.
    pub fn call(&self, what: &str, number: u32, args: &mut [u8], status: usize) -> Result<(), RmError> {
        self.nodes.ioctl(&self.file, number, args).map_err(system(what))?;
        check(what, get(args, status))
    }

    /// Maps memory of the card, as CUDA does with each allocation; says where.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn map(&mut self, device: &Device<'_>, memory: Allocation) -> Result<u64, RmError> {
        let base = self.reserve(memory.size);
        self.call("making a range", CREATE_EXTERNAL, &mut range(base, memory.size, 24), 16)?;
        let mut args = range(base, memory.size, 9264);
        put_bytes(&mut args, 24, &self.uuid);
        put_u64(&mut args, 9240, 1);
        put(&mut args, 9248, device.client.control.as_raw_fd().cast_unsigned());
        put(&mut args, 9252, device.client.handle);
        put(&mut args, 9256, memory.handle);
        self.call("mapping memory", MAP_EXTERNAL, &mut args, 9260)?;
        Ok(base)
    }

    /// Undoes [`AddressSpace::map`].
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn unmap(&self, base: u64, size: u64) -> Result<(), RmError> {
        self.call("freeing a range", FREE, &mut range(base, size, 24), 16)
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
        self.call("validating managed memory", VALIDATE, &mut range(base, size, 24), 16)?;
        self.call("advice on managed memory", DISABLE_READ_DUPLICATION, &mut range(base, size, 24), 16)?;
        Ok(mapping)
    }

    fn reserve(&mut self, size: u64) -> u64 {
        let base = self.next;
        self.next = (base + size).next_multiple_of(2 << 20);
        base
    }
}

fn range(base: u64, size: u64, length: usize) -> Vec<u8> {
    let mut args = vec![0; length];
    put_u64(&mut args, 0, base);
    put_u64(&mut args, 8, size);
    args
}
