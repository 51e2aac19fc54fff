//! Engine time of a card: its division among channels, and the time that each got until now.
//!
//! An engine runs one channel group at a time: it goes round those that have work, and stays with
//! each for its time slice, or until its work is done. A group that nobody displaces stays on the
//! engine without work, too, until its channels are taken off. That is gone through from one event
//! to the next, in whole nanoseconds; within a group the channels with work share evenly. Switches
//! cost nothing here; a group that was taken off and put back loses what that costs before its work
//! goes on.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

use base::ProcessId;

/// `NVA06C`'s default slice.
pub(super) const DEFAULT_SLICE_US: u64 = 1024;
/// Longer slices are as good as endless.
const LONGEST_SLICE_US: u64 = 1 << 40;
/// `NV2080_ENGINE_TYPE_GRAPHICS`: the one whose switches are noted.
const COMPUTE: u32 = 1;
/// Least time between two samples of the load, and the number of samples that are kept; as on an
/// H200.
const SAMPLE_NS: u64 = 200_000_000;
pub(super) const SAMPLES: usize = 72;
/// Rounds that are gone through one by one at the end of many: those before are given at once.
const ROUNDS: u64 = 32;

/// A channel on a card, of whatever process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Channel {
    /// The process that simulates the driver for it; when it is gone, so is the channel.
    pub(super) owner: ProcessId,
    pub(super) client: u32,
    pub(super) handle: u32,
    /// Its place among the card's doorbells, no other channel's of the card.
    pub(super) token: u32,
    /// Among the groups of its owner.
    pub(super) group: u64,
    /// `NV2080_ENGINE_TYPE_*`.
    pub(super) engine: u32,
    /// Its group's.
    pub(super) slice_us: u64,
    /// `GPFIFO_SCHEDULE` has put it on the run list.
    pub(super) scheduled: bool,
    /// Number of times that `DISABLE_CHANNELS` has taken it off, less those that it has put it
    /// back.
    pub(super) disabled: u32,
    /// Engine time of all work that was submitted.
    pub(super) submitted_ns: u64,
    /// Engine time that it got.
    pub(super) executed_ns: u64,
}

/// A channel group among all of the card's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) pid: i32,
    pub(super) start_time: u64,
    pub(super) group: u64,
}

impl Channel {
    pub(super) const fn key(&self) -> GroupKey {
        let ProcessId { pid, start_time } = self.owner;
        GroupKey { pid, start_time, group: self.group }
    }

    const fn left_ns(&self) -> u64 {
        self.submitted_ns.saturating_sub(self.executed_ns)
    }

    const fn is_on_run_list(&self) -> bool {
        self.scheduled && self.disabled == 0
    }

    const fn runs(&self) -> bool {
        self.is_on_run_list() && self.left_ns() > 0
    }
}

/// Work that a program has submitted to a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Submitted {
    /// Engine time of all its work until now; the largest number means work without end.
    pub(super) work_ns: u64,
    /// Instant at which the last of it came.
    pub(super) at_ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Engine {
    /// Time for which it worked, in all.
    pub(super) busy_ns: u64,
    /// The group that it runs, or ran last.
    pub(super) last: Option<GroupKey>,
    /// True if that group is still there.
    pub(super) resident: bool,
    /// Rest of its slice.
    pub(super) slice_left_ns: u64,
}

/// A group came onto the compute engine or left it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Switch {
    /// Its number among all switches of the card.
    pub(super) number: u64,
    pub(super) at_ns: u64,
    pub(super) group: GroupKey,
    pub(super) on: bool,
}

/// Load of the compute engine from one sample to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Sample {
    pub(in super::super) at_ns: u64,
    /// Hundredths of a percent.
    pub(in super::super) busy: u32,
    /// Process that ran last, which is all that the driver says about whose work it was.
    pub(in super::super) pid: i32,
}

/// All channels of a card, and the instant until which they have been given their time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) at_ns: u64,
    /// Number of switches.
    pub(super) switches: u64,
    pub(super) engines: BTreeMap<u32, Engine>,
    /// Groups that were put back on the card, and what they are still to lose of their time for
    /// that, in nanoseconds.
    pub(super) cold: BTreeMap<GroupKey, u64>,
    pub(super) channels: Vec<Channel>,
    /// The oldest first.
    pub(super) samples: VecDeque<Sample>,
    /// Instant of the last one, and the time that the engine had worked until then.
    pub(super) sampled: (u64, u64),
}

/// Groups that have work: slice, and places of the channels.
type Runnable = BTreeMap<GroupKey, (u64, Vec<usize>)>;

impl Channels {
    /// Gives all engines' time until `now_ns` to those that had work, and takes new work as it came
    /// meanwhile. Returns the switches of context.
    pub(super) fn advance(&mut self, now_ns: u64, submitted: impl Fn(u32) -> Submitted) -> Vec<Switch> {
        let now_ns = now_ns.max(self.at_ns);
        let mut arrivals: Vec<(u64, usize, u64)> = Vec::new();
        for (index, channel) in self.channels.iter().enumerate() {
            let Submitted { work_ns, at_ns } = submitted(channel.token);
            if work_ns != channel.submitted_ns {
                arrivals.push((at_ns.clamp(self.at_ns, now_ns), index, work_ns));
            }
        }
        arrivals.sort_unstable();
        let mut log = Vec::new();
        for (at_ns, index, work_ns) in arrivals {
            self.run_until(at_ns, &mut log);
            if let Some(channel) = self.channels.get_mut(index) {
                channel.submitted_ns = work_ns;
            }
        }
        self.run_until(now_ns, &mut log);
        self.sample();
        log
    }

    /// Samples the load of the compute engine, if a sample is due.
    fn sample(&mut self) {
        let engine = self.engines.get(&COMPUTE).copied().unwrap_or_default();
        let (then_ns, before_ns) = std::mem::replace(&mut self.sampled, (self.at_ns, engine.busy_ns));
        let passed_ns = self.at_ns.saturating_sub(then_ns);
        if then_ns == 0 {
            return;
        }
        if passed_ns < SAMPLE_NS {
            self.sampled = (then_ns, before_ns);
            return;
        }
        let worked_ns = engine.busy_ns.saturating_sub(before_ns).min(passed_ns);
        let busy = u32::try_from(u128::from(worked_ns) * 10_000 / u128::from(passed_ns)).unwrap_or(0);
        let pid = engine.last.map_or(0, |group| group.pid);
        self.samples.push_back(Sample { at_ns: self.at_ns, busy, pid });
        self.samples.drain(..self.samples.len().saturating_sub(SAMPLES));
    }

    /// Groups that have no channel on the run list any more leave their engine.
    pub(super) fn leave(&mut self) -> Vec<Switch> {
        let (mut log, mut engines) = (Vec::new(), std::mem::take(&mut self.engines));
        for (number, engine) in engines.iter_mut().filter(|(_, engine)| engine.resident) {
            let on_run_list =
                |group| self.channels.iter().any(|channel| channel.is_on_run_list() && channel.key() == group);
            if let Some(group) = engine.last.filter(|group| !on_run_list(*group)) {
                engine.resident = false;
                self.note(*number, (group, false), self.at_ns, &mut log);
            }
        }
        self.engines = engines;
        log
    }

    /// Runs the channels until an instant; no work comes meanwhile, but some may end.
    fn run_until(&mut self, until_ns: u64, log: &mut Vec<Switch>) {
        let mut numbers: Vec<u32> = self.channels.iter().map(|channel| channel.engine).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            let mut engine = self.engines.get(&number).copied().unwrap_or_default();
            let mut at_ns = self.at_ns;
            let mut runnable = self.runnable(number);
            while at_ns < until_ns {
                let Some((group, slice_ns, members)) = next(&runnable, &engine) else { break };
                if engine.last != Some(group) || !engine.resident {
                    if let Some(before) = engine.last.filter(|_| engine.resident) {
                        self.note(number, (before, false), at_ns, log);
                    }
                    self.note(number, (group, true), at_ns, log);
                    engine = Engine { last: Some(group), resident: true, slice_left_ns: slice_ns, ..engine };
                }
                let skipped = self.skip_rounds(&runnable, &engine, slice_ns, until_ns - at_ns);
                let step = self.step(members, engine.slice_left_ns, runnable.len() > 1).min(until_ns - at_ns - skipped);
                let given = self.run(members, step) + skipped;
                engine.busy_ns = engine.busy_ns.saturating_add(given);
                at_ns += step + skipped;
                engine.slice_left_ns = engine.slice_left_ns.saturating_sub(step);
                let is_done = |index: &usize| self.channels.get(*index).is_none_or(|channel| !channel.runs());
                if members.iter().any(is_done) {
                    runnable = self.runnable(number);
                }
            }
            self.engines.insert(number, engine);
        }
        self.at_ns = self.at_ns.max(until_ns);
    }

    fn runnable(&self, engine: u32) -> Runnable {
        let mut groups = Runnable::new();
        let all = self.channels.iter().enumerate();
        for (index, channel) in all.filter(|(_, channel)| channel.engine == engine && channel.runs()) {
            let slice_ns = channel.slice_us.clamp(1, LONGEST_SLICE_US) * 1000;
            groups.entry(channel.key()).or_insert((slice_ns, Vec::new())).1.push(index);
        }
        groups
    }

    /// Returns the time for which the group goes on before something changes: a channel's work
    /// ends, or its slice does, if `others` wait.
    fn step(&self, members: &[usize], slice_left_ns: u64, others: bool) -> u64 {
        let left = members.iter().filter_map(|index| self.channels.get(*index)).map(Channel::left_ns).min();
        let end = left.unwrap_or(1).saturating_mul(members.len() as u64);
        if others { end.min(slice_left_ns.max(1)) } else { end }
    }

    /// Gives `step` nanoseconds to the channels of a group, less its loss; returns the nanoseconds
    /// that were used.
    fn run(&mut self, members: &[usize], step: u64) -> u64 {
        let step = step - self.lose(members, step);
        let (mut given, count) = (0, members.len() as u128);
        for (place, index) in (0_u128..).zip(members) {
            let Some(channel) = self.channels.get_mut(*index) else { continue };
            let got = part(step, place, place + 1, count).min(channel.left_ns());
            channel.executed_ns = channel.executed_ns.saturating_add(got);
            given += got;
        }
        given
    }

    /// Returns the part of `step` nanoseconds that a group loses because it was put back on the
    /// card.
    fn lose(&mut self, members: &[usize], step: u64) -> u64 {
        if self.cold.is_empty() {
            return 0;
        }
        let Some(group) = members.first().and_then(|index| self.channels.get(*index)).map(Channel::key) else {
            return 0;
        };
        let Some(cold_ns) = self.cold.get_mut(&group) else { return 0 };
        let lost = step.min(*cold_ns);
        *cold_ns -= lost;
        if *cold_ns == 0 {
            self.cold.remove(&group);
        }
        lost
    }

    /// Gives the time of all rounds but the last at once if nothing changes in them. Their switches
    /// get numbers, and are lost.
    fn skip_rounds(&mut self, runnable: &Runnable, engine: &Engine, slice_ns: u64, ahead_ns: u64) -> u64 {
        let is_cold = runnable.keys().any(|group| self.cold.contains_key(group));
        if runnable.len() < 2 || engine.slice_left_ns != slice_ns || is_cold {
            return 0;
        }
        let round = runnable.values().fold(0_u64, |sum, (slice, _)| sum.saturating_add(*slice));
        let of_group = |(slice, members): &(u64, Vec<usize>)| {
            let left = members.iter().filter_map(|index| self.channels.get(*index)).map(Channel::left_ns).min();
            left.unwrap_or(0) / slice
        };
        let rounds = runnable.values().map(of_group).min().unwrap_or(0).min(ahead_ns / round.max(1));
        if rounds <= 2 * ROUNDS {
            return 0;
        }
        let rounds = rounds - ROUNDS;
        for (slice, members) in runnable.values() {
            self.run(members, rounds * slice);
        }
        self.switches += rounds * 2 * runnable.len() as u64;
        rounds * round
    }

    fn note(&mut self, engine: u32, (group, on): (GroupKey, bool), at_ns: u64, log: &mut Vec<Switch>) {
        if engine == COMPUTE {
            log.push(Switch { number: self.switches, at_ns, group, on });
            self.switches += 1;
        }
    }
}

/// Returns the group that an engine runs now, of those that have work: the one that it runs, while
/// its slice lasts or nobody else waits, then the next one round.
fn next<'a>(runnable: &'a Runnable, engine: &Engine) -> Option<(GroupKey, u64, &'a [usize])> {
    let goes_on = engine.last.filter(|_| engine.resident && engine.slice_left_ns > 0 || runnable.len() == 1);
    let here = goes_on.and_then(|group| runnable.get_key_value(&group));
    let after = || engine.last.and_then(|last| runnable.range((Bound::Excluded(last), Bound::Unbounded)).next());
    let (group, (slice_ns, members)) = here.or_else(after).or_else(|| runnable.first_key_value())?;
    Some((*group, *slice_ns, members))
}

/// Returns the part between two marks of `whole` nanoseconds when the last mark is `all`: parts
/// that follow one another sum up exactly.
fn part(whole: u64, from: u128, to: u128, all: u128) -> u64 {
    let mark = |at: u128| u64::try_from(u128::from(whole) * at / all.max(1)).unwrap_or(whole);
    mark(to) - mark(from)
}

#[cfg(test)]
mod tests;
