//! From the grants in the index to the planner's members, and the question of admission: does a
//! layout exist?

use std::collections::{BTreeMap, BTreeSet};

use schedule::{Member, can_be_laid_out};

use super::{
    CardGrant, Refusal,
    claim::merged,
    index::{Cards, Holding, Index},
    settings::Settings,
    store::{Locked, StoreError},
};

/// The containers that share any of `cards`, in ledger order, each with what it has of them.
pub(super) fn members<'a>(cards: &Cards<'a>) -> Vec<Member<'a>> {
    let mut members: BTreeMap<u64, (&'a Holding, Vec<&'a CardGrant>)> = BTreeMap::new();
    for holding in cards.values().copied().flatten().filter(|holding| holding.grant.is_shared()) {
        let order = holding.gang.as_ref().map_or(holding.order, |gang| gang.order);
        members.entry(order).or_insert_with(|| (holding, Vec::new())).1.push(&holding.grant);
    }
    fn member<'a>((holding, mut grants): (&'a Holding, Vec<&'a CardGrant>)) -> Member<'a> {
        grants.sort_by_key(|grant| holding.cards.iter().position(|uuid| *uuid == grant.uuid));
        let gang = holding.gang.as_ref();
        Member {
            grant_id: gang.map_or(&holding.grant_id, |gang| &gang.leader),
            order: gang.map_or(holding.order, |gang| gang.order),
            priority: holding.priority,
            is_present: holding.present,
            is_unlimited: holding.unlimited,
            grants: merged(grants),
        }
    }
    members.into_values().map(member).collect()
}

/// `uuids`, and the cards that are tied to them by containers with several; see [`Index::cards`].
pub(super) fn connected_cards<'a>(
    locked: &Locked<'_>,
    index: &mut Index,
    uuids: impl Iterator<Item = &'a str>,
) -> Result<BTreeSet<String>, StoreError> {
    let mut connected = BTreeSet::new();
    let mut waiting: Vec<String> = uuids.map(str::to_owned).collect();
    while let Some(uuid) = waiting.pop() {
        if connected.contains(&uuid) {
            continue;
        }
        let cards = index.holdings(locked, &uuid)?.iter().flat_map(|holding| &holding.cards);
        waiting.extend(cards.filter(|card| **card != uuid).cloned());
        connected.insert(uuid);
    }
    Ok(connected)
}

/// A container that is to have `grants`, for the first time or instead of others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newcomer<'a> {
    /// Its place in the ledger.
    pub(super) order: u64,
    /// It goes without limits.
    pub(super) unlimited: bool,
    pub(super) grants: &'a [CardGrant],
}

/// Returns whether a layout exists once `newcomer` stands beside what is in the index. Looks at its
/// cards, and at further ones only where a container of several cards ties them to these.
pub(super) fn check_layout(
    locked: &Locked<'_>,
    index: &mut Index,
    newcomer: Newcomer<'_>,
    settings: &Settings,
) -> Result<Result<(), Refusal>, StoreError> {
    let uuids = connected_cards(locked, index, newcomer.grants.iter().map(|grant| grant.uuid.as_str()))?;
    let mut members = members(&index.cards(&uuids));
    members.retain(|member| member.order != newcomer.order);
    let grants = merged(newcomer.grants.iter().filter(|grant| grant.is_shared()));
    if !grants.is_empty() {
        members.push(Member {
            grant_id: "",
            order: newcomer.order,
            priority: base::Priority::High,
            is_present: true,
            is_unlimited: newcomer.unlimited,
            grants,
        });
    }
    members.sort_by_key(|member| member.order);
    Ok(can_be_laid_out(&members, &settings.plan()).map_err(|reason| Refusal::Layout { reason: reason.to_string() }))
}
