//! Numbers at offsets: a second opinion on the offsets of the fields that the driver uses.

use abi::layout;

pub(super) fn get(bytes: &[u8], at: usize) -> u32 {
    layout::read_u32(bytes, at).unwrap_or(0)
}

pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    layout::read_u64(bytes, at).unwrap_or(0)
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: u32) {
    let _ = layout::write_u32(bytes, at, value);
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    let _ = layout::write_u64(bytes, at, value);
}
