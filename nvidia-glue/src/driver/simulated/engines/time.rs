//! How the engines of a card divide their time among channels, and what each channel got until now.
//!
//! An engine runs one channel group at a time: it goes round those that have work, and stays with each for its time slice, or
//! until its work is done. A group that nobody displaces stays on the engine without work, too, until its channels are taken
//! off. That is gone through from one event to the next, in whole nanoseconds; within a group the channels with work share
//! evenly. Switches cost nothing here; a group that was taken off and put back loses what that costs before its work goes on.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

use crate::ledger::Process;

/// `NVA06C`'s default slice.
pub(super) const DEFAULT_SLICE_US: u64 = 1024;
/// Longer slices are as good as endless.
const LONGEST_SLICE_US: u64 = 1 << 40;
/// `NV2080_ENGINE_TYPE_GRAPHICS`: the one whose switches are noted.
const COMPUTE: u32 = 1;
/// What lies between two looks at how busy it was, at least, and how many of them are kept; as on an H200.
const SAMPLE_NS: u64 = 200_000_000;
pub(super) const SAMPLES: usize = 72;
/// More rounds than this at once are not gone through one by one, but for as many at their end.
const ROUNDS: u64 = 32;

/// A channel on a card, of whatever process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Channel {
    /// The process that simulates the driver for it; when it is gone, so is the channel.
    pub(super) owner: Process,
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
    /// How often `DISABLE_CHANNELS` has taken it off, less how often it has put it back.
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
        let Process { pid, start_time } = self.owner;
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

/// What a program has submitted to a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Submitted {
    /// Engine time of all its work until now; the largest number means work without end.
    pub(super) work_ns: u64,
    /// When the last of it came.
    pub(super) at_ns: u64,
}

/// One engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Engine {
    /// Time for which it worked, in all.
    pub(super) busy_ns: u64,
    /// The group that it runs, or ran last.
    pub(super) last: Option<GroupKey>,
    /// Whether that group is still there.
    pub(super) resident: bool,
    /// What that has left of its slice.
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

/// How busy the compute engine was until an instant, since the sample before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Sample {
    pub(in super::super) at_ns: u64,
    /// Hundredths of a percent.
    pub(in super::super) busy: u32,
    /// Who ran last, which is all that the driver says of whose work it was.
    pub(in super::super) pid: i32,
}

/// All channels of a card, and until when they have been given their time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) at_ns: u64,
    /// How many switches there were.
    pub(super) switches: u64,
    pub(super) engines: BTreeMap<u32, Engine>,
    /// Groups that were put back on the card, and what they are still to lose of their time for that, in nanoseconds.
    pub(super) cold: BTreeMap<GroupKey, u64>,
    pub(super) channels: Vec<Channel>,
    /// The oldest first.
    pub(super) samples: VecDeque<Sample>,
    /// When the last one was taken, and for how long the engine had worked until then.
    pub(super) sampled: (u64, u64),
}

/// Groups that have work: slice, and places of the channels.
type Runnable = BTreeMap<GroupKey, (u64, Vec<usize>)>;

impl Channels {
    /// Gives all engines' time until `now_ns` to those that had work, and takes new work as it came meanwhile. Says who came and
    /// went.
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

    /// Notes how busy the compute engine was, if that is due.
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

    /// Nothing comes meanwhile, but work may end.
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

    /// How long the group goes on before something changes: a channel's work ends, or its slice does, if `others` wait.
    fn step(&self, members: &[usize], slice_left_ns: u64, others: bool) -> u64 {
        let left = members.iter().filter_map(|index| self.channels.get(*index)).map(Channel::left_ns).min();
        let end = left.unwrap_or(1).saturating_mul(members.len() as u64);
        if others { end.min(slice_left_ns.max(1)) } else { end }
    }

    /// Gives `step` nanoseconds to the channels of a group, less what it loses; says how many were taken.
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

    /// What of `step` nanoseconds a group loses because it was put back on the card.
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

    /// Where many rounds lie ahead in which nothing changes, gives the time of all but the last at once. Their switches get
    /// numbers, and are lost.
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

/// Which group an engine runs now, of those that have work: the one that it runs, while its slice lasts or nobody else waits,
/// then the next one round.
fn next<'a>(runnable: &'a Runnable, engine: &Engine) -> Option<(GroupKey, u64, &'a [usize])> {
    let goes_on = engine.last.filter(|_| engine.resident && engine.slice_left_ns > 0 || runnable.len() == 1);
    let here = goes_on.and_then(|group| runnable.get_key_value(&group));
    let after = || engine.last.and_then(|last| runnable.range((Bound::Excluded(last), Bound::Unbounded)).next());
    let (group, (slice_ns, members)) = here.or_else(after).or_else(|| runnable.first_key_value())?;
    Some((*group, *slice_ns, members))
}

/// What lies between two marks of `whole` nanoseconds when the last mark is `all`: parts that follow one another sum up exactly.
fn part(whole: u64, from: u128, to: u128, all: u128) -> u64 {
    let mark = |at: u128| u64::try_from(u128::from(whole) * at / all.max(1)).unwrap_or(whole);
    mark(to) - mark(from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENDLESS: u64 = u64::MAX;
    const MS: u64 = 1_000_000;

    fn channel(token: u32, group: u64, slice_us: u64) -> Channel {
        Channel {
            owner: Process { pid: 1, start_time: 1 },
            client: 1,
            handle: token,
            token,
            group,
            engine: 1,
            slice_us,
            scheduled: true,
            disabled: 0,
            submitted_ns: 0,
            executed_ns: 0,
        }
    }

    fn card(channels: Vec<Channel>) -> Channels {
        Channels { channels, ..Channels::default() }
    }

    fn executed(card: &Channels) -> Vec<u64> {
        card.channels.iter().map(|channel| channel.executed_ns).collect()
    }

    fn endless(_: u32) -> Submitted {
        Submitted { work_ns: ENDLESS, at_ns: 0 }
    }

    #[test]
    fn time_goes_by_slices_of_groups_and_within_a_group_by_channels() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 3000), channel(2, 2, 3000)]);
        card.advance(4 * MS, endless);
        assert_eq!(executed(&card), [MS, 3 * MS / 2, 3 * MS / 2]);
        card.channels[0].slice_us = 3000;
        card.advance(10 * MS, endless);
        assert_eq!(executed(&card), [4 * MS, 3 * MS, 3 * MS]);
        assert_eq!(card.engines[&1].busy_ns, 10 * MS);
    }

    #[test]
    fn who_is_off_or_was_never_on_gets_nothing_and_leaves_it_to_the_others() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 1000), channel(2, 3, 1000)]);
        card.channels[2].scheduled = false;
        card.advance(10 * MS, endless);
        card.channels[0].disabled = 1;
        card.advance(20 * MS, endless);
        card.channels[1].disabled = 1;
        card.advance(30 * MS, endless);
        assert_eq!((executed(&card), card.engines[&1].busy_ns), (vec![5 * MS, 15 * MS, 0], 20 * MS));
    }

    #[test]
    fn samples_say_how_busy_the_engine_was_and_who_ran_last() {
        let mut card = card(vec![channel(0, 1, 1000)]);
        let quarter = |_| Submitted { work_ns: 50 * MS, at_ns: MS };
        card.advance(MS, |_| Submitted::default());
        card.advance(100 * MS, quarter);
        assert!(card.samples.is_empty(), "not due");
        card.advance(201 * MS, quarter);
        card.advance(601 * MS, quarter);
        let told: Vec<_> = card.samples.iter().map(|sample| (sample.at_ns / MS, sample.busy, sample.pid)).collect();
        assert_eq!(told, [(201, 2500, 1), (601, 0, 1)]);
        (0..100).for_each(|second| drop(card.advance((1000 + second * 1000) * MS, endless)));
        assert_eq!((card.samples.len(), card.samples[71].busy), (SAMPLES, 10_000));
    }

    #[test]
    fn work_comes_and_ends_between_two_looks() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 1000)]);
        let submitted = |token| match token {
            0 => Submitted { work_ns: 3 * MS, at_ns: MS },
            _ => Submitted { work_ns: ENDLESS, at_ns: 2 * MS },
        };
        card.advance(10 * MS, submitted);
        // 0 is alone until 2 ms, then they take turns.
        assert_eq!(executed(&card), [3 * MS, 6 * MS]);
        assert_eq!(card.engines[&1].busy_ns, 9 * MS);
        card.advance(20 * MS, submitted);
        assert_eq!(executed(&card), [3 * MS, 16 * MS]);
    }

    #[test]
    fn engines_do_not_share() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 1000)]);
        card.channels[1].engine = 9;
        card.advance(1000, endless);
        assert_eq!(executed(&card), [1000, 1000]);
    }

    #[test]
    fn a_clock_that_goes_back_and_numbers_without_sense_change_nothing() {
        let mut card = card(vec![channel(0, 1, 0), channel(1, 2, u64::MAX)]);
        card.advance(1_000_000, endless);
        let before = executed(&card);
        card.advance(10, endless);
        assert_eq!((executed(&card), card.at_ns), (before.clone(), 1_000_000));
        // Work that is taken back, at an instant that has not come.
        card.advance(2_000_000, |_| Submitted { work_ns: 0, at_ns: u64::MAX });
        let after = executed(&card);
        assert_eq!(after.iter().sum::<u64>(), 2_000_000);
        card.advance(3_000_000, |_| Submitted { work_ns: 0, at_ns: u64::MAX });
        assert_eq!(executed(&card), after);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Wait(u64),
        Disable(usize, bool),
        Schedule(usize),
        Slice(u64, u64),
        Submit(usize, u64, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..5_000_000_u64).prop_map(Event::Wait),
            (0..12_usize, any::<bool>()).prop_map(|(index, off)| Event::Disable(index, off)),
            (0..12_usize).prop_map(Event::Schedule),
            (0..5_u64, 1..5_000_u64).prop_map(|(group, slice)| Event::Slice(group, slice)),
            (0..12_usize, 0..3_000_000_u64, 0..9_000_000_u64)
                .prop_map(|(index, work, at)| Event::Submit(index, work, at)),
            (0..12_usize).prop_map(|index| Event::Submit(index, ENDLESS, 0)),
        ]
    }

    proptest! {
        /// No engine gives more time than has passed, none is idle while a channel could run, no channel gets more than it
        /// has work for, and one that is off gets nothing.
        #[test]
        fn time_is_conserved(events in proptest::collection::vec(event(), 1..60)) {
            let mut card = card(
                (0..12_u32).map(|token| Channel {
                    engine: 1 + token % 2,
                    scheduled: false,
                    ..channel(token, u64::from(token % 5), 1024)
                }).collect(),
            );
            let mut work = [Submitted::default(); 12];
            let mut now = 0;
            let mut residence = Residence::default();
            for event in events {
                let before = card.clone();
                match event {
                    Event::Wait(time) => now += time,
                    Event::Submit(index, more, at_ns) => {
                        work[index] = Submitted { work_ns: work[index].work_ns.saturating_add(more), at_ns };
                    }
                    Event::Disable(index, off) => card.channels[index].disabled = u32::from(off),
                    Event::Schedule(index) => card.channels[index].scheduled = true,
                    Event::Slice(group, slice) => {
                        card.channels.iter_mut().filter(|channel| channel.group == group)
                            .for_each(|channel| channel.slice_us = slice);
                    }
                }
                let (off, elapsed) = (card.channels.clone(), now - before.at_ns);
                let switches = card.advance(now, |token| work[token as usize]);
                residence.follow(&switches)?;
                residence.follow(&card.leave())?;
                for engine in [1, 2] {
                    let sum = |card: &Channels| -> u64 {
                        card.channels.iter().filter(|channel| channel.engine == engine)
                            .map(|channel| channel.executed_ns).sum()
                    };
                    let (given, busy) = (sum(&card) - sum(&before), card.engines.get(&engine).map_or(0, |engine| engine.busy_ns));
                    prop_assert!(given <= elapsed);
                    prop_assert_eq!(busy, sum(&card));
                    let never_idle = off.iter().any(|channel| {
                        channel.engine == engine && channel.scheduled && channel.disabled == 0
                            && channel.left_ns() > elapsed && channel.submitted_ns == work[channel.token as usize].work_ns
                    });
                    if never_idle {
                        prop_assert_eq!(given, elapsed);
                    }
                }
                for ((now, before), off) in card.channels.iter().zip(&before.channels).zip(&off) {
                    prop_assert!(now.executed_ns <= now.submitted_ns.max(before.executed_ns));
                    if off.disabled > 0 || !off.scheduled {
                        prop_assert_eq!(now.executed_ns, before.executed_ns);
                    }
                }
            }
        }

        /// However often it is looked at, the same comes out, also when so many rounds lie between two looks that they are not
        /// gone through one by one; and over time, shares are those of the slices.
        #[test]
        fn looking_changes_nothing(slices in proptest::collection::vec(1..5_000_u64, 2..6),
                                   looks in proptest::collection::vec(1..900_000_000_u64, 1..50)) {
            let channels: Vec<Channel> =
                (0..).zip(&slices).map(|(token, slice)| channel(token, u64::from(token), *slice)).collect();
            let (mut often, mut once) = (card(channels.clone()), card(channels));
            let mut now = 0;
            for look in &looks {
                now += look;
                often.advance(now, endless);
            }
            once.advance(now, endless);
            // Samples are taken when somebody looks.
            for card in [&mut often, &mut once] {
                (card.samples, card.sampled) = Default::default();
            }
            prop_assert_eq!(&often, &once);
            prop_assert_eq!(executed(&once).iter().sum::<u64>(), now);
            let round: u64 = slices.iter().map(|slice| slice * 1000).sum();
            for (got, slice) in executed(&once).iter().zip(&slices) {
                let (rounds, own) = (now / round, slice * 1000);
                prop_assert!((rounds * own..=(rounds + 1) * own).contains(got));
            }
        }
    }

    /// What the switches say: one group at a time, each comes before it goes, and no number is given twice.
    #[derive(Debug, Default)]
    struct Residence {
        number: u64,
        at_ns: u64,
        resident: Option<GroupKey>,
    }

    impl Residence {
        fn follow(&mut self, switches: &[Switch]) -> Result<(), TestCaseError> {
            for switch in switches {
                // Lost ones leave a gap.
                if switch.number != self.number {
                    self.resident = if switch.on { None } else { Some(switch.group) };
                }
                prop_assert!(switch.number >= self.number && switch.at_ns >= self.at_ns);
                let expected = if switch.on { None } else { Some(switch.group) };
                prop_assert_eq!(self.resident, expected);
                self.resident = switch.on.then_some(switch.group);
                (self.number, self.at_ns) = (switch.number + 1, switch.at_ns);
            }
            Ok(())
        }
    }

    #[test]
    fn switches_tell_who_was_there_as_a_cards_firmware_does() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 2000)]);
        let log = |switches: Vec<Switch>| -> Vec<(u64, u64, bool)> {
            switches.iter().map(|switch| (switch.at_ns / MS, switch.group.group, switch.on)).collect()
        };
        let only = |tokens: &[u32]| {
            let tokens = tokens.to_vec();
            move |token| if tokens.contains(&token) { endless(token) } else { Submitted::default() }
        };
        assert_eq!(log(card.advance(5 * MS, only(&[0]))), [(0, 1, true)], "alone: no switches");
        assert_eq!(log(card.advance(10 * MS, only(&[]))), [], "idle, and nobody displaces it");
        assert_eq!(log(card.advance(11 * MS, only(&[1]))), [(10, 1, false), (10, 2, true)], "at once");
        let both = log(card.advance(15 * MS, only(&[0, 1])));
        assert_eq!(both, [(12, 2, false), (12, 1, true), (13, 1, false), (13, 2, true)]);
        card.channels[1].disabled = 1;
        assert_eq!(log(card.leave()), [(15, 2, false)]);
        assert_eq!(log(card.leave()), []);
        assert_eq!(log(card.advance(16 * MS, only(&[]))), [], "put back without work: it does not come");
        card.channels[1].disabled = 0;
        assert_eq!(log(card.advance(17 * MS, only(&[1]))), [(16, 2, true)]);
        card.channels.clear();
        assert_eq!(log(card.leave()), [(17, 2, false)], "who is gone has left");
        assert_eq!(card.switches, 10);
    }
}
