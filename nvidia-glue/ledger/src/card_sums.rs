//! Sums of what is granted of one card. Pure.

use std::collections::BTreeMap;

use base::{Bytes, CardGrant, CardPolicy, ComputeShare};
use schedule::{
    layout::PERIOD_PARTS,
    policy::{Promised, rules},
};
use serde::{Deserialize, Serialize};

use crate::Limits;

/// Sums of the grants of one card. Always computed from the grants, never counted up and down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CardSums {
    pub(crate) memory: Bytes,
    /// Sum of hard caps.
    pub(crate) caps_percent: u32,
    /// Sum of what the shares count for ([`Rules::slices`](schedule::policy::Rules)).
    pub(crate) weights: u32,
    /// Containers that share what the caps leave.
    pub(crate) uncapped: u32,
    /// Containers that hold a part of the card, or all of it.
    pub(crate) containers: u32,
    /// One of them holds all of it.
    pub(crate) exclusive: bool,
    /// The card's policy; `None` while nobody shares it.
    pub(crate) policy: Option<CardPolicy>,
    /// MIG devices that are held.
    pub(crate) mig: Vec<String>,
    /// Containers of each group, by the group's hash.
    pub(crate) groups: BTreeMap<u64, u32>,
    /// Containers of each owner, by the owner's hash.
    pub(crate) owners: BTreeMap<u64, u32>,
    /// Channels and pinned memory of each of the containers.
    pub(crate) allotments: Vec<Allotment>,
}

impl CardSums {
    /// The sums of `grants`, each with the hash of its container's group.
    pub(crate) fn of<'a>(grants: impl Iterator<Item = (&'a CardGrant, Option<u64>)>) -> Self {
        let mut sums = Self::default();
        for (grant, group) in grants {
            sums.add(grant, group);
        }
        sums
    }

    /// The same with the hash of each container's owner, which only the index needs.
    pub(crate) fn with_owners(mut self, owners: impl Iterator<Item = u64>) -> Self {
        for owner in owners {
            *self.owners.entry(owner).or_default() += 1;
        }
        self
    }

    fn add(&mut self, grant: &CardGrant, group: Option<u64>) {
        if let Some(mig) = &grant.mig_uuid {
            self.mig.push(mig.clone());
            return;
        }
        if !grant.is_counted() {
            return;
        }
        self.memory = Bytes(self.memory.0.saturating_add(grant.memory.0));
        self.containers += 1;
        self.allotments.push(Allotment::of(grant));
        if let Some(group) = group {
            *self.groups.entry(group).or_default() += 1;
        }
        if grant.exclusive {
            self.exclusive = true;
            return;
        }
        self.policy.get_or_insert(grant.policy);
        self.weights += (rules(grant.policy).slices)(grant.compute);
        match grant.compute {
            ComputeShare::Cap { percent, .. } => self.caps_percent += u32::from(percent.get()),
            ComputeShare::Unlimited => self.uncapped += 1,
            ComputeShare::Weight(_) => {}
        }
    }

    /// Percent of the card's time that is promised, rounded up.
    pub(crate) fn compute_percent(&self, limits: &Limits) -> u32 {
        if self.exclusive {
            return 100;
        }
        let parts = self.policy.map_or(0, |policy| (rules(policy).promised_parts)(self.promised(limits)));
        u32::try_from(parts.div_ceil(PERIOD_PARTS / 100)).unwrap_or(100)
    }

    /// Weight that can still be asked for.
    pub(crate) fn free_weight(&self, limits: &Limits) -> u32 {
        if self.exclusive {
            return 0;
        }
        let caps = (self.caps_percent * limits.max_inst).div_ceil(100);
        limits.max_inst.saturating_sub(self.weights).saturating_sub(caps)
    }

    pub(crate) fn promised(&self, limits: &Limits) -> Promised {
        Promised { caps_percent: self.caps_percent, slices: self.weights, max_inst: limits.max_inst }
    }
}

/// Channels and pinned memory of one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Allotment {
    /// 0: it is not mediated, or an older egpu's.
    pub(crate) channels: u32,
    /// Likewise.
    pub(crate) pinned_memory: Bytes,
}

impl Allotment {
    pub(super) fn of(grant: &CardGrant) -> Self {
        Self { channels: grant.channels.unwrap_or_default(), pinned_memory: grant.pinned_memory.unwrap_or_default() }
    }
}
