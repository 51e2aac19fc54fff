//! Memory: quota, and every way to it that an allocation call does not show.

pub(crate) mod context_buffers;
pub(crate) mod host_mappings;
pub(crate) mod inflight_pins;
pub(crate) mod kernel_mappings;
pub(crate) mod managed;
#[cfg(feature = "parking")]
pub(crate) mod movable;
pub(crate) mod pinned;
pub(crate) mod staging;

/// Bytes of a page: 4096, or 65536 on some machines with ARM processors. The kernel rounds what it
/// maps up to them.
pub(crate) fn page_size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(1 << 16)
}
