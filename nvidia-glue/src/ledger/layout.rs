//! Does the ledger with a new grant have a layout of time windows? From grants to [`super::schedule`]'s tenants.

use std::collections::{BTreeMap, BTreeSet};

use runtime_config::request::{CardPolicy, ComputeShare};

use super::{
    CardGrant, Limits, Refusal,
    account::{CardSums, weight_of},
    index::{Holding, Index},
    schedule::{MIN_REMAINDER_PERCENT, Tenant, lay_out, percent_parts, ratio_parts},
    store::{Locked, StoreError},
};

/// The cards that must be laid out together, with their grants.
type Cards = BTreeMap<String, Vec<Holding>>;

/// Whether a layout exists once `grants` stand beside what is in the index. Looks at the cards of `grants`, and at further
/// ones only where a container of several cards ties them to these.
pub(super) fn check_layout(
    locked: &Locked<'_>,
    index: &mut Index,
    grants: &[CardGrant],
    limits: &Limits,
) -> Result<Result<(), Refusal>, StoreError> {
    let mut cards = Cards::new();
    let mut waiting: Vec<String> = grants.iter().map(|grant| grant.uuid.clone()).collect();
    while let Some(uuid) = waiting.pop() {
        if cards.contains_key(&uuid) {
            continue;
        }
        let holdings = index.holdings(locked, &uuid)?.to_vec();
        waiting.extend(holdings.iter().flat_map(|holding| holding.cards.iter().cloned()));
        cards.insert(uuid, holdings);
    }
    let tenants = tenants(&cards, grants, limits);
    Ok(match lay_out(&tenants) {
        Ok(_) => Ok(()),
        Err(reason) => Err(Refusal::Layout { reason: reason.to_string() }),
    })
}

/// Those who need windows, in ledger order, the new container last; behind them what must be left for containers
/// without a cap.
fn tenants(cards: &Cards, grants: &[CardGrant], limits: &Limits) -> Vec<Tenant> {
    let mut windows: BTreeMap<u64, Vec<(usize, u64)>> = BTreeMap::new();
    let mut sharers: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (card, (uuid, holdings)) in cards.iter().enumerate() {
        let new = grants.iter().filter(|grant| grant.uuid == *uuid);
        let all: Vec<(u64, &CardGrant)> = holdings
            .iter()
            .map(|holding| (holding.order, &holding.grant))
            .chain(new.map(|grant| (u64::MAX, grant)))
            .collect();
        let sums = CardSums::of(all.iter().map(|(_, grant)| (*grant, None)));
        let has_windows = all.iter().any(|(_, grant)| window(grant, &sums, limits).is_some());
        for (order, grant) in all {
            if let Some(parts) = window(grant, &sums, limits) {
                windows.entry(order).or_default().push((card, parts));
            } else if has_windows && is_shared(grant) {
                sharers.entry(order).or_default().insert(card);
            }
        }
    }
    let remainders = joined(sharers.into_values());
    let remainder = |cards: BTreeSet<usize>| Tenant {
        windows: cards.into_iter().map(|card| (card, percent_parts(MIN_REMAINDER_PERCENT))).collect(),
    };
    windows.into_values().map(|windows| Tenant { windows }).chain(remainders.into_iter().map(remainder)).collect()
}

fn is_shared(grant: &CardGrant) -> bool {
    grant.holds() && !grant.exclusive && grant.mig_uuid.is_none()
}

/// The window that a grant has on its card; `None`: it has no window of its own.
fn window(grant: &CardGrant, sums: &CardSums, limits: &Limits) -> Option<u64> {
    if !is_shared(grant) {
        return None;
    }
    let weight = u64::from(weight_of(grant.policy, grant.compute));
    match grant.policy {
        CardPolicy::Fixed => match grant.compute {
            ComputeShare::Cap { percent, .. } => Some(percent_parts(u64::from(percent.get()))),
            ComputeShare::Weight(_) => Some(ratio_parts(weight, u64::from(limits.max_inst))),
            ComputeShare::Unlimited => None,
        },
        CardPolicy::Fair => Some(ratio_parts(1, u64::from(limits.max_inst))),
        CardPolicy::Preemptive => Some(ratio_parts(1, u64::from(sums.containers))),
        CardPolicy::Weighted => Some(ratio_parts(weight, u64::from(sums.weights))),
        CardPolicy::Soft | CardPolicy::Native => None,
    }
}

/// Sets that have a member in common are one set: containers that share what is left of a card do so at the same
/// instant, and so does each with itself on all its cards.
fn joined(sets: impl Iterator<Item = BTreeSet<usize>>) -> Vec<BTreeSet<usize>> {
    let mut joined: Vec<BTreeSet<usize>> = Vec::new();
    for mut set in sets {
        joined.retain(|other| {
            let meets = !other.is_disjoint(&set);
            if meets {
                set.extend(other);
            }
            !meets
        });
        joined.push(set);
    }
    joined
}
