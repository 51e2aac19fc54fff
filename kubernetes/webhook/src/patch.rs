//! The pod with claims in place of what it asked for.

use json_patch::Patch;
use k8s_openapi::api::core::v1::Pod;
use kubernetes_api::names::NODE_PLACEMENT_ANNOTATION;
use serde_json::{Map, Value, json};

use crate::{
    demand::{ContainerList, PodDemand},
    template::request_name,
};

/// Annotation of a pod: what of its request has no effect, and why.
pub(crate) const NOTES: &str = "webhook.egpu.io/notes";
/// Name of the claim in a pod.
const CLAIM: &str = "egpu-webhook";

/// Returns the patch that gives a pod a claim by this template.
///
/// # Errors
/// When JSON cannot hold the pod.
pub(crate) fn with_claim(
    pod: &Pod,
    asked: &PodDemand,
    template: &str,
    runtime_class: &str,
) -> Result<Patch, serde_json::Error> {
    changed(pod, |after| {
        for list in [ContainerList::Containers, ContainerList::InitContainers] {
            for container in after["spec"][list.field()].as_array_mut().into_iter().flatten() {
                remove_resources(container, asked);
            }
        }
        for used in &asked.uses {
            let container = &mut after["spec"][used.list.field()][used.container];
            push(&mut container["resources"], "claims", json!({"name": CLAIM, "request": request_name(used.demand)}));
        }
        let spec = &mut after["spec"];
        push(spec, "resourceClaims", json!({"name": CLAIM, "resourceClaimTemplateName": template}));
        spec["runtimeClassName"] = json!(runtime_class);
        if let Some(selector) = spec.get_mut("nodeSelector").and_then(Value::as_object_mut) {
            selector.retain(|key, _| !asked.node_selector.iter().any(|removed| removed == key));
        }
        let notes = (!asked.notes.is_empty()).then(|| asked.notes.join("; "));
        let placement = asked.node_placement.map(str::to_owned);
        for (name, value) in [(NOTES, notes), (NODE_PLACEMENT_ANNOTATION, placement)] {
            value.into_iter().for_each(|value| annotate(after, name, value));
        }
    })
}

/// Returns the patch that leaves a pod's request to its node, and says so on the pod.
///
/// # Errors
/// When JSON cannot hold the pod.
pub(crate) fn for_its_node(pod: &Pod, note: &str, runtime_class: &str) -> Result<Patch, serde_json::Error> {
    changed(pod, |after| {
        after["spec"]["runtimeClassName"] = json!(runtime_class);
        annotate(after, NOTES, note.to_owned());
    })
}

fn changed(pod: &Pod, change: impl FnOnce(&mut Value)) -> Result<Patch, serde_json::Error> {
    let before = serde_json::to_value(pod)?;
    let mut after = before.clone();
    change(&mut after);
    Ok(json_patch::diff(&before, &after))
}

fn remove_resources(container: &mut Value, asked: &PodDemand) {
    for kind in ["limits", "requests"] {
        let list = container.get_mut("resources").and_then(|resources| resources.get_mut(kind));
        if let Some(list) = list.and_then(Value::as_object_mut) {
            list.retain(|name, _| !asked.resources.contains(name));
        }
    }
}

/// Appends to a list of an object, both of which may be missing.
fn push(object: &mut Value, field: &str, item: Value) {
    match object[field].as_array_mut() {
        Some(list) => list.push(item),
        None => object[field] = Value::Array(vec![item]),
    }
}

/// Adds an annotation; one that the pod's maker has written stays.
fn annotate(pod: &mut Value, name: &str, value: String) {
    let metadata = &mut pod["metadata"];
    if metadata["annotations"].is_null() {
        metadata["annotations"] = Value::Object(Map::new());
    }
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.entry(name).or_insert(Value::String(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::Use;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "old"},
            "spec": {
                "nodeSelector": {"zone": "a", "gone": "x"},
                "containers": [
                    {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}},
                    {"name": "side"},
                ],
                "initContainers": [{"name": "first"}],
            },
        }))
        .unwrap()
    }

    fn asked() -> PodDemand {
        let place = |list, container, demand| Use { list, container, demand };
        PodDemand {
            uses: vec![place(ContainerList::Containers, 0, 0), place(ContainerList::InitContainers, 0, 1)],
            resources: ["nvidia.com/gpu".to_owned()].into(),
            node_selector: vec!["gone"],
            node_placement: Some("spread"),
            notes: vec!["one".to_owned(), "two".to_owned()],
            ..PodDemand::default()
        }
    }

    fn patched(pod: &Pod, patch: &Patch) -> Value {
        let mut after = serde_json::to_value(pod).unwrap();
        json_patch::patch(&mut after, patch).unwrap();
        after
    }

    #[test]
    fn a_claim_takes_the_place_of_resources() {
        let after = patched(&pod(), &with_claim(&pod(), &asked(), "egpu-1", "egpu").unwrap());
        let uses = |request| json!([{"name": "egpu-webhook", "request": request}]);
        let spec = json!({
            "runtimeClassName": "egpu",
            "nodeSelector": {"zone": "a"},
            "resourceClaims": [{"name": "egpu-webhook", "resourceClaimTemplateName": "egpu-1"}],
            "containers": [
                {"name": "main", "resources": {"limits": {"cpu": "1"}, "requests": {}, "claims": uses("gpu-0")}},
                {"name": "side"},
            ],
            "initContainers": [{"name": "first", "resources": {"claims": uses("gpu-1")}}],
        });
        assert_eq!(after["spec"], spec);
        assert_eq!(after["metadata"]["annotations"], json!({NOTES: "one; two", NODE_PLACEMENT_ANNOTATION: "spread"}));
    }

    #[test]
    fn what_the_pod_has_stays() {
        let mut own = pod();
        own.metadata.annotations = Some([(NODE_PLACEMENT_ANNOTATION.to_owned(), "binpack".to_owned())].into());
        if let Some(spec) = &mut own.spec {
            spec.resource_claims =
                Some(vec![serde_json::from_value(json!({"name": "nic", "resourceClaimName": "nic"})).unwrap()]);
        }
        let after = patched(&own, &with_claim(&own, &asked(), "egpu-1", "egpu").unwrap());
        assert_eq!(after["metadata"]["annotations"][NODE_PLACEMENT_ANNOTATION], "binpack");
        assert_eq!(after["spec"]["resourceClaims"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn what_its_node_answers_stays_in_the_pod() {
        let patch = for_its_node(&pod(), "for its node", "egpu").unwrap();
        let mut expected = serde_json::to_value(pod()).unwrap();
        expected["metadata"]["annotations"] = json!({NOTES: "for its node"});
        expected["spec"]["runtimeClassName"] = json!("egpu");
        assert_eq!(patched(&pod(), &patch), expected);
    }
}
