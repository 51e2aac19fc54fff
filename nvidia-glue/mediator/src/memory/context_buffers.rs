//! Memory that the driver takes for a context and that no allocation shows.
//!
//! With one CUDA context on an H200 (driver 580.159.04), 9024 KiB of the card are gone beside all
//! allocations: 8256 KiB once its compute channel group is scheduled, 256 KiB for each of its three
//! groups of copy engines. Of the former, the driver tells 5308 KiB when asked for the size of a
//! channel's context buffers. So a group is charged when it is made, and what the driver tells
//! corrects that.
//!
//! The buffers come with the first object of the graphics engine in a channel. Asked before, the
//! driver writes three lines into the kernel's log, so nobody asks before: neither this module nor
//! the container through it.

use abi::memory::Layout;
use base::Bytes;

/// Memory that a group of a graphics engine takes, before the driver says how much; and what it
/// takes beside that.
const GRAPHICS: Bytes = Bytes(8256 * Bytes::KIB);
pub(crate) const UNTOLD: Bytes = Bytes(2948 * Bytes::KIB);
/// Memory that a group of another engine takes.
const OTHER: Bytes = Bytes(256 * Bytes::KIB);

/// They are runs of granules, most of them of 256 KiB or 4 MiB (pool_alloc.c, `poolConfig`).
pub(crate) const LAYOUT: Layout = Layout::Contiguous;

/// `NV2080_ENGINE_TYPE_GR0` to `GR7` (src/common/sdk/nvidia/inc/class/cl2080_notification.h).
const GRAPHICS_ENGINES: std::ops::RangeInclusive<u32> = 1..=8;

/// Memory that a group of an engine is charged when it is made. 0 is an engine that is not chosen
/// yet: it may be any. Cards before Ampere do not look at what is said here
/// (`kfifoIsPerRunlistChramSupportedInHw`, kernel_channel_group_api.c): a group of copy engines
/// gets the buffers of the graphics engine with the first object of that, and is charged for them
/// then.
pub(crate) fn expected(engine: u32) -> Bytes {
    if engine == 0 || GRAPHICS_ENGINES.contains(&engine) { GRAPHICS } else { OTHER }
}
