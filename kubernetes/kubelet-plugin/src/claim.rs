//! Requests of an allocated claim for this node: from a ResourceClaim to requests for the ledger.

use std::collections::BTreeMap;

use cards::Inventory;
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
    ResourceClaimConsumerReference,
};
use kubernetes_api::{
    ClaimVariable, GpuConfig, Quantity, base_request,
    names::{DRIVER, capacity, device_minor},
};
use ledger::claims::{Claim, ClaimPod};
use runtime_config::{
    config::Config,
    request::{self, ContainerRequest, GpuRequest, RequestError, Source},
};

/// Requests of one claim that were allocated cards of this node.
#[derive(Debug)]
pub(crate) struct ClaimRequests {
    pub(crate) claim: Claim,
    /// In the order of the allocation.
    pub(crate) requests: Vec<ClaimRequest>,
}

/// One request of a claim.
#[derive(Debug)]
pub(crate) struct ClaimRequest {
    /// Its name, without the alternative that was taken.
    pub(crate) name: String,
    /// Its cards' part of the request, for the ledger.
    pub(crate) request: GpuRequest,
    /// Its cards.
    pub(crate) devices: Vec<AllocatedDevice>,
}

/// A card that was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllocatedDevice {
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) share_id: Option<String>,
}

/// A claim that this node cannot prepare. The text is for its pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// Another claim of that name.
    #[error("the claim of that name has uid {found}, not {asked}: it was deleted and made anew")]
    OtherUid { found: String, asked: String },
    /// The scheduler has not allocated it.
    #[error("the claim is not allocated")]
    NotAllocated,
    /// Nobody uses it.
    #[error("the claim is reserved for nobody")]
    NotReserved,
    /// Several pods use it.
    #[error(
        "the claim is reserved for {0} pods, and a share of a card belongs to one: give each a claim of its own \
         by a ResourceClaimTemplate; containers of one pod may share a claim"
    )]
    SeveralPods(usize),
    /// Something else than a pod uses it.
    #[error("the claim is reserved for {0}, which is no pod")]
    NoPod(String),
    /// Names that Kubernetes would not let pass.
    #[error("request {request} of claim {uid} has no name of Kubernetes")]
    Name { uid: String, request: String },
    /// Allocated on another node.
    #[error("{device} of pool {pool} is not on this node, {node}")]
    OtherPool { device: String, pool: String, node: String },
    /// No such card.
    #[error("this node has no card {0} any more")]
    NoCard(String),
    /// Not supported.
    #[error("request {0} asks for adminAccess, which egpu does not give: monitor with `egpu metrics`")]
    AdminAccess(String),
    /// A quantity that is none.
    #[error("request {request} was allocated {name} {value}")]
    Quantity {
        request: String,
        name: &'static str,
        value: String,
        #[source]
        source: kubernetes_api::QuantityError,
    },
    /// A percentage that is none.
    #[error("request {request} names {percent}% of a card's time; 1 to 100 is accepted")]
    Percent { request: String, percent: u64 },
    /// No quantity where there should be one.
    #[error("the allocation of request {0} says nothing of memory: the scheduler ran without consumable capacity")]
    NoMemory(String),
    /// The configuration of the claim or of its class.
    #[error("the GpuConfig of request {request} ({origin}) is not accepted")]
    Config {
        request: String,
        origin: String,
        #[source]
        source: serde_json::Error,
    },
    /// egpu does not accept the request.
    #[error("request {request} is not accepted")]
    Request {
        request: String,
        #[source]
        source: Box<RequestError>,
    },
    /// egpu takes it for no request.
    #[error("request {0} asks for nothing")]
    Nothing(String),
}

/// The node for which claims are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimReader<'a> {
    /// Name of the node, and of its pool.
    pub(crate) node: &'a str,
    pub(crate) inventory: &'a Inventory,
    pub(crate) config: &'a Config,
}

impl ClaimReader<'_> {
    /// Reads the claim with that uid.
    ///
    /// # Errors
    /// [`ClaimError`], for the first thing that is not as it should be.
    pub(crate) fn read(&self, object: &ResourceClaim, uid: &str) -> Result<ClaimRequests, ClaimError> {
        let found = object.metadata.uid.clone().unwrap_or_default();
        if found != uid {
            return Err(ClaimError::OtherUid { found, asked: uid.to_owned() });
        }
        let status = object.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref()).ok_or(ClaimError::NotAllocated)?;
        let pod = pod(status.and_then(|status| status.reserved_for.as_deref()).unwrap_or_default())?;
        let claim = Claim {
            uid: found,
            namespace: object.metadata.namespace.clone().unwrap_or_default(),
            name: object.metadata.name.clone().unwrap_or_default(),
            pod,
        };
        let mut requests = Vec::new();
        for (name, results) in by_request(allocation) {
            if ClaimVariable::new(&claim.namespace, &claim.uid, &name).is_none() {
                return Err(ClaimError::Name { uid: claim.uid, request: name });
            }
            requests.push(self.request(object, allocation, name, &results)?);
        }
        Ok(ClaimRequests { claim, requests })
    }

    fn request(
        &self,
        object: &ResourceClaim,
        allocation: &AllocationResult,
        name: String,
        results: &[&DeviceRequestAllocationResult],
    ) -> Result<ClaimRequest, ClaimError> {
        let full_name = results.first().map_or("", |result| result.request.as_str());
        let config = gpu_config(allocation, full_name)?;
        let named = named_capacities(object, full_name);
        let names_any = [capacity::MEMORY, capacity::COMPUTE].iter().any(|name| named.contains(name));
        let mut cards = PerCard::default();
        let mut devices = Vec::new();
        for result in results {
            cards.uuids.push(self.uuid(result)?);
            if names_any || config.is_some() {
                let memory = consumed(result, capacity::MEMORY)?.ok_or_else(|| ClaimError::NoMemory(name.clone()))?;
                cards.memory.push(format!("{memory}B"));
            }
            if named.contains(&capacity::COMPUTE) {
                let percent = consumed(result, capacity::COMPUTE)?.unwrap_or_default();
                if !(1..=100).contains(&percent) {
                    return Err(ClaimError::Percent { request: name, percent });
                }
                cards.compute.push(format!("{percent}%"));
            }
            devices.push(AllocatedDevice {
                pool: result.pool.clone(),
                name: result.device.clone(),
                share_id: result.share_id.clone(),
            });
        }
        let source = Source { annotations: cards.annotations(config), ..Source::default() };
        let failed = |source| ClaimError::Request { request: name.clone(), source: Box::new(source) };
        match request::parse(&source, self.config).map_err(failed)? {
            ContainerRequest::Gpu(request) => Ok(ClaimRequest { name, request: *request, devices }),
            // It names cards, and nothing of a pod or a claim.
            ContainerRequest::None { .. } | ContainerRequest::WithoutClaim { .. } | ContainerRequest::Claims(_) => {
                Err(ClaimError::Nothing(name))
            }
        }
    }

    /// UUID of an allocated card.
    fn uuid(&self, result: &DeviceRequestAllocationResult) -> Result<String, ClaimError> {
        let DeviceRequestAllocationResult { device, pool, .. } = result;
        if result.admin_access == Some(true) {
            return Err(ClaimError::AdminAccess(result.request.clone()));
        }
        if pool != self.node {
            let (device, pool, node) = (device.clone(), pool.clone(), self.node.to_owned());
            return Err(ClaimError::OtherPool { device, pool, node });
        }
        let minor = device_minor(device);
        let card = self.inventory.cards.iter().find(|card| Some(card.minor) == minor);
        card.map(|card| card.uuid.clone()).ok_or_else(|| ClaimError::NoCard(device.clone()))
    }
}

/// Values of one request, card by card, in egpu's own language.
#[derive(Debug, Default)]
struct PerCard {
    uuids: Vec<String>,
    memory: Vec<String>,
    compute: Vec<String>,
}

impl PerCard {
    fn annotations(&self, config: Option<GpuConfig>) -> BTreeMap<String, String> {
        let lists = [("devices", &self.uuids), ("memory", &self.memory), ("compute", &self.compute)];
        let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
        let lists = lists.map(|(key, values)| (key, values.join(",")));
        let config = config.unwrap_or_default();
        lists.chain(config.settings()).map(|(key, value)| (format!("egpu.io/{key}"), value)).collect()
    }
}

/// The one pod that a claim is reserved for.
fn pod(consumers: &[ResourceClaimConsumerReference]) -> Result<ClaimPod, ClaimError> {
    match consumers {
        [] => Err(ClaimError::NotReserved),
        [pod] if pod.resource == "pods" && pod.api_group.as_deref().unwrap_or_default().is_empty() => {
            Ok(ClaimPod { name: pod.name.clone(), uid: pod.uid.clone() })
        }
        [other] => Err(ClaimError::NoPod(format!("{} {}", other.resource, other.name))),
        several => Err(ClaimError::SeveralPods(several.len())),
    }
}

/// This driver's results, request by request, in their order.
fn by_request(allocation: &AllocationResult) -> Vec<(String, Vec<&DeviceRequestAllocationResult>)> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    let mut requests: Vec<(String, Vec<_>)> = Vec::new();
    for result in results.filter(|result| result.driver == DRIVER) {
        let name = base_request(&result.request);
        match requests.iter_mut().find(|(known, _)| known == name) {
            Some((_, results)) => results.push(result),
            None => requests.push((name.to_owned(), vec![result])),
        }
    }
    requests
}

/// Amount of a capacity that a result takes of its card.
fn consumed(result: &DeviceRequestAllocationResult, name: &'static str) -> Result<Option<u64>, ClaimError> {
    let Some(value) = result.consumed_capacity.as_ref().and_then(|consumed| consumed.get(name)) else {
        return Ok(None);
    };
    let failed =
        |source| ClaimError::Quantity { request: result.request.clone(), name, value: value.0.clone(), source };
    value.0.parse::<Quantity>().map(|quantity| Some(quantity.0)).map_err(failed)
}

/// Capacities that a request names, in its alternative that was taken.
fn named_capacities<'a>(object: &'a ResourceClaim, full_name: &str) -> Vec<&'a str> {
    let requests = object.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let Some(request) = requests.into_iter().find(|request| request.name == base_request(full_name)) else {
        return Vec::new();
    };
    let capacity = match full_name.split_once('/') {
        None => request.exactly.as_ref().and_then(|exactly| exactly.capacity.as_ref()),
        Some((_, alternative)) => {
            let mut alternatives = request.first_available.iter().flatten();
            alternatives.find(|known| known.name == alternative).and_then(|taken| taken.capacity.as_ref())
        }
    };
    capacity.iter().flat_map(|capacity| capacity.requests.iter().flatten()).map(|(name, _)| name.as_str()).collect()
}

/// The configuration that applies to a request: the last one, the claim's after its class's.
fn gpu_config(allocation: &AllocationResult, full_name: &str) -> Result<Option<GpuConfig>, ClaimError> {
    let applies = |config: &&DeviceAllocationConfiguration| {
        let mut requests = config.requests.iter().flatten();
        let any = requests.any(|request| request == full_name || request == base_request(full_name));
        let is_ours = config.opaque.as_ref().is_some_and(|opaque| opaque.driver == DRIVER);
        is_ours && (any || config.requests.as_ref().is_none_or(Vec::is_empty))
    };
    let configs = allocation.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    let last = configs.filter(applies).max_by_key(|config| config.source == "FromClaim");
    let Some((config, opaque)) = last.and_then(|config| Some((config, config.opaque.as_ref()?))) else {
        return Ok(None);
    };
    serde_json::from_value(opaque.parameters.0.clone()).map(Some).map_err(|source| ClaimError::Config {
        request: base_request(full_name).to_owned(),
        origin: if config.source == "FromClaim" { "of the claim" } else { "of its class" }.to_owned(),
        source,
    })
}
