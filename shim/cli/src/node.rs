//! Snapshot of a node for the commands: configuration, cards, grants.

use cards::Inventory;
use ledger::{CardState, Ledger, Limits, Record, StoreError, Waiter};
use runtime_config::{
    Config,
    config::{MIN_PERIOD_US, Period},
    request::CardPolicy,
};

use super::{error::CliError, schedules::Schedules};

/// Snapshot of this node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) inventory: Inventory,
    /// The grants, in ledger order.
    pub(super) records: Vec<Record>,
    /// Containers that wait for room, in the order of their arrival.
    pub(super) waiters: Vec<Waiter>,
    /// The cards in the inventory's order, with what is granted of them.
    pub(super) cards: Vec<CardState>,
    /// The timetable, and the use that containers achieve.
    pub(super) schedules: Schedules,
}

impl Node {
    /// Reads the state of the node; warnings go to stderr.
    pub(super) fn read() -> Result<Self, CliError> {
        let (config, inventory) = configuration_and_cards()?;
        let (node, warnings) = Self::of(config, inventory)?;
        for warning in warnings {
            crate::output::say(&format!("egpu: {warning}"));
        }
        Ok(node)
    }

    /// Reads what changes from instant to instant, and returns warnings of what failed.
    pub(super) fn of(config: Config, inventory: Inventory) -> Result<(Self, Vec<String>), CliError> {
        let failed = failed(&config);
        let ledger = Ledger::open(&config.state_dir).map_err(&failed)?;
        let (records, unreadable) = ledger.readable_records().map_err(&failed)?;
        let waiters = ledger.waiting().map_err(&failed)?;
        let cards = ledger.card_states_with(&records, &inventory, &Limits::from(&config)).map_err(&failed)?;
        let (schedules, mut warnings) = Schedules::read(&config.state_dir, &records);
        warnings.extend(unreadable.iter().map(|error| base::error_chain(error)));
        Ok((Self { inventory, records, waiters, cards, schedules, config }, warnings))
    }
}

impl Node {
    /// Opens the ledger of the snapshot.
    pub(super) fn ledger(&self) -> Result<Ledger, CliError> {
        Ledger::open(&self.config.state_dir).map_err(self.ledger_failed())
    }

    pub(super) fn ledger_failed(&self) -> impl Fn(StoreError) -> CliError + use<> {
        failed(&self.config)
    }

    /// Returns a card's policy: that of its containers, or the one it has until a container needs
    /// another.
    pub(super) fn policy(&self, state: &CardState) -> CardPolicy {
        state.policy.or(state.setting.policy).unwrap_or(self.config.default_policy)
    }

    /// Returns the length of a card's periods: as laid out now, or as they would be.
    pub(super) fn period_us(&self, state: &CardState) -> u64 {
        let on_card = |record: &&Record| record.cards.iter().any(|grant| grant.uuid == state.uuid);
        let mut turns = self.records.iter().filter(on_card).filter_map(|record| self.schedules.last_turn(record));
        let without_turns_us = match state.period {
            Period::Auto => MIN_PERIOD_US,
            Period::Us(us) => us,
        };
        turns.next().map_or(without_turns_us, |turn| turn.period_us)
    }
}

/// Reads the configuration, and the cards, of which the driver is asked if no recent inventory is
/// cached.
pub(super) fn configuration_and_cards() -> Result<(Config, Inventory), CliError> {
    let config = crate::config::load()?;
    let inventory = match cards::cached(&config) {
        Some(inventory) => inventory,
        None => cards::refresh(&config).map_err(CliError::Cards)?,
    };
    Ok((config, inventory))
}

/// Reads all grants that are understood, in ledger order. What is wrong with the others goes to
/// stderr.
pub(super) fn records(config: &Config) -> Result<Vec<Record>, CliError> {
    let failed = failed(config);
    let ledger = Ledger::open(&config.state_dir).map_err(&failed)?;
    let (records, unreadable) = ledger.readable_records().map_err(&failed)?;
    for error in unreadable {
        crate::output::say(&format!("egpu: {}", base::error_chain(&error)));
    }
    Ok(records)
}

fn failed(config: &Config) -> impl Fn(StoreError) -> CliError + use<> {
    let state_dir = config.state_dir.clone();
    move |source| CliError::Ledger { state_dir: state_dir.clone(), source }
}
