//! Cards that a request names, or may choose from.

use cards::{Card, CardOrMig, Health, Inventory};
use runtime_config::request::{CardRequest, Share};

use super::SelectError;

/// Cards and MIG devices that a request means.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Targets<'a> {
    Named(Vec<CardOrMig<'a>>),
    /// Some of these.
    Choose {
        /// Number of cards.
        count: u32,
        /// Whole cards without MIG.
        from: Vec<&'a Card>,
    },
}

/// The UUIDs of the cards that `within` allows; `None`: all.
pub(super) fn allowed(inventory: &Inventory, within: &CardRequest) -> Result<Option<Vec<String>>, SelectError> {
    let uuids = |cards: Vec<&Card>| Some(cards.into_iter().map(|card| card.uuid.clone()).collect());
    match within {
        CardRequest::All | CardRequest::Count(_) => Ok(None),
        CardRequest::None => Ok(Some(Vec::new())),
        CardRequest::Devices(selectors) => {
            let named = selectors.iter().map(|selector| inventory.resolve(selector).map(CardOrMig::card));
            Ok(uuids(named.collect::<Result<_, _>>()?))
        }
        CardRequest::PresentNodes { cards, .. } => Ok(uuids(by_minors(inventory, cards)?)),
    }
}

/// Resolves `request` to cards of this node, for a container that wants `share` of them.
pub(super) fn targets<'a>(
    inventory: &'a Inventory,
    request: &CardRequest,
    share: &Share,
    allowed: Option<&[String]>,
) -> Result<Targets<'a>, SelectError> {
    let is_allowed = |card: &Card| allowed.is_none_or(|allowed| allowed.contains(&card.uuid));
    let named = match request {
        CardRequest::None => return Ok(Targets::Named(Vec::new())),
        CardRequest::Count(count) => {
            let offered = |card: &&Card| is_usable(card) && !card.mig_enabled && is_allowed(card);
            let from: Vec<_> = inventory.cards.iter().filter(offered).collect();
            return match usize::try_from(*count) {
                Ok(asked) if (1..=from.len()).contains(&asked) => Ok(Targets::Choose { count: *count, from }),
                _ => Err(SelectError::TooFewCards { asked: *count, offered: from.len() }),
            };
        }
        CardRequest::All => {
            let cards = inventory.cards.iter().filter(|card| is_usable(card) && is_allowed(card));
            let all: Vec<_> = cards.flat_map(|card| every_part(card, share)).collect();
            return if all.is_empty() { Err(SelectError::NoCards) } else { Ok(Targets::Named(all)) };
        }
        CardRequest::Devices(selectors) => {
            let found = selectors.iter().map(|selector| inventory.resolve(selector));
            let found = found.collect::<Result<Vec<_>, _>>()?;
            for target in &found {
                check_mig(*target, share, false)?;
            }
            found
        }
        CardRequest::PresentNodes { cards, capabilities } => {
            let found: Vec<_> = by_minors(inventory, cards)?.into_iter().map(CardOrMig::Card).collect();
            for target in &found {
                check_mig(*target, share, !capabilities.is_empty())?;
            }
            found
        }
    };
    for target in &named {
        check_offered(target.card())?;
        if !is_allowed(target.card()) {
            let allowed = inventory.cards.iter().filter(|card| is_allowed(card)).map(|card| card.index.to_string());
            let allowed: Vec<_> = allowed.collect();
            let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            return Err(SelectError::NotAllowed { index: target.card().index, allowed });
        }
    }
    Ok(Targets::Named(without_repetition(named)))
}

fn by_minors<'a>(inventory: &'a Inventory, minors: &[u32]) -> Result<Vec<&'a Card>, SelectError> {
    let card = |minor: &u32| inventory.by_minor(*minor).ok_or(SelectError::NoSuchMinor { minor: *minor });
    minors.iter().map(card).collect()
}

fn is_usable(card: &Card) -> bool {
    card.health == Health::Ok
}

fn check_offered(card: &Card) -> Result<(), SelectError> {
    match &card.health {
        Health::Ok => Ok(()),
        Health::Unusable { reason } => {
            Err(SelectError::Unusable { index: card.index, uuid: card.uuid.clone(), reason: reason.clone() })
        }
    }
}

/// A card in MIG mode stands for its devices; a quota cannot be had of them.
fn every_part<'a>(card: &'a Card, share: &Share) -> Vec<CardOrMig<'a>> {
    match share {
        _ if !card.mig_enabled => vec![CardOrMig::Card(card)],
        Share::Part { .. } => Vec::new(),
        Share::Exclusive | Share::Monitor => {
            card.mig_devices.iter().map(|device| CardOrMig::Mig { card, device }).collect()
        }
    }
}

/// `parts_are_known`: the spec says itself, by its capability nodes, which MIG devices of a card
/// are meant.
fn check_mig(target: CardOrMig<'_>, share: &Share, parts_are_known: bool) -> Result<(), SelectError> {
    match (target, share) {
        (CardOrMig::Mig { device, .. }, Share::Part { .. }) => {
            Err(SelectError::MigQuota { device: device.uuid.clone() })
        }
        (CardOrMig::Card(card), Share::Part { .. } | Share::Exclusive) if card.mig_enabled => {
            if parts_are_known && *share == Share::Exclusive {
                return Ok(());
            }
            let devices: Vec<_> = card
                .mig_devices
                .iter()
                .map(|device| format!("{}:{} ({})", card.index, device.index, device.uuid))
                .collect();
            let devices = if devices.is_empty() { "it has none yet".to_owned() } else { devices.join(", ") };
            Err(SelectError::MigCard { index: card.index, devices })
        }
        _ => Ok(()),
    }
}

/// Drops repeated targets: an index and a UUID may name the same card.
fn without_repetition(targets: Vec<CardOrMig<'_>>) -> Vec<CardOrMig<'_>> {
    let mut found: Vec<CardOrMig<'_>> = Vec::with_capacity(targets.len());
    for target in targets {
        if !found.contains(&target) {
            found.push(target);
        }
    }
    found
}
