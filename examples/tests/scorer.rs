//! The scheduler's configuration and the manifest of `egpu-scorer` belong together.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on stops; helpers are not seen as tests")]

use std::{fs, path::PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

fn documents(path: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path);
    let text = fs::read_to_string(path).unwrap();
    serde_norway::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

fn manifest(kind: &str) -> Value {
    let documents = documents("packaging/kubernetes/optional/scorer.yaml");
    documents.into_iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_scheduler_only_asks_for_scores_and_goes_on_without() {
    let config = &documents("examples/scheduler/scorer.yaml")[0];
    let extender = &config["extenders"][0];
    assert_eq!(extender["prioritizeVerb"], "prioritize");
    for verb in ["filterVerb", "bindVerb", "preemptVerb"] {
        assert!(extender.get(verb).is_none(), "{verb}");
    }
    assert_eq!((&extender["nodeCacheCapable"], &extender["ignorable"]), (&json!(true), &json!(true)));
    let port = manifest("Service")["spec"]["ports"][0]["port"].to_string();
    assert!(extender["urlPrefix"].as_str().unwrap().ends_with(&format!(":{port}")), "{extender}");
}

#[test]
fn the_scorer_reads_and_writes_nothing() {
    for rule in manifest("ClusterRole")["rules"].as_array().unwrap() {
        assert_eq!(rule["verbs"], json!(["list", "watch"]), "{rule}");
    }
    let account = &manifest("ServiceAccount")["metadata"];
    assert_eq!(manifest("ClusterRoleBinding")["subjects"][0]["name"], account["name"]);
    let pod = &manifest("Deployment")["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], account["name"]);
    assert_eq!(manifest("Service")["spec"]["selector"], pod["metadata"]["labels"]);
}
