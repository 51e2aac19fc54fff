//! A card, and memory on it.

use std::fs::File;

use crate::{
    RmError,
    bytes::{get, get_u64, put, put_u64, words},
    client::{CardInfo, Client, text},
};

/// `NV01_DEVICE_0`, `NV20_SUBDEVICE_0`, `FERMI_VASPACE_A`.
const DEVICE: u32 = 0x80;
const SUBDEVICE: u32 = 0x2080;
/// `NV01_MEMORY_LOCAL_USER`.
pub const VIDEO_MEMORY: u32 = 0x40;
const ADDRESS_SPACE: u32 = 0x90f1;

/// A card that is in use.
#[derive(Debug)]
pub struct Device<'a> {
    /// Whose.
    pub client: &'a Client,
    /// Its node, open.
    pub node: File,
    /// The card, as the driver lists it.
    pub info: CardInfo,
    /// Handle of the device object.
    pub device: u32,
    /// Handle of the subdevice object.
    pub subdevice: u32,
}

/// Memory of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Its handle.
    pub handle: u32,
    /// Bytes, as the driver says.
    pub size: u64,
}

/// Memory of a card, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// Bytes that are free.
    pub free: u64,
}

impl<'a> Device<'a> {
    /// Opens the card's node, attaches the card, makes the objects.
    ///
    /// # Errors
    /// When the node cannot be opened, or the driver refuses.
    pub fn open(client: &'a Client, info: CardInfo) -> Result<Self, RmError> {
        let node = client.nodes.card(info.minor)?;
        client.register(&node)?;
        let mut attach = words([info.gpu_id, u32::MAX], 132);
        client.control(client.handle, 0x215, &mut attach)?;
        let mut id = words([info.gpu_id], 32);
        client.control(client.handle, 0x205, &mut id)?;
        let mut params = words([get(&id, 8)], 56);
        let device = client.alloc(client.handle, 0, DEVICE, Some(&mut params))?;
        let subdevice = client.alloc(device, 0, SUBDEVICE, Some(&mut [0; 4]))?;
        Ok(Self { client, node, info, device, subdevice })
    }

    /// Memory of the card, of the page size that the driver chooses.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn alloc(&self, size: u64) -> Result<Allocation, RmError> {
        self.alloc_with(size, 0, 0)
    }

    /// The same with attributes (`NVOS32_ATTR`, `NVOS32_ATTR2`).
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn alloc_with(&self, size: u64, attributes: u32, attributes2: u32) -> Result<Allocation, RmError> {
        let mut params = vec![0; 128];
        // `owner`: anything but 0, which the driver refuses; libcuda puts its client there.
        put(&mut params, 0, self.client.handle);
        put(&mut params, 24, attributes);
        put(&mut params, 28, attributes2);
        put_u64(&mut params, 64, size);
        let handle = self.client.alloc(self.device, 0, VIDEO_MEMORY, Some(&mut params))?;
        Ok(Allocation { handle, size: get_u64(&params, 64) })
    }

    /// An address space of the card, for unified memory to manage.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn address_space(&self) -> Result<u32, RmError> {
        // `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED` and `_ENABLE_PAGE_FAULTING`, without
        // which UVM takes none.
        const FLAGS: u32 = 0x48;
        const BASE: u32 = 0x1000;
        let mut params = vec![0; 56];
        put(&mut params, 4, FLAGS);
        put(&mut params, 40, BASE);
        self.client.alloc(self.device, 0, ADDRESS_SPACE, Some(&mut params))
    }

    /// Returns the card's product name.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn name(&self) -> Result<String, RmError> {
        let mut params = vec![0; 132];
        self.client.control(self.subdevice, 0x2080_0110, &mut params)?;
        Ok(text(params.get(4..).unwrap_or_default()))
    }

    /// `GPU-...`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn uuid(&self) -> Result<String, RmError> {
        let mut params = vec![0; 268];
        self.client.control(self.subdevice, 0x2080_014a, &mut params)?;
        Ok(text(params.get(12..).unwrap_or_default()))
    }

    /// The 16 bytes of it, as unified memory names cards.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn uuid_bytes(&self) -> Result<[u8; 16], RmError> {
        const BINARY: u32 = 2;
        let mut params = words([0, BINARY], 268);
        self.client.control(self.subdevice, 0x2080_014a, &mut params)?;
        let bytes = params.get(12..28).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| RmError::Nonsense { what: "the card's UUID is missing".into() })
    }

    /// Returns how much memory it has, and how much is free.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn memory(&self) -> Result<Memory, RmError> {
        const TOTAL_RAM: u32 = 0x08;
        const HEAP_FREE: u32 = 0x16;
        let mut params = words([2, TOTAL_RAM, 0, HEAP_FREE, 0], 1028);
        self.client.control(self.subdevice, 0x2080_1303, &mut params)?;
        let kib = |at: usize| u64::from(get(&params, at)) * 1024;
        Ok(Memory { total: kib(8), free: kib(16) })
    }
}
