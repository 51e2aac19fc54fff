//! The driver's error reports in the kernel's log ("Xid"), and which of them leave a card unusable.

use base::PciBusId;

use crate::pci;

/// Meaning of one line of the kernel's log for the health of cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// The kernel module was loaded: whatever was before concerns a driver that is gone.
    DriverLoaded,
    /// An Xid of one card.
    Xid {
        card: PciBusId,
        /// Its consequence.
        meaning: Meaning,
    },
}

/// Consequence of an Xid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The card computes nothing reliable until it is reset; why, for people.
    NeedsReset {
        /// Its number.
        xid: u32,
        /// For people.
        reason: String,
    },
    /// The driver says that nothing needs to be done (any more).
    Recovered,
    /// A memory error was confined to the programs that it hit; takes back a double bit error (48)
    /// reported with it.
    Contained,
    /// A program's own fault, or something that the card has got over.
    Harmless,
}

/// A double bit error alone: fatal unless the driver then says that it was contained.
pub(super) const DOUBLE_BIT_ERROR: u32 = 48;

/// The Xids after which NVIDIA's Xid catalogue asks, as the immediate action, for a reset of the
/// card or a restart of the machine
/// (<https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>: `RESET_GPU`,
/// `RESTART_BM`, `RESTART_VM`), and 48, of which it says so unless 94 shows the error to be
/// contained.
///
/// Left out on purpose: what only ends programs (13, 31, 43, 45, 94, ...), 109, which the catalogue
/// lists but which a program can bring about (NVIDIA's device plugin for Kubernetes counts it as
/// the program's error: else any tenant could take a card from all others), what the card repairs
/// by itself (63, 92), NVLink errors whose effect depends on bits of the message (74, 144 to 150),
/// and whatever is newer than this table. Where one of them does need a reset, newer drivers say so
/// in an Xid 154 of its own.
const NEEDS_RESET: &[(u32, &str)] = &[
    (46, "GPU stopped processing"),
    (DOUBLE_BIT_ERROR, "double bit ECC error"),
    (62, "internal micro-controller halt"),
    (64, "memory remapping failure"),
    (79, "GPU has fallen off the bus"),
    (95, "uncontained memory error"),
    (110, "security fault"),
    (119, "GSP RPC timeout"),
    (120, "GSP error"),
    (136, "link training failed"),
    (140, "unrecovered ECC error"),
    (143, "GPU initialization error"),
    (151, "key rotation error"),
    (155, "NVLink software-defined error"),
    (156, "resource retirement event"),
    (158, "GPU fatal timeout"),
];

/// Reported when the action changes that the driver asks for (driver 555 and later).
const RECOVERY_ACTION_CHANGED: u32 = 154;
const CONTAINED: u32 = 94;
/// Longest part of the driver's own words that is kept.
const MOST_QUOTED: usize = 60;

/// Reads one message of the kernel's log (the part behind the header). `None`: not about a card's
/// health.
pub(super) fn parse(message: &str) -> Option<Report> {
    if message.starts_with("NVRM: loading NVIDIA UNIX ") {
        return Some(Report::DriverLoaded);
    }
    let Xid { card, number, words } = xid(message)?;
    Some(Report::Xid { card, meaning: meaning(number, words) })
}

/// One error report as it stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Xid<'a> {
    pub(super) card: PciBusId,
    pub(super) number: u32,
    /// Text after the number.
    pub(super) words: &'a str,
}

/// Reads an error report; `None`: the message is none.
pub(super) fn xid(message: &str) -> Option<Xid<'_>> {
    // `Xid (PCI:0000:65:00): 79, ...`; older drivers leave `PCI:` out, MIG adds ` GPU-I:01` to the
    // address.
    let (place, rest) = message.strip_prefix("NVRM: Xid (")?.split_once(')')?;
    let address = place.strip_prefix("PCI:").unwrap_or(place).split_ascii_whitespace().next()?;
    let card = pci::parse(address)?;
    let rest = rest.strip_prefix(':')?.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, words) = rest.split_at_checked(digits)?;
    Some(Xid { card, number: number.parse().ok()?, words })
}

fn meaning(number: u32, words: &str) -> Meaning {
    match number {
        RECOVERY_ACTION_CHANGED => recovery_action(words),
        CONTAINED => Meaning::Contained,
        _ => match NEEDS_RESET.iter().find(|(fatal, _)| *fatal == number) {
            Some((_, what)) => Meaning::NeedsReset { xid: number, reason: format!("Xid {number} ({what}) since boot") },
            None => Meaning::Harmless,
        },
    }
}

/// `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`. The words have
/// changed between drivers, the number has not: 0 is none. A message that cannot be read asks for
/// something, else it would not be there.
fn recovery_action(words: &str) -> Meaning {
    let (number, name) = words.rsplit_once(" to 0x").map_or(("", ""), |(_, wanted)| {
        let digits = wanted.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(wanted.len());
        wanted.split_at_checked(digits).unwrap_or((wanted, ""))
    });
    if u32::from_str_radix(number, 16) == Ok(0) {
        return Meaning::Recovered;
    }
    let name: String = name.trim().trim_matches(['(', ')']).chars().take(MOST_QUOTED).collect();
    let name = if name.is_empty() { "recovery needed".to_owned() } else { name };
    let reason = format!("Xid {RECOVERY_ACTION_CHANGED} ({name})");
    Meaning::NeedsReset { xid: RECOVERY_ACTION_CHANGED, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(bus: u8) -> PciBusId {
        PciBusId { domain: 0, bus, device: 0, function: 0 }
    }

    fn fatal(xid: u32, reason: &str) -> Meaning {
        Meaning::NeedsReset { xid, reason: reason.into() }
    }

    #[test]
    fn lines_as_drivers_write_them() {
        for (line, bus, meaning) in [
            (
                "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                0x65,
                fatal(79, "Xid 79 (GPU has fallen off the bus) since boot"),
            ),
            ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 1, {
                fatal(79, "Xid 79 (GPU has fallen off the bus) since boot")
            }),
            ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 3, Meaning::Harmless),
            ("NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=x, Graphics SM Warp Exception", 0xcb, Meaning::Harmless),
            ("NVRM: Xid (PCI:0000:41:00 GPU-I:05 GPU-CI:00): 31, pid=7, name=python", 0x41, Meaning::Harmless),
            (
                "NVRM: Xid (PCI:0000:41:00.0): 95, pid=7",
                0x41,
                fatal(95, "Xid 95 (uncontained memory error) since boot"),
            ),
            ("NVRM: Xid (PCI:0000:41:00): 94, pid=7, Contained: SM (0x1)", 0x41, Meaning::Contained),
            ("NVRM: Xid (PCI:0000:41:00): 63, Row Remapper: New row marked", 0x41, Meaning::Harmless),
            (
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
                1,
                fatal(154, "Xid 154 (Node Reboot Required)"),
            ),
            (
                "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
                1,
                Meaning::Recovered,
            ),
            ("NVRM: Xid (PCI:0000:01:00): 154, something new", 1, fatal(154, "Xid 154 (recovery needed)")),
        ] {
            assert_eq!(parse(line), Some(Report::Xid { card: at(bus), meaning }), "{line}");
        }
        let loading = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build";
        assert_eq!(parse(loading), Some(Report::DriverLoaded));
    }

    #[test]
    fn what_is_no_xid_is_left_alone() {
        for line in [
            "",
            "NVRM: ",
            "NVRM: Xid",
            "NVRM: Xid (",
            "NVRM: Xid ()",
            "NVRM: Xid (): 79",
            "NVRM: Xid (PCI:): 79",
            "NVRM: Xid (PCI:0000:65:00)",
            "NVRM: Xid (PCI:0000:65:00) 79",
            "NVRM: Xid (PCI:0000:65:00): abc",
            "NVRM: Xid (PCI:0000:65:00): 99999999999999999999",
            "NVRM: Xid (PCI:zzzz:65:00): 79",
            "NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.",
            "nvidia: NVRM: Xid (PCI:0000:65:00): 79",
            " NVRM: Xid (PCI:0000:65:00): 79",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn the_table_is_in_order_and_without_repetition() {
        assert!(NEEDS_RESET.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    proptest! {
        #[test]
        fn hostile_lines_never_panic(line in "\\PC*") {
            let _ = parse(&line);
        }

        #[test]
        fn hostile_tails_never_panic(line in "(NVRM: Xid \\((PCI:)?){0,1}[0-9a-f:. ]{0,20}\\)?:? ?[0-9]{0,12},?\\PC{0,40}") {
            let _ = parse(&line);
            let _ = parse(&format!("NVRM: Xid (PCI:0000:65:00): 154, {line}"));
        }

        #[test]
        fn no_program_name_can_change_the_verdict(name in "\\PC{0,16}") {
            let line = format!("NVRM: Xid (PCI:0000:65:00): 13, pid=1, name={name}, Graphics Exception");
            prop_assert_eq!(parse(&line), Some(Report::Xid { card: at(0x65), meaning: Meaning::Harmless }));
        }
    }
}
