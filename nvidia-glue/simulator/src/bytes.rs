//! Numbers in structs whose length has been checked: what lies outside reads as 0, and a write there is lost.

use abi::layout;

pub(super) fn get(bytes: &[u8], at: usize) -> u32 {
    layout::read_u32(bytes, at).unwrap_or(0)
}

pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    layout::read_u64(bytes, at).unwrap_or(0)
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: u32) {
    put_bytes(bytes, at, &value.to_le_bytes());
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put_bytes(bytes, at, &value.to_le_bytes());
}

pub(super) fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) {
        field.copy_from_slice(value);
    }
}
