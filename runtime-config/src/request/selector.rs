//! How one card or MIG device is named in a request.

use std::fmt;

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

/// A PCI address, `0000:65:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciBusId {
    /// Domain; NVML writes eight digits, Linux four.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciBusId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}
