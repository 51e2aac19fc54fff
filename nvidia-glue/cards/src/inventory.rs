//! The cards of the node as one discovery found them.

use base::{Bytes, PciBusId};
use serde::{Deserialize, Serialize};

/// Everything that one discovery found. Serializable: it is made in a short-lived child process,
/// and cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Source of the cards.
    pub source: Source,
    /// The driver's version, `580.159.04`; for simulated cards the version that they claim. Empty:
    /// no driver.
    pub driver_version: String,
    /// The newest CUDA version that the driver supports, `13.0`. Empty: libcuda is missing.
    pub cuda_version: String,
    /// In NVML's order; `cards[i].index == i`.
    pub cards: Vec<Card>,
}

/// Source of the node's cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// NVML.
    Nvidia,
    /// The configuration file.
    Simulated,
}

/// One physical card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// NVML's index.
    pub index: u32,
    /// `GPU-...`.
    pub uuid: String,
    /// `Tesla V100-PCIE-32GB`.
    pub model: String,
    /// `Tesla`, as NVML's brand; for `NVIDIA_REQUIRE_*`.
    pub brand: String,
    /// Compute capability, `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// NVML's total, reserve included.
    pub memory: Bytes,
    /// Number of `/dev/nvidiaN`. Not the index.
    pub minor: u32,
    /// PCI address.
    pub pci: PciBusId,
    /// NUMA node, where the platform has one.
    pub numa_node: Option<u32>,
    /// Link to other cards by their index; a card that is not listed is `Distance::System` away.
    pub links: Vec<(u32, Distance)>,
    /// MIG mode is on: the card itself is not offered, its devices are.
    pub mig_enabled: bool,
    pub mig_devices: Vec<MigDevice>,
    /// It can take a running container off, and so hold it to a part of its time: it runs GSP
    /// firmware.
    pub hard_caps: bool,
    /// Edges of a simulated card: how it takes containers off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedEdges>,
    /// Health: whether it may be granted.
    pub health: Health,
}

/// Distance between two cards; less is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// NVLink.
    NvLink,
    PcieSwitch,
    /// The same NUMA node or host bridge.
    NumaNode,
    /// Across sockets.
    System,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// NVML's index on its card.
    pub index: u32,
    /// `MIG-...`.
    pub uuid: String,
    /// GPU instance id.
    pub gpu_instance: u32,
    /// Compute instance id.
    pub compute_instance: u32,
    pub memory: Bytes,
}

/// Health of a card: whether it may be granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Yes.
    Ok,
    /// No, and why: lost, needs recovery, or a fatal Xid since boot.
    Unusable {
        /// For people: `Xid 79 (GPU has fallen off the bus) since boot`.
        reason: String,
    },
}

/// Edges of a simulated card: how it takes containers off and puts them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatedEdges {
    /// Its driver does it when it is asked to, if the card has the firmware for it.
    pub are_taken: bool,
    /// Duration of the call that puts channels on the card; they are there when it ends.
    pub opening_us: u64,
    /// Duration of the call that takes them off.
    pub closing_us: u64,
    /// Time that a group of channels loses on the engine each time that it was put back.
    pub ramp_us: u64,
}

impl Default for SimulatedEdges {
    /// They cost nothing.
    fn default() -> Self {
        Self { are_taken: true, opening_us: 0, closing_us: 0, ramp_us: 0 }
    }
}
