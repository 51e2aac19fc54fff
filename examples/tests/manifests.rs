//! Each manifest asks for what its comment says, and each configuration is one that egpu takes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on stops; helpers are not seen as tests"
)]

use std::{collections::BTreeMap, fs, path::PathBuf};

use runtime_config::{
    Bytes, Config, ContainerRequest, GpuRequest,
    request::{CardRequest, ComputeShare, MemoryLimit, Share, Source, parse},
};
use serde::Deserialize;

const RUNTIME_CLASS: &str = "00-runtime-class.yaml";
/// The card on which the comments reckon.
const CARD: Bytes = Bytes(32 * Bytes::GIB);

#[derive(Deserialize)]
struct Pod {
    kind: String,
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    runtime_class_name: String,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    env: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RuntimeClass {
    kind: String,
    metadata: NamedMetadata,
    handler: String,
}

#[derive(Deserialize)]
struct NamedMetadata {
    name: String,
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(path: &str) -> String {
    fs::read_to_string(folder(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn pods_ask_for_what_their_comments_say() {
    let mut checked = 0;
    for entry in fs::read_dir(folder("kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        // Claims: tests/claims.rs. What the webhook makes claims of: the tests of its crate.
        let name = path.file_name().unwrap().to_string_lossy();
        if path.ends_with(RUNTIME_CLASS) || name.starts_with("claims-") || name.starts_with("webhook-") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let comment = text.lines().find_map(|line| line.strip_prefix("# asks for: "));
        let comment = comment.unwrap_or_else(|| panic!("{} does not say what it asks for", path.display()));
        let pod: Pod = serde_norway::from_str(&text).unwrap();
        assert_eq!((pod.kind.as_str(), pod.spec.runtime_class_name.as_str()), ("Pod", "egpu"));
        let container = pod.spec.containers.first().unwrap();
        let mut annotations = pod.metadata.annotations;
        annotations.insert("io.kubernetes.cri.container-name".to_owned(), container.name.clone());
        let source = Source {
            env: container.env.iter().map(|variable| format!("{}={}", variable.name, variable.value)).collect(),
            annotations,
            ..Source::default()
        };
        let config = Config::from_toml("", "defaults").unwrap();
        match parse(&source, &config).unwrap_or_else(|error| panic!("{}: {error}", path.display())) {
            ContainerRequest::Gpu(request) => assert_eq!(describe(&request), comment, "{}", path.display()),
            other => panic!("{} asks for nothing: {other:?}", path.display()),
        }
        checked += 1;
    }
    assert_eq!(checked, 9, "one manifest for each dialect, two for egpu's own");
}

/// The request in the words of the manifests' comments.
fn describe(request: &GpuRequest) -> String {
    let (cards, count) = match &request.cards {
        CardRequest::Count(1) => ("1 card".to_owned(), 1),
        CardRequest::Count(count) => (format!("{count} cards"), *count as usize),
        CardRequest::Devices(devices) => {
            let names: Vec<String> = devices.iter().map(ToString::to_string).collect();
            (format!("cards {}", names.join(",")), devices.len())
        }
        other => panic!("{other:?}"),
    };
    let Share::Part { memory, compute, .. } = &request.share else {
        assert_eq!(request.share, Share::Exclusive);
        return format!("{cards}; exclusive");
    };
    let memory = memory.for_cards(count).unwrap().into_iter().map(|limits| mebibytes(limits));
    let compute = compute.for_cards(count).unwrap().into_iter().map(|share| match share {
        ComputeShare::Unlimited => "unlimited".to_owned(),
        ComputeShare::Cap { percent, .. } => format!("{}%", percent.get()),
        ComputeShare::Weight(weight) => format!("weight {}", weight.get()),
    });
    format!("{cards}; memory {}; compute {}", list(memory.collect()), list(compute.collect()))
}

fn mebibytes(limits: &[MemoryLimit]) -> String {
    let tightest = limits.iter().map(|limit| limit.resolve(CARD).unwrap().0).min().unwrap_or(CARD.0);
    format!("{}MiB", tightest >> 20)
}

/// One word where all are the same.
fn list(mut words: Vec<String>) -> String {
    words.dedup();
    words.join(",")
}

/// `kubectl apply -f FOLDER` goes by the files' names, and refuses a pod whose class is not there
/// yet.
#[test]
fn the_runtime_class_is_applied_first() {
    let names = fs::read_dir(folder("kubernetes")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.min().unwrap(), RUNTIME_CLASS);
}

#[test]
fn the_runtime_class_names_the_handler_of_containerds_configuration() {
    let class: RuntimeClass = serde_norway::from_str(&read(&format!("kubernetes/{RUNTIME_CLASS}"))).unwrap();
    assert_eq!((class.kind.as_str(), class.metadata.name.as_str()), ("RuntimeClass", "egpu"));
    for (file, plugin) in [
        ("config-1.x.toml", "io.containerd.grpc.v1.cri"),
        ("drop-in-1.7.toml", "io.containerd.grpc.v1.cri"),
        ("config-2.x.toml", "io.containerd.cri.v1.runtime"),
        ("drop-in-2.x.toml", "io.containerd.cri.v1.runtime"),
    ] {
        let config: toml::Table = toml::from_str(&read(&format!("containerd/{file}"))).unwrap();
        let runtimes = &config["plugins"][plugin]["containerd"]["runtimes"];
        assert!(runtimes.get(&class.handler).is_some(), "{file} has no runtime {:?}", class.handler);
    }
}

#[test]
fn node_configurations_are_taken() {
    for entry in fs::read_dir(folder("node")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        Config::from_toml(&text, &path.display().to_string()).unwrap();
    }
}

#[test]
fn dockers_runtime_is_egpus() {
    let config: serde_json::Value = serde_json::from_str(&read("docker/daemon.json")).unwrap();
    assert_eq!(config["runtimes"]["egpu"]["runtimeType"], "io.containerd.egpu.v1");
}

/// Lines `key=value` of a systemd unit.
fn unit(path: &str) -> BTreeMap<String, String> {
    let text = read(path);
    let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
    lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The integration tests run their commands.
#[test]
fn prometheus_asks_where_the_service_answers() {
    let scraped: serde_json::Value = serde_norway::from_str(&read("metrics/prometheus.yaml")).unwrap();
    let target = scraped["scrape_configs"][0]["static_configs"][0]["targets"][0].as_str().unwrap();
    let served = unit("metrics/egpu-metrics-http.service");
    assert_eq!(served["ExecStart"], format!("/usr/local/bin/egpu metrics --listen {target}"));
    let oneshot = unit("metrics/egpu-metrics.service");
    assert_eq!(oneshot["Type"], "oneshot");
    let directory = oneshot["ReadWritePaths"].split(' ').next().unwrap();
    assert_eq!(oneshot["ExecStart"], format!("/usr/local/bin/egpu metrics --textfile {directory}/egpu.prom"));
    // A timer starts the service of its name.
    assert_eq!(unit("metrics/egpu-metrics.timer")["WantedBy"], "timers.target");
}

#[test]
fn nerdctls_devices_are_asked_for_by_name() {
    let spec: serde_json::Value = serde_json::from_str(&read("nerdctl/nvidia-cdi.json")).unwrap();
    // nerdctl makes `--gpus` names of this kind; those that begin with a digit came with this
    // version of CDI.
    assert_eq!((spec["kind"].as_str(), spec["cdiVersion"].as_str()), (Some("nvidia.com/gpu"), Some("0.5.0")));
    let names: Vec<&str> = spec["devices"].as_array().unwrap().iter().map(asked_for).collect();
    let mut expected = vec!["all".to_owned()];
    expected.extend((0..16).map(|index| index.to_string()));
    assert_eq!(names, expected);
}

/// The name of a CDI device, which is what its mount asks for.
fn asked_for(device: &serde_json::Value) -> &str {
    let mount = &device["containerEdits"]["mounts"][0];
    assert_eq!(mount["hostPath"], "/dev/null");
    let asked = mount["containerPath"].as_str().unwrap().strip_prefix("/var/run/nvidia-container-devices/").unwrap();
    assert_eq!(device["name"], asked);
    asked
}

/// The plain manifests are the chart's own files; nothing is written twice.
#[test]
fn the_chart_has_the_manifests_themselves() {
    let chart = folder("../packaging/kubernetes/chart");
    for entry in fs::read_dir(chart.join("files")).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.is_symlink() && path.is_file(), "{}", path.display());
    }
    for entry in fs::read_dir(folder("../packaging/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        let is_namespace = name == "00-namespace.yaml";
        assert!(path.is_dir() || is_namespace || chart.join("files").join(&name).is_file(), "{}", path.display());
    }
}

#[test]
fn the_charts_values_are_those_of_its_schema() {
    let chart = folder("../packaging/kubernetes/chart");
    let values: serde_json::Value =
        serde_norway::from_str(&fs::read_to_string(chart.join("values.yaml")).unwrap()).unwrap();
    let schema: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(chart.join("values.schema.json")).unwrap()).unwrap();
    for (name, property) in schema["properties"].as_object().unwrap() {
        let Some(properties) = property["properties"].as_object() else { continue };
        let written = values[name].as_object().unwrap();
        assert!(properties.keys().eq(written.keys()), "{name}");
    }
    let written: Vec<&String> = values.as_object().unwrap().keys().collect();
    assert!(schema["properties"].as_object().unwrap().keys().filter(|name| *name != "global").eq(written));
}
