//! Waiting for room: for whom, until when, and who goes first.

use std::sync::atomic::{AtomicBool, Ordering};

use base::{Bytes, CardPolicy, ComputeShare};
use runtime_config::request::{CardRequest, GpuRequest, MemoryLimit, PerCard, PodContainer, Share};

use crate::{
    AdmitError, AdmitErrorKind, Change, Limits, Patience, Record, ReleaseReason,
    admit::Attempt,
    decision_log::chain,
    test_support::{
        Bench, FOR_LEAVING, INIT, NO_PATIENCE, SHIM, cap, cgroup, devices, key, mib, part, process, request, weight,
        with_policy,
    },
};

const ANY: Patience<'static> = Patience { any_tenant: true, ..FOR_LEAVING };

fn whole() -> GpuRequest {
    request(devices(&[0]), Share::Exclusive)
}

fn gib(memory: u64) -> GpuRequest {
    request(devices(&[0]), part(memory << 10, ComputeShare::Unlimited))
}

/// `a` has the whole card.
fn full() -> Bench {
    let bench = Bench::new(1);
    bench.admit("a", &whole()).unwrap();
    bench.take_log();
    bench
}

#[track_caller]
pub(super) fn leave(bench: &Bench, id: &str) {
    assert!(bench.leave(id));
}

pub(super) fn end(bench: &Bench, id: &str) {
    bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
}

fn try_once(bench: &Bench, attempt: &mut Attempt<'_>) -> Result<Option<Record>, AdmitError> {
    attempt.try_once(&bench.log)
}

fn refused_once(bench: &Bench, mut attempt: Attempt<'_>) -> AdmitError {
    let error = try_once(bench, &mut attempt).unwrap_err();
    attempt.refused(error, &bench.log)
}

#[track_caller]
fn waits(bench: &Bench, attempt: &mut Attempt<'_>) {
    assert_eq!(try_once(bench, attempt).expect("no refusal"), None);
}

#[test]
fn the_room_of_who_leaves_is_waited_for() {
    let bench = full();
    leave(&bench, "a");
    assert!(bench.ledger.record(&key("a")).unwrap().unwrap().leaving);
    let mut attempt = bench.attempt("b", &whole(), FOR_LEAVING);
    waits(&bench, &mut attempt);
    assert_eq!(bench.waiting(), ["b"]);
    waits(&bench, &mut attempt);
    bench.node.pass(2_100_000);
    end(&bench, "a");
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
    drop(attempt);
    assert!(bench.waiting().is_empty());
    let log = bench.take_log();
    let waits: Vec<_> = log.iter().filter(|line| line.starts_with("event=wait ")).collect();
    assert!(waits.len() == 1 && waits[0].contains("k8s.io/a"), "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("event=grant ") && line.ends_with("waited=2100ms")), "{log:?}");
}

#[test]
fn who_stays_is_not_waited_for() {
    let bench = full();
    let error = bench.attempt("b", &whole(), FOR_LEAVING).try_once(&bench.log).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
    assert!(!chain(&error).contains("waited"), "{error}");
    // Nor are two, of which one stays.
    let bench = Bench::new(1);
    bench.admit("a", &gib(16)).unwrap();
    bench.admit("stays", &gib(16)).unwrap();
    leave(&bench, "a");
    assert!(bench.attempt("b", &gib(17), FOR_LEAVING).try_once(&bench.log).is_err());
    waits(&bench, &mut bench.attempt("b", &gib(16), FOR_LEAVING));
}

#[test]
fn an_init_or_a_shim_that_has_ended_leaves() {
    let bench = full();
    bench.node.start(7);
    bench.ledger.bind(&key("a"), process(7), None, &[cgroup("a")], &bench.log).unwrap();
    assert!(bench.attempt("b", &whole(), FOR_LEAVING).try_once(&bench.log).is_err());
    bench.node.stop(7);
    waits(&bench, &mut bench.attempt("b", &whole(), FOR_LEAVING));

    // Killed, and not yet gone.
    let bench = Bench::new(1);
    bench.node.start(200);
    bench.admit_for("a", &whole(), 200).unwrap();
    bench.node.survive_kills(true);
    bench.node.populate("a");
    bench.node.stop(200);
    let mut attempt = bench.attempt("b", &whole(), FOR_LEAVING);
    waits(&bench, &mut attempt);
    bench.node.empty("a");
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
}

#[test]
fn a_wait_has_an_end_and_the_refusal_says_how_long_it_was() {
    let bench = full();
    leave(&bench, "a");
    let (mut attempt, before) = (bench.attempt("b", &whole(), FOR_LEAVING), bench.files());
    waits(&bench, &mut attempt);
    bench.node.pass(9_999_999);
    waits(&bench, &mut attempt);
    bench.node.pass(1);
    let error = try_once(&bench, &mut attempt).unwrap_err();
    let error = attempt.refused(error, &bench.log);
    assert_eq!((error.kind(), bench.files()), (AdmitErrorKind::Exhausted, before));
    let text = chain(&error);
    assert!(text.starts_with("waited 10.0 s, still no room: card 0 ") && text.contains("k8s.io/a"), "{text}");
    let text = error.for_pod();
    assert!(text.starts_with("waited 10.0 s, still no room: card 0 ") && !text.contains("k8s.io/a"), "{text}");
    assert!(bench.waiting().is_empty());
    let log = bench.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("event=refuse ")).count(), 1, "{log:?}");
}

#[test]
fn any_tenant_is_waited_for_where_that_is_set() {
    let bench = full();
    let mut attempt = bench.attempt("b", &whole(), ANY);
    waits(&bench, &mut attempt);
    end(&bench, "a");
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
    // What no card has, is not.
    let error = bench.attempt("c", &gib(33), ANY).try_once(&bench.log).unwrap_err();
    assert!(!chain(&error).contains("waited"));
    assert!(bench.attempt("c", &whole(), NO_PATIENCE).try_once(&bench.log).is_err());
}

#[test]
fn a_wait_is_over_when_nothing_leaves_any_more() {
    let bench = Bench::new(1);
    bench.admit("a", &gib(8)).unwrap();
    bench.admit("grows", &gib(8)).unwrap();
    leave(&bench, "a");
    let mut attempt = bench.attempt("b", &gib(24), FOR_LEAVING);
    waits(&bench, &mut attempt);
    end(&bench, "a");
    let memory = MemoryLimit::Bytes { amount: mib(9 << 10), reserved: Bytes(0) };
    let change = Change { memory: Some(PerCard::same(memory)), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("grows"), &change, &bench.log).unwrap();
    let error = try_once(&bench, &mut attempt).unwrap_err();
    assert!(chain(&attempt.refused(error, &bench.log)).starts_with("waited 0.0 s, still no room: card 0 "));
}

#[test]
fn whoever_may_ends_a_wait() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    let bench = full();
    leave(&bench, "a");
    let mut attempt = bench.attempt("b", &whole(), Patience { ended: &ENDED, ..FOR_LEAVING });
    waits(&bench, &mut attempt);
    ENDED.store(true, Ordering::Relaxed);
    // Not even room is of use to it now.
    end(&bench, "a");
    let error = try_once(&bench, &mut attempt).unwrap_err();
    assert_eq!(attempt.refused(error, &bench.log).kind(), AdmitErrorKind::Cancelled);
    assert!(bench.waiting().is_empty() && bench.files().is_empty());
}

#[test]
fn what_a_dead_shim_waited_for_is_free() {
    let mut bench = full();
    leave(&bench, "a");
    bench.node.start(200);
    let mut attempt = bench.attempt("b", &whole(), FOR_LEAVING);
    waits(&bench, &mut attempt);
    // As if its process were gone.
    std::mem::forget(attempt);
    end(&bench, "a");
    assert!(matches!(bench.admit_for("c", &gib(1), 200), Err(AdmitError::Kept { .. })));
    bench.node.stop(SHIM);
    assert!(bench.waiting().is_empty());
    bench.admit_for("c", &gib(1), 200).unwrap();
    assert_eq!(std::fs::read_dir(bench.directory.path().join("waiting")).unwrap().count(), 0);
    bench.reopen();
}

#[test]
fn who_has_waited_for_its_time_keeps_nobody_out() {
    let bench = full();
    leave(&bench, "a");
    let mut attempt = bench.attempt("b", &whole(), FOR_LEAVING);
    waits(&bench, &mut attempt);
    end(&bench, "a");
    assert!(bench.admit("c", &gib(1)).is_err());
    bench.node.pass(10_000_001);
    bench.admit("c", &gib(1)).unwrap();
}

#[test]
fn who_was_admitted_waits_no_more() {
    let bench = Bench::new(1);
    bench.admit("a", &gib(24)).unwrap();
    leave(&bench, "a");
    let mut attempt = bench.attempt("b", &gib(12), FOR_LEAVING);
    waits(&bench, &mut attempt);
    end(&bench, "a");
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
    // As if its place could not be removed.
    std::mem::forget(attempt);
    bench.admit("c", &gib(16)).unwrap();
}

#[test]
fn a_waiting_file_that_is_not_understood_is_nobodys() {
    let bench = full();
    std::fs::write(bench.directory.path().join("waiting/x.json"), "{").unwrap();
    end(&bench, "a");
    bench.admit("b", &whole()).unwrap();
}

#[test]
fn the_earliest_that_fits_goes_first() {
    let bench = full();
    leave(&bench, "a");
    let [mut first, mut second, mut third] =
        [("first", 30), ("second", 20), ("third", 2)].map(|(id, memory)| bench.attempt(id, &gib(memory), FOR_LEAVING));
    for attempt in [&mut first, &mut second, &mut third] {
        waits(&bench, attempt);
    }
    assert_eq!(bench.waiting(), ["first", "second", "third"]);
    end(&bench, "a");
    // Whoever looks first: the third takes nothing of what the first waits for, the second does.
    waits(&bench, &mut second);
    try_once(&bench, &mut third).unwrap().expect("a grant");
    waits(&bench, &mut second);
    try_once(&bench, &mut first).unwrap().expect("a grant");
    let error = try_once(&bench, &mut second).unwrap_err();
    assert!(!matches!(error, AdmitError::Kept { .. }), "{error}");
}

/// A newcomer's part of a card while another waits for what it gets from those who leave.
#[test]
fn a_newcomer_takes_only_what_the_first_does_not_wait_for() {
    let share = |memory: u64, compute| request(devices(&[0]), part(memory << 10, compute));
    let fair = |request| with_policy(CardPolicy::Fair, request);
    // Who leaves, who waits, a newcomer that may go ahead, one that may not.
    let cases: [(&str, GpuRequest, GpuRequest, GpuRequest, GpuRequest); 6] = [
        ("memory", gib(20), gib(30), gib(2), gib(3)),
        ("time", share(1, cap(60)), share(1, cap(80)), share(1, cap(20)), share(1, cap(21))),
        (
            "slices",
            with_policy(CardPolicy::Fixed, share(1, weight(8))),
            with_policy(CardPolicy::Fixed, share(1, weight(12))),
            with_policy(CardPolicy::Fixed, share(1, weight(4))),
            with_policy(CardPolicy::Fixed, share(1, weight(5))),
        ),
        ("the whole card", gib(8), whole(), request(devices(&[0]), Share::Monitor), gib(1)),
        ("a policy", gib(1), fair(share(1, ComputeShare::Unlimited)), request(devices(&[0]), Share::Monitor), gib(1)),
        (
            "cards together",
            request(devices(&[1]), part(20 << 10, ComputeShare::Unlimited)),
            request(devices(&[0, 1]), part(30 << 10, ComputeShare::Unlimited)),
            gib(2),
            gib(3),
        ),
    ];
    for (what, leaver, waiter, fits, does_not) in cases {
        let bench = Bench::new(2);
        bench.admit("a", &leaver).unwrap();
        leave(&bench, "a");
        let mut attempt = bench.attempt("first", &waiter, FOR_LEAVING);
        waits(&bench, &mut attempt);
        let error = bench.admit("other", &does_not).expect_err(what);
        assert!(
            matches!(&error, AdmitError::Kept { waiter, .. } if *waiter == key("first").to_string()),
            "{what}: {error}"
        );
        assert!(!error.for_pod().contains("first"), "{what}: {}", error.for_pod());
        bench.admit("newcomer", &fits).unwrap_or_else(|error| panic!("{what}: {error}"));
        end(&bench, "a");
        try_once(&bench, &mut attempt).unwrap().unwrap_or_else(|| panic!("{what}: it waits still"));
    }
}

#[test]
fn a_newcomer_that_may_choose_leaves_the_card_that_is_waited_for() {
    let bench = Bench::new(2);
    bench.admit("a", &gib(20)).unwrap();
    leave(&bench, "a");
    let mut attempt = bench.attempt("first", &gib(30), FOR_LEAVING);
    waits(&bench, &mut attempt);
    let any = request(CardRequest::Count(1), part(8 << 10, ComputeShare::Unlimited));
    assert_eq!(bench.placed("newcomer", &any), [1], "card 0 is the fuller one");
}

#[test]
fn places_and_channels_are_kept_as_well() {
    let mut bench = Bench::new(1);
    bench.limits.device_split_count = 2;
    bench.admit("a", &gib(1)).unwrap();
    bench.admit("b", &gib(1)).unwrap();
    leave(&bench, "a");
    let mut attempt = bench.attempt("first", &gib(1), FOR_LEAVING);
    waits(&bench, &mut attempt);
    end(&bench, "a");
    assert!(matches!(bench.admit("newcomer", &gib(1)), Err(AdmitError::Kept { .. })));
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
}

#[test]
fn who_waits_for_one_that_stays_keeps_nobody_from_what_is_free() {
    let bench = Bench::new(1);
    bench.admit("stays", &gib(20)).unwrap();
    let mut attempt = bench.attempt("first", &gib(30), ANY);
    waits(&bench, &mut attempt);
    bench.admit("newcomer", &gib(12)).unwrap();
    // As soon as it leaves, its room is the first one's.
    end(&bench, "newcomer");
    leave(&bench, "stays");
    assert!(matches!(bench.admit("newcomer", &gib(12)), Err(AdmitError::Kept { .. })));
    end(&bench, "stays");
    try_once(&bench, &mut attempt).unwrap().expect("a grant");
}

#[test]
fn a_record_of_an_older_egpu_says_nothing_of_leaving() {
    let bench = full();
    let (name, bytes) = bench.files().remove(0);
    let text = String::from_utf8(bytes).unwrap();
    assert!(text.contains("\"leaving\": false,"));
    let path = bench.directory.path().join("ledger").join(name);
    std::fs::write(path, text.replace("  \"leaving\": false,\n", "")).unwrap();
    assert!(!bench.ledger.record(&key("a")).unwrap().unwrap().leaving);
}

#[test]
fn a_late_word_of_its_leaving_is_not_the_next_containers() {
    let bench = full();
    leave(&bench, "a");
    end(&bench, "a");
    bench.admit("a", &whole()).unwrap();
    let is_leaving = || bench.ledger.record(&key("a")).unwrap().unwrap().leaving;
    bench.ledger.set_leaving(&key("a"), process(INIT)).unwrap();
    assert!(!is_leaving(), "it has no init yet");
    bench.node.start(INIT + 1);
    bench.ledger.bind(&key("a"), process(INIT + 1), None, &[cgroup("a")], &bench.log).unwrap();
    bench.ledger.set_leaving(&key("a"), process(INIT)).unwrap();
    assert!(!is_leaving());
    bench.ledger.set_leaving(&key("a"), process(INIT + 1)).unwrap();
    assert!(is_leaving());
}

#[test]
fn an_ended_wait_leaves_the_next_shims_place_alone() {
    let bench = full();
    leave(&bench, "a");
    bench.node.start(200);
    let mut ended = bench.attempt("b", &whole(), FOR_LEAVING);
    waits(&bench, &mut ended);
    let mut next = bench.attempt_for("b", &whole(), FOR_LEAVING, (200, bench.limits));
    waits(&bench, &mut next);
    drop(ended);
    assert_eq!(bench.waiting(), ["b"]);
    drop(next);
    assert!(bench.waiting().is_empty());
}

#[test]
fn the_time_to_wait_begins_with_the_wait() {
    let bench = full();
    leave(&bench, "a");
    let mut attempt = bench.attempt("b", &whole(), FOR_LEAVING);
    // It waits for the lock.
    bench.node.pass(20_000_000);
    waits(&bench, &mut attempt);
    bench.node.pass(9_999_999);
    assert_eq!(bench.waiting(), ["b"]);
    waits(&bench, &mut attempt);
}

/// It was asked to end, and ignores that.
#[test]
fn one_that_goes_on_living_keeps_room_from_others_for_a_while_only() {
    let bench = Bench::new(1);
    bench.admit("a", &gib(1)).unwrap();
    leave(&bench, "a");
    bench.node.pass(39_000_000);
    let mut attempt = bench.attempt("first", &whole(), FOR_LEAVING);
    waits(&bench, &mut attempt);
    bench.node.pass(999_999);
    assert!(bench.ledger.set_leaving(&key("a"), process(INIT)).is_ok(), "said again, it begins no new time");
    assert!(matches!(bench.admit("newcomer", &gib(8)), Err(AdmitError::Kept { .. })));
    bench.node.pass(1);
    bench.admit("newcomer", &gib(8)).unwrap();
    let text = chain(&try_once(&bench, &mut attempt).unwrap_err());
    assert!(text.contains("parts of it are in use"), "{text}");
    // Nor does it when its shim has ended.
    bench.node.stop(INIT);
    drop(attempt);
    end(&bench, "newcomer");
    waits(&bench, &mut bench.attempt("second", &whole(), FOR_LEAVING));
}

fn of_pod(namespace: &str, request: GpuRequest) -> GpuRequest {
    let pod = PodContainer { namespace: namespace.into(), pod: "p".into(), container: "c".into() };
    GpuRequest { pod: Some(pod), ..request }
}

/// 31 GiB are free, and one owner's containers wait for all 32, over and over.
#[test]
fn one_owners_waiters_keep_no_room_from_others_for_long() {
    let bench = Bench::new(1);
    bench.admit("a", &gib(1)).unwrap();
    leave(&bench, "a");
    let many = of_pod("many", whole());
    let mut attempts: Vec<_> = (0..34).map(|index| bench.attempt(&format!("b{index}"), &many, FOR_LEAVING)).collect();
    let crowded = attempts.split_off(8);
    for attempt in &mut attempts {
        waits(&bench, attempt);
    }
    for attempt in crowded {
        let error = refused_once(&bench, attempt);
        let text = "8 containers of this namespace wait for room already, as many as may;";
        assert!(error.for_pod().starts_with(text), "{}", error.for_pod());
    }
    // Another owner's container waits in its turn, and their own one is not kept back by them.
    let small = |namespace| of_pod(namespace, gib(8));
    waits(&bench, &mut bench.attempt("other", &small("one"), FOR_LEAVING));
    waits(&bench, &mut bench.attempt("outside", &gib(8), FOR_LEAVING));
    bench.admit("own", &small("many")).unwrap();
    end(&bench, "own");
    assert!(matches!(bench.admit("other", &small("one")), Err(AdmitError::Kept { .. })));
    bench.node.pass(40_000_000);
    bench.admit("other", &small("one")).unwrap();
}

#[test]
fn so_many_wait_and_no_more() {
    let bench = full();
    leave(&bench, "a");
    let attempt = |index: usize| {
        bench.attempt(&format!("b{index}"), &of_pod(&format!("owner-{}", index / 8), whole()), FOR_LEAVING)
    };
    let mut attempts: Vec<_> = (0..32).map(attempt).collect();
    for attempt in &mut attempts {
        waits(&bench, attempt);
    }
    bench.take_log();
    let error = refused_once(&bench, attempt(32));
    assert_eq!((error.kind(), bench.waiting().len()), (AdmitErrorKind::Exhausted, 32));
    for text in [chain(&error), error.for_pod()] {
        assert!(text.starts_with("32 containers of this node wait for room already, as many as may;"), "{text}");
    }
    assert!(chain(&error).contains("k8s.io/a") && !error.for_pod().contains("k8s.io/a"));
    let log = bench.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("event=refuse ")).count(), 1, "{log:?}");
    // Who waits goes on waiting, and whose place comes free is somebody else's.
    waits(&bench, &mut attempts[31]);
    attempts.pop();
    waits(&bench, &mut attempt(32));
}

/// The timetable is made by the configuration of who came last.
#[test]
fn who_waits_is_held_to_the_configuration_of_who_came_meanwhile() {
    let bench = Bench::new(2);
    let slices = |card, count| with_policy(CardPolicy::Fixed, request(devices(&[card]), part(1024, weight(count))));
    let rules = |max_inst| (SHIM, Limits { max_inst, ..bench.limits });
    let attempt =
        |id: &str, card, count, max_inst| bench.attempt_for(id, &slices(card, count), FOR_LEAVING, rules(max_inst));
    bench.admit("a", &whole()).unwrap();
    leave(&bench, "a");
    let (mut five, mut eight) = (attempt("five", 0, 5, 10), attempt("eight", 0, 8, 20));
    waits(&bench, &mut five);
    waits(&bench, &mut eight);
    try_once(&bench, &mut attempt("other", 1, 2, 10)).unwrap().expect("a grant");
    end(&bench, "a");
    try_once(&bench, &mut five).unwrap().expect("a grant");
    let error = try_once(&bench, &mut eight).expect_err("13 slices of 10");
    assert!(chain(&error).contains("5 of max_inst = 10 free"), "{}", chain(&error));
    drop(eight);
    // And the other way round: there are 20 now.
    let mut seven = attempt("seven", 0, 7, 10);
    leave(&bench, "five");
    waits(&bench, &mut seven);
    try_once(&bench, &mut attempt("another", 1, 2, 20)).unwrap().expect("a grant");
    try_once(&bench, &mut seven).unwrap().expect("a grant: 12 slices of 20");
}

#[test]
fn a_configuration_that_is_not_followed_is_warned_about_before_a_wait() {
    let bench = Bench::new(2);
    let fair = with_policy(CardPolicy::Fair, request(devices(&[1]), part(1024, ComputeShare::Unlimited)));
    for index in 0..5 {
        bench.admit(&format!("r{index}"), &fair).unwrap();
    }
    bench.admit("a", &whole()).unwrap();
    leave(&bench, "a");
    bench.take_log();
    let limits = Limits { max_inst: 4, ..bench.limits };
    let mut attempt = bench.attempt_for("b", &whole(), FOR_LEAVING, (SHIM, limits));
    waits(&bench, &mut attempt);
    waits(&bench, &mut attempt);
    let log = bench.take_log();
    let text = |start: &str| log.iter().filter(|line| line.starts_with(start)).count();
    assert_eq!((text("event=warn "), text("event=wait "), log.len()), (1, 1, 2), "{log:?}");
    assert!(log[0].contains("16 -> 4"), "{log:?}");
}
