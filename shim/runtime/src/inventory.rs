//! `Inventory`: the node's cards, asked in a process that the driver's library may load into, hang
//! or crash.

use cards::{DiscoverError, Roots};
use nvidia_glue::inject;
use runtime_config::config::{Config, ConfigError};

use super::protocol::FailureKind;

/// An inventory that could not be taken.
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

/// Queries the cards and stores the answers for the shims that come after. The configuration is
/// found as the shim found it: by the environment that the zygote inherited.
pub(crate) fn inventory() -> Result<cards::Inventory, InventoryError> {
    let config = Config::load(None)?;
    // The first query after a boot: CUDA needs this module, and nothing loads it by itself. A
    // container that needs it and does not get it is refused with the remedy; one that only looks
    // at cards does not miss it.
    if let Err(error) = inject::ensure_uvm_loaded(&Roots::host(), &config.driver.root) {
        tracing::warn!(error = &error as &dyn std::error::Error, "nvidia-uvm is not loaded");
    }
    Ok(cards::refresh(&config)?)
}
