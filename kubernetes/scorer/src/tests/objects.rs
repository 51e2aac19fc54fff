//! Objects of Kubernetes, as small as they can be.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use kubernetes_api::names::DRIVER;
use serde_json::{Value, from_value, json};

/// A slice of one node with cards of 32 GiB.
pub(super) fn slice(node: &str, cards: usize) -> ResourceSlice {
    let device = |number: usize| {
        json!({"name": format!("gpu-{number}"), "allowMultipleAllocations": true,
               "capacity": {"memory": {"value": "32Gi"}, "compute": {"value": "100"}, "containers": {"value": "16"}}})
    };
    let devices: Vec<_> = (0..cards).map(device).collect();
    let spec = json!({"driver": DRIVER, "nodeName": node, "devices": devices,
                      "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}});
    from_value(json!({"metadata": {"name": node}, "spec": spec})).unwrap()
}

/// egpu's device class, or another driver's.
pub(super) fn class(name: &str, driver: &str) -> DeviceClass {
    let selector = json!({"cel": {"expression": format!("device.driver == \"{driver}\"")}});
    from_value(json!({"metadata": {"name": name}, "spec": {"selectors": [selector]}})).unwrap()
}

/// A claim of these amounts that nobody has allocated.
pub(super) fn claim(name: &str, class: &str, amounts: &Value) -> ResourceClaim {
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": class, "capacity": {"requests": amounts}}});
    from_value(json!({"metadata": {"namespace": "team", "name": name}, "spec": {"devices": {"requests": [request]}}}))
        .unwrap()
}

/// The same, allocated.
pub(super) fn allocated(mut claim: ResourceClaim, node: &str, card: usize, consumed: &Value) -> ResourceClaim {
    let result = json!({"driver": DRIVER, "pool": node, "device": format!("gpu-{card}"), "request": "gpu",
                        "shareID": "00000000-0000-0000-0000-000000000000", "consumedCapacity": consumed});
    claim.status = from_value(json!({"allocation": {"devices": {"results": [result]}}})).unwrap();
    claim
}

/// A pod with the claim of its name; the owner is a ReplicaSet's uid.
pub(super) fn pod(name: &str, owner: Option<&str>) -> Pod {
    let owners = owner.map(
        |uid| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": uid, "controller": true}]),
    );
    let metadata = json!({"namespace": "team", "name": name, "uid": format!("uid-{name}"), "ownerReferences": owners});
    let spec = json!({"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "quarter"}]});
    let status = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}]});
    from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

/// The same, bound to a node.
pub(super) fn bound(mut pod: Pod, node: &str) -> Pod {
    pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
    pod
}

/// A quarter of a card.
pub(super) fn quarter() -> Value {
    json!({"memory": "8Gi", "compute": "25"})
}
