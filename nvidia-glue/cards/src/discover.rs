//! Discovery of the node's cards, whoever provides them.

use std::io;

use runtime_config::config::{Config, DriverKind};

use super::{
    Inventory, Roots, SimulatedError, Source,
    cache::{self, Key, Notes},
    health, kernel_module,
    nvidia::{self, CardMemory, DriverError, ProcessMemory, Sensors},
    simulated,
};

/// Number of times that an inventory is taken anew because the node changed meanwhile: taking the
/// first one loads the driver.
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
    notes: Notes,
}

/// The node's cards and their health, as `[driver]` of the configuration says where from.
///
/// Asks the driver itself, which takes from milliseconds to seconds and may hang on a broken card,
/// and may load the kernel module: call it in a short-lived process, never in the shim. See
/// [`cached`] and [`refresh`].
///
/// # Errors
/// When the configuration asks for what cannot be had, or the driver that is there does not work. A
/// card that does not answer is no error but is listed as unusable, and no driver at all is an
/// inventory without cards ([`Inventory::has_driver`]).
pub fn discover(config: &Config) -> Result<Inventory, DiscoverError> {
    let roots = Roots::host();
    Ok(with_health(&roots, config, take(&roots, config)?))
}

/// The inventory that was stored last, with the health that the cards have now, if it is still
/// good. Asks neither NVML nor any card: a few small files of `/proc` and the kernel's log.
/// Simulated cards are always at hand.
pub fn cached(config: &Config) -> Option<Inventory> {
    cached_in(&Roots::host(), config)
}

pub(super) fn cached_in(roots: &Roots, config: &Config) -> Option<Inventory> {
    if config.driver.kind != DriverKind::Simulated {
        return cache::load(roots, config, 0);
    }
    let inventory = simulated::inventory(&config.driver.simulated).ok()?;
    Some(with_health(roots, config, inventory.into()))
}

/// [`discover`], and keeps what it found for [`cached`]. Only one process of the node asks the
/// driver at a time; who had to wait takes what the other one found. Not being able to keep it is
/// logged, not an error.
///
/// # Errors
/// As [`discover`].
pub fn refresh(config: &Config) -> Result<Inventory, DiscoverError> {
    refresh_in(&Roots::host(), config)
}

pub(super) fn refresh_in(roots: &Roots, config: &Config) -> Result<Inventory, DiscoverError> {
    if config.driver.kind == DriverKind::Simulated {
        return Ok(with_health(roots, config, take(roots, config)?));
    }
    let asked = health::boottime_ms();
    let lock = cache::lock(config);
    if lock.is_ok()
        && let Some(inventory) = cache::load(roots, config, asked.saturating_add(1))
    {
        return Ok(inventory);
    }
    let (before, discovery) = take_undisturbed(roots, config)?;
    // Stored with the state before it was taken: if the node changed meanwhile, the file is not
    // believed.
    let stored = match before {
        Some(key) => cache::store(config, key, discovery.inventory.clone(), discovery.notes.clone()),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "the kernel gives no boot id")),
    };
    if let Err(error) = lock.and(stored) {
        tracing::warn!(state_dir = %config.state_dir.display(), %error, "cannot keep the inventory of cards");
    }
    Ok(with_health(roots, config, discovery))
}

/// An inventory, and the state of the node before it was taken; again if that was another
/// afterwards.
fn take_undisturbed(roots: &Roots, config: &Config) -> Result<(Option<Key>, Discovery), DiscoverError> {
    let mut attempt = 1;
    loop {
        let before = cache::key(roots, config);
        let discovery = take(roots, config)?;
        if attempt == ATTEMPTS || cache::key(roots, config) == before {
            return Ok((before, discovery));
        }
        attempt += 1;
    }
}

fn with_health(roots: &Roots, config: &Config, discovery: Discovery) -> Inventory {
    let Discovery { mut inventory, notes } = discovery;
    health::read_faults_if_possible(roots, &config.state_dir, inventory.source).apply(&mut inventory, &notes.forgiven);
    inventory
}

/// Memory of the cards by process: `(UUID of the card, pid on the host, bytes)`. Asks NVML, as
/// [`discover`] does. Empty where cards are simulated or there are none.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub fn processes(config: &Config) -> Result<Vec<ProcessMemory>, DiscoverError> {
    if config.driver.kind == DriverKind::Simulated {
        return Ok(Vec::new());
    }
    Ok(nvidia::processes(&Roots::host(), &config.driver.root)?.unwrap_or_default())
}

/// Memory of the cards that is in use, as [`processes`]: none of a card that was `asked` for, by
/// UUID, and is lost, or taken out of the machine. A card that does not answer is not listed.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub fn memory(config: &Config, asked: &[&str]) -> Result<Vec<CardMemory>, DiscoverError> {
    let Some(sensors) = sensors(config)? else { return Ok(Vec::new()) };
    Ok(sensors.memory(asked, &kernel_module::gpus(&Roots::host())))
}

/// Sensors of the cards, to be asked again and again; `None` where cards are simulated or there is
/// no driver. Starts NVML, as [`discover`] does, and keeps it: the cards are in use until the value
/// is dropped.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub fn sensors(config: &Config) -> Result<Option<Sensors>, DiscoverError> {
    if config.driver.kind == DriverKind::Simulated {
        return Ok(None);
    }
    Ok(Sensors::open(&Roots::host(), &config.driver.root)?)
}

/// Persistence mode by UUID of the card, for the doctor. Asks NVML, as [`discover`] does.
///
/// # Errors
/// When there is a driver but it cannot be asked.
pub fn persistence(config: &Config) -> Result<Vec<(String, bool)>, DiscoverError> {
    Ok(nvidia::persistence(&Roots::host(), &config.driver.root)?.unwrap_or_default())
}

fn take(roots: &Roots, config: &Config) -> Result<Discovery, DiscoverError> {
    let tables = &config.driver.simulated;
    if config.driver.kind == DriverKind::Simulated {
        return Ok(simulated::inventory(tables)?.into());
    }
    // Looked at before NVML is asked: an error that happens meanwhile is not forgiven, an
    // unreadable log forgives nothing.
    let log = health::look(roots, &config.state_dir, Source::Nvidia).unwrap_or_default();
    let survey = nvidia::survey(roots, &config.driver.root)?;
    let has_cards = survey.as_ref().is_some_and(|survey| !survey.inventory.cards.is_empty());
    if !has_cards && config.driver.kind == DriverKind::Auto && !tables.is_empty() {
        return Ok(simulated::inventory(tables)?.into());
    }
    let sound = survey.iter().flat_map(|survey| &survey.sound);
    let forgiven = sound.map(|uuid| (uuid.clone(), log.next)).collect();
    let notes = Notes { forgiven, driver_loaded: log.driver_loaded };
    Ok(Discovery { inventory: survey.map_or_else(no_driver, |survey| survey.inventory), notes })
}

fn no_driver() -> Inventory {
    Inventory { source: Source::Nvidia, driver_version: String::new(), cuda_version: String::new(), cards: Vec::new() }
}

impl From<Inventory> for Discovery {
    fn from(inventory: Inventory) -> Self {
        Self { inventory, notes: Notes::default() }
    }
}

impl Inventory {
    /// Returns whether there is a driver, real or simulated. Without one there are no cards either.
    pub fn has_driver(&self) -> bool {
        !self.driver_version.is_empty()
    }
}
