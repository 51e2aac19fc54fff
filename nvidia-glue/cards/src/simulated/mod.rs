//! Simulated cards: the node's configuration says which, nothing is asked of any driver.

mod models;
mod nodes;
pub(super) mod uuid;

use std::time::Duration;

use base::PciBusId;
pub use nodes::{SimulatedNodes, SimulatedNodesError, make_simulated_nodes};
use runtime_config::config::{SimulatedCards, SimulatedLink};

use super::{Card, Distance, Health, Inventory, SimulatedEdges, Source};

/// Minor numbers 248 to 255 are not cards' (255 is `/dev/nvidiactl`), so this is as many cards as a
/// node can have.
const MOST_CARDS: u32 = 248;

/// The driver version that simulated cards claim, and the CUDA version that goes with it.
const CLAIMED_DRIVER: (&str, &str) = ("580.159.04", "13.0");

fn edges(table: &SimulatedCards) -> SimulatedEdges {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    SimulatedEdges {
        are_taken: table.takes_off,
        opening_us: us(table.open_time),
        closing_us: us(table.close_time),
        ramp_us: us(table.ramp_time),
    }
}

/// Simulated cards that no node could have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulatedError {
    /// None, or more than there are minor numbers.
    #[error("`[[driver.simulated]]` describes {count} cards; a node has 1 to {MOST_CARDS}")]
    Count {
        /// The sum of all `count`s.
        count: u64,
    },
    /// Two cards with one UUID.
    #[error("two simulated cards would both be `{uuid}`; give each `[[driver.simulated]]` a `uuid` of its own")]
    SameUuid {
        /// The common UUID.
        uuid: String,
    },
    /// Not the start of a UUID.
    #[error(
        "`uuid = \"{prefix}\"` is not the start of a card's UUID: `GPU-` and then hexadecimal digits, with dashes as in \
         `GPU-01234567-89ab-cdef-0123-456789abcdef`"
    )]
    Prefix {
        /// As written.
        prefix: String,
    },
}

/// The inventory that the configuration describes.
///
/// # Errors
/// When it describes none or too many, or two of the same name.
pub(crate) fn inventory(tables: &[SimulatedCards]) -> Result<Inventory, SimulatedError> {
    let count: u64 = tables.iter().map(|table| u64::from(table.count)).sum();
    if !(1..=u64::from(MOST_CARDS)).contains(&count) {
        return Err(SimulatedError::Count { count });
    }
    let mut cards: Vec<Card> = Vec::new();
    for table in tables {
        let first = next_index(&cards);
        for ordinal in 0..table.count {
            let card = card(table, first, ordinal)?;
            if cards.iter().any(|other| other.uuid == card.uuid) {
                return Err(SimulatedError::SameUuid { uuid: card.uuid });
            }
            cards.push(card);
        }
    }
    let (driver_version, cuda_version) = CLAIMED_DRIVER;
    Ok(Inventory {
        source: Source::Simulated,
        driver_version: driver_version.to_owned(),
        cuda_version: cuda_version.to_owned(),
        cards,
    })
}

fn next_index(cards: &[Card]) -> u32 {
    cards.last().map_or(0, |card| card.index + 1)
}

fn card(table: &SimulatedCards, first: u32, ordinal: u32) -> Result<Card, SimulatedError> {
    let index = first + ordinal;
    let traits = models::traits_of(&table.model);
    let uuid = uuid::simulated(table.uuid.as_deref(), &table.model, index)
        .ok_or_else(|| SimulatedError::Prefix { prefix: table.uuid.clone().unwrap_or_default() })?;
    let others = (first..first + table.count).filter(|other| *other != index);
    let links = match table.links {
        SimulatedLink::NvLink => others.map(|other| (other, Distance::NvLink)).collect(),
        SimulatedLink::PcieSwitch => others.map(|other| (other, Distance::PcieSwitch)).collect(),
        SimulatedLink::NumaNode => others.map(|other| (other, Distance::NumaNode)).collect(),
        SimulatedLink::System => Vec::new(),
    };
    Ok(Card {
        index,
        uuid,
        model: table.model.clone(),
        brand: traits.brand.to_owned(),
        compute_capability: traits.compute_capability,
        memory: table.memory,
        minor: index,
        pci: pci_address(index),
        numa_node: table.numa_node,
        links,
        mig_enabled: false,
        mig_devices: Vec::new(),
        hard_caps: table.gsp,
        simulated: Some(edges(table)),
        health: Health::Ok,
    })
}

/// Address of a card: one bus each, from 01 on; `inventory` bounds the index, so that the bus
/// always fits.
fn pci_address(index: u32) -> PciBusId {
    PciBusId { domain: 0, bus: u8::try_from(index + 1).unwrap_or(u8::MAX), device: 0, function: 0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use base::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::MigDevice;

    /// Four V100 as in the demo, or as many as asked.
    pub(crate) fn v100(count: u32) -> SimulatedCards {
        SimulatedCards::free("Tesla V100-PCIE-32GB", Bytes(32768 * Bytes::MIB), count)
    }

    /// `count` cards without links.
    pub(crate) fn inventory_of(count: u32) -> Inventory {
        inventory(&[v100(count)]).unwrap()
    }

    pub(crate) fn mig_device(index: u32, uuid: &str) -> MigDevice {
        let memory = Bytes(9 * Bytes::GIB);
        MigDevice { index, uuid: uuid.into(), gpu_instance: index + 7, compute_instance: 0, memory }
    }

    #[test]
    fn four_v100_are_four_distinct_cards_and_the_same_every_time() {
        let inventory = inventory_of(4);
        assert_eq!(inventory, inventory_of(4));
        assert_eq!(inventory.source, Source::Simulated);
        assert_eq!(inventory.cards.len(), 4);
        for (position, card) in (0u32..).zip(&inventory.cards) {
            assert_eq!((card.index, card.minor), (position, position));
            assert_eq!(card.memory, Bytes(34_359_738_368));
            assert_eq!((card.brand.as_str(), card.compute_capability), ("Tesla", (7, 0)));
            assert_eq!(card.uuid.len(), "GPU-01234567-89ab-cdef-0123-456789abcdef".len());
        }
        assert_eq!(inventory.cards[2].pci.to_string(), "0000:03:00.0");
    }

    #[test]
    fn tables_follow_one_another_and_link_only_among_themselves() {
        let linked = SimulatedCards { links: SimulatedLink::NvLink, numa_node: Some(1), ..v100(2) };
        let inventory = inventory(&[v100(1), linked]).unwrap();
        assert_eq!(inventory.cards[0].links, []);
        assert_eq!(inventory.cards[1].links, [(2, Distance::NvLink)]);
        assert_eq!(inventory.cards[2].links, [(1, Distance::NvLink)]);
        assert_eq!(inventory.distance(0, 1), Distance::System);
    }

    #[test]
    fn what_no_node_could_have_is_refused() {
        let named = |uuid: &str| SimulatedCards { uuid: Some(uuid.into()), ..v100(1) };
        assert_eq!(inventory(&[]), Err(SimulatedError::Count { count: 0 }));
        assert_eq!(inventory(&[v100(0)]), Err(SimulatedError::Count { count: 0 }));
        assert_eq!(inventory(&[v100(u32::MAX), v100(2)]), Err(SimulatedError::Count { count: 4_294_967_297 }));
        assert!(matches!(inventory(&[named("GPU-nothex")]), Err(SimulatedError::Prefix { .. })));
        let whole = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        assert!(matches!(inventory(&[named(whole), named(whole)]), Err(SimulatedError::SameUuid { .. })));
    }

    proptest! {
        #[test]
        fn any_number_of_cards_up_to_the_limit_has_unique_names(count in 1u32..=248) {
            let inventory = inventory_of(count);
            let mut uuids: Vec<_> = inventory.cards.iter().map(|card| &card.uuid).collect();
            let mut slots: Vec<_> = inventory.cards.iter().map(|card| card.pci).collect();
            uuids.sort();
            uuids.dedup();
            slots.sort();
            slots.dedup();
            prop_assert_eq!((uuids.len(), slots.len()), (count as usize, count as usize));
        }
    }
}
