//! A cluster: two nodes of one card each, and pods.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Objects by their paths.
pub(crate) type Objects = BTreeMap<String, Value>;

pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub(crate) const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims";
pub(crate) const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const PODS: &str = "/api/v1/namespaces/team/pods";
const CLASSES: &str = "/apis/resource.k8s.io/v1/deviceclasses";

/// A cluster without DeviceTaintRules. Pod `old` has 62Gi of the only healthy card, `new` waits
/// for 20Gi.
pub(crate) fn cluster() -> Objects {
    let taint = json!([{"key": "gpu.egpu.io/unhealthy", "value": "Xid-79", "effect": "NoExecute"}]);
    let mut objects = Objects::from([
        (SLICES.to_owned(), Value::Null),
        (format!("{SLICES}/n1"), slice("n1", &json!([]))),
        (format!("{SLICES}/n2"), slice("n2", &taint)),
        (format!("{CLASSES}/gpu.egpu.io"), class("gpu.egpu.io", &Value::Null)),
        (format!("{CLASSES}/whole.gpu.egpu.io"), class("whole.gpu.egpu.io", &json!("egpu.io/gpu"))),
        (format!("{NODES}/n1"), node("n1", false)),
        (format!("{NODES}/n2"), node("n2", true)),
        (format!("{TEMPLATES}/share"), json!({"metadata": {"name": "share"}, "spec": {"spec": devices("20Gi", "30")}})),
        (format!("{CLAIMS}/old"), granted_claim()),
        (
            format!("{CLAIMS}/new-gpu"),
            json!({"metadata": {"name": "new-gpu", "namespace": "team"}, "spec": devices("20Gi", "30")}),
        ),
    ]);
    let unschedulable = json!([{"type": "PodScheduled", "status": "False",
                                "message": "0/2 nodes are available: 2 cannot allocate all claims."}]);
    let generated = json!([{"name": "gpu", "resourceClaimName": "new-gpu"}]);
    let template = json!([{"name": "gpu", "resourceClaimTemplateName": "share"}]);
    let old = json!([{"name": "gpu", "resourceClaimName": "old"}]);
    let limits = json!({"limits": {"egpu.io/gpu": "1"}});
    for (name, claims, resources, status) in [
        ("old", &old, json!({}), json!({})),
        ("second", &old, json!({}), json!({})),
        ("new", &template, json!({}), json!({"resourceClaimStatuses": generated, "conditions": unschedulable})),
        ("fresh", &template, json!({}), json!({})),
        ("plain", &json!([]), json!({}), json!({})),
        ("whole", &json!([]), limits, json!({})),
    ] {
        objects.insert(format!("{PODS}/{name}"), pod(name, claims, &resources, status));
    }
    objects.insert("/api/v1/namespaces/team/events/e".to_owned(), event());
    objects
}

/// The cluster with DeviceTaintRules of one version.
pub(crate) fn rules(mut objects: Objects, version: &str) -> Objects {
    objects.insert(format!("/apis/resource.k8s.io/{version}/devicetaintrules"), Value::Null);
    objects
}

fn slice(node: &str, taints: &Value) -> Value {
    let device = json!({
        "name": "gpu-0", "allowMultipleAllocations": true, "taints": taints,
        "attributes": {
            "uuid": {"string": format!("GPU-{node}-0")}, "productName": {"string": "NVIDIA H100"},
            "policy": {"string": "fixed"}
        },
        "capacity": {
            "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1"}}},
            "compute": {"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "1", "step": "1"}}},
            "containers": {"value": "20", "requestPolicy": {"default": "1", "validValues": ["1"]}}
        }
    });
    let pool = json!({"name": node, "generation": 3, "resourceSliceCount": 1});
    let spec = json!({"driver": "gpu.egpu.io", "nodeName": node, "pool": pool, "devices": [device]});
    json!({"metadata": {"name": node}, "spec": spec})
}

fn class(name: &str, extended: &Value) -> Value {
    let selector = json!([{"cel": {"expression": "device.driver == \"gpu.egpu.io\""}}]);
    let mut spec = json!({"selectors": selector});
    if !extended.is_null() {
        spec["extendedResourceName"] = extended.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn node(name: &str, unschedulable: bool) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"unschedulable": unschedulable}})
}

fn devices(memory: &str, compute: &str) -> Value {
    let capacity = json!({"requests": {"memory": memory, "compute": compute}});
    json!({"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.egpu.io", "capacity": capacity}}]}})
}

fn granted_claim() -> Value {
    let result = json!({
        "driver": "gpu.egpu.io", "pool": "n1", "device": "gpu-0", "request": "gpu", "shareID": "s",
        "consumedCapacity": {"memory": "62Gi", "compute": "40", "containers": "1"}
    });
    json!({
        "metadata": {"name": "old", "namespace": "team"},
        "spec": devices("62Gi", "40"),
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "old", "uid": "uid-old"}]
        }
    })
}

fn pod(name: &str, claims: &Value, resources: &Value, mut status: Value) -> Value {
    status["phase"] = json!("Pending");
    json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}")},
        "spec": {"resourceClaims": claims, "containers": [{"name": "main", "image": "i", "resources": resources}]},
        "status": status
    })
}

fn event() -> Value {
    json!({
        "metadata": {"name": "e", "namespace": "team"}, "type": "Warning", "count": 3,
        "reason": "FailedPrepareDynamicResources", "message": "the card has 10Gi free",
        "involvedObject": {"kind": "Pod", "name": "old", "uid": "uid-old"}
    })
}
