//! The numbers of UVM's commands, as the filter knows them. The other escapes are in [`crate::rm::escapes`].

use std::ops::RangeInclusive;

/// UVM's commands are bare numbers (kernel-open/nvidia-uvm/uvm_ioctl.h), today 23 (UVM_CREATE_RANGE_GROUP) to 80
/// (UVM_DISCARD). The range leaves room for later drivers.
///
/// Below it begin numbers of others: FIBMAP 1 and FIGETBSZ 2 of every file system, SCSI_IOCTL_* 1 to 7. UVM has had no
/// Linux command there since its first open release: 1 to 22 belong to its predecessor and to Windows.
pub const UVM_COMMANDS: RangeInclusive<u32> = 23..=127;

/// UVM_INITIALIZE and UVM_DEINITIALIZE (kernel-open/nvidia-uvm/uvm_linux_ioctl.h).
pub const UVM_LIFECYCLE: [u32; 2] = [0x3000_0001, 0x3000_0002];
