//! Fields of structs whose length has been checked: what lies outside reads as 0, and a write there
//! is lost.

use abi::params::{Field, Layout, Value};

pub(super) fn get<T: Value + Default>(bytes: &[u8], field: Field<T>) -> T {
    field.get(bytes).unwrap_or_default()
}

pub(super) fn put<T: Value>(bytes: &mut [u8], field: Field<T>, value: T) {
    let _ = field.set(bytes, value);
}

/// Reads the first `count` elements of an array.
pub(super) fn list<T: Value, const COUNT: usize>(bytes: &[u8], field: Field<[T; COUNT]>, count: usize) -> Vec<T> {
    (0..count).filter_map(|index| field.element(index)?.get(bytes)).collect()
}

/// Bytes of each element of an array of structs.
pub(super) fn elements<T: Layout, const COUNT: usize>(
    bytes: &mut [u8],
    field: Field<[T; COUNT]>,
) -> impl Iterator<Item = &mut [u8]> {
    field.bytes_mut(bytes).unwrap_or_default().chunks_exact_mut(T::SIZE)
}

/// Fills a field with one byte.
pub(super) fn fill<T: Layout>(bytes: &mut [u8], field: Field<T>, byte: u8) {
    field.bytes_mut(bytes).unwrap_or_default().fill(byte);
}

/// Writes bytes at the beginning of a field, and zeros after them.
pub(super) fn put_text<T: Layout>(bytes: &mut [u8], field: Field<T>, text: &[u8]) {
    fill(bytes, field, 0);
    for (place, byte) in field.bytes_mut(bytes).unwrap_or_default().iter_mut().zip(text) {
        *place = *byte;
    }
}

/// Reads eight bytes of a file of the simulator's own.
pub(super) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    abi::layout::read_u64(bytes, at).unwrap_or(0)
}

/// Writes eight bytes of a file of the simulator's own.
pub(super) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    let _ = abi::layout::write_u64(bytes, at, value);
}
