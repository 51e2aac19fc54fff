//! Meaning of each container's grant on each of its cards, by the card's policy.

use std::{borrow::Cow, collections::BTreeMap};

use base::{CardGrant, ComputeEnforcement, Priority};

use super::plan_settings::PlanSettings;
use super::{
    connected_cards::connected_cards,
    layout::{MIN_REMAINDER_PERCENT, percent_parts},
    policy::{Hold, Sharer, rules, slices},
};

/// A container that shares cards, as far as its time is concerned.
#[derive(Debug, Clone)]
pub struct Member<'a> {
    /// Names it.
    pub grant_id: &'a str,
    /// Its place in the ledger.
    pub order: u64,
    /// Order in which it runs.
    pub priority: Priority,
    /// Its processes have the driver open.
    pub is_present: bool,
    /// It goes without limits.
    pub is_unlimited: bool,
    /// Its grants of the cards that it shares, in its own order.
    pub grants: Vec<Cow<'a, CardGrant>>,
}

/// Containers whose time is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Those promised: all containers that exist, all of their caps.
    Promised,
    /// Those that count now: present ones where the policy skips others, without caps that are
    /// lifted now.
    Now,
}

/// Positions in a list of members, and their grants, by card.
pub(super) type ByCard<'a> = BTreeMap<&'a str, Vec<(usize, &'a CardGrant)>>;

pub(super) fn by_card<'a>(members: &'a [Member<'_>]) -> ByCard<'a> {
    let mut cards = ByCard::new();
    for (position, member) in members.iter().enumerate() {
        for grant in &member.grants {
            cards.entry(grant.uuid.as_str()).or_default().push((position, grant));
        }
    }
    cards
}

/// Limits on time that the grants on one card mean, in their order.
pub(super) fn holds(
    grants: &[(usize, &CardGrant)],
    members: &[Member<'_>],
    settings: &PlanSettings,
    view: View,
) -> Vec<Hold> {
    let is_member = |position: usize, test: fn(&Member<'_>) -> bool| members.get(position).is_some_and(test);
    let counts = |position| view == View::Promised || is_member(position, |member| member.is_present);
    let present = grants.iter().filter(|(position, _)| counts(*position)).count() as u64;
    let is_alone = grants.len() == 1 && view == View::Now;
    let all_slices = grants.iter().map(|(_, grant)| u64::from(slices(grant))).sum();
    let max_inst = settings.max_inst.max(1);
    let one = |&(position, grant): &(usize, &CardGrant)| {
        if is_member(position, |member| member.is_unlimited) {
            return Hold::Free;
        }
        let rules = rules(grant.policy);
        let sharer = Sharer { grant, grants, is_present: counts(position), present, all_slices, is_alone, max_inst };
        if grant.compute_by == ComputeEnforcement::WeightsOnly {
            return Hold::Weight((rules.weight_instead)(&sharer));
        }
        (rules.hold)(&sharer)
    };
    let mut holds: Vec<Hold> = grants.iter().map(one).collect();
    if !holds.iter().any(|hold| matches!(hold, Hold::Window(_))) {
        // Nobody is in the way of those who share what is left.
        for hold in holds.iter_mut().filter(|hold| **hold == Hold::Remainder) {
            *hold = Hold::Turns(1);
        }
    }
    let has_several = |position: usize| is_member(position, |member| member.grants.len() > 1);
    if grants.iter().zip(&holds).any(|((position, _), hold)| matches!(hold, Hold::Turns(_)) && has_several(*position)) {
        without_turns(&mut holds);
    }
    holds
}

/// Turns of a card are agreed on among its own containers: one with several cards would have its
/// turns at other instants on each.
fn without_turns(holds: &mut [Hold]) {
    let weights: Vec<u32> = holds.iter().filter_map(|hold| hold.turns_weight()).collect();
    let are_equal = weights.iter().all(|weight| weights.first() == Some(weight));
    for hold in holds {
        if let Some(weight) = hold.turns_weight() {
            *hold = if are_equal { Hold::Free } else { Hold::Weight(weight) };
        }
    }
}

/// The cards, by number, of each set of containers that share remainders with each other: they do
/// so at the same instant on all of these cards, for a container with several runs only when all
/// are its own.
pub(super) fn remainders(holds: &[Vec<(usize, Hold)>]) -> Vec<Vec<usize>> {
    let of_one = |cards: &Vec<(usize, Hold)>| -> Vec<usize> {
        cards.iter().filter(|(_, hold)| *hold == Hold::Remainder).map(|(card, _)| *card).collect()
    };
    let shared: Vec<Vec<usize>> = holds.iter().map(of_one).filter(|cards| !cards.is_empty()).collect();
    let union = |group: Vec<usize>| {
        let mut cards: Vec<usize> = group.iter().filter_map(|member| shared.get(*member)).flatten().copied().collect();
        cards.sort_unstable();
        cards.dedup();
        cards
    };
    connected_cards(&shared).into_iter().map(union).collect()
}

/// Parts of a period that are kept for a remainder on each of its cards.
pub(super) fn remainder_parts() -> u64 {
    percent_parts(MIN_REMAINDER_PERCENT)
}
