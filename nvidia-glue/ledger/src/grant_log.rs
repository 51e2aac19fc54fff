//! Grants in the decision log and in messages.

use base::{Bytes, ComputeShare};
use cards::Card;

use crate::{
    CardGrant, ComputeEnforcement, ContainerName,
    decision_log::{Event, Line},
};

/// A quota below this is less than what CUDA's own context takes on a large card.
const SMALL_QUOTA: u64 = Bytes::GIB / 2;
/// Memory of a large card.
const LARGE_CARD: u64 = 16 * Bytes::GIB;

pub(super) fn card_name(card: &Card) -> String {
    format!("card {} ({}, {})", card.index, card.model, card.uuid)
}

/// A warning where what was asked for as a cap is a weight.
pub(super) fn weights_only_line(container: ContainerName<'_>, grant: &CardGrant) -> Option<Line> {
    let is_degraded = grant.compute_by == ComputeEnforcement::WeightsOnly && schedule::policy::is_hard_cap(grant);
    is_degraded.then(|| {
        Line::new(Event::Warn, container)
            .field("card", grant.index)
            .field("warning", "the card cannot take containers off: the share of its time is a weight, not a cap")
    })
}

/// Adds a line for each of `grants` that is given back, the last first.
pub(super) fn roll_back(grants: &[CardGrant], container: ContainerName<'_>, steps: &mut Vec<Line>) {
    steps.extend(grants.iter().rev().map(|grant| grant_fields(Line::new(Event::Rollback, container), grant)));
}

/// Appends the fields of a grant that is reserved or given back.
pub(super) fn grant_fields(line: Line, grant: &CardGrant) -> Line {
    let line = line.field("card", grant.index).field("uuid", &grant.uuid).amount("memory", grant.memory);
    let line = match grant.compute {
        ComputeShare::Unlimited => line.field("compute", "uncapped"),
        ComputeShare::Cap { percent, .. } => line.field("compute", percent),
        ComputeShare::Weight(weight) => line.field("weight", weight),
    };
    let line = line.field("policy", grant.policy);
    let line = match grant.channels {
        Some(channels) => line.field("channels", channels),
        None => line,
    };
    match &grant.mig_uuid {
        Some(mig) => line.field("mig", mig),
        None if grant.exclusive => line.field("exclusive", true),
        None => line,
    }
}

/// A warning where a quota is too small to be of use.
pub(super) fn small_quota_line(container: ContainerName<'_>, grant: &CardGrant, card_memory: Bytes) -> Option<Line> {
    let small = grant.holds() && !grant.exclusive && grant.memory.0 < SMALL_QUOTA && card_memory.0 >= LARGE_CARD;
    small.then(|| {
        Line::new(Event::Warn, container)
            .field("card", grant.index)
            .amount("memory", grant.memory)
            .field("warning", "less than about 512MiB: CUDA's own context may take all of it")
    })
}
