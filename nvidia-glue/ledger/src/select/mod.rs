//! From a request to what is asked of which card: everything about a request that is known
//! without the ledger.
//!
//! [`plan`] has no side effects. What it refuses is refused before anything is reserved.

mod demands;
mod place;
mod requirements;
mod targets;

use base::{Bytes, CardPolicy, ComputeShare};
use cards::{Card, Inventory, ResolveError};
pub(crate) use place::{Candidate, ranked};
use runtime_config::request::{CardCountError, GpuRequest, Share, UnsatisfiedRequirement};
use schedule::policy::rules;
use targets::Targets;

use crate::CardDemand;

/// Demands of a container on the node's cards.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// The cards of the request.
    pub(crate) cards: PlannedCards,
    /// Cards that are given whole beside those.
    pub(crate) whole: Vec<Planned>,
}

/// Cards that are named, or to be chosen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlannedCards {
    /// These, in this order.
    Named(Vec<Planned>),
    /// As many as there are entries; each entry holds what its card would be asked for, for each
    /// card that may be chosen.
    Choose(Vec<Vec<Planned>>),
}

/// Demand on one card.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    /// Position in the inventory's list.
    pub(crate) card: usize,
    pub(crate) demand: CardDemand,
}

/// Reason for which a request cannot be met on this node whoever else is there. Nothing has been
/// reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// A selector names nothing here, or several things.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// Device nodes in the spec that belong to no card of the node.
    #[error("the spec has /dev/nvidia{minor}, but no card of this node has that minor number")]
    NoSuchMinor {
        /// The minor number.
        minor: u32,
    },
    /// The card must not be used.
    #[error("card {index} ({uuid}) is not offered: {reason}; name another card, or repair this one")]
    Unusable {
        /// The card's index.
        index: u32,
        uuid: String,
        /// The problem.
        reason: String,
    },
    /// The card is divided by MIG.
    #[error("card {index} is in MIG mode and is not offered as a whole; name one of its MIG devices: {devices}")]
    MigCard {
        /// The card's index.
        index: u32,
        /// Its devices, for people.
        devices: String,
    },
    /// A quota on a MIG device.
    #[error(
        "a quota on MIG device {device} was asked for: MIG devices are given whole; ask for one without a quota, or for a card without MIG"
    )]
    MigQuota { device: String },
    /// More cards than there are.
    #[error("{asked} cards were asked for, and this node offers {offered}; ask for fewer (`egpu cards` lists them)")]
    TooFewCards {
        /// Number of cards asked for.
        asked: u32,
        /// Number of cards that may be chosen.
        offered: usize,
    },
    /// There is none.
    #[error("this node offers no card that the request could mean; `egpu cards` shows why")]
    NoCards,
    /// Cards to be given whole beside shared ones can only be named.
    #[error("cards to be given whole beside shared ones must be named, not counted")]
    WholeCount,
    /// Outside of what somebody else allows.
    #[error("card {index} is asked for, but the container is allowed only {allowed}")]
    NotAllowed {
        /// The card's index.
        index: u32,
        /// Indices, for people.
        allowed: String,
    },
    /// A list does not fit the number of cards.
    #[error("the list of {quantity} limits does not fit the cards; give one value for all, or one for each")]
    ListLength {
        /// `memory` or `compute`.
        quantity: &'static str,
        /// The two numbers.
        source: CardCountError,
    },
    /// A memory limit is nothing, or a ratio above one.
    #[error(
        "the memory limit leaves nothing of card {index}, which has {memory}, or asks for more than all of it; check the amount and what is reserved of it"
    )]
    Memory {
        /// The card's index.
        index: u32,
        /// Its size.
        memory: Bytes,
    },
    /// `NVIDIA_REQUIRE_*` does not hold.
    #[error("{}{unsatisfied}", on_card(*index))]
    Requirement {
        /// The card's index; `None`: no card was asked for.
        index: Option<u32>,
        /// The requirement.
        unsatisfied: UnsatisfiedRequirement,
    },
    /// Caps exist on `fixed` cards only.
    #[error(
        "a compute cap of {percent}% needs policy fixed, and policy {policy} was asked for; ask for one of them only"
    )]
    CapWithPolicy {
        /// The cap.
        percent: u8,
        /// The policy that was asked for.
        policy: CardPolicy,
    },
}

fn on_card(index: Option<u32>) -> String {
    index.map(|index| format!("on card {index}: ")).unwrap_or_default()
}

/// Plans the demands of `request` on the cards of `inventory`.
///
/// # Errors
/// [`SelectError`].
pub(crate) fn plan(inventory: &Inventory, request: &GpuRequest) -> Result<Plan, SelectError> {
    let allowed = request.within.as_ref().map(|within| targets::allowed(inventory, within)).transpose()?.flatten();
    let whole = match targets::targets(inventory, &request.whole_cards, &Share::Exclusive, allowed.as_deref())? {
        Targets::Named(named) => named,
        Targets::Choose { .. } => return Err(SelectError::WholeCount),
    };
    let is_whole = |card: &Card| whole.iter().any(|target| target.card().uuid == card.uuid);
    let mut beside = whole.clone();
    let cards = match targets::targets(inventory, &request.cards, &request.share, allowed.as_deref())? {
        Targets::Named(named) => {
            requirements::check_all(inventory, request, named.iter().map(|target| target.card()))?;
            // What is shared is not given whole as well.
            beside.retain(|target| named.iter().all(|other| other.card().uuid != target.card().uuid));
            PlannedCards::Named(demands::named(inventory, request, &named)?)
        }
        Targets::Choose { count, mut from } => {
            from.retain(|card| !is_whole(card));
            let from = requirements::fitting(inventory, request, from)?;
            PlannedCards::Choose(demands::choices(inventory, request, count, &from)?)
        }
    };
    requirements::check_all(inventory, request, beside.iter().map(|target| target.card()))?;
    let whole = demands::whole(inventory, &beside);
    Ok(Plan { cards, whole })
}

/// The policy that a card must have for this compute share.
fn needed_policy(request: &GpuRequest, compute: ComputeShare) -> Result<Option<CardPolicy>, SelectError> {
    match (request.policy, compute) {
        (Some(policy), ComputeShare::Cap { percent, .. }) if !rules(policy).takes_caps => {
            Err(SelectError::CapWithPolicy { percent: percent.get(), policy })
        }
        (Some(policy), _) => Ok(Some(policy)),
        (None, ComputeShare::Cap { .. }) => Ok(Some(CardPolicy::Fixed)),
        // A weight of one is what everybody has; it needs nothing of the card.
        (None, ComputeShare::Weight(weight)) if weight.get() > 1 => Ok(Some(CardPolicy::Soft)),
        (None, ComputeShare::Weight(_) | ComputeShare::Unlimited) => Ok(None),
    }
}
