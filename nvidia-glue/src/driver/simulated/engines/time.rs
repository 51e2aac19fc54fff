//! How the engines of a card divide their time among channels, and what each channel got until now.
//!
//! An engine gives its time to the channel groups that have work, each in turn for its time slice: over times that are long
//! beside a slice, each gets time in proportion to its slice. That is what is integrated here, from one event to the next, in
//! whole nanoseconds: no sum of what channels got is ever above the time that has passed.

use std::collections::BTreeMap;

use crate::ledger::Process;

/// `NVA06C`'s default slice.
pub(super) const DEFAULT_SLICE_US: u64 = 1024;
/// Longer slices are as good as endless.
const LONGEST_SLICE_US: u64 = 1 << 40;

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
    /// `DISABLE_CHANNELS` has taken it off.
    pub(super) disabled: bool,
    /// Engine time of all work that was submitted.
    pub(super) submitted_ns: u64,
    /// Engine time that it got.
    pub(super) executed_ns: u64,
}

impl Channel {
    /// Of all processes' groups on the card.
    fn group_of_card(&self) -> (i32, u64, u64) {
        (self.owner.pid, self.owner.start_time, self.group)
    }

    const fn left_ns(&self) -> u64 {
        self.submitted_ns.saturating_sub(self.executed_ns)
    }

    const fn runs(&self) -> bool {
        self.scheduled && !self.disabled && self.left_ns() > 0
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

/// All channels of a card, and until when they have been given their time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Channels {
    pub(super) at_ns: u64,
    /// Time for which each engine had work, in all.
    pub(super) busy_ns: BTreeMap<u32, u64>,
    pub(super) channels: Vec<Channel>,
}

/// One engine's groups that have work.
#[derive(Debug, Default)]
struct Sharing {
    /// Slice and channels of each.
    groups: BTreeMap<(i32, u64, u64), (u64, Vec<usize>)>,
}

impl Sharing {
    fn slices(&self) -> u128 {
        self.groups.values().map(|(slice, _)| u128::from(*slice)).sum()
    }
}

impl Channels {
    /// Gives all engines' time until `now_ns` to those that had work, and takes new work as it came meanwhile.
    pub(super) fn advance(&mut self, now_ns: u64, submitted: impl Fn(u32) -> Submitted) {
        let now_ns = now_ns.max(self.at_ns);
        let mut arrivals: Vec<(u64, usize, u64)> = Vec::new();
        for (index, channel) in self.channels.iter().enumerate() {
            let Submitted { work_ns, at_ns } = submitted(channel.token);
            if work_ns != channel.submitted_ns {
                arrivals.push((at_ns.clamp(self.at_ns, now_ns), index, work_ns));
            }
        }
        arrivals.sort_unstable();
        for (at_ns, index, work_ns) in arrivals {
            self.run_until(at_ns);
            if let Some(channel) = self.channels.get_mut(index) {
                channel.submitted_ns = work_ns;
            }
        }
        self.run_until(now_ns);
    }

    /// Nothing comes meanwhile, but work may end.
    fn run_until(&mut self, until_ns: u64) {
        while self.at_ns < until_ns {
            let sharing = self.sharing();
            let left = until_ns - self.at_ns;
            let step = sharing.values().filter_map(|engine| self.first_end(engine)).min().unwrap_or(left).min(left);
            for (engine, sharing) in &sharing {
                let given = self.run(sharing, step);
                let busy = self.busy_ns.entry(*engine).or_default();
                *busy = busy.saturating_add(given);
            }
            self.at_ns += step;
        }
    }

    fn sharing(&self) -> BTreeMap<u32, Sharing> {
        let mut engines: BTreeMap<u32, Sharing> = BTreeMap::new();
        for (index, channel) in self.channels.iter().enumerate().filter(|(_, channel)| channel.runs()) {
            let groups = &mut engines.entry(channel.engine).or_default().groups;
            let slice = channel.slice_us.clamp(1, LONGEST_SLICE_US);
            groups.entry(channel.group_of_card()).or_insert((slice, Vec::new())).1.push(index);
        }
        engines
    }

    /// After how long the first channel has done its work, rounded up.
    fn first_end(&self, engine: &Sharing) -> Option<u64> {
        let slices = engine.slices();
        let ends = engine.groups.values().flat_map(|(slice, members)| {
            let members_of_group = members.len() as u128;
            members.iter().filter_map(move |index| self.channels.get(*index)).map(move |channel| {
                let share = u128::from(channel.left_ns()).saturating_mul(slices).saturating_mul(members_of_group);
                u64::try_from(share.div_ceil(u128::from(*slice))).unwrap_or(u64::MAX)
            })
        });
        ends.min()
    }

    /// Divides `step` nanoseconds of an engine; says how many were taken.
    fn run(&mut self, engine: &Sharing, step: u64) -> u64 {
        let (mut given, mut before) = (0, 0);
        let slices = engine.slices();
        for (slice, members) in engine.groups.values() {
            let of_group = part(step, before, before + u128::from(*slice), slices);
            before += u128::from(*slice);
            let count = members.len() as u128;
            for (place, index) in members.iter().enumerate() {
                let place = place as u128;
                let Some(channel) = self.channels.get_mut(*index) else { continue };
                let got = part(of_group, place, place + 1, count).min(channel.left_ns());
                channel.executed_ns = channel.executed_ns.saturating_add(got);
                given += got;
            }
        }
        given
    }
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
            disabled: false,
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
        card.advance(4_000, endless);
        assert_eq!(executed(&card), [1000, 1500, 1500]);
        card.channels[0].slice_us = 3000;
        card.advance(8_000, endless);
        assert_eq!(executed(&card), [3000, 2500, 2500]);
        assert_eq!(card.busy_ns[&1], 8000);
    }

    #[test]
    fn who_is_off_or_was_never_on_gets_nothing_and_leaves_it_to_the_others() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 1000), channel(2, 3, 1000)]);
        card.channels[2].scheduled = false;
        card.advance(1000, endless);
        card.channels[0].disabled = true;
        card.advance(2000, endless);
        card.channels[1].disabled = true;
        card.advance(3000, endless);
        assert_eq!((executed(&card), card.busy_ns[&1]), (vec![500, 1500, 0], 2000));
    }

    #[test]
    fn work_comes_and_ends_between_two_looks() {
        let mut card = card(vec![channel(0, 1, 1000), channel(1, 2, 1000)]);
        let submitted = |token| match token {
            0 => Submitted { work_ns: 300, at_ns: 100 },
            _ => Submitted { work_ns: ENDLESS, at_ns: 200 },
        };
        card.advance(1000, submitted);
        // 0 is alone from 100 to 200, then shares until 600.
        assert_eq!(executed(&card), [300, 600]);
        assert_eq!(card.busy_ns[&1], 900);
        card.advance(2000, submitted);
        assert_eq!(executed(&card), [300, 1600]);
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
            for event in events {
                let before = card.clone();
                match event {
                    Event::Wait(time) => now += time,
                    Event::Submit(index, more, at_ns) => {
                        work[index] = Submitted { work_ns: work[index].work_ns.saturating_add(more), at_ns };
                    }
                    Event::Disable(index, off) => card.channels[index].disabled = off,
                    Event::Schedule(index) => card.channels[index].scheduled = true,
                    Event::Slice(group, slice) => {
                        card.channels.iter_mut().filter(|channel| channel.group == group)
                            .for_each(|channel| channel.slice_us = slice);
                    }
                }
                let (off, elapsed) = (card.channels.clone(), now - before.at_ns);
                card.advance(now, |token| work[token as usize]);
                for engine in [1, 2] {
                    let sum = |card: &Channels| -> u64 {
                        card.channels.iter().filter(|channel| channel.engine == engine)
                            .map(|channel| channel.executed_ns).sum()
                    };
                    let (given, busy) = (sum(&card) - sum(&before), card.busy_ns.get(&engine).copied().unwrap_or(0));
                    prop_assert!(given <= elapsed);
                    prop_assert_eq!(busy, sum(&card));
                    let never_idle = off.iter().any(|channel| {
                        channel.engine == engine && channel.scheduled && !channel.disabled
                            && channel.left_ns() > elapsed && channel.submitted_ns == work[channel.token as usize].work_ns
                    });
                    if never_idle {
                        // A channel that ends is done within its last nanoseconds.
                        prop_assert!(given + 64 >= elapsed, "{given} of {elapsed}");
                    }
                }
                for ((now, before), off) in card.channels.iter().zip(&before.channels).zip(&off) {
                    prop_assert!(now.executed_ns <= now.submitted_ns.max(before.executed_ns));
                    if off.disabled || !off.scheduled {
                        prop_assert_eq!(now.executed_ns, before.executed_ns);
                    }
                }
            }
        }

        /// However often it is looked at, the same comes out, up to what is lost by rounding.
        #[test]
        fn looking_changes_nothing(slices in proptest::collection::vec(1..10_000_u64, 1..6),
                                   looks in proptest::collection::vec(1..900_000_u64, 1..50)) {
            let channels: Vec<Channel> =
                (0..).zip(&slices).map(|(token, slice)| channel(token, u64::from(token), *slice)).collect();
            let (mut often, mut once) = (card(channels.clone()), card(channels));
            let mut now = 0;
            for look in &looks {
                now += look;
                often.advance(now, endless);
            }
            once.advance(now, endless);
            prop_assert_eq!(executed(&once).iter().sum::<u64>(), now);
            let sum: u64 = slices.iter().sum();
            for ((often, once), slice) in executed(&often).iter().zip(executed(&once)).zip(&slices) {
                prop_assert!(often.abs_diff(once) <= 2 * looks.len() as u64);
                prop_assert!(once.abs_diff(now * slice / sum) <= 2);
            }
        }
    }
}
