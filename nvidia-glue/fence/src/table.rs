//! Commands that are the driver's whatever its release, as far as a number tells. The escapes of
//! known releases are in [`abi::escapes`].

use std::ops::RangeInclusive;

/// UVM's commands are bare numbers (kernel-open/nvidia-uvm/uvm_ioctl.h), today 23
/// (UVM_CREATE_RANGE_GROUP) to 80 (UVM_DISCARD), and 200 to 314 for tests of its own that only a
/// module parameter turns on (uvm_test_ioctl.h). The range leaves room for later drivers, and for
/// what none has: UVM writes a line into the kernel's log for each of those.
///
/// Below it are numbers of others: FIBMAP 1 and FIGETBSZ 2 of every file system, SCSI_IOCTL_* 1 to
/// 7. From 0x200 on begin those of floppy disks. Between them is none in the headers of Linux 6.1
/// or in its list of ioctl numbers.
pub const UVM_COMMANDS: RangeInclusive<u32> = 8..=0x1ff;

/// UVM_INITIALIZE and UVM_DEINITIALIZE (kernel-open/nvidia-uvm/uvm_linux_ioctl.h) are the first
/// two. Nobody else's command has no direction, no type and 12 KiB.
pub const UVM_LIFECYCLE: RangeInclusive<u32> = 0x3000_0000..=0x3000_00ff;

/// All commands of the driver's own type byte, whatever number, without size and direction.
pub const ESCAPE_NUMBERS: RangeInclusive<u32> = 0x4600..=0x46ff;

/// Those of frame buffers (linux/fb.h), which have the same type byte, are bare numbers:
/// FBIOGET_VSCREENINFO to FBIOGET_DISPINFO, and a few of old drivers. The resource manager's begin
/// at 0x27, and none is without a size.
pub const FRAME_BUFFER_COMMANDS: RangeInclusive<u32> = 0x4600..=0x4620;

/// And these, with a size: FBIOGET_VBLANK and FBIO_WAITFORVSYNC.
pub const SIZED_FRAME_BUFFER_COMMANDS: [u32; 2] = [0x8020_4612, 0x4004_4620];
