//! Connections between cards: NVLink, directly or through switches, else what the PCIe topology
//! says.

use base::PciBusId;
use nvml_wrapper::{Device, Nvml, enum_wrappers::device::TopologyLevel, error::NvmlError};

use super::card;
use crate::{Card, Distance, Health};

/// Most NVLinks that are tried, more than any card has; NVML ends the count before that.
const MOST_NVLINKS: u32 = 36;

/// Fills in `links` of all cards that work.
pub(super) fn connect(nvml: &Nvml, cards: &mut [Card]) {
    let usable: Vec<u32> = cards.iter().filter(|card| card.health == Health::Ok).map(|card| card.index).collect();
    let ends: Vec<(u32, PciBusId, Vec<PciBusId>)> = cards
        .iter()
        .filter(|card| usable.contains(&card.index))
        .map(|card| {
            let far = nvml.device_by_index(card.index).map(|device| far_ends(&device)).unwrap_or_default();
            (card.index, card.pci, far)
        })
        .collect();
    let mut links = Vec::new();
    for (position, a) in ends.iter().enumerate() {
        for b in ends.iter().skip(position + 1) {
            let near = if nvlinked((a.1, &a.2), (b.1, &b.2)) { Some(Distance::NvLink) } else { pcie(nvml, a.0, b.0) };
            links.extend(near.map(|near| (a.0, b.0, near)));
        }
    }
    for card in cards {
        let to = |&(a, b, near): &(u32, u32, Distance)| match card.index {
            index if index == a => Some((b, near)),
            index if index == b => Some((a, near)),
            _ => None,
        };
        card.links = links.iter().filter_map(to).collect();
    }
}

/// PCI addresses at the far ends of a card's active NVLinks: cards, or NVSwitches.
fn far_ends(device: &Device<'_>) -> Vec<PciBusId> {
    let mut ends = Vec::new();
    for number in 0..MOST_NVLINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => ends.extend(link.remote_pci_info().ok().and_then(|info| card::address(&info))),
            Ok(false) => {}
            // No such link, so no further one; or no NVLink at all.
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Err(_) => {}
        }
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// A link from one to the other, or links of both into the same switch.
fn nvlinked(a: (PciBusId, &[PciBusId]), b: (PciBusId, &[PciBusId])) -> bool {
    a.1.contains(&b.0) || b.1.contains(&a.0) || a.1.iter().any(|end| b.1.contains(end))
}

fn pcie(nvml: &Nvml, a: u32, b: u32) -> Option<Distance> {
    let first = nvml.device_by_index(a).ok()?;
    // The call takes the other device by value, and devices cannot be copied.
    let level = first.topology_common_ancestor(nvml.device_by_index(b).ok()?).ok()?;
    distance(&level)
}

fn distance(level: &TopologyLevel) -> Option<Distance> {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple => Some(Distance::PcieSwitch),
        TopologyLevel::HostBridge | TopologyLevel::Node => Some(Distance::NumaNode),
        TopologyLevel::System => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(bus: u8) -> PciBusId {
        PciBusId { domain: 0, bus, device: 0, function: 0 }
    }

    #[test]
    fn nvlink_is_direct_or_through_a_common_switch() {
        let switch = [at(0xc1), at(0xc2)];
        assert!(nvlinked((at(1), &[at(2)]), (at(2), &[])));
        assert!(nvlinked((at(1), &[]), (at(2), &[at(1)])));
        assert!(nvlinked((at(1), &switch), (at(2), &switch[1..])));
        assert!(!nvlinked((at(1), &switch[..1]), (at(2), &switch[1..])));
        assert!(!nvlinked((at(1), &[]), (at(2), &[])));
    }
}
