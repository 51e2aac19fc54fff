//! The API server's objects.

use std::path::PathBuf;

use k8s_openapi::{
    api::{
        core::v1::{Event, Node, Pod},
        resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::APIResourceList,
};
use kube::{
    Api, Client, Config, Resource,
    api::{ApiResource, DynamicObject, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use kubernetes_api::names::DRIVER;
use serde::de::DeserializeOwned;

use crate::{
    exit::CommandError,
    inventory::{Inventory, TaintRule},
    request::Classes,
};

/// Group of the API for devices.
const GROUP: &str = "resource.k8s.io";
/// Versions that have had DeviceTaintRule, the newest first.
const TAINT_RULE_VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1alpha3"];

/// A cluster, by way of its API server.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The namespace of commands that name none.
    pub(crate) namespace: String,
}

/// DeviceTaintRules, of a version that is served.
pub(crate) struct TaintRules {
    pub(crate) api: Api<DynamicObject>,
    pub(crate) api_version: String,
}

/// The cluster that is meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Connection {
    /// Kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
    /// Namespace of the pod [default: the context's]
    #[arg(long, short, value_name = "NAME", global = true)]
    namespace: Option<String>,
}

/// Returns a [`CommandError`] of what was tried.
pub(crate) fn failed(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> CommandError {
    |source| CommandError::Api { doing: doing.into(), source: Box::new(source) }
}

/// Returns `None` where the server says that there is no such object.
pub(crate) fn optional<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        other => other.map(Some),
    }
}

impl Cluster {
    pub(crate) async fn connect(connection: Connection) -> Result<Self, CommandError> {
        let Connection { kubeconfig: path, context, namespace } = connection;
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let wrong = |path: Option<PathBuf>| |source| CommandError::Kubeconfig { path, source: Box::new(source) };
        let config = match &path {
            Some(file) => {
                let kubeconfig = Kubeconfig::read_from(file).map_err(wrong(path.clone()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await
            }
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = config.map_err(wrong(path.clone()))?;
        // Who waits at a terminal is told at once.
        config.default_retry = false;
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| CommandError::Client(Box::new(error)))?;
        Ok(Self { client, namespace })
    }

    async fn list<K>(&self, what: &str, parameters: &ListParams) -> Result<Vec<K>, CommandError>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let all = Api::<K>::all(self.client.clone());
        Ok(all.list(parameters).await.map_err(failed(format!("list {what}")))?.items)
    }

    /// All cards, and what is held of them.
    pub(crate) async fn inventory(&self) -> Result<Inventory, CommandError> {
        let of_driver = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
        let slices = self.list::<ResourceSlice>("resource slices", &of_driver).await?;
        let claims = self.list::<ResourceClaim>("resource claims", &ListParams::default()).await?;
        let rules = match self.taint_rules().await? {
            Some(rules) => {
                let rules = rules.api.list(&ListParams::default()).await.map_err(failed("list device taint rules"))?;
                rules.items.into_iter().filter_map(|rule| read_rule(&rule)).collect()
            }
            None => Vec::new(),
        };
        Ok(Inventory::new(&slices, &claims, &rules))
    }

    /// DeviceTaintRules of the newest version that is served; `None`: the server has none.
    pub(crate) async fn taint_rules(&self) -> Result<Option<TaintRules>, CommandError> {
        for version in TAINT_RULE_VERSIONS {
            let served = self.client.list_api_group_resources(&format!("{GROUP}/{version}")).await;
            let served = optional(served).map_err(failed("ask which resources are served"))?;
            if served
                .is_some_and(|served: APIResourceList| served.resources.iter().any(|one| one.kind == "DeviceTaintRule"))
            {
                let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, "DeviceTaintRule"));
                let api = Api::all_with(self.client.clone(), &resource);
                return Ok(Some(TaintRules { api, api_version: resource.api_version }));
            }
        }
        Ok(None)
    }

    pub(crate) async fn classes(&self) -> Result<Classes, CommandError> {
        let classes = self.list::<DeviceClass>("device classes", &ListParams::default()).await?;
        Ok(classes.into_iter().filter_map(|class| Some((class.metadata.name.clone()?, class))).collect())
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>, CommandError> {
        self.list::<Node>("nodes", &ListParams::default()).await
    }

    pub(crate) async fn pod(&self, name: &str) -> Result<Pod, CommandError> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let pod = optional(pods.get(name).await).map_err(failed(format!("read pod {}/{name}", self.namespace)))?;
        pod.ok_or_else(|| CommandError::NoPod { namespace: self.namespace.clone(), name: name.to_owned() })
    }

    pub(crate) async fn claim(&self, name: &str) -> Result<Option<ResourceClaim>, CommandError> {
        let claims = Api::<ResourceClaim>::namespaced(self.client.clone(), &self.namespace);
        optional(claims.get(name).await).map_err(failed(format!("read resource claim {}/{name}", self.namespace)))
    }

    pub(crate) async fn template(&self, name: &str) -> Result<Option<ResourceClaimTemplate>, CommandError> {
        let templates = Api::<ResourceClaimTemplate>::namespaced(self.client.clone(), &self.namespace);
        let doing = format!("read resource claim template {}/{name}", self.namespace);
        optional(templates.get(name).await).map_err(failed(doing))
    }

    /// A pod's events; none where they may not be read.
    pub(crate) async fn events(&self, pod: &Pod) -> Vec<Event> {
        let events = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let of_pod = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        events.list(&of_pod).await.map(|found| found.items).unwrap_or_default()
    }
}

/// Reads a rule of any version; one with criteria that are not known here is left out.
fn read_rule(rule: &DynamicObject) -> Option<TaintRule> {
    serde_json::from_value(serde_json::to_value(rule).ok()?).ok()
}
