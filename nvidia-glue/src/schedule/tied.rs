//! Who is tied to whom by common cards.

/// Groups of those that have a card in common with each other, directly or through others; each by position, in order, the
/// groups by their first member. Whoever has no card is a group of its own.
pub(super) fn tied<C: PartialEq>(cards_of: &[Vec<C>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (position, cards) in cards_of.iter().enumerate() {
        let mut group = vec![position];
        groups.retain(|other| {
            let meets =
                other.iter().filter_map(|member| cards_of.get(*member)).flatten().any(|card| cards.contains(card));
            if meets {
                group.extend(other);
            }
            !meets
        });
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_cards_tie_also_through_others() {
        assert_eq!(tied::<u8>(&[]), Vec::<Vec<usize>>::new());
        assert_eq!(tied(&[vec![0], vec![1], vec![0, 1], vec![2]]), [vec![0, 1, 2], vec![3]]);
        assert_eq!(
            tied(&[vec![0], vec![1], vec![2], vec![1, 2], vec![], vec![]]),
            [vec![0], vec![1, 2, 3], vec![4], vec![5]]
        );
    }
}
