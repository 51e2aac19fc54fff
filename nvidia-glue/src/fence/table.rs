//! The one table of protected driver calls. Filter, tests and documentation come from it.

use std::ops::RangeInclusive;

/// One ioctl of `/dev/nvidiactl` and `/dev/nvidiaN`.
#[derive(Debug)]
pub struct Escape {
    /// NVIDIA's name.
    pub name: &'static str,
    /// The command's number, `_IOC_NR`.
    pub number: u8,
    /// The sizes of its parameter struct in drivers 515 to 595. The driver demands them exactly, so under another type byte
    /// these are all that can do anything. Empty: protected under type `F` only (see `what`).
    pub sizes: &'static [u16],
    /// What the call does.
    pub what: &'static str,
    /// Where the number is defined.
    pub header: Header,
}

/// The headers of NVIDIA's open kernel modules that number the escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// src/nvidia/arch/nvalloc/unix/include/nv_escape.h
    NvEscape,
    /// kernel-open/common/inc/nv-ioctl-numbers.h and nv-ioctl-numa.h
    NvIoctlNumbers,
}

const fn rm(name: &'static str, number: u8, sizes: &'static [u16], what: &'static str) -> Escape {
    Escape { name, number, sizes, what, header: Header::NvEscape }
}

const fn os(name: &'static str, number: u8, sizes: &'static [u16], what: &'static str) -> Escape {
    Escape { name, number, sizes, what, header: Header::NvIoctlNumbers }
}

/// Every escape that a driver from 515 to 595 knows.
///
/// Numbers and sizes were compared with the 2280 commands of Linux 6.1's and libdrm's headers. Where a call that can do
/// nothing without the others has the number and size of somebody else's, it is protected under type `F` only. One
/// collision stays: (0x2b, 48) is also `BTRFS_IOC_QGROUP_LIMIT`, an administrator's call; containers without CAP_SYS_ADMIN
/// cannot make it, and those with it are exempt from the fence.
pub const PROTECTED_ESCAPES: &[Escape] = &[
    rm("NV_ESC_RM_ALLOC_MEMORY", 0x27, &[48, 56], "allocates or registers memory"),
    rm("NV_ESC_RM_ALLOC_OBJECT", 0x28, &[20], "makes an object"),
    rm("NV_ESC_RM_FREE", 0x29, &[16], "frees an object and all below it"),
    rm("NV_ESC_RM_CONTROL", 0x2a, &[32], "any control call"),
    rm("NV_ESC_RM_ALLOC", 0x2b, &[32, 40, 48], "makes a client, device, channel, memory ..."),
    rm("NV_ESC_RM_CONFIG_GET", 0x32, &[], "obsolete"),
    rm("NV_ESC_RM_CONFIG_SET", 0x33, &[], "obsolete"),
    rm("NV_ESC_RM_DUP_OBJECT", 0x34, &[28], "a second handle on an object, of another client too"),
    rm("NV_ESC_RM_SHARE", 0x35, &[24], "lets other clients duplicate an object"),
    rm("NV_ESC_RM_CONFIG_GET_EX", 0x37, &[], "obsolete"),
    rm("NV_ESC_RM_CONFIG_SET_EX", 0x38, &[], "obsolete"),
    rm("NV_ESC_RM_I2C_ACCESS", 0x39, &[], "I2C bus of a card; size differs by version"),
    rm("NV_ESC_RM_IDLE_CHANNELS", 0x41, &[], "waits for channels; (0x41, 56) is DRM_IOCTL_SAVAGE_BCI_CMDBUF"),
    rm("NV_ESC_RM_VID_HEAP_CONTROL", 0x4a, &[184], "allocates video memory the old way"),
    rm("NV_ESC_RM_ACCESS_REGISTRY", 0x4d, &[72], "driver settings"),
    rm("NV_ESC_RM_MAP_MEMORY", 0x4e, &[48, 56], "prepares a CPU mapping"),
    rm("NV_ESC_RM_UNMAP_MEMORY", 0x4f, &[], "ends a CPU mapping; (0x4f, 32) is PPPIOCSXASYNCMAP"),
    rm("NV_ESC_RM_GET_EVENT_DATA", 0x52, &[], "reads an event; harmless alone"),
    rm("NV_ESC_RM_ALLOC_CONTEXT_DMA2", 0x54, &[56], "a DMA context over memory"),
    rm("NV_ESC_RM_ADD_VBLANK_CALLBACK", 0x56, &[], "obsolete"),
    rm("NV_ESC_RM_MAP_MEMORY_DMA", 0x57, &[56, 64], "a GPU mapping"),
    rm("NV_ESC_RM_UNMAP_MEMORY_DMA", 0x58, &[40, 48], "ends a GPU mapping"),
    rm("NV_ESC_RM_BIND_CONTEXT_DMA", 0x59, &[], "binds a DMA context; (0x59, 16) is DRM_IOCTL_RADEON_SETPARAM"),
    rm("NV_ESC_RM_EXPORT_OBJECT_TO_FD", 0x5c, &[], "now a control call"),
    rm("NV_ESC_RM_IMPORT_OBJECT_FROM_FD", 0x5d, &[], "now a control call"),
    rm(
        "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO",
        0x5e,
        &[],
        "renames a CPU mapping; (0x5e, 40) is DRM_IOCTL_I915_GEM_MMAP",
    ),
    rm("NV_ESC_RM_LOCKLESS_DIAGNOSTIC", 0x5f, &[], "diagnostics"),
    os("NV_ESC_CARD_INFO", 0xc8, &[], "lists the cards; any size, reveals but does nothing"),
    os("NV_ESC_REGISTER_FD", 0xc9, &[], "ties a card's file to a control file; useless alone, and (0xc9, 4) is DRM's"),
    os("NV_ESC_ALLOC_OS_EVENT", 0xce, &[16], "an event for a client"),
    os("NV_ESC_FREE_OS_EVENT", 0xcf, &[16], "ends an event"),
    os("NV_ESC_STATUS_CODE", 0xd1, &[], "a card's status"),
    os("NV_ESC_CHECK_VERSION_STR", 0xd2, &[], "compares versions"),
    os("NV_ESC_IOCTL_XFER_CMD", 0xd3, &[16], "carries any other escape inside"),
    os("NV_ESC_ATTACH_GPUS_TO_FD", 0xd4, &[], "keeps cards initialised; any size"),
    os("NV_ESC_QUERY_DEVICE_INTR", 0xd5, &[], "interrupt status"),
    os("NV_ESC_SYS_PARAMS", 0xd6, &[], "memory block size"),
    os("NV_ESC_NUMA_INFO", 0xd7, &[], "onlined card memory"),
    os("NV_ESC_SET_NUMA_STATUS", 0xd8, &[], "onlines card memory; administrators only"),
    os("NV_ESC_EXPORT_TO_DMABUF_FD", 0xd9, &[2600, 2608], "a dma-buf over video memory"),
    os("NV_ESC_WAIT_OPEN_COMPLETE", 0xda, &[], "waits for a card's initialisation"),
];

/// UVM's commands are bare numbers (kernel-open/nvidia-uvm/uvm_ioctl.h), today 23 (UVM_CREATE_RANGE_GROUP) to 80
/// (UVM_DISCARD). The range leaves room for later drivers.
///
/// Below it begin numbers of others: FIBMAP 1 and FIGETBSZ 2 of every file system, SCSI_IOCTL_* 1 to 7. UVM has had no
/// Linux command there since its first open release: 1 to 22 belong to its predecessor and to Windows.
pub const UVM_COMMANDS: RangeInclusive<u32> = 23..=127;

/// UVM_INITIALIZE and UVM_DEINITIALIZE (kernel-open/nvidia-uvm/uvm_linux_ioctl.h).
pub const UVM_LIFECYCLE: [u32; 2] = [0x3000_0001, 0x3000_0002];
