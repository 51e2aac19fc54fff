//! Waiting for room: for whom, until when, and who goes first.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use runtime_config::{
    Bytes,
    request::{CardPolicy, CardRequest, ComputeShare, GpuRequest, MemoryLimit, PerCard, Share},
};

use crate::{
    decision_log::chain,
    ledger::{
        AdmitError, AdmitErrorKind, Change, Patience, Record, ReleaseReason,
        admit::Attempt,
        test_support::{
            Bench, FOR_LEAVING, NO_PATIENCE, SHIM, cap, cgroup, devices, key, mib, part, process, request, weight,
            with_policy,
        },
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

fn leave(bench: &Bench, id: &str) {
    bench.ledger.set_leaving(&key(id)).unwrap();
}

fn end(bench: &Bench, id: &str) {
    bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap().unwrap();
}

fn go_on(bench: &Bench, attempt: &mut Attempt<'_>) -> Result<Option<Record>, AdmitError> {
    attempt.go_on(&bench.log)
}

#[track_caller]
fn waits(bench: &Bench, attempt: &mut Attempt<'_>) {
    assert_eq!(go_on(bench, attempt).expect("no refusal"), None);
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
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
    let error = bench.attempt("b", &whole(), FOR_LEAVING).go_on(&bench.log).unwrap_err();
    assert_eq!(error.kind(), AdmitErrorKind::Exhausted);
    assert!(!chain(&error).contains("waited"), "{error}");
    // Nor are two, of which one stays.
    let bench = Bench::new(1);
    bench.admit("a", &gib(16)).unwrap();
    bench.admit("stays", &gib(16)).unwrap();
    leave(&bench, "a");
    assert!(bench.attempt("b", &gib(17), FOR_LEAVING).go_on(&bench.log).is_err());
    waits(&bench, &mut bench.attempt("b", &gib(16), FOR_LEAVING));
}

#[test]
fn an_init_or_a_shim_that_has_ended_leaves() {
    let bench = full();
    bench.node.start(7);
    bench.ledger.bind(&key("a"), process(7), None, &[cgroup("a")], &bench.log).unwrap();
    assert!(bench.attempt("b", &whole(), FOR_LEAVING).go_on(&bench.log).is_err());
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
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
    let error = go_on(&bench, &mut attempt).unwrap_err();
    let error = attempt.refused(error, &bench.log);
    assert_eq!((error.kind(), bench.files()), (AdmitErrorKind::Exhausted, before));
    let text = chain(&error);
    assert!(text.starts_with("room was waited for, 10.0 s long: card 0 ") && text.contains("k8s.io/a"), "{text}");
    let told = error.for_pod();
    assert!(told.starts_with("room was waited for, 10.0 s long: card 0 ") && !told.contains("k8s.io/a"), "{told}");
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
    // What no card has, is not.
    let error = bench.attempt("c", &gib(33), ANY).go_on(&bench.log).unwrap_err();
    assert!(!chain(&error).contains("waited"));
    assert!(bench.attempt("c", &whole(), NO_PATIENCE).go_on(&bench.log).is_err());
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
    let error = go_on(&bench, &mut attempt).unwrap_err();
    assert!(chain(&attempt.refused(error, &bench.log)).starts_with("room was waited for, 0.0 s long: card 0 "));
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
    let error = go_on(&bench, &mut attempt).unwrap_err();
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
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
    go_on(&bench, &mut third).unwrap().expect("a grant");
    waits(&bench, &mut second);
    go_on(&bench, &mut first).unwrap().expect("a grant");
    let error = go_on(&bench, &mut second).unwrap_err();
    assert!(!matches!(error, AdmitError::Kept { .. }), "{error}");
}

/// What a newcomer may have of a card while another waits for what it gets from those who leave.
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
        go_on(&bench, &mut attempt).unwrap().unwrap_or_else(|| panic!("{what}: it waits still"));
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
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
    go_on(&bench, &mut attempt).unwrap().expect("a grant");
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

/// What a container asks for: `gib` of memory of each of its cards.
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
    ];
    prop::collection::vec(step, 1..60)
}

/// The same in plain numbers.
#[derive(Debug)]
struct Model<'a> {
    wishes: &'a [Wish],
    staying: Vec<usize>,
    leaving: Vec<usize>,
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
        let outcome = match attempt.go_on(&self.bench.log) {
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
        self.model.leaving.retain(|other| *other != id);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Try { id, patience } if !self.model.staying.contains(&id) && !self.model.leaving.contains(&id) => {
                self.attempt(id, patience);
            }
            Step::Leave { id } if self.model.staying.contains(&id) => {
                leave(self.bench, &name(id));
                self.model.staying.retain(|other| *other != id);
                self.model.leaving.push(id);
            }
            Step::End { id } if self.model.leaving.contains(&id) => self.end(id),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whoever tries, in whatever order: the ledger decides as plain numbers do, and once those have ended that are leaving, each that was
    /// promised their room gets it.
    #[test]
    fn the_earliest_is_never_robbed_and_nothing_lies_idle(wishes in wishes(), steps in steps()) {
        let bench = Bench::new(2);
        let model = Model { wishes: &wishes, staying: Vec::new(), leaving: Vec::new(), waiting: Vec::new() };
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
