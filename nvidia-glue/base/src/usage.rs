//! Usage of a container, written by its mediator and read by whoever asks (`egpu ps`).

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Format,
    block_file::{BlockFile, Published},
};

/// Usage of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Card by card, in the container's order.
    pub cards: Vec<CardUsage>,
    /// Its processes that use the driver, by the mediator's pid namespace.
    pub processes: Vec<ProcessUsage>,
    /// Host memory that the driver has pinned for it, or keeps for what it has pinned itself.
    #[serde(default)]
    pub pinned_memory_used_bytes: Bytes,
    /// As much as may be; 0: an older mediator, which does not say, or none.
    #[serde(default)]
    pub pinned_memory_limit_bytes: Bytes,
    /// Calls that were refused for want of memory of a card.
    pub denials: u64,
    /// Calls that were refused for want of something else that a container has a limited number of.
    #[serde(default)]
    pub refused_by_bounds: u64,
    /// Calls that the driver itself has refused for want of memory or resources.
    #[serde(default)]
    pub refused_by_driver: u64,
    /// Processes that were to be killed for asking too much.
    pub kills: u64,
    /// Calls that no table has and that were passed.
    pub unknown_passed: u64,
    /// Calls that no table has and that were refused.
    pub unknown_refused: u64,
    /// Driver calls in all.
    pub calls: u64,
    /// Cost of the mediator; `None`: an older one, which does not say.
    #[serde(default)]
    pub mediator: Option<MediatorCost>,
}

/// Cost of a container's mediator to the node, which no cgroup of the container's counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediatorCost {
    /// Processor time of the mediator and its broker.
    pub processor_us: u64,
    /// The most of it for long, in thousandths of a processor.
    pub processor_limit_millis: u64,
    /// Time for which driver calls waited for processor time.
    pub held_back_us: u64,
    /// Memory that is its own.
    pub memory_used_bytes: Bytes,
    /// The most of it.
    pub memory_limit_bytes: Bytes,
    /// Processes of the container that have brought a listener: the first ones, and those of execs.
    pub listeners: u32,
    /// The most of them.
    pub listeners_limit: u32,
    /// The kernel's OOM killer takes processes with a higher one first: `oom_score_adj`.
    pub oom_score_adj: i32,
}

/// Usage of one card by a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUsage {
    /// `GPU-...`.
    pub uuid: String,
    /// Bytes charged.
    pub used: Bytes,
    /// Bytes that it may have.
    pub limit: Bytes,
    /// The most that was ever charged.
    pub peak: Bytes,
    /// Its channels.
    #[serde(default)]
    pub channels_used: u32,
    /// Channels that it may have; 0: an older mediator, which does not say, or none.
    #[serde(default)]
    pub channels_limit: u32,
}

/// Usage of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its pid in the mediator's pid namespace.
    pub pid: i32,
    /// Its pid in the container.
    pub pid_in_container: i32,
    /// Bytes charged to it, by card UUID.
    pub cards: Vec<(String, Bytes)>,
}

impl Published for Usage {
    const FORMAT: Format = Format::new(3, 3);
}

/// The file in which a mediator publishes what its container uses.
pub type UsageFile = BlockFile<Usage>;
