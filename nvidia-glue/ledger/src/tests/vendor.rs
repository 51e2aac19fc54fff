//! The vendor's acceptance cases 4 to 7 on four V100, checked from the decision log alone.

use base::ComputeShare;
use runtime_config::request::{Dialect, GpuRequest};

use crate::test_support::{Bench, cap, devices, key, parts, request};

/// `EGPU="POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=...,WEIGHT=...:PGPU=1,..."`
fn ctyun(memory_mib: &[u64], compute: ComputeShare) -> GpuRequest {
    let cards: Vec<u32> = (0..u32::try_from(memory_mib.len()).unwrap()).collect();
    let groups = memory_mib.iter().zip(&cards).map(|(mib, card)| format!(":PGPU={card},MEM={mib}"));
    GpuRequest {
        dialect: Dialect::CtyunEgpu.into(),
        asked: vec![format!("EGPU=POLICY=0,ONLINE=0,TYPE=DOCKER{}", groups.collect::<String>())],
        ..request(devices(&cards), parts(memory_mib, compute))
    }
}

/// The event and the card of each line about `id`.
fn steps(log: &[String], id: &str) -> Vec<String> {
    let value = |line: &str, name: &str| {
        let found = line.split(' ').find_map(|field| field.strip_prefix(&format!("{name}=")));
        found.map(str::to_owned)
    };
    log.iter()
        .filter(|line| value(line, "container").as_deref() == Some(&format!("k8s.io/{id}")))
        .map(|line| match value(line, "card") {
            Some(card) => format!("{} {card}", value(line, "event").unwrap()),
            None => value(line, "event").unwrap(),
        })
        .collect()
}

#[test]
fn case_4_a_failure_on_the_third_card_rolls_back_the_first_two() {
    let bench = Bench::new(4);
    let before = bench.files();
    let error = bench.admit("c4", &ctyun(&[20480, 20480, 40960], cap(10))).unwrap_err();
    assert!(error.to_string().starts_with("card 2 (Tesla V100-PCIE-32GB, GPU-"), "{error}");
    let log = bench.take_log();
    assert_eq!(steps(&log, "c4"), ["ask", "reserve 0", "reserve 1", "refuse 2", "rollback 1", "rollback 0", "destroy"]);
    assert!(log[0].contains("PGPU=2,MEM=40960"), "{}", log[0]);
    assert!(log[1].contains("memory=20GiB compute=10%") && log[1].contains("memory_free_after=12GiB"), "{}", log[1]);
    assert!(log[3].contains("40GiB of memory asked, 32GiB of 32GiB free"), "{}", log[3]);
    assert!(log[4].contains("memory=20GiB"), "{}", log[4]);
    assert!(log[6].contains(r#"result="container destroyed" reserved=nothing"#), "{}", log[6]);
    assert_eq!(bench.files(), before);
    // All of the first two cards is free.
    bench.admit("next", &ctyun(&[32768, 32768], cap(100))).unwrap();
}

#[test]
fn case_5_three_full_cards_have_no_room_for_a_fourth_container() {
    let bench = Bench::new(4);
    for (id, memory) in [("a", [20480, 20480, 10240]), ("b", [10240, 10240, 20480]), ("c", [2048, 2048, 2048])] {
        bench.admit(id, &ctyun(&memory, cap(10))).unwrap();
        assert_eq!(steps(&bench.take_log(), id), ["ask", "reserve 0", "reserve 1", "reserve 2", "grant"]);
    }
    let error = bench.admit("d", &ctyun(&[1024, 1024, 1024], cap(10))).unwrap_err();
    let log = bench.take_log();
    assert_eq!(steps(&log, "d"), ["ask", "refuse 0", "destroy"]);
    assert!(log[1].contains("1GiB of memory asked, 0B of 32GiB free"), "{}", log[1]);
    for holder in ["k8s.io/a", "k8s.io/b", "k8s.io/c"] {
        assert!(log[1].contains(holder) && error.to_string().contains(holder), "{}", log[1]);
    }
    let states = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap();
    let granted: Vec<_> =
        states.iter().map(|state| (state.memory_granted.whole_mib(), state.containers.len())).collect();
    assert_eq!(granted, [(32768, 3), (32768, 3), (32768, 3), (0, 0)]);
}

/// The parser refuses WEIGHT=110 and the shim logs it; what the ledger itself refuses at
/// validation, a fourth card that the node does not have, leaves the same trace.
#[test]
fn case_6_what_is_refused_at_validation_has_reserved_nothing() {
    #[derive(Debug, thiserror::Error)]
    #[error("WEIGHT=110: a percentage from 1 to 100 is accepted")]
    struct WeightOutOfRange;

    let bench = Bench::new(4);
    let before = bench.files();
    bench.log.refused_at_validation(&key("c6"), "EGPU=POLICY=0:PGPU=0,MEM=1024,WEIGHT=110", &WeightOutOfRange);
    bench.admit("c6b", &GpuRequest { cards: devices(&[0, 1, 7]), ..ctyun(&[1024; 3], cap(10)) }).unwrap_err();
    let log = bench.take_log();
    for id in ["c6", "c6b"] {
        assert_eq!(steps(&log, id), ["ask", "invalid", "destroy"]);
    }
    assert!(log[0].contains("WEIGHT=110") && log[1].contains("1 to 100"), "{log:?}");
    assert!(log[4].contains("nothing has been reserved") && log[4].contains("no card `7`"), "{}", log[4]);
    assert!(log[2].contains("reserved=nothing") && log[5].contains("reserved=nothing"), "{log:?}");
    assert_eq!(bench.files(), before);
}

#[test]
fn case_7_memory_is_left_and_compute_is_not() {
    let bench = Bench::new(4);
    for (id, memory, percent) in
        [("a", [20480, 20480, 10240], 25), ("b", [10240, 10240, 20480], 25), ("c", [1024, 1024, 1024], 50)]
    {
        bench.admit(id, &ctyun(&memory, cap(percent))).unwrap();
    }
    bench.take_log();
    bench.admit("d", &ctyun(&[1024, 1024, 1024], cap(10))).unwrap_err();
    let log = bench.take_log();
    assert_eq!(steps(&log, "d"), ["ask", "refuse 0", "destroy"]);
    assert!(log[1].contains("10% of compute asked, 0% free"), "{}", log[1]);
    let states = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap();
    assert_eq!(states[0].compute_granted_percent, 100);
    assert_eq!(states[0].memory_granted.whole_mib(), 32768 - 1024);
}
