//! Turns with other containers without a cap, as one mediator chooses them for all of the card.

use std::path::Path;

use schedule::{Running, Status, Timeline, round_robin::RoundRobin};

use super::CardScheduler;
use crate::scheduler::{
    clock::Clock,
    residency_view::status,
    share_terms::{OtherContainer, Sharing},
};

impl<C: Clock> CardScheduler<C> {
    /// Returns whether it may take turns with others.
    pub(super) fn may_agree(&self) -> bool {
        self.terms.sharing == Sharing::Turns
            && !self.terms.gives_way()
            // What comes then may leave no room for turns, and everybody knows of it.
            && self.terms.until_us.is_none()
            && !self.edge_failures.is_degraded()
            && self.terms.others.iter().any(|other| self.terms.is_peer(other))
    }

    /// Chooses the turns of the card, or follows the choice of another one.
    pub(super) fn agree_on_turns(&mut self, now_us: u64) {
        if !self.may_agree() {
            return self.end_turns(now_us);
        }
        let others_choice = self.others_choice(now_us);
        self.leads = others_choice.is_none();
        let is_new = if let Some(plan) = others_choice {
            self.residency_view.chooser.rest();
            let is_new = plan != *self.residency_view.chooser.plan();
            self.residency_view.chooser.follow(plan);
            is_new
        } else {
            self.residency_view.read_log();
            self.residency_view.refresh_neighbours(now_us, &self.place.state_dir, &self.terms.others);
            self.residency_view.choose_turns(now_us, &self.place.grant_id, &self.terms)
        };
        if is_new {
            let before = self.agreed.take().unwrap_or_else(Timeline::always);
            let plan = self.residency_view.chooser.plan();
            self.agreed = Some(Timeline::of_turns(plan, &self.place.grant_id, &before, now_us));
            self.publish_us = 0;
            self.set_course(now_us);
        }
    }

    /// Ends turns: none are chosen, and none followed.
    pub(super) fn end_turns(&mut self, now_us: u64) {
        self.leads = false;
        self.residency_view.chooser.rest();
        self.residency_view.chooser.follow(RoundRobin::default());
        if self.agreed.take().is_some() {
            self.set_course(now_us);
        }
    }

    /// Choice of the first container, in the order of grants, whose mediator schedules; `None`: the
    /// container itself is the first.
    fn others_choice(&self, now_us: u64) -> Option<RoundRobin> {
        let is_before = |other: &&OtherContainer| self.terms.is_peer(other) && other.grant_id < self.place.grant_id;
        let mut before: Vec<&str> =
            self.terms.others.iter().filter(is_before).map(|other| other.grant_id.as_str()).collect();
        before.sort_unstable();
        before.into_iter().find_map(|grant_id| choice(&self.place.state_dir, grant_id, self.gate.uuid(), now_us))
    }
}

/// Turns that a mediator chooses for a card; `None`: it does not schedule there.
fn choice(state_dir: &Path, grant_id: &str, uuid: &str, now_us: u64) -> Option<RoundRobin> {
    let has_stalled = |status: &Status| status.late_by(now_us).is_some_and(|(late, interval)| late > 2 * interval);
    let status = status(state_dir, grant_id).filter(|status| !has_stalled(status))?;
    let card = status.cards.into_iter().find(|card| card.uuid == uuid)?;
    let schedules = card.channels > 0 && card.running != Running::Degraded;
    schedules.then(|| card.round_robin.unwrap_or_default())
}
