//! Distance between two cards.

use super::{Distance, Inventory};

impl Inventory {
    /// Distance between the cards with these indices: the nearest link that either of them lists,
    /// else the NUMA node that both are on, else [`Distance::System`]. A card is `NvLink` from
    /// itself: nothing is nearer.
    pub fn distance(&self, a: u32, b: u32) -> Distance {
        if a == b {
            return Distance::NvLink;
        }
        let (first, second) = (self.by_index(a), self.by_index(b));
        let listed = [(first, b), (second, a)]
            .into_iter()
            .flat_map(|(card, other)| card.map(|card| (card, other)))
            .flat_map(|(card, other)| card.links.iter().filter(move |(to, _)| *to == other).map(|(_, near)| *near))
            .min();
        let numa = |index| self.by_index(index).and_then(|card| card.numa_node);
        let shared_node = match (numa(a), numa(b)) {
            (Some(one), Some(other)) if one == other => Some(Distance::NumaNode),
            _ => None,
        };
        [listed, shared_node].into_iter().flatten().min().unwrap_or(Distance::System)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::tests::inventory_of;

    #[test]
    fn the_nearest_listed_link_counts_whoever_lists_it() {
        let mut inventory = inventory_of(3);
        inventory.cards[0].links = vec![(1, Distance::PcieSwitch)];
        inventory.cards[1].links = vec![(0, Distance::NvLink)];
        assert_eq!(inventory.distance(0, 1), Distance::NvLink);
        assert_eq!(inventory.distance(1, 0), Distance::NvLink);
        assert_eq!(inventory.distance(0, 2), Distance::System);
        assert_eq!(inventory.distance(2, 2), Distance::NvLink);
        assert_eq!(inventory.distance(0, 77), Distance::System);
    }

    #[test]
    fn cards_of_one_numa_node_are_nearer_than_others() {
        let mut inventory = inventory_of(3);
        inventory.cards[0].numa_node = Some(1);
        inventory.cards[1].numa_node = Some(1);
        inventory.cards[2].numa_node = Some(0);
        assert_eq!(inventory.distance(0, 1), Distance::NumaNode);
        assert_eq!(inventory.distance(1, 2), Distance::System);
    }
}
