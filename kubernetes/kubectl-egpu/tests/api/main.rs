//! The program against a stand-in for the API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on stops; helpers are not seen as tests"
)]

mod objects;
mod server;

use serde_json::{Value, json};

use objects::{CLAIMS, NODES, PODS, SLICES, TEMPLATES, cluster, rules};
use server::{Server, Wrote};

fn json_of(server: &Server, arguments: &[&str]) -> Value {
    let done = server.run(&[arguments, &["-o", "json"]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn cards_show_what_claims_hold_and_who() {
    let server = Server::start(cluster());
    let done = server.run(&["cards"]);
    let expected = "\
NODE  CARD   MODEL        MEMORY     COMPUTE   PLACES  FREE       POLICY  TAINTS                                  PODS
n1    gpu-0  NVIDIA H100  62Gi/80Gi  40%/100%  1/20    18Gi 60%   fixed   -                                       team/old
n2    gpu-0  NVIDIA H100  0/80Gi     0%/100%   0/20    80Gi 100%  fixed   gpu.egpu.io/unhealthy=Xid-79:NoExecute  -
";
    assert_eq!((done.stdout.as_str(), done.stderr.as_str(), done.code), (expected, "", 0));
    let cards = json_of(&server, &["cards", "n1"]);
    assert_eq!(cards.as_array().unwrap().len(), 1);
    assert_eq!(cards[0]["memory_bytes"], json!({"total": 80_u64 << 30, "held": 62_u64 << 30, "free": 18_u64 << 30}));
    assert_eq!((&cards[0]["uuid"], &cards[0]["users"]), (&json!("GPU-n1-0"), &json!(["team/old"])));
}

#[test]
fn top_shows_shares_and_says_what_it_cannot_know() {
    let server = Server::start(cluster());
    let done = server.run(&["top"]);
    let expected = "\
NODE  CARD   NAMESPACE  POD  CLAIM  REQUEST  MEMORY  COMPUTE
n1    gpu-0  team       old  old    gpu      62Gi    40%
";
    assert_eq!(done.stdout, expected);
    assert!(done.stderr.contains("egpu top"), "{}", done.stderr);
}

#[test]
fn why_names_what_each_card_lacks_the_best_first() {
    let server = Server::start(cluster());
    let done = server.run(&["why", "new", "-n", "team"]);
    let expected = "\
pod team/new waits: no card has room. Closest: n1/gpu-0: lacks 2Gi of memory (18Gi free).

claim new-gpu, request gpu: 1 card of class gpu.egpu.io, memory 20Gi, compute 30%
NODE  CARD   MODEL        FREE       IN THE WAY
n1    gpu-0  NVIDIA H100  18Gi 60%   lacks 2Gi of memory (18Gi free)
n2    gpu-0  NVIDIA H100  80Gi 100%  taint gpu.egpu.io/unhealthy=Xid-79:NoExecute is not tolerated; the node is cordoned

The scheduler says: 0/2 nodes are available: 2 cannot allocate all claims.
";
    assert_eq!((done.stdout.as_str(), done.code), (expected, 0), "{}", done.stderr);
    let report = json_of(&server, &["why", "new", "-n", "team"]);
    assert_eq!((&report["state"], &report["requests"][0]["cards"][0]["node"]), (&json!("waiting"), &json!("n1")));
}

#[test]
fn why_says_where_a_pod_fits_once_there_is_room() {
    let mut objects = cluster();
    objects.remove(&format!("{CLAIMS}/old"));
    let done = Server::start(objects).run(&["why", "new", "-n", "team"]);
    assert!(done.stdout.contains("waits, though its cards are there."), "{}", done.stdout);
    assert!(done.stdout.contains("It fits now on node n1: gpu=gpu-0."), "{}", done.stdout);
}

#[test]
fn why_tells_what_the_node_said_about_a_pod_that_has_its_cards() {
    let done = Server::start(cluster()).run(&["why", "old", "-n", "team"]);
    let expected = "\
pod team/old has its cards (Pending):
  claim old, request gpu: card gpu-0 of node n1, memory 62Gi, compute 40%, containers 1

Warnings of the pod:
  FailedPrepareDynamicResources (3 times): the card has 10Gi free
";
    assert_eq!(done.stdout, expected, "{}", done.stderr);
}

#[test]
fn why_tells_what_is_missing() {
    let mut objects = cluster();
    objects.remove(&format!("{TEMPLATES}/share"));
    let told = |objects| Server::start(objects).run(&["why", "fresh", "-n", "team"]).stdout;
    assert!(told(objects).contains("there is no resource claim template team/share"), "the template");
    let mut objects = cluster();
    objects.remove("/apis/resource.k8s.io/v1/deviceclasses/gpu.egpu.io");
    assert!(told(objects).contains("there is no device class gpu.egpu.io"), "the class");
    let mut objects = cluster();
    objects.retain(|path, _| !path.starts_with(&format!("{SLICES}/")));
    assert!(told(objects).contains("no node publishes cards"), "the plugin");
    assert!(told(cluster()).contains("lacks 2Gi of memory"), "a claim that is still to be made");
    let server = Server::start(cluster());
    let shared = server.run(&["why", "second", "-n", "team"]).stdout;
    assert!(shared.contains("claim old is used by pod old already"), "{shared}");
    let plain = server.run(&["why", "plain", "-n", "team"]).stdout;
    assert!(plain.starts_with("pod team/plain asks for no card by a claim."), "{plain}");
    let whole = server.run(&["why", "whole", "-n", "team"]).stdout;
    assert!(whole.contains("1 card of class whole.gpu.egpu.io, whole"), "{whole}");
    assert!(whole.contains("lacks 62Gi of memory (18Gi free)"), "{whole}");
}

#[test]
fn draining_writes_a_rule_of_the_newest_version_that_is_served() {
    for version in ["v1", "v1beta2", "v1alpha3"] {
        let server = Server::start(rules(cluster(), version));
        let done = server.run(&["drain", "n1/gpu-0"]);
        assert_eq!(done.stdout, "card gpu-0 of node n1: no new pods\nstill there: team/old (--evict ends them)\n");
        let path = format!("/apis/resource.k8s.io/{version}/devicetaintrules/egpu-drain.n1.card.gpu-0");
        let [Wrote { method, path: written, body }] = &server.written()[..] else { panic!("{done:?}") };
        assert_eq!((method.as_str(), written), ("PATCH", &path));
        let expected = json!({
            "deviceSelector": {"driver": "gpu.egpu.io", "pool": "n1", "device": "gpu-0"},
            "taint": {"key": "gpu.egpu.io/drain", "effect": "NoSchedule"}
        });
        assert_eq!((&body["spec"], &body["kind"]), (&expected, &json!("DeviceTaintRule")));
        assert_eq!(body["apiVersion"], format!("resource.k8s.io/{version}"));
        assert!(server.run(&["cards"]).stdout.contains("gpu.egpu.io/drain:NoSchedule"));
        assert!(server.run(&["why", "new", "-n", "team"]).stdout.contains("it is being drained"));
        assert_eq!(server.run(&["undrain", "n1"]).stdout, "all cards of node n1: open to pods again\n");
        assert!(!server.run(&["cards"]).stdout.contains("gpu.egpu.io/drain"));
    }
}

#[test]
fn without_rules_the_node_is_annotated() {
    let server = Server::start(cluster());
    assert_eq!(json_of(&server, &["drain", "n1/gpu-0"])["by"], "annotation");
    let metadata = &server.written()[0].body["metadata"];
    assert_eq!(*metadata, json!({"resourceVersion": "7", "annotations": {"egpu.io/drain": "gpu-0"}}));
    server.run(&["drain", "n1"]);
    assert_eq!(server.object(&format!("{NODES}/n1"))["metadata"]["annotations"]["egpu.io/drain"], "*,gpu-0");
    let refused = server.run(&["undrain", "n1/gpu-0"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("n1 is drained as a whole"), "{refused:?}");
    server.run(&["undrain", "n1"]);
    assert_eq!(server.object(&format!("{NODES}/n1"))["metadata"]["annotations"].get("egpu.io/drain"), None);
}

#[test]
fn pods_are_evicted_on_request_and_budgets_count() {
    let server = Server::start(cluster());
    let done = server.run(&["drain", "n1", "--evict"]);
    assert_eq!(done.stdout, "all cards of node n1: no new pods\nevicted team/old\n");
    assert_eq!(server.written().last().unwrap().path, format!("{PODS}/old/eviction"));
    let mut objects = cluster();
    objects.insert(format!("{PODS}/old/eviction"), json!({"budget": true}));
    let kept = Server::start(objects).run(&["drain", "n1", "--evict"]);
    assert_eq!(kept.code, 5);
    assert!(kept.stderr.contains("team/old: the disruption budget needs it"), "{kept:?}");
}

#[test]
fn errors_have_their_codes_and_say_what_to_do() {
    let server = Server::start(cluster());
    for (arguments, code, told) in [
        (&["why", "gone"][..], 4, "there is no pod default/gone; `kubectl get pods -n default`"),
        (&["cards", "n9"], 4, "no node n9 publishes cards; nodes with cards: n1, n2"),
        (&["drain", "n1/gpu-9"], 4, "node n1 has no card gpu-9; its cards: gpu-0"),
        (&["undrain", "n9"], 4, "no node n9 publishes cards"),
        (&["drain", "n1/"], 2, "NODE or NODE/CARD"),
        (&["cards", "--context", "other"], 3, "cannot read the kubeconfig"),
    ] {
        let done = server.run(arguments);
        assert_eq!(done.code, code, "{arguments:?}: {done:?}");
        assert!(done.stderr.contains(told), "{arguments:?}: {}", done.stderr);
    }
    let mut objects = cluster();
    objects.insert(SLICES.to_owned(), json!({"forbidden": true}));
    let done = Server::start(objects).run(&["cards"]);
    assert!(done.code == 1 && done.stderr.contains("cannot list resource slices: forbidden"), "{done:?}");
    let mut objects = cluster();
    objects.retain(|path, _| !path.starts_with("/apis/resource.k8s.io"));
    let done = Server::start(objects).run(&["cards"]);
    assert!(done.code == 1 && done.stderr.contains("Kubernetes 1.34 or later"), "{done:?}");
    let unreachable = server.stopped().run(&["cards"]);
    assert!(unreachable.code == 1 && unreachable.stderr.contains("cannot list"), "{unreachable:?}");
}
