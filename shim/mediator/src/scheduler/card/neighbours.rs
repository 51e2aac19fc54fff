//! The card among neighbours: time slices, priority, and turns of its own groups.

use runtime_config::{config::PriorityMode, request::Priority};
use schedule::priority::HIGH_SLICE_US;

use super::CardScheduler;
use crate::scheduler::{
    clock::Clock,
    share_terms::{OtherContainer, Sharing},
};

/// Interval at which the neighbours are checked, where they matter.
const CHECK_INTERVAL_US: u64 = 100_000;
/// Refusals in a row of the slices of [`PriorityMode::Harvest`] after which priority is strict, and
/// the time after which they are tried again.
const SLICE_ATTEMPTS: u32 = 5;
const SLICE_RETRY_US: u64 = 60_000_000;

impl<C: Clock> CardScheduler<C> {
    /// Checks the neighbours on the card, where they decide about slices or about running. Returns
    /// the instant of the next check.
    pub(super) fn check_neighbours(&mut self, now_us: u64) -> u64 {
        let gives_way = self.terms.gives_way();
        let is_wanted = gives_way
            || self.has_weighted_slices()
            || self.terms.goes_first()
            || self.edge_failures.is_degraded()
            || self.wanted_slice_us != self.slice_us
            || self.takes_turns
            || self.may_agree();
        if now_us < self.check_us {
            return if is_wanted { self.check_us } else { u64::MAX };
        }
        self.check_us = now_us + CHECK_INTERVAL_US;
        let mut is_yielding = false;
        if gives_way || self.has_weighted_slices() || self.terms.goes_first() {
            self.residency_view.read_log();
            let card = (self.place.state_dir.as_path(), self.gate.uuid());
            self.residency_view.refresh_neighbours(now_us, card, &self.terms.others);
        }
        if gives_way {
            let verdict = if self.harvests() {
                self.usage_sums.add_elapsed(now_us);
                let own = (self.place.grant_id.as_str(), self.usage_sums.open_us);
                let card = (self.place.state_dir.as_path(), self.gate.uuid());
                self.residency_view.harvest(now_us, &self.terms, own, card)
            } else {
                self.residency_view.verdict(now_us, &self.terms)
            };
            is_yielding = !verdict.may_run;
            self.check_us = self.check_us.min(verdict.look_at_us);
        }
        self.agree_on_turns(now_us);
        if is_yielding != self.is_yielding {
            self.is_yielding = is_yielding;
            self.set_course(now_us);
        }
        if self.edge_failures.retry_us().is_some_and(|at| at <= now_us) {
            self.retry_hard_caps();
        }
        self.set_slices(now_us);
        self.rotate(now_us);
        if is_wanted { self.check_us } else { u64::MAX }
    }

    /// Returns the way in which it leaves the card to others; `None`: it does not.
    pub(super) fn gives_way(&self) -> Option<PriorityMode> {
        let mode = || if self.harvests() { PriorityMode::Harvest } else { PriorityMode::Strict };
        self.terms.gives_way().then(mode)
    }

    /// Returns whether those of low priority stay on the card in the least slices. A card that does
    /// not tell who has it, or does not take the slices, has the strict form.
    pub(super) fn harvests(&self) -> bool {
        self.place.priority == PriorityMode::Harvest
            && self.residency_view.has_log()
            && self.clock.now_us() >= self.strict_until_us
    }

    /// Returns whether its share is one of time slices: by weight, or of windows that others have,
    /// too.
    fn has_weighted_slices(&self) -> bool {
        matches!(self.terms.sharing, Sharing::Weights | Sharing::Windows) && !self.terms.others.is_empty()
    }

    pub(super) fn set_slices(&mut self, now_us: u64) {
        self.wanted_slice_us = self.slices_for(now_us);
        if self.wanted_slice_us == self.slice_us {
            return;
        }
        match self.gate.set_slice(self.wanted_slice_us) {
            Ok(()) => (self.slice_us, self.refused_slices) = (self.wanted_slice_us, 0),
            // The next check sets it again.
            Err(_) => {
                self.edge_failures.failures += 1;
                if self.gives_way() == Some(PriorityMode::Harvest) {
                    self.refused_slices += 1;
                }
                if self.refused_slices == SLICE_ATTEMPTS {
                    self.strict_until_us = now_us + SLICE_RETRY_US;
                    self.refused_slices = 0;
                }
            }
        }
    }

    /// Returns the slice of each of its groups; `None`: what the program asked for.
    fn slices_for(&mut self, now_us: u64) -> Option<u64> {
        let (groups, harvests) = (self.gate.groups(), self.harvests());
        if self.terms.gives_way() && harvests {
            return Some(self.residency_view.least_slice_us(now_us, &self.terms, groups));
        }
        // Others that take turns with it by slices would wait for it.
        let is_only = || self.terms.highs() == 1 && self.residency_view.has_one_group(now_us, &self.terms, groups);
        if self.terms.goes_first() && harvests && is_only() {
            return Some(HIGH_SLICE_US);
        }
        if !self.has_weighted_slices() {
            let low_us = || self.residency_view.low_slice_us(now_us, &self.terms, groups);
            return self.terms.gives_way().then(low_us);
        }
        self.usage_sums.add_elapsed(now_us);
        // All containers that share windows are off the card at the same time.
        let closed_us = if self.terms.sharing == Sharing::Windows { self.usage_sums.throttled_us } else { 0 };
        // Those that harvest take nothing from the others.
        let is_peer = |other: &OtherContainer| !harvests || other.priority == Priority::High;
        self.residency_view.slice_us(now_us, &self.terms, is_peer, groups, closed_us).or(self.wanted_slice_us)
    }

    /// Rotates its groups, where more of them work than its share has slices for.
    fn rotate(&mut self, now_us: u64) {
        let has_share = (self.has_weighted_slices() || self.terms.gives_way()) && !self.edge_failures.is_degraded();
        if has_share && now_us < self.turn_us {
            return;
        }
        self.turn_us = now_us + CHECK_INTERVAL_US;
        let on_card = has_share
            .then(|| self.residency_view.on_card(now_us, &self.terms, self.gate.groups(), CHECK_INTERVAL_US))
            .flatten();
        if on_card.is_none() && !self.takes_turns {
            return;
        }
        match self.gate.rotate(on_card) {
            Ok(_) => self.takes_turns = on_card.is_some(),
            // The next turn names them again.
            Err(_) => self.edge_failures.failures += 1,
        }
    }
}
