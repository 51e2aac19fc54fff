//! From a grant to the mediation of its container.

use std::{path::PathBuf, time::Duration};

use nvidia_glue::{
    cards::{Inventory, Source},
    inject,
    ledger::{CardGrant, Enforcement, Record},
};
use runtime_config::{
    config::{Config, UnknownDriver},
    request::{Isolation, Share},
};

use super::GpuError;
use crate::mediator::{MediatedCard, MediatedDriver, Setup};

/// How the driver calls of a container are mediated.
#[derive(Debug, Clone)]
pub struct Mediation {
    /// For its mediator.
    pub setup: Setup,
    /// What happens to a process that asks for too much, when it is to be killed.
    pub excess: ExcessRules,
}

/// See [`Mediation::excess`].
#[derive(Debug, Clone, Default)]
pub struct ExcessRules {
    /// Program in the container that runs before the kill.
    pub oom_script: Option<PathBuf>,
    /// How long it may; zero: it does not run.
    pub oom_script_timeout: Duration,
}

/// `None`: the container shares no card.
pub(super) fn mediation(
    config: &Config,
    record: &Record,
    inventory: &Inventory,
) -> Result<Option<Mediation>, GpuError> {
    if !record.cards.iter().any(|grant| grant.enforcement == Enforcement::Mediated) {
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
    let usage_file = inject::usage_file(&state_dir, &grant_id).map_err(|source| GpuError::Inject(Box::new(source)))?;
    let status_file =
        inject::status_file(&state_dir, &grant_id).map_err(|source| GpuError::Inject(Box::new(source)))?;
    let setup = Setup {
        driver,
        release: inventory.driver_version.clone(),
        pass_unknown_driver: config.unknown_driver == UnknownDriver::Pass,
        cards: record.cards.iter().filter_map(|grant| card(grant, inventory, is_limited)).collect(),
        over_memory: record.request.over_memory,
        reconcile_period_ms: u64::try_from(config.reconcile_period.as_millis()).unwrap_or(u64::MAX),
        usage_file,
        grant_id,
        state_dir,
        status_file,
        throttle: config.throttle,
        cgroups: record.cgroups.iter().map(PathBuf::from).collect(),
    };
    let excess =
        ExcessRules { oom_script: record.request.oom_script.clone(), oom_script_timeout: config.oom_script_timeout };
    Ok(Some(Mediation { setup, excess }))
}

/// The ledger granted only cards of the inventory.
fn card(grant: &CardGrant, inventory: &Inventory, is_limited: bool) -> Option<MediatedCard> {
    let card = inventory.cards.iter().find(|card| card.uuid == grant.uuid)?;
    let is_whole = grant.exclusive || !is_limited;
    Some(MediatedCard {
        uuid: card.uuid.clone(),
        minor: card.minor,
        pci: card.pci,
        limit: if is_whole { card.memory } else { grant.memory },
        total: card.memory,
        model: card.model.clone(),
    })
}
