//! Waiting for room beside a model of it: whoever tries, in whatever order.

use base::ComputeShare;
use proptest::prelude::*;

use super::waiting::{end, leave};
use crate::{
    AdmitErrorKind, Patience,
    admit::Attempt,
    test_support::{Bench, FOR_LEAVING, NO_PATIENCE, devices, part, request},
};

/// Demand of a container: `gib` of memory of each of its cards.
#[derive(Debug, Clone)]
struct Wish {
    cards: Vec<u32>,
    gib: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// Tries, for the first time or once more. `(it waits, for anybody)`
    Try {
        id: usize,
        patience: Option<bool>,
    },
    Leave {
        id: usize,
    },
    End {
        id: usize,
    },
    /// So long that nobody waits any more, and nobody who lives still counts as leaving.
    Pass,
}

const CONTAINERS: usize = 7;

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let cards = prop::sample::subsequence(vec![0, 1], 1..=2);
    prop::collection::vec((cards, 1_u64..=32).prop_map(|(cards, gib)| Wish { cards, gib }), CONTAINERS)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0..CONTAINERS;
    let step = prop_oneof![
        4 => (id.clone(), prop::option::weighted(0.8, any::<bool>()))
            .prop_map(|(id, patience)| Step::Try { id, patience }),
        2 => id.clone().prop_map(|id| Step::Leave { id }),
        1 => id.prop_map(|id| Step::End { id }),
        1 => Just(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

/// The same in plain numbers.
#[derive(Debug)]
struct Model<'a> {
    wishes: &'a [Wish],
    staying: Vec<usize>,
    leaving: Vec<usize>,
    /// Those of `staying` that were asked to end, and have not.
    lingering: Vec<usize>,
    /// In the order of coming; `true`: for anybody.
    waiting: Vec<(usize, bool)>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Granted,
    Waits,
    Refused,
}

impl Model<'_> {
    fn fit(&self, ids: &[usize]) -> bool {
        let used =
            |card| ids.iter().filter(move |id| self.wishes[**id].cards.contains(&card)).map(|id| self.wishes[*id].gib);
        [0, 1].into_iter().all(|card| used(card).sum::<u64>() <= 32)
    }

    /// Those of `waiters` that fit beside `there`, one after the other.
    fn promised(&self, mut there: Vec<usize>, waiters: &[usize]) -> Vec<usize> {
        let mut promised = Vec::new();
        for waiter in waiters {
            there.push(*waiter);
            if self.fit(&there) {
                promised.push(*waiter);
            } else {
                there.pop();
            }
        }
        promised
    }

    fn attempt(&mut self, id: usize, patience: Option<bool>) -> Outcome {
        let place = self.waiting.iter().position(|(waiter, _)| *waiter == id);
        let ahead: Vec<usize> = self.waiting[..place.unwrap_or(self.waiting.len())].iter().map(|(id, _)| *id).collect();
        let with = |there: &[usize]| there.iter().copied().chain([id]).collect::<Vec<_>>();
        let promised = self.promised(self.staying.clone(), &ahead);
        let all = [self.staying.as_slice(), &self.leaving].concat();
        let none_loses = self.promised(with(&self.staying), &promised) == promised;
        if self.fit(&with(&all)) && none_loses {
            self.waiting.retain(|(waiter, _)| *waiter != id);
            self.staying.push(id);
            return Outcome::Granted;
        }
        let patience = place.map_or(patience, |place| Some(self.waiting[place].1));
        match patience {
            Some(any) if any || self.fit(&with(&self.staying)) => {
                if place.is_none() {
                    self.waiting.push((id, any));
                }
                Outcome::Waits
            }
            _ => {
                self.waiting.retain(|(waiter, _)| *waiter != id);
                Outcome::Refused
            }
        }
    }
}

/// The ledger and the model side by side.
struct Play<'a> {
    bench: &'a Bench,
    model: Model<'a>,
    attempts: Vec<Option<Attempt<'a>>>,
}

fn name(id: usize) -> String {
    format!("c{id}")
}

impl Play<'_> {
    fn attempt(&mut self, id: usize, patience: Option<bool>) {
        let Wish { cards, gib } = &self.model.wishes[id];
        let mut attempt = self.attempts[id].take().unwrap_or_else(|| {
            let patience = patience.map_or(NO_PATIENCE, |any_tenant| Patience { any_tenant, ..FOR_LEAVING });
            let request = request(devices(cards), part(gib << 10, ComputeShare::Unlimited));
            self.bench.attempt(&name(id), &request, patience)
        });
        let outcome = match attempt.try_once(&self.bench.log) {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::Waits,
            Err(error) => {
                assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
                Outcome::Refused
            }
        };
        self.attempts[id] = (outcome == Outcome::Waits).then_some(attempt);
        let before = format!("{:?}", self.model);
        assert_eq!(outcome, self.model.attempt(id, patience), "{id} in {before}");
    }

    fn end(&mut self, id: usize) {
        end(self.bench, &name(id));
        for there in [&mut self.model.leaving, &mut self.model.lingering, &mut self.model.staying] {
            there.retain(|other| *other != id);
        }
    }

    fn pass(&mut self) {
        self.attempts.fill_with(|| None);
        self.bench.node.pass(40_000_000);
        let model = &mut self.model;
        model.waiting.clear();
        model.lingering.extend(&model.leaving);
        model.staying.append(&mut model.leaving);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Try { id, patience } if !self.model.staying.contains(&id) && !self.model.leaving.contains(&id) => {
                self.attempt(id, patience);
            }
            Step::Leave { id } if self.model.staying.contains(&id) && !self.model.lingering.contains(&id) => {
                leave(self.bench, &name(id));
                self.model.staying.retain(|other| *other != id);
                self.model.leaving.push(id);
            }
            Step::End { id } if self.model.leaving.contains(&id) || self.model.lingering.contains(&id) => self.end(id),
            Step::Pass => self.pass(),
            Step::Try { .. } | Step::Leave { .. } | Step::End { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whoever tries, in whatever order: the ledger decides as plain numbers do, and once those
    /// have ended that are leaving, each that was promised their room gets it.
    #[test]
    fn the_earliest_is_never_robbed_and_nothing_lies_idle(wishes in wishes(), steps in steps()) {
        let bench = Bench::new(2);
        let (staying, leaving, lingering) = (Vec::new(), Vec::new(), Vec::new());
        let model = Model { wishes: &wishes, staying, leaving, lingering, waiting: Vec::new() };
        let mut play = Play { bench: &bench, model, attempts: (0..CONTAINERS).map(|_| None).collect() };
        for step in &steps {
            play.step(step);
            let waiting: Vec<String> = play.model.waiting.iter().map(|(id, _)| name(*id)).collect();
            prop_assert_eq!(bench.waiting(), waiting);
        }
        let waiters: Vec<usize> = play.model.waiting.iter().map(|(id, _)| *id).collect();
        let promised = play.model.promised(play.model.staying.clone(), &waiters);
        for id in play.model.leaving.clone() {
            play.end(id);
        }
        // The last first: whoever looks first takes nothing from the others.
        for id in waiters.into_iter().rev().chain(promised.clone()) {
            if play.attempts[id].is_some() {
                play.attempt(id, None);
            }
        }
        for id in promised {
            prop_assert!(play.model.staying.contains(&id), "{} was promised room", id);
        }
    }
}
