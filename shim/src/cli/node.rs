//! What the commands look at: configuration, cards, grants.

use nvidia_glue::{
    cards::{self, Inventory},
    ledger::{CardState, Ledger, Limits, Record, StoreError, Waiter},
};
use runtime_config::{Config, request::CardPolicy};

use super::{error::CliError, schedules::Schedules};

/// One look at this node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) inventory: Inventory,
    /// Every grant, in ledger order.
    pub(super) records: Vec<Record>,
    /// Who waits for room, in the order of coming.
    pub(super) waiters: Vec<Waiter>,
    /// The cards in the inventory's order, with what is granted of them.
    pub(super) cards: Vec<CardState>,
    /// Who runs when, and what containers achieve.
    pub(super) schedules: Schedules,
}

impl Node {
    /// Asks the driver where nothing recent is known: this process is a short-lived one.
    pub(super) fn read() -> Result<Self, CliError> {
        let config = super::load()?;
        let inventory = match cards::cached(&config) {
            Some(inventory) => inventory,
            None => cards::refresh(&config).map_err(CliError::Cards)?,
        };
        let failed = failed(&config);
        let ledger = Ledger::open(&config.state_dir).map_err(&failed)?;
        let records = ledger.records().map_err(&failed)?;
        let waiters = ledger.waiting().map_err(&failed)?;
        let cards = ledger.card_states(&inventory, &Limits::from(&config)).map_err(&failed)?;
        let (schedules, warnings) = Schedules::read(&config.state_dir, &records);
        for warning in warnings {
            super::say(&format!("egpu: {warning}"));
        }
        Ok(Self { inventory, records, waiters, cards, schedules, config })
    }
}

impl Node {
    /// The ledger that was looked at.
    pub(super) fn ledger(&self) -> Result<Ledger, CliError> {
        Ledger::open(&self.config.state_dir).map_err(self.ledger_failed())
    }

    pub(super) fn ledger_failed(&self) -> impl Fn(StoreError) -> CliError + use<> {
        failed(&self.config)
    }

    /// A card's policy: of its containers, or what it has until one needs another.
    pub(super) fn policy(&self, state: &CardState) -> CardPolicy {
        state.policy.or(state.setting.policy).unwrap_or(self.config.default_policy)
    }

    /// The length of a card's periods: as they are laid out now, or as they would be.
    pub(super) fn period_us(&self, state: &CardState) -> u64 {
        let on_card = |record: &&Record| record.cards.iter().any(|grant| grant.uuid == state.uuid);
        let mut turns = self.records.iter().filter(on_card).filter_map(|record| self.schedules.last_turn(record));
        turns.next().map_or(state.period_us, |turn| turn.period_us)
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
