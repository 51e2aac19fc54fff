//! Choices for mixes of programs on a card that is simulated in steps of 10 us.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Presence, Timeline};

const STEP_US: u64 = 10;
/// As seen on an H200 (docs/driver-facts.md).
const SLICE_US: u64 = 2_000;
const SWITCH_US: u64 = 80;
const SECOND_US: u64 = 1_000_000;
const START_US: u64 = 100 * SECOND_US;
const SAMPLE_US: u64 = 200_000;

/// A program that waits for each of its operations, and then works on the host for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Program {
    weight: u32,
    host_us: u64,
    operation_us: u64,
}

const fn program(host_us: u64, operation_us: u64) -> Program {
    Program { weight: 1, host_us, operation_us }
}

impl Program {
    /// Part of the time for which it is on the engine when it is alone.
    fn alone(&self) -> f64 {
        // The step in which an operation ends is the first one of what comes then.
        let host_us = self.host_us.saturating_sub(STEP_US);
        self.operation_us as f64 / (host_us + self.operation_us) as f64
    }
}

const DECODER: Program = program(30, 70);
const TRAINING: Program = program(0, 700);
/// A third of the card in requests.
const REQUESTS: Program = program(3_700, 1_600);
const IDLE: Program = program(1_000_000_000, 10);

#[derive(Debug, Clone)]
struct Running {
    program: Program,
    host_left_us: u64,
    operation_left_us: u64,
    timeline: Timeline,
    /// True if that lets it run, and until when this holds.
    may_run: (bool, u64),
    /// Time of its operations, in all.
    done_us: u64,
}

#[derive(Debug)]
struct Card {
    now_us: u64,
    running: Vec<Running>,
    /// Index of the one that is on the engine or comes next, the rest of the switch, and the time
    /// since it came.
    on: usize,
    switch_left_us: u64,
    since_us: u64,
    chooser: Chooser,
    /// It has no turns.
    has_slices_only: bool,
    /// Work of each sample of 200 ms.
    samples: Vec<u64>,
    /// Instants of the plans.
    changes: Vec<u64>,
}

impl Card {
    fn new(programs: &[Program]) -> Self {
        let running = |program: &Program| Running {
            program: *program,
            host_left_us: program.host_us,
            operation_left_us: program.operation_us,
            timeline: Timeline::always(),
            may_run: (true, 0),
            done_us: 0,
        };
        Self {
            now_us: START_US,
            running: programs.iter().map(running).collect(),
            on: 0,
            switch_left_us: 0,
            since_us: 0,
            chooser: Chooser::default(),
            has_slices_only: false,
            samples: vec![0],
            changes: Vec::new(),
        }
    }

    fn wants(&self, index: usize) -> bool {
        self.running[index].host_left_us == 0 && self.running[index].may_run.0
    }

    fn logs(&mut self, index: usize, presence: Presence) {
        let process = u32::try_from(index).unwrap() + 1;
        self.chooser.add(&Switch { at_ns: self.now_us * 1_000, process, context: process, presence });
    }

    fn step(&mut self) {
        for running in &mut self.running {
            running.host_left_us = running.host_left_us.saturating_sub(STEP_US);
            if running.may_run.1 <= self.now_us {
                let span = running.timeline.span(self.now_us).unwrap();
                let is_open = span.start_us <= self.now_us;
                running.may_run = (is_open, if is_open { span.end_us } else { span.start_us });
            }
        }
        if self.switch_left_us > 0 {
            self.switch_left_us -= STEP_US;
            if self.switch_left_us == 0 {
                self.logs(self.on, Presence::On);
            }
        } else {
            self.since_us += STEP_US;
            if self.wants(self.on) {
                let on = &mut self.running[self.on];
                on.done_us += STEP_US;
                *self.samples.last_mut().unwrap() += STEP_US;
                on.operation_left_us = on.operation_left_us.saturating_sub(STEP_US);
                if on.operation_left_us == 0 {
                    (on.host_left_us, on.operation_left_us) = (on.program.host_us, on.program.operation_us);
                }
            }
            let next = (1..self.running.len()).map(|next| (self.on + next) % self.running.len());
            let next = next.into_iter().find(|next| self.wants(*next));
            if let Some(next) = next.filter(|_| !self.wants(self.on) || self.since_us >= SLICE_US) {
                self.logs(self.on, Presence::Off);
                (self.on, self.switch_left_us, self.since_us) = (next, SWITCH_US, 0);
            }
        }
        self.now_us += STEP_US;
        if self.now_us.is_multiple_of(SAMPLE_US) {
            self.samples.push(0);
        }
        if self.now_us.is_multiple_of(100_000) && !self.has_slices_only {
            self.choose();
        }
    }

    fn choose(&mut self) {
        let ids: Vec<String> = (0..self.running.len()).map(|index| index.to_string()).collect();
        let candidates: Vec<Candidate<'_>> = (1..)
            .zip(self.running.iter().zip(&ids))
            .map(|(process, (running, id))| Candidate { grant_id: id, weight: running.program.weight, process })
            .collect();
        let samples = &self.samples;
        let busy = |_, from_us: u64, until_us: u64| {
            let place = |us: u64| usize::try_from((us - START_US) / SAMPLE_US).unwrap();
            let within = &samples[place(from_us) + 1..place(until_us)];
            let sum = within.iter().sum::<u64>() * 1_000_000 / SAMPLE_US;
            sum.checked_div(within.len() as u64).map(|ppm| u32::try_from(ppm).unwrap())
        };
        if let Some(plan) = self.chooser.choose(self.now_us, &candidates, &busy).cloned() {
            self.changes.push(self.now_us);
            for (running, id) in self.running.iter_mut().zip(&ids) {
                running.timeline = Timeline::of_turns(&plan, id, &running.timeline, self.now_us);
                running.may_run.1 = 0;
            }
        }
    }

    /// Runs, and returns the part that each has of what it does alone.
    fn run(&mut self, us: u64) -> Vec<f64> {
        let before: Vec<u64> = self.running.iter().map(|running| running.done_us).collect();
        for _ in 0..us / STEP_US {
            self.step();
        }
        let part = |(running, before): (&Running, u64)| {
            (running.done_us - before) as f64 / us as f64 / running.program.alone()
        };
        self.running.iter().zip(before).map(part).collect()
    }

    fn members(&self) -> usize {
        self.chooser.plan().members.len()
    }

    fn quanta_us(&self) -> Vec<u64> {
        self.chooser.plan().members.iter().map(|member| member.quantum_us).collect()
    }
}

#[test]
fn what_displaces_each_other_takes_turns_and_loses_little() {
    for (programs, quantum_us) in [
        (&[DECODER, DECODER][..], 10_000),
        (&[DECODER; 4], 10_000),
        (&[DECODER, TRAINING], 10_000),
        (&[TRAINING, TRAINING], 20_000),
    ] {
        let mut card = Card::new(programs);
        card.run(SECOND_US);
        assert_eq!(card.members(), programs.len(), "{programs:?}");
        let parts = card.run(4 * SECOND_US);
        let fair = 1.0 / programs.len() as f64;
        assert!(parts.iter().all(|part| (part / fair - 1.0).abs() < 0.05), "{programs:?} {parts:?}");
        assert!(card.quanta_us().iter().all(|us| us.abs_diff(quantum_us) <= 2_000), "{:?}", card.quanta_us());
        // What a turn costs is learnt.
        assert!(card.changes.len() <= 2, "{programs:?}");
    }
}

#[test]
fn what_leaves_breaks_has_slices() {
    for programs in [&[REQUESTS, TRAINING][..], &[REQUESTS, DECODER], &[DECODER, IDLE, IDLE, IDLE], &[TRAINING]] {
        let mut card = Card::new(programs);
        let parts = card.run(10 * SECOND_US);
        assert_eq!(card.changes, [0_u64; 0], "{programs:?} {parts:?}");
    }
}

#[test]
fn weights_are_kept_also_where_slices_lose_little() {
    let mut card = Card::new(&[Program { weight: 3, ..TRAINING }, TRAINING]);
    card.run(SECOND_US);
    let parts = card.run(4 * SECOND_US);
    assert!((parts[0] / parts[1] - 3.0).abs() < 0.15, "{parts:?}");
}

#[test]
fn a_mix_that_changes_is_followed_within_two_seconds() {
    let mut card = Card::new(&[DECODER, DECODER, IDLE]);
    card.run(10 * SECOND_US);
    assert_eq!(card.members(), 2);
    // One becomes idle: the other has all.
    card.running[1].host_left_us = 10 * SECOND_US;
    card.run(SECOND_US);
    assert!(card.run(SECOND_US)[0] > 0.98);
    // A newcomer.
    card.running[2].program = DECODER;
    card.running[2].host_left_us = 0;
    card.run(SECOND_US);
    assert!(card.run(SECOND_US)[2] > 0.45);
    // One that leaves breaks from now on.
    card.running[2].program = REQUESTS;
    card.run(5 * SECOND_US / 2);
    assert_eq!(card.members(), 0, "{:?}", card.chooser.plan());
    assert!(card.run(SECOND_US)[2] > 0.6);
}

#[test]
fn turns_that_do_less_than_slices_end() {
    // Each leaves breaks of less than a slice, which the log does not show: the others fill them.
    for programs in [
        &[program(1_500, 300); 2][..],
        &[program(1_500, 300); 3],
        &[program(600, 300); 2],
        &[program(2_000, 800), TRAINING],
        &[program(1_000, 300), TRAINING],
    ] {
        let mut slices = Card::new(programs);
        slices.has_slices_only = true;
        let by_slices = sum(&slices.run(2 * SECOND_US));
        let mut card = Card::new(programs);
        card.run(4 * SECOND_US);
        let parts = card.run(20 * SECOND_US);
        assert!(sum(&parts) > 0.9 * by_slices, "{programs:?} {by_slices} {parts:?} {:?}", card.changes);
    }
}

fn sum(parts: &[f64]) -> f64 {
    parts.iter().sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever runs: the choice settles, all together do no less than by slices or in turns, and
    /// none has less than by both.
    #[test]
    fn nothing_oscillates_and_nobody_starves(
        programs in proptest::collection::vec((0_u64..6, 0_u64..4), 2..5),
    ) {
        let us = |step: u64| [0, 50, 600, 5_000, 1_000, 2_000][usize::try_from(step).unwrap()];
        let programs: Vec<Program> =
            programs.into_iter().map(|(host, operation)| program(us(host), us(operation).max(20))).collect();
        let mut slices = Card::new(&programs);
        slices.has_slices_only = true;
        let by_slices = slices.run(2 * SECOND_US);
        let mut card = Card::new(&programs);
        card.run(6 * SECOND_US);
        let before = card.changes.len();
        let parts = card.run(10 * SECOND_US);
        prop_assert!(card.changes.len() - before <= 6, "{:?} {parts:?}", card.changes);
        prop_assert!(sum(&parts) > 0.85 * sum(&by_slices).min(1.0), "{programs:?} {by_slices:?} {parts:?}");
        let fair = 1.0 / programs.len() as f64;
        for (part, by_slices) in parts.iter().zip(&by_slices) {
            prop_assert!(*part > 0.75 * by_slices.min(fair), "{programs:?} {by_slices} {parts:?}");
        }
    }
}

/// Half a second of each mix, as a card's log had it, time slices of 2 ms.
const RECORDED: &str = include_str!("../../../../../docs/results/2026-11-30-580.159.04-1x-NVIDIA-H200-switches.txt");

/// Switches of each recorded mix.
fn recorded() -> impl Iterator<Item = (&'static str, Vec<Switch>)> {
    RECORDED.split("=== ").skip(1).map(|mix| {
        let mut lines = mix.lines();
        let title = lines.next().unwrap();
        let switch = |line: &str| {
            let [at_us, process, context, presence] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
            Some(Switch {
                at_ns: at_us.parse::<u64>().ok()? * 1_000,
                process: process.parse().ok()?,
                context: context.parse().ok()?,
                presence: if presence == "on" { Presence::On } else { Presence::Off },
            })
        };
        (title, lines.filter_map(switch).collect())
    })
}

#[test]
fn recorded_mixes_take_turns_at_once() {
    for (title, switches) in recorded() {
        let processes: BTreeSet<u32> = switches.iter().map(|switch| switch.process).collect();
        let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
        let candidates: Vec<Candidate<'_>> = ids
            .iter()
            .zip(&processes)
            .map(|(id, process)| Candidate { grant_id: id, weight: 1, process: *process })
            .collect();
        let mut chooser = Chooser::default();
        assert!(chooser.choose(LOG_DELAY_US, &candidates, &|_, _, _| None).is_none());
        switches.iter().for_each(|switch| chooser.add(switch));
        let plan = chooser.choose(500_000, &candidates, &|_, _, _| None).unwrap_or_else(|| panic!("{title}: slices"));
        let quanta_us: Vec<u64> = plan.members.iter().map(|member| member.quantum_us).collect();
        assert_eq!(quanta_us, vec![LEAST_QUANTUM_US; processes.len()], "{title}");
    }
}
