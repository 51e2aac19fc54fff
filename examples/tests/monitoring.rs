//! Alerts and the dashboard are about figures and labels that there are; `make monitoring-test`
//! lets Prometheus itself evaluate the alerts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on stops; helpers are not seen as tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use serde_json::Value;

/// Labels that Prometheus adds to what it scrapes.
const SCRAPED: [&str; 2] = ["instance", "job"];

fn read(path: &str) -> String {
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn yaml(path: &str) -> Value {
    serde_norway::from_str(&read(path)).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("metrics/dashboard.json")).unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// Labels by metric, each label with its values, as `egpu metrics` prints a made-up node.
fn printed() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut metrics: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for line in read("../shim/cli/src/metrics/golden.prom").lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels = metrics.entry(name.to_owned()).or_default();
        let (set, _) = rest.strip_prefix('{').and_then(|rest| rest.split_once("} ")).unwrap_or_default();
        for (label, value) in set.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            labels.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
        }
    }
    metrics
}

/// The names of metrics in an expression, and what stands between the braces after each.
fn selectors(expression: &str) -> Vec<(&str, &str)> {
    let starts = expression.match_indices("egpu_").map(|(at, _)| &expression[at..]);
    let named = starts.map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let braces = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        (name, braces.map_or("", |(braces, _)| braces))
    });
    named.collect()
}

/// Checks each metric, label and value that an expression names.
fn check(expression: &str) {
    let printed = printed();
    let selected = selectors(expression);
    for (name, braces) in &selected {
        let labels = printed.get(*name).unwrap_or_else(|| panic!("egpu metrics has no {name}: {expression}"));
        for matcher in braces.split("\",").filter(|matcher| !matcher.is_empty()) {
            let (label, value) = matcher.split_once('=').unwrap();
            if SCRAPED.contains(&label) {
                continue;
            }
            let values = labels.get(label).unwrap_or_else(|| panic!("{name} has no label {label}: {expression}"));
            let asked = value.trim_start_matches('~').trim_matches('"');
            for value in asked.split('|').filter(|value| !value.starts_with('$')) {
                assert!(values.contains(value), "{name} has no {label}={value}");
            }
        }
    }
    for group in expression.split("by (").skip(1) {
        for label in group.split(')').next().unwrap().split(", ") {
            let known = selected.iter().all(|(name, _)| printed[*name].contains_key(label)) || SCRAPED.contains(&label);
            assert!(known, "there is no label {label}: {expression}");
        }
    }
}

#[test]
fn alerts_are_about_figures_that_there_are() {
    let alerts = yaml("metrics/alerts.yaml");
    let job = yaml("metrics/prometheus.yaml")["scrape_configs"][0]["job_name"].clone();
    for rule in array(&alerts["groups"][0]["rules"]) {
        let expression = rule["expr"].as_str().unwrap();
        match expression.strip_prefix("up{job=\"") {
            Some(rest) => assert_eq!(rest.split('"').next(), job.as_str()),
            None => check(expression),
        }
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        assert!(rule["annotations"]["summary"].is_string(), "{rule}");
    }
}

#[test]
fn each_alert_is_tested_to_fire_and_not_to() {
    let names = |rules: &Value, key: &str| -> Vec<String> {
        array(rules).iter().map(|rule| rule[key].as_str().unwrap().to_owned()).collect()
    };
    let alerts = names(&yaml("metrics/alerts.yaml")["groups"][0]["rules"], "alert");
    let tests = yaml("metrics/alerts-test.yaml");
    let cases: Vec<&Value> = array(&tests["tests"]).iter().flat_map(|test| array(&test["alert_rule_test"])).collect();
    for alert in alerts {
        let of_alert = cases.iter().filter(|case| case["alertname"] == alert.as_str());
        let (fires, quiet): (Vec<&&Value>, Vec<&&Value>) = of_alert.partition(|case| case.get("exp_alerts").is_some());
        assert!(!fires.is_empty() && !quiet.is_empty(), "{alert}");
    }
}

#[test]
fn panels_are_about_figures_that_there_are() {
    let dashboard = dashboard();
    let panels = array(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row");
    for panel in panels {
        let targets = array(&panel["targets"]);
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(!selectors(expression).is_empty(), "{expression}");
            check(expression);
        }
    }
    for variable in array(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
        let query = variable["definition"].as_str().unwrap();
        let (selector, label) = query.trim_start_matches("label_values(").rsplit_once(", ").unwrap();
        check(selector);
        check(&format!("sum by ({}) ({selector})", label.trim_end_matches(')')));
    }
}

/// Rules of Grafana's linter of dashboards.
#[test]
fn panels_are_complete() {
    let dashboard = dashboard();
    let panels = array(&dashboard["panels"]);
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "numbers of panels");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "lies over another: {}", panel["title"]);
            }
        }
        assert!(!panel["title"].as_str().unwrap().is_empty());
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{}", panel["title"]);
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{}", panel["title"]);
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        for target in array(&panel["targets"]) {
            let expression = target["expr"].as_str().unwrap();
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            assert!(!target["legendFormat"].as_str().unwrap().is_empty());
            assert!(expression.contains("instance=~\"$instance\""), "{expression}");
            assert!(!expression.contains("rate(") || expression.contains("[$__rate_interval]"), "{expression}");
        }
    }
}
