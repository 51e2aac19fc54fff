//! Low priority: a container runs only in time that those with high priority on its card do not
//! use.
//!
//! Where shares are windows, nobody else comes in a container's own window, and this never makes it
//! leave.

mod harvest;
mod strict;
mod turns;

pub use self::{
    harvest::{HIGH_SLICE_US, Harvesting, LEAST_SLICE_US, Stays, least_slice_us},
    strict::{FIRST_LOOK_US, LOW_SLICE_US, Yielding, low_on_card, low_slice_us},
    turns::{LowMember, turn},
};

/// Decision for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// True if it may have the card.
    pub may_run: bool,
    /// Time of the next question, at the latest.
    pub look_at_us: u64,
}

impl Verdict {
    /// Returns the verdict of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { may_run: self.may_run && other.may_run, look_at_us: self.look_at_us.min(other.look_at_us) }
    }
}
