//! What the commands look at: configuration, cards, grants.

use nvidia_glue::{
    cards::{self, Inventory},
    ledger::{CardState, Ledger, Limits, Record, StoreError},
};
use runtime_config::Config;

use super::error::CliError;

/// One look at this node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) inventory: Inventory,
    /// Every grant, in ledger order.
    pub(super) records: Vec<Record>,
    /// The cards in the inventory's order, with what is granted of them.
    pub(super) cards: Vec<CardState>,
}

impl Node {
    /// Asks the driver where nothing recent is known: this process is a short-lived one.
    pub(super) fn look() -> Result<Self, CliError> {
        let config = super::load()?;
        let inventory = match cards::cached(&config) {
            Some(inventory) => inventory,
            None => cards::refresh(&config).map_err(CliError::Cards)?,
        };
        let failed = failed(&config);
        let ledger = Ledger::open(&config.state_dir).map_err(&failed)?;
        let records = ledger.records().map_err(&failed)?;
        let cards = ledger.card_states(&inventory, &Limits::from(&config)).map_err(&failed)?;
        Ok(Self { inventory, records, cards, config })
    }
}

/// Every grant, in ledger order.
pub(super) fn records(config: &Config) -> Result<Vec<Record>, CliError> {
    let failed = failed(config);
    Ledger::open(&config.state_dir).map_err(&failed)?.records().map_err(&failed)
}

fn failed(config: &Config) -> impl Fn(StoreError) -> CliError + use<> {
    let state_dir = config.state_dir.clone();
    move |source| CliError::Ledger { state_dir: state_dir.clone(), source }
}
