//! Choice between time slices and turns, and of how long turns are.

use super::{
    RoundRobin, RoundRobinMember,
    contention::{Contention, Interval, Use},
};
use crate::Switch;

/// Part of the time, in hundredths, that turns may cost; where nobody waits between short pieces
/// of work, the smaller one.
const TURNS_COST_PERCENT: u64 = 3;
const LONG_TURNS_COST_PERCENT: u64 = 1;
/// Cost of a turn beyond what the log shows: kernels that were interrupted, cold caches
/// (docs/driver-facts.md).
const RAMP_US: u64 = 120;
/// Cost of a turn in the log, where nothing was seen yet.
const EDGE_US: u64 = 150;
const LEAST_QUANTUM_US: u64 = 10_000;
const MOST_QUANTUM_US: u64 = 50_000;
/// Longest round, and the least turn for its sake.
const MOST_ROUND_US: u64 = 400_000;
const LEAST_CROWDED_QUANTUM_US: u64 = 5_000;
/// Longest turn, as a multiple of the one of the least weight.
const MOST_QUANTA: u64 = 8;
/// Mean stay on the engine from which on a process does not wait between short pieces of work, and
/// below which it does again.
const LONG_STAY_US: u64 = 1_500;
const STILL_LONG_STAY_US: u64 = 1_000;
/// A container works that comes once in this time, or uses that part of it, in hundredths.
const WORKS_EACH_US: u64 = 20_000;
const WORKS_PERCENT: u64 = 5;
/// Part of the time, in hundredths, for which one may be alone where the others lack some of it.
const MOST_ALONE_PERCENT: u64 = 10;
/// Part of what is due to a container, in hundredths, below which it lacks time: for turns to
/// begin, and for them to go on.
const LACKS_PERCENT: u64 = 80;
const STILL_LACKS_PERCENT: u64 = 90;
/// Factor, in hundredths, by which turns have to be worse than slices to end.
const STAYS_PERCENT: u64 = 150;
/// Time until turns that did not pay are tried again with the same containers: at first, and the
/// longest.
const LEAST_PATIENCE_US: u64 = 1_000_000;
const MOST_PATIENCE_US: u64 = 32_000_000;
/// Time from a plan to its beginning, by which all mediators have read it.
const AHEAD_US: u64 = 250_000;
/// Age from which on the log is complete.
const LOG_DELAY_US: u64 = 2_000;

/// A container of the card that may take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    pub grant_id: &'a str,
    pub weight: u32,
    /// The process by which the log names it; 0: not known.
    pub process: u32,
}

/// Chooses for one card. Pure: it is given the time.
#[derive(Debug, Clone, Default)]
pub struct Chooser {
    plan: RoundRobin,
    contention: Contention,
    is_looking: bool,
    /// Mean of what the log shows of a turn's cost.
    edge_us: Option<u64>,
    /// Nobody waits between short pieces of work.
    are_long: bool,
    /// Processes for which turns did not pay; time until they are tried again, and its end.
    unpaid: Vec<u32>,
    patience_us: u64,
    unpaid_until_us: u64,
}

impl Chooser {
    /// The plan as chosen, or followed, last.
    pub fn plan(&self) -> &RoundRobin {
        &self.plan
    }

    /// Follows a plan, its own or of another one who chooses.
    pub fn follow(&mut self, plan: RoundRobin) {
        self.plan = plan;
    }

    /// Stops looking: another one chooses, or nobody has to.
    pub fn rest(&mut self) {
        self.is_looking = false;
    }

    /// Adds a switch.
    pub fn add(&mut self, switch: &Switch) {
        if self.is_looking {
            self.contention.add(switch, &self.plan);
        }
    }

    /// Judges what was seen since the last time, and returns the plan if it is another one.
    /// `candidates`: always in the same order.
    pub fn choose(&mut self, now_us: u64, candidates: &[Candidate<'_>]) -> Option<&RoundRobin> {
        let until_us = now_us.saturating_sub(LOG_DELAY_US);
        if !std::mem::replace(&mut self.is_looking, true) {
            self.contention.restart(until_us);
        }
        let before = self.plan.clone();
        for interval in self.contention.take(until_us, &self.plan) {
            // What was seen under another plan says nothing.
            if interval.from_us >= self.plan.from_us
                && self.plan == before
                && let Some(plan) = self.judge(now_us, &interval, candidates)
            {
                self.plan = plan;
            }
        }
        (self.plan != before).then_some(&self.plan)
    }

    fn judge(&mut self, now_us: u64, seen: &Interval, candidates: &[Candidate<'_>]) -> Option<RoundRobin> {
        let slices = || RoundRobin { from_us: now_us, members: Vec::new() };
        let workers: Vec<Worker<'_>> = workers(seen, candidates).collect();
        let are_members = || {
            let members = self.plan.members.iter().map(|member| member.grant_id.as_str());
            members.eq(workers.iter().map(|worker| worker.candidate.grant_id))
        };
        if !self.plan.has_turns() {
            let is_tried = now_us < self.unpaid_until_us && processes(&workers).eq(self.unpaid.iter().copied());
            return (!is_tried && is_worth(seen, &workers, false)).then(|| self.turns(now_us, &workers));
        }
        if seen.is_probe {
            if !are_members() {
                return Some(slices());
            }
            if !is_worth(seen, &workers, true) {
                self.wait_longer(now_us, processes(&workers).collect());
                return Some(slices());
            }
            let better = self.turns(now_us, &workers);
            let (now_us, then_us) = (self.plan.round_us(), better.round_us());
            return (now_us.abs_diff(then_us) > now_us / 4).then_some(better);
        }
        self.learn_edges(seen);
        let is_member =
            |worker: &Worker<'_>| self.plan.members.iter().any(|one| one.grant_id == worker.candidate.grant_id);
        let has_come = |member: &RoundRobinMember| {
            let candidate = candidates.iter().find(|candidate| candidate.grant_id == member.grant_id);
            candidate.is_some_and(|candidate| seen.uses.contains_key(&candidate.process))
        };
        // The rest of a cycle may have no turn of some.
        let have_come = || seen.length_us() < 2 * self.plan.round_us() || self.plan.members.iter().all(has_come);
        let is_as_planned = workers.iter().all(is_member) && have_come();
        (!is_as_planned).then(slices)
    }

    fn wait_longer(&mut self, now_us: u64, processes: Vec<u32>) {
        let before_us = if self.unpaid == processes { self.patience_us } else { 0 };
        self.patience_us = (before_us * 2).clamp(LEAST_PATIENCE_US, MOST_PATIENCE_US);
        (self.unpaid, self.unpaid_until_us) = (processes, now_us + self.patience_us);
    }

    /// Learns the cost of a turn between the leaving of one container and the coming of the next.
    fn learn_edges(&mut self, seen: &Interval) {
        let turns = seen.uses.values().map(|of| of.visits).sum::<u64>();
        if let Some(edge_us) = seen.lost_us.checked_div(turns) {
            self.edge_us = Some(self.edge_us.map_or(edge_us, |before| (before * 7 + edge_us) / 8));
        }
    }

    fn turns(&mut self, now_us: u64, workers: &[Worker<'_>]) -> RoundRobin {
        let least = workers.iter().map(|worker| worker.candidate.weight.max(1)).min().unwrap_or(1);
        let quanta =
            |worker: &Worker<'_>| u64::from((worker.candidate.weight + least / 2) / least).clamp(1, MOST_QUANTA);
        let all = workers.iter().map(quanta).sum::<u64>().max(1);
        let long_us = if self.are_long { STILL_LONG_STAY_US } else { LONG_STAY_US };
        self.are_long = workers.iter().all(|worker| worker.seen.used_us >= long_us * worker.seen.visits);
        let cost_percent = if self.are_long { LONG_TURNS_COST_PERCENT } else { TURNS_COST_PERCENT };
        let wanted_us = (RAMP_US + self.edge_us.unwrap_or(EDGE_US)) * 100 / cost_percent;
        let most_us = (MOST_ROUND_US / all).max(LEAST_CROWDED_QUANTUM_US);
        let quantum_us = wanted_us.next_multiple_of(1_000).clamp(LEAST_QUANTUM_US, MOST_QUANTUM_US).min(most_us);
        let member = |worker: &Worker<'_>| RoundRobinMember {
            grant_id: worker.candidate.grant_id.to_owned(),
            quantum_us: quantum_us * quanta(worker),
        };
        RoundRobin { from_us: now_us + AHEAD_US, members: workers.iter().map(member).collect() }
    }
}

/// A candidate that works.
#[derive(Debug)]
struct Worker<'a> {
    candidate: Candidate<'a>,
    seen: Use,
}

fn workers<'a>(seen: &Interval, candidates: &[Candidate<'a>]) -> impl Iterator<Item = Worker<'a>> {
    candidates.iter().filter_map(|candidate| {
        let of = *seen.uses.get(&candidate.process)?;
        let works =
            of.visits * WORKS_EACH_US >= seen.length_us() || of.used_us * 100 >= seen.length_us() * WORKS_PERCENT;
        works.then_some(Worker { candidate: *candidate, seen: of })
    })
}

fn processes(workers: &[Worker<'_>]) -> impl Iterator<Item = u32> {
    workers.iter().map(|worker| worker.candidate.process)
}

/// Returns whether turns waste less than the time slices that were seen, or whether somebody lacks
/// time by slices. `are_on`: turns were chosen before.
fn is_worth(seen: &Interval, workers: &[Worker<'_>], are_on: bool) -> bool {
    if workers.len() < 2 {
        return false;
    }
    let (lost_percent, lacks_percent) =
        if are_on { (STAYS_PERCENT, STILL_LACKS_PERCENT) } else { (100, LACKS_PERCENT) };
    // Where one is alone for half of the time, the other one would not use half of its turns.
    let turns_waste_us = seen.length_us() * TURNS_COST_PERCENT / 100 + seen.alone_us / 2;
    if seen.lost_us * lost_percent / 100 > turns_waste_us {
        return true;
    }
    let weights = workers.iter().map(|worker| u64::from(worker.candidate.weight)).sum::<u64>().max(1);
    let used_us = workers.iter().map(|worker| worker.seen.used_us).sum::<u64>();
    let lacks = |worker: &Worker<'_>| {
        let due_us = used_us * u64::from(worker.candidate.weight) / weights;
        worker.seen.used_us * 100 < due_us * lacks_percent
    };
    seen.alone_us * 100 <= seen.length_us() * MOST_ALONE_PERCENT && workers.iter().any(lacks)
}

#[cfg(test)]
mod tests;
