//! One look at the node: which cards there are, whoever provides them.

use std::{collections::BTreeMap, io};

use runtime_config::config::{Config, DriverKind};

use super::{
    Inventory, Roots, SimulatedError, Source, cache, health,
    nvidia::{self, DriverError, ProcessMemory},
    simulated,
};

/// How often an inventory is taken anew because the node changed meanwhile: taking the first one loads the driver.
const ATTEMPTS: usize = 3;

/// No inventory could be made.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The configured simulated cards make no sense.
    #[error("the configuration's simulated cards cannot be")]
    Simulated(#[from] SimulatedError),
    /// There is an NVIDIA driver, and it does not work.
    #[error("cannot ask the NVIDIA driver for its cards")]
    Driver(#[from] DriverError),
}

/// An inventory, and what its taker learned beyond it.
#[derive(Debug)]
struct Discovery {
    /// Health as NVML sees it.
    inventory: Inventory,
    /// See [`nvidia::forgiven`].
    forgiven: BTreeMap<String, u64>,
}

/// The node's cards and their health, as `[driver]` of the configuration says where from.
///
/// Asks the driver itself, which takes from milliseconds to seconds and may hang on a broken card, and may load the
/// kernel module: call it in a short-lived process, never in the shim. See [`cached`] and [`refresh`].
///
/// # Errors
/// When the configuration asks for what cannot be had, or the driver that is there does not work. A card that does not
/// answer is no error but is listed as unusable, and no driver at all is an inventory without cards
/// ([`Inventory::has_driver`]).
pub fn discover(config: &Config) -> Result<Inventory, DiscoverError> {
    let roots = Roots::host();
    let Discovery { mut inventory, forgiven } = take(&roots, config)?;
    health::update(&roots, &config.state_dir, &mut inventory, &forgiven);
    Ok(inventory)
}

/// The inventory that was stored last, with the health that the cards have now, if it is still good. Asks neither NVML
/// nor any card: a few small files of `/proc` and the kernel's log. Simulated cards are always at hand.
pub fn cached(config: &Config) -> Option<Inventory> {
    cached_in(&Roots::host(), config)
}

pub(super) fn cached_in(roots: &Roots, config: &Config) -> Option<Inventory> {
    if config.driver.kind != DriverKind::Simulated {
        return cache::load(roots, config);
    }
    let mut inventory = simulated::inventory(&config.driver.simulated).ok()?;
    health::update(roots, &config.state_dir, &mut inventory, &BTreeMap::new());
    Some(inventory)
}

/// [`discover`], and keeps what it found for [`cached`]. Not being able to keep it is logged, not an error.
///
/// # Errors
/// As [`discover`].
pub fn refresh(config: &Config) -> Result<Inventory, DiscoverError> {
    refresh_in(&Roots::host(), config)
}

pub(super) fn refresh_in(roots: &Roots, config: &Config) -> Result<Inventory, DiscoverError> {
    let mut before = cache::key(roots, config);
    let mut attempt = 1;
    let Discovery { mut inventory, forgiven } = loop {
        let discovery = take(roots, config)?;
        let after = cache::key(roots, config);
        if after == before || attempt == ATTEMPTS {
            break discovery;
        }
        before = after;
        attempt += 1;
    };
    // Stored with the state before it was taken: if the node changed meanwhile, the file is not believed.
    let stored = match before {
        Some(key) => cache::store(config, key, inventory.clone(), forgiven.clone()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "the kernel gives no boot id")),
    };
    if let Err(error) = stored {
        tracing::warn!(state_dir = %config.state_dir.display(), %error, "cannot keep the inventory of cards");
    }
    health::update(roots, &config.state_dir, &mut inventory, &forgiven);
    Ok(inventory)
}

/// What processes have on the cards: `(UUID of the card, pid on the host, bytes)`. Asks NVML, as [`discover`] does.
/// Empty where cards are simulated or there are none.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub fn processes(config: &Config) -> Result<Vec<ProcessMemory>, DiscoverError> {
    if config.driver.kind == DriverKind::Simulated {
        return Ok(Vec::new());
    }
    Ok(nvidia::processes(&Roots::host(), &config.driver.root)?.unwrap_or_default())
}

/// Persistence mode by UUID of the card, for the doctor. Asks NVML, as [`discover`] does.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub(crate) fn persistence(config: &Config) -> Result<Vec<(String, bool)>, DiscoverError> {
    Ok(nvidia::persistence(&Roots::host(), &config.driver.root)?.unwrap_or_default())
}

fn take(roots: &Roots, config: &Config) -> Result<Discovery, DiscoverError> {
    let tables = &config.driver.simulated;
    if config.driver.kind == DriverKind::Simulated {
        return Ok(simulated::inventory(tables)?.into());
    }
    // Taken before NVML is asked: an error that happens meanwhile is not forgiven. An unreadable log forgives nothing.
    let log_at = health::look(roots, &config.state_dir, Source::Nvidia).map_or(0, |faults| faults.next);
    let survey = nvidia::survey(roots, &config.driver.root)?;
    let has_cards = survey.as_ref().is_some_and(|survey| !survey.inventory.cards.is_empty());
    if !has_cards && config.driver.kind == DriverKind::Auto && !tables.is_empty() {
        return Ok(simulated::inventory(tables)?.into());
    }
    Ok(survey.map_or_else(
        || no_driver().into(),
        |survey| Discovery { forgiven: nvidia::forgiven(&survey.sound, log_at), inventory: survey.inventory },
    ))
}

fn no_driver() -> Inventory {
    Inventory { source: Source::Nvidia, driver_version: String::new(), cuda_version: String::new(), cards: Vec::new() }
}

impl From<Inventory> for Discovery {
    fn from(inventory: Inventory) -> Self {
        Self { inventory, forgiven: BTreeMap::new() }
    }
}

impl Inventory {
    /// Whether there is a driver, real or simulated. Without one there are no cards either.
    pub fn has_driver(&self) -> bool {
        !self.driver_version.is_empty()
    }
}
