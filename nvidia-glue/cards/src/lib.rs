//! The node's cards: what they are, how they are connected, whether they may be used.
//!
//! [`discover()`] asks the driver (or the configuration, for simulated cards), [`Inventory::resolve`] turns what a
//! request names into one of them, [`Inventory::distance`] says how near two of them are.

mod cache;
mod discover;
pub mod driver_files;
mod health;
pub mod kernel_module;
mod nvidia;
mod pci;
mod resolve;
mod simulated;
mod state_file;
mod sys;
#[cfg(test)]
mod tests;
mod topology;

pub use base::Roots;
use base::{Bytes, PciBusId};
pub use discover::persistence;
pub use discover::{DiscoverError, cached, discover, processes, refresh};
pub use health::{SimulatedFault, SimulatedFaults};
pub use nvidia::{DriverError, ProcessMemory};
pub use resolve::{CardOrMig, ResolveError};
use serde::{Deserialize, Serialize};
pub use simulated::inventory as simulated_inventory;
pub use simulated::{SimulatedEdges, SimulatedError, SimulatedNodes, SimulatedNodesError, make_simulated_nodes};

/// Everything that one look at the node found. Serializable: it is asked for in a short-lived child and cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Where the cards come from.
    pub source: Source,
    /// The driver's version, `580.159.04`; for simulated cards the version that they claim. Empty: no driver.
    pub driver_version: String,
    /// The newest CUDA version that the driver supports, `13.0`. Empty: libcuda is missing.
    pub cuda_version: String,
    /// In NVML's order; `cards[i].index == i`.
    pub cards: Vec<Card>,
}

/// Where cards come from.
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
    /// MIG devices.
    pub mig_devices: Vec<MigDevice>,
    /// It can take a running container off, and so hold it to a part of its time: it runs GSP firmware.
    pub hard_caps: bool,
    /// How it takes containers off; of a simulated card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedEdges>,
    /// Whether it may be granted.
    pub health: Health,
}

/// How far apart two cards are; less is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// NVLink.
    NvLink,
    /// One PCIe switch.
    PcieSwitch,
    /// The same NUMA node or host bridge.
    NumaNode,
    /// Across sockets.
    System,
}

/// One MIG device.
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
    /// Its memory.
    pub memory: Bytes,
}

/// Whether a card may be granted.
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
