//! One look at the node: which cards there are, whoever provides them.

use std::path::PathBuf;

use super::{Inventory, Roots, SimulatedCards, SimulatedError, Source, simulated};

/// `[driver] kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverKind {
    /// The driver's cards where there are some, else the simulated ones where some are configured.
    #[default]
    Auto,
    /// The driver's only.
    Nvidia,
    /// The simulated ones only.
    Simulated,
}

/// What the node's configuration says about its cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardSettings {
    /// Where cards come from.
    pub kind: DriverKind,
    /// `libnvidia-ml.so.1`, where it is not found by itself.
    pub library: Option<PathBuf>,
    /// The directory in which the driver is installed, `/` mostly.
    pub driver_root: PathBuf,
    /// `/run/egpu`.
    pub state_dir: PathBuf,
    /// `[[driver.simulated]]`.
    pub simulated: Vec<SimulatedCards>,
}

/// No inventory could be made.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The configured simulated cards make no sense.
    #[error("the configuration's simulated cards cannot be")]
    Simulated(#[from] SimulatedError),
}

/// The node's cards. Asks the driver itself, which takes from milliseconds to seconds and may hang on a broken card:
/// call it in a short-lived process.
///
/// # Errors
/// When the configuration asks for what cannot be had. A card that does not answer is no error but is listed as
/// unusable, and no driver at all is an empty inventory.
pub fn discover(settings: &CardSettings) -> Result<Inventory, DiscoverError> {
    discover_in(&Roots::host(), settings)
}

pub(super) fn discover_in(_roots: &Roots, settings: &CardSettings) -> Result<Inventory, DiscoverError> {
    match settings.kind {
        DriverKind::Simulated => Ok(simulated::inventory(&settings.simulated)?),
        DriverKind::Auto if !settings.simulated.is_empty() => Ok(simulated::inventory(&settings.simulated)?),
        DriverKind::Auto | DriverKind::Nvidia => Ok(Inventory {
            source: Source::Nvidia,
            driver_version: String::new(),
            cuda_version: String::new(),
            cards: Vec::new(),
        }),
    }
}
