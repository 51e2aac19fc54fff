//! Amounts of memory for people. What programs read has them exactly, and so has what is compared:
//! as [`Bytes`] are written, which can be copied into a request.

use crate::units::Bytes;

/// Names of the units, each 1024 of the one before.
pub const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// Formats an amount with at most one decimal, rounded, in the largest unit of which it is at least
/// one: `9.6 GiB`, `512 MiB`, `0 B`.
pub fn human(bytes: Bytes) -> String {
    // An amount that is rounded up to 1024 of a unit is one of the next.
    let unit = (0..UNITS.len() - 1).find(|unit| tenths(bytes, *unit) < 10_240).unwrap_or(UNITS.len() - 1);
    format!("{} {}", decimal(tenths(bytes, unit)), UNITS.get(unit).copied().unwrap_or_default())
}

/// Returns an amount in tenths of a unit of [`UNITS`], rounded.
pub fn tenths(bytes: Bytes, unit: usize) -> u128 {
    // 128 bits hold ten times every amount.
    (u128::from(bytes.0) * 10 + (1 << (10 * unit)) / 2) >> (10 * unit)
}

/// Formats tenths, with at most one decimal.
pub fn decimal(tenths: u128) -> String {
    match (tenths / 10, tenths % 10) {
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_never_1024_of_a_unit() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (512 * Bytes::MIB, "512 MiB"),
            (3276 * Bytes::MIB, "3.2 GiB"),
            (10_066_329 * Bytes::KIB, "9.6 GiB"),
            (Bytes::GIB - 1, "1 GiB"),
            (32 * Bytes::GIB, "32 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(human(Bytes(bytes)), shown, "{bytes}");
        }
    }
}
