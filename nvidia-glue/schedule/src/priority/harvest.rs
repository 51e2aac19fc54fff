//! Priority that harvests: a low container stays on the card in the least time slices, and has what
//! those of high priority leave, down to breaks of a fraction of a millisecond.
//!
//! No driver call is in anybody's way: the card itself takes the low container off as soon as one
//! of high priority has work, which costs that one a switch of contexts; and as those have long
//! slices, nobody takes them off. A container of high priority that works with many short breaks
//! would lose a switch at each of them, and the low one would gain nothing. That is seen in the
//! low container's own stays on the card: many, and none longer than a switch takes. Then it leaves
//! by a call, and is let in to see once in a while.

use super::Verdict;
use crate::soft::Groups;

/// The slice of a low container's group, if one of them works: with it, one of high priority waits
/// no longer than a switch takes, and alone a group is as fast as with any
/// (docs/driver-facts.md).
pub const LEAST_SLICE_US: u64 = 1;
/// That slice where several of its groups work: with shorter ones they would do nothing but
/// displace each other.
const SEVERAL_SLICE_US: u64 = 250;
/// The slice of the only container of high priority beside low ones, if one of its groups works.
/// For each it loses at most two switches.
pub const HIGH_SLICE_US: u64 = 200_000;
/// T: time for which those of high priority work, with breaks that are too short, before it leaves.
const BUSY_US: u64 = 50_000;
/// The same once it was let in to see.
const PROBE_US: u64 = 10_000;
/// Interval of looks. Less than the period of any timetable.
const LOOK_US: u64 = 10_000;
/// Fewer stays cost too little to leave for.
const LEAST_CAME: u64 = 3;
/// Part of the time that is worth staying for.
const WORTH_PART: u64 = 20;
/// Shortest time for which it stays away, and the most times that. It is short, as each request
/// behind another one looks like the beginning of much work.
const AWAY_US: u64 = 10_000;
const MOST_PATIENCE: u64 = 40;

/// The slice of each group of a low container.
pub fn least_slice_us(groups: Groups) -> u64 {
    if groups.working.is_some_and(|working| working > 1) { SEVERAL_SLICE_US } else { LEAST_SLICE_US }
}

/// A container's stays on the card, in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stays {
    /// Number of times that it came.
    pub came: u64,
    /// Time beyond what switches take ([`Residency::stays`](crate::Residency::stays)).
    pub lasting_us: u64,
    /// Time for which its channels were to be on the card.
    pub open_us: u64,
}

/// Decides for one container of low priority on one card. Pure: it is given the time.
#[derive(Debug, Clone, Default)]
pub struct Harvesting {
    state: HarvestState,
    /// Number of times [`AWAY_US`] that it stays away the next time.
    patience: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HarvestState {
    /// Nobody has asked.
    #[default]
    Unknown,
    /// It is on the card, and its stays are compared with those at an instant.
    Stays {
        before: Stays,
        is_probe: bool,
    },
    Waits {
        until_us: u64,
    },
}

impl Harvesting {
    /// Verdict as of now. `are_quiet`: those of high priority have submitted nothing of late;
    /// `None`: nobody tells.
    pub fn verdict(&mut self, now_us: u64, stays: Stays, are_quiet: Option<bool>) -> Verdict {
        let was_waiting = self.waits();
        match self.state {
            HarvestState::Unknown => self.state = HarvestState::Stays { before: stays, is_probe: false },
            HarvestState::Waits { until_us } if are_quiet == Some(true) || now_us >= until_us => {
                self.state = HarvestState::Stays { before: stays, is_probe: true };
            }
            HarvestState::Waits { .. } => (),
            HarvestState::Stays { before, is_probe } => self.judge(now_us, stays, before, is_probe),
        }
        match self.state {
            HarvestState::Waits { until_us } => {
                // Whether somebody tells is asked while it waits.
                let look_us = if are_quiet.is_some() || !was_waiting { now_us + LOOK_US } else { until_us };
                Verdict { may_run: false, look_at_us: look_us.min(until_us) }
            }
            _ => Verdict { may_run: true, look_at_us: now_us + LOOK_US },
        }
    }

    /// Returns whether it is off the card, so that it matters whether the others are quiet.
    pub fn waits(&self) -> bool {
        matches!(self.state, HarvestState::Waits { .. })
    }

    fn judge(&mut self, now_us: u64, stays: Stays, before: Stays, is_probe: bool) {
        let passed_us = stays.open_us.saturating_sub(before.open_us);
        if passed_us < if is_probe { PROBE_US } else { BUSY_US } {
            return;
        }
        let came = stays.came.saturating_sub(before.came);
        let lasting_us = stays.lasting_us.saturating_sub(before.lasting_us);
        let is_worth = lasting_us >= passed_us / WORTH_PART;
        self.state = HarvestState::Stays { before: stays, is_probe: false };
        if is_worth || !is_probe {
            self.patience = 1;
        }
        if !is_worth && came >= LEAST_CAME {
            self.state = HarvestState::Waits { until_us: now_us.saturating_add(self.patience * AWAY_US) };
            self.patience = (self.patience * 2).clamp(1, MOST_PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests;
