//! `kubectl egpu why`: what a pod asks for, and what each card lacks for it.

mod report;
mod text;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{Container, Event, Node, Pod},
        resource::v1::{DeviceClaim, ResourceClaim},
    },
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    cluster::Cluster,
    exit::CommandError,
    inventory::Inventory,
    quantity::amount,
    request::{Classes, Wish},
};

pub(crate) use report::report;
pub(crate) use text::text;

/// All that bears on a pod's cards.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) pod: Pod,
    pub(crate) claims: Vec<PodClaim>,
    pub(crate) inventory: Inventory,
    pub(crate) nodes: Vec<Node>,
    pub(crate) events: Vec<Event>,
}

/// A claim of a pod.
#[derive(Debug)]
pub(crate) struct PodClaim {
    /// Name of the claim, or of the template that it is to be made from.
    pub(crate) name: String,
    pub(crate) wish: Option<Wish>,
    /// The object, once it is there.
    pub(crate) object: Option<ResourceClaim>,
    /// The reason why there is no claim.
    pub(crate) missing: Option<String>,
}

/// Reads all that bears on a pod's cards.
pub(crate) async fn gather(cluster: &Cluster, pod: &str) -> Result<Facts, CommandError> {
    let pod = cluster.pod(pod).await?;
    let classes = cluster.classes().await?;
    let mut claims = Vec::new();
    for (name, source) in sources(&pod) {
        claims.push(claim(cluster, name, source, &classes).await?);
    }
    if let Some(extended) = extended_claim(cluster, &pod, &classes).await? {
        claims.push(extended);
    }
    let (inventory, nodes) = (cluster.inventory().await?, cluster.nodes().await?);
    let events = cluster.events(&pod).await;
    Ok(Facts { pod, claims, inventory, nodes, events })
}

/// The origin of a claim.
enum Source {
    Claim(String),
    Template { template: String, generated: Option<String> },
}

/// The claims that a pod names, by their names in the pod.
fn sources(pod: &Pod) -> Vec<(String, Source)> {
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let generated: BTreeMap<&str, &Option<String>> =
        statuses.into_iter().flatten().map(|status| (status.name.as_str(), &status.resource_claim_name)).collect();
    let named = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    let source = |claim: &k8s_openapi::api::core::v1::PodResourceClaim| {
        let source = match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(name), _) => Source::Claim(name.clone()),
            (None, template) => Source::Template {
                template: template.clone().unwrap_or_default(),
                generated: generated.get(claim.name.as_str()).and_then(|name| (*name).clone()),
            },
        };
        (claim.name.clone(), source)
    };
    named.into_iter().flatten().map(source).collect()
}

async fn claim(cluster: &Cluster, in_pod: String, source: Source, classes: &Classes) -> Result<PodClaim, CommandError> {
    let namespace = &cluster.namespace;
    let (name, template) = match source {
        Source::Claim(name) | Source::Template { generated: Some(name), .. } => (name, None),
        Source::Template { template, generated: None } => (in_pod, Some(template)),
    };
    let Some(template) = template else {
        let object = cluster.claim(&name).await?;
        let missing = object.is_none().then(|| format!("there is no resource claim {namespace}/{name}"));
        let wish = object.as_ref().map(|claim| wish(&name, claim.spec.devices.as_ref(), classes));
        return Ok(PodClaim { name, wish, object, missing });
    };
    let found = cluster.template(&template).await?;
    let missing =
        found.is_none().then(|| format!("there is no resource claim template {namespace}/{template} to make it from"));
    let wish = found.map(|found| wish(&name, found.spec.spec.devices.as_ref(), classes));
    Ok(PodClaim { name, wish, object: None, missing })
}

fn wish(name: &str, devices: Option<&DeviceClaim>, classes: &Classes) -> Wish {
    Wish::new(name, devices.unwrap_or(&DeviceClaim::default()), classes)
}

/// The claim that the scheduler makes for extended resources, `limits: {egpu.io/gpu: 1}`.
async fn extended_claim(cluster: &Cluster, pod: &Pod, classes: &Classes) -> Result<Option<PodClaim>, CommandError> {
    let asked = extended_requests(pod, classes);
    if asked.is_empty() {
        return Ok(None);
    }
    let status = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let object = match status {
        Some(status) => cluster.claim(&status.resource_claim_name).await?,
        None => None,
    };
    let wish = Wish::extended(&asked, classes);
    let name = object.as_ref().and_then(|claim| claim.metadata.name.clone()).unwrap_or_else(|| wish.claim.clone());
    Ok(Some(PodClaim { name, wish: Some(wish), object, missing: None }))
}

/// Returns container, class and number of each extended resource that a class stands for.
fn extended_requests(pod: &Pod, classes: &Classes) -> Vec<(String, String, usize)> {
    let spec = pod.spec.as_ref();
    let containers = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let first = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let class_of = |resource: &str| {
        let implicit = resource.strip_prefix("deviceclass.resource.kubernetes.io/");
        let named = |(_, class): &(&String, &k8s_openapi::api::resource::v1::DeviceClass)| {
            class.spec.extended_resource_name.as_deref() == Some(resource)
        };
        let class = classes.iter().find(named).map(|(name, _)| name.clone());
        class.or_else(|| implicit.filter(|name| classes.contains_key(*name)).map(str::to_owned))
    };
    let of_container = |container: &Container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.clone()).unwrap_or_default();
        let request = |(resource, quantity): (String, Quantity)| {
            let count = usize::try_from(amount(&quantity)).ok().filter(|count| *count > 0)?;
            Some((container.name.clone(), class_of(&resource)?, count))
        };
        limits.into_iter().filter_map(request).collect::<Vec<_>>()
    };
    first.iter().chain(containers).flat_map(of_container).collect()
}
