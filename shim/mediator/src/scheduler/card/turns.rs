//! Turns with other containers without a cap, as one mediator chooses them for all of the card.

use std::path::Path;

use schedule::{CardStatus, Running, Status, Timeline, round_robin::RoundRobin};

use super::CardScheduler;
use crate::scheduler::{
    clock::Clock,
    residency_view::status,
    share_terms::{OtherContainer, Sharing},
};

/// Interval at which those are looked for that were not seen to schedule.
const SEARCH_US: u64 = 1_000_000;

/// Agreement on turns.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// The grant whose mediator chooses, and the instant of the next search; `None`: the own one.
    leader: Option<String>,
    search_us: u64,
    /// The own turns, as chosen or followed; `None`: nothing was agreed on.
    pub(super) timeline: Option<Timeline>,
}

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
        let is_new = if let Some(leader) = self.leader(now_us) {
            self.residency_view.chooser.rest();
            // One that has just come has not chosen yet.
            leader.round_robin.is_some_and(|plan| self.follow(plan, now_us))
        } else {
            let is_followed = self.agreement.timeline.is_none() && self.follow_anybody(now_us);
            let card = (self.place.state_dir.as_path(), self.gate.uuid());
            self.residency_view.read_log();
            self.residency_view.refresh_neighbours(now_us, card, &self.terms.others);
            let (page, uuid) = (&self.status_page, self.gate.uuid());
            let busy = |now_us, from_us, until_us| page.card_busy_ppm(uuid, now_us, (from_us, until_us));
            self.residency_view.choose_turns(now_us, &self.place.grant_id, &self.terms, &busy) || is_followed
        };
        if is_new || self.agreement.timeline.is_none() {
            let before = self.agreement.timeline.take().unwrap_or_else(Timeline::always);
            let plan = self.residency_view.chooser.plan();
            self.agreement.timeline = Some(Timeline::of_turns(plan, &self.place.grant_id, &before, now_us));
            self.publish_us = 0;
            self.set_course(now_us);
        }
    }

    /// Ends turns: none are chosen, and none followed.
    pub(super) fn end_turns(&mut self, now_us: u64) {
        self.residency_view.chooser.rest();
        self.residency_view.chooser.follow(RoundRobin::default());
        let is_over = std::mem::take(&mut self.agreement).timeline.is_some();
        if is_over {
            self.set_course(now_us);
        }
    }

    /// Turns to publish, for those who follow and for one that comes and is to choose.
    pub(super) fn agreed_turns(&self) -> Option<RoundRobin> {
        self.agreement.timeline.is_some().then(|| self.residency_view.chooser.plan().clone())
    }

    /// State of the first container, in the order of grants, whose mediator schedules; `None`: the
    /// container itself is the first.
    fn leader(&mut self, now_us: u64) -> Option<CardStatus> {
        let of = |grant_id: &String| scheduling(&self.place.state_dir, grant_id, self.gate.uuid(), now_us);
        if now_us < self.agreement.search_us {
            let found = self.agreement.leader.as_ref().map(of);
            match found {
                None => return None,
                Some(Some(card)) => return Some(card),
                Some(None) => {}
            }
        }
        let is_before = |other: &&OtherContainer| self.terms.is_peer(other) && other.grant_id < self.place.grant_id;
        let mut before: Vec<&String> =
            self.terms.others.iter().filter(is_before).map(|other| &other.grant_id).collect();
        before.sort_unstable();
        let found = before.into_iter().find_map(|grant_id| Some((grant_id.clone(), of(grant_id)?)));
        self.agreement.search_us = now_us + SEARCH_US;
        let (leader, card) = found.unzip();
        self.agreement.leader = leader;
        card
    }

    /// Follows what anybody on the card has followed so far. Returns whether that is another plan.
    fn follow_anybody(&mut self, now_us: u64) -> bool {
        let of = |other: &OtherContainer| {
            scheduling(&self.place.state_dir, &other.grant_id, self.gate.uuid(), now_us)?.round_robin
        };
        let peers = self.terms.others.iter().filter(|other| self.terms.is_peer(other));
        let found = peers.filter_map(of).find(RoundRobin::has_turns);
        found.is_some_and(|plan| self.follow(plan, now_us))
    }

    /// Follows a plan of another mediator. Returns whether it is another one than before.
    fn follow(&mut self, plan: RoundRobin, now_us: u64) -> bool {
        let is_new = plan.is_valid(now_us) && plan != *self.residency_view.chooser.plan();
        if is_new {
            self.residency_view.chooser.follow(plan);
        }
        is_new
    }
}

/// State of a container on a card, if its mediator schedules it there.
fn scheduling(state_dir: &Path, grant_id: &str, uuid: &str, now_us: u64) -> Option<CardStatus> {
    let has_stalled = |status: &Status| status.late_by(now_us).is_some_and(|(late, interval)| late > 2 * interval);
    let status = status(state_dir, grant_id).filter(|status| !has_stalled(status))?;
    let card = status.cards.into_iter().find(|card| card.uuid == uuid)?;
    (card.channels > 0 && card.running != Running::Degraded).then_some(card)
}
