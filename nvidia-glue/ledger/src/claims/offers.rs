//! Offers: what of each card may be given to claims.

use base::{Bytes, CardPolicy, ComputeShare, Enforcement, Percent};
use cards::{Card, Inventory};
use schedule::policy::rules;

use crate::{
    CardGrant, Ledger, Limits, StoreError,
    card_demand::{CardDemand, check_compute},
    card_sums::CardSums,
    index::{Holding, Index},
    members::{Newcomer, check_layout},
    settings::Settings,
    store::Locked,
};

/// Percent that a claim without a cap takes of what is offered: the part that is left to containers
/// without one.
const UNCAPPED_PERCENT: u32 = 5;

/// A card's part that may be given to claims, those that there are included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardOffer {
    /// The card.
    pub uuid: String,
    pub memory: Bytes,
    /// Percent of its time; `None`: its policy holds no caps.
    pub compute: Option<u32>,
    /// Places.
    pub containers: u32,
    /// Its policy: the one in force, or the one that it would have.
    pub policy: CardPolicy,
    /// Memory that is granted, to claims and to others.
    pub granted: Bytes,
    /// A container outside claims has all of it.
    pub is_whole_outside: bool,
}

impl Ledger {
    /// Offers of all cards, in the inventory's order.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn offers(&self, inventory: &Inventory, limits: &Limits) -> Result<Vec<CardOffer>, StoreError> {
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        let settings = locked.settings()?.with(limits);
        inventory.cards.iter().map(|card| offer(&locked, &mut index, card, (&settings, limits))).collect()
    }
}

fn offer(
    locked: &Locked<'_>,
    index: &mut Index,
    card: &Card,
    (settings, limits): (&Settings, &Limits),
) -> Result<CardOffer, StoreError> {
    let limits = settings.limits(limits, &card.uuid);
    let (claims, others): (Vec<_>, Vec<_>) =
        index.holdings(locked, &card.uuid)?.to_vec().into_iter().partition(|holding| holding.is_claim);
    let sums = |holdings: &[Holding]| CardSums::of(holdings.iter().map(|holding| (&holding.grant, holding.group)));
    let (outside, all) = (sums(&others), index.sums(&card.uuid));
    let policy = all.policy.unwrap_or(limits.default_policy);
    let compute = if all.policy.is_none_or(|policy| rules(policy).takes_caps) {
        let consumed: u32 = claims.iter().map(|holding| consumed_percent(&holding.grant)).sum();
        // What a claim without a cap keeps, it keeps for all who have none.
        let is_kept = outside.uncapped == 0 || claims.iter().any(|holding| !is_cap(holding.grant.compute));
        let floor = if is_kept { 0 } else { UNCAPPED_PERCENT };
        let left = 100_u32.saturating_sub(consumed + outside.compute_percent(&limits) + floor);
        Some(consumed + largest_cap(locked, index, card, (settings, &limits), left)?)
    } else {
        None
    };
    Ok(CardOffer {
        uuid: card.uuid.clone(),
        memory: Bytes(limits.grantable(card.memory).0.saturating_sub(outside.memory.0)),
        compute,
        containers: limits.device_split_count.saturating_sub(outside.containers),
        policy,
        granted: all.memory,
        is_whole_outside: outside.exclusive,
    })
}

/// Percent of the offer that a claim's grant takes.
fn consumed_percent(grant: &CardGrant) -> u32 {
    match grant.compute {
        ComputeShare::Cap { percent, .. } => percent.get().into(),
        ComputeShare::Unlimited | ComputeShare::Weight(_) => UNCAPPED_PERCENT,
    }
}

fn is_cap(compute: ComputeShare) -> bool {
    matches!(compute, ComputeShare::Cap { .. })
}

/// The largest cap up to `most` percent that one more grant on the card can have beside those that
/// there are. What a cap leaves to containers without one, and the layouts of windows, count.
fn largest_cap(
    locked: &Locked<'_>,
    index: &mut Index,
    card: &Card,
    (settings, limits): (&Settings, &Limits),
    most: u32,
) -> Result<u32, StoreError> {
    let sums = index.sums(&card.uuid);
    let (mut fits, mut fails) = (0, most + 1);
    while fits + 1 < fails {
        let middle = u32::midpoint(fits, fails);
        let Some(percent) = u8::try_from(middle).ok().and_then(Percent::new) else { break };
        let demand = CardDemand {
            memory: Bytes(Bytes::KIB),
            compute: ComputeShare::Cap { percent, lifted_when_alone: false },
            policy: Some(CardPolicy::Fixed),
            exclusive: false,
            mig_uuid: None,
            enforcement: Enforcement::Mediated,
            unlimited: false,
        };
        let mut has_room = check_compute(&sums, &demand, limits).is_ok();
        if has_room {
            let grants = [demand.grant(card, &sums, limits)];
            let newcomer = Newcomer { order: index.next_order(), unlimited: false, grants: &grants };
            has_room = check_layout(locked, index, newcomer, settings)?.is_ok();
        }
        if has_room { fits = middle } else { fails = middle }
    }
    Ok(fits)
}
