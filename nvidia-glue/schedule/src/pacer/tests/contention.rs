//! Containers whose windows follow each other, on a driver with one lock that programs outside
//! hold, too, and a card that tells who had it.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::*;

/// Durations of calls of a container with 20 channels, and the time after which they take effect
/// (docs/driver-facts.md).
const CLOSING: (u64, u64) = (750, 620);
const OPENING: (u64, u64) = (430, 430);
/// From then on it counts.
const FROM: u64 = 100 * PERIOD;

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most.max(1)
    }
}

/// Programs that start outside: so many a second, each of which takes the lock for that long, time
/// after time.
struct Starts<'a> {
    per_second: u64,
    holds: &'a [u64],
}

/// Time that a container had of the card, that it was told that it lost, and that it has still to
/// get (or to give, below zero), in millionths.
#[derive(Debug)]
struct Outcome {
    had: i64,
    lost: i64,
    due: i64,
}

/// The card: containers that are on it at the same time have equal parts of it.
struct Card {
    now: u64,
    on: Vec<bool>,
    had: Vec<u64>,
    /// Times for which others had it, of the window of each.
    others: Vec<Vec<(u64, u64)>>,
    /// Edges that take effect: instant, container, and true if it is put on the card.
    edges: BinaryHeap<Reverse<(u64, usize, bool)>>,
}

impl Card {
    fn new(containers: usize) -> Self {
        let others = vec![Vec::new(); containers];
        Self { now: 0, on: vec![false; containers], had: vec![0; containers], others, edges: BinaryHeap::new() }
    }

    fn advance(&mut self, until: u64) {
        loop {
            let at = self.edges.peek().map_or(u64::MAX, |edge| edge.0.0).min(until);
            let (passed, there) = (at - self.now, self.on.iter().filter(|on| **on).count() as u64);
            for number in (0..self.on.len()).filter(|number| self.on[*number]) {
                let part = passed / there;
                self.had[number] += if self.now >= FROM { part } else { 0 };
                if there > 1 && passed > 0 {
                    self.others[number].push((self.now, at - part));
                }
            }
            self.now = at;
            while self.edges.peek().is_some_and(|edge| edge.0.0 <= at) {
                let Some(Reverse((_, number, is_on))) = self.edges.pop() else { break };
                self.on[number] = is_on;
            }
            if at == until {
                return;
            }
        }
    }
}

/// Sums of what was lost, and of what is to come.
fn account(pacer: &Pacer) -> (i64, i64) {
    (signed(pacer.lost_us()), signed(pacer.due_us) - pacer.balance_us())
}

fn contended(shares: &[u64], periods: u64, starts: &Starts<'_>, seed: u64) -> Vec<Outcome> {
    let mut dice = Dice(seed);
    let ends = shares.iter().scan(0, |end, share| {
        *end += share;
        Some(*end)
    });
    let turns = shares.iter().zip(ends).enumerate();
    let turns = turns.map(|(number, (share, end))| turn(&format!("{number}"), &[(end - share, end)])).collect();
    let epochs = vec![Epoch { from_us: 0, turns }];
    let table = Timetable { version: 1, format: 1, boot_id: String::new(), revision: 1, epochs };
    let timeline = |number: usize| Timeline::of(&table, &format!("{number}"), "GPU-a", &Timeline::never());
    let mut pacers: Vec<Pacer> = (0..shares.len()).map(|number| Pacer::new(timeline(number))).collect();
    let mut calls: Vec<Next> = pacers.iter_mut().map(|pacer| pacer.next(0).unwrap()).collect();
    // Programs outside: when each makes its next call, and its number.
    let (mut outside, mut next_start): (Vec<(u64, usize)>, u64) = (Vec::new(), 0);
    let (mut card, mut free_at, mut before) = (Card::new(shares.len()), 0, vec![(0, 0); shares.len()]);
    while card.now < periods * PERIOD {
        while starts.per_second > 0 && next_start <= free_at + PERIOD {
            outside.push((next_start, 0));
            next_start += 1_000_000 / starts.per_second;
        }
        outside.retain(|(_, number)| *number < starts.holds.len());
        let (number, next) = calls.iter().copied().enumerate().min_by_key(|(_, next)| next.at_us).unwrap();
        // The lock is fair half of the time.
        let goes_first = |at: u64, dice: &mut Dice| at < next.at_us || (at <= free_at && dice.below(2) == 0);
        if let Some((at, held)) = outside.iter_mut().min()
            && goes_first(*at, &mut dice)
        {
            let hold = starts.holds[*held];
            free_at = free_at.max(*at) + hold / 2 + dice.below(hold);
            (*at, *held) = (free_at + 30 + dice.below(4_000), *held + 1);
            continue;
        }
        let is_open = next.what == Move::Open;
        let (takes, effect) = if is_open { OPENING } else { CLOSING };
        let began = free_at.max(next.at_us);
        free_at = began + takes;
        card.edges.push(Reverse((began + effect, number, is_open)));
        card.advance(began + effect);
        let pacer = &mut pacers[number];
        let others = std::mem::take(&mut card.others[number]);
        // Where one takes over from another, both are there for a moment.
        if !is_open && others.iter().map(|(from, until)| until - from).sum::<u64>() > MOST_WINDOW_LOSS_US {
            others.into_iter().for_each(|time| pacer.shared(time, true));
        }
        pacer.moved_in(1, next.what, next.at_us, (next.at_us, began + effect));
        if card.now < FROM {
            before[number] = account(pacer);
        }
        calls[number] = pacer.next(free_at).unwrap();
    }
    let part = |us: i64| us * 1_000_000 / signed(card.now - FROM);
    let outcome = |number: usize| {
        let ((lost, due), (lost_before, due_before)) = (account(&pacers[number]), before[number]);
        Outcome { had: part(signed(card.had[number])), lost: part(lost - lost_before), due: part(due - due_before) }
    };
    (0..shares.len()).map(outcome).collect()
}

/// As a start of CUDA: many short calls, and some long ones.
fn holds(long: usize, long_us: u64) -> Vec<u64> {
    (0..long).flat_map(|_| std::iter::repeat_n(150, 20).chain([long_us])).collect()
}

#[test]
fn five_starts_a_second_cost_neighbours_less_than_a_point() {
    for (shares, long_us) in
        [(vec![25_000, 75_000], 20_000), (vec![25_000, 75_000], 25_000), (vec![25_000, 25_000, 50_000], 20_000)]
    {
        for per_second in [0, 1, 5] {
            let starts = Starts { per_second, holds: &holds(3, long_us) };
            let outcomes = contended(&shares, 700, &starts, 1);
            for (outcome, share) in outcomes.iter().zip(&shares) {
                let asked = signed(share * 10);
                assert!(outcome.had.abs_diff(asked) <= 10_000, "{shares:?}, {per_second} of {long_us}: {outcomes:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Shares beside programs that hold the lock, also for more than half of the time: what a
    /// container had and what it is told that it lost is what it was granted, and nobody has more,
    /// within a point and a half.
    #[test]
    fn what_is_missing_is_told(
        first in 10_000..=90_000_u64,
        per_second in 0..8_u64,
        long in 1..5_usize,
        long_us in 2_000..40_000_u64,
        seed: u64,
    ) {
        let shares = [first, PERIOD - first];
        let outcomes = contended(&shares, 400, &Starts { per_second, holds: &holds(long, long_us) }, seed);
        for (outcome, share) in outcomes.iter().zip(shares) {
            let Outcome { had, lost, due } = *outcome;
            let asked = signed(share * 10);
            prop_assert!((had + lost + due).abs_diff(asked) <= 15_000, "{shares:?}: {outcomes:?}");
            prop_assert!(had <= asked + 15_000, "{shares:?}: {outcomes:?}");
        }
    }
}
