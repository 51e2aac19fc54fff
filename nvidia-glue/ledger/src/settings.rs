//! Settings of the node's cards, beside the grants: kept also while a card is empty.

use std::collections::BTreeMap;

use base::{CardPolicy, Period, format::WrittenFormat};
use schedule::PlanSettings;
use serde::{Deserialize, Serialize};

use super::{Limits, formats::SETTINGS};

/// An administrator's setting of one card. `None`: nothing; the configuration's holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardSetting {
    /// Its policy while no container needs another one.
    #[serde(default)]
    pub policy: Option<CardPolicy>,
    /// Its periods, if no share on it needs longer ones.
    #[serde(default)]
    pub period: Option<Period>,
}

/// `settings.json`: what the schedule needs beside the grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Oldest format whose readers may act on them.
    pub(super) version: u32,
    /// Format in which they were written first.
    #[serde(default = "base::format::first")]
    pub(super) format: u32,
    /// Slices of a card, as the configuration said at the last admission.
    pub(crate) max_inst: u32,
    /// Periods likewise.
    pub(crate) period: Period,
    /// By UUID: what an administrator has set.
    pub(super) cards: BTreeMap<String, CardSetting>,
    /// A policy that is being changed: what was begun is finished by whoever finds it.
    #[serde(default)]
    pub(super) changing: Option<Changing>,
}

/// A change of a card's policy that is not yet in every record of the card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changing {
    pub(super) uuid: String,
    pub(super) policy: CardPolicy,
    /// The card can take containers off.
    pub(super) hard_caps: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let WrittenFormat { version, format } = SETTINGS.written();
        Self { version, format, max_inst: 16, period: Period::Us(100_000), cards: BTreeMap::new(), changing: None }
    }
}

impl Settings {
    /// Settings of a card.
    pub(super) fn card(&self, uuid: &str) -> CardSetting {
        self.cards.get(uuid).copied().unwrap_or_default()
    }

    /// Settings that a schedule is planned by.
    pub(super) fn plan(&self) -> PlanSettings {
        let period = |(uuid, setting): (&String, &CardSetting)| Some((uuid.clone(), setting.period?));
        let card_periods = self.cards.iter().filter_map(period).collect();
        PlanSettings { max_inst: self.max_inst, period: self.period, card_periods }
    }

    /// The node's rules as they hold on one card.
    pub(super) fn limits(&self, limits: &Limits, uuid: &str) -> Limits {
        let default_policy = self.card(uuid).policy.unwrap_or(limits.default_policy);
        Limits { default_policy, ..*limits }
    }

    /// The settings with the configuration's part as it is in `limits` now.
    pub(super) fn with(&self, limits: &Limits) -> Self {
        Self { max_inst: limits.max_inst, period: limits.period, ..self.clone() }
    }
}
