//! Claims: granted whole, used by the pod's containers, never more than there is.

use base::{CardPolicy, ComputeShare};
use proptest::prelude::*;
use runtime_config::request::{GpuRequest, Share};

use super::*;
use crate::{
    AttachError, GrantState,
    test_support::{Bench, NO_PATIENCE, cap, cgroup, devices, key, mib, part, process, request, with_policy},
};

const POD: &str = "11111111-aaaa";
/// Another shim than that of all containers without a claim.
const POD_SHIM: i32 = 400;
const MEDIATOR: i32 = 500;

fn claim(uid: &str) -> Claim {
    let pod = ClaimPod { name: "train".to_owned(), uid: POD.to_owned() };
    Claim { uid: uid.to_owned(), namespace: "team".to_owned(), name: format!("train-{uid}"), pod }
}

fn request_key(uid: &str, request: &str) -> ContainerKey {
    claim_key("team", uid, request)
}

fn share_of(card: u32, memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(devices(&[card]), part(memory_mib, compute))
}

fn prepare(bench: &Bench, uid: &str, requests: &[(&str, GpuRequest)]) -> Result<Vec<Record>, AdmitError> {
    let requests: Vec<_> = requests.iter().map(|(name, request)| ((*name).to_owned(), request.clone())).collect();
    let admission = ClaimAdmission {
        inventory: &bench.inventory,
        limits: &bench.limits,
        claim: &claim(uid),
        requests: &requests,
        patience: NO_PATIENCE,
        egpu_version: "1.2.3",
    };
    bench.ledger.prepare_claim(&admission, &bench.log)
}

fn attach_in(
    bench: &Bench,
    id: &str,
    requests: &[ContainerKey],
    (pod_uid, shim): (&str, i32),
) -> Result<Record, AttachError> {
    bench.node.start(shim);
    let attachment = Attachment {
        requests,
        pod_uid,
        pod_namespace: "team",
        container: &key(id),
        name: id,
        shim: process(shim),
        creators: &[],
        cgroups: &[cgroup(id)],
    };
    bench.ledger.attach(&attachment, &bench.log)
}

fn attach(bench: &Bench, id: &str, requests: &[ContainerKey]) -> Result<Record, AttachError> {
    attach_in(bench, id, requests, (POD, POD_SHIM))
}

fn bind(bench: &Bench, id: &str, requests: &[ContainerKey], init: i32) {
    bench.node.start(init);
    bench.node.start(MEDIATOR);
    bench.node.populate(id);
    let mediator = Some(process(MEDIATOR));
    bench.ledger.bind_attached(requests, &key(id), process(init), mediator, &[cgroup(id)]).unwrap();
}

fn end(bench: &Bench, id: &str, init: i32) {
    bench.node.stop(init);
    bench.node.empty(id);
}

#[test]
fn a_claim_is_granted_whole_or_not_at_all() {
    let bench = Bench::new(2);
    let small = share_of(0, 1024, cap(10));
    let error = prepare(&bench, "a", &[("one", small.clone()), ("two", share_of(1, 40 << 10, cap(10)))]).unwrap_err();
    assert!(error.to_string().contains("card 1"), "{error}");
    assert!(bench.ledger.records().unwrap().is_empty(), "the first request was given back");
    let records = prepare(&bench, "a", &[("one", small.clone()), ("two", share_of(1, 1024, cap(10)))]).unwrap();
    assert_eq!(records.iter().map(|record| record.state).collect::<Vec<_>>(), [GrantState::Prepared; 2]);
    let again = prepare(&bench, "a", &[("one", small), ("two", share_of(1, 1024, cap(10)))]).unwrap();
    assert_eq!(again, records, "asked twice, granted once");
    assert!(bench.ledger.unprepare_claim("team", "a", &bench.log).unwrap());
    assert!(!bench.ledger.unprepare_claim("team", "a", &bench.log).unwrap());
    assert!(bench.ledger.records().unwrap().is_empty());
}

/// To the byte and the percent, and also when whoever prepared it is gone.
#[test]
fn a_prepared_claim_keeps_its_room_without_any_process() {
    let bench = Bench::new(1);
    prepare(&bench, "a", &[("gpu", share_of(0, 20 << 10, cap(60)))]).unwrap();
    assert!(bench.ledger.reclaim(&bench.log).unwrap().is_empty());
    let beside = |memory, percent| bench.admit("b", &request(devices(&[0]), part(memory, cap(percent))));
    assert!(beside((12 << 10) + 1, 40).is_err());
    assert!(beside(12 << 10, 41).is_err());
    beside(12 << 10, 40).unwrap();
    assert!(prepare(&bench, "c", &[("gpu", share_of(0, 1, cap(1)))]).is_err());
}

#[test]
fn containers_of_a_pod_share_one_grant_and_leave_it_prepared() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "gpu")];
    let prepared = prepare(&bench, "a", &[("gpu", share_of(0, 1024, cap(10)))]).unwrap().remove(0);
    let one = attach(&bench, "one", &keys).unwrap();
    let two = attach(&bench, "two", &keys).unwrap();
    assert_eq!([&one.grant_id, &two.grant_id], [&prepared.grant_id; 2]);
    bind(&bench, "one", &keys, 301);
    bind(&bench, "two", &keys, 302);
    let record = bench.ledger.record(&keys[0]).unwrap().unwrap();
    assert_eq!((record.state, record.cgroups.len(), record.inits().count()), (GrantState::Bound, 2, 2));
    assert!(bench.ledger.unprepare_claim("team", "a", &bench.log).is_err(), "they run");

    assert!(bench.ledger.detach(&keys, &key("one"), &bench.log).is_err(), "it runs");
    end(&bench, "one", 301);
    bench.ledger.detach(&keys, &key("one"), &bench.log).unwrap();
    end(&bench, "two", 302);
    let error = bench.ledger.detach(&keys, &key("two"), &bench.log).unwrap_err();
    assert!(matches!(error, ReleaseError::StillMediated { .. }), "{error}");
    bench.node.stop(MEDIATOR);
    bench.ledger.detach(&keys, &key("two"), &bench.log).unwrap();
    bench.ledger.detach(&keys, &key("two"), &bench.log).unwrap();
    let record = bench.ledger.record(&keys[0]).unwrap().unwrap();
    assert_eq!((record.state, record.mediator, record.init), (GrantState::Prepared, None, None));
    assert!(bench.ledger.unprepare_claim("team", "a", &bench.log).unwrap());
}

#[test]
fn a_claim_of_another_pod_is_not_used() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "gpu")];
    prepare(&bench, "a", &[("gpu", share_of(0, 1024, cap(10)))]).unwrap();
    let error = attach_in(&bench, "thief", &keys, ("22222222-bbbb", POD_SHIM)).unwrap_err();
    assert!(matches!(error, AttachError::OtherPod { .. }), "{error}");
    let error = attach(&bench, "one", &[request_key("b", "gpu")]).unwrap_err();
    assert!(matches!(error, AttachError::NotPrepared { .. }), "{error}");
    // A container's own grant is no claim's.
    bench.admit("own", &share_of(0, 1024, cap(10))).unwrap();
    let error = attach(&bench, "one", &[key("own")]).unwrap_err();
    assert!(matches!(error, AttachError::NotPrepared { .. }), "{error}");
    assert!(attach(&bench, "one", &[]).is_err());
}

#[test]
fn what_a_dead_shim_left_of_a_claim_is_killed_and_the_claim_stays() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "gpu")];
    prepare(&bench, "a", &[("gpu", share_of(0, 1024, cap(10)))]).unwrap();
    attach(&bench, "one", &keys).unwrap();
    bind(&bench, "one", &keys, 301);
    bench.node.survive_kills(true);
    bench.node.stop(POD_SHIM);
    let error = attach_in(&bench, "two", &keys, (POD, 401)).unwrap_err();
    assert!(matches!(error, AttachError::InUse { .. }), "{error}");
    assert!(bench.node.killed().contains(&"301".to_owned()), "{:?}", bench.node.killed());
    assert!(bench.ledger.unprepare_claim("team", "a", &bench.log).is_err(), "it lives still");
    end(&bench, "one", 301);
    bench.node.stop(MEDIATOR);
    attach_in(&bench, "two", &keys, (POD, 401)).unwrap();
    bench.node.stop(401);
    assert!(bench.ledger.unprepare_claim("team", "a", &bench.log).unwrap(), "nothing of it is left");
}

#[test]
fn requests_of_one_container_have_one_name_in_the_timetable_and_their_cards_together() {
    let bench = Bench::new(2);
    let keys = [request_key("a", "one"), request_key("a", "two")];
    let records =
        prepare(&bench, "a", &[("one", share_of(0, 1024, cap(20))), ("two", share_of(1, 2048, cap(30)))]).unwrap();
    let both = attach(&bench, "both", &keys).unwrap();
    assert_eq!(both.schedule_id(), records[0].grant_id);
    assert_eq!(both.cards.iter().map(|card| card.memory).collect::<Vec<_>>(), [mib(1024), mib(2048)]);
    let table = Ledger::timetable(bench.directory.path()).unwrap();
    let turns = &table.epochs.last().unwrap().turns;
    assert_eq!(turns.iter().map(|turn| turn.cards.len()).collect::<Vec<_>>(), [2], "{turns:?}");

    let error = attach(&bench, "first", &keys[..1]).unwrap_err();
    assert!(matches!(error, AttachError::OtherRequests { .. }), "{error}");
    bench.ledger.detach(&keys, &key("both"), &bench.log).unwrap();
    let first = attach(&bench, "first", &keys[..1]).unwrap();
    assert_eq!((first.schedule_id(), first.cards.len()), (records[0].grant_id.as_str(), 1));
    let second = attach(&bench, "second", &keys[1..]).unwrap();
    assert_eq!(second.schedule_id(), records[1].grant_id, "each by itself now");
    let error = attach(&bench, "both", &keys).unwrap_err();
    assert!(matches!(error, AttachError::OtherRequests { .. }), "{error}");
}

/// Another's record that cannot be read is no reason not to find it.
#[test]
fn a_container_is_looked_for_in_its_own_records_alone() {
    let bench = Bench::new(2);
    let requests = [request_key("a", "one"), request_key("a", "two")];
    prepare(&bench, "a", &[("one", share_of(0, 1024, cap(10))), ("two", share_of(1, 1024, cap(10)))]).unwrap();
    attach_in(&bench, "user", &requests[..1], (POD, POD_SHIM)).unwrap();
    bench.admit("own", &share_of(0, 1024, cap(10))).unwrap();
    std::fs::write(bench.directory.path().join("ledger").join(bench.ledger.store.record_name(&key("other"))), "{")
        .unwrap();
    assert!(bench.ledger.is_attached(&requests[..1], &key("user")).unwrap());
    assert!(!bench.ledger.is_attached(&requests, &key("user")).unwrap(), "it does not use the second");
    assert!(!bench.ledger.is_attached(&requests[..1], &key("another")).unwrap());
    assert_eq!(bench.ledger.requests_of(&key("own")).unwrap(), []);
}

#[test]
fn requests_of_one_card_are_added_up() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "one"), request_key("a", "two")];
    prepare(&bench, "a", &[("one", share_of(0, 1024, cap(20))), ("two", share_of(0, 2048, cap(30)))]).unwrap();
    let both = attach(&bench, "both", &keys).unwrap();
    let [card] = both.cards.as_slice() else { panic!("{:?}", both.cards) };
    assert_eq!((card.memory, card.compute), (mib(3072), cap(50)));
    let table = Ledger::timetable(bench.directory.path()).unwrap();
    let [turn] = table.epochs.last().unwrap().turns.as_slice() else { panic!("{table:?}") };
    assert_eq!((turn.cards[0].memory, turn.cards[0].share_ppm), (mib(3072), 500_000));
}

/// A mediator goes by the epoch in force, which was the gang's.
#[test]
fn a_container_of_one_request_has_no_memory_of_the_other_at_any_time() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "one"), request_key("a", "two")];
    prepare(&bench, "a", &[("one", share_of(0, 3000, cap(20))), ("two", share_of(0, 2000, cap(30)))]).unwrap();
    for (id, own) in [("first", &keys[..1]), ("second", &keys[1..])] {
        let record = attach(&bench, id, own).unwrap();
        let table = Ledger::timetable(bench.directory.path()).unwrap();
        let turns = table.epochs.iter().flat_map(|epoch| &epoch.turns);
        let own: Vec<_> = turns.filter(|turn| turn.grant_id == record.schedule_id()).collect();
        assert!(!own.is_empty() && own.iter().all(|turn| turn.cards[0].memory == record.cards[0].memory), "{own:?}");
    }
}

#[test]
fn a_claim_leaves_when_all_its_containers_do() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "gpu")];
    prepare(&bench, "a", &[("gpu", share_of(0, 1024, cap(10)))]).unwrap();
    for (id, init) in [("one", 301), ("two", 302)] {
        attach(&bench, id, &keys).unwrap();
        bind(&bench, id, &keys, init);
    }
    let leaving = || bench.ledger.record(&keys[0]).unwrap().unwrap().leaving;
    bench.ledger.set_attached_leaving(&keys, &key("one"), process(301)).unwrap();
    assert!(!leaving());
    bench.ledger.set_attached_leaving(&keys, &key("two"), process(999)).unwrap();
    assert!(!leaving(), "another init's");
    bench.ledger.set_attached_leaving(&keys, &key("two"), process(302)).unwrap();
    assert!(leaving());
    let since_us = bench.ledger.record(&keys[0]).unwrap().unwrap().leaving_since_us;
    assert_eq!(since_us, Some(bench.node.now()), "others wait for it for so long only");
    bench.node.stop(MEDIATOR);
    for (id, init) in [("one", 301), ("two", 302)] {
        end(&bench, id, init);
        bench.ledger.detach(&keys, &key(id), &bench.log).unwrap();
    }
    assert!(leaving(), "until its next container comes");
    attach(&bench, "three", &keys).unwrap();
    assert!(!leaving());
}

#[test]
fn a_claim_goes_to_its_next_pod_once_nobody_uses_it() {
    let bench = Bench::new(1);
    let keys = [request_key("a", "gpu")];
    prepare(&bench, "a", &[("gpu", share_of(0, 1024, cap(10)))]).unwrap();
    attach(&bench, "one", &keys).unwrap();
    let next = ClaimPod { name: "next".to_owned(), uid: "2222".to_owned() };
    bench.ledger.set_claim_pod("team", "a", &next).unwrap();
    assert!(attach_in(&bench, "two", &keys, ("2222", POD_SHIM)).is_err());
    bench.ledger.detach(&keys, &key("one"), &bench.log).unwrap();
    bench.ledger.set_claim_pod("team", "a", &next).unwrap();
    attach_in(&bench, "two", &keys, ("2222", POD_SHIM)).unwrap();
}

#[test]
fn what_is_granted_outside_claims_is_not_offered() {
    let bench = Bench::new(3);
    let offers = || bench.ledger.offers(&bench.inventory, &bench.limits).unwrap();
    let empty = offers().remove(0);
    assert_eq!((empty.memory, empty.compute, empty.containers), (mib(32768), Some(100), 10));
    bench.admit("a", &share_of(0, 1000, cap(30))).unwrap();
    prepare(&bench, "c", &[("gpu", share_of(0, 2000, cap(20)))]).unwrap();
    bench.admit("w", &request(devices(&[1]), Share::Exclusive)).unwrap();
    let weighted = request(devices(&[2]), part(1000, ComputeShare::Unlimited));
    bench.admit("v", &with_policy(CardPolicy::Weighted, weighted)).unwrap();
    let [shared, whole, weighted] = offers().try_into().unwrap();
    assert_eq!((shared.memory, shared.compute, shared.containers), (mib(31768), Some(70), 9));
    assert_eq!((shared.granted, shared.policy), (mib(3000), CardPolicy::Fixed));
    assert!(whole.is_whole_outside && !shared.is_whole_outside);
    assert_eq!((weighted.compute, weighted.policy), (None, CardPolicy::Weighted), "it holds no caps");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Offers beyond what claims consume are admitted, and no percent more, unless several claims
    /// without a cap consume more than they hold.
    #[test]
    fn an_offer_is_what_is_admitted(
        others in prop::collection::vec((1_u64..6000, prop::option::of(1_u8..40), any::<bool>()), 0..5),
    ) {
        let bench = Bench::new(1);
        let (mut consumed, mut uncapped) = (0, 0);
        for (number, (memory, percent, is_claim)) in others.into_iter().enumerate() {
            let request = share_of(0, memory, percent.map_or(ComputeShare::Unlimited, cap));
            if is_claim {
                if prepare(&bench, &number.to_string(), &[("gpu", request)]).is_ok() {
                    consumed += percent.map_or(5, u32::from);
                    uncapped += u32::from(percent.is_none());
                }
            } else {
                let _ = bench.admit(&number.to_string(), &request);
            }
        }
        let offer = bench.ledger.offers(&bench.inventory, &bench.limits).unwrap().remove(0);
        let free = u8::try_from(offer.compute.unwrap() - consumed).unwrap();
        if free < 100 && uncapped < 2 {
            prop_assert!(prepare(&bench, "over", &[("gpu", share_of(0, 1, cap(free + 1)))]).is_err());
        }
        if free > 0 {
            prop_assert!(prepare(&bench, "free", &[("gpu", share_of(0, 1, cap(free)))]).is_ok());
        }
    }
}
