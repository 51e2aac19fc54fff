//! Alibaba's ACK: resources, labels, and the labels of its nodes that pods select.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubernetes_api::GpuConfig;

use super::{
    Asked, Demand, DemandError, MOST_CARDS, Memory, PodDemand, Use, amount, containers, out_of_range, quantity,
};
use crate::{selectors, settings::Ack};

/// Label of ACK's nodes: the model of their cards.
const CARD_MODEL: &str = "aliyun.accelerator/nvidia_name";
/// Label of ACK's nodes: how their cards are shared. Here the RuntimeClass chooses nodes.
const SHARING: &str = "ack.node.gpu.schedule";
/// Label of ACK's nodes: how pods are placed on them.
const PLACEMENT: &str = "ack.node.gpu.placement";
const GIB: u64 = 1 << 30;

/// Returns whether a pod asks in this language.
pub(super) fn is_spoken(pod: &Pod, ack: &Ack) -> bool {
    let names = [&ack.memory, &ack.compute, &ack.count];
    containers(pod).any(|(_, _, container)| names.into_iter().any(|name| quantity(container, name).is_some()))
}

/// Reads the demands of a pod in this language.
pub(super) fn of_pod(pod: &Pod, ack: &Ack) -> Result<Asked, DemandError> {
    let names = [&ack.memory, &ack.compute, &ack.count];
    let mut asked = PodDemand { resources: names.into_iter().cloned().collect(), ..PodDemand::default() };
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(&ack.count));
    let selected = |key| pod.spec.as_ref()?.node_selector.as_ref()?.get(key).map(String::as_str);
    let models: Vec<String> = selected(CARD_MODEL).map(|model| selectors::of_types([model])).into_iter().collect();
    for (list, position, container) in containers(pod) {
        if let Some(demand) = of_container(container, ack, label.map(String::as_str), &models)? {
            asked.uses.push(Use { list, container: position, demand: asked.demands.len() });
            asked.demands.push(demand);
        }
    }
    if asked.demands.is_empty() {
        return Ok(Asked::Nothing);
    }
    asked.node_selector = [CARD_MODEL, SHARING, PLACEMENT].into_iter().filter(|key| selected(key).is_some()).collect();
    asked.node_placement = selected(PLACEMENT).and_then(selectors::node_placement);
    if selected(PLACEMENT).is_some() {
        let order = "the order of a node's cards is its own, kubernetes.placement of its configuration";
        asked.notes.push(format!("{PLACEMENT} chooses nodes, not cards: {order}"));
    }
    Ok(Asked::Cards(Box::new(asked)))
}

fn of_container(
    container: &Container,
    ack: &Ack,
    count_label: Option<&str>,
    models: &[String],
) -> Result<Option<Demand>, DemandError> {
    let memory = amount(container, &ack.memory, u64::MAX / GIB, "GiB, such as 3, and less than 2^34,")?;
    let compute = amount(container, &ack.compute, 100, "0 to 100 percent")?;
    let count = match amount(container, &ack.count, MOST_CARDS.into(), "1 to 32 cards")? {
        Some(count) => Some(count),
        None => count_label.map(|label| of_label(container, ack, label)).transpose()?,
    };
    let Some(memory) = memory else {
        let alone = [(&ack.compute, compute), (&ack.count, amount(container, &ack.count, u64::MAX, "")?)];
        return match alone.into_iter().find(|(_, amount)| amount.is_some()) {
            None => Ok(None),
            Some((name, _)) => Err(DemandError::Missing {
                container: container.name.clone(),
                name: name.clone(),
                missing: ack.memory.clone(),
            }),
        };
    };
    let count = count.unwrap_or(1);
    if !memory.is_multiple_of(count) {
        let accepted = "a multiple of the number of cards: each gives an equal part; that";
        return Err(out_of_range(container, &ack.memory, &memory.to_string(), accepted));
    }
    if count > 1 && compute.is_some() {
        let (container, one, other) = (container.name.clone(), ack.compute.clone(), format!("{count} cards"));
        return Err(DemandError::Both { container, one, other });
    }
    Ok(Some(Demand {
        cards: u32::try_from(count).unwrap_or(MOST_CARDS),
        memory: Memory::Bytes(memory / count * GIB),
        compute: compute.and_then(|compute| u8::try_from(compute).ok()),
        config: GpuConfig::default(),
        selectors: models.to_vec(),
    }))
}

/// The number of cards that the pod's label says.
fn of_label(container: &Container, ack: &Ack, label: &str) -> Result<u64, DemandError> {
    let count = label.parse().ok().filter(|count| (1..=u64::from(MOST_CARDS)).contains(count));
    count.ok_or_else(|| out_of_range(container, &ack.count, label, "1 to 32 cards"))
}
