//! One card's part of a grant.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, CardPolicy, ComputeShare, amounts::human};

/// One container's grant of one card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardGrant {
    /// The card's index when it was granted.
    pub index: u32,
    /// `GPU-...`: what names the card in the ledger.
    pub uuid: String,
    /// `MIG-...` when a MIG device was granted and not the card.
    pub mig_uuid: Option<String>,
    /// Usable bytes.
    pub memory: Bytes,
    /// Share of its time.
    pub compute: ComputeShare,
    /// The card's policy when it was granted.
    pub policy: CardPolicy,
    /// The whole card, alone.
    pub exclusive: bool,
    /// Means by which the limits are held.
    pub enforcement: Enforcement,
    /// Means by which the share of time is held, where the limits are held by the mediator.
    #[serde(default)]
    pub compute_by: ComputeEnforcement,
    /// Mean loss of its windows in microseconds, as its mediator has measured it; policy `weighted`
    /// adds it to them.
    #[serde(default)]
    pub window_loss_us: u64,
    /// Channels that it may have of the card; `None`: it has no mediator, or an older egpu's.
    #[serde(default)]
    pub channels: Option<u32>,
    /// Its part of the host memory that the driver may pin for the container, which may have the
    /// sum of its cards' parts; `None` likewise.
    #[serde(default)]
    pub pinned_memory: Option<Bytes>,
}

/// Means by which a container's share of a card's time is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeEnforcement {
    /// Nothing: the driver's own scheduling, or a whole card.
    #[default]
    None,
    /// Exclusive windows of time, outside of which its channels are off the card.
    Windows,
    /// Time slices by weight, steered by what is achieved.
    Slices,
    /// As `Slices`, because the card cannot take channels off: a cap is a weight, and idle time
    /// goes to who wants it.
    WeightsOnly,
}

/// Means by which a grant's limits are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// Nothing to hold: a whole card.
    WholeCard,
    /// MIG hardware.
    Mig,
    /// Admission only: the sums are held, the running container is not.
    Admission,
    /// The mediator, which executes the container's driver calls, holds its memory, and its time as
    /// [`CardGrant::compute_by`] says.
    Mediated,
    /// The container monitors the card (`utility` alone). Its `memory` is 0; the mediator sees to
    /// that, unless the container has privileges that no mediator survives, or the card is in MIG
    /// mode.
    Monitor,
}

impl CardGrant {
    /// Returns whether it takes anything of the card: a monitor's grant does not.
    pub fn holds(&self) -> bool {
        self.memory.0 > 0 && self.enforcement != Enforcement::Monitor
    }

    /// Takes a place of the card's containers, or all of them: a MIG device is no part of its card.
    pub fn is_counted(&self) -> bool {
        self.holds() && self.mig_uuid.is_none()
    }

    /// `3.2 GiB compute=10%`, `the whole card`; `3.2 GiB compute=10% as a weight` where the card
    /// cannot hold it to a cap: for people.
    pub fn describe(&self) -> String {
        let text = describe(self.memory, self.compute, self.exclusive, self.mig_uuid.as_deref(), self.enforcement);
        match (self.compute_by, self.compute) {
            (ComputeEnforcement::WeightsOnly, ComputeShare::Cap { .. }) => format!("{text} as a weight"),
            _ => text,
        }
    }

    /// Returns whether it is a part of a card that others may have parts of.
    pub fn is_shared(&self) -> bool {
        self.holds() && !self.exclusive && self.mig_uuid.is_none()
    }
}

/// `3.2 GiB compute=10%`, `the whole card`: what is asked or granted of one card, for people.
pub fn describe(
    memory: Bytes,
    compute: ComputeShare,
    exclusive: bool,
    mig: Option<&str>,
    enforcement: Enforcement,
) -> String {
    match (mig, enforcement) {
        (Some(mig), _) => mig.to_owned(),
        (None, Enforcement::Monitor) => "a look, nothing held".to_owned(),
        (None, Enforcement::Mig) => "a MIG device".to_owned(),
        _ if exclusive => "the whole card".to_owned(),
        _ => format!("{} {}", human(memory), ComputeText(compute)),
    }
}

/// A compute share as people write it.
#[derive(Debug)]
pub struct ComputeText(pub ComputeShare);

impl fmt::Display for ComputeText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ComputeShare::Unlimited => formatter.write_str("compute=uncapped"),
            ComputeShare::Cap { percent, .. } => write!(formatter, "compute={percent}"),
            ComputeShare::Weight(weight) => write!(formatter, "weight={weight}"),
        }
    }
}
