//! Channels and pinned host memory: whoever has a place has its floor of both, and their sums are
//! never exceeded.

use std::{error::Error, fs};

use base::{Bytes, CardPolicy};
use proptest::prelude::*;
use runtime_config::{
    config::WholeCards,
    request::{GpuRequest, MemoryLimit, PerCard, Share},
};
use serde_json::Value;

use crate::{
    AdmitError, Change, Limits, Record, Refusal, ReleaseReason,
    test_support::{Bench, devices, key, limits, mib, part, request, weight, with_policy},
};

/// 2048 of a card, less the kernel's.
const CHANNELS: u32 = 1920;

const fn gib(count: u64) -> Bytes {
    Bytes(count << 30)
}

fn share(cards: &[u32]) -> GpuRequest {
    with_policy(CardPolicy::Soft, request(devices(cards), part(1, weight(1))))
}

fn asking(cards: &[u32], pinned_memory: Bytes) -> GpuRequest {
    GpuRequest { pinned_memory: Some(pinned_memory), ..share(cards) }
}

fn whole(card: u32) -> GpuRequest {
    request(devices(&[card]), Share::Exclusive)
}

fn bench(cards: u32, limits: Limits) -> Bench {
    Bench { limits: Limits { default_policy: CardPolicy::Soft, ..limits }, ..Bench::new(cards) }
}

/// Text of the whole error chain.
fn text_of(error: &AdmitError) -> String {
    let source = error.source().map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

fn channels(record: &Record) -> u32 {
    record.cards[0].channels.unwrap()
}

#[test]
fn the_first_get_the_most_and_the_last_the_floor() {
    let with = |device_split_count| Limits { device_split_count, ..limits() };
    let table: [(Limits, &[(u32, u64)]); 4] = [
        (with(1), &[(512, 16 << 10)]),
        (with(4), &[(512, 16 << 10), (512, 16 << 10), (512, 16 << 10), (384, 16 << 10)]),
        (
            with(10),
            &[
                (512, 16 << 10),
                (512, 16 << 10),
                (196, 16 << 10),
                (100, 10 << 10),
                (100, 1 << 10),
                (100, 1 << 10),
                (100, 1 << 10),
                (100, 1 << 10),
                (100, 1 << 10),
                (100, 1 << 10),
            ],
        ),
        // A node with little memory: everybody has as much.
        (Limits { pinned_memory: gib(1), ..with(3) }, &[(512, 341), (512, 341), (512, 341)]),
    ];
    for (limits, expected) in table {
        let bench = bench(1, limits);
        for (number, (most_channels, most_mib)) in expected.iter().enumerate() {
            let record = bench.admit(&number.to_string(), &share(&[0])).unwrap();
            let got = (channels(&record), record.pinned_memory().whole_mib());
            assert_eq!(got, (*most_channels, *most_mib), "container {number} of {}", limits.device_split_count);
        }
        let refused = bench.admit("more", &share(&[0])).unwrap_err();
        assert!(text_of(&refused).contains("device_split_count"), "{refused:?}");
    }
}

#[test]
fn above_eighty_places_a_card_has_too_few_channels() {
    let bench = bench(1, Limits { device_split_count: 200, ..limits() });
    for number in 0..80 {
        let record = bench.admit(&number.to_string(), &share(&[0])).unwrap();
        assert_eq!((channels(&record), record.pinned_memory() >= mib(800)), (24, true));
    }
    let refused = text_of(&bench.admit("81", &share(&[0])).unwrap_err());
    let text = "0 of its channels are free, and a CUDA context needs 24: a card has enough for 80 containers, and device_split_count is \
                200; use another card, or wait until one of its containers ends";
    assert!(refused.ends_with(text), "{refused}");
}

#[test]
fn nobody_takes_the_nodes_pinned_memory_by_asking_for_it() {
    let bench = bench(1, limits());
    let refused = bench.admit("greedy", &asking(&[0], gib(56))).unwrap_err();
    assert_eq!(
        text_of(&refused),
        "the node cannot give container k8s.io/greedy what it asked for: 56GiB of pinned host memory needed, 55GiB of the node's 64GiB \
         free for one container: the rest is granted, or kept for the containers that device_split_count still allows; ask for less with \
         EGPU_PINNED_MEMORY, wait until another container ends, or raise pinned_memory in the configuration"
    );
    assert!(bench.files().is_empty());
    assert_eq!(bench.admit("large", &asking(&[0], gib(55))).unwrap().pinned_memory(), gib(55));
    for number in 0..9 {
        assert_eq!(bench.admit(&number.to_string(), &share(&[0])).unwrap().pinned_memory(), gib(1));
    }
}

/// Else the place would lack its floor when it is free again.
#[test]
fn who_asks_for_less_than_the_floor_leaves_it_to_the_place() {
    let bench = bench(1, Limits { device_split_count: 2, pinned_memory: gib(2), ..limits() });
    assert_eq!(bench.admit("small", &asking(&[0], mib(100))).unwrap().pinned_memory(), mib(100));
    assert_eq!(bench.admit("other", &share(&[0])).unwrap().pinned_memory(), gib(1));
    bench.ledger.release(&key("small"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(bench.admit("again", &share(&[0])).unwrap().pinned_memory(), gib(1));
}

#[test]
fn several_cards_are_several_places() {
    let bench = bench(3, Limits { device_split_count: 2, pinned_memory: gib(6), ..limits() });
    let record = bench.admit("three", &share(&[0, 1, 2])).unwrap();
    assert_eq!(record.pinned_memory(), gib(3));
    assert!(record.cards.iter().all(|card| (card.channels, card.pinned_memory) == (Some(512), Some(gib(1)))));
    assert_eq!(bench.admit("two", &share(&[2, 0])).unwrap().pinned_memory(), gib(2));
    assert_eq!(bench.admit("one", &share(&[1])).unwrap().pinned_memory(), gib(1));
}

/// A container that has a card for itself has all its places; one that is not mediated can be held
/// to nothing, and takes nothing that could be held.
#[test]
fn whole_cards_and_monitors() {
    let limited = Limits { device_split_count: 2, pinned_memory: gib(4), ..limits() };
    let bench = bench(2, Limits { whole_cards: WholeCards::Mediated, ..limited });
    let record = bench.admit("whole", &whole(0)).unwrap();
    assert_eq!((channels(&record), record.pinned_memory()), (512, gib(2)));
    assert_eq!(bench.admit("share", &share(&[1])).unwrap().pinned_memory(), gib(1));
    let record = bench.admit("monitor", &request(devices(&[0, 1]), Share::Monitor)).unwrap();
    assert_eq!((record.cards[0].channels, record.pinned_memory()), (None, Bytes(0)));

    let bench = self::bench(2, limited);
    let record = bench.admit("direct", &whole(0)).unwrap();
    assert_eq!((record.cards[0].channels, record.pinned_memory()), (None, Bytes(0)));
    assert_eq!(bench.admit("share", &share(&[1])).unwrap().pinned_memory(), gib(1), "its places may be free again");
    // One mediator for all cards of a container.
    let both = GpuRequest { whole_cards: devices(&[0]), ..share(&[1]) };
    bench.ledger.release(&key("direct"), ReleaseReason::Ended, &bench.log).unwrap();
    let record = bench.admit("both", &both).unwrap();
    assert_eq!((record.cards[1].channels, record.pinned_memory()), (Some(512), gib(3)));
}

#[test]
fn grants_of_an_older_egpu_count_as_the_floor() {
    let bench = bench(1, limits());
    for old in ["a", "b"] {
        bench.admit(old, &share(&[0])).unwrap();
    }
    for (name, bytes) in bench.files() {
        let mut record: Value = serde_json::from_slice(&bytes).unwrap();
        for grant in record["cards"].as_array_mut().unwrap() {
            let grant = grant.as_object_mut().unwrap();
            assert!(grant.remove("channels").is_some() && grant.remove("pinned_memory").is_some());
        }
        record["request"].as_object_mut().unwrap().remove("pinned_memory").unwrap();
        fs::write(bench.directory.path().join("ledger").join(name), record.to_string()).unwrap();
    }
    // As that egpu has left no index that this one reads.
    fs::remove_dir_all(bench.directory.path().join("index")).unwrap();
    let new: Vec<_> = (0..8).map(|number| bench.admit(&number.to_string(), &share(&[0])).unwrap()).collect();
    assert_eq!(new.iter().map(channels).sum::<u32>(), CHANNELS - 2 * 100);
    assert_eq!(new.iter().map(|record| record.pinned_memory().0).sum::<u64>(), gib(64 - 2).0);
    let old = bench.ledger.record(&key("a")).unwrap().unwrap();
    assert_eq!((old.cards[0].channels, old.pinned_memory()), (None, Bytes(0)));
}

#[test]
fn a_change_of_the_grant_leaves_them_as_they_are() {
    let bench = bench(1, Limits { device_split_count: 2, pinned_memory: gib(4), ..limits() });
    let before = bench.admit("a", &asking(&[0], gib(2))).unwrap();
    let change = Change { memory: Some(PerCard::same(MemoryLimit::bytes(mib(2)))), ..Change::default() };
    let after = bench.ledger.set(&bench.inventory, &bench.limits, &key("a"), &change, &bench.log).unwrap();
    assert_eq!((after.cards[0].memory, channels(&after), after.pinned_memory()), (mib(2), channels(&before), gib(2)));
}

/// Grants stay as they are; a newcomer gets its floor as long as that is there.
#[test]
fn the_configuration_changes_while_containers_run() {
    let mut bench = bench(1, Limits { device_split_count: 4, pinned_memory: gib(8), ..limits() });
    assert_eq!(bench.admit("first", &share(&[0])).unwrap().pinned_memory(), gib(5));
    bench.limits.device_split_count = 10;
    assert_eq!(bench.admit("second", &share(&[0])).unwrap().pinned_memory(), Bytes((8 << 30) / 10).floor_to_kib());
    bench.limits.pinned_memory = gib(6);
    let refused = text_of(&bench.admit("third", &share(&[0])).unwrap_err());
    assert!(refused.contains("of pinned host memory needed") && refused.contains("of the node's 6GiB"), "{refused}");
    bench.limits.pinned_memory = gib(20);
    assert_eq!(bench.admit("third", &share(&[0])).unwrap().pinned_memory(), gib(7));
}

#[derive(Debug, Clone)]
enum Step {
    Admit { id: u8, cards: Vec<u32>, whole: bool, asked: Option<u64> },
    Release { id: u8 },
}

const CARDS: u32 = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cards = || prop::sample::subsequence((0..CARDS).collect::<Vec<_>>(), 1..=2);
    let asked = prop::option::weighted(0.3, 1_u64..40_000);
    let admit = (0_u8..30, cards(), prop::bool::weighted(0.15), asked)
        .prop_map(|(id, cards, whole, asked)| Step::Admit { id, cards, whole, asked });
    prop::collection::vec(prop_oneof![3 => admit, 1 => (0_u8..30).prop_map(|id| Step::Release { id })], 1..50)
}

/// Computed here, and not by the ledger: what each card's containers hold of both, and what is kept
/// for its free places.
struct Node {
    limits: Limits,
    floor: u64,
    records: Vec<Record>,
}

impl Node {
    fn of(bench: &Bench) -> Self {
        let places = u64::from(CARDS * bench.limits.device_split_count);
        let floor = (bench.limits.pinned_memory.0 / places / 1024 * 1024).min(gib(1).0);
        Self { limits: bench.limits, floor, records: bench.ledger.records().unwrap() }
    }

    /// The floors of the container's places.
    fn own(&self, cards: usize, whole: bool) -> u64 {
        let places = if whole { self.limits.device_split_count } else { 1 };
        self.floor * u64::from(places) * cards as u64
    }

    /// All that is held or kept.
    fn claimed(&self) -> u64 {
        let mut free = CARDS * self.limits.device_split_count;
        let mut claimed = 0;
        for record in &self.records {
            let parts = record
                .cards
                .iter()
                .map(|grant| grant.pinned_memory.unwrap_or_default().0.max(self.own(1, grant.exclusive)));
            claimed += parts.sum::<u64>();
            let places = if record.exclusive { self.limits.device_split_count } else { 1 };
            free -= places * u32::try_from(record.cards.len()).unwrap();
        }
        claimed + u64::from(free) * self.floor
    }

    fn check(&self) {
        let channel_floor = (CHANNELS / self.limits.device_split_count).min(100);
        for card in 0..CARDS {
            let grants = self.records.iter().flat_map(|record| &record.cards).filter(|grant| grant.index == card);
            let shares: Vec<u32> =
                grants.filter(|grant| !grant.exclusive).map(|grant| grant.channels.unwrap()).collect();
            assert!(shares.iter().all(|channels| (channel_floor..=512).contains(channels)), "{shares:?}");
            let free = self.limits.device_split_count - u32::try_from(shares.len()).unwrap();
            assert!(
                shares.iter().sum::<u32>() + free * channel_floor <= CHANNELS,
                "{shares:?}, {free} places are free"
            );
        }
        let pinned: u64 = self.records.iter().map(|record| record.pinned_memory().0).sum();
        assert!(pinned <= self.limits.pinned_memory.0);
        assert!(self.claimed() <= self.limits.pinned_memory.0, "the floors of the free places are there");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whoever_has_a_place_has_its_floors(
        steps in steps(), split in 1_u32..=12, pinned_mib in 100_u64..80_000, unasked_mib in 50_u64..20_000, mediated: bool,
    ) {
        let whole_cards = if mediated { WholeCards::Mediated } else { WholeCards::Direct };
        let bench = bench(CARDS, Limits {
            device_split_count: split,
            pinned_memory: mib(pinned_mib),
            pinned_memory_unasked: mib(unasked_mib),
            whole_cards,
            ..limits()
        });
        for step in steps {
            match step {
                Step::Release { id } => {
                    let _ = bench.ledger.release(&key(&id.to_string()), ReleaseReason::Ended, &bench.log);
                }
                Step::Admit { id, cards, whole, asked } => {
                    let node = Node::of(&bench);
                    let request = if whole { request(devices(&cards), Share::Exclusive) } else { share(&cards) };
                    let asked = asked.map(mib).filter(|_| mediated || !whole);
                    let request = GpuRequest { pinned_memory: asked, ..request };
                    let own = node.own(cards.len(), whole);
                    match bench.admit(&id.to_string(), &request) {
                        Ok(record) if record.cards[0].channels.is_some() => {
                            let least = own.min(mib(unasked_mib).0);
                            match asked {
                                Some(asked) => prop_assert_eq!(record.pinned_memory(), asked),
                                None => prop_assert!(record.pinned_memory().0 >= least),
                            }
                        }
                        Ok(record) => prop_assert_eq!(record.pinned_memory(), Bytes(0)),
                        Err(AdmitError::PinnedMemory { .. }) => {
                            let free = pinned_mib * Bytes::MIB - (node.claimed() - own);
                            prop_assert!(asked.is_some_and(|asked| asked.0 > free / 1024 * 1024), "{free} free");
                        }
                        Err(AdmitError::Card { source, .. }) => {
                            prop_assert!(!matches!(*source, Refusal::Channels { .. }), "{source:?}");
                        }
                        Err(error) => prop_assert!(matches!(error, AdmitError::AlreadyAdmitted { .. }), "{error:?}"),
                    }
                }
            }
            Node::of(&bench).check();
        }
    }
}
