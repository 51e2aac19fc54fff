//! The API server: what the webhook asks it.

use std::{collections::BTreeSet, path::Path, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    resource::v1::{ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Client, Config,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use kubernetes_api::{
    Quantity,
    names::{DRIVER, capacity},
};
use serde_json::{Value, json};

use crate::template::{LAST_USED, MANAGED_BY};

/// Longest wait for an answer, well below that of the API server for this webhook.
const ANSWER: Duration = Duration::from_secs(4);
/// Objects of one answer to a list.
const PAGE: u32 = 500;

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
pub enum ApiError {
    /// The API server refuses.
    #[error("the API server says: {} ({})", .0.message, .0.code)]
    Refused(Box<kube::core::Status>),
    #[error("the API server cannot be asked")]
    Way(#[source] Box<kube::Error>),
    /// None.
    #[error("the API server does not answer within {} s", ANSWER.as_secs())]
    Timeout,
    /// Somebody else's object has the name of a template.
    #[error("{namespace} has a ResourceClaimTemplate {name} of other content: delete it")]
    OtherTemplate { namespace: String, name: String },
    /// More sizes than a namespace may have at a time.
    #[error(
        "{namespace} has {MOST_TEMPLATES} claim templates of egpu-webhook's already: ask for a size that other pods have, or \
         delete templates that none names"
    )]
    TooManyTemplates { namespace: String },
}

/// Most templates of a namespace: whoever may try to make pods there can have them made.
const MOST_TEMPLATES: usize = 256;

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            other => Self::Way(Box::new(other)),
        }
    }
}

impl ApiError {
    pub(crate) fn is(&self, code: u16) -> bool {
        matches!(self, Self::Refused(status) if status.code == code)
    }
}

/// HTTP status of an object that is not there.
pub(crate) const NOT_FOUND: u16 = 404;
/// HTTP status of a change that somebody else has forestalled.
pub(crate) const CONFLICT: u16 = 409;

/// Client of the API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// Reads how to reach the API server: from a file, or as a pod.
    pub(crate) async fn new(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        let config = match kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
            }
            None => Config::incluster()?,
        };
        Ok(Self { client: Client::try_from(config)? })
    }

    /// An API server of a test's.
    #[cfg(test)]
    pub(crate) fn of_client(client: Client) -> Self {
        Self { client }
    }

    /// An API server that is not there.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self::of_client(Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap())
    }

    /// The namespace that this program is in.
    pub(crate) fn own_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// The sizes that the cluster's cards have, each once.
    pub(crate) async fn card_sizes(&self) -> Result<Vec<u64>, ApiError> {
        let slices: kube::Api<ResourceSlice> = kube::Api::all(self.client.clone());
        let slices = pages(&slices, ListParams::default().fields(&format!("spec.driver={DRIVER}"))).await?;
        Ok(sizes(&slices).into_iter().collect())
    }

    /// Makes a template where it is not there, and marks it as used.
    pub(crate) async fn ensure_template(
        &self,
        namespace: &str,
        template: &ResourceClaimTemplate,
        lifetime: SignedDuration,
    ) -> Result<(), ApiError> {
        let templates = self.templates(namespace);
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let found = match answer(templates.get_opt(name)).await? {
            Some(found) => found,
            None => {
                self.refuse_too_many(namespace, &templates).await?;
                match answer(templates.create(&parameters(), template)).await {
                    Err(error) if error.is(CONFLICT) => answer(templates.get(name)).await?,
                    created => return created.map(|_| ()),
                }
            }
        };
        if found.spec.spec != template.spec.spec {
            return Err(ApiError::OtherTemplate { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        let now = Timestamp::now();
        if !is_managed(&found) || unused_for(&found, now) < lifetime / MARKS {
            return Ok(());
        }
        match self.mark_used(namespace, name, now).await {
            // It was collected in between; a pod like this one may have been faster.
            Err(error) if error.is(NOT_FOUND) => match answer(templates.create(&parameters(), template)).await {
                Err(error) if !error.is(CONFLICT) => Err(error),
                _ => Ok(()),
            },
            marked => marked,
        }
    }

    async fn refuse_too_many(
        &self,
        namespace: &str,
        templates: &kube::Api<ResourceClaimTemplate>,
    ) -> Result<(), ApiError> {
        let (label, value) = MANAGED_BY;
        let ours = ListParams::default().labels(&format!("{label}={value}"));
        let mut count = 0;
        each_page(templates, ours, |page| count += page.len()).await?;
        let namespace = namespace.to_owned();
        if count < MOST_TEMPLATES { Ok(()) } else { Err(ApiError::TooManyTemplates { namespace }) }
    }

    /// Marks a template as used.
    pub(crate) async fn mark_used(&self, namespace: &str, name: &str, now: Timestamp) -> Result<(), ApiError> {
        let used = json!({"metadata": {"annotations": {LAST_USED: now.to_string()}}});
        answer(self.templates(namespace).patch(name, &PatchParams::default(), &Patch::Merge(used))).await.map(|_| ())
    }

    /// All templates that this program has made.
    pub(crate) async fn managed_templates(&self) -> Result<Vec<ResourceClaimTemplate>, ApiError> {
        let (label, value) = MANAGED_BY;
        let all: kube::Api<ResourceClaimTemplate> = kube::Api::all(self.client.clone());
        pages(&all, ListParams::default().labels(&format!("{label}={value}"))).await
    }

    /// The names of the templates that pods of a namespace name.
    pub(crate) async fn templates_in_use(&self, namespace: &str) -> Result<BTreeSet<String>, ApiError> {
        let pods: kube::Api<Pod> = kube::Api::namespaced(self.client.clone(), namespace);
        let mut names = BTreeSet::new();
        // Page by page: a namespace may have more pods than there is memory for.
        each_page(&pods, ListParams::default(), |page: Vec<Pod>| {
            let claims = page.into_iter().filter_map(|pod| pod.spec?.resource_claims).flatten();
            names.extend(claims.filter_map(|claim| claim.resource_claim_template_name));
        })
        .await?;
        Ok(names)
    }

    /// Deletes a template unless it has changed since it was read.
    pub(crate) async fn delete_template(&self, template: &ResourceClaimTemplate) -> Result<(), ApiError> {
        let metadata = &template.metadata;
        let unchanged =
            Preconditions { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() };
        let parameters = DeleteParams { preconditions: Some(unchanged), ..DeleteParams::default() };
        let templates = self.templates(metadata.namespace.as_deref().unwrap_or_default());
        answer(templates.delete(metadata.name.as_deref().unwrap_or_default(), &parameters)).await.map(|_| ())
    }

    fn templates(&self, namespace: &str) -> kube::Api<ResourceClaimTemplate> {
        kube::Api::namespaced(self.client.clone(), namespace)
    }

    /// Reads a secret.
    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, ApiError> {
        answer(kube::Api::<Secret>::namespaced(self.client.clone(), namespace).get(name)).await
    }

    /// Replaces the secret that this one was read from, unless it has changed.
    pub(crate) async fn replace_secret(&self, namespace: &str, secret: &Secret) -> Result<Secret, ApiError> {
        let secrets: kube::Api<Secret> = kube::Api::namespaced(self.client.clone(), namespace);
        let name = secret.metadata.name.as_deref().unwrap_or_default();
        answer(secrets.replace(name, &parameters(), secret)).await
    }

    /// Reads the configuration by which the API server knows this webhook.
    pub(crate) async fn webhook_configuration(&self, name: &str) -> Result<MutatingWebhookConfiguration, ApiError> {
        answer(kube::Api::<MutatingWebhookConfiguration>::all(self.client.clone()).get(name)).await
    }

    /// Merges something into it, list items by their names.
    pub(crate) async fn patch_webhook_configuration(&self, name: &str, change: Value) -> Result<(), ApiError> {
        let configurations: kube::Api<MutatingWebhookConfiguration> = kube::Api::all(self.client.clone());
        answer(configurations.patch(name, &PatchParams::default(), &Patch::Strategic(change))).await.map(|_| ())
    }
}

/// Marks that a template in use gets in its lifetime.
pub(crate) const MARKS: i32 = 8;

/// The time since a pod was last known to name a template.
pub(crate) fn unused_for(template: &ResourceClaimTemplate, now: Timestamp) -> SignedDuration {
    let metadata = &template.metadata;
    let marked = metadata.annotations.as_ref().and_then(|annotations| annotations.get(LAST_USED)?.parse().ok());
    let created = metadata.creation_timestamp.as_ref().map(|created| created.0);
    // What tells no time is new.
    marked.or(created).map_or(SignedDuration::ZERO, |used: Timestamp| now.duration_since(used))
}

fn is_managed(template: &ResourceClaimTemplate) -> bool {
    let (label, value) = MANAGED_BY;
    template.metadata.labels.as_ref().is_some_and(|labels| labels.get(label).is_some_and(|by| by == value))
}

/// The memory that cards have when nothing of it is taken: what a request without an amount gets.
fn sizes(slices: &[ResourceSlice]) -> BTreeSet<u64> {
    let ours = slices.iter().filter(|slice| slice.spec.driver == DRIVER);
    let devices = ours.flat_map(|slice| slice.spec.devices.iter().flatten());
    let memory = devices.filter_map(|device| device.capacity.as_ref()?.get(capacity::MEMORY));
    let size = memory.filter_map(|memory| {
        let whole = memory.request_policy.as_ref().and_then(|policy| policy.default.as_ref());
        whole.unwrap_or(&memory.value).0.parse().ok()
    });
    size.map(|Quantity(bytes)| bytes).collect()
}

fn parameters() -> PostParams {
    let (_, manager) = MANAGED_BY;
    PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() }
}

async fn pages<K>(api: &kube::Api<K>, parameters: ListParams) -> Result<Vec<K>, ApiError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut all = Vec::new();
    each_page(api, parameters, |page| all.extend(page)).await?;
    Ok(all)
}

async fn each_page<K>(api: &kube::Api<K>, parameters: ListParams, mut take: impl FnMut(Vec<K>)) -> Result<(), ApiError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut parameters = parameters.limit(PAGE);
    loop {
        let page = answer(api.list(&parameters)).await?;
        take(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn answer<T>(asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(ApiError::Timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_size_that_it_has_when_empty() {
        let device = |name: &str, value: &str, default: &str| {
            let policy = json!({"default": default, "validRange": {"min": "1Ki"}});
            json!({"name": name, "capacity": {"memory": {"value": value, "requestPolicy": policy}}})
        };
        let slice = |driver: &str, devices: Vec<Value>| -> ResourceSlice {
            let spec = json!({"driver": driver, "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": devices});
            serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let ours = slice(DRIVER, vec![device("gpu-0", "8Gi", "32Gi"), device("gpu-1", "32Gi", "32Gi")]);
        let others = slice("gpu.nvidia.com", vec![device("gpu-0", "80Gi", "80Gi")]);
        assert_eq!(sizes(&[ours, others]), BTreeSet::from([32 << 30]));
    }

    #[test]
    fn a_template_is_as_old_as_its_last_use() {
        let template = |metadata: Value| -> ResourceClaimTemplate {
            serde_json::from_value(json!({"metadata": metadata, "spec": {"spec": {}}})).unwrap()
        };
        let created = "2026-01-01T00:00:00Z";
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let used = |text: &str| template(json!({"creationTimestamp": created, "annotations": {LAST_USED: text}}));
        assert_eq!(unused_for(&used("2026-01-01T18:00:00Z"), now), SignedDuration::from_hours(6));
        assert_eq!(unused_for(&used("never"), now), SignedDuration::from_hours(24));
        assert_eq!(unused_for(&template(json!({})), now), SignedDuration::ZERO);
    }
}
