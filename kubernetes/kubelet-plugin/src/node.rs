//! The node as egpu knows it: configuration, cards, ledger.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use base::ComputeEnforcement;
use cards::{DiscoverError, Inventory};
use ledger::{Ledger, Limits, StoreError, claims::CardOffer, decision_log::DecisionLog};
use runtime_config::config::{Config, ConfigError};

/// Longest time that the driver gets to tell its cards.
const DISCOVERY: Duration = Duration::from_secs(60);
/// Interval at which the end of a discovery is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// The node cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the ledger cannot be read")]
    Ledger(#[from] StoreError),
    #[error("the node's cards are not known")]
    Cards(#[from] DiscoverError),
    /// The process that asks the driver.
    #[error("the driver cannot be asked for its cards")]
    Discovery(#[source] io::Error),
    /// It said no cards.
    #[error("the driver was asked for its cards, and gave no answer that is good still")]
    NoInventory,
}

/// The node's configuration file and ledger.
#[derive(Debug)]
pub(crate) struct Node {
    config: Option<PathBuf>,
    pub(crate) ledger: Ledger,
    pub(crate) log: DecisionLog,
}

/// Configuration and cards as of now.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) inventory: Inventory,
}

/// Everything that is published.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) facts: Facts,
    /// In the inventory's order.
    pub(crate) offers: Vec<CardOffer>,
    /// UUIDs of cards that have ceased to take containers off.
    pub(crate) degraded: BTreeSet<String>,
}

impl Node {
    /// Opens the ledger that the configuration file names.
    pub(crate) fn open(path: Option<PathBuf>) -> Result<(Self, Config), NodeError> {
        let config = Config::load(path.as_deref())?;
        let log = DecisionLog::new(&config.log_file, &config.state_dir);
        Ok((Self { config: path, ledger: Ledger::open(&config.state_dir)?, log }, config))
    }

    /// Reads configuration and cards. Blocks, for seconds where the driver has to be asked.
    pub(crate) fn facts(&self) -> Result<Facts, NodeError> {
        let config = Config::load(self.config.as_deref())?;
        let inventory = match cards::cached(&config) {
            Some(inventory) => inventory,
            None => {
                self.ask_driver()?;
                cards::cached(&config).ok_or(NodeError::NoInventory)?
            }
        };
        Ok(Facts { limits: Limits::from(&config), config, inventory })
    }

    /// Reads what is published. Blocks.
    pub(crate) fn view(&self) -> Result<View, NodeError> {
        let facts = self.facts()?;
        let offers = self.ledger.offers(&facts.inventory, &facts.limits)?;
        let degraded = self.degraded(&facts.inventory)?;
        Ok(View { facts, offers, degraded })
    }

    /// Has a process of its own ask the driver: it may hang on a broken card, and what the driver's
    /// library takes of memory it does not give back.
    fn ask_driver(&self) -> Result<(), NodeError> {
        // This program, even if another build stands in its file's place by now.
        let mut command = Command::new("/proc/self/exe");
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        let started = command.arg("--discover").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = started.map_err(NodeError::Discovery)?;
        let begun = Instant::now();
        loop {
            match child.try_wait().map_err(NodeError::Discovery)? {
                Some(_) => return Ok(()),
                None if begun.elapsed() > DISCOVERY => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let error = io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
                    return Err(NodeError::Discovery(error));
                }
                None => thread::sleep(LOOK),
            }
        }
    }

    /// Cards that can take containers off, and have ceased to for one that is there.
    fn degraded(&self, inventory: &Inventory) -> Result<BTreeSet<String>, StoreError> {
        let records = self.ledger.records()?;
        let grants = records.iter().flat_map(|record| &record.cards);
        let degraded = grants
            .filter(|grant| grant.compute_by == ComputeEnforcement::WeightsOnly)
            .filter(|grant| inventory.cards.iter().any(|card| card.uuid == grant.uuid && card.hard_caps));
        Ok(degraded.map(|grant| grant.uuid.clone()).collect())
    }
}

/// Asks the driver and writes down what it says.
pub(crate) fn discover(config: Option<&Path>) -> Result<(), NodeError> {
    cards::refresh(&Config::load(config)?)?;
    Ok(())
}
