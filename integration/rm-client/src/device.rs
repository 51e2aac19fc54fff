//! A card, and memory on it.

use std::fs::File;

use abi::{
    classes::{FERMI_VASPACE_A, NV01_DEVICE_0, NV01_MEMORY_LOCAL_USER, NV20_SUBDEVICE_0},
    controls::{
        NV0000_CTRL_CMD_GPU_ATTACH_IDS, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, NV2080_CTRL_CMD_FB_GET_INFO_V2,
        NV2080_CTRL_CMD_GPU_GET_GID_INFO, NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
    },
    encode,
    params::{
        NV_MEMORY_ALLOCATION_PARAMS, NV_VASPACE_ALLOCATION_PARAMETERS, NV0000_CTRL_GPU_ATTACH_IDS_PARAMS,
        NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS, NV0080_ALLOC_PARAMETERS, NV2080_ALLOC_PARAMETERS,
        NV2080_CTRL_FB_GET_INFO_V2_PARAMS, NV2080_CTRL_GPU_GET_GID_INFO_PARAMS,
        NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_525, NVXXXX_CTRL_XXX_INFO,
    },
};

use crate::{
    RmError,
    bytes::{get, put},
    client::{CardInfo, Client, text},
};

/// A card that is in use.
#[derive(Debug)]
pub struct Device<'a> {
    /// Its owner.
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
        type Id = NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS;
        let mut ids = [0; 32];
        ids[..2].copy_from_slice(&[info.gpu_id, u32::MAX]);
        let mut attach = encode!(NV0000_CTRL_GPU_ATTACH_IDS_PARAMS { gpuIds: ids });
        client.control(client.handle, NV0000_CTRL_CMD_GPU_ATTACH_IDS, &mut attach)?;
        let mut id = encode!(Id { gpuId: info.gpu_id });
        client.control(client.handle, NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2, &mut id)?;
        let mut params = encode!(NV0080_ALLOC_PARAMETERS { deviceId: get(&id, Id::deviceInstance) });
        let device = client.alloc(client.handle, 0, NV01_DEVICE_0, Some(&mut params))?;
        let mut params = encode!(NV2080_ALLOC_PARAMETERS {});
        let subdevice = client.alloc(device, 0, NV20_SUBDEVICE_0, Some(&mut params))?;
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
        let mut params = encode!(NV_MEMORY_ALLOCATION_PARAMS {
            // Anything but 0, which the driver refuses; libcuda puts its client there.
            owner: self.client.handle,
            attr: attributes,
            attr2: attributes2,
            size: size,
        });
        let handle = self.client.alloc(self.device, 0, NV01_MEMORY_LOCAL_USER, Some(&mut params))?;
        Ok(Allocation { handle, size: get(&params, NV_MEMORY_ALLOCATION_PARAMS::size) })
    }

    /// An address space of the card, for unified memory to manage.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn address_space(&self) -> Result<u32, RmError> {
        // `NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED` and `_ENABLE_PAGE_FAULTING`, without
        // which UVM takes none.
        const FLAGS: u32 = 0x48;
        const BASE: u64 = 0x1000;
        let mut params = encode!(NV_VASPACE_ALLOCATION_PARAMETERS { flags: FLAGS, vaBase: BASE });
        self.client.alloc(self.device, 0, FERMI_VASPACE_A, Some(&mut params))
    }

    /// Returns the card's product name.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn name(&self) -> Result<String, RmError> {
        type Params = NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS_525;
        let mut params = encode!(Params {});
        self.client.control(self.subdevice, NV2080_CTRL_CMD_GPU_GET_NAME_STRING, &mut params)?;
        Ok(text(Params::ascii.bytes(&params).unwrap_or_default()))
    }

    /// `GPU-...`.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn uuid(&self) -> Result<String, RmError> {
        type Params = NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;
        let mut params = encode!(Params {});
        self.client.control(self.subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &mut params)?;
        Ok(text(Params::data.bytes(&params).unwrap_or_default()))
    }

    /// The 16 bytes of it, as unified memory names cards.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn uuid_bytes(&self) -> Result<[u8; 16], RmError> {
        type Params = NV2080_CTRL_GPU_GET_GID_INFO_PARAMS;
        const BINARY: u32 = 2;
        let mut params = encode!(Params { flags: BINARY });
        self.client.control(self.subdevice, NV2080_CTRL_CMD_GPU_GET_GID_INFO, &mut params)?;
        let bytes = Params::data.bytes(&params).and_then(|data| data.first_chunk().copied());
        bytes.ok_or_else(|| RmError::Nonsense { what: "the card's UUID is missing".into() })
    }

    /// Total and free memory of the card.
    ///
    /// # Errors
    /// The driver's status, where it refuses.
    pub fn memory(&self) -> Result<Memory, RmError> {
        type Params = NV2080_CTRL_FB_GET_INFO_V2_PARAMS;
        type Info = NVXXXX_CTRL_XXX_INFO;
        const TOTAL_RAM: u32 = 0x08;
        const HEAP_FREE: u32 = 0x16;
        let mut params = encode!(Params { fbInfoListSize: 2 });
        let list = Params::fbInfoList.bytes_mut(&mut params).unwrap_or_default().chunks_exact_mut(Info::SIZE);
        list.zip([TOTAL_RAM, HEAP_FREE]).for_each(|(info, index)| put(info, Info::index, index));
        self.client.control(self.subdevice, NV2080_CTRL_CMD_FB_GET_INFO_V2, &mut params)?;
        let info = |index| Params::fbInfoList.element(index).and_then(|info| info.bytes(&params)).unwrap_or_default();
        let kib = |index| u64::from(get(info(index), Info::data)) * 1024;
        Ok(Memory { total: kib(0), free: kib(1) })
    }
}
