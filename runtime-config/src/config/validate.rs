//! The ranges of the configuration's values.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use base::{CardPolicies, CardPolicy, ComputeShare};
use jiff::SignedDuration;

use super::{
    AdmissionWait, ClaimPlacement, Config, ConfigError, DefaultShare, Driver, DriverKind, HamiDefaults,
    HardCapsUnavailable, MAX_PERIOD_US, MIN_PERIOD_US, MemoryScaling, PriorityMode, SimulatedCards, SimulatedEdges,
    SimulatedLink, Throttle, UnknownDriver, WholeCards, document::Document, wire,
};
use crate::{
    driver_capabilities::DriverCapabilities,
    memory_limit::MemoryLimit,
    units::{Bytes, Percent},
};

/// The most simulated cards, and the most that a HAMi default may name.
const MAX_CARDS: i64 = 64;
/// The smallest simulated card.
const MIN_SIMULATED_MEMORY: Bytes = Bytes(64 * Bytes::MIB);
/// Longest edge of a simulated card.
const MAX_SIMULATED_EDGE: Duration = Duration::from_millis(10);
/// A UUID has 36 characters after `GPU-`; the last 12 number the card.
const MAX_UUID_PREFIX: usize = 27;

/// # Errors
/// For the first value that is outside its range.
pub(super) fn validate(file: &wire::File, document: &Document<'_>) -> Result<Config, ConfigError> {
    let check = Check { document };
    Ok(Config {
        state_dir: check.absolute("state_dir", &file.state_dir)?,
        state_group: check.group("state_group", &file.state_group)?,
        log_file: check.absolute("log_file", &file.log_file)?,
        driver: check.driver(&file.driver)?,
        accept_env: file.accept_env,
        accept_nvidia_visible_devices_envvar_when_unprivileged: file
            .accept_nvidia_visible_devices_envvar_when_unprivileged,
        accept_nvidia_visible_devices_as_volume_mounts: file.accept_nvidia_visible_devices_as_volume_mounts,
        accept_nvidia_visible_devices_of_images_in_pods: file.accept_nvidia_visible_devices_of_images_in_pods,
        supported_driver_capabilities: check.capabilities(&file.supported_driver_capabilities)?,
        disable_require: file.disable_require,
        legacy_images: file.legacy_images,
        share_by_default: file.share_by_default,
        default_share: check.default_share(&file.default_share)?,
        hami_compat: file.hami_compat,
        require_claim: file.kubernetes.require_claim,
        claim_placement: check.claim_placement(&file.kubernetes.placement)?,
        allow_isolation_none: file.allow_isolation_none,
        allow_privileged_quota: file.allow_privileged_quota,
        fence_other_containers: file.fence_other_containers,
        unknown_driver: check.unknown_driver(&file.unknown_driver)?,
        whole_cards: check.whole_cards(&file.whole_cards)?,
        reconcile_period: check.duration(
            "reconcile_period",
            &file.reconcile_period,
            Duration::from_millis(100),
            Duration::from_secs(3600),
        )?,
        oom_script_timeout: check.duration(
            "oom_script_timeout",
            &file.oom_script_timeout,
            Duration::ZERO,
            Duration::from_secs(600),
        )?,
        mediator_processors: check.number("mediator_processors", file.mediator_processors, 0.05, 64.0)?,
        admission_wait: check.admission_wait(&file.admission_wait)?,
        default_policy: check.policy(&file.default_policy)?,
        requested_policies: check.policies(&file.requested_policies)?,
        requested_policy_share: check.integer("requested_policy_share", file.requested_policy_share, 0, 100)?,
        period: check.duration(
            "period",
            &file.period,
            Duration::from_micros(MIN_PERIOD_US),
            Duration::from_micros(MAX_PERIOD_US),
        )?,
        priority: check.priority(&file.priority)?,
        throttle: check.throttle(&file.throttle)?,
        hard_caps_unavailable: check.hard_caps_unavailable(&file.hard_caps_unavailable)?,
        max_inst: check.integer("max_inst", file.max_inst, 1, 20)?,
        device_split_count: check.integer("device_split_count", file.device_split_count, 1, 1000)?,
        owner_split_count: check.integer("owner_split_count", file.owner_split_count, 1, 1000)?,
        memory_scaling: MemoryScaling::new(file.memory_scaling).ok_or_else(|| {
            check.error("memory_scaling", &file.memory_scaling.to_string(), "a number from 1.0 to 16.0".to_owned())
        })?,
        pinned_memory: check.memory("pinned_memory", &file.pinned_memory)?,
        hami: check.hami(&file.hami)?,
    })
}

fn parse_duration(value: &str) -> Option<Duration> {
    value.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok())
}

struct Check<'a> {
    document: &'a Document<'a>,
}

impl Check<'_> {
    fn error(&self, key: &str, value: &str, accepted: String) -> ConfigError {
        self.document.value_error(key, value, accepted)
    }

    fn absolute(&self, key: &str, value: &str) -> Result<PathBuf, ConfigError> {
        let path = Path::new(value);
        if path.is_absolute() && !value.contains('\0') {
            Ok(path.to_owned())
        } else {
            Err(self.error(key, &format!("{value:?}"), "an absolute path".to_owned()))
        }
    }

    fn group(&self, key: &str, value: &str) -> Result<String, ConfigError> {
        let accepted = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-$".contains(&byte);
        match value.bytes().all(accepted) {
            true => Ok(value.to_owned()),
            false => Err(self.error(key, &format!("{value:?}"), "a group's name or number, or \"\"".to_owned())),
        }
    }

    fn integer<T: TryFrom<i64>>(&self, key: &str, value: i64, least: i64, most: i64) -> Result<T, ConfigError> {
        let error = || self.error(key, &value.to_string(), format!("a whole number from {least} to {most}"));
        if !(least..=most).contains(&value) {
            return Err(error());
        }
        T::try_from(value).map_err(|_| error())
    }

    fn number(&self, key: &str, value: f64, least: f64, most: f64) -> Result<f64, ConfigError> {
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(self.error(key, &value.to_string(), format!("a number from {least:?} to {most:?}")))
    }

    fn capabilities(&self, value: &str) -> Result<DriverCapabilities, ConfigError> {
        let all = DriverCapabilities::all();
        DriverCapabilities::parse_list(value, all).map_err(|_| {
            let accepted = format!("a comma-separated list of {}", all.names());
            self.error("supported_driver_capabilities", &format!("{value:?}"), accepted)
        })
    }

    fn unknown_driver(&self, value: &str) -> Result<UnknownDriver, ConfigError> {
        match value {
            "refuse" => Ok(UnknownDriver::Refuse),
            "pass" => Ok(UnknownDriver::Pass),
            other => Err(self.error("unknown_driver", &format!("{other:?}"), "\"refuse\" or \"pass\"".to_owned())),
        }
    }

    fn claim_placement(&self, value: &str) -> Result<ClaimPlacement, ConfigError> {
        match value {
            "binpack" => Ok(ClaimPlacement::Binpack),
            "spread" => Ok(ClaimPlacement::Spread),
            other => {
                let accepted = "\"binpack\" or \"spread\"".to_owned();
                Err(self.error("kubernetes.placement", &format!("{other:?}"), accepted))
            }
        }
    }

    fn priority(&self, value: &str) -> Result<PriorityMode, ConfigError> {
        let all = [PriorityMode::Harvest, PriorityMode::Strict];
        all.into_iter()
            .find(|mode| mode.name() == value)
            .ok_or_else(|| self.error("priority", &format!("{value:?}"), "\"harvest\" or \"strict\"".to_owned()))
    }

    fn throttle(&self, value: &str) -> Result<Throttle, ConfigError> {
        let all = [Throttle::Compute, Throttle::ComputeCopy, Throttle::All];
        all.into_iter().find(|throttle| throttle.name() == value).ok_or_else(|| {
            let accepted = "\"compute\", \"compute+copy\" or \"all\"".to_owned();
            self.error("throttle", &format!("{value:?}"), accepted)
        })
    }

    fn whole_cards(&self, value: &str) -> Result<WholeCards, ConfigError> {
        match value {
            "direct" => Ok(WholeCards::Direct),
            "mediated" => Ok(WholeCards::Mediated),
            other => {
                let accepted = "\"direct\" or \"mediated\"".to_owned();
                Err(self.error("whole_cards", &format!("{other:?}"), accepted))
            }
        }
    }

    fn hard_caps_unavailable(&self, value: &str) -> Result<HardCapsUnavailable, ConfigError> {
        match value {
            "refuse" => Ok(HardCapsUnavailable::Refuse),
            "degrade" => Ok(HardCapsUnavailable::Degrade),
            other => {
                let accepted = "\"refuse\" or \"degrade\"".to_owned();
                Err(self.error("hard_caps_unavailable", &format!("{other:?}"), accepted))
            }
        }
    }

    fn admission_wait(&self, value: &str) -> Result<AdmissionWait, ConfigError> {
        match value {
            "leaving" => Ok(AdmissionWait::Leaving),
            time => match parse_duration(time).filter(|time| *time <= AdmissionWait::LONGEST) {
                Some(time) => Ok(AdmissionWait::AnyTenant(time)),
                None => {
                    let accepted = "\"leaving\", or a time from \"0s\" to \"100s\"".to_owned();
                    Err(self.error("admission_wait", &format!("{time:?}"), accepted))
                }
            },
        }
    }

    /// `"1s"`, `"500ms"`, `"1m 30s"`.
    fn duration(&self, key: &str, value: &str, least: Duration, most: Duration) -> Result<Duration, ConfigError> {
        parse_duration(value).filter(|parsed| (least..=most).contains(parsed)).ok_or_else(|| {
            let shown =
                |limit: Duration| format!("{:#}", SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX));
            let accepted = format!("a time from \"{}\" to \"{}\", such as \"500ms\"", shown(least), shown(most));
            self.error(key, &format!("{value:?}"), accepted)
        })
    }

    fn policy(&self, value: &str) -> Result<CardPolicy, ConfigError> {
        CardPolicy::named(value).ok_or_else(|| {
            self.error("default_policy", &format!("{value:?}"), format!("one of {}", CardPolicy::names()))
        })
    }

    fn policies(&self, value: &str) -> Result<CardPolicies, ConfigError> {
        CardPolicies::parse_list(value).ok_or_else(|| {
            let accepted = format!("a comma-separated list of {}", CardPolicy::names());
            self.error("requested_policies", &format!("{value:?}"), accepted)
        })
    }

    fn memory(&self, key: &str, value: &str) -> Result<MemoryLimit, ConfigError> {
        value.parse().map_err(|_| self.error(key, &format!("{value:?}"), "\"6GiB\" or \"40%\"".into()))
    }

    fn default_share(&self, share: &wire::DefaultShare) -> Result<DefaultShare, ConfigError> {
        let memory = self.memory("default_share.memory", &share.memory)?;
        let compute = match share.compute.as_str() {
            "none" => ComputeShare::Unlimited,
            other => {
                let percent = other.parse().map_err(|_| {
                    self.error("default_share.compute", &format!("{other:?}"), "\"1%\" to \"100%\", or \"none\"".into())
                })?;
                ComputeShare::Cap { percent, lifted_when_alone: false }
            }
        };
        Ok(DefaultShare { memory, compute })
    }

    fn hami(&self, hami: &wire::Hami) -> Result<HamiDefaults, ConfigError> {
        let default_memory = match hami.default_memory.as_str() {
            "0" => None,
            other => {
                Some(other.parse::<Bytes>().ok().filter(|amount| amount.floor_to_kib().0 > 0).ok_or_else(|| {
                    self.error(
                        "hami.default_memory",
                        &format!("{other:?}"),
                        "an amount such as \"5000MiB\", or \"0\"".into(),
                    )
                })?)
            }
        };
        Ok(HamiDefaults {
            default_memory,
            default_compute: Percent::new(self.integer("hami.default_compute", hami.default_compute, 0, 100)?),
            default_cards: self.integer("hami.default_cards", hami.default_cards, 1, MAX_CARDS)?,
            disable_compute_limit: hami.disable_compute_limit,
        })
    }

    fn driver(&self, driver: &wire::Driver) -> Result<Driver, ConfigError> {
        let kind = match driver.kind.as_str() {
            "auto" => DriverKind::Auto,
            "nvidia" => DriverKind::Nvidia,
            "simulated" => DriverKind::Simulated,
            other => {
                let accepted = "\"auto\", \"nvidia\" or \"simulated\"".to_owned();
                return Err(self.error("driver.kind", &format!("{other:?}"), accepted));
            }
        };
        let mut simulated: Vec<SimulatedCards> = Vec::new();
        let mut left = MAX_CARDS;
        for (index, cards) in driver.simulated.iter().enumerate() {
            let table = self.simulated(index, cards, left)?;
            left -= i64::from(table.count);
            simulated.push(table);
        }
        Ok(Driver { kind, root: self.absolute("driver.root", &driver.root)?, simulated })
    }

    fn simulated(&self, index: usize, cards: &wire::Simulated, left: i64) -> Result<SimulatedCards, ConfigError> {
        let key = |name: &str| format!("driver.simulated[{index}].{name}");
        let shown = |value: &str| format!("{value:?}");
        let printable = |text: &str| !text.is_empty() && text.len() <= 96 && !text.chars().any(char::is_control);
        if !printable(&cards.model) {
            return Err(self.error(&key("model"), &shown(&cards.model), "1 to 96 printable characters".into()));
        }
        let memory = cards.memory.parse::<Bytes>().ok().filter(|memory| {
            *memory >= MIN_SIMULATED_MEMORY && *memory <= Bytes(1024 * Bytes::GIB) && memory.floor_to_kib() == *memory
        });
        let memory = memory.ok_or_else(|| {
            let accepted = "whole KiB from 64MiB to 1024GiB, such as \"32768MiB\"".to_owned();
            self.error(&key("memory"), &shown(&cards.memory), accepted)
        })?;
        if let Some(prefix) = &cards.uuid
            && !is_uuid_prefix(prefix)
        {
            let accepted = format!("GPU- and hexadecimal digits and dashes, at most {MAX_UUID_PREFIX} characters");
            return Err(self.error(&key("uuid"), &shown(prefix), accepted));
        }
        let links = match cards.links.as_str() {
            "nvlink" => SimulatedLink::NvLink,
            "pcie-switch" => SimulatedLink::PcieSwitch,
            "numa-node" => SimulatedLink::NumaNode,
            "system" => SimulatedLink::System,
            other => {
                let accepted = "\"nvlink\", \"pcie-switch\", \"numa-node\" or \"system\"".to_owned();
                return Err(self.error(&key("links"), &shown(other), accepted));
            }
        };
        let time = |name: &str, value: &str| self.duration(&key(name), value, Duration::ZERO, MAX_SIMULATED_EDGE);
        let edges = SimulatedEdges {
            are_taken: cards.takes_off,
            opening: time("open_time", &cards.open_time)?,
            closing: time("close_time", &cards.close_time)?,
            ramp: time("ramp_time", &cards.ramp_time)?,
        };
        let numa_node = cards.numa_node.map(|node| self.integer(&key("numa_node"), node, 0, 1023)).transpose()?;
        Ok(SimulatedCards {
            model: cards.model.clone(),
            memory,
            count: self.integer(&key("count"), cards.count, 1, left)?,
            uuid_prefix: cards.uuid.clone(),
            numa_node,
            links,
            gsp: cards.gsp,
            edges,
        })
    }
}

fn is_uuid_prefix(text: &str) -> bool {
    text.len() <= MAX_UUID_PREFIX
        && text
            .strip_prefix("GPU-")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'))
}
