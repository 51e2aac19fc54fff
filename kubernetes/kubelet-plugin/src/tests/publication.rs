//! The node's cards are published as they are.

use std::{fs, path::PathBuf, sync::atomic::AtomicBool, time::Duration};

use base::{ContainerKey, ProcessId};
use ledger::{Admission, Patience};
use runtime_config::request::{ContainerRequest, Source, parse};
use serde_json::{Value, json};

use super::{
    api_server::{NODES, SLICES},
    bench::{Bench, GIB, NODE, names, result},
    kubelet::{health, prepare, unprepare},
};
use crate::{PluginError, PublishError, kubelet_api::HealthStatus};

/// Admits a container without a claim, as a shim does.
fn admit(bench: &Bench, id: &str, annotations: &[(&str, &str)]) {
    let node = bench.node();
    let facts = node.facts().unwrap();
    let annotations = annotations.iter().map(|(key, value)| (format!("egpu.io/{key}"), (*value).to_owned())).collect();
    let source = Source { annotations, ..Source::default() };
    let ContainerRequest::Gpu(request) = parse(&source, &facts.config).unwrap() else { panic!("no request") };
    let container =
        ContainerKey { containerd: "/run/containerd.sock".into(), namespace: "default".into(), id: id.into() };
    let ended = AtomicBool::new(false);
    let admission = Admission {
        inventory: &facts.inventory,
        request: &request,
        limits: &facts.limits,
        container: &container,
        shim: ProcessId::current().unwrap(),
        creators: &[],
        cgroups: &[PathBuf::from(format!("/sys/fs/cgroup/egpu-kubelet-plugin-test/{id}"))],
        patience: Patience { most: Duration::ZERO, any_tenant: false, ended: &ended },
        egpu_version: "test",
        claim: None,
    };
    node.ledger.admit(&admission, &node.log).unwrap();
}

fn value<'a>(device: &'a Value, capacity: &str) -> &'a Value {
    &device["capacity"][capacity]["value"]
}

#[tokio::test]
async fn a_card_is_a_device_with_consumable_capacities() {
    let bench = Bench::new().await;
    let devices = bench.devices().await;
    assert_eq!(names(&devices), ["gpu-0", "gpu-1"]);
    let device = &devices[0];
    assert_eq!(device["allowMultipleAllocations"], true);
    assert_eq!(
        device["capacity"],
        json!({
            "memory": {"value": "81920Mi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Ki", "step": "1"}}},
            "compute": {"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "1", "step": "1"}}},
            "containers": {"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        })
    );
    let attributes = &device["attributes"];
    assert!(attributes["uuid"]["string"].as_str().unwrap().starts_with("GPU-"));
    assert_eq!(attributes["productName"]["string"], "NVIDIA H200");
    assert_eq!(attributes["policy"]["string"], "fixed");
    assert_eq!(attributes["simulated"]["bool"], true);
    for (name, attribute) in attributes.as_object().unwrap() {
        assert_eq!(attribute.as_object().unwrap().len(), 1, "{name} has one value");
    }
    let slice = bench.api.list(SLICES).remove(0);
    assert_eq!(slice["metadata"]["name"], "node-1-gpu.egpu.io-00");
    assert_eq!(slice["spec"]["nodeName"], NODE);
    assert_eq!(slice["spec"]["pool"], json!({"name": NODE, "generation": 1, "resourceSliceCount": 1}));
    let node = bench.api.get(&format!("{NODES}/{NODE}")).unwrap();
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
    assert_eq!(bench.api.count(&format!("PUT {SLICES}")), 0, "what the server rewrites is not written again");
}

#[tokio::test]
async fn an_api_server_that_drops_fields_gets_no_cards() {
    for key in ["allowMultipleAllocations", "requestPolicy"] {
        let mut bench = Bench::without_plugin("", "").await;
        bench.api.drop_key(key);
        bench.start();
        let error = bench.end().await;
        assert!(matches!(&error, PluginError::Publish(PublishError::FieldsDropped(_))), "{error}");
        assert!(error.to_string().contains(key) && error.to_string().contains("DRAConsumableCapacity"), "{error}");
        assert_eq!(bench.api.list(SLICES), Vec::<Value>::new(), "whole cards would be given for shares");
    }
}

#[tokio::test]
async fn what_is_granted_outside_claims_is_not_published() {
    let bench = Bench::new().await;
    admit(&bench, "part", &[("devices", "0"), ("memory", "10GiB"), ("compute", "30%")]);
    let devices = bench.wait_devices("less memory", |devices| value(&devices[0], "memory") == "70Gi").await;
    assert_eq!((value(&devices[0], "compute"), value(&devices[0], "containers")), (&json!("70"), &json!("9")));
    assert_eq!(
        devices[0]["capacity"]["memory"]["requestPolicy"]["default"], "80Gi",
        "no claim for the whole card fits"
    );
    admit(&bench, "whole", &[("devices", "1")]);
    bench.wait_devices("one card", |devices| names(devices) == ["gpu-0"]).await;
    let claim = bench.share(1, "gpu-0", 20 * GIB, Some(20));
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(value(&bench.devices().await[0], "memory"), "70Gi", "the scheduler subtracts claims itself");
}

#[tokio::test]
async fn a_card_that_holds_no_caps_has_no_compute_to_name() {
    let bench = Bench::without_plugin("default_policy = 'soft'", "").await;
    let mut bench = bench;
    bench.start();
    let devices = bench.devices().await;
    assert_eq!(devices[0]["attributes"]["policy"]["string"], "soft");
    assert_eq!(value(&devices[0], "compute").is_null(), value(&devices[1], "compute").is_null());
    admit(&bench, "weighted", &[("devices", "0"), ("memory", "4GiB"), ("weight", "2"), ("policy", "weighted")]);
    let is_weighted = |devices: &[Value]| devices[0]["attributes"]["policy"]["string"] == "weighted";
    let devices = bench.wait_devices("the policy in force", is_weighted).await;
    assert!(value(&devices[0], "compute").is_null(), "a cap would be refused there: {devices:?}");
}

#[tokio::test]
async fn a_card_of_another_driver_is_not_published() {
    let mut bench = Bench::without_plugin("", "").await;
    bench.start();
    let devices = bench.devices().await;
    let other = |device: Value| {
        json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "other"},
               "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "devices": [device],
                        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}})
    };
    let path = format!("{SLICES}/other");
    let uuid = devices[1]["attributes"]["uuid"].clone();
    bench.api.put(&path, other(json!({"name": "gpu-1", "attributes": {"uuid": uuid}})));
    bench.wait_devices("one card by its UUID", |devices| names(devices) == ["gpu-0"]).await;
    let pci = devices[0]["attributes"]["resource.kubernetes.io/pciBusID"].clone();
    bench.api.put(&path, other(json!({"name": "x", "attributes": {"resource.kubernetes.io/pciBusID": pci}})));
    bench.wait_devices("one card by its PCI address", |devices| names(devices) == ["gpu-1"]).await;
    bench.api.delete(&path);
    bench.wait_devices("both cards", |devices| devices.len() == 2).await;
    bench.api.put(&path, other(json!({"name": "nic", "attributes": {"uuid": {"string": "NIC-1"}}})));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(bench.devices().await.len(), 2);
    assert!(bench.api.get(&path).is_some(), "it is the other driver's to remove");
}

#[tokio::test]
async fn the_order_of_cards_is_the_nodes_placement() {
    for (placement, before, after) in
        [("binpack", ["gpu-0", "gpu-1"], ["gpu-1", "gpu-0"]), ("spread", ["gpu-0", "gpu-1"], ["gpu-0", "gpu-1"])]
    {
        let mut bench = Bench::without_plugin("", &format!("[kubernetes]\nplacement = '{placement}'")).await;
        bench.start();
        assert_eq!(names(&bench.devices().await), before);
        let claim = bench.share(1, "gpu-1", GIB, Some(10));
        prepare(&bench.socket(), &claim).await;
        bench.wait_devices("the order with one claim", |devices| names(devices) == after).await;
        let larger = bench.share(2, "gpu-0", 2 * GIB, Some(10));
        prepare(&bench.socket(), &larger).await;
        let last = if placement == "binpack" { ["gpu-0", "gpu-1"] } else { ["gpu-1", "gpu-0"] };
        bench.wait_devices("the order with two claims", |devices| names(devices) == last).await;
        unprepare(&bench.socket(), &larger).await;
        bench.wait_devices("the order as before", |devices| names(devices) == after).await;
    }
}

#[tokio::test]
async fn a_failed_card_drives_its_pods_off_and_a_drained_one_takes_no_more() {
    let bench = Bench::new().await;
    let pci = bench.devices().await[1]["attributes"]["resource.kubernetes.io/pciBusID"]["string"].clone();
    let slot = pci.as_str().unwrap().trim_end_matches(".0");
    let log = bench.path("state/simulated");
    fs::write(log.join("kmsg"), format!("3,1,0,-;NVRM: Xid (PCI:{slot}): 79, GPU has fallen off the bus.\n")).unwrap();
    let tainted =
        |devices: &[Value]| devices.iter().any(|device| device["name"] == "gpu-1" && device["taints"][0].is_object());
    let devices = bench.wait_devices("a taint", tainted).await;
    let taint =
        |devices: &[Value], name: &str| devices.iter().find(|device| device["name"] == name).unwrap()["taints"].clone();
    let failed = taint(&devices, "gpu-1");
    assert_eq!((&failed[0]["key"], &failed[0]["effect"]), (&json!("gpu.egpu.io/unhealthy"), &json!("NoExecute")));
    assert_eq!(failed[0]["value"], "Xid-79-GPU-has-fallen-off-the-bus-since-boot");
    assert!(taint(&devices, "gpu-0").is_null());
    let told = health(&bench.socket()).await;
    let states: Vec<_> =
        told.devices.iter().map(|device| (device.health(), device.message.contains("Xid 79"))).collect();
    assert_eq!(states, [(HealthStatus::Healthy, false), (HealthStatus::Unhealthy, true)]);

    let node = |annotations: Value| {
        let path = format!("{NODES}/{NODE}");
        let mut node = bench.api.get(&path).unwrap();
        node["metadata"]["annotations"] = annotations;
        bench.api.put(&path, node);
    };
    node(json!({"egpu.io/drain": "gpu-0"}));
    let devices = bench.wait_devices("a drained card", |devices| !taint(devices, "gpu-0").is_null()).await;
    let drained = taint(&devices, "gpu-0");
    assert_eq!((&drained[0]["key"], &drained[0]["effect"]), (&json!("gpu.egpu.io/drain"), &json!("NoSchedule")));
    assert_eq!(taint(&devices, "gpu-1"), failed, "the older taint keeps its time");
    node(json!({}));
    bench.wait_devices("no drained card", |devices| taint(devices, "gpu-0").is_null()).await;
    fs::write(log.join("kmsg"), "").unwrap();
    bench.wait_devices("a card that is well", |devices| taint(devices, "gpu-1").is_null()).await;
}

#[tokio::test]
async fn slices_that_are_wiped_or_changed_are_written_again() {
    let bench = Bench::new().await;
    let path = format!("{SLICES}/node-1-gpu.egpu.io-00");
    bench.api.delete(&path);
    bench.wait_devices("the slice", |devices| devices.len() == 2).await;
    let mut slice = bench.api.get(&path).unwrap();
    slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = json!("800Gi");
    bench.api.put(&path, slice);
    bench.wait_devices("the true size", |devices| value(&devices[0], "memory") == "81920Mi").await;
    let stray = json!({"kind": "ResourceSlice", "apiVersion": "resource.k8s.io/v1", "metadata": {"name": "stray"},
                       "spec": {"driver": "gpu.egpu.io", "nodeName": NODE, "devices": [],
                                "pool": {"name": NODE, "generation": 7, "resourceSliceCount": 1}}});
    bench.api.put(&format!("{SLICES}/stray"), stray);
    bench.api.wait("one slice", |api| Some(()).filter(|()| api.list(SLICES).len() == 1)).await;
    assert_eq!(bench.api.list(SLICES)[0]["spec"]["pool"]["generation"], 8, "newer than whatever was there");
}

#[tokio::test]
async fn a_card_held_whole_by_a_claim_stays_published() {
    let bench = Bench::new().await;
    let claim = bench.claim(1, &[("gpu", json!({}), vec![result("gpu", "gpu-0", 80 * GIB, 5)])], &json!([]));
    assert_eq!(prepare(&bench.socket(), &claim).await.error, "");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let devices = bench.devices().await;
    assert_eq!(names(&devices), ["gpu-0", "gpu-1"]);
    assert_eq!(value(&devices[0], "memory"), "81920Mi");
}
