//! Timetables: their writing at every change, and the promises that they keep.

use std::collections::{BTreeMap, BTreeSet};

use base::{Bytes, CardPolicy, ComputeEnforcement, ComputeShare, Period, Priority};
use proptest::prelude::*;
use runtime_config::request::{CardRequest, GpuRequest, Isolation, PerCard, Share};
use schedule::{CardTurn, Epoch, Pass, Timetable, Turn, Window};

use crate::{
    AdmitErrorKind, CardSetting, Change, Ledger, Record, ReleaseReason,
    test_support::{Bench, SHIM, bytes, cap, devices, key, mib, part, request, weight, with_policy},
};

const MS: u64 = 1000;

fn table(bench: &Bench) -> Timetable {
    Ledger::timetable(bench.directory.path()).unwrap()
}

fn share(cards: &[u32], compute: ComputeShare) -> GpuRequest {
    request(devices(cards), part(1024, compute))
}

fn uuid(bench: &Bench, index: usize) -> &str {
    &bench.inventory.cards[index].uuid
}

fn window(start_ms: u64, end_ms: u64) -> Window {
    Window { start_us: start_ms * MS, end_us: end_ms * MS }
}

/// Pass of a container on a card in an epoch; `None`: it has no turn.
fn pass<'a>(epoch: &'a Epoch, record: &Record, uuid: &str) -> Option<&'a Pass> {
    Some(&epoch.turn(&record.grant_id)?.card(uuid)?.pass)
}

/// The same at the end of the timetable.
fn at_last(bench: &Bench, record: &Record, card: usize) -> Option<Pass> {
    pass(table(bench).epochs.last().unwrap(), record, uuid(bench, card)).cloned()
}

fn windows(list: &[(u64, u64)]) -> Option<Pass> {
    Some(Pass::Windows(list.iter().map(|(start_ms, end_ms)| window(*start_ms, *end_ms)).collect()))
}

#[test]
fn who_comes_into_free_time_runs_at_once_and_nobody_else_is_touched() {
    let bench = Bench::new(1);
    bench.node.pass(777);
    let first = bench.admit("first", &share(&[0], cap(30))).unwrap();
    let second = bench.admit("second", &share(&[0], cap(20))).unwrap();
    let table = table(&bench);
    assert_eq!(table.epochs.len(), 1);
    assert_eq!(table.epochs[0].from_us, 777);
    assert_eq!(at_last(&bench, &first, 0), windows(&[(0, 30)]));
    assert_eq!(at_last(&bench, &second, 0), windows(&[(30, 50)]));
    let turn = table.epochs[0].turn(&first.grant_id).unwrap();
    assert_eq!((turn.period_us, turn.cards[0].share_ppm, turn.cards[0].memory), (100 * MS, 300_000, mib(1024)));
    let others = table.epochs[0].neighbours(&first.grant_id, uuid(&bench, 0)).map(|(turn, _)| &turn.grant_id);
    assert_eq!(others.collect::<Vec<_>>(), [&second.grant_id]);
    // One goes: the other stays where it is, and the next takes the place.
    bench.ledger.release(&key("first"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(at_last(&bench, &second, 0), windows(&[(30, 50)]));
    let third = bench.admit("third", &share(&[0], cap(25))).unwrap();
    assert_eq!(at_last(&bench, &third, 0), windows(&[(0, 25)]));
    assert_eq!(self::table(&bench).epochs.len(), 1);
}

#[test]
fn who_takes_time_from_others_waits_for_the_epoch_and_they_keep_theirs_until_then() {
    let bench = Bench::new(1);
    bench.node.pass(1_000_000 + 1);
    let uncapped = bench.admit("uncapped", &share(&[0], ComputeShare::Unlimited)).unwrap();
    assert_eq!(at_last(&bench, &uncapped, 0), Some(Pass::Turns(1)));
    let capped = bench.admit("capped", &share(&[0], cap(40))).unwrap();
    let timetable = table(&bench);
    assert_eq!(timetable.epochs.iter().map(|epoch| epoch.from_us).collect::<Vec<_>>(), [1_000_001, 1_300_000]);
    assert_eq!(pass(&timetable.epochs[0], &uncapped, uuid(&bench, 0)), Some(&Pass::Turns(1)));
    assert_eq!(pass(&timetable.epochs[0], &capped, uuid(&bench, 0)), None);
    assert_eq!(at_last(&bench, &capped, 0), windows(&[(0, 40)]));
    assert_eq!(at_last(&bench, &uncapped, 0), windows(&[(40, 100)]));
    // Meanwhile: a change of the same card does not put off what was written, and comes at its own
    // time.
    bench.node.pass(150 * MS);
    bench.ledger.release(&key("capped"), ReleaseReason::Ended, &bench.log).unwrap();
    let timetable = table(&bench);
    assert_eq!(
        timetable.epochs.iter().map(|epoch| epoch.from_us).collect::<Vec<_>>(),
        [1_000_001, 1_300_000, 1_400_000]
    );
    assert_eq!(pass(&timetable.epochs[1], &uncapped, uuid(&bench, 0)), windows(&[(40, 100)]).as_ref());
    assert_eq!(at_last(&bench, &uncapped, 0), Some(Pass::Turns(1)));
    // What is over is forgotten.
    bench.node.pass(1000 * MS);
    bench.admit("other", &share(&[0], ComputeShare::Unlimited)).unwrap();
    assert_eq!(table(&bench).epochs.len(), 1);
}

#[test]
fn a_new_period_begins_when_old_and_new_begin_together_or_soon() {
    let bench = Bench::new(1);
    bench.node.pass(10 * MS);
    let first = bench.admit("first", &share(&[0], cap(50))).unwrap();
    bench.admit("second", &share(&[0], cap(4))).unwrap();
    let timetable = table(&bench);
    assert_eq!(timetable.epochs[1].turn(&first.grant_id).unwrap().period_us, 125 * MS);
    assert_eq!(timetable.epochs[1].from_us, 500 * MS, "both periods begin");
    bench.node.pass(600 * MS);
    bench.admit("third", &share(&[0], cap(3))).unwrap();
    let timetable = table(&bench);
    assert_eq!(timetable.epochs[1].turn(&first.grant_id).unwrap().period_us, 170 * MS);
    assert_eq!(timetable.epochs[1].from_us, 1020 * MS, "the new period begins");
}

#[test]
fn each_policy_divides_as_it_says() {
    let on = |policy, compute| with_policy(policy, share(&[0], compute));
    let two = |policy, first: ComputeShare, second: ComputeShare| {
        let bench = Bench::new(1);
        let first = bench.admit("first", &on(policy, first)).unwrap();
        let alone = at_last(&bench, &first, 0).unwrap();
        let second = bench.admit("second", &on(policy, second)).unwrap();
        (alone, at_last(&bench, &first, 0).unwrap(), at_last(&bench, &second, 0).unwrap())
    };
    let (one, none) = (weight(1), ComputeShare::Unlimited);
    let in_us = |start_us, end_us| Pass::Windows(vec![Window { start_us, end_us }]);
    assert_eq!(two(CardPolicy::Fair, one, none), (in_us(0, 6250), in_us(0, 6250), in_us(6250, 12_500)));
    assert_eq!(two(CardPolicy::Weighted, one, weight(3)), (Pass::Free, in_us(0, 25_059), in_us(25_059, 99_998)));
    assert_eq!(two(CardPolicy::Weighted, weight(2), weight(6)), (Pass::Free, in_us(0, 25_059), in_us(25_059, 99_998)));
    assert_eq!(two(CardPolicy::Fixed, weight(4), cap(50)), (in_us(0, 25_000), in_us(0, 25_000), in_us(25_000, 75_000)));
    let turns = |weights: [u32; 3]| weights.map(Pass::Turns).into();
    assert_eq!(two(CardPolicy::Fixed, none, none), turns([1, 1, 1]));
    assert_eq!(two(CardPolicy::Adaptive, weight(7), none), turns([7, 7, 1]));
    assert_eq!(two(CardPolicy::Soft, weight(7), none), (Pass::Weight(7), Pass::Weight(7), Pass::Weight(1)));
    assert_eq!(two(CardPolicy::Native, none, none), (Pass::Free, Pass::Free, Pass::Free));
    let skipped = Pass::Windows(Vec::new());
    assert_eq!(two(CardPolicy::Preemptive, one, none), (skipped.clone(), skipped.clone(), skipped));
}

#[test]
fn nobody_takes_turns_beside_one_with_several_cards() {
    for (policy, weights, expected) in [
        (CardPolicy::Fixed, [ComputeShare::Unlimited; 2], [Pass::Free, Pass::Free]),
        (CardPolicy::Adaptive, [weight(2), weight(3)], [Pass::Weight(2), Pass::Weight(3)]),
    ] {
        let bench = Bench::new(2);
        let both = bench.admit("both", &with_policy(policy, share(&[0, 1], weights[0]))).unwrap();
        let one = bench.admit("one", &with_policy(policy, share(&[1], weights[1]))).unwrap();
        let passes = [(&both, 1), (&one, 1)].map(|(record, card)| at_last(&bench, record, card).unwrap());
        assert_eq!(passes, expected, "they would be at other instants on each card");
    }
}

#[test]
fn preemptive_skips_those_without_processes() {
    let bench = Bench::new(1);
    let records: Vec<Record> = ["a", "b", "c"]
        .map(|id| bench.admit(id, &with_policy(CardPolicy::Preemptive, share(&[0], ComputeShare::Unlimited))).unwrap())
        .into();
    let present = |id: &str, present| bench.ledger.set_present(&key(id), present).unwrap();
    let passes = || -> Vec<Pass> { records.iter().map(|record| at_last(&bench, record, 0).unwrap()).collect() };
    let none = || Pass::Windows(Vec::new());
    present("b", true);
    assert_eq!(passes(), [none(), Pass::Free, none()]);
    present("c", true);
    assert_eq!(passes(), [none(), windows(&[(0, 50)]).unwrap(), windows(&[(50, 100)]).unwrap()]);
    let before = table(&bench).revision;
    present("c", true);
    bench.ledger.set_present(&key("nobody"), true).unwrap();
    assert_eq!(table(&bench).revision, before, "nothing is new");
    present("b", false);
    assert_eq!(passes(), [none(), none(), Pass::Free]);
    assert!(bench.ledger.record(&key("c")).unwrap().unwrap().present);
}

#[test]
fn a_lifted_cap_comes_back_with_the_neighbour() {
    let bench = Bench::new(2);
    let lifted = ComputeShare::Cap { percent: base::Percent::new(30).unwrap(), lifted_when_alone: true };
    let first = bench.admit("first", &share(&[0, 1], lifted)).unwrap();
    assert_eq!(at_last(&bench, &first, 0), Some(Pass::Free));
    let second = bench.admit("second", &share(&[0], cap(60))).unwrap();
    assert_eq!(at_last(&bench, &first, 0), windows(&[(0, 30)]));
    assert_eq!(at_last(&bench, &first, 1), Some(Pass::Free), "alone on that one");
    assert_eq!(at_last(&bench, &second, 0), windows(&[(30, 90)]));
    bench.ledger.release(&key("second"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(at_last(&bench, &first, 0), Some(Pass::Free));
}

#[test]
fn containers_without_a_cap_share_what_is_left() {
    let bench = Bench::new(2);
    bench.admit("capped", &share(&[0], cap(50))).unwrap();
    bench.admit("on one", &share(&[1], cap(70))).unwrap();
    let single = bench.admit("single", &share(&[0], ComputeShare::Unlimited)).unwrap();
    let both = bench.admit("both", &share(&[0, 1], ComputeShare::Unlimited)).unwrap();
    let gone = Share::Part {
        memory: PerCard::same(bytes(mib(64))),
        compute: PerCard::same(ComputeShare::Unlimited),
        isolation: Isolation::None,
    };
    let unlimited = bench.admit("unlimited", &request(devices(&[0]), gone)).unwrap();
    assert_eq!(at_last(&bench, &single, 0), windows(&[(50, 100)]));
    assert_eq!(at_last(&bench, &both, 0), windows(&[(70, 100)]), "only where both cards are free");
    assert_eq!(at_last(&bench, &both, 1), windows(&[(70, 100)]));
    assert_eq!(at_last(&bench, &unlimited, 0), Some(Pass::Free));
    let table = table(&bench);
    let last = table.epochs.last().unwrap();
    let turn = |record: &Record| last.turn(&record.grant_id).unwrap().card(uuid(&bench, 0)).unwrap();
    assert_eq!((turn(&single).share_ppm, turn(&both).share_ppm), (250_000, 150_000), "two share it");
    assert_eq!(turn(&unlimited).memory, CardTurn::NO_LIMIT);
}

#[test]
fn whole_cards_and_monitors_have_no_turns() {
    let bench = Bench::new(2);
    bench.admit("whole", &request(devices(&[0]), Share::Exclusive)).unwrap();
    bench.admit("monitor", &request(CardRequest::All, Share::Monitor)).unwrap();
    assert!(table(&bench).epochs.iter().all(|epoch| epoch.turns.is_empty()));
}

#[test]
fn changes_hold_together_or_not_at_all() {
    let bench = Bench::new(1);
    let first = bench.admit("first", &share(&[0], cap(30))).unwrap();
    bench.admit("second", &share(&[0], cap(60))).unwrap();
    let set =
        |id: &str, change: &Change| bench.ledger.set(&bench.inventory, &bench.limits, &key(id), change, &bench.log);
    let compute = |compute| Change { compute: Some(PerCard::same(compute)), ..Change::default() };
    let memory = |mib: u64| Some(PerCard::same(runtime_config::request::MemoryLimit::bytes(Bytes(mib << 20))));
    bench.take_log();

    let files = bench.files();
    let error = crate::decision_log::chain(&set("first", &compute(cap(41))).unwrap_err());
    assert!(error.contains("41% of compute asked, 40% free") && error.contains("k8s.io/second"), "{error}");
    let error = set("first", &Change { memory: memory(31 * 1024 + 1), ..compute(cap(10)) }).unwrap_err();
    let text = crate::decision_log::chain(&error);
    assert!(text.contains("of memory asked, 31GiB of 32GiB free"), "{text}");
    assert!(text.contains("these limits: ") && text.contains("it is also held by k8s.io/"), "{text}");
    let error = set("first", &compute(weight(7))).unwrap_err();
    assert!(crate::decision_log::chain(&error).contains("44% of compute asked, 40% free"), "{error:?}");
    set("first", &compute(cap(30))).unwrap();
    let error = set("nobody", &compute(cap(1))).unwrap_err();
    assert!(error.to_string().contains("k8s.io/nobody has no grant"));
    assert_eq!(bench.files(), files, "what is refused changes nothing");
    assert!(
        bench.take_log().iter().any(|line| line.starts_with("event=refuse") && line.contains("change=\"compute=41%\""))
    );

    let low = Change { memory: memory(2048), priority: Some(Priority::Low), ..compute(cap(40)) };
    let record = set("first", &low).unwrap();
    assert_eq!(record, bench.ledger.record(&key("first")).unwrap().unwrap());
    assert_eq!((record.cards[0].memory, record.cards[0].compute), (mib(2048), cap(40)));
    assert_eq!((record.priority(), record.request.priority), (Priority::Low, Priority::High));
    let timetable = table(&bench);
    let turn = |epoch: &Epoch| epoch.turn(&first.grant_id).unwrap().clone();
    let (now, then) = (turn(&timetable.epochs[0]), turn(timetable.epochs.last().unwrap()));
    assert_eq!((now.cards[0].memory, now.priority), (mib(1024), Priority::High), "as it was until the epoch");
    assert_eq!((then.cards[0].memory, then.priority, then.cards[0].share_ppm), (mib(2048), Priority::Low, 400_000));
    let log = bench.take_log();
    assert!(log[0].starts_with("event=change container=k8s.io/first"), "{log:?}");
    assert!(log[0].contains("to=\"memory=2GiB compute=40% priority=low\""), "{log:?}");
    // What was set is what others see.
    assert!(bench.admit("third", &share(&[0], cap(1))).is_err());
}

#[test]
fn a_preview_answers_as_the_change_would_and_changes_nothing() {
    let bench = Bench::new(1);
    bench.admit("first", &share(&[0], cap(30))).unwrap();
    bench.admit("second", &share(&[0], cap(60))).unwrap();
    bench.take_log();
    let (ledger, inventory, limits) = (&bench.ledger, &bench.inventory, &bench.limits);
    let change = |percent| Change { compute: Some(PerCard::same(cap(percent))), ..Change::default() };
    let soft = CardSetting { policy: Some(CardPolicy::Soft), period: None };
    let files = bench.files();
    let granted = ledger.preview_set(inventory, limits, &key("first"), &change(40)).unwrap();
    let refused = ledger.preview_set(inventory, limits, &key("first"), &change(41)).unwrap_err();
    let policy = ledger.preview_policy(inventory, limits, uuid(&bench, 0), soft).unwrap_err();
    assert_eq!((bench.files(), bench.take_log()), (files, Vec::new()));
    let set = |percent| ledger.set(inventory, limits, &key("first"), &change(percent), &bench.log);
    assert_eq!(set(41).unwrap_err().to_string(), refused.to_string());
    let soft = ledger.set_policy(inventory, limits, uuid(&bench, 0), soft, &bench.log).unwrap_err();
    assert_eq!(soft.to_string(), policy.to_string());
    assert_eq!(set(40).unwrap(), granted);
}

#[test]
fn some_grants_cannot_be_changed() {
    let bench = Bench::new(3);
    let fixed = GpuRequest { live_update: false, ..share(&[0], cap(30)) };
    bench.admit("online0", &fixed).unwrap();
    bench.admit("whole", &request(devices(&[1]), Share::Exclusive)).unwrap();
    let isolation = |isolation| {
        let (memory, compute) = (PerCard::same(bytes(mib(64))), PerCard::same(ComputeShare::Unlimited));
        request(devices(&[2]), Share::Part { memory, compute, isolation })
    };
    bench.admit("memory", &isolation(Isolation::Memory)).unwrap();
    bench.admit("none", &isolation(Isolation::None)).unwrap();
    let change = |compute, listed: usize| Change {
        compute: Some(PerCard::exactly(vec![compute; listed])),
        memory: Some(PerCard::same(runtime_config::request::MemoryLimit::bytes(mib(65)))),
        priority: None,
    };
    let set = |id: &str, change: &Change| {
        let result = bench.ledger.set(&bench.inventory, &bench.limits, &key(id), change, &bench.log);
        result.map_err(|error| error.to_string())
    };
    assert!(set("online0", &change(cap(10), 1)).unwrap_err().contains("ONLINE=0"));
    assert!(set("whole", &change(cap(10), 1)).unwrap_err().contains("the whole card"));
    assert!(set("memory", &change(cap(10), 1)).unwrap_err().contains("isolation memory"));
    assert!(set("none", &change(cap(10), 1)).unwrap_err().contains("isolation none"));
    set("memory", &Change { compute: None, ..change(cap(10), 1) }).unwrap();
    bench.admit("two", &share(&[0], cap(10))).unwrap();
    assert!(set("two", &change(cap(10), 2)).unwrap_err().contains("list of compute limits"));
    // A cap needs the policy that has caps.
    bench.ledger.release(&key("online0"), ReleaseReason::Ended, &bench.log).unwrap();
    bench.ledger.release(&key("two"), ReleaseReason::Ended, &bench.log).unwrap();
    bench.admit("soft", &with_policy(CardPolicy::Soft, share(&[0], weight(5)))).unwrap();
    let error = bench.ledger.set(&bench.inventory, &bench.limits, &key("soft"), &change(cap(10), 1), &bench.log);
    assert!(crate::decision_log::chain(&error.unwrap_err()).contains("policy fixed is needed, and the card has soft"));
    set("soft", &change(weight(500), 1)).unwrap();
}

#[test]
fn a_cards_policy_and_period_are_set_for_all_its_containers_and_those_to_come() {
    let bench = Bench::new(2);
    let first = bench.admit("first", &with_policy(CardPolicy::Weighted, share(&[0], weight(1)))).unwrap();
    let second = bench.admit("second", &with_policy(CardPolicy::Weighted, share(&[0], weight(3)))).unwrap();
    let card = uuid(&bench, 0).to_owned();
    let set =
        |setting: CardSetting| bench.ledger.set_policy(&bench.inventory, &bench.limits, &card, setting, &bench.log);
    let policy = |policy| CardSetting { policy: Some(policy), period: None };
    let passes = || (at_last(&bench, &first, 0).unwrap(), at_last(&bench, &second, 0).unwrap());
    assert_eq!(set(policy(CardPolicy::Soft)).unwrap(), policy(CardPolicy::Soft));
    assert_eq!(passes(), (Pass::Weight(1), Pass::Weight(3)));
    let period = CardSetting { policy: None, period: Some(Period::Us(200 * MS)) };
    assert_eq!(set(period).unwrap(), CardSetting { policy: Some(CardPolicy::Soft), ..period });
    set(policy(CardPolicy::Weighted)).unwrap();
    let in_us = |start_us, end_us| Pass::Windows(vec![Window { start_us, end_us }]);
    assert_eq!(passes(), (in_us(0, 50_059), in_us(50_059, 199_998)));
    let records = bench.ledger.records().unwrap();
    assert!(records.iter().all(|record| record.cards[0].policy == CardPolicy::Weighted));
    for period_us in [19_999, 500_001] {
        let error = set(CardSetting { policy: None, period: Some(Period::Us(period_us)) }).unwrap_err();
        assert!(error.to_string().contains("20ms to 500ms"), "{error}");
    }
    let unknown = bench.ledger.set_policy(&bench.inventory, &bench.limits, "GPU-x", period, &bench.log).unwrap_err();
    assert!(unknown.to_string().contains("no card GPU-x"));

    // Empty, it keeps what was set; a request that needs another policy has it.
    for id in ["first", "second"] {
        bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap();
    }
    let policy_of = |id: &str, request: &GpuRequest| {
        let record = bench.admit(id, request).unwrap();
        bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap();
        record.cards[0].policy
    };
    assert_eq!(policy_of("any", &share(&[0], ComputeShare::Unlimited)), CardPolicy::Weighted);
    assert_eq!(policy_of("any", &share(&[0], cap(10))), CardPolicy::Fixed);
    assert_eq!(policy_of("any", &share(&[1], ComputeShare::Unlimited)), CardPolicy::Fixed);

    // What its containers were granted must hold.
    bench.admit("capped", &share(&[0], cap(10))).unwrap();
    let error = set(policy(CardPolicy::Soft)).unwrap_err();
    let text = crate::decision_log::chain(&error);
    assert!(text.contains("container k8s.io/capped") && text.contains("a cap needs policy fixed"), "{text}");
    assert_eq!(
        bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap()[0].setting.policy,
        Some(CardPolicy::Weighted)
    );
}

#[test]
fn cards_without_firmware_refuse_caps_or_make_them_weights() {
    use runtime_config::config::HardCapsUnavailable;
    let mut bench = Bench::new(1);
    bench.inventory.cards[0].hard_caps = false;
    let error = bench.admit("capped", &share(&[0], cap(30))).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
    let text = crate::decision_log::chain(&error);
    assert!(text.contains("compute=30% would be a hard cap") && text.contains("hard_caps_unavailable"), "{text}");
    let fair = with_policy(CardPolicy::Fair, share(&[0], ComputeShare::Unlimited));
    assert!(bench.admit("fair", &fair).is_err());
    bench.admit("soft", &with_policy(CardPolicy::Soft, share(&[0], weight(3)))).unwrap();
    bench.ledger.release(&key("soft"), ReleaseReason::Ended, &bench.log).unwrap();

    bench.limits.hard_caps_unavailable = HardCapsUnavailable::Degrade;
    bench.take_log();
    let capped = bench.admit("capped", &share(&[0], cap(30))).unwrap();
    assert!(bench.take_log().iter().any(|line| line.starts_with("event=warn") && line.contains("a weight, not a cap")));
    let slices = bench.admit("slices", &with_policy(CardPolicy::Fixed, share(&[0], weight(4)))).unwrap();
    let uncapped = bench.admit("uncapped", &share(&[0], ComputeShare::Unlimited)).unwrap();
    let passes = [&capped, &slices, &uncapped].map(|record| at_last(&bench, record, 0).unwrap());
    assert_eq!(passes, [Pass::Weight(30), Pass::Weight(25), Pass::Weight(45)]);
}

#[test]
fn windows_by_weight_follow_what_they_lose() {
    let bench = Bench::new(1);
    let card = uuid(&bench, 0).to_owned();
    let of = |compute| with_policy(CardPolicy::Weighted, share(&[0], compute));
    let (one, other) = (bench.admit("one", &of(weight(1))).unwrap(), bench.admit("other", &of(weight(1))).unwrap());
    let lose =
        |us| bench.ledger.set_window_losses(&key("one"), &[(card.clone(), us), ("GPU-other".into(), 9)]).unwrap();
    let length = |record: &Record| match at_last(&bench, record, 0) {
        Some(Pass::Windows(windows)) => windows[0].end_us - windows[0].start_us,
        other => panic!("{other:?}"),
    };
    assert_eq!((length(&one), length(&other)), (50_000, 50_000));
    lose(600);
    assert_eq!((length(&one), length(&other)), (50_299, 49_699));
    let revision = table(&bench).revision;
    lose(640);
    assert_eq!(table(&bench).revision, revision, "hardly anything has changed");
    lose(1_000_000);
    assert_eq!(length(&one), 51_000, "no more than opening and closing can lose");
    let change = Change { compute: Some(PerCard::same(weight(2))), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("one"), &change, &bench.log).unwrap();
    assert_eq!(length(&one), 67_293, "it is kept");
    bench.ledger.set_window_losses(&key("gone"), &[(card, 9)]).unwrap();
}

#[test]
fn a_configuration_that_takes_from_who_runs_waits_until_they_have_ended() {
    let mut bench = Bench::new(2);
    let fair = |card| with_policy(CardPolicy::Fair, share(&[card], ComputeShare::Unlimited));
    let running: Vec<Record> = (0..5).map(|index| bench.admit(&format!("r{index}"), &fair(0)).unwrap()).collect();
    bench.limits.max_inst = 4;
    bench.take_log();
    let other = bench.admit("other", &fair(1)).unwrap();
    let warned = |log: Vec<String>| log.iter().any(|line| line.starts_with("event=warn") && line.contains("16 -> 4"));
    assert!(warned(bench.take_log()));
    let length = |record: &Record, card| match at_last(&bench, record, card) {
        Some(Pass::Windows(windows)) => windows.iter().map(|window| window.end_us - window.start_us).sum::<u64>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(running.iter().map(|record| length(record, 0)).collect::<Vec<_>>(), [6_250; 5]);
    assert_eq!(length(&other, 1), 6_250);
    for record in &running[..2] {
        bench.ledger.release(&record.container, ReleaseReason::Ended, &bench.log).unwrap();
    }
    bench.take_log();
    bench.admit("next", &fair(1)).unwrap();
    assert!(!warned(bench.take_log()));
    assert_eq!((length(&running[2], 0), length(&other, 1)), (25_000, 25_000));
}

/// Earlier settings are kept for the sake of their promises, which are not kept here either.
#[test]
fn a_configuration_is_followed_where_the_one_before_cannot_be() {
    let mut bench = Bench::new(2);
    let slices = |card, count| with_policy(CardPolicy::Fixed, share(&[card], weight(count)));
    bench.limits.max_inst = 24;
    for id in ["first", "second"] {
        bench.admit(id, &slices(0, 12)).unwrap();
    }
    // It is lost, and of the 16 slices that are the default the two have 24; of the 20 that are to
    // be, too.
    std::fs::remove_file(bench.directory.path().join("settings.json")).unwrap();
    bench.limits.max_inst = 20;
    bench.take_log();
    let other = bench.admit("other", &slices(1, 10)).unwrap();
    let log = bench.take_log();
    assert!(!log.iter().any(|line| line.contains("the configuration is followed once")), "{log:#?}");
    assert_eq!(at_last(&bench, &other, 1), windows(&[(0, 50)]));
}

#[test]
fn what_a_card_turned_out_not_to_do_is_a_weight_and_stays_one() {
    let bench = Bench::new(1);
    let found = bench.admit("found", &share(&[0], cap(30))).unwrap();
    let other = bench.admit("other", &share(&[0], cap(50))).unwrap();
    bench.take_log();
    let uuid = &bench.inventory.cards[0].uuid;
    for _ in 0..2 {
        bench.ledger.set_weights_only(&key("found"), uuid, &bench.log).unwrap();
    }
    bench.ledger.set_weights_only(&key("found"), "GPU-other", &bench.log).unwrap();
    bench.ledger.set_weights_only(&key("gone"), uuid, &bench.log).unwrap();
    let timetable: Vec<String> =
        bench.take_log().into_iter().filter(|line| line.contains("a weight, not a cap")).collect();
    assert_eq!(timetable.len(), 1, "{timetable:?}");
    let compute_by = || bench.ledger.record(&key("found")).unwrap().unwrap().cards[0].compute_by;
    assert_eq!(compute_by(), ComputeEnforcement::WeightsOnly);
    assert_eq!(at_last(&bench, &found, 0), Some(Pass::Weight(30)));
    assert!(
        matches!(at_last(&bench, &other, 0), Some(Pass::Windows(_))),
        "each container's mediator finds out for itself"
    );
    let change = Change { compute: Some(PerCard::same(cap(40))), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("found"), &change, &bench.log).unwrap();
    assert_eq!(compute_by(), ComputeEnforcement::WeightsOnly);
    assert_eq!(at_last(&bench, &found, 0), Some(Pass::Weight(40)));
}

#[test]
fn a_timetable_that_is_missing_spoilt_or_not_of_the_records_is_made_anew() {
    let path = |bench: &Bench| bench.directory.path().join("timetable").join(format!("{}.json", uuid(bench, 0)));
    for spoil in ["missing", "spoilt", "of another boot", "stale"] {
        let mut bench = Bench::new(1);
        let first = bench.admit("first", &share(&[0], cap(30))).unwrap();
        let old = std::fs::read(path(&bench)).unwrap();
        let second = bench.admit("second", &share(&[0], cap(30))).unwrap();
        match spoil {
            "missing" => std::fs::remove_file(path(&bench)).unwrap(),
            "spoilt" => std::fs::write(path(&bench), "{").unwrap(),
            "stale" => std::fs::write(path(&bench), old).unwrap(),
            _ => {
                let own = Ledger::card_timetable(bench.directory.path(), uuid(&bench, 0)).unwrap();
                let other = Timetable { boot_id: "another".into(), ..own };
                std::fs::write(path(&bench), serde_json::to_vec(&other).unwrap()).unwrap();
            }
        }
        bench.reopen();
        // Whatever it is that takes the lock.
        bench.ledger.reclaim(&bench.log).unwrap();
        assert!(at_last(&bench, &first, 0).is_some() && at_last(&bench, &second, 0).is_some(), "{spoil}");
    }
    assert!(matches!(Ledger::timetable(std::path::Path::new("/nonexistent")), Err(crate::TimetableError::Read { .. })));
}

#[test]
fn a_change_rewrites_the_cards_that_are_tied_to_it_and_no_other() {
    use std::os::unix::fs::MetadataExt as _;
    let bench = Bench::new(3);
    let file = |card| bench.directory.path().join("timetable").join(format!("{}.json", uuid(&bench, card)));
    let inode = |card| std::fs::metadata(file(card)).ok().map(|found| found.ino());
    let inodes = || [0, 1, 2].map(inode);
    for card in 0..3 {
        bench.admit(&format!("first on {card}"), &share(&[card], ComputeShare::Unlimited)).unwrap();
    }
    let before = inodes();
    bench.admit("second", &share(&[0], cap(20))).unwrap();
    let alone = inodes();
    assert!(alone[0] != before[0] && alone[1..] == before[1..]);
    let both = bench.admit("both", &share(&[0, 1], cap(20))).unwrap();
    let connected = inodes();
    assert!(connected[0] != alone[0] && connected[1] != alone[1] && connected[2] == alone[2]);
    assert_eq!(at_last(&bench, &both, 0), at_last(&bench, &both, 1));
    bench.ledger.release(&key("second"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(inode(2), before[2]);
    // A card that nobody shares has none, and nobody has to make it anew.
    bench.ledger.release(&key("first on 2"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(inode(2), None);
    let left = inodes();
    bench.ledger.reclaim(&bench.log).unwrap();
    assert_eq!(inodes(), left);
}

#[derive(Debug, Clone)]
enum Step {
    Admit { id: u8, request: Box<GpuRequest> },
    Release { id: u8 },
    Set { id: u8, compute: ComputeShare },
    Present { id: u8, present: bool },
    Policy { card: usize, policy: Option<CardPolicy>, period_ms: Option<u64> },
    Die { id: u8 },
    Pass { ms: u64 },
}

fn policies() -> impl Strategy<Value = CardPolicy> {
    prop::sample::select(CardPolicy::ALL)
}

fn computes() -> impl Strategy<Value = ComputeShare> {
    prop_oneof![
        5 => (1_u8..=60, any::<bool>()).prop_map(|(percent, lifted_when_alone)| ComputeShare::Cap {
            percent: base::Percent::new(percent).unwrap(),
            lifted_when_alone,
        }),
        2 => Just(ComputeShare::Unlimited),
        2 => (1_u16..=6).prop_map(weight),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = || 0_u8..8;
    let requests =
        (prop::sample::subsequence(vec![0_u32, 1, 2], 1..=2), computes(), prop::option::weighted(0.3, policies()))
            .prop_map(|(cards, compute, policy)| GpuRequest { policy, ..share(&cards, compute) });
    prop::collection::vec(
        prop_oneof![
            6 => (id(), requests).prop_map(|(id, request)| Step::Admit { id, request: Box::new(request) }),
            2 => id().prop_map(|id| Step::Release { id }),
            2 => (id(), computes()).prop_map(|(id, compute)| Step::Set { id, compute }),
            2 => (id(), any::<bool>()).prop_map(|(id, present)| Step::Present { id, present }),
            1 => (0_usize..3, prop::option::of(policies()), prop::option::of(20_u64..=500))
                .prop_map(|(card, policy, period_ms)| Step::Policy { card, policy, period_ms }),
            1 => id().prop_map(|id| Step::Die { id }),
            4 => (0_u64..400).prop_map(|ms| Step::Pass { ms }),
        ],
        1..40,
    )
}

fn run(bench: &Bench, step: &Step) {
    let (inventory, limits, log) = (&bench.inventory, &bench.limits, &bench.log);
    let name = |id: &u8| key(&format!("c{id}"));
    match step {
        Step::Admit { id, request } => {
            bench.node.start(SHIM + 1 + i32::from(*id));
            let _ = bench.admit_for(&format!("c{id}"), request, SHIM + 1 + i32::from(*id));
        }
        Step::Release { id } => {
            bench.ledger.release(&name(id), ReleaseReason::Ended, log).unwrap();
        }
        Step::Set { id, compute } => {
            let change = Change { compute: Some(PerCard::same(*compute)), ..Change::default() };
            let _ = bench.ledger.set(inventory, limits, &name(id), &change, log);
        }
        Step::Present { id, present } => bench.ledger.set_present(&name(id), *present).unwrap(),
        Step::Policy { card, policy, period_ms } => {
            let setting = CardSetting { policy: *policy, period: period_ms.map(|ms| Period::Us(ms * MS)) };
            let _ = bench.ledger.set_policy(inventory, limits, uuid(bench, *card), setting, log);
        }
        Step::Die { id } => {
            bench.node.stop(SHIM + 1 + i32::from(*id));
            bench.ledger.reclaim(log).unwrap();
        }
        Step::Pass { ms } => bench.node.pass(ms * MS + 17),
    }
}

/// Grants and cards: containers without a cap run beside each other, in what is left.
type Sharers = BTreeSet<(String, String)>;

fn sharers(records: &[Record]) -> Sharers {
    let grants = records.iter().flat_map(|record| record.cards.iter().map(move |grant| (record, grant)));
    let shares = grants
        .filter(|(_, grant)| grant.policy == CardPolicy::Fixed && grant.compute == ComputeShare::Unlimited)
        .map(|(record, grant)| (record.grant_id.clone(), grant.uuid.clone()));
    shares.collect()
}

/// Checks the invariants of a single layout.
fn check_epoch(epoch: &Epoch, records: &[Record], may_share: &Sharers) {
    let mut on_cards: BTreeMap<&str, Vec<(&Turn, &Pass)>> = BTreeMap::new();
    for turn in &epoch.turns {
        assert!(records.iter().any(|record| record.grant_id == turn.grant_id), "who is gone has no turn");
        assert!((20 * MS..=500 * MS).contains(&turn.period_us));
        let mut starts = Vec::new();
        for card in &turn.cards {
            on_cards.entry(&card.uuid).or_default().push((turn, &card.pass));
            let Pass::Windows(windows) = &card.pass else { continue };
            assert!(windows.iter().all(|window| window.start_us < window.end_us && window.end_us <= turn.period_us));
            assert!(windows.is_sorted_by(|one, other| one.end_us < other.start_us));
            let length = |window: &Window| window.end_us - window.start_us;
            let at_edge = |window: &&Window| window.start_us == 0 || window.end_us == turn.period_us;
            let around: u64 = windows.iter().filter(at_edge).map(length).sum();
            let is_long = |window: &Window| length(window) >= 5 * MS || (at_edge(&window) && around >= 5 * MS);
            assert!(windows.iter().all(is_long), "{windows:?}");
            if !may_share.contains(&(turn.grant_id.clone(), card.uuid.clone())) {
                starts.extend(windows.first().map(|window| window.start_us));
            }
        }
        assert!(starts.iter().all(|start| *start == starts[0]), "windows begin at the same instant on all cards");
    }
    for (uuid, turns) in on_cards {
        for (position, (turn, pass)) in turns.iter().enumerate() {
            for (other_turn, other_pass) in &turns[position + 1..] {
                assert_eq!(turn.period_us, other_turn.period_us, "who meets on a card has its period");
                let may = |turn: &Turn| may_share.contains(&(turn.grant_id.clone(), uuid.to_owned()));
                let both_left = may(turn) && may(other_turn);
                if both_left {
                    continue;
                }
                let (Pass::Windows(own), Pass::Windows(others)) = (pass, other_pass) else { continue };
                for (window, other) in own.iter().flat_map(|window| others.iter().map(move |other| (window, other))) {
                    assert!(window.end_us <= other.start_us || other.end_us <= window.start_us, "{own:?} {others:?}");
                }
            }
        }
    }
}

/// Checks that every container has in the last epoch what it was granted.
fn check_shares(epoch: &Epoch, records: &[Record]) {
    for record in records {
        let turn = epoch.turn(&record.grant_id).expect("a turn for every container");
        assert_eq!(turn.cards.len(), record.cards.len());
        for grant in &record.cards {
            let card = turn.card(&grant.uuid).expect("a turn on every card");
            assert_eq!(card.memory, grant.memory);
            let others =
                records.iter().filter(|other| other.cards.iter().any(|other| other.uuid == grant.uuid)).count();
            assert_eq!(epoch.neighbours(&record.grant_id, &grant.uuid).count(), others - 1);
            let parts = match (grant.policy, grant.compute) {
                (CardPolicy::Fixed, ComputeShare::Cap { lifted_when_alone: true, .. }) if others == 1 => None,
                (CardPolicy::Fixed, ComputeShare::Cap { percent, .. }) => Some((u64::from(percent.get()), 100)),
                (CardPolicy::Fixed, ComputeShare::Weight(weight)) => Some((u64::from(weight.get()), 16)),
                (CardPolicy::Fair, _) => Some((1, 16)),
                _ => None,
            };
            match (&card.pass, parts) {
                (Pass::Windows(windows), Some((numerator, denominator))) => {
                    let exact = turn.period_us * numerator / denominator;
                    let length: u64 = windows.iter().map(|window| window.end_us - window.start_us).sum();
                    assert!(windows.len() == 1 && length.abs_diff(exact) <= 1, "{windows:?} for {exact}");
                }
                (pass, Some(_)) => panic!("{pass:?} for {grant:?}"),
                (Pass::Windows(windows), None) if windows.is_empty() => {
                    assert!(grant.policy == CardPolicy::Preemptive && !record.present, "{record:?} does not run");
                }
                _ => {}
            }
        }
    }
}

/// Checks that the timetable of the next two periods stays as it is for containers that are still
/// there.
fn check_promises(before: &Timetable, after: &Timetable, now_us: u64) {
    let limits = |turn: &Turn| {
        let mut turn = turn.clone();
        for card in &mut turn.cards {
            // What the others make of its share.
            card.share_ppm = 0;
        }
        turn
    };
    for turn in after.epochs.iter().flat_map(|epoch| &epoch.turns) {
        let (Some(was), _) = before.at(now_us) else { continue };
        let Some(was) = was.turn(&turn.grant_id) else { continue };
        for ahead_us in (0..2 * was.period_us).step_by(5_000) {
            let at = |table: &Timetable| table.at(now_us + ahead_us).0.unwrap().turn(&turn.grant_id).map(limits);
            assert_eq!(at(before), at(after), "{} in {ahead_us} us", turn.grant_id);
        }
    }
}

/// Checks that the last epochs begin within four periods, of the longest that any container whose
/// turn changes has by then, or had.
fn check_instants(before: &Timetable, after: &Timetable, now_us: u64) {
    let since = before.epochs.iter().rposition(|epoch| epoch.from_us <= now_us).unwrap_or(0);
    let timetable: Vec<&Turn> =
        before.epochs.iter().skip(since).chain(&after.epochs).flat_map(|epoch| &epoch.turns).collect();
    let was_told = |from_us| before.epochs.iter().any(|epoch| epoch.from_us == from_us);
    for (earlier, epoch) in after.epochs.iter().zip(after.epochs.iter().skip(1)) {
        let changed = epoch.turns.iter().filter(|turn| earlier.turn(&turn.grant_id) != Some(turn));
        let periods = changed.flat_map(|turn| {
            // Containers that are tied to each other by common cards change together.
            let connected = connected_to(&turn.grant_id, after);
            timetable
                .iter()
                .filter(move |timetable| connected.contains(timetable.grant_id.as_str()))
                .map(|timetable| timetable.period_us)
        });
        // Where the timetable of a card that nobody shared begins, nothing changes for anybody.
        let Some(longest_us) = periods.max() else { continue };
        let in_us = epoch.from_us.saturating_sub(now_us);
        assert!(was_told(epoch.from_us) || in_us <= 4 * longest_us, "in {in_us} us with periods of {longest_us} us");
    }
}

/// Grants that share cards with this one, or with one that does.
fn connected_to<'a>(grant_id: &'a str, table: &'a Timetable) -> BTreeSet<&'a str> {
    let turns: Vec<&Turn> = table.epochs.last().into_iter().flat_map(|epoch| &epoch.turns).collect();
    let mut connected = BTreeSet::from([grant_id]);
    loop {
        let cards: BTreeSet<&str> = turns
            .iter()
            .filter(|turn| connected.contains(turn.grant_id.as_str()))
            .flat_map(|turn| turn.cards.iter().map(|card| card.uuid.as_str()))
            .collect();
        let meets = |turn: &&&Turn| turn.cards.iter().any(|card| cards.contains(card.uuid.as_str()));
        let before = connected.len();
        connected.extend(turns.iter().filter(meets).map(|turn| turn.grant_id.as_str()));
        if connected.len() == before {
            return connected;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_timetable_is_sound(steps in steps()) {
        let bench = Bench::new(3);
        bench.node.pass(123_456);
        let mut before: Option<Timetable> = None;
        let mut sharers_ever = Sharers::new();
        for step in &steps {
            run(&bench, step);
            let Ok(after) = Ledger::timetable(bench.directory.path()) else { continue };
            let records = bench.ledger.records().unwrap();
            let now_us = bench.node.now();
            prop_assert!(after.epochs.is_sorted_by(|one, other| one.from_us < other.from_us));
            prop_assert!(after.epochs.first().is_none_or(|first| first.from_us <= now_us));
            let sharers_now = sharers(&records);
            sharers_ever.extend(sharers_now.clone());
            let nothing = Epoch { from_us: 0, turns: Vec::new() };
            let (last, earlier) = after.epochs.split_last().unwrap_or((&nothing, &[]));
            // The turns until then may be of what was granted before.
            earlier.iter().for_each(|epoch| check_epoch(epoch, &records, &sharers_ever));
            check_epoch(last, &records, &sharers_now);
            check_shares(last, &records);
            if let Some(before) = &before {
                check_promises(before, &after, now_us);
                check_instants(before, &after, now_us);
            }
            before = Some(after);
        }
    }
}
