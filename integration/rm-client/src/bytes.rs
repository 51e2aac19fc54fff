//! Fields of the driver's structs, and sizes as people write them.

use abi::params::{Field, Value};

/// Returns a field; 0 beyond the end.
pub fn get<T: Value + Default>(bytes: &[u8], field: Field<T>) -> T {
    field.get(bytes).unwrap_or_default()
}

/// Writes a field; nothing beyond the end.
pub fn put<T: Value>(bytes: &mut [u8], field: Field<T>, value: T) {
    let _ = field.set(bytes, value);
}

/// Writes bytes at an offset; nothing beyond the end.
pub fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

/// Creates parameters of a length that begin with 4-byte numbers.
pub fn words<const N: usize>(values: [u32; N], length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.resize(length, 0);
    bytes
}

/// A size as people write it: bytes, or with `K`, `KiB`, `M`, `MiB`, `G`, `GiB`. `None`: not one.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let factor = match unit {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in [("4096", Some(4096)), ("64K", Some(65536)), ("3MiB", Some(3 << 20)), ("2G", Some(2 << 30))]
        {
            assert_eq!(parse_size(text), size, "{text}");
        }
        for text in ["", "M", "1T", "-1", "99999999999G"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
