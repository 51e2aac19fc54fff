//! Changing how a card is shared while its containers run.
//!
//! A policy stands in every record of its card. So that no kill leaves two policies on one card,
//! what is to be done is written down first, in the settings, and taken out when it is done:
//! whoever takes the lock in between does the rest.

use base::{CardPolicy, ComputeShare, MAX_PERIOD_US, MIN_PERIOD_US, Period};
use cards::{Card, Inventory};
use schedule::{can_be_laid_out, policy::rules};

use super::{
    CardDemand, CardSetting, ContainerName, Ledger, Limits, PolicyError, Refusal,
    card_demand::{check_compute, check_hard_cap, compute_by},
    card_sums::CardSums,
    grant_log::card_name,
    index::{Holding, Index},
    members::{connected_cards, members},
    settings::{Changing, Settings},
    store::Locked,
};
use crate::decision_log::{DecisionLog, Event, Line, chain};

impl Ledger {
    /// Sets a card's policy, its period, or both; what is `None` in `setting` stays as it is. Holds
    /// for the containers that it has, from the instant that the timetable names, and for those to
    /// come, also after it was empty, if they need no other policy. Returns what is set for the
    /// card then.
    ///
    /// # Errors
    /// [`PolicyError`]: one of its containers could not have what it was granted. All is then as it
    /// was.
    pub fn set_policy(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        uuid: &str,
        setting: CardSetting,
        log: &DecisionLog,
    ) -> Result<CardSetting, PolicyError> {
        let mut lines = Vec::new();
        let result = self.try_set_policy(inventory, limits, uuid, setting, &mut lines);
        let mut line = Line::about_card(if result.is_ok() { Event::Policy } else { Event::Refuse }, uuid);
        if let Some(policy) = setting.policy {
            line = line.field("policy", policy);
        }
        if let Some(period) = setting.period {
            line = line.field("period", period);
        }
        if let Err(error) = &result {
            line = line.field("why", chain(error));
        }
        lines.push(line);
        log.write(&lines);
        result
    }

    /// Checks what [`Ledger::set_policy`] would check. No card's setting changes.
    ///
    /// # Errors
    /// [`PolicyError`], as [`Ledger::set_policy`] would have it.
    pub fn preview_policy(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        uuid: &str,
        setting: CardSetting,
    ) -> Result<(), PolicyError> {
        let card = checked(inventory, uuid, setting)?;
        let failed = |source| PolicyError::Store { uuid: uuid.to_owned(), source };
        let locked = self.store.lock().map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        self.follow_configuration(&locked, &mut index, limits, &mut Vec::new()).map_err(failed)?;
        let mut settings = locked.settings().map_err(failed)?;
        change(&mut settings, uuid, setting);
        check_card(&locked, &mut index, card, setting.policy, (&settings, limits))
    }

    fn try_set_policy(
        &self,
        inventory: &Inventory,
        limits: &Limits,
        uuid: &str,
        setting: CardSetting,
        lines: &mut Vec<Line>,
    ) -> Result<CardSetting, PolicyError> {
        let card = checked(inventory, uuid, setting)?;
        let failed = |source| PolicyError::Store { uuid: uuid.to_owned(), source };
        let locked = self.store.lock().map_err(failed)?;
        let mut index = self.open_index(&locked).map_err(failed)?;
        self.follow_configuration(&locked, &mut index, limits, lines).map_err(failed)?;
        let mut settings = locked.settings().map_err(failed)?;
        let then = change(&mut settings, uuid, setting);
        check_card(&locked, &mut index, card, setting.policy, (&settings, limits))?;
        settings.changing =
            setting.policy.map(|policy| Changing { uuid: uuid.to_owned(), policy, hard_caps: card.hard_caps });
        index.begin_change(&locked).map_err(failed)?;
        let written = locked.write_settings(&settings);
        if written.is_err() {
            index.save(&locked);
        }
        written.map_err(failed)?;
        if !self.finish_policy(&locked, &mut index).map_err(failed)? {
            self.refresh_timetables(&locked, &mut index, std::iter::once(uuid));
            index.save(&locked);
        }
        Ok(then)
    }
}

/// Returns the card, if the setting is one that a card may have.
fn checked<'a>(inventory: &'a Inventory, uuid: &str, setting: CardSetting) -> Result<&'a Card, PolicyError> {
    let card = inventory.cards.iter().find(|card| card.uuid == uuid);
    let card = card.ok_or_else(|| PolicyError::NoSuchCard { uuid: uuid.to_owned() })?;
    match setting.period {
        Some(Period::Us(period_us)) if !(MIN_PERIOD_US..=MAX_PERIOD_US).contains(&period_us) => {
            Err(PolicyError::Period { period_us })
        }
        Some(Period::Us(_) | Period::Auto) | None => Ok(card),
    }
}

/// Changes what is set for the card, and returns all that is set for it then.
fn change(settings: &mut Settings, uuid: &str, setting: CardSetting) -> CardSetting {
    let now = settings.card(uuid);
    let then = CardSetting { policy: setting.policy.or(now.policy), period: setting.period.or(now.period) };
    settings.cards.insert(uuid.to_owned(), then);
    then
}

/// Returns whether every container of the card could have what it has, under `policy` and
/// `settings`.
fn check_card(
    locked: &Locked<'_>,
    index: &mut Index,
    card: &Card,
    policy: Option<CardPolicy>,
    (settings, limits): (&Settings, &Limits),
) -> Result<(), PolicyError> {
    let failed = |source| PolicyError::Store { uuid: card.uuid.clone(), source };
    let uuids = connected_cards(locked, index, std::iter::once(card.uuid.as_str())).map_err(failed)?;
    let mut admitted: Vec<Holding> = Vec::new();
    let mut cards = index.cards(&uuids);
    if let (Some(policy), Some(holdings)) = (policy, cards.get_mut(card.uuid.as_str())) {
        for mut holding in holdings.iter().filter(|holding| holding.grant.is_shared()).cloned() {
            let sums = CardSums::of(admitted.iter().map(|holding| (&holding.grant, holding.group)));
            check_holding(card, &sums, &holding, policy, limits).map_err(|refusal| PolicyError::Container {
                card: card_name(card),
                policy,
                container: ContainerName::from(&holding).to_string(),
                granted: holding.grant.describe(),
                source: Box::new(refusal),
            })?;
            holding.grant.policy = policy;
            holding.grant.compute_by = compute_by(holding.grant.enforcement, holding.unlimited, policy, card.hard_caps);
            admitted.push(holding);
        }
        *holdings = &admitted;
    }
    can_be_laid_out(&members(&cards), &settings.plan()).map_err(|reason| PolicyError::Layout {
        card: card_name(card),
        source: Box::new(Refusal::Layout { reason: reason.to_string() }),
    })
}

fn check_holding(
    card: &Card,
    sums: &CardSums,
    holding: &Holding,
    policy: CardPolicy,
    limits: &Limits,
) -> Result<(), Refusal> {
    let grant = &holding.grant;
    if matches!(grant.compute, ComputeShare::Cap { .. }) && !rules(policy).takes_caps {
        return Err(Refusal::CapNeedsFixed);
    }
    let ask = CardDemand {
        memory: grant.memory,
        compute: grant.compute,
        policy: Some(policy),
        exclusive: false,
        mig_uuid: None,
        enforcement: grant.enforcement,
        unlimited: holding.unlimited,
    };
    check_compute(sums, &ask, limits)?;
    check_hard_cap(card.hard_caps, &ask, policy, limits)
}
