//! Mediation of a container, planned from its grant.

use std::{path::PathBuf, time::Duration};

use cards::{Inventory, Source};
use ledger::{CardGrant, ComputeEnforcement, ContainerKey, Enforcement, Record};
use mediator::GrantedCard;
use mediator_process::{MediatedDriver, Setup};
use nvidia_glue::inject;
use runtime_config::{
    config::{Config, HardCapsUnavailable, UnknownDriver, WholeCards},
    request::{DriverCapabilities, Isolation, OverMemory, PodContainer, Share},
};

use super::GpuError;

/// Plan of the mediation of a container.
#[derive(Debug, Clone)]
pub struct MediationPlan {
    /// Setup of its mediator.
    pub setup: Setup,
    /// Rules for a process that asks for too much, when it is to be killed.
    pub excess: ExcessRules,
    /// Key of the grant: the container's, or that of its claim.
    pub container: ContainerKey,
    /// Its names in Kubernetes.
    pub pod: Option<PodContainer>,
    /// Other containers may use the same grant.
    pub is_shared: bool,
}

/// Rules for a process that is to be killed for asking for too much.
#[derive(Debug, Clone, Default)]
pub struct ExcessRules {
    /// Program in the container that runs before the kill.
    pub oom_script: Option<PathBuf>,
    /// Time limit of that program; zero: it does not run.
    pub oom_script_timeout: Duration,
}

/// Plans the mediation; `None`: the container needs none.
///
/// It shares no card, monitors none that it could take memory of, and has no whole one that is to
/// be mediated. `is_confined`: it has no privileges that defeat mediation; a container that shares
/// a card is mediated even with them, where the configuration lets it have an advisory quota.
pub(super) fn mediation(
    config: &Config,
    record: &Record,
    inventory: &Inventory,
    is_confined: bool,
) -> Result<Option<MediationPlan>, GpuError> {
    let is_mediated = |grant: &CardGrant| match grant.enforcement {
        Enforcement::Mediated => true,
        // In MIG mode all memory of a card is its devices', which the driver separates, and reports
        // by capabilities of the caller.
        Enforcement::Monitor => is_confined && !is_in_mig_mode(grant, inventory),
        // Otherwise it could use any card whose file a container with a share passes to it.
        Enforcement::WholeCard => config.whole_cards == WholeCards::Mediated && is_confined,
        Enforcement::Mig | Enforcement::Admission => false,
    };
    if !record.cards.iter().any(is_mediated) {
        return Ok(None);
    }
    let is_limited = !matches!(record.request.share, Share::Part { isolation: Isolation::None, .. });
    let driver = match inventory.source {
        Source::Nvidia => MediatedDriver::Nvidia { device_root: PathBuf::from("/") },
        Source::Simulated => {
            MediatedDriver::Simulated { state_dir: config.state_dir.clone(), inventory: Box::new(inventory.clone()) }
        }
    };
    let (state_dir, grant_id) = (config.state_dir.clone(), record.grant_id.clone());
    let usage_file =
        inject::usage_file(&state_dir, &grant_id).map_err(|source| GpuError::Inject(Box::new(source.into())))?;
    let status_file =
        inject::status_file(&state_dir, &grant_id).map_err(|source| GpuError::Inject(Box::new(source.into())))?;
    let setup = Setup {
        driver,
        release: inventory.driver_version.clone(),
        pass_unknown_driver: config.unknown_driver == UnknownDriver::Pass,
        cards: record
            .cards
            .iter()
            .filter_map(|grant| card(grant, inventory, is_limited, config.hard_caps_unavailable))
            .collect(),
        pinned_memory: record.pinned_memory(),
        over_memory: over_memory(record),
        reconcile_period_ms: u64::try_from(config.reconcile_period.as_millis()).unwrap_or(u64::MAX),
        usage_file,
        grant_id,
        state_dir,
        status_file,
        priority: config.priority,
        throttle: config.throttle,
        may_draw: record
            .request
            .driver_capabilities
            .intersects(DriverCapabilities::GRAPHICS | DriverCapabilities::DISPLAY),
        cgroups: record.cgroups.iter().map(PathBuf::from).collect(),
        processors_per_card: config.mediator_processors,
    };
    let excess =
        ExcessRules { oom_script: record.request.oom_script.clone(), oom_script_timeout: config.oom_script_timeout };
    Ok(Some(MediationPlan {
        setup,
        excess,
        container: record.container.clone(),
        pod: record.request.pod.clone(),
        is_shared: record.claim.is_some(),
    }))
}

fn is_in_mig_mode(grant: &CardGrant, inventory: &Inventory) -> bool {
    inventory.cards.iter().any(|card| card.uuid == grant.uuid && card.mig_enabled)
}

/// Returns the action for too much memory: a monitor is refused, as it has asked for no limit, nor
/// to be killed at one.
fn over_memory(record: &Record) -> OverMemory {
    if record.request.share == Share::Monitor { OverMemory::Deny } else { record.request.over_memory }
}

/// Describes a granted card to the mediator. The ledger grants only cards of the inventory.
fn card(
    grant: &CardGrant,
    inventory: &Inventory,
    is_limited: bool,
    unavailable: HardCapsUnavailable,
) -> Option<GrantedCard> {
    let card = inventory.cards.iter().find(|card| card.uuid == grant.uuid)?;
    let monitored = grant.enforcement == Enforcement::Monitor;
    let is_whole = !monitored && (grant.exclusive || !is_limited);
    let memory_limit = if is_whole { card.memory } else { grant.memory };
    Some(GrantedCard {
        uuid: card.uuid.clone(),
        index: card.index,
        minor: card.minor,
        pci: card.pci,
        memory_limit: memory_limit.floor_to_kib(),
        channels: grant.channels.unwrap_or_default(),
        monitored,
        whole: is_whole,
        is_capped: grant.compute_by == ComputeEnforcement::Windows,
        needs_windows: schedule::policy::is_hard_cap(grant) && unavailable == HardCapsUnavailable::Refuse,
    })
}
