//! The API server: what the plugin asks it, and what it follows.

use std::{path::Path, time::Duration};

use futures_util::{TryStreamExt as _, pin_mut};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    client::ConfigExt as _,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::PartialObjectMeta,
};
use kubernetes_api::names::{DRAIN_ANNOTATION, READY_LABEL};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tower::{BoxError, ServiceBuilder};

use crate::{
    changes::{Change, NodeObject},
    taints::Drained,
};

/// Longest wait for an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Pause after a watch has failed, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Length of a watch, seconds.
const WATCH: u32 = 240;
/// A server that is silent for longer has gone away without a word.
const SILENT: Duration = Duration::from_secs(300);

/// There is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file that says where it is.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] KubeconfigError),
    /// This is no pod of a cluster.
    #[error("this is no pod that may speak to the API server; name a --kubeconfig")]
    InCluster(#[from] InClusterError),
    /// Its certificates, for instance.
    #[error("the API server cannot be reached with this configuration")]
    Client(#[from] kube::Error),
}

/// An answer that did not come, or was none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// An error of the API server's or of the way to it.
    #[error("{}", said(.0))]
    Api(#[from] kube::Error),
    /// None.
    #[error("the API server does not answer within {} s", ANSWER.as_secs())]
    Timeout,
}

impl ApiError {
    /// HTTP status that the API server answered with.
    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    /// The object is not there.
    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Somebody else was faster.
    pub(crate) fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}

/// An error as the API server puts it, which says more than kube's own words.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("the API server says: {} ({})", status.message, status.code),
        other => base::error_chain(other),
    }
}

/// Connects as kube does, but for two things: nothing is tried for minutes that the kubelet asks
/// for again, and the first request of a connection does not wait for an acknowledgement that
/// the server delays by 40 ms.
fn connected(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(config.connect_timeout);
    let https = config.rustls_https_connector_with_connector(http)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(https));
    Ok(Client::new(service, config.default_namespace))
}

/// Client of the API server for one node.
#[derive(Clone)]
pub(crate) struct ApiClient {
    client: Client,
    pub(crate) node: String,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ApiClient").field("node", &self.node).finish_non_exhaustive()
    }
}

impl ApiClient {
    /// Reads how to reach the API server: from a file, or as a pod.
    pub(crate) async fn new(kubeconfig: Option<&Path>, node: &str) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
            }
            None => Config::incluster()?,
        };
        Ok(Self { client: connected(config)?, node: node.to_owned() })
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Reads a claim.
    pub(crate) async fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, ApiError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client(), namespace);
        answer(claims.get(name)).await
    }

    fn slices(&self) -> Api<ResourceSlice> {
        Api::all(self.client())
    }

    /// Creates a slice, or replaces the one that is there. Returns it as it was stored.
    pub(crate) async fn put_slice(
        &self,
        slice: &ResourceSlice,
        before: Option<&ResourceSlice>,
    ) -> Result<ResourceSlice, ApiError> {
        let name = slice.metadata.name.clone().unwrap_or_default();
        let Some(before) = before else { return answer(self.slices().create(&PostParams::default(), slice)).await };
        let mut slice = slice.clone();
        slice.metadata.resource_version.clone_from(&before.metadata.resource_version);
        answer(self.slices().replace(&name, &PostParams::default(), &slice)).await
    }

    /// Reads one slice.
    pub(crate) async fn slice(&self, name: &str) -> Result<Option<ResourceSlice>, ApiError> {
        answer(self.slices().get_opt(name)).await
    }

    /// Deletes a slice of ours.
    pub(crate) async fn delete_slice(&self, name: &str) -> Result<(), ApiError> {
        match answer(self.slices().delete(name, &DeleteParams::default())).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Labels the node as one on which containers run under egpu.
    pub(crate) async fn label_node(&self) -> Result<(), ApiError> {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client());
        let label = serde_json::json!({ "metadata": { "labels": { READY_LABEL: "true" } } });
        answer(nodes.patch_metadata(&self.node, &PatchParams::default(), &Patch::Merge(&label))).await?;
        Ok(())
    }

    /// Follows the slices of this node, of all drivers, until nobody listens.
    pub(crate) async fn follow_slices(self, changes: mpsc::Sender<Change>) {
        let fields = format!("spec.nodeName={}", self.node);
        let change = |seen| match seen {
            Seen::All(slices) => Change::Slices(slices),
            Seen::One(slice) => Change::Slice(Box::new(slice)),
            Seen::Gone(slice) => Change::SliceGone(slice.metadata.name.unwrap_or_default()),
        };
        follow(self.slices(), &fields, &changes, change).await;
    }

    /// Follows the uid and the annotations of the Node object, until nobody listens.
    pub(crate) async fn follow_node(self, changes: mpsc::Sender<Change>) {
        let fields = format!("metadata.name={}", self.node);
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client());
        let change = |seen: Seen<PartialObjectMeta<Node>>| {
            let node = match seen {
                Seen::All(nodes) => nodes.into_iter().next(),
                Seen::One(node) => Some(node),
                Seen::Gone(_) => None,
            };
            Change::Node(node.and_then(|node| {
                let annotations = node.metadata.annotations.unwrap_or_default();
                let drained = Drained::read(annotations.get(DRAIN_ANNOTATION).map(String::as_str));
                Some(NodeObject { uid: node.metadata.uid?, drained })
            }))
        };
        follow(nodes, &fields, &changes, change).await;
    }
}

/// Something seen of objects that are followed.
enum Seen<K> {
    /// All that there are; whatever was seen before is void.
    All(Vec<K>),
    /// One that is new or has changed.
    One(K),
    /// One that was deleted.
    Gone(K),
}

/// Tells all changes of the objects that `fields` selects, until nobody listens.
async fn follow<K>(api: Api<K>, fields: &str, changes: &mpsc::Sender<Change>, change: impl Fn(Seen<K>) -> Change)
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let mut pause = FIRST_PAUSE;
    while !changes.is_closed() {
        match follow_once(&api, fields, changes, &change).await {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                tracing::warn!(%error, selected = fields, "the API server is asked again in {pause:?}");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Lists the objects and watches them, until the watch ends.
async fn follow_once<K>(
    api: &Api<K>,
    fields: &str,
    changes: &mpsc::Sender<Change>,
    change: impl Fn(Seen<K>) -> Change,
) -> Result<(), ApiError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let list = answer(api.list(&ListParams::default().fields(fields))).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let _ = changes.send(change(Seen::All(list.items))).await;
    let parameters = WatchParams::default().fields(fields).timeout(WATCH);
    loop {
        let events = answer(api.watch(&parameters, &version)).await?;
        pin_mut!(events);
        let started = version.clone();
        while let Ok(event) = tokio::time::timeout(SILENT, events.try_next()).await {
            let seen = match event? {
                None => break,
                Some(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Seen::One(object),
                Some(WatchEvent::Deleted(object)) => Seen::Gone(object),
                Some(WatchEvent::Bookmark(bookmark)) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                // Most often the version is too old.
                Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status).into()),
            };
            if changes.send(change(seen)).await.is_err() {
                return Ok(());
            }
        }
        if version == started {
            return Ok(());
        }
    }
}

async fn answer<T>(asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ApiError::Timeout),
    }
}
