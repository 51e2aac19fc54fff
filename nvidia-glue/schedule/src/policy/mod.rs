//! Policies by which a card is shared, one file a policy: everything that distinguishes it from the
//! others.

mod adaptive;
mod fair;
mod fixed;
mod native;
mod preemptive;
mod soft;
mod weighted;

use base::{CardGrant, CardPolicy, ComputeEnforcement, ComputeShare};

use crate::layout::ratio_parts;

/// Decisions of a policy.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Its meaning, for people.
    pub meaning: &'static str,
    /// A percentage is a hard cap, and what caps leave is shared by those without one.
    pub takes_caps: bool,
    /// A weight of more than one has a meaning.
    pub takes_weights: bool,
    /// It divides a card into `max_inst` slices, of which weights count some.
    pub counts_slices: bool,
    /// A container whose processes do not have the driver open counts for nothing.
    pub skips_absent: bool,
    /// The cost of its windows comes off the time of all, not off each one's own.
    pub shares_costs: bool,
    /// Unit in which the room of a card is told.
    pub room: RoomUnit,
    /// Means by which a share is enforced, where channels can be taken off the card.
    pub enforced_by: ComputeEnforcement,
    /// Slices of the card that a share counts for: what it weighs where cards are shared by weight
    /// or in equal parts. Hard caps and what shares a remainder count no slices.
    pub slices: fn(ComputeShare) -> u32,
    /// Returns whether a share is one that its holder is held to also when nobody else wants the
    /// card.
    pub is_hard_cap: fn(ComputeShare) -> bool,
    /// Parts of a period that are promised to all who share a card.
    pub promised_parts: fn(Promised) -> u64,
    /// Limit on a container's time.
    pub(crate) hold: fn(&Sharer<'_>) -> Hold,
    /// Weight, in hundredths of the card, of a container whose card cannot hold it to windows.
    pub(crate) weight_instead: fn(&Sharer<'_>) -> u32,
}

/// Unit of what is left of a card's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomUnit {
    /// Hundredths of the card.
    Percent,
    /// Slices.
    Weight,
    /// There is always room.
    Endless,
}

/// Sums over the shares of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promised {
    /// Of the caps.
    pub caps_percent: u32,
    /// Of the slices.
    pub slices: u32,
    /// Slices of a card.
    pub max_inst: u32,
}

/// Limit on a container's time on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Not at all.
    Free,
    /// To a window of so many parts of a period.
    Window(u64),
    /// To what the windows of others leave.
    Remainder,
    /// By time slices of that weight.
    Weight(u32),
    /// By time slices or turns, by that weight.
    Turns(u32),
    /// It is skipped.
    Absent,
}

impl Hold {
    /// Weight of a container that may take turns.
    pub(crate) fn turns_weight(self) -> Option<u32> {
        match self {
            Self::Turns(weight) => Some(weight),
            Self::Free | Self::Window(_) | Self::Remainder | Self::Weight(_) | Self::Absent => None,
        }
    }
}

/// A container on a card, among those that share it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharer<'a> {
    pub(crate) grant: &'a CardGrant,
    /// All grants of the card.
    pub(crate) grants: &'a [(usize, &'a CardGrant)],
    /// Its processes have the driver open, as far as that matters now.
    pub(crate) is_present: bool,
    /// So many of them.
    pub(crate) present: u64,
    /// Sum of what the shares of the card count for.
    pub(crate) all_slices: u64,
    /// It is the only one, and may use the whole card.
    pub(crate) is_alone: bool,
    pub(crate) max_inst: u32,
}

/// The rules of a policy.
pub const fn rules(policy: CardPolicy) -> &'static Rules {
    match policy {
        CardPolicy::Fair => &fair::RULES,
        CardPolicy::Preemptive => &preemptive::RULES,
        CardPolicy::Weighted => &weighted::RULES,
        CardPolicy::Fixed => &fixed::RULES,
        CardPolicy::Soft => &soft::RULES,
        CardPolicy::Native => &native::RULES,
        CardPolicy::Adaptive => &adaptive::RULES,
    }
}

/// Slices of its card that a grant counts for.
pub(crate) fn slices(grant: &CardGrant) -> u32 {
    (rules(grant.policy).slices)(grant.compute)
}

/// Returns whether the holder of a grant is held to its share also when nobody else wants the card.
pub fn is_hard_cap(grant: &CardGrant) -> bool {
    (rules(grant.policy).is_hard_cap)(grant.compute)
}

impl Rules {
    /// Returns whether others never run in the time of a container that asks for no share of it.
    pub fn promises_time(&self) -> bool {
        let promises_none = self.takes_caps || self.room == RoomUnit::Endless;
        self.enforced_by == ComputeEnforcement::Windows && !promises_none
    }

    /// Returns whether a share is of what all caps on its card leave.
    pub fn shares_the_rest(&self, compute: ComputeShare) -> bool {
        self.takes_caps && compute == ComputeShare::Unlimited
    }
}

impl Sharer<'_> {
    /// Slices that its share counts for.
    fn slices(&self) -> u32 {
        slices(self.grant)
    }

    /// A window of one of so many equal parts.
    fn equal_window(parts: u64) -> Hold {
        Hold::Window(ratio_parts(1, parts))
    }
}

/// The weight of a share that has one; everybody else's is one.
fn weight_or_one(compute: ComputeShare) -> u32 {
    compute.weight().map_or(1, |weight| weight.get().into())
}
