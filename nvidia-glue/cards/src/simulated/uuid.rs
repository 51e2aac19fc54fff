//! UUIDs of simulated cards: the same on every run, so that a record of a grant still names its
//! card after a restart.

/// Lengths of the groups of a UUID's text.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
/// Digits at the end that distinguish the cards which share a prefix.
const ORDINAL_DIGITS: usize = 4;

/// `GPU-` and 32 digits: the digits of `prefix`, then digits that follow from `model`, then the
/// card's index. A prefix that leaves no room for the index wins over it. `None`: not the start of
/// a UUID.
pub(super) fn simulated(prefix: Option<&str>, model: &str, index: u32) -> Option<String> {
    let given = prefix_digits(prefix.unwrap_or(""))?;
    let made = format!("{:016x}{:016x}", fnv1a(model.as_bytes(), 0), fnv1a(model.as_bytes(), 1));
    let ordinal = format!("{index:0ORDINAL_DIGITS$x}");
    let start = made.len() - ORDINAL_DIGITS;
    let digits: String = (0..made.len())
        .filter_map(|position| {
            given
                .as_bytes()
                .get(position)
                .or_else(|| position.checked_sub(start).and_then(|place| ordinal.as_bytes().get(place)))
                .or_else(|| made.as_bytes().get(position))
                .map(|digit| char::from(*digit))
        })
        .collect();
    let mut rest = digits.as_str();
    let groups: Vec<&str> = GROUPS
        .into_iter()
        .map(|length| {
            let (group, remainder) = rest.split_at_checked(length).unwrap_or((rest, ""));
            rest = remainder;
            group
        })
        .collect();
    Some(format!("GPU-{}", groups.join("-")))
}

/// The prefix without `GPU-` and dashes, in lower case. `None` where a dash or a digit is out of
/// place.
fn prefix_digits(prefix: &str) -> Option<String> {
    let text =
        prefix.get(..4).filter(|kind| kind.eq_ignore_ascii_case("GPU-")).map_or(prefix, |kind| &prefix[kind.len()..]);
    let mut digits = String::new();
    for (position, character) in text.chars().enumerate() {
        let dash = matches!(position, 8 | 13 | 18 | 23);
        match character {
            '-' if dash => {}
            digit if !dash && position < 36 && digit.is_ascii_hexdigit() => digits.push(digit.to_ascii_lowercase()),
            _ => return None,
        }
    }
    Some(digits)
}

/// 64-bit FNV-1a. Not `std`'s hasher: that one may change with the compiler, and these names must
/// not.
fn fnv1a(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_never_change() {
        let plain = simulated(None, "Tesla V100-PCIE-32GB", 3).unwrap();
        assert!(plain.ends_with("0003"), "{plain}");
        let prefixed = simulated(Some("GPU-5eed0000-1"), "Tesla V100-PCIE-32GB", 255).unwrap();
        assert!(prefixed.starts_with("GPU-5eed0000-1") && prefixed.ends_with("00ff"), "{prefixed}");
        assert_eq!(simulated(Some("5EED"), "x", 0).unwrap().get(..8), Some("GPU-5eed"));
        let whole = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(simulated(Some(whole), "x", 9).as_deref(), Some(whole));
    }

    #[test]
    fn what_cannot_start_a_uuid_is_refused() {
        for prefix in ["xyz", "GPU-0123456789", "0123-", "GPU-01234567-89ab-cdef-0123-456789abcdef0", "é", "GPU-é"] {
            assert_eq!(simulated(Some(prefix), "x", 0), None, "{prefix}");
        }
    }

    proptest! {
        #[test]
        fn any_prefix_gives_a_uuid_that_it_starts_or_nothing(prefix in "\\PC{0,45}", index in 0u32..248) {
            if let Some(uuid) = simulated(Some(&prefix), "model", index) {
                prop_assert_eq!(uuid.len(), 40);
                let body = prefix.to_ascii_lowercase();
                prop_assert!(uuid[4..].starts_with(body.strip_prefix("gpu-").unwrap_or(&body)));
            }
        }
    }
}
