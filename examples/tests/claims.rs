//! Manifests of claims ask for what their comments say; and what is applied to a cluster for egpu
//! says the same as the programs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on stops; helpers are not seen as tests"
)]

use std::{collections::BTreeSet, fs, path::PathBuf};

use kubernetes_api::{GpuConfig, Isolation, Oom, Policy, Priority, Quantity, names};
use serde::Deserialize;
use serde_json::Value;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn documents(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_norway::Deserializer::from_str(&text).map(|document| Value::deserialize(document).unwrap()).collect()
}

fn of_kind<'all>(documents: &'all [Value], kind: &str) -> Vec<&'all Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn named<'all>(documents: &'all [Value], kind: &str, name: &str) -> &'all Value {
    let found = of_kind(documents, kind).into_iter().find(|document| document["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// One request, or one of its alternatives, in the words of the comments.
fn describe_request(name: &str, request: &Value) -> String {
    assert_eq!(request["deviceClassName"], names::DRIVER, "{name}");
    let count = request.get("count").and_then(Value::as_u64).unwrap_or(1);
    let capacities = request["capacity"]["requests"].as_object().unwrap().iter().map(|(capacity, amount)| {
        assert!([names::capacity::MEMORY, names::capacity::COMPUTE].contains(&capacity.as_str()), "{capacity}");
        text(amount).parse::<Quantity>().unwrap();
        format!("{capacity} {}", text(amount))
    });
    format!("{name} = {count} x {}", capacities.collect::<Vec<_>>().join(", "))
}

/// A claim's devices in the words of the comments.
fn describe(devices: &Value) -> String {
    let mut parts = Vec::new();
    for request in list(&devices["requests"]) {
        let name = text(&request["name"]);
        if request.get("exactly").is_some() {
            parts.push(describe_request(name, &request["exactly"]));
        }
        for alternative in list(&request["firstAvailable"]) {
            parts.push(describe_request(&format!("{name}/{}", text(&alternative["name"])), alternative));
        }
    }
    for config in list(&devices["config"]) {
        assert_eq!(config["opaque"]["driver"], names::DRIVER);
        let config: GpuConfig = serde_json::from_value(config["opaque"]["parameters"].clone()).unwrap();
        let settings: Vec<_> = config.settings().map(|(name, value)| format!("{name} {value}")).collect();
        parts.push(settings.join(", "));
    }
    parts.join("; ")
}

/// The pod of a document, or the one that a Deployment makes.
fn pod(document: &Value) -> &Value {
    if document["kind"] == "Pod" { &document["spec"] } else { &document["spec"]["template"]["spec"] }
}

/// A pod's containers name its claims, and its claims a template of the file.
fn check_names(pod: &Value, documents: &[Value]) {
    assert_eq!(pod["runtimeClassName"], "egpu");
    let claims: BTreeSet<_> = list(&pod["resourceClaims"]).iter().map(|claim| text(&claim["name"])).collect();
    for claim in list(&pod["resourceClaims"]) {
        named(documents, "ResourceClaimTemplate", text(&claim["resourceClaimTemplateName"]));
    }
    for container in list(&pod["containers"]) {
        let used: BTreeSet<_> =
            list(&container["resources"]["claims"]).iter().map(|claim| text(&claim["name"])).collect();
        assert_eq!(used, claims, "{}", container["name"]);
    }
}

fn examples() -> Vec<String> {
    let entries = fs::read_dir(repository().join("examples/kubernetes")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("claims-")).collect()
}

#[test]
fn claims_ask_for_what_their_comments_say() {
    for name in examples() {
        let path = format!("examples/kubernetes/{name}");
        let documents = documents(&path);
        let comment = fs::read_to_string(repository().join(&path)).unwrap();
        let comment = comment.lines().find_map(|line| line.strip_prefix("# asks for: ")).unwrap().to_owned();
        let pods: Vec<_> = documents.iter().filter(|one| one["kind"] != "ResourceClaimTemplate").map(pod).collect();
        assert!(!pods.is_empty(), "{name}");
        pods.iter().for_each(|pod| check_names(pod, &documents));
        let templates = of_kind(&documents, "ResourceClaimTemplate");
        let asked = match templates[..] {
            [template] => describe(&template["spec"]["spec"]["devices"]),
            _ => {
                let limits = &pods[0]["containers"][0]["resources"]["limits"];
                format!("{}: {}", names::EXTENDED_RESOURCE, limits[names::EXTENDED_RESOURCE])
            }
        };
        assert_eq!(asked, comment, "{name}");
    }
    assert_eq!(examples().len(), 8);
}

#[test]
fn claims_name_attributes_and_taints_that_there_are() {
    let constrained = documents("examples/kubernetes/claims-two-cards.yaml");
    let constraint = &constrained[0]["spec"]["spec"]["devices"]["constraints"][0];
    assert_eq!(constraint["distinctAttribute"], format!("{}/{}", names::DRIVER, names::attribute::UUID));
    let tolerant = documents("examples/kubernetes/claims-toleration.yaml");
    let toleration = &tolerant[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"][0];
    assert_eq!((&toleration["key"], &toleration["effect"]), (&names::taint::UNHEALTHY.into(), &"NoExecute".into()));
    for (example, attribute) in
        [("weighted", names::attribute::POLICY), ("first-available", names::attribute::PRODUCT_NAME)]
    {
        let text = fs::read_to_string(repository().join(format!("examples/kubernetes/claims-{example}.yaml"))).unwrap();
        let named = format!("device.attributes[\"{}\"].{attribute}", names::DRIVER);
        assert!(text.contains(&named), "{example}: {named}");
    }
}

#[test]
fn classes_are_of_egpus_driver() {
    let classes = documents("packaging/kubernetes/device-classes.yaml");
    let expression = format!("device.driver == \"{}\"", names::DRIVER);
    for class in &classes {
        assert_eq!(class["spec"]["selectors"][0]["cel"]["expression"], expression);
    }
    assert!(named(&classes, "DeviceClass", names::DRIVER)["spec"].get("extendedResourceName").is_none());
    let whole = named(&classes, "DeviceClass", "whole.gpu.egpu.io");
    assert_eq!(whole["spec"]["extendedResourceName"], names::EXTENDED_RESOURCE);
}

/// `kubectl apply -f` goes by the names of files.
#[test]
fn the_namespace_is_applied_first() {
    let entries = fs::read_dir(repository().join("packaging/kubernetes")).unwrap();
    let first = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).min().unwrap();
    let first = documents(&format!("packaging/kubernetes/{first}"));
    assert_eq!((first.len(), &first[0]["kind"]), (1, &"Namespace".into()));
    for file in ["kubelet-plugin", "rbac"] {
        for document in documents(&format!("packaging/kubernetes/{file}.yaml")) {
            let namespace = document["metadata"].get("namespace");
            assert!(namespace.is_none_or(|namespace| *namespace == first[0]["metadata"]["name"]), "{document}");
        }
    }
}

#[test]
fn the_plugins_account_has_the_rights_and_the_policies() {
    let rights = documents("packaging/kubernetes/rbac.yaml");
    let account = of_kind(&rights, "ServiceAccount")[0]["metadata"].clone();
    let binding = of_kind(&rights, "ClusterRoleBinding")[0];
    assert_eq!(binding["subjects"][0]["name"], account["name"]);
    named(&rights, "ClusterRole", text(&binding["roleRef"]["name"]));
    let daemon_set = documents("packaging/kubernetes/kubelet-plugin.yaml");
    assert_eq!(pod(&daemon_set[0])["serviceAccountName"], account["name"]);
    let user = format!("system:serviceaccount:{}:{}", text(&account["namespace"]), text(&account["name"]));
    let policies = documents("packaging/kubernetes/validating-admission-policy.yaml");
    let slices = named(&policies, "ValidatingAdmissionPolicy", "slices.gpu.egpu.io");
    for expression in [&slices["spec"]["matchConditions"][0], &slices["spec"]["variables"][0]] {
        assert!(text(&expression["expression"]).contains(&format!("\"{user}\"")), "{expression}");
    }
    for binding in of_kind(&policies, "ValidatingAdmissionPolicyBinding") {
        named(&policies, "ValidatingAdmissionPolicy", text(&binding["spec"]["policyName"]));
    }
}

/// The rule of a policy that has this message.
fn rule(policy: &Value, message: &str) -> String {
    let rules = list(&policy["spec"]["validations"]).iter();
    let mut found = rules.filter(|rule| rule["message"].as_str().is_some_and(|text| text.contains(message)));
    text(&found.next().unwrap_or_else(|| panic!("no rule says: {message}"))["expression"]).to_owned()
}

fn quoted<'name>(names: impl Iterator<Item = &'name str>) -> String {
    let names: Vec<_> = names.map(|name| format!("\"{name}\"")).collect();
    format!("[{}]", names.join(", "))
}

#[test]
fn the_early_check_of_configurations_has_the_words_of_the_late_one() {
    let policies = documents("packaging/kubernetes/validating-admission-policy.yaml");
    let policy = named(&policies, "ValidatingAdmissionPolicy", "configs.gpu.egpu.io");
    let policies = Policy::ALL.iter().map(|one| one.name());
    let priorities = Priority::ALL.iter().map(|one| one.name());
    let isolations = Isolation::ALL.iter().map(|one| one.name());
    let fates = Oom::ALL.iter().map(|one| one.name());
    for (message, words) in [
        (format!("policy is {}", Policy::listed("or", |_| true)), quoted(policies)),
        ("priority is".to_owned(), quoted(priorities)),
        ("isolation is".to_owned(), quoted(isolations)),
        ("oom is".to_owned(), quoted(fates)),
    ] {
        assert!(rule(policy, &message).contains(&words), "{message}: {words}");
    }
    let whole = GpuConfig {
        policy: Some(Policy::Soft),
        weight: Some(1000),
        priority: Some(Priority::Low),
        isolation: Some(Isolation::Full),
        oom: Some(Oom::Deny),
    };
    let fields = serde_json::to_value(whole).unwrap();
    let fields = quoted(fields.as_object().unwrap().keys().map(String::as_str));
    assert!(rule(policy, "has the fields").contains(&fields), "{fields}");
    assert!(rule(policy, "1 to 1000").contains("<= 1000"));
    for word in [names::CONFIG_API_VERSION, names::CONFIG_KIND] {
        assert!(rule(policy, "begin with").contains(&format!("\"{word}\"")), "{word}");
    }
}
