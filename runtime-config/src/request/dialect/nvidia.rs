//! `NVIDIA_*` and its equals (device nodes that CDI put in, hooks, volume mounts): which cards, and
//! what of the driver.

use super::super::{
    CardRequest, DeviceSelector, DriverCapabilities, NvidiaExtras, NvidiaHook, RequestError, Requirement, Source,
    error::AsWritten,
    requirement,
    selector::{DeviceList, ParseSelectorError},
    statements::{Statement, Statements},
};
use super::Names;
use crate::config::Config;

pub(in crate::request) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// The value that NVIDIA's device plugin sets where volume mounts name the cards: their directory.
const VOLUME_MOUNTS: &str = "/var/run/nvidia-container-devices";
const CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
const REQUIRE: &str = "NVIDIA_REQUIRE_";
const REQUIRE_CUDA: &str = "NVIDIA_REQUIRE_CUDA";
/// The requirement of Jetson boards; says nothing about cards.
const REQUIRE_JETPACK: &str = "JETPACK";
const DISABLE_REQUIRE: &str = "NVIDIA_DISABLE_REQUIRE";
const MIG_CONFIG: &str = "NVIDIA_MIG_CONFIG_DEVICES";
const MIG_MONITOR: &str = "NVIDIA_MIG_MONITOR_DEVICES";
const IMEX: &str = "NVIDIA_IMEX_CHANNELS";
const CUDA_VERSION: &str = "CUDA_VERSION";
pub(super) const NAMES: Names = Names {
    variables: &[VISIBLE, CAPABILITIES, DISABLE_REQUIRE, IMEX, REQUIRE, "NVIDIA_MIG_"],
    is_annotation: |_, _| false,
};
/// The driver numbers IMEX channels below 2^20.
const MAX_IMEX_CHANNEL: u32 = (1 << 20) - 1;

/// The cards that are visible to a container before any share is cut from them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::request) struct Visible {
    pub(in crate::request) cards: VisibleCards,
    pub(in crate::request) namer: Namer,
    /// The statement, for messages.
    pub(in crate::request) said: AsWritten,
}

/// The source that names the visible cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::request) enum Namer {
    /// Device nodes, a hook's arguments or volume mounts: not the image's to write.
    Spec,
    /// A variable, with Docker's hook beside it: somebody asked for it on the command line.
    EnvironmentWithHook,
    /// A variable alone: perhaps the image's.
    Environment,
    /// `CUDA_VERSION` of an old image.
    LegacyImage,
}

/// The visible cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::request) enum VisibleCards {
    /// No statement.
    Unset,
    /// No card, explicitly.
    Void,
    /// Driver files, no card.
    None,
    /// Every card.
    All,
    /// The cards of a list.
    Devices(Vec<DeviceSelector>),
    /// The cards whose nodes are there.
    Present {
        /// Minors of `/dev/nvidiaN`.
        cards: Vec<u32>,
        /// Minors of `/dev/nvidia-caps`.
        capabilities: Vec<u32>,
    },
}

impl VisibleCards {
    /// Returns the cards as a request; `None` where nothing is asked.
    pub(in crate::request) fn request(&self) -> Option<CardRequest> {
        match self {
            Self::Unset | Self::Void => None,
            Self::None => Some(CardRequest::None),
            Self::All => Some(CardRequest::All),
            Self::Devices(devices) => Some(CardRequest::Devices(devices.clone())),
            Self::Present { cards, capabilities } => {
                Some(CardRequest::PresentNodes { cards: cards.clone(), capabilities: capabilities.clone() })
            }
        }
    }

    /// Returns the cards as a request, where particular cards are meant.
    pub(in crate::request) fn particular(&self) -> Option<CardRequest> {
        match self {
            Self::Devices(_) | Self::Present { .. } => self.request(),
            Self::Unset | Self::Void | Self::None | Self::All => None,
        }
    }
}

impl From<DeviceList> for VisibleCards {
    fn from(list: DeviceList) -> Self {
        match list {
            DeviceList::Void => Self::Void,
            DeviceList::None => Self::None,
            DeviceList::All => Self::All,
            DeviceList::Devices(devices) => Self::Devices(devices),
        }
    }
}

/// Determines the visible cards: devices of the spec count before volume mounts, and those before
/// variables.
pub(in crate::request) fn visible(
    source: &Source,
    env: &Statements<'_>,
    config: &Config,
) -> Result<Visible, RequestError> {
    // A privileged container has all of the host's nodes without anybody having asked for a card.
    if !source.nodes.cards.is_empty() && !source.privileges.wildcard_device_rule {
        let sorted = |minors: &[u32]| {
            let mut minors = minors.to_vec();
            minors.sort_unstable();
            minors.dedup();
            minors
        };
        let (cards, capabilities) = (sorted(&source.nodes.cards), sorted(&source.nodes.capabilities));
        let nodes: Vec<String> = cards.iter().map(|minor| format!("/dev/nvidia{minor}")).collect();
        let said = AsWritten::new("device nodes", &nodes.join(","));
        return Ok(Visible { cards: VisibleCards::Present { cards, capabilities }, namer: Namer::Spec, said });
    }
    if let Some(NvidiaHook::CommandLine { devices, .. }) = &source.hook
        && !devices.is_empty()
    {
        return named("nvidia-container-cli --device", &devices.join(","), Namer::Spec);
    }
    if config.accept_nvidia_visible_devices_as_volume_mounts && !source.volume_mount_devices.is_empty() {
        let list = source.volume_mount_devices.join(",");
        return named(VOLUME_MOUNTS, &list, Namer::Spec);
    }
    if let Some(visible) = by_variable(source, env, config)? {
        return Ok(visible);
    }
    let unset = Visible { cards: VisibleCards::Unset, namer: Namer::Environment, said: AsWritten::new(VISIBLE, "") };
    // Set to nothing is not unset: then even an old image gets nothing.
    let is_legacy = config.legacy_images && env.all(VISIBLE).next().is_none() && env.any(REQUIRE_CUDA).is_none();
    match env.any(CUDA_VERSION) {
        Some(version) if is_legacy => {
            Ok(Visible { cards: VisibleCards::All, namer: Namer::LegacyImage, said: version.into() })
        }
        _ => Ok(unset),
    }
}

/// Visible cards by the variables. A device plugin's value and the image's may stand side by side:
/// the tighter counts, wherever it stands.
fn by_variable(source: &Source, env: &Statements<'_>, config: &Config) -> Result<Option<Visible>, RequestError> {
    let with_hook = source.hook == Some(NvidiaHook::Environment);
    let namer = if with_hook { Namer::EnvironmentWithHook } else { Namer::Environment };
    let mut tightest: Option<(DeviceList, Statement<'_>)> = None;
    for statement in env.spoken(VISIBLE) {
        if statement.value == VOLUME_MOUNTS && !config.accept_nvidia_visible_devices_as_volume_mounts {
            let key = "accept_nvidia_visible_devices_as_volume_mounts = true";
            return Err(RequestError::NotAllowed { said: statement.into(), key });
        }
        let list = device_list(&statement.into(), statement.value)?;
        tightest = Some(match tightest {
            None => (list, statement),
            Some((before, said)) => match before.clone().tighter(list) {
                Some(joined) if joined == before => (joined, said),
                Some(joined) => (joined, statement),
                None => return Err(ambiguous(env, VISIBLE)),
            },
        });
    }
    Ok(tightest.map(|(list, said)| Visible { cards: list.into(), namer, said: said.into() }))
}

/// Every value of `NVIDIA_VISIBLE_DEVICES` that says something.
pub(in crate::request) fn visible_devices(env: &Statements<'_>) -> Vec<String> {
    env.spoken(VISIBLE).map(|statement| statement.value.to_owned()).collect()
}

fn named(name: &str, list: &str, namer: Namer) -> Result<Visible, RequestError> {
    let said = AsWritten::new(name, list);
    let cards = device_list(&said, list)?;
    Ok(Visible { cards: cards.into(), namer, said })
}

fn device_list(said: &AsWritten, list: &str) -> Result<DeviceList, RequestError> {
    list.parse().map_err(|error: ParseSelectorError| {
        RequestError::invalid(said.clone(), format!("a list of cards, all, none or void; {error}"))
    })
}

/// `NVIDIA_DRIVER_CAPABILITIES`, or what a hook's arguments ask for.
pub(in crate::request) fn capabilities(
    source: &Source,
    env: &Statements<'_>,
    namer: Namer,
    config: &Config,
) -> Result<DriverCapabilities, RequestError> {
    let supported = config.supported_driver_capabilities;
    if let Some(NvidiaHook::CommandLine { capabilities, .. }) = &source.hook
        && !capabilities.is_empty()
    {
        // containerd's client asks for everything that it knows; what this node does not support is
        // left out.
        let asked = capabilities.iter().filter_map(|name| DriverCapabilities::named(name));
        return Ok(asked.collect::<DriverCapabilities>() & supported);
    }
    if env.any(CAPABILITIES).is_none() && namer == Namer::LegacyImage {
        return Ok(supported);
    }
    let read = |statement: Statement<'_>| {
        let accepted = || format!("a comma-separated list of {}, or all", supported.names());
        let asked = DriverCapabilities::parse_list(statement.value, supported);
        let asked = asked.map_err(|_| RequestError::invalid(statement, accepted()))?;
        if supported.contains(asked) { Ok(asked) } else { Err(RequestError::invalid(statement, accepted())) }
    };
    let asked = env.joined(CAPABILITIES, read, |one, other| one & other)?;
    match asked {
        None => Ok(DriverCapabilities::DEFAULT & supported),
        Some(none) if none.is_empty() => Err(ambiguous(env, CAPABILITIES)),
        Some(asked) => Ok(asked),
    }
}

fn ambiguous(env: &Statements<'_>, name: &str) -> RequestError {
    let values = env.spoken(name).map(|statement| AsWritten::from(statement).value).collect();
    RequestError::Ambiguous { name: name.to_owned(), values }
}

/// `NVIDIA_REQUIRE_*`, unless they are switched off.
pub(in crate::request) fn requirements(
    source: &Source,
    env: &Statements<'_>,
    namer: Namer,
    config: &Config,
) -> Result<Vec<Requirement>, RequestError> {
    let disabled = env.joined(DISABLE_REQUIRE, go_boolean, |one, other| one && other)?.unwrap_or(false);
    if disabled || config.disable_require {
        return Ok(Vec::new());
    }
    let mut requirements = Vec::new();
    if let Some(NvidiaHook::CommandLine { requirements: flags, .. }) = &source.hook {
        for flag in flags {
            requirements.push(requirement::parse(Statement { name: "nvidia-container-cli --require", value: flag })?);
        }
    }
    for (name, rest) in env.with_prefix(REQUIRE) {
        if !rest.starts_with(REQUIRE_JETPACK) {
            // AsWritten several times: each must hold, which is the tighter.
            for statement in env.spoken(name) {
                requirements.push(requirement::parse(statement)?);
            }
        }
    }
    if namer == Namer::LegacyImage
        && let Some(version) = env.one(CUDA_VERSION)?
    {
        requirements.push(requirement::of_cuda_version(version)?);
    }
    Ok(requirements)
}

/// Reads a truth value as Go's `strconv.ParseBool`, which NVIDIA's tools use.
fn go_boolean(statement: Statement<'_>) -> Result<bool, RequestError> {
    match statement.value.trim() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(RequestError::invalid(statement, "true, t, 1, false, f or 0")),
    }
}

/// Parses the other requests of the NVIDIA variables.
pub(in crate::request) fn extras(
    source: &Source,
    env: &Statements<'_>,
    names_mig: bool,
) -> Result<NvidiaExtras, RequestError> {
    Ok(NvidiaExtras {
        imex_channels: imex_channels(env)?,
        mig_config: mig_management(MIG_CONFIG, source, env, names_mig)?,
        mig_monitor: mig_management(MIG_MONITOR, source, env, names_mig)?,
        gds: enabled(env, "NVIDIA_GDS")?,
        mofed: enabled(env, "NVIDIA_MOFED")?,
        gdrcopy: enabled(env, "NVIDIA_GDRCOPY")?,
        nvswitch: enabled(env, "NVIDIA_NVSWITCH")?,
    })
}

/// AsWritten both ways: off, the tighter.
fn enabled(env: &Statements<'_>, name: &str) -> Result<bool, RequestError> {
    let read = |statement: Statement<'_>| Ok(statement.value.trim() == "enabled");
    Ok(env.joined(name, read, |one, other| one && other)?.unwrap_or(false))
}

fn mig_management(name: &str, source: &Source, env: &Statements<'_>, names_mig: bool) -> Result<bool, RequestError> {
    let Some(statement) = env.one(name)? else { return Ok(false) };
    if statement.value.trim() != "all" {
        return Err(RequestError::invalid(statement, "all"));
    }
    if !source.privileges.administers_host() {
        let expected = "left out for a container without CAP_SYS_ADMIN in the host's user namespace";
        return Err(RequestError::invalid(statement, expected));
    }
    if names_mig {
        return Err(RequestError::invalid(statement, "left out where single MIG devices are asked for"));
    }
    Ok(true)
}

fn imex_channels(env: &Statements<'_>) -> Result<Vec<u32>, RequestError> {
    let Some(statement) = env.one(IMEX)? else { return Ok(Vec::new()) };
    // NVIDIA's own tools ignore it where it comes from a variable.
    if statement.value.trim() == "all" {
        return Ok(Vec::new());
    }
    let channel = |item: &str| {
        let digits = item.strip_prefix("channel").unwrap_or(item);
        let number = if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse::<u32>().ok() } else { None };
        number.filter(|number| *number <= MAX_IMEX_CHANNEL)
    };
    let mut channels =
        statement.list(channel, &format!("channel numbers from 0 to {MAX_IMEX_CHANNEL}, such as 0,1"))?;
    channels.sort_unstable();
    channels.dedup();
    Ok(channels)
}
