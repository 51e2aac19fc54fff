//! Objects of a cluster, for tests.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub(crate) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node's only slice: cards of 80 GiB.
pub(crate) fn slice(node: &str, devices: &[&str]) -> ResourceSlice {
    let devices: Vec<_> = devices.iter().map(|name| device(node, name)).collect();
    object(json!({
        "metadata": {"name": format!("{node}-slice")},
        "spec": {
            "driver": "gpu.egpu.io", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}
        }
    }))
}

pub(crate) fn device(node: &str, name: &str) -> Value {
    json!({
        "name": name,
        "allowMultipleAllocations": true,
        "attributes": {
            "uuid": {"string": format!("GPU-{node}-{name}")},
            "productName": {"string": "NVIDIA H100"},
            "policy": {"string": "fixed"},
            "driverVersion": {"version": "580.159.4"},
            "index": {"int": 0},
            "simulated": {"bool": true}
        },
        "capacity": {
            "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1"}}},
            "compute": {"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "1", "step": "1"}}},
            "containers": {"value": "20", "requestPolicy": {"default": "1", "validValues": ["1"]}}
        }
    })
}

/// A claim of a pod of its name, with one share of a card.
pub(crate) fn allocated(name: &str, request: &str, node: &str, card: &str, taken: &[(&str, &str)]) -> ResourceClaim {
    let taken: serde_json::Map<String, Value> =
        taken.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect();
    object(json!({
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.egpu.io"}}]}},
        "status": {
            "allocation": {"devices": {"results": [{
                "driver": "gpu.egpu.io", "pool": node, "device": card, "request": request,
                "shareID": "00000000-0000-0000-0000-000000000001", "consumedCapacity": taken
            }]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": name}]
        }
    }))
}
