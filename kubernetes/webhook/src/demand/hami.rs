//! HAMi's resources and annotations.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubernetes_api::{GpuConfig, Priority};

use super::{
    Asked, Demand, DemandError, MOST_CARDS, Memory, PodDemand, Use, amount, annotation, containers, out_of_range,
    quantity,
};
use crate::{
    selectors,
    settings::{Hami, Settings},
};

const USE_TYPE: &str = "nvidia.com/use-gputype";
const NO_USE_TYPE: &str = "nvidia.com/nouse-gputype";
const USE_UUID: &str = "nvidia.com/use-gpuuuid";
const NO_USE_UUID: &str = "nvidia.com/nouse-gpuuuid";
const NODE_POLICY: &str = "hami.io/node-scheduler-policy";
/// Annotations that are about cards in their sharing or their place, with the reason for which
/// they have no effect.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    (
        "hami.io/gpu-scheduler-policy",
        "the order of a node's cards is its own, kubernetes.placement of its configuration",
    ),
    ("nvidia.com/numa-bind", "a claim of one's own can say it, by matchAttribute resource.kubernetes.io/numaNode"),
    ("nvidia.com/vgpu-mode", "a share is egpu's own, whatever the mode"),
];
const MIB: u64 = 1 << 20;

/// Returns whether a pod asks in HAMi's language: for a part of a card, or also for whole cards
/// where the settings say so.
pub(super) fn is_spoken(pod: &Pod, settings: &Settings) -> bool {
    let hami = &settings.hami;
    let names = [&hami.memory, &hami.memory_percentage, &hami.cores];
    let counts = settings.whole_cards.then_some(&hami.count);
    containers(pod)
        .any(|(_, _, container)| names.into_iter().chain(counts).any(|name| quantity(container, name).is_some()))
}

/// Reads the demands of a pod in this language.
pub(super) fn of_pod(pod: &Pod, hami: &Hami) -> Result<Asked, DemandError> {
    let names = [&hami.count, &hami.memory, &hami.memory_percentage, &hami.cores, &hami.priority];
    let mut asked = PodDemand { resources: names.into_iter().cloned().collect(), ..PodDemand::default() };
    let selectors = card_choices(pod);
    for (list, position, container) in containers(pod) {
        if let Some(demand) = of_container(container, hami, &selectors)? {
            asked.uses.push(Use { list, container: position, demand: asked.demands.len() });
            asked.demands.push(demand);
        }
    }
    if asked.demands.is_empty() {
        return Ok(Asked::Nothing);
    }
    asked.node_placement = annotation(pod, NODE_POLICY).and_then(selectors::node_placement);
    let without_effect = WITHOUT_EFFECT.iter().filter(|(name, _)| annotation(pod, name).is_some());
    asked.notes = without_effect.map(|(name, why)| format!("{name} has no effect: {why}")).collect();
    Ok(Asked::Cards(Box::new(asked)))
}

fn of_container(container: &Container, hami: &Hami, selectors: &[String]) -> Result<Option<Demand>, DemandError> {
    let names = [&hami.count, &hami.memory, &hami.memory_percentage, &hami.cores];
    if names.into_iter().all(|name| quantity(container, name).is_none()) {
        return Ok(None);
    }
    let count = amount(container, &hami.count, MOST_CARDS.into(), "1 to 32 cards")?;
    let memory = memory(container, hami)?;
    let cores = match quantity(container, &hami.cores) {
        Some(_) => amount(container, &hami.cores, 100, "0 to 100 percent")?,
        None => Some(hami.default_cores.into()),
    };
    if quantity(container, &hami.count).is_some() && count.is_none() {
        // HAMi gives nothing to a container that asks for 0 cards, whatever else it says.
        return Ok(None);
    }
    let priority = match quantity(container, &hami.priority) {
        Some(_) => {
            amount(container, &hami.priority, 1, "0 (high) or 1 (low)")?.map_or(Priority::High, |_| Priority::Low)
        }
        // As in HAMi's own library.
        None => Priority::Low,
    };
    Ok(Some(Demand {
        cards: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(hami.default_count),
        memory,
        compute: cores.and_then(|cores| u8::try_from(cores).ok()).filter(|cores| *cores > 0),
        config: GpuConfig { priority: Some(priority), ..GpuConfig::default() },
        selectors: selectors.to_vec(),
    }))
}

fn memory(container: &Container, hami: &Hami) -> Result<Memory, DemandError> {
    const ACCEPTED: &str = "MiB, such as 3000, and less than 2^44,";
    let mebibytes = amount(container, &hami.memory, u64::MAX / MIB, ACCEPTED)?;
    let percent = amount(container, &hami.memory_percentage, 100, "0 to 100 percent")?;
    match (mebibytes, percent) {
        (None, Some(percent)) => Ok(match u8::try_from(percent) {
            Ok(percent @ 1..100) => Memory::Percent(percent),
            _ => Memory::Whole,
        }),
        // As in HAMi, an amount counts before a percentage.
        (mebibytes, _) => {
            let mebibytes = mebibytes.unwrap_or(hami.default_memory);
            let bytes = mebibytes.checked_mul(MIB);
            let bytes = bytes.ok_or_else(|| out_of_range(container, &hami.memory, &mebibytes.to_string(), ACCEPTED))?;
            Ok(if bytes == 0 { Memory::Whole } else { Memory::Bytes(bytes) })
        }
    }
}

/// The pod's choice of cards, as expressions.
fn card_choices(pod: &Pod) -> Vec<String> {
    let types = |name| annotation(pod, name).map(|types| selectors::of_types(types.split(',')));
    let uuids = |name| annotation(pod, name).map(|uuids| selectors::of_uuids(uuids.split(',')));
    let choices = [
        types(USE_TYPE),
        types(NO_USE_TYPE).as_deref().map(selectors::not),
        uuids(USE_UUID),
        // HAMi looks at these only where there are no others.
        uuids(NO_USE_UUID).filter(|_| annotation(pod, USE_UUID).is_none()).as_deref().map(selectors::not),
    ];
    choices.into_iter().flatten().collect()
}
