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
