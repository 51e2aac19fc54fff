//! Choice between time slices and turns, and of how long turns are.

use super::{
    CYCLE_US, RoundRobin, RoundRobinMember,
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
/// Time until turns that did not pay are tried again with the same containers: at first, how much
/// longer each time, and the longest.
const LEAST_PATIENCE_US: u64 = 2_000_000;
const MORE_PATIENCE: u64 = 4;
const MOST_PATIENCE_US: u64 = 60_000_000;
/// Time for which slices have to be worse before there are turns.
const SEEN_WORSE_US: u64 = 190_000;
/// Time from the beginning of turns until the card's samples show what they do, and from then on.
const COMPARED_US: u64 = 1_300_000;
/// Work of all by slices, each one's as a part of what it does alone, in hundredths, from which on
/// turns, which give 100 less their cost, are not worth it.
const SLICES_DO_PERCENT: u64 = 110;
const MILLION: u64 = 1_000_000;
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

/// Work of one by slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Done {
    process: u32,
    used_ppm: u64,
    /// It always had work for whole slices.
    stays_long: bool,
}

/// Part of a time in which the card was busy, in millionths, by samples of 200 ms; `None`: not
/// known. `(now, from, until)`
pub type Busy<'a> = &'a dyn Fn(u64, u64, u64) -> Option<u32>;

/// Chooses for one card. Pure: it is given the time.
#[derive(Debug, Clone, Default)]
pub struct Chooser {
    plan: RoundRobin,
    contention: Contention,
    is_looking: bool,
    /// Instant since when slices were seen to be worse than turns.
    worse_since_us: Option<u64>,
    /// Work by slices before there were turns, and instant at which turns were compared with it.
    by_slices: Vec<Done>,
    /// The time before turns in which there were slices, and how busy the card was in it.
    slices_us: (u64, u64),
    slices_busy_ppm: Option<u64>,
    compared_us: u64,
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
    pub fn choose(&mut self, now_us: u64, candidates: &[Candidate<'_>], busy: Busy<'_>) -> Option<&RoundRobin> {
        let until_us = now_us.saturating_sub(LOG_DELAY_US);
        if !std::mem::replace(&mut self.is_looking, true) {
            self.contention.restart(until_us);
            self.worse_since_us = None;
        }
        let before = self.plan.clone();
        for interval in self.contention.take(until_us, &self.plan) {
            // What was seen under another plan says nothing.
            if interval.from_us >= self.plan.from_us
                && self.plan == before
                && let Some(plan) = self.judge(now_us, &interval, candidates, busy)
            {
                self.plan = plan;
            }
        }
        (self.plan != before).then_some(&self.plan)
    }

    fn judge(
        &mut self,
        now_us: u64,
        seen: &Interval,
        candidates: &[Candidate<'_>],
        busy: Busy<'_>,
    ) -> Option<RoundRobin> {
        let workers: Vec<Worker<'_>> = workers(seen, candidates).collect();
        if !self.plan.has_turns() {
            return self.judge_slices(now_us, seen, &workers);
        }
        if seen.is_probe {
            return self.judge_probe(now_us, seen, &workers);
        }
        // The rest of a cycle may have no turn of some.
        if seen.length_us() >= 2 * self.plan.round_us() {
            self.learn_edges(seen);
            let has_come = |member: &RoundRobinMember| {
                let candidate = candidates.iter().find(|candidate| candidate.grant_id == member.grant_id);
                candidate.is_some_and(|candidate| seen.uses.contains_key(&candidate.process))
            };
            if !self.plan.members.iter().all(has_come) {
                return Some(self.slices(now_us));
            }
        }
        let members: Vec<&str> = self.plan.members.iter().map(|member| member.grant_id.as_str()).collect();
        if workers.iter().any(|worker| !members.contains(&worker.candidate.grant_id)) {
            return Some(self.slices(now_us));
        }
        self.do_less(now_us, busy).then(|| self.unpaid_slices(now_us))
    }

    fn judge_slices(&mut self, now_us: u64, seen: &Interval, workers: &[Worker<'_>]) -> Option<RoundRobin> {
        let is_tried = now_us < self.unpaid_until_us && processes(workers).eq(self.unpaid.iter().copied());
        if is_tried || !is_worth(seen, workers, false) {
            self.worse_since_us = None;
            return None;
        }
        let since_us = *self.worse_since_us.get_or_insert(seen.from_us);
        let is_first = since_us == seen.from_us;
        self.learn_slices(seen, workers, if is_first { 1 } else { 2 });
        if seen.until_us.saturating_sub(since_us) < SEEN_WORSE_US {
            return None;
        }
        self.worse_since_us = None;
        let plan = self.turns(now_us, workers)?;
        (self.slices_us, self.slices_busy_ppm) = ((since_us, plan.from_us), None);
        Some(plan)
    }

    fn judge_probe(&mut self, now_us: u64, seen: &Interval, workers: &[Worker<'_>]) -> Option<RoundRobin> {
        let members = self.plan.members.iter().map(|member| member.grant_id.as_str());
        if !members.eq(workers.iter().map(|worker| worker.candidate.grant_id)) {
            return Some(self.slices(now_us));
        }
        if !is_worth(seen, workers, true) {
            return Some(self.unpaid_slices(now_us));
        }
        self.learn_slices(seen, workers, 4);
        let better = self.turns(now_us, workers)?;
        let (present_us, better_us) = (self.plan.round_us(), better.round_us());
        (present_us.abs_diff(better_us) > present_us / 4).then_some(better)
    }

    /// Ends turns, as others work than before. Those that were of no use for long are not tried
    /// again at once.
    fn slices(&mut self, now_us: u64) -> RoundRobin {
        if now_us.saturating_sub(self.plan.from_us) < CYCLE_US {
            self.wait_longer(now_us);
        }
        RoundRobin { from_us: now_us, members: Vec::new() }
    }

    fn unpaid_slices(&mut self, now_us: u64) -> RoundRobin {
        self.wait_longer(now_us);
        RoundRobin { from_us: now_us, members: Vec::new() }
    }

    /// Adds what was done by slices: one part of `parts` is new.
    fn learn_slices(&mut self, seen: &Interval, workers: &[Worker<'_>], parts: u64) {
        let before = std::mem::take(&mut self.by_slices);
        let done = |worker: &Worker<'_>| {
            let process = worker.candidate.process;
            let used_ppm = worker.seen.used_us * MILLION / seen.length_us().max(1);
            let known = before.iter().find(|done| done.process == process).map_or(used_ppm, |done| done.used_ppm);
            let stays_long = worker.seen.used_us >= LONG_STAY_US * worker.seen.visits;
            Done { process, used_ppm: (known * (parts - 1) + used_ppm) / parts, stays_long }
        };
        self.by_slices = workers.iter().map(done).collect();
    }

    /// Returns whether turns do less than slices did: in its turns, each has the card for itself,
    /// with all breaks that it makes.
    ///
    /// How busy the card is then is the mean of how busy each keeps it alone. One that has work for
    /// whole slices always does; the others are taken to be alike.
    fn do_less(&mut self, now_us: u64, busy: Busy<'_>) -> bool {
        let since_us = self.compared_us.max(self.plan.from_us);
        if now_us.saturating_sub(since_us) < COMPARED_US {
            return false;
        }
        self.compared_us = now_us;
        let Some(busy_ppm) = busy(now_us, since_us, now_us) else { return false };
        if self.slices_busy_ppm.is_none() {
            self.slices_busy_ppm = busy(now_us, self.slices_us.0, self.slices_us.1).map(u64::from);
        }
        let part = |stays_long: bool| self.by_slices.iter().filter(move |done| done.stays_long == stays_long);
        let count = |stays_long| u64::try_from(part(stays_long).count()).unwrap_or(u64::MAX);
        let used_ppm = |stays_long| part(stays_long).map(|done| done.used_ppm).sum::<u64>();
        let (long, short, used_long_ppm) = (count(true), count(false), used_ppm(true));
        let alone_ppm = (u64::from(busy_ppm) * (long + short)).saturating_sub(MILLION * long) / short.max(1);
        // A card that was not busy at all in the turns of those says nothing of them.
        let short_ppm = used_ppm(false) * MILLION / alone_ppm.clamp(MILLION / 100, MILLION);
        // A context stays on the engine without work until it is displaced.
        let used_ppm = (used_ppm(true) + used_ppm(false)).max(1);
        let worked_ppm = self.slices_busy_ppm.unwrap_or(used_ppm).min(used_ppm);
        (used_long_ppm + short_ppm) * worked_ppm / used_ppm > MILLION * SLICES_DO_PERCENT / 100
    }

    fn wait_longer(&mut self, now_us: u64) {
        let processes: Vec<u32> = self.by_slices.iter().map(|done| done.process).collect();
        let before_us = if self.unpaid == processes { self.patience_us } else { 0 };
        self.patience_us = (before_us * MORE_PATIENCE).clamp(LEAST_PATIENCE_US, MOST_PATIENCE_US);
        (self.unpaid, self.unpaid_until_us) = (processes, now_us + self.patience_us);
    }

    /// Learns the cost of a turn between the leaving of one container and the coming of the next.
    fn learn_edges(&mut self, seen: &Interval) {
        let turns = seen.uses.values().map(|of| of.visits).sum::<u64>();
        if let Some(edge_us) = seen.lost_us.values().sum::<u64>().checked_div(turns) {
            self.edge_us = Some(self.edge_us.map_or(edge_us, |before| (before * 7 + edge_us) / 8));
        }
    }

    /// Turns of those that work; `None`: they are too many.
    fn turns(&mut self, now_us: u64, workers: &[Worker<'_>]) -> Option<RoundRobin> {
        let least = workers.iter().map(|worker| worker.candidate.weight.max(1)).min().unwrap_or(1);
        // In hundredths of the shortest turn.
        let quanta = |worker: &Worker<'_>| {
            (u64::from(worker.candidate.weight) * 100 / u64::from(least)).clamp(100, 100 * MOST_QUANTA)
        };
        let all = workers.iter().map(quanta).sum::<u64>().max(1);
        let long_us = if self.are_long { STILL_LONG_STAY_US } else { LONG_STAY_US };
        self.are_long = workers.iter().all(|worker| worker.seen.used_us >= long_us * worker.seen.visits);
        let cost_percent = if self.are_long { LONG_TURNS_COST_PERCENT } else { TURNS_COST_PERCENT };
        let wanted_us = (RAMP_US + self.edge_us.unwrap_or(EDGE_US)) * 100 / cost_percent;
        let most_us = MOST_ROUND_US * 100 / all;
        if most_us < LEAST_CROWDED_QUANTUM_US {
            return None;
        }
        let quantum_us = wanted_us.next_multiple_of(1_000).clamp(LEAST_QUANTUM_US, MOST_QUANTUM_US).min(most_us);
        let member = |worker: &Worker<'_>| RoundRobinMember {
            grant_id: worker.candidate.grant_id.to_owned(),
            quantum_us: quantum_us * quanta(worker) / 100,
        };
        Some(RoundRobin { from_us: now_us + AHEAD_US, members: workers.iter().map(member).collect() })
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
    let works = |process: &u32| processes(workers).any(|one| one == *process);
    let lost = seen.lost_us.iter().filter(|((from, to), _)| works(from) && works(to));
    if lost.map(|(_, us)| us).sum::<u64>() * lost_percent / 100 > turns_waste_us {
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
