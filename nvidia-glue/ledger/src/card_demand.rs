//! Demand of a container on one card, and whether the card can meet it. Pure.

use base::{Bytes, CardPolicy, ComputeShare, ComputeText, describe};
use cards::Card;
use runtime_config::config::HardCapsUnavailable;
use schedule::{
    layout::{MIN_REMAINDER_PERCENT, PERIOD_PARTS, percent_parts},
    policy::rules,
};

use crate::{CardGrant, ComputeEnforcement, Enforcement, Limits, card_sums::CardSums, floors, refusal::Refusal};

/// Means by which a container's mediator enforces its share of time on a card with this policy;
/// none for a container without limits.
pub(super) fn compute_by(
    enforcement: Enforcement,
    unlimited: bool,
    policy: CardPolicy,
    hard_caps: bool,
) -> ComputeEnforcement {
    if unlimited || enforcement != Enforcement::Mediated {
        return ComputeEnforcement::None;
    }
    match rules(policy).enforced_by {
        ComputeEnforcement::Windows if !hard_caps => ComputeEnforcement::WeightsOnly,
        by => by,
    }
}

/// Demand of a container on one card, in the card's own units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardDemand {
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
    /// Means by which the limits are going to be held.
    pub(crate) enforcement: Enforcement,
    /// It is recorded and mediated, and goes without limits.
    pub(crate) unlimited: bool,
}

impl CardDemand {
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

    /// Returns whether it takes a place on the card, as the grant will
    /// ([`CardGrant::is_counted`]).
    pub(crate) fn is_counted(&self) -> bool {
        self.mig_uuid.is_none() && self.memory.0 > 0 && self.enforcement != Enforcement::Monitor
    }

    /// `3276MiB 10%`, for people.
    pub(crate) fn describe(&self) -> String {
        describe(self.memory, self.compute, self.exclusive, self.mig_uuid.as_deref(), self.enforcement)
    }
}

/// Returns whether `card`, of which `sums` is granted, can give `demand` as well.
///
/// # Errors
/// The first reason why not.
pub(crate) fn check(card: &Card, sums: &CardSums, demand: &CardDemand, limits: &Limits) -> Result<(), Refusal> {
    if let Some(mig) = &demand.mig_uuid {
        return match sums.mig.contains(mig) {
            true if demand.enforcement != Enforcement::Monitor => Err(Refusal::MigHeld { uuid: mig.clone() }),
            _ => Ok(()),
        };
    }
    if !demand.is_counted() {
        return Ok(());
    }
    if sums.exclusive {
        return Err(Refusal::HeldWhole);
    }
    if demand.exclusive {
        return if sums.containers > 0 { Err(Refusal::InUse) } else { Ok(()) };
    }
    check_policy(card, sums, demand, limits)?;
    check_memory(card, sums, demand, limits)?;
    check_compute(sums, demand, limits)?;
    check_hard_cap(card.hard_caps, demand, demand.policy_on(sums, limits), limits)?;
    if sums.containers >= limits.device_split_count {
        return Err(Refusal::Containers { limit: limits.device_split_count });
    }
    floors::channels(sums, limits).map(|_| ())
}

/// A policy that a container brings decides for all who come after it.
fn check_policy(card: &Card, sums: &CardSums, demand: &CardDemand, limits: &Limits) -> Result<(), Refusal> {
    let Some(asked) = demand.policy else { return Ok(()) };
    if let Some(has) = sums.policy {
        return if asked == has { Ok(()) } else { Err(Refusal::Policy { asked, has }) };
    }
    let (has, percent) = (limits.default_policy, limits.requested_policy_share);
    if asked == has {
        return Ok(());
    }
    if !limits.requested_policies.contains(asked) {
        return Err(Refusal::PolicyNotRequested { asked, has });
    }
    let time = match demand.compute {
        ComputeShare::Cap { percent, .. } => percent.get(),
        ComputeShare::Weight(_) | ComputeShare::Unlimited => 0,
    };
    let has_share = u128::from(demand.memory.0) * 100 >= u128::from(card.memory.0) * u128::from(percent);
    if has_share || time >= percent { Ok(()) } else { Err(Refusal::SmallForPolicy { asked, has, percent }) }
}

pub(super) fn check_hard_cap(
    hard_caps: bool,
    demand: &CardDemand,
    policy: CardPolicy,
    limits: &Limits,
) -> Result<(), Refusal> {
    let is_refused = limits.hard_caps_unavailable == HardCapsUnavailable::Refuse;
    if is_refused && !hard_caps && !demand.unlimited && (rules(policy).is_hard_cap)(demand.compute) {
        return Err(Refusal::HardCap { asked: ComputeText(demand.compute).to_string() });
    }
    Ok(())
}

fn check_memory(card: &Card, sums: &CardSums, demand: &CardDemand, limits: &Limits) -> Result<(), Refusal> {
    let grantable = limits.grantable(card.memory);
    let free = Bytes(grantable.0.saturating_sub(sums.memory.0));
    if demand.memory > free {
        return Err(Refusal::Memory { asked: demand.memory, free, grantable });
    }
    Ok(())
}

pub(super) fn check_compute(sums: &CardSums, demand: &CardDemand, limits: &Limits) -> Result<(), Refusal> {
    let policy = demand.policy_on(sums, limits);
    let (rules, mut after) = (rules(policy), sums.clone());
    let slices = (rules.slices)(demand.compute);
    after.weights += slices;
    match demand.compute {
        ComputeShare::Cap { percent, .. } => after.caps_percent += u32::from(percent.get()),
        ComputeShare::Unlimited => after.uncapped += 1,
        ComputeShare::Weight(_) => {}
    }
    if rules.counts_slices && after.weights > limits.max_inst {
        let free = limits.max_inst.saturating_sub(sums.weights);
        return Err(Refusal::Weight { asked: slices, free, max_inst: limits.max_inst });
    }
    if !rules.takes_caps {
        return Ok(());
    }
    let taken = (rules.promised_parts)(after.promised(limits));
    let percent = |parts: u64| u32::try_from(parts / (PERIOD_PARTS / 100)).unwrap_or(100);
    if taken > PERIOD_PARTS {
        let before = (rules.promised_parts)(sums.promised(limits));
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

/// Enforcement of a share that is granted anew: a card that was found not to take its container off
/// the engine stays degraded.
pub(super) fn keep_degraded(before: ComputeEnforcement, now: ComputeEnforcement) -> ComputeEnforcement {
    match (before, now) {
        (ComputeEnforcement::WeightsOnly, ComputeEnforcement::Windows) => ComputeEnforcement::WeightsOnly,
        (_, now) => now,
    }
}
