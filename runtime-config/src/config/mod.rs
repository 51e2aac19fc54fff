//! The node's configuration file.
//!
//! A setting is declared in two places. `default.toml` has its text for people and its default; a
//! field of [`Config`], or of one of its tables, has its type and what is accepted ([`accept`]).
//! [`Document`] finds what is wrong with a file.

mod accept;
#[cfg(test)]
mod docs_tests;
mod document;
mod error;
#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use base::{CardPolicies, CardPolicy, ComputeShare};
pub use base::{MAX_PERIOD_US, MIN_PERIOD_US, Period, PriorityMode, Throttle};
use serde::Deserialize;

use document::Document;
pub(crate) use document::nearest;
pub use error::ConfigError;

use crate::{
    driver_capabilities::DriverCapabilities,
    memory_limit::MemoryLimit,
    units::{Bytes, Percent},
};

/// Path of the file unless [`PATH_VARIABLE`] names another.
pub const DEFAULT_PATH: &str = "/etc/egpu/config.toml";

/// The environment variable that names another file.
pub const PATH_VARIABLE: &str = "EGPU_CONFIG";

/// The commented file that `egpu config default` prints: every key with its default.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// The most simulated cards of a node.
const MOST_SIMULATED_CARDS: i64 = 64;

/// The node's configuration, every value within its range. Fields are named as the file's keys.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The ledger's directory. Absolute.
    #[serde(deserialize_with = "accept::absolute_path")]
    pub state_dir: PathBuf,
    /// The group that may read there what commands show, by its name or number; empty: root's.
    #[serde(deserialize_with = "accept::group")]
    pub state_group: String,
    /// The decision log. Absolute.
    #[serde(deserialize_with = "accept::absolute_path")]
    pub log_file: PathBuf,
    /// Environment variables may ask.
    pub accept_env: bool,
    /// Environment variables alone may name cards for a container without CAP_SYS_ADMIN.
    pub accept_nvidia_visible_devices_envvar_when_unprivileged: bool,
    /// Mounts at `/var/run/nvidia-container-devices` name cards.
    pub accept_nvidia_visible_devices_as_volume_mounts: bool,
    /// Variables of its image name cards for a pod's container that asks for nothing else.
    pub accept_nvidia_visible_devices_of_images_in_pods: bool,
    /// The capabilities that `NVIDIA_DRIVER_CAPABILITIES` may name.
    #[serde(deserialize_with = "accept::capabilities")]
    pub supported_driver_capabilities: DriverCapabilities,
    /// `NVIDIA_REQUIRE_*` is not enforced.
    pub disable_require: bool,
    /// Images without any `NVIDIA_*` but with `CUDA_VERSION` get all cards.
    pub legacy_images: bool,
    /// Requests for whole cards become [`Config::default_share`].
    pub share_by_default: bool,
    /// HAMi's own enforcement is taken out of the spec.
    pub hami_compat: bool,
    /// Requests may go without limits.
    pub allow_isolation_none: bool,
    /// Containers that could get around a quota may have one.
    pub allow_privileged_quota: bool,
    /// Containers without a request get the filter that refuses driver calls.
    pub fence_other_containers: bool,
    /// The treatment of a driver whose calls are not known.
    #[serde(deserialize_with = "accept::name")]
    pub unknown_driver: UnknownDriver,
    /// The treatment of driver calls of containers that have whole cards.
    #[serde(deserialize_with = "accept::name")]
    pub whole_cards: WholeCards,
    /// Interval at which the containers' charges are compared with what the driver says.
    #[serde(deserialize_with = "accept::time_ms::<100, 3_600_000, _>")]
    pub reconcile_period: Duration,
    /// Time limit of a container's OOM script; zero: it is not run.
    #[serde(deserialize_with = "accept::time_ms::<0, 600_000, _>")]
    pub oom_script_timeout: Duration,
    /// Processors that a container's mediator may use, for each of the container's cards.
    #[serde(deserialize_with = "accept::hundredths::<5, 6400, _>")]
    pub mediator_processors: f64,
    /// Time for which a create waits for room.
    #[serde(deserialize_with = "accept::admission_wait")]
    pub admission_wait: AdmissionWait,
    /// Policy of a card on which nobody has set one.
    #[serde(deserialize_with = "accept::policy")]
    pub default_policy: CardPolicy,
    /// The policies that a container may bring to an empty card.
    #[serde(deserialize_with = "accept::policies")]
    pub requested_policies: CardPolicies,
    /// Percent of its memory or time with which a container may.
    #[serde(deserialize_with = "accept::whole::<0, 100, _, _>")]
    pub requested_policy_share: u8,
    /// Period of the containers' turns.
    #[serde(deserialize_with = "accept::period")]
    pub period: Period,
    /// Way in which containers of low priority leave the card to others.
    #[serde(deserialize_with = "accept::name")]
    pub priority: PriorityMode,
    /// The engines that a container is kept from outside its turns.
    #[serde(deserialize_with = "accept::name")]
    pub throttle: Throttle,
    /// The treatment of hard caps on cards that cannot take containers off.
    #[serde(deserialize_with = "accept::name")]
    pub hard_caps_unavailable: HardCapsUnavailable,
    /// Slices of a card.
    #[serde(deserialize_with = "accept::whole::<1, 20, _, _>")]
    pub max_inst: u16,
    /// The most containers on one card.
    #[serde(deserialize_with = "accept::whole::<1, 1000, _, _>")]
    pub device_split_count: u32,
    /// The most of them that are one owner's.
    #[serde(deserialize_with = "accept::whole::<1, 1000, _, _>")]
    pub owner_split_count: u32,
    /// Memory granted for each byte that a card has.
    #[serde(deserialize_with = "accept::memory_scaling")]
    pub memory_scaling: MemoryScaling,
    /// Host memory that the driver may pin for all containers together, of the machine's.
    #[serde(deserialize_with = "accept::memory")]
    pub pinned_memory: MemoryLimit,
    /// Limit of the host's memory for a container that shares a card and has none.
    #[serde(deserialize_with = "accept::amount_or_no_limit")]
    pub host_memory_limit: Option<Bytes>,
    /// The share that `share_by_default` gives.
    pub default_share: DefaultShare,
    /// Defaults that fill in HAMi requests.
    pub hami: HamiDefaults,
    /// Claims of pods.
    pub kubernetes: Kubernetes,
    /// The source of the cards.
    pub driver: Driver,
}

/// `[default_share]`: a part of each card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultShare {
    /// The share of its memory.
    #[serde(deserialize_with = "accept::memory")]
    pub memory: MemoryLimit,
    /// The share of its time.
    #[serde(deserialize_with = "accept::compute")]
    pub compute: ComputeShare,
}

/// `[hami]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HamiDefaults {
    /// Memory on each card; `None`: no limit.
    #[serde(deserialize_with = "accept::amount_or_no_limit")]
    pub default_memory: Option<Bytes>,
    /// Percent of each card's time; `None`: no limit.
    #[serde(deserialize_with = "accept::percent_or_no_limit")]
    pub default_compute: Option<Percent>,
    /// The number of cards.
    #[serde(deserialize_with = "accept::whole::<1, 64, _, _>")]
    pub default_cards: u32,
    /// HAMi's compute limits are ignored.
    pub disable_compute_limit: bool,
}

/// `[kubernetes]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kubernetes {
    /// Containers of pods get cards by claims alone.
    pub require_claim: bool,
    /// Order in which the node's cards are given to claims.
    #[serde(deserialize_with = "accept::name")]
    pub placement: ClaimPlacement,
}

/// `[driver]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    /// The kind of driver.
    #[serde(deserialize_with = "accept::name")]
    pub kind: DriverKind,
    /// The directory that it is installed in; `/` for the host's own. Absolute.
    #[serde(deserialize_with = "accept::absolute_path")]
    pub root: PathBuf,
    /// Tables of simulated cards, in the file's order.
    pub simulated: Vec<SimulatedCards>,
}

/// The source of the cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// NVIDIA's driver where there is one, else the simulated cards.
    Auto,
    /// NVIDIA's driver; no cards without it.
    Nvidia,
    /// The simulated cards, whatever the node has.
    Simulated,
}

/// Permission of containers that share a card to use a driver outside the known range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownDriver {
    /// The containers are not created.
    Refuse,
    /// Use it: their calls are read as those of the nearest known driver.
    Pass,
}

/// Order in which a node's cards are given to claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimPlacement {
    /// First those of which most is granted.
    Binpack,
    /// First those of which least is granted.
    Spread,
}

/// The treatment of driver calls of containers that have whole cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WholeCards {
    /// The driver gets them as they are.
    Direct,
    /// The calls are mediated like those of a share, of all that the card has.
    Mediated,
}

/// The time for which a create waits where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionWait {
    /// Waits up to [`AdmissionWait::FOR_LEAVING`], while all that is in the way is leaving.
    Leaving,
    /// Waits so long, whoever is in the way. At most [`AdmissionWait::LONGEST`].
    AnyTenant(Duration),
}

impl AdmissionWait {
    /// The wait for containers that are leaving.
    pub const FOR_LEAVING: Duration = Duration::from_secs(10);
    /// Less than Kubernetes waits for an answer.
    pub const LONGEST: Duration = Duration::from_secs(100);

    /// The longest wait.
    pub fn most(self) -> Duration {
        match self {
            Self::Leaving => Self::FOR_LEAVING,
            Self::AnyTenant(most) => most,
        }
    }
}

/// The treatment of a request for a hard cap on a card that cannot take containers off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HardCapsUnavailable {
    /// The request is refused.
    Refuse,
    /// The request counts as a weight.
    Degrade,
}

/// One `[[driver.simulated]]` table: `count` cards of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedCards {
    /// The name that they report. Left out, it is empty, which [`Config::from_toml`] refuses.
    #[serde(default, deserialize_with = "accept::model")]
    pub model: String,
    /// Memory of each. Left out, it is 0, which is refused likewise.
    #[serde(default, deserialize_with = "accept::card_memory")]
    pub memory: Bytes,
    /// The number of cards; of all tables together at most [`MOST_SIMULATED_CARDS`].
    #[serde(deserialize_with = "accept::whole::<1, MOST_SIMULATED_CARDS, _, _>")]
    pub count: u32,
    /// The beginning of their UUIDs: `GPU-` and hexadecimal digits and dashes.
    #[serde(default, deserialize_with = "accept::uuid_prefix")]
    pub uuid: Option<String>,
    /// Their NUMA node.
    #[serde(default, deserialize_with = "accept::numa_node")]
    pub numa_node: Option<u32>,
    /// The connection between them.
    #[serde(deserialize_with = "accept::name")]
    pub links: SimulatedLink,
    /// The cards are said to be able to take containers off.
    pub gsp: bool,
    /// The cards do so when they are asked to, if they are able to.
    pub takes_off: bool,
    /// Duration of the call that puts a container on the card.
    #[serde(deserialize_with = "accept::time_ms::<0, 10, _>")]
    pub open_time: Duration,
    /// Duration of the call that takes it off.
    #[serde(deserialize_with = "accept::time_ms::<0, 10, _>")]
    pub close_time: Duration,
    /// Engine time that is lost after each opening.
    #[serde(deserialize_with = "accept::time_ms::<0, 10, _>")]
    pub ramp_time: Duration,
}

impl SimulatedCards {
    /// Returns cards whose switches cost nothing, not linked, and able to take containers off.
    pub fn free(model: &str, memory: Bytes, count: u32) -> Self {
        Self {
            model: model.to_owned(),
            memory,
            count,
            uuid: None,
            numa_node: None,
            links: SimulatedLink::System,
            gsp: true,
            takes_off: true,
            open_time: Duration::ZERO,
            close_time: Duration::ZERO,
            ramp_time: Duration::ZERO,
        }
    }
}

/// The connection between the cards of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimulatedLink {
    /// NVLink.
    #[serde(rename = "nvlink")]
    NvLink,
    /// One PCIe switch.
    PcieSwitch,
    /// The same NUMA node.
    NumaNode,
    /// No connection in particular.
    System,
}

/// A factor from 1.0 to 16.0, in thousandths, so that sums over it are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryScaling {
    thousandths: u32,
}

impl MemoryScaling {
    /// 1.0: what a card has.
    pub const NONE: Self = Self { thousandths: 1000 };

    /// `None` outside 1.0 to 16.0; rounded to thousandths.
    pub fn new(factor: f64) -> Option<Self> {
        let thousandths = (factor * 1000.0).round();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number within the range")]
        (1000.0..=16000.0).contains(&thousandths).then_some(Self { thousandths: thousandths as u32 })
    }

    /// Returns the part of a card of `card` bytes that may be granted.
    pub fn apply(self, card: Bytes) -> Bytes {
        let scaled = u128::from(card.0) * u128::from(self.thousandths) / 1000;
        Bytes(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// Returns whether it lets more be granted than there is.
    pub fn oversubscribes(self) -> bool {
        self > Self::NONE
    }
}

impl Default for Config {
    /// Returns what `default.toml` says.
    #[expect(clippy::expect_used, reason = "nothing but a file of this crate is read, and each of its tests reads it")]
    fn default() -> Self {
        Self::from_toml("", "default.toml").expect("the default file is right")
    }
}

impl Config {
    /// The file that is read: what `EGPU_CONFIG` names, else [`DEFAULT_PATH`].
    pub fn path() -> PathBuf {
        Self::named_path().unwrap_or_else(|| PathBuf::from(DEFAULT_PATH))
    }

    fn named_path() -> Option<PathBuf> {
        std::env::var_os(PATH_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
    }

    /// Reads `path`; without one, the file that [`Config::path`] names. Only the file at
    /// [`DEFAULT_PATH`] may be missing: the defaults hold then.
    ///
    /// # Errors
    /// When the file cannot be read or is wrong.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.map(Path::to_owned).or_else(Self::named_path);
        let may_be_missing = named.is_none();
        let path = named.unwrap_or_else(|| PathBuf::from(DEFAULT_PATH));
        match fs::read_to_string(&path) {
            Ok(text) => Self::from_toml(&text, &path.display().to_string()),
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    /// Reads a configuration from its text; `origin` names it in errors.
    ///
    /// # Errors
    /// When the text is not TOML, has a key that does not exist, or a value that is not accepted.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let document = Document::parse(text, origin)?;
        let config: Self = document.decode()?;
        config.driver.check_simulated(&document)?;
        Ok(config)
    }
}

impl Driver {
    /// # Errors
    /// For a table that lacks a key that it must have, or whose cards are too many beside those of
    /// the tables before it.
    fn check_simulated(&self, document: &Document<'_>) -> Result<(), ConfigError> {
        let mut left = MOST_SIMULATED_CARDS;
        for (index, cards) in self.simulated.iter().enumerate() {
            let refused = |key: &str, accepted: &str| {
                Err(document.value_error(&format!("driver.simulated[{index}].{key}"), accepted))
            };
            if cards.model.is_empty() {
                return refused("model", accept::MODEL);
            }
            if cards.memory == Bytes(0) {
                return refused("memory", accept::CARD_MEMORY);
            }
            if i64::from(cards.count) > left {
                return refused("count", &accept::whole_numbers(1, left));
            }
            left -= i64::from(cards.count);
        }
        Ok(())
    }
}
