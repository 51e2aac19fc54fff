//! Reserving, card by card: which cards, whether they have room, whether a layout of windows
//! exists.

use cards::Card;
use runtime_config::request::{Isolation, Share};

use super::{Admission, waiting::EarlierWaiters};
use crate::{
    AdmitError, CardDemand, CardGrant, CardRoom, ContainerName, Ledger, Limits, Refusal, TriedCard,
    card_demand::check,
    card_sums::CardSums,
    decision_log::{Event, Line, chain},
    floors::{self, PinnedMemory},
    grant_log::{card_name, grant_fields, roll_back, small_quota_line, weights_only_line},
    index::{Index, group_hash, holders, owner_hash},
    members::{Newcomer, check_layout},
    select::{Candidate, Plan, Planned, PlannedCards, ranked},
    settings::Settings,
    store::{Locked, StoreError},
};

/// Sets of cards for which a layout of windows is looked for before egpu gives up choosing.
const MAX_LAYOUTS_TRIED: usize = 64;

/// Admission that is to be reserved, and its neighbours.
pub(super) struct ReserveRequest<'a> {
    pub(super) admission: &'a Admission<'a>,
    pub(super) plan: &'a Plan,
    /// None of these may lose by it.
    pub(super) ahead: &'a EarlierWaiters,
}

impl Ledger {
    /// Chooses and reserves. `steps` lists what was done; after a failure it also lists how that
    /// was undone.
    pub(super) fn reserve(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        reserve_request: &ReserveRequest<'_>,
        steps: &mut Vec<Line>,
    ) -> Result<Vec<CardGrant>, AdmitError> {
        let admission = reserve_request.admission;
        let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
        let settings = locked.settings().map_err(failed)?.with(admission.limits);
        loop {
            let chosen = chosen(locked, index, reserve_request, &settings)?;
            // Whoever takes the lock cleans up where it is about to build.
            let cards = chosen.iter().filter_map(|planned| admission.inventory.cards.get(planned.card));
            let uuids: Vec<String> = cards.map(|card| card.uuid.clone()).collect();
            if self.reclaim_cards(locked, index, &uuids).map_err(failed)? == 0 {
                return reserve_chosen(locked, index, reserve_request, &settings, &chosen, steps);
            }
        }
    }
}

/// Grants that the request would get beside those in `index`.
///
/// # Errors
/// Why it would not be.
pub(super) fn forecast(
    locked: &Locked<'_>,
    index: &mut Index,
    admission: &Admission<'_>,
    plan: &Plan,
) -> Result<Vec<CardGrant>, AdmitError> {
    let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
    let settings = locked.settings().map_err(failed)?.with(admission.limits);
    let reserve_request = ReserveRequest { admission, plan, ahead: &EarlierWaiters::default() };
    let chosen = chosen(locked, index, &reserve_request, &settings)?;
    reserve_chosen(locked, index, &reserve_request, &settings, &chosen, &mut Vec::new())
}

/// The cards of the request, in the container's order.
fn chosen(
    locked: &Locked<'_>,
    index: &mut Index,
    reserve_request: &ReserveRequest<'_>,
    settings: &Settings,
) -> Result<Vec<Planned>, AdmitError> {
    let mut chosen = match &reserve_request.plan.cards {
        PlannedCards::Named(named) => named.clone(),
        PlannedCards::Choose(choices) => choose(locked, index, reserve_request, settings, choices)?,
    };
    chosen.extend(reserve_request.plan.whole.iter().cloned());
    Ok(chosen)
}

/// Reserves card by card, in the container's order.
fn reserve_chosen(
    locked: &Locked<'_>,
    index: &mut Index,
    reserve_request: &ReserveRequest<'_>,
    settings: &Settings,
    chosen: &[Planned],
    steps: &mut Vec<Line>,
) -> Result<Vec<CardGrant>, AdmitError> {
    let admission = reserve_request.admission;
    let mut grants: Vec<CardGrant> = Vec::with_capacity(chosen.len());
    for planned in chosen {
        let Some(card) = admission.inventory.cards.get(planned.card) else { continue };
        let (sums, limits) = (index.sums(&card.uuid), settings.limits(admission.limits, &card.uuid));
        if let Err(refusal) = check_newcomer(card, &sums, &planned.demand, &limits, admission.into()) {
            let error = card_error(locked, index, admission, (card, planned), (refusal, &limits))?;
            steps.push(refuse_line(admission, card, planned, &error));
            roll_back(&grants, admission.into(), steps);
            return Err(error);
        }
        let grant = planned.demand.grant(card, &sums, &limits);
        steps.push(reserve_line(admission, card, &sums, &grant));
        steps.extend(weights_only_line(admission.into(), &grant));
        steps.extend(small_quota_line(admission.into(), &grant, card.memory));
        grants.push(grant);
    }
    floors::give_channels_of_whole_cards(&mut grants, admission.limits);
    if let Err(refusal) = pinned_memory(index, admission).allot(&mut grants, admission.request.pinned_memory) {
        roll_back(&grants, admission.into(), steps);
        let container = Box::new(admission.container.clone());
        return Err(AdmitError::PinnedMemory { container, source: Box::new(refusal) });
    }
    let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
    // Cards that were chosen were chosen because there is one.
    if matches!(reserve_request.plan.cards, PlannedCards::Named(_))
        && let Err(refusal) =
            check_layout(locked, index, newcomer(index, admission, &grants), settings).map_err(failed)?
    {
        // The last card is the one that completes what does not fit together.
        if let Some(planned) = chosen.last()
            && let Some(card) = admission.inventory.cards.get(planned.card)
        {
            let limits = settings.limits(admission.limits, &card.uuid);
            let error = card_error(locked, index, admission, (card, planned), (refusal, &limits))?;
            steps.push(refuse_line(admission, card, planned, &error));
            roll_back(&grants, admission.into(), steps);
            return Err(error);
        }
    }
    if let Some(waiter) = reserve_request.ahead.first_displaced(locked, admission, &grants).map_err(failed)? {
        roll_back(&grants, admission.into(), steps);
        return Err(kept(admission, waiter));
    }
    Ok(grants)
}

/// As [`check`], and whether the card has a place for one more container of this owner.
fn check_newcomer(
    card: &Card,
    sums: &CardSums,
    demand: &CardDemand,
    limits: &Limits,
    name: ContainerName<'_>,
) -> Result<(), Refusal> {
    check(card, sums, demand, limits)?;
    let limit = limits.owner_split_count;
    if demand.is_counted() && sums.owners.get(&owner_hash(name.owner())).is_some_and(|has| *has >= limit) {
        return Err(Refusal::OwnersContainers { limit });
    }
    Ok(())
}

/// Pinned memory of the node, without the newcomer.
fn pinned_memory<'a>(index: &Index, admission: &Admission<'a>) -> PinnedMemory<'a> {
    let shareable = admission.inventory.cards.iter().filter(|card| !card.mig_enabled);
    let shareable: Vec<&str> = shareable.map(|card| card.uuid.as_str()).collect();
    let sums = |uuids: &[&str]| uuids.iter().map(|uuid| index.sums(uuid)).collect::<Vec<_>>();
    let uuids = index.uuids();
    let others: Vec<&str> = uuids.iter().map(String::as_str).filter(|uuid| !shareable.contains(uuid)).collect();
    PinnedMemory::new(admission.limits, &sums(&shareable), &sums(&others))
}

/// The best set of cards that has room for all of `choices`.
fn choose(
    locked: &Locked<'_>,
    index: &mut Index,
    reserve_request: &ReserveRequest<'_>,
    settings: &Settings,
    choices: &[Vec<Planned>],
) -> Result<Vec<Planned>, AdmitError> {
    let admission = reserve_request.admission;
    let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
    let cards = &admission.inventory.cards;
    let fits = |index: &Index, planned: &Planned| {
        let card = cards.get(planned.card)?;
        let (sums, limits) = (index.sums(&card.uuid), settings.limits(admission.limits, &card.uuid));
        check_newcomer(card, &sums, &planned.demand, &limits, admission.into()).ok()?;
        Some(planned.clone())
    };
    let mut candidates: Vec<usize> = Vec::new();
    for planned in choices.iter().flatten() {
        if !candidates.contains(&planned.card) && fits(index, planned).is_some() {
            candidates.push(planned.card);
        }
    }
    candidates.sort_unstable();
    let group = admission.request.group.as_deref().map(group_hash);
    let described: Vec<Candidate> = candidates
        .iter()
        .filter_map(|position| {
            let card = cards.get(*position)?;
            Some(candidate(*position, card, &index.sums(&card.uuid), group, admission))
        })
        .collect();
    let sets = ranked(admission.inventory, &described, choices.len(), admission.request.placement);
    let mut displaced = None;
    for set in sets.into_iter().take(MAX_LAYOUTS_TRIED) {
        let pairs = choices.iter().zip(&set);
        let planned: Option<Vec<Planned>> =
            pairs.map(|(demands, card)| fits(index, demands.iter().find(|demand| demand.card == *card)?)).collect();
        let Some(planned) = planned else { continue };
        let grants = planned.iter().filter_map(|planned| {
            let card = cards.get(planned.card)?;
            Some(planned.demand.grant(card, &index.sums(&card.uuid), &settings.limits(admission.limits, &card.uuid)))
        });
        let grants: Vec<_> = grants.collect();
        if check_layout(locked, index, newcomer(index, admission, &grants), settings).map_err(failed)?.is_err() {
            continue;
        }
        match reserve_request.ahead.first_displaced(locked, admission, &grants).map_err(failed)? {
            None => return Ok(planned),
            Some(waiter) => displaced = displaced.or(Some(waiter)),
        }
    }
    if let Some(waiter) = displaced {
        return Err(kept(admission, waiter));
    }
    Err(no_room(locked, index, admission, settings, choices).map_err(failed)?)
}

fn kept(admission: &Admission<'_>, waiter: ContainerName<'_>) -> AdmitError {
    AdmitError::Kept { container: Box::new(admission.container.clone()), waiter: waiter.to_string() }
}

fn newcomer<'a>(index: &Index, admission: &Admission<'_>, grants: &'a [CardGrant]) -> Newcomer<'a> {
    let unlimited = matches!(admission.request.share, Share::Part { isolation: Isolation::None, .. });
    Newcomer { order: index.next_order(), unlimited, grants }
}

fn candidate(
    position: usize,
    card: &Card,
    sums: &CardSums,
    group: Option<u64>,
    admission: &Admission<'_>,
) -> Candidate {
    let memory_ppm = u128::from(sums.memory.0) * 1_000_000 / u128::from(card.memory.0.max(1));
    Candidate {
        card: position,
        memory_ppm: u64::try_from(memory_ppm).unwrap_or(u64::MAX),
        compute_percent: sums.compute_percent(admission.limits),
        containers: sums.containers,
        replicas: group.and_then(|group| sums.groups.get(&group)).copied().unwrap_or_default(),
    }
}

fn card_error(
    locked: &Locked<'_>,
    index: &mut Index,
    admission: &Admission<'_>,
    (card, planned): (&Card, &Planned),
    (refusal, limits): (Refusal, &Limits),
) -> Result<AdmitError, AdmitError> {
    let failed = |source| AdmitError::Store { container: Box::new(admission.container.clone()), source };
    let holders = holders(index.holdings(locked, &card.uuid).map_err(failed)?);
    Ok(AdmitError::Card {
        container: Box::new(admission.container.clone()),
        card: card_name(card),
        asked: planned.demand.describe(),
        holders: holders.map(|names| format!("; it is held by {names}")).unwrap_or_default(),
        room: room(card, &index.sums(&card.uuid), planned, limits).map(Box::new),
        source: Box::new(refusal),
    })
}

fn no_room(
    locked: &Locked<'_>,
    index: &mut Index,
    admission: &Admission<'_>,
    settings: &Settings,
    choices: &[Vec<Planned>],
) -> Result<AdmitError, StoreError> {
    let mut tried = Vec::new();
    for planned in choices.first().into_iter().flatten() {
        let Some(card) = admission.inventory.cards.get(planned.card) else { continue };
        let (sums, limits) = (index.sums(&card.uuid), settings.limits(admission.limits, &card.uuid));
        tried.push(TriedCard {
            card: card.index,
            why: check_newcomer(card, &sums, &planned.demand, &limits, admission.into()).err(),
            holders: holders(index.holdings(locked, &card.uuid)?).unwrap_or_default(),
            room: room(card, &sums, planned, &limits),
        });
    }
    let asked = choices.first().and_then(|demands| demands.first()).map(|planned| planned.demand.describe());
    Ok(AdmitError::NoRoom {
        container: Box::new(admission.container.clone()),
        count: choices.len(),
        asked: asked.unwrap_or_default(),
        tried,
    })
}

/// Room that the card has left; `None` for a MIG device.
fn room(card: &Card, sums: &CardSums, planned: &Planned, limits: &Limits) -> Option<CardRoom> {
    planned.demand.mig_uuid.is_none().then(|| CardRoom::of(card, sums, limits))
}

fn reserve_line(admission: &Admission<'_>, card: &Card, before: &CardSums, grant: &CardGrant) -> Line {
    let grantable = admission.limits.grantable(card.memory);
    let free = grantable.0.saturating_sub(before.memory.0).saturating_sub(grant.memory.0);
    grant_fields(Line::new(Event::Reserve, admission), grant).field("memory_free_after", base::Bytes(free))
}

fn refuse_line(admission: &Admission<'_>, card: &Card, planned: &Planned, error: &AdmitError) -> Line {
    Line::new(Event::Refuse, admission)
        .field("card", card.index)
        .field("asked", planned.demand.describe())
        .field("why", chain(error))
}
