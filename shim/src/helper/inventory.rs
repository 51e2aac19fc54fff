//! `Inventory`: the node's cards, asked in a process that the driver's library may load into, hang or crash.

use nvidia_glue::cards::{self, DiscoverError};
use runtime_config::config::{Config, ConfigError};

use super::protocol::{FailureKind, Inventory};

/// Why there is no inventory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InventoryError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cards.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
}

impl InventoryError {
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Config(_) => FailureKind::FailedPrecondition,
            Self::Discover(_) => FailureKind::Internal,
        }
    }
}

/// Asks for the cards and stores what was learned for the shims that come after.
pub(crate) fn inventory(inventory: &Inventory) -> Result<cards::Inventory, InventoryError> {
    let config = Config::load(Some(&inventory.config))?;
    Ok(cards::refresh(&config)?)
}
