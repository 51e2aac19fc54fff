//! egpu's own annotations, in pods without a claim. They are read as a node reads them.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubernetes_api::{GpuConfig, Isolation, Oom, Priority, names::NODE_PLACEMENT_ANNOTATION};
use runtime_config::{
    Config, ContainerRequest, GpuRequest,
    request::{
        self, CardPolicy, CardRequest, ComputeShare, DeviceSelector, Dialect, MemoryLimit, OverMemory, Placement,
        Share, Source,
    },
};

use super::{Asked, ContainerList, Demand, DemandError, MOST_CARDS, Memory, PodDemand, Use, containers};
use crate::selectors;

const PREFIX: &str = "egpu.io/";
/// The annotation by which a container's runtime is told the container's name.
const CONTAINER_NAME: &str = "io.kubernetes.cri.container-name";

/// Annotations that ask for a share; others only describe it.
const ASKING: [&str; 5] = ["memory", "compute", "weight", "cards", "devices"];

/// Returns whether a pod asks in this language.
pub(super) fn is_spoken(pod: &Pod) -> bool {
    let mut names = pod.metadata.annotations.iter().flatten().filter_map(|(name, _)| name.strip_prefix(PREFIX));
    names.any(|name| ASKING.contains(&name))
}

/// Reads the demands of a pod in this language.
pub(super) fn of_pod(pod: &Pod) -> Result<Asked, DemandError> {
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let is_said = annotations.keys().any(|name| name.starts_with(PREFIX) && name != NODE_PLACEMENT_ANNOTATION);
    let has_claims =
        pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref()).is_some_and(|all| !all.is_empty());
    if !is_said || has_claims {
        return Ok(Asked::Nothing);
    }
    let mut asked = PodDemand::default();
    for (list, position, container) in containers(pod) {
        // Those of other languages, too: some are for the container of a name.
        let mut annotations = annotations.clone();
        annotations.insert(CONTAINER_NAME.to_owned(), container.name.clone());
        let source = Source { env: variables(container), annotations, ..Source::default() };
        // The node's own configuration decides there.
        let config = Config { allow_isolation_none: true, ..Config::default() };
        let parsed = request::parse(&source, &config)
            .map_err(|source| DemandError::Request { container: container.name.clone(), source: Box::new(source) })?;
        let ContainerRequest::Gpu(request) = parsed else { continue };
        let demand = match of_request(&request, container) {
            Ok(demand) => demand,
            Err(why) => {
                return Ok(Asked::OfItsNode(format!("container {} is for its node alone: {why}", container.name)));
            }
        };
        let notes = without_effect(&request);
        asked.notes.extend(notes.into_iter().filter(|note| !asked.notes.contains(note)).collect::<Vec<_>>());
        let demand = place(&mut asked.demands, demand, may_join(list, container));
        asked.uses.push(Use { list, container: position, demand });
    }
    Ok(if asked.demands.is_empty() { Asked::Nothing } else { Asked::Cards(Box::new(asked)) })
}

/// The variables whose values the pod itself has.
fn variables(container: &Container) -> Vec<String> {
    let all = container.env.iter().flatten();
    all.filter_map(|variable| Some(format!("{}={}", variable.name, variable.value.as_deref()?))).collect()
}

/// Returns whether a container has ended before the pod's main ones begin, so that it may use what
/// is theirs.
fn may_join(list: ContainerList, container: &Container) -> bool {
    list == ContainerList::InitContainers && container.restart_policy.as_deref() != Some("Always")
}

fn place(demands: &mut Vec<Demand>, demand: Demand, may_join: bool) -> usize {
    let equal = demands.iter().position(|other| *other == demand).filter(|_| may_join);
    equal.unwrap_or_else(|| {
        demands.push(demand);
        demands.len() - 1
    })
}

/// The demand of a request, or why a claim cannot say it.
fn of_request(request: &GpuRequest, container: &Container) -> Result<Demand, &'static str> {
    if request.dialect != Dialect::Native.into() || request.within.is_some() || request.whole_cards != CardRequest::None
    {
        return Err("it asks in another language as well, of which the tighter holds there");
    }
    if container
        .env
        .iter()
        .flatten()
        .any(|variable| variable.value_from.is_some() && request::is_of_a_request(&variable.name))
    {
        return Err("a variable asks as well whose value is not in the pod");
    }
    let (cards, mut selectors) = cards(&request.cards)?;
    // A cap needs no word: cards of other policies publish no percents.
    let needed = request.policy.filter(|policy| *policy != CardPolicy::Fixed || !has_cap(&request.share));
    let mut config = GpuConfig { policy: needed, ..GpuConfig::default() };
    config.priority = (request.priority == request::Priority::Low).then_some(Priority::Low);
    config.oom = (request.over_memory == OverMemory::Kill).then_some(Oom::Kill);
    if let Some(policy) = config.policy {
        selectors.push(selectors::of_policy(policy));
    }
    let Share::Part { memory, compute, isolation } = &request.share else {
        return Ok(Demand { cards, memory: Memory::Whole, compute: None, config, selectors });
    };
    config.isolation = match isolation {
        request::Isolation::Full => None,
        request::Isolation::Memory => Some(Isolation::Memory),
        request::Isolation::None => Some(Isolation::None),
    };
    let positions = usize::try_from(cards).unwrap_or(usize::MAX);
    let memory = equal(memory.for_cards(positions)).ok_or("its shares of several cards differ")?;
    let compute = match equal(compute.for_cards(positions)).ok_or("its shares of several cards differ")? {
        ComputeShare::Unlimited => None,
        ComputeShare::Cap { percent, .. } => Some(percent.get()),
        ComputeShare::Weight(weight) => {
            config.weight = Some(weight.get());
            None
        }
    };
    Ok(Demand { cards, memory: limit(memory)?, compute, config, selectors })
}

fn has_cap(share: &Share) -> bool {
    let Share::Part { compute, .. } = share else { return false };
    compute.for_cards(1).is_ok_and(|shares| shares.iter().any(|share| share.cap().is_some()))
}

/// The one value that all cards have.
fn equal<T: PartialEq, E>(values: Result<Vec<&T>, E>) -> Option<&T> {
    let values = values.ok()?;
    let (first, others) = values.split_first()?;
    others.iter().all(|other| other == first).then_some(*first)
}

fn limit(limits: &[MemoryLimit]) -> Result<Memory, &'static str> {
    match limits {
        [] => Ok(Memory::Whole),
        // Limits are whole KiB.
        [MemoryLimit::Bytes { amount, reserved }] if reserved.0 == 0 => Ok(Memory::Bytes(amount.floor_to_kib().0)),
        [MemoryLimit::Ratio { numerator, denominator: 100, reserved }] if reserved.0 == 0 => {
            Ok(match u8::try_from(*numerator) {
                Ok(percent @ 1..100) => Memory::Percent(percent),
                _ => Memory::Whole,
            })
        }
        _ => Err("its memory has several limits"),
    }
}

/// The number of cards, and the expressions that choose them.
fn cards(asked: &CardRequest) -> Result<(u32, Vec<String>), &'static str> {
    let most = |count: usize| u32::try_from(count).ok().filter(|count| (1..=MOST_CARDS).contains(count));
    let too_many = "a claim has at most 32 cards";
    let devices = match asked {
        CardRequest::Count(count) => return Ok((most(*count as usize).ok_or(too_many)?, Vec::new())),
        CardRequest::Devices(devices) => devices,
        CardRequest::None | CardRequest::All | CardRequest::PresentNodes { .. } => {
            return Err("a claim asks for a number of cards");
        }
    };
    let mut uuids = Vec::new();
    for device in devices {
        // An index is a card of some node, and the claim is for any.
        let DeviceSelector::Uuid(uuid) = device else { return Err("a claim chooses cards by their UUIDs") };
        uuids.push(uuid.as_str());
    }
    Ok((most(uuids.len()).ok_or(too_many)?, vec![selectors::of_uuids(uuids)]))
}

/// Notes on what the request says and a claim cannot.
fn without_effect(request: &GpuRequest) -> Vec<String> {
    let said = [
        ("placement", request.placement != Placement::default()),
        ("group", request.group.is_some()),
        ("pinned-memory", request.pinned_memory.is_some()),
        ("oom-script", request.oom_script.is_some()),
    ];
    let named = said.into_iter().filter(|(_, is_said)| *is_said);
    named.map(|(name, _)| format!("{PREFIX}{name} has no effect: a claim cannot say it")).collect()
}
