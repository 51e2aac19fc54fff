//! Accounting of one card: what is granted of it, and whether one more container fits. Pure.

use std::collections::BTreeMap;

use base::{Bytes, CardPolicy, ComputeShare, ComputeText, describe, is_hard_cap, weight_of};
use cards::Card;
use runtime_config::config::HardCapsUnavailable;
use schedule::layout::{MIN_REMAINDER_PERCENT, PERIOD_PARTS, percent_parts, ratio_parts};
use serde::{Deserialize, Serialize};

use super::{
    CardGrant, ComputeEnforcement, Enforcement, Limits,
    floors::{self, Allotment, LEAST_CHANNELS},
};

/// What is granted of one card, in all. Always computed from the grants, never counted up and down.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CardSums {
    /// Memory.
    pub(crate) memory: Bytes,
    /// Sum of hard caps.
    pub(crate) caps_percent: u32,
    /// Sum of weights, see [`weight_of`].
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
        self.weights += weight_of(grant.policy, grant.compute);
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
        let parts = match self.policy {
            Some(CardPolicy::Fixed) => self.fixed_parts(limits),
            Some(CardPolicy::Fair) => ratio_parts(u64::from(self.weights), u64::from(limits.max_inst)),
            _ => percent_parts(u64::from(self.caps_percent)),
        };
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

    fn fixed_parts(&self, limits: &Limits) -> u64 {
        percent_parts(u64::from(self.caps_percent)) + ratio_parts(u64::from(self.weights), u64::from(limits.max_inst))
    }
}

/// What holds shares of time on a card with this policy: the mediator of a container that has limits.
pub(super) fn compute_by(
    enforcement: Enforcement,
    unlimited: bool,
    policy: CardPolicy,
    hard_caps: bool,
) -> ComputeEnforcement {
    match policy {
        _ if unlimited || enforcement != Enforcement::Mediated => ComputeEnforcement::None,
        CardPolicy::Native => ComputeEnforcement::None,
        CardPolicy::Soft => ComputeEnforcement::Slices,
        CardPolicy::Fair | CardPolicy::Preemptive | CardPolicy::Weighted | CardPolicy::Fixed if hard_caps => {
            ComputeEnforcement::Windows
        }
        CardPolicy::Fair | CardPolicy::Preemptive | CardPolicy::Weighted | CardPolicy::Fixed => {
            ComputeEnforcement::WeightsOnly
        }
    }
}

/// What a container asks of one card, in the card's own units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardAsk {
    /// Bytes. 0 for a monitor.
    pub(crate) memory: Bytes,
    /// Share of its time.
    pub(crate) compute: ComputeShare,
    /// The policy that it needs; `None`: any.
    pub(crate) policy: Option<CardPolicy>,
    /// All of the card, alone.
    pub(crate) exclusive: bool,
    /// Only this MIG device of it.
    pub(crate) mig_uuid: Option<String>,
    /// What is going to hold the limits.
    pub(crate) enforcement: Enforcement,
    /// It is recorded and mediated, and goes without limits.
    pub(crate) unlimited: bool,
}

impl CardAsk {
    /// The grant that this ask becomes on `card`.
    pub(crate) fn grant(&self, card: &Card, sums: &CardSums, limits: &Limits) -> CardGrant {
        let policy = self.policy_on(sums, limits);
        CardGrant {
            index: card.index,
            uuid: card.uuid.clone(),
            mig_uuid: self.mig_uuid.clone(),
            memory: self.memory,
            compute: self.compute,
            policy,
            exclusive: self.exclusive,
            enforcement: self.enforcement,
            compute_by: compute_by(self.enforcement, self.unlimited, policy, card.hard_caps),
            window_loss_us: 0,
            // As far as there are any, which `check` sees to.
            channels: (self.enforcement == Enforcement::Mediated)
                .then(|| floors::channels(sums, limits).unwrap_or_default()),
            pinned_memory: None,
        }
    }

    fn policy_on(&self, sums: &CardSums, limits: &Limits) -> CardPolicy {
        sums.policy.or(self.policy).unwrap_or(limits.default_policy)
    }

    /// `3276MiB 10%`, for people.
    pub(crate) fn describe(&self) -> String {
        describe(self.memory, self.compute, self.exclusive, self.mig_uuid.as_deref(), self.enforcement)
    }
}

/// What to do about memory that is not free.
fn remedy(asked: Bytes, grantable: Bytes) -> &'static str {
    if asked > grantable {
        "the card never has as much: ask for less"
    } else {
        "ask for less, or wait until another container ends"
    }
}

/// Why a card cannot give what was asked of it. Pods read it: it says what the card has left, and nothing of any single other container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not enough memory.
    #[error("{asked} of memory asked, {free} of {grantable} free; {}", remedy(*asked, *grantable))]
    Memory {
        /// What was asked.
        asked: Bytes,
        /// What is left.
        free: Bytes,
        /// What may be granted in all: the card's memory x `memory_scaling`.
        grantable: Bytes,
    },
    /// Not enough compute, though there may be memory.
    #[error(
        "{asked_percent}% of compute asked, {free_percent}% free; ask for less, or wait until another container ends"
    )]
    Compute {
        /// What was asked, rounded up.
        asked_percent: u32,
        /// What is left, rounded down.
        free_percent: u32,
    },
    /// A cap and containers without one do not fit together.
    #[error(
        "containers without a compute cap must keep {MIN_REMAINDER_PERCENT}% of a card, and caps would take {caps_percent}%; \
         give every container of the card a cap, or ask for a smaller one"
    )]
    Remainder {
        /// Percent that caps would take in all, rounded up.
        caps_percent: u32,
    },
    /// Not enough slices.
    #[error(
        "weight {asked} asked, {free} of max_inst = {max_inst} free; ask for a smaller weight, or wait until another container ends"
    )]
    Weight {
        /// What was asked.
        asked: u32,
        /// What is left.
        free: u32,
        /// Slices in all.
        max_inst: u32,
    },
    /// Too many containers.
    #[error(
        "it has {limit} containers already, as many as device_split_count allows; use another card, or wait until one of them ends"
    )]
    Containers {
        /// The configured limit.
        limit: u32,
    },
    /// Too few channels.
    #[error(
        "{free} of its channels are free, and a CUDA context needs {LEAST_CHANNELS}: a card has enough for {most} containers, and \
         device_split_count is {split}; use another card, or wait until one of its containers ends"
    )]
    Channels {
        /// Channels that are left for one container.
        free: u32,
        /// Containers for which there are enough.
        most: u32,
        /// The configured limit.
        split: u32,
    },
    /// Not enough of the host's memory that may be pinned.
    #[error(
        "{needed} of pinned host memory needed, {free} of the node's {node} free for one container: the rest is granted, or kept for \
         the containers that device_split_count still allows; ask for less with EGPU_PINNED_MEMORY, wait until another container ends, \
         or raise pinned_memory in the configuration"
    )]
    PinnedMemory {
        /// The amount asked for, or the container's floors.
        needed: Bytes,
        /// The most that one container may have.
        free: Bytes,
        /// The node's, in all.
        node: Bytes,
    },
    /// The whole card is asked for, and it is in use.
    #[error("asked for whole, but parts of it are in use; ask for a share, or wait until its containers have ended")]
    InUse,
    /// Somebody has the whole card.
    #[error("all of it is taken; use another card, or wait until it is free")]
    HeldWhole,
    /// Somebody has the MIG device.
    #[error("MIG device {uuid} is taken; name another one, or wait until it is free")]
    MigHeld {
        /// The device.
        uuid: String,
    },
    /// The card's policy is another one.
    #[error(
        "policy {asked} is needed, and the card has {has}; use another card, or change this one's with `egpu policy`"
    )]
    Policy {
        /// What the request needs.
        asked: CardPolicy,
        /// What the card has.
        has: CardPolicy,
    },
    /// A cap under a policy that has none.
    #[error("a cap needs policy fixed; end the container first, or give it a weight: `egpu set --weight`")]
    CapNeedsFixed,
    /// The card cannot take containers off.
    #[error(
        "{asked} would be a hard cap, and this card cannot take a running container off: it runs without GSP firmware; \
         ask for a weight with policy soft, use another card, or set hard_caps_unavailable = \"degrade\" in the configuration"
    )]
    HardCap {
        /// What was asked: `compute=30%`.
        asked: String,
    },
    /// The sums would fit, but no order of time windows does.
    #[error("{reason}; ask for smaller shares, or for fewer cards")]
    Layout {
        /// What stands in the way.
        reason: String,
    },
}

/// Whether `card`, of which `sums` is granted, can give `ask` as well.
///
/// # Errors
/// The first reason why not.
pub(crate) fn check(card: &Card, sums: &CardSums, ask: &CardAsk, limits: &Limits) -> Result<(), Refusal> {
    if let Some(mig) = &ask.mig_uuid {
        return match sums.mig.contains(mig) {
            true if ask.enforcement != Enforcement::Monitor => Err(Refusal::MigHeld { uuid: mig.clone() }),
            _ => Ok(()),
        };
    }
    if ask.memory.0 == 0 || ask.enforcement == Enforcement::Monitor {
        return Ok(());
    }
    if sums.exclusive {
        return Err(Refusal::HeldWhole);
    }
    if ask.exclusive {
        return if sums.containers > 0 { Err(Refusal::InUse) } else { Ok(()) };
    }
    if let (Some(asked), Some(has)) = (ask.policy, sums.policy)
        && asked != has
    {
        return Err(Refusal::Policy { asked, has });
    }
    check_memory(card, sums, ask, limits)?;
    check_compute(sums, ask, limits)?;
    check_hard_cap(card.hard_caps, ask, ask.policy_on(sums, limits), limits)?;
    if sums.containers >= limits.device_split_count {
        return Err(Refusal::Containers { limit: limits.device_split_count });
    }
    floors::channels(sums, limits).map(|_| ())
}

pub(super) fn check_hard_cap(
    hard_caps: bool,
    ask: &CardAsk,
    policy: CardPolicy,
    limits: &Limits,
) -> Result<(), Refusal> {
    let is_refused = limits.hard_caps_unavailable == HardCapsUnavailable::Refuse;
    if is_refused && !hard_caps && !ask.unlimited && is_hard_cap(policy, ask.compute) {
        return Err(Refusal::HardCap { asked: ComputeText(ask.compute).to_string() });
    }
    Ok(())
}

fn check_memory(card: &Card, sums: &CardSums, ask: &CardAsk, limits: &Limits) -> Result<(), Refusal> {
    let grantable = limits.grantable(card.memory);
    let free = Bytes(grantable.0.saturating_sub(sums.memory.0));
    if ask.memory > free {
        return Err(Refusal::Memory { asked: ask.memory, free, grantable });
    }
    Ok(())
}

pub(super) fn check_compute(sums: &CardSums, ask: &CardAsk, limits: &Limits) -> Result<(), Refusal> {
    let policy = ask.policy_on(sums, limits);
    let mut after = sums.clone();
    after.policy = Some(policy);
    after.weights += weight_of(policy, ask.compute);
    match ask.compute {
        ComputeShare::Cap { percent, .. } => after.caps_percent += u32::from(percent.get()),
        ComputeShare::Unlimited => after.uncapped += 1,
        ComputeShare::Weight(_) => {}
    }
    // Weights of `soft` are relative to each other and nothing else.
    if !matches!(policy, CardPolicy::Soft | CardPolicy::Native) && after.weights > limits.max_inst {
        let free = limits.max_inst.saturating_sub(sums.weights);
        return Err(Refusal::Weight { asked: weight_of(policy, ask.compute), free, max_inst: limits.max_inst });
    }
    if policy != CardPolicy::Fixed {
        return Ok(());
    }
    let taken = after.fixed_parts(limits);
    let percent = |parts: u64| u32::try_from(parts / (PERIOD_PARTS / 100)).unwrap_or(100);
    if taken > PERIOD_PARTS {
        let before = sums.fixed_parts(limits);
        return Err(Refusal::Compute {
            asked_percent: u32::try_from((taken - before).div_ceil(PERIOD_PARTS / 100)).unwrap_or(100),
            free_percent: percent(PERIOD_PARTS.saturating_sub(before)),
        });
    }
    if after.uncapped > 0 && taken + percent_parts(MIN_REMAINDER_PERCENT) > PERIOD_PARTS {
        let caps_percent = u32::try_from(taken.div_ceil(PERIOD_PARTS / 100)).unwrap_or(100);
        return Err(Refusal::Remainder { caps_percent });
    }
    Ok(())
}
