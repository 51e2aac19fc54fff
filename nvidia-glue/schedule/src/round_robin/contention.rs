//! Losses of containers to each other on a card, by its log of switches.

use std::collections::{BTreeMap, BTreeSet};

use super::{PROBE_US, RoundRobin};
use crate::{Presence, Switch, residency::MOST_SWITCH_NS};

/// Length of an interval, at least. Of turns, whole rounds.
const INTERVAL_US: u64 = 100_000;
const INTERVAL_ROUNDS: u64 = 3;
/// The longest that a context keeps the engine while another one waits: CUDA's slice, and a switch.
const SLICE_US: u64 = 2_200;
/// Intervals that are over for longer are of no use.
const MOST_BEHIND_US: u64 = 1_000_000;

/// Use of a card in a time in which it was shared in one way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interval {
    pub from_us: u64,
    pub until_us: u64,
    /// The plan had turns, and this is one of its probes.
    pub is_probe: bool,
    /// Time between the leaving of one process and the coming of another, by both.
    pub lost_us: BTreeMap<(u32, u32), u64>,
    /// Time for which a process stayed so long that no other one can have waited.
    pub alone_us: u64,
    /// By process.
    pub uses: BTreeMap<u32, Use>,
}

/// Use of the engine by a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    pub used_us: u64,
    /// Number of times that it came after another one, or was there at the beginning.
    pub visits: u64,
}

impl Interval {
    pub fn length_us(&self) -> u64 {
        self.until_us.saturating_sub(self.from_us)
    }
}

/// Divides the log into intervals.
#[derive(Debug, Clone, Default)]
pub struct Contention {
    current: Interval,
    /// The process that came last, since when, and when it left.
    visit: Option<Visit>,
    done: Vec<Interval>,
}

#[derive(Debug, Clone)]
struct Visit {
    process: u32,
    /// Its context that came last, and all that were there.
    context: u32,
    contexts: BTreeSet<u32>,
    since_us: u64,
    on_since_us: Option<u64>,
    left_us: u64,
}

impl Contention {
    /// Begins anew: nothing was looked at until now.
    pub fn restart(&mut self, now_us: u64) {
        let current = Interval { from_us: now_us, ..Interval::default() };
        *self = Self { current, ..Self::default() };
    }

    /// Adds a switch, under the plan that is in force.
    pub fn add(&mut self, switch: &Switch, plan: &RoundRobin) {
        let at_us = switch.at_ns / 1_000;
        self.pass(at_us, plan);
        match switch.presence {
            Presence::On => self.comes(switch.process, switch.context, at_us),
            Presence::Off => self.leaves(switch.process, at_us),
        }
    }

    /// Takes the intervals that are over.
    pub fn take(&mut self, now_us: u64, plan: &RoundRobin) -> Vec<Interval> {
        self.pass(now_us, plan);
        std::mem::take(&mut self.done)
    }

    fn comes(&mut self, process: u32, context: u32, at_us: u64) {
        if let Some(staying) = self.visit.as_ref().filter(|visit| visit.on_since_us.is_some()) {
            // Its leaving is missing.
            self.leaves(staying.process, at_us);
        }
        if let Some(visit) = self.visit.as_mut().filter(|visit| visit.process == process) {
            (visit.on_since_us, visit.context) = (Some(at_us), context);
            visit.contexts.insert(context);
            return;
        }
        if let Some(before) = self.visit.take() {
            let gap_us = at_us.saturating_sub(before.left_us);
            if gap_us <= MOST_SWITCH_NS / 1_000 {
                *self.current.lost_us.entry((before.process, process)).or_default() += gap_us;
            }
            self.end_visit(&before, before.left_us);
        }
        let contexts = BTreeSet::from([context]);
        self.visit =
            Some(Visit { process, context, contexts, since_us: at_us, on_since_us: Some(at_us), left_us: at_us });
        self.current.uses.entry(process).or_default().visits += 1;
    }

    fn leaves(&mut self, process: u32, at_us: u64) {
        let Some(visit) = self.visit.as_mut().filter(|visit| visit.process == process) else { return };
        visit.left_us = at_us;
        if let Some(since_us) = visit.on_since_us.take() {
            self.current.uses.entry(process).or_default().used_us += at_us.saturating_sub(since_us);
        }
    }

    /// Each context of a process has its slice before another process that waits comes.
    fn end_visit(&mut self, visit: &Visit, at_us: u64) {
        let contexts = u64::try_from(visit.contexts.len()).unwrap_or(u64::MAX);
        let stayed_us = at_us.saturating_sub(visit.since_us);
        self.current.alone_us += stayed_us.saturating_sub(contexts.saturating_mul(SLICE_US));
    }

    /// Ends the intervals that are over at an instant.
    fn pass(&mut self, now_us: u64, plan: &RoundRobin) {
        loop {
            let (end_us, is_probe) = end_of_interval(self.current.from_us, plan);
            if end_us > now_us {
                return;
            }
            if let Some(mut visit) = self.visit.take() {
                let until_us = if visit.on_since_us.is_some() { end_us } else { visit.left_us };
                self.end_visit(&visit, until_us);
                if let Some(since_us) = &mut visit.on_since_us {
                    self.current.uses.entry(visit.process).or_default().used_us += end_us.saturating_sub(*since_us);
                    *since_us = end_us;
                }
                let contexts = BTreeSet::from([visit.context]);
                self.visit = Some(Visit { since_us: until_us, contexts, ..visit });
            }
            let mut next = Interval { from_us: end_us, ..Interval::default() };
            if let Some(visit) = self.visit.as_ref().filter(|visit| visit.on_since_us.is_some()) {
                next.uses.entry(visit.process).or_default().visits = 1;
            }
            let ended = std::mem::replace(&mut self.current, next);
            // Who did not look for long does not know what was.
            if now_us.saturating_sub(end_us) < MOST_BEHIND_US {
                self.done.push(Interval { until_us: end_us, is_probe, ..ended });
            } else {
                self.current.from_us = now_us;
            }
        }
    }
}

/// End of the interval that begins at an instant, and whether it is a probe.
fn end_of_interval(from_us: u64, plan: &RoundRobin) -> (u64, bool) {
    if !plan.has_turns() {
        return (from_us + INTERVAL_US, false);
    }
    if from_us < plan.from_us {
        return (plan.from_us.min(from_us + INTERVAL_US), false);
    }
    let cycle_us = plan.cycle_us();
    let begin_us = from_us / cycle_us * cycle_us;
    if from_us < begin_us + PROBE_US {
        // The rest of one that began before the plan says too little.
        return (begin_us + PROBE_US, from_us == begin_us);
    }
    let rounds_us = plan.round_us() * INTERVAL_ROUNDS.max(INTERVAL_US / plan.round_us());
    ((from_us + rounds_us).min(begin_us + cycle_us), false)
}
