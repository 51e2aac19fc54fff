//! Numbers in the driver's structs.

/// The four bytes at `at`; 0 beyond the end.
pub fn get(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The eight bytes at `at`; 0 beyond the end.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Puts four bytes at `at`; nothing beyond the end.
pub fn put(bytes: &mut [u8], at: usize, value: u32) {
    put_bytes(bytes, at, &value.to_le_bytes());
}

/// Puts eight bytes at `at`; nothing beyond the end.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    put_bytes(bytes, at, &value.to_le_bytes());
}

/// Puts bytes at `at`; nothing beyond the end.
pub fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = bytes.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

/// Several 4-byte numbers from offset 0 on.
pub fn words<const N: usize>(values: [u32; N], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (index, value) in values.into_iter().enumerate() {
        put(&mut bytes, index * 4, value);
    }
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

    #[test]
    fn numbers_beyond_the_end_are_nothing() {
        let mut bytes = words([1, 2], 8);
        put(&mut bytes, 6, 7);
        put_u64(&mut bytes, 0, 0x0000_0005_0000_0004);
        assert_eq!((get(&bytes, 0), get(&bytes, 4), get(&bytes, 6), get_u64(&bytes, 1)), (4, 5, 0, 0));
    }
}
