//! Every file operation fails once, and every one is the last before a kill.

use base::{CardPolicy, ComputeShare, Period, Priority, grant_files};
use runtime_config::request::{CardRequest, GpuRequest, PerCard, Share};

use crate::{
    CardSetting, Change, Ledger, ReleaseReason,
    test_support::{
        Bench, FOR_LEAVING, SHIM, cap, cgroup, devices, key, mib, part, process, request, weight, with_policy,
    },
};

fn share(cards: &[u32]) -> GpuRequest {
    request(devices(cards), part(8192, cap(20)))
}

/// Two cards, one container on each and one on both, each with its files.
fn busy() -> Bench {
    let bench = Bench::new(2);
    for (id, cards) in [("old0", &[0][..]), ("old1", &[1]), ("both", &[0, 1])] {
        let record = bench.admit(id, &share(cards)).unwrap();
        let files = grant_files::path(bench.directory.path(), &record.grant_id).unwrap();
        std::fs::create_dir_all(files.join("gpus")).unwrap();
    }
    bench
}

/// Checks that there are files of no grant that is gone, and that the log says how each of those
/// ended.
fn check_ended(bench: &Bench, log: &[String]) {
    let records = bench.ledger.records().unwrap();
    for entry in std::fs::read_dir(grant_files::directory(bench.directory.path())).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(records.iter().any(|record| record.grant_id == name), "files of {name} are left");
    }
    for (id, cards) in [("old0", 1), ("old1", 1), ("both", 2)] {
        let start = format!("event=release container=k8s.io/{id} ");
        let lines = log.iter().filter(|line| line.starts_with(&start)).count();
        let expected =
            if records.iter().any(|record| record.container == key(id)) { [0, 0] } else { [cards, 2 * cards] };
        // Killed after it was written, and before that was noted, it is written again.
        assert!(expected.contains(&lines), "{lines} lines of {id}: {log:#?}");
    }
    assert_eq!(std::fs::read_dir(bench.ledger.store.released_dir()).unwrap().count(), 0);
}

/// Checks that an admission sees exactly the records, whatever has happened to the index.
fn check_consistent(bench: &mut Bench) {
    bench.ledger.store.faults.off();
    bench.reopen();
    let records = bench.ledger.records().unwrap();
    let states = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap();
    for state in states {
        let free = mib(32768).0 - state.memory_granted.0;
        let exactly = |memory: u64| {
            let probe = request(devices(&[state.index]), part(memory, cap(1)));
            bench.admit("probe", &probe)
        };
        assert!(exactly(free / (1 << 20) + 1).is_err(), "more than is free of card {}", state.index);
        exactly(free / (1 << 20)).unwrap();
        bench.ledger.release(&key("probe"), ReleaseReason::Ended, &bench.log).unwrap();
    }
    let leftovers = std::fs::read_dir(bench.directory.path()).unwrap();
    let mut names = leftovers.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.all(|name| !name.ends_with(".tmp")));
    assert_eq!(bench.ledger.records().unwrap(), records);
    check_timetable(bench);
}

/// Checks that the timetable matches the records, and that each card has one policy.
fn check_timetable(bench: &Bench) {
    let records = bench.ledger.records().unwrap();
    let table = Ledger::timetable(bench.directory.path()).unwrap();
    let last = table.epochs.last().unwrap();
    assert_eq!(last.turns.len(), records.len());
    for record in &records {
        let turn = last.turn(&record.grant_id).expect("a turn for every container");
        assert_eq!(turn.priority, record.priority());
        for grant in &record.cards {
            let card = turn.card(&grant.uuid).expect("a turn on every card");
            let compute = match grant.compute {
                ComputeShare::Cap { percent, .. } => Some(u32::from(percent.get()) * 10_000),
                _ => None,
            };
            assert_eq!((card.memory, Some(card.share_ppm)), (grant.memory, compute.or(Some(card.share_ppm))));
            let mut others = records.iter().flat_map(|record| &record.cards);
            assert!(others.all(|other| other.uuid != grant.uuid || other.policy == grant.policy));
        }
    }
}

/// Runs `operation` on a busy ledger until it needs no more steps than it is given. Returns how
/// many that were.
fn at_every_step(start: fn(&Bench, i64), operation: impl Fn(&Bench) -> bool, check: impl Fn(&mut Bench, bool)) -> i64 {
    for steps in 0.. {
        let mut bench = busy();
        bench.ledger.store.faults.seen();
        start(&bench, steps);
        let done = operation(&bench);
        let needed = bench.ledger.store.faults.seen();
        check(&mut bench, done);
        if needed <= steps {
            assert!(done);
            return steps;
        }
    }
    unreachable!()
}

fn dies(bench: &Bench, steps: i64) {
    bench.ledger.store.faults.die_after(steps);
}

fn fails(bench: &Bench, steps: i64) {
    bench.ledger.store.faults.fail_after(steps);
}

#[test]
fn a_kill_at_any_step_of_admission_leaves_all_or_nothing() {
    let steps = at_every_step(
        dies,
        |bench| bench.admit("new", &share(&[0, 1])).is_ok(),
        |bench, done| {
            check_consistent(bench);
            let there = bench.ledger.record(&key("new")).unwrap().is_some();
            assert!(there || !done, "an admission that succeeded is written down");
        },
    );
    assert!(steps >= 10, "the seam saw {steps} steps only");
}

#[test]
fn a_failure_at_any_step_of_admission_is_a_clean_refusal_or_a_grant() {
    at_every_step(
        fails,
        |bench| {
            let before = bench.files();
            let admitted = bench.admit("new", &share(&[0, 1]));
            assert!(admitted.is_ok() || bench.files() == before, "a refusal leaves the records as they were");
            if let Ok(record) = &admitted {
                // The container may be made now: its turn is written.
                let table = Ledger::timetable(bench.directory.path()).unwrap();
                assert!(table.epochs.last().unwrap().turn(&record.grant_id).is_some());
            }
            admitted.is_ok()
        },
        |bench, done| {
            check_consistent(bench);
            assert_eq!(bench.ledger.record(&key("new")).unwrap().is_some(), done);
        },
    );
}

/// One that waits for the room of `old0`, and gets it.
fn wait_and_be_admitted(bench: &Bench) -> bool {
    bench.node.start(SHIM + 1);
    let more = request(devices(&[0]), part(20 << 10, cap(20)));
    let mut attempt = bench.attempt_for("new", &more, FOR_LEAVING, (SHIM + 1, bench.limits));
    bench.leave("old0")
        && matches!(attempt.try_once(&bench.log), Ok(None))
        && bench.ledger.release(&key("old0"), ReleaseReason::Ended, &bench.log).is_ok()
        && matches!(attempt.try_once(&bench.log), Ok(Some(_)))
}

#[test]
fn a_kill_at_any_step_of_a_wait_leaves_no_waiter() {
    let steps = at_every_step(dies, wait_and_be_admitted, |bench, done| {
        bench.ledger.store.faults.off();
        let there = bench.ledger.record(&key("new")).unwrap().is_some();
        assert!(there || !done);
        if there {
            check_consistent(bench);
        }
        bench.node.stop(SHIM + 1);
        assert_eq!(bench.waiting(), Vec::<String>::new());
        bench.ledger.reclaim(&bench.log).unwrap();
        check_consistent(bench);
    });
    assert!(steps > 30, "the seam saw {steps} steps only");
}

#[test]
fn a_failure_at_any_step_of_a_wait_is_a_clean_refusal_or_a_grant() {
    at_every_step(fails, wait_and_be_admitted, |bench, done| {
        // A place that could not be removed is void after its time.
        bench.node.pass(10_000_001);
        check_consistent(bench);
        assert_eq!(bench.ledger.record(&key("new")).unwrap().is_some(), done);
    });
}

#[test]
fn a_kill_at_any_step_of_bind_keeps_the_grant() {
    let bind = |bench: &Bench| bench.ledger.bind(&key("both"), process(7), None, &[cgroup("both")], &bench.log).is_ok();
    at_every_step(dies, bind, |bench, _| {
        check_consistent(bench);
        assert_eq!(bench.ledger.records().unwrap().len(), 3);
    });
    at_every_step(fails, bind, |bench, done| {
        check_consistent(bench);
        let record = bench.ledger.record(&key("both")).unwrap().unwrap();
        assert!(record.init.is_some() || !done);
    });
}

#[test]
fn a_binding_leaves_the_index_as_up_to_date_as_it_was() {
    let bench = busy();
    let written = || {
        let summary = std::fs::read(bench.directory.path().join("index/summary.json")).unwrap();
        (summary, bench.ledger.store.lock().unwrap().records_stamp().unwrap())
    };
    let before = written();
    // Beyond the precision of a file system's clock.
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.ledger.bind(&key("both"), process(7), None, &[cgroup("both")], &bench.log).unwrap();
    assert_eq!(written(), before);
}

#[test]
fn a_binding_does_not_vouch_for_an_index_of_another_build() {
    let bench = busy();
    let summary = bench.directory.path().join("index/summary.json");
    let mut others: serde_json::Value = serde_json::from_slice(&std::fs::read(&summary).unwrap()).unwrap();
    others["version"] = 1.into();
    std::fs::write(&summary, others.to_string()).unwrap();
    let stamp = || bench.ledger.store.lock().unwrap().records_stamp().unwrap();
    let before = stamp();
    // Beyond the precision of a file system's clock.
    std::thread::sleep(std::time::Duration::from_millis(20));
    bench.ledger.bind(&key("both"), process(7), None, &[cgroup("both")], &bench.log).unwrap();
    assert_ne!(stamp(), before);
}

#[test]
fn a_kill_at_any_step_of_release_leaves_all_or_nothing() {
    let release = |bench: &Bench| bench.ledger.release(&key("both"), ReleaseReason::Ended, &bench.log).is_ok();
    for start in [dies, fails] {
        at_every_step(start, release, |bench, done| {
            check_consistent(bench);
            let there = bench.ledger.record(&key("both")).unwrap().is_some();
            assert!(!(there && done), "a release that succeeded has removed the record");
            check_ended(bench, &bench.take_log());
        });
    }
}

#[test]
fn a_kill_at_any_step_of_a_reclaim_is_made_up_for() {
    at_every_step(
        dies,
        |bench| {
            bench.node.stop(SHIM);
            bench.node.start(SHIM + 1);
            bench.admit_for("new", &request(CardRequest::All, Share::Exclusive), SHIM + 1).is_ok()
        },
        |bench, _| {
            bench.ledger.store.faults.off();
            bench.reopen();
            let _ = bench.ledger.release(&key("new"), ReleaseReason::Ended, &bench.log).unwrap();
            bench.admit_for("next", &request(CardRequest::All, Share::Exclusive), SHIM + 1).unwrap();
            assert_eq!(bench.ledger.records().unwrap().len(), 1);
            check_ended(bench, &bench.take_log());
        },
    );
}

#[test]
fn a_kill_at_any_step_of_a_change_leaves_all_or_nothing() {
    let change = Change { compute: Some(PerCard::same(cap(35))), priority: Some(Priority::Low), ..Change::default() };
    let set = |bench: &Bench| {
        let record = bench.ledger.set(&bench.inventory, &bench.limits, &key("both"), &change, &bench.log);
        record.is_ok()
    };
    for start in [dies, fails] {
        at_every_step(start, set, |bench, done| {
            check_consistent(bench);
            let record = bench.ledger.record(&key("both")).unwrap().unwrap();
            let is_new =
                record.cards.iter().all(|grant| grant.compute == cap(35)) && record.priority() == Priority::Low;
            let is_old =
                record.cards.iter().all(|grant| grant.compute == cap(20)) && record.priority() == Priority::High;
            assert!(is_new || (is_old && !done));
        });
    }
}

#[test]
fn a_kill_at_any_step_of_a_policy_leaves_no_card_with_two() {
    let weights = || {
        let bench = Bench::new(2);
        let request = |cards: &[u32]| with_policy(CardPolicy::Weighted, request(devices(cards), part(8192, weight(1))));
        bench.admit("old0", &request(&[0])).unwrap();
        bench.admit("old1", &request(&[1])).unwrap();
        bench.admit("both", &request(&[0, 1])).unwrap();
        bench
    };
    for start in [dies, fails] {
        for steps in 0.. {
            let mut bench = weights();
            bench.ledger.store.faults.seen();
            start(&bench, steps);
            let setting = CardSetting { policy: Some(CardPolicy::Soft), period: Some(Period::Us(50_000)) };
            let uuid = bench.inventory.cards[0].uuid.clone();
            let done = bench.ledger.set_policy(&bench.inventory, &bench.limits, &uuid, setting, &bench.log).is_ok();
            let needed = bench.ledger.store.faults.seen();
            bench.ledger.store.faults.off();
            bench.reopen();
            bench.ledger.reclaim(&bench.log).unwrap();
            check_timetable(&bench);
            let states = bench.ledger.card_states(&bench.inventory, &bench.limits).unwrap();
            let is_set = states[0].setting == setting;
            assert_eq!(states[0].policy, Some(if is_set { CardPolicy::Soft } else { CardPolicy::Weighted }));
            assert_eq!(states[1].policy, Some(CardPolicy::Weighted));
            assert!(is_set || !done);
            if needed <= steps {
                assert!(done && steps > 10);
                break;
            }
        }
    }
}

#[test]
fn a_kill_at_any_step_of_a_presence_is_made_up_for() {
    let present = |bench: &Bench| bench.ledger.set_present(&key("both"), true).is_ok();
    for start in [dies, fails] {
        at_every_step(start, present, |bench, done| {
            check_consistent(bench);
            assert!(bench.ledger.record(&key("both")).unwrap().unwrap().present || !done);
        });
    }
}

#[test]
fn a_grant_is_given_back_on_a_full_disk() {
    let bench = busy();
    // Removing needs no room; everything that writes fails.
    bench.ledger.store.faults.fail_writes();
    bench.ledger.release(&key("both"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    let before = bench.files();
    let error = bench.admit("new", &share(&[0])).unwrap_err();
    let text = crate::decision_log::chain(&error);
    assert!(text.contains("make room on its file system"), "{text}");
    assert_eq!(bench.files(), before);
    bench.ledger.store.faults.off();
    bench.admit("new", &share(&[0])).unwrap();
}

#[test]
fn an_index_that_was_tampered_with_is_made_anew() {
    for wrong in ["", "{", "[]", r#"{"version":1}"#] {
        let mut bench = busy();
        for entry in std::fs::read_dir(bench.directory.path().join("index")).unwrap() {
            std::fs::write(entry.unwrap().path(), wrong).unwrap();
        }
        check_consistent(&mut bench);
    }
}

/// Names of the records whose ends are not in the log.
fn unlogged(bench: &Bench) -> Vec<String> {
    let entries = std::fs::read_dir(bench.ledger.store.released_dir()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A directory in the log's place stands for a disk that takes nothing.
#[test]
fn an_end_that_the_log_does_not_take_is_logged_once_it_does() {
    let bench = busy();
    let path = bench.directory.path().join("egpu.log");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    bench.ledger.release(&key("old0"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    bench.ledger.release(&key("old1"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    assert_eq!(unlogged(&bench).len(), 2);
    std::fs::remove_dir(&path).unwrap();
    bench.ledger.reclaim(&bench.log).unwrap();
    assert_eq!(unlogged(&bench), Vec::<String>::new());
    let log = std::fs::read_to_string(&path).unwrap();
    let events = std::fs::read_to_string(bench.directory.path().join("events/current.jsonl")).unwrap();
    let of = |text: &str, id: &str| text.lines().filter(|line| line.contains("release") && line.contains(id)).count();
    for id in ["old0", "old1"] {
        assert_eq!((of(&log, id), of(&events, id)), (1, 1), "{log}{events}");
    }
}

#[test]
fn a_log_that_takes_nothing_fills_no_disk() {
    let bench = Bench::new(1);
    std::fs::create_dir(bench.directory.path().join("egpu.log")).unwrap();
    for _ in 0..300 {
        bench.admit("a", &share(&[0])).unwrap();
        bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
    }
    assert_eq!(unlogged(&bench).len(), 256);
}
