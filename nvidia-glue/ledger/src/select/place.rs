//! In which order cards are tried when egpu chooses them. Pure.

use std::cmp::Reverse;

use cards::{Distance, Inventory};
use runtime_config::request::Placement;

/// A card that has room, and how full it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Position in the inventory's list.
    pub(crate) card: usize,
    /// Part of its memory that is granted, in millionths.
    pub(crate) memory_ppm: u64,
    /// Percent of its time that is promised.
    pub(crate) compute_percent: u32,
    /// Containers on it.
    pub(crate) containers: u32,
    /// Containers on it of the asking container's group.
    pub(crate) replicas: u32,
}

impl Candidate {
    fn fullness(&self) -> (u64, u64, u64) {
        (self.memory_ppm, u64::from(self.compute_percent), u64::from(self.containers))
    }
}

/// Sets of cards that are compared at most; above that, each card is only tried with its best
/// neighbours.
const MAX_SETS: usize = 5_000;

/// Sets of `count` of the `candidates`, the best first, each in the order of the inventory.
///
/// One card: `binpack` the fullest, `spread` the emptiest that has the fewest containers of the
/// same group; then the lower index. Several: under `spread`, fewest of the same group first; then
/// the nearest to each other (the farthest pair counts, then the sum); then by fullness and index
/// as for one.
pub(crate) fn ranked(
    inventory: &Inventory,
    candidates: &[Candidate],
    count: usize,
    placement: Placement,
) -> Vec<Vec<usize>> {
    let mut sets = if count == 0 || count > candidates.len() {
        return Vec::new();
    } else if sets_of(candidates.len(), count) <= MAX_SETS {
        every_set(candidates.len(), count)
    } else {
        neighbourhoods(inventory, candidates, count)
    };
    sets.sort_by_cached_key(|set| rank(inventory, candidates, set, placement));
    sets.dedup();
    let cards = |set: Vec<usize>| set.into_iter().filter_map(|position| candidates.get(position)).map(|one| one.card);
    sets.into_iter().map(|set| cards(set).collect()).collect()
}

type Rank = (u32, (u64, u64), Result<Reverse<[u64; 3]>, [u64; 3]>, Vec<usize>);

fn rank(inventory: &Inventory, candidates: &[Candidate], set: &[usize], placement: Placement) -> Rank {
    let members: Vec<&Candidate> = set.iter().filter_map(|position| candidates.get(*position)).collect();
    let mut full = [0; 3];
    for (memory, compute, containers) in members.iter().map(|member| member.fullness()) {
        full[0] += memory;
        full[1] += compute;
        full[2] += containers;
    }
    let replicas = members.iter().map(|member| member.replicas).sum();
    let order = members.iter().map(|member| member.card).collect();
    match placement {
        Placement::Binpack => (0, spread_of(inventory, &members), Ok(Reverse(full)), order),
        Placement::Spread => (replicas, spread_of(inventory, &members), Err(full), order),
    }
}

/// The farthest pair, and the sum over all pairs.
fn spread_of(inventory: &Inventory, members: &[&Candidate]) -> (u64, u64) {
    let mut farthest = 0;
    let mut sum = 0;
    for (position, one) in members.iter().enumerate() {
        for other in members.iter().skip(position + 1) {
            let step = steps(inventory, one.card, other.card);
            farthest = farthest.max(step);
            sum += step;
        }
    }
    (farthest, sum)
}

fn steps(inventory: &Inventory, one: usize, other: usize) -> u64 {
    let index = |position: usize| inventory.cards.get(position).map(|card| card.index);
    let (Some(one), Some(other)) = (index(one), index(other)) else { return 3 };
    match inventory.distance(one, other) {
        Distance::NvLink => 0,
        Distance::PcieSwitch => 1,
        Distance::NumaNode => 2,
        Distance::System => 3,
    }
}

fn sets_of(candidates: usize, count: usize) -> usize {
    (0..count).fold(1_usize, |sets, chosen| sets.saturating_mul(candidates - chosen) / (chosen + 1))
}

fn every_set(candidates: usize, count: usize) -> Vec<Vec<usize>> {
    let mut sets = Vec::new();
    let mut set: Vec<usize> = (0..count).collect();
    loop {
        sets.push(set.clone());
        // The last member that can still move up; those after it start right behind it.
        let Some(moving) = (0..count).rev().find(|&member| set[member] < candidates - count + member) else {
            return sets;
        };
        set[moving] += 1;
        for member in moving + 1..count {
            set[member] = set[member - 1] + 1;
        }
    }
}

/// Each candidate with those nearest to it.
fn neighbourhoods(inventory: &Inventory, candidates: &[Candidate], count: usize) -> Vec<Vec<usize>> {
    let around = |center: &Candidate| {
        let mut nearest: Vec<usize> = (0..candidates.len()).collect();
        nearest.sort_by_key(|position| {
            let other = candidates[*position].card;
            (other != center.card, steps(inventory, center.card, other), other)
        });
        nearest.truncate(count);
        nearest.sort_unstable();
        nearest
    };
    let mut sets: Vec<_> = candidates.iter().map(around).collect();
    sets.sort();
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::v100s;

    fn candidate(card: usize, memory_ppm: u64, replicas: u32) -> Candidate {
        Candidate { card, memory_ppm, compute_percent: 0, containers: 0, replicas }
    }

    #[test]
    fn binpack_takes_the_fullest_and_spread_the_emptiest() {
        let cards = [candidate(0, 10, 0), candidate(1, 30, 0), candidate(2, 30, 0), candidate(3, 0, 0)];
        let order = |placement| ranked(&v100s(4), &cards, 1, placement).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(order(Placement::Binpack), [1, 2, 0, 3]);
        assert_eq!(order(Placement::Spread), [3, 0, 1, 2]);
    }

    #[test]
    fn spread_keeps_replicas_apart_even_on_a_fuller_card() {
        let cards = [candidate(0, 10, 1), candidate(1, 900_000, 0), candidate(2, 20, 2)];
        assert_eq!(ranked(&v100s(3), &cards, 1, Placement::Spread)[0], [1]);
        assert_eq!(ranked(&v100s(3), &cards, 2, Placement::Spread)[0], [0, 1]);
    }

    #[test]
    fn several_cards_are_near_each_other() {
        let mut inventory = v100s(4);
        inventory.cards[1].links = vec![(3, Distance::NvLink)];
        inventory.cards[0].links = vec![(2, Distance::PcieSwitch)];
        let cards = [candidate(0, 90, 0), candidate(1, 0, 0), candidate(2, 90, 0), candidate(3, 0, 0)];
        for placement in [Placement::Binpack, Placement::Spread] {
            let sets = ranked(&inventory, &cards, 2, placement);
            assert_eq!(sets.len(), 6);
            assert_eq!(sets[..2], [vec![1, 3], vec![0, 2]]);
        }
    }

    #[test]
    fn many_cards_are_tried_with_their_neighbours() {
        let cards: Vec<_> = (0..32).map(|card| candidate(card, 0, 0)).collect();
        assert!(sets_of(32, 16) > MAX_SETS);
        let sets = ranked(&v100s(32), &cards, 16, Placement::Binpack);
        assert!(!sets.is_empty() && sets.iter().all(|set| set.len() == 16 && set.is_sorted()));
        assert_eq!(ranked(&v100s(4), &cards[..4], 5, Placement::Binpack), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn every_set_is_there_once() {
        for (candidates, count) in (1..9).flat_map(|candidates| (1..=candidates).map(move |count| (candidates, count)))
        {
            let mut sets = every_set(candidates, count);
            assert_eq!(sets.len(), sets_of(candidates, count));
            sets.sort();
            sets.dedup();
            assert_eq!(sets.len(), sets_of(candidates, count));
        }
    }
}
