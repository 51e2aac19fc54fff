//! The question whether a pod may run on a node, its cards apart.

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration};

/// Returns why a pod cannot run on a node, as far as names, labels and taints say it; processors
/// and memory are not looked at.
pub(crate) fn obstacles(pod: &Pod, node: &Node) -> Vec<String> {
    let (Some(pod), Some(spec)) = (&pod.spec, &node.spec) else { return Vec::new() };
    let mut found = Vec::new();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if let Some(wanted) = pod.node_name.as_deref().filter(|wanted| *wanted != name) {
        found.push(format!("the pod is on node {wanted}"));
    }
    if spec.unschedulable == Some(true) {
        found.push("the node is cordoned".to_owned());
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in pod.node_selector.iter().flatten().filter(|(key, value)| labels.get(*key) != Some(value)) {
        found.push(format!("the node has no label {key}={value}"));
    }
    if !affinity_fits(pod, node) {
        found.push("the node does not fit the pod's node affinity".to_owned());
    }
    let keeps_away = |taint: &&Taint| {
        let is_hard = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        // Cordoning is told above.
        is_hard && taint.key != "node.kubernetes.io/unschedulable" && !is_tolerated(taint, pod.tolerations.as_deref())
    };
    let taints = spec.taints.iter().flatten().filter(keeps_away);
    found.extend(taints.map(|taint| format!("the node has the taint {}:{}", taint.key, taint.effect)));
    found
}

fn is_tolerated(taint: &Taint, tolerations: Option<&[Toleration]>) -> bool {
    let fits = |wanted: &Option<String>, value: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == value)
    };
    tolerations.unwrap_or_default().iter().any(|toleration| {
        let value = || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
        fits(&toleration.effect, &taint.effect)
            && fits(&toleration.key, &taint.key)
            && (toleration.operator.as_deref() == Some("Exists") || value())
    })
}

/// Terms are alternatives; what a term says holds together.
fn affinity_fits(pod: &PodSpec, node: &Node) -> bool {
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_fits(term, node)))
}

fn term_fits(term: &NodeSelectorTerm, node: &Node) -> bool {
    let NodeSelectorTerm { match_expressions, match_fields } = term;
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let field = |key: &str| node.metadata.name.as_deref().filter(|_| key == "metadata.name");
    let empty = match_expressions.iter().flatten().next().is_none() && match_fields.iter().flatten().next().is_none();
    !empty
        && match_expressions.iter().flatten().all(|one| requirement_fits(one, label(&one.key)))
        && match_fields.iter().flatten().all(|one| requirement_fits(one, field(&one.key)))
}

fn requirement_fits(required: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = required.values.as_deref().unwrap_or_default();
    let is_among = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let numbers = || {
        let bound: i64 = values.first()?.parse().ok()?;
        Some((value?.parse::<i64>().ok()?, bound))
    };
    match required.operator.as_str() {
        "In" => is_among(),
        "NotIn" => !is_among(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::object;

    fn told(pod: &Value, node_spec: &Value) -> Vec<String> {
        let node = json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cards": "8"}}, "spec": node_spec});
        obstacles(&object(json!({"spec": pod})), &object(node))
    }

    #[test]
    fn what_keeps_a_pod_from_a_node_is_told() {
        let none = json!({"containers": []});
        assert_eq!(told(&none, &json!({})), Vec::<String>::new());
        assert_eq!(told(&none, &json!({"unschedulable": true})), ["the node is cordoned"]);
        let pod = json!({"containers": [], "nodeName": "n2", "nodeSelector": {"zone": "b"}});
        assert_eq!(told(&pod, &json!({})), ["the pod is on node n2", "the node has no label zone=b"]);
        let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"},
                                        {"key": "p", "effect": "PreferNoSchedule"}]});
        assert_eq!(told(&none, &tainted), ["the node has the taint k:NoSchedule"]);
        let tolerant = json!({"containers": [], "tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]});
        assert_eq!(told(&tolerant, &tainted), Vec::<String>::new());
    }

    #[test]
    fn one_term_of_an_affinity_must_fit_whole() {
        let fits = |terms: Value| {
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
            told(&json!({"containers": [], "affinity": affinity}), &json!({})).is_empty()
        };
        let label =
            |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
        for (expression, expected) in [
            (label("zone", "In", json!(["a", "b"])), true),
            (label("zone", "NotIn", json!(["a"])), false),
            (label("gone", "NotIn", json!(["a"])), true),
            (label("zone", "Exists", json!([])), true),
            (label("gone", "DoesNotExist", json!([])), true),
            (label("cards", "Gt", json!(["4"])), true),
            (label("cards", "Lt", json!(["8"])), false),
        ] {
            assert_eq!(fits(json!([{"matchExpressions": [expression]}])), expected, "{expression}");
        }
        let no = label("zone", "In", json!(["b"]));
        let yes = label("zone", "In", json!(["a"]));
        assert!(fits(json!([{"matchExpressions": [no]}, {"matchExpressions": [yes]}])));
        assert!(!fits(json!([{"matchExpressions": [no, yes]}])));
        assert!(fits(json!([{"matchFields": [label("metadata.name", "In", json!(["n1"]))]}])));
        assert!(!fits(json!([{}])));
    }
}
