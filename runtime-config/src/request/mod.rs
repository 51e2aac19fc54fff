//! A container's request, whatever language it was made in.
//!
//! `Source` (environment, annotations, device nodes that are already in the spec) -> dialect ->
//! [`GpuRequest`].

mod cards;
mod claim;
mod dialect;
mod error;
mod parse;
mod per_card;
mod requirement;
mod selector;
mod service_links;
mod source;
mod statements;
mod terms;

use std::{fmt, path::PathBuf};

pub use base::{CardPolicy, ComputeShare, OverMemory, PciBusId, Priority};
pub use claim::ClaimRequest;
pub use dialect::is_of_a_request;
pub use error::{AsWritten, RequestError, Shown, is_control_or_format};
pub use parse::{asked, parse};
pub use per_card::{CardCountError, PerCard};
pub use requirement::{Platform, UnsatisfiedRequirement};
pub use selector::{DeviceSelector, ParseSelectorError};
use serde::{Deserialize, Serialize};
pub use source::{NvidiaHook, PresentNodes, Privileges, Source};

use crate::units::Bytes;
pub use crate::{
    driver_capabilities::{DriverCapabilities, UnknownCapability},
    memory_limit::{MemoryLimit, ParseMemoryLimitError},
};

/// The meaning of one container's spec as to GPUs.
#[derive(Debug, Clone, PartialEq)]
pub enum ContainerRequest {
    /// No request: the container gets no GPU.
    None {
        /// Statements about GPUs that were not believed, and why, for the log.
        warnings: Vec<String>,
    },
    /// A request for cards, driver files, or both.
    Gpu(Box<GpuRequest>),
    /// A request of a pod's container without a claim, on a node where only claims count.
    WithoutClaim {
        /// Its request, as it stands.
        asked: Vec<String>,
        /// The reason, for people.
        why: String,
    },
    /// Requests of Kubernetes' claims, which say what it gets.
    Claims(Box<ClaimRequest>),
}

/// The language that a request was made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// `egpu.io/*` annotations and `EGPU_*` variables.
    Native,
    /// `NVIDIA_VISIBLE_DEVICES` alone, CDI nodes, or Docker's `--gpus`.
    Nvidia,
    /// `AMP_VGPU_ENABLE=1`.
    AlibabaEgpu,
    /// `ALIYUN_COM_GPU_*`.
    AlibabaCgpu,
    /// `EGPU=`.
    CtyunEgpu,
    /// `CUDA_DEVICE_*`.
    Hami,
    /// `NVIDIA_GPU_MEMORY_*` and `nvidia.com/container.NAME.*` annotations.
    NvidiaFractions,
    /// `GPU_PORTION` and `gpu-fraction`, `gpu-memory` annotations; also where the two before speak
    /// beside them.
    Kai,
}

/// The language of a request that was written down, perhaps by another build. The language decides
/// nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WrittenDialect {
    /// One of this build's.
    Known(Dialect),
    /// Another one, by its name.
    Unknown(String),
}

impl From<Dialect> for WrittenDialect {
    fn from(dialect: Dialect) -> Self {
        Self::Known(dialect)
    }
}

impl fmt::Display for WrittenDialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(dialect) => dialect.fmt(formatter),
            Self::Unknown(name) => name.fmt(formatter),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Native => "egpu",
            Self::Nvidia => "NVIDIA",
            Self::AlibabaEgpu => "Alibaba eGPU",
            Self::AlibabaCgpu => "Alibaba cGPU",
            Self::CtyunEgpu => "CTYun eGPU",
            Self::Hami => "HAMi",
            Self::NvidiaFractions => "NVIDIA's fractions",
            Self::Kai => "KAI",
        })
    }
}

/// One container's request, validated as far as that is possible without knowing the node's cards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuRequest {
    /// The language of the limits. Where native and a foreign one both spoke, the foreign one.
    pub dialect: WrittenDialect,
    /// The cards asked for.
    pub cards: CardRequest,
    /// Cards given whole beside those: what this names that `cards` does not (cGPU:
    /// `NVIDIA_VISIBLE_DEVICES` beside `ALIYUN_COM_GPU_VISIBLE_DEVICES`). Usually
    /// `CardRequest::None`.
    pub whole_cards: CardRequest,
    /// Every card that is chosen or named must be one of these: somebody whose word counts more
    /// than the request's (a device plugin, through `NVIDIA_VISIBLE_DEVICES` or device nodes)
    /// allows no others.
    pub within: Option<CardRequest>,
    /// The share of them.
    pub share: Share,
    /// The card policy that the request needs; `None`: any.
    pub policy: Option<CardPolicy>,
    /// The manner in which egpu chooses cards, where it does.
    pub placement: Placement,
    /// Replicas of one workload carry the same group; `spread` keeps them apart. `None`: the
    /// request does not say; whoever knows the pod may fill in its owner.
    pub group: Option<String>,
    /// The container's names in Kubernetes, for listings; whoever knows them fills them in.
    #[serde(default)]
    pub pod: Option<PodContainer>,
    /// The priority on a card that is contended.
    pub priority: Priority,
    /// Host memory that the driver may pin for it; `None`: the most that the node gives without
    /// being asked.
    #[serde(default)]
    pub pinned_memory: Option<Bytes>,
    /// The fate of a program that asks for more memory than it was granted.
    pub over_memory: OverMemory,
    /// Program in the container that runs before an over-memory kill.
    pub oom_script: Option<PathBuf>,
    /// `egpu set` may change the quota while the container runs.
    pub live_update: bool,
    /// The parts of the driver's user space that are wanted.
    pub driver_capabilities: DriverCapabilities,
    /// Conditions on the driver and the cards (`NVIDIA_REQUIRE_*`), each of which must hold.
    /// Empty when `NVIDIA_DISABLE_REQUIRE` is set.
    pub requirements: Vec<Requirement>,
    /// Further wishes of the NVIDIA variables: they change what is injected, not what is granted.
    pub extras: NvidiaExtras,
    /// The variables and annotations that made the request, `NAME=value`, for the log and the
    /// record.
    pub asked: Vec<String>,
    /// The values of `NVIDIA_VISIBLE_DEVICES`, where they alone ask for the cards that would be
    /// held: the container's image may have set them. Of no interest once the request is believed.
    #[serde(skip)]
    pub visible_devices_alone: Vec<String>,
    /// Statements that were ignored or hold less than was asked, and why, for the log.
    pub warnings: Vec<String>,
}

/// A container of a Kubernetes pod, as its node knows it. Whoever made it may have said
/// anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name in the pod.
    pub container: String,
}

impl fmt::Display for PodContainer {
    /// `team/train-0/main`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// The cards that a container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardRequest {
    /// Driver files but no card (`NVIDIA_VISIBLE_DEVICES=none`).
    None,
    /// Every card of the node.
    All,
    /// A number of cards, at least 1; egpu chooses.
    Count(u32),
    /// Particular cards, in this order, without repetition.
    Devices(Vec<DeviceSelector>),
    /// The cards whose device nodes somebody (CDI) has put into the spec already.
    PresentNodes {
        /// Minor numbers of `/dev/nvidiaN`.
        cards: Vec<u32>,
        /// Minor numbers of `/dev/nvidia-caps/nvidia-capN`: not empty where MIG devices were put
        /// in, whose parents are then among `cards`.
        capabilities: Vec<u32>,
    },
}

/// The share of each card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Whole cards: recorded as exclusive, no quota.
    Exclusive,
    /// `utility` alone: the container monitors cards but computes nothing; it holds nothing. Also
    /// where there is no card.
    Monitor,
    /// A part of each card.
    Part {
        /// Memory. Each entry holds every limit that applies to that card: the tightest counts. No
        /// limit: the card's whole memory, counted whole.
        memory: PerCard<Vec<MemoryLimit>>,
        /// Compute likewise.
        compute: PerCard<ComputeShare>,
        /// Limits hold, or are only recorded.
        isolation: Isolation,
    },
}

/// The enforcement of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Memory and compute.
    #[default]
    Full,
    /// Memory only.
    Memory,
    /// Recorded and mediated, not limited.
    None,
}

/// The manner in which egpu chooses cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The fullest card that still fits.
    #[default]
    Binpack,
    /// The emptiest; replicas apart.
    Spread,
}

/// Further wishes that the NVIDIA variables may state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NvidiaExtras {
    /// `NVIDIA_IMEX_CHANNELS`: channel numbers.
    pub imex_channels: Vec<u32>,
    /// `NVIDIA_MIG_CONFIG_DEVICES=all`.
    pub mig_config: bool,
    /// `NVIDIA_MIG_MONITOR_DEVICES=all`.
    pub mig_monitor: bool,
    /// `NVIDIA_GDS=enabled`.
    pub gds: bool,
    /// `NVIDIA_MOFED=enabled`.
    pub mofed: bool,
    /// `NVIDIA_GDRCOPY=enabled`.
    pub gdrcopy: bool,
    /// `NVIDIA_NVSWITCH=enabled`.
    pub nvswitch: bool,
}

/// One `NVIDIA_REQUIRE_*` variable: alternatives (space = OR) of conditions (comma = AND).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirement {
    /// The variable's name.
    pub variable: String,
    /// Alternatives of which at least one must hold; in each, all conditions.
    pub alternatives: Vec<Vec<Condition>>,
}

/// `property operator value`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The property that is compared.
    pub property: Property,
    /// The comparison.
    pub operator: Operator,
    /// The value to compare with, as written.
    pub value: String,
}

/// The property that a [`Condition`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Property {
    /// The newest CUDA version that the driver supports.
    Cuda,
    /// The driver's version.
    Driver,
    /// The card's compute capability.
    Arch,
    /// The card's brand; compared without regard to case, `=` and `!=` only.
    Brand,
}

/// The comparison of a [`Condition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}
