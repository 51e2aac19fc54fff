//! Amounts and percentages, short.

use base::amounts::{UNITS, decimal, human, tenths};
use runtime_config::Bytes;

/// Formats amounts in the unit of the last one: `3.2/12/32 GiB`; `?`: not known.
pub(super) fn amounts(parts: &[Option<Bytes>], all: Bytes) -> String {
    let whole = human(all);
    let (number, unit) = whole.split_once(' ').unwrap_or((&whole, ""));
    let mut text = String::new();
    for part in parts {
        text.push_str(&part.map_or_else(|| "?".to_owned(), |part| in_unit(part, unit)));
        text.push('/');
    }
    format!("{text}{number} {unit}")
}

/// Formats an amount in a unit, if it is not much smaller.
fn in_unit(bytes: Bytes, unit: &str) -> String {
    let power = UNITS.iter().position(|name| *name == unit).unwrap_or(0);
    match tenths(bytes, power) {
        0 if bytes.0 > 0 => human(bytes).replace(' ', ""),
        tenths => decimal(tenths),
    }
}

/// Formats a percentage without its sign; `?`: not known.
pub(super) fn percent(percent: Option<f64>) -> String {
    percent.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.1}"))
}

/// Formats a percentage; `-`: there is nothing to know.
pub(super) fn percent_or_dash(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}%"))
}

/// Formats a count in at most four characters.
pub(super) fn count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{}k", count / 1_000),
        1_000_000..1_000_000_000 => format!("{}M", count / 1_000_000),
        _ => "999+".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_in_one_unit() {
        let mib = |count: u64| Some(Bytes(count * Bytes::MIB));
        let all = Bytes(32 * Bytes::GIB);
        assert_eq!(amounts(&[mib(3276), mib(12288)], all), "3.2/12/32 GiB");
        assert_eq!(amounts(&[mib(10), None], all), "10MiB/?/32 GiB");
        assert_eq!(amounts(&[mib(0)], Bytes(512 * Bytes::MIB)), "0/512 MiB");
    }

    #[test]
    fn counts_have_four_characters() {
        for (number, shown) in [(0, "0"), (9_999, "9999"), (10_000, "10k"), (5_000_000, "5M"), (u64::MAX, "999+")] {
            assert_eq!(count(number), shown);
        }
    }
}
