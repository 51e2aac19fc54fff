//! Meaning of each container's grant on each of its cards, by the card's policy.

use std::{borrow::Cow, collections::BTreeMap};

use base::{CardGrant, CardPolicy, ComputeEnforcement, ComputeShare, Priority};

use super::plan_settings::PlanSettings;
use super::{
    connected_cards::connected_cards,
    layout::{MIN_REMAINDER_PERCENT, percent_parts, ratio_parts},
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

/// Limit on a container's time on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Not at all.
    Free,
    /// To a window of so many parts of a period.
    Window(u64),
    /// To what the windows of others leave.
    Remainder,
    /// By time slices of that weight.
    Weight(u32),
    /// It is skipped.
    Absent,
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
    let max_inst = u64::from(settings.max_inst.max(1));
    let weights: u64 = grants.iter().map(|(_, grant)| u64::from(grant.slices())).sum();
    let is_member = |position: usize, test: fn(&Member<'_>) -> bool| members.get(position).is_some_and(test);
    let counts = |position| view == View::Promised || is_member(position, |member| member.is_present);
    let present = grants.iter().filter(|(position, _)| counts(*position)).count() as u64;
    let is_alone = grants.len() == 1 && view == View::Now;
    let one = |(position, grant): &(usize, &CardGrant)| {
        let slices = u64::from(grant.slices());
        if is_member(*position, |member| member.is_unlimited) {
            return Hold::Free;
        }
        if grant.compute_by == ComputeEnforcement::WeightsOnly {
            return Hold::Weight(weight_instead(grant, grants, settings));
        }
        match (grant.policy, grant.compute) {
            (CardPolicy::Fixed, ComputeShare::Cap { lifted_when_alone: true, .. }) if is_alone => Hold::Free,
            (CardPolicy::Fixed, ComputeShare::Cap { percent, .. }) => Hold::Window(percent_parts(percent.get().into())),
            (CardPolicy::Fixed, ComputeShare::Weight(_)) => Hold::Window(ratio_parts(slices, max_inst)),
            (CardPolicy::Fixed, ComputeShare::Unlimited) => Hold::Remainder,
            (CardPolicy::Fair, _) => Hold::Window(ratio_parts(1, max_inst)),
            (CardPolicy::Preemptive, _) if !counts(*position) => Hold::Absent,
            (CardPolicy::Preemptive, _) => Hold::Window(ratio_parts(1, present)),
            (CardPolicy::Weighted, _) => Hold::Window(ratio_parts(slices, weights)),
            (CardPolicy::Soft, _) => Hold::Weight(grant.slices().max(1)),
            (CardPolicy::Native, _) => Hold::Free,
        }
    };
    let mut holds: Vec<Hold> = grants.iter().map(one).collect();
    if !holds.iter().any(|hold| matches!(hold, Hold::Window(_))) {
        // Nobody is in the way of those who share what is left.
        for hold in holds.iter_mut().filter(|hold| **hold == Hold::Remainder) {
            *hold = Hold::Free;
        }
    }
    holds
}

/// The weight, in hundredths of the card, of a container whose card cannot hold it to windows.
fn weight_instead(grant: &CardGrant, grants: &[(usize, &CardGrant)], settings: &PlanSettings) -> u32 {
    let max_inst = settings.max_inst.max(1);
    let hundredths = |grant: &CardGrant| match grant.compute {
        ComputeShare::Cap { percent, .. } => u32::from(percent.get()),
        ComputeShare::Weight(_) => (grant.slices() * 100 / max_inst).max(1),
        ComputeShare::Unlimited => 0,
    };
    match grant.policy {
        CardPolicy::Fixed if grant.compute == ComputeShare::Unlimited => {
            let taken: u32 = grants.iter().map(|(_, grant)| hundredths(grant)).sum();
            let sharers = grants.iter().filter(|(_, grant)| grant.compute == ComputeShare::Unlimited).count();
            let left = 100_u32.saturating_sub(taken) / u32::try_from(sharers.max(1)).unwrap_or(u32::MAX);
            left.max(1)
        }
        CardPolicy::Fixed => hundredths(grant),
        CardPolicy::Weighted | CardPolicy::Soft => grant.slices().max(1),
        CardPolicy::Fair | CardPolicy::Preemptive | CardPolicy::Native => 1,
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
