//! Size and kind of an allocation's memory: `NV_MEMORY_ALLOCATION_PARAMS`, and the fields of
//! `NVOS32_PARAMETERS` that mean the same (src/common/sdk/nvidia/inc/nvos.h).

use super::layout::{read_u32, read_u64};

/// Offset of `size` in `NV_MEMORY_ALLOCATION_PARAMS`, where the driver leaves the size that it has
/// given out.
pub const SIZE_AT: usize = 64;

/// Offset of `attr` in `NV_MEMORY_ALLOCATION_PARAMS`.
pub const ATTR_AT: usize = 24;

/// Distance from `size` to `offset`, where the driver leaves the address on the card at which
/// memory of the card begins: `alignment` is in between, in `NV_MEMORY_ALLOCATION_PARAMS` as in
/// `NVOS32_PARAMETERS`.
pub const ADDRESS_AFTER_SIZE: usize = 16;

const FLAGS_AT: usize = 8;
const ATTR2_AT: usize = 28;

/// `NVOS32_ATTR_PHYSICALITY`.
const PHYSICALITY_SHIFT: u32 = 27;
const NONCONTIGUOUS: u32 = 1;

const KIB_64: u64 = 64 << 10;
const MIB_2: u64 = 2 << 20;
const MIB_512: u64 = 512 << 20;
const GIB_256: u64 = 256 << 30;

/// The card's memory is handed out in these pieces (the PMA's granule), whatever the page size.
pub const GRANULE: u64 = KIB_64;

/// A frame of a card's memory: what a page of 2 MiB needs whole, and with it nearly everything that
/// CUDA and UVM allocate. A single granule in use keeps a frame from everybody else.
pub const FRAME: u64 = MIB_2;

/// Layout of an allocation in the frames of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// In frames of its own: pages of 2 MiB and more. What the driver makes for itself is counted
    /// so, too.
    OwnFrames,
    /// In one run of granules, which may begin and end within frames that others have, too.
    Contiguous,
    /// Each granule wherever there is one.
    Scattered,
}

impl Layout {
    /// Bytes of the frames that so many bytes lie in, at the worst.
    pub const fn frames(self, bytes: u64) -> u64 {
        match self {
            Self::OwnFrames => bytes,
            Self::Contiguous => {
                // The first granule may be the last one of a frame.
                bytes.saturating_sub(GRANULE).div_ceil(FRAME).saturating_add(1).saturating_mul(FRAME)
            }
            Self::Scattered => bytes.div_ceil(GRANULE).saturating_mul(FRAME),
        }
    }
}

/// Fields that decide about the size and the kind of an allocation's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRequest {
    /// `NVOS32_ALLOC_FLAGS_*`.
    pub flags: u32,
    /// `NVOS32_ATTR_*`.
    pub attr: u32,
    /// `NVOS32_ATTR2_*`.
    pub attr2: u32,
    /// Bytes asked for.
    pub size: u64,
}

/// Kind of memory that `NV_ESC_RM_VID_HEAP_CONTROL` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapMemory {
    /// Addresses only (class `50A0`).
    Virtual,
    /// Of the card (class `0040`).
    Video,
    /// Of the host (class `003E`).
    System,
    /// Of another node's host (class `0042`).
    Extended,
}

impl MemoryRequest {
    /// From the parameters of a memory class; `None` when they are too short.
    pub fn of_params(params: &[u8]) -> Option<Self> {
        Some(Self {
            flags: read_u32(params, FLAGS_AT)?,
            attr: read_u32(params, ATTR_AT)?,
            attr2: read_u32(params, ATTR2_AT)?,
            size: read_u64(params, SIZE_AT)?,
        })
    }

    /// Returns whether only addresses are asked for (`NVOS32_ALLOC_FLAGS_VIRTUAL`).
    pub const fn is_virtual(&self) -> bool {
        self.flags & 0x0008_0000 != 0
    }

    /// Returns the kind that `NV_ESC_RM_VID_HEAP_CONTROL` makes of it: memory that is not said to
    /// be the card's (`NVOS32_ATTR_LOCATION_VIDMEM`) is the host's, also `ANY`.
    /// (`_rmVidHeapControlAllocCommon`; before 580 it does not know EGM, which has no meaning
    /// there.)
    pub const fn heap_memory(&self) -> HeapMemory {
        const USE_EGM: u32 = 1 << 24;
        const VIDEO: u32 = 0;
        if self.is_virtual() {
            HeapMemory::Virtual
        } else if self.attr2 & USE_EGM != 0 {
            HeapMemory::Extended
        } else if (self.attr >> 25) & 3 == VIDEO {
            HeapMemory::Video
        } else {
            HeapMemory::System
        }
    }

    /// Returns the most bytes that the driver takes of the host: it rounds up to huge pages where
    /// these are asked for.
    pub const fn host_size(&self) -> u64 {
        const HUGE: u32 = 3;
        if (self.attr >> 23) & 3 == HUGE { self.rounded_size() } else { self.size }
    }

    /// Page tables that the driver makes of the card's memory at once for addresses that are asked
    /// for, unless it is told to wait until something is mapped there (`NVOS32_ALLOC_FLAGS_LAZY`,
    /// as libcuda does, or `EXTERNALLY_MANAGED`): 4 KiB for each 2 MiB and page size, of which
    /// there may be two (src/nvidia/src/kernel/mem_mgr/gpu_vaspace.c, `gvaspaceAlloc`).
    pub const fn page_tables_at_once(&self) -> u64 {
        const LAZY_OR_EXTERNAL: u32 = 0x0000_0400 | 0x0040_0000;
        const SPARSE: u32 = 0x0400_0000;
        const TABLES: u64 = 2 * 4096;
        if self.flags & LAZY_OR_EXTERNAL != 0 && self.flags & SPARSE == 0 {
            return 0;
        }
        // And one above on each of four levels.
        self.size.div_ceil(MIB_2).saturating_add(4).saturating_mul(TABLES)
    }

    /// Returns whether a place on the card is asked for
    /// (`NVOS32_ALLOC_FLAGS_FIXED_ADDRESS_ALLOCATE`). The driver then takes whole multiples of the
    /// alignment that is asked for, and says nothing of it
    /// (src/nvidia/src/kernel/mem_mgr/video_mem.c, `_vidmemPmaAllocate`).
    const fn is_at_fixed_address(&self) -> bool {
        self.flags & 0x10 != 0
    }

    /// Returns whether the program itself says where on the card the memory is to be: at an
    /// address, or in a range of its choice (`NVOS32_ALLOC_FLAGS_USE_BEGIN_END`).
    pub const fn chooses_place(&self) -> bool {
        self.is_at_fixed_address() || self.flags & 0x0002_0000 != 0
    }

    /// Returns whether memory of one half of the card is asked for
    /// (`NVOS32_ATTR2_ENABLE_LOCALIZED_MEMORY`, since 580): of the first piece on, the driver keeps
    /// 64 MiB for such memory alone (phys_mem_allocator.c, `PMA_LOCALIZED_MEMORY_RESERVE_SIZE`).
    pub const fn is_localized(&self) -> bool {
        (self.attr2 >> 29) & 3 != 0
    }

    /// Returns the memory's layout on the card, given [`Self::contiguous_attr`].
    pub const fn layout(&self) -> Layout {
        if self.page_size() >= FRAME {
            Layout::OwnFrames
        } else if (self.attr >> PHYSICALITY_SHIFT) & 3 == NONCONTIGUOUS {
            Layout::Scattered
        } else {
            Layout::Contiguous
        }
    }

    /// The attributes with `NVOS32_ATTR_PHYSICALITY_CONTIGUOUS`, where pages are smaller than a
    /// frame and it is left to the driver whether they are contiguous: it tries that first, and
    /// would scatter them if there is no such run (video_mem.c, `_vidmemPmaAllocate`).
    pub const fn contiguous_attr(&self) -> Option<u32> {
        const CONTIGUOUS: u32 = 2;
        match (self.layout(), (self.attr >> PHYSICALITY_SHIFT) & 3) {
            (Layout::Contiguous, CONTIGUOUS) | (Layout::OwnFrames | Layout::Scattered, _) => None,
            (Layout::Contiguous, _) => Some(self.attr & !(3 << PHYSICALITY_SHIFT) | CONTIGUOUS << PHYSICALITY_SHIFT),
        }
    }

    /// The page size that the driver will take (`NVOS32_ATTR_PAGE_SIZE`,
    /// `NVOS32_ATTR2_PAGE_SIZE_HUGE`).
    pub const fn page_size(&self) -> u64 {
        const DEFAULT: u32 = 0;
        const HUGE: u32 = 3;
        match ((self.attr >> 23) & 3, (self.attr2 >> 20) & 3) {
            (DEFAULT, _) if self.size >= MIB_2 => MIB_2,
            (HUGE, 0 | 1) => MIB_2,
            (HUGE, 2) => MIB_512,
            (HUGE, _) => GIB_256,
            _ => KIB_64,
        }
    }

    /// Returns the bytes that the allocation will take, for a check before it is executed; the size
    /// that the driver returns is what counts afterwards. `u64::MAX` for a size that has no
    /// multiple.
    pub const fn rounded_size(&self) -> u64 {
        match self.size.checked_next_multiple_of(self.page_size()) {
            Some(rounded) => rounded,
            None => u64::MAX,
        }
    }
}

/// `deviceId` of `NV0080_ALLOC_PARAMETERS`: the device instance; parameters that are missing mean
/// instance 0.
pub fn device_instance(params: &[u8]) -> u32 {
    read_u32(params, 0).unwrap_or(0)
}

/// `hClientShare`, `hTargetClient` of `NV0080_ALLOC_PARAMETERS`: other clients that a device may
/// name; 0: none.
pub fn device_other_clients(params: &[u8]) -> [u32; 2] {
    [read_u32(params, 4).unwrap_or(0), read_u32(params, 8).unwrap_or(0)]
}

/// `engineType` of `NV_CHANNEL_ALLOC_PARAMS` (`NV2080_ENGINE_TYPE_*`).
pub fn channel_engine(params: &[u8]) -> Option<u32> {
    read_u32(params, 128)
}

/// `hParentClient`, `hSrcResource`, `hClass` and `data` of `NV0005_ALLOC_PARAMETERS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventParams {
    /// The client whose object is watched; 0: the caller's.
    pub source_client: u32,
    /// The object that is watched.
    pub source: u32,
    /// Kind of event, [`OS_EVENT`](super::classes::OS_EVENT) or refused.
    pub class: u32,
    /// Of an OS event: the descriptor's number, a key that is not looked up.
    pub data: u64,
}

impl EventParams {
    /// From the parameters; `None` when they are too short.
    pub fn of_params(params: &[u8]) -> Option<Self> {
        Some(Self {
            source_client: read_u32(params, 0)?,
            source: read_u32(params, 4)?,
            class: read_u32(params, 8)?,
            data: read_u64(params, 16)?,
        })
    }
}
