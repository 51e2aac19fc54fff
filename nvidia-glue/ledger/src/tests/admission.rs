//! Tests of admission: which containers fit beside which, their placement, and the texts of
//! refusals.

use base::{CardPolicy, ComputeShare, Enforcement, RefusalCode};
use cards::{Distance, Health, MigDevice};
use runtime_config::{
    config::MemoryScaling,
    request::{
        CardRequest, Condition, GpuRequest, Isolation, MemoryLimit, Operator, PerCard, Placement, Property,
        Requirement, Share,
    },
};

use crate::{
    AdmitError, AdmitErrorKind, Change, Refusal, ReleaseReason,
    decision_log::chain,
    test_support::{Bench, bytes, cap, devices, key, mib, part, parts, request, weight, with_policy},
};

fn one(memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(CardRequest::Count(1), part(memory_mib, compute))
}

fn on(card: u32, memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(devices(&[card]), part(memory_mib, compute))
}

fn refusal(error: AdmitError) -> Refusal {
    match error {
        AdmitError::Card { source, .. } => *source,
        other => panic!("{}", chain(&other)),
    }
}

#[test]
fn binpack_fills_a_card_before_it_opens_another() {
    let bench = Bench::new(4);
    assert_eq!(bench.placed("a", &one(20480, cap(10))), [0]);
    assert_eq!(bench.placed("b", &one(20480, cap(10))), [1]);
    assert_eq!(bench.placed("c", &one(8192, cap(10))), [0], "the fullest, and of equals the first");
    assert_eq!(bench.placed("d", &one(8192, cap(10))), [1]);
}

#[test]
fn spread_takes_the_emptiest_and_keeps_replicas_apart() {
    let bench = Bench::new(3);
    let spread = |group: &str, memory| GpuRequest {
        placement: Placement::Spread,
        group: Some(group.into()),
        ..one(memory, cap(5))
    };
    assert_eq!(bench.placed("a1", &spread("a", 1024)), [0]);
    assert_eq!(bench.placed("b1", &spread("b", 8192)), [1]);
    assert_eq!(bench.placed("b2", &spread("b", 16384)), [2]);
    assert_eq!(bench.placed("a2", &spread("a", 1024)), [1], "0 is emptier, but it has a replica");
    assert_eq!(bench.placed("b3", &spread("b", 1024)), [0]);
    assert_eq!(bench.placed("b4", &spread("b", 1024)), [0], "all have one replica: the emptiest");
}

#[test]
fn several_cards_are_chosen_near_each_other() {
    let mut bench = Bench::new(4);
    bench.inventory.cards[1].links = vec![(3, Distance::NvLink)];
    let two = request(CardRequest::Count(2), part(1024, cap(10)));
    assert_eq!(bench.placed("a", &two), [1, 3]);
    let record = bench.ledger.record(&key("a")).unwrap().unwrap();
    assert_eq!((record.order, record.cards.len(), record.exclusive), (0, 2, false));
}

#[test]
fn a_count_that_fits_nowhere_names_every_card_and_its_holders() {
    let bench = Bench::new(2);
    bench.admit("a", &on(0, 32768, cap(10))).unwrap();
    bench.admit("b", &on(1, 1024, cap(95))).unwrap();
    let error = bench.admit("c", &one(2048, cap(10))).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
    let text = chain(&error);
    for part in [
        "k8s.io/c",
        "2 GiB compute=10%",
        "card 0: 2GiB of memory asked, 0B of 32GiB free",
        "k8s.io/a (32 GiB compute=10%)",
        "card 1: 10% of compute asked, 5% free",
        "k8s.io/b (1 GiB compute=95%)",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_refusal_says_whether_waiting_helps() {
    let bench = Bench::new(2);
    bench.admit("a", &on(0, 16384, cap(10))).unwrap();
    let refused = |request: &GpuRequest| chain(&bench.admit("x", request).unwrap_err());
    let code = |request: &GpuRequest| bench.admit("x", request).unwrap_err().code();
    assert_eq!(code(&one(65536, cap(10))), RefusalCode::NotOnThisNode, "who retries is to stop");
    assert_eq!(code(&on(0, 32768, cap(10))), RefusalCode::NoMemory);
    let text = refused(&one(65536, cap(10)));
    assert!(text.starts_with("no card of this node has room for container k8s.io/x"), "{text}");
    assert!(text.contains("64GiB of memory asked, 32GiB of 32GiB free; the card never has as much"), "{text}");
    assert!(!text.contains("wait"), "{text}");
    let text = refused(&request(CardRequest::Count(2), part(32768, cap(10))));
    assert!(text.starts_with("this node has no 2 cards that together have room for container k8s.io/x"), "{text}");
    assert!(text.contains("16GiB of 32GiB free; ask for less, or wait until another container ends"), "{text}");
}

#[test]
fn a_whole_card_and_shares_exclude_each_other() {
    let bench = Bench::new(2);
    let whole = |card| request(devices(&[card]), Share::Exclusive);
    let record = bench.admit("whole", &whole(0)).unwrap();
    assert!(record.exclusive && record.cards[0].exclusive);
    assert_eq!((record.cards[0].memory, record.cards[0].enforcement), (mib(32768), Enforcement::WholeCard));
    bench.admit("share", &on(1, 1024, cap(10))).unwrap();
    assert_eq!(refusal(bench.admit("x", &on(0, 1024, cap(10))).unwrap_err()), Refusal::HeldWhole);
    assert_eq!(refusal(bench.admit("x", &whole(0)).unwrap_err()), Refusal::HeldWhole);
    assert_eq!(refusal(bench.admit("x", &whole(1)).unwrap_err()), Refusal::InUse);
    let all = bench.admit("x", &request(CardRequest::All, Share::Exclusive)).unwrap_err();
    assert_eq!(refusal(all), Refusal::HeldWhole);
    let states = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap();
    assert_eq!(
        states
            .iter()
            .map(|state| (state.exclusive, state.compute_granted_percent, state.free_weight))
            .collect::<Vec<_>>(),
        [(true, 100, 0), (false, 10, 14)]
    );
    bench.ledger.release(&key("whole"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    bench.admit("x", &on(0, 1024, cap(10))).unwrap();
}

#[test]
fn a_quota_below_the_size_of_a_context_is_warned_about() {
    let mut bench = Bench::new(2);
    bench.inventory.cards[1].memory = mib(8192);
    let warnings = |bench: &Bench| -> Vec<String> {
        bench.take_log().into_iter().filter(|line| line.contains("event=warn") && line.contains("context")).collect()
    };
    for (what, request, expected) in [
        ("too little", on(0, 511, cap(10)), true),
        ("enough", on(0, 512, cap(10)), false),
        ("a small card, of which a half is little", on(1, 511, cap(10)), false),
        ("it asks for no memory", request(devices(&[0]), Share::Monitor), false),
    ] {
        bench.admit("c", &request).unwrap();
        let lines = warnings(&bench);
        assert_eq!(lines.len(), usize::from(expected), "{what}: {lines:?}");
        assert!(
            lines.iter().all(|line| line.contains("k8s.io/c") && line.contains("card=0") && line.contains("511MiB"))
        );
        bench.ledger.release(&key("c"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    }
    // The same of what a running container is left with.
    bench.admit("c", &on(0, 1024, cap(10))).unwrap();
    let less = |memory| Change { memory: Some(PerCard::same(MemoryLimit::bytes(mib(memory)))), ..Change::default() };
    for (memory, expected) in [(600, 0), (500, 1)] {
        bench.ledger.set(&bench.inventory, &bench.limits, &key("c"), &less(memory), &bench.log).unwrap();
        assert_eq!(warnings(&bench).len(), expected, "{memory} MiB");
    }
}

#[test]
fn a_monitor_holds_nothing_and_is_recorded() {
    let bench = Bench::new(2);
    let record = bench.admit("watch", &request(CardRequest::All, Share::Monitor)).unwrap();
    assert_eq!(record.cards.iter().map(|card| card.memory.0).collect::<Vec<_>>(), [0, 0]);
    bench.admit("whole", &request(CardRequest::All, Share::Exclusive)).unwrap();
    bench.admit("watch2", &request(CardRequest::All, Share::Monitor)).unwrap();
    let state = &bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap()[0];
    assert_eq!((state.containers.len(), state.monitors.len()), (1, 2));
    let none = bench.admit("files", &request(CardRequest::None, Share::Monitor)).unwrap();
    assert_eq!((none.cards.len(), none.exclusive), (0, false));
}

#[test]
fn the_policy_belongs_to_the_card() {
    let bench = Bench::new(2);
    bench.admit("soft", &with_policy(CardPolicy::Soft, on(0, 1024, weight(300)))).unwrap();
    let wrong = bench.admit("x", &on(0, 1024, cap(10))).unwrap_err();
    assert_eq!(refusal(wrong), Refusal::Policy { asked: CardPolicy::Fixed, has: CardPolicy::Soft });
    let any = bench.admit("any", &on(0, 1024, ComputeShare::Unlimited)).unwrap();
    assert_eq!(any.cards[0].policy, CardPolicy::Soft, "one that needs none takes the card's");
    assert_eq!(bench.placed("fixed", &one(1024, cap(10))), [1], "a choice avoids cards with another policy");
    let error = bench.admit("x", &with_policy(CardPolicy::Soft, on(0, 1024, cap(10)))).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Invalid, "{}", chain(&error));
    for id in ["soft", "any"] {
        bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap();
    }
    bench.admit("native", &with_policy(CardPolicy::Native, on(0, 1024, ComputeShare::Unlimited))).unwrap();
}

#[test]
fn weights_count_slices_of_max_inst() {
    let bench = Bench::new(1);
    let cgpu = |value| with_policy(CardPolicy::Weighted, on(0, 1024, weight(value)));
    assert_eq!(bench.admit("a", &cgpu(10)).unwrap().cards[0].policy, CardPolicy::Weighted);
    let state = || bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap().remove(0);
    assert_eq!((state().weights, state().free_weight, state().policy), (10, 6, Some(CardPolicy::Weighted)));
    let too_much = bench.admit("b", &cgpu(7)).unwrap_err();
    assert_eq!(refusal(too_much), Refusal::Weight { asked: 7, free: 6, max_inst: 16 });
    bench.admit("b", &cgpu(6)).unwrap();
    assert_eq!(state().free_weight, 0);
}

/// A second container is refused for its memory, and told what is left.
#[test]
fn what_a_policy_promises_and_what_it_leaves_are_told_in_its_own_unit() {
    let unlimited = ComputeShare::Unlimited;
    for (policy, share, promised, time) in [
        (CardPolicy::Fair, unlimited, 7, "93% of its time, "),
        (CardPolicy::Preemptive, unlimited, 0, "weight 15 of 16, "),
        (CardPolicy::Weighted, weight(4), 0, "weight 12 of 16, "),
        (CardPolicy::Fixed, cap(25), 25, "75% of its time, "),
        (CardPolicy::Fixed, weight(4), 25, "75% of its time, "),
        (CardPolicy::Soft, weight(4), 0, ""),
        (CardPolicy::Native, unlimited, 0, ""),
    ] {
        let bench = Bench::new(1);
        bench.admit("a", &with_policy(policy, on(0, 1024, share))).unwrap();
        let state = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap().remove(0);
        assert_eq!(state.compute_granted_percent, promised, "{policy}");
        let told = bench.admit("b", &with_policy(policy, on(0, 1 << 20, unlimited))).unwrap_err().for_pod();
        assert!(told.contains(&format!("of memory, {time}")), "{policy}: {told}");
        assert_eq!(told.contains("of its time, ") || told.contains("weight "), !time.is_empty(), "{policy}: {told}");
    }
}

#[test]
fn on_a_fixed_card_weights_and_caps_are_shares_of_the_same_time() {
    let bench = Bench::new(1);
    let fixed = |share| with_policy(CardPolicy::Fixed, on(0, 1024, share));
    bench.admit("half", &fixed(weight(8))).unwrap();
    bench.admit("quarter", &fixed(cap(25))).unwrap();
    let error = bench.admit("x", &fixed(cap(26))).unwrap_err();
    assert_eq!(refusal(error), Refusal::Compute { asked_percent: 26, free_percent: 25 });
    assert_eq!(bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap()[0].free_weight, 4);
    bench.admit("rest", &fixed(weight(4))).unwrap();
}

#[test]
fn containers_without_a_cap_keep_five_percent() {
    let bench = Bench::new(2);
    bench.admit("free", &on(0, 1024, ComputeShare::Unlimited)).unwrap();
    assert_eq!(refusal(bench.admit("x", &on(0, 1024, cap(96))).unwrap_err()), Refusal::Remainder { caps_percent: 96 });
    bench.admit("capped", &on(0, 1024, cap(95))).unwrap();
    bench.admit("free2", &on(0, 1024, ComputeShare::Unlimited)).unwrap();
    bench.admit("full", &on(1, 1024, cap(100))).unwrap();
    let other_way_round = bench.admit("x", &on(1, 1024, ComputeShare::Unlimited)).unwrap_err();
    assert_eq!(refusal(other_way_round), Refusal::Remainder { caps_percent: 100 });
}

#[test]
fn sums_that_fit_without_an_order_of_windows_are_refused() {
    let bench = Bench::new(3);
    let pair = |cards: &[u32]| request(devices(cards), part(1024, cap(50)));
    bench.admit("a", &pair(&[0, 1])).unwrap();
    bench.admit("b", &pair(&[1, 2])).unwrap();
    bench.take_log();
    let error = bench.admit("c", &pair(&[0, 2])).unwrap_err();
    assert!(matches!(refusal(error), Refusal::Layout { .. }));
    let log = bench.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("event=rollback")).count(), 2, "{log:#?}");
    bench.admit("c", &request(devices(&[0, 2]), part(1024, ComputeShare::Unlimited))).unwrap_err();
    bench.admit("c", &on(0, 1024, cap(50))).unwrap();
}

#[test]
fn an_uncapped_container_on_two_cards_needs_a_common_remainder() {
    let bench = Bench::new(2);
    // On card 0 the windows are 0..60 and 60..95, on card 1 0..60 and 60..95 as well: 5 % are left
    // on both at once.
    for (id, percent) in [("a", 60), ("b", 35)] {
        bench.admit(id, &request(devices(&[0, 1]), part(1024, cap(percent)))).unwrap();
    }
    bench.admit("free", &request(devices(&[0, 1]), part(1024, ComputeShare::Unlimited))).unwrap();
}

#[test]
fn no_more_containers_than_device_split_count() {
    let mut bench = Bench::new(1);
    bench.limits.device_split_count = 2;
    bench.admit("a", &on(0, 1024, cap(10))).unwrap();
    bench.admit("b", &on(0, 1024, cap(10))).unwrap();
    assert_eq!(refusal(bench.admit("c", &on(0, 1024, cap(10))).unwrap_err()), Refusal::Containers { limit: 2 });
}

#[test]
fn memory_scaling_oversubscribes_by_exactly_its_factor() {
    let mut bench = Bench::new(1);
    bench.limits.memory_scaling = MemoryScaling::new(1.5).unwrap();
    bench.admit("a", &on(0, 32768, cap(10))).unwrap();
    let error = bench.admit("b", &on(0, 16385, cap(10))).unwrap_err();
    assert_eq!(refusal(error), Refusal::Memory { asked: mib(16385), free: mib(16384), grantable: mib(49152) });
    bench.admit("b", &on(0, 16384, cap(10))).unwrap();
}

#[test]
fn without_isolation_no_compute_is_promised() {
    let bench = Bench::new(1);
    let share = Share::Part {
        memory: PerCard::same(bytes(mib(1024))),
        compute: PerCard::same(cap(50)),
        isolation: Isolation::Memory,
    };
    let record = bench.admit("a", &request(devices(&[0]), share)).unwrap();
    assert_eq!(record.cards[0].compute, ComputeShare::Unlimited);
    assert_eq!(record.request.asked, ["EGPU_MEMORY=some"]);
}

#[test]
fn an_unusable_card_is_not_offered() {
    let mut bench = Bench::new(2);
    bench.inventory.cards[0].health = Health::Unusable { reason: "Xid 79 since boot".into() };
    assert_eq!(bench.placed("a", &one(1024, cap(10))), [1]);
    let text = chain(&bench.admit("x", &on(0, 1024, cap(10))).unwrap_err());
    assert!(text.contains("card 0") && text.contains("Xid 79"), "{text}");
    let all = bench.admit("all", &request(CardRequest::All, Share::Monitor)).unwrap();
    assert_eq!(all.cards.iter().map(|card| card.index).collect::<Vec<_>>(), [1]);
    assert_eq!(
        bench.admit("x", &request(CardRequest::Count(2), part(1, cap(1)))).unwrap_err().kind(),
        AdmitErrorKind::Invalid
    );
}

#[test]
fn mig_devices_are_given_whole_and_once() {
    let mut bench = Bench::new(2);
    let device = |index: u32| MigDevice {
        index,
        uuid: format!("MIG-{index}"),
        gpu_instance: 7 + index,
        compute_instance: 0,
        memory: mib(4096),
    };
    bench.inventory.cards[0].mig_enabled = true;
    bench.inventory.cards[0].mig_devices = vec![device(0), device(1)];
    let mig =
        |index| CardRequest::Devices(vec![runtime_config::request::DeviceSelector::MigIndex { card: 0, mig: index }]);
    let record = bench.admit("a", &request(mig(0), Share::Exclusive)).unwrap();
    assert_eq!((record.cards[0].mig_uuid.as_deref(), record.cards[0].enforcement), (Some("MIG-0"), Enforcement::Mig));
    let again = bench.admit("x", &request(mig(0), Share::Exclusive)).unwrap_err();
    assert_eq!(refusal(again), Refusal::MigHeld { uuid: "MIG-0".into() });
    for wrong in [request(mig(1), part(1024, cap(10))), request(devices(&[0]), Share::Exclusive)] {
        assert_eq!(bench.admit("x", &wrong).unwrap_err().kind(), AdmitErrorKind::Invalid);
    }
    assert_eq!(bench.placed("chosen", &one(1024, cap(10))), [1], "a card in MIG mode is no choice");
    bench.admit("b", &request(mig(1), Share::Exclusive)).unwrap();
    let state = &bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap()[0];
    assert_eq!(state.mig_held, ["MIG-0", "MIG-1"]);
}

#[test]
fn cards_given_whole_stand_beside_shared_ones() {
    let bench = Bench::new(3);
    let both = GpuRequest { whole_cards: devices(&[0, 2]), ..on(0, 1024, cap(10)) };
    let record = bench.admit("a", &both).unwrap();
    let cards: Vec<_> = record.cards.iter().map(|card| (card.index, card.exclusive)).collect();
    assert_eq!(cards, [(0, false), (2, true)], "what is shared is not given whole as well");
    assert!(!record.exclusive);
    let chosen = GpuRequest { whole_cards: devices(&[1]), ..one(1024, cap(10)) };
    assert_eq!(bench.placed("b", &chosen), [0, 1], "a card that is given whole is not chosen to be shared");
    let none_left = GpuRequest { whole_cards: devices(&[0, 1, 2]), ..one(1024, cap(10)) };
    assert_eq!(bench.admit("x", &none_left).unwrap_err().kind(), AdmitErrorKind::Invalid);
}

#[test]
fn cards_outside_of_what_is_allowed_are_refused_and_not_chosen() {
    let bench = Bench::new(3);
    let within = |request: GpuRequest| GpuRequest { within: Some(devices(&[2])), ..request };
    assert_eq!(bench.placed("a", &within(one(1024, cap(10)))), [2]);
    let text = chain(&bench.admit("x", &within(on(0, 1024, cap(10)))).unwrap_err());
    assert!(text.contains("card 0") && text.contains("allowed only 2"), "{text}");
}

#[test]
fn requirements_hold_on_every_card() {
    let mut bench = Bench::new(2);
    bench.inventory.cards[0].compute_capability = (6, 1);
    let condition =
        |property, value: &str| Condition { property, operator: Operator::GreaterOrEqual, value: value.into() };
    let needs = |conditions: Vec<Condition>, request: GpuRequest| {
        let requirement = Requirement { variable: "NVIDIA_REQUIRE_X".into(), alternatives: vec![conditions] };
        GpuRequest { requirements: vec![requirement], ..request }
    };
    let arch = || vec![condition(Property::Arch, "7.0"), condition(Property::Cuda, "11.0")];
    assert_eq!(bench.placed("a", &needs(arch(), one(1024, cap(10)))), [1], "the other one is too old");
    let text = chain(&bench.admit("x", &needs(arch(), on(0, 1024, cap(10)))).unwrap_err());
    assert!(text.contains("on card 0: unsatisfied condition: arch>=7.0"), "{text}");
    assert_eq!(text.matches("unsatisfied condition").count(), 1, "{text}");
    for request in [one(1024, cap(10)), on(1, 1024, cap(10)), request(CardRequest::None, Share::Monitor)] {
        let error = bench.admit("x", &needs(vec![condition(Property::Cuda, "12.0")], request)).unwrap_err();
        assert_eq!(error.kind(), AdmitErrorKind::Invalid);
    }
}

#[test]
fn lists_must_fit_the_cards() {
    let bench = Bench::new(3);
    let error = bench.admit("a", &request(devices(&[0, 1]), parts(&[1, 2, 3], cap(10)))).unwrap_err();
    assert!(chain(&error).contains("3 values are listed for 2 cards"), "{}", chain(&error));
    let record = bench.admit("a", &request(CardRequest::Count(2), parts(&[1024, 2048], cap(10)))).unwrap();
    assert_eq!(
        record.cards.iter().map(|card| (card.index, card.memory)).collect::<Vec<_>>(),
        [(0, mib(1024)), (1, mib(2048))]
    );
}

#[test]
fn a_container_is_admitted_once() {
    let bench = Bench::new(1);
    bench.admit("a", &on(0, 1024, cap(10))).unwrap();
    let before = bench.files();
    let error = bench.admit("a", &on(0, 1024, cap(10))).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::AlreadyExists);
    assert_eq!(bench.files(), before);
}

#[test]
fn a_cgroup_that_is_in_use_is_refused() {
    let bench = Bench::new(1);
    bench.node.populate("a");
    let error = bench.admit("a", &on(0, 1024, cap(10))).unwrap_err();
    assert!(matches!(error, AdmitError::Cgroup { .. }), "{}", chain(&error));
}

#[test]
fn a_tiny_quota_is_granted_with_a_warning() {
    let bench = Bench::new(1);
    bench.admit("a", &on(0, 100, cap(10))).unwrap();
    assert!(bench.take_log().iter().any(|line| line.starts_with("event=warn") && line.contains("100MiB")));
    bench.admit("b", &on(0, 512, cap(10))).unwrap();
    assert!(!bench.take_log().iter().any(|line| line.starts_with("event=warn")));
}

#[test]
fn records_of_any_name_stand_beside_each_other() {
    let bench = Bench::new(1);
    let long = "x".repeat(300);
    let names = ["a", "A", "a/b", "a_b", "..", "", "a\n", "ä", long.as_str(), &format!("{long}y")];
    let mut limits = bench.limits;
    limits.device_split_count = 1000;
    let bench = Bench { limits, ..bench };
    for name in names {
        bench.admit(name, &on(0, 1, ComputeShare::Unlimited)).unwrap();
        assert_eq!(bench.ledger.record(&key(name)).unwrap().unwrap().container, key(name));
    }
    assert_eq!(bench.ledger.records().unwrap().len(), names.len());
    for (file, _) in bench.files() {
        assert!(file.len() < 140 && !file.starts_with('.') && file.is_ascii(), "{file}");
    }
}
