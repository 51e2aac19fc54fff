//! HAMi: `CUDA_DEVICE_*`, as its device plugin sets them or somebody by hand.

use super::{Foreign, ForeignCards, Names, takes_limits_off};
use crate::{
    config::{Config, HamiDefaults},
    request::{
        ComputeShare, Dialect, Isolation, MemoryLimit, OverMemory, PerCard, Priority, RequestError,
        selector::DeviceList,
        statements::{Statement, Statements},
        terms::{Terms, lower_priority, stricter_over_memory},
    },
    units::{Bytes, Percent},
};

const MEMORY: &str = "CUDA_DEVICE_MEMORY_LIMIT";
const COMPUTE: &str = "CUDA_DEVICE_SM_LIMIT";
const SHARED_CACHE: &str = "CUDA_DEVICE_MEMORY_SHARED_CACHE";
const CAP_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
const PRIORITY: &str = "CUDA_TASK_PRIORITY";
const OOM_KILLER: &str = "ACTIVE_OOM_KILLER";
const OVERSUBSCRIBE: &str = "CUDA_OVERSUBSCRIBE";
const DISABLE: &str = "CUDA_DISABLE_CONTROL";
const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
pub(super) const NAMES: Names = Names {
    variables: &["CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_", CAP_POLICY, PRIORITY, OOM_KILLER, OVERSUBSCRIBE, DISABLE],
    is_annotation: |name, _| name.starts_with(ALLOCATED),
};
/// The highest card number in `CUDA_DEVICE_..._<i>`.
const MAX_POSITION: usize = 63;

/// The first variable of this language that is set.
pub(super) fn selected_by<'a>(env: &Statements<'a>) -> Result<Option<Statement<'a>>, RequestError> {
    for prefix in [MEMORY, COMPUTE] {
        let said = env.with_prefix(prefix).filter(|(_, rest)| rest.is_empty() || rest.starts_with('_'));
        if let Some(statement) = said.filter_map(|(name, _)| env.any(name)).next() {
            return Ok(Some(statement));
        }
    }
    if let Some(statement) = env.any(SHARED_CACHE) {
        return Ok(Some(statement));
    }
    for statement in env.spoken(DISABLE) {
        if statement.boolean()? {
            return Ok(Some(statement));
        }
    }
    Ok(None)
}

pub(super) fn parse(
    said: Statement<'_>,
    env: &Statements<'_>,
    annotations: &Statements<'_>,
    config: &Config,
) -> Result<Foreign, RequestError> {
    let terms = terms(said, env, (&config.hami, Priority::Low), config)?;
    check_allocation(env, annotations)?;
    let cards = ForeignCards::VisibleOr(config.hami.default_cards);
    Ok(Foreign { dialect: Dialect::Hami, terms, cards, by_annotation: false })
}

/// Reads the variables beside another language's: nothing fills in what they leave out.
pub(super) fn limits(said: Statement<'_>, env: &Statements<'_>, config: &Config) -> Result<Terms, RequestError> {
    let nothing = HamiDefaults { default_memory: None, default_compute: None, ..config.hami.clone() };
    terms(said, env, (&nothing, Priority::default()), config)
}

/// Reads the variables; `defaults` and `default_priority` fill in what they leave out.
fn terms(
    said: Statement<'_>,
    env: &Statements<'_>,
    (defaults, default_priority): (&HamiDefaults, Priority),
    config: &Config,
) -> Result<Terms, RequestError> {
    let mut terms = Terms::new(said);
    if takes_limits_off(DISABLE, env, config)? {
        terms.isolation = Some(Isolation::None);
    }
    for statement in env.spoken(OVERSUBSCRIBE) {
        if statement.boolean()? && !config.memory_scaling.oversubscribes() {
            return Err(RequestError::NotAllowed { said: statement.into(), key: "memory_scaling above 1.0" });
        }
    }
    let default_memory = defaults.default_memory.map(MemoryLimit::bytes);
    let (memory, memory_said) = per_card(env, MEMORY, memory, |one, other| [one, other].concat(), Vec::is_empty)?;
    terms.memory = memory.map(|limits| match limits {
        Some(limits) => limits.clone(),
        None => default_memory.into_iter().collect(),
    });
    terms.memory_said = memory_said.map(Into::into);
    let cap_policy = env.joined(CAP_POLICY, cap_policy, Ord::max)?.unwrap_or(CapPolicy::Default);
    let percent = |statement: Statement<'_>| {
        statement.amount(0, "a whole number of percent, such as 30; 0, and 100 and above: no limit")
    };
    let (compute, compute_said) = per_card(env, COMPUTE, percent, tighter_percent, |percent| *percent == 0)?;
    terms.compute = compute.map(|percent| cap(*percent, cap_policy, defaults));
    terms.compute_said = compute_said.map(Into::into);
    // Without the variable HAMi's own library takes the low priority too.
    terms.priority = env.joined(PRIORITY, priority, lower_priority)?.unwrap_or(default_priority);
    let oom_killer = env.joined(
        OOM_KILLER,
        |statement| Ok(if statement.boolean()? { OverMemory::Kill } else { OverMemory::Deny }),
        stricter_over_memory,
    )?;
    terms.over_memory = oom_killer.unwrap_or_default();
    Ok(terms)
}

/// `NAME` for every card and `NAME_<i>` for one. `None` where neither speaks.
fn per_card<'a, T: Clone>(
    env: &Statements<'a>,
    name: &str,
    read: impl Fn(Statement<'a>) -> Result<T, RequestError>,
    tighter: impl Fn(T, T) -> T,
    is_zero: impl Fn(&T) -> bool,
) -> Result<(PerCard<Option<T>>, Option<Statement<'a>>), RequestError> {
    let general = env.joined(name, &read, &tighter)?;
    let mut said = env.any(name);
    let mut listed: Vec<Option<T>> = Vec::new();
    for (full_name, rest) in env.with_prefix(name) {
        // `CUDA_DEVICE_MEMORY_LIMITS` and the like are nobody's.
        let Some(position) = rest.strip_prefix('_') else { continue };
        let Some(statement) = env.any(full_name) else { continue };
        let digits = !position.is_empty() && position.bytes().all(|byte| byte.is_ascii_digit());
        let position = if digits { position.parse::<usize>().ok() } else { None };
        let position = position.filter(|position| *position <= MAX_POSITION).ok_or_else(|| {
            RequestError::invalid(
                statement,
                format!("{name}_<i> with i, the card's place among the container's own, from 0 to {MAX_POSITION}"),
            )
        })?;
        if listed.len() <= position {
            listed.resize(position + 1, general.clone());
        }
        if let Some(slot) = listed.get_mut(position) {
            // A card's own 0 leaves it to the limit for all, as in HAMi's library; beside another
            // limit of its own, both hold.
            let own = |statement| {
                let own = read(statement)?;
                Ok(general.clone().filter(|_| is_zero(&own)).unwrap_or(own))
            };
            *slot = env.joined(full_name, own, &tighter)?.or_else(|| general.clone());
        }
        said = said.or(Some(statement));
    }
    Ok((PerCard::listed_then(listed, general), said))
}

/// Bytes, or with a suffix g, m or k; 0: no limit.
fn memory(statement: Statement<'_>) -> Result<Vec<MemoryLimit>, RequestError> {
    let value = statement.value.trim().to_ascii_lowercase();
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'g') => (value.trim_end_matches('g'), Bytes::GIB),
        Some(b'm') => (value.trim_end_matches('m'), Bytes::MIB),
        Some(b'k') => (value.trim_end_matches('k'), Bytes::KIB),
        _ => (value.as_str(), 1),
    };
    let error = || {
        RequestError::invalid(
            statement,
            "a number of bytes, or one with a suffix g, m or k, such as 4096m; 0 for no limit",
        )
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) || value.len() > digits.len() + 1 {
        return Err(error());
    }
    let amount = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(error)?;
    match amount {
        0 => Ok(Vec::new()),
        1..Bytes::KIB => Err(error()),
        _ => Ok(vec![MemoryLimit::bytes(Bytes(amount))]),
    }
}

/// 0 and 100 and above: no cap.
fn tighter_percent(one: u64, other: u64) -> u64 {
    match (one, other) {
        (0, percent) | (percent, 0) => percent,
        (one, other) => one.min(other),
    }
}

/// The time at which a cap holds; a later one is tighter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CapPolicy {
    Disable,
    Default,
    Force,
}

fn cap_policy(statement: Statement<'_>) -> Result<CapPolicy, RequestError> {
    match statement.value.trim().to_ascii_lowercase().as_str() {
        "default" => Ok(CapPolicy::Default),
        "force" => Ok(CapPolicy::Force),
        "disable" => Ok(CapPolicy::Disable),
        _ => Err(RequestError::invalid(statement, "one of default, force, disable")),
    }
}

fn cap(percent: Option<u64>, policy: CapPolicy, defaults: &HamiDefaults) -> ComputeShare {
    if policy == CapPolicy::Disable || defaults.disable_compute_limit {
        return ComputeShare::Unlimited;
    }
    let percent = match percent {
        Some(percent) => u8::try_from(percent).ok().filter(|percent| *percent < 100).and_then(Percent::new),
        None => defaults.default_compute,
    };
    match percent {
        Some(percent) => ComputeShare::Cap { percent, lifted_when_alone: policy == CapPolicy::Default },
        None => ComputeShare::Unlimited,
    }
}

fn priority(statement: Statement<'_>) -> Result<Priority, RequestError> {
    statement.word(&[("0", Priority::High), ("1", Priority::Low)])
}

/// Checks that the scheduler's note on the pod has every card that the variables name by its whole
/// UUID. It has `UUID,NVIDIA,<MiB>,<percent>:` for each card, and `;` after each container.
fn check_allocation(env: &Statements<'_>, annotations: &Statements<'_>) -> Result<(), RequestError> {
    let (Some(allocated), Some(visible)) = (annotations.any(ALLOCATED), env.any(super::nvidia::VISIBLE)) else {
        return Ok(());
    };
    let Ok(DeviceList::Devices(devices)) = visible.value.parse() else { return Ok(()) };
    let entries = allocated.value.split([';', ':']).filter_map(|entry| entry.split(',').next());
    let known: Vec<&str> = entries.map(str::trim).filter(|uuid| !uuid.is_empty()).collect();
    for device in devices {
        let name = device.to_string();
        if name.starts_with("GPU-")
            && !known.iter().any(|uuid| uuid.to_ascii_lowercase().starts_with(&name.to_ascii_lowercase()))
        {
            let reason = "the scheduler did not allocate every card that the container names";
            return Err(RequestError::contradiction(visible, allocated, reason));
        }
    }
    Ok(())
}
