//! Policies and places that one owner's containers may take from all who come after them.

use base::{CardPolicies, CardPolicy, ComputeShare};
use runtime_config::request::{CardRequest, GpuRequest, PodContainer};

use crate::{
    AdmitError, CardSetting, Change, Refusal, ReleaseReason,
    claims::{Claim, ClaimAdmission, ClaimPod},
    test_support::{Bench, NO_PATIENCE, cap, devices, key, part, request, weight, with_policy},
};

fn on(card: u32, memory_mib: u64, compute: ComputeShare) -> GpuRequest {
    request(devices(&[card]), part(memory_mib, compute))
}

fn free(policy: CardPolicy, memory_mib: u64) -> GpuRequest {
    with_policy(policy, on(0, memory_mib, ComputeShare::Unlimited))
}

#[track_caller]
fn refusal(result: Result<crate::Record, AdmitError>) -> Refusal {
    match result.unwrap_err() {
        AdmitError::Card { source, .. } => *source,
        AdmitError::NoRoom { mut tried, .. } => tried.remove(0).why.expect("a reason"),
        other => panic!("{other}"),
    }
}

/// Of a card of 32 GiB, 3 % are 983.04 MiB.
#[test]
fn only_a_share_brings_a_policy_to_an_empty_card() {
    let small = |asked, has| Some(Refusal::SmallForPolicy { asked, has, percent: 3 });
    let (fixed, soft, native) = (CardPolicy::Fixed, CardPolicy::Soft, CardPolicy::Native);
    for (default, asked, expected) in [
        (fixed, free(soft, 1), small(soft, fixed)),
        (fixed, free(native, 983), small(native, fixed)),
        (fixed, free(native, 984), None),
        (fixed, free(fixed, 1), None),
        (fixed, on(0, 1, ComputeShare::Unlimited), None),
        (fixed, on(0, 1, weight(300)), small(soft, fixed)),
        (fixed, on(0, 1, cap(1)), None),
        (soft, free(soft, 1), None),
        (soft, on(0, 1, cap(2)), small(fixed, soft)),
        (soft, on(0, 1, cap(3)), None),
    ] {
        let mut bench = Bench::new(1);
        bench.limits.default_policy = default;
        match (bench.admit("a", &asked), expected) {
            (Ok(_), None) => {}
            (result, expected) => assert_eq!(Some(refusal(result)), expected, "{asked:?}"),
        }
    }
}

#[test]
fn tiny_containers_keep_no_card_from_caps() {
    let bench = Bench::new(4);
    for card in 0..4 {
        let tiny = with_policy(CardPolicy::Soft, on(card, 1, ComputeShare::Unlimited));
        let error = bench.admit(&format!("tiny{card}"), &tiny).unwrap_err();
        assert!(error.for_pod().contains("(requested_policy_share in the configuration)"), "{}", error.for_pod());
    }
    let any = request(CardRequest::Count(4), part(1 << 10, cap(25)));
    assert_eq!(bench.placed("train", &any), [0, 1, 2, 3]);
}

#[test]
fn what_the_card_has_is_everybodys() {
    let bench = Bench::new(1);
    bench.admit("large", &free(CardPolicy::Soft, 1 << 10)).unwrap();
    bench.admit("small", &free(CardPolicy::Soft, 1)).unwrap();
    bench.ledger.release(&key("large"), ReleaseReason::Ended, &bench.log).unwrap();
    bench.admit("another", &on(0, 1, weight(300))).unwrap();
    for id in ["small", "another"] {
        bench.ledger.release(&key(id), ReleaseReason::Ended, &bench.log).unwrap();
    }
    bench.admit("small", &free(CardPolicy::Soft, 1)).unwrap_err();
    let setting = CardSetting { policy: Some(CardPolicy::Native), period: None };
    let uuid = &bench.inventory.cards[0].uuid;
    bench.ledger.set_policy(&bench.inventory, &bench.limits, uuid, setting, &bench.log).unwrap();
    bench.admit("small", &free(CardPolicy::Native, 1)).unwrap();
    // A change asks for no policy that the card does not have.
    let change = Change { priority: Some(base::Priority::Low), ..Change::default() };
    bench.ledger.set(&bench.inventory, &bench.limits, &key("small"), &change, &bench.log).unwrap();
}

#[test]
fn policies_that_are_not_configured_are_brought_by_nobody() {
    let mut bench = Bench::new(1);
    bench.limits.requested_policies = CardPolicies::parse_list("soft").unwrap();
    let refused = refusal(bench.admit("a", &free(CardPolicy::Native, 16 << 10)));
    assert_eq!(refused, Refusal::PolicyNotRequested { asked: CardPolicy::Native, has: CardPolicy::Fixed });
    assert!(refused.to_string().contains("requested_policies in the configuration"), "{refused}");
    bench.admit("b", &free(CardPolicy::Fixed, 16 << 10)).unwrap();
    bench.ledger.release(&key("b"), ReleaseReason::Ended, &bench.log).unwrap();
    bench.admit("c", &free(CardPolicy::Soft, 16 << 10)).unwrap();
}

#[test]
fn an_owner_has_so_many_places_of_a_card() {
    let mut bench = Bench::new(2);
    bench.limits.owner_split_count = 2;
    let of = |namespace: &str, request: GpuRequest| {
        let pod = PodContainer { namespace: namespace.into(), pod: "p".into(), container: "c".into() };
        GpuRequest { pod: Some(pod), ..request }
    };
    let small = || on(0, 1, ComputeShare::Unlimited);
    for id in ["a", "b"] {
        bench.admit(id, &of("team", small())).unwrap();
        // containerd's namespace of that name is another owner.
        bench.admit(&format!("outside-{id}"), &small()).unwrap();
    }
    for asked in [of("team", small()), small()] {
        let refused = refusal(bench.admit("c", &asked));
        assert_eq!(refused, Refusal::OwnersContainers { limit: 2 });
        assert!(refused.to_string().contains("owner_split_count"), "{refused}");
    }
    // A claim's pod is of the same owner.
    let (claim, requests) = claim("team", small());
    let admission = ClaimAdmission {
        inventory: &bench.inventory,
        limits: &bench.limits,
        claim: &claim,
        requests: &requests,
        patience: NO_PATIENCE,
        egpu_version: "1",
    };
    bench.ledger.prepare_claim(&admission, &bench.log).unwrap_err();
    bench.admit("other", &of("others", small())).unwrap();
    let any = || of("team", request(CardRequest::Count(1), part(1, ComputeShare::Unlimited)));
    assert_eq!((bench.placed("d", &any()), bench.placed("e", &any())), (vec![1], vec![1]), "the other card");
    assert_eq!(refusal(bench.admit("f", &any())), Refusal::OwnersContainers { limit: 2 });
    bench.ledger.release(&key("a"), ReleaseReason::Ended, &bench.log).unwrap();
    assert_eq!(bench.placed("f", &any()), [0]);
}

fn claim(namespace: &str, request: GpuRequest) -> (Claim, [(String, GpuRequest); 1]) {
    let pod = ClaimPod { name: "train".into(), uid: "6d0d4e62-8a43-4cb3-8bd5-f6b5f7c9a3ab".into() };
    let uid = "0f4f9f6e-27b5-4fbe-a5c5-5b1f31b5a5e5".into();
    let claim = Claim { uid, namespace: namespace.into(), name: "gpu".into(), pod };
    (claim, [("gpu".to_owned(), request)])
}
