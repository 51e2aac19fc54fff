//! Claims are prepared and unprepared.

use std::fs;

use base::{Bytes, ComputeShare, Percent, Weight};
use ledger::Record;
use serde_json::{Value, json};

use super::{
    api_server::ApiServer,
    bench::{Bench, GIB, claim_path, result, uid},
    kubelet::{prepare, prepare_all, unprepare},
};
use crate::kubelet_api::PreparedDevice;

fn records(bench: &Bench) -> Vec<Record> {
    bench.node().ledger.claims().unwrap()
}

fn cap(percent: u8) -> ComputeShare {
    ComputeShare::Cap { percent: Percent::new(percent).unwrap(), lifted_when_alone: false }
}

#[tokio::test]
async fn a_claim_is_granted_once_and_given_back_once() {
    let bench = Bench::new().await;
    let claim = bench.share(1, "gpu-1", 20 * GIB, Some(25));
    let expected = PreparedDevice {
        request_names: vec!["gpu".to_owned()],
        pool_name: "node-1".to_owned(),
        device_name: "gpu-1".to_owned(),
        cdi_device_ids: vec![format!("egpu.io/claim={}-gpu", uid(1))],
        share_id: Some("5a5a".to_owned()),
    };
    for _ in 0..2 {
        let answer = prepare(&bench.socket(), &claim).await;
        assert_eq!((answer.error.as_str(), &answer.devices), ("", &vec![expected.clone()]));
        let records = records(&bench);
        assert_eq!(records.len(), 1, "asked twice, granted once");
        let card = &records[0].cards[0];
        assert_eq!((card.index, card.memory, card.compute, card.exclusive), (1, Bytes(20 * GIB), cap(25), false));
    }
    let text = fs::read_to_string(bench.path(&format!("cdi/egpu.io-claim-{}.json", uid(1)))).unwrap();
    let variable = format!("EGPU_CLAIM_c1a10001_GPU=team/{}/gpu", uid(1));
    let edits = json!({"env": [variable, "NVIDIA_VISIBLE_DEVICES=void"]});
    let devices = json!([{"name": format!("{}-gpu", uid(1)), "containerEdits": edits}]);
    let expected = json!({"cdiVersion": "0.5.0", "kind": "egpu.io/claim", "devices": devices});
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected, "nothing but where the claim is recorded");

    for _ in 0..2 {
        assert_eq!(unprepare(&bench.socket(), &claim).await, "");
        assert_eq!(records(&bench), []);
        assert_eq!(fs::read_dir(bench.path("cdi")).unwrap().count(), 0);
    }
    let event = bench.api.wait("an event", |api| api.list("/api/v1/namespaces/team/events").pop()).await;
    assert_eq!((&event["reason"], &event["count"]), (&json!("Granted"), &json!(1)), "told once");
    assert_eq!(event["involvedObject"]["uid"], "pod-uid-1");
    assert_eq!(event["message"], "gpu: gpu-1 (NVIDIA H200): 20 GiB compute=25%");
}

#[tokio::test]
async fn a_claim_is_read_once_for_each_time_that_it_is_prepared() {
    let bench = Bench::new().await;
    let claim = bench.share(1, "gpu-0", GIB, None);
    prepare(&bench.socket(), &claim).await;
    assert_eq!(bench.api.count(&format!("GET {}", claim_path("claim-1"))), 1);
}

#[tokio::test]
async fn no_more_is_granted_than_there_is() {
    let bench = Bench::new().await;
    let first = bench.share(1, "gpu-0", 50 * GIB, Some(60));
    assert_eq!(prepare(&bench.socket(), &first).await.error, "");
    let claims = [
        bench.share(2, "gpu-0", 30 * GIB + 1024, Some(1)),
        bench.share(3, "gpu-0", GIB, Some(41)),
        bench.share(4, "gpu-0", 30 * GIB, Some(40)),
    ];
    let mut answers = Vec::new();
    for claim in &claims {
        answers.push(prepare(&bench.socket(), claim).await.error);
    }
    assert!(answers[0].contains("30GiB of 80GiB of memory"), "{answers:?}");
    assert!(answers[1].contains("40% of its time"), "{answers:?}");
    assert_eq!(answers[2], "");
    let refused = |event: &Value| event["reason"] == "GrantRefused" && event["type"] == "Warning";
    let told = bench.api.wait("events", |api| {
        let events = api.list("/api/v1/namespaces/team/events");
        Some(events.into_iter().filter(refused).collect::<Vec<_>>()).filter(|events| events.len() == 2)
    });
    assert!(told.await.iter().all(|event| event["message"].as_str().unwrap().contains("free: ")), "with what is free");
    for _ in 0..2 {
        assert_ne!(prepare(&bench.socket(), &claims[1]).await.error, "");
    }
    let counted = |event: &Value| event["count"] == 2 && refused(event);
    let is_counted = |api: &ApiServer| api.list("/api/v1/namespaces/team/events").iter().any(counted).then_some(());
    bench.api.wait("an event that is counted", is_counted).await;
}

#[tokio::test]
async fn the_error_of_one_claim_is_not_its_neighbours() {
    let bench = Bench::new().await;
    let good = bench.share(1, "gpu-0", GIB, Some(10));
    let too_large = bench.share(2, "gpu-0", 90 * GIB, Some(10));
    let mut missing = bench.share(3, "gpu-0", GIB, Some(10));
    bench.api.delete(&claim_path("claim-3"));
    missing.name = "claim-3".to_owned();
    let answers = prepare_all(&bench.socket(), &[good, too_large, missing]).await.claims;
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[&uid(1)].error, "");
    assert!(answers[&uid(2)].error.contains("80GiB"), "{answers:?}");
    assert!(answers[&uid(3)].error.contains("NotFound (404)"), "{answers:?}");
    assert_eq!(records(&bench).len(), 1);
}

#[tokio::test]
async fn what_a_claim_does_not_name_it_does_not_get_as_a_limit() {
    let bench = Bench::new().await;
    let uncapped = bench.share(1, "gpu-0", GIB, None);
    assert_eq!(prepare(&bench.socket(), &uncapped).await.error, "");
    assert_eq!(records(&bench)[0].cards[0].compute, ComputeShare::Unlimited, "the 5 % that it consumes are no cap");
    let whole = [result("gpu", "gpu-1", 80 * GIB, 5)];
    let whole = bench.claim(2, &[("gpu", json!({}), whole.to_vec())], &json!([]));
    assert_eq!(prepare(&bench.socket(), &whole).await.error, "");
    let record = records(&bench).remove(1);
    assert!(record.exclusive && record.cards[0].index == 1, "{record:?}");
}

#[tokio::test]
async fn a_node_that_requires_claims_takes_them() {
    let mut bench = Bench::without_plugin("", "[kubernetes]\nrequire_claim = true").await;
    bench.start();
    bench.devices().await;
    let claim = bench.share(1, "gpu-0", GIB, Some(10));
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
}

#[tokio::test]
async fn several_cards_of_a_request_have_their_own_shares() {
    let bench = Bench::new().await;
    let results = vec![result("pair", "gpu-1", 3 * GIB, 10), result("pair", "gpu-0", 4 * GIB, 20)];
    let claim = bench.claim(1, &[("pair", json!({"memory": "3Gi", "compute": "10"}), results)], &json!([]));
    let answer = prepare(&bench.socket(), &claim).await;
    assert_eq!(answer.error, "");
    let carried: Vec<usize> = answer.devices.iter().map(|device| device.cdi_device_ids.len()).collect();
    assert_eq!(carried, [1, 0], "one variable for the request");
    let cards = records(&bench).remove(0).cards;
    let shares: Vec<_> = cards.iter().map(|card| (card.index, card.memory.0 / GIB, card.compute)).collect();
    assert_eq!(shares, [(1, 3, cap(10)), (0, 4, cap(20))]);
}

#[tokio::test]
async fn the_alternative_that_was_taken_says_what_was_named() {
    let bench = Bench::new().await;
    let alternatives = json!([
        {"name": "large", "deviceClassName": "gpu.egpu.io", "capacity": {"requests": {"memory": "200Gi"}}},
        {"name": "small", "deviceClassName": "gpu.egpu.io", "capacity": {"requests": {"memory": "2Gi", "compute": "7"}}},
    ]);
    let config = json!([
        {"source": "FromClaim", "requests": ["gpu/large"], "opaque": {"driver": "gpu.egpu.io", "parameters": {}}},
    ]);
    let claim = bench.claim(1, &[("gpu", json!({}), vec![result("gpu/small", "gpu-0", 2 * GIB, 7)])], &config);
    let path = claim_path("claim-1");
    let mut object = bench.api.get(&path).unwrap();
    object["spec"]["devices"]["requests"] = json!([{"name": "gpu", "firstAvailable": alternatives}]);
    bench.api.put(&path, object);
    let answer = prepare(&bench.socket(), &claim).await;
    assert_eq!((answer.error.as_str(), answer.devices[0].request_names[0].as_str()), ("", "gpu"));
    assert_eq!(records(&bench)[0].cards[0].compute, cap(7));
}

fn config(source: &str, requests: &Value, settings: &Value) -> Value {
    let mut parameters = json!({"apiVersion": "egpu.io/v1", "kind": "GpuConfig"});
    for (name, value) in settings.as_object().unwrap() {
        parameters[name] = value.clone();
    }
    json!({"source": source, "requests": requests, "opaque": {"driver": "gpu.egpu.io", "parameters": parameters}})
}

#[tokio::test]
async fn the_claims_configuration_holds_whole_before_its_classs() {
    let bench = Bench::new().await;
    let configs = json!([
        config("FromClaim", &json!(["gpu"]), &json!({"weight": 3})),
        config("FromClass", &json!([]), &json!({"weight": 2, "oom": "kill"})),
        {"source": "FromClaim", "requests": [], "opaque": {"driver": "gpu.nvidia.com", "parameters": {"sharing": 1}}},
    ]);
    let request = ("gpu", json!({"memory": "4Gi"}), vec![result("gpu", "gpu-0", 4 * GIB, 5)]);
    let claim = bench.claim(1, &[request], &configs);
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
    let record = records(&bench).remove(0);
    assert_eq!(record.cards[0].compute, ComputeShare::Weight(Weight::new(3).unwrap()));
    assert_eq!(record.request.over_memory, base::OverMemory::Deny, "nothing of the class's is mixed in");
}

#[tokio::test]
async fn what_cannot_be_accepted_is_refused_with_its_reason() {
    let bench = Bench::new().await;
    let one = |number: u32, capacity: Value, result: Value, config: &Value| {
        bench.claim(number, &[("gpu", capacity, vec![result])], config)
    };
    let memory = || json!({"memory": "1Gi"});
    let share = || result("gpu", "gpu-0", GIB, 5);
    let with = |name: &str, value: Value| {
        let mut result = share();
        result[name] = value;
        result
    };
    let unknown = json!([config("FromClaim", &json!([]), &json!({"wieght": 3}))]);
    let policy = json!([config("FromClaim", &json!([]), &json!({"policy": "soft"}))]);
    let fraction = with("consumedCapacity", json!({"memory": "1Gi", "compute": "12500m"}));
    let shared = one(9, memory(), share(), &json!([]));
    let path = claim_path("claim-9");
    let mut object = bench.api.get(&path).unwrap();
    object["status"]["reservedFor"].as_array_mut().unwrap().push(json!({"resource": "pods", "name": "b", "uid": "b"}));
    bench.api.put(&path, object);
    let other_uid = one(8, memory(), share(), &json!([]));
    let other_uid = crate::kubelet_api::ClaimName { uid: uid(7), ..other_uid };
    for (claim, said) in [
        (one(1, memory(), share(), &unknown), "wieght"),
        (one(2, json!({"memory": "1Gi", "compute": "10"}), result("gpu", "gpu-0", GIB, 10), &policy), "hard cap"),
        (one(3, json!({"compute": "12500m"}), fraction, &json!([])), "12500m"),
        (one(4, memory(), with("adminAccess", json!(true)), &json!([])), "adminAccess"),
        (one(5, memory(), with("device", json!("gpu-7")), &json!([])), "no card gpu-7"),
        (one(6, memory(), with("pool", json!("node-2")), &json!([])), "not on this node"),
        (shared, "2 pods"),
        (other_uid, "made anew"),
    ] {
        let error = prepare(&bench.socket(), &claim).await.error;
        assert!(error.contains(said), "{said} is missing in: {error}");
    }
    assert_eq!(records(&bench), []);
}

#[tokio::test]
async fn a_claim_of_two_requests_is_granted_whole_or_not_at_all() {
    let bench = Bench::new().await;
    let named = || json!({"memory": "1Gi", "compute": "10"});
    let requests = |large: u64| {
        [
            ("one", named(), vec![result("one", "gpu-0", GIB, 10)]),
            ("two", named(), vec![result("two", "gpu-1", large, 10)]),
        ]
    };
    let claim = bench.claim(1, &requests(81 * GIB), &json!([]));
    assert!(prepare(&bench.socket(), &claim).await.error.contains("card 1"));
    assert_eq!(records(&bench), []);
    let claim = bench.claim(2, &requests(80 * GIB), &json!([]));
    let answer = prepare(&bench.socket(), &claim).await;
    assert_eq!((answer.error.as_str(), answer.devices.len(), records(&bench).len()), ("", 2, 2));
}

#[tokio::test]
async fn a_claim_goes_to_its_next_pod() {
    let bench = Bench::new().await;
    let claim = bench.share(1, "gpu-0", GIB, Some(10));
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
    let path = claim_path("claim-1");
    let mut object = bench.api.get(&path).unwrap();
    object["status"]["reservedFor"] = json!([{"resource": "pods", "name": "next", "uid": "next-uid"}]);
    bench.api.put(&path, object);
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
    let pods: Vec<_> = records(&bench).into_iter().map(|record| record.claim.unwrap().claim.pod.uid).collect();
    assert_eq!(pods, ["next-uid"]);
}
