//! Residency of the container and its neighbours on a card, and what follows from it: time slices,
//! and whether others want the card.

use std::{fmt, path::Path};

use nvidia_glue::inject::status_file;
use runtime_config::request::Priority;
use schedule::{
    CardStatus, Presence, Residency, Running, Status, StatusFile, Switch, SwitchLog, SwitchLogError,
    priority::{
        HIGH_SLICE_US, Harvesting, LowMember, Verdict, Yielding, least_slice_us, low_on_card, low_slice_us, turn,
    },
    round_robin::chooser::{Busy, Candidate, Chooser},
    soft::{Groups, SoftMember, Steering},
};

use super::{
    absence::{Absence, absences},
    share_terms::{OtherContainer, ShareTerms},
};

/// Interval at which the mediators of the neighbours are looked up.
const REFRESH_US: u64 = 1_000_000;
/// Time after which a group that has not run does not count in the division of slices.
const WORKING_US: u64 = 1_000_000;
/// That time for a container of low priority, which may be off the card for longer.
const LOW_WORKING_US: u64 = 10_000_000;
/// Time without a switch after which it is unknown whether an undisturbed container has work.
const SIGN_US: u64 = 1_000_000;
/// Length of the shortest turn of low containers among each other, in periods.
const TURN_PERIODS: u64 = 2;
/// Time within which a container with work comes back.
const AWAY_US: u64 = 50_000;
/// Time before the end of a closing call at which work has stopped.
const BEFORE_US: u64 = 150;
/// The longest time from the end of a closing call to its effect.
const AFTER_US: u64 = 300;
/// The longest time from the end of an opening call to its effect: a neighbour that has the card
/// keeps it for its slice.
const AFTER_OPENING_US: u64 = 2_200;

/// Opens the log of a card's switches.
pub(super) type OpenLog = Box<dyn FnOnce() -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> + Send>;

pub(super) struct ResidencyView {
    /// Opens the log when it is first needed.
    open: Option<OpenLog>,
    log: Option<Box<dyn SwitchLog>>,
    /// The process by which the log names the container.
    own: u32,
    residency: Residency,
    /// Switches were logged. Before that, whatever is on the card has come earlier.
    has_switches: bool,
    switches: Vec<Switch>,
    /// Those since [`ResidencyView::channels_opened`].
    window: Vec<Switch>,
    /// The mediators of [`ShareTerms::others`], in their order; 0: not known.
    others: Vec<u32>,
    /// The card cannot take one of them off.
    is_any_degraded: bool,
    refresh_us: u64,
    /// The mediators of [`ShareTerms::apart`], and the instant until which that is known.
    apart: (Vec<u32>, u64),
    /// Time in which each group has had its turn on the card, if they take turns.
    rotation_us: u64,
    steering: Steering,
    yielding: Yielding,
    harvesting: Harvesting,
    pub(super) chooser: Chooser,
}

impl fmt::Debug for ResidencyView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ResidencyView").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Instants at which the last two edges took effect, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EdgeEffects {
    pub(super) opened_us: Option<u64>,
    pub(super) closed_us: Option<u64>,
    /// True if the container was on the card in between: it had work. `None`: not known.
    pub(super) ran: Option<bool>,
}

impl ResidencyView {
    pub(super) fn new(own: u32, open: OpenLog) -> Self {
        Self {
            open: Some(open),
            log: None,
            own,
            residency: Residency::default(),
            has_switches: false,
            switches: Vec::new(),
            window: Vec::new(),
            others: Vec::new(),
            is_any_degraded: false,
            refresh_us: 0,
            apart: (Vec::new(), 0),
            rotation_us: 0,
            steering: Steering::default(),
            yielding: Yielding::default(),
            harvesting: Harvesting::default(),
            chooser: Chooser::default(),
        }
    }

    /// Marks the neighbours to be looked up again, as other terms hold.
    pub(super) fn terms_changed(&mut self) {
        self.refresh_us = 0;
        self.apart.1 = 0;
    }

    /// Reads the log. Returns whether there is one.
    pub(super) fn read_log(&mut self) -> bool {
        if let Some(open) = self.open.take() {
            match open() {
                Ok(log) => self.log = log,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        "cannot read the driver's log of context switches: time slices follow weights without correction, and low priority is only a short slice"
                    );
                }
            }
        }
        let Some(log) = &mut self.log else { return false };
        self.switches.clear();
        // Records that cannot be read now may be later; lost ones spoil a turn or two.
        let _ = log.take(&mut self.switches);
        self.has_switches |= !self.switches.is_empty();
        for switch in &self.switches {
            self.residency.add(switch);
            self.chooser.add(switch);
        }
        self.window.extend_from_slice(&self.switches);
        // Only the switches of one window matter.
        let surplus = self.window.len().saturating_sub(MOST_KEPT);
        self.window.drain(..surplus);
        true
    }

    /// Begins a window: the channels have been put on the card.
    pub(super) fn channels_opened(&mut self) {
        self.window.clear();
    }

    /// Returns the instants at which a closing, and the opening before it, took effect. Each has
    /// the begin and end of its call.
    pub(super) fn edge_effects(&mut self, opening: (u64, u64), closing: (u64, u64)) -> EdgeEffects {
        if !self.read_log() {
            return EdgeEffects { opened_us: None, closed_us: None, ran: None };
        }
        let is_own = |switch: &&Switch| switch.process == self.own;
        let at = |presence, (began_us, ended_us): (u64, u64), after_us| {
            let is_it = move |switch: &&Switch| {
                let at_us = switch.at_ns / 1_000;
                switch.presence == presence && at_us >= began_us && at_us <= ended_us + after_us
            };
            self.window.iter().filter(is_own).filter(is_it).map(|switch| switch.at_ns / 1_000)
        };
        // A switch is logged if anything ran.
        let untraced = closing.1.saturating_sub(BEFORE_US).max(closing.0);
        EdgeEffects {
            opened_us: at(Presence::On, opening, AFTER_OPENING_US).next(),
            closed_us: Some(at(Presence::Off, closing, AFTER_US).next_back().unwrap_or(untraced)),
            ran: Some(self.window.iter().filter(is_own).any(|switch| switch.presence == Presence::On)),
        }
    }

    /// Returns the times within a window for which others had the card though the container's
    /// channels were on it, and it had work: it came back.
    pub(super) fn absences(&self, from_us: u64, until_us: u64) -> Vec<Absence> {
        absences(&self.window, self.own, (from_us, until_us))
    }

    /// Returns whether a process is the mediator of a container that has other windows.
    pub(super) fn is_apart(&mut self, process: u32, now_us: u64, state_dir: &Path, apart: &[String]) -> bool {
        if now_us >= self.apart.1 {
            let mediator = |grant_id: &String| Some(status(state_dir, grant_id)?.process);
            self.apart = (apart.iter().filter_map(mediator).collect(), now_us + REFRESH_US);
        }
        self.apart.0.contains(&process)
    }

    /// Returns the slice of each of the container's groups, beside those others with which it
    /// shares by weight; `None`: as set before.
    ///
    /// `closed_us`: the time, in all, that it was off the card, and all others with it.
    pub(super) fn slice_us(
        &mut self,
        now_us: u64,
        terms: &ShareTerms,
        is_peer: impl Fn(&OtherContainer) -> bool,
        groups: usize,
        closed_us: u64,
    ) -> Option<u64> {
        let now_ns = now_us.saturating_mul(1_000);
        let member = |weight, process| SoftMember {
            weight,
            used_us: if process == 0 { 0 } else { self.residency.used_us(process, now_ns) },
            idle_us: if process == 0 { 0 } else { self.residency.idle_us(process, now_ns) },
        };
        let others = terms.others.iter().zip(&self.others).filter(|(other, _)| is_peer(other));
        let others: Vec<SoftMember> = others.map(|(other, process)| member(other.weight, *process)).collect();
        let own = member(terms.weight, self.own);
        let groups = self.groups(now_us, terms, groups);
        let slice_us = self.steering.slice_us(now_us, own, groups, &others, closed_us)?;
        Some(if terms.gives_way() { slice_us.min(low_slice_us(groups)) } else { slice_us })
    }

    /// Returns the slice of a container that gives way to others, and has no weight.
    pub(super) fn low_slice_us(&self, now_us: u64, terms: &ShareTerms, groups: usize) -> u64 {
        low_slice_us(self.groups(now_us, terms, groups))
    }

    /// Returns the least slice, of a container that has what others leave.
    pub(super) fn least_slice_us(&self, now_us: u64, terms: &ShareTerms, groups: usize) -> u64 {
        least_slice_us(self.groups(now_us, terms, groups))
    }

    /// Returns whether at most one of the container's groups works, as far as is known.
    pub(super) fn has_one_group(&self, now_us: u64, terms: &ShareTerms, groups: usize) -> bool {
        self.groups(now_us, terms, groups).working.is_none_or(|working| working < 2)
    }

    /// Returns the number of its groups that are to be on the card until the next turn, which comes
    /// in `turn_us`; `None`: all.
    pub(super) fn on_card(&mut self, now_us: u64, terms: &ShareTerms, groups: usize, turn_us: u64) -> Option<usize> {
        let known = self.groups(now_us, terms, groups);
        let on_card = if terms.gives_way() { low_on_card(known) } else { self.steering.on_card(known) };
        let turns = on_card.map_or(0, |on_card| groups.div_ceil(on_card.max(1)));
        self.rotation_us = turn_us.saturating_mul(u64::try_from(turns).unwrap_or(u64::MAX));
        on_card
    }

    fn groups(&self, now_us: u64, terms: &ShareTerms, all: usize) -> Groups {
        let recently_us = if terms.gives_way() { LOW_WORKING_US } else { WORKING_US };
        let since_us = now_us.saturating_sub(recently_us.max(self.rotation_us));
        let seen = || self.residency.contexts(self.own, since_us.saturating_mul(1_000)).min(all);
        Groups { all, working: self.log.is_some().then(seen) }
    }

    /// Decides whether a container of low priority may have the card, and when to ask again.
    pub(super) fn verdict(&mut self, now_us: u64, terms: &ShareTerms) -> Verdict {
        let before = terms.others.iter().zip(&self.others).filter(|(other, _)| other.priority == Priority::High);
        let came_ns = before.filter_map(|(_, process)| self.residency.last_came_ns(*process)).max();
        self.yielding.verdict(now_us, terms.period_us, came_ns.map(|ns| ns / 1_000))
    }

    /// Decides whether a container of low priority stays on the card, in the least slices, and when
    /// to ask again. `own`: its grant, and the time, in all, for which its channels were to be
    /// there. `card`: the directory that has the status files of neighbours, and its UUID.
    pub(super) fn harvest(
        &mut self,
        now_us: u64,
        terms: &ShareTerms,
        (grant_id, open_us): (&str, u64),
        card: (&Path, &str),
    ) -> Verdict {
        let now_ns = now_us.saturating_mul(1_000);
        let seen_us = |process| Some(self.residency.last_seen_ns(process, now_ns)? / 1_000);
        let others = terms.others.iter().zip(&self.others).filter(|(other, _)| other.priority == Priority::Low);
        let others = others.map(|(other, process)| (other.grant_id.as_str(), other.weight, *process));
        let mut lows: Vec<(&str, LowMember)> = std::iter::once((grant_id, terms.weight, self.own))
            .chain(others)
            .map(|(grant_id, weight, process)| (grant_id, LowMember { weight, seen_us: seen_us(process) }))
            .collect();
        // Each of them finds the same order.
        lows.sort_unstable_by_key(|(grant_id, _)| *grant_id);
        let own = lows.iter().position(|(one, _)| *one == grant_id).unwrap_or(0);
        let lows: Vec<LowMember> = lows.into_iter().map(|(_, low)| low).collect();
        let turn = turn(now_us, TURN_PERIODS * terms.period_us, &lows, own);
        if !turn.may_run {
            return turn;
        }
        let stays = self.residency.stays(self.own, now_ns, open_us);
        let are_quiet = self.harvesting.waits().then(|| highs_are_quiet(now_us, terms, card)).flatten();
        self.harvesting.verdict(now_us, stays, are_quiet).and(turn)
    }

    /// Chooses turns for all that may take some with the container. Returns whether the plan is
    /// another one than before.
    pub(super) fn choose_turns(&mut self, now_us: u64, own: &str, terms: &ShareTerms, busy: Busy<'_>) -> bool {
        let others = terms.others.iter().zip(&self.others).filter(|(other, _)| terms.is_peer(other));
        let candidate = |(grant_id, weight, process)| Candidate { grant_id, weight, process };
        let others = others.map(|(other, process)| (other.grant_id.as_str(), other.weight, *process));
        let own = std::iter::once((own, terms.weight, self.own));
        let mut candidates: Vec<Candidate<'_>> = own.chain(others).map(candidate).collect();
        candidates.sort_unstable_by_key(|candidate| candidate.grant_id);
        if self.is_any_degraded {
            // It is never off the card, so the others would pay for its turns.
            candidates.clear();
        }
        self.chooser.choose(now_us, &candidates, busy).is_some()
    }

    /// Looks up the mediators of the others at intervals, and forgets those that are gone.
    pub(super) fn refresh_neighbours(
        &mut self,
        now_us: u64,
        (state_dir, uuid): (&Path, &str),
        others: &[OtherContainer],
    ) {
        if now_us < self.refresh_us && self.others.len() == others.len() {
            return;
        }
        self.refresh_us = now_us + REFRESH_US;
        let statuses: Vec<Option<Status>> = others.iter().map(|other| status(state_dir, &other.grant_id)).collect();
        self.others = statuses.iter().map(|status| status.as_ref().map_or(0, |status| status.process)).collect();
        let is_degraded = |card: &CardStatus| card.uuid == uuid && card.running == Running::Degraded;
        self.is_any_degraded = statuses.iter().flatten().flat_map(|status| &status.cards).any(is_degraded);
        self.residency.forget(now_us.saturating_mul(1_000));
    }

    /// Returns whether the container has the engine now, as far as was logged.
    pub(super) fn is_on(&self) -> bool {
        !self.has_switches || self.residency.is_on(self.own)
    }

    /// Returns whether there is a log of switches.
    pub(super) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns the time on the card, as far as that is known; `None`: unknown.
    pub(super) fn used_us(&self, now_us: u64) -> Option<u64> {
        self.has_switches.then(|| self.residency.used_us(self.own, now_us.saturating_mul(1_000)))
    }

    /// Returns the time that the card lost in switches to the container; `None`: unknown.
    pub(super) fn switching_us(&self) -> Option<u64> {
        self.has_switches.then(|| self.residency.switching_us(self.own))
    }

    /// Returns whether a container whose channels are always on the card has work; `None`: unknown.
    pub(super) fn is_busy(&self, now_us: u64, gives_way: bool) -> Option<bool> {
        if !self.has_switches {
            return None;
        }
        let ago_us = |at_ns: Option<u64>| at_ns.map_or(u64::MAX, |at_ns| now_us.saturating_sub(at_ns / 1_000));
        if self.residency.is_on(self.own) {
            // A container that is not displaced stays, with work or without.
            return (ago_us(self.residency.last_came_ns(self.own)) < SIGN_US).then_some(true);
        }
        let away_us = if gives_way { HIGH_SLICE_US + AWAY_US } else { AWAY_US };
        Some(ago_us(self.residency.last_went_ns(self.own)) < away_us)
    }
}

/// The most switches of the container that are kept of one window.
const MOST_KEPT: usize = 512;

/// Reads the status of a neighbour's mediator; none if it has just come or gone.
pub(super) fn status(state_dir: &Path, grant_id: &str) -> Option<Status> {
    StatusFile::read(&status_file(state_dir, grant_id).ok()?).ok()
}

/// Returns whether those of high priority submit nothing to the card, as their mediators say;
/// `None`: one of them does not.
fn highs_are_quiet(now_us: u64, terms: &ShareTerms, (state_dir, uuid): (&Path, &str)) -> Option<bool> {
    let of = |other: &OtherContainer| {
        // Nobody who has stalled.
        let status = status(state_dir, &other.grant_id).filter(|status| status.late_by(now_us).is_none())?;
        status.cards.iter().find(|card| card.uuid == uuid)?.is_quiet
    };
    let highs = terms.others.iter().filter(|other| other.priority == Priority::High);
    highs.map(of).try_fold(true, |are_quiet, is_quiet| Some(are_quiet && is_quiet?))
}
