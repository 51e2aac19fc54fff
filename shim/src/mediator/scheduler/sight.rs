//! What a card's thread sees of who has the card, and what follows from it: time slices, and whether others want the card.

use std::{fmt, path::Path};

use nvidia_glue::{
    inject::status_file,
    schedule::{
        Presence, Residency, StatusFile, Switch, SwitchLog, SwitchLogError,
        priority::{Verdict, Yielding, low_on_card, low_slice_us},
        soft::{Groups, Member, Steering},
    },
};
use runtime_config::request::Priority;

use super::terms::{Other, Terms};

/// How often it is asked which mediators the neighbours have.
const ASKING_US: u64 = 1_000_000;
/// A group that has not run for that long does not count in the division of slices.
const WORKING_US: u64 = 1_000_000;
/// The same for a container of low priority, which may be off the card for longer.
const LOW_WORKING_US: u64 = 10_000_000;
/// Without a sign of it for that long, nobody can tell whether an undisturbed container works.
const SIGN_US: u64 = 1_000_000;
/// Who has work comes back within that time.
const AWAY_US: u64 = 50_000;
/// So long before a closing call ends, work has stopped.
const BEFORE_US: u64 = 150;
/// How much later than its call a closing is taken for its effect.
const AFTER_US: u64 = 300;
/// And an opening: beside a neighbour that has the card, it takes that one's slice.
const AFTER_OPENING_US: u64 = 2_200;

/// Opens the log of a card's switches.
pub(super) type OpenLog = Box<dyn FnOnce() -> Result<Option<Box<dyn SwitchLog>>, SwitchLogError> + Send>;

pub(super) struct Sight {
    /// Until it is needed.
    open: Option<OpenLog>,
    log: Option<Box<dyn SwitchLog>>,
    /// How the log names the container.
    own: u32,
    residency: Residency,
    /// Something was logged. Before that, whoever is on the card has come earlier.
    has_seen: bool,
    taken: Vec<Switch>,
    /// The container's own since [`Sight::opened`].
    own_switches: Vec<Switch>,
    /// The mediators of [`Terms::others`], in their order; 0: not known.
    others: Vec<u32>,
    ask_us: u64,
    /// For how long it takes that each group has had its turn on the card, where they take turns.
    rotation_us: u64,
    steering: Steering,
    yielding: Yielding,
}

impl fmt::Debug for Sight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sight").field("log", &self.log).finish_non_exhaustive()
    }
}

/// When the last two edges took effect, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) opened_us: Option<u64>,
    pub(super) closed_us: Option<u64>,
    /// Whether the container was on the card in between at all: it had work. `None`: nobody knows.
    pub(super) ran: Option<bool>,
}

impl Sight {
    pub(super) fn new(own: u32, open: OpenLog) -> Self {
        Self {
            open: Some(open),
            log: None,
            own,
            residency: Residency::default(),
            has_seen: false,
            taken: Vec::new(),
            own_switches: Vec::new(),
            others: Vec::new(),
            ask_us: 0,
            rotation_us: 0,
            steering: Steering::default(),
            yielding: Yielding::default(),
        }
    }

    /// Other terms hold: others are compared with.
    pub(super) fn follow(&mut self) {
        self.ask_us = 0;
    }

    /// Takes what has been logged. Whether there is a log.
    pub(super) fn take(&mut self) -> bool {
        if let Some(open) = self.open.take() {
            match open() {
                Ok(log) => self.log = log,
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        "the driver's log of switches cannot be had: slices follow weights unsteered, and low priority is a short slice only"
                    );
                }
            }
        }
        let Some(log) = &mut self.log else { return false };
        self.taken.clear();
        // What cannot be taken now may be later; what is lost spoils a turn or two.
        let _ = log.take(&mut self.taken);
        self.has_seen |= !self.taken.is_empty();
        for switch in &self.taken {
            self.residency.add(switch);
        }
        let own = self.own;
        self.own_switches.extend(self.taken.iter().filter(|switch| switch.process == own));
        // Those of one window are of interest.
        let surplus = self.own_switches.len().saturating_sub(MOST_KEPT);
        self.own_switches.drain(..surplus);
        true
    }

    /// The channels have been put on the card.
    pub(super) fn opened(&mut self) {
        self.own_switches.clear();
    }

    /// After a closing, whose call began and ended at two instants: when it, and the opening before it, took effect.
    pub(super) fn effects(&mut self, opening: (u64, u64), closing: (u64, u64)) -> Effects {
        if !self.take() {
            return Effects { opened_us: None, closed_us: None, ran: None };
        }
        let at = |presence, (began_us, ended_us): (u64, u64), after_us| {
            let is_it = move |switch: &&Switch| {
                let at_us = switch.at_ns / 1_000;
                switch.presence == presence && at_us >= began_us && at_us <= ended_us + after_us
            };
            self.own_switches.iter().filter(is_it).map(|switch| switch.at_ns / 1_000)
        };
        // There is a trace if anything ran.
        let untraced = closing.1.saturating_sub(BEFORE_US).max(closing.0);
        Effects {
            opened_us: at(Presence::On, opening, AFTER_OPENING_US).next(),
            closed_us: Some(at(Presence::Off, closing, AFTER_US).next_back().unwrap_or(untraced)),
            ran: Some(self.own_switches.iter().any(|switch| switch.presence == Presence::On)),
        }
    }

    /// The slice of each of the container's groups; `None`: as it was set before. `closed_us`: for how long, in all, it was off the card, and
    /// all others with it.
    pub(super) fn slice_us(&mut self, now_us: u64, terms: &Terms, groups: usize, closed_us: u64) -> Option<u64> {
        let now_ns = now_us.saturating_mul(1_000);
        let member = |weight, process| Member {
            weight,
            used_us: if process == 0 { 0 } else { self.residency.used_us(process, now_ns) },
            idle_us: if process == 0 { 0 } else { self.residency.idle_us(process, now_ns) },
        };
        let others = terms.others.iter().zip(&self.others).map(|(other, process)| member(other.weight, *process));
        let others: Vec<Member> = others.collect();
        let own = member(terms.weight, self.own);
        let groups = self.groups(now_us, terms, groups);
        let slice_us = self.steering.slice_us(now_us, own, groups, &others, closed_us)?;
        Some(if terms.gives_way() { slice_us.min(low_slice_us(groups)) } else { slice_us })
    }

    /// The same of one that goes behind others, and has no weight.
    pub(super) fn low_slice_us(&self, now_us: u64, terms: &Terms, groups: usize) -> u64 {
        low_slice_us(self.groups(now_us, terms, groups))
    }

    /// How many of its groups are to be on the card until the next turn, which comes in `turn_us`; `None`: all.
    pub(super) fn on_card(&mut self, now_us: u64, terms: &Terms, groups: usize, turn_us: u64) -> Option<usize> {
        let known = self.groups(now_us, terms, groups);
        let on_card = if terms.gives_way() { low_on_card(known) } else { self.steering.on_card(known) };
        let turns = on_card.map_or(0, |on_card| groups.div_ceil(on_card.max(1)));
        self.rotation_us = turn_us.saturating_mul(u64::try_from(turns).unwrap_or(u64::MAX));
        on_card
    }

    fn groups(&self, now_us: u64, terms: &Terms, all: usize) -> Groups {
        let recently_us = if terms.gives_way() { LOW_WORKING_US } else { WORKING_US };
        let since_us = now_us.saturating_sub(recently_us.max(self.rotation_us));
        let seen = || self.residency.contexts(self.own, since_us.saturating_mul(1_000)).min(all);
        Groups { all, working: self.log.is_some().then(seen) }
    }

    /// Whether a container of low priority may have the card, and when to ask again.
    pub(super) fn verdict(&mut self, now_us: u64, terms: &Terms) -> Verdict {
        let before = terms.others.iter().zip(&self.others).filter(|(other, _)| other.priority == Priority::High);
        let came_ns = before.filter_map(|(_, process)| self.residency.last_came_ns(*process)).max();
        self.yielding.verdict(now_us, terms.period_us, came_ns.map(|ns| ns / 1_000))
    }

    /// Asks now and then which mediators the others have, and forgets who is gone.
    pub(super) fn ask(&mut self, now_us: u64, state_dir: &Path, others: &[Other]) {
        if now_us < self.ask_us && self.others.len() == others.len() {
            return;
        }
        self.ask_us = now_us + ASKING_US;
        self.others = others.iter().map(|other| mediator(state_dir, &other.grant_id).unwrap_or(0)).collect();
        self.residency.forget(now_us.saturating_mul(1_000));
    }

    /// Whether the card's switches are logged.
    pub(super) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Time on the card, as far as that is known. `None`: who is there nobody knows.
    pub(super) fn used_us(&self, now_us: u64) -> Option<u64> {
        self.has_seen.then(|| self.residency.used_us(self.own, now_us.saturating_mul(1_000)))
    }

    /// Whether a container whose channels are always on the card has work; `None`: cannot be told.
    pub(super) fn is_busy(&self, now_us: u64) -> Option<bool> {
        if !self.has_seen {
            return None;
        }
        let ago_us = |at_ns: Option<u64>| at_ns.map_or(u64::MAX, |at_ns| now_us.saturating_sub(at_ns / 1_000));
        if self.residency.is_on(self.own) {
            // Who is not displaced stays, with work or without.
            return (ago_us(self.residency.last_came_ns(self.own)) < SIGN_US).then_some(true);
        }
        Some(ago_us(self.residency.last_went_ns(self.own)) < AWAY_US)
    }
}

/// More of a container's own switches in one window are not looked at.
const MOST_KEPT: usize = 512;

/// A neighbour's mediator. One that has just come or gone tells nothing.
fn mediator(state_dir: &Path, grant_id: &str) -> Option<u32> {
    Some(StatusFile::read(&status_file(state_dir, grant_id).ok()?).ok()?.process)
}
