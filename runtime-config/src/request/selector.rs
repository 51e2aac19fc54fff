//! Names of one card or MIG device in a request.

use std::{collections::HashSet, fmt, str::FromStr};

use base::PciBusId;
use serde::{Deserialize, Serialize};

/// One item of `NVIDIA_VISIBLE_DEVICES` or `EGPU_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceSelector {
    /// The card's index in NVML's order.
    Index(u32),
    /// A card's UUID or an unambiguous prefix of it, as written, with `GPU-`.
    Uuid(String),
    /// A MIG device's UUID as written, with `MIG-`.
    MigUuid(String),
    /// `0:1`: card index, MIG index.
    MigIndex {
        /// The card's index.
        card: u32,
        /// The MIG device's index on it.
        mig: u32,
    },
    /// A PCI bus id.
    Pci(PciBusId),
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(formatter, "{index}"),
            Self::Uuid(uuid) | Self::MigUuid(uuid) => formatter.write_str(uuid),
            Self::MigIndex { card, mig } => write!(formatter, "{card}:{mig}"),
            Self::Pci(id) => write!(formatter, "{id}"),
        }
    }
}

/// Text that names no card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a card is named by its index (0), UUID (GPU-...), PCI address (0000:65:00.0), or MIG device (MIG-..., 0:1)")]
pub struct ParseSelectorError;

/// Names under which CDI knows the same devices, accepted before the name.
const CDI_KINDS: [&str; 3] = ["nvidia.com/gpu=", "runtime.nvidia.com/gpu=", "k8s.device-plugin.nvidia.com/gpu="];
/// The longest UUID: `MIG-GPU-<36 characters>/<GPU instance>/<compute instance>`.
const MAX_UUID: usize = 64;

impl FromStr for DeviceSelector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<Self, ParseSelectorError> {
        let text = CDI_KINDS.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
        if let Some(index) = decimal(text) {
            return Ok(Self::Index(index));
        }
        if is_uuid(text, "GPU-", b"-") {
            return Ok(Self::Uuid(text.to_owned()));
        }
        if is_uuid(text, "MIG-", b"-/GPU") {
            return Ok(Self::MigUuid(text.to_owned()));
        }
        if let Some((card, mig)) = text.split_once(':')
            && let (Some(card), Some(mig)) = (decimal(card), decimal(mig))
        {
            return Ok(Self::MigIndex { card, mig });
        }
        text.parse().map(Self::Pci).map_err(|_| ParseSelectorError)
    }
}

impl DeviceSelector {
    /// Returns whether both name the same device as far as their text tells.
    pub(crate) fn same_text(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Uuid(one), Self::Uuid(other)) | (Self::MigUuid(one), Self::MigUuid(other)) => {
                one.eq_ignore_ascii_case(other)
            }
            _ => self == other,
        }
    }

    /// Equal for those that are the [`same_text`](Self::same_text).
    fn in_lower_case(&self) -> Self {
        match self {
            Self::Uuid(uuid) => Self::Uuid(uuid.to_ascii_lowercase()),
            Self::MigUuid(uuid) => Self::MigUuid(uuid.to_ascii_lowercase()),
            other => other.clone(),
        }
    }

    /// Returns whether it names a MIG device.
    pub fn is_mig(&self) -> bool {
        matches!(self, Self::MigUuid(_) | Self::MigIndex { .. })
    }
}

/// `0`, `17`; nothing but digits.
fn decimal(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn is_uuid(text: &str, prefix: &str, besides_hex: &[u8]) -> bool {
    text.len() <= MAX_UUID
        && text.strip_prefix(prefix).is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || besides_hex.contains(&byte))
        })
}

/// The meaning of a list in the manner of `NVIDIA_VISIBLE_DEVICES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeviceList {
    /// Empty, or `void` stands in it: nothing is asked.
    Void,
    /// `none`: driver files, no card.
    None,
    /// `all`.
    All,
    /// Particular devices, without repetition. Never empty.
    Devices(Vec<DeviceSelector>),
}

impl FromStr for DeviceList {
    type Err = ParseSelectorError;

    /// Blanks around items and empty items are skipped; `void` anywhere counts, else the first of
    /// `none` and `all`.
    fn from_str(text: &str) -> Result<Self, ParseSelectorError> {
        let items = || text.split(',').map(str::trim).filter(|item| !item.is_empty());
        if items().any(|item| item == "void") {
            return Ok(Self::Void);
        }
        let mut devices: Vec<DeviceSelector> = Vec::new();
        let mut known = HashSet::new();
        for item in items() {
            match item {
                "none" => return Ok(Self::None),
                "all" | "nvidia.com/gpu=all" | "runtime.nvidia.com/gpu=all" => return Ok(Self::All),
                _ => {
                    let device: DeviceSelector = item.parse()?;
                    if known.insert(device.in_lower_case()) {
                        devices.push(device);
                    }
                }
            }
        }
        Ok(if devices.is_empty() { Self::Void } else { Self::Devices(devices) })
    }
}

impl DeviceList {
    /// The tighter of two: nothing before driver files before cards, and of two lists of cards the
    /// one that the other contains. `None` where neither contains the other.
    pub(crate) fn tighter(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Void, _) | (_, Self::Void) => Some(Self::Void),
            (Self::None, _) | (_, Self::None) => Some(Self::None),
            (Self::All, list) | (list, Self::All) => Some(list),
            (Self::Devices(one), Self::Devices(other)) => {
                let contains = |list: &[DeviceSelector], part: &[DeviceSelector]| {
                    part.iter().all(|device| list.iter().any(|known| known.same_text(device)))
                };
                if contains(&other, &one) {
                    Some(Self::Devices(one))
                } else if contains(&one, &other) {
                    Some(Self::Devices(other))
                } else {
                    None
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_in_five_ways() {
        let pci = |domain, bus, device, function| Some(DeviceSelector::Pci(PciBusId { domain, bus, device, function }));
        let uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
        for (text, selector) in [
            ("0", Some(DeviceSelector::Index(0))),
            ("007", Some(DeviceSelector::Index(7))),
            (uuid, Some(DeviceSelector::Uuid(uuid.into()))),
            ("GPU-89", Some(DeviceSelector::Uuid("GPU-89".into()))),
            ("nvidia.com/gpu=GPU-89", Some(DeviceSelector::Uuid("GPU-89".into()))),
            ("runtime.nvidia.com/gpu=1", Some(DeviceSelector::Index(1))),
            ("MIG-8932f937-d72c", Some(DeviceSelector::MigUuid("MIG-8932f937-d72c".into()))),
            ("MIG-GPU-8932f937/1/0", Some(DeviceSelector::MigUuid("MIG-GPU-8932f937/1/0".into()))),
            ("0:1", Some(DeviceSelector::MigIndex { card: 0, mig: 1 })),
            ("0000:65:00.0", pci(0, 0x65, 0, 0)),
            ("00000001:0a:1F.7", pci(1, 0x0a, 0x1f, 7)),
            ("65:00.0", pci(0, 0x65, 0, 0)),
            ("65:20.0", None),
            ("65:00.8", None),
            ("4294967296", None),
            ("-1", None),
            ("+1", None),
            ("GPU-", None),
            ("GPU-xyz", None),
            ("gpu-89", None),
            ("MIG-", None),
            ("0:", None),
            (":0", None),
            ("0 1", None),
            ("nvidia.com/gpu=", None),
            ("amd.com/gpu=0", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), selector, "{text:?}");
        }
    }

    #[test]
    fn a_selector_is_shown_as_it_is_read() {
        for text in ["3", "GPU-89ab", "MIG-GPU-89ab/1/0", "0:1", "0000:65:00.0"] {
            assert_eq!(text.parse::<DeviceSelector>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn lists_of_devices() {
        use DeviceSelector::{Index, Uuid};
        for (text, list) in [
            ("", Some(DeviceList::Void)),
            (" , ", Some(DeviceList::Void)),
            ("void", Some(DeviceList::Void)),
            ("0,void", Some(DeviceList::Void)),
            ("none", Some(DeviceList::None)),
            ("all", Some(DeviceList::All)),
            ("0,all", Some(DeviceList::All)),
            ("none,all", Some(DeviceList::None)),
            ("0,GPU-ab,0,GPU-AB", Some(DeviceList::Devices(vec![Index(0), Uuid("GPU-ab".into())]))),
            (" 1 ,, 0", Some(DeviceList::Devices(vec![Index(1), Index(0)]))),
            ("0,x", None),
            ("All", None),
        ] {
            assert_eq!(text.parse().ok(), list, "{text:?}");
        }
    }
}
