//! Demands: what a pod's containers ask for, whatever the language.

mod ack;
mod annotations;
mod hami;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::api::resource::Quantity as Written,
};
use kubernetes_api::{GpuConfig, Quantity};
use runtime_config::request::RequestError;

use crate::settings::Settings;

/// Scheduler of a pod that names none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// Most cards that the API server lets one claim have.
const MOST_CARDS: u32 = 32;

/// The share of each card that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Number of cards.
    pub(crate) cards: u32,
    /// Memory of each.
    pub(crate) memory: Memory,
    /// Hard cap in percent of each card's time.
    pub(crate) compute: Option<u8>,
    /// Everything that is no quantity.
    pub(crate) config: GpuConfig,
    /// Expressions, in CEL, that each card must meet.
    pub(crate) selectors: Vec<String>,
}

/// Memory of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// All, shared with nobody.
    Whole,
    /// Bytes, above 0 and whole KiB: the API server would write others with another suffix.
    Bytes(u64),
    /// Percent of the card, 1 to 99.
    Percent(u8),
}

/// The list of a pod in which a container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerList {
    Containers,
    InitContainers,
}

impl ContainerList {
    /// Its name in a pod's spec.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Containers => "containers",
            Self::InitContainers => "initContainers",
        }
    }
}

/// A container's use of one of the pod's demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) list: ContainerList,
    /// Position in that list.
    pub(crate) container: usize,
    /// Position among the demands.
    pub(crate) demand: usize,
}

/// Everything that a pod asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodDemand {
    pub(crate) demands: Vec<Demand>,
    pub(crate) uses: Vec<Use>,
    /// Resources that are taken out of all containers: the claim is in their place.
    pub(crate) resources: BTreeSet<String>,
    /// Keys that are taken out of the pod's node selector.
    pub(crate) node_selector: Vec<&'static str>,
    /// Value for [`NODE_PLACEMENT_ANNOTATION`](kubernetes_api::names::NODE_PLACEMENT_ANNOTATION).
    pub(crate) node_placement: Option<&'static str>,
    /// Notes for the pod on what has no effect.
    pub(crate) notes: Vec<String>,
}

/// The webhook's part in a pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// None: it asks for nothing, or somebody else answers it.
    Nothing,
    /// It asks for what a claim cannot say; its node answers, without the scheduler. The reason,
    /// for the pod.
    OfItsNode(String),
    /// It asks for cards.
    Cards(Box<PodDemand>),
}

/// A pod that asks for what cannot be had. The text is for whoever made it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemandError {
    /// A value that is none, or out of range.
    #[error("container {container}: {name}: {value}; {accepted} is accepted")]
    Value { container: String, name: String, value: String, accepted: &'static str },
    /// A quantity that is none.
    #[error("container {container}: {name}")]
    Quantity {
        container: String,
        name: String,
        #[source]
        source: kubernetes_api::QuantityError,
    },
    /// Something that another resource needs.
    #[error("container {container} asks for {name} without {missing}: name both, or neither")]
    Missing { container: String, name: String, missing: String },
    /// Two things that exclude each other.
    #[error("container {container} asks for {one} and for {other}: name one of them")]
    Both { container: String, one: String, other: String },
    /// Two languages.
    #[error("the pod asks by {one} and by {other}: use one of them")]
    Languages { one: &'static str, other: &'static str },
    /// Variables and annotations that the node would refuse.
    #[error("container {container}")]
    Request {
        container: String,
        #[source]
        source: Box<RequestError>,
    },
}

/// Annotation of a static pod's mirror.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Reads what a pod asks for.
///
/// # Errors
/// [`DemandError`], for the first thing that is malformed, out of range or contradictory.
pub(crate) fn of_pod(pod: &Pod, settings: &Settings) -> Result<Asked, DemandError> {
    if !is_ours(pod, settings) {
        return Ok(Asked::Nothing);
    }
    let hami = hami::is_spoken(pod, settings).then_some("HAMi's resources");
    let ack = ack::is_spoken(pod, &settings.ack).then_some("ACK's resources");
    let own = annotations::is_spoken(pod).then_some("annotations egpu.io/*");
    if let [one, other, ..] = [hami, ack, own].into_iter().flatten().collect::<Vec<_>>()[..] {
        return Err(DemandError::Languages { one, other });
    }
    if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
        return Ok(of_placed_pod(pod, own.is_some()));
    }
    match (hami, ack) {
        (Some(_), _) => hami::of_pod(pod, &settings.hami),
        (None, Some(_)) => ack::of_pod(pod, &settings.ack),
        (None, None) => annotations::of_pod(pod),
    }
}

/// A pod that passes the scheduler by, which alone allocates claims: what it says in annotations is
/// for its node. A mirror of a static pod cannot be changed.
fn of_placed_pod(pod: &Pod, speaks_in_annotations: bool) -> Asked {
    if speaks_in_annotations && annotation(pod, MIRROR).is_none() {
        Asked::OfItsNode("the pod names its node, so that no scheduler allocates a claim".to_owned())
    } else {
        Asked::Nothing
    }
}

/// Returns whether the pod names no runtime class and no scheduler but ours.
fn is_ours(pod: &Pod, settings: &Settings) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let scheduler = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    spec.runtime_class_name.as_ref().is_none_or(|class| *class == settings.runtime_class)
        && settings.schedulers.iter().any(|ours| ours == scheduler)
}

/// All containers of a pod, with where they are.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (ContainerList, usize, &Container)> {
    let spec = pod.spec.as_ref();
    let main = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    listed(ContainerList::Containers, main).chain(listed(ContainerList::InitContainers, init))
}

fn listed(list: ContainerList, all: &[Container]) -> impl Iterator<Item = (ContainerList, usize, &Container)> {
    all.iter().enumerate().map(move |(position, container)| (list, position, container))
}

/// The quantity of a resource that a container names, a limit before a request.
fn quantity<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let resources = container.resources.as_ref()?;
    let find = |list: &'a Option<BTreeMap<String, Written>>| list.as_ref()?.get(name);
    find(&resources.limits).or_else(|| find(&resources.requests)).map(|quantity| quantity.0.as_str())
}

/// The whole number that a container names of a resource, at most `most`. 0 counts as not named,
/// as in HAMi and ACK.
fn amount(container: &Container, name: &str, most: u64, accepted: &'static str) -> Result<Option<u64>, DemandError> {
    let Some(text) = quantity(container, name) else { return Ok(None) };
    let Quantity(amount) = text.parse().map_err(|source| DemandError::Quantity {
        container: container.name.clone(),
        name: name.to_owned(),
        source,
    })?;
    if amount > most {
        Err(out_of_range(container, name, text, accepted))
    } else {
        Ok(Some(amount).filter(|amount| *amount > 0))
    }
}

fn out_of_range(container: &Container, name: &str, value: &str, accepted: &'static str) -> DemandError {
    let (container, name, value) = (container.name.clone(), name.to_owned(), value.to_owned());
    DemandError::Value { container, name, value, accepted }
}

/// An annotation of a pod.
fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests;
