//! A node of two cards with a plugin, beside a stand-in API server.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

use super::api_server::{ApiServer, NODES, SLICES};
use crate::{Options, PluginError, kubelet_api::ClaimName, node::Node, run};

/// Name of the node.
pub(super) const NODE: &str = "node-1";
/// Its first card has this much memory, as the second.
pub(super) const GIB: u64 = 1 << 30;

/// A plugin: what ends it, and its task.
type Running = (oneshot::Sender<()>, JoinHandle<Result<(), PluginError>>);

pub(super) struct Bench {
    pub(super) api: Arc<ApiServer>,
    pub(super) options: Options,
    directory: TempDir,
    running: Option<Running>,
}

impl Bench {
    /// A node whose plugin does not run yet. `settings` stand before the configuration's tables.
    pub(super) async fn without_plugin(settings: &str, tables: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["kubelet/plugins_registry", "cdi", "state/simulated"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        let config = format!(
            "state_dir = '{state}'\nlog_file = '{log}'\n{settings}\n{tables}\n[driver]\nkind = 'simulated'\n\
             [[driver.simulated]]\nmodel = 'NVIDIA H200'\nmemory = '80GiB'\ncount = 2\n",
            state = path("state").display(),
            log = path("egpu.log").display(),
        );
        fs::write(path("config.toml"), config).unwrap();
        let api = ApiServer::start().await;
        api.write_kubeconfig(&path("kubeconfig"));
        api.put(&format!("{NODES}/{NODE}"), json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}}));
        let options = Options {
            node_name: Some(NODE.to_owned()),
            kubeconfig: Some(path("kubeconfig")),
            config: Some(path("config.toml")),
            kubelet_dir: path("kubelet"),
            cdi_dir: path("cdi"),
            pod_uid: None,
            discover: false,
            label_node: false,
        };
        Self { api, options, directory, running: None }
    }

    /// A node whose plugin runs and has published.
    pub(super) async fn new() -> Self {
        let mut bench = Self::without_plugin("", "").await;
        bench.start();
        bench.devices().await;
        bench
    }

    pub(super) fn start(&mut self) {
        let (end, ended) = oneshot::channel();
        let options = self.options.clone();
        let task = tokio::spawn(async move {
            run(options, async {
                let _ = ended.await;
            })
            .await
        });
        self.running = Some((end, task));
    }

    /// Ends the plugin as SIGTERM does.
    pub(super) async fn stop(&mut self) {
        let (end, task) = self.running.take().unwrap();
        end.send(()).unwrap();
        task.await.unwrap().unwrap();
    }

    /// Waits for the plugin to end by itself.
    pub(super) async fn end(&mut self) -> PluginError {
        let (_end, task) = self.running.take().unwrap();
        tokio::time::timeout(Duration::from_secs(10), task).await.unwrap().unwrap().unwrap_err()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.options.endpoint()
    }

    /// The node's ledger, as others open it.
    pub(super) fn node(&self) -> Node {
        Node::open(self.options.config.clone()).unwrap().0
    }

    /// Devices as they are published, in order; waits for the first publication.
    pub(super) async fn devices(&self) -> Vec<Value> {
        self.api.wait("a slice", published).await
    }

    /// Waits for the published devices to be as they should.
    pub(super) async fn wait_devices(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.api.wait(what, |api| published(api).filter(|devices| is_so(devices))).await
    }

    /// Stores an allocated claim of pod `pod-UID`, as the scheduler leaves it.
    pub(super) fn claim(&self, number: u32, requests: &[(&str, Value, Vec<Value>)], config: &Value) -> ClaimName {
        let uid = uid(number);
        let name = format!("claim-{number}");
        let spec: Vec<Value> = requests
            .iter()
            .map(|(name, capacity, _)| {
                let exactly = json!({"deviceClassName": "gpu.egpu.io", "capacity": {"requests": capacity}});
                json!({"name": name, "exactly": exactly})
            })
            .collect();
        let results: Vec<&Value> = requests.iter().flat_map(|(_, _, results)| results).collect();
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "team", "uid": uid},
            "spec": {"devices": {"requests": spec}},
            "status": {
                "allocation": {"devices": {"results": results, "config": config}},
                "reservedFor": [{"resource": "pods", "name": format!("pod-{number}"), "uid": format!("pod-uid-{number}")}],
            },
        });
        self.api.put(&claim_path(&name), object);
        ClaimName { namespace: "team".to_owned(), uid, name }
    }

    /// Stores a claim with one request for one share of one card.
    pub(super) fn share(&self, number: u32, device: &str, memory: u64, compute: Option<u8>) -> ClaimName {
        let mut capacity = json!({"memory": memory.to_string()});
        if let Some(percent) = compute {
            capacity["compute"] = json!(percent.to_string());
        }
        let result = result("gpu", device, memory, compute.unwrap_or(5));
        self.claim(number, &[("gpu", capacity, vec![result])], &json!([]))
    }
}

pub(super) fn uid(number: u32) -> String {
    format!("c1a1{number:04}-0b5e-4a55-9d5e-2d3c0d4f0a11")
}

pub(super) fn claim_path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/{name}")
}

/// A result of an allocation.
pub(super) fn result(request: &str, device: &str, memory: u64, compute: u8) -> Value {
    json!({
        "request": request, "driver": "gpu.egpu.io", "pool": NODE, "device": device, "shareID": "5a5a",
        "consumedCapacity": {"memory": memory.to_string(), "compute": compute.to_string(), "containers": "1"},
    })
}

fn published(api: &ApiServer) -> Option<Vec<Value>> {
    let slices = api.list(SLICES);
    let own = slices.iter().find(|slice| slice["spec"]["driver"] == "gpu.egpu.io")?;
    Some(own["spec"]["devices"].as_array().cloned().unwrap_or_default())
}

/// Names of devices.
pub(super) fn names(devices: &[Value]) -> Vec<&str> {
    devices.iter().map(|device| device["name"].as_str().unwrap()).collect()
}
