//! PCI addresses as the kernel and the driver write them.

use base::PciBusId;

/// `0000:65:00.0`, `00000000:65:00.0` (NVML), or `0000:65:00` (the kernel's log; function 0).
pub(super) fn parse(text: &str) -> Option<PciBusId> {
    let mut parts = text.split(':');
    let (domain, bus, slot) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (device, function) = slot.split_once('.').unwrap_or((slot, "0"));
    let byte = |digits: &str| u8::try_from(hexadecimal(digits)?).ok();
    Some(PciBusId {
        domain: hexadecimal(domain)?,
        bus: byte(bus)?,
        device: byte(device).filter(|device| *device < 32)?,
        function: byte(function).filter(|function| *function < 8)?,
    })
}

/// Parses one to eight digits; `from_str_radix` alone would take a sign as well.
fn hexadecimal(digits: &str) -> Option<u32> {
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if plain { u32::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_in_all_their_forms() {
        let address = |domain, bus, device, function| Some(PciBusId { domain, bus, device, function });
        for (text, expected) in [
            ("0000:65:00.0", address(0, 0x65, 0, 0)),
            ("00000000:3B:00.0", address(0, 0x3b, 0, 0)),
            ("0008:01:1f", address(8, 1, 0x1f, 0)),
            ("10000:e1:02.7", address(0x10000, 0xe1, 2, 7)),
            ("0000:65", None),
            ("0000:65:00.0:1", None),
            ("0000:165:00.0", None),
            ("0000:65:20.0", None),
            ("0000:65:00.8", None),
            ("+000:65:00.0", None),
            ("0000::00.0", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciBusId { domain, bus, device, function };
            prop_assert_eq!(parse(&address.to_string()), Some(address));
        }

        #[test]
        fn any_text_is_an_address_or_none(text in "\\PC{0,24}") {
            let _ = parse(&text);
        }
    }
}
