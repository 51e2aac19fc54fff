//! Grants whose shims died.

use base::{ComputeShare, grant_files};
use runtime_config::request::{CardRequest, GpuRequest, Share};

use crate::{
    AdmitErrorKind, BindError, GrantState, Record, ReleaseError, ReleaseReason,
    formats::RECORD,
    test_support::{Bench, NO_PATIENCE, SHIM, cap, cgroup, devices, key, part, process, request},
};

fn whole() -> GpuRequest {
    request(devices(&[0]), Share::Exclusive)
}

/// A container of shim 200 that has card 0 and runs.
fn running(bench: &Bench, id: &str) -> Record {
    bench.node.start(200);
    bench.admit_for(id, &whole(), 200).unwrap();
    bench.node.start(300);
    bench.node.populate(id);
    bench.ledger.bind(&key(id), process(300), None, &[cgroup(id)], &bench.log).unwrap()
}

#[test]
fn a_bound_grant_knows_its_container() {
    let bench = Bench::new(1);
    let record = running(&bench, "a");
    assert_eq!((record.state, record.init), (GrantState::Bound, Some(process(300))));
    assert_eq!(bench.ledger.records().unwrap(), [record]);
    let nobody = bench.ledger.bind(&key("b"), process(300), None, &[cgroup("b")], &bench.log);
    assert!(matches!(nobody, Err(BindError::NoGrant { .. })));
}

#[test]
fn memory_is_not_granted_again_until_the_container_is_gone() {
    let bench = Bench::new(1);
    running(&bench, "a");
    bench.node.survive_kills(true);
    bench.node.stop(200);
    for _ in 0..2 {
        assert_eq!(bench.admit("b", &whole()).unwrap_err().kind(), AdmitErrorKind::Exhausted);
        assert!(bench.node.killed().contains(&cgroup("a").display().to_string()));
        assert_eq!(bench.ledger.records().unwrap().len(), 1);
    }
    let lines: Vec<String> = bench.take_log().into_iter().filter(|line| line.contains("its shim is gone")).collect();
    assert_eq!(lines.len(), 1, "however often one looks: {lines:#?}");
    assert!(lines[0].starts_with("event=warn container=k8s.io/a state=bound shim=200 action=\"its shim"), "{lines:#?}");
    bench.node.empty("a");
    assert_eq!(bench.admit("b", &whole()).unwrap_err().kind(), AdmitErrorKind::Exhausted, "its init lives elsewhere");
    bench.node.stop(300);
    bench.take_log();
    bench.admit("b", &whole()).unwrap();
    let log = bench.take_log();
    assert!(log[0].starts_with("event=reclaim container=k8s.io/a state=bound shim=200"), "{log:#?}");
    assert!(log[1].starts_with("event=release container=k8s.io/a card=0"), "{log:#?}");
}

#[test]
fn a_grant_outlives_its_mediator_not_the_other_way_round() {
    let bench = Bench::new(1);
    bench.node.start(200);
    bench.admit_for("a", &whole(), 200).unwrap();
    for pid in [300, 301] {
        bench.node.start(pid);
    }
    let record = bench.ledger.bind(&key("a"), process(300), Some(process(301)), &[cgroup("a")], &bench.log).unwrap();
    assert_eq!(record.mediator, Some(process(301)));
    bench.node.stop(300);
    bench.node.survive_kills(true);
    let release = || bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log);
    assert!(matches!(release(), Err(ReleaseError::StillMediated { pid: 301, .. })));
    // Without its shim it is killed; until it is gone, its memory is not granted again.
    assert_eq!(bench.node.killed(), ["301"]);
    bench.node.stop(200);
    assert_eq!(bench.admit("b", &whole()).unwrap_err().kind(), AdmitErrorKind::Exhausted);
    assert!(bench.node.killed().contains(&"301".to_owned()), "{:?}", bench.node.killed());
    bench.node.stop(301);
    bench.admit("b", &whole()).unwrap();
}

#[test]
fn a_container_without_its_shim_is_killed_and_its_grant_given_to_the_next() {
    let bench = Bench::new(1);
    running(&bench, "a");
    bench.node.stop(200);
    // Here kills take effect at once, so that the second look of the same admission finds the card
    // free.
    bench.admit("b", &whole()).unwrap();
    assert_eq!(bench.node.killed(), [cgroup("a").display().to_string(), "300".to_owned()]);
    assert_eq!(bench.ledger.records().unwrap()[0].container, key("b"));
}

#[test]
fn a_shims_pid_that_is_anothers_keeps_nobody_from_room() {
    let bench = Bench::new(1);
    bench.node.start(200);
    let half = || request(devices(&[0]), part(16 << 10, ComputeShare::Unlimited));
    let admission = crate::Admission {
        inventory: &bench.inventory,
        request: &half(),
        limits: &bench.limits,
        container: &key("a"),
        shim: crate::ProcessId { start_time: process(200).start_time - 1, ..process(200) },
        creators: &[],
        cgroups: &[cgroup("a")],
        patience: NO_PATIENCE,
        egpu_version: "1.2.3",
        claim: None,
    };
    bench.ledger.admit(&admission, &bench.log).unwrap();
    bench.admit("b", &half()).unwrap();
    bench.admit("c", &half()).unwrap();
    let names = bench.ledger.records().unwrap().into_iter().map(|record| record.container);
    assert_eq!(names.collect::<Vec<_>>(), [key("b"), key("c")], "found where there was no room");
}

#[test]
fn a_shim_that_lives_keeps_its_grants_whatever_its_containers_do() {
    let bench = Bench::new(1);
    running(&bench, "a");
    bench.node.empty("a");
    bench.node.stop(300);
    assert_eq!(bench.admit("b", &whole()).unwrap_err().kind(), AdmitErrorKind::Exhausted);
    assert!(bench.node.killed().is_empty());
}

#[test]
fn a_pending_grant_waits_for_all_that_could_still_create() {
    let bench = Bench::new(1);
    bench.node.start(200);
    bench.node.start(201);
    let admission = crate::Admission {
        inventory: &bench.inventory,
        request: &whole(),
        limits: &bench.limits,
        container: &key("a"),
        shim: process(200),
        creators: &[process(201)],
        cgroups: &[cgroup("a")],
        patience: NO_PATIENCE,
        egpu_version: "1.2.3",
        claim: None,
    };
    bench.ledger.admit(&admission, &bench.log).unwrap();
    bench.node.survive_kills(true);
    bench.node.stop(200);
    assert!(bench.admit("b", &whole()).is_err(), "the helper lives");
    assert!(bench.node.killed().contains(&"201".to_owned()));
    bench.node.stop(201);
    bench.node.populate("a");
    assert!(bench.admit("b", &whole()).is_err(), "it has made a process");
    bench.node.empty("a");
    bench.admit("b", &whole()).unwrap();
}

#[test]
fn an_unknown_population_keeps_the_grant_and_kills_nothing() {
    let bench = Bench::new(1);
    running(&bench, "a");
    bench.node.stop(200);
    bench.node.stop(300);
    bench.node.hide("a");
    bench.take_log();
    assert!(bench.admit("b", &whole()).is_err());
    assert!(bench.node.killed().is_empty());
    assert!(bench.take_log().iter().any(|line| line.contains("cannot be told")));
}

#[test]
fn processes_of_another_pid_namespace_are_left_alone() {
    let bench = Bench::new(1);
    let record = running(&bench, "a");
    bench.node.stop(200);
    let (name, bytes) = bench.files().remove(0);
    let elsewhere = String::from_utf8(bytes)
        .unwrap()
        .replace(&format!("\"pid_namespace\": {}", record.pid_namespace), "\"pid_namespace\": 7");
    std::fs::remove_dir_all(bench.directory.path().join("index")).unwrap();
    std::fs::create_dir(bench.directory.path().join("index")).unwrap();
    std::fs::write(bench.directory.path().join("ledger").join(name), elsewhere).unwrap();
    assert_eq!(bench.admit("b", &whole()).unwrap_err().kind(), AdmitErrorKind::Exhausted);
    assert!(bench.node.killed().is_empty());
    assert_eq!(bench.ledger.records().unwrap().len(), 1);
}

#[test]
fn a_release_waits_for_the_containers_processes() {
    let bench = Bench::new(1);
    running(&bench, "a");
    let release = || bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log);
    assert!(matches!(release(), Err(ReleaseError::StillRunning { .. })));
    assert_eq!(bench.ledger.records().unwrap().len(), 1);
    bench.node.empty("a");
    assert!(release().unwrap().is_some());
    assert!(release().unwrap().is_none(), "a second release does nothing");
}

#[test]
fn a_release_waits_while_the_population_is_unknown() {
    let bench = Bench::new(1);
    running(&bench, "a");
    bench.node.hide("a");
    let release = || bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log);
    assert!(matches!(release(), Err(ReleaseError::CannotTell { .. })));
    assert_eq!(bench.ledger.records().unwrap().len(), 1);
}

#[test]
fn a_create_that_fails_is_rolled_back_in_the_log() {
    let bench = Bench::new(2);
    bench.admit("a", &request(CardRequest::All, part(1024, ComputeShare::Unlimited))).unwrap();
    bench.take_log();
    bench.ledger.release(&key("a"), ReleaseReason::CreateFailed, &bench.log).unwrap();
    let events: Vec<_> = bench.take_log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(events, ["event=rollback", "event=rollback", "event=destroy"]);
    assert!(bench.files().is_empty());
}

#[test]
fn files_that_came_after_a_reclaim_go_with_the_release() {
    let bench = Bench::new(1);
    let admitted = |id: &str, shim: i32| {
        bench.node.start(shim);
        let record = bench.admit_for(id, &request(devices(&[0]), part(1024, cap(10))), shim).unwrap();
        grant_files::path(bench.directory.path(), &record.grant_id).unwrap()
    };
    let (late, live) = (admitted("a", 200), admitted("b", 201));
    bench.node.stop(200);
    assert_eq!(bench.ledger.reclaim(&bench.log).unwrap(), [key("a")]);
    for files in [&late, &live] {
        std::fs::create_dir_all(files).unwrap();
    }
    assert_eq!(bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log).unwrap(), None);
    assert_eq!((late.exists(), live.exists()), (false, true));
}

#[test]
fn reclaim_checks_all_grants() {
    let bench = Bench::new(2);
    bench.node.start(200);
    bench.admit_for("a", &request(devices(&[0]), Share::Exclusive), 200).unwrap();
    bench.admit_for("b", &request(devices(&[1]), Share::Exclusive), SHIM).unwrap();
    bench.node.stop(200);
    assert_eq!(bench.ledger.reclaim(&bench.log).unwrap(), [key("a")]);
    assert_eq!(bench.ledger.reclaim(&bench.log).unwrap(), []);
}

#[test]
fn the_same_container_comes_again_after_its_shim_died() {
    let bench = Bench::new(1);
    bench.node.start(200);
    bench.admit_for("a", &whole(), 200).unwrap();
    bench.node.stop(200);
    let record = bench.admit("a", &whole()).unwrap();
    assert_eq!(record.shim, process(SHIM));
}

#[test]
fn grants_of_another_boot_are_void() {
    let mut bench = Bench::new(1);
    let record = bench.admit("a", &whole()).unwrap();
    let directory = bench.directory.path().join("ledger");
    let (name, bytes) = bench.files().remove(0);
    std::fs::remove_file(directory.join(&name)).unwrap();
    let text = String::from_utf8(bytes).unwrap().replace(&record.boot_id, "another-boot");
    let (stem, _) = name.rsplit_once('.').unwrap().0.rsplit_once('.').unwrap();
    std::fs::write(directory.join(format!("{stem}.00000000.json")), text).unwrap();
    std::fs::write(directory.join("half.00000000.json"), "{").unwrap();
    bench.reopen();
    assert_eq!(bench.ledger.records().unwrap(), []);
    bench.admit("b", &whole()).unwrap();
    assert_eq!(bench.files().len(), 1, "what is void is removed");
}

#[test]
fn a_record_that_is_not_understood_stops_everything_and_is_named() {
    let bench = Bench::new(1);
    bench.admit("a", &whole()).unwrap();
    let path = bench.directory.path().join("ledger").join(bench.files()[0].0.clone());
    let bytes = std::fs::read_to_string(&path).unwrap();
    for wrong in [bytes.replace(&format!("\"version\": {}", RECORD.version), "\"version\": 99"), "{".to_owned()] {
        std::fs::write(path.with_extension("new"), wrong).unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        let error = bench.admit("b", &request(devices(&[0]), part(1, ComputeShare::Unlimited))).unwrap_err();
        assert_eq!(error.kind(), AdmitErrorKind::Internal);
        assert!(crate::decision_log::chain(&error).contains(path.to_str().unwrap()));
        assert!(bench.ledger.records().is_err());
    }
    // Moved away by an operator: the index notices.
    std::fs::remove_file(path).unwrap();
    bench.admit("b", &whole()).unwrap();
}
