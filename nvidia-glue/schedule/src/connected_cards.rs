//! Groups of containers that common cards connect.

use std::collections::BTreeMap;

/// Groups of those that have a card in common with each other, directly or through others; each by
/// position, in order, the groups by their first member. Whoever has no card is a group of its own.
pub(super) fn connected_cards<C: Ord>(cards_of: &[Vec<C>]) -> Vec<Vec<usize>> {
    // By position: somebody of the same group, who comes no later; whoever names himself is the
    // first of his group.
    let mut earlier: Vec<usize> = (0..cards_of.len()).collect();
    let mut first_on: BTreeMap<&C, usize> = BTreeMap::new();
    for (position, cards) in cards_of.iter().enumerate() {
        for card in cards {
            let other = first(&earlier, *first_on.entry(card).or_insert(position));
            let own = first(&earlier, position);
            if let Some(entry) = earlier.get_mut(own.max(other)) {
                *entry = own.min(other);
            }
        }
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for position in 0..cards_of.len() {
        groups.entry(first(&earlier, position)).or_default().push(position);
    }
    groups.into_values().collect()
}

fn first(earlier: &[usize], mut position: usize) -> usize {
    while let Some(other) = earlier.get(position).filter(|other| **other != position) {
        position = *other;
    }
    position
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_cards_tie_also_through_others() {
        assert_eq!(connected_cards::<u8>(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(connected_cards(&[vec![0], vec![1], vec![0, 1], vec![2]]), [vec![0, 1, 2], vec![3]]);
        assert_eq!(
            connected_cards(&[vec![0], vec![1], vec![2], vec![1, 2], vec![], vec![]]),
            [vec![0], vec![1, 2, 3], vec![4], vec![5]]
        );
    }

    proptest! {
        #[test]
        fn groups_are_apart_and_nobody_is_lost(
            cards_of in prop::collection::vec(prop::collection::vec(0_u8..9, 0..4), 0..12),
        ) {
            let groups = connected_cards(&cards_of);
            let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
            prop_assert!(groups.iter().all(|group| group.is_sorted()));
            all.sort_unstable();
            prop_assert_eq!(all, (0..cards_of.len()).collect::<Vec<_>>());
            for (position, cards) in cards_of.iter().enumerate() {
                for (other, others) in cards_of.iter().enumerate() {
                    let together = groups.iter().any(|group| group.contains(&position) && group.contains(&other));
                    if cards.iter().any(|card| others.contains(card)) {
                        prop_assert!(together);
                    }
                }
            }
            // Each member of a group but the first meets an earlier or later one of it.
            for group in groups.iter().filter(|group| group.len() > 1) {
                for member in group {
                    let meets = |other: &&usize| {
                        *other != member && cards_of[**other].iter().any(|card| cards_of[*member].contains(card))
                    };
                    prop_assert!(group.iter().any(|other| meets(&other)));
                }
            }
        }
    }
}
