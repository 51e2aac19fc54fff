//! Random lives of containers, shims and ledgers: no sum is ever exceeded, nothing is lost, nothing
//! is left.

use std::collections::{BTreeMap, BTreeSet};

use base::{CardPolicy, ComputeShare};
use proptest::prelude::*;
use runtime_config::request::{CardRequest, GpuRequest, Placement, Share};

use crate::{
    AdmitErrorKind, ReleaseReason,
    card_sums::CardSums,
    test_support::{Bench, cap, cgroup, devices, key, mib, part, process, request, weight, with_policy},
};

const CARDS: u32 = 3;

#[derive(Debug, Clone)]
enum Step {
    Admit { id: u8, request: Box<GpuRequest>, crash_after: Option<i64> },
    Bind { id: u8 },
    Release { id: u8, crash_after: Option<i64> },
    ShimDies { id: u8 },
    ContainerEnds { id: u8 },
    Reclaim,
}

fn shares() -> impl Strategy<Value = (Share, Option<CardPolicy>)> {
    let compute = prop_oneof![
        3 => (1_u8..=60).prop_map(cap),
        1 => Just(ComputeShare::Unlimited),
        1 => (1_u16..=10).prop_map(weight),
    ];
    prop_oneof![
        8 => (1_u64..=20_000, compute).prop_map(|(memory, compute)| (part(memory, compute), None)),
        2 => (1_u64..=20_000, 1_u16..=8)
            .prop_map(|(memory, value)| (part(memory, weight(value)), Some(CardPolicy::Fixed))),
        1 => Just((Share::Exclusive, None)),
        1 => Just((Share::Monitor, None)),
    ]
}

fn requests() -> impl Strategy<Value = GpuRequest> {
    let cards = prop_oneof![
        (1_u32..=2).prop_map(CardRequest::Count),
        prop::sample::subsequence((0..CARDS).collect::<Vec<_>>(), 1..=2).prop_map(|cards| devices(&cards)),
    ];
    let placement = prop_oneof![Just(Placement::Binpack), Just(Placement::Spread)];
    (cards, shares(), placement, prop::option::of("[ab]")).prop_map(|(cards, (share, policy), placement, group)| {
        let request = GpuRequest { placement, group, ..request(cards, share) };
        match policy {
            Some(policy) => with_policy(policy, request),
            None => request,
        }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0_u8..12;
    let crash = || prop::option::weighted(0.15, 0_i64..25);
    prop::collection::vec(
        prop_oneof![
            6 => (id.clone(), requests(), crash())
                .prop_map(|(id, request, crash_after)| Step::Admit { id, request: Box::new(request), crash_after }),
            3 => id.clone().prop_map(|id| Step::Bind { id }),
            3 => (id.clone(), crash()).prop_map(|(id, crash_after)| Step::Release { id, crash_after }),
            1 => id.clone().prop_map(|id| Step::ShimDies { id }),
            1 => id.prop_map(|id| Step::ContainerEnds { id }),
            1 => Just(Step::Reclaim),
        ],
        1..40,
    )
}

fn name(id: u8) -> String {
    format!("c{id}")
}

fn shim(id: u8) -> i32 {
    200 + i32::from(id)
}

/// The sums of every card as its records say, computed here and not by the ledger.
fn check_sums(bench: &Bench) {
    let records = bench.ledger.records().unwrap();
    for card in &bench.inventory.cards {
        let grants: Vec<_> = records
            .iter()
            .flat_map(|record| &record.cards)
            .filter(|grant| grant.uuid == card.uuid && grant.memory.0 > 0)
            .collect();
        let memory: u64 = grants.iter().map(|grant| grant.memory.0).sum();
        assert!(memory <= card.memory.0, "card {} has {memory} bytes granted", card.index);
        let exclusive = grants.iter().filter(|grant| grant.exclusive).count();
        assert!(exclusive == 0 || grants.len() == 1, "card {} is whole and shared", card.index);
        assert!(grants.len() <= 10);
        let policies: BTreeSet<_> = grants.iter().map(|grant| grant.policy.name()).collect();
        assert!(policies.len() <= 1, "card {} has policies {policies:?}", card.index);
        if policies.contains("fixed") {
            let hundredths_of_16: u32 = grants
                .iter()
                .map(|grant| match grant.compute {
                    ComputeShare::Cap { percent, .. } => u32::from(percent.get()) * 16,
                    ComputeShare::Weight(weight) => u32::from(weight.get()) * 100,
                    ComputeShare::Unlimited => 0,
                })
                .sum();
            let uncapped = grants.iter().any(|grant| !grant.exclusive && grant.compute == ComputeShare::Unlimited);
            let most = if uncapped { 95 * 16 } else { 1600 };
            assert!(hundredths_of_16 <= most, "card {}: {hundredths_of_16} of {most}", card.index);
        }
    }
    let orders: BTreeSet<_> = records.iter().map(|record| record.order).collect();
    assert_eq!(orders.len(), records.len(), "each record has its own place in the order");
}

fn run(bench: &mut Bench, step: &Step) {
    match step {
        Step::Admit { id, request, crash_after } => {
            let id = *id;
            bench.node.start(shim(id));
            let before = bench.files();
            if let Some(steps) = crash_after {
                bench.ledger.store.faults.die_after(*steps);
            }
            let result = bench.admit_for(&name(id), request, shim(id));
            if crash_after.is_some() {
                // The process of this ledger was killed: whatever it returned, nobody heard it.
                bench.ledger.store.faults.off();
                bench.reopen();
                return;
            }
            match result {
                Ok(record) => {
                    // As `create` does, in this order: the record, then the container.
                    bench.node.populate(&name(id));
                    assert_eq!(bench.ledger.record(&record.container).unwrap(), Some(record));
                }
                Err(error) => {
                    assert_ne!(error.kind(), AdmitErrorKind::Internal, "{error:?}");
                    let after = bench.files();
                    // What was there and is gone now was reclaimed; nothing is new, nothing has
                    // changed.
                    assert!(after.iter().all(|file| before.contains(file)));
                }
            }
        }
        Step::Bind { id } => {
            let _ = bench.ledger.bind(&key(&name(*id)), process(400), None, &[cgroup(&name(*id))], &bench.log);
        }
        Step::Release { id, crash_after } => {
            bench.node.empty(&name(*id));
            if let Some(steps) = crash_after {
                bench.ledger.store.faults.die_after(*steps);
            }
            let result = bench.ledger.release(&key(&name(*id)), ReleaseReason::Ended, &bench.log);
            bench.ledger.store.faults.off();
            if crash_after.is_some() {
                bench.reopen();
            } else {
                result.unwrap();
                assert_eq!(bench.ledger.record(&key(&name(*id))).unwrap(), None);
            }
        }
        Step::ShimDies { id } => bench.node.stop(shim(*id)),
        Step::ContainerEnds { id } => bench.node.empty(&name(*id)),
        Step::Reclaim => {
            bench.ledger.reclaim(&bench.log).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_sum_is_ever_exceeded(steps in steps()) {
        let mut bench = Bench::new(CARDS);
        for step in &steps {
            run(&mut bench, step);
            check_sums(&bench);
        }
        // When all have ended, nothing is left.
        for id in 0..12 {
            bench.node.stop(shim(id));
            bench.node.empty(&name(id));
        }
        bench.ledger.reclaim(&bench.log).unwrap();
        prop_assert!(bench.files().is_empty());
        bench.admit("all", &request(CardRequest::All, Share::Exclusive)).unwrap();
    }

    #[test]
    fn placement_is_as_promised(requests in prop::collection::vec(requests(), 1..12)) {
        let bench = Bench::new(CARDS);
        for (number, request) in (0_u8..).zip(requests) {
            let before = bench.ledger.records().unwrap();
            let sums = |index: u32| CardSums::of(
                before.iter().flat_map(|record| record.cards.iter().map(move |card| (record, card)))
                    .filter(|(_, card)| card.index == index)
                    .map(|(record, card)| (card, record.request.group.as_deref().map(super::super::index::group_hash))),
            );
            let CardRequest::Count(1) = request.cards else {
                let _ = bench.admit(&name(number), &request);
                continue;
            };
            let others: BTreeMap<u32, bool> = (0..CARDS)
                .map(|index| {
                    // A card fits if the same request for exactly this card is admitted.
                    let id = format!("probe{index}");
                    let fits = bench.admit(&id, &GpuRequest { cards: devices(&[index]), ..request.clone() }).is_ok();
                    bench.ledger.release(&key(&id), ReleaseReason::Ended, &bench.log).unwrap();
                    (index, fits)
                })
                .collect();
            let fitting: Vec<u32> = others.iter().filter(|(_, fits)| **fits).map(|(index, _)| *index).collect();
            match bench.admit(&name(number), &request) {
                Err(_) => prop_assert!(fitting.is_empty(), "cards {:?} had room", fitting),
                Ok(record) => {
                    let chosen = record.cards[0].index;
                    prop_assert!(fitting.contains(&chosen));
                    let ppm = |index| sums(index).memory.0 / mib(1).0;
                    let replicas = |index| {
                        let group = request.group.as_deref().map(super::super::index::group_hash);
                        group.and_then(|group| sums(index).groups.get(&group).copied()).unwrap_or(0)
                    };
                    for other in fitting {
                        match request.placement {
                            Placement::Binpack => prop_assert!(ppm(chosen) >= ppm(other)),
                            Placement::Spread => {
                                prop_assert!((replicas(chosen), ppm(chosen)) <= (replicas(other), ppm(other)));
                            }
                        }
                    }
                }
            }
        }
    }
}
