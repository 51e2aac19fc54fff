//! Changing a container's grant while it runs.

use base::{CardPolicy, ComputeShare, ComputeText};
use cards::{Card, Inventory};
use runtime_config::request::{Isolation, MemoryLimit, PerCard, Share};
use schedule::{MOST_WINDOW_LOSS_US, policy::rules};

use super::{
    CardDemand, CardGrant, Change, ChangeError, ComputeEnforcement, ContainerKey, ContainerName, Enforcement, Ledger,
    Limits, Record, Refusal, StoreError,
    card_demand::{check, keep_degraded},
    card_sums::CardSums,
    grant_log::{card_name, grant_fields, small_quota_line, weights_only_line},
    index::{Index, holders},
    members::{Newcomer, check_layout},
    settings::Settings,
    store::Locked,
};
use crate::decision_log::{DecisionLog, Event, Line, chain};

/// Losses that differ by less are the same: 1 % of the shortest window.
pub(super) const WINDOW_LOSS_STEP_US: u64 = 50;

impl Ledger {
    /// Changes what a container has, as if it asked anew beside all others: what does not fit is
    /// refused whole. What it says of time and memory holds from the instant that the timetable
    /// names, at most four periods later.
    ///
    /// # Errors
    /// [`ChangeError`]; the grant is then as it was.
    pub fn set(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        container: &ContainerKey,
        change: &Change,
        log: &DecisionLog,
    ) -> Result<Record, ChangeError> {
        let mut lines = Vec::new();
        let result = self.try_set(inventory, limits, container, change, &mut lines);
        if let Err(error) = &result {
            let record = self.store.find_record(container).ok().flatten();
            let name = record.as_ref().map_or_else(|| container.into(), ContainerName::from);
            lines = vec![Line::new(Event::Refuse, name).field("change", describe(change)).field("why", chain(error))];
        }
        log.write(&lines);
        result
    }

    /// Returns the grant that [`Ledger::set`] would make of it. No grant changes.
    ///
    /// # Errors
    /// [`ChangeError`], as [`Ledger::set`] would have it.
    pub fn preview_set(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        container: &ContainerKey,
        change: &Change,
    ) -> Result<Record, ChangeError> {
        let failed = |source| ChangeError::Store { container: Box::new(container.clone()), source };
        let locked = self.store.lock().map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        self.follow_configuration(&locked, &mut index, limits, &mut Vec::new()).map_err(failed)?;
        self.changed(&locked, &mut index, (inventory, limits), (container, change), &mut Vec::new())
    }

    fn try_set(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        container: &ContainerKey,
        change: &Change,
        lines: &mut Vec<Line>,
    ) -> Result<Record, ChangeError> {
        let failed = |source| ChangeError::Store { container: Box::new(container.clone()), source };
        let locked = self.store.lock().map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        self.follow_configuration(&locked, &mut index, limits, lines).map_err(failed)?;
        let record = self.changed(&locked, &mut index, (inventory, limits), (container, change), lines)?;
        self.replace(&locked, &mut index, &record).map_err(failed)?;
        Ok(record)
    }

    /// Returns the container's record as changed, if that fits beside all others.
    fn changed(
        &self,
        locked: &Locked<'_>,
        index: &mut Index,
        (inventory, limits): (&Inventory, &Limits),
        (container, change): (&ContainerKey, &Change),
        lines: &mut Vec<Line>,
    ) -> Result<Record, ChangeError> {
        let failed = |source| ChangeError::Store { container: Box::new(container.clone()), source };
        let Some(mut record) = self.store.find_record(container).map_err(failed)? else {
            return Err(ChangeError::NoGrant { container: Box::new(container.clone()) });
        };
        check_changeable(&record, change)?;
        let demands = demands(&record, inventory, change)?;
        let settings = locked.settings().map_err(failed)?;
        let grants = fit(locked, index, &record, &demands, (limits, &settings), lines)?;
        lines.insert(
            0,
            Line::new(Event::Change, &record).field("grant", &record.grant_id).field("to", describe(change)),
        );
        for grant in &mut record.cards {
            if let Some(changed) = grants.iter().find(|changed| grant.is_shared() && changed.uuid == grant.uuid) {
                grant.clone_from(changed);
            }
        }
        record.priority = change.priority.or(record.priority);
        Ok(record)
    }

    /// Notes whether processes of the container have the driver open: policy `preemptive` skips
    /// those that have none. Without a grant nothing happens.
    ///
    /// # Errors
    /// When it cannot be written down; it may be said again.
    pub fn set_present(&self, container: &ContainerKey, present: bool) -> Result<(), StoreError> {
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        match self.store.find_record(container)? {
            Some(mut record) if record.present != present => {
                record.present = present;
                self.replace(&locked, &mut index, &record)
            }
            _ => Ok(()),
        }
    }

    /// Notes that a card does not take the container off, as its mediator has found: what it was
    /// granted of the card's time is a weight. Without such a grant nothing happens.
    ///
    /// # Errors
    /// When it cannot be written down.
    pub fn set_weights_only(&self, container: &ContainerKey, uuid: &str, log: &DecisionLog) -> Result<(), StoreError> {
        let locked = self.store.lock_with(log)?;
        let mut index = self.open_index(&locked)?;
        let Some(mut record) = self.store.find_record(container)? else { return Ok(()) };
        let is_it = |grant: &&mut CardGrant| grant.uuid == uuid && grant.compute_by == ComputeEnforcement::Windows;
        let Some(grant) = record.cards.iter_mut().find(is_it) else { return Ok(()) };
        grant.compute_by = ComputeEnforcement::WeightsOnly;
        let name = ContainerName { key: container, pod: record.request.pod.as_ref() };
        let lines = weights_only_line(name, grant);
        self.replace(&locked, &mut index, &record)?;
        locked.log(lines);
        Ok(())
    }

    /// Notes what a container's windows lose, card by card (`GPU-...`, microseconds), where that
    /// decides how long they are: under policy `weighted`, and where it is not nearly what is
    /// known. Without a grant nothing happens.
    ///
    /// # Errors
    /// When it cannot be written down; it may be said again.
    pub fn set_window_losses(&self, container: &ContainerKey, losses: &[(String, u64)]) -> Result<(), StoreError> {
        fn follow(record: &mut Record, losses: &[(String, u64)]) -> bool {
            let mut is_changed = false;
            for grant in record
                .cards
                .iter_mut()
                .filter(|grant| rules(grant.policy).shares_costs && grant.compute_by == ComputeEnforcement::Windows)
            {
                let Some((_, loss_us)) = losses.iter().find(|(uuid, _)| *uuid == grant.uuid) else { continue };
                let loss_us = (*loss_us).min(MOST_WINDOW_LOSS_US);
                if loss_us.abs_diff(grant.window_loss_us) >= WINDOW_LOSS_STEP_US {
                    grant.window_loss_us = loss_us;
                    is_changed = true;
                }
            }
            is_changed
        }
        // Mostly nothing has changed, and no lock is needed to see that.
        if !self.store.find_record(container)?.is_some_and(|mut record| follow(&mut record, losses)) {
            return Ok(());
        }
        let locked = self.store.lock()?;
        let mut index = self.open_index(&locked)?;
        let Some(mut record) = self.store.find_record(container)? else { return Ok(()) };
        if follow(&mut record, losses) { self.replace(&locked, &mut index, &record) } else { Ok(()) }
    }

    /// Writes a record in place of the one that is there, and the timetable after it.
    pub(super) fn replace(&self, locked: &Locked<'_>, index: &mut Index, record: &Record) -> Result<(), StoreError> {
        index.begin_change(locked)?;
        locked.write_record(record)?;
        // The change stands. What cannot be written now is written by whoever takes the lock next.
        match index.add(locked, record) {
            Ok(()) => self.refresh_timetables(locked, index, record.uuids()),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the ledger's index is not written down");
                return Ok(());
            }
        }
        index.save(locked);
        Ok(())
    }
}

fn check_changeable(record: &Record, change: &Change) -> Result<(), ChangeError> {
    let container = || Box::new(record.container.clone());
    if !record.request.live_update {
        return Err(ChangeError::Fixed { container: container() });
    }
    let has = |has: &str| Err(ChangeError::NoQuota { container: container(), has: has.to_owned() });
    if !record.cards.iter().any(CardGrant::is_shared) {
        let cards: Vec<String> = record.cards.iter().map(CardGrant::describe).collect();
        return has(if cards.is_empty() { "no card".to_owned() } else { cards.join(", ") }.as_str());
    }
    match record.request.share {
        Share::Part { isolation: Isolation::None, .. } if change.memory.is_some() || change.compute.is_some() => {
            has("isolation none goes without limits")
        }
        Share::Part { isolation: Isolation::Memory, .. } if change.compute.is_some() => {
            has("isolation memory goes without a limit of time")
        }
        _ => Ok(()),
    }
}

/// Demands of the container, as changed, on each card that it shares.
fn demands<'a>(
    record: &'a Record,
    inventory: &'a Inventory,
    change: &Change,
) -> Result<Vec<(&'a Card, &'a CardGrant, CardDemand)>, ChangeError> {
    let container = || Box::new(record.container.clone());
    let shared: Vec<&CardGrant> = record.cards.iter().filter(|grant| grant.is_shared()).collect();
    let memory = listed(record, "memory", change.memory.as_ref(), shared.len())?;
    let compute = listed(record, "compute", change.compute.as_ref(), shared.len())?;
    let demand = |(position, grant): (usize, &'a CardGrant)| {
        let card = inventory.cards.iter().find(|card| card.uuid == grant.uuid);
        let card = card.ok_or_else(|| ChangeError::NoSuchCard { container: container(), uuid: grant.uuid.clone() })?;
        let memory = match memory.get(position) {
            None => grant.memory,
            Some(limit) => MemoryLimit::tightest(std::slice::from_ref(*limit), card.memory).ok_or_else(|| {
                ChangeError::Memory { container: container(), index: card.index, memory: card.memory }
            })?,
        };
        let compute = compute.get(position).map_or(grant.compute, |compute| **compute);
        let demand = CardDemand {
            memory,
            compute,
            policy: Some(needed_policy(grant.policy, compute)),
            exclusive: false,
            mig_uuid: None,
            enforcement: Enforcement::Mediated,
            unlimited: record.is_unlimited(),
        };
        Ok((card, grant, demand))
    };
    shared.into_iter().enumerate().map(demand).collect()
}

fn listed<'a, T>(
    record: &Record,
    quantity: &'static str,
    list: Option<&'a PerCard<T>>,
    cards: usize,
) -> Result<Vec<&'a T>, ChangeError> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let wrong = |source| ChangeError::ListLength { container: Box::new(record.container.clone()), quantity, source };
    list.for_cards(cards).map_err(wrong)
}

/// The policy that a card must have for a share; its own, where that will do.
fn needed_policy(has: CardPolicy, compute: ComputeShare) -> CardPolicy {
    match compute {
        ComputeShare::Cap { .. } => CardPolicy::Fixed,
        ComputeShare::Weight(weight) if weight.get() > 1 && !rules(has).takes_weights => CardPolicy::Weighted,
        ComputeShare::Weight(_) | ComputeShare::Unlimited => has,
    }
}

/// Grants of the container after the change, if they fit beside all others.
fn fit(
    locked: &Locked<'_>,
    index: &mut Index,
    record: &Record,
    demands: &[(&Card, &CardGrant, CardDemand)],
    (limits, settings): (&Limits, &Settings),
    lines: &mut Vec<Line>,
) -> Result<Vec<CardGrant>, ChangeError> {
    let failed = |source| ChangeError::Store { container: Box::new(record.container.clone()), source };
    let mut grants = Vec::with_capacity(demands.len());
    for (card, grant, demand) in demands {
        let others = index.holdings(locked, &card.uuid).map_err(failed)?.iter();
        let others = others.filter(|holding| holding.container != record.container);
        let mut sums = CardSums::of(others.map(|holding| (&holding.grant, holding.group)));
        // Nobody changes a card's policy by what he asks for when he has it already.
        sums.policy = Some(grant.policy);
        let limits = settings.limits(limits, &card.uuid);
        check(card, &sums, demand, &limits)
            .map_err(|refusal| refused(locked, index, record, (card, demand), refusal))?;
        let mut changed = demand.grant(card, &sums, &limits);
        changed.compute_by = keep_degraded(grant.compute_by, changed.compute_by);
        changed.window_loss_us = grant.window_loss_us;
        (changed.channels, changed.pinned_memory) = (grant.channels, grant.pinned_memory);
        lines.push(grant_fields(Line::new(Event::Reserve, record), &changed));
        lines.extend(small_quota_line(record.into(), &changed, card.memory));
        lines.extend(weights_only_line(record.into(), &changed));
        grants.push(changed);
    }
    let newcomer = Newcomer { order: record.order, unlimited: record.is_unlimited(), grants: &grants };
    if let Err(refusal) = check_layout(locked, index, newcomer, settings).map_err(failed)?
        && let Some((card, _, demand)) = demands.last()
    {
        return Err(refused(locked, index, record, (card, demand), refusal));
    }
    Ok(grants)
}

fn refused(
    locked: &Locked<'_>,
    index: &mut Index,
    record: &Record,
    (card, demand): (&Card, &CardDemand),
    refusal: Refusal,
) -> ChangeError {
    let container = Box::new(record.container.clone());
    let others: Vec<_> = match index.holdings(locked, &card.uuid) {
        Ok(holdings) => holdings.iter().filter(|holding| holding.container != record.container).cloned().collect(),
        Err(source) => return ChangeError::Store { container, source },
    };
    ChangeError::Card {
        container,
        card: card_name(card),
        asked: demand.describe(),
        holders: holders(&others).map(|names| format!("; it is also held by {names}")).unwrap_or_default(),
        source: Box::new(refusal),
    }
}

/// Text of a change for the log.
fn describe(change: &Change) -> String {
    let mut parts = Vec::new();
    if let Some(memory) = &change.memory {
        parts.push(format!("memory={}", list(memory.values().map(memory_text))));
    }
    if let Some(compute) = &change.compute {
        parts.push(list(compute.values().map(|share| ComputeText(*share).to_string())));
    }
    if let Some(priority) = change.priority {
        parts.push(format!("priority={priority:?}").to_lowercase());
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(" ") }
}

fn memory_text(limit: &MemoryLimit) -> String {
    match limit {
        MemoryLimit::Bytes { amount, .. } => amount.to_string(),
        MemoryLimit::Ratio { numerator, denominator, .. } => format!("{numerator}/{denominator} of the card"),
        MemoryLimit::OfCardInGib { numerator, .. } => format!("{numerator}GiB"),
    }
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(",")
}
