//! Order in which groups have the engine; no time is lost or made up.

use proptest::prelude::*;

use super::*;

const ENDLESS: u64 = u64::MAX;
const MS: u64 = 1_000_000;

fn channel(token: u32, group: u64, slice_us: u64) -> Channel {
    Channel {
        owner: ProcessId { pid: 1, start_time: 1 },
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
    let samples: Vec<_> = card.samples.iter().map(|sample| (sample.at_ns / MS, sample.busy, sample.pid)).collect();
    assert_eq!(samples, [(201, 2500, 1), (601, 0, 1)]);
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
        (0..12_usize, 0..3_000_000_u64, 0..9_000_000_u64).prop_map(|(index, work, at)| Event::Submit(index, work, at)),
        (0..12_usize).prop_map(|index| Event::Submit(index, ENDLESS, 0)),
    ]
}

proptest! {
    /// No engine gives more time than has passed, none is idle while a channel could run, no
    /// channel gets more than it has work for, and one that is off gets nothing.
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

    /// However often it is looked at, the same comes out, also when so many rounds lie between two
    /// looks that they are not gone through one by one; and over time, shares are those of the
    /// slices.
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

/// Checks the switches: one group at a time, each comes before it goes, and no number is given
/// twice.
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
