//! The scheduler's calls, and what they are answered by.

use std::sync::Arc;

use kubernetes_api::names::{DRIVER, NODE_PLACEMENT_ANNOTATION};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::objects::{allocated, claim, class, pod, quarter, slice};
use crate::{placement::Placement, prioritize::Scorer, server, watch::Known};

/// Three nodes with two cards each; of the second, claims hold a half, of the third a quarter.
fn scorer() -> Scorer {
    let known = Known::default();
    let mut cluster = known.lock();
    cluster.all_slices(&["a", "b", "c"].map(|node| slice(node, 2)));
    cluster.all_classes(&[class("gpu.egpu.io", DRIVER), class("nic", "nic.example")]);
    cluster.all_claims(&[
        allocated(claim("x", "gpu.egpu.io", &json!({})), "b", 0, &json!({"memory": "32Gi", "compute": "5"})),
        allocated(claim("y", "gpu.egpu.io", &json!({})), "c", 1, &json!({"memory": "1Gi", "compute": "50"})),
        claim("new", "gpu.egpu.io", &quarter()),
        claim("other", "nic", &json!({})),
    ]);
    drop(cluster);
    Scorer { known, placement: Placement::Binpack, ready: watch::channel(true).1 }
}

fn ask(scorer: &Scorer, pod: &Value) -> Value {
    let call = json!({"Pod": pod, "Nodes": null, "NodeNames": ["a", "b", "c"]});
    serde_json::from_slice(&scorer.prioritize(call.to_string().as_bytes()).unwrap()).unwrap()
}

fn scores(a: usize, b: usize, c: usize) -> Value {
    let of = |(host, score): (&str, usize)| json!({"Host": host, "Score": score});
    Value::Array([("a", a), ("b", b), ("c", c)].map(of).to_vec())
}

fn annotated(value: &str) -> Value {
    let mut pod = serde_json::to_value(pod("new", None)).unwrap();
    pod["metadata"]["annotations"] = json!({NODE_PLACEMENT_ANNOTATION: value});
    pod
}

#[test]
fn the_scarcest_capacity_of_each_card_counts() {
    assert_eq!(ask(&scorer(), &json!(pod("new", None))), scores(2, 10, 4));
}

#[test]
fn a_pod_may_say_its_placement() {
    assert_eq!(ask(&scorer(), &annotated("spread")), scores(10, 2, 4));
    assert_eq!(ask(&scorer(), &annotated("binpack")), scores(2, 10, 4));
    assert_eq!(ask(&scorer(), &annotated("Spread")), scores(2, 10, 4), "no value of the annotation's");
}

#[test]
fn pods_without_cards_are_left_to_the_scheduler() {
    assert_eq!(ask(&scorer(), &json!(pod("other", None))), json!([]));
    assert_eq!(ask(&scorer(), &json!({"spec": {"containers": []}})), json!([]));
    let limits = json!({"limits": {"egpu.io/gpu": "1"}});
    let whole = json!({"spec": {"containers": [{"name": "main", "resources": limits}]}});
    assert_eq!(ask(&scorer(), &whole), scores(2, 10, 4));
    assert_eq!(ask(&scorer(), &json!(pod("not-seen-yet", None))), scores(2, 10, 4));
}

#[test]
fn claims_that_are_gone_hold_nothing() {
    let scorer = scorer();
    scorer.known.lock().claim_gone(&("team".to_owned(), "x".to_owned()));
    assert_eq!(ask(&scorer, &json!(pod("new", None))), scores(4, 4, 10));
    scorer.known.lock().slice_gone("c");
    scorer.known.lock().class_gone("gpu.egpu.io");
    assert_eq!(ask(&scorer, &json!(pod("new", None))), json!([]));
}

#[test]
fn calls_that_cannot_be_answered_say_why() {
    let mut scorer = scorer();
    let whole_nodes = json!({"Pod": {"metadata": {}}, "Nodes": {"items": []}, "NodeNames": null}).to_string();
    let error = scorer.prioritize(whole_nodes.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("nodeCacheCapable: true"), "{error}");
    assert!(scorer.prioritize(b"{").unwrap_err().to_string().contains("no call of the scheduler's"));
    scorer.ready = watch::channel(false).1;
    assert!(scorer.prioritize(whole_nodes.as_bytes()).unwrap_err().to_string().contains("not known yet"));
}

/// Returns the answers to requests on one connection.
async fn converse(scorer: Scorer, requests: &[String]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let server = tokio::spawn(server::serve(listener, Arc::new(scorer)));
    for request in requests {
        stream.write_all(request.as_bytes()).await.unwrap();
    }
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    server.abort();
    answers
}

#[tokio::test]
async fn the_schedulers_connection_is_kept() {
    let call = json!({"Pod": pod("new", None), "NodeNames": ["a", "b"]}).to_string();
    let length = call.len();
    let requests = [
        "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        format!("POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{call}"),
        "POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{".to_owned(),
        "POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
    ];
    let answers = converse(scorer(), &requests).await;
    let status: Vec<_> = answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(status, ["200", "200", "400", "404"], "{answers}");
    assert!(answers.contains(r#"[{"Host":"a","Score":3},{"Host":"b","Score":10}]"#), "{answers}");
}

#[tokio::test]
async fn it_is_not_ready_before_the_cluster_is_known() {
    let scorer = Scorer { ready: watch::channel(false).1, ..scorer() };
    let request = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_owned();
    assert!(converse(scorer, &[request]).await.starts_with("HTTP/1.1 503 "));
}
