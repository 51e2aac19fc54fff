//! The node's configuration file.
//!
//! Text -> [`wire`] (plain types, unknown keys refused) -> [`validate`] (ranges) -> [`Config`].

mod document;
mod error;
#[cfg(test)]
mod tests;
mod validate;
mod wire;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use document::nearest;
pub use error::ConfigError;

use crate::{
    driver_capabilities::DriverCapabilities,
    memory_limit::MemoryLimit,
    units::{Bytes, Percent},
};

use base::{CardPolicies, CardPolicy, ComputeShare};
pub use base::{MAX_PERIOD_US, MIN_PERIOD_US, PriorityMode, Throttle};

/// Path of the file unless [`PATH_VARIABLE`] names another.
pub const DEFAULT_PATH: &str = "/etc/egpu/config.toml";

/// The environment variable that names another file.
pub const PATH_VARIABLE: &str = "EGPU_CONFIG";

/// The commented file that `egpu config default` prints: every key with its default.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// The node's configuration, every value within its range. Fields are named as the file's keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The ledger's directory. Absolute.
    pub state_dir: PathBuf,
    /// The group that may read there what commands show, by its name or number; empty: root's.
    pub state_group: String,
    /// The decision log. Absolute.
    pub log_file: PathBuf,
    /// The source of the cards.
    pub driver: Driver,
    /// Environment variables may ask.
    pub accept_env: bool,
    /// Environment variables alone may name cards for a container without CAP_SYS_ADMIN.
    pub accept_nvidia_visible_devices_envvar_when_unprivileged: bool,
    /// Mounts at `/var/run/nvidia-container-devices` name cards.
    pub accept_nvidia_visible_devices_as_volume_mounts: bool,
    /// Variables of its image name cards for a pod's container that asks for nothing else.
    pub accept_nvidia_visible_devices_of_images_in_pods: bool,
    /// The capabilities that `NVIDIA_DRIVER_CAPABILITIES` may name.
    pub supported_driver_capabilities: DriverCapabilities,
    /// `NVIDIA_REQUIRE_*` is not enforced.
    pub disable_require: bool,
    /// Images without any `NVIDIA_*` but with `CUDA_VERSION` get all cards.
    pub legacy_images: bool,
    /// Requests for whole cards become [`Config::default_share`].
    pub share_by_default: bool,
    /// The share that `share_by_default` gives.
    pub default_share: DefaultShare,
    /// HAMi's own enforcement is taken out of the spec.
    pub hami_compat: bool,
    /// Containers of pods get cards by Kubernetes' claims alone.
    pub require_claim: bool,
    /// Order in which the node's cards are given to claims: `kubernetes.placement`.
    pub claim_placement: ClaimPlacement,
    /// Requests may go without limits.
    pub allow_isolation_none: bool,
    /// Containers that could get around a quota may have one.
    pub allow_privileged_quota: bool,
    /// Containers without a request get the filter that refuses driver calls.
    pub fence_other_containers: bool,
    /// The treatment of a driver whose calls are not known.
    pub unknown_driver: UnknownDriver,
    /// The treatment of driver calls of containers that have whole cards.
    pub whole_cards: WholeCards,
    /// Interval at which the containers' charges are compared with what the driver says.
    pub reconcile_period: Duration,
    /// Time limit of a container's OOM script; zero: it is not run.
    pub oom_script_timeout: Duration,
    /// Processors that a container's mediator may use, for each of the container's cards.
    pub mediator_processors: f64,
    /// Time for which a create waits for room.
    pub admission_wait: AdmissionWait,
    /// Policy of a card on which nobody has set one.
    pub default_policy: CardPolicy,
    /// The policies that a container may bring to an empty card.
    pub requested_policies: CardPolicies,
    /// Percent of its memory or time with which a container may, 0 to 100.
    pub requested_policy_share: u8,
    /// Period of the containers' turns, [`MIN_PERIOD_US`] to [`MAX_PERIOD_US`].
    pub period: Duration,
    /// Way in which containers of low priority leave the card to others.
    pub priority: PriorityMode,
    /// The engines that a container is kept from outside its turns.
    pub throttle: Throttle,
    /// The treatment of hard caps on cards that cannot take containers off.
    pub hard_caps_unavailable: HardCapsUnavailable,
    /// Slices of a card, 1 to 20.
    pub max_inst: u16,
    /// The most containers on one card, 1 to 1000.
    pub device_split_count: u32,
    /// The most of them that are one owner's, 1 to 1000.
    pub owner_split_count: u32,
    /// Memory granted for each byte that a card has.
    pub memory_scaling: MemoryScaling,
    /// Host memory that the driver may pin for all containers together, of the machine's.
    pub pinned_memory: MemoryLimit,
    /// Defaults that fill in HAMi requests.
    pub hami: HamiDefaults,
}

/// `[default_share]`: a part of each card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultShare {
    /// The share of its memory.
    pub memory: MemoryLimit,
    /// The share of its time.
    pub compute: ComputeShare,
}

/// `[hami]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HamiDefaults {
    /// Memory on each card; `None`: no limit.
    pub default_memory: Option<Bytes>,
    /// Percent of each card's time; `None`: no limit.
    pub default_compute: Option<Percent>,
    /// The number of cards, 1 to 64.
    pub default_cards: u32,
    /// HAMi's compute limits are ignored.
    pub disable_compute_limit: bool,
}

/// `[driver]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driver {
    /// The kind of driver.
    pub kind: DriverKind,
    /// The directory that it is installed in; `/` for the host's own. Absolute.
    pub root: PathBuf,
    /// Tables of simulated cards, in the file's order.
    pub simulated: Vec<SimulatedCards>,
}

/// The source of the cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// NVIDIA's driver where there is one, else the simulated cards.
    Auto,
    /// NVIDIA's driver; no cards without it.
    Nvidia,
    /// The simulated cards, whatever the node has.
    Simulated,
}

/// Permission of containers that share a card to use a driver outside the known range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownDriver {
    /// The containers are not created.
    Refuse,
    /// Use it: their calls are read as those of the nearest known driver.
    Pass,
}

/// Order in which a node's cards are given to claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimPlacement {
    /// First those of which most is granted.
    Binpack,
    /// First those of which least is granted.
    Spread,
}

/// The treatment of driver calls of containers that have whole cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HardCapsUnavailable {
    /// The request is refused.
    Refuse,
    /// The request counts as a weight.
    Degrade,
}

/// One `[[driver.simulated]]` table: `count` cards of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedCards {
    /// The name that they report.
    pub model: String,
    /// Memory of each, at least 64 MiB.
    pub memory: Bytes,
    /// The number of cards, at least 1; all tables together at most 64.
    pub count: u32,
    /// The beginning of their UUIDs: `GPU-` and hexadecimal digits and dashes, at most 27
    /// characters.
    pub uuid_prefix: Option<String>,
    /// Their NUMA node.
    pub numa_node: Option<u32>,
    /// The connection between them.
    pub links: SimulatedLink,
    /// The cards are said to be able to take containers off.
    pub gsp: bool,
    /// The durations of their switches.
    pub edges: SimulatedEdges,
}

/// The manner in which simulated cards take containers off and put them back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedEdges {
    /// The cards switch when they are asked to, if they have the firmware for it.
    pub are_taken: bool,
    /// Duration of the call that puts a container on the card.
    pub opening: Duration,
    /// Duration of the call that takes it off.
    pub closing: Duration,
    /// Engine time that is lost after each opening.
    pub ramp: Duration,
}

impl SimulatedEdges {
    /// Durations measured on an H200, with the 20 channels of a CUDA process
    /// (docs/driver-facts.md).
    pub const MEASURED: Self = Self {
        are_taken: true,
        opening: Duration::from_micros(410),
        closing: Duration::from_micros(690),
        ramp: Duration::from_micros(120),
    };
    /// Switches that cost nothing.
    pub const FREE: Self =
        Self { are_taken: true, opening: Duration::ZERO, closing: Duration::ZERO, ramp: Duration::ZERO };
}

/// The connection between the cards of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedLink {
    /// NVLink.
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
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/egpu"),
            state_group: String::new(),
            log_file: PathBuf::from("/var/log/egpu.log"),
            driver: Driver { kind: DriverKind::Auto, root: PathBuf::from("/"), simulated: Vec::new() },
            accept_env: true,
            accept_nvidia_visible_devices_envvar_when_unprivileged: true,
            accept_nvidia_visible_devices_as_volume_mounts: false,
            accept_nvidia_visible_devices_of_images_in_pods: false,
            supported_driver_capabilities: DriverCapabilities::all(),
            disable_require: false,
            legacy_images: false,
            share_by_default: false,
            default_share: DefaultShare {
                memory: MemoryLimit::percent(Percent::HALF),
                compute: ComputeShare::Cap { percent: Percent::HALF, lifted_when_alone: false },
            },
            hami_compat: true,
            require_claim: false,
            allow_isolation_none: false,
            allow_privileged_quota: false,
            fence_other_containers: true,
            unknown_driver: UnknownDriver::Refuse,
            whole_cards: WholeCards::Direct,
            reconcile_period: Duration::from_secs(1),
            oom_script_timeout: Duration::from_secs(10),
            mediator_processors: 0.5,
            admission_wait: AdmissionWait::Leaving,
            default_policy: CardPolicy::Fixed,
            requested_policies: CardPolicies::ALL,
            requested_policy_share: 3,
            period: Duration::from_millis(100),
            priority: PriorityMode::Harvest,
            throttle: Throttle::ComputeCopy,
            hard_caps_unavailable: HardCapsUnavailable::Refuse,
            max_inst: 16,
            device_split_count: 10,
            owner_split_count: 1000,
            memory_scaling: MemoryScaling::NONE,
            pinned_memory: MemoryLimit::percent(Percent::HALF),
            hami: HamiDefaults {
                default_memory: Some(Bytes(5000 * Bytes::MIB)),
                default_compute: None,
                default_cards: 1,
                disable_compute_limit: false,
            },
            claim_placement: ClaimPlacement::Binpack,
        }
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
        let document = document::Document::parse(text, origin)?;
        validate::validate(&document.decode()?, &document)
    }
}
