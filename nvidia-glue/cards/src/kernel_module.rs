//! Facts about the loaded kernel module in `/proc` and `/sys`, without opening any card.

use std::{fs, path::Path};

use base::PciBusId;

use super::{Roots, pci};

/// The loaded driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelModule {
    /// `580.159.04`.
    pub version: String,
    /// True if it is NVIDIA's open kernel module; `None`: not known.
    pub open: Option<bool>,
}

/// One card as `/proc/driver/nvidia/gpus/<address>/information` describes it. Fields are empty
/// until somebody has opened the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInformation {
    /// The directory's name.
    pub pci: PciBusId,
    /// `NVIDIA H200`.
    pub model: Option<String>,
    /// `GPU-...`.
    pub uuid: Option<String>,
    /// Number of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// The administrator keeps it from being used.
    pub excluded: bool,
    /// Version of the firmware that its GSP runs; `None`: it runs none, or the card has not been
    /// opened.
    pub firmware: Option<String>,
}

/// The kernel's boot id.
pub(super) fn boot_id(roots: &Roots) -> Option<String> {
    let text = fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).ok()?;
    Some(text.trim().to_owned())
}

/// The driver that is loaded. `None`: none is, or it has another shape than any known (WSL2).
pub fn loaded(roots: &Roots) -> Option<KernelModule> {
    let text = fs::read_to_string(roots.proc.join("driver/nvidia/version")).ok();
    let line = text.as_deref().and_then(|text| text.lines().next()).filter(|line| line.starts_with("NVRM version:"));
    let from_line = line.and_then(|line| line.split_ascii_whitespace().find(|word| is_version(word)));
    let from_sys = || fs::read_to_string(roots.sys.join("module/nvidia/version")).ok();
    let version = from_line.map(str::to_owned).or_else(|| from_sys().map(|text| text.trim().to_owned()))?;
    Some(KernelModule { version, open: line.map(|line| line.contains("Open Kernel Module")) })
}

/// `580.159.04`: numbers with a point between, as in the names of the driver's libraries.
pub fn is_version(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Major number of the character devices that `/proc/devices` lists under `name`.
pub fn device_major(roots: &Roots, name: &str) -> Option<u32> {
    let text = fs::read_to_string(roots.proc.join("devices")).ok()?;
    let characters = text.split("Block devices:").next()?;
    let mut lines = characters.lines().filter_map(|line| line.trim().split_once(' '));
    lines.find(|(_, listed)| *listed == name).and_then(|(major, _)| major.parse().ok())
}

/// The cards that the driver has, by PCI address.
pub fn gpus(roots: &Roots) -> Vec<GpuInformation> {
    let Ok(entries) = fs::read_dir(roots.proc.join("driver/nvidia/gpus")) else { return Vec::new() };
    let mut gpus: Vec<GpuInformation> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pci = pci::parse(entry.file_name().to_str()?)?;
            Some(information(pci, &entry.path().join("information")))
        })
        .collect();
    gpus.sort_by_key(|gpu| gpu.pci);
    gpus
}

fn information(pci: PciBusId, path: &Path) -> GpuInformation {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    parse_information(pci, &text)
}

fn parse_information(pci: PciBusId, text: &str) -> GpuInformation {
    let field = |name: &str| {
        let mut values = text.lines().filter_map(|line| line.split_once(':')).filter(|(key, _)| key.trim() == name);
        values.next().map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    GpuInformation {
        pci,
        model: field("Model"),
        // `GPU-????????-...` before the card is first opened.
        uuid: field("GPU UUID").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?')),
        minor: field("Device Minor").and_then(|minor| minor.parse().ok()),
        excluded: field("GPU Excluded").is_some_and(|value| value.eq_ignore_ascii_case("yes")),
        firmware: field("GPU Firmware").filter(|firmware| is_version(firmware)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testing::FakeNode;

    use super::*;

    #[test]
    fn versions_as_modules_of_all_kinds_write_them() {
        for (text, version, open) in [
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (b@h)  Tue\n\
                 GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
                "580.159.04",
                true,
            ),
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
                "535.104.05",
                false,
            ),
            ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue\n", "470.57.02", false),
        ] {
            let node = FakeNode::new();
            node.proc("driver/nvidia/version", text);
            let expected = KernelModule { version: version.into(), open: Some(open) };
            assert_eq!(loaded(&node.roots), Some(expected));
        }
        let node = FakeNode::new();
        assert_eq!(loaded(&node.roots), None);
        node.sys("module/nvidia/version", "580.159.04\n");
        assert_eq!(loaded(&node.roots), Some(KernelModule { version: "580.159.04".into(), open: None }));
    }

    #[test]
    fn cards_in_the_order_of_their_addresses() {
        let node = FakeNode::new();
        node.gpu("0000:9b:00.0", "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????\nDevice Minor: \t 1\n");
        node.gpu(
            "0000:1b:00.0",
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 34\nGPU UUID: \t GPU-1b0a\nBus Location: \t 0000:1b:00.0\n\
             Device Minor: \t 3\nGPU Firmware: \t 580.159.04\nGPU Excluded:\t Yes\n",
        );
        node.gpu("not-an-address", "");
        let found = gpus(&node.roots);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].minor, found[0].uuid.as_deref(), found[0].excluded), (Some(3), Some("GPU-1b0a"), true));
        assert_eq!((found[1].minor, found[1].uuid.as_deref(), found[1].excluded), (Some(1), None, false));
        assert_eq!((found[0].firmware.as_deref(), found[1].firmware.as_deref()), (Some("580.159.04"), None));
        assert_eq!(gpus(&Roots::under("/nonexistent")), []);
    }

    #[test]
    fn device_numbers_are_read_by_the_exact_name_of_character_devices() {
        let node = FakeNode::new();
        let devices =
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n508 nvidia-uvm\n\nBlock devices:\n  7 loop\n";
        node.proc("devices", devices);
        let major = |name| device_major(&node.roots, name);
        assert_eq!((major("nvidia"), major("nvidia-uvm"), major("nvidia-u")), (Some(195), Some(508), None));
        assert_eq!((major("loop"), major("")), (None, None));
    }

    proptest! {
        #[test]
        fn any_information_is_read_without_panic(text in "\\PC*") {
            let pci = PciBusId { domain: 0, bus: 1, device: 0, function: 0 };
            let _ = parse_information(pci, &text);
        }
    }
}
